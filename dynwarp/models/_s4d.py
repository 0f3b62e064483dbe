"""The diagonal state-space model with one system per channel."""

from __future__ import annotations

import math
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_choice, check_positive_integer, check_shape
from dynwarp._typing import PRNGKey
from dynwarp.errors import ArgumentError
from dynwarp.models._cell import parameter_dtype
from dynwarp.models._diagonal import AbstractDiagonalRecurrence, discretise, legs_normal_part


class S4D(AbstractDiagonalRecurrence):
    """S4D: each input channel drives its own `n_modes` complex modes, h' = a h + B x, sampled with its own time step.

    Each mode stands for itself and its complex conjugate, so that the output of a channel is y = 2 Re(C h) + D x, and
    n_modes modes make the system of 2 n_modes real dimensions that the literature calls N. The state is [Re h, Im h]
    with the modes of one channel side by side, of size 2 `input_size` `n_modes`.

    **Arguments:**

    - `input_size`: d, the number of channels, in and out.
    - `n_modes`: complex modes per channel.
    - `discretisation`: `"zoh"`, zero-order hold, or `"bilinear"`.
    - `init`: the rates a. `"lin"`: -1/2 + i pi n; `"inv"`: -1/2 + i N/pi (N/(2n+1) - 1), N = 2 n_modes; `"legs"`: the
      eigenvalues of the normal part of HiPPO-LegS.
    - `dt_min`, `dt_max`: the time steps are drawn log-uniformly between them.
    - `dtype`: of the parameters; JAX's default float if None.
    - `key`: of the random draw.

    **Attributes:** `log_decay` = log(-Re a), `frequency` = Im a, `B_real`, `B_imag`, `C_real`, `C_imag`, each
    `(d, n_modes)`; `log_dt`, `D`, each `(d,)`. Initial values: B = 1, C ~ N(0, 1/2) in each part, D ~ N(0, 1).

    **Raises:** `ArgumentError` for sizes, choices and time steps that are none.

    **Source:** Gu, Goel, Gupta & Ré, NeurIPS 2022 (arXiv 2206.11893).

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> model = dw.models.S4D(2, 4, init="inv", key=jax.random.key(0))
    >>> dw.simulate(model, jnp.zeros(16), jnp.ones((5, 2))).shape
    (5, 16)
    """

    log_decay: Float[Array, "d modes"]
    frequency: Float[Array, "d modes"]
    log_dt: Float[Array, " d"]
    B_real: Float[Array, "d modes"]
    B_imag: Float[Array, "d modes"]
    C_real: Float[Array, "d modes"]
    C_imag: Float[Array, "d modes"]
    D: Float[Array, " d"]
    discretisation: Literal["zoh", "bilinear"] = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        n_modes: int,
        *,
        discretisation: Literal["zoh", "bilinear"] = "zoh",
        init: Literal["lin", "inv", "legs"] = "lin",
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        dtype: Any = None,
        key: PRNGKey,
    ):
        self.input_size = check_positive_integer(input_size, "input_size", caller="S4D")
        n_modes = check_positive_integer(n_modes, "n_modes", caller="S4D")
        check_choice(discretisation, "discretisation", ("zoh", "bilinear"), caller="S4D")
        check_choice(init, "init", ("lin", "inv", "legs"), caller="S4D")
        self.discretisation = discretisation
        self.state_size = 2 * self.input_size * n_modes
        dtype = parameter_dtype(dtype, "S4D")
        dt_key, real_key, imag_key, d_key = jax.random.split(key, 4)

        shape, n = (self.input_size, n_modes), np.arange(n_modes)
        if init == "lin":
            frequency = np.pi * n
        elif init == "inv":
            frequency = 2 * n_modes / np.pi * (2 * n_modes / (2 * n + 1) - 1)
        else:
            frequency = legs_normal_part(n_modes)[0].imag
        self.frequency = jnp.broadcast_to(jnp.asarray(frequency, dtype), shape)
        self.log_decay = jnp.full(shape, math.log(0.5), dtype)
        self.log_dt = draw_log_steps(dt_key, self.input_size, dt_min, dt_max, dtype, "S4D")
        self.B_real, self.B_imag = jnp.ones(shape, dtype), jnp.zeros(shape, dtype)
        self.C_real, self.C_imag = (math.sqrt(0.5) * jax.random.normal(k, shape, dtype) for k in (real_key, imag_key))
        self.D = jax.random.normal(d_key, (self.input_size,), dtype)

    def _discrete(self):
        rates = jax.lax.complex(-jnp.exp(self.log_decay), self.frequency)
        return discretise(rates, jnp.exp(self.log_dt)[:, None], self.discretisation)

    def multipliers(self):
        """exp(dt a) (zero-order hold) or (1 + dt a / 2) / (1 - dt a / 2) (bilinear), `(d n_modes,)`, complex."""
        return self._discrete()[0].ravel()

    def drive(self, inputs):
        """B x of every channel, discretised, as [Re, Im]; inputs `(..., d)`."""
        weight = self._discrete()[1] * jax.lax.complex(self.B_real, self.B_imag)
        parts = inputs[..., None, :, None] * jnp.stack([weight.real, weight.imag])
        return parts.reshape(*inputs.shape[:-1], self.state_size)

    def readout(self) -> ChannelReadout:
        """The output map y = 2 Re(C h) + D x, channel by channel."""
        return ChannelReadout(jnp.stack([2 * self.C_real, -2 * self.C_imag]), self.D)


class ChannelReadout(eqx.Module):
    """The output map of channels that do not mix: y_c = sum over parts and modes of C[:, c] h[:, c], plus D_c x_c.

    **Arguments:** `C`, shape `(2, d, modes)`: the weights of the real and of the imaginary parts; `D`, shape `(d,)`.

    Called as `readout(state, input=None)`, `(2 d modes,)` -> `(d,)`; a missing input is zero.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> r = dw.models.ChannelReadout(jnp.ones((2, 1, 2)), jnp.ones(1))
    >>> r(jnp.arange(4.0), jnp.array([10.0])).tolist()
    [16.0]
    """

    C: Float[Array, "2 d modes"]
    D: Float[Array, " d"]

    def __call__(self, state: Float[Array, " n"], input: Float[Array, " d"] | None = None) -> Float[Array, " d"]:
        check_shape(state, "state", (self.C.size,), caller="ChannelReadout")
        output = jnp.sum(self.C * state.reshape(self.C.shape), axis=(0, 2))
        if input is None:
            return output
        check_shape(input, "input", self.D.shape, caller="ChannelReadout")
        return output + self.D * input


def draw_log_steps(key: PRNGKey, count: int, dt_min: float, dt_max: float, dtype: Any, caller: str) -> Array:
    """Logarithms of `count` time steps, log-uniform between the two."""
    if not 0 < dt_min <= dt_max < math.inf:
        raise ArgumentError(f"{caller}: the time steps must satisfy 0 < dt_min <= dt_max; got {dt_min}, {dt_max}.")
    low, high = math.log(dt_min), math.log(dt_max)
    return low + (high - low) * jax.random.uniform(key, (count,), dtype)
