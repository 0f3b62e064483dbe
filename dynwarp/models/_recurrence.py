"""Scans in chunks, for which work is prepared, or after which it is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def chunked_scan(
    step: Callable[[jax.Array, Any], jax.Array],
    state0: jax.Array,
    xs: Any,
    length: int,
    *,
    chunk: int | None = None,
    prepare: Callable[[Any], Any] = lambda xs: xs,
) -> jax.Array:
    """The states after each of `length` steps, `(length, n)`.

    **Arguments:**

    - `step`: `(state, x) -> state`.
    - `xs`: a pytree whose leaves have the leading axis `length`.
    - `chunk`: steps a chunk; None is one chunk.
    - `prepare`: applied to the `xs` of a chunk at once, so that a projection of the inputs is one matrix product that
      stays in cache.
    """

    def run(state, xs):
        return _scan(step, state, prepare(xs))

    if chunk is None or length <= chunk:
        return run(state0, xs)[1]
    whole = length - length % chunk
    head = jax.tree.map(lambda x: x[:whole].reshape(whole // chunk, chunk, *x.shape[1:]), xs)
    state, states = jax.lax.scan(run, state0, head)
    states = states.reshape(whole, *states.shape[2:])
    if whole == length:
        return states
    return jnp.concatenate([states, run(state, jax.tree.map(lambda x: x[whole:], xs))[1]])


def checkpointed_scan(
    step: Callable[[jax.Array, Any], jax.Array],
    state0: jax.Array,
    xs: Any,
    length: int,
    *,
    chunk: int | None,
    last_only: bool = False,
) -> jax.Array:
    """The states after each step, `(length, n)`, or the last one, `(n,)`; reverse mode keeps one state a chunk.

    A chunk of `xs` is cut out where it is used: laid out in chunks beforehand, a batch of `xs` would be copied twice.
    The price is that the gradient in `xs` is summed up in one pass over it for every chunk.
    """

    def run(state, start, size):
        xs_here = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size), xs)
        return _scan(step, state, xs_here, keep=not last_only)

    if chunk is None or length <= chunk:
        state, states = _scan(step, state0, xs, keep=not last_only)
        return state if last_only else states
    whole = length - length % chunk
    # Inside a scan nothing can be merged with the recomputation, so the barriers against it are left out.
    inner = jax.checkpoint(lambda state, start: run(state, start, chunk), prevent_cse=False)
    state, states = jax.lax.scan(inner, state0, jnp.arange(0, whole, chunk, dtype=jnp.int32))
    rest = None
    if whole < length:
        state, rest = run(state, whole, length - whole)
    if last_only:
        return state
    states = states.reshape(whole, *states.shape[2:])
    return states if rest is None else jnp.concatenate([states, rest])


def _scan(step, state, xs, keep=True) -> Any:
    def body(state, x):
        state = step(state, x)
        return state, state if keep else None

    return jax.lax.scan(body, state, xs)


def fft_length(length: int) -> int:
    """The power of two that holds a linear convolution of two signals of this length."""
    return 1 << (2 * length - 1).bit_length()
