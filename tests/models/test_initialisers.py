"""Initialisers: the distributions they claim, shapes, dtypes, messages."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.errors import ArgumentError, ShapeError

m = dw.models

ALL = [
    m.HaarOrthogonalInit(1.5),
    m.IdentityInit(0.3),
    m.GaussianInit(2.0),
    m.XavierUniformInit(0.5),
    m.SpectralRadiusInit(0.9),
]


def _many(init, shape, count=4000):
    keys = jax.random.split(jax.random.key(1), count)
    return np.asarray(eqx.filter_jit(jax.vmap(lambda k: init(k, shape, jnp.float64)))(keys))


def _trace_moments(Q):
    """Sample means, with their standard errors, of tr Q, (tr Q)^2, (tr Q)^4 and tr Q^2."""
    trace = np.trace(Q, axis1=1, axis2=2)
    samples = np.stack([trace, trace**2, trace**4, np.trace(Q @ Q, axis1=1, axis2=2)])
    return samples.mean(axis=1), samples.std(axis=1) / np.sqrt(len(Q))


# For Haar measure on O(n) the trace has the moments of a standard normal up to order 2n - 1 (Diaconis & Evans 2001).
HAAR_MOMENTS = np.array([0.0, 1.0, 3.0, 1.0])


def test_orthogonal_is_haar():
    mean, error = _trace_moments(_many(m.HaarOrthogonalInit(), (3, 3)))
    assert np.all(np.abs(mean - HAAR_MOMENTS) < 4 * error)


def test_orthogonal_without_the_sign_fix_would_not_be_haar():
    keys = jax.random.split(jax.random.key(1), 4000)
    Q = np.asarray(jax.vmap(lambda k: jnp.linalg.qr(jax.random.normal(k, (3, 3)))[0])(keys))
    mean, error = _trace_moments(Q)
    # Householder reflections make all but the last diagonal entry of Q lean to one sign.
    assert np.any(np.abs(mean - HAAR_MOMENTS) > 20 * error)


def test_orthogonal_columns_are_uniform_on_the_sphere():
    """Moments of Haar measure within one column and between two."""
    n = 4
    Q = _many(m.HaarOrthogonalInit(), (n, n))
    for samples, expected in [
        (Q[:, 1, 2] ** 2, 1 / n),
        (Q[:, 1, 2] ** 4, 3 / (n * (n + 2))),
        (Q[:, 0, 0] * Q[:, 1, 1], 0.0),
        (Q[:, 0, 0] ** 2 * Q[:, 1, 1] ** 2, (n + 1) / ((n - 1) * n * (n + 2))),
    ]:
        assert abs(samples.mean() - expected) < 4 * samples.std() / np.sqrt(len(samples))


@pytest.mark.parametrize("shape", [(5, 5), (5, 3), (3, 5)])
def test_orthogonal_matrices_of_any_shape(key, shape):
    Q = np.asarray(m.HaarOrthogonalInit(2.0)(key, shape)) / 2.0
    gram = Q.T @ Q if shape[0] >= shape[1] else Q @ Q.T
    np.testing.assert_allclose(gram, np.eye(min(shape)), atol=1e-14)


def test_identity(key):
    np.testing.assert_array_equal(m.IdentityInit(0.3)(key, (2, 3)), 0.3 * np.eye(2, 3))


def test_gaussian_moments():
    W = _many(m.GaussianInit(1.5), (2, 9), 2000)
    assert abs(W.mean()) < 4 * 0.5 / np.sqrt(W.size)
    assert abs(W.var() / 0.25 - 1) < 4 * np.sqrt(2 / W.size)
    assert abs((W**4).mean() / W.var() ** 2 - 3) < 0.2


def test_xavier_range_and_variance():
    W = _many(m.XavierUniformInit(2.0), (2, 4), 2000)
    bound = 2.0 * np.sqrt(6 / 6)
    assert np.abs(W).max() <= bound
    assert np.abs(W).max() > 0.99 * bound
    assert abs(W.var() / (bound**2 / 3) - 1) < 0.05
    reference = jax.nn.initializers.glorot_uniform()(jax.random.key(0), (200, 100), jnp.float64)
    own = m.XavierUniformInit()(jax.random.key(1), (200, 100), jnp.float64)
    assert abs(float(own.var() / reference.var()) - 1) < 0.05


@pytest.mark.parametrize("n", [1, 2, 5, 30])
def test_spectral_radius_is_exact(n):
    for seed in range(5):
        W = m.SpectralRadiusInit(0.95)(jax.random.key(seed), (n, n))
        assert abs(np.abs(np.linalg.eigvals(W)).max() - 0.95) < 1e-12
        # Not the largest real part, which a common mistake scales: it lies below when the leading pair is complex.
        assert np.abs(np.linalg.eigvals(W).real).max() <= 0.95 + 1e-12


def test_spectral_radius_under_vmap_is_that_of_the_host():
    keys = jax.random.split(jax.random.key(0), 3)
    init = m.SpectralRadiusInit(1.2)
    batched = jax.vmap(lambda k: init(k, (6, 6)))(keys)
    np.testing.assert_allclose(batched, np.stack([init(k, (6, 6)) for k in keys]), rtol=1e-12)


@pytest.mark.parametrize("init", ALL, ids=lambda init: type(init).__name__)
def test_every_initialiser_obeys_dtype_jit_and_key(key, init):
    for dtype in (jnp.float32, jnp.float64):
        W = init(key, (4, 4), dtype)
        assert W.shape == (4, 4)
        assert W.dtype == dtype
        tolerance = 1e-5 if dtype == jnp.float32 else 1e-13
        np.testing.assert_allclose(jax.jit(lambda k, dtype=dtype: init(k, (4, 4), dtype))(key), W, rtol=tolerance)
    assert init(key, (4, 4)).dtype == jnp.float64
    np.testing.assert_array_equal(init(key, (4, 4)), init(key, (4, 4)))
    if not isinstance(init, m.IdentityInit):
        assert not np.allclose(init(key, (4, 4)), init(jax.random.key(7), (4, 4)))


@pytest.mark.parametrize("init", ALL[:-1], ids=lambda init: type(init).__name__)
def test_a_network_without_input_needs_an_empty_matrix(key, init):
    assert init(key, (4, 0)).shape == (4, 0)


def test_messages(key):
    with pytest.raises(ShapeError, match=r"SpectralRadiusInit: `shape`.*\(n, n\).*\(3, 2\)"):
        m.SpectralRadiusInit(0.9)(key, (3, 2))
    with pytest.raises(ArgumentError, match=r"`radius` must be positive and finite; got -1"):
        m.SpectralRadiusInit(-1.0)
    with pytest.raises(ArgumentError, match=r"`recurrent_init` must be a function"):
        m.Elman(1, 2, recurrent_init="orthogonal", key=key)
    with pytest.raises(ShapeError, match=r"matrix that recurrent_init returns.*\(2, 2\).*\(3,\)"):
        m.Elman(1, 2, recurrent_init=lambda key, shape, dtype: jnp.zeros(3, dtype), key=key)


def test_initialisers_of_jax_serve_as_well(key):
    net = m.Elman(1, 2, recurrent_init=jax.nn.initializers.zeros, key=key)
    np.testing.assert_array_equal(net.recurrent_weight, np.zeros((2, 2)))
