"""One step of training."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import dynwarp as dw
from dynwarp.bench._case import Kernel, case
from dynwarp.bench.cases._tools import float64, itemsize, normal
from dynwarp.training._objective import Objective
from dynwarp.training._reconstruction import trainable

_OPTIMIZER = optax.adam(1e-3)


def _squared(output, target):
    return jnp.mean((output - target) ** 2)


@eqx.filter_jit
def _step(model, optimizer_state, windows, inputs, objective):
    _, gradient = objective.gradient(model, windows, inputs, None)
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer power
        updates, optimizer_state = _OPTIMIZER.update(gradient, optimizer_state)
    return gradient, eqx.apply_updates(model, updates), optimizer_state


def _weights(output):
    gradient = output[0].map
    return gradient.A, gradient.W, gradient.h


@case(
    group="training",
    check={"state_size": 5, "relu_size": 2, "steps": 12, "batch": 2, "dtype": "float64"},
    quick=[{"state_size": 20, "relu_size": 2, "steps": 200, "batch": 16, "dtype": "float32"}],
    full=[
        {"state_size": n, "relu_size": p, "steps": 200, "batch": batch, "dtype": "float32"}
        for n, p in ((20, 2), (100, 10))
        for batch in (16, 256)
    ],
    gpu=[
        {"state_size": 20, "relu_size": 2, "steps": 200, "batch": batch, "dtype": "float32"}
        for batch in (16, 4096, 65536)
    ],
    peers=["torch", "torch_cuda"],
)
def alrnn_training_step(*, state_size: int, relu_size: int, steps: int, batch: int, dtype: str, seed: int) -> Kernel:
    """Gradient and Adam update of an almost-linear RNN under sparse teacher forcing every 10 steps."""
    n, observed, interval = state_size, 3, 10
    keys = jax.random.split(jax.random.key(seed))
    network = dw.models.ALRNN(n, relu_size, dtype=jnp.dtype(dtype), key=keys[0])
    model = dw.training.Reconstruction(network, observed, key=keys[1])
    windows = normal(seed + 1, (batch, steps + 1, observed), dtype)
    inputs = jnp.zeros((batch, steps, 0), dtype)
    forcing = dw.training.SparseTeacherForcing(interval)
    objective = Objective(_squared, forcing, jnp.zeros((), dtype), None)
    optimizer_state = _OPTIMIZER.init(eqx.filter(model, trainable(model)))

    def reference():
        # Forwards with forcing, and back by the recursion written out: forcing cuts the gradient of what it overwrites.
        A, W, h, L, x = (float64(a) for a in (network.A, network.W, network.h, model.initial_weight, windows))
        linear = n - relu_size

        def active(z):
            return np.where(np.arange(n) < linear, z, np.maximum(z, 0))

        before, errors = [np.concatenate([x[:, 0], x[:, 0] @ L.T], 1)], []
        for t in range(steps):
            z = A * before[-1] + active(before[-1]) @ W.T + h
            errors.append(2 * (z[:, :observed] - x[:, t + 1]) / (batch * steps * observed))
            if t % interval == 0:
                z = np.concatenate([x[:, t + 1], z[:, observed:]], 1)
            before.append(z)
        dA, dW, dh, delta = np.zeros(n), np.zeros((n, n)), np.zeros(n), np.zeros((batch, n))
        for t in reversed(range(steps)):
            if t % interval == 0:
                delta[:, :observed] = 0
            delta[:, :observed] += errors[t]
            z = before[t]
            dA += np.sum(delta * z, 0)
            dW += delta.T @ active(z)
            dh += np.sum(delta, 0)
            slope = np.where(np.arange(n) < linear, 1.0, z > 0)
            delta = A * delta + slope * (delta @ W)
        return dA, dW, dh

    return Kernel(
        function=_step,
        arguments=(model, optimizer_state, windows, inputs, objective),
        digest=_weights,
        reference=reference,
        tolerance=2e-5 if dtype == "float32" else 1e-11,
        flops=batch * steps * 6 * n**2,
        bytes=batch * steps * (observed + 2 * n) * itemsize(dtype),
        depth=2 * steps,
        work=batch * steps,
        unit="steps",
        peer_inputs={
            "A": network.A,
            "W": network.W,
            "h": network.h,
            "initial_weight": model.initial_weight,
            "windows": windows,
            "interval": interval,
        },
    )
