"""The selective state-space model: a linear recurrence whose coefficients are read from its input."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer, check_shape
from dynwarp._typing import PRNGKey
from dynwarp.errors import ModelError
from dynwarp.models._base import AbstractLinearRecurrence
from dynwarp.models._cell import check_step, parameter_dtype
from dynwarp.models._diagonal import BLOCK, diagonal_scan
from dynwarp.models._recurrence import chunked_scan
from dynwarp.models._s4d import draw_log_steps


class SelectiveSSM(AbstractLinearRecurrence):
    """The selective state-space model (the recurrence of Mamba), diagonal and real.

    Each of the d input channels x_c drives N modes, h' = exp(Delta_c A_c) h + Delta_c B x_c, with the output
    y_c = C . h_c + D_c x_c, where Delta = softplus(W_up W_down x + bias), B = W_B x and C = W_C x are read from the
    present input. The state is h, channel by channel, of size `input_size` `n_modes`. Linear in the state, not in the
    input: it has an associative form, but is no convolution.

    **Arguments:**

    - `input_size`: d, the number of channels, in and out.
    - `n_modes`: N, the modes per channel.
    - `rank`: of the projection that makes Delta; ceil(d / 16) if None.
    - `dt_min`, `dt_max`: the Delta of a zero input are drawn log-uniformly between them.
    - `dtype`: of the parameters; JAX's default float if None.
    - `key`: of the random draw.

    **Attributes:** `log_rate` = log(-A), `(d, N)`, at first log(n + 1) in mode n; `B`, `C`, `(N, d)`, entries
    N(0, 1 / d); `dt_down`, `(rank, d)`; `dt_up`, `(d, rank)`; `dt_bias`, `D` = 1, `(d,)`.

    **Raises:** `ArgumentError` for sizes and time steps that are none; `ModelError` by `convolution`.

    **Source:** Gu & Dao, COLM 2024 (arXiv 2312.00752). As in its code, A is discretised exactly and B by Euler's rule.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> model = dw.models.SelectiveSSM(2, 4, key=jax.random.key(0))
    >>> dw.simulate(model, jnp.zeros(8), jnp.ones((5, 2))).shape
    (5, 8)
    """

    log_rate: Float[Array, "d modes"]
    B: Float[Array, "modes d"]
    C: Float[Array, "modes d"]
    dt_down: Float[Array, "rank d"]
    dt_up: Float[Array, "d rank"]
    dt_bias: Float[Array, " d"]
    D: Float[Array, " d"]
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        n_modes: int,
        *,
        rank: int | None = None,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        dtype: Any = None,
        key: PRNGKey,
    ):
        d = self.input_size = check_positive_integer(input_size, "input_size", caller="SelectiveSSM")
        n_modes = check_positive_integer(n_modes, "n_modes", caller="SelectiveSSM")
        rank = math.ceil(d / 16) if rank is None else check_positive_integer(rank, "rank", caller="SelectiveSSM")
        self.state_size = d * n_modes
        dtype = parameter_dtype(dtype, "SelectiveSSM")
        b_key, c_key, down_key, up_key, dt_key = jax.random.split(key, 5)
        self.log_rate = jnp.broadcast_to(jnp.log(jnp.arange(1, n_modes + 1, dtype=dtype)), (d, n_modes))
        self.B, self.C = (jax.random.normal(k, (n_modes, d), dtype) / math.sqrt(d) for k in (b_key, c_key))
        self.dt_down = jax.random.normal(down_key, (rank, d), dtype) / math.sqrt(d)
        self.dt_up = jax.random.uniform(up_key, (d, rank), dtype, -1, 1) / math.sqrt(rank)
        # The inverse of softplus, x + log(1 - exp(-x)).
        steps = jnp.exp(draw_log_steps(dt_key, d, dt_min, dt_max, dtype, "SelectiveSSM"))
        self.dt_bias = steps + jnp.log(-jnp.expm1(-steps))
        self.D = jnp.ones(d, dtype)

    def coefficients(self, inputs: Float[Array, "... d"]) -> tuple[Float[Array, "... n"], Float[Array, "... n"]]:
        """What the inputs make of the recurrence h' = a h + b: a and b."""
        delta = jax.nn.softplus(inputs @ self.dt_down.T @ self.dt_up.T + self.dt_bias)[..., None]
        a = jnp.exp(-delta * jnp.exp(self.log_rate))
        b = delta * (inputs @ self.B.T)[..., None, :] * inputs[..., None]
        shape = (*inputs.shape[:-1], self.state_size)
        return a.reshape(shape), b.reshape(shape)

    def __call__(self, state, input=None, *, step=None):
        """The next state; see [`AbstractMap`][dynwarp.models.AbstractMap]."""
        check_step(self, state, input)
        a, b = self.coefficients(jnp.zeros(self.input_size, state.dtype) if input is None else input)
        return a * state + b

    def readout(self) -> SelectiveReadout:
        """The output map y_c = (W_C x) . h_c + D_c x_c."""
        return SelectiveReadout(self.C, self.D)

    def sequential(self, state0: Float[Array, " n"], inputs: Float[Array, "T d"]) -> Float[Array, "T n"]:
        """The states after each input, by a scan; the coefficients are made for a block of inputs at once."""
        return chunked_scan(
            lambda state, ab: ab[0] * state + ab[1],
            state0,
            inputs,
            len(inputs),
            chunk=BLOCK,
            prepare=self.coefficients,
        )

    def associative(self, state0, inputs):
        """The states after each input, by `jax.lax.associative_scan`: about 2 T products in 2 log2 T rounds."""
        a, b = self.coefficients(inputs)
        return diagonal_scan(a, b.at[:1].add(a[:1] * state0))

    def convolution(self, state0, inputs):
        """Raises `ModelError`: what multiplies the state depends on the input, so that there is no convolution."""
        raise ModelError("SelectiveSSM depends on its input in every step and is no convolution; use mode 'scan'.")


class SelectiveReadout(eqx.Module):
    """The output map of a selective model, y_c = (C x) . h_c + D_c x_c: it reads C from the input as well.

    **Arguments:** `C`, shape `(modes, d)`; `D`, shape `(d,)`.

    Called as `readout(state, input=None)`, `(d modes,)` -> `(d,)`; without an input the output is zero.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> r = dw.models.SelectiveReadout(jnp.ones((2, 1)), jnp.ones(1))
    >>> r(jnp.array([1.0, 2.0]), jnp.array([10.0])).tolist()
    [40.0]
    """

    C: Float[Array, "modes d"]
    D: Float[Array, " d"]

    def __call__(self, state: Float[Array, " n"], input: Float[Array, " d"] | None = None) -> Float[Array, " d"]:
        modes, channels = self.C.shape
        check_shape(state, "state", (modes * channels,), caller="SelectiveReadout")
        if input is None:
            return jnp.zeros(channels, state.dtype)
        check_shape(input, "input", (channels,), caller="SelectiveReadout")
        return state.reshape(channels, modes) @ (self.C @ input) + self.D * input
