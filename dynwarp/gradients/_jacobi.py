"""Singular values of diag(exp d) U for any d: one-sided Jacobi rotations of rows whose lengths are held as logarithms.

Where U is well conditioned every singular value comes out to rounding errors of its own size, however many orders of
magnitude lie between them (Demmel and Veselic, SIAM J. Matrix Anal. Appl. 13 (1992) 1204).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

_SWEEPS = 30


class GradedSVD(NamedTuple):
    """diag(exp d) U = W^T diag(exp log_values) Y, largest first; rows of Y are zero where a value is.

    `converged`: whether the rows are orthogonal to working precision.
    """

    log_values: Float[Array, " n"]
    W: Float[Array, "n n"]
    Y: Float[Array, "n n"]
    converged: Bool[Array, ""]


def graded_svd(d: Float[Array, " n"], u: Float[Array, "n n"]) -> GradedSVD:
    """The singular value decomposition of diag(exp d) U; -infinity in d is a row of zeros. Cost about 40 n^3 flops.

    The logarithms have a derivative, forwards and backwards, of first order; the vectors have none.
    """
    values, (W, Y, converged) = _decompose(d, u)
    W, Y = jax.lax.stop_gradient((W, Y))
    return GradedSVD(values, W, Y, converged)


@jax.custom_jvp
def _decompose(d, u):
    n = len(d)
    size = n + n % 2
    norms = jnp.linalg.norm(u, axis=1)
    alive = jnp.isfinite(d) & (norms > 0)
    one = jnp.ones((), d.dtype)
    rows = jnp.where(alive[:, None], u / jnp.where(alive, norms, one)[:, None], 0)
    logs = jnp.where(alive, d + jnp.log(jnp.where(alive, norms, one)), -jnp.inf)
    # An odd row out meets a row of zeros.
    rows = jnp.zeros((size, n), d.dtype).at[:n].set(rows)
    logs = jnp.full(size, -jnp.inf, d.dtype).at[:n].set(logs)
    basis = jnp.eye(size, dtype=d.dtype)
    tolerance = n * jnp.finfo(d.dtype).eps

    def unconverged(carry):
        return (carry[0] < _SWEEPS) & (carry[1] > tolerance)

    def sweep(carry):
        count, _, order, logs, rows, basis = carry

        def turn(_, state):
            order, logs, rows, basis, worst = state
            logs, rows, basis, cosine = _rotate(order[: size // 2], order[size // 2 :][::-1], logs, rows, basis)
            # The round-robin tournament: the first stays, the others move on by one place.
            order = jnp.concatenate([order[:1], jnp.roll(order[1:], 1)])
            return order, logs, rows, basis, jnp.maximum(worst, cosine)

        start = (order, logs, rows, basis, jnp.zeros((), d.dtype))
        order, logs, rows, basis, worst = jax.lax.fori_loop(0, size - 1, turn, start)
        return count + 1, worst, order, logs, rows, basis

    order = jnp.arange(size, dtype=jnp.int32)
    start = (jnp.zeros((), jnp.int32), jnp.asarray(jnp.inf, d.dtype), order, logs, rows, basis)
    _, worst, _, logs, rows, basis = jax.lax.while_loop(unconverged, sweep, start)
    # The row of zeros that was added comes last, whatever others there are.
    chosen = jnp.argsort(-logs, stable=True)[:n]
    return logs[chosen], (basis[chosen, :n], rows[chosen], worst <= tolerance)


@_decompose.defjvp
def _decompose_jvp(primals, tangents):
    (d, u), (dd, du) = primals, tangents
    values, (W, Y, converged) = out = _decompose(d, u)
    # d log sigma_i = sum_j W_ij^2 dd_j + x_i . dU y_i with U^T x_i = y_i: well scaled, whatever d is.
    x = jnp.linalg.solve(u.T, Y.T).T
    moved = W**2 @ jnp.where(jnp.isfinite(d), dd, 0) + jnp.einsum("ij,jk,ik->i", x, du, Y)
    still = (jnp.zeros_like(W), jnp.zeros_like(Y), jnp.zeros(converged.shape, jax.dtypes.float0))
    return out, (jnp.where(jnp.isfinite(values), moved, 0), still)


def _rotate(first, second, logs, rows, basis):
    """Makes the rows of all pairs orthogonal, two by two; also returns the largest cosine that there was."""
    swap = logs[second] > logs[first]
    p, q = jnp.where(swap, second, first), jnp.where(swap, first, second)
    long, short = logs[p], logs[q]
    vanished = jnp.isneginf(short)
    gap = jnp.where(vanished, 0, short - jnp.where(vanished, 0, long))
    ratio = jnp.where(vanished, 0, jnp.exp(gap))
    rest = jnp.where(vanished, 1, -jnp.expm1(2 * gap))
    cosine = jnp.sum(rows[p] * rows[q], axis=1)
    # tan = ratio * slope; the slope itself does not underflow.
    bottom = rest + jnp.sqrt(rest**2 + (2 * cosine * ratio) ** 2)
    slope = jnp.where(bottom > 0, -2 * cosine / jnp.where(bottom > 0, bottom, 1), 0)
    tan = ratio * slope
    cos = 1 / jnp.sqrt(1 + tan**2)

    row_p = rows[p] - (tan * ratio)[:, None] * rows[q]
    row_q = rows[q] + slope[:, None] * rows[p]
    length_p, length_q = (jnp.linalg.norm(row, axis=1) for row in (row_p, row_q))
    safe_p, safe_q = (jnp.where(length > 0, length, 1) for length in (length_p, length_q))
    rows = rows.at[p].set(row_p / safe_p[:, None]).at[q].set(row_q / safe_q[:, None])
    logs = logs.at[p].add(jnp.log(safe_p * cos)).at[q].add(jnp.log(safe_q * cos))
    base_p, base_q = basis[p], basis[q]
    basis = basis.at[p].set(cos[:, None] * (base_p - tan[:, None] * base_q))
    basis = basis.at[q].set(cos[:, None] * (base_q + tan[:, None] * base_p))
    return logs, rows, basis, jnp.max(jnp.abs(jnp.where(vanished, 0, cosine)), initial=0)
