"""Derivatives of the kept states in the coordinates, over fixed steps: forwards, backwards, and by autodiff."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._simulate._scan import match_dtype
from dynwarp.geometry._observation import Observation
from dynwarp.geometry._schedule import Schedule, Step, drives, initial


class Sensitivities(eqx.Module):
    """Of one point, K states kept: the metric `(K, m, m)`, the states `(K, n)` and the tangents of what is seen of them
    `(K, m, o)` (None where they are not kept), tangents in units of exp2(`exponent`), `(K,)`; and whether all is
    finite, `(K,)`."""

    metric: jax.Array
    states: Any
    tangents: Any
    exponent: jax.Array
    finite: jax.Array


def assemble(observation: Observation, states, seen, exponent, keep: bool) -> Sensitivities:
    """Of states `(..., n)` and tangents of what is seen of them `(..., m, o)`, what is kept."""
    metric = observation.metric(seen)
    finite = jnp.all(jnp.isfinite(states), -1) & jnp.all(jnp.isfinite(metric), (-1, -2))
    return Sensitivities(metric, states if keep else None, seen if keep else None, exponent, finite)


def initial_state(model, state0, theta, drive, clock) -> jax.Array:
    """The state at the first step in the dtype that the scan carries."""
    return match_dtype(lambda z: Step(model)(z, drive, clock), initial(state0, theta), model)


def _start(model, manifold, state0, schedule, theta):
    """The drives and the initial state, as one function of theta."""
    of_steps = drives(manifold, theta, schedule)
    first = jax.tree.map(lambda x: x[0], (of_steps, schedule.flat_clock()))
    return of_steps, initial_state(model, state0, theta, *first)


def forward(model, manifold, state0, schedule: Schedule, observation: Observation, keep: bool, theta) -> Sensitivities:
    """States and tangents step by step: only they are in the carry, and products are taken as soon as they are due.

    Tangents that outgrow a quarter of the exponents of their dtype are divided by a power of two, which is counted.
    """
    step = Step(model)

    def start(theta):
        return _start(model, manifold, state0, schedule, theta)

    basis = jnp.eye(len(theta), dtype=theta.dtype)
    (of_steps, state), (d_of_steps, tangents) = jax.vmap(
        lambda e: jax.jvp(start, (theta,), (e,)), out_axes=(None, (1, 0))
    )(basis)
    limit = 2.0 ** (np.finfo(state.dtype).maxexp // 4)

    def advance(carry, x):
        state, tangents, exponent = carry
        drive, d_drive, clock = x
        shrink = jnp.exp2(-exponent)
        d_drive = jax.tree.map(lambda u: u * shrink.astype(u.dtype), d_drive)

        def push(tangent, d_drive):
            return jax.jvp(lambda z, u: step(z, u, clock), (state, drive), (tangent, d_drive))

        state, tangents = jax.vmap(push, out_axes=(None, 0))(tangents, d_drive)
        largest = jax.lax.stop_gradient(jnp.max(jnp.abs(tangents), initial=0.0))
        more = jnp.where(largest > limit, jnp.round(jnp.log2(jnp.maximum(largest, 1.0))), 0.0)
        more = jnp.where(jnp.isfinite(more), more, 0.0).astype(exponent.dtype)
        return (state, tangents * jnp.exp2(-more), exponent + more), None

    def see(carry):
        state, tangents, exponent = carry
        return assemble(observation, state, observation.push(state, tangents), exponent, keep)

    def outer(carry, xs):
        if schedule.shape[1] == 1:
            carry, _ = advance(carry, jax.tree.map(lambda x: x[0], xs))
        else:
            carry, _ = jax.lax.scan(advance, carry, xs)
        return carry, see(carry)

    carry = (state, tangents, jnp.zeros((), state.dtype))
    xs = (schedule.fold(of_steps), schedule.fold(d_of_steps), schedule.clock)
    _, found = jax.lax.scan(outer, carry, xs)
    if schedule.saved is not None:
        found = jax.tree.map(lambda x: x[np.asarray(schedule.saved)], found)
    if schedule.first:
        found = jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), see(carry), found)
    return found


def reverse(model, manifold, state0, schedule: Schedule, observation: Observation, keep: bool, theta) -> Sensitivities:
    """Adjoints: for each kept state and each observed dimension, L_s = L_{s+1} A_s back to the start, all side by side.

    What they meet on the way is pulled back through the manifold once, so that the number of coordinates costs nothing.
    """
    step, clock = Step(model), schedule.flat_clock()
    (of_steps, state), pull = jax.vjp(lambda theta: _start(model, manifold, state0, schedule, theta), theta)

    last, previous = jax.lax.scan(lambda z, x: (step(z, *x), z), state, (of_steps, clock))
    ends = schedule.ends()
    states = jnp.concatenate([previous[1:], last[None]])[ends]
    rows = jax.vmap(jax.jacrev(observation))(states)

    def backward(adjoints, x):
        index, before, drive, clock = x
        adjoints = adjoints + jnp.where((ends == index)[:, None, None], rows, 0)
        _, transpose = jax.vjp(lambda z, u: step(z, u, clock), before, drive)
        adjoints, of_drive = jax.vmap(jax.vmap(transpose))(adjoints)
        return adjoints, of_drive

    xs = (jnp.arange(len(previous)), previous, of_steps, clock)
    adjoints, of_drives = jax.lax.scan(backward, jnp.zeros_like(rows), xs, reverse=True)
    per_row = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2), of_drives)
    (gradient,) = jax.vmap(jax.vmap(lambda u, z: pull((u, z))))(per_row, adjoints)
    if schedule.first:
        states = jnp.concatenate([state[None], states])
        at_first = jax.jacrev(lambda theta: observation(_start(model, manifold, state0, schedule, theta)[1]))(theta)
        gradient = jnp.concatenate([at_first[None], gradient])
    seen = jnp.swapaxes(gradient, 1, 2).astype(states.dtype)
    return assemble(observation, states, seen, jnp.zeros(len(states), states.dtype), keep)


def reference(
    model, manifold, state0, schedule: Schedule, observation: Observation, keep: bool, theta
) -> Sensitivities:
    """The same by `jax.jacfwd` of the plain simulation."""
    step, clock = Step(model), schedule.flat_clock()

    def simulate(theta):
        of_steps, state = _start(model, manifold, state0, schedule, theta)
        states = jax.lax.scan(lambda z, x: (step(z, *x),) * 2, state, (of_steps, clock))[1][schedule.ends()]
        states = jnp.concatenate([state[None], states]) if schedule.first else states
        return jax.vmap(observation)(states), states

    gradient, states = jax.jacfwd(simulate, has_aux=True)(theta)
    seen = jnp.swapaxes(gradient, 1, 2).astype(states.dtype)
    return assemble(observation, states, seen, jnp.zeros(len(states), states.dtype), keep)
