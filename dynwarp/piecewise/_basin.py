"""Which attractor a state goes to: labels by simulation that ends where an attractor is known to hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dynwarp._checks import check_finite, check_float64, check_positive, check_positive_integer
from dynwarp._typing import Input
from dynwarp.errors import ArgumentError, ShapeError
from dynwarp.models import PiecewiseLinearMap
from dynwarp.piecewise._as_map import as_map
from dynwarp.piecewise._cycle import Cycle, border_values
from dynwarp.piecewise._host import HostMap
from dynwarp.piecewise._trapping import trapping_ellipsoids

DIVERGED = -1
UNDECIDED = -2
# Steps between two looks at where the states are.
_STRIDE = 8
# Numbers held at once while states are compared with attractors.
_MEMORY = 2**24
# Points that are tried as a stable cycle.
_MAX_PERIOD = 256


class Traps(eqx.Module):
    """Where a state counts as caught: ellipsoids |R (z - center)| <= 1, and balls around points.

    `owner` and `ball_owner` are indices of attractors; beyond `escape` a state has diverged.
    """

    centers: Float[Array, "E M"]
    factors: Float[Array, "E M M"]
    owner: Int[Array, " E"]
    balls: Float[Array, "B M"]
    ball_owner: Int[Array, " B"]
    radius: Float[Array, ""]
    escape: Float[Array, ""]


def basin_of(
    map: Any,
    states: Float[Array, "N M"],
    attractors: Any,
    *,
    steps: int = 20_000,
    tolerance: float | None = None,
    escape: float | None = None,
    input: Input | None = None,
) -> Int[Array, " N"]:
    """Which attractor each state goes to, by simulation (host).

    A stable cycle catches a state exactly: inside an ellipsoid that the map carries into itself and that lies in the
    cycle's regions. Another attractor is given by points on it, and catches what comes nearer than `tolerance`.

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in float64.
    - `states`: `(N, M)` or `(M,)`.
    - `attractors`: a sequence, each a stable [`Cycle`][dynwarp.piecewise.Cycle], one point `(M,)` or points `(k, M)`;
      one of them alone will do. Points that are the orbit of a stable cycle count as the cycle.
    - `steps`: the most steps of the map.
    - `tolerance`: the distance at which points that are no stable cycle catch.
    - `escape`: the norm beyond which a state has diverged; if None, 10^6 times the scale of attractors and borders.
    - `input`: a constant input, `(d,)`.

    **Returns:** integers `(N,)` or `()`: the index of the attractor, -1 for divergence, -2 where `steps` did not
    decide. Cost O(steps N M (M + H)) at most; it ends with the last state that is decided.

    **Raises:** `ArgumentError` for attractors that are none, or need a `tolerance`; `ShapeError`, `NonFiniteError`,
    `ModelError`, `PrecisionError`.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig3a_right")
    >>> sink = dw.piecewise.cycle_at(f, jnp.array([[False]]))
    >>> dw.piecewise.basin_of(f, jnp.array([[0.0, 0.0], [2.0, 0.0]]), sink).tolist()
    [0, -1]
    """
    caller = "basin_of"
    form = as_map(map, input, caller=caller)
    check_positive_integer(steps, "steps", caller=caller)
    known = check_states(form, states, "states", caller=caller)
    traps = make_traps(form, attractors, tolerance, escape, caller=caller)
    labels = label(form, traps, np.atleast_2d(known), steps)
    return jnp.asarray(labels[0] if known.ndim == 1 else labels)


def check_states(form: PiecewiseLinearMap, states: Any, name: str, *, caller: str) -> np.ndarray:
    """States `(N, M)` or `(M,)` as numpy."""
    array = jnp.asarray(states)
    if array.ndim not in (1, 2) or array.shape[-1] != form.state_size:
        raise ShapeError(
            f"{caller}: `{name}` must have shape (N, {form.state_size}) or ({form.state_size},); got {array.shape}."
        )
    check_float64(array, name, caller=caller)
    check_finite(array, name, caller=caller)
    return np.asarray(array, np.float64)


def make_traps(form: PiecewiseLinearMap, attractors: Any, tolerance, escape, *, caller: str) -> Traps:
    """The places that catch, of attractors as users give them."""
    if isinstance(attractors, Cycle) or not isinstance(attractors, Sequence):
        attractors = [attractors]
    f, m = HostMap.of(form), form.state_size
    if tolerance is not None:
        check_positive(tolerance, "tolerance", caller=caller)
    if escape is not None:
        check_positive(escape, "escape", caller=caller)
    centers, factors, owner, balls, ball_owner = [np.zeros((0, m))], [np.zeros((0, m, m))], [], [np.zeros((0, m))], []
    for index, attractor in enumerate(attractors):
        name = f"attractors[{index}]"
        if isinstance(attractor, Cycle):
            points = np.asarray(attractor.points)
            if points.shape[1] != m:
                raise ShapeError(f"{caller}: `{name}` must be a cycle of {m} dimensions; got {points.shape[1]}.")
            cycle = _as_stable_cycle(f, form, points)
            if cycle is None:
                raise ArgumentError(
                    f"{caller}: `{name}` must be a stable cycle of this map, off the borders; it is {attractor.kind}."
                )
        else:
            points = np.atleast_2d(check_states(form, attractor, name, caller=caller))
            cycle = _as_stable_cycle(f, form, points)
        if cycle is not None:
            centers.append(points)
            factors.append(cycle)
            owner += [index] * len(points)
        elif tolerance is None:
            raise ArgumentError(
                f"{caller}: the points of `{name}` are no stable cycle of this map: give `tolerance`, the distance at "
                "which they count as reached."
            )
        else:
            balls.append(points)
            ball_owner += [index] * len(points)
    if escape is None:
        norms = np.linalg.norm(f.W2, axis=1)
        offsets = np.abs(f.h2[norms > 0]) / norms[norms > 0]
        known = np.concatenate([np.abs(x).ravel() for x in centers + balls] + [offsets])
        escape = 1e6 * max(1.0, known.max(initial=0.0))
    return Traps(
        jnp.asarray(np.concatenate(centers)),
        jnp.asarray(np.concatenate(factors)),
        jnp.asarray(np.array(owner, np.int64)),
        jnp.asarray(np.concatenate(balls)),
        jnp.asarray(np.array(ball_owner, np.int64)),
        jnp.asarray(0.0 if tolerance is None else float(tolerance)),
        jnp.asarray(float(escape)),
    )


def _as_stable_cycle(f: HostMap, form: PiecewiseLinearMap, points: np.ndarray) -> np.ndarray | None:
    """The trapping ellipsoids of points that are the orbit of a stable cycle; None where they are not."""
    k, m = points.shape
    if not 0 < k <= _MAX_PERIOD:
        return None
    size = 1 + np.abs(points).max()
    if np.abs(f.step(points) - np.roll(points, -1, axis=0)).max() > 1e-8 * size:
        return None
    values, border = border_values(form, jnp.asarray(points))
    if np.any(border):
        return None
    itinerary = np.asarray(values) > 0
    jacobians, _ = f.affine(itinerary)
    turn = np.linalg.multi_dot(jacobians[::-1]) if k > 1 else jacobians[0]
    if np.abs(np.linalg.eigvals(turn)).max() >= 1 - 1e-9:
        return None
    return trapping_ellipsoids(f, points, itinerary, np.broadcast_to(np.eye(m), (k, m, m)), jacobians)


def label(form: PiecewiseLinearMap, traps: Traps, states: np.ndarray, steps: int) -> np.ndarray:
    """Labels of states `(N, M)`, in chunks of one shape that fit into memory."""
    count, m = states.shape
    width = max(1, (len(traps.centers) + len(traps.balls)) * m)
    chunk = min(count, max(1, _MEMORY // width))
    labels = np.empty(count, np.int64)
    for begin in range(0, count, chunk):
        part = states[begin : begin + chunk]
        padded = np.concatenate([part, np.repeat(part[-1:], chunk - len(part), axis=0)])
        labels[begin : begin + chunk] = np.asarray(_label(form, traps, jnp.asarray(padded), steps))[: len(part)]
    return labels


@eqx.filter_jit
def _label(form, traps, states, steps):
    return settle(form, traps, states, jnp.asarray(steps))


def settle(form: PiecewiseLinearMap, traps: Traps, states: Float[Array, "N M"], steps: Int[Array, ""]):
    """Labels `(N,)`: where the orbits of states are caught."""

    def advance(_, z):
        return z @ form.A.T + jax.nn.relu(z @ form.W2.T + form.h2) @ form.W1.T + form.h1

    def going(carry):
        taken, _, labels = carry
        return (taken < steps) & jnp.any(labels == UNDECIDED)

    def body(carry):
        taken, z, labels = carry
        # What is decided stands still, so that nothing overflows.
        z = jnp.where((labels == UNDECIDED)[:, None], jax.lax.fori_loop(0, _STRIDE, advance, z), z)
        return taken + _STRIDE, z, jnp.where(labels == UNDECIDED, caught(traps, z), labels)

    _, _, labels = jax.lax.while_loop(going, body, (jnp.zeros((), steps.dtype), states, caught(traps, states)))
    return labels


def caught(traps: Traps, z: Float[Array, "N M"]) -> Int[Array, " N"]:
    """The attractor that holds each state now, divergence, or neither."""
    labels = jnp.full(len(z), UNDECIDED, traps.owner.dtype)
    if len(traps.owner):
        offsets = z[:, None] - traps.centers
        inside = jnp.sum(jnp.einsum("eij,nej->nei", traps.factors, offsets) ** 2, axis=2) <= 1
        labels = jnp.where(jnp.any(inside, axis=1), traps.owner[jnp.argmax(inside, axis=1)], labels)
    if len(traps.ball_owner):
        squared = jnp.sum((z[:, None] - traps.balls) ** 2, axis=2)
        nearest = jnp.argmin(squared, axis=1)
        near = jnp.take_along_axis(squared, nearest[:, None], axis=1)[:, 0] <= traps.radius**2
        labels = jnp.where((labels == UNDECIDED) & near, traps.ball_owner[nearest], labels)
    # Also true of NaN.
    lost = ~(jnp.max(jnp.abs(z), axis=1) <= traps.escape)
    return jnp.where(lost, DIVERGED, labels)


def settled_pieces(traps: Traps):
    """A test on segments, by their ends `(n, M)`: whether one trap holds all of it, or all of it has escaped."""
    centers, factors, escape = (np.asarray(x) for x in (traps.centers, traps.factors, traps.escape))

    def settled(a, b):
        held = np.zeros(len(a), bool)
        # Ellipsoids are convex: what holds the ends holds the segment.
        for center, factor in zip(centers, factors):
            inside = [np.sum(((z - center) @ factor.T) ** 2, axis=1) <= 1 for z in (a, b)]
            held |= inside[0] & inside[1]
        direction = b - a
        length2 = np.sum(direction**2, axis=1)
        with np.errstate(invalid="ignore", over="ignore"):
            foot = np.clip(-np.sum(a * direction, axis=1) / np.where(length2 > 0, length2, 1.0), 0, 1)
            # As in the simulation, the largest coordinate counts; its size is at least the norm over sqrt(M).
            least = np.linalg.norm(a + foot[:, None] * direction, axis=1)
            return held | (least > escape * np.sqrt(a.shape[1]))

    return settled
