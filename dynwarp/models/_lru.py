"""The linear recurrent unit."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer
from dynwarp._typing import PRNGKey
from dynwarp.errors import ArgumentError
from dynwarp.models._cell import parameter_dtype
from dynwarp.models._diagonal import AbstractDiagonalRecurrence
from dynwarp.models._readout import LinearReadout


class LRU(AbstractDiagonalRecurrence):
    """The linear recurrent unit, h' = lambda h + gamma (B x) with outputs y = Re(C h) + D x.

    lambda = exp(-exp(nu) + i exp(theta)) has modulus below one for every nu. The state is [Re h, Im h], of size
    2 `n_modes`.

    **Arguments:**

    - `input_size`, `n_modes`, `output_size`: d, the number of complex modes, o.
    - `r_min`, `r_max`, `max_phase`: lambda is drawn uniformly (by area) from the ring between the two radii, with
      phases in `[0, max_phase]`.
    - `dtype`: of the parameters; JAX's default float if None.
    - `key`: of the random draw.

    **Attributes:** `nu`, `theta`, `log_gamma`, each `(n_modes,)`, and `B_real`, `B_imag`, `C_real`, `C_imag`, `D`.
    Initial values: B ~ N(0, 1 / 2d) and C ~ N(0, 1 / n_modes) in each part, D ~ N(0, 1 / d),
    gamma = sqrt(1 - |lambda|^2), with which white noise drives every mode to unit variance.

    **Raises:** `ArgumentError` for sizes that are no positive whole numbers and radii not in order within [0, 1].

    **Source:** Orvieto et al., ICML 2023 (arXiv 2303.06349).

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> model = dw.models.LRU(2, 8, 3, r_min=0.9, r_max=0.99, key=jax.random.key(0))
    >>> states = dw.simulate(model, jnp.zeros(16), jnp.ones((5, 2)))
    >>> jax.vmap(model.readout())(states, jnp.ones((5, 2))).shape
    (5, 3)
    """

    nu: Float[Array, " modes"]
    theta: Float[Array, " modes"]
    log_gamma: Float[Array, " modes"]
    B_real: Float[Array, "modes d"]
    B_imag: Float[Array, "modes d"]
    C_real: Float[Array, "o modes"]
    C_imag: Float[Array, "o modes"]
    D: Float[Array, "o d"]
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        n_modes: int,
        output_size: int,
        *,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * math.pi,
        dtype: Any = None,
        key: PRNGKey,
    ):
        self.input_size = check_positive_integer(input_size, "input_size", caller="LRU")
        n_modes = check_positive_integer(n_modes, "n_modes", caller="LRU")
        output_size = check_positive_integer(output_size, "output_size", caller="LRU")
        if not 0 <= r_min <= r_max <= 1 or r_max == 0:
            raise ArgumentError(
                f"LRU: the radii must satisfy 0 <= r_min <= r_max <= 1, r_max > 0; got {r_min}, {r_max}."
            )
        if not 0 < max_phase <= 2 * math.pi:
            raise ArgumentError(f"LRU: `max_phase` must lie in (0, 2 pi]; got {max_phase!r}.")
        self.state_size = 2 * n_modes
        dtype = parameter_dtype(dtype, "LRU")
        keys = jax.random.split(key, 7)

        # Uniform numbers inside (0, 1): at the ends the logarithms below are infinite.
        margin = jnp.finfo(dtype).eps
        radius, phase = (jax.random.uniform(k, (n_modes,), dtype, margin, 1 - margin) for k in keys[:2])
        squared = radius * (r_max**2 - r_min**2) + r_min**2
        squared = jnp.minimum(squared, 1 - margin)
        self.nu = jnp.log(-0.5 * jnp.log(squared))
        self.theta = jnp.log(max_phase * phase)
        self.log_gamma = 0.5 * jnp.log1p(-squared)

        def normal(key, shape, variance):
            return math.sqrt(variance) * jax.random.normal(key, shape, dtype)

        into, out = (n_modes, self.input_size), (output_size, n_modes)
        self.B_real, self.B_imag = (normal(k, into, 1 / (2 * self.input_size)) for k in keys[2:4])
        self.C_real, self.C_imag = (normal(k, out, 1 / n_modes) for k in keys[4:6])
        self.D = normal(keys[6], (output_size, self.input_size), 1 / self.input_size)

    def multipliers(self):
        """lambda, shape `(n_modes,)`, complex."""
        modulus, phase = jnp.exp(-jnp.exp(self.nu)), jnp.exp(self.theta)
        return jax.lax.complex(modulus * jnp.cos(phase), modulus * jnp.sin(phase))

    def drive(self, inputs):
        """gamma (B x), as [Re, Im]; inputs `(..., d)`."""
        gamma = jnp.exp(self.log_gamma)[:, None]
        return inputs @ jnp.concatenate([gamma * self.B_real, gamma * self.B_imag]).T

    def readout(self) -> LinearReadout:
        """The output map y = Re(C h) + D x."""
        return LinearReadout(jnp.concatenate([self.C_real, -self.C_imag], axis=1), self.D)
