"""Maps: one scan over time, with noise and keys; linear recurrences also in their parallel forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp.errors import ModelError
from dynwarp.models._cell import prepared
from dynwarp.models._recurrence import checkpointed_scan


@eqx.filter_jit
def scan_map(model, state0, inputs, steps: int, chunk: int | None, last_only: bool, noise, key) -> jax.Array:
    """The states after each step of a map, `(steps, n)`, or the last, `(n,)`; with a `chunk`, checkpointed."""
    noise_key, model_key = (key, key) if key is None else jax.random.split(key)
    keyed = key is not None and getattr(model, "stochastic", False)
    model = prepared(model)

    def step(state, x):
        index, input = x
        extra = {"key": _fold(model_key, index)} if keyed else {}
        state = model(state, input, step=index, **extra).astype(state.dtype)
        return state if noise is None else state + noise * draw(noise_key, index, state)

    index = jnp.zeros((), jnp.int32)
    first = None if inputs is None else jnp.zeros(inputs.shape[1:], inputs.dtype)
    state0 = match_dtype(lambda state: model(state, first, step=index), state0, model)
    xs = (jnp.arange(steps, dtype=jnp.int32), inputs)
    return checkpointed_scan(step, state0, xs, steps, chunk=chunk, last_only=last_only)


@eqx.filter_jit
def run_linear(model, state0, inputs, form: str) -> jax.Array:
    """The states of a linear recurrence after each input, `(T, n)`, by one of its own forms."""
    state0 = match_dtype(lambda state: model(state), state0, model)
    return getattr(model, form)(state0, inputs)


def chunk_size(remat: int | Literal["sqrt"] | None, length: int) -> int | None:
    """How many steps share one checkpoint."""
    return math.isqrt(max(length - 1, 0)) + 1 if remat == "sqrt" else remat


def draw(key: Any, index: jax.Array, state: jax.Array) -> jax.Array:
    """Standard normal numbers, one an entry of the state, for step `index`."""
    return jax.random.normal(_fold(key, index), state.shape, state.dtype)


def _fold(key: Any, index: jax.Array) -> jax.Array:
    # Folded, not split: no array of keys is held, and step t draws the same for every number of steps.
    return jax.random.fold_in(key, index)


def match_dtype(apply: Callable[[jax.Array], Any], state: jax.Array, model: Any) -> jax.Array:
    """`state` in the dtype that the scan will carry; raises where `apply` does not return a state."""
    out = eqx.filter_eval_shape(apply, state)
    if getattr(out, "shape", None) != state.shape:
        got = jax.tree.map(lambda x: getattr(x, "shape", x), out)
        raise ModelError(f"simulate: {type(model).__name__} must return a state, shape {state.shape}; got {got}.")
    return state.astype(jnp.promote_types(state.dtype, out.dtype))
