"""Which units of a reservoir are connected, and the product of such a matrix with a state.

A matrix is (`values`, `columns`) in the form its topology gives it; where the form needs no columns they are None.

- dense: `(n, n)`.
- sparse, k_regular: `(n, k)`, row i holds the weights from the units `columns[i]`.
- block_sparse: `(b, s, k s)`, block row i of s units hears the block columns `columns[i]`, each of s units; the units
  beyond n, in the last block, are zeros.
- cycle: `(n,)`, the weight to unit i from unit i - 1.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dynwarp.errors import ArgumentError

Topology: TypeAlias = Literal["sparse", "dense", "block_sparse", "k_regular", "cycle"]
TOPOLOGIES: tuple[Topology, ...] = ("sparse", "dense", "block_sparse", "k_regular", "cycle")
# Up to this size all eigenvalues are found; beyond it Arnoldi's method finds the few largest.
_DENSE_LIMIT = 300
_TOLERANCE: Any = 1e-13  # SciPy's stubs take its default, 0, for a whole number


def draw_topology(
    topology: Topology, n: int, density: float, block_size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray | None]:
    """A random matrix of this form (host, float64): standard normal weights, and ones for a cycle."""
    if topology == "dense":
        return rng.standard_normal((n, n)), None
    if topology == "cycle":
        return np.ones(n), None
    if topology == "block_sparse":
        blocks = -(-n // block_size)
        chosen = _choose(blocks, max(1, round(density * blocks)), rng)
        values = rng.standard_normal((blocks, block_size, chosen.shape[1] * block_size))
        beyond = blocks * block_size > n
        if beyond:
            unit = np.arange(blocks * block_size).reshape(blocks, block_size) < n
            values = values * unit[:, :, None] * unit[chosen].reshape(blocks, 1, -1)
        return values, chosen
    k = max(1, round(density * n))
    if topology == "sparse":
        columns = _choose(n, k, rng)
    else:
        # Distinct shifts of one random circle: every unit also sends to exactly k others.
        order, shifts = rng.permutation(n), rng.choice(n, k, replace=False)
        columns = np.empty((n, k), np.int32)
        columns[order] = order[(np.arange(n)[:, None] + shifts) % n]
    return rng.standard_normal((n, k)), columns


def _choose(n: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """k different columns of n for each of n rows, ascending."""
    return np.stack([np.sort(rng.choice(n, k, replace=False, shuffle=False)) for _ in range(n)]).astype(np.int32)


def multiply(values: Float[Array, "..."], columns: Int[Array, "..."] | None, state: Float[Array, " n"]) -> Array:
    """The matrix times a state, `(n,)`."""
    if columns is None:
        return values @ state if values.ndim == 2 else values * jnp.roll(state, 1)
    if values.ndim == 2:
        return jnp.einsum("nk,nk->n", values, state[columns])
    blocks, size, _ = values.shape
    padded = jnp.pad(state, (0, blocks * size - len(state))).reshape(blocks, size)
    return jnp.einsum("bij,bj->bi", values, padded[columns].reshape(blocks, -1)).reshape(-1)[: len(state)]


def to_dense(values: Float[Array, "..."], columns: Int[Array, "..."] | None, n: int) -> Float[Array, "n n"]:
    """The matrix, `(n, n)`."""
    return jax.vmap(lambda unit: multiply(values, columns, unit), out_axes=1)(jnp.eye(n, dtype=values.dtype))


def matrix_radius(values: np.ndarray, columns: np.ndarray | None, n: int) -> float:
    """max |eigenvalue|, complex ones included (host, float64)."""
    if columns is None and values.ndim == 1:
        return float(np.exp(np.mean(np.log(np.abs(values)))))
    if columns is None and n <= _DENSE_LIMIT:
        return float(np.abs(np.linalg.eigvals(values)).max())
    import scipy.sparse
    import scipy.sparse.linalg

    matrix = values if columns is None else scipy.sparse.csr_array(_coordinates(values, columns), shape=(n, n))
    if n <= _DENSE_LIMIT:
        return float(np.abs(np.linalg.eigvals(matrix.toarray())).max())  # pyright: ignore[reportAttributeAccessIssue]
    try:
        start = np.random.default_rng(0).standard_normal(n)
        found = scipy.sparse.linalg.eigs(
            matrix, k=6, ncv=80, tol=_TOLERANCE, v0=start, which="LM", return_eigenvectors=False, maxiter=20 * n
        )
    except scipy.sparse.linalg.ArpackNoConvergence as error:
        raise ArgumentError(
            "EchoStateNetwork: Arnoldi's method did not find the spectral radius; another `key`, a higher `density` or "
            f"at most {_DENSE_LIMIT} units will do."
        ) from error
    return float(np.abs(found).max())


def _coordinates(values: np.ndarray, columns: np.ndarray):
    """The entries of a sparse matrix as (values, (rows, columns))."""
    if values.ndim == 2:
        n, k = values.shape
        return values.ravel(), (np.repeat(np.arange(n), k), columns.ravel())
    blocks, size, width = values.shape
    rows = np.repeat(np.arange(blocks * size), width)
    wide = (columns[:, :, None] * size + np.arange(size)).reshape(blocks, 1, width)
    flat, places = values.ravel(), np.broadcast_to(wide, values.shape).ravel()
    kept = flat != 0  # what lies beyond the last unit is zero
    return flat[kept], (rows[kept], places[kept])
