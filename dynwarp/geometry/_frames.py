"""Orthonormal frames of tangent spaces and triangular systems in them, written out for the few dimensions of charts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# Above this many dimensions LAPACK is faster than formulas, and the programs stay small.
_WRITTEN_OUT = 3


def orthonormal_frame(jacobian: Float[Array, "N m"]) -> tuple[Float[Array, "N m"], Float[Array, "m m"]]:
    """Q with orthonormal columns and R upper triangular, its diagonal not negative, with Q R = J.

    Gram-Schmidt, each column orthogonalised twice, which is as accurate as Householder's reflections. A column that
    depends on those before it has a zero on the diagonal of R and in Q.
    """
    m = jacobian.shape[1]
    if m > _WRITTEN_OUT:
        q, r = jnp.linalg.qr(jacobian)
        sign = jnp.where(jnp.diagonal(r) < 0, -1, 1).astype(r.dtype)
        return q * sign, r * sign[:, None]
    columns, rows = [], [[jnp.zeros((), jacobian.dtype)] * m for _ in range(m)]
    for j in range(m):
        v = jacobian[:, j]
        for _ in range(2):
            for i, q in enumerate(columns):
                along = jnp.dot(q, v, precision="highest")
                v, rows[i][j] = v - along * q, rows[i][j] + along
        square = jnp.dot(v, v, precision="highest")
        full = square > 0
        length = jnp.where(full, jnp.sqrt(jnp.where(full, square, 1)), 0)
        columns.append(v / jnp.where(full, length, 1))
        rows[j][j] = length
    return jnp.stack(columns, axis=1), jnp.stack([jnp.stack(row) for row in rows])


def upper_factor(metric: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """R upper triangular with R^T R = G; NaN where G is not positive."""
    m = metric.shape[0]
    if m > _WRITTEN_OUT:
        return jnp.linalg.cholesky(metric).T
    rows = [[jnp.zeros((), metric.dtype)] * m for _ in range(m)]
    for i in range(m):
        rows[i][i] = jnp.sqrt(metric[i, i] - sum(rows[k][i] ** 2 for k in range(i)))
        for j in range(i + 1, m):
            rows[i][j] = (metric[i, j] - sum(rows[k][i] * rows[k][j] for k in range(i))) / rows[i][i]
    return jnp.stack([jnp.stack(row) for row in rows])


def semidefinite_factor(metric: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """The same with rows of zeros for directions that depend on those before them, up to rounding; NaN where G has a
    negative eigenvalue."""
    m = metric.shape[0]
    rest, rows = metric, []
    slack = 4 * m * jnp.finfo(metric.dtype).eps * jnp.diagonal(metric)
    for i in range(m):
        square = rest[i, i]
        full = square > slack[i]
        dependent = jnp.all(rest[i, i:] ** 2 <= slack[i] * jnp.diagonal(metric)[i:])
        row = jnp.where(full, rest[i] / jnp.sqrt(jnp.where(full, square, 1)), jnp.where(dependent, 0, jnp.nan))
        rows.append(jnp.where(np.arange(m) < i, 0, row))
        rest = rest - jnp.outer(rows[-1], rows[-1])
    return jnp.stack(rows)


def solve_upper(factor: Float[Array, "m m"], rhs: Float[Array, "m ..."]) -> Float[Array, "m ..."]:
    """R^{-1} b along the first axis of b."""
    m = factor.shape[0]
    if m > _WRITTEN_OUT:
        flat = jax.scipy.linalg.solve_triangular(factor, rhs.reshape(m, -1))
        return flat.reshape(rhs.shape)
    rows: list = [None] * m
    for i in reversed(range(m)):
        rows[i] = (rhs[i] - sum(factor[i, k] * rows[k] for k in range(i + 1, m))) / factor[i, i]
    return jnp.stack(rows)


def solve_transposed(factor: Float[Array, "m m"], rhs: Float[Array, "m ..."]) -> Float[Array, "m ..."]:
    """R^{-T} b along the first axis: from components in the coordinates to components in the frame."""
    # Reversed, a lower triangle is an upper one.
    return solve_upper(factor.T[::-1, ::-1], rhs[::-1])[::-1]


def invert_upper(factor: Float[Array, "m m"]) -> Float[Array, "m m"]:
    """R^{-1}."""
    return solve_upper(factor, jnp.eye(factor.shape[0], dtype=factor.dtype))


def independence(factor: Float[Array, "m m"]) -> Float[Array, ""]:
    """The least sine of the angle between a coordinate direction and the span of those before it; NaN where there is
    none. It does not depend on the units of the coordinates."""
    lengths = jnp.sqrt(jnp.sum(factor**2, axis=0))
    return jnp.min(jnp.diagonal(factor) / lengths)
