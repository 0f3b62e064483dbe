"""How a few leading directions stretch along an orbit, step by step, in any precision."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp.dynamics._orthonormalise import gram_schmidt

_BATCHES = 16


def leading_stretches(model: Any, state0: Array, inputs: Array | None, steps: int, k: int) -> Float[Array, "T k"]:
    """Logarithms of the stretches of the k leading directions in each step of a map, in nats; -infinity where a
    direction vanishes. Their mean over the steps are the exponents. Differentiable through the orthonormalisation.

    The whole spectrum needs float64 and its audit, `dynamics.lyapunov_spectrum`; a few leading exponents do not.
    """
    # A generic frame: no model has a reason to prefer it, and a network of zeros keeps it from no direction.
    frame = np.linalg.qr(np.random.default_rng(0).standard_normal((len(state0), k)))[0].T

    def step(carry, x):
        state, tangents = carry
        index, input = x
        state, push = jax.linearize(lambda z: model(z, input, step=index).astype(z.dtype), state)
        tangents, stretch = gram_schmidt(jax.vmap(push)(tangents))
        gone = stretch == 0
        return (state, tangents), jnp.where(gone, -jnp.inf, jnp.log(jnp.where(gone, 1, stretch)))

    start = (state0, jnp.asarray(frame, state0.dtype))
    return jax.lax.scan(step, start, (jnp.arange(steps, dtype=jnp.int32), inputs))[1]


def batch_error(rows: Float[Array, "T ..."]) -> Float[Array, "..."]:
    """The standard error of the mean of rows that depend on their neighbours, from the means of up to 16 batches;
    infinity for fewer than four rows."""
    steps = len(rows)
    batches = min(_BATCHES, steps // 2)
    if batches < 2:
        return jnp.full(rows.shape[1:], jnp.inf, rows.dtype)
    means = jnp.mean(rows[steps % batches :].reshape(batches, -1, *rows.shape[1:]), axis=1)
    finite = jnp.all(jnp.isfinite(means), axis=0)
    return jnp.where(finite, jnp.std(jnp.where(finite, means, 0), axis=0, ddof=1) / batches**0.5, jnp.inf)
