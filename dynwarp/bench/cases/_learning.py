"""Learning rules: one sequence, the expectation over sequences, and flows of modes from very many starts."""

from __future__ import annotations

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
import scipy.integrate

import dynwarp as dw
from dynwarp.bench._case import Kernel, case
from dynwarp.bench.cases._tools import float64, itemsize, lanes_at_once, normal

_FEEDBACK, _DECAY, _LOSS, _TIME, _EDGE = -0.5, 0.5, 1e-8, 1e3, 1e-5
_RTOL, _ATOL = 1e-6, 1e-9
_COMPARED = 16  # lanes
_PEER_LANES = 64


def _land(rule, teacher, starts):
    found = dw.learning.find_landings(
        rule,
        teacher,
        starts,
        loss_tolerance=_LOSS,
        max_time=_TIME,
        rtol=_RTOL,
        atol=_ATOL,
        block=lanes_at_once(),
        throw=False,
    )
    return found.points, found.times, found.result == dw.RESULTS.successful, found.result == dw.RESULTS.wall


@eqx.filter_jit
def _land_by_diffrax(rule, teacher, starts, solver):
    """What one writes without a kernel for batches: `diffeqsolve` with events, mapped over lanes."""

    def one(w, start):
        own = dw.learning.Teacher(teacher.a, teacher.b, w)
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, flow: flow(t, y)),
            solver,
            0.0,
            _TIME,
            None,
            start,
            args=dw.learning.mode_flow(rule, own),
            saveat=diffrax.SaveAt(t1=True),
            stepsize_controller=diffrax.PIDController(rtol=_RTOL, atol=_ATOL),
            event=diffrax.Event(
                [
                    lambda t, y, args, **_: jnp.log(dw.learning.mode_loss(own, y) / _LOSS),
                    lambda t, y, args, **_: 1 - jnp.abs(y[2]) - _EDGE,
                ],
                optimistix.Newton(rtol=1e-9, atol=1e-9),
            ),
            max_steps=100_000,
            throw=False,
        )
        assert solution.ts is not None
        assert solution.ys is not None
        assert solution.event_mask is not None
        converged, wall = solution.event_mask
        return solution.ys[-1], solution.ts[-1], converged, wall

    return jax.vmap(one)(jnp.broadcast_to(teacher.w, starts.shape[:1]), starts)


def _compared(output) -> Any:
    # Where a lane stands after its last step depends on the steps; when the event happened, and which, does not.
    _, times, converged, wall = (leaf[:_COMPARED] for leaf in output)
    return jnp.where(converged | wall, jnp.log(times), 0), converged, wall


def _lanes(*sizes: tuple[int, float, float]) -> list[dict[str, Any]]:
    return [{"lanes": lanes, "w_low": low, "w_high": high} for lanes, low, high in sizes]


@case(
    group="learning",
    check={"lanes": 64, "w_low": 0.8, "w_high": 0.8},
    quick=_lanes((256, 0.5, 0.99), (4096, 0.8, 0.8)),
    full=_lanes((100, 0.8, 0.8), (256, 0.8, 0.8), (4096, 0.99, 0.99), (100_000, 0.8, 0.8), (100_000, 0.99, 0.99)),
    gpu=_lanes((4096, 0.8, 0.8), (1_000_000, 0.8, 0.8), (1_000_000, 0.99, 0.99)),
    peers=["scipy"],
)
def mode_landings(*, lanes: int, w_low: float, w_high: float, seed: int) -> Kernel:
    """Mode flows of RFLO from random starts to convergence or the wall, rtol 1e-6; teachers of one w* or of many."""
    low, high = jnp.array([-2.0, -2.0, -0.95]), jnp.array([2.0, 2.0, 0.95])
    starts = low + (high - low) * jax.random.uniform(jax.random.key(seed), (lanes, 3), jnp.float64)
    # Evenly in log(1 - w*), for stiffness grows with 1 / (1 - w*).
    spread = 1 - jnp.geomspace(1 - w_low, 1 - w_high, lanes)
    w = jax.random.permutation(jax.random.key(seed + 1), spread) if w_high > w_low else jnp.array(w_low)
    arguments = (dw.learning.RFLO(_FEEDBACK, _DECAY), dw.learning.Teacher(1.0, 1.0, w), starts)
    solvers: dict[str, Any] = {}
    if lanes == 256:  # a plain solve is as slow as its slowest lane; Tsit5 is hopeless at 0.99, 300 times as slow
        solvers["diffrax_kvaerno5"] = diffrax.Kvaerno5()
        if w_high < 0.95:
            solvers["diffrax_tsit5"] = diffrax.Tsit5()
    multipliers = np.broadcast_to(float64(w), (lanes,))
    # Attempted steps a lane, as counted: 122 at w* = 0.8, 152 at 0.99.
    steps = 122 if w_high < 0.95 else 152
    return Kernel(
        function=_land,
        arguments=arguments,
        digest=_compared,
        reference=lambda: _published_landings(float64(starts[:_COMPARED]), multipliers[:_COMPARED]),
        # Beside the tolerances of a step: a time at which the loss is 1e-8 stands or falls with 1e-4 in the state.
        tolerance=2e-3,
        peer_tolerance=5e-3,
        # Six times the flow and a linear solve, and a Jacobian.
        flops=lanes * steps * (6 * (45 + 15 + 60) + 3 * 60),
        bytes=lanes * (3 + 3 + 3) * 8,
        # Six stages a step, and the longest lane takes about twice as many as the mean.
        depth=6 * 2 * steps,
        work=lanes,
        unit="trajectories",
        variants={name: (_land_by_diffrax, (*arguments, solver)) for name, solver in solvers.items()},
        # A loop over all of them would take minutes, and every trajectory takes its own time.
        peer_work=min(lanes, _PEER_LANES),
        peer_inputs={"starts": starts[:_PEER_LANES], "w": multipliers[:_PEER_LANES], "compared": _COMPARED},
    )


def _published_landings(starts: np.ndarray, multipliers: np.ndarray) -> tuple[np.ndarray, ...]:
    """The same by SciPy at a far smaller tolerance, lane by lane, from the formulas as they were published."""

    def land(start, v):
        def velocity(t, state):
            a, b, w = state
            f, q, e, g = 1 - w * w, 1 - w * v, 1 - _DECAY * w, 1 - _DECAY * v
            db = a * b / e - 1 / g
            dw = a * b * b * w / (f * e) - b * v / (q * g)
            return [b / q - a * b * b / f, -_FEEDBACK * db, -_FEEDBACK * dw]

        def converged(t, state):
            # A trial step may end beyond the wall, where the formula for the loss goes negative.
            a, b, w = state
            loss = ((a * b) ** 2 / (1 - w * w) - 2 * a * b / (1 - w * v) + 1 / (1 - v * v)) / 2
            return loss - _LOSS if abs(w) < 1 else 1.0

        def wall(t, state):
            return 1 - abs(state[2]) - _EDGE

        converged.terminal = wall.terminal = True  # pyright: ignore[reportFunctionMemberAccess]
        events = (converged, wall)
        found = scipy.integrate.solve_ivp(
            velocity, (0, _TIME), start, method="LSODA", rtol=1e-11, atol=1e-13, events=events
        )
        return found.t[-1], bool(found.t_events[0].size), bool(found.t_events[1].size)

    times, converged, wall = (np.array(leaf) for leaf in zip(*map(land, starts, multipliers)))
    return np.where(converged | wall, np.log(times), 0), converged, wall


@case(
    group="learning",
    check={"state_size": 6},
    quick=[{"state_size": 100}],
    full=[{"state_size": n} for n in (20, 256)],
    gpu=[{"state_size": n} for n in (100, 1024)],
    peers=["scipy"],
)
def expected_update_stein(*, state_size: int, seed: int) -> Kernel:
    """The stationary expected update of BPTT for networks of spectral radius 0.9: four Stein equations at once."""
    n, inputs, outputs, radius = state_size, 3, 2, 0.9

    def network(seed):
        W = normal(seed, (n, n), "float64")
        W = radius * W / np.abs(np.linalg.eigvals(float64(W))).max()
        return dw.models.LinearRNN(
            W, normal(seed + 1, (n, inputs), "float64"), normal(seed + 2, (outputs, n), "float64")
        )

    student, teacher = network(10 * seed), network(10 * seed + 5)

    def reference():
        # The definition: the updates for impulses, summed over so many lags that the next are below rounding.
        W, B, A, V, D, C = (float64(x) for net in (student, teacher) for x in (net.W, net.B, net.A))
        hidden, errors = [], []
        for _ in range(400):
            hidden.append(B)
            errors.append(A @ B - C @ D)
            B, D = W @ B, V @ D
        credit, g = [], np.zeros_like(B)
        for error in reversed(errors):
            g = A.T @ error + W.T @ g
            credit.append(g)
        credit.reverse()
        dW = sum(g @ h.T for g, h in zip(credit[1:], hidden))
        return dW, credit[0], sum(e @ h.T for e, h in zip(errors, hidden))

    return Kernel(
        function=_stationary,
        arguments=(dw.learning.BPTT(), student, teacher),
        digest=tuple,
        reference=reference,
        tolerance=1e-10,
        # Seven doublings of ten products, and the residuals.
        flops=(7 * 10 + 8) * 2 * n**3,
        bytes=3 * n * (n + inputs + outputs) * itemsize("float64"),
        unit="updates",
        peer_inputs={
            f"{who}_{x}": getattr(net, x) for who, net in (("student", student), ("teacher", teacher)) for x in "WBA"
        },
    )


def _stationary(rule, student, teacher):
    return dw.learning.expected_update(rule, student, teacher)


def _gradients(rule, model, readout, inputs, targets, states0, engine):
    def one(inputs, targets, state0):
        loss = dw.learning.half_squared_error
        return rule.gradients(model, readout, inputs, targets, state0=state0, loss=loss, engine=engine)

    return jax.vmap(one)(inputs, targets, states0)[1][0]


def _weights(gradient):
    return jnp.sum(gradient.recurrent_weight, 0), jnp.sum(gradient.input_weight, 0)


def _engine(name: str, *, state_size: int, steps: int, batch: int, seed: int) -> Kernel:
    n, d, o = state_size, 4, 2
    keys = jax.random.split(jax.random.key(seed))
    model = dw.models.Elman(d, n, dtype=jnp.float64, key=keys[0])
    readout = dw.models.Readout(n, o, dtype=jnp.float64, key=keys[1])
    feedback = normal(seed + 1, (o, n), "float64", scale=n**-0.5)
    inputs, targets = normal(seed + 2, (batch, steps, d), "float64"), normal(seed + 3, (batch, steps, o), "float64")
    states0 = normal(seed + 4, (batch, n), "float64", scale=0.1)
    rule: Any = {
        "bptt": dw.learning.BPTT(),
        "eprop": dw.learning.EProp(),
        "rflo": dw.learning.RFLO(feedback, _DECAY),
        "rtrl": dw.learning.RTRL(),
    }[name]

    def reference():
        W, U, c, A, b, R = (
            float64(x)
            for x in (model.recurrent_weight, model.input_weight, model.bias, readout.weight, readout.bias, feedback)
        )
        sent = R if name == "rflo" else A
        local = {"rflo": lambda slope: np.full(n, _DECAY), "eprop": lambda slope: slope * np.diag(W)}.get(name)
        by = _backwards if local is None else _by_traces(local)
        total = np.zeros((n, n + d))
        for x, y, h in zip(float64(inputs), float64(targets), float64(states0)):
            before, after = [], []
            for t in range(steps):
                before.append(np.concatenate([h, x[t]]))
                h = np.tanh(W @ h + U @ x[t] + c)
                after.append(h)
            signals = [sent.T @ (A @ h + b - target) / steps for h, target in zip(after, y)]
            total += by(W, signals, [1 - h**2 for h in after], before)
        return total[:, :n], total[:, n:]

    flops = {"bptt": 6 * n * n + 4 * n * d, "rtrl": 2 * n**3 * (n + d)}.get(name, 4 * n * (n + d))
    arguments = (rule, model, readout, inputs, targets, states0)
    by_traces = {"forward_trace": (_gradients, (*arguments, "forward"))} if name in ("eprop", "rflo") else {}
    return Kernel(
        function=_gradients,
        arguments=(*arguments, "auto"),
        digest=_weights,
        reference=reference,
        tolerance=1e-11,
        flops=batch * steps * flops,
        bytes=batch * steps * (d + o + 2 * n) * itemsize("float64"),
        depth=steps if name == "rtrl" else 2 * steps,
        work=batch * steps,
        unit="steps",
        variants=by_traces,
        peer_inputs={
            "recurrent_weight": model.recurrent_weight,
            "input_weight": model.input_weight,
            "bias": model.bias,
            "readout_weight": readout.weight,
            "offset": readout.bias,
            "inputs": inputs,
            "targets": targets,
            "states0": states0,
        },
    )


def _backwards(W, signals, slopes, before):
    """g[t] = F e[t] + J[t + 1]^T g[t + 1]: both ways to the gradient are held against this one."""
    total, carried = np.zeros((len(W), len(before[0]))), np.zeros(len(W))
    for signal, slope, x in zip(reversed(signals), reversed(slopes), reversed(before)):
        g = (signal + carried) * slope
        total += np.outer(g, x)
        carried = W.T @ g
    return total


def _by_traces(decay):
    """A trace a synapse, e[t] = z[t] e[t - 1] + slope x^T, and the update F e[t] times it."""

    def run(W, signals, slopes, before):
        trace = total = np.zeros((len(W), len(before[0])))
        for signal, slope, x in zip(signals, slopes, before):
            trace = decay(slope)[:, None] * trace + np.outer(slope, x)
            total = total + signal[:, None] * trace
        return total

    return run


def _networks(*sizes: int, batch: int = 1) -> list[dict[str, int]]:
    return [{"state_size": n, "steps": 64, "batch": batch} for n in sizes]


_CHECK = {"state_size": 4, "steps": 10, "batch": 2}
_GPU = [*_networks(256), *_networks(256, batch=256)]


@case(group="learning", check=_CHECK, quick=_networks(256), full=_networks(32, 64, 128), gpu=_GPU)
def learning_bptt(*, state_size: int, steps: int, batch: int, seed: int) -> Kernel:
    """The gradient of tanh networks by backpropagation through time."""
    return _engine("bptt", state_size=state_size, steps=steps, batch=batch, seed=seed)


@case(group="learning", check=_CHECK, quick=_networks(256), full=_networks(32, 64, 128), gpu=_GPU, peers=["braintrace"])
def learning_eprop(*, state_size: int, steps: int, batch: int, seed: int) -> Kernel:
    """The update of e-prop with Z the diagonal of the Jacobian, backwards, and beside it by traces."""
    return _engine("eprop", state_size=state_size, steps=steps, batch=batch, seed=seed)


@case(group="learning", check=_CHECK, quick=_networks(256), full=_networks(32, 64, 128), gpu=_GPU)
def learning_rflo(*, state_size: int, steps: int, batch: int, seed: int) -> Kernel:
    """The update of RFLO, backwards, and beside it by traces."""
    return _engine("rflo", state_size=state_size, steps=steps, batch=batch, seed=seed)


@case(
    group="learning",
    check=_CHECK,
    quick=_networks(32),
    full=_networks(64),
    gpu=_networks(64, 128),
    peers=["braintrace"],
)
def learning_rtrl(*, state_size: int, steps: int, batch: int, seed: int) -> Kernel:
    """The gradient by real-time recurrent learning: n^4 operations and n^3 numbers a step."""
    return _engine("rtrl", state_size=state_size, steps=steps, batch=batch, seed=seed)
