"""A network that learns when to update its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer, check_shape
from dynwarp._typing import PRNGKey, Scalar
from dynwarp.errors import ModelError
from dynwarp.models._base import AbstractMap
from dynwarp.models._cell import check_step, parameter_dtype
from dynwarp.models._gated import GRU
from dynwarp.models._readout import StateReadout


class SkipRNN(AbstractMap):
    """The skip network: a binary gate, learned with the rest, updates the state of a cell or copies it.

    With an update probability p, the gate is u = round(p), and

    s' = u S(s, x) + (1 - u) s, delta = sigmoid(w . s' + b), p' = u delta + (1 - u) (p + min(delta, 1 - p)).

    The state is [s, 1 - p], so that zeros are the start of the paper, where the first step is an update.

    **Arguments:**

    - `input_size`: d, the length of x.
    - `hidden_size`: the size that `cell` is given.
    - `cell`: makes S, `cell(input_size, hidden_size, key=key) -> AbstractMap`; a class, or a `functools.partial` of
      one.
    - `straight_through`: the derivative of the rounding is taken as 1, which is how the gate is learned. The true one
      is 0; an analysis (a Jacobian, a spectrum) wants it, by
      `eqx.tree_at(lambda net: net.straight_through, net, False)`.
    - `dtype`: of w and b; JAX's default float if None. The cell has its own.
    - `key`: of the random draw.

    Parameters: `cell`, `gate_weight` w `(m,)` for a cell whose state has m entries, `gate_bias` b `()`; `state_size` is
    m + 1. Initial values: w ~ N(0, 1 / m), b = 1. `readout()` is the map from the state to s.
    Cost of a step: that of the cell, whether or not it is skipped; what is spared is the memory's wear.

    **Raises:** `ArgumentError` for sizes that are none, `ModelError` for a cell that is no map of this input; a step
    raises `ShapeError` unless it is given one state and one input.

    **Source:** Campos, Jou, Giró-i-Nieto, Torres & Chang, ICLR 2018 (arXiv 1708.06834), equations 2-5.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.SkipRNN(2, 3, key=jax.random.key(0))
    >>> states = dw.simulate(net, jnp.zeros(4), jnp.ones((5, 2)), include_initial=True)
    >>> net.updates(states[:-1]).tolist()[0]
    1.0
    """

    cell: AbstractMap
    gate_weight: Float[Array, " m"]
    gate_bias: Float[Array, ""]
    straight_through: bool
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        cell: Callable[..., AbstractMap] = GRU,
        straight_through: bool = True,
        dtype: Any = None,
        key: PRNGKey,
    ):
        self.input_size = check_positive_integer(input_size, "input_size", minimum=0, caller="SkipRNN")
        hidden_size = check_positive_integer(hidden_size, "hidden_size", caller="SkipRNN")
        cell_key, gate_key = jax.random.split(key)
        made = cell(self.input_size, hidden_size, key=cell_key)
        if not isinstance(made, AbstractMap) or made.input_size != self.input_size:
            raise ModelError(f"SkipRNN: `cell` must make a map of inputs ({self.input_size},); got {made!r}.")
        self.cell = made
        self.state_size = made.state_size + 1
        dtype = parameter_dtype(dtype, "SkipRNN")
        self.gate_weight = jax.random.normal(gate_key, (made.state_size,), dtype) / made.state_size**0.5
        self.gate_bias = jnp.ones((), dtype)
        self.straight_through = bool(straight_through)

    def updates(self, previous_states: Float[Array, "*T n"]) -> Float[Array, " *T"]:
        """The gates of the steps that start at these states, 0 or 1: `simulate(..., include_initial=True)[:-1]`."""
        check_shape(
            previous_states, "previous_states", (*previous_states.shape[:-1], self.state_size), caller="SkipRNN"
        )
        probability = 1 - previous_states[..., -1]
        # At exactly one half, rounding to even would skip.
        gate = (probability >= 0.5).astype(probability.dtype)
        if self.straight_through:
            return probability + jax.lax.stop_gradient(gate - probability)
        return gate

    def budget_loss(self, previous_states: Float[Array, "T n"]) -> Scalar:
        """The number of updates in a run, sum of u: times the price of an update, it is what the paper adds to the
        loss. Its derivative goes through the gate as the step's does."""
        return jnp.sum(self.updates(previous_states))

    def __call__(self, state, input=None, *, step=None):
        check_step(self, state, input)
        inner, rest = state[:-1], state[-1]
        gate = self.updates(state)
        inner = gate * self.cell(inner, input, step=step) + (1 - gate) * inner
        delta = jax.nn.sigmoid(self.gate_weight @ inner + self.gate_bias)
        rest = gate * (1 - delta) + (1 - gate) * jax.nn.relu(rest - delta)
        return jnp.concatenate([inner, rest[None]])

    def readout(self) -> StateReadout:
        """The map from the state to s, the state of the cell."""
        return StateReadout(0, self.state_size - 1)
