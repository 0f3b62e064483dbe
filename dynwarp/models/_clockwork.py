"""The clockwork network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer
from dynwarp._typing import Activation, PRNGKey
from dynwarp.errors import ArgumentError
from dynwarp.models._base import AbstractMap
from dynwarp.models._cell import check_activation, check_step, draw, drive, parameter_dtype
from dynwarp.models._initialisers import XAVIER_UNIFORM, GaussianInit, Initialiser

_GAUSSIAN = GaussianInit()


class ClockworkRNN(AbstractMap):
    """The clockwork network: modules of units with periods T_i, of which the i-th moves where T_i divides the step.

    h_i' = phi(W_i h + U_i x + b_i) if step mod T_i = 0, else h_i. A module hears those that are as slow as itself or
    slower: W is block upper triangular when the periods ascend.

    The clock is the `step` that `simulate` and the analyses of an orbit count from 0; a call without one is step 0, at
    which every module moves. The state holds no clock, and the map of one step depends on it.

    **Arguments:**

    - `input_size`: d, the length of x; 0 for a network without input.
    - `state_size`: n, the length of h.
    - `periods`: of the modules, ascending. By default 1, 2, 4, 8 (or as many of them as there are units).
    - `sizes`: of the modules, with the sum n; as equal as can be by default, the larger ones first.
    - `activation`, `use_bias`, `recurrent_init`, `input_init`, `dtype`, `key`: as for [`Elman`][dynwarp.models.Elman];
      W is drawn from N(0, 1 / n) by default, and what lies below its blocks is not used.

    Parameters: `recurrent_weight` W `(n, n)`, `input_weight` U `(n, d)`, `bias` b `(n,)` or None.
    `recurrent_matrix()` is W with its blocks cut out. Cost of a step: n (n + d) multiplications.

    **Raises:** `ArgumentError` for sizes, periods and functions that are none; a step raises `ShapeError` unless it is
    given one state and one input.

    **Source:** Koutník, Greff, Gomez & Schmidhuber, ICML 2014 (arXiv 1402.3511).

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.ClockworkRNN(1, 4, periods=(1, 3), key=jax.random.key(0))
    >>> states = dw.simulate(net, jnp.zeros(4), jnp.arange(1.0, 7)[:, None])
    >>> (jnp.diff(states, axis=0) != 0).all(axis=0).tolist(), bool((states[1, 2:] == states[2, 2:]).all())
    ([True, True, False, False], True)
    """

    recurrent_weight: Float[Array, "n n"]
    input_weight: Float[Array, "n d"]
    bias: Float[Array, " n"] | None
    activation: Activation = eqx.field(static=True)
    periods: tuple[int, ...] = eqx.field(static=True)
    sizes: tuple[int, ...] = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        state_size: int,
        *,
        periods: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
        activation: Activation = jnp.tanh,
        use_bias: bool = True,
        recurrent_init: Initialiser = _GAUSSIAN,
        input_init: Initialiser = XAVIER_UNIFORM,
        dtype: Any = None,
        key: PRNGKey,
    ):
        self.input_size = check_positive_integer(input_size, "input_size", minimum=0, caller="ClockworkRNN")
        self.state_size = n = check_positive_integer(state_size, "state_size", caller="ClockworkRNN")
        periods = (1, 2, 4, 8)[:n] if periods is None else periods
        self.periods = tuple(check_positive_integer(p, "periods", caller="ClockworkRNN") for p in periods)
        if not self.periods or len(self.periods) > n or any(np.diff(self.periods) <= 0):
            raise ArgumentError(
                f"ClockworkRNN: `periods` must ascend, at most one a unit; got {periods!r} for {n} units."
            )
        if sizes is None:
            sizes = [len(part) for part in np.array_split(np.arange(n), len(self.periods))]
        self.sizes = tuple(check_positive_integer(s, "sizes", caller="ClockworkRNN") for s in sizes)
        if len(self.sizes) != len(self.periods) or sum(self.sizes) != n:
            raise ArgumentError(
                f"ClockworkRNN: `sizes` must be one a period and sum to {n}; got {sizes!r} for {len(self.periods)} "
                "periods."
            )
        self.activation = check_activation(activation, "ClockworkRNN")
        dtype = parameter_dtype(dtype, "ClockworkRNN")
        recurrent_key, input_key = jax.random.split(key)
        self.recurrent_weight = draw(recurrent_init, recurrent_key, (n, n), dtype, "recurrent_init")
        self.input_weight = draw(input_init, input_key, (n, self.input_size), dtype, "input_init")
        self.bias = jnp.zeros(n, dtype) if use_bias else None

    @property
    def _unit_periods(self) -> np.ndarray:
        return np.repeat(np.array(self.periods, np.int32), self.sizes)

    def recurrent_matrix(self) -> Float[Array, "n n"]:
        """W without what a module may not hear, `(n, n)`."""
        periods = self._unit_periods
        return jnp.where(periods[:, None] <= periods, self.recurrent_weight, jnp.zeros((), self.recurrent_weight.dtype))

    def __call__(self, state, input=None, *, step=None):
        check_step(self, state, input)
        moved = self.activation(self.recurrent_matrix() @ state + drive(self, input))
        if step is None:
            return moved
        return jnp.where(jnp.asarray(step, jnp.int32) % self._unit_periods == 0, moved, state)
