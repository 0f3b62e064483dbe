"""Geometry: what the metric of a representation costs beside its states, and curvature."""

from __future__ import annotations

import diffrax
import equinox as eqx
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
    full=[
        {"state_size": 256, "steps": 100, "points": 64, "dtype": "float32"},
        {"state_size": 1024, "steps": 1000, "points": 1, "dtype": "float64"},
    ],
    gpu=[{"state_size": 256, "steps": 100, "points": points, "dtype": "float32"} for points in (64, 4096)],
    peers=["torch"],
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
        peer_inputs={
            "recurrent_weight": model.recurrent_weight,
            "input_weight": model.input_weight,
            "bias": model.bias,
            "envelopes": manifold.envelopes,
            "thetas": thetas,
        },
    )


def _heun_metric(model, manifold, thetas, state0):
    ts = np.arange(manifold.steps + 1) * manifold.dt
    return dw.geometry.representation_metric(
        model, manifold, thetas, state0=state0, ts=ts, dt=manifold.dt, solver=diffrax.Heun(), keep="metric"
    ).G


def _heun_loop(model, manifold, thetas):
    """States and tangents of Heun steps written out, from the rows of inputs that hold on each step."""
    W, B = float64(model.recurrent_weight), float64(model.input_weight)
    rows, moved = jax.vmap(manifold)(thetas), jax.vmap(jax.jacfwd(manifold))(thetas)
    rows, moved = float64(rows) @ B.T, np.moveaxis(float64(moved), -1, 1) @ B.T
    x, S = np.zeros((len(thetas), len(W))), np.zeros((len(thetas), thetas.shape[-1], len(W)))
    G = [S @ np.swapaxes(S, 1, 2)]

    def velocity(x, S, k):
        r = np.tanh(x)
        return r @ W.T + rows[:, k] - x, ((1 - r**2)[:, None] * S) @ W.T + moved[:, :, k] - S

    dt = manifold.dt
    for k in range(manifold.steps):
        a, A = velocity(x, S, k)
        b, B_ = velocity(x + dt * a, S + dt * A, k)
        x, S = x + dt / 2 * (a + b), S + dt / 2 * (A + B_)
        G.append(S @ np.swapaxes(S, 1, 2))
    return np.stack(G, 1)


@case(
    group="geometry",
    check={"state_size": 8, "side": 2, "dt": 0.5},
    quick=[{"state_size": 100, "side": 21, "dt": 0.1}],
)
def field_metric(*, state_size: int, side: int, dt: float, seed: int) -> Kernel:
    """The metric of a rate network that keeps two angles in mind, after every Heun step, over a grid on the torus."""
    manifold = dw.tasks.WorkingMemory(dt=dt)  # pyright: ignore[reportCallIssue]
    model = dw.models.CTRNN(3, state_size, key=jax.random.key(seed))
    # Another chart for each seed.
    thetas = manifold.grid(side).reshape(-1, 2) + 0.1 * seed
    steps = manifold.steps
    points = len(thetas)
    return Kernel(
        function=_heun_metric,
        arguments=(model, manifold, thetas, jnp.zeros(state_size)),
        reference=lambda: _heun_loop(model, manifold, thetas),
        tolerance=1e-11,
        flops=points * steps * 2 * 3 * 2 * state_size * (state_size + 3),
        bytes=points * steps * (3 * 3 + 4) * 8,
        depth=steps,
        work=points * steps,
        unit="metrics",
    )


def _last_metric(model, manifold, thetas, state0, readout, method):
    return dw.geometry.representation_metric(
        model, manifold, thetas, state0=state0, at=(-1,), readout=readout, method=method, keep="metric"
    ).G


class _Mixed(eqx.Module):
    """Inputs with many coordinates, mixed at random."""

    mixing: jax.Array

    def __call__(self, theta):
        return jnp.tanh(self.mixing @ theta)


@case(
    group="geometry",
    check={"state_size": 8, "steps": 5, "coordinates": 6, "points": 2},
    quick=[{"state_size": 256, "steps": 100, "coordinates": 24, "points": 16}],
)
def last_metric(*, state_size: int, steps: int, coordinates: int, points: int, seed: int) -> Kernel:
    """The metric of two outputs after the last step, over many coordinates: what adjoints are for."""
    model = dw.models.Elman(2, state_size, key=jax.random.key(seed))
    mixing = normal(seed + 1, (steps, 2, coordinates), "float64", scale=coordinates**-0.5)
    manifold = dw.tasks.FunctionManifold(_Mixed(mixing), dim=coordinates)
    thetas = jax.random.uniform(jax.random.key(seed + 2), (points, coordinates), minval=-1.0)
    readout = normal(seed + 3, (2, state_size), "float64", scale=state_size**-0.5)
    arguments = (model, manifold, thetas, jnp.zeros(state_size), readout)
    return Kernel(
        function=_last_metric,
        arguments=(*arguments, "auto"),
        reference=lambda: _last_metric(*arguments, "jacfwd"),
        tolerance=1e-11,
        flops=points * steps * 3 * 2 * state_size * (state_size + 2),
        bytes=points * steps * (state_size + 2) * 2 * 8,
        depth=2 * steps,
        work=points,
        unit="metrics",
        variants={"forward": (_last_metric, (*arguments, "forward"))},
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


def _history(model, manifold, thetas, state0):
    return dw.geometry.curvature_history(model, manifold, thetas, state0=state0).scalar_curvature


@case(
    group="geometry",
    check={"state_size": 8, "steps": 5, "points": 3},
    quick=[{"state_size": 100, "steps": 100, "points": 64}],
)
def curvature_history(*, state_size: int, steps: int, points: int, seed: int) -> Kernel:
    """The scalar curvature of the states of an Elman network over a torus of inputs, at every step."""
    model, manifold, thetas = _network(state_size, steps, points, "float64", seed)
    arguments = (model, manifold, thetas, jnp.zeros(state_size))
    return Kernel(
        function=_history,
        arguments=arguments,
        reference=lambda: _intrinsic(*arguments),
        tolerance=1e-8,
        digest=lambda curvature: curvature[:, -1],
        flops=points * steps * 7 * 2 * state_size * (state_size + 2),
        bytes=points * steps * 8,
        depth=steps,
        work=points * steps,
        unit="curvatures",
    )
