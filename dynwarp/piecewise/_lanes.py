"""Small linear systems by the thousand, with the systems in the last axis, where the processor's vectors are."""

from __future__ import annotations

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


def determinant_signs(matrices: Float[Array, "M M N"]) -> Float[Array, " N"]:
    """The signs of N determinants: -1, 0 or 1."""
    if matrices.shape[0] > _MAX_ELIMINATION:
        return jnp.linalg.slogdet(jnp.moveaxis(matrices, -1, 0)).sign
    return _triangular(matrices)[2]


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
