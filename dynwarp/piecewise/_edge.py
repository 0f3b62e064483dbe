"""Basin boundaries by simulation: bisection of segments, and the orbit that stays on the boundary."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dynwarp._checks import check_positive, check_positive_integer
from dynwarp._results import RESULTS
from dynwarp._typing import Input
from dynwarp.errors import ArgumentError, ShapeError
from dynwarp.piecewise._as_map import as_map
from dynwarp.piecewise._basin import UNDECIDED, check_states, label, make_traps, settle

# A gap this small, relative to the state, is good enough where simulation cannot decide any more.
_ON_BOUNDARY = 1e-9


class BoundaryPoints(eqx.Module):
    """What [`bisect_boundary`][dynwarp.piecewise.bisect_boundary] returns, of N segments.

    **Attributes:**

    - `points`: on the boundary, to within `gap`, `(N, M)`; `fraction`: where on the segment, `(N,)`.
    - `gap`: the distance between two states of different basins around the point, `(N,)`.
    - `labels`: the basins of the two ends, `(N, 2)`, numbered as by [`basin_of`][dynwarp.piecewise.basin_of].
    - `result`: `successful`; `max_steps_reached` where simulation could not decide a state on the way, so that `gap` is
      wide.
    """

    points: Float[Array, "N M"]
    fraction: Float[Array, " N"]
    gap: Float[Array, " N"]
    labels: Int[Array, "N 2"]
    result: RESULTS


def bisect_boundary(
    map: Any,
    starts: Float[Array, "N M"],
    ends: Float[Array, "N M"],
    attractors: Any,
    *,
    precision: float = 1e-15,
    steps: int = 20_000,
    tolerance: float | None = None,
    escape: float | None = None,
    input: Input | None = None,
) -> BoundaryPoints:
    """A point of the basin boundary on each of many segments, by bisection with simulated labels (host).

    It asks nothing of the boundary: saddles, invariant circles, chaotic sets, or the border of divergence.

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in float64.
    - `starts`, `ends`: `(N, M)` or `(M,)`; the two ends of a segment must go to different attractors, or one must
      diverge.
    - `attractors`, `steps`, `tolerance`, `escape`, `input`: as for [`basin_of`][dynwarp.piecewise.basin_of].
    - `precision`: the gap at which to stop, as a share of the segment.

    **Returns:** a [`BoundaryPoints`][dynwarp.piecewise.BoundaryPoints]; where a segment meets the boundary several
    times, one of these points, with the basin of the start on one side. Cost: one simulation of all for each bit.

    **Raises:** `ArgumentError` where the ends of a segment are in one basin or undecided; as `basin_of`.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig3a_right")
    >>> sink = dw.piecewise.cycle_at(f, jnp.array([[False]]))
    >>> found = dw.piecewise.bisect_boundary(f, jnp.array([-0.4, 0.6]), jnp.array([3.6, 2.6]), sink)
    >>> round(4 * float(found.fraction[0]), 4), bool(found.gap[0] < 1e-14)
    (2.0814, True)
    """
    caller = "bisect_boundary"
    form = as_map(map, input, caller=caller)
    check_positive_integer(steps, "steps", caller=caller)
    check_positive(precision, "precision", caller=caller)
    a, b = (
        np.atleast_2d(check_states(form, x, name, caller=caller)) for x, name in ((starts, "starts"), (ends, "ends"))
    )
    if a.shape != b.shape:
        raise ShapeError(f"{caller}: `starts` and `ends` must have one shape; got {a.shape} and {b.shape}.")
    traps = make_traps(form, attractors, tolerance, escape, caller=caller)
    labels = label(form, traps, np.concatenate([a, b]), steps).reshape(2, len(a)).T
    bad = np.flatnonzero((labels[:, 0] == labels[:, 1]) | (labels == UNDECIDED).any(axis=1))
    if len(bad):
        raise ArgumentError(
            f"{caller}: the ends of a segment must be in different basins; of {len(bad)} they are not: segment "
            f"{bad[0]} has labels {labels[bad[0]].tolist()} (-1: diverges, -2: not decided in {steps} steps)."
        )
    return bisect(form, traps, a, b, labels, precision, steps)


def bisect(form, traps, a, b, labels, precision, steps) -> BoundaryPoints:
    """Bisection of segments whose ends have these labels."""
    low, high, done = _bisect(form, traps, jnp.asarray(a), jnp.asarray(b), jnp.asarray(labels[:, 0]), precision, steps)
    fraction = 0.5 * (low + high)
    points = jnp.asarray(a) + fraction[:, None] * jnp.asarray(b - a)
    gap = (high - low) * jnp.linalg.norm(jnp.asarray(b - a), axis=1)
    # A state that stays between the basins for ever lies on the boundary.
    done |= gap <= _ON_BOUNDARY * (1 + jnp.linalg.norm(points, axis=1))
    result = jax.vmap(lambda ok: RESULTS.where(ok, RESULTS.successful, RESULTS.max_steps_reached))(done)
    return BoundaryPoints(points, fraction, gap, jnp.asarray(labels), result)


@eqx.filter_jit
def _bisect(form, traps, a, b, own, precision, steps):
    """Of each segment the last fraction with the label of the start and the first with another; whether decided."""
    halvings = jnp.ceil(-jnp.log2(jnp.asarray(precision))).astype(int)

    def body(_, carry):
        low, high, decided = carry
        middle = 0.5 * (low + high)
        labels = settle(form, traps, a + middle[:, None] * (b - a), jnp.asarray(steps))
        decided &= labels != UNDECIDED
        low = jnp.where(decided & (labels == own), middle, low)
        high = jnp.where(decided & (labels != own), middle, high)
        return low, high, decided

    start = (jnp.zeros(len(a), a.dtype), jnp.ones(len(a), a.dtype), jnp.ones(len(a), bool))
    return jax.lax.fori_loop(0, jnp.clip(halvings, 1, 60), body, start)


class EdgeTrack(eqx.Module):
    """What [`track_edge`][dynwarp.piecewise.track_edge] returns.

    **Attributes:**

    - `states`: an orbit on the boundary, `(T, M)`: each is the image of the one before to within `gap`, the distance of
      the two states that hold it between them, `(T,)`.
    - `labels`: the two basins it runs between, `(2,)`.
    - `period`: the least p <= 64 with which the end of the orbit repeats itself to within the gaps; 0 where there is
      none: the orbit lies on an invariant circle or a chaotic set, or has not settled.
    - `result`: `successful`; `max_steps_reached` where simulation could not decide a state on the way.
    """

    states: Float[Array, "T M"]
    gap: Float[Array, " T"]
    labels: Int[Array, " 2"]
    period: int = eqx.field(static=True)
    result: RESULTS


def track_edge(
    map: Any,
    start: Float[Array, " M"],
    end: Float[Array, " M"],
    attractors: Any,
    *,
    length: int = 1000,
    separation: tuple[float, float] = (1e-11, 1e-8),
    steps: int = 20_000,
    tolerance: float | None = None,
    escape: float | None = None,
    input: Input | None = None,
) -> EdgeTrack:
    """The orbit that runs along a basin boundary to the set that makes it: a saddle, a circle or a chaotic set (host).

    Two states on both sides of the boundary are mapped together; when they have moved apart, bisection brings them
    together again. What their middle tends to is an attractor within the boundary, the edge state.

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in float64.
    - `start`, `end`: `(M,)`, in different basins.
    - `attractors`, `steps`, `tolerance`, `escape`, `input`: as for [`basin_of`][dynwarp.piecewise.basin_of].
    - `length`: how many states of the orbit.
    - `separation`: the distances of the two states at which bisection ends and begins, as shares of 1 + their size.

    **Returns:** an [`EdgeTrack`][dynwarp.piecewise.EdgeTrack]. Cost: a few bisections each time the separation has
    grown a thousandfold.

    **Raises:** `ArgumentError` where both are in one basin; as `basin_of`.

    **Source:** Battelino et al., Physica D 32 (1988) 296; Skufca et al., Phys. Rev. Lett. 96 (2006) 174101.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig3a_right")
    >>> sink = dw.piecewise.cycle_at(f, jnp.array([[False]]))
    >>> track = dw.piecewise.track_edge(f, jnp.array([-0.4, 0.6]), jnp.array([3.6, 2.6]), sink, length=60)
    >>> track.period, [round(float(x), 4) for x in track.states[-1]]
    (1, [0.9278, -0.0881])
    """
    caller = "track_edge"
    form = as_map(map, input, caller=caller)
    length = check_positive_integer(length, "length", caller=caller)
    check_positive_integer(steps, "steps", caller=caller)
    near, far = separation
    if not 0 < near < far:
        raise ArgumentError(f"{caller}: `separation` must be (near, far) with 0 < near < far; got {separation!r}.")
    pair = []
    for name, x in (("start", start), ("end", end)):
        x = check_states(form, x, name, caller=caller)
        if x.ndim != 1:
            raise ShapeError(f"{caller}: `{name}` must have shape ({form.state_size},); got {x.shape}.")
        pair.append(x)
    traps = make_traps(form, attractors, tolerance, escape, caller=caller)
    labels = label(form, traps, np.stack(pair), steps)
    if labels[0] == labels[1] or (labels == UNDECIDED).any():
        raise ArgumentError(
            f"{caller}: `start` and `end` must be in different basins; their labels are {labels.tolist()} "
            f"(-1: diverges, -2: not decided in {steps} steps)."
        )
    states, gap, decided = _track(form, traps, jnp.asarray(np.stack(pair)), labels[0], near, far, steps, length)
    result = RESULTS.where(decided, RESULTS.successful, RESULTS.max_steps_reached)
    return EdgeTrack(states, gap, jnp.asarray(labels), _period(np.asarray(states), np.asarray(gap)), result)


@eqx.filter_jit
def _track(form, traps, pair, own, near, far, steps, length):
    own, near, far = jnp.asarray(own), jnp.asarray(near), jnp.asarray(far)

    def width(pair):
        return jnp.linalg.norm(pair[1] - pair[0]), 1 + jnp.max(jnp.abs(pair))

    def closer(carry):
        pair, decided = carry
        middle = 0.5 * (pair[0] + pair[1])
        found = settle(form, traps, middle[None], jnp.asarray(steps))[0]
        decided &= found != UNDECIDED
        pair = jnp.where((found == own), jnp.stack([middle, pair[1]]), jnp.stack([pair[0], middle]))
        return pair, decided

    def apart(limit):
        def condition(carry):
            distance, size = width(carry[0])
            return carry[1] & (distance > limit * size)

        return condition

    def step(carry, _):
        pair, decided = carry
        wide = apart(far)(carry)
        # Only where they have moved apart; then until they are near again.
        pair, decided = jax.lax.while_loop(lambda c: wide & apart(near)(c), closer, (pair, decided))
        out = (0.5 * (pair[0] + pair[1]), width(pair)[0])
        return (jax.vmap(form)(pair), decided), out

    (_, decided), (states, gap) = jax.lax.scan(step, (pair, jnp.asarray(True)), length=length)
    return states, gap, decided


def _period(states, gap) -> int:
    for p in range(1, min(64, len(states) // 3) + 1):
        drift = np.linalg.norm(states[-p:] - states[-2 * p : -p], axis=1)
        if (drift <= 10 * np.maximum(gap[-p:], gap[-2 * p : -p]) + 1e-7 * (1 + np.abs(states[-p:]).max())).all():
            return p
    return 0
