"""A Rosenbrock integrator for very many three-dimensional flows: Rodas4, order 4(3), L-stable, stiffly accurate.

Every lane has its own time and its own step. The state is three arrays, one a component, and the linear systems are
solved by cofactors. The stages are a loop, not unrolled: a fifth of the code to compile, and faster. A block of slots
works through a queue of lanes: a slot whose lane has ended takes the next one, so that no lane waits for another and
memory beyond the results is one block's.

**Source:** Hairer and Wanner, Solving Ordinary Differential Equations II (1996), section IV.7, code RODAS.
"""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Triple = tuple[Array, Array, Array]

RUNNING, CONVERGED, WALL, ESCAPED, TIME_LIMIT, MAX_STEPS, NON_FINITE = range(7)

_GAMMA = 0.25
# Row i holds the weights of the earlier stages in the argument of stage i + 2; the last two differ by one whole stage.
_A = (
    (1.544, 0.0, 0.0, 0.0, 0.0),
    (0.9466785280815826, 0.2557011698983284, 0.0, 0.0, 0.0),
    (3.314825187068521, 2.896124015972201, 0.9986419139977817, 0.0, 0.0),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950, 0.0),
    (1.221224509226641, 6.019134481288629, 12.53708332932087, -0.6878860361058950, 1.0),
)
_C = (
    (-5.6688, 0.0, 0.0, 0.0, 0.0),
    (-2.430093356833875, -0.2063599157091915, 0.0, 0.0, 0.0),
    (-0.1073529058151375, -9.594562251023355, -20.47028614809616, 0.0, 0.0),
    (7.496443313967647, -10.24680431464352, -33.99990352819905, 11.70890893206160, 0.0),
    (8.083246795921522, -7.981132988064893, -31.52159432874371, 16.31930543123136, -6.058818238834054),
)
_STEPS_PER_HARVEST = 4


class Problem(eqx.Module):
    """The flows. Functions take the parameters of the lanes first, and work element by element."""

    velocity: Callable[..., Triple]  # (lane, (x, y, z)) -> derivatives, element by element; NaN outside its domain
    progress: Callable[..., Array]  # (lane, state) -> what must fall below `target`
    edge: Callable[..., Array]  # (lane, state) -> what must stay below 1; a wall is where it comes within `margin`


class Settings(eqx.Module):
    """Tolerances are arrays, so that changing them does not compile anew."""

    rtol: Array
    atol: Array
    target: Array
    margin: Array
    radius: Array
    max_time: Array
    max_steps: Int[Array, ""]
    block: int = eqx.field(static=True)


class Ends(eqx.Module):
    """How every lane ended: the last accepted step, from `before` at `start` to `after` at `end`."""

    before: Triple
    after: Triple
    start: Float[Array, " N"]
    end: Float[Array, " N"]


class _Slots(eqx.Module):
    lane: Int[Array, " S"]  # N: the slot is idle
    own: object  # the lanes' own parameters
    state: Triple
    before: Triple
    t: Array
    start: Array
    h: Array
    steps: Int[Array, " S"]
    saved: Int[Array, " S"]
    status: Int[Array, " S"]


def integrate(problem: Problem, lanes, initial: Triple, ts: Float[Array, " T"] | None, settings: Settings):
    """Integrates every lane until something ends it; with `ts`, from 0, the states there are stored.

    **Arguments:**

    - `lanes`: a pytree of `(N,)` arrays, the parameters that differ between lanes.
    - `initial`: the starting states, three `(N,)`.

    **Returns:** `(saved, ends, status, steps)`: the stored states, three `(N, T)`, NaN after a lane's end;
    [`Ends`][]; and for each lane a code and the number of attempted steps.
    """
    n = initial[0].shape[0]
    size = min(settings.block, n)
    dtype = initial[0].dtype
    empty = jnp.zeros(n, dtype)
    saved = None if ts is None else (jnp.full((n, ts.shape[0]), jnp.nan, dtype),) * 3
    ends = Ends((empty, empty, empty), (empty, empty, empty), empty, empty)
    codes = jnp.zeros(n, jnp.int32)
    limit = settings.max_time if ts is None else ts[-1]

    def load(lane):
        own = jax.tree.map(lambda x: x[jnp.minimum(lane, n - 1)], lanes)
        x, y, z = (component[jnp.minimum(lane, n - 1)] for component in initial)
        return _start(problem, own, (x, y, z), lane, n, limit, settings)

    def body(carry):
        slots, waiting, saved, ends, status, steps = carry
        slots, saved = jax.lax.fori_loop(
            0, _STEPS_PER_HARVEST, lambda _, work: _advance(problem, work[0], work[1], ts, settings), (slots, saved)
        )
        done = (slots.status != RUNNING) & (slots.lane < n)
        # Writes of slots that are still at work go to row n and are dropped.
        row = jnp.where(done, slots.lane, n)
        last = Ends(slots.before, slots.state, slots.start, slots.t)
        ends = jax.tree.map(lambda old, new: old.at[row].set(new, mode="drop"), ends, last)
        status = status.at[row].set(slots.status, mode="drop")
        steps = steps.at[row].set(slots.steps, mode="drop")
        fresh = load(jnp.where(done, jnp.minimum(waiting + jnp.cumsum(done.astype(jnp.int32)) - 1, n), slots.lane))
        slots = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh, slots)
        if saved is not None:
            saved = _save(slots.state, jnp.where(done, slots.lane, n), jnp.zeros_like(slots.lane), saved)
        return slots, waiting + jnp.sum(done).astype(jnp.int32), saved, ends, status, steps

    first = load(jnp.arange(size, dtype=jnp.int32))
    if saved is not None:
        saved = _save(first.state, first.lane, jnp.zeros_like(first.lane), saved)
    carry = (first, jnp.asarray(size, jnp.int32), saved, ends, codes, codes)
    _, _, saved, ends, status, steps = jax.lax.while_loop(lambda c: jnp.any(c[0].lane < n), body, carry)
    return saved, ends, status, steps


def _start(problem, own, state, lane, n, limit, settings):
    velocity = problem.velocity(own, state)
    finite = _all_finite(state)
    scale = [settings.atol + settings.rtol * jnp.abs(x) for x in state]
    size = _norm(state, scale)
    speed = _norm(velocity, scale)
    # The usual first guess: a hundredth of the state's size over its speed.
    h = 0.01 * jnp.maximum(size, 1e-5) / jnp.maximum(speed, 1e-10)
    h = jnp.where(jnp.isfinite(h), h, 1.0)
    status = jnp.where(problem.progress(own, state) < settings.target, CONVERGED, RUNNING)
    status = jnp.where(_all_finite(velocity), status, NON_FINITE)
    status = jnp.where(finite & (problem.edge(own, state) > 1 - settings.margin), WALL, status)
    status = jnp.where(finite, status, NON_FINITE)
    zero = jnp.zeros_like(state[0])
    count = jnp.zeros_like(lane)
    status = jnp.where(limit <= 0, jnp.where(status == RUNNING, TIME_LIMIT, status), status)
    h = jax.lax.stop_gradient(jnp.minimum(h, jnp.maximum(limit, 0)).astype(zero.dtype))
    status = jnp.where(lane < n, status, CONVERGED).astype(jnp.int32)
    return _Slots(lane, own, state, state, zero, zero, h, count, count + 1, status)


def _advance(problem, slots, saved, ts, settings):
    running = slots.status == RUNNING
    limit = settings.max_time if ts is None else ts[jnp.minimum(slots.saved, ts.shape[0] - 1)]
    reaches = slots.h >= limit - slots.t
    h = jnp.where(running, jnp.where(reaches, limit - slots.t, slots.h), 1)
    new, error = _rodas_step(problem, slots.own, slots.state, h)
    scale = [settings.atol + settings.rtol * jnp.maximum(jnp.abs(x), jnp.abs(y)) for x, y in zip(slots.state, new)]
    edge = problem.edge(slots.own, new)
    error = jax.lax.stop_gradient(_norm(error, scale))
    # A step over a pole may land on finite numbers: only what stays inside counts. NaN compares false.
    accepted = running & (error <= 1) & (edge < 1)
    factor = jnp.where(jnp.isfinite(error) & (edge < 1), jnp.clip(0.9 * jnp.maximum(error, 1e-8) ** -0.25, 0.2, 6), 0.2)
    # A step cut short by a stop says little about the next one.
    h_next = jnp.where(accepted & reaches, jnp.maximum(slots.h, h * factor), h * factor)
    t = jnp.where(reaches, limit, slots.t + h)

    def keep(new, old):
        return jax.tree.map(lambda x, y: jnp.where(accepted, x, y), new, old)

    state = keep(new, slots.state)
    steps = slots.steps + running.astype(jnp.int32)
    arrived = accepted & reaches
    status = jnp.where(running & (steps >= settings.max_steps), MAX_STEPS, slots.status)
    if ts is None:
        status = jnp.where(arrived, TIME_LIMIT, status)
    else:
        status = jnp.where(arrived & (slots.saved == ts.shape[0] - 1), CONVERGED, status)
        saved = _save(new, jnp.where(arrived, slots.lane, saved[0].shape[0]), slots.saved, saved)
    size = jnp.maximum(jnp.maximum(jnp.abs(new[0]), jnp.abs(new[1])), jnp.abs(new[2]))
    status = jnp.where(accepted & (size > settings.radius), ESCAPED, status)
    status = jnp.where(accepted & (edge > 1 - settings.margin), WALL, status)
    status = jnp.where(accepted & (problem.progress(slots.own, new) < settings.target), CONVERGED, status)
    advanced = _Slots(
        slots.lane,
        slots.own,
        state,
        keep(slots.state, slots.before),
        keep(t, slots.t),
        keep(slots.t, slots.start),
        jnp.where(running, h_next, slots.h),
        steps,
        slots.saved + arrived.astype(jnp.int32),
        status.astype(jnp.int32),
    )
    return advanced, saved


def _rodas_step(problem, own, state, h):
    def velocity(*x):
        return problem.velocity(own, x)

    one, zero = jnp.ones_like(h), jnp.zeros_like(h)
    value, derivative = jax.linearize(velocity, *state)
    columns = [derivative(*(one if j == i else zero for j in range(3))) for i in range(3)]
    solve = _cofactor_solver(columns, 1 / (_GAMMA * h))
    stages = tuple(jnp.zeros((6, *h.shape), h.dtype).at[0].set(x) for x in solve(value))
    A, C = jnp.asarray(_A, h.dtype), jnp.asarray(_C, h.dtype)

    def stage(i, carry):
        stages, _ = carry
        point = tuple(x + jnp.tensordot(A[i], u[:5], 1) for x, u in zip(state, stages))
        rhs = velocity(*point)
        new = solve(tuple(r + jnp.tensordot(C[i], u[:5], 1) / h for r, u in zip(rhs, stages)))
        return tuple(u.at[i + 1].set(x) for u, x in zip(stages, new)), point

    stages, point = jax.lax.fori_loop(0, 5, stage, (stages, state))
    last = tuple(u[5] for u in stages)
    return tuple(x + y for x, y in zip(point, last)), last


def _cofactor_solver(columns, diagonal):
    """Solves (diagonal I - J) x = r for many r, J given by its columns."""
    (j00, j10, j20), (j01, j11, j21), (j02, j12, j22) = columns
    m00, m11, m22 = diagonal - j00, diagonal - j11, diagonal - j22
    m01, m02, m10, m12, m20, m21 = -j01, -j02, -j10, -j12, -j20, -j21
    c00, c01, c02 = m11 * m22 - m12 * m21, m12 * m20 - m10 * m22, m10 * m21 - m11 * m20
    scale = 1 / (m00 * c00 + m01 * c01 + m02 * c02)
    i00, i10, i20 = c00 * scale, c01 * scale, c02 * scale
    i01, i11, i21 = (m02 * m21 - m01 * m22) * scale, (m00 * m22 - m02 * m20) * scale, (m01 * m20 - m00 * m21) * scale
    i02, i12, i22 = (m01 * m12 - m02 * m11) * scale, (m02 * m10 - m00 * m12) * scale, (m00 * m11 - m01 * m10) * scale

    def solve(r):
        x, y, z = r
        return (i00 * x + i01 * y + i02 * z, i10 * x + i11 * y + i12 * z, i20 * x + i21 * y + i22 * z)

    return solve


def _save(state, row, column, saved):
    return tuple(old.at[row, column].set(x, mode="drop") for old, x in zip(saved, state))


def _norm(x, scale):
    return jnp.sqrt(sum((a / s) ** 2 for a, s in zip(x, scale)) / 3)


def _all_finite(x):
    return jnp.isfinite(x[0]) & jnp.isfinite(x[1]) & jnp.isfinite(x[2])
