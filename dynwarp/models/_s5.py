"""The diagonal state-space model with one system for all channels."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer
from dynwarp._typing import PRNGKey
from dynwarp.models._cell import parameter_dtype
from dynwarp.models._diagonal import AbstractDiagonalRecurrence, discretise, legs_normal_part
from dynwarp.models._readout import LinearReadout
from dynwarp.models._s4d import draw_log_steps


class S5(AbstractDiagonalRecurrence):
    """S5: one diagonal system h' = a h + B x for all inputs and outputs, sampled by zero-order hold.

    Each mode stands for itself and its complex conjugate: y = 2 Re(C h) + D x, and n_modes modes make a system of
    2 n_modes real dimensions. The state is [Re h, Im h], of size 2 `n_modes`.

    **Arguments:**

    - `input_size`, `n_modes`, `output_size`: d, the number of complex modes, o.
    - `dt_min`, `dt_max`: the time step of each mode is drawn log-uniformly between them.
    - `dtype`: of the parameters; JAX's default float if None.
    - `key`: of the random draw.

    **Attributes:** `log_decay` = log(-Re a), `frequency` = Im a, `log_dt`, each `(n_modes,)`; `B_real`, `B_imag`,
    `C_real`, `C_imag`, `D`. Initial values: a and the basis are those of the normal part of HiPPO-LegS; in it, B of
    entries N(0, 1 / d) and C of entries N(0, 1 / (2 n_modes)) are expressed; D ~ N(0, 1 / d).

    **Raises:** `ArgumentError` for sizes and time steps that are none.

    **Source:** Smith, Warrington & Linderman, ICLR 2023 (arXiv 2208.04933).

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> model = dw.models.S5(2, 8, 3, key=jax.random.key(0))
    >>> model.readout()(model(jnp.zeros(16), jnp.ones(2)), jnp.ones(2)).shape
    (3,)
    """

    log_decay: Float[Array, " modes"]
    frequency: Float[Array, " modes"]
    log_dt: Float[Array, " modes"]
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
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        dtype: Any = None,
        key: PRNGKey,
    ):
        self.input_size = check_positive_integer(input_size, "input_size", caller="S5")
        n_modes = check_positive_integer(n_modes, "n_modes", caller="S5")
        output_size = check_positive_integer(output_size, "output_size", caller="S5")
        self.state_size = 2 * n_modes
        dtype = parameter_dtype(dtype, "S5")
        dt_key, b_key, c_key, d_key = jax.random.split(key, 4)

        rates, basis = legs_normal_part(n_modes)
        self.log_decay = jnp.asarray(np.log(-rates.real), dtype)
        self.frequency = jnp.asarray(rates.imag, dtype)
        self.log_dt = draw_log_steps(dt_key, n_modes, dt_min, dt_max, dtype, "S5")
        real, imag = jnp.asarray(basis.real, dtype), jnp.asarray(basis.imag, dtype)
        B = jax.random.normal(b_key, (2 * n_modes, self.input_size), dtype) / math.sqrt(self.input_size)
        C = jax.random.normal(c_key, (output_size, 2 * n_modes), dtype) / math.sqrt(2 * n_modes)
        # The basis V is unitary: V^H B and C V.
        self.B_real, self.B_imag = real.T @ B, -imag.T @ B
        self.C_real, self.C_imag = C @ real, C @ imag
        self.D = jax.random.normal(d_key, (output_size, self.input_size), dtype) / math.sqrt(self.input_size)

    def _discrete(self):
        rates = jax.lax.complex(-jnp.exp(self.log_decay), self.frequency)
        return discretise(rates, jnp.exp(self.log_dt), "zoh")

    def multipliers(self):
        """exp(dt a), shape `(n_modes,)`, complex."""
        return self._discrete()[0]

    def drive(self, inputs):
        """B x, discretised, as [Re, Im]; inputs `(..., d)`."""
        weight = self._discrete()[1][:, None] * jax.lax.complex(self.B_real, self.B_imag)
        return inputs @ jnp.concatenate([weight.real, weight.imag]).T

    def readout(self) -> LinearReadout:
        """The output map y = 2 Re(C h) + D x."""
        return LinearReadout(jnp.concatenate([2 * self.C_real, -2 * self.C_imag], axis=1), self.D)
