"""One scan for everything that steps through time: in chunks, with work prepared or forgotten chunk by chunk."""

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
    checkpoint: bool = False,
) -> jax.Array:
    """The states after each of `length` steps, `(length, n)`.

    **Arguments:**

    - `step`: `(state, x) -> state`.
    - `xs`: a pytree whose leaves have the leading axis `length`.
    - `chunk`: steps a chunk; None is one chunk.
    - `prepare`: applied to the `xs` of a chunk at once, so that a projection of the inputs is one matrix product that
      stays in cache.
    - `checkpoint`: reverse mode keeps one state a chunk and recomputes the rest.
    """

    def body(state, x):
        state = step(state, x)
        return state, state

    def run(state, xs, length):
        return jax.lax.scan(body, state, prepare(xs), length=length)

    if chunk is None or length <= chunk:
        return run(state0, xs, length)[1]

    def run_chunk(state, xs):
        return run(state, xs, chunk)

    # Inside a scan nothing can be merged with the recomputation, so the barriers against it are left out.
    inner = jax.checkpoint(run_chunk, prevent_cse=False) if checkpoint else run_chunk
    whole = length - length % chunk
    head = jax.tree.map(lambda x: x[:whole].reshape(whole // chunk, chunk, *x.shape[1:]), xs)
    state, states = jax.lax.scan(inner, state0, head, length=whole // chunk)
    states = states.reshape(whole, *states.shape[2:])
    if whole == length:
        return states
    tail = jax.tree.map(lambda x: x[whole:], xs)
    return jnp.concatenate([states, run(state, tail, length - whole)[1]])


def fft_length(length: int) -> int:
    """The power of two that holds a linear convolution of two signals of this length."""
    return 1 << (2 * length - 1).bit_length()
