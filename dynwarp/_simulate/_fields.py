"""Fields: adaptive steps by diffrax, or a scan over fixed steps."""

from __future__ import annotations

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._results import RESULTS
from dynwarp._simulate._runge_kutta import VectorField, explicit_tableau, field_step
from dynwarp._simulate._scan import draw, match_dtype
from dynwarp.models._recurrence import checkpointed_scan


class StepPlan(eqx.Module):
    """Fixed steps, in an inner axis of steps between two saved states where that is even, else of one.

    `left` and `right` are the times at which a step evaluates the field at its ends, `length` is its length, each
    `(outer, inner)`; `saved` are the rows of the outer axis after which a state is saved.
    """

    left: jax.Array
    right: jax.Array
    length: jax.Array
    saved: tuple[int, ...] | None = eqx.field(static=True)


def plan_steps(ts: np.ndarray, dt: float, breakpoints: np.ndarray, dtype: Any) -> StepPlan:
    """The steps from `ts[0]` to `ts[-1]` (host only).

    Every gap of the union of `ts` and `breakpoints` is split into equal steps of at most `dt`. A step that starts on a
    breakpoint sees the field just after it, one that ends on a breakpoint sees it just before.
    """
    # Times that differ by rounding alone are the same time.
    resolution = 8 * float(np.finfo(ts.dtype).eps) * float(np.max(np.abs(ts)))
    ts = ts.astype(np.float64)
    breaks = breakpoints[(breakpoints >= ts[0] - resolution) & (breakpoints <= ts[-1] + resolution)].astype(np.float64)
    nearest = ts[np.argmin(np.abs(breaks[:, None] - ts), axis=1)]
    breaks = np.where(np.abs(breaks - nearest) <= resolution, nearest, breaks)
    edges = np.union1d(ts, breaks)
    gaps = np.diff(edges)
    counts = np.maximum(1, np.ceil((gaps - resolution) / dt)).astype(int)
    length = np.repeat(gaps / counts, counts)
    index = np.arange(len(length)) - np.repeat(np.cumsum(counts) - counts, counts)
    left = np.repeat(edges[:-1], counts) + length * index
    right = np.append(left[1:], edges[-1])

    ends = np.flatnonzero(np.isin(right, ts))
    per_saved = np.diff(ends, prepend=-1)
    even = (per_saved == per_saved[0]).all()
    shape = (-1, int(per_saved[0]) if even else 1)
    return StepPlan(
        jnp.asarray(_moved(left, np.isin(left, breaks), np.inf, dtype).reshape(shape)),
        jnp.asarray(_moved(right, np.isin(right, breaks), -np.inf, dtype).reshape(shape)),
        jnp.asarray(length.astype(dtype).reshape(shape)),
        None if even else tuple(ends.tolist()),
    )


def _moved(t, where, towards, dtype):
    """`t` in `dtype`, one floating-point number further where asked."""
    t = t.astype(dtype)
    neighbour = np.nextafter(t, t.dtype.type(towards))
    # The neighbours of zero are subnormal, and XLA flushes those to zero.
    neighbour = np.where(t == 0, np.copysign(np.finfo(t.dtype).tiny, t.dtype.type(towards)), neighbour)
    return np.where(where, neighbour, t)


@eqx.filter_jit
def solve_fixed(
    model, inputs, state0, plan: StepPlan, solver, chunk: int | None, last_only: bool, noise, key
) -> jax.Array:
    """The saved states of a plan, without the first, or the last alone: by RK4, or by the steps of a diffrax solver.

    Those of explicit methods are written out: diffrax's own have no forward mode.
    """
    field = VectorField(model, inputs)
    state0 = match_dtype(lambda state: field(plan.left[0, 0], state), state0, model)
    tableau = explicit_tableau(solver)
    terms = diffrax.ODETerm(field)  # pyright: ignore[reportArgumentType]

    def step(state, x):
        index, left, right, length = x
        if tableau is not None:
            state = field_step(tableau, field, left, right, length, state)
        else:
            # Every step starts afresh: noise and breakpoints make the slope that a solver would hand on stale.
            memory = solver.init(terms, left, right, state, None)
            state = solver.step(terms, left, right, state, None, memory, made_jump=True)[0]
        return state if noise is None else state + noise * jnp.sqrt(length) * draw(key, index, state)

    def outer(state, xs):
        return jax.lax.scan(lambda state, x: (step(state, x), None), state, xs)[0]

    index = jnp.arange(plan.length.size, dtype=jnp.int32).reshape(plan.length.shape)
    xs = (index, plan.left, plan.right, plan.length)
    states = checkpointed_scan(outer, state0, xs, len(index), chunk=chunk, last_only=last_only)
    return states if last_only or plan.saved is None else states[np.asarray(plan.saved)]


@eqx.filter_jit
def solve_adaptive(
    model, inputs, state0, ts, solver, controller, adjoint, breakpoints, max_steps: int | None
) -> tuple[Any, RESULTS]:
    """The states at `ts` by diffrax, and how the solve ended."""
    field = VectorField(model, inputs)
    state0 = match_dtype(lambda state: field(ts[0], state), state0, model)
    if controller is None:
        controller = _default_controller(state0.dtype, ts)
    if breakpoints is not None:
        controller = diffrax.ClipStepSizeController(controller, jump_ts=breakpoints)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),  # pyright: ignore[reportArgumentType]
        solver,
        t0=ts[0],
        t1=ts[-1],
        dt0=None,
        y0=state0,
        saveat=diffrax.SaveAt(ts=ts),
        stepsize_controller=controller,
        adjoint=adjoint,
        max_steps=max_steps,
        throw=False,
    )
    ended, theirs = solution.result, diffrax.RESULTS
    result = RESULTS.where(ended == theirs.max_steps_reached, RESULTS.max_steps_reached, RESULTS.inaccurate)
    result = RESULTS.where(ended == theirs.dt_min_reached, RESULTS.non_finite, result)
    return solution.ys, RESULTS.where(ended == theirs.successful, RESULTS.successful, result)


def _default_controller(dtype, ts):
    rtol, atol = (1e-7, 1e-9) if dtype == jnp.float64 else (1e-5, 1e-7)
    # Only a state that blows up or is NaN shrinks the steps to this; without it such a lane runs to `max_steps`.
    smallest = float(jnp.finfo(dtype).eps) * (ts[-1] - ts[0])
    return diffrax.PIDController(rtol=rtol, atol=atol, dtmin=smallest * 1e-2, force_dtmin=False)
