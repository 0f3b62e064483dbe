"""Peer: SciPy, one trajectory, one root or one matrix at a time."""

import numpy as np
import scipy
import scipy.integrate
import scipy.linalg
import scipy.optimize
import scipy.signal
import scipy.sparse

VERSION = scipy.__version__


def stein(size, inputs):
    return lambda: scipy.linalg.solve_discrete_lyapunov(inputs["a"], inputs["c"])


def simulate_lru(size, inputs):
    multipliers, drive, states0 = inputs["multipliers"], inputs["drive"], inputs["states0"]
    modes = len(multipliers)
    drive = drive[..., :modes] + 1j * drive[..., modes:]
    state0 = states0[:, :modes] + 1j * states0[:, modes:]

    def call():
        states = np.empty_like(drive)
        for mode, multiplier in enumerate(multipliers):
            coefficients, initial = [1, -multiplier], multiplier * state0[:, mode, None]
            states[..., mode] = scipy.signal.lfilter([1], coefficients, drive[..., mode], axis=1, zi=initial)[0]
        return np.concatenate([states[:4].real, states[:4].imag], -1)

    return call


def simulate_lorenz63(size, inputs):
    """`DOP853` at the tolerances that diffrax is given by default, the fastest of the explicit methods there."""
    if size["batch"] > 256:
        raise NotImplementedError("a loop over so many trajectories takes minutes; smaller batches have it")
    states0, ts = inputs["states0"], inputs["ts"]

    def velocity(t, s):
        return [10 * (s[1] - s[0]), s[0] * (28 - s[2]) - s[1], s[0] * s[1] - 8 / 3 * s[2]]

    options = {"method": "DOP853", "rtol": 1e-7, "atol": 1e-9, "t_eval": ts}

    def call():
        solved = [scipy.integrate.solve_ivp(velocity, (0, size["final_time"]), s, **options).y.T for s in states0]
        return np.stack(solved)[:4]

    return call


def fixed_points_rnn(size, inputs):
    W, b, candidates = inputs["weight"], inputs["bias"], inputs["candidates"]

    def residual(x):
        return np.tanh(W @ x + b) - x

    def jacobian(x):
        return (1 - np.tanh(W @ x + b) ** 2)[:, None] * W - np.eye(len(W))

    def call():
        found = [scipy.optimize.root(residual, x, jac=jacobian, method="hybr", tol=1e-11) for x in candidates]
        for each in found:
            np.linalg.eigvals(jacobian(each.x) + np.eye(len(W)))
        return np.stack([each.x for each in found]), np.array([each.success for each in found])

    return call


def mode_landings(size, inputs):
    """`LSODA`, the fastest method there, at tolerances at which its times are as exact as those of the kernel.

    `RK45` is close at w* = 0.8 and hopeless at 0.99; `Radau` and `BDF` with the Jacobian take several times as long.
    """
    feedback, decay = -0.5, 0.5

    def land(start, v):
        q0, g = 1 - v * v, 1 - decay * v

        def velocity(t, state):
            a, b, w = state.tolist()
            f, q, e = 1 - w * w, 1 - w * v, 1 - decay * w
            ab = a * b
            return [b / q - ab * b / f, -feedback * (ab / e - 1 / g), -feedback * b * (ab * w / (f * e) - v / (q * g))]

        def converged(t, state):
            # A trial step may end beyond the wall, where the formula for the loss goes negative.
            a, b, w = state.tolist()
            f = 1 - w * w
            return (a * b) ** 2 / f - 2 * a * b / (1 - w * v) + 1 / q0 - 2e-8 if f > 0 else 1.0

        def wall(t, state):
            return 1 - abs(state[2]) - 1e-5

        converged.terminal = wall.terminal = True
        rtol = 1e-7 if v > 0.9 else 3e-7
        options = {"method": "LSODA", "rtol": rtol, "atol": 1e-3 * rtol, "events": (converged, wall)}
        found = scipy.integrate.solve_ivp(velocity, (0, 1e3), start, **options)
        return found.t[-1], found.t_events[0].size > 0, found.t_events[1].size > 0

    def call():
        found = [land(start, float(v)) for start, v in zip(inputs["starts"], inputs["w"])]
        times, converged, wall = (np.array(each)[: inputs["compared"]] for each in zip(*found))
        return np.where(converged | wall, np.log(times), 0), converged, wall

    return call


def mode_flows(size, inputs):
    """`LSODA`, the fastest method there, at a tolerance at which it is as exact as the kernel."""
    rule, v, feedback, decay = size["rule"], 0.8, 0.5, 0.5

    def bptt(t, state):
        a, b, w = state.tolist()
        f, q, ab = 1 - w * w, 1 - w * v, a * b
        return [b / q - ab * b / f, a / q - a * ab / f, ab * v / (q * q) - ab * ab * w / (f * f)]

    def tbptt(t, state):
        a, b, w = state.tolist()
        f, q, ab = 1 - w * w, 1 - w * v, a * b
        return [b / q - ab * b / f, a - a * ab, ab * v / q - ab * ab * w / f]

    def rflo(t, state):
        a, b, w = state.tolist()
        f, q, e, g, ab = 1 - w * w, 1 - w * v, 1 - decay * w, 1 - decay * v, a * b
        return [b / q - ab * b / f, feedback * (1 / g - ab / e), feedback * b * (v / (q * g) - ab * w / (f * e))]

    velocity = {"bptt": bptt, "eprop": bptt, "tbptt": tbptt, "rflo": rflo}[rule]
    ts = inputs["times"]
    ends, options = (ts[0], ts[-1]), {"method": "LSODA", "rtol": 1e-6, "atol": 1e-9, "t_eval": ts}

    def call():
        found = [scipy.integrate.solve_ivp(velocity, ends, start, **options).y.T for start in inputs["starts"]]
        return np.stack(found[: inputs["compared"]])

    return call


def expected_update_stein(size, inputs):
    """Student and teacher as one network, so that two equations of twice the size hold all four."""
    W, B, A, V, D, C = (inputs[f"{who}_{x}"] for who in ("student", "teacher") for x in "WBA")
    n = len(W)

    def call():
        both = scipy.linalg.block_diag(W, V)
        drive, out = np.concatenate([B, D]), np.concatenate([A, -C], 1)
        hidden = scipy.linalg.solve_discrete_lyapunov(both, drive @ drive.T)
        credit = scipy.linalg.solve_discrete_lyapunov(both.T, out.T @ out)[:n]
        return credit @ both @ hidden[:, :n], credit @ drive, out @ hidden[:, :n]

    return call


def reservoir_states(size, inputs):
    """The same matrix in CSR, a loop over time: how reservoirs are run without a compiler."""
    dtype = inputs["inputs"].dtype
    W = scipy.sparse.csr_array(inputs["recurrent"].astype(dtype))
    V, b = inputs["input_weight"].astype(dtype), inputs["bias"].astype(dtype)

    def call():
        drive = inputs["inputs"] @ V.T + b
        states, state = np.empty_like(drive), np.zeros(W.shape[0], dtype)
        for t in range(len(drive)):
            state = dtype.type(0.5) * (state + np.tanh(W @ state + drive[t]))
            states[t] = state
        return states[-100:]

    return call
