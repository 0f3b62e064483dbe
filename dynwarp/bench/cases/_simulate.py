"""Stepping through time, forwards."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import dynwarp as dw
from dynwarp.bench._case import Kernel, case
from dynwarp.bench.cases._tools import cast, float64, itemsize, normal


def _free_run(model, states0, steps):
    return jax.vmap(lambda state: dw.simulate(model, state, steps=steps))(states0)


# A reference in float64 of a whole large batch would take longer than what is measured.
_CHECKED_LANES = 4


def _first_lanes(states):
    return states[:_CHECKED_LANES]


@case(
    group="simulate",
    check={"state_size": 5, "relu_size": 2, "steps": 20, "batch": 3, "dtype": "float32"},
    quick=[
        {"state_size": 20, "relu_size": 2, "steps": 1000, "batch": batch, "dtype": dtype}
        for batch, dtype in ((1, "float32"), (32, "float32"), (1024, "float32"))
    ],
    full=[
        {"state_size": 20, "relu_size": 2, "steps": 1000, "batch": batch, "dtype": dtype}
        for batch, dtype in ((32, "float64"), (16384, "float32"))
    ],
    gpu=[
        {"state_size": 20, "relu_size": 2, "steps": 100, "batch": batch, "dtype": "float32"}
        for batch in (1, 128, 16384, 262144)
    ],
    peers=["numpy", "torch", "torch_cuda"],
)
def simulate_alrnn(*, state_size: int, relu_size: int, steps: int, batch: int, dtype: str, seed: int) -> Kernel:
    """An almost-linear RNN runs free from a batch of states."""
    model = dw.models.ALRNN(state_size, relu_size, dtype=jnp.dtype(dtype), key=jax.random.key(seed))
    states0 = normal(seed, (batch, state_size), dtype)

    return Kernel(
        function=_free_run,
        arguments=(model, states0, steps),
        digest=_first_lanes,
        reference=lambda: _canonical_run(model, states0, steps),
        tolerance=1e-5 if dtype == "float32" else 1e-12,
        flops=batch * steps * (2 * state_size**2 + 3 * state_size),
        bytes=batch * (steps + 1) * state_size * itemsize(dtype),
        depth=steps,
        work=batch * steps,
        unit="steps",
        peer_inputs={"A": model.A, "W": model.W, "h": model.h, "states0": states0},
    )


_HIDDEN = 50
_PIECEWISE = ("plrnn", "mean_centred", "shallow", "clipped_shallow", "dendritic")


def _piecewise(*models: str, **extra) -> list[dict[str, Any]]:
    return [
        {"model": model, "state_size": 20, "steps": 1000, "batch": 32, "dtype": "float32", **extra} for model in models
    ]


@case(
    group="simulate",
    check={"model": "shallow", "state_size": 4, "steps": 20, "batch": 2, "dtype": "float64"},
    quick=_piecewise("shallow"),
    full=[
        *_piecewise("plrnn", "mean_centred", "clipped_shallow", "dendritic"),
        *_piecewise(*_PIECEWISE, dtype="float64"),
    ],
    gpu=[size for batch in (32, 8192) for size in _piecewise("shallow", steps=100, batch=batch)],
)
def simulate_plrnn(*, model: str, state_size: int, steps: int, batch: int, dtype: str, seed: int) -> Kernel:
    """The piecewise-linear models run free from a batch of states; those with a hidden layer have 50 units or bases."""
    m, n, options = dw.models, state_size, {"dtype": jnp.dtype(dtype), "key": jax.random.key(seed)}
    network: Any = {
        "plrnn": lambda: m.PLRNN(n, **options),
        "mean_centred": lambda: m.MeanCentredPLRNN(n, **options),
        "shallow": lambda: m.ShallowPLRNN(n, _HIDDEN, **options),
        "clipped_shallow": lambda: m.ShallowPLRNN(n, _HIDDEN, clipped=True, **options),
        "dendritic": lambda: m.DendriticPLRNN(n, _HIDDEN, **options),
    }[model]()
    states0 = normal(seed, (batch, n), dtype)
    products = {"plrnn": n, "mean_centred": n, "dendritic": n}.get(model, 2 * _HIDDEN)
    return Kernel(
        function=_free_run,
        arguments=(network, states0, steps),
        digest=_first_lanes,
        reference=lambda: _canonical_run(network, states0, steps),
        tolerance=1e-5 if dtype == "float32" else 1e-12,
        flops=batch * steps * (2 * n * products + 3 * n),
        bytes=batch * (steps + 1) * n * itemsize(dtype),
        depth=steps,
        work=batch * steps,
        unit="steps",
    )


def _canonical_run(model, states0, steps):
    """By the canonical form F(z) = A z + W1 relu(W2 z + h2) + h1, the direct form being what is measured."""
    f = cast(model.canonical(), "float64")
    A, W1, W2, h1, h2 = (float64(x) for x in (f.A, f.W1, f.W2, f.h1, f.h2))
    states, state = [], float64(states0[:_CHECKED_LANES])
    for _ in range(steps):
        state = state @ A.T + np.maximum(state @ W2.T + h2, 0) @ W1.T + h1
        states.append(state)
    return np.stack(states, 1)


def _driven_run(model, states0, inputs, mode):
    return jax.vmap(lambda state, sequence: dw.simulate(model, state, sequence, mode=mode))(states0, inputs)


def _recurrence(model: Any, inputs, states0, *, multipliers, drive, flops, dtype, tolerance, peer_inputs) -> Kernel:
    """The kernel of a linear recurrence: `mode="auto"` beside the three modes it chooses from."""
    batch, steps, _ = inputs.shape
    modes: tuple[Literal["scan", "associative", "fft"], ...] = ("scan", "associative", "fft")

    def reference():
        states, state = [], float64(states0[:_CHECKED_LANES])
        for t in range(steps):
            state = multipliers(state) + drive[:_CHECKED_LANES, t]
            states.append(state)
        return np.stack(states, 1)

    return Kernel(
        function=_driven_run,
        arguments=(model, states0, inputs, "auto"),
        digest=_first_lanes,
        reference=reference,
        tolerance=tolerance,
        flops=batch * steps * flops,
        bytes=batch * (steps * (model.input_size + model.state_size) + model.state_size) * itemsize(dtype),
        depth=steps,
        work=batch * steps,
        unit="steps",
        variants={mode: (_driven_run, (model, states0, inputs, mode)) for mode in modes},
        peer_inputs=peer_inputs,
    )


def _diagonal_recurrence(model: Any, *, steps: int, batch: int, dtype: str, seed: int) -> Kernel:
    exact = cast(model, "float64")
    lam = np.asarray(exact.multipliers(), np.complex128)
    inputs = normal(seed + 100, (batch, steps, model.input_size), dtype)
    states0 = normal(seed + 200, (batch, model.state_size), dtype)
    drive = float64(exact.drive(inputs.astype(jnp.float64)))

    def rotate(state):
        half = state.shape[-1] // 2
        turned = lam * (state[:, :half] + 1j * state[:, half:])
        return np.concatenate([turned.real, turned.imag], axis=1)

    return _recurrence(
        model,
        inputs,
        states0,
        multipliers=rotate,
        drive=drive,
        # The rotation of every mode, and the product that drives it.
        flops=4 * model.state_size + 2 * model.state_size * model.input_size,
        dtype=dtype,
        # Slow modes remember all steps, and each step rounds.
        tolerance=max(1e-5, steps * float(np.finfo(np.float32).eps) / 2) if dtype == "float32" else 1e-12,
        peer_inputs={"multipliers": lam, "drive": drive, "states0": states0},
    )


def _sequence_sizes(**extra):
    return [{**extra, "steps": steps, "batch": batch, "dtype": "float32"} for steps, batch in ((1024, 8), (8192, 1))]


_LONG = {"steps": 4096, "batch": 64, "dtype": "float32"}


@case(
    group="simulate",
    check={"modes": 4, "steps": 16, "batch": 2, "dtype": "float32"},
    quick=_sequence_sizes(modes=64),
    # One short sequence of few modes is where the scan is not the fastest on a CPU.
    full=[
        {"modes": modes, "steps": 1024, "batch": batch, "dtype": dtype}
        for modes, batch, dtype in ((16, 1, "float32"), (256, 8, "float32"), (256, 8, "float64"))
    ],
    gpu=[{"modes": 256, **_LONG, "batch": batch} for batch in (1, 8, 64)],
    peers=["numpy", "scipy", "torch_cuda"],
)
def simulate_lru(*, modes: int, steps: int, batch: int, dtype: str, seed: int) -> Kernel:
    """A linear recurrent unit driven by noise: scan, associative scan and FFT beside the automatic choice."""
    model = dw.models.LRU(32, modes, 1, r_min=0.5, r_max=0.99, dtype=jnp.dtype(dtype), key=jax.random.key(seed))
    return _diagonal_recurrence(model, steps=steps, batch=batch, dtype=dtype, seed=seed)


@case(
    group="simulate",
    check={"modes": 2, "steps": 16, "batch": 2, "dtype": "float32"},
    quick=_sequence_sizes(modes=8)[:1],
    full=[{"modes": 32, "steps": 1024, "batch": 8, "dtype": dtype} for dtype in ("float32", "float64")],
    gpu=[{"modes": 32, **_LONG}],
)
def simulate_s4d(*, modes: int, steps: int, batch: int, dtype: str, seed: int) -> Kernel:
    """A diagonal state-space model of 16 channels driven by noise, in the same modes."""
    model = dw.models.S4D(16, modes, dtype=jnp.dtype(dtype), key=jax.random.key(seed))
    return _diagonal_recurrence(model, steps=steps, batch=batch, dtype=dtype, seed=seed)


@case(
    group="simulate",
    check={"state_size": 4, "steps": 16, "batch": 2, "dtype": "float64"},
    quick=_sequence_sizes(state_size=64)[:1],
    full=[{"state_size": 64, "steps": 1024, "batch": 8, "dtype": "float64"}],
    gpu=[{"state_size": 64, **_LONG}],
)
def simulate_linear_rnn(*, state_size: int, steps: int, batch: int, dtype: str, seed: int) -> Kernel:
    """A dense linear network driven by noise, in the same modes."""
    n, inputs_size = state_size, 32
    W = normal(seed, (n, n), "float64")
    W = (0.95 * W / jnp.linalg.norm(W, 2)).astype(dtype)
    B, A = normal(seed + 1, (n, inputs_size), dtype), normal(seed + 2, (1, n), dtype)
    inputs, states0 = normal(seed + 3, (batch, steps, inputs_size), dtype), normal(seed + 4, (batch, n), dtype)
    return _recurrence(
        dw.models.LinearRNN(W, B, A),
        inputs,
        states0,
        multipliers=lambda state: state @ float64(W).T,
        drive=float64(inputs) @ float64(B).T,
        flops=2 * n**2 + 2 * n * inputs_size,
        dtype=dtype,
        tolerance=1e-5 if dtype == "float32" else 1e-12,
        peer_inputs={},
    )


def _flow(system, states0, ts):
    return jax.vmap(lambda state: dw.simulate(system, state, ts=ts))(states0)


def _flow_by_rk4(system, states0, steps):
    # Ten samples a run, at the times of `_flow`.
    run = jax.vmap(lambda state: dw.simulate(system, state, steps=steps, dt=_DT, include_initial=True))
    return run(states0)[:, :: steps // 10]


_DT = 1e-3


@case(
    group="simulate",
    check={"final_time": 0.5, "batch": 2},
    quick=[{"final_time": 5.0, "batch": batch} for batch in (1, 64)],
    full=[{"final_time": 5.0, "batch": 4096}],
    gpu=[{"final_time": 5.0, "batch": batch} for batch in (1, 1024, 65536)],
    peers=["scipy"],
)
def simulate_lorenz63(*, final_time: float, batch: int, seed: int) -> Kernel:
    """The Lorenz flow by diffrax at the default tolerances of float64, beside the fixed-step scan (RK4, dt = 0.001)."""
    system = dw.systems.Lorenz63()
    states0 = jnp.array([1.0, 1.0, 20.0]) + normal(seed, (batch, 3), "float64")
    ts = jnp.linspace(0.0, final_time, 11)

    def reference():
        from scipy.integrate import solve_ivp

        def velocity(t, s):
            return [10 * (s[1] - s[0]), s[0] * (28 - s[2]) - s[1], s[0] * s[1] - 8 / 3 * s[2]]

        tight = {"method": "DOP853", "rtol": 1e-12, "atol": 1e-12, "t_eval": float64(ts)}
        return np.stack(
            [solve_ivp(velocity, (0, final_time), float64(s), **tight).y.T for s in states0[:_CHECKED_LANES]]
        )

    return Kernel(
        function=_flow,
        arguments=(system, states0, ts),
        digest=_first_lanes,
        reference=reference,
        # Errors grow by exp(0.906 t) in the mean, more over a short stretch.
        tolerance=1e-5 if final_time < 1 else 1e-2,
        bytes=2 * states0.nbytes,
        work=batch,
        unit="trajectories",
        variants={"rk4": (_flow_by_rk4, (system, states0, round(final_time / _DT)))},
        peer_inputs={"states0": states0, "ts": ts},
    )
