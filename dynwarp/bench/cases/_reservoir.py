"""Echo state networks: the run of a sparse reservoir, and the fit of its readout."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

import dynwarp as dw
from dynwarp.bench._case import Kernel, case
from dynwarp.bench.cases._tools import float64, itemsize, normal

_DENSITY, _LEAK, _RADIUS, _RIDGE, _WASHOUT = 0.1, 0.5, 0.9, 1e-8, 20


def _reservoir(units: int, dtype: str, seed: int) -> dw.models.EchoStateNetwork:
    return dw.models.EchoStateNetwork(
        1,
        units,
        spectral_radius=_RADIUS,
        leak=_LEAK,
        density=_DENSITY,
        topology="block_sparse",
        dtype=jnp.dtype(dtype),
        key=jax.random.key(seed),
    )


def _weights(net) -> dict[str, np.ndarray]:
    return {
        "recurrent": float64(net.recurrent_matrix()),
        "input_weight": float64(net.input_weight),
        "bias": float64(net.bias_scaling * net.bias),
    }


def _states(weights, inputs) -> np.ndarray:
    recurrent = scipy.sparse.csr_array(weights["recurrent"])
    state, states = np.zeros(len(weights["bias"])), []
    for drive in float64(inputs) @ weights["input_weight"].T + weights["bias"]:
        state = (1 - _LEAK) * state + _LEAK * np.tanh(recurrent @ state + drive)
        states.append(state)
    return np.stack(states)


def _run(net, inputs):
    return dw.simulate(net, jnp.zeros(net.state_size, inputs.dtype), inputs)


@case(
    group="reservoir",
    check={"units": 30, "steps": 20, "dtype": "float64"},
    quick=[{"units": 1000, "steps": 2000, "dtype": "float64"}],
    full=[{"units": 1000, "steps": 5000, "dtype": dtype} for dtype in ("float64", "float32")],
    gpu=[{"units": 4000, "steps": 2000, "dtype": "float32"}],
    peers=["scipy"],
)
def reservoir_states(*, units: int, steps: int, dtype: str, seed: int) -> Kernel:
    """The states of a block-sparse reservoir of density 0.1 along one sequence of inputs."""
    net, inputs = _reservoir(units, dtype, seed), normal(seed + 1, (steps, 1), dtype)
    weights = _weights(net)
    connections = int(np.count_nonzero(weights["recurrent"]))
    return Kernel(
        function=_run,
        arguments=(net, inputs),
        digest=lambda states: states[-100:],
        reference=lambda: _states(weights, inputs)[-100:],
        tolerance=1e-10 if dtype == "float64" else 1e-4,
        flops=steps * (2 * connections + 10 * units),
        bytes=(connections + steps * units) * itemsize(dtype),
        depth=steps,
        work=steps,
        unit="steps",
        peer_inputs=weights | {"inputs": inputs},
    )


def _narma(seed: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """NARMA-10, the usual test of a reservoir: uniform inputs, and a product of ones ten steps apart."""
    u = np.random.default_rng(seed).uniform(0, 0.5, steps)
    y = np.zeros(steps)
    for t in range(9, steps - 1):
        y[t + 1] = 0.3 * y[t] + 0.05 * y[t] * y[t - 9 : t + 1].sum() + 1.5 * u[t - 9] * u[t] + 0.1
    return u[:-1, None], y[1:, None]


def _fit(net, inputs, targets):
    return dw.training.fit_readout(
        net, inputs, targets, ridge=_RIDGE, washout=_WASHOUT, use_input=False, throw=False
    ).mean_squared_error


@case(
    group="reservoir",
    check={"units": 20, "steps": 200},
    quick=[{"units": 1000, "steps": 5000}],
    full=[{"units": 500, "steps": 2000}],
    peers=["reservoirpy"],
)
def reservoir_fit(*, units: int, steps: int, seed: int) -> Kernel:
    """The run of a block-sparse reservoir and the ridge regression of its readout on NARMA-10, float64."""
    net = _reservoir(units, "float64", seed)
    inputs, targets = _narma(seed, steps + 1)
    weights = _weights(net)

    def reference():
        states = np.c_[_states(weights, inputs), np.ones(steps)][_WASHOUT:]
        ridge = _RIDGE * np.sum(states**2) / states.shape[1]
        rows = np.vstack([states, np.sqrt(ridge) * np.eye(units + 1)])
        # Least squares by a QR of the rows and their targets, where the kernel solves the normal equations.
        beside = np.vstack([targets[_WASHOUT:], np.zeros((units + 1, 1))])
        r = np.asarray(np.linalg.qr(np.hstack([rows, beside]), mode="r"))
        fitted = np.linalg.solve(r[:-1, :-1], r[:-1, -1:])
        return np.mean((targets[_WASHOUT:] - states @ fitted) ** 2, axis=0)

    connections = int(np.count_nonzero(weights["recurrent"]))
    return Kernel(
        function=_fit,
        arguments=(net, jnp.asarray(inputs), jnp.asarray(targets)),
        reference=reference,
        tolerance=1e-4,
        peer_tolerance=0.1,
        flops=steps * (2 * connections + units**2) + units**3 / 3,
        bytes=(connections + 2 * steps * units + units**2) * 8,
        depth=steps,
        peer_inputs=weights | {"inputs": inputs, "targets": targets},
    )
