"""Derivatives of the kept states in the coordinates, over fixed steps: forwards, backwards, and by autodiff."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._simulate._scan import match_dtype
from dynwarp.geometry._observation import Observation
from dynwarp.geometry._schedule import Clock, Step, initial


class Sensitivities(eqx.Module):
    """Of one point, K states kept: the metric `(K, m, m)`, the states `(K, n)` and the tangents of what is seen of them
    `(K, m, o)` (None where they are not kept), tangents in units of exp2(`exponent`), `(K,)`; and whether all is
    finite, `(K,)`."""

    metric: jax.Array
    states: Any
    tangents: Any
    exponent: jax.Array
    finite: jax.Array


class Problem(eqx.Module):
    """What is differentiated, and what is kept of it; with `time`, the velocity is the first tangent.

    `schedule` is a `Schedule`, or None for adaptive steps.
    """

    step: Step
    manifold: Any
    state0: Any
    schedule: Any
    observation: Observation
    time: bool = eqx.field(static=True)
    keep: bool = eqx.field(static=True)
    chunk: int | None = eqx.field(default=None, static=True)

    def start(self, theta):
        """The drives and the state at the first step, in the dtype that the scan carries."""
        of_steps = self.step.drives(self.manifold, theta, self.schedule)
        first = jax.tree.map(lambda x: x[0], (of_steps, self.schedule.flat_clock()))
        state = match_dtype(lambda z: self.step(z, *first), initial(self.state0, theta), self.step.model)
        return of_steps, state

    def velocity(self, theta, t, state, previous):
        """Of a field its value at a time; of a map the step that led to the state."""
        if t is None:
            return state - previous
        input = None if self.manifold is None else self.manifold(theta, t)
        return self.step.model(t, state, input).astype(state.dtype)

    def tangents_with_time(self, theta, times, states, previous, seen, exponent):
        """Tangents of what is seen `(K, m, o)`, with those along time before them where it is a coordinate, all in
        units of exp2(`exponent`)."""
        if not self.time:
            return seen

        def along(t, state, previous, exponent):
            velocity = self.velocity(theta, t, state, previous) * jnp.exp2(-exponent)
            return self.observation.push(state, velocity[None])

        return jnp.concatenate([jax.vmap(along)(times, states, previous, exponent), seen], 1)


def assemble(observation: Observation, states, seen, exponent, keep: bool) -> Sensitivities:
    """Of states `(..., n)` and tangents of what is seen of them `(..., m, o)`, what is kept."""
    metric = observation.metric(seen)
    finite = jnp.all(jnp.isfinite(states), -1) & jnp.all(jnp.isfinite(metric), (-1, -2))
    return Sensitivities(metric, states if keep else None, seen if keep else None, exponent, finite)


def _excess(square: jax.Array) -> jax.Array:
    """By which power of two to divide tangents of this squared length: 0 until they outgrow a quarter of the exponents
    of their dtype."""
    most = np.finfo(square.dtype).maxexp
    power = jnp.round(jnp.log2(jnp.maximum(square, 1.0)) / 2)
    power = jnp.where(square > 2.0 ** (most // 2), power, 0.0)
    return jnp.where(jnp.isposinf(square), most // 2, power).astype(square.dtype)


def in_units(tangents: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Tangents `(K, m, o)`, or `(K, o, m)`, where they exploded in units of exp2(the exponents `(K,)`), as those of
    `forward` are: so that their squares do not overflow."""
    exponent = _excess(jnp.max(jnp.sum(jax.lax.stop_gradient(tangents) ** 2, -1), -1))
    return tangents * jnp.exp2(-exponent)[:, None, None], exponent


def forward(problem: Problem, theta) -> Sensitivities:
    """States and tangents step by step: only they are in the carry, and products are taken as soon as they are due.

    Tangents that outgrow a quarter of the exponents of their dtype are divided by a power of two, which is counted.
    """
    step, schedule, observation = problem.step, problem.schedule, problem.observation
    basis = jnp.eye(len(theta), dtype=theta.dtype)
    (of_steps, state), (d_of_steps, tangents) = jax.vmap(
        lambda e: jax.jvp(problem.start, (theta,), (e,)), out_axes=(None, (1, 0))
    )(basis)
    of_field = isinstance(schedule.clock, Clock)
    back = problem.time and not of_field

    def advance(carry, x):
        state, tangents, exponent, _, square = carry
        drive, d_drive, clock = x
        more = _excess(square)
        exponent = exponent + more
        scale = jnp.exp2(-exponent)
        d_drive = jax.tree.map(lambda u: u * scale.astype(u.dtype), d_drive)

        def push(tangent, d_drive):
            return jax.jvp(lambda z, u: step(z, u, clock), (state, drive), (tangent, d_drive))

        after, tangents = jax.vmap(push, out_axes=(None, 0))(tangents * jnp.exp2(-more), d_drive)
        # A matrix product that the metric of states takes anyway.
        square = jnp.max(jnp.diagonal(Observation().metric(jax.lax.stop_gradient(tangents))))
        return (after, tangents, exponent, state if back else None, square), None

    def see(carry, t):
        state, tangents, exponent, previous, _ = carry
        if problem.time:
            along = problem.velocity(theta, t, state, previous) * jnp.exp2(-exponent)
            tangents = jnp.concatenate([along[None], tangents])
        return assemble(observation, state, observation.push(state, tangents), exponent, problem.keep)

    def outer(carry, xs):
        xs, t = xs
        if schedule.shape[1] == 1:
            carry, _ = advance(carry, jax.tree.map(lambda x: x[0], xs))
        else:
            carry, _ = jax.lax.scan(advance, carry, xs)
        return carry, see(carry, t)

    nothing = jnp.zeros((), state.dtype)
    carry = (state, tangents, nothing, state if back else None, nothing)
    xs = (schedule.fold(of_steps), schedule.fold(d_of_steps), schedule.clock)
    times = schedule.clock.right[:, -1] if of_field else None
    _, found = _scan_in_chunks(outer, carry, (xs, times), schedule.shape[0], problem.chunk)
    if schedule.saved is not None:
        found = jax.tree.map(lambda x: x[np.asarray(schedule.saved)], found)
    if schedule.first:
        begin = schedule.clock.left[0, 0]
        found = jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), see(carry, begin), found)
    return found


def _scan_in_chunks(body: Callable, carry, xs, length: int, chunk: int | None):
    """`jax.lax.scan`, of which reverse mode keeps one carry in every `chunk` steps and makes the others again."""
    if chunk is None or length <= chunk:
        return jax.lax.scan(body, carry, xs)
    whole = length - length % chunk
    chunks = jax.tree.map(lambda x: x[:whole].reshape(-1, chunk, *x.shape[1:]), xs)
    # Inside a scan nothing can be merged with the recomputation, so the barriers against it are left out.
    inner = jax.checkpoint(lambda carry, xs: jax.lax.scan(body, carry, xs), prevent_cse=False)
    carry, found = jax.lax.scan(inner, carry, chunks)
    found = jax.tree.map(lambda x: x.reshape(whole, *x.shape[2:]), found)
    if whole < length:
        carry, rest = jax.lax.scan(body, carry, jax.tree.map(lambda x: x[whole:], xs))
        found = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), found, rest)
    return carry, found


def _kept(problem: Problem, start, after):
    """Of the states after all steps, those that are kept, the states a step before them, and their times."""
    schedule, ends = problem.schedule, problem.schedule.ends()
    states, previous, times = after[ends], jnp.concatenate([start[None], after[:-1]])[ends], None
    if isinstance(schedule.clock, Clock):
        times, previous = schedule.flat_clock().right[ends], None
        if schedule.first:
            states = jnp.concatenate([start[None], states])
            times = jnp.concatenate([schedule.clock.left[0, :1], times])
    return states, previous, times


def reverse(problem: Problem, theta) -> Sensitivities:
    """Adjoints: for each kept state and each observed dimension, L_s = L_{s+1} A_s back to the start, all side by side.

    What they meet on the way is pulled back through the manifold once, so that the number of coordinates costs nothing.
    Those of a kept state that outgrow their dtype are scaled as `forward` does.
    """
    step, schedule, observation = problem.step, problem.schedule, problem.observation
    clock = schedule.flat_clock()
    (of_steps, state), pull = jax.vjp(problem.start, theta)

    last, before = jax.lax.scan(lambda z, x: (step(z, *x), z), state, (of_steps, clock))
    ends, after = schedule.ends(), jnp.concatenate([before[1:], last[None]])
    rows = jax.vmap(jax.jacrev(observation))(after[ends])

    def backward(carry, x):
        (adjoints, exponent), (index, before, drive, clock) = carry, x
        more = _excess(jnp.max(jnp.sum(jax.lax.stop_gradient(adjoints) ** 2, -1), -1))
        exponent = exponent + more
        adjoints = adjoints * jnp.exp2(-more)[:, None, None] + jnp.where((ends == index)[:, None, None], rows, 0)
        _, transpose = jax.vjp(lambda z, u: step(z, u, clock), before, drive)
        adjoints, of_drive = jax.vmap(jax.vmap(transpose))(adjoints)
        return (adjoints, exponent), (of_drive, exponent)

    xs = (jnp.arange(len(before)), before, of_steps, clock)
    carry = (jnp.zeros_like(rows), jnp.zeros(len(rows), rows.dtype))
    (adjoints, exponent), (of_drives, exponents) = jax.lax.scan(backward, carry, xs, reverse=True)
    units = jnp.exp2(exponents - exponent)

    def in_units(x):
        return x * units.reshape(*units.shape, *(1,) * (x.ndim - 2)).astype(x.dtype)

    per_row = jax.tree.map(lambda x: jnp.moveaxis(in_units(x), 0, 2), of_drives)
    (gradient,) = jax.vmap(jax.vmap(lambda u, z: pull((u, z))))(per_row, adjoints)
    # Adjoints that explode before the inputs move leave nothing of what they were at those that do.
    least = 2.0 ** -(np.finfo(gradient.dtype).maxexp // 4)
    lost = (exponent > 0) & (jnp.max(jnp.abs(gradient), (1, 2)) < least)
    gradient = jnp.where(lost[:, None, None], jnp.nan, gradient)
    if schedule.first:
        at_first = jax.jacrev(lambda theta: observation(problem.start(theta)[1]))(theta)
        gradient = jnp.concatenate([at_first[None], gradient])
        exponent = jnp.concatenate([jnp.zeros_like(exponent[:1]), exponent])
    return _finish(problem, theta, state, after, gradient, exponent.astype(state.dtype))


def reference(problem: Problem, theta) -> Sensitivities:
    """The same by `jax.jacfwd` of the plain simulation."""
    step, schedule, clock = problem.step, problem.schedule, problem.schedule.flat_clock()

    def simulate(theta):
        of_steps, state = problem.start(theta)
        after = jax.lax.scan(lambda z, x: (step(z, *x),) * 2, state, (of_steps, clock))[1]
        states = after[schedule.ends()]
        states = jnp.concatenate([state[None], states]) if schedule.first else states
        return jax.vmap(problem.observation)(states), (state, after)

    gradient, (state, after) = jax.jacfwd(simulate, has_aux=True)(theta)
    gradient, exponent = in_units(gradient)
    return _finish(problem, theta, state, after, gradient, exponent.astype(state.dtype))


def _finish(problem: Problem, theta, start, after, gradient, exponent) -> Sensitivities:
    """From the states after all steps and d y_a / d theta_i of those kept, `(K, o, m)`, in units of exp2(exponent)."""
    states, previous, times = _kept(problem, start, after)
    seen = jnp.swapaxes(gradient, 1, 2).astype(states.dtype)
    seen = problem.tangents_with_time(theta, times, states, previous, seen, exponent)
    return assemble(problem.observation, states, seen, exponent, problem.keep)
