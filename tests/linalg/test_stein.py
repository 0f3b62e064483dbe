"""The Stein solver against the Kronecker form, scipy and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from dynwarp._linalg import solve_stein


@pytest.fixture(scope="module")
def problem():
    generator = np.random.default_rng(0)
    a, b = generator.standard_normal((4, 4)), generator.standard_normal((3, 3))
    a *= 0.9 / np.max(np.abs(np.linalg.eigvals(a)))
    b *= 0.95 / np.max(np.abs(np.linalg.eigvals(b)))
    return tuple(jnp.asarray(x) for x in (a, b, generator.standard_normal((4, 3))))


def test_equals_the_kronecker_form(problem):
    a, b, c = problem
    dense = np.linalg.solve(np.eye(12) - np.kron(a, b.T), np.ravel(c)).reshape(4, 3)
    found = solve_stein(a, b, c)
    assert found.converged
    np.testing.assert_allclose(found.value, dense, rtol=1e-12)


def test_equals_scipy_for_a_covariance(problem):
    a = problem[0]
    q = a @ a.T
    np.testing.assert_allclose(solve_stein(a, a.T, q).value, scipy.linalg.solve_discrete_lyapunov(a, q), rtol=1e-11)


def test_derivatives_of_first_and_second_order(problem):
    a, b, c = problem

    def f(x):
        return jnp.sum(jnp.sin(solve_stein(x * a, b, c).value))

    h = 1e-5
    numeric = (f(1.0 + h) - f(1.0 - h)) / (2 * h)
    np.testing.assert_allclose(jax.grad(f)(1.0), numeric, rtol=1e-7)
    np.testing.assert_allclose(jax.jvp(f, (1.0,), (1.0,))[1], jax.grad(f)(1.0), rtol=1e-12)
    second = (jax.grad(f)(1.0 + h) - jax.grad(f)(1.0 - h)) / (2 * h)
    np.testing.assert_allclose(jax.grad(jax.grad(f))(1.0), second, rtol=1e-6)


def test_under_jit_and_vmap(problem):
    a, b, c = problem
    scales = jnp.array([0.3, 1.0])
    many = jax.jit(jax.vmap(lambda s: solve_stein(s * a, b, c).value))(scales)
    for scale, value in zip(scales, many):
        np.testing.assert_allclose(value, solve_stein(scale * a, b, c).value, rtol=1e-13)


def test_float32_and_divergence(problem):
    a, b, c = (x.astype(jnp.float32) for x in problem)
    assert solve_stein(a, b, c, tolerance=1e-4).value.dtype == jnp.float32
    assert solve_stein(a, b, c, tolerance=1e-4).converged
    assert not solve_stein(2 * problem[0], problem[1], problem[2]).converged


def test_shapes_are_named(problem):
    a, b, c = problem
    with pytest.raises(ValueError, match=r"got a \(4, 4\), b \(3, 3\), c \(3, 4\)"):
        solve_stein(a, b, c.T)
