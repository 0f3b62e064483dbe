"""The training loop: many steps in one compiled call, each a function of the state and the index of the step alone."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from dynwarp.training._objective import Objective
from dynwarp.training._reconstruction import Reconstruction, trainable
from dynwarp.training._windows import Windows

# So many steps in a row without a finite gradient and update end the training.
MAX_FAILURES = 20
# The most steps of one compiled call; the host looks in between.
CHUNK = 256


class LoopState(eqx.Module):
    """Everything that a step changes."""

    model: Reconstruction
    optimizer_state: Any
    step: Int[Array, ""]
    failures: Int[Array, ""]


def first_state(model: Reconstruction, optimizer: optax.GradientTransformation) -> LoopState:
    """The state before the first step."""
    parameters: Any = eqx.filter(model, trainable(model))
    return LoopState(model, optimizer.init(parameters), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


@eqx.filter_jit
def run_steps(
    state: LoopState,
    count: Int[Array, ""],
    windows: Windows,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    batch_size: int,
    key,
) -> tuple[LoopState, Float[Array, "CHUNK 2"]]:
    """`count` steps, at most `CHUNK`, and the loss and gradient norm of each.

    `count` is traced, so that one program serves any number of steps. A step whose loss, gradient or update is not
    finite changes no parameter.
    """
    dynamic, static = eqx.partition(state, eqx.is_array)
    dtype = windows.values.dtype

    def body(i, carry):
        dynamic, history = carry
        old = eqx.combine(dynamic, static)
        draw_key, noise_key = jax.random.split(jax.random.fold_in(key, old.step))
        gradient: Any
        loss, gradient = objective.gradient(old.model, *windows.draw(batch_size, draw_key), noise_key)
        norm = optax.tree.norm(gradient)
        parameters: Any = eqx.filter(old.model, trainable(old.model))
        # Optax counts in int32 and mixes it with floats, which strict promotion forbids.
        with jax.numpy_dtype_promotion("standard"):
            updates, optimizer_state = optimizer.update(gradient, old.optimizer_state, parameters)
        finite = jnp.isfinite(loss) & jnp.isfinite(norm) & jnp.isfinite(optax.tree.norm(updates))
        moved = (eqx.apply_updates(old.model, updates), optimizer_state)
        kept = (old.model, old.optimizer_state)
        model, optimizer_state = jax.tree.map(
            lambda a, b: jnp.where(finite, a, b) if eqx.is_array(a) else a, moved, kept
        )

        new = LoopState(model, optimizer_state, old.step + 1, jnp.where(finite, 0, old.failures + 1))
        history = history.at[i].set(jnp.where(finite, jnp.stack([loss, norm]), jnp.nan).astype(dtype))
        return eqx.filter(new, eqx.is_array), history

    history = jnp.full((CHUNK, 2), jnp.nan, dtype)
    dynamic, history = jax.lax.fori_loop(0, count, body, (dynamic, history))
    return eqx.combine(dynamic, static), history


@eqx.filter_jit
def mean_loss(model: Reconstruction, objective: Objective, windows: Windows) -> Float[Array, ""]:
    """The loss over windows that follow each other, without noise."""
    return objective.value(model, *windows.take(windows.starts), None)
