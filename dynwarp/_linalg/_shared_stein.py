"""Several Stein equations X = A X B + C whose matrices recur: every power is formed once.

The doublings of Smith's method need A^(2^k) and B^(2^k) alone. Equations that share a matrix share its powers, and
matrices that are transposes of each other do too: the caller names the distinct ones.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

# A factor of an equation: the index of a matrix, and whether its transpose is meant.
Factor = tuple[int, bool]


class SharedSteinSolution(eqx.Module):
    """What `solve_shared_stein` returns.

    **Attributes:**

    - `values`: the solutions, a tuple.
    - `residual`: the largest of `max |A X B + C - X| / max |X|`, the certificate.
    - `converged`: whether it is below the tolerance; false where a series diverges.
    """

    values: tuple[Array, ...]
    residual: Float[Array, ""]
    converged: Bool[Array, ""]


def solve_shared_stein(
    matrices: tuple[Array, ...],
    equations: tuple[tuple[Factor, Factor], ...],
    constants: tuple[Array, ...],
    *,
    max_doublings: int = 40,
    tolerance: float | None = None,
) -> SharedSteinSolution:
    """Solves X_i = A_i X_i B_i + C_i for all i at once, by Smith doubling.

    **Arguments:**

    - `matrices`: the distinct square matrices.
    - `equations`: for each, its factors A and B as `(index, transposed)`.
    - `constants`: the C_i.
    - `max_doublings`: the sums stop by themselves once nothing is added; 40 reach spectral radii of 1 - 1e-11.
    - `tolerance`: on the relative residual; None is 1e-9 in float64, 1e-3 in float32.

    **Returns:** a `SharedSteinSolution`. Differentiable to any order, forwards and backwards, by the implicit
    function theorem: each derivative is one more shared solve, and no doubling is stored.

    **Cost:** two products for each equation and one for each matrix, a doubling.

    **Source:** Smith, SIAM J. Appl. Math. 16 (1968) 198.
    """
    dtype = constants[0].dtype
    tolerance = (1e-9 if dtype == jnp.float64 else 1e-3) if tolerance is None else tolerance
    # The solver sees constants; the derivative flows through the operator.
    held = jax.lax.stop_gradient(matrices)

    def apply(matrices, x):
        return tuple(_get(matrices, a) @ y @ _get(matrices, b) for (a, b), y in zip(equations, x))

    def double(rhs, transposed):
        flip = tuple(((i, s ^ transposed), (j, t ^ transposed)) for (i, s), (j, t) in equations)
        # An increment below rounding ends the sum; a diverging one ends it too, as soon as it is not finite.
        eps = jnp.finfo(dtype).eps

        def going(carry):
            _, _, gain, k = carry
            return (gain > eps / 8) & jnp.isfinite(gain) & (k < max_doublings)

        def step(carry):
            powers, x, _, k = carry
            added = tuple(_get(powers, a) @ y @ _get(powers, b) for (a, b), y in zip(flip, x))
            new = tuple(y + z for y, z in zip(x, added))
            gain = jnp.max(
                jnp.stack([_size(z) / jnp.maximum(_size(y), jnp.finfo(dtype).tiny) for y, z in zip(new, added)])
            )
            return tuple(p @ p for p in powers), new, gain, k + 1

        return jax.lax.while_loop(going, step, (held, tuple(rhs), jnp.ones((), dtype), 0))[1]

    # One flat vector: the transpose of the solve wants every part linear, and some constants may not be traced.
    flat, unravel = ravel_pytree(tuple(constants))
    solution = jax.lax.custom_linear_solve(
        lambda x: x - ravel_pytree(apply(matrices, unravel(x)))[0],
        flat,
        solve=lambda _, rhs: ravel_pytree(double(unravel(rhs), False))[0],
        transpose_solve=lambda _, rhs: ravel_pytree(double(unravel(rhs), True))[0],
    )
    values = unravel(solution)
    defects = [
        _size(z + c - y) / jnp.maximum(_size(y), jnp.finfo(dtype).tiny)
        for y, z, c in zip(values, apply(matrices, values), constants)
    ]
    residual = jnp.max(jnp.stack(defects))
    return SharedSteinSolution(values, residual, residual < tolerance)


def _get(matrices, factor):
    index, transposed = factor
    return matrices[index].T if transposed else matrices[index]


def _size(x):
    return jnp.max(jnp.abs(x))
