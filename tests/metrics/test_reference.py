"""Chance levels and split halves against what they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.errors import NonFiniteError, SeriesError, ShapeError

RNG = np.random.default_rng(0)


def test_the_halves_are_what_is_compared():
    series = jnp.asarray(RNG.normal(size=(9, 2)))
    seen = dw.metrics.split_half(lambda a, b: jnp.sum(a * b), series)
    np.testing.assert_allclose(seen, np.sum(np.asarray(series[:4] * series[5:])), rtol=1e-12)


def test_noise_has_the_mean_and_covariance_of_the_series():
    mix = np.array([[1.0, 0.0, 0.0], [2.0, 0.5, 0.0]])
    # The third column is the sum of the others: a singular covariance is no obstacle.
    x = RNG.normal(size=(20_000, 2)) @ mix[:, :2] + [1.0, -2.0]
    x = np.concatenate([x, x.sum(1, keepdims=True)], axis=1)
    mean = dw.metrics.chance_level(lambda a, b: jnp.mean(b, axis=0), jnp.asarray(x))
    covariance = dw.metrics.chance_level(lambda a, b: jnp.cov(b.T), jnp.asarray(x))
    # Five standard errors of 20 000 samples of a spread of order 2.
    np.testing.assert_allclose(mean, x.mean(0), atol=0.1)
    np.testing.assert_allclose(covariance, np.cov(x.T), atol=0.35)
    lagged = dw.metrics.chance_level(lambda a, b: jnp.mean((b[1:] - b.mean(0)) * (b[:-1] - b.mean(0))), jnp.asarray(x))
    assert abs(lagged) < 0.1
    a, b = (dw.metrics.chance_level(lambda a, b: b[0, 0], jnp.asarray(x), key=jax.random.key(i)) for i in (1, 2))
    assert a != b


def test_halves_lie_below_chance_for_a_system():
    orbit = dw.simulate(dw.systems.Henon(), jnp.array([0.1, 0.1]), steps=4000)[100:]
    for metric in (dw.metrics.state_space_divergence, dw.metrics.power_spectrum_distance):
        assert dw.metrics.split_half(metric, orbit) < 0.5 * dw.metrics.chance_level(metric, orbit)


@pytest.mark.parametrize("verb", [dw.metrics.split_half, dw.metrics.chance_level])
def test_messages(verb):
    metric = dw.metrics.power_spectrum_distance
    with pytest.raises(ShapeError, match="series"):
        verb(metric, jnp.zeros(9))
    with pytest.raises(SeriesError, match="at least 4"):
        verb(metric, jnp.zeros((3, 1)))
    with pytest.raises(NonFiniteError, match="series"):
        verb(metric, jnp.full((9, 1), jnp.nan))
