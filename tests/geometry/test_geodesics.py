"""Geodesics, distances and transport against closed forms: spheres, hyperbolic planes, flat and embedded tori."""

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


@pytest.fixture(scope="module")
def arcs():
    """Six arcs of the sphere across the seam of the chart, in one program."""

    @eqx.filter_jit
    def run(sphere, x, y):
        def one(x, y):
            found = sphere.connect(x, y)
            w = jnp.array([0.3, -0.2])
            return {
                "found": found,
                "log": sphere.log(x, y),
                "end": sphere.exp(x, found.velocity),
                "points": sphere.geodesic(x, y, 5),
                "carried": sphere.parallel_transport(found, jnp.stack([found.velocity, w])[0]),
                "other": sphere.parallel_transport(found, w),
                "gradient": jax.grad(sphere.distance, (0, 1))(x, y),
                "tangent": jax.jvp(lambda x: sphere.log(x, y), (x,), (w,))[1],
                "metrics": (sphere.metric(x), sphere.metric(y)),
            }

        return jax.vmap(one)(x, y)

    return run(SPHERE, X, Y)


def test_distances_on_the_sphere(arcs):
    found = arcs["found"]
    assert (found.result == dw.RESULTS.successful).all()
    p, q = jax.vmap(_sphere)(X), jax.vmap(_sphere)(Y)
    want = np.arctan2(np.linalg.norm(np.cross(p, q), axis=1), np.sum(p * q, axis=1))
    np.testing.assert_allclose(found.length, want, rtol=1e-12)
    assert (np.abs(np.asarray(Y - X)[:, 1]) > np.pi).any()
    np.testing.assert_allclose(arcs["log"], found.velocity)


def test_exponential_undoes_the_logarithm(arcs):
    np.testing.assert_allclose(jax.vmap(_sphere)(arcs["end"]), jax.vmap(_sphere)(Y), atol=1e-10)


def test_points_are_at_equal_distances_on_a_great_circle(arcs):
    points = np.asarray(jax.vmap(jax.vmap(_sphere))(arcs["points"]))
    steps = np.linalg.norm(np.diff(points, axis=1), axis=-1)
    np.testing.assert_allclose(steps, np.broadcast_to(steps[:, :1], steps.shape), rtol=1e-9)
    normal = np.cross(points[:, 0], points[:, -1])
    np.testing.assert_allclose(np.einsum("pna,pa->pn", points, normal), 0, atol=1e-11)


def test_transport_keeps_lengths_angles_and_the_velocity(arcs):
    before, after = arcs["metrics"]
    velocity, w, found = arcs["carried"], arcs["other"], arcs["found"]

    def product(metric, a, b):
        return np.einsum("pi,pij,pj->p", np.broadcast_to(a, np.shape(b)), metric, b)

    first = np.broadcast_to(np.array([0.3, -0.2]), w.shape)
    np.testing.assert_allclose(product(after, w, w), product(before, first, first), rtol=1e-10)
    np.testing.assert_allclose(product(after, velocity, w), product(before, found.velocity, first), rtol=1e-9)
    arrival = jax.vmap(lambda c: jax.jvp(c, (jnp.ones(()),), (jnp.ones(()),))[1])(found)
    np.testing.assert_allclose(velocity, arrival, rtol=1e-9, atol=1e-11)


def test_derivatives_of_the_distance(arcs):
    at_x, _ = arcs["gradient"]
    before, found = arcs["metrics"][0], arcs["found"]
    direction = np.asarray(found.velocity) / np.asarray(found.length)[:, None]
    np.testing.assert_allclose(at_x, -np.einsum("pij,pj->pi", before, direction), rtol=1e-9, atol=1e-11)
    # The length of the logarithm is the distance: its derivative along w follows from that of log.
    h, w = 1e-5, jnp.array([0.3, -0.2])
    logs = [eqx.filter_jit(jax.vmap(SPHERE.log))(X + s * h * w, Y) for s in (1, -1)]
    np.testing.assert_allclose(arcs["tangent"], (logs[0] - logs[1]) / (2 * h), rtol=1e-6, atol=1e-8)


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
    plane = g.Metric(lambda x: jnp.eye(2) / x[1] ** 2, dim=2)
    x, y = jnp.array([0.0, 1.0]), jnp.array([2.0, 0.5])
    np.testing.assert_allclose(plane.distance(x, y), np.arccosh(1 + (4 + 0.25) / (2 * 0.5)), rtol=1e-13)
    assert plane.distance(x, x) == 0


def test_holonomy_is_the_curvature_enclosed():
    """A vector carried around a parallel of the sphere turns by 2 pi cos theta."""
    theta = 1.1
    circle = jnp.stack([jnp.full(60, theta), jnp.linspace(0, PERIOD, 60)], axis=1)
    carried = SPHERE.parallel_transport(circle, jnp.array([1.0, 0.0]))
    angle = np.arctan2(carried[1] * np.sin(theta), carried[0])
    np.testing.assert_allclose(np.cos(angle), np.cos(PERIOD * np.cos(theta)), atol=1e-8)


def test_failures_are_nan_with_a_code():
    near_pole = jnp.array([0.02, 0.0]), jnp.array([0.02, 3.0])
    found = eqx.filter_jit(lambda s, x, y: (s.connect(x, y, nodes=6), s.distance(x, y, nodes=6)))(SPHERE, *near_pole)
    assert found[0].result != dw.RESULTS.successful
    assert jnp.isnan(found[1])


def test_bad_arguments():
    with pytest.raises(dw.errors.ShapeError, match="`y`"):
        SPHERE.connect(jnp.ones(2), jnp.ones(3))
    with pytest.raises(dw.errors.ArgumentError, match="nodes"):
        SPHERE.connect(jnp.ones(2), jnp.ones(2), nodes=2)
    with pytest.raises(dw.errors.ArgumentError, match="`n`"):
        SPHERE.geodesic(jnp.ones(2), jnp.ones(2), 1)
    with pytest.raises(dw.errors.ArgumentError, match="at least 4"):
        SPHERE.parallel_transport(jnp.ones((3, 2)), jnp.ones(2))
