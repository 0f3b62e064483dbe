"""What any system shows: Lyapunov spectra and fixed points."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dynwarp as dw
from dynwarp.bench._case import Kernel, case
from dynwarp.bench.cases._tools import float64, itemsize, normal

_DT = 0.01
# Sprott's values; the sum is -(sigma + 1 + beta).
_LORENZ_EXPONENTS = np.array([0.9056, 0.0, -14.5723])


def _exponents(model, states0, steps, transient, k, dt, renormalise):
    def one(state):
        found = dw.dynamics.lyapunov_spectrum(
            model, state, steps=steps, transient=transient, k=k, dt=dt, renormalise=renormalise, throw=False
        )
        return found.exponents

    return jax.vmap(one)(states0)


@case(
    group="dynamics",
    check={"steps": 100, "transient": 0, "batch": 2},
    quick=[{"steps": 20_000, "transient": 2_000, "batch": batch} for batch in (1, 64)],
    full=[{"steps": 100_000, "transient": 10_000, "batch": batch} for batch in (1, 64)],
    gpu=[{"steps": 2_000, "transient": 500, "batch": batch} for batch in (1, 1024, 65536)],
    peers=["numpy", "lyapax", "pynamicalsys"],
)
def lyapunov_lorenz63(*, steps: int, transient: int, batch: int, seed: int) -> Kernel:
    """All three exponents of the Lorenz flow, RK4 with dt = 0.01, from a batch of states."""
    states0 = jnp.array([1.0, 1.0, 20.0]) + normal(seed, (batch, 3), "float64")
    short = steps <= 1000 and batch <= 4
    return Kernel(
        function=_exponents,
        arguments=(dw.systems.Lorenz63(), states0, steps, transient, None, _DT, 10),
        # Beyond a short run rounding decides the path: then only the averages can be compared.
        digest=(lambda exponents: exponents) if short else (lambda exponents: jnp.mean(exponents, 0)),
        reference=lambda: _lorenz_exponents(float64(states0), steps, transient) if short else _LORENZ_EXPONENTS,
        tolerance=1e-9 if short else 2e-3 + 0.2 / (steps * _DT),
        peer_tolerance=0.05,
        # RK4 on the state and on three tangent vectors, and one orthonormalisation every ten steps.
        flops=batch * (steps + transient) * (4 * (14 + 3 * 15 + 4 * 6) + 3),
        bytes=2 * batch * 3 * 8,
        depth=steps + transient,
        work=batch * steps,
        unit="steps",
        peer_inputs={"states0": states0},
    )


def _lorenz_exponents(states: np.ndarray, steps: int, transient: int) -> np.ndarray:
    """The exponents by RK4 on the state and the tangents with a QR decomposition every step."""

    def velocity(s, v):
        x, y, z = s
        jacobian = np.array([[-10, 10, 0], [28 - z, -1, -x], [y, x, -8 / 3]])
        return np.array([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z]), jacobian @ v

    def step(s, v):
        a, da = velocity(s, v)
        b, db = velocity(s + _DT / 2 * a, v + _DT / 2 * da)
        c, dc = velocity(s + _DT / 2 * b, v + _DT / 2 * db)
        d, dd = velocity(s + _DT * c, v + _DT * dc)
        return s + _DT / 6 * (a + 2 * b + 2 * c + d), v + _DT / 6 * (da + 2 * db + 2 * dc + dd)

    exponents = []
    for state in states:
        frame, total = np.eye(3), np.zeros(3)
        for index in range(transient + steps):
            state, frame = step(state, frame)
            frame, r = np.linalg.qr(frame)
            if index >= transient:
                total += np.log(np.abs(np.diag(r)))
        exponents.append(total / (steps * _DT))
    return np.stack(exponents)


@case(
    group="dynamics",
    check={"state_size": 6, "k": 6, "steps": 50},
    quick=[{"state_size": 100, "k": k, "steps": 500} for k in (10, 100)],
    full=[{"state_size": 100, "k": k, "steps": 2000} for k in (10, 100)],
    gpu=[{"state_size": n, "k": k, "steps": 500} for n, k in ((100, 100), (1000, 10))],
    peers=["numpy", "lyapax", "pynamicalsys"],
)
def lyapunov_rnn(*, state_size: int, k: int, steps: int, seed: int) -> Kernel:
    """The leading k exponents of a chaotic tanh network x' = W tanh(x), gain 2."""
    n = state_size
    weight = normal(seed, (n, n), "float64", scale=2 / n**0.5)
    model: Any = dw.models.Elman(0, n, form="pre", use_bias=False, recurrent_init=_Given(weight), key=jax.random.key(0))
    states0 = normal(seed + 1, (1, n), "float64")
    short, every = steps <= 100, 5

    def reference():
        W, x = float64(weight), float64(states0[0])
        frame, total = np.eye(n)[:, :k], np.zeros(k)
        for _ in range(steps):
            frame, r = np.linalg.qr((W * (1 - np.tanh(x) ** 2)) @ frame)
            x = W @ np.tanh(x)
            total += np.log(np.abs(np.diag(r)))
        return total[None] / steps

    return Kernel(
        function=_exponents,
        arguments=(model, states0, steps, 0, k, None, every),
        # Beyond some sixty steps rounding decides the path of a chaotic network. Of 500 steps and of 2000 the exponents
        # of paths that begin 1e-9 apart differ by up to 0.44 of the largest, for want of time.
        reference=reference,
        tolerance=1e-6 if short else 0.6,
        # The state, its Jacobian times k tangents, and an orthonormalisation every five steps.
        flops=steps * (2 * n**2 + 2 * n**2 * k + 2 * n * k**2 / 5),
        bytes=(n**2 + n + k) * itemsize("float64"),
        depth=steps,
        work=steps,
        unit="steps",
        peer_inputs={"weight": weight, "states0": states0},
    )


class _Given:
    """An initialiser that returns a given matrix."""

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, key, shape, dtype):
        return self.weight.astype(dtype)


def _points(model, candidates):
    return dw.dynamics.find_fixed_points(model, candidates, throw=False)


def _settled(found) -> Any:
    # Which lanes end where depends on rounding; how many end on a fixed point, and how exactly, does not.
    fine = found.result == dw.RESULTS.successful
    return jnp.where(fine[:, None], found.points, 0), fine


@case(
    group="dynamics",
    check={"state_size": 4, "batch": 3},
    quick=[{"state_size": n, "batch": batch} for n, batch in ((20, 64), (100, 16))],
    full=[{"state_size": 100, "batch": batch} for batch in (1, 64, 1024)],
    gpu=[{"state_size": 100, "batch": batch} for batch in (1, 1024)],
    peers=["scipy"],
)
def fixed_points_rnn(*, state_size: int, batch: int, seed: int) -> Kernel:
    """Newton searches for fixed points of a contracting tanh network with bias, one from each of a batch of states."""
    n = state_size
    model = dw.models.Elman(0, n, key=jax.random.key(seed))
    weight, bias = 0.9 * model.recurrent_weight, normal(seed + 1, (n,), "float64")
    model = _with(model, weight, bias)
    candidates = normal(seed + 2, (batch, n), "float64")

    def reference():
        # A contraction has one fixed point, and iterating it leads there.
        point = np.zeros(n)
        for _ in range(1000):
            point = np.tanh(float64(weight) @ point + float64(bias))
        return np.tile(point, (batch, 1)), np.ones(batch)

    return Kernel(
        function=_points,
        arguments=(model, candidates),
        digest=_settled,
        reference=reference,
        tolerance=1e-9,
        # About six Newton steps of a Jacobian by forward derivatives and an LU factorisation, and the eigenvalues.
        flops=batch * (6 * (2 * n**3 + 2 / 3 * n**3) + 10 * n**3),
        bytes=(batch * n * 2 + n**2) * itemsize("float64"),
        work=batch,
        unit="searches",
        peer_inputs={"weight": weight, "bias": bias, "candidates": candidates},
    )


def _with(model, weight, bias):
    import equinox as eqx

    return eqx.tree_at(lambda m: (m.recurrent_weight, m.bias), model, (weight, bias))


def _jacobians(model, states, inputs):
    return jax.vmap(lambda state, input: dw.dynamics.jacobian(model, state, input))(states, inputs)


@case(
    group="dynamics",
    check={"state_size": 4, "batch": 3, "dtype": "float64"},
    quick=[{"state_size": 100, "batch": 256, "dtype": "float64"}],
    full=[{"state_size": n, "batch": 256, "dtype": dtype} for n in (32, 256) for dtype in ("float32", "float64")],
    gpu=[{"state_size": 256, "batch": batch, "dtype": "float32"} for batch in (16, 1024)],
    peers=["torch", "torch_cuda"],
)
def jacobians(*, state_size: int, batch: int, dtype: str, seed: int) -> Kernel:
    """The Jacobians of a GRU at a batch of states; the peer is `torch.func.jacrev` under `torch.func.vmap`."""
    n, d = state_size, 4
    model = dw.models.GRU(d, n, dtype=jnp.dtype(dtype), key=jax.random.key(seed))
    states, inputs = normal(seed + 1, (batch, n), dtype), normal(seed + 2, (batch, d), dtype)
    weights = {name: getattr(model, name) for name in ("recurrent_weight", "input_weight", "bias", "bias_n")}

    def reference():
        # h' = (1 - z) c + z h with gates r, z and the candidate c = tanh(W_n x + b + r (U_n h + b_n)).
        W, U, b, inner = (float64(weights[name]) for name in ("recurrent_weight", "input_weight", "bias", "bias_n"))
        found = []
        for h, x in zip(float64(states), float64(inputs)):
            drive, own = U @ x + b, W @ h
            r, z = (1 / (1 + np.exp(-(drive[i * n : (i + 1) * n] + own[i * n : (i + 1) * n]))) for i in (0, 1))
            u = own[2 * n :] + inner
            c = np.tanh(drive[2 * n :] + r * u)
            dr, dz = (r * (1 - r))[:, None] * W[:n], (z * (1 - z))[:, None] * W[n : 2 * n]
            dc = (1 - c**2)[:, None] * (u[:, None] * dr + r[:, None] * W[2 * n :])
            found.append((1 - z)[:, None] * dc + (h - c)[:, None] * dz + np.diag(z))
        return np.stack(found)

    return Kernel(
        function=_jacobians,
        arguments=(model, states, inputs),
        reference=reference,
        tolerance=1e-5 if dtype == "float32" else 1e-12,
        # The state itself, and of every entry of the three weights a handful of products.
        flops=batch * (6 * n * n + 8 * n * n),
        bytes=(batch * n * n + 3 * n * n) * itemsize(dtype),
        work=batch,
        unit="Jacobians",
        peer_inputs={**weights, "states": states, "inputs": inputs},
    )
