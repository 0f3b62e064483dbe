"""Power spectra against scipy's filter, and the Hellinger distance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage

import dynwarp as dw

spectrum, distance = dw.metrics.power_spectrum, dw.metrics.power_spectrum_distance


@pytest.fixture(scope="module")
def waves():
    t = np.arange(600)
    generator = np.random.default_rng(0)
    a = np.stack([np.sin(0.3 * t), np.cos(0.7 * t)], axis=1) + 0.3 * generator.standard_normal((600, 2))
    b = np.stack([np.sin(0.35 * t), np.cos(0.7 * t)], axis=1) + 0.6 * generator.standard_normal((600, 2))
    return a, b


def _reference(x, sigma):
    power = np.abs(np.fft.rfft((x - x.mean(0)) / x.std(0), axis=0)) ** 2
    if sigma:
        power = scipy.ndimage.gaussian_filter1d(power, sigma, axis=0, mode="reflect", truncate=4)
    return power / power.sum(0)


@pytest.mark.parametrize("sigma", [0.0, 2.5, 20.0])
@pytest.mark.parametrize("length", [600, 61, 4])
def test_equals_scipy(waves, sigma, length):
    # 61 steps have 31 frequencies, fewer than the radius of the filter: it reflects more than once.
    a, b = waves[0][:length], waves[1][:length]
    f, g = _reference(a, sigma), _reference(b, sigma)
    np.testing.assert_allclose(spectrum(jnp.asarray(a), smoothing=sigma), f, atol=1e-13)
    expected = np.mean(np.sqrt(np.sum((np.sqrt(f) - np.sqrt(g)) ** 2, axis=0) / 2))
    np.testing.assert_allclose(distance(jnp.asarray(a), jnp.asarray(b), smoothing=sigma), expected, rtol=1e-9)


def test_bounds_and_invariances(waves):
    a, b = (jnp.asarray(x) for x in waves)
    assert distance(a, a) == 0
    np.testing.assert_allclose(distance(a, b), distance(b, 3 * a - 1), rtol=1e-10)
    assert 0 < distance(a, b) < 1
    np.testing.assert_allclose(distance(a, b[:400]), distance(a[:400], b[:400]), rtol=1e-14)


def test_collapsed_and_diverged_trajectories(waves):
    a = jnp.asarray(waves[0])
    still = jnp.full_like(a, 0.1)
    assert distance(a, still) == 1
    assert distance(still, still) == 0
    assert distance(a, a.at[5].set(jnp.nan)) == 1
    np.testing.assert_allclose(distance(a, a.at[:, 0].set(7.3)), 0.5)
    assert (spectrum(still) == 0).all()


def test_transformations(waves):
    a, b = (jnp.asarray(x[:100]) for x in waves)

    def f(x):
        return distance(a, a + x * b, smoothing=3.0)

    h = 1e-6
    numeric = (f(0.5 + h) - f(0.5 - h)) / (2 * h)
    np.testing.assert_allclose(jax.grad(f)(0.5), numeric, rtol=1e-7)
    np.testing.assert_allclose(jax.jvp(f, (0.5,), (1.0,))[1], numeric, rtol=1e-7)
    assert jnp.isfinite(jax.grad(f)(0.0))
    assert jnp.isfinite(jax.grad(lambda x: distance(a, x * jnp.ones_like(a)))(1.0))
    many = jax.jit(jax.vmap(f))(jnp.array([0.1, 0.5]))
    np.testing.assert_allclose(many, [f(0.1), f(0.5)], rtol=1e-10)
    single = distance(a.astype(jnp.float32), b.astype(jnp.float32))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(float(single), float(distance(a, b)), rtol=1e-4)


def test_errors(waves):
    a = jnp.asarray(waves[0])
    with pytest.raises(dw.errors.ArgumentError, match="`smoothing` must be a number that is not negative; got -1"):
        distance(a, a, smoothing=-1)
    with pytest.raises(dw.errors.SeriesError, match="at least 2 time steps; got 1"):
        spectrum(a[:1])
    with pytest.raises(dw.errors.ShapeError, match="`series`"):
        spectrum(a[:, 0])
