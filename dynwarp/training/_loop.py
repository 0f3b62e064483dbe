"""The training loop: many steps in one compiled call, each a function of the state and the index of the step alone."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from dynwarp.training._forcing import AbstractForcing
from dynwarp.training._objective import AbstractObjective
from dynwarp.training._reconstruction import Reconstruction, floating_dtype, trainable
from dynwarp.training._task_objective import Trials
from dynwarp.training._windows import Windows

# So many steps in a row without a finite gradient and update end the training, or start it anew.
MAX_FAILURES = 20
MAX_RESTARTS = 10
# Steps between the states that a restart goes back to.
GOOD_EVERY = 100
# The most steps of one compiled call; the host looks in between.
CHUNK = 256


class LoopState(eqx.Module):
    """Everything that a step changes: `failures` counts the last steps that were not finite, `rate` scales updates,
    `good` is the model to restart from, None without restarts."""

    model: Reconstruction
    optimizer_state: Any
    forcing: AbstractForcing | None
    failures: Int[Array, ""]
    restarts: Int[Array, ""]
    rate: Float[Array, ""]
    good: Reconstruction | None


class Plan(eqx.Module):
    """What stays the same from step to step; `source` draws the batches."""

    source: Windows | Trials
    objective: AbstractObjective
    limit: Int[Array, ""]
    optimizer: optax.GradientTransformation
    batch_size: int = eqx.field(static=True)
    restart: float | None = eqx.field(static=True)


def first_state(model: Reconstruction, plan: Plan) -> LoopState:
    """The state before the first step."""
    parameters: Any = eqx.filter(model, trainable(model))
    zero = jnp.zeros((), jnp.int32)
    good = None if plan.restart is None else model
    rate = jnp.ones((), floating_dtype(model.map))
    return LoopState(model, plan.optimizer.init(parameters), plan.objective.forcing, zero, zero, rate, good)


@eqx.filter_jit
def run_steps(
    state: LoopState, step: Int[Array, ""], count: Int[Array, ""], plan: Plan, key
) -> tuple[LoopState, Float[Array, "CHUNK 2"]]:
    """`count` steps, at most `CHUNK`, from step `step` on, and the loss and gradient norm of each.

    `count` is traced, so that one program serves any number of steps. A step whose loss, gradient or update is not
    finite changes no parameter; after `plan.limit` of them in a row nothing changes any more.
    """
    return _run(state, step, count, plan, key)


@eqx.filter_jit
def run_lanes(state: LoopState, step, count, plan: Plan, keys) -> tuple[LoopState, Float[Array, "S CHUNK 2"]]:
    """`run_steps` for a batch of states and keys, in step."""
    lanes = eqx.if_array(0)
    return eqx.filter_vmap(_run, in_axes=(lanes, None, None, None, lanes), out_axes=lanes)(
        state, step, count, plan, keys
    )


def _run(state: LoopState, step, count, plan: Plan, key):
    dynamic, static = eqx.partition(state, eqx.is_array)
    dtype = state.rate.dtype

    def body(i, carry):
        dynamic, history = carry
        new, row = _step(eqx.combine(dynamic, static), step + i, plan, key)
        return eqx.filter(new, eqx.is_array), history.at[i].set(row.astype(dtype))

    history = jnp.full((CHUNK, 2), jnp.nan, dtype)
    dynamic, history = jax.lax.fori_loop(0, count, body, (dynamic, history))
    return eqx.combine(dynamic, static), history


def _step(old: LoopState, step, plan: Plan, key) -> tuple[LoopState, Float[Array, " 2"]]:
    batch: Any
    gradient: Any
    batch, inputs, rest_key = plan.source.draw(plan.batch_size, jax.random.fold_in(key, step))
    forcing = old.forcing
    if forcing is not None:
        forcing = forcing.updated(old.model, batch[:, :-1], inputs, step)
    loss, gradient = plan.objective.with_forcing(forcing).gradient(old.model, batch, inputs, rest_key)
    norm = optax.tree.norm(gradient)
    parameters: Any = eqx.filter(old.model, trainable(old.model))
    # Optax counts in int32 and mixes it with floats, which strict promotion forbids.
    with jax.numpy_dtype_promotion("standard"):
        updates, optimizer_state = plan.optimizer.update(gradient, old.optimizer_state, parameters)
    if plan.restart is not None:
        updates = jax.tree.map(lambda u: u * old.rate.astype(u.dtype), updates)
    alive = old.failures < plan.limit
    finite = alive & jnp.isfinite(loss) & jnp.isfinite(norm) & jnp.isfinite(optax.tree.norm(updates))
    failures = jnp.where(finite, 0, old.failures + alive.astype(jnp.int32))
    moved = LoopState(
        eqx.apply_updates(old.model, updates), optimizer_state, forcing, failures, old.restarts, old.rate, old.good
    )
    new = _select(finite, moved, eqx.tree_at(lambda s: s.failures, old, failures))
    if plan.restart is not None:
        # The parameters before a step with a finite loss are known to be good, those after it are not.
        good = _select(finite & (step % GOOD_EVERY == 0), old.model, old.good)
        new = eqx.tree_at(lambda s: s.good, new, good)
        again = first_state(good, plan)
        again = eqx.tree_at(
            lambda s: (s.restarts, s.rate),
            again,
            (old.restarts + 1, old.rate * jnp.asarray(plan.restart, old.rate.dtype)),
        )
        new = _select((new.failures >= plan.limit) & alive & (old.restarts < MAX_RESTARTS), again, new)
    return new, jnp.where(finite, jnp.stack([loss, norm]), jnp.nan)


def _select(which, a, b):
    return jax.tree.map(lambda x, y: jnp.where(which, x, y) if eqx.is_array(x) else x, a, b)


@eqx.filter_jit
def mean_loss(model: Reconstruction, objective: AbstractObjective, batch, inputs) -> Float[Array, ""]:
    """The loss of a batch, without noise and penalties."""
    return objective.error_and_states(model, batch, inputs, None)[0]
