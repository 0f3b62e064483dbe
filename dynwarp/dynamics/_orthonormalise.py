"""Gram-Schmidt in a form that a Lyapunov spectrum can trust: vanished directions, any number of them, any size."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Rows orthonormalised in one unrolled piece; more only cost compile time.
PANEL = 8


def gram_schmidt(vectors: Float[Array, "k n"]) -> tuple[Float[Array, "k n"], Float[Array, " k"]]:
    """Modified Gram-Schmidt on the rows: `(q, stretch)`, with `stretch[i]` the part of row i orthogonal to those before.

    A row that lies in the span of those before it to working precision has stretch 0 and becomes a row of zeros, so that
    it takes nothing from the rows after it: their stretches stay those of the vectors that are left. (A QR factorisation
    puts an arbitrary direction there, and projects it out of the rest.) Differentiable both ways.
    """
    k, n = vectors.shape
    if k <= PANEL:
        return _panel(vectors, vectors)
    panels = -(-k // PANEL)
    # Rows of zeros fill the last panel: they vanish.
    stacked = jnp.zeros((panels * PANEL, n), vectors.dtype).at[:k].set(vectors).reshape(panels, PANEL, n)
    # Reverse mode keeps the vectors alone and goes through the panels again.
    q, stretch = jax.checkpoint(_panels, prevent_cse=False)(stacked)
    return q.reshape(-1, n)[:k], stretch.reshape(-1)[:k]


def householder(vectors: Float[Array, "k n"]) -> tuple[Float[Array, "k n"], Float[Array, " k"]]:
    """The same by LAPACK's QR factorisation. Right where no direction vanishes; differentiable there."""
    q, r = jnp.linalg.qr(vectors.T)
    stretch = jnp.diag(r)
    sign = jnp.where(stretch < 0, -1.0, 1.0).astype(stretch.dtype)
    return (q * sign).T, stretch * sign


def _panels(stacked):
    panels, _, n = stacked.shape

    def body(done, p):
        vectors = stacked[p]
        # Rows that are not done yet are zeros. Twice is enough.
        flat = done.reshape(-1, n)
        reduced = vectors
        for _ in range(2):
            reduced = reduced - (reduced @ flat.T) @ flat
        q, stretch = _panel(reduced, vectors)
        return done.at[p].set(q), stretch

    return jax.lax.scan(body, jnp.zeros_like(stacked), jnp.arange(panels, dtype=jnp.int32))


def _panel(vectors, originals):
    rows = list(vectors)
    one = jnp.ones((), vectors.dtype)
    floor = 16 * vectors.shape[1] * jnp.finfo(vectors.dtype).eps
    lengths = [jnp.sqrt(jnp.sum(jax.lax.stop_gradient(row) ** 2)) for row in originals]
    stretch = []
    for i in range(len(rows)):
        square = jnp.sum(rows[i] ** 2)
        # Not >, so that a NaN stays one.
        vanished = jnp.sqrt(jax.lax.stop_gradient(square)) <= floor * lengths[i]
        length = jnp.where(vanished, jnp.zeros((), vectors.dtype), jnp.sqrt(jnp.where(vanished, one, square)))
        rows[i] = jnp.where(vanished, jnp.zeros((), vectors.dtype), rows[i] / jnp.where(vanished, one, length))
        stretch.append(length)
        for j in range(i + 1, len(rows)):
            rows[j] = rows[j] - jnp.sum(rows[i] * rows[j]) * rows[i]
    return jnp.stack(rows), jnp.stack(stretch)
