"""Broken lines between two points, shortened: the starts of geodesics, and a minimum where Newton's method alone would
find saddles."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._typing import Scalar
from dynwarp.geometry._frames import solve_transposed, solve_upper, upper_factor

# The part of the way to a bound that a vertex may go.
_PART = 0.7
# Damping, in units of the metric part of the Hessian: where it starts, and the factors of a success and of a failure.
# The farthest that a vertex goes in a step, in periods or in widths of the chart.
_REACH = 0.08
_FIRST, _EASE, _TIGHTEN = 1e-3, 0.1, 8.0


class Polyline(NamedTuple):
    """Vertices at the parameters `knots`, `(L + 1, m)`, the length, and whether it is a minimum."""

    points: Float[Array, "vertices m"]
    knots: Float[Array, " vertices"]
    length: Scalar
    converged: Scalar


def shorten(chart, points, knots, *, iterations: Any, accuracy: float) -> Polyline:
    """The minimum of the energy, sum of |segment|^2 / (2 step of the knots), with both ends held.

    Newton's method, damped until the Hessian is positive and every step descends, so that it ends in a minimum; the
    Hessian is block tridiagonal. It stops where a step would gain less than `accuracy` of the energy.
    """
    steps = jnp.diff(knots)
    ranges = [np.inf if b is None else b[1] - b[0] for b in chart.bounds]
    edges = [(-np.inf, np.inf) if b is None or p is not None else b for p, b in zip(chart.periods, chart.bounds)]
    low, high = jnp.asarray(edges, points.dtype).T
    reach = jnp.asarray([b if p is None else p for p, b in zip(chart.periods, ranges)], points.dtype) * _REACH

    def body(carry):
        points, model, damping, count, _ = carry
        energy, gradient, diagonal, upper, size = model
        move, positive = _solve_tridiagonal(diagonal + damping * size, upper, -gradient)
        gain = -jnp.sum(gradient * move)
        # Where the chart is nearly singular, as at a pole, a coordinate of little weight would be thrown around it.
        far = jnp.max(jnp.abs(move) / reach, 1, keepdims=True)
        move = move / jnp.maximum(far, 1)
        # Nor may a vertex go beyond a bound, which may be a pole, and come back with another angle.
        move = jnp.clip(move, _PART * (low - points[1:-1]), _PART * (high - points[1:-1]))
        tried = points.at[1:-1].add(jnp.where(positive, move, 0))
        new = chart._polyline(tried, steps)
        better = jnp.isfinite(new[0]) & positive & ((new[0] <= energy) | (gain <= accuracy * energy))
        # A step is judged by what it was to gain, where damping is of no weight any more.
        done = better & (count > 0) & (gain <= accuracy * energy) & (damping <= 1e-2)
        points = jnp.where(better, tried, points)
        model = jax.tree.map(lambda a, b: jnp.where(better, a, b), new, model)
        damping = jnp.where(better, damping * _EASE, jnp.maximum(damping, _FIRST) * _TIGHTEN)
        return points, model, damping, count + 1, done

    def going(carry):
        *_, damping, count, done = carry
        return ~done & (count <= iterations) & (damping < 1e12)

    # The first step goes nowhere, and takes the derivatives, so that they are in the program once.
    n, m = points.shape[0] - 2, points.shape[1]
    zero, eye = jnp.zeros((n, m), points.dtype), jnp.broadcast_to(jnp.eye(m, dtype=points.dtype), (n, m, m))
    start = (jnp.full((), jnp.inf, points.dtype), zero, eye, 0 * eye[1:], eye)
    carry = (points, start, jnp.asarray(_FIRST / _EASE, points.dtype), 0, jnp.asarray(False))
    points, model, _, _, done = jax.lax.while_loop(going, body, carry)
    return Polyline(points, knots, jnp.sqrt(2 * model[0]), done)


def _solve_tridiagonal(diagonal, upper, rhs):
    """The solution of a symmetric block tridiagonal system, and whether it is positive definite."""
    m = rhs.shape[-1]
    none = jnp.zeros((1, m, m), rhs.dtype)

    def forward(carry, row):
        above, value = carry
        diagonal, upper, rhs = row
        # With R^T R the pivot, the row above gives U^T = R^-T B and y = R^-T b.
        factor = upper_factor(diagonal - above.T @ above)
        beyond = solve_transposed(factor, jnp.concatenate([upper, (rhs - above.T @ value)[:, None]], 1))
        return (beyond[:, :m], beyond[:, m]), (factor, beyond)

    start = (jnp.zeros((m, m), rhs.dtype), jnp.zeros(m, rhs.dtype))
    rows = (diagonal, jnp.concatenate([upper, none]), rhs)
    _, (factors, beyond) = jax.lax.scan(forward, start, rows)

    def back(below, row):
        factor, beyond = row
        value = solve_upper(factor, beyond[:, m] - beyond[:, :m] @ below)
        return value, value

    _, solution = jax.lax.scan(back, jnp.zeros(m, rhs.dtype), (factors, beyond), reverse=True)
    return solution, jnp.all(jnp.isfinite(solution))


def resample(points, knots, at):
    """The polyline at other parameters, by the cubic through slopes of finite differences (Hermite), and its derivative
    there."""
    steps = jnp.diff(knots)[:, None]
    chords = jnp.diff(points, axis=0) / steps
    inner = (chords[:-1] * steps[1:] + chords[1:] * steps[:-1]) / (steps[1:] + steps[:-1])
    slopes = jnp.concatenate([(2 * chords[0] - inner[0])[None], inner, (2 * chords[-1] - inner[-1])[None]])
    return _cubic(points, slopes, knots, at)


def resample_monotone(points, knots, at):
    """The same through slopes that let no coordinate overshoot (Fritsch and Butland), for lines that jump from one
    vertex to the next."""
    steps = jnp.diff(knots)[:, None]
    chords = jnp.diff(points, axis=0) / steps
    first, second = 2 * steps[1:] + steps[:-1], steps[1:] + 2 * steps[:-1]
    same = chords[:-1] * chords[1:] > 0
    before, after = jnp.where(same, chords[:-1], 1), jnp.where(same, chords[1:], 1)
    inner = jnp.where(same, (first + second) / (first / before + second / after), 0)
    return _cubic(points, jnp.concatenate([chords[:1], inner, chords[-1:]]), knots, at)[0]


def _cubic(points, slopes, knots, at):
    steps = jnp.diff(knots)[:, None]
    chords = jnp.diff(points, axis=0) / steps
    i = jnp.clip(jnp.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
    h = steps[i]
    t = (at - knots[i])[:, None] / h
    a, b, chord = slopes[i], slopes[i + 1], chords[i]
    # x = x_i + h (t chord + t (1 - t) ((1 - t) (a - chord) + t (chord - b))).
    u, w = a - chord, chord - b
    value = points[i] + h * (t * chord + t * (1 - t) * ((1 - t) * u + t * w))
    slope = chord + (1 - 2 * t) * ((1 - t) * u + t * w) + t * (1 - t) * (w - u)
    return value, slope


def equidistribute(knots, density, n):
    """n + 1 knots that hold equal parts of a density, which is given on the intervals of the old ones."""
    steps = jnp.diff(knots)
    # No interval is to be much longer than the next one.
    for _ in range(4):
        wide = jnp.concatenate([density[:1], density, density[-1:]])
        density = jnp.maximum(density, 0.5 * jnp.maximum(wide[:-2], wide[2:]))
    total = jnp.cumsum(jnp.concatenate([jnp.zeros(1, knots.dtype), density * steps]))
    inner = jnp.interp(jnp.linspace(0, total[-1], n + 1), total, knots)
    return inner.at[0].set(knots[0]).at[-1].set(knots[-1])


def turning(points, knots):
    """How fast the coordinates turn along a polyline, |x''| / |x'| in each interval, each coordinate in units of its
    range."""
    steps = jnp.diff(knots)
    chords = jnp.diff(points, axis=0) / steps[:, None]
    scale = jnp.max(jnp.abs(points - points[0]), 0)
    chords = chords / jnp.where(scale > 0, scale, 1)
    second = jnp.diff(chords, axis=0) / (0.5 * (steps[1:] + steps[:-1]))[:, None]
    size = jnp.sqrt(jnp.sum(second**2, 1))
    size = jnp.maximum(jnp.concatenate([size[:1], size]), jnp.concatenate([size, size[-1:]]))
    speed = jnp.sqrt(jnp.sum(chords**2, 1))
    return size / jnp.where(speed > 0, speed, 1)
