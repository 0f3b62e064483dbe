"""Integration matrices on Gauss-Legendre nodes: boundary-value problems of second order as integral equations."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Collocation(NamedTuple):
    """For x'' = f on [0, 1] with values f at the nodes and x(0) = x(1) = 0: x = `position` f, x' = `velocity` f at the
    nodes, and x'(0) = `start` f. `transform` gives the Legendre coefficients of f."""

    nodes: np.ndarray
    weights: np.ndarray
    position: np.ndarray
    velocity: np.ndarray
    start: np.ndarray
    transform: np.ndarray


@functools.cache
def collocation(n: int) -> Collocation:
    """The matrices for n nodes (host). Integrals of Legendre polynomials are sums of two of them, so that nothing is
    inverted and no digits are lost."""
    t, weights = np.polynomial.legendre.leggauss(n)
    s = (t + 1) / 2
    degrees = np.arange(n)
    transform = (2 * degrees[:, None] + 1) / 2 * np.polynomial.legendre.legvander(t, n - 1).T * weights
    once, twice = integrals(np.polynomial.legendre.legvander(t, n + 1).T)
    whole = integrals(np.ones((n + 2, 1)))[1][0] @ transform
    return Collocation(
        s, weights / 2, twice @ transform - np.outer(s, whole), once @ transform - whole, -whole, transform
    )


def integrals(polynomials: Any, xp: Any = np) -> tuple[Any, Any]:
    """The integrals from s = 0 of the first n Legendre polynomials on [0, 1], once and twice, each `(..., n)`, from the
    values of the first n + 2, `(n + 2, ...)`."""
    p = polynomials
    odd = np.arange(3, 2 * len(p) - 2, 2, dtype=p.dtype).reshape(-1, *(1,) * (p.ndim - 1))
    # In t = 2 s - 1 the antiderivative of P_k is (P_k+1 - P_k-1) / (2 k + 1), and of P_0 it is P_1 + P_0.
    once = xp.concatenate([(p[1] + p[0])[None], (p[2:] - p[:-2]) / odd])
    twice = xp.concatenate([(once[1] + once[0])[None], (once[2:] - once[:-2]) / odd[:-1]])
    return xp.moveaxis(once[:-1], 0, -1) / 2, xp.moveaxis(twice, 0, -1) / 4


def twice_integrated(s: jax.Array, n: int) -> jax.Array:
    """The second integrals at one s in [0, 1], `(n,)`, by the recurrence as a loop, which keeps programs small."""
    t = 2 * s - 1

    def step(pair, k):
        return (pair[1], ((2 * k + 1) * t * pair[1] - k * pair[0]) / (k + 1)), pair[1]

    start = (jnp.zeros_like(t), jnp.ones_like(t))
    return integrals(jax.lax.scan(step, start, jnp.arange(n + 2, dtype=t.dtype))[1], jnp)[1]
