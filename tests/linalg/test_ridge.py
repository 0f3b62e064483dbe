"""Ridge regression against the augmented least-squares problem, and its precision."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynwarp import RESULTS
from dynwarp._linalg import ridge_regression
from dynwarp.errors import ArgumentError, ShapeError


@pytest.fixture(scope="module")
def data():
    generator = np.random.default_rng(0)
    x = generator.standard_normal((60, 5)) @ np.diag([1.0, 2.0, 0.1, 1.0, 3.0])
    return jnp.asarray(x), jnp.asarray(x @ generator.standard_normal((5, 2)) + 0.1 * generator.standard_normal((60, 2)))


@pytest.mark.parametrize("relative", [True, False])
def test_equals_augmented_least_squares(data, relative):
    x, y = data
    r = 0.3 * np.trace(x.T @ x) / 5 if relative else 0.3
    stacked = np.concatenate([x, np.sqrt(r) * np.eye(5)]), np.concatenate([y, np.zeros((5, 2))])
    expected = np.linalg.lstsq(*stacked, rcond=None)[0].T
    found = ridge_regression(x, y, 0.3, relative=relative)
    assert found.result == RESULTS.successful
    np.testing.assert_allclose(found.weights, expected, rtol=1e-11)


def test_relative_ridge_does_not_depend_on_units(data):
    x, y = data
    np.testing.assert_allclose(
        ridge_regression(1000 * x, y, 0.1).weights * 1000, ridge_regression(x, y, 0.1).weights, rtol=1e-12
    )


def test_float32_features_keep_a_tiny_ridge(data):
    # Nearly collinear features: the float32 Gram matrix is indefinite at this ridge.
    generator = np.random.default_rng(3)
    base = generator.standard_normal((400, 1))
    x = (base + 1e-4 * generator.standard_normal((400, 30))).astype(np.float32)
    y = base.astype(np.float32)
    found = ridge_regression(jnp.asarray(x), jnp.asarray(y), 1e-10)
    assert found.result == RESULTS.successful
    assert found.weights.dtype == jnp.float32
    exact = ridge_regression(jnp.asarray(x, float), jnp.asarray(y, float), 1e-10).weights
    np.testing.assert_allclose(np.asarray(found.weights), np.asarray(exact), rtol=1e-5, atol=1e-5)
    gram = x.T @ x
    single = np.linalg.eigvalsh(gram + np.float32(1e-10 * np.trace(gram) / 30) * np.eye(30, dtype=np.float32))
    assert single.min() < 0


def test_without_x64_a_tiny_ridge_is_refused():
    code = """
import jax.numpy as jnp
from dynwarp._linalg import ridge_regression
from dynwarp.errors import PrecisionError
x = jnp.eye(4)
print(ridge_regression(x, x, 0.1).weights.dtype)
try:
    ridge_regression(x, x, 1e-8)
except PrecisionError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "float32" in run.stdout
    assert "below the 4.8e-06 that float32 normal equations can resolve" in run.stdout


def test_singular_is_a_code(data):
    x, y = data
    doubled = jnp.concatenate([x, x], axis=1)
    assert ridge_regression(doubled, y, 0.0).result == RESULTS.singular
    assert ridge_regression(doubled, y, 1e-9).result == RESULTS.successful


def test_transformations(data):
    x, y = data

    def f(ridge):
        return jnp.sum(ridge_regression(x, y, ridge).weights ** 2)

    h = 1e-5
    numeric = (f(0.2 + h) - f(0.2 - h)) / (2 * h)
    np.testing.assert_allclose(jax.grad(f)(0.2), numeric, rtol=1e-8)
    np.testing.assert_allclose(jax.jvp(f, (0.2,), (1.0,))[1], numeric, rtol=1e-8)
    many = jax.jit(jax.vmap(f))(jnp.array([0.1, 0.2]))
    np.testing.assert_allclose(many, [f(0.1), f(0.2)], rtol=1e-12)


def test_errors(data):
    x, y = data
    with pytest.raises(ShapeError, match=r"`targets` must have shape \(60, \?\)|`targets` must have shape \(60, o\)"):
        ridge_regression(x, y[:-1], 0.1)
    with pytest.raises(ArgumentError, match="`ridge` must not be negative"):
        ridge_regression(x, y, -1.0)
