"""Flows of modes sampled at given times, and training by stochastic gradient descent, for each rule."""

from __future__ import annotations

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.integrate

import dynwarp as dw
from dynwarp.bench._case import Kernel, case
from dynwarp.bench.cases._tools import float64, itemsize, lanes_at_once, normal

_FEEDBACK, _DECAY = 0.5, 0.5
_RTOL, _ATOL = 1e-6, 1e-9
_TIMES = np.linspace(0.0, 20.0, 11)
_COMPARED = 8  # lanes
_PEER_LANES = 64


def _rule(name: str, feedback: Any = None) -> Any:
    """A rule by name; `feedback` of RFLO, a number for modes or a matrix for networks."""
    return {
        "bptt": dw.learning.BPTT(),
        "tbptt": dw.learning.TBPTT(1),
        "eprop": dw.learning.EProp(),
        "rflo": dw.learning.RFLO(_FEEDBACK if feedback is None else feedback, _DECAY),
    }[name]


def _velocity(rule: str, v: float):
    """The flow of a mode under a teacher (1, 1, v), from the formulas of the rules as they were published."""

    def velocity(t, state):
        a, b, w = state
        f, q = 1 - w * w, 1 - w * v
        da = a * b * b / f - b / q
        if rule in ("bptt", "eprop"):  # a mode's diagonal is the mode itself
            return [-da, -(a * a * b / f - a / q), -((a * b) ** 2 * w / f**2 - a * b * v / q**2)]
        if rule == "tbptt":
            return [-da, -(a * a * b - a), -((a * b) ** 2 * w / f - a * b * v / q)]
        e, g = 1 - _DECAY * w, 1 - _DECAY * v
        dw = a * b * b * w / (f * e) - b * v / (q * g)
        return [-da, -_FEEDBACK * (a * b / e - 1 / g), -_FEEDBACK * dw]

    return velocity


def _published(rule: str, starts: np.ndarray, v: float) -> np.ndarray:
    flow, options = _velocity(rule, v), {"method": "DOP853", "rtol": 1e-12, "atol": 1e-13, "t_eval": _TIMES}
    return np.stack([scipy.integrate.solve_ivp(flow, (0, _TIMES[-1]), s, **options).y.T for s in starts])


def _integrate(rule, teacher, starts, ts):
    return dw.learning.integrate_modes(
        rule, teacher, starts, ts, rtol=_RTOL, atol=_ATOL, block=lanes_at_once(), throw=False
    ).values


@eqx.filter_jit
def _integrate_by_diffrax(rule, teacher, starts, ts, solver):
    """`diffeqsolve` mapped over the lanes: what one writes without a kernel for batches."""

    def one(start):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, flow: flow(t, y)),
            solver,
            ts[0],
            ts[-1],
            None,
            start,
            args=dw.learning.mode_flow(rule, teacher),
            saveat=diffrax.SaveAt(ts=ts),
            stepsize_controller=diffrax.PIDController(rtol=_RTOL, atol=_ATOL),
            max_steps=100_000,
            throw=False,
        ).ys

    return jax.vmap(one)(starts)


def _flows(*pairs: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"rule": rule, "lanes": lanes} for rule, lanes in pairs]


@case(
    group="learning",
    check={"rule": "rflo", "lanes": 32},
    quick=_flows(("bptt", 1000), ("rflo", 100), ("rflo", 10_000)),
    full=_flows(("bptt", 10_000), ("tbptt", 10_000), ("eprop", 10_000), ("rflo", 100_000), ("rflo", 1_000_000)),
    gpu=_flows(("rflo", 10_000), ("rflo", 1_000_000)),
    peers=["scipy"],
)
def mode_flows(*, rule: str, lanes: int, seed: int) -> Kernel:
    """Mode flows of a rule at eleven times, w* = 0.8 and rtol 1e-6, beside a plain vmapped diffrax solve."""
    v = 0.8
    low, high = jnp.array([0.2, 0.2, -0.6]), jnp.array([1.5, 1.5, 0.6])
    starts = low + (high - low) * jax.random.uniform(jax.random.key(seed), (lanes, 3), jnp.float64)
    arguments = (_rule(rule), dw.learning.Teacher(1.0, 1.0, v), starts, jnp.asarray(_TIMES))
    plain = {}
    if rule == "rflo" and 100 <= lanes <= 10_000:  # it compiles for seconds
        plain["diffrax_tsit5"] = (_integrate_by_diffrax, (*arguments, diffrax.Tsit5()))
    return Kernel(
        function=_integrate,
        arguments=arguments,
        digest=lambda values: values[:_COMPARED],
        reference=lambda: _published(rule, float64(starts[:_COMPARED]), v),
        # A few hundred local errors of 1e-6, which the flow contracts.
        tolerance=1e-4,
        # About 60 steps of six evaluations, a Jacobian and six triangular solves.
        flops=lanes * 60 * (6 * (45 + 15 + 60) + 3 * 60),
        bytes=lanes * (3 + 3 * len(_TIMES)) * itemsize("float64"),
        depth=6 * 60,
        work=lanes,
        unit="trajectories",
        variants=plain,
        peer_work=min(lanes, _PEER_LANES),
        peer_inputs={"starts": starts[:_PEER_LANES], "times": _TIMES, "compared": min(lanes, _COMPARED)},
    )


def _train(rule, student, readout, task, steps, batch, key):
    run = dw.learning.train_on_samples(
        rule, student, readout, task, steps=steps, optimizer=_SGD, key=key, batch_size=batch
    )
    return run.model, run.readout, run.losses


_RATE = 0.02
_SGD = optax.sgd(_RATE)


def _train_by_hand(rule, student, teacher, feedback, steps, batch, length, key):
    """The same run written out: for a linear network every rule is g[t] = F e[t] + Z^T g[t + 1]."""
    W, B, A = (float64(x) for x in (student.W, student.B, student.A))
    V, D, C = (float64(x) for x in (teacher.W, teacher.B, teacher.A))
    losses = []
    for i in range(steps):
        dW, dB, dA, total = np.zeros_like(W), np.zeros_like(B), np.zeros_like(A), 0.0
        for each in jax.random.split(jax.random.fold_in(key, i), batch):
            x = float64(jax.random.normal(jax.random.split(each)[0], (length, B.shape[1]), jnp.float64))
            h, k, before, after, errors = np.zeros(len(W)), np.zeros(len(V)), [], [], []
            for t in range(length):
                before.append(h)
                h, k = W @ h + B @ x[t], V @ k + D @ x[t]
                after.append(h)
                errors.append(A @ h - C @ k)
            total += sum(e @ e for e in errors) / (2 * length)
            none = np.zeros_like(W)
            Z = {"bptt": W, "tbptt": none, "eprop": np.diag(np.diag(W)), "rflo": _DECAY * np.eye(len(W))}[rule]
            send, g = (feedback if rule == "rflo" else A), np.zeros(len(W))
            for t in reversed(range(length)):
                g = send.T @ errors[t] / length + Z.T @ g
                dW += np.outer(g, before[t])
                dB += np.outer(g, x[t])
                dA += np.outer(errors[t], after[t]) / length
        W, B, A = (p - _RATE * d / batch for p, d in ((W, dW), (B, dB), (A, dA)))
        losses.append(total / batch)
    return W, B, A, np.array(losses)


def _trainings(*rules: str, steps: int = 200, state_size: int = 20, batch: int = 16) -> list[dict[str, Any]]:
    return [{"rule": rule, "state_size": state_size, "steps": steps, "batch": batch} for rule in rules]


@case(
    group="learning",
    check={"rule": "eprop", "state_size": 3, "steps": 5, "batch": 2},
    quick=_trainings("bptt", "rflo"),
    full=[*_trainings("tbptt", "eprop"), *_trainings("bptt", "rflo", steps=2000)],
    gpu=_trainings("rflo", state_size=100, batch=1024),
)
def learning_sgd(*, rule: str, state_size: int, steps: int, batch: int, seed: int) -> Kernel:
    """Training of a linear student by a rule: stochastic gradient descent on fresh sequences of 50 steps."""
    n, inputs, outputs, length, key = state_size, 3, 2, 50, jax.random.key(seed)

    def network(seed, n):
        W = 0.4 * jnp.eye(n) + normal(seed, (n, n), "float64", scale=0.2 / n**0.5)
        B, A = normal(seed + 1, (n, inputs), "float64"), normal(seed + 2, (outputs, n), "float64", scale=n**-0.5)
        return dw.models.LinearRNN(W, 0.5 * B, A)

    student, teacher = network(10 * seed, n), network(10 * seed + 5, 4)
    feedback = float64(normal(seed + 9, (outputs, n), "float64", scale=n**-0.5))
    checked = min(steps, 5)

    def digest(output):
        model, readout, losses = output
        # The weights of a short run; of a long one the first losses, for a loop over all of it would take minutes.
        return (model.W, model.B, readout.C, losses) if steps <= 5 else losses[:checked]

    def reference():
        by_hand = _train_by_hand(rule, student, teacher, feedback, checked, batch, length, key)
        return by_hand if steps <= 5 else by_hand[-1]

    return Kernel(
        function=_train,
        arguments=(
            _rule(rule, jnp.asarray(feedback)),
            student,
            student.readout(),
            dw.learning.WhiteNoiseTask(teacher, length),
            steps,
            batch,
            key,
        ),
        digest=digest,
        reference=reference,
        tolerance=1e-10,
        # Forwards and backwards through the state, and the weights' products.
        flops=steps * batch * length * (6 * n * n + 4 * n * inputs + 4 * n * outputs),
        bytes=steps * batch * length * (inputs + outputs) * itemsize("float64"),
        depth=steps * 2 * length,
        work=steps,
        unit="updates",
    )
