"""Backpropagation through time for a network with a readout: exact, or truncated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dynwarp._checks import check_finite, check_inputs, check_positive_integer, check_shape, check_state, default_float
from dynwarp._simulate import simulate
from dynwarp._typing import Inputs, Scalar, State
from dynwarp.dynamics import adjoint_recursion
from dynwarp.dynamics._stepping import as_floating, is_field
from dynwarp.errors import ArgumentError, ModelError, ShapeError
from dynwarp.models import AbstractMap


def half_squared_error(output: Float[Array, " o"], target: Float[Array, " o"]) -> Scalar:
    """Half the squared length of the error of one step."""
    return 0.5 * jnp.sum((output - target) ** 2)


class Backpropagation(eqx.Module):
    """What [`backpropagate`][dynwarp.gradients.backpropagate] returns.

    **Attributes:**

    - `loss`: the mean loss of the steps that count.
    - `model`, `readout`: its derivatives, each shaped like `eqx.filter(., eqx.is_inexact_array)`.
    - `state0`: `(n,)`.
    - `inputs`: through the states, `(T, d)`, or None where there were none.
    - `adjoints`: dL/dh_t through this step and all that follow, `(T, n)`.
    - `signals`: the part of it through the output of step t alone, `(T, n)`.
    - `states`: h_t, `(T, n)`.
    """

    loss: Scalar
    model: Any
    readout: Any
    state0: Float[Array, " n"]
    inputs: Float[Array, "T d"] | None
    adjoints: Float[Array, "T n"]
    signals: Float[Array, "T n"]
    states: Float[Array, "T n"]


def backpropagate(
    model: AbstractMap,
    readout: Any,
    inputs: Inputs | None,
    targets: Any,
    *,
    state0: State | None = None,
    loss: Callable[[Any, Any], Any] = half_squared_error,
    mask: Bool[Array, " T"] | None = None,
    truncation: tuple[int, int] | None = None,
) -> Backpropagation:
    """The gradient of the mean loss of one sequence by the recursion g_t = e_t + J_{t+1}^T g_{t+1}, latest step first.

    **Arguments:**

    - `model`: a map.
    - `readout`: a module, `readout(state, input) -> output`; called as `readout(state)` where there are no inputs.
    - `inputs`: `(T, d)`, or None.
    - `targets`: leading axis T; `targets[t]` compares with the output after `inputs[t]`.
    - `state0`: `(n,)`; zeros if None.
    - `loss`: `loss(output, target) -> scalar` of one step.
    - `mask`: which steps have a loss, `(T,)`; all if None. The loss is the mean over these. Ragged batches: pad to one
      length with any finite numbers, mask the padding, `jax.vmap`.
    - `truncation`: `(k1, k2)`, k1 <= k2: after every k1 steps the errors of these steps travel back, as far as the last
      k2 steps. (1, k) is the sliding window of k; (k, k) is what frameworks do that detach every k steps.

    **Returns:** a [`Backpropagation`][dynwarp.gradients.Backpropagation]; without truncation equal to `jax.grad` to
    rounding errors, the initial state included; with it, `adjoints` are what is left of them. Differentiable both ways.
    Cost about four simulations, with truncation k2 / k1 times that.

    **Raises:** `ShapeError`, `ArgumentError`, `NonFiniteError`, `ModelError`.

    **Source:** Werbos, Proc. IEEE 78 (1990) 1550; truncation: Williams and Peng, Neural Comput. 2 (1990) 490.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net, out = dw.models.Elman(1, 4, key=jax.random.key(0)), dw.models.Readout(4, 1, key=jax.random.key(1))
    >>> found = dw.gradients.backpropagate(net, out, jnp.ones((5, 1)), jnp.zeros((5, 1)))
    >>> found.model.recurrent_weight.shape, found.state0.shape
    ((4, 4), (4,))
    """
    caller = "backpropagate"
    state0, mask = check_sequence(model, inputs, targets, state0, mask, caller)
    if truncation is not None:
        if not (isinstance(truncation, tuple) and len(truncation) == 2):
            raise ArgumentError(f"{caller}: `truncation` must be a pair (k1, k2); got {truncation!r}.")
        every, reach = (check_positive_integer(k, f"truncation[{i}]", caller=caller) for i, k in enumerate(truncation))
        if every > reach:
            raise ArgumentError(
                f"{caller}: `truncation` (k1, k2) needs k1 <= k2, or errors are lost; got {truncation!r}."
            )
    return _backpropagate(model, readout, inputs, targets, state0, loss, mask, truncation)


def check_sequence(model, inputs, targets, state0, mask, caller: str) -> tuple[Array, Array]:
    """The initial state and the mask; raises unless all is of one sequence of one map."""
    if is_field(model, caller):
        raise ModelError(f"{caller} needs a map; {type(model).__name__} is a field: differentiate `dynwarp.simulate`.")
    if targets is None or jnp.ndim(targets) == 0 or len(targets) == 0:
        raise ShapeError(f"{caller}: `targets` must have a leading axis of at least one step; got {targets!r}.")
    if inputs is not None:
        check_inputs(model, inputs, caller=caller)
        check_finite(inputs, "inputs", caller=caller)
        if len(inputs) != len(targets):
            raise ShapeError(f"{caller}: `inputs` has {len(inputs)} steps and `targets` {len(targets)}.")
    if state0 is None:
        arrays = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
        dtype = jnp.finfo(arrays[0].dtype).dtype if arrays else default_float()
        state0 = jnp.zeros(model.state_size, dtype)
    check_state(model, state0, caller=caller)
    if mask is None:
        mask = jnp.ones(len(targets), bool)
    check_shape(mask, "mask", (len(targets),), caller=caller)
    if jnp.asarray(mask).dtype != bool:
        raise ArgumentError(f"{caller}: `mask` must be boolean; got {jnp.asarray(mask).dtype}.")
    return as_floating(state0), jnp.asarray(mask)


class _Late(AbstractMap):
    """A map whose clock is ahead by `start` steps."""

    map: AbstractMap
    start: Array
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __call__(self, state, input=None, *, step=None):
        return self.map(state, input, step=self.start if step is None else self.start + step)


@eqx.filter_jit
def _backpropagate(model, readout, inputs, targets, state0, loss, mask, truncation):
    steps = len(targets)
    states = simulate(model, state0, inputs, steps=steps, mode="scan")
    value, signals, of_readout = _through_the_readout(readout, loss, states, inputs, targets, mask)
    if truncation is None:
        found = adjoint_recursion(model, state0, inputs, signals)
        return Backpropagation(
            value, found.model, of_readout, found.state0, found.inputs, found.adjoints, signals, states
        )

    every, reach = truncation
    previous = jnp.concatenate([state0.astype(states.dtype)[None], states[:-1]])
    begins = jnp.arange(0, steps, every, dtype=jnp.int32)
    offsets = jnp.arange(min(reach, steps), dtype=jnp.int32)

    def window(begin):
        # A last chunk that is cut short reaches back as far as if it were whole.
        start = jnp.maximum(begin + every - reach, 0)
        rows = start + offsets
        own = (rows >= begin) & (rows < jnp.minimum(begin + every, steps))
        late = _Late(map=model, start=start, state_size=model.state_size, input_size=model.input_size)
        found = adjoint_recursion(
            late, previous[start], None if inputs is None else inputs[rows], jnp.where(own[:, None], signals[rows], 0)
        )
        of_state0 = jnp.where(start == 0, found.state0, 0)
        return rows, found.model.map, of_state0, found.inputs, found.adjoints

    rows, *parts = jax.vmap(window)(begins)
    of_model, of_state0 = jax.tree.map(lambda x: jnp.sum(x, axis=0), parts[:2])

    def gathered(part):
        return jnp.zeros((steps, part.shape[2]), part.dtype).at[rows].add(part)

    of_inputs, adjoints = parts[2:]
    of_inputs = None if of_inputs is None else gathered(of_inputs)
    return Backpropagation(value, of_model, of_readout, of_state0, of_inputs, gathered(adjoints), signals, states)


def _through_the_readout(readout, loss, states, inputs, targets, mask):
    """The mean loss, its derivative in every state through the output of that step, and the readout's gradient."""
    parameters, rest = eqx.partition(readout, eqx.is_inexact_array)
    # What stands where nothing counts may be NaN, which must not enter even a product with zero.
    targets = jnp.asarray(targets)
    targets = jnp.where(mask.reshape(-1, *(1,) * (targets.ndim - 1)), targets, jnp.zeros((), targets.dtype))
    if jnp.issubdtype(targets.dtype, jnp.inexact):
        targets = targets.astype(states.dtype)
    count = jnp.maximum(jnp.sum(mask), 1).astype(states.dtype)

    def mean(parameters, states):
        read = eqx.combine(parameters, rest)
        outputs = jax.vmap(read)(states) if inputs is None else jax.vmap(read)(states, inputs)
        losses = jax.vmap(loss)(outputs, targets)
        return jnp.sum(jnp.where(mask, losses, 0)) / count

    value, (of_readout, signals) = jax.value_and_grad(mean, argnums=(0, 1))(parameters, states)
    return value, signals, of_readout
