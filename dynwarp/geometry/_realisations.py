"""Means over realisations of noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp._results import RESULTS
from dynwarp.geometry._sensitivities import Sensitivities


def average(one: Callable[[Any], tuple[Sensitivities, RESULTS]], keys: Any) -> tuple[Sensitivities, jax.Array, RESULTS]:
    """The means of what `one(key)` finds, the standard error of the metric, and the worst code.

    One realisation after another (Welford), so that memory does not grow with their number. Each may have tangents in
    units of its own, exp2(exponent): sums are kept in the largest of them.
    """

    def add(carry, x):
        count, mean, squares, result = carry
        found, code = one(x)
        exponent = jnp.maximum(mean.exponent, found.exponent)
        mean, squares = _rescaled(mean, squares, exponent)
        found, _ = _rescaled(found, squares, exponent)
        apart = found.metric - mean.metric
        count = count + 1
        moved = jax.tree.map(lambda a, b: a + (b - a) / count, _numbers(mean), _numbers(found))
        squares = squares + apart * (found.metric - moved.metric)
        mean = eqx.tree_at(lambda s: s.finite, moved, mean.finite & found.finite, is_leaf=lambda x: x is None)
        result = jax.vmap(_worse)(result, code)
        return (count, mean, squares, result), None

    shapes = eqx.filter_eval_shape(one, keys[0])[0]
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    mean = eqx.tree_at(lambda s: s.finite, zeros, jnp.ones_like(zeros.finite))
    fine = jax.vmap(lambda _: RESULTS.where(True, RESULTS.successful, RESULTS.successful))(mean.finite)
    carry = (jnp.zeros((), mean.metric.dtype), mean, jnp.zeros_like(mean.metric), fine)
    (count, mean, squares, result), _ = jax.lax.scan(jax.checkpoint(add, prevent_cse=False), carry, keys)
    variance = squares / (count * (count - 1))
    # The root of 0 has no derivative.
    error = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1)), 0)
    return mean, error, result


def _worse(one: RESULTS, other: RESULTS) -> RESULTS:
    """Of two codes the first that is not successful, but above all that something is not finite."""
    return RESULTS.where((other == RESULTS.successful) | (one == RESULTS.non_finite), one, other)


def _numbers(found: Sensitivities) -> Sensitivities:
    """Without the flags."""
    return eqx.tree_at(lambda s: s.finite, found, None)


def _rescaled(found: Sensitivities, squares: jax.Array, exponent: jax.Array) -> tuple[Sensitivities, jax.Array]:
    """In units of exp2(exponent), and squares of its metric with it."""
    scale = jnp.exp2(found.exponent - exponent)[..., None, None]
    tangents = None if found.tangents is None else found.tangents * scale
    found = eqx.tree_at(
        lambda s: (s.metric, s.tangents, s.exponent),
        found,
        (found.metric * scale**2, tangents, exponent),
        is_leaf=lambda x: x is None,
    )
    return found, squares * scale**4
