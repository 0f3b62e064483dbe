"""Dimensions from spectra and from series."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp import RESULTS

kaplan_yorke = dw.dynamics.kaplan_yorke_dimension


@pytest.mark.parametrize(
    ("exponents", "dimension"),
    [
        ([0.906, 0.0, -14.572], 2 + 0.906 / 14.572),
        ([-0.1, -0.2], 0.0),
        ([0.0, -1.0], 1.0),
        ([0.5, 0.1], 2.0),
        ([0.3, -0.1, -0.2, -4.0], 3.0),
        ([0.4, -np.inf], 1.0),
        ([0.4, 0.0, -np.inf, -np.inf], 2.0),
        ([-np.inf], 0.0),
    ],
)
def test_kaplan_yorke(exponents, dimension):
    np.testing.assert_allclose(kaplan_yorke(jnp.array(exponents)), dimension, rtol=1e-14)


def test_kaplan_yorke_of_a_part():
    assert jnp.isnan(kaplan_yorke(jnp.array([0.9, 0.0]), size=3))
    np.testing.assert_allclose(kaplan_yorke(jnp.array([0.9, 0.0, -1.8]), size=5), 2.5)
    assert jnp.isnan(kaplan_yorke(jnp.array([jnp.nan, 0.0])))


def test_kaplan_yorke_transformations():
    x = jnp.array([0.9, 0.1, -4.0])
    np.testing.assert_allclose(jax.grad(kaplan_yorke)(x), [0.25, 0.25, 1.0 / 16], rtol=1e-14)
    assert jnp.isfinite(jax.grad(kaplan_yorke)(jnp.array([-1.0, -2.0]))).all()
    many = jax.jit(jax.vmap(kaplan_yorke))(jnp.stack([x, -jnp.abs(x)]))
    np.testing.assert_allclose(many, [2.25, 0.0])
    assert kaplan_yorke(x.astype(jnp.float32)).dtype == jnp.float32
    with pytest.raises(dw.errors.ShapeError, match="`exponents`"):
        kaplan_yorke(jnp.ones((2, 2)))


def test_correlation_sum_equals_brute_force():
    series = np.random.default_rng(0).random((150, 2))
    found = dw.dynamics.correlation_dimension(jnp.asarray(series), theiler_window=5)
    distances = np.abs(series[:, None] - series).max(axis=2)
    pairs = np.array([distances[i, j] for i in range(150) for j in range(i + 5, 150)])
    expected = np.mean(pairs[:, None] <= np.asarray(found.radii) * (1 + 1e-12), axis=0)
    np.testing.assert_allclose(found.correlation_sum, expected, atol=1e-12)


@pytest.mark.parametrize(("n", "dimension", "tolerance"), [(1, 1.0, 0.04), (2, 2.0, 0.1)])
def test_uniform_points(n, dimension, tolerance):
    series = jax.random.uniform(jax.random.key(n), (2500, n))
    found = dw.dynamics.correlation_dimension(series, theiler_window=1)
    np.testing.assert_allclose(found.dimension, dimension, atol=tolerance)
    assert found.result == RESULTS.successful
    assert 0 < found.standard_error < tolerance
    scaled = dw.dynamics.correlation_dimension(100 * series, theiler_window=1)
    np.testing.assert_allclose(scaled.dimension, found.dimension, atol=0.02)


def test_henon_attractor():
    orbit = dw.simulate(dw.systems.Henon(), jnp.array([0.1, 0.1]), steps=4000)[100:]
    # 1.220 +- 0.036, Grassberger and Procaccia 1983 (1.25 +- 0.02 with a shape correction).
    found = jax.jit(dw.dynamics.correlation_dimension)(orbit)
    np.testing.assert_allclose(found.dimension, 1.22, atol=0.05)
    single = dw.dynamics.correlation_dimension(orbit[:1000].astype(jnp.float32))
    assert single.dimension.dtype == jnp.float32
    np.testing.assert_allclose(float(single.dimension), 1.22, atol=0.1)


def test_correlation_dimension_failures():
    dimension = dw.dynamics.correlation_dimension
    with pytest.raises(dw.errors.SeriesError, match="at least theiler_window \\+ 32 points; got 20"):
        dimension(jnp.ones((20, 2)))
    with pytest.raises(dw.errors.NonFiniteError, match="first at \\(3, 1\\)"):
        dimension(jnp.zeros((100, 2)).at[3, 1].set(jnp.nan))
    # Two clusters of points have no scaling range; a constant has none either.
    clusters = jnp.where(jnp.arange(200)[:, None] % 2 == 0, 0.0, 1.0)
    assert dimension(clusters).result == RESULTS.inaccurate
    assert dimension(jnp.ones((100, 2))).result == RESULTS.inaccurate
    with pytest.raises(dw.errors.ConvergenceError, match="scaling_range"):
        dimension(clusters, throw=True)
