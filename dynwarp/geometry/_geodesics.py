"""Geodesics: of an initial-value problem, from a point in a direction, and of a boundary-value problem, between two."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dynwarp._results import RESULTS
from dynwarp._typing import Scalar
from dynwarp.geometry._collocation import (
    advance,
    end_velocities,
    equations,
    evaluate_panels,
    grid_of,
    linearise,
    newton_step,
)
from dynwarp.geometry._frames import invert_upper
from dynwarp.geometry._integration import integrate
from dynwarp.geometry._legendre import twice_integrated
from dynwarp.geometry._search import CURVE, LENGTH, Effort, length_of, search

# Where the speed varies by more than this power of eps there is nothing to differentiate.
_USABLE = 0.2


class Geodesic(eqx.Module):
    """What `connect` of a [`Metric`][dynwarp.geometry.Metric] or an [`Immersion`][dynwarp.geometry.Immersion] returns.

    Called with s in [0, 1] it is the curve: `geodesic(s)`, shape `(m,)`. Coordinates run on through periods.

    **Attributes:**

    - `start`, `velocity`: the point and the derivative in s at s = 0, `(m,)`; the velocity is the logarithm.
    - `length`: the length.
    - `speed_spread`: how much the speed varies along it, relative to the length: the relative error of the curve, whose
      square is about that of the length.
    - `runner_up`: the length of the shortest other geodesic found, which winds around a period in another way; infinite
      where none is within 3 %.
    - `ambiguous`: whether the runner-up is as long, to eps^0.5, so that the points are on each other's cut locus and
      the shortest geodesic is one of several.
    - `winding`: how often it winds around each period beyond the nearer way, `(m,)`.
    - `index`: the number of conjugate points on it: 0 of a minimum.
    - `result`: `outside` where an end or the way leaves the `bounds`; `max_steps_reached` where no geodesic was found;
      `saddle` where the only one found is no minimum; `inaccurate` where the speed, which is constant along a geodesic,
      varies by more than eps^0.5 (1.5e-8 in float64), so that more `panels` or `nodes` are needed.
    - `knots`, `joints`, `acceleration`: the ends of its panels, `(P + 1,)`, the points there, `(P + 1, m)`, and in each
      panel the Legendre coefficients of the second derivative in the parameter of the panel, `(P, nodes, m)`.
    """

    start: Float[Array, " m"]
    velocity: Float[Array, " m"]
    length: Scalar
    speed_spread: Scalar
    runner_up: Scalar
    ambiguous: Bool[Array, ""]
    winding: Float[Array, " m"]
    index: Int[Array, ""]
    result: RESULTS
    knots: Float[Array, " P+1"]
    joints: Float[Array, "P+1 m"]
    acceleration: Float[Array, "P nodes m"]

    def __call__(self, s: float | Scalar) -> Float[Array, " m"]:
        """The point at s in [0, 1]."""
        s = jnp.asarray(s, self.start.dtype)
        panels, nodes, _ = self.acceleration.shape
        i = jnp.clip(jnp.searchsorted(self.knots, jax.lax.stop_gradient(s), side="right") - 1, 0, panels - 1)
        t = (s - self.knots[i]) / (self.knots[i + 1] - self.knots[i])
        # Second integrals that vanish at both ends of the panel.
        twice = twice_integrated(t, nodes) - t * twice_integrated(jnp.ones_like(t), nodes)
        chord = self.joints[i] + t * (self.joints[i + 1] - self.joints[i])
        return chord + jnp.matmul(twice, self.acceleration[i], precision="highest")


@eqx.filter_jit
def connect(chart, x, y, effort: Effort) -> Geodesic:
    """The shortest of the geodesics from x to y that are found from straight lines in the chart, one for each way
    around each period."""
    dtype = jnp.result_type(x, y)
    x, y = x.astype(dtype), y.astype(dtype)
    windings, chords = _chords(chart, x, y, effort.turns)
    frozen, found = _found(chart, x, chords, effort)
    # One more step, of which the matrix is held: its derivative is that of the solution, by the implicit function
    # theorem. Nothing else is taken of it: between conjugate points, where the matrix is singular, it is noise.
    path = _from_to(found.path, x, x + chords[found.which])
    _, linear = linearise(frozen, jax.lax.stop_gradient(path))
    change, _ = newton_step(path, equations(chart, path), linear)
    usable = found.spread <= jnp.finfo(dtype).eps ** _USABLE
    path = advance(path, jax.tree.map(lambda a: jnp.where(usable, a - jax.lax.stop_gradient(a), 0), change))
    length, spread = length_of(chart, path)
    velocity = end_velocities(path)[0][0]
    lengths = jnp.where(jnp.arange(len(chords)) == found.which, jnp.inf, found.lengths)
    runner_up = jnp.min(lengths)
    return Geodesic(
        start=x,
        velocity=velocity,
        length=length,
        speed_spread=spread,
        runner_up=runner_up,
        ambiguous=runner_up - length <= jnp.finfo(dtype).eps ** 0.5 * length,
        winding=jnp.asarray(windings, dtype)[found.which],
        index=found.index,
        result=_result(chart, found, path, spread),
        knots=path.knots,
        joints=path.joints,
        acceleration=jnp.einsum("ki,pia->pka", grid_of(path).transform, path.force, precision="highest"),
    )


@eqx.filter_jit
def distance(chart, x, y, effort: Effort) -> jax.Array:
    """The length of the shortest geodesic found, NaN where it is not certain."""
    dtype = jnp.result_type(x, y)
    x, y = x.astype(dtype), y.astype(dtype)
    _, chords = _chords(chart, x, y, effort.turns)
    _, found = _found(chart, x, chords, effort)
    # The length is least, so that its derivative is that with the inner points held.
    path = _from_to(found.path, x, x + chords[found.which])
    length, spread = length_of(chart, path)
    certain = jnp.isfinite(found.spread) & (spread <= jnp.finfo(dtype).eps ** LENGTH) & inside(chart, path)
    return jnp.where(certain, length, jnp.nan)


def _chords(chart, x, y, turns):
    """The straight ways from x to y, `(W, m)`, and how they wind."""
    periods = np.array([0.0 if p is None else p for p in chart.periods])
    nearer = [d if p is None else d - p * jnp.round(d / p) for d, p in zip(y - x, chart.periods)]
    # The nearer way first: of equals the first one is taken.
    counts = sorted(range(-turns, turns + 1), key=abs)
    windings = np.array(list(itertools.product(*[(0,) if p is None else counts for p in chart.periods])))
    return windings, jnp.stack(nearer) + jnp.asarray(windings * periods, x.dtype)


def _found(chart, x, chords, effort):
    """The search, in which nothing is differentiated."""
    arrays, static = eqx.partition((chart, x, chords), eqx.is_array)
    frozen, x, chords = eqx.combine(jax.lax.stop_gradient(arrays), static)
    lines = x + jnp.linspace(0, 1, effort.segments + 1, dtype=x.dtype)[:, None] * chords[:, None]
    return frozen, jax.lax.stop_gradient(search(frozen, lines, effort))


def _from_to(path, x, y):
    return path._replace(joints=path.joints.at[0].set(x).at[-1].set(y))


def inside(chart, path):
    """Whether the path stays in the bounds of the chart."""
    points = jnp.concatenate([path.joints, evaluate_panels(path)[0].reshape(-1, chart.dim)])
    return jnp.all(jax.vmap(lambda x: within(chart, x))(points))


def within(chart, x):
    """Whether a point is in the bounds of the coordinates that have no period."""
    slack = 16 * jnp.finfo(x.dtype).eps
    checks = [jnp.asarray(True)]
    for coordinate, bound, period in zip(x, chart.bounds, chart.periods):
        if bound is not None and period is None:
            margin = slack * (1 + abs(bound[0]) + abs(bound[1])) if np.all(np.isfinite(bound)) else slack
            checks.append((coordinate >= bound[0] - margin) & (coordinate <= bound[1] + margin))
    return jnp.all(jnp.stack(checks))


def _result(chart, found, path, spread):
    eps = jnp.finfo(spread.dtype).eps
    result = RESULTS.where(spread <= eps**CURVE, RESULTS.successful, RESULTS.inaccurate)
    result = RESULTS.where(jnp.isfinite(found.spread), result, RESULTS.max_steps_reached)
    saddle = jnp.isinf(found.spread) & (found.index > 0) & (spread <= eps**LENGTH)
    result = RESULTS.where(saddle, RESULTS.saddle, result)
    return RESULTS.where(inside(chart, path), result, RESULTS.outside)


@eqx.filter_jit
def pairwise(chart, points, effort: Effort) -> jax.Array:
    """All distances, of the upper triangle."""
    n = len(points)
    i, j = np.triu_indices(n, 1)
    found = jax.vmap(lambda x, y: distance(chart, x, y, effort))(points[i], points[j])
    return jnp.zeros((n, n), points.dtype).at[i, j].set(found).at[j, i].set(found)


@eqx.filter_jit
def exponential(chart, x, v) -> jax.Array:
    """The end of the geodesic of unit time from x with the velocity v."""
    dtype = jnp.result_type(x, v)

    def field(t, state, args):
        x, v = state
        return v, -chart._bend(x, v, v)

    return integrate(field, (x.astype(dtype), v.astype(dtype)))[0]


@eqx.filter_jit
def transport(chart, curve: Callable[[Any], Any], v) -> jax.Array:
    """v, a tangent at curve(0), carried parallel to curve(1)."""

    def field(t, v, args):
        point, velocity = jax.jvp(curve, (t,), (jnp.ones_like(t),))
        return -chart._bend(point, velocity, v)

    return integrate(field, v)


@eqx.filter_jit
def holonomy(chart, loop: Callable[[Any], Any]) -> jax.Array:
    """Parallel transport around a loop in the orthonormal frame that the coordinates give by Gram and Schmidt."""
    start = loop(jnp.zeros(()))
    factor = chart._factor(start)

    def field(t, vectors, args):
        point, velocity = jax.jvp(loop, (t,), (jnp.ones_like(t),))
        return -jax.vmap(lambda v: chart._bend(point, velocity, v), 1, 1)(vectors)

    return factor @ integrate(field, invert_upper(factor))


def spline(points: Float[Array, "n m"]) -> Callable[[Any], Any]:
    """A curve through points at equal parameters in [0, 1], by cubic splines."""
    return _Spline(points)


class _Spline(eqx.Module):
    """The not-a-knot cubic spline through points at equal steps of s."""

    points: Float[Array, "n m"]

    def __call__(self, s):
        from scipy.interpolate import CubicSpline

        n, s = len(self.points), jnp.asarray(s, self.points.dtype)
        cubics = jnp.asarray(CubicSpline(np.linspace(0, 1, n), np.eye(n)).c, self.points.dtype)
        i = jnp.clip(jnp.floor(jax.lax.stop_gradient(s) * (n - 1)).astype(jnp.int32), 0, n - 2)
        h = s - i.astype(s.dtype) / (n - 1)
        a, b, c, d = cubics[:, i]
        return (((a * h + b) * h + c) * h + d) @ self.points
