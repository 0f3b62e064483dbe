"""Measures of warping against NumPy and SciPy, their invariances, their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import dynwarp as dw

warping = dw.geometry.warping
KEY = jax.random.key(0)
P, T, M = 5, 3, 2


def _metrics(key, shape):
    factors = jax.random.normal(key, (*shape, M, M))
    return factors @ jnp.swapaxes(factors, -1, -2) + 0.3 * jnp.eye(M)


G = _metrics(KEY, (P, T))
INPUT = _metrics(jax.random.key(1), (P,))
BOUNDARY = jnp.arange(P) < 2
RUN = jax.jit(lambda G, metric: warping(G, input_metric=metric, relevant=[0], boundary=BOUNDARY))


def test_definitions():
    found = RUN(G, INPUT)
    root = np.array([np.linalg.inv(scipy.linalg.sqrtm(g)) for g in np.asarray(INPUT)])
    A = np.einsum("pij,ptjk,pkl->ptil", root, G, root)
    ell = np.array([[scipy.linalg.logm(a) for a in row] for row in A])
    s = np.trace(ell, axis1=-2, axis2=-1) / M
    eye = np.eye(M)

    def size(x):
        return np.linalg.norm(x, axis=(-2, -1))

    np.testing.assert_allclose(found.scale, s.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.anisotropy, size(ell - s[..., None, None] * eye).mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.inhomogeneity, np.sqrt((size(ell - ell.mean(0)) ** 2).mean(0)), rtol=1e-12)
    index = np.sqrt((size(ell - s.mean(0)[:, None, None] * eye) ** 2).mean(0))
    np.testing.assert_allclose(found.index, index, rtol=1e-12)
    np.testing.assert_allclose(found.speed, size(ell[:, 1:] - ell[:, :-1]).mean(0), rtol=1e-12)
    off = A[..., 0, 1] / np.sqrt(A[..., 0, 0] * A[..., 1, 1])
    np.testing.assert_allclose(found.shear, np.sqrt(2) * np.abs(off).mean(0), rtol=1e-12)
    along, across = np.asarray(G)[..., 0, 0], np.asarray(G)[..., 1, 1]
    np.testing.assert_allclose(found.relevance_ratio, along.mean(0) / across.mean(0), rtol=1e-12)
    quantiles = np.quantile(along / across, [0.05, 0.5, 0.95], axis=0)
    np.testing.assert_allclose(found.relevance_quantiles, quantiles, rtol=1e-12)
    np.testing.assert_allclose(found.irrelevant_share, (across / (along + across)).mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.boundary_stretch, along[:2].mean(0) / along[2:].mean(0), rtol=1e-12)


def test_similarities_are_no_warping():
    found = RUN(3.0 * INPUT[:, None] + 0 * G, INPUT)
    np.testing.assert_allclose(found.index, 0, atol=1e-13)
    np.testing.assert_allclose(found.scale, np.log(3), rtol=1e-12)
    np.testing.assert_allclose(found.speed, 0, atol=1e-13)


def test_covariant():
    jacobian = jax.random.normal(jax.random.key(2), (P, M, M))
    other = jnp.swapaxes(jacobian, -1, -2)
    moved = RUN(other[:, None] @ G @ jacobian[:, None], other @ INPUT @ jacobian)
    found = RUN(G, INPUT)
    for name in ("scale", "anisotropy", "index", "speed"):
        np.testing.assert_allclose(getattr(moved, name), getattr(found, name), rtol=1e-10)


def test_gradient_also_at_equal_eigenvalues():
    def loss(G, metric):
        found = RUN(G, metric)
        return jnp.sum(found.scale) + jnp.sum(found.inhomogeneity) + jnp.sum(found.anisotropy**2)

    direction = jax.random.normal(jax.random.key(3), G.shape)
    direction = direction + jnp.swapaxes(direction, -1, -2)
    value_and_slope = jax.jit(lambda G: jax.jvp(lambda G: loss(G, INPUT), (G,), (direction,)))
    h = 1e-5
    difference = (value_and_slope(G + h * direction)[0] - value_and_slope(G - h * direction)[0]) / (2 * h)
    np.testing.assert_allclose(value_and_slope(G)[1], difference, rtol=1e-7)
    grad = jax.jit(jax.grad(loss, (0, 1)))
    np.testing.assert_allclose(jnp.vdot(grad(G, INPUT)[0], direction), difference, rtol=1e-7)
    equal = jnp.broadcast_to(jnp.arange(1.0, P + 1)[:, None, None, None] * jnp.eye(M), G.shape)
    assert jnp.isfinite(grad(equal, INPUT)[0]).all()
    assert jnp.isfinite(grad(INPUT[:, None] + 0 * G, INPUT)[0]).all()


def test_degenerate_metrics_have_no_logarithm():
    thin = np.array([0.3, 0.7])
    found = RUN(G.at[2, 1].set(np.outer(thin, thin)), INPUT)
    for name in ("scale", "anisotropy", "inhomogeneity", "index"):
        assert np.isnan(getattr(found, name)).tolist() == [False, True, False]
    assert np.isnan(found.speed).all()
    assert np.isfinite(found.relevance_ratio).all()


def test_one_coordinate_and_float32():
    found = warping(jnp.full((4, 2, 1, 1), 4.0, jnp.float32), relevant=[0], boundary=jnp.arange(4) == 0)
    assert found.relevance_ratio is found.relevance_quantiles is found.irrelevant_share is None
    assert found.scale.dtype == jnp.float32
    np.testing.assert_allclose(found.scale, np.log(4), rtol=1e-6)
    np.testing.assert_allclose(found.boundary_stretch, 1, rtol=1e-6)


def test_bad_arguments():
    with pytest.raises(dw.errors.ShapeError, match="`G`"):
        warping(jnp.ones((2, 2)))
    with pytest.raises(dw.errors.ShapeError, match="input_metric"):
        warping(G, input_metric=jnp.eye(3))
    with pytest.raises(dw.errors.ArgumentError, match="`relevant`"):
        warping(G, relevant=[2])
    with pytest.raises(dw.errors.ArgumentError, match="needs `relevant`"):
        warping(G, boundary=BOUNDARY)
    with pytest.raises(dw.errors.ShapeError, match="boundary"):
        warping(G, relevant=[0], boundary=jnp.ones(3, bool))
