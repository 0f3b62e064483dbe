"""Envelopes of what can be learned, beside the gradient of the sequence that they must not cost much more than."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import dynwarp as dw
from dynwarp.bench._case import Kernel, case
from dynwarp.bench.cases._tools import float64, itemsize, normal
from dynwarp.gradients._envelope import random_tangents


def _envelope(model, inputs, lags, probes):
    return dw.gradients.envelope(model, inputs, lags, probes=probes, throw=False).log_values


def _sequence_gradient(model, inputs):
    def loss(model):
        return jnp.mean(dw.simulate(model, jnp.zeros(model.state_size, inputs.dtype), inputs) ** 2)

    return eqx.filter_grad(loss)(model)


def _sizes(*states: int, dtypes=("float32", "float64")):
    return [
        {"state_size": n, "steps": 1000, "lags": (8, 16, 32, 64), "probes": 8, "dtype": dtype}
        for n in states
        for dtype in dtypes
    ]


def _network(state_size, steps, dtype, seed):
    net = dw.models.Elman(8, state_size, dtype=jnp.dtype(dtype), key=jax.random.key(seed))
    return net, normal(seed + 1, (steps, 8), dtype, scale=0.3)


@case(
    group="gradient",
    check={"state_size": 4, "steps": 30, "lags": (2, 5), "probes": 3, "dtype": "float64"},
    quick=_sizes(64, dtypes=("float64",)),
    full=[*_sizes(64, dtypes=("float32",)), *_sizes(128)],
    gpu=_sizes(256, dtypes=("float32",)),
)
def exact_envelope(*, state_size: int, steps: int, lags: tuple[int, ...], probes: int, dtype: str, seed: int) -> Kernel:
    """What is left of a perturbation after each lag, by random tangents through blocks of the sequence. To be set
    against `len(lags)` times `envelope_yardstick`."""
    n = state_size
    net, inputs = _network(n, steps, dtype, seed)

    def reference():
        W, U, b, x = (float64(a) for a in (net.recurrent_weight, net.input_weight, net.bias, inputs))
        states = [np.zeros(n)]
        for drive in x @ U.T + b:
            states.append(np.tanh(W @ states[-1] + drive))
        slopes = 1 - np.stack(states[1:]) ** 2
        logs = []
        for lag in lags:
            totals = []
            for end in range(steps - 1, lag - 1, -lag):
                tangents = random_tangents(n, probes).T.copy()
                for t in range(end - lag + 1, end + 1):
                    tangents = slopes[t][:, None] * (W @ tangents)
                squares = tangents**2
                total = squares.sum(1)
                without = np.sqrt((total[:, None] - squares) / (probes - 1)).mean(1)
                totals.append(np.maximum(probes * np.sqrt(total / probes) - (probes - 1) * without, 0).sum())
            logs.append(np.log(np.mean(totals)))
        return np.array(logs)

    return Kernel(
        function=_envelope,
        arguments=(net, inputs, lags, probes),
        reference=reference,
        tolerance=1e-4 if dtype == "float32" else 1e-10,
        flops=len(lags) * steps * 2 * n * (n * (1 + probes) + 8),
        bytes=len(lags) * steps * (8 + n) * itemsize(dtype),
        depth=len(lags) * steps,
        work=len(lags),
        unit="lags",
    )


@case(
    group="gradient",
    check={"state_size": 4, "steps": 30, "dtype": "float64"},
    quick=[{"state_size": 64, "steps": 1000, "dtype": "float64"}],
    full=[
        {"state_size": n, "steps": 1000, "dtype": dtype}
        for n, dtype in ((64, "float32"), (128, "float32"), (128, "float64"))
    ],
    gpu=[{"state_size": 256, "steps": 1000, "dtype": "float32"}],
)
def envelope_yardstick(*, state_size: int, steps: int, dtype: str, seed: int) -> Kernel:
    """The gradient of a loss on every state of the same sequence: one backward pass."""
    n = state_size
    net, inputs = _network(n, steps, dtype, seed)

    def reference():
        W, U, b, x = (float64(a) for a in (net.recurrent_weight, net.input_weight, net.bias, inputs))
        states = [np.zeros(n)]
        for drive in x @ U.T + b:
            states.append(np.tanh(W @ states[-1] + drive))
        gradient, delta = np.zeros_like(W), np.zeros(n)
        for t in reversed(range(steps)):
            slope = (delta + 2 * states[t + 1] / (steps * n)) * (1 - states[t + 1] ** 2)
            gradient += np.outer(slope, states[t])
            delta = W.T @ slope
        return gradient

    return Kernel(
        function=_sequence_gradient,
        arguments=(net, inputs),
        digest=lambda gradient: gradient.recurrent_weight,
        reference=reference,
        tolerance=2e-4 if dtype == "float32" else 1e-10,
        flops=steps * (2 * n * (n + 8) + 4 * n**2 + 2 * n * 8),
        bytes=steps * (8 + 2 * n) * itemsize(dtype),
        depth=2 * steps,
        work=1,
        unit="backward passes",
    )
