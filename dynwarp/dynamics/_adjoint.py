"""Back-propagation through time as an explicit reverse recursion over the steps of a map."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_inputs, check_shape, check_state
from dynwarp._typing import Inputs, State, States
from dynwarp.dynamics._stepping import as_floating, is_field
from dynwarp.errors import ModelError
from dynwarp.models import AbstractMap


class AdjointRecursion(eqx.Module):
    """What [`adjoint_recursion`][dynwarp.dynamics.adjoint_recursion] returns.

    **Attributes:**

    - `model`: dL/dmodel, shaped like `eqx.filter(model, eqx.is_inexact_array)`.
    - `state0`: dL/dstate0, `(n,)`.
    - `inputs`: dL/dinputs, `(T, d)`, or None where there were none.
    - `adjoints`: g_t = the total derivative dL/dstates[t], `(T, n)`.
    - `states`: the states of the forward pass, `(T, n)`.
    """

    model: Any
    state0: Float[Array, " n"]
    inputs: Float[Array, "T d"] | None
    adjoints: Float[Array, "T n"]
    states: Float[Array, "T n"]


def adjoint_recursion(model: AbstractMap, state0: State, inputs: Inputs | None, cotangents: States) -> AdjointRecursion:
    """The gradients of a loss of the states of a map, by the recursion g_t = dL/dz_t + J_{t+1}^T g_{t+1}.

    This is what reverse-mode differentiation of the simulation does, written out, with every g_t kept: the profile of
    the gradient over time, for learning rules and diagnoses to start from.

    **Arguments:**

    - `model`: an `AbstractMap`.
    - `state0`: shape `(n,)`.
    - `inputs`: shape `(T, d)`, or None.
    - `cotangents`: the direct derivatives dL/dstates[t], shape `(T, n)`: those through the readout at t alone.

    **Returns:** an [`AdjointRecursion`][dynwarp.dynamics.AdjointRecursion], equal to `jax.grad` to rounding errors.
    Cost about three simulations; memory T n for the states and the adjoints, nothing else is stored of the steps.
    Itself differentiable both ways.

    **Raises:** `ShapeError`; `ModelError` for what is not a map.

    **Source:** Werbos, Proc. IEEE 78 (1990) 1550.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> cell = dw.models.Elman(1, 2, key=jax.random.key(0))
    >>> last = jnp.zeros((5, 2)).at[-1].set(1.0)
    >>> dw.dynamics.adjoint_recursion(cell, jnp.zeros(2), jnp.ones((5, 1)), last).adjoints.shape
    (5, 2)
    """
    if is_field(model, "adjoint_recursion"):
        raise ModelError(
            f"adjoint_recursion needs a map; {type(model).__name__} is a field: differentiate `dynwarp.simulate`."
        )
    check_state(model, state0, caller="adjoint_recursion")
    if inputs is not None:
        check_inputs(model, inputs, caller="adjoint_recursion")
    length = "T" if inputs is None else inputs.shape[0]
    check_shape(cotangents, "cotangents", (length, model.state_size), caller="adjoint_recursion")
    return _recursion(model, as_floating(state0), inputs, as_floating(cotangents))


@eqx.filter_jit
def _recursion(model, state0, inputs, cotangents):
    parameters, static = eqx.partition(model, eqx.is_inexact_array)
    indices = jnp.arange(cotangents.shape[0], dtype=jnp.int32)

    def step(parameters, state, input, index):
        return eqx.combine(parameters, static)(state, input, step=index).astype(state.dtype)

    def forward(state, x):
        return step(parameters, state, *x), state

    last, previous = jax.lax.scan(forward, state0, (inputs, indices))
    states = jnp.concatenate([previous[1:], last[None]])[: cotangents.shape[0]]

    def backward(carry, x):
        transported, gradient = carry
        cotangent, state, input, index = x
        adjoint = cotangent + transported
        _, transpose = jax.vjp(lambda p, z, s: step(p, z, s, index), parameters, state, input)
        of_parameters, transported, of_input = transpose(adjoint)
        return (transported, jax.tree.map(jnp.add, gradient, of_parameters)), (adjoint, of_input)

    start = (jnp.zeros_like(state0), jax.tree.map(jnp.zeros_like, parameters))
    xs = (cotangents.astype(state0.dtype), previous, inputs, indices)
    (of_state0, gradient), (adjoints, of_inputs) = jax.lax.scan(backward, start, xs, reverse=True)
    return AdjointRecursion(gradient, of_state0, of_inputs, adjoints, states)
