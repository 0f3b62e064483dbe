"""Geometry: what the metric of a representation costs beside its states, and curvature."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import dynwarp as dw
from dynwarp.bench._case import Kernel, case
from dynwarp.bench.cases._tools import float64, itemsize, normal


def _metric(model, manifold, thetas, state0, method):
    return dw.geometry.representation_metric(
        model, manifold, thetas, state0=state0, method=method, keep="metric", throw=False
    ).G


def _states(model, manifold, thetas, state0):
    return jax.vmap(lambda theta: dw.simulate(model, state0, manifold(theta)))(thetas)


def _network(state_size, steps, points, dtype, seed):
    envelopes = normal(seed + 1, (2, steps), dtype)
    manifold = dw.tasks.Torus(envelopes)
    model = dw.models.Elman(2, state_size, dtype=jnp.dtype(dtype), key=jax.random.key(seed))
    thetas = manifold.sample(jax.random.key(seed + 2), points).astype(dtype)
    return model, manifold, thetas


def _elman_metric(model, manifold, thetas):
    """The metric by the recursion of states and tangents written out."""
    W, U, b, a = (float64(x) for x in (model.recurrent_weight, model.input_weight, model.bias, manifold.envelopes))
    theta = float64(thetas)
    h, S = np.zeros((len(theta), len(W))), np.zeros((len(theta), 2, len(W)))
    G = []
    for t in range(a.shape[1]):
        input = np.stack([np.cos(theta) @ a[:, t], np.sin(theta) @ a[:, t]], -1)
        # d_i of the input: item i alone moves.
        moved = a[:, t][:, None] * np.stack([-np.sin(theta), np.cos(theta)], -1)
        h = np.tanh(h @ W.T + input @ U.T + b)
        S = (1 - h[:, None] ** 2) * (S @ W.T + moved @ U.T)
        G.append(S @ np.swapaxes(S, 1, 2))
    return np.stack(G, 1)


@case(
    group="geometry",
    check={"state_size": 8, "steps": 10, "points": 3, "dtype": "float64"},
    quick=[{"state_size": 256, "steps": 100, "points": 64, "dtype": "float64"}],
    full=[{"state_size": 256, "steps": 100, "points": 64, "dtype": "float32"}],
    gpu=[{"state_size": 256, "steps": 100, "points": points, "dtype": "float32"} for points in (64, 4096)],
)
def representation_metric(*, state_size: int, steps: int, points: int, dtype: str, seed: int) -> Kernel:
    """The metric of an Elman network on a torus of inputs at all steps, beside the states alone."""
    n = state_size
    model, manifold, thetas = _network(n, steps, points, dtype, seed)
    state0 = jnp.zeros(n, dtype)
    return Kernel(
        function=_metric,
        arguments=(model, manifold, thetas, state0, "forward"),
        reference=lambda: _elman_metric(model, manifold, thetas),
        tolerance=1e-11 if dtype == "float64" else 1e-4,
        flops=points * steps * 3 * 2 * n * (n + 2),
        bytes=points * steps * (4 + 6) * itemsize(dtype),
        depth=steps,
        work=points * steps,
        unit="metrics",
        variants={
            "states": (_states, (model, manifold, thetas, state0)),
            "jacfwd": (_metric, (model, manifold, thetas, state0, "jacfwd")),
        },
    )


def _curvature(model, manifold, thetas, state0):
    surface = dw.geometry.state_manifold(model, manifold, state0=state0)
    return jax.vmap(surface.scalar_curvature)(thetas)


def _intrinsic(model, manifold, thetas, state0):
    surface = dw.geometry.state_manifold(model, manifold, state0=state0)
    return jax.vmap(dw.geometry.Metric(surface.metric, dim=2).scalar_curvature)(thetas)


@case(
    group="geometry",
    check={"state_size": 8, "steps": 5, "points": 3},
    quick=[{"state_size": 100, "steps": 100, "points": 64}],
)
def state_curvature(*, state_size: int, steps: int, points: int, seed: int) -> Kernel:
    """The scalar curvature of the states of an Elman network over a torus of inputs, by the equation of Gauss."""
    model, manifold, thetas = _network(state_size, steps, points, "float64", seed)
    arguments = (model, manifold, thetas, jnp.zeros(state_size))
    return Kernel(
        function=_curvature,
        arguments=arguments,
        reference=lambda: _intrinsic(*arguments),
        tolerance=1e-8,
        # The state, two tangents, and two derivatives of each of three.
        flops=points * steps * 9 * 2 * state_size * (state_size + 2),
        bytes=points * 3 * 8,
        depth=steps,
        work=points,
        unit="points",
        variants={"metric alone": (_intrinsic, arguments)},
    )
