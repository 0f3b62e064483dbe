"""Points, segments and crossings against brute force and exact rational arithmetic."""

import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynwarp._linalg import intersect_segments, point_polyline_distance, point_segment_distance
from dynwarp.errors import ShapeError


def _exact_sign(p, q, r):
    p, q, r = ([Fraction(float(x)) for x in point] for point in (p, q, r))
    value = (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])
    return (value > 0) - (value < 0)


def _exact_crossing(a0, a1, b0, b1):
    return (
        _exact_sign(a0, a1, b0) * _exact_sign(a0, a1, b1) <= 0
        and _exact_sign(b0, b1, a0) * _exact_sign(b0, b1, a1) <= 0
    )


@pytest.mark.parametrize("dimension", [1, 2, 7])
def test_point_segment_distance_is_the_least_over_the_segment(dimension):
    points = jnp.asarray(np.random.default_rng(dimension).standard_normal((20, 3, dimension)))
    distance, fraction = jax.vmap(point_segment_distance)(*jnp.moveaxis(points, 1, 0))
    grid = np.linspace(0, 1, 4001)[:, None]
    for (p, a, b), d, s in zip(np.asarray(points), distance, fraction):
        sampled = np.linalg.norm(a + grid * (b - a) - p, axis=1).min()
        assert d <= sampled + 1e-14
        np.testing.assert_allclose(d, sampled, atol=1e-3)
        np.testing.assert_allclose(d, np.linalg.norm(a + s * (b - a) - p), rtol=1e-12, atol=1e-15)


def test_degenerate_segment_and_zero_distance():
    p, a = jnp.array([3.0, 4.0]), jnp.zeros(2)
    assert point_segment_distance(p, a, a)[0] == 5.0
    gradient = jax.grad(lambda x: point_segment_distance(x, a, p)[0])(a)
    assert (gradient == 0).all()
    assert jnp.isfinite(jax.grad(lambda x: point_segment_distance(p, x, x)[0])(a)).all()
    huge = point_segment_distance(jnp.array([3e200, 4e200]), a, a)[0]
    np.testing.assert_allclose(huge, 5e200, rtol=1e-15)


def test_distance_gradients(key):
    points = jax.random.normal(key, (3, 4))

    def f(x):
        return point_segment_distance(*x)[0]

    direction = jax.random.normal(jax.random.key(1), (3, 4))
    h = 1e-6
    numeric = (f(points + h * direction) - f(points - h * direction)) / (2 * h)
    np.testing.assert_allclose(jnp.sum(jax.grad(f)(points) * direction), numeric, rtol=1e-8)
    np.testing.assert_allclose(jax.jvp(f, (points,), (direction,))[1], numeric, rtol=1e-8)


def test_polyline_distance_with_padding(key):
    vertices = jax.random.normal(key, (6, 3))
    point = jnp.array([0.3, -0.2, 0.5])
    expected = min(float(point_segment_distance(point, a, b)[0]) for a, b in itertools.pairwise(vertices))
    np.testing.assert_allclose(point_polyline_distance(point, vertices), expected, rtol=1e-14)
    padded = jnp.concatenate([vertices, jnp.full((3, 3), jnp.nan)])
    valid = jnp.arange(9) < 6
    np.testing.assert_allclose(jax.jit(point_polyline_distance)(point, padded, valid), expected, rtol=1e-14)
    gradient = jax.grad(point_polyline_distance, argnums=1)(point, padded, valid)
    np.testing.assert_allclose(gradient[:6], jax.grad(point_polyline_distance, argnums=1)(point, vertices), rtol=1e-13)
    assert (gradient[6:] == 0).all()
    # A hole cuts the polyline; a vertex alone is a point; nothing at all is infinitely far.
    line = jnp.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    hole = point_polyline_distance(jnp.array([1.0, 0.0]), line, jnp.array([True, False, True]))
    assert hole == 1.0
    assert point_polyline_distance(jnp.array([1.0, 0.0]), line, jnp.zeros(3, bool)) == jnp.inf


def test_crossings_equal_rational_arithmetic():
    # Coordinates on a coarse grid: many touching, collinear and shared ends.
    points = np.random.default_rng(0).integers(0, 4, (400, 4, 2)).astype(float)
    found = jax.jit(jax.vmap(intersect_segments))(*jnp.moveaxis(jnp.asarray(points), 1, 0))
    crossing = 0
    for i, (a0, a1, b0, b1) in enumerate(points):
        u, v = a1 - a0, b1 - b0
        parallel = u[0] * v[1] == u[1] * v[0]
        assert bool(found.crosses[i]) == (not parallel and _exact_crossing(a0, a1, b0, b1))
        if found.crosses[i]:
            crossing += 1
            np.testing.assert_allclose(found.point[i], b0 + found.t[i] * v, atol=1e-13)
            assert -1e-14 <= found.s[i] <= 1 + 1e-14
        if parallel:
            assert jnp.isnan(found.s[i])
    assert crossing > 50


def test_certain_signs_are_right_next_to_degeneracy():
    generator = np.random.default_rng(1)
    uncertain = 0
    for _ in range(60):
        a0, a1 = generator.standard_normal((2, 2))
        b0 = a0 + 0.3 * (a1 - a0) + 1e-16 * generator.standard_normal(2)
        b1 = b0 + generator.standard_normal(2)
        found = intersect_segments(*(jnp.asarray(x) for x in (a0, a1, b0, b1)))
        if found.certain:
            assert bool(found.crosses) == _exact_crossing(a0, a1, b0, b1)
        uncertain += not found.certain
    assert uncertain > 10


def test_crossing_point_is_differentiable():
    segments = jnp.array([[0.0, 0.1], [2.0, 2.0], [0.0, 2.0], [2.0, -0.3]])
    direction = jax.random.normal(jax.random.key(0), segments.shape)

    def f(x):
        return jnp.sum(intersect_segments(*x).point * jnp.array([1.0, 2.0]))

    h = 1e-6
    numeric = (f(segments + h * direction) - f(segments - h * direction)) / (2 * h)
    np.testing.assert_allclose(jnp.sum(jax.grad(f)(segments) * direction), numeric, rtol=1e-8)
    parallel = jax.grad(lambda x: jnp.where(intersect_segments(*x).crosses, intersect_segments(*x).s, 0.0))
    assert jnp.isfinite(parallel(jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))).all()


def test_float32_and_errors():
    points = jnp.asarray([[0, 0], [2, 2], [0, 2], [2, 0]], jnp.float32)
    assert intersect_segments(*points).point.dtype == jnp.float32
    with pytest.raises(ShapeError, match=r"`b1` must have shape \(2,\); got \(3,\)"):
        intersect_segments(*jnp.zeros((3, 2)), jnp.zeros(3))
    with pytest.raises(ShapeError, match=r"`end` must have shape \(2,\)"):
        point_segment_distance(jnp.zeros(2), jnp.zeros(2), jnp.zeros(3))
    with pytest.raises(ShapeError, match="`valid`"):
        point_polyline_distance(jnp.zeros(2), jnp.zeros((4, 2)), jnp.zeros(3, bool))
