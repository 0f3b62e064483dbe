"""The ground floor: matrix equations."""

from __future__ import annotations

import jax
import scipy.linalg

from dynwarp._linalg import solve_stein
from dynwarp.bench._case import Kernel, case
from dynwarp.bench.cases._tools import float64, itemsize, normal


@jax.jit
def _solve(a, c):
    return solve_stein(a, a.T, c).value


@case(
    group="algebra",
    check={"state_size": 6, "dtype": "float64"},
    quick=[{"state_size": 256, "dtype": "float64"}],
    full=[{"state_size": n, "dtype": "float64"} for n in (16, 64, 512)],
    gpu=[{"state_size": n, "dtype": "float64"} for n in (64, 512, 2048)],
    peers=["scipy"],
)
def stein(*, state_size: int, dtype: str, seed: int) -> Kernel:
    """The stationary covariance X = A X A^T + C by Smith doubling."""
    n = state_size
    a = normal(seed, (n, n), dtype)
    a = 0.9 * a / jax.numpy.max(jax.numpy.abs(jax.numpy.linalg.norm(a, 2)))
    c = normal(seed + 100, (n, n), dtype)
    c = c @ c.T / n
    return Kernel(
        function=_solve,
        arguments=(a, c),
        reference=lambda: scipy.linalg.solve_discrete_lyapunov(float64(a), float64(c)),
        tolerance=1e-11,
        # 16 doublings of four products, and two products for the residual.
        flops=(16 * 4 + 2) * 2 * n**3,
        bytes=3 * n**2 * itemsize(dtype),
        unit="solutions",
        peer_inputs={"a": a, "c": c},
    )
