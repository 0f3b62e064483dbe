"""Gram-Schmidt in a form that a Lyapunov spectrum can trust: vanished directions, any number of rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# So few rows are unrolled; more are done in a loop, this many at a time between matrix products.
_UNROLLED, _PANEL = 4, 16


def gram_schmidt(
    vectors: Float[Array, "k n"], *, to_precision: bool = True
) -> tuple[Float[Array, "k n"], Float[Array, " k"]]:
    """Modified Gram-Schmidt on the rows: `(q, stretch)`, `stretch[i]` the part of row i orthogonal to those before it.

    A row in the span of those before it, to working precision or (`to_precision=False`) exactly, has stretch 0 and
    becomes a row of zeros, so that it takes nothing from the rows after it: their stretches stay those of the vectors
    that are left. A QR factorisation puts an arbitrary direction there, and projects it out of the rest. Differentiable
    both ways; reverse mode keeps the vectors alone. As fast as LAPACK's QR with one thread, and not slowed by its many.
    """
    k, n = vectors.shape
    floor = 16 * n**0.5 * float(jnp.finfo(vectors.dtype).eps) if to_precision else 0.0
    least = floor * jnp.sqrt(jnp.sum(jax.lax.stop_gradient(vectors) ** 2, axis=1))
    if k <= _UNROLLED:
        return _few(vectors, least)
    return jax.checkpoint(_panels, prevent_cse=False)(vectors, least)


def householder(vectors: Float[Array, "k n"]) -> tuple[Float[Array, "k n"], Float[Array, " k"]]:
    """The same by LAPACK's QR factorisation. Right where no direction vanishes; differentiable there."""
    q, r = jnp.linalg.qr(vectors.T)
    stretch = jnp.diag(r)
    sign = jnp.where(stretch < 0, -1.0, 1.0).astype(stretch.dtype)
    return (q * sign).T, stretch * sign


def _few(rest, least):
    q, stretch = [], []
    for i in range(len(rest)):
        row, length = _normalise(rest[0], least[i])
        q.append(row)
        stretch.append(length)
        rest = rest[1:] - jnp.sum(rest[1:] * row, axis=1, keepdims=True) * row
    return jnp.stack(q), jnp.stack(stretch)


def _panels(vectors, least):
    k, n = vectors.shape
    width = min(k, _PANEL)
    count = -(-k // width)
    # Rows of zeros fill the last panel: they vanish.
    rows = jnp.zeros((count * width, n), vectors.dtype).at[:k].set(vectors)
    least = jnp.zeros(count * width, vectors.dtype).at[:k].set(least)
    indices = jnp.arange(count * width, dtype=jnp.int32)

    def later(x, i):
        return jnp.where(indices[: len(x), None] >= i, x, jnp.zeros((), x.dtype))

    def row(panel, x):
        i, smallest = x
        q, length = _normalise(panel[i], smallest)
        panel = panel - later((panel @ q)[:, None], i + 1) * q
        return panel.at[i].set(q), length

    def panel(rows, x):
        start, smallest = x
        q, lengths = jax.lax.scan(row, jax.lax.dynamic_slice_in_dim(rows, start, width), (indices[:width], smallest))
        rows = rows - later(rows @ q.T, start + width) @ q
        return jax.lax.dynamic_update_slice_in_dim(rows, q, start, 0), lengths

    q, stretch = jax.lax.scan(panel, rows, (indices[::width], least.reshape(count, width)))
    return q[:k], stretch.ravel()[:k]


def _normalise(row, least):
    zero, one = jnp.zeros((), row.dtype), jnp.ones((), row.dtype)
    square = jnp.sum(row**2)
    vanished = jnp.sqrt(jax.lax.stop_gradient(square)) <= least
    length = jnp.sqrt(jnp.where(vanished, one, square))
    return jnp.where(vanished, zero, row / length), jnp.where(vanished, zero, length)
