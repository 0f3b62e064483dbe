"""Where mode flows end, and when: basins, landing points and event times over very many starts."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynwarp._checks import check_positive
from dynwarp._results import RESULTS
from dynwarp.learning._integrate_modes import make_settings, raise_outcomes, result_of
from dynwarp.learning._lanes import check_lanes, solve_lanes, split_lanes
from dynwarp.learning._mode_flow import checked_horizon, loss_of, mode_update
from dynwarp.learning._rosenbrock import CONVERGED, ESCAPED, WALL
from dynwarp.learning._rules import AbstractRule
from dynwarp.learning._teacher import Teacher, cast


class Landings(eqx.Module):
    """What [`find_landings`][dynwarp.learning.find_landings] returns, a row per lane.

    **Attributes:**

    - `points`: (a, b, w) at the end, shape `(N, 3)`: past the event that ended the lane, by part of a step.
    - `times`: when the event happened, interpolated within that step, shape `(N,)`.
    - `losses`: the loss at `points`; never negative.
    - `result`: `successful` where the loss fell below its tolerance, `wall`, `escaped`, `time_limit`, or a failure.
    - `steps`: how many steps each lane attempted.
    """

    points: Float[Array, "N 3"]
    times: Float[Array, " N"]
    losses: Float[Array, " N"]
    result: RESULTS
    steps: Int[Array, " N"]


def find_landings(
    rule: AbstractRule,
    teacher: Teacher,
    initial: Float[Array, "N 3"],
    *,
    loss_tolerance: float = 1e-8,
    max_time: float = 1e3,
    rtol: float = 1e-6,
    atol: float = 1e-9,
    horizon: int | None = None,
    escape_radius: float = 1e3,
    max_steps: int = 10_000,
    block: int = 256,
    throw: bool = True,
) -> Landings:
    """Follows the mode flow from many starts to the end: convergence, the wall |w| = 1, escape, or the time limit.

    **Arguments:**

    - `rule`, `teacher`, `initial`, `rtol`, `atol`, `horizon`, `escape_radius`, `max_steps`, `block`, `throw`: as in
      [`integrate_modes`][dynwarp.learning.integrate_modes].
    - `loss_tolerance`: a lane has converged where its loss is below.
    - `max_time`: where a lane is given up, e.g. on the way out of a saddle.

    **Returns:** [`Landings`][dynwarp.learning.Landings]; differentiable like `integrate_modes`, event times by the
    implicit function theorem. A point's derivative is at a fixed end time.

    **Raises:** `ShapeError`, `ArgumentError`; `ConvergenceError` for lanes that ran out of steps or hold NaN, if
    `throw`.

    **Cost:** 10^5 starts of RFLO at `rtol=1e-6` take three to four seconds of one core.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> l = dw.learning
    >>> starts = jnp.array([[1.0, 1.0, 0.6]])
    >>> land = l.find_landings(l.RFLO(-0.5, 0.5), l.Teacher(1.0, 1.0, 0.8), starts, loss_tolerance=1e-6)
    >>> print(land.points[0].round(3), land.times[0].round(2))
    [-0.627 -1.596  0.8  ] 5.51
    """
    caller = "find_landings"
    initial = jnp.asarray(initial)
    horizon, _ = checked_horizon(teacher, horizon, "final", caller)
    check_lanes(rule, teacher, initial, horizon, caller)
    for value, name in ((loss_tolerance, "loss_tolerance"), (max_time, "max_time")):
        check_positive(value, name, caller=caller)
    rule, teacher = cast((rule, teacher), initial.dtype)
    limits = {"target": loss_tolerance, "max_time": max_time}
    settings = make_settings(initial.dtype, rtol, atol, escape_radius, max_steps, block, caller, **limits)
    lanes, shared = split_lanes(rule, teacher, initial.shape[0], caller)
    start = (initial[:, 0], initial[:, 1], initial[:, 2])
    (_, ends), (status, steps) = solve_lanes(lanes, shared, start, None, settings, horizon)
    times, losses = _event_times(lanes, shared, ends, status, settings, horizon)
    result = result_of(status, time_limit=RESULTS.time_limit)
    if throw:
        raise_outcomes(status, caller)
    return Landings(jnp.stack(ends.after, axis=-1), times, losses, result, steps)


@eqx.filter_jit
def _event_times(lanes, shared, ends, status, settings, horizon):
    rule, teacher = eqx.combine(lanes, shared)
    h = ends.end - ends.start
    tiny = jnp.finfo(h.dtype).tiny

    def log_loss(state):
        return jnp.log(jnp.maximum(loss_of(teacher, state, horizon), tiny))

    def along(state):
        """The logarithm of the loss, and its slope in units of the step."""
        velocity = tuple(-h * x for x in mode_update(rule, teacher, state, horizon))
        return jax.jvp(log_loss, (state,), (velocity,))

    def other(state):
        # 1 - |w| shrinks like a square root, so that its square is what a line fits.
        wall = (1 - jnp.abs(state[2])) ** 2 - settings.margin**2
        size = jnp.maximum(jnp.maximum(jnp.abs(state[0]), jnp.abs(state[1])), jnp.abs(state[2]))
        return jnp.where(status == WALL, wall, jnp.log(settings.radius / jnp.maximum(size, tiny)))

    converged = status == CONVERGED
    (y0, m0), (y1, m1) = along(ends.before), along(ends.after)
    target = jnp.log(settings.target)
    o0, o1 = other(ends.before), other(ends.after)
    y0, y1 = jnp.where(converged, y0 - target, o0), jnp.where(converged, y1 - target, o1)
    secant = y1 - y0
    smooth = converged & jnp.isfinite(m0) & jnp.isfinite(m1)
    m0, m1 = jnp.where(smooth, m0, secant), jnp.where(smooth, m1, secant)

    def cubic(x):
        # Hermite's cubic about the line: of the logarithm of the loss, which is nearly straight.
        return y0 + x * secant + x * (1 - x) * ((1 - x) * (m0 - secant) - x * (m1 - secant))

    def bisect(_, bracket):
        low, high = bracket
        middle = (low + high) / 2
        above = cubic(middle) > 0
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    low, high = jax.lax.fori_loop(0, 50, bisect, (jnp.zeros_like(h), jnp.ones_like(h)))
    x, slope = jax.lax.stop_gradient(((low + high) / 2, jax.jvp(cubic, ((low + high) / 2,), (jnp.ones_like(h),))[1]))
    # One Newton step from the root changes nothing but carries the derivative.
    x = x - jnp.where(slope < 0, cubic(x) / jnp.where(slope < 0, slope, -1), 0)
    crossed = (converged | (status == WALL) | (status == ESCAPED)) & (h > 0)
    times = jnp.where(crossed, ends.start + x * h, ends.end)
    return times, loss_of(teacher, ends.after, horizon)
