"""Basins of piecewise-linear maps: rays at stable manifolds, and crossings against simulated labels."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import dynwarp as dw
from dynwarp.bench._case import Kernel, case


def _toy():
    """A map with one attractor and its saddle, whose stable manifold is the border of divergence."""
    f = dw.systems.BorderCollisionMap.preset("fig3a_right").canonical()
    saddle, sink = (dw.piecewise.cycle_at(f, jnp.array([[right]])) for right in (True, False))
    return f, saddle, sink


def _bounded(f, states: np.ndarray) -> np.ndarray:
    """Which orbits stay bounded: a loop over the steps in NumPy."""
    A, W1, W2, h1, h2 = (np.asarray(x) for x in (f.A, f.W1, f.W2, f.h1, f.h2))
    for _ in range(400):
        states = np.clip(states @ A.T + np.maximum(states @ W2.T + h2, 0) @ W1.T + h1, -1e6, 1e6)
    return np.abs(states).max(axis=-1) < 1e3


def _shoot(f, saddle, origin, direction, iterations):
    return dw.piecewise.shoot_ray(f, saddle, origin, direction, iterations=iterations, length=1.0).t


def _by_bisection(f, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    low, high = 0.0, 1.0
    for _ in range(53):
        middle = 0.5 * (low + high)
        if _bounded(f, (a + middle * (b - a))[None])[0]:
            low = middle
        else:
            high = middle
    return np.array([0.5 * (low + high)])


@case(
    group="piecewise",
    check={"iterations": 10},
    quick=[{"iterations": 60}],
    full=[{"iterations": 200}],
)
def ray_shooting(*, iterations: int, seed: int) -> Kernel:
    """The crossing of a segment with a stable manifold by its exact forward images; checked by bisection."""
    f, saddle, sink = _toy()
    origin = np.asarray(sink.points[0])
    # Towards the side of divergence, a little turned by the seed.
    direction = np.array([4.0, 2.0 + 0.1 * np.random.default_rng(seed).uniform()])
    return Kernel(
        function=_shoot,
        arguments=(f, saddle, jnp.asarray(origin), jnp.asarray(direction), iterations),
        reference=lambda: _by_bisection(f, origin, origin + direction),
        tolerance=1e-12,
        depth=iterations,
        work=iterations,
        unit="iterations",
        compiled=False,
    )


def _parity(f, saddle, pairs, sink, iterations):
    found = dw.piecewise.basin_parity(f, saddle, pairs, sink, iterations=iterations)
    return found.crossings % 2, jnp.asarray(found.agreement)


@case(
    group="piecewise",
    check={"pairs": 20, "iterations": 10},
    quick=[{"pairs": 1000, "iterations": 20}],
    full=[{"pairs": 4000, "iterations": 60}],
)
def basin_parity(*, pairs: int, iterations: int, seed: int) -> Kernel:
    """Crossings of many segments with a stable manifold, labels of their ends, and boundary points by bisection."""
    f, saddle, sink = _toy()
    states = np.random.default_rng(seed).uniform(-5, 5, (pairs, 2, 2))

    def reference():
        inside = _bounded(f, states)
        return (inside[:, 0] != inside[:, 1]).astype(float), np.ones(())

    return Kernel(
        function=_parity,
        arguments=(f, saddle, jnp.asarray(states), sink, iterations),
        reference=reference,
        tolerance=1e-12,
        depth=iterations,
        work=pairs,
        unit="pairs",
        compiled=False,
    )
