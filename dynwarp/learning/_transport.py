"""One step back in time: a rule's propagator, applied along the trajectory of a model."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dynwarp._checks import check_shape
from dynwarp.errors import ModelError
from dynwarp.learning._propagators import (
    AbstractPropagator,
    CellLeak,
    Diagonal,
    Exact,
    Interpolated,
    Leak,
    Reach,
    Zero,
)
from dynwarp.learning._units import connections, is_exactly_local, isolate, recurrent_name, unit_count


class Moment(eqx.Module):
    """Where a step starts from: the state, the input, and the index of the step. Batched along time."""

    state: Array
    input: Array | None
    index: Array


def advance(model: Any, state: Array, moment: Moment) -> Array:
    """The next state, from `state` in place of the moment's."""
    return model(state, moment.input, step=moment.index).astype(state.dtype)


def step_jacobian(model: Any, moment: Moment) -> Float[Array, "n n"]:
    """J of one step, entry [i, j] = d out_i / d state_j."""
    return jax.jacfwd(lambda z: advance(model, z, moment))(moment.state)


def is_unitwise(propagator: AbstractPropagator, model: Any) -> bool:
    """Whether Z never carries an error from one unit to another."""
    if isinstance(propagator, Interpolated):
        return is_unitwise(propagator.first, model) and is_unitwise(propagator.second, model)
    if isinstance(propagator, Exact | Reach):
        return is_exactly_local(model)
    return isinstance(propagator, Leak | Zero | Diagonal | CellLeak)


def unit_blocks(propagator: AbstractPropagator, model: Any, moment: Moment) -> Float[Array, "k k U"]:
    """Z of every unit: (Z g) of coordinate c' is the sum over c of `blocks[c', c]` times g of coordinate c."""
    units = unit_count(model)
    coordinates = model.state_size // units
    if isinstance(propagator, Interpolated):
        first, second = (unit_blocks(p, model, moment) for p in (propagator.first, propagator.second))
        return (1 - propagator.theta) * first + propagator.theta * second
    if isinstance(propagator, Leak | Zero):
        decay = _decay(propagator)
        eye = jnp.eye(coordinates, dtype=moment.state.dtype)[:, :, None]
        return jnp.broadcast_to(decay * eye, (coordinates, coordinates, units))
    if isinstance(propagator, CellLeak) or (recurrent_name(model) is not None and not is_exactly_local(model)):
        local = isolate(model, moment.state, keep_diagonal=isinstance(propagator, Diagonal))
    elif is_exactly_local(model):
        local = model
    else:
        jacobian = step_jacobian(model, moment)
        return jnp.diagonal(jacobian)[None, None]
    # Units are cut from each other, so that one pullback shows the blocks of all of them.
    _, pull = jax.vjp(lambda z: advance(local, z, moment), moment.state)
    eye = jnp.eye(coordinates, dtype=moment.state.dtype)
    columns = jax.vmap(lambda e: pull(jnp.repeat(e, units))[0])(eye)
    return jnp.swapaxes(columns.reshape(coordinates, coordinates, units), 0, 1)


def apply_blocks(blocks: Float[Array, "k k U"], g: Float[Array, " n"]) -> Float[Array, " n"]:
    """Z g for a Z that is given by its blocks."""
    return jnp.sum(blocks * g.reshape(blocks.shape[0], -1), axis=1).ravel()


def transport(propagator: AbstractPropagator, model: Any, moment: Moment, g: Float[Array, " n"]) -> Float[Array, " n"]:
    """Z g for any propagator that is one matrix."""
    if is_unitwise(propagator, model):
        return apply_blocks(unit_blocks(propagator, model, moment), g)
    if isinstance(propagator, Exact):
        return jax.vjp(lambda z: advance(model, z, moment), moment.state)[1](g)[0]
    if isinstance(propagator, Interpolated):
        first, second = (transport(p, model, moment, g) for p in (propagator.first, propagator.second))
        return (1 - propagator.theta) * first + propagator.theta * second
    if isinstance(propagator, Reach):
        raise ModelError("An Interpolated propagator cannot hold a Reach, which is one matrix for each unit.")
    return propagator.matrix(step_jacobian(model, moment)) @ g


def propagator_matrix(propagator: AbstractPropagator, model: Any, moment: Moment) -> Float[Array, "n n"]:
    """Z as a matrix."""
    eye = jnp.eye(model.state_size, dtype=moment.state.dtype)
    return jax.vmap(lambda e: transport(propagator, model, moment, e), out_axes=1)(eye)


def reach_mask(propagator: Reach, model: Any) -> Bool[Array, "U n"]:
    """Entry [u, i] is whether coordinate i is within the reach of the parameters of unit u."""
    linked = connections(model, f"SnAp({propagator.order})")
    units = linked.shape[0]
    reached = jnp.eye(units, dtype=bool)
    for _ in range(min(propagator.order - 1, units)):
        reached = reached | ((linked.astype(int) @ reached.astype(int)) > 0)
    return jnp.tile(reached.T, (1, model.state_size // units))


def _decay(propagator) -> Any:
    if isinstance(propagator, Zero):
        return 0
    check_shape(propagator.decay, "decay", ())
    return propagator.decay
