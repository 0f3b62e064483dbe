"""Any cell of the form (input, hidden) -> hidden as a map of one real vector."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from dynwarp._checks import check_choice, check_positive_integer
from dynwarp._typing import Input, State
from dynwarp.errors import ModelError, ShapeError
from dynwarp.models._base import AbstractMap
from dynwarp.models._cell import check_step, computing_dtype


class CellMap(AbstractMap):
    """What [`from_cell`][dynwarp.models.from_cell] returns: the map h -> ravel(cell(x, unravel(h)))."""

    cell: Callable
    order: Literal["input_first", "state_first"] = eqx.field(static=True)
    structure: Any = eqx.field(static=True)
    leaves: tuple[tuple[tuple[int, ...], bool], ...] = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __call__(self, state, input=None, *, step=None):
        check_step(self, state, input)
        if input is None:
            input = jnp.zeros(self.input_size, jnp.result_type(state))
        return self.ravel(self.advance(self.unravel(state), input))

    def advance(self, hidden: PyTree, input: Input) -> PyTree:
        """The cell itself, on its own hidden pytree, its arguments in its own order."""
        return self.cell(input, hidden) if self.order == "input_first" else self.cell(hidden, input)

    def ravel(self, hidden: PyTree) -> State:
        """The hidden pytree of the cell as one real vector; a complex array gives [Re, Im]."""
        parts = []
        for leaf, (_, is_complex) in zip(jax.tree.leaves(hidden), self.leaves):
            parts += [leaf.real.ravel(), leaf.imag.ravel()] if is_complex else [leaf.ravel()]
        return jnp.concatenate(parts)

    def unravel(self, state: State) -> PyTree:
        """The hidden pytree of the cell that this vector holds."""
        hidden, start = [], 0
        for shape, is_complex in self.leaves:
            size = math.prod(shape)
            part = state[start : start + size].reshape(shape)
            start += size
            if is_complex:
                part = jax.lax.complex(part, state[start : start + size].reshape(shape))
                start += size
            hidden.append(part)
        return jax.tree.unflatten(self.structure, hidden)


def from_cell(
    cell: Callable,
    state_size: int,
    input_size: int,
    *,
    order: Literal["input_first", "state_first"] = "input_first",
    hidden: PyTree = None,
) -> CellMap:
    """Wraps any cell, `cell(input, hidden) -> hidden`, as a map.

    The hidden pytree is ravelled into one real vector, leaf after leaf in the order of `jax.tree.leaves`, so that every
    analysis works on the cell; `.ravel(hidden)` and `.unravel(state)` go between the two.

    **Arguments:**

    - `cell`: an `eqx.nn.GRUCell`, `eqx.nn.LSTMCell`, a module of your own or a function. Its arrays stay parameters.
    - `state_size`: the length of the ravelled hidden state, so twice `hidden_size` for an LSTM; a complex entry counts
      twice, its real parts before its imaginary parts.
    - `input_size`: the length of the input; a missing input is passed to the cell as zeros.
    - `order`: `"input_first"`, `cell(input, hidden)`, as in Equinox; `"state_first"`, `cell(hidden, input)`.
    - `hidden`: an example of the hidden pytree; its numbers do not matter. None is (h, c), two halves, for an
      `eqx.nn.LSTMCell` and one vector of `state_size` for every other cell.

    **Returns:** a model, an [`AbstractMap`][dynwarp.models.AbstractMap].

    **Raises:** `ShapeError` where `hidden` and `state_size` disagree; `ModelError` if the cell cannot be called so, or
    returns something else than it was given. The cell is traced once, abstractly, to find out.

    **Example:**

    >>> import equinox as eqx, jax, jax.numpy as jnp, dynwarp as dw
    >>> cell = eqx.nn.LSTMCell(2, 3, key=jax.random.key(0))
    >>> net = dw.models.from_cell(cell, 6, 2)
    >>> net(jnp.zeros(6), jnp.ones(2)).shape
    (6,)
    """
    if not callable(cell):
        raise ModelError(f"from_cell: `cell` must be a function of an input and a hidden state; got {cell!r}.")
    n = check_positive_integer(state_size, "state_size", caller="from_cell")
    d = check_positive_integer(input_size, "input_size", minimum=0, caller="from_cell")
    check_choice(order, "order", ("input_first", "state_first"), caller="from_cell")

    dtype = computing_dtype((cell, hidden))
    if hidden is None:
        hidden = _default_hidden(cell, n, dtype)
    example, structure = jax.tree.flatten(hidden)
    leaves = tuple((tuple(jnp.shape(x)), _is_complex(x)) for x in example)
    total = sum(math.prod(shape) * (2 if is_complex else 1) for shape, is_complex in leaves)
    if total != n:
        raise ShapeError(
            f"from_cell: `hidden` holds {total} real numbers (shapes {[shape for shape, _ in leaves]}), so "
            f"`state_size` must be {total}; got {n}."
        )
    model = CellMap(cell=cell, order=order, structure=structure, leaves=leaves, state_size=n, input_size=d)
    _check_cell(model, dtype)
    return model


def _is_complex(x) -> bool:
    dtype = jnp.result_type(x)
    if not jnp.issubdtype(dtype, jnp.inexact):
        raise ModelError(
            f"from_cell: `hidden` must hold floating or complex arrays; it has a leaf of dtype {dtype}. A step counter "
            "is better taken from `step`, by a subclass of AbstractMap."
        )
    return jnp.issubdtype(dtype, jnp.complexfloating)


def _default_hidden(cell, n, dtype):
    if not isinstance(cell, eqx.nn.LSTMCell):
        return jnp.zeros(n, dtype)
    if n != 2 * cell.hidden_size:
        raise ShapeError(
            f"from_cell: an LSTMCell of hidden_size {cell.hidden_size} keeps (h, c), so `state_size` must be "
            f"{2 * cell.hidden_size}; got {n}."
        )
    half = jnp.zeros(cell.hidden_size, dtype)
    return (half, half)


def _check_cell(model: CellMap, dtype) -> None:
    """One abstract call, so that a cell that does not fit is refused here and not deep inside an analysis."""
    call = "cell(input, hidden)" if model.order == "input_first" else "cell(hidden, input)"
    hidden = model.unravel(jnp.zeros(model.state_size, dtype))
    before = _describe(hidden)
    try:
        after = _describe(eqx.filter_eval_shape(CellMap.advance, model, hidden, jnp.zeros(model.input_size, dtype)))
    except Exception as error:
        raise ModelError(
            f"from_cell: {call} failed for an input of shape ({model.input_size},) and this hidden state: "
            f"{before}. Check the sizes, `order` (now {model.order!r}) and `hidden`. The cell said: "
            f"{type(error).__name__}: {error}"
        ) from error
    if before != after:
        raise ModelError(
            f"from_cell: {call} must return the next hidden state, {before}; it returned {after}. If it "
            "returns an output as well, wrap it so that only the hidden state remains; if its hidden state is no "
            "single vector, give an example of it as `hidden=`."
        )


def _describe(tree) -> str:
    """Structure and shapes on one line, such as (float64[3], float64[3])."""
    return str(jax.tree.map(lambda x: _Shape(x) if hasattr(x, "shape") else x, tree))


class _Shape:
    def __init__(self, x):
        self.text = f"{x.dtype}[{','.join(map(str, x.shape))}]"

    def __repr__(self):
        return self.text
