"""Small linear systems by the thousand, with the systems in the last axis, where the processor's vectors are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

# Above this size LAPACK, one system at a time, is faster, and compiles faster.
_MAX_ELIMINATION = 12
# A pivot this small, relative to the largest entry, is zero.
_ZERO_PIVOT = 1e-12


def solve_lanes(system: Float[Array, "M L N"]) -> tuple[Float[Array, "M N"], Bool[Array, " N"]]:
    """Solves N augmented systems `(M, M + 1, N)`: the solutions, and which of the systems were singular.

    Where a pivot vanishes its unknown is set to 0.
    """
    m = system.shape[0]
    if m > _MAX_ELIMINATION:
        matrix, right = jnp.moveaxis(system[:, :m], -1, 0), jnp.moveaxis(system[:, m:], -1, 0)
        solutions = jnp.linalg.solve(matrix, right)[..., 0].T
        return solutions, ~jnp.all(jnp.isfinite(solutions), axis=0)
    tops, singular, _ = _triangular(system)
    solution: list[Array] = []
    for inverse, row in reversed(tops):
        value = row[-1]
        for coefficient, unknown in zip(row[:-1], reversed(solution), strict=True):
            value = value - coefficient * unknown
        solution.append(value * inverse)
    return jnp.stack(solution[::-1]), singular


def solve_with_signs(
    system: Float[Array, "M L N"], matrices: Float[Array, "M M N"]
) -> tuple[Float[Array, "M N"], Bool[Array, " N"], Float[Array, " N"]]:
    """`solve_lanes` of N systems, and the signs of N other determinants: -1, 0 or 1."""
    m, lanes = system.shape[0], system.shape[-1]
    if m <= _MAX_ELIMINATION:
        return *solve_lanes(system), _triangular(matrices)[2]
    # One factorisation of all: on a CPU, two large batched ones that do not wait for each other may block for ever.
    both = jnp.moveaxis(jnp.concatenate([system[:, :m], matrices], axis=2), -1, 0)
    factors, pivots = jax.scipy.linalg.lu_factor(both)
    right = jnp.moveaxis(system[:, m:], -1, 0)
    solutions = jax.scipy.linalg.lu_solve((factors[:lanes], pivots[:lanes]), right)[..., 0].T
    swaps = jnp.sum(pivots[lanes:] != jnp.arange(m, dtype=pivots.dtype), axis=1)
    signs = jnp.prod(jnp.sign(jnp.diagonal(factors[lanes:], axis1=1, axis2=2)), axis=1)
    return solutions, ~jnp.all(jnp.isfinite(solutions), axis=0), jnp.where(swaps % 2 == 1, -signs, signs)


def _triangular(system):
    """Elimination with row pivoting, on what is left of the system at each column.

    Returns, by column, the inverse pivot and the rest of its row; which systems were singular; the signs of the
    determinants.
    """
    m, lanes = system.shape[0], system.shape[-1]
    tiny = _ZERO_PIVOT * jnp.max(jnp.abs(system[:, :m]), axis=(0, 1))
    singular, sign = jnp.zeros(lanes, bool), jnp.ones(lanes, system.dtype)
    tops = []
    for _ in range(m):
        at = jnp.argmax(jnp.abs(system[:, 0]), axis=0)
        chosen = jnp.arange(len(system))[:, None] == at
        top = jnp.sum(jnp.where(chosen[:, None], system, 0.0), axis=0)
        good = jnp.abs(top[0]) > tiny
        singular |= ~good
        sign = jnp.where(good, jnp.where(at == 0, sign, -sign) * jnp.sign(top[0]), 0.0)
        inverse = jnp.where(good, 1 / jnp.where(good, top[0], 1.0), 0.0)
        tops.append((inverse, top[1:]))
        # The first row takes the place of the pivot's.
        rest = jnp.where(chosen[1:, None], system[:1], system[1:])
        system = rest[:, 1:] - (rest[:, 0] * inverse)[:, None] * top[1:]
    return tops, singular, sign
