"""Spectral surrogates against the surfaces that they replace, against closed forms, and against their own estimate."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw

g = dw.geometry
PERIOD = 2 * np.pi
TUBE, RING = 0.6, 2.0


def _skewed_torus(x):
    """A torus in a chart that is sheared once around and wobbles."""
    u, v = x[0] + x[1], x[1] + 0.2 * jnp.sin(x[0])
    radius = RING + TUBE * jnp.cos(v)
    return jnp.stack([radius * jnp.cos(u), radius * jnp.sin(u), TUBE * jnp.sin(v)])


def _skewed_sphere(x):
    """A zone of the unit sphere; the first coordinate is bounded."""
    latitude, longitude = x[0] + 0.1 * jnp.sin(x[1]), x[1] + 0.3 * x[0]
    s, c = jnp.sin(latitude), jnp.cos(latitude)
    return jnp.stack([s * jnp.cos(longitude), s * jnp.sin(longitude), c])


TORUS = g.Immersion(_skewed_torus, dim=2, periods=(PERIOD, PERIOD))
SPHERE = g.Immersion(_skewed_sphere, dim=2, periods=(None, PERIOD), bounds=((0.7, 2.4), None))
INTRINSIC = g.Metric(TORUS.metric, dim=2, periods=(PERIOD, PERIOD))
LOWER, UPPER = jnp.array([0.8, 0.0]), jnp.array([2.3, 7.0])
X = jax.random.uniform(jax.random.key(0), (5, 2), minval=LOWER, maxval=UPPER)
Y = X + jax.random.uniform(jax.random.key(1), (5, 2), minval=jnp.array([0.0, -0.5]), maxval=0.5)
Y = Y.at[:, 0].set(jnp.minimum(Y[:, 0], 2.3))
CURVATURES = np.cos(X[:, 1] + 0.2 * np.sin(X[:, 0]))
CURVATURES = CURVATURES / (TUBE * (RING + TUBE * CURVATURES))


@eqx.filter_jit
def _local(chart, x):
    return jax.vmap(lambda x: (chart.metric(x), chart.gaussian_curvature(x)))(x)


@eqx.filter_jit
def _values(fn, x):
    return jax.vmap(fn)(x)


@eqx.filter_jit
def _distances(chart, x, y):
    return jax.vmap(lambda x, y: chart.distance(x, y, nodes=20, panels=16, turns=0))(x, y)


@pytest.fixture(scope="module")
def torus():
    return TORUS.surrogate(48)


@pytest.fixture(scope="module")
def sphere():
    return SPHERE.surrogate((48, 48))


def test_skewed_torus(torus):
    assert type(torus) is g.Immersion
    assert torus.periods == TORUS.periods
    metric, curvature = _local(torus, X)
    np.testing.assert_allclose(metric, _values(TORUS.metric, X), rtol=0, atol=1e-11)
    np.testing.assert_allclose(curvature, CURVATURES, rtol=0, atol=1e-10)
    np.testing.assert_allclose(_distances(torus, X, Y), _distances(TORUS, X, Y), rtol=1e-10)


def test_fourier_and_chebyshev_on_a_zone_of_the_sphere(sphere):
    metric, curvature = _local(sphere, X)
    np.testing.assert_allclose(metric, _values(SPHERE.metric, X), rtol=0, atol=1e-11)
    np.testing.assert_allclose(curvature, 1, rtol=0, atol=1e-10)
    p, q = (jax.vmap(_skewed_sphere)(x) for x in (X, Y))
    want = np.arctan2(np.linalg.norm(np.cross(p, q), axis=1), np.sum(p * q, axis=1))
    np.testing.assert_allclose(_distances(sphere, X, Y), want, rtol=1e-10)


def test_metric_without_an_embedding():
    surrogate = INTRINSIC.surrogate(48)
    assert type(surrogate) is g.Metric
    metric, curvature = _local(surrogate, X)
    np.testing.assert_allclose(metric, _values(TORUS.metric, X), rtol=0, atol=1e-11)
    np.testing.assert_allclose(curvature, CURVATURES, rtol=0, atol=1e-10)


class _Peaks(eqx.Module):
    """Poles off the real axis, so that coefficients decay by one ratio each; the nearer, the slower."""

    sharpness: jax.Array

    def __call__(self, x):
        peak = 1 / (1.3 - self.sharpness * jnp.cos(x[0] + 0.3)) + 1 / (1 + (2 * x[1] - 1) ** 2)
        return jnp.stack([x[1], peak, jnp.sin(x[0])])


PEAKS = g.Immersion(_Peaks(jnp.array(1.0)), dim=2, periods=(PERIOD, None), bounds=((-1.0, 0.0), (-1.0, 2.0)))


@pytest.mark.parametrize(("grid", "coarser"), [((13, 30), 0), ((40, 24), 1), ((32, 41), 0)])
def test_estimate_bounds_the_error(grid, coarser):
    """From 1e-2 to 1e-5, in odd and even numbers of nodes; it tells which coordinate wants more of them."""
    found = PEAKS.surrogate(grid).fn
    points = np.random.default_rng(0).uniform([-1.0, -1.0], [6.0, 2.0], (2000, 2))
    values = np.asarray(_values(PEAKS.fn, points))
    error = np.max(np.abs(np.asarray(_values(found, points)) - values)) / np.max(np.abs(values))
    assert error <= float(found.error.sum()) <= 50 * error
    assert np.argmax(found.error) == coarser


def test_estimate_at_the_level_of_rounding(torus, sphere):
    for surrogate, chart in ((torus, TORUS), (sphere, SPHERE)):
        error = np.max(np.abs(_values(surrogate.fn, X) - _values(chart.fn, X))) / 2.6
        assert error <= surrogate.fn.error.sum() < 1e-12


def test_nodes_are_met_and_the_rest_is_interpolated():
    """Along the bounded coordinate, at a node of the periodic one, by the polynomial in monomials."""
    found = PEAKS.surrogate((13, 9)).fn
    nodes = 0.5 - 1.5 * np.cos(np.pi * (np.arange(9) + 0.5) / 9)
    x = -1.0 + PERIOD * 4 / 13
    samples = np.asarray(_values(PEAKS.fn, jnp.stack([jnp.full(9, x), jnp.asarray(nodes)], 1)))
    # Ends, a node; the same through the period; beyond the bounds.
    at = np.array([-1.0, -0.4, nodes[3], 1.7, 2.0])
    around = np.stack([np.r_[np.full(5, x), x + PERIOD, x], np.r_[at, at[1], 2.001]], 1)
    got = np.asarray(_values(found, around))
    want = np.vander((at - 0.5) / 1.5, 9) @ np.linalg.solve(np.vander((nodes - 0.5) / 1.5), samples)
    np.testing.assert_allclose(got[:5], want, atol=1e-13)
    np.testing.assert_allclose(got[5], got[1], atol=1e-13)
    assert np.isnan(got[6]).all()


def test_jets_are_nested_derivatives(sphere):
    fn = sphere.fn

    def nested(x):
        return fn(x), jax.jacfwd(fn)(x), jax.jacfwd(jax.jacfwd(fn))(x)

    for found, expected in zip(_values(fn.jet, X), _values(nested, X)):
        # Axes of derivatives come first in a jet, last in a Jacobian.
        expected = jnp.moveaxis(expected, 1, -1)
        # The second derivatives of 48 Chebyshev polynomials are up to 48^4 / 3.
        np.testing.assert_allclose(found, expected, atol=1e-9)


def test_derivatives_in_the_function_and_in_the_point():
    """The surrogate is linear in the samples, so that its derivative is the surrogate of the derivative."""

    @eqx.filter_jit
    def run(sharpness, x):
        def value(sharpness, x):
            return eqx.tree_at(lambda c: c.fn.sharpness, PEAKS, sharpness).surrogate((40, 96)).fn(x)[1]

        return jax.grad(value, (0, 1))(sharpness, x)

    def direct(sharpness, x):
        return _Peaks(sharpness)(x)[1]

    at = jnp.array(0.7), jnp.array([0.4, 0.9])
    of_sharpness, of_x = run(*at)
    want = jax.grad(direct, (0, 1))(*at)
    np.testing.assert_allclose(of_sharpness, want[0], rtol=1e-8)
    np.testing.assert_allclose(of_x, want[1], rtol=1e-8)


def test_single_precision(torus):
    got = torus.fn(X[0].astype(jnp.float32))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, _skewed_torus(X[0]), atol=2e-5)


def test_samples_that_are_not_finite():
    chart = g.Metric(lambda x: jnp.eye(2) / x[0], dim=2, periods=(1.0, 1.0))
    with pytest.raises(dw.errors.NonFiniteError, match=r"at 4 of its 16 points, the first \[0.0, 0.0\]"):
        chart.surrogate(4)
    traced = eqx.filter_jit(lambda chart: chart.surrogate(4))(chart)
    assert np.isnan(traced.fn.error).all()
    assert np.isnan(traced.metric(jnp.array([0.5, 0.5]))).all()


@pytest.mark.parametrize("grid", [3, (8,), (8, 8, 8), 8.0, "48", (8, 2.5), True])
def test_grids_that_do_not_fit(grid):
    with pytest.raises(dw.errors.ArgumentError, match="grid"):
        TORUS.surrogate(grid)


def test_coordinates_without_a_range():
    plane = g.Metric(lambda x: jnp.eye(2) / x[1] ** 2, dim=2, bounds=((0.0, 1.0), (0.5, np.inf)))
    with pytest.raises(dw.errors.ArgumentError, match="coordinate 1 has neither a period nor finite bounds"):
        plane.surrogate(8)
