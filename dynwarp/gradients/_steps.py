"""The Jacobians of the steps of a map along an orbit, and the checks that every analysis of them begins with."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynwarp._checks import check_finite, check_shape
from dynwarp.dynamics._stepping import as_floating, is_field
from dynwarp.errors import ModelError, ShapeError
from dynwarp.models._state_jacobian import state_jacobian


class Orbit(eqx.Module):
    """The states before each step, their inputs and the indices of the steps."""

    states: Float[Array, "T n"]
    inputs: Float[Array, "T d"] | None
    indices: Int[Array, " T"]

    def last(self, count: int) -> Orbit:
        """The last `count` steps."""
        return jax.tree.map(lambda x: x[len(x) - count :], self)


def check_orbit(model: Any, previous_states: Any, inputs: Any, caller: str) -> Orbit:
    """The orbit as floats; raises unless it is one of a map."""
    if is_field(model, caller):
        raise ModelError(f"{caller} needs a map; {type(model).__name__} is a field.")
    check_shape(previous_states, "previous_states", ("T", model.state_size), caller=caller)
    if len(previous_states) == 0:
        raise ShapeError(f"{caller}: `previous_states` must have at least one row; got shape (0, {model.state_size}).")
    states = as_floating(previous_states)
    check_finite(states, "previous_states", caller=caller)
    if inputs is not None:
        check_shape(inputs, "inputs", (len(states), model.input_size), caller=caller)
        inputs = as_floating(inputs)
        check_finite(inputs, "inputs", caller=caller)
    return Orbit(states, inputs, jnp.arange(len(states), dtype=jnp.int32))


def state_jacobians(model: Any, orbit: Orbit) -> Float[Array, "T n n"]:
    """J of every step, `[t, i, j]` = d h_t,i / d h_{t-1},j."""

    return jax.vmap(lambda z, x, i: state_jacobian(model, z, x, i))(orbit.states, orbit.inputs, orbit.indices)


def input_jacobians(model: Any, orbit: Orbit) -> Float[Array, "T n d"]:
    """B of every step, `[t, i, j]` = d h_t,i / d x_t,j."""

    def one(state, input, index):
        return jax.jacfwd(lambda x: model(state, x, step=index).astype(state.dtype))(input)

    return jax.vmap(one)(orbit.states, orbit.inputs, orbit.indices)
