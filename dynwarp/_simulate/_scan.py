"""Maps: one `lax.scan` over time, with noise, keys and chunked rematerialisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp.errors import ModelError


def chunked_scan(step: Callable, state: jax.Array, xs: Any, length: int, remat: int | str | None) -> jax.Array:
    """The states after each of `length` steps; with `remat`, reverse mode stores one state per chunk and recomputes."""

    def body(state, x):
        state = step(state, x)
        return state, state

    if remat is None or length == 0:
        return jax.lax.scan(body, state, xs, length=length)[1]
    chunk = min(length, math.isqrt(length - 1) + 1 if remat == "sqrt" else int(remat))
    whole = length - length % chunk
    head = jax.tree.map(lambda x: x[:whole].reshape(whole // chunk, chunk, *x.shape[1:]), xs)
    # Inside a scan nothing can be merged with the recomputation, so the barriers against it are left out.
    inner = jax.checkpoint(lambda state, x: jax.lax.scan(body, state, x, length=chunk), prevent_cse=False)
    state, states = jax.lax.scan(inner, state, head, length=whole // chunk)
    states = states.reshape(whole, *states.shape[2:])
    if whole == length:
        return states
    tail = jax.tree.map(lambda x: x[whole:], xs)
    return jnp.concatenate([states, jax.lax.scan(body, state, tail, length=length - whole)[1]])


def match_dtype(apply: Callable[[jax.Array], jax.Array], state: jax.Array, model: Any) -> jax.Array:
    """`state` in the dtype that `apply` returns; raises where it does not return a state."""
    out = eqx.filter_eval_shape(apply, state)
    if getattr(out, "shape", None) != state.shape:
        raise ModelError(
            f"simulate: {type(model).__name__} must return one array of shape {state.shape}, a state; "
            f"got {jax.tree.map(lambda x: getattr(x, 'shape', x), out)}."
        )
    return state.astype(jnp.promote_types(state.dtype, out.dtype))


@eqx.filter_jit
def scan_map(model, state0, inputs, steps: int, remat: int | str | None, noise, key) -> jax.Array:
    """The states after each step of a map, `(steps, n)`."""
    noise_key, model_key = (None, None) if key is None else jax.random.split(key)
    keyed = model_key is not None and getattr(model, "stochastic", False)

    def step(state, x):
        index, input = x
        extra = {"key": jax.random.fold_in(model_key, index)} if keyed else {}
        new = model(state, input, step=index, **extra).astype(state.dtype)
        if noise is not None:
            new = new + noise.astype(new.dtype) * jax.random.normal(
                jax.random.fold_in(noise_key, index), new.shape, new.dtype
            )
        return new

    first = None if inputs is None else jnp.zeros(inputs.shape[1:], inputs.dtype)
    state0 = match_dtype(lambda state: model(state, first, step=jnp.zeros((), jnp.int32)), state0, model)
    return chunked_scan(step, state0, (jnp.arange(steps, dtype=jnp.int32), inputs), steps, remat)
