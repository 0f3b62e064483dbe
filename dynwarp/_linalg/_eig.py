"""Eigenvalues of nonsymmetric matrices: the one place that asks LAPACK for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from dynwarp._checks import check_choice, check_finite
from dynwarp._compat import concrete
from dynwarp.errors import ArgumentError, ShapeError


def eigenvalues(
    a: Float[Array, "*batch n n"], *, order: Literal["modulus", "real"] = "modulus"
) -> Complex[Array, "*batch n"]:
    """The eigenvalues of square matrices, sorted: largest modulus, or largest real part, first.

    **Arguments:**

    - `a`: square matrices, `(..., n, n)`. A matrix with a NaN or an infinity has NaN eigenvalues.
    - `order`: what to sort by, decreasing.

    **Returns:** complex, `(..., n)`. Differentiable both ways, to every order, where the eigenvalues are simple; at a
    defective eigenvalue no derivative exists and NaN or infinity comes out. Cost O(n^3).

    **Example:**

    >>> import jax.numpy as jnp
    >>> from dynwarp._linalg import eigenvalues
    >>> eigenvalues(jnp.array([[0.0, 1.0], [-2.0, -3.0]])).real.tolist()
    [-2.0, -1.0]
    """
    _check_square(a, "eigenvalues")
    check_choice(order, "order", ("modulus", "real"), caller="eigenvalues")
    # LAPACK must not see a NaN: it may loop. The matrix is replaced before, the answer after.
    good = jnp.all(jnp.isfinite(a), axis=(-2, -1))
    values = _eigenvalues(jnp.where(good[..., None, None], a, jnp.zeros((), a.dtype)))
    values = jnp.where(good[..., None], values, jnp.asarray(jnp.nan, values.dtype))
    key = jnp.abs(values) if order == "modulus" else values.real
    # The sort is a permutation: the derivative goes through the gather and does not see the key.
    return jnp.take_along_axis(values, jnp.argsort(-key, axis=-1, stable=True), axis=-1)


@jax.custom_jvp
def _eigenvalues(a):
    return jnp.linalg.eigvals(a)


@_eigenvalues.defjvp
def _eigenvalues_jvp(primals, tangents):
    # dlambda = diag(V^-1 dA V) does not depend on how the columns of V are scaled, so that, unlike theirs, its own
    # derivatives are safe: JAX's rule for eigenvalues alone stops at the first order.
    (a,), (da,) = primals, tangents
    _, vectors = jax.lax.linalg.eig(a, compute_left_eigenvectors=False, enable_eigvec_derivs=True)
    moved = jnp.linalg.solve(vectors, da.astype(vectors.dtype) @ vectors)
    return _eigenvalues(a), jnp.diagonal(moved, axis1=-2, axis2=-1)


class OrderedSchur(NamedTuple):
    """A real Schur form A = Q T Q^T whose chosen eigenvalues come first.

    - `t`: quasi upper triangular, `(n, n)`.
    - `q`: orthogonal, `(n, n)`.
    - `dimension`: how many eigenvalues were chosen.
    - `eigenvalues`: in the order of the diagonal of `t`, complex `(n,)`.
    - `separation`: LAPACK's estimate of sep(T11, T22), which bounds how far the subspace moves: by about
      |change of A| / separation. Infinity where the choice is none or all.
    """

    t: np.ndarray
    q: np.ndarray
    dimension: int
    eigenvalues: np.ndarray
    separation: float

    @property
    def basis(self) -> np.ndarray:
        """An orthonormal basis of the invariant subspace of the chosen eigenvalues, `(n, dimension)`."""
        return self.q[:, : self.dimension]


def ordered_schur(a, predicate: Callable[[complex], bool]) -> OrderedSchur:
    """The real Schur form with the eigenvalues that satisfy `predicate` first (host only).

    Complex pairs stay together and defective eigenvalues need no care: this, and not eigenvectors, gives invariant
    subspaces. The complementary subspace is the one of the opposite predicate.

    **Arguments:**

    - `a`: a real square matrix, `(n, n)`, concrete and finite; worked on in float64.
    - `predicate`: a function of one complex eigenvalue, equal on conjugates, such as `lambda z: abs(z) < 1`.

    **Raises:** `ShapeError`, `NonFiniteError`; `ArgumentError` where `a` is traced, the predicate tells conjugates
    apart, or LAPACK cannot tell the two groups apart.

    **Source:** Bai and Demmel, Linear Algebra Appl. 186 (1993) 73; LAPACK's `dtrsen`.

    **Example:**

    >>> import numpy as np
    >>> from dynwarp._linalg import ordered_schur
    >>> form = ordered_schur(np.array([[2.0, 1.0], [0.0, 0.5]]), lambda z: abs(z) < 1)
    >>> form.dimension, np.allclose(form.basis[:, 0] * np.sign(form.basis[1, 0]) * 13**0.5, [-2.0, 3.0])
    (1, True)
    """
    import scipy.linalg

    _check_square(a, "ordered_schur")
    if jnp.ndim(a) != 2:
        raise ShapeError(f"ordered_schur: `a` must be one matrix, (n, n); got {jnp.shape(a)}.")
    matrix = concrete(a)
    if matrix is None:
        raise ArgumentError(
            "ordered_schur: `a` must be concrete, it runs on the host; it is traced by jit, vmap or grad."
        )
    matrix = matrix.astype(np.float64)
    check_finite(matrix, "a", caller="ordered_schur")
    t, q = scipy.linalg.schur(matrix, output="real")  # pyright: ignore[reportAssignmentType]
    chosen = np.array([bool(predicate(complex(value))) for value in _diagonal_eigenvalues(t)], dtype=np.int32)
    pairs = np.flatnonzero(np.diag(t, -1))
    if np.any(chosen[pairs] != chosen[pairs + 1]):
        raise ArgumentError("ordered_schur: `predicate` must give the same answer for an eigenvalue and its conjugate.")
    dimension = int(chosen.sum())
    if dimension in (0, len(chosen)):
        return OrderedSchur(t, q, dimension, _diagonal_eigenvalues(t), np.inf)
    size = dimension * (len(chosen) - dimension)
    t, q, *_, separation, info = scipy.linalg.lapack.dtrsen(
        chosen, t, q, job="V", lwork=max(len(chosen), 2 * size), liwork=size
    )
    if info != 0:
        raise ArgumentError("ordered_schur: the chosen eigenvalues are too close to the others to be reordered.")
    return OrderedSchur(t, q, dimension, _diagonal_eigenvalues(t), float(separation))


def _diagonal_eigenvalues(t: np.ndarray) -> np.ndarray:
    """The eigenvalues of a standardised real Schur form: its 2 x 2 blocks are [[a, b], [c, a]] with b c < 0."""
    values = np.diag(t).astype(complex)
    for i in np.flatnonzero(np.diag(t, -1)):
        imaginary = np.sqrt(abs(t[i, i + 1])) * np.sqrt(abs(t[i + 1, i]))
        values[i : i + 2] += np.array([1j, -1j]) * imaginary
    return values


def _check_square(a, caller: str) -> None:
    shape = jnp.shape(a)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ShapeError(f"{caller}: `a` must be square, (..., n, n); got {shape}.")
