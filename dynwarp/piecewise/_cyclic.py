"""Linear algebra along a cycle: the block-cyclic system of its points, and the multipliers of its Jacobians."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float

from dynwarp._linalg import eigenvalues

# Turns around a cycle until orthonormal frames have settled.
_TURNS = 6


def solve_cyclic(jacobians: Float[Array, "k M M"], offsets: Float[Array, "k M"]) -> Float[Array, "k M"]:
    """The points of a periodic orbit of affine maps: z[i + 1] = J[i] z[i] + b[i], with z[k] = z[0].

    All points are unknowns of one block-cyclic system, eliminated by orthogonal transformations, so that no product of
    Jacobians is formed and digits do not get lost as fast as the orbit is unstable. Cost O(k M^3), memory O(k M^2).
    Infinite or NaN where the system is singular. Differentiable to any order in both modes.

    **Source:** Wright, SIAM J. Sci. Stat. Comput. 13 (1992) 742, structured orthogonal factorisation.
    """

    def matvec(z):
        return jnp.roll(z, -1, axis=0) - jnp.einsum("kij,kj->ki", jacobians, z)

    frozen = jax.lax.stop_gradient(jacobians)
    backwards = jnp.swapaxes(frozen[::-1], 1, 2)

    def transpose_solve(_, c):
        # y[i - 1] - J[i]^T y[i] = c[i]: a cyclic system again, that runs backwards.
        return _eliminate(backwards, c[::-1])[::-1]

    return jax.lax.custom_linear_solve(matvec, offsets, lambda _, b: _eliminate(frozen, b), transpose_solve)


def solve_with_multipliers(
    jacobians: Float[Array, "k M M"], offsets: Float[Array, "k M"]
) -> tuple[Float[Array, "k M"], Complex[Array, " M"]]:
    """`solve_cyclic` and `cycle_multipliers`, one after the other, for the reason given in `_eliminate`."""
    points = solve_cyclic(jacobians, offsets)
    total = jax.lax.stop_gradient(jnp.sum(points))
    return points, cycle_multipliers(jacobians + jnp.where(jnp.isfinite(total), 0 * total, 0))


def _eliminate(jacobians, offsets):
    m = jacobians.shape[-1]
    eye, zero = jnp.eye(m, dtype=jacobians.dtype), jnp.zeros((m, m), jacobians.dtype)
    # By a zero the factorisations wait for the right side, those of a derivative so for the solution: two of a large
    # batch that do not wait for each other can hold both threads of a machine of two cores for good.
    jacobians = jacobians + 0 * jnp.sum(offsets)

    # The rows so far say C z[0] + D z[i] = e; the next ones bring -J z[i] + z[i + 1] = b. A QR of the column of z[i]
    # leaves m rows that give z[i] from z[0] and z[i + 1], and m rows without it.
    def forward(carry, row):
        c, d, e = carry
        jacobian, b = row
        q, r = jnp.linalg.qr(jnp.concatenate([d, -jacobian]), mode="complete")
        first = q.T @ jnp.concatenate([c, zero])
        after = q.T @ jnp.concatenate([zero, eye])
        right = q.T @ jnp.concatenate([e, b])
        return (first[m:], after[m:], right[m:]), (r[:m], first[:m], after[:m], right[:m])

    start = (-jacobians[0], eye, offsets[0])
    (c, d, e), rows = jax.lax.scan(forward, start, (jacobians[1:], offsets[1:]))
    z0 = jnp.linalg.solve(c + d, e)

    def backward(z, row):
        r, first, after, right = row
        z = jax.scipy.linalg.solve_triangular(r, right - first @ z0 - after @ z)
        return z, z

    _, rest = jax.lax.scan(backward, z0, rows, reverse=True)
    return jnp.concatenate([z0[None], rest])


def cycle_multipliers(jacobians: Float[Array, "k M M"]) -> Complex[Array, " M"]:
    """The eigenvalues of J[k - 1] ... J[0], largest modulus first; small ones keep their digits where they stand alone.

    The product is taken in orthonormal frames carried along the cycle, where the factors are triangular: rounding in
    the large multipliers does not spill over the small ones, as it does in the plain product.
    """
    k, m, _ = jacobians.shape
    if k == 1:
        return eigenvalues(jacobians[0])
    frozen = jax.lax.stop_gradient(jacobians)

    def carry_frame(q, jacobian):
        return jnp.linalg.qr(jacobian @ q)[0], q

    # Some turns for the frames to settle, and one more, in which they are used.
    last, frames = jax.lax.scan(carry_frame, jnp.eye(m, dtype=jacobians.dtype), jnp.tile(frozen, (_TURNS + 1, 1, 1)))
    frames = frames[-k:]
    after = jnp.concatenate([frames[1:], last[None]])
    factors = jnp.einsum("kji,kjl,klm->kim", after, jacobians, frames)
    lower = jnp.tril(factors, -1)
    # The lower part is rounding: its value goes, its derivative stays.
    factors = jnp.triu(factors) + (lower - jax.lax.stop_gradient(lower))
    closing = frames[0].T @ last
    closing = jnp.where(jnp.abs(closing) < 1e-13, jnp.zeros((), closing.dtype), closing)
    product, _ = jax.lax.scan(lambda p, f: (f @ p, None), jnp.eye(m, dtype=jacobians.dtype), factors)
    return eigenvalues(closing @ product)
