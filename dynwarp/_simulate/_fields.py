"""Fields: adaptive steps by diffrax, or a scan over fixed Runge-Kutta steps."""

from __future__ import annotations

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._results import RESULTS
from dynwarp._simulate._scan import chunked_scan, match_dtype


class VectorField(eqx.Module):
    """A field with its input signal, in the form diffrax calls."""

    model: Any
    inputs: Any

    def __call__(self, t, state, args=None):
        if self.inputs is None:
            return self.model(t, state)
        evaluate = getattr(self.inputs, "evaluate", self.inputs)
        return self.model(t, state, evaluate(t))


def step_plan(ts: np.ndarray, dt: float, breakpoints: np.ndarray, dtype) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """The fixed steps from `ts[0]` to `ts[-1]` (host only).

    Every gap of the union of `ts` and `breakpoints` is split into equal steps of at most `dt`. A step that starts on a
    breakpoint sees the signal just after it, one that ends there the signal just before it.

    Returns `(t_left, t_right, h)`, each `(outer, inner)`, and the rows of the outer axis that end on `ts[1:]`.
    """
    # Times that differ by rounding alone are the same time.
    resolution = 8 * np.finfo(ts.dtype).eps * np.max(np.abs(ts))
    ts = ts.astype(np.float64)
    breaks = breakpoints[(breakpoints >= ts[0] - resolution) & (breakpoints <= ts[-1] + resolution)].astype(np.float64)
    nearest = ts[np.argmin(np.abs(breaks[:, None] - ts), axis=1)] if breaks.size else breaks
    breaks = np.where(np.abs(breaks - nearest) <= resolution, nearest, breaks)
    edges = np.union1d(ts, breaks)
    gaps = np.diff(edges)
    counts = np.maximum(1, np.ceil((gaps - resolution) / dt)).astype(int)
    h = np.repeat(gaps / counts, counts)
    position = np.arange(len(h)) - np.repeat(np.cumsum(counts) - counts, counts)
    left = np.repeat(edges[:-1], counts) + h * position
    right = np.where(position == np.repeat(counts, counts) - 1, np.repeat(edges[1:], counts), left + h)
    t_left = _nudge(left.astype(dtype), np.isin(left, breaks), np.inf)
    t_right = _nudge(right.astype(dtype), np.isin(right, breaks), -np.inf)
    kept = np.flatnonzero(np.isin(right, ts[1:]))
    per_output = np.diff(kept, prepend=-1)
    inner = int(per_output[0]) if len(kept) and (per_output == per_output[0]).all() else 1
    plan = tuple(x.astype(dtype).reshape(-1, inner) for x in (t_left, t_right, h))
    return plan, (kept + 1) // inner - 1


def _nudge(t, where, towards):
    moved = np.nextafter(t, t.dtype.type(towards))
    # The neighbours of zero are subnormal, and XLA flushes those to zero.
    moved = np.where(t == 0, np.copysign(np.finfo(t.dtype).tiny, towards).astype(t.dtype), moved)
    return np.where(where, moved, t)


@eqx.filter_jit
def fixed_step_solve(field, state0, plan, kept, solver, remat, noise, key) -> jax.Array:
    """The states after the kept outer steps of a plan, by RK4 or one step of a diffrax solver each."""
    vector_field = VectorField(*field)
    state0 = match_dtype(lambda state: vector_field(plan[0][0, 0], state), state0, vector_field.model)
    inner = plan[0].shape[1]

    def step(state, x):
        index, (t_left, t_right, h) = x
        if solver is None:
            new = _rk4(vector_field, state, t_left, t_right, h)
        else:
            terms = diffrax.ODETerm(vector_field)  # pyright: ignore[reportArgumentType]
            memory = solver.init(terms, t_left, t_right, state, None)
            new = solver.step(terms, t_left, t_right, state, None, memory, made_jump=True)[0]
        if noise is not None:
            draw = jax.random.normal(jax.random.fold_in(key, index), new.shape, new.dtype)
            new = new + noise.astype(new.dtype) * jnp.sqrt(h) * draw
        return new

    def outer(state, x):
        return jax.lax.scan(lambda state, x: (step(state, x), None), state, x)[0]

    index = jnp.arange(plan[0].size, dtype=jnp.int32).reshape(-1, inner)
    return chunked_scan(outer, state0, (index, plan), len(index), remat)[kept]


def _rk4(vector_field, y, t_left, t_right, h):
    middle = t_left + h / 2
    k1 = vector_field(t_left, y)
    k2 = vector_field(middle, y + h / 2 * k1)
    k3 = vector_field(middle, y + h / 2 * k2)
    k4 = vector_field(t_right, y + h * k3)
    return y + h / 6 * (k1 + 2 * (k2 + k3) + k4)


@eqx.filter_jit
def adaptive_solve(field, state0, ts, solver, controller, adjoint, breakpoints, max_steps) -> tuple[jax.Array, RESULTS]:
    """The states at `ts` by diffrax, and how the solve ended."""
    vector_field = VectorField(*field)
    state0 = match_dtype(lambda state: vector_field(ts[0], state), state0, vector_field.model)
    if breakpoints is not None:
        controller = diffrax.ClipStepSizeController(controller, jump_ts=breakpoints)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(vector_field),  # pyright: ignore[reportArgumentType]
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
    ended = solution.result
    result = RESULTS.where(
        ended == diffrax.RESULTS.successful,
        RESULTS.successful,
        RESULTS.where(ended == diffrax.RESULTS.max_steps_reached, RESULTS.max_steps_reached, RESULTS.inaccurate),
    )
    return solution.ys, result
