"""Integration matrices on Gauss-Legendre nodes: boundary-value problems of second order as integral equations."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

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
    once, twice = integrals(s, n)
    whole = integrals(np.ones(1), n)[1][0] @ transform
    return Collocation(
        s, weights / 2, twice @ transform - np.outer(s, whole), once @ transform - whole, -whole, transform
    )


def integrals(s: Any, n: int, xp: Any = np) -> tuple[Any, Any]:
    """The integrals from 0 to s of the first n Legendre polynomials on [0, 1], once and twice, each `(..., n)`."""
    t = 2 * s - 1
    p = [xp.ones_like(t), t]
    for k in range(1, n + 1):
        p.append(((2 * k + 1) * t * p[k] - k * p[k - 1]) / (k + 1))

    def antiderivative(k):
        # Of P_k in t, zero at t = -1.
        return p[1] + p[0] if k == 0 else (p[k + 1] - p[k - 1]) / (2 * k + 1)

    once = [antiderivative(k) for k in range(n + 1)]
    twice = []
    for k in range(n):
        if k == 0:
            twice.append(once[1] + once[0])
        else:
            twice.append((once[k + 1] - once[k - 1]) / (2 * k + 1))
    return xp.stack(once[:n], axis=-1) / 2, xp.stack(twice, axis=-1) / 4
