"""Intervals for Lyapunov exponents by resampling blocks of the run."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer
from dynwarp._typing import PRNGKey
from dynwarp.dynamics._lyapunov import LyapunovSpectrum
from dynwarp.errors import ArgumentError


def exponent_intervals(
    spectrum: LyapunovSpectrum,
    *,
    key: PRNGKey,
    level: float = 0.95,
    resamples: int = 1000,
    block: int | None = None,
) -> Float[Array, "2 k"]:
    """Confidence intervals of the exponents of one run, by the moving-block bootstrap.

    The stretches of neighbouring steps depend on each other: whole blocks of the run are drawn with replacement, which
    keeps that dependence.

    **Arguments:**

    - `spectrum`: from [`lyapunov_spectrum`][dynwarp.dynamics.lyapunov_spectrum].
    - `key`: of the draws.
    - `level`: the probability of the interval.
    - `resamples`: how many runs are drawn.
    - `block`: pieces of `spectrum.interval` steps in a block; None: half the square root of their number.

    **Returns:** lower and upper ends, `(2, k)`, in the units of the exponents; -infinity where the exponent is.

    **Raises:** `ArgumentError` for a level outside (0, 1), or a run shorter than two blocks.

    **Source:** Kuensch, Ann. Statist. 17 (1989) 1217.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> spectrum = dw.dynamics.lyapunov_spectrum(dw.systems.Henon(), jnp.array([0.1, 0.1]), steps=4000, transient=100)
    >>> low, high = dw.dynamics.exponent_intervals(spectrum, key=jax.random.key(0))
    >>> bool(low[0] < 0.41922 < high[0])
    True
    """
    caller = "exponent_intervals"
    if not 0 < level < 1:
        raise ArgumentError(f"{caller}: `level` must lie between 0 and 1; got {level!r}.")
    check_positive_integer(resamples, "resamples", caller=caller)
    pieces = len(spectrum.log_stretches)
    if block is None:
        block = max(round(pieces**0.5 / 2), 1)
    block = check_positive_integer(block, "block", caller=caller)
    if 2 * block > pieces:
        raise ArgumentError(f"{caller}: a run of {pieces} pieces is shorter than two blocks of {block}.")
    return _intervals(spectrum.log_stretches, spectrum.exponents, key, level, resamples, block)


@eqx.filter_jit
def _intervals(logs, exponents, key, level, resamples, block):
    pieces, _ = logs.shape
    finite = jnp.all(jnp.isfinite(logs), axis=0)
    logs = jnp.where(finite, logs, 0)
    # Deviations from the mean, summed over every block of the run.
    sums = jnp.cumsum(jnp.concatenate([jnp.zeros_like(logs[:1]), logs - jnp.mean(logs, axis=0)]), axis=0)
    blocks = sums[block:] - sums[:-block]
    count = -(-pieces // block)

    def draw(key):
        chosen = jax.random.randint(key, (count,), 0, len(blocks))
        return jnp.mean(blocks[chosen], axis=0) / block

    means = jax.lax.map(draw, jax.random.split(key, resamples), batch_size=min(resamples, 64))
    means = means - jnp.mean(means, axis=0)
    # What one nat in every piece is as a rate: the exponents are sums of the same logarithms.
    whole = jnp.where(finite, jnp.sum(logs, axis=0), 0)
    total = jnp.sum(jnp.abs(whole))
    scale = jnp.sum(jnp.where(finite, jnp.abs(exponents), 0)) / jnp.where(total > 0, total, 1) * pieces
    tail = (1 - level) / 2
    ends = jnp.quantile(means, jnp.asarray([tail, 1 - tail], logs.dtype), axis=0)
    return jnp.where(finite, exponents + scale * ends, exponents)
