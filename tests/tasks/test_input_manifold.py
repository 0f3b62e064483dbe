"""The chart of inputs: wrapping, grids, samples, a user's subclass under transformations."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.errors import ArgumentError, ShapeError


class Tilted(dw.tasks.InputManifold):
    """A user's module: plain tuples and ints, an angle from -pi on and a bounded strength."""

    T: int = 3
    dim: int = 2
    periods: tuple = (2 * math.pi, None)
    bounds: tuple = ((-math.pi, math.pi), (0.5, 2.0))

    def __call__(self, theta, t=None):
        wave = theta[1] * jnp.stack([jnp.cos(theta[0]), jnp.sin(theta[0])])
        return jnp.tile(wave, (self.T, 1)) if t is None else wave * jnp.exp(-t)


class Free(dw.tasks.InputManifold):
    dim: int = 1
    periods: None = None
    bounds: None = None

    def __call__(self, theta, t=None):
        return theta[None]


def test_wrap_keeps_the_input_and_enters_the_range():
    m = Tilted()
    theta = np.array([[7.0, 1.0], [-9.5, 3.0], [math.pi, 0.0], [-math.pi, 0.5]])
    wrapped = m.wrap(theta)
    assert np.all(wrapped[:, 0] >= -math.pi)
    assert np.all(wrapped[:, 0] < math.pi)
    np.testing.assert_array_equal(wrapped[:, 1], theta[:, 1])
    turns = (np.asarray(wrapped[:, 0]) - theta[:, 0]) / (2 * math.pi)
    np.testing.assert_allclose(turns, np.round(turns), atol=1e-14)
    np.testing.assert_allclose(jax.vmap(m)(wrapped), jax.vmap(m)(jnp.asarray(theta)), atol=1e-14)
    np.testing.assert_array_equal(Free().wrap(jnp.array([123.0])), [123.0])


def test_wrap_is_differentiable_and_idempotent():
    m = Tilted()
    theta = jnp.array([20.0, 1.0])
    np.testing.assert_allclose(jax.jacobian(m.wrap)(theta), np.eye(2))
    np.testing.assert_allclose(m.wrap(m.wrap(theta)), m.wrap(theta), atol=1e-15)


def test_grid_omits_the_repeated_end_of_a_period():
    m = Tilted()
    grid = m.grid((4, 3))
    assert grid.shape == (4, 3, 2)
    np.testing.assert_allclose(grid[:, 0, 0], [-math.pi, -math.pi / 2, 0.0, math.pi / 2], atol=1e-15)
    np.testing.assert_allclose(grid[0, :, 1], [0.5, 1.25, 2.0])
    # Equally spaced around the circle: the means of cos and sin vanish.
    mean = jnp.mean(jax.vmap(jax.vmap(m))(m.grid(5))[:, -1, 0], axis=0)
    np.testing.assert_allclose(mean, 0.0, atol=1e-15)


def test_samples_fill_the_ranges(key):
    m = Tilted()
    draws = np.asarray(m.sample(key, 4000))
    assert draws.shape == (4000, 2)
    lower, upper = np.array([-math.pi, 0.5]), np.array([math.pi, 2.0])
    assert np.all(draws >= lower)
    assert np.all(draws < upper)
    # Mean and variance of a uniform law, at five standard errors.
    width = upper - lower
    np.testing.assert_array_less(np.abs(draws.mean(0) - (lower + upper) / 2), 5 * width / math.sqrt(12 * 4000))
    np.testing.assert_allclose(draws.var(0), width**2 / 12, rtol=0.08)
    np.testing.assert_array_equal(draws, m.sample(key, 4000))


def test_a_users_module_passes_through_transformations():
    m = Tilted()
    run = eqx.filter_jit(lambda manifold, thetas: eqx.filter_vmap(manifold)(thetas))
    assert run(m, m.grid(3).reshape(-1, 2)).shape == (9, 3, 2)
    tangents = jax.jacfwd(m)(jnp.array([0.3, 1.5]))
    np.testing.assert_allclose(
        tangents[0], [[-1.5 * math.sin(0.3), math.cos(0.3)], [1.5 * math.cos(0.3), math.sin(0.3)]]
    )
    np.testing.assert_allclose(m(jnp.array([0.0, 1.0]), jnp.asarray(1.0)), [math.exp(-1), 0.0])


def test_single_precision():
    wrapped = Tilted().wrap(jnp.array([7.0, 1.0], jnp.float32))
    assert wrapped.dtype == jnp.float32
    np.testing.assert_allclose(wrapped, [7.0 - 2 * math.pi, 1.0], rtol=1e-5)


def test_messages():
    with pytest.raises(ShapeError, match=r"wrap: `theta` must have shape \(4, 2\); got \(4, 3\)"):
        Tilted().wrap(jnp.zeros((4, 3)))
    with pytest.raises(ArgumentError, match="coordinate 0 of Free has neither a period nor bounds"):
        Free().grid(3)
    with pytest.raises(ArgumentError, match=r"`n` must be one number or 2 of them; got \(3,\)"):
        Tilted().grid((3,))
    with pytest.raises(ArgumentError, match="`n` must be a whole number of at least 1; got 0"):
        Tilted().grid(0)
    with pytest.raises(ArgumentError, match="`n` must be a whole number of at least 1"):
        Tilted().sample(jax.random.key(0), 2.5)
    with pytest.raises(ArgumentError, match=r"one entry for each of the 2 coordinates; got \(None,\) and"):
        Tilted(periods=(None,)).wrap(jnp.zeros(2))
    with pytest.raises(ArgumentError, match="`periods` must be positive and finite"):
        Tilted(periods=(None, -1.0)).grid(2)
    with pytest.raises(ArgumentError, match="`theta` must hold real numbers"):
        Tilted().wrap("far")
    with pytest.raises(TypeError, match="abstract"):
        dw.tasks.InputManifold()
