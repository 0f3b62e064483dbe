"""Deep networks, and networks that read a sequence from both ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_inputs, check_shape
from dynwarp._typing import Inputs, PRNGKey, State, States
from dynwarp.errors import ArgumentError, ModelError, ShapeError
from dynwarp.models._base import AbstractMap
from dynwarp.models._cell import check_step, computing_dtype
from dynwarp.models._readout import StateReadout


class Stack(AbstractMap):
    """Cells on top of each other, stepped together.

    Within one step layer l reads what layer l - 1 has just emitted: its `readout()` if it owns one (h of an LSTM), else
    its state. The state is the concatenation of the layers' states, the lowest first; `readout()` gives what the top
    layer emits, and `split(state)` the states of the layers.

    **Arguments:**

    - `cells`: maps, from the input upwards; the `input_size` of each is the length of what the one below emits.
    - `dropout`: the probability with which each entry passed from one layer to the next is set to zero, the others
      being divided by 1 - `dropout`; the mask is new at every step. Nothing is dropped from the input or the output.
    - `layer_norm`: whether what is passed from one layer to the next is normalised to mean 0 and variance 1 over its
      entries, then scaled and shifted by parameters (`eqx.nn.LayerNorm`). Normalisation precedes dropout.

    A step takes `key=`; without one there is no dropout. `stochastic` tells whether a key makes a difference.

    **Raises:** `ArgumentError` without cells or for a `dropout` outside [0, 1); `ModelError` for a layer that is not a
    map; `ShapeError` where a layer does not fit the one below.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> k1, k2 = jax.random.split(jax.random.key(0))
    >>> net = dw.models.Stack([dw.models.LSTM(2, 3, key=k1), dw.models.GRU(3, 4, key=k2)])
    >>> state = net(jnp.zeros(10), jnp.ones(2))
    >>> net.readout()(state).shape
    (4,)
    """

    cells: tuple[AbstractMap, ...]
    norms: tuple[eqx.nn.LayerNorm, ...] | None
    dropout: float = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(self, cells: Sequence[AbstractMap], *, dropout: float = 0.0, layer_norm: bool = False):
        self.cells = tuple(cells)
        if not self.cells:
            raise ArgumentError("Stack: `cells` must hold at least one cell; got none.")
        for index, cell in enumerate(self.cells):
            _check_map(cell, f"`cells[{index}]`", "Stack")
        if not 0 <= dropout < 1:
            raise ArgumentError(f"Stack: `dropout` must be at least 0 and below 1; got {dropout!r}.")
        self.dropout = float(dropout)
        self.state_size = sum(cell.state_size for cell in self.cells)
        self.input_size = self.cells[0].input_size
        dtype = computing_dtype(self.cells)
        for index, (below, above) in enumerate(zip(self.cells, self.cells[1:])):
            emitted = emitted_shape(below, dtype)
            if emitted != (above.input_size,):
                raise ShapeError(
                    f"Stack: `cells[{index + 1}]` takes inputs of shape ({above.input_size},), but `cells[{index}]` "
                    f"emits shape {emitted}."
                )
        self.norms = (
            tuple(eqx.nn.LayerNorm(cell.input_size, dtype=dtype) for cell in self.cells[1:]) if layer_norm else None
        )

    @property
    def stochastic(self) -> bool:
        """Whether a step with a key differs from one without."""
        own = self.dropout > 0 and len(self.cells) > 1
        return own or any(is_stochastic(cell) for cell in self.cells)

    def split(self, state: State) -> tuple[State, ...]:
        """The states of the layers, the lowest first."""
        parts, start = [], 0
        for cell in self.cells:
            parts.append(state[start : start + cell.state_size])
            start += cell.state_size
        return tuple(parts)

    def readout(self) -> StateReadout | StackReadout:
        """The map from the state (and the input, should the layers feed it through) to what the top layer emits."""
        top = self.cells[-1]
        start = self.state_size - top.state_size
        emitted = _readout(top)
        if isinstance(emitted, StateReadout):
            return StateReadout(start + emitted.start, start + emitted.stop)
        return StackReadout(self)

    def __call__(self, state, input=None, *, step=None, key: PRNGKey | None = None):
        check_step(self, state, input)
        keys = [None] * len(self.cells) if key is None else list(jax.random.split(key, len(self.cells)))
        states = []
        for index, (cell, layer, layer_key) in enumerate(zip(self.cells, self.split(state), keys)):
            if index:
                input = self._passed(index, states[-1], input, layer_key)
            states.append(step_cell(cell, layer, input, step, layer_key))
        return jnp.concatenate(states)

    def _passed(self, index, state, input, key):
        """What layer `index` reads, given the state and the input of the layer below."""
        passed = emit(self.cells[index - 1], state, input)
        if self.norms is not None:
            passed = self.norms[index - 1](passed)
        # The layer's own step draws from `key`, so the mask takes a key of its own.
        mask_key = None if key is None else jax.random.fold_in(key, 1)
        return eqx.nn.Dropout(self.dropout)(passed, key=mask_key, inference=key is None)


class StackReadout(eqx.Module):
    """The readout of a stack whose top layer owns one with parameters; called as `readout(state, input=None)`."""

    stack: Stack

    def __call__(self, state: State, input: Float[Array, " d"] | None = None) -> Float[Array, " o"]:
        check_step(self.stack, state, input)
        states = self.stack.split(state)
        # Layer by layer, since a feedthrough on top reads what the layers below emit.
        for index in range(1, len(states)):
            input = self.stack._passed(index, states[index - 1], input, None)
        return emit(self.stack.cells[-1], states[-1], input)


class Bidirectional(eqx.Module):
    """Two networks, one that reads a sequence forwards and one that reads it backwards.

    It needs the whole sequence, so it is a function of sequences and no map.

    **Arguments:**

    - `forward`, `backward`: maps of one `input_size`; their state sizes may differ.

    Called as `network(inputs, *, state0=None, key=None)`:

    - `inputs`: shape `(T, d)`.
    - `state0`: both initial states, [forward, backward], shape `(n_forward + n_backward,)`; None is zeros.
    - `key`: for networks with dropout; None is inference.

    It returns states of shape `(T, n_forward + n_backward)`: entry i is the forward state after `inputs[i]` beside the
    backward state after it has read `inputs[T-1]` down to `inputs[i]`. For clocked cells the step counts what the
    network has read. Cost: 2 T steps.

    **Raises:** `ModelError` for something that is not a map; `ShapeError` where the input sizes differ, or where a call
    is not given one sequence.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> k1, k2 = jax.random.split(jax.random.key(0))
    >>> net = dw.models.Bidirectional(dw.models.GRU(2, 3, key=k1), dw.models.GRU(2, 3, key=k2))
    >>> net(jnp.ones((5, 2))).shape
    (5, 6)
    """

    forward: AbstractMap
    backward: AbstractMap

    def __check_init__(self):
        _check_map(self.forward, "`forward`", "Bidirectional")
        _check_map(self.backward, "`backward`", "Bidirectional")
        if self.forward.input_size != self.backward.input_size:
            raise ShapeError(
                "Bidirectional: `forward` and `backward` must have one `input_size`; got "
                f"{self.forward.input_size} and {self.backward.input_size}."
            )

    @property
    def state_size(self) -> int:
        """The length of an entry, n_forward + n_backward."""
        return self.forward.state_size + self.backward.state_size

    @property
    def input_size(self) -> int:
        """The length d of one input."""
        return self.forward.input_size

    def __call__(self, inputs: Inputs, *, state0: State | None = None, key: PRNGKey | None = None) -> States:
        check_inputs(self, inputs, caller="Bidirectional")
        starts = (None, None)
        if state0 is not None:
            check_shape(state0, "state0", (self.state_size,), caller="Bidirectional")
            starts = jnp.split(state0, [self.forward.state_size])
        keys = (None, None) if key is None else jax.random.split(key)
        ahead = _read(self.forward, inputs, starts[0], keys[0], reverse=False)
        back = _read(self.backward, inputs, starts[1], keys[1], reverse=True)
        return jnp.concatenate([ahead, back], axis=1)


@eqx.filter_jit
def _read(model, inputs, state0, key, *, reverse):
    """The states of one network, at the places of the inputs; `reverse` reads the last input first."""
    length = inputs.shape[0]
    if state0 is None:
        # The zeros take the dtype that a step returns, so that the scan keeps it.
        zeros = jnp.zeros(model.state_size, inputs.dtype)
        one = jnp.zeros(model.input_size, inputs.dtype)
        state0 = zeros.astype(eqx.filter_eval_shape(step_cell, model, zeros, one, 0, None).dtype)

    def body(state, x):
        input, step, step_key = x
        state = step_cell(model, state, input, step, step_key)
        return state, state

    steps = jnp.arange(length)
    steps = steps[::-1] if reverse else steps
    keys = None if key is None else jax.random.split(key, length)
    return jax.lax.scan(body, state0, (inputs, steps, keys), reverse=reverse)[1]


def step_cell(model, state, input, step, key):
    """One step, with the key where it makes a difference."""
    if key is not None and is_stochastic(model):
        return model(state, input, step=step, key=key)
    return model(state, input, step=step)


def is_stochastic(model) -> bool:
    """Whether a step with a key differs from one without."""
    return getattr(model, "stochastic", False)


def _readout(model) -> Any:
    """The model's own readout, else the whole state."""
    own = getattr(model, "readout", None)
    return StateReadout(0, model.state_size) if own is None else own()


def emit(model, state, input):
    """What a model hands on: its own readout, else its state."""
    return _readout(model)(state, input)


def emitted_shape(cell, dtype) -> tuple[int, ...]:
    """The shape of what a model hands on."""
    state, input = jnp.zeros(cell.state_size, dtype), jnp.zeros(cell.input_size, dtype)
    return eqx.filter_eval_shape(emit, cell, state, input).shape


def _check_map(model, name: str, caller: str) -> None:
    if not isinstance(model, AbstractMap):
        raise ModelError(
            f"{caller}: {name} must be an AbstractMap; got {type(model).__name__}. A cell is wrapped by `from_cell`; a "
            "field is not stepped by itself."
        )
