"""Geodesics between two points: many of a sphere, and the distance matrix of the states of a network."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import dynwarp as dw
from dynwarp.bench._case import Kernel, case


def _sphere(x):
    s, c = jnp.sin(x), jnp.cos(x)
    return jnp.stack([s[0] * c[1], s[0] * s[1], c[0]])


def _distances(starts, ends):
    surface = dw.geometry.Immersion(_sphere, dim=2, periods=(None, 2 * np.pi))
    return jax.vmap(surface.distance)(starts, ends)


@case(
    group="geometry",
    check={"pairs": 3},
    quick=[{"pairs": 500}],
    full=[{"pairs": 5000}],
    peers=("geomstats",),
)
def sphere_geodesics(*, pairs: int, seed: int) -> Kernel:
    """The distances of random pairs of points on a sphere, in polar coordinates away from the poles."""
    draw = np.random.default_rng(seed)
    starts, ends = draw.uniform([1.0, 0.0], [2.1, 2.0], (2, pairs, 2))

    def reference():
        p, q = (np.asarray(jax.vmap(_sphere)(jnp.asarray(x))) for x in (starts, ends))
        return np.arctan2(np.linalg.norm(np.cross(p, q), axis=1), np.sum(p * q, axis=1))

    return Kernel(
        function=_distances,
        arguments=(jnp.asarray(starts), jnp.asarray(ends)),
        reference=reference,
        tolerance=1e-11,
        work=pairs,
        unit="geodesics",
        # It solves one pair in about a minute.
        peer_inputs={"starts": starts[:1], "ends": ends[:1]},
        peer_work=1,
    )


def _matrix(surrogate, points):
    return surrogate.distances(points)


@case(
    group="geometry",
    check={"points": 3, "grid": 16},
    quick=[{"points": 10, "grid": 48}],
)
def torus_distances(*, points: int, grid: int, seed: int) -> Kernel:
    """The distance matrix of states of a leaky network over a torus of inputs, by the surrogate of their metric; the
    reference takes other panels and nodes."""
    model = dw.models.LeakyRNN(2, 50, dt=0.2, key=jax.random.key(seed))
    torus = dw.tasks.Torus(jnp.repeat(jnp.array([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]), 5, axis=1))
    surface = dw.geometry.state_manifold(model, torus, state0=jnp.zeros(50), step=12)
    metric = dw.geometry.Metric(surface.metric, dim=2, periods=surface.periods).surrogate(grid)
    where = torus.sample(jax.random.key(seed + 1), points)
    return Kernel(
        function=_matrix,
        arguments=(metric, where),
        reference=lambda: metric.distances(where, panels=32, nodes=12),
        tolerance=1e-9,
        work=points * (points - 1) / 2,
        unit="geodesics",
    )
