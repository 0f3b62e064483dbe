"""Gradients through time: forwards and backwards through whole sequences."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import dynwarp as dw
from dynwarp.bench._case import Kernel, case
from dynwarp.bench.cases._tools import cast, float64, itemsize, normal


def _loss(model, states0, inputs, remat, last_only):
    def run(state, sequence):
        return dw.simulate(model, state, sequence, remat=remat, last_only=last_only)

    return jnp.mean(jax.vmap(run)(states0, inputs) ** 2)


def _gradient(model, states0, inputs, remat, last_only):
    return eqx.filter_grad(_loss)(model, states0, inputs, remat, last_only)


def _sequence_gradient(model, states0, inputs):
    def loss(model):
        return jnp.mean(dw.models.elman_states(model, states0, inputs) ** 2)

    return eqx.filter_grad(loss)(model)


def _weights(gradient):
    return gradient.recurrent_weight, gradient.input_weight


def _elman_bptt(model, states0, inputs, last_only):
    """The gradient of `_loss` by the recursion written out: delta' = W^T (delta (1 - h^2)) + dL/dh."""
    W, U, b, x = (float64(a) for a in (model.recurrent_weight, model.input_weight, model.bias, inputs))
    states = [float64(states0)]
    for t in range(x.shape[1]):
        states.append(np.tanh(states[-1] @ W.T + x[:, t] @ U.T + b))
    dW, dU, delta = np.zeros_like(W), np.zeros_like(U), np.zeros_like(states[0])
    scored = [t == x.shape[1] - 1 or not last_only for t in range(x.shape[1])]
    scale = 2 / (sum(scored) * states[0].size)
    for t in reversed(range(x.shape[1])):
        slope = (delta + scale * scored[t] * states[t + 1]) * (1 - states[t + 1] ** 2)
        dW += slope.T @ states[t]
        dU += slope.T @ x[:, t]
        delta = slope @ W
    return dW, dU


def _elman(*, state_size, input_size, steps, batch, dtype, seed, last_only) -> Kernel:
    n, d = state_size, input_size
    model = dw.models.Elman(d, n, dtype=jnp.dtype(dtype), key=jax.random.key(seed))
    states0 = normal(seed + 1, (batch, n), dtype, scale=0.1)
    inputs = normal(seed + 2, (batch, steps, d), dtype)
    plain = (_gradient, (model, states0, inputs, None, last_only))
    if last_only:
        ours, variants = (_gradient, (model, states0, inputs, "sqrt", last_only)), {"plain": plain}
    else:
        ours, variants = (_sequence_gradient, (model, states0, inputs)), {"scan": plain}
    return Kernel(
        function=ours[0],
        arguments=ours[1],
        digest=_weights,
        reference=lambda: _elman_bptt(model, states0, inputs, last_only),
        tolerance=2e-5 if dtype == "float32" else 1e-12,
        # Forwards, and backwards once through the state and once for each weight.
        flops=batch * steps * (2 * n * (n + d) + 4 * n**2 + 2 * n * d),
        bytes=batch * steps * (d + 2 * n) * itemsize(dtype),
        depth=2 * steps,
        work=batch * steps,
        unit="steps",
        variants=variants,
        peer_inputs={
            "recurrent_weight": model.recurrent_weight,
            "input_weight": model.input_weight,
            "bias": model.bias,
            "states0": states0,
            "inputs": inputs,
        },
    )


def _network_sizes(*, batches=(32,), steps=(100, 1000), states=(64, 256)):
    return [
        {"state_size": n, "input_size": 32, "steps": t, "batch": batch, "dtype": "float32"}
        for n in states
        for t in steps
        for batch in batches
    ]


_GPU = _network_sizes(batches=(1, 1024, 8192), steps=(100,), states=(256,))


@case(
    group="gradient",
    check={"state_size": 4, "input_size": 3, "steps": 12, "batch": 2, "dtype": "float32"},
    quick=_network_sizes(steps=(100,)),
    full=_network_sizes(steps=(1000,)),
    gpu=_GPU,
    peers=["numpy", "torch", "torch_cuda"],
)
def elman_gradient(*, state_size: int, input_size: int, steps: int, batch: int, dtype: str, seed: int) -> Kernel:
    """Loss and gradient of an Elman network over a batch of sequences, as a whole and by the scan of its steps."""
    sizes = {"state_size": state_size, "input_size": input_size, "steps": steps, "batch": batch}
    return _elman(**sizes, dtype=dtype, seed=seed, last_only=False)


@case(
    group="gradient",
    check={"state_size": 4, "input_size": 3, "steps": 20, "batch": 2, "dtype": "float32"},
    quick=[{"state_size": 64, "input_size": 32, "steps": 4096, "batch": 8, "dtype": "float32"}],
    gpu=[{"state_size": 64, "input_size": 32, "steps": 4096, "batch": batch, "dtype": "float32"} for batch in (8, 512)],
)
def remat_gradient(*, state_size: int, input_size: int, steps: int, batch: int, dtype: str, seed: int) -> Kernel:
    """The same for a loss of the last state of a long sequence, remade in chunks of sqrt(T), beside plain."""
    sizes = {"state_size": state_size, "input_size": input_size, "steps": steps, "batch": batch}
    return _elman(**sizes, dtype=dtype, seed=seed, last_only=True)


def _equinox_gradient(cell, states0, inputs):
    def loss(cell):
        def run(state, sequence):
            def step(state, x):
                state = cell(x, state)
                return state, state

            return jax.lax.scan(step, state, sequence)[1]

        return jnp.mean(jax.vmap(run)(states0, inputs) ** 2)

    gradient = eqx.filter_grad(loss)(cell)
    return _EquinoxWeights(gradient.weight_hh, gradient.weight_ih)


class _EquinoxWeights(eqx.Module):
    recurrent_weight: jax.Array
    input_weight: jax.Array


@case(
    group="gradient",
    check={"state_size": 4, "input_size": 3, "steps": 12, "batch": 2, "dtype": "float32"},
    quick=_network_sizes(steps=(100,)),
    full=_network_sizes(steps=(1000,)),
    gpu=_GPU,
    peers=["torch", "torch_cuda"],
)
def gru_gradient(*, state_size: int, input_size: int, steps: int, batch: int, dtype: str, seed: int) -> Kernel:
    """Loss and gradient of a GRU over a batch of sequences, beside equinox's cell in a scan under vmap."""
    n, d = state_size, input_size
    model = dw.models.GRU(d, n, dtype=jnp.dtype(dtype), key=jax.random.key(seed))
    states0 = normal(seed + 1, (batch, n), dtype, scale=0.1)
    inputs = normal(seed + 2, (batch, steps, d), dtype)
    cell = eqx.tree_at(
        lambda cell: (cell.weight_hh, cell.weight_ih, cell.bias, cell.bias_n),
        eqx.nn.GRUCell(d, n, dtype=jnp.dtype(dtype), key=jax.random.key(seed)),
        (model.recurrent_weight, model.input_weight, model.bias, model.bias_n),
    )
    return Kernel(
        function=_gradient,
        arguments=(model, states0, inputs, None, False),
        digest=_weights,
        reference=lambda: _weights(jax.jit(_equinox_gradient)(*cast((cell, states0, inputs), "float64"))),
        tolerance=2e-5 if dtype == "float32" else 1e-12,
        flops=3 * batch * steps * (2 * n * (n + d) + 4 * n**2 + 2 * n * d),
        bytes=batch * steps * (d + 2 * n) * itemsize(dtype),
        depth=2 * steps,
        work=batch * steps,
        unit="steps",
        variants={"equinox": (_equinox_gradient, (cell, states0, inputs))},
        peer_inputs={
            "recurrent_weight": model.recurrent_weight,
            "input_weight": model.input_weight,
            "bias": model.bias,
            "bias_n": model.bias_n,
            "states0": states0,
            "inputs": inputs,
        },
    )
