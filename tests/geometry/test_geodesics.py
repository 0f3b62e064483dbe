"""Geodesics, distances and transport against closed forms: spheres, hyperbolic planes, flat and embedded tori."""

import itertools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import dynwarp as dw

g = dw.geometry
KEY = jax.random.key(0)
PERIOD = 2 * np.pi


class _Surface(eqx.Module):
    """A sphere or an ellipsoid where `ring` is 0, else a torus with its outer equator at u = pi / 2."""

    ring: jax.Array
    axes: jax.Array

    def __call__(self, x):
        s, c = jnp.sin(x), jnp.cos(x)
        radius = self.ring + s[0]
        return self.axes * jnp.stack([radius * c[1], radius * s[1], c[0]])


RING, TUBE = 2.0, 0.6
TRIAXIAL = np.array([1.5, 1.1, 0.7])
FAMILY = g.Immersion(
    _Surface(jnp.array([0.0, 0.0, RING / TUBE]), jnp.array([np.ones(3), TRIAXIAL, np.full(3, TUBE)])),
    dim=2,
    periods=(None, PERIOD),
)
SPHERE = jax.tree.map(lambda a: a[0], FAMILY)
_sphere = SPHERE.fn
LOWER, UPPER = jnp.array([1.0, 5.6]), jnp.array([2.1, 6.9])
X = jax.random.uniform(KEY, (6, 2), minval=LOWER, maxval=UPPER)
Y = jax.random.uniform(jax.random.key(1), (6, 2), minval=LOWER, maxval=UPPER) % jnp.array([10.0, PERIOD])
W = jnp.array([0.3, -0.2])
# Of the sphere: past the pole, where the chart tears; two ends of a diameter; long ways past the pole.
MORE = jnp.array(
    [
        [[0.02, 0.0], [0.02, 3.0]],
        [[1.0, 0.3], [np.pi - 1.0, 0.3 + np.pi]],
        [[1.2, 1.0], [0.7, 1.0 + np.pi - 0.01]],
        [[0.5, 4.0], [1.8, 4.0 - np.pi + 0.005]],
    ]
)
# Of the torus: along a meridian, the inner and the outer equator; a long way along the latter.
AROUND = jnp.array(
    [
        [[0.4, 1.0], [2.0, 1.0]],
        [[-np.pi / 2, 0.0], [-np.pi / 2, 1.0]],
        [[np.pi / 2, 0.0], [np.pi / 2, 1.0]],
        [[np.pi / 2, 0.0], [np.pi / 2, 2.0]],
    ]
)
STARTS = jnp.stack([jnp.concatenate([X, MORE[:, 0]])] * 2 + [jnp.concatenate([X[:4], AROUND[:, 0], X[4:]])])
ENDS = jnp.stack([jnp.concatenate([Y, MORE[:, 1]])] * 2 + [jnp.concatenate([Y[:4], AROUND[:, 1], Y[4:]])])
PLANE = g.Metric(lambda x: jnp.eye(2) / x[1] ** 2, dim=2)


def _hyperbolic(x, y):
    return jnp.arccosh(1 + jnp.sum((x - y) ** 2) / (2 * x[1] * y[1]))


@pytest.fixture(scope="module")
def surfaces():
    """Ten arcs on each of a sphere, a triaxial ellipsoid and a torus, in one program."""

    @eqx.filter_jit
    def run(family, x, y):
        def one(surface, x, y):
            found = surface.connect(x, y)
            arrival = jax.jvp(found, (jnp.ones(()),), (jnp.ones(()),))[1]
            return {
                "found": found,
                "end": surface.exp(x, found.velocity),
                "points": jax.vmap(found)(jnp.linspace(0, 1, 5)),
                "arrival": arrival,
                "carried": jax.vmap(lambda v: surface.parallel_transport(found, v))(jnp.stack([found.velocity, W])),
                "metrics": (surface.metric(x), surface.metric(y)),
            }

        return eqx.filter_vmap(lambda surface, x, y: jax.vmap(lambda x, y: one(surface, x, y))(x, y))(family, x, y)

    return run(FAMILY, STARTS, ENDS)


def _lanes(found, surface, lanes):
    return jax.tree.map(lambda a: a[surface, lanes], found)


@pytest.fixture(scope="module")
def arcs(surfaces):
    """Of the sphere: six arcs across the seam of the chart, and three past its pole."""
    return [_lanes(surfaces, 0, lanes) for lanes in (slice(6), np.array([6, 8, 9]))]


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
    np.testing.assert_allclose(last[:, 0], arcs[0]["arrival"], rtol=1e-9, atol=1e-11)


def test_a_way_past_the_pole_is_resolved(arcs):
    """The chart tears 0.0014, 0.0063 and 0.0031 beside the ways."""
    found = arcs[1]["found"]
    p, q = (np.asarray(jax.vmap(_sphere)(MORE[np.array([0, 2, 3]), i])) for i in (0, 1))
    normals = np.cross(p, q)
    want = np.arctan2(np.linalg.norm(normals, axis=1), np.sum(p * q, axis=1))
    np.testing.assert_allclose(found.length, want, rtol=1e-10)
    assert (found.result == dw.RESULTS.successful).all()
    assert not found.ambiguous.any()


def test_ends_of_a_diameter_are_ambiguous(surfaces):
    """On the cut locus: half great circles either way around are as long."""
    found = _lanes(surfaces, 0, 7)["found"]
    np.testing.assert_allclose([found.length, found.runner_up], np.pi, rtol=1e-9)
    assert found.ambiguous
    assert not _lanes(surfaces, 0, slice(6))["found"].ambiguous.any()


def _free_motion(axes, start, velocity):
    """The end of a particle held on an ellipsoid by its normal force: no chart, no Christoffel symbols."""

    def field(t, state):
        x, v = np.split(state, 2)
        normal = x / axes**2
        return np.concatenate([v, -(v @ (v / axes**2)) / (normal @ normal) * normal])

    run = solve_ivp(field, (0, 1), np.concatenate([start, velocity]), method="DOP853", rtol=3e-14, atol=1e-14)
    return run.y[:3, -1]


def test_distances_on_a_triaxial_ellipsoid(surfaces):
    found = _lanes(surfaces, 1, slice(7))["found"]
    assert (found.result == dw.RESULTS.successful).all()
    assert (found.index == 0).all()
    surface = jax.tree.map(lambda a: a[1], FAMILY).fn
    starts, velocities = jax.vmap(lambda x, v: jax.jvp(surface, (x,), (v,)))(STARTS[1, :7], found.velocity)
    np.testing.assert_allclose(found.length, np.linalg.norm(velocities, axis=1), rtol=1e-10)
    ends = [_free_motion(TRIAXIAL, *pair) for pair in zip(np.asarray(starts), np.asarray(velocities))]
    np.testing.assert_allclose(ends, jax.vmap(surface)(ENDS[1, :7]), atol=1e-10)


def test_distances_on_a_torus(surfaces):
    """Meridians and equators in closed form; (R + r sin u)^2 dv/ds, of Clairaut, is kept along the others."""
    found = _lanes(surfaces, 2, slice(7))["found"]
    assert (found.result == dw.RESULTS.successful).all()
    np.testing.assert_allclose(found.length[4:], [TUBE * 1.6, RING - TUBE, RING + TUBE], rtol=1e-12)
    velocities = np.stack([found.velocity, surfaces["arrival"][2, :7]], 1)
    radii = RING + TUBE * np.sin(np.stack([STARTS[2, :7, 0], ENDS[2, :7, 0]], 1))
    constant = radii**2 * velocities[..., 1]
    np.testing.assert_allclose(constant[:, 1], constant[:, 0], rtol=1e-9, atol=1e-11)
    squares = TUBE**2 * velocities[..., 0] ** 2 + radii**2 * velocities[..., 1] ** 2
    np.testing.assert_allclose(squares, np.asarray(found.length)[:, None].repeat(2, 1) ** 2, rtol=1e-9)


def test_a_saddle_is_not_taken_for_a_minimum(surfaces):
    """The outer equator beyond its conjugate point, pi sqrt(r (R + r)) away, and before the second one."""
    found = _lanes(surfaces, 2, 7)["found"]
    length = 2 * (RING + TUBE)
    assert np.pi * np.sqrt(TUBE * (RING + TUBE)) < length < 2 * np.pi * np.sqrt(TUBE * (RING + TUBE))
    np.testing.assert_allclose(found.length, length, rtol=1e-9)
    assert found.index == 1
    assert found.result == dw.RESULTS.saddle


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


def test_a_rough_surface_takes_more_panels():
    ripples = g.Metric(lambda x: (1.5 + 0.5 * jnp.sin(6 * x[0]) * jnp.cos(5 * x[1])) * jnp.eye(2), dim=2)
    x, y = np.random.default_rng(0).uniform(-4, 4, (2, 16, 2))[:, [0, 4, 6]]

    @eqx.filter_jit
    def run(x, y, panels):
        return jax.vmap(lambda x, y: ripples.connect(x, y, panels=panels, turns=0))(x, y)

    assert bool(jnp.all(run(x, y, 16).result == dw.RESULTS.inaccurate))
    found = run(x, y, 64)
    assert bool(jnp.all(found.result == dw.RESULTS.successful))
    # Shot, an error of the speed, 1.5e-8, grows along the way.
    np.testing.assert_allclose(eqx.filter_jit(jax.vmap(ripples.exp))(x, found.velocity), y, atol=1e-8)


def test_solves_of_a_batch_wait_for_each_other():
    """Two of LAPACK's that do not can hold both threads of a machine of two cores for good."""
    x = jnp.ones((100, 2))
    program = jax.jit(lambda x, y: jax.vmap(lambda x, y: PLANE.connect(x, y, nodes=4, turns=0).velocity)(x, y))
    text = program.lower(x, x + 0.5).compile().as_text()
    assert "lapack" in text
    for computation in text.split("\n}"):
        found = re.findall(r"%([\w.-]+) = (.*)", computation)
        behind = {}
        for name, what in found:
            used = [other for other in re.findall(r"%([\w.-]+)", what) if other in behind]
            behind[name] = set(used).union(*(behind[other] for other in used))
        solves = [name for name, what in found if 'custom_call_target="lapack' in what]
        assert all(first in behind[second] for first, second in itertools.pairwise(solves)), solves


def test_bad_arguments():
    with pytest.raises(dw.errors.ShapeError, match="`y`"):
        SPHERE.connect(jnp.ones(2), jnp.ones(3))
    with pytest.raises(dw.errors.ArgumentError, match="nodes"):
        SPHERE.connect(jnp.ones(2), jnp.ones(2), nodes=2)
    with pytest.raises(dw.errors.ArgumentError, match="`n`"):
        SPHERE.geodesic(jnp.ones(2), jnp.ones(2), 1)
    with pytest.raises(dw.errors.ArgumentError, match="at least 4"):
        SPHERE.parallel_transport(jnp.ones((3, 2)), jnp.ones(2))
