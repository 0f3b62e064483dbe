"""Scans in chunks, for which work is prepared, or after which it is forgotten."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

# Fewer lanes are not worth a second loop.
_LANES = 8


def chunked_scan(
    step: Callable[[jax.Array, Any], jax.Array],
    state0: jax.Array,
    xs: Any,
    length: int,
    *,
    chunk: int | None = None,
    prepare: Callable[[Any], Any] | None = None,
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
        return _scan(step, state, xs if prepare is None else prepare(xs))

    if chunk is None or length <= chunk:
        return run(state0, xs)[1]
    whole = length - length % chunk
    head = jax.tree.map(lambda x: x[:whole], xs) if whole < length else xs
    state, states = _by_chunks(step, prepare, state0, head, chunk)
    if whole == length:
        return states
    return jnp.concatenate([states, run(state, jax.tree.map(lambda x: x[whole:], xs))[1]])


def _by_chunks(step, prepare, state0, xs, chunk: int) -> Any:
    """The last state and all states, whole chunks of steps."""
    here = jax.tree.map(lambda x: x[:chunk], xs)
    # What the functions close over becomes their leaves, so that it is differentiated.
    if prepare is not None:
        prepare = eqx.filter_closure_convert(prepare, here)
        here = prepare(here)
    step = eqx.filter_closure_convert(step, state0, jax.tree.map(lambda x: x[0], here))
    return _whole_chunks(step, prepare, state0, xs, chunk)


@eqx.filter_custom_jvp
def _whole_chunks(step, prepare, state0, xs, chunk):
    """By a scan that stacks its states, or under `vmap` by one that writes them where they are wanted.

    Autodiff would copy all states in every chunk of the latter, so that derivatives are those of the former.
    """
    arrays, rest = eqx.partition((step, prepare, state0, xs), eqx.is_array)

    def stacked(arrays):
        return _stacked(*eqx.combine(arrays, rest), chunk=chunk)

    def written(arrays):
        return _written(*eqx.combine(arrays, rest), chunk=chunk)

    run = jax.custom_batching.custom_vmap(stacked)

    @run.def_vmap
    def _(lanes, batched, arrays):
        axes = jax.tree.map(lambda mapped: 0 if mapped else None, batched)
        return jax.vmap(written if lanes >= _LANES else stacked, in_axes=axes)(arrays), (True, True)

    return run(arrays)


@_whole_chunks.def_jvp
def _whole_chunks_jvp(primals, tangents):
    *arguments, chunk = primals
    found, slopes = eqx.filter_jvp(functools.partial(_stacked, chunk=chunk), tuple(arguments), tuple(tangents[:-1]))
    return _batch_first(found, eqx.filter(arguments, eqx.is_array)), slopes


@eqx.filter_custom_jvp
def _batch_first(found, arrays):
    """What was found as it is, with the axis of a batch of it or of `arrays` in front under `vmap`.

    JAX takes for granted that a function and its own derivative agree on where that axis is, and if there is one.
    """
    run = jax.custom_batching.custom_vmap(lambda found, arrays: found)

    @run.def_vmap
    def _(lanes, batched, found, arrays):
        def spread(x, mapped):
            return x if mapped else jnp.broadcast_to(x, (lanes, *x.shape))

        return jax.tree.map(spread, found, batched[0]), (True, True)

    return run(found, arrays)


@_batch_first.def_jvp
def _batch_first_jvp(primals, tangents):
    found, slopes = _batch_first(*primals), tangents[0]
    return found, jax.tree.map(
        lambda x, slope: jnp.zeros_like(x) if slope is None else slope, found, slopes, is_leaf=lambda x: x is None
    )


def _stacked(step, prepare, state0, xs, *, chunk):
    if prepare is None:
        return _scan(step, state0, xs)
    chunks = jax.tree.map(lambda x: x.reshape(-1, chunk, *x.shape[1:]), xs)
    state, states = jax.lax.scan(lambda state, xs: _scan(step, state, prepare(xs)), state0, chunks)
    return state, states.reshape(-1, *states.shape[2:])


def _written(step, prepare, state0, xs, *, chunk):
    """The states of each chunk are written to their places while they are in cache.

    What a scan returns is stacked along its first axis, and the axes of a batch have to be swapped at the end: on a CPU
    that takes longer than the steps of a small network, and holds all states twice.
    """

    def run(carry, start):
        state, states = carry
        here = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, chunk), xs)
        state, new = _scan(step, state, here if prepare is None else prepare(here))
        return (state, jax.lax.dynamic_update_slice_in_dim(states, new, start, 0)), None

    length = len(jax.tree.leaves(xs)[0])
    states = jnp.zeros((length, *state0.shape), state0.dtype)
    return jax.lax.scan(run, (state0, states), jnp.arange(0, length, chunk, dtype=jnp.int32))[0]


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
        if last_only:
            return _scan(step, state0, xs, keep=False)[0]
        return chunked_scan(step, state0, xs, length, chunk=_even_chunk(length))
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


def _even_chunk(length: int) -> int:
    """Steps whose states fit a cache even for large batches, and are many enough to make up for a second loop."""
    return max((chunk for chunk in range(64, 193) if length % chunk == 0), default=128)


def _scan(step, state, xs, keep=True) -> Any:
    def body(state, x):
        state = step(state, x)
        return state, state if keep else None

    return jax.lax.scan(body, state, xs)


def fft_length(length: int) -> int:
    """The power of two that holds a linear convolution of two signals of this length."""
    return 1 << (2 * length - 1).bit_length()
