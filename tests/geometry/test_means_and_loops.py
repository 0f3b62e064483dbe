"""Distance matrices, means, holonomy, total curvature and what a metric says at a point, against closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw

g = dw.geometry
PERIOD = 2 * np.pi
RING, TUBE = 2.0, 0.6
PLANE = g.Metric(lambda x: jnp.eye(2) / x[1] ** 2, dim=2, bounds=((-np.inf, np.inf), (0.0, np.inf)))


def _sphere(x):
    s, c = jnp.sin(x), jnp.cos(x)
    return jnp.stack([s[0] * c[1], s[0] * s[1], c[0]])


def _torus(x):
    """In a chart that is sheared once around and wobbles."""
    u, v = x[0] + x[1], x[1] + 0.2 * jnp.sin(x[0])
    radius = RING + TUBE * jnp.cos(v)
    return jnp.stack([radius * jnp.cos(u), radius * jnp.sin(u), TUBE * jnp.sin(v)])


SPHERE = g.Immersion(_sphere, dim=2, periods=(None, PERIOD), bounds=((0.0, np.pi), None))
TORUS = g.Immersion(_torus, dim=2, periods=(PERIOD, PERIOD))


def _hyperbolic(x, y):
    return jnp.arccosh(1 + jnp.sum((x - y) ** 2) / (2 * x[1] * y[1]))


@pytest.fixture(scope="module")
def hyperbolic():
    """Four points of the hyperbolic plane: all distances, the mean and its derivative along one direction."""
    points = jnp.array([[0.0, 1.0], [1.0, 0.8], [0.4, 2.0], [-0.5, 1.3]])
    move = jnp.array([[0.1, 0.0], [0.0, -0.2], [0.3, 0.1], [0.0, 0.0]])

    @eqx.filter_jit
    def run(points, move):
        mean, moved = jax.jvp(lambda p: PLANE.karcher_mean(p, nodes=8, turns=0), (points,), (move,))
        return PLANE.distances(points, nodes=8), mean, moved.point

    return points, move, *run(points, move), run


def test_distance_matrix(hyperbolic):
    points, _, matrix, *_ = hyperbolic
    want = np.array([[_hyperbolic(x, y) for y in points] for x in points])
    np.testing.assert_allclose(matrix, want, atol=1e-11)
    np.testing.assert_array_equal(matrix, matrix.T)
    assert (np.diagonal(matrix) == 0).all()


def test_the_mean_has_the_least_squares(hyperbolic):
    points, move, _, mean, moved, run = hyperbolic

    def variance(p):
        return jnp.mean(jnp.stack([_hyperbolic(p, x) ** 2 for x in points]))

    assert mean.result == dw.RESULTS.successful
    np.testing.assert_allclose(jax.grad(variance)(mean.point), 0, atol=1e-9)
    np.testing.assert_allclose(mean.variance, variance(mean.point), rtol=1e-9)
    np.testing.assert_allclose(mean.radius, max(_hyperbolic(mean.point, x) for x in points), rtol=1e-8)
    assert mean.gradient_norm < 1e-7
    h = 1e-4
    ends = [run(points + sign * h * move, move)[1].point for sign in (1, -1)]
    np.testing.assert_allclose(moved, (ends[0] - ends[1]) / (2 * h), rtol=1e-6)


def _states():
    """Those of a tanh network over a torus of inputs, by their metric."""
    net = dw.models.LeakyRNN(2, 20, dt=0.2, key=jax.random.key(0))
    torus = dw.tasks.Torus(jnp.repeat(jnp.array([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]), 5, axis=1))
    surface = g.state_manifold(net, torus, state0=jnp.zeros(20), step=12)
    return g.Metric(surface.metric, dim=2, periods=surface.periods)


@pytest.fixture(scope="module")
def audits():
    """By surrogates, which are one program."""
    radii, weights = np.polynomial.legendre.leggauss(24)
    radii, weights = 0.35 * (radii + 1), 0.35 * weights
    angles = PERIOD * np.arange(48) / 48
    r, a = np.meshgrid(radii, angles, indexing="ij")
    points = jnp.asarray(np.stack([0.4 + r * np.cos(a), 2.2 + r * np.sin(a)], -1).reshape(-1, 2))
    weights = (weights[:, None] * r * PERIOD / 48).reshape(-1)
    density = eqx.filter_jit(lambda c: jax.vmap(lambda x: c.gaussian_curvature(x) * c.volume(x))(points))

    def audit(chart):
        surrogate = chart.surrogate(48)
        return surrogate.gauss_bonnet(64), surrogate.holonomy(_circle), weights @ density(surrogate)

    torus = g.Metric(TORUS.metric, dim=2, periods=TORUS.periods)
    return {"torus": audit(torus), "network": audit(_states())}


def _circle(s):
    """In the chart, counter-clockwise."""
    return jnp.stack([0.4 + 0.7 * jnp.cos(PERIOD * s), 2.2 + 0.7 * jnp.sin(PERIOD * s)])


@pytest.mark.parametrize("name", ["torus", "network"])
def test_gauss_bonnet_on_a_torus(audits, name):
    found, *_ = audits[name]
    assert found.absolute > 1
    assert abs(found.curvature) <= 1e-8 * found.absolute
    np.testing.assert_allclose(found.euler_characteristic, 0, atol=1e-8)
    if name == "torus":
        np.testing.assert_allclose(found.area, 4 * np.pi**2 * RING * TUBE, rtol=1e-11)


@pytest.mark.parametrize("name", ["torus", "network"])
def test_holonomy_is_the_curvature_enclosed(audits, name):
    _, turned, enclosed = audits[name]
    np.testing.assert_allclose(turned @ turned.T, np.eye(2), atol=1e-10)
    angle = np.arctan2(turned[1, 0], turned[0, 0])
    np.testing.assert_allclose(angle, enclosed, atol=1e-10)
    assert abs(enclosed) > 0.02


def test_gauss_bonnet_with_edges_and_corners():
    """A sphere, whose edges are its poles; a sheared rectangle of the hyperbolic plane; an annulus of it."""
    found = SPHERE.gauss_bonnet(24)
    np.testing.assert_allclose([found.curvature, found.euler_characteristic], [4 * np.pi, 2], rtol=1e-12)

    def sheared(x):
        return jnp.array([[1.0, 0.4], [0.4, 1.16]]) / (x[1] + 0.1 * x[0] + 1) ** 2

    disc = g.Metric(sheared, dim=2, bounds=((0.0, 1.0), (0.0, 1.5))).gauss_bonnet(16)
    np.testing.assert_allclose(disc.euler_characteristic, 1, atol=1e-10)
    assert abs(disc.curvature) > 0.1
    assert abs(disc.edges) > 0.1
    band = g.Metric(PLANE.fn, dim=2, periods=(2.0, None), bounds=(None, (1.0, 3.0))).gauss_bonnet(16)
    np.testing.assert_allclose(band.curvature, -band.area, rtol=1e-12)
    np.testing.assert_allclose([band.area, band.edges], [2 * (1 - 1 / 3), 2 * (1 - 1 / 3)], rtol=1e-12)


def test_stretches_and_distortion():
    x = jnp.array([1.1, 0.3])
    flat = g.Metric(lambda x: jnp.array([[4.0, 0.0], [0.0, 9.0]]) + 0 * x[0], dim=2)
    np.testing.assert_allclose(flat.principal_stretches(x), [2, 3], rtol=1e-14)
    np.testing.assert_allclose(flat.isotropy(x), 2 / 3, rtol=1e-14)
    reference = jnp.array([[2.0, 0.7], [0.7, 1.0]])
    values = np.linalg.eigvals(np.linalg.solve(reference, flat.metric(x)))
    np.testing.assert_allclose(flat.principal_stretches(x, reference=reference), np.sqrt(np.sort(values)), rtol=1e-13)
    np.testing.assert_allclose(flat.distortion(x, reference=reference), np.linalg.norm(np.log(values)), rtol=1e-13)
    np.testing.assert_allclose(TORUS.distortion(x, reference=TORUS), 0, atol=1e-13)
    with pytest.raises(dw.errors.ShapeError, match="reference"):
        flat.isotropy(x, reference=jnp.eye(3))


def test_sectional_curvature_refuses_lines():
    ball = g.Immersion(lambda y: jnp.concatenate([y, jnp.sqrt(1 - jnp.sum(y**2))[None]]), dim=3)
    x, v, w = jnp.array([0.1, 0.2, -0.3]), jnp.array([1.0, 2.0, 0.0]), jnp.array([0.0, 1.0, 1.0])
    np.testing.assert_allclose(ball.sectional_curvature(x, v, w), 1, rtol=1e-12)
    np.testing.assert_allclose(ball.sectional_curvature(x, v, v + 1e-3 * w), 1, rtol=1e-9)
    assert jnp.isnan(ball.sectional_curvature(x, v, -2 * v))
    assert jnp.isnan(ball.sectional_curvature(x, v, v + 1e-6 * w))
    assert jnp.isnan(ball.sectional_curvature(x, v, 0 * w))


def test_codes_of_points():
    assert SPHERE.status(jnp.array([1.0, 0.0])) == dw.RESULTS.successful
    assert SPHERE.status(jnp.array([0.0, 0.0])) == dw.RESULTS.singular
    assert SPHERE.status(jnp.array([-0.1, 0.0])) == dw.RESULTS.outside
    assert g.Metric(lambda x: jnp.eye(1) / x, dim=1).status(jnp.zeros(1)) == dw.RESULTS.non_finite


def test_regularised_metric_is_there_at_the_pole():
    pole = jnp.array([0.0, 0.4])
    round_off = SPHERE.regularised(0.1)
    np.testing.assert_allclose(round_off.metric(pole), np.diag([1.01, 0.01]), atol=1e-14)
    assert jnp.isfinite(round_off.gaussian_curvature(pole))
    assert jnp.isnan(SPHERE.gaussian_curvature(pole))
    assert SPHERE.regularised(0.1, reference=SPHERE).metric(pole)[1, 1] == 0


def test_bad_arguments():
    with pytest.raises(dw.errors.ArgumentError, match="`x` must be within the bounds"):
        SPHERE.connect(jnp.array([-0.2, 0.0]), jnp.ones(2))
    with pytest.raises(dw.errors.ArgumentError, match="`points` must be within"):
        PLANE.distances(jnp.array([[0.0, 1.0], [0.0, -1.0]]))
    with pytest.raises(dw.errors.ArgumentError, match="must end where it begins"):
        TORUS.holonomy(lambda s: jnp.stack([s, s]))
    with pytest.raises(dw.errors.ArgumentError, match="weights"):
        PLANE.karcher_mean(jnp.ones((2, 2)), weights=jnp.array([1.0, 0.0]))
    with pytest.raises(dw.errors.ArgumentError, match="2 dimensions"):
        g.Metric(lambda x: jnp.eye(3), dim=3).gauss_bonnet(8)
    with pytest.raises(dw.errors.ArgumentError, match="neither a period nor finite bounds"):
        PLANE.gauss_bonnet(8)
    with pytest.raises(dw.errors.ArgumentError, match="scale"):
        SPHERE.regularised(0.0)
