"""Geodesics: of an initial-value problem, from a point in a direction, and of a boundary-value problem, between two."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._results import RESULTS
from dynwarp._typing import Scalar
from dynwarp.geometry._legendre import collocation, twice_integrated

_ITERATIONS = 25
# The speed may vary by these powers of eps; of the length only the square of the variation is lost.
_CURVE, _LENGTH = 0.6, 0.4
# Lengths of a Newton step that are tried side by side.
_FRACTIONS = np.array([1.0, 0.5, 0.2, 0.05])


class Geodesic(eqx.Module):
    """What `connect` of a [`Metric`][dynwarp.geometry.Metric] or an [`Immersion`][dynwarp.geometry.Immersion] returns.

    Called with s in [0, 1] it is the curve: `geodesic(s)`, shape `(m,)`. Coordinates run on through periods.

    **Attributes:**

    - `start`, `velocity`: the point and the derivative in s at s = 0, `(m,)`; the velocity is the logarithm.
    - `length`: the length.
    - `speed_spread`: how much the speed varies along it, relative to the length: the relative error of the curve, whose
      square is about that of the length.
    - `runner_up`: the length of the shortest other geodesic found, which winds around a period in another way; infinite
      where there was none. Equal to `length` on the cut locus, where the shortest one is ambiguous.
    - `winding`: how often it winds around each period beyond the nearer way, `(m,)`.
    - `result`: `max_steps_reached` where Newton's iteration did not converge; `inaccurate` where the speed, which is
      constant along a geodesic, varies by more than eps^0.6 (4e-10 in float64), so that more `nodes` are needed.
    - `acceleration`: Legendre coefficients of the second derivative, `(nodes, m)`.
    """

    start: Float[Array, " m"]
    velocity: Float[Array, " m"]
    length: Scalar
    speed_spread: Scalar
    runner_up: Scalar
    winding: Float[Array, " m"]
    result: RESULTS
    acceleration: Float[Array, "nodes m"]

    def __call__(self, s: float | Scalar) -> Float[Array, " m"]:
        """The point at s in [0, 1]."""
        s = jnp.asarray(s, self.start.dtype)
        twice = twice_integrated(s, len(self.acceleration))
        return self.start + s * self.velocity + jnp.matmul(twice, self.acceleration, precision="highest")


@eqx.filter_jit
def connect(chart, x, y, nodes: int, turns: int) -> Geodesic:
    """The shortest of the geodesics from x to y that are found from straight lines in the chart, one for each way
    around each period."""
    dtype = jnp.result_type(x, y)
    x, y = x.astype(dtype), y.astype(dtype)
    grid = jax.tree.map(lambda a: jnp.asarray(a, dtype), collocation(nodes))
    periods = np.array([0.0 if p is None else p for p in chart.periods])
    step = y - x
    nearer = [d if p is None else d - p * jnp.round(d / p) for d, p in zip(step, chart.periods)]
    # The nearer way first: of equals the first one is taken.
    counts = sorted(range(-turns, turns + 1), key=abs)
    windings = np.array(list(itertools.product(*[(0,) if p is None else counts for p in chart.periods])))
    chords = jnp.stack(nearer) + jnp.asarray(windings * periods, dtype)

    forces, converged, speeds = jax.vmap(lambda chord: _solve(chart, x, chord, grid))(chords)
    lengths = speeds @ grid.weights
    spread = (jnp.max(speeds, 1) - jnp.min(speeds, 1)) / lengths
    # Of one point to itself the speed is 0, and constant.
    spread = jnp.where(lengths == 0, 0, spread)
    eps = jnp.finfo(dtype).eps
    ranked = jnp.where(converged & (spread <= eps**_LENGTH), lengths, jnp.inf)
    best = jnp.argmin(ranked)
    result = RESULTS.where(spread[best] <= eps**_CURVE, RESULTS.successful, RESULTS.inaccurate)
    result = RESULTS.where(converged[best], result, RESULTS.max_steps_reached)
    others = jnp.where(jnp.arange(len(chords)) == best, jnp.inf, ranked)
    force = forces[best]
    return Geodesic(
        start=x,
        velocity=chords[best] + jnp.matmul(grid.start, force, precision="highest"),
        length=lengths[best],
        speed_spread=spread[best],
        runner_up=jnp.min(others),
        winding=jnp.asarray(windings, dtype)[best],
        result=result,
        acceleration=jnp.matmul(grid.transform, force, precision="highest"),
    )


def certain_length(found: Geodesic) -> jax.Array:
    """The length where it is certain, NaN elsewhere."""
    certain = found.speed_spread <= jnp.finfo(found.length.dtype).eps ** _LENGTH
    certain = certain & (found.result != RESULTS.max_steps_reached)
    return jnp.where(certain, found.length, jnp.nan)


def _solve(chart, x, chord, grid):
    """The second derivatives at the nodes, whether Newton's method converged, and the speeds at the nodes.

    Unknown is f = x'' at the nodes: f + Gamma(x', x') = 0 with x and x' integrals of f, so that the equations are as
    well conditioned as the geodesic.
    """
    n, m = len(grid.nodes), len(chord)

    def path(x, chord, force):
        points = x + grid.nodes[:, None] * chord + jnp.matmul(grid.position, force, precision="highest")
        return points, chord + jnp.matmul(grid.velocity, force, precision="highest")

    def residual(chart, x, chord, force):
        return force + jax.vmap(lambda p, v: chart._bend(p, v, v))(*path(x, chord, force))

    def linearised(force):
        """The residual and its matrix, of constants alone."""

        def local(p, v):
            bend = frozen._bend(p, v, v)
            return bend, bend

        (of_point, of_velocity), bend = jax.vmap(jax.jacfwd(local, (0, 1), has_aux=True))(*path(x0, chord0, force))
        blocks = jnp.einsum("iab,ij->iajb", of_point, grid.position)
        blocks = blocks + jnp.einsum("iab,ij->iajb", of_velocity, grid.velocity)
        return force + bend, blocks.reshape(n * m, n * m) + jnp.eye(n * m, dtype=chord.dtype)

    def newton(matrix, value):
        return jnp.linalg.solve(matrix, value.reshape(-1)).reshape(n, m)

    def size(value):
        return jnp.max(jnp.abs(value))

    def scale(force):
        return jnp.maximum(size(force), size(chord0))

    eps = jnp.finfo(chord.dtype).eps
    arrays, static = eqx.partition((chart, x, chord), eqx.is_array)
    frozen, x0, chord0 = eqx.combine(jax.lax.stop_gradient(arrays), static)

    def body(carry):
        force, _, count, _ = carry
        value, matrix = linearised(force)
        step = newton(matrix, value)
        tried = force - jnp.asarray(_FRACTIONS, force.dtype)[:, None, None] * step
        sizes = jax.vmap(lambda force: size(residual(frozen, x0, chord0, force)))(tried)
        best = jnp.argmin(jnp.where(jnp.isfinite(sizes), sizes, jnp.inf))
        better = sizes[best] < size(value)
        left = jnp.where(better, sizes[best], size(value))
        return jnp.where(better, tried[best], force), left, count + 1, better

    def going(carry):
        force, left, count, better = carry
        return better & (count < _ITERATIONS) & (left > 8 * eps * scale(force))

    infinite = jnp.full((), jnp.inf, chord.dtype)
    start = (jnp.zeros((n, m), chord.dtype), infinite, 0, jnp.asarray(True))
    force, left, _, _ = jax.lax.while_loop(going, body, start)
    converged = left <= eps**0.7 * scale(force)
    # One more step, with its matrix held: its derivative is that of the solution, by the implicit function theorem.
    force = jax.lax.stop_gradient(force)
    correction = newton(linearised(force)[1], residual(chart, x, chord, force))
    force = force - jnp.where(converged, correction, 0)
    points, velocities = path(x, chord, force)
    return force, converged, jax.vmap(lambda p, v: _speed(chart, p, v))(points, velocities)


def _speed(chart, x, v):
    square = v @ chart._metric(x) @ v
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), square * 0)


@eqx.filter_jit
def exponential(chart, x, v) -> jax.Array:
    """The end of the geodesic of unit time from x with the velocity v."""
    dtype = jnp.result_type(x, v)

    def field(t, state, args):
        x, v = state
        return v, -chart._bend(x, v, v)

    return _integrate(field, (x.astype(dtype), v.astype(dtype)))[0]


@eqx.filter_jit
def transport(chart, curve: Callable[[Any], Any], v) -> jax.Array:
    """v, a tangent at curve(0), carried parallel to curve(1)."""

    def field(t, v, args):
        point, velocity = jax.jvp(curve, (t,), (jnp.ones_like(t),))
        return -chart._bend(point, velocity, v)

    return _integrate(field, v)


def _integrate(field, state) -> Any:
    """The state at time 1; NaN where the solver gave up."""
    dtype = jax.tree.leaves(state)[0].dtype
    rtol, atol = (1e-12, 1e-13) if dtype == jnp.float64 else (1e-6, 1e-7)
    smallest = float(jnp.finfo(dtype).eps) * 1e-2
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),  # pyright: ignore[reportArgumentType]
        diffrax.Dopri8(),
        t0=jnp.zeros((), dtype),
        t1=jnp.ones((), dtype),
        dt0=None,
        y0=state,
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol, dtmin=smallest, force_dtmin=False),
        adjoint=diffrax.DirectAdjoint(),
        max_steps=4096,
        throw=False,
    )
    succeeded = solution.result == diffrax.RESULTS.successful
    return jax.tree.map(lambda y: jnp.where(succeeded, y[-1], jnp.nan), solution.ys)


def spline(points: Float[Array, "n m"]) -> Callable[[Any], Any]:
    """A curve through points at equal parameters in [0, 1], by cubic splines."""
    return _Spline(points)


class _Spline(eqx.Module):
    """The not-a-knot cubic spline through points at equal steps of s."""

    points: Float[Array, "n m"]

    def __call__(self, s):
        from scipy.interpolate import CubicSpline

        n = len(self.points)
        cubics = jnp.asarray(CubicSpline(np.linspace(0, 1, n), np.eye(n)).c, self.points.dtype)
        i = jnp.clip(jnp.floor(jax.lax.stop_gradient(s) * (n - 1)).astype(jnp.int32), 0, n - 2)
        h = s - i.astype(s.dtype) / (n - 1)
        a, b, c, d = cubics[:, i]
        return (((a * h + b) * h + c) * h + d) @ self.points
