"""Peer: plain NumPy, the loops one would write by hand."""

import importlib.util
import pathlib

import numpy as np

VERSION = np.__version__


def simulate_alrnn(size, inputs):
    A, W, h, states0 = (inputs[key] for key in ("A", "W", "h", "states0"))
    linear = size["state_size"] - size["relu_size"]

    def call():
        states = np.empty((size["steps"], *states0.shape), states0.dtype)
        state = states0
        for t in range(size["steps"]):
            active = np.concatenate([state[:, :linear], np.maximum(state[:, linear:], 0)], 1)
            state = states[t] = A * state + active @ W.T + h
        return states[:, :4].swapaxes(0, 1)

    return call


def simulate_lru(size, inputs):
    multipliers, drive, states0 = inputs["multipliers"], inputs["drive"], inputs["states0"]
    modes = len(multipliers)
    complex_dtype = np.complex64 if size["dtype"] == "float32" else np.complex128
    multipliers = multipliers.astype(complex_dtype)
    drive = (drive[..., :modes] + 1j * drive[..., modes:]).astype(complex_dtype)
    state0 = (states0[:, :modes] + 1j * states0[:, modes:]).astype(complex_dtype)

    def call():
        states = np.empty_like(drive)
        state = state0
        for t in range(size["steps"]):
            state = states[:, t] = multipliers * state + drive[:, t]
        return np.concatenate([states[:4].real, states[:4].imag], -1)

    return call


def elman_gradient(size, inputs):
    W, U, b = inputs["recurrent_weight"], inputs["input_weight"], inputs["bias"]
    states0, x = inputs["states0"], inputs["inputs"]
    steps = size["steps"]

    def call():
        drive = x @ U.T + b
        states = np.empty((steps + 1, *states0.shape), states0.dtype)
        states[0] = states0
        for t in range(steps):
            states[t + 1] = np.tanh(states[t] @ W.T + drive[:, t])
        slopes = np.empty_like(states[1:])
        delta = np.zeros_like(states0)
        scale = np.asarray(2 / (steps * states0.size), states0.dtype)
        for t in reversed(range(steps)):
            slopes[t] = (delta + scale * states[t + 1]) * (1 - states[t + 1] ** 2)
            delta = slopes[t] @ W
        flat = slopes.reshape(-1, slopes.shape[-1])
        before = states[:-1].reshape(flat.shape)
        return flat.T @ before, flat.T @ x.swapaxes(0, 1).reshape(-1, x.shape[-1])

    return call


def lyapunov_lorenz63(size, inputs):
    """All trajectories at once: NumPy multiplies and factorises stacks of matrices."""
    if size["batch"] > 256:
        raise NotImplementedError("a loop over so many trajectories takes minutes; smaller batches have it")
    states0, dt = inputs["states0"], 0.01

    def velocity(s, v):
        x, y, z = s.T
        jacobian = np.zeros((len(s), 3, 3))
        jacobian[:, 0, :2] = -10.0, 10.0
        jacobian[:, 1] = np.stack([28.0 - z, -np.ones_like(x), -x], 1)
        jacobian[:, 2] = np.stack([y, x, np.full_like(x, -8 / 3)], 1)
        return np.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], 1), jacobian @ v

    def step(s, v):
        a, da = velocity(s, v)
        b, db = velocity(s + dt / 2 * a, v + dt / 2 * da)
        c, dc = velocity(s + dt / 2 * b, v + dt / 2 * db)
        d, dd = velocity(s + dt * c, v + dt * dc)
        return s + dt / 6 * (a + 2 * b + 2 * c + d), v + dt / 6 * (da + 2 * db + 2 * dc + dd)

    def call():
        state, total = states0, np.zeros(states0.shape)
        frame = np.broadcast_to(np.eye(3), (len(states0), 3, 3))
        for index in range(size["transient"] + size["steps"]):
            state, frame = step(state, frame)
            if index % 10 == 9:
                frame, r = np.linalg.qr(frame)
                if index >= size["transient"]:
                    total += np.log(np.abs(np.diagonal(r, axis1=1, axis2=2)))
        exponents = total / (size["steps"] * dt)
        # The case compares lanes of short runs and the mean of long ones.
        return exponents if size["steps"] <= 1000 and size["batch"] <= 4 else exponents.mean(0)

    return call


def lyapunov_rnn(size, inputs):
    W, state0, k, every = inputs["weight"], inputs["states0"][0], size["k"], 5

    def call():
        x, frame, total = state0, np.eye(len(W))[:, :k], np.zeros(k)
        for index in range(size["steps"]):
            active = np.tanh(x)
            frame = (W * (1 - active**2)) @ frame
            x = W @ active
            if index % every == every - 1:
                frame, r = np.linalg.qr(frame)
                total += np.log(np.abs(np.diag(r)))
        return total[None] / size["steps"] if size["steps"] <= 100 else None

    return call


def cycle_search(size, inputs):
    """The published search, 300 candidates of it, one after the other."""
    path = pathlib.Path(__file__).parents[1] / "numpy_cycle_search.py"
    spec = importlib.util.spec_from_file_location("dynwarp_peer_numpy_cycle_search", path)
    published = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(published)
    A, W, h = np.diag(inputs["A"]), inputs["W"], inputs["h"]

    def call():
        published.candidates(A, W, h, size["period"], 300, np.random.default_rng(0))

    return call
