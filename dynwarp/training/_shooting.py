"""Multiple shooting: a long sequence in pieces that start where they like, and a price for the gaps between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_finite, check_inputs, check_positive_integer, check_shape, check_state
from dynwarp._simulate import simulate
from dynwarp._typing import Inputs, Scalar, State
from dynwarp.errors import ArgumentError, ShapeError
from dynwarp.models import AbstractMap
from dynwarp.models._cell import prepared
from dynwarp.training._loss import mean_squared_error


def multiple_shooting_loss(
    model: AbstractMap,
    readout: Any,
    inputs: Inputs | None,
    targets: Any,
    starts: Float[Array, "K n"],
    *,
    continuity: float | Scalar = 1.0,
    loss: Callable[[Any, Any], Any] = mean_squared_error,
) -> Scalar:
    """The mean loss of K pieces of equal length, each from a state of its own, plus `continuity` times the mean square
    of the gaps, state by state, between the end of a piece and the start of the next.

    Where the orbits of a model diverge by a factor L a step, the Lipschitz constants of the loss of T steps grow as
    L^(2T) and those of its gradient as L^(3T); of pieces of T / K steps they grow that much slower. Train the starts
    with the model, and raise `continuity` along the way.

    **Arguments:**

    - `model`, `readout`: a map, and `readout(state, input) -> output`, called as `readout(state)` without inputs.
    - `inputs`: `(T, d)`, or None; `targets`: leading axis T.
    - `starts`: the states before the first step of each piece, `(K, n)`; K divides T.
      [`shooting_starts`][dynwarp.training.shooting_starts] is where to begin.
    - `continuity`: not negative; as it grows one loss over the whole sequence is left.
    - `loss`: `loss(output, target) -> scalar` of one step.

    **Returns:** a scalar, differentiable in the model, the readout and the starts. The pieces run side by side.

    **Raises:** `ShapeError`, `ArgumentError`, `NonFiniteError`.

    **Source:** Bock and Plitt (1984); Ribeiro, Tiels, Umenberger, Schoen and Aguirre, Automatica 121 (2020) 109158.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.LinearRNN(jnp.eye(1), jnp.zeros((1, 0)), jnp.eye(1))
    >>> starts = jnp.array([[0.0], [2.0]])
    >>> float(dw.training.multiple_shooting_loss(net, net.readout(), None, jnp.zeros((6, 1)), starts))
    6.0
    """
    caller = "multiple_shooting_loss"
    if targets is None or jnp.ndim(targets) == 0 or len(targets) == 0:
        raise ShapeError(f"{caller}: `targets` must have a leading axis of at least one step; got {targets!r}.")
    steps = len(targets)
    check_shape(starts, "starts", ("K", model.state_size), caller=caller)
    if len(starts) == 0 or steps % len(starts):
        raise ArgumentError(f"{caller}: the number of `starts` must divide the {steps} steps; got {len(starts)}.")
    if inputs is not None:
        check_inputs(model, inputs, caller=caller)
        check_finite(inputs, "inputs", caller=caller)
        if len(inputs) != steps:
            raise ShapeError(f"{caller}: `inputs` has {len(inputs)} steps and `targets` {steps}.")
    return _shooting(model, readout, inputs, jnp.asarray(targets), jnp.asarray(starts), continuity, loss)


@eqx.filter_jit
def _shooting(model, readout, inputs, targets, starts, continuity, loss):
    model = prepared(model)
    pieces = len(starts)
    indices = jnp.arange(len(targets), dtype=jnp.int32)
    cut = jax.tree.map(lambda x: x.reshape(pieces, -1, *x.shape[1:]), (indices, inputs, targets))

    def piece(start, indices, inputs, targets):
        def step(state, x):
            # A clocked cell is at the same step of the sequence as it would be without pieces.
            state = model(state, x[1], step=x[0]).astype(state.dtype)
            return state, state

        end, states = jax.lax.scan(step, start, (indices, inputs))
        outputs = jax.vmap(readout)(states) if inputs is None else jax.vmap(readout)(states, inputs)
        return jnp.mean(jax.vmap(loss)(outputs, targets)), end

    losses, ends = jax.vmap(piece)(starts, *cut)
    gaps = jnp.mean((ends[:-1] - starts[1:]) ** 2) if pieces > 1 else jnp.zeros((), starts.dtype)
    return jnp.mean(losses) + jnp.asarray(continuity, gaps.dtype) * gaps


def shooting_starts(
    model: AbstractMap, inputs: Inputs | None, pieces: int, *, state0: State | None = None, steps: int | None = None
) -> Float[Array, "K n"]:
    """The states of one run before each of so many pieces of equal length: starts without gaps.

    **Arguments:** `model`, a map; `inputs`, `(T, d)`, or None with `steps`; `pieces`, K, which divides T; `state0`,
    `(n,)`, zeros if None.

    **Returns:** `(K, n)`. Differentiable.

    **Raises:** `ArgumentError`, `ShapeError`.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> half = dw.models.LinearRNN(0.5 * jnp.eye(1), jnp.zeros((1, 0)), jnp.eye(1))
    >>> dw.training.shooting_starts(half, None, 2, state0=jnp.ones(1), steps=4).tolist()
    [[1.0], [0.25]]
    """
    caller = "shooting_starts"
    check_positive_integer(pieces, "pieces", caller=caller)
    if inputs is not None:
        check_inputs(model, inputs, caller=caller)
        steps = len(inputs)
    if steps is None or steps % pieces:
        raise ArgumentError(f"{caller}: `pieces` must divide the number of steps; got {pieces} and {steps} steps.")
    if state0 is None:
        arrays = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
        state0 = jnp.zeros(model.state_size, jnp.finfo(arrays[0].dtype).dtype if arrays else None)
    check_state(model, state0, caller=caller)
    return simulate(model, state0, inputs, steps=steps, include_initial=True)[: steps : steps // pieces]
