"""Nonsymmetric eigenvalues and invariant subspaces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynwarp._linalg import eigenvalues, ordered_schur
from dynwarp.errors import ArgumentError, NonFiniteError, ShapeError


@pytest.fixture(scope="module")
def matrix():
    return np.random.default_rng(1).standard_normal((6, 6))


def test_sorted_and_equal_to_numpy(matrix):
    expected = np.linalg.eigvals(matrix)
    by_modulus = np.asarray(eigenvalues(jnp.asarray(matrix)))
    by_real_part = np.asarray(eigenvalues(jnp.asarray(matrix), order="real"))
    for values in (by_modulus, by_real_part):
        np.testing.assert_allclose(np.sort_complex(values), np.sort_complex(expected), rtol=1e-12)
    assert (np.diff(np.abs(by_modulus)) <= 1e-14).all()
    assert (np.diff(by_real_part.real) <= 1e-14).all()


def test_derivative_is_the_spectral_projection(matrix):
    a, direction = jnp.asarray(matrix), jnp.asarray(np.random.default_rng(2).standard_normal((6, 6)))

    def f(x):
        return jnp.sum(jnp.abs(eigenvalues(a + x * direction)) * jnp.arange(1.0, 7.0))

    h = 1e-6
    np.testing.assert_allclose(jax.grad(f)(0.0), (f(h) - f(-h)) / (2 * h), rtol=1e-7)
    np.testing.assert_allclose(jax.jvp(f, (0.0,), (1.0,))[1], jax.grad(f)(0.0), rtol=1e-12)


def test_batches_keep_a_nan_in_its_lane(matrix):
    a = jnp.asarray(np.stack([matrix, np.full((6, 6), np.nan), matrix.T]))
    values = jax.jit(jax.vmap(eigenvalues))(a)
    np.testing.assert_allclose(eigenvalues(a), values)
    np.testing.assert_allclose(np.abs(values[0]), np.abs(eigenvalues(a[0])), rtol=1e-12)
    assert jnp.isnan(values[1]).all()
    assert jnp.isfinite(values[2]).all()


def test_float32(matrix):
    values = eigenvalues(jnp.asarray(matrix, jnp.float32))
    assert values.dtype == jnp.complex64
    np.testing.assert_allclose(np.abs(values), np.abs(eigenvalues(jnp.asarray(matrix))), rtol=1e-5)


@pytest.mark.parametrize("inside", [True, False])
def test_ordered_schur_gives_the_invariant_subspace(matrix, inside):
    def predicate(z):
        return (abs(z) < 1.5) == inside

    form = ordered_schur(matrix, predicate)
    expected = np.linalg.eigvals(matrix)
    chosen = expected[[predicate(z) for z in expected]]
    assert form.dimension == len(chosen)
    assert 0 < form.dimension < 6
    np.testing.assert_allclose(form.q @ form.t @ form.q.T, matrix, atol=1e-13)
    np.testing.assert_allclose(form.q.T @ form.q, np.eye(6), atol=1e-14)
    basis = form.basis
    restricted = basis.T @ matrix @ basis
    np.testing.assert_allclose(matrix @ basis, basis @ restricted, atol=1e-12)
    np.testing.assert_allclose(
        np.sort_complex(form.eigenvalues[: form.dimension].round(10)), np.sort_complex(chosen.round(10)), atol=1e-9
    )
    np.testing.assert_allclose(
        np.sort_complex(np.linalg.eigvals(restricted).round(10)), np.sort_complex(chosen.round(10)), atol=1e-9
    )
    assert form.separation > 0


def test_ordered_schur_of_a_defective_matrix():
    form = ordered_schur(np.array([[2.0, 1.0, 5.0], [0.0, 0.5, 1.0], [0.0, 0.0, 0.5]]), lambda z: abs(z) < 1)
    assert form.dimension == 2
    residual = form.basis @ form.basis.T @ form.t  # the projector exists although an eigenvector is missing
    assert np.isfinite(residual).all()
    assert ordered_schur(np.eye(2), lambda z: abs(z) > 2).separation == np.inf


def test_errors(matrix):
    with pytest.raises(ShapeError, match=r"`a` must be square.*\(2, 3\)"):
        eigenvalues(jnp.zeros((2, 3)))
    with pytest.raises(ArgumentError, match="`order` must be one of 'modulus', 'real'"):
        eigenvalues(jnp.zeros((2, 2)), order="size")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ShapeError, match="one matrix"):
        ordered_schur(np.zeros((2, 3, 3)), lambda z: True)
    with pytest.raises(NonFiniteError, match="`a` must be finite"):
        ordered_schur(np.full((2, 2), np.nan), lambda z: True)
    with pytest.raises(ArgumentError, match="same answer for an eigenvalue and its conjugate"):
        ordered_schur(np.array([[0.0, 1.0], [-1.0, 0.0]]), lambda z: z.imag > 0)
    with pytest.raises(ArgumentError, match="must be concrete"):
        jax.jit(lambda a: ordered_schur(a, lambda z: True).dimension)(jnp.asarray(matrix))
