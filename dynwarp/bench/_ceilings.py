"""What this machine can do at most, measured in the same run: matrix products, memory traffic, the pace of a scan."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

_SCAN_STEPS = 10_000


def measure_ceilings(device: Any, *, small: bool = False) -> dict[str, Any]:
    """The ceilings of a roofline.

    - `gemm`: operations a second of a square product, by dtype, at the default matrix precision; `gemm_highest`: at the
      highest one, which differs on accelerators.
    - `bandwidth`: bytes a second of x + 2 y over arrays far larger than the caches.
    - `scan_step`: seconds of one step of a scan that does next to nothing: the price of serial depth.

    `small` takes sizes that cost nothing and mean nothing, for a check.
    """
    on_cpu = device.platform == "cpu"
    n = 64 if small else 1024 if on_cpu else 8192
    length = 1 << (10 if small else 25 if on_cpu else 28)
    with jax.default_device(device):
        gemm = {dtype: _gemm(n, dtype, None) for dtype in ("float32", "float64")}
        highest = gemm if on_cpu else {dtype: _gemm(n, dtype, "highest") for dtype in ("float32", "float64")}
        # Two arrays: an entry that is read twice comes from the cache the second time.
        x, y = jnp.zeros(length, jnp.float32), jnp.ones(length, jnp.float32)
        triad = jax.jit(lambda x, y: x + 2 * y)
        scan = jax.jit(lambda x: jax.lax.scan(lambda x, _: (0.5 * x + 1, None), x, length=_SCAN_STEPS)[0])
        return {
            "gemm": gemm,
            "gemm_highest": highest,
            "bandwidth": 3 * x.nbytes / _fastest(lambda: triad(x, y)),
            "scan_step": _fastest(lambda: scan(jnp.ones(2, jnp.float32))) / _SCAN_STEPS,
        }


def _gemm(n: int, dtype: str, precision: str | None) -> float:
    a = jax.random.normal(jax.random.key(0), (n, n), dtype)
    product = jax.jit(lambda a: jnp.matmul(a, a, precision=precision))
    return 2 * n**3 / _fastest(lambda: product(a))


def _fastest(call: Callable[[], jax.Array], repetitions: int = 5) -> float:
    call().block_until_ready()
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        call().block_until_ready()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def roofline(
    seconds: float, *, flops: float, bytes: float, depth: int, dtype: str, ceilings: dict[str, Any]
) -> dict[str, Any] | None:
    """The least time the ceilings allow, which of them binds, and the fraction of it that was reached.

    Above 1 the data sat in a cache that the bandwidth ceiling does not know. None where nothing was counted.
    """
    limits = {
        "compute": flops / ceilings["gemm"]["float64" if dtype in ("float64", "complex128") else "float32"],
        "memory": bytes / ceilings["bandwidth"],
        "depth": depth * ceilings["scan_step"],
    }
    bound = max(limits, key=lambda name: limits[name])
    if not limits[bound]:
        return None
    return {"bound": bound, "attainable": limits[bound], "fraction": limits[bound] / seconds}
