"""Geodesics, distances and transport against closed forms: spheres, hyperbolic planes, flat and embedded tori."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw

g = dw.geometry
KEY = jax.random.key(0)
PERIOD = 2 * np.pi


def _sphere(x):
    s, c = jnp.sin(x), jnp.cos(x)
    return jnp.stack([s[0] * c[1], s[0] * s[1], c[0]])


SPHERE = g.Immersion(_sphere, dim=2, periods=(None, PERIOD))
LOWER, UPPER = jnp.array([1.0, 5.6]), jnp.array([2.1, 6.9])
X = jax.random.uniform(KEY, (6, 2), minval=LOWER, maxval=UPPER)
Y = jax.random.uniform(jax.random.key(1), (6, 2), minval=LOWER, maxval=UPPER) % jnp.array([10.0, PERIOD])
W = jnp.array([0.3, -0.2])
# Past the pole, where the chart tears.
NEAR_POLE = jnp.array([[0.02, 0.0], [0.02, 3.0]])
PLANE = g.Metric(lambda x: jnp.eye(2) / x[1] ** 2, dim=2)


def _hyperbolic(x, y):
    return jnp.arccosh(1 + jnp.sum((x - y) ** 2) / (2 * x[1] * y[1]))


@pytest.fixture(scope="module")
def arcs():
    """Six arcs of the sphere across the seam of the chart and one past its pole, in one program."""

    @eqx.filter_jit
    def run(sphere, x, y):
        def one(x, y):
            found = sphere.connect(x, y)
            return {
                "found": found,
                "end": sphere.exp(x, found.velocity),
                "points": jax.vmap(found)(jnp.linspace(0, 1, 5)),
                "carried": jax.vmap(lambda v: sphere.parallel_transport(found, v))(jnp.stack([found.velocity, W])),
                "metrics": (sphere.metric(x), sphere.metric(y)),
            }

        return jax.vmap(one)(x, y)

    out = run(SPHERE, jnp.concatenate([X, NEAR_POLE[:1]]), jnp.concatenate([Y, NEAR_POLE[1:]]))
    return [jax.tree.map(lambda a, i=i: a[i], out) for i in (slice(6), 6)]


def test_distances_on_the_sphere(arcs):
    found = arcs[0]["found"]
    assert (found.result == dw.RESULTS.successful).all()
    p, q = jax.vmap(_sphere)(X), jax.vmap(_sphere)(Y)
    want = np.arctan2(np.linalg.norm(np.cross(p, q), axis=1), np.sum(p * q, axis=1))
    np.testing.assert_allclose(found.length, want, rtol=1e-12)
    assert (np.abs(np.asarray(Y - X)[:, 1]) > np.pi).any()


def test_exponential_undoes_the_logarithm(arcs):
    np.testing.assert_allclose(jax.vmap(_sphere)(arcs[0]["end"]), jax.vmap(_sphere)(Y), atol=1e-10)


def test_points_are_at_equal_distances_on_a_great_circle(arcs):
    points = np.asarray(jax.vmap(jax.vmap(_sphere))(arcs[0]["points"]))
    steps = np.linalg.norm(np.diff(points, axis=1), axis=-1)
    np.testing.assert_allclose(steps, np.broadcast_to(steps[:, :1], steps.shape), rtol=1e-9)
    normal = np.cross(points[:, 0], points[:, -1])
    np.testing.assert_allclose(np.einsum("pna,pa->pn", points, normal), 0, atol=1e-11)


def test_transport_keeps_lengths_angles_and_the_velocity(arcs):
    (before, after), found = arcs[0]["metrics"], arcs[0]["found"]
    first = np.stack([found.velocity, np.broadcast_to(W, found.velocity.shape)], axis=1)
    last = arcs[0]["carried"]
    products = [np.einsum("pai,pij,pbj->pab", v, G, v) for v, G in ((first, before), (last, after))]
    np.testing.assert_allclose(products[1], products[0], rtol=1e-9, atol=1e-11)
    arrival = jax.vmap(lambda c: jax.jvp(c, (jnp.ones(()),), (jnp.ones(()),))[1])(found)
    np.testing.assert_allclose(last[:, 0], arrival, rtol=1e-9, atol=1e-11)


def test_a_way_past_the_pole_is_resolved(arcs):
    """The chart tears 0.0015 beside the way."""
    found = arcs[1]["found"]
    p, q = (np.asarray(_sphere(x)) for x in NEAR_POLE)
    np.testing.assert_allclose(found.length, np.arcsin(np.linalg.norm(np.cross(p, q))), rtol=1e-10)
    assert not found.ambiguous


def test_flat_torus_winds_the_shorter_way():
    """Straight lines; in a stretched chart the shortest one is not the nearest in coordinates."""
    torus = g.Metric(lambda x: jnp.array([[1.0, 0.9], [0.9, 1.0]]) + 0 * x[0], dim=2, periods=(1.0, 1.0))
    x, y = jnp.array([0.1, 0.1]), jnp.array([0.55, 0.55])
    found = torus.connect(x, y, nodes=4)
    steps = np.array([[0.45 + i, 0.45 + j] for i in (0, 1, -1) for j in (0, 1, -1)])
    lengths = np.sort(np.sqrt(np.einsum("ki,ij,kj->k", steps, torus.metric(x), steps)))
    np.testing.assert_allclose([found.length, found.runner_up], lengths[:2], rtol=1e-14)
    assert found.winding.any()


def test_hyperbolic_plane():
    x, y = jnp.array([0.0, 1.0]), jnp.array([2.0, 0.5])
    found = PLANE.connect(x, y)
    np.testing.assert_allclose(PLANE.distance(x, y), _hyperbolic(x, y), rtol=1e-13)
    assert PLANE.distance(x, x) == 0
    np.testing.assert_allclose(PLANE.log(x, y), found.velocity)
    points = PLANE.geodesic(x, y, 4)
    np.testing.assert_allclose(points[0], x)
    np.testing.assert_allclose(points[-1], y, atol=1e-13)
    steps = [_hyperbolic(a, b) for a, b in itertools.pairwise(points)]
    np.testing.assert_allclose(steps, found.length / 3, rtol=1e-11)
    # The chart ends at the boundary at infinity, which no geodesic in the plane crosses.
    beyond = PLANE.connect(x, jnp.array([2.0, -0.5]))
    assert beyond.result != dw.RESULTS.successful
    assert jnp.isnan(PLANE.distance(x, jnp.array([2.0, -0.5])))


def test_derivatives_of_distance_and_logarithm():
    x, y = jnp.array([0.0, 1.0]), jnp.array([1.0, 0.8])
    derivative = eqx.filter_jit(lambda plane, x, y: jax.jacrev(lambda *p: _both(plane, *p), (0, 1))(x, y))
    (length_x, length_y), (log_x, _) = derivative(PLANE, x, y)
    want = jax.grad(_hyperbolic, (0, 1))(x, y)
    np.testing.assert_allclose(length_x, want[0], rtol=1e-11)
    np.testing.assert_allclose(length_y, want[1], rtol=1e-11)
    h = 1e-5
    difference = (PLANE.log(x + h * W, y) - PLANE.log(x - h * W, y)) / (2 * h)
    np.testing.assert_allclose(log_x @ W, difference, rtol=1e-8)


def _both(plane, x, y):
    found = plane.connect(x, y)
    return found.length, found.velocity


def test_holonomy_is_the_curvature_enclosed():
    """A vector carried around a parallel of the sphere turns by 2 pi cos theta."""
    theta = 1.1
    circle = jnp.stack([jnp.full(60, theta), jnp.linspace(0, PERIOD, 60)], axis=1)
    carried = SPHERE.parallel_transport(circle, jnp.array([1.0, 0.0]))
    angle = np.arctan2(carried[1] * np.sin(theta), carried[0])
    np.testing.assert_allclose(np.cos(angle), np.cos(PERIOD * np.cos(theta)), atol=1e-8)


def test_bad_arguments():
    with pytest.raises(dw.errors.ShapeError, match="`y`"):
        SPHERE.connect(jnp.ones(2), jnp.ones(3))
    with pytest.raises(dw.errors.ArgumentError, match="nodes"):
        SPHERE.connect(jnp.ones(2), jnp.ones(2), nodes=2)
    with pytest.raises(dw.errors.ArgumentError, match="`n`"):
        SPHERE.geodesic(jnp.ones(2), jnp.ones(2), 1)
    with pytest.raises(dw.errors.ArgumentError, match="at least 4"):
        SPHERE.parallel_transport(jnp.ones((3, 2)), jnp.ones(2))
