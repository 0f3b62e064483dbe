"""Cycles of piecewise-linear maps: the batched search, and the search with its certificate."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import dynwarp as dw
from dynwarp.bench._case import Kernel, case
from dynwarp.bench.cases._tools import float64
from dynwarp.piecewise._jump import jump

_PATIENCE = 30
_COMPARED = 2  # lanes


def _jump(form, itineraries, fresh, period):
    age = jnp.zeros(itineraries.shape[-1], int)
    return jump(form, itineraries, age, fresh, period, jnp.asarray(_PATIENCE))[1]


def _searches(*periods: int) -> list[dict[str, int]]:
    return [{"state_size": 10, "period": period, "lanes": 128, "jumps": 64} for period in periods]


@case(
    group="piecewise",
    check={"state_size": 3, "period": 2, "lanes": 4, "jumps": 6},
    quick=_searches(1, 10),
    full=_searches(5),
    gpu=[{"state_size": 10, "period": 10, "lanes": lanes, "jumps": 8} for lanes in (128, 4096, 65_536)],
    peers=["numpy"],
)
def cycle_search(*, state_size: int, period: int, lanes: int, jumps: int, seed: int) -> Kernel:
    """Jumps between itineraries of a PLRNN, each of which solves for the cycle that an itinerary would have."""
    n, rng = state_size, np.random.default_rng(seed)
    A, W, h = rng.uniform(0.3, 0.9, n), 0.2 * rng.normal(size=(n, n)), rng.normal(size=n)
    form = dw.models.PLRNN.from_parameters(jnp.asarray(A), jnp.asarray(W), jnp.asarray(h)).canonical()
    # Padded to a power of two, as the library does: the entries beyond the period are not read.
    capacity = max(4, 1 << (period - 1).bit_length())
    fresh = rng.random((jumps, capacity, n, lanes)) < 0.5
    first = rng.random((capacity, n, lanes)) < 0.5

    def reference():
        return _published_jumps(A, W, h, first[..., :_COMPARED], fresh[..., :_COMPARED], period)

    candidates = lanes * jumps
    return Kernel(
        function=_jump,
        arguments=(form, jnp.asarray(first), jnp.asarray(fresh), jnp.asarray(period)),
        digest=lambda output: (output[0][:, :period, :, :_COMPARED], output[1][:, :_COMPARED]),
        reference=reference,
        tolerance=0.0,
        # The chain of matrices, one elimination, and the orbit.
        flops=candidates * (period * (2 * 3 * n * n * (n + 1) + 6 * n * n) + 2 / 3 * n**3),
        bytes=(fresh.size + first.size),
        depth=2 * jumps * period,
        work=candidates,
        unit="candidates",
        peer_work=300,
        peer_inputs={"A": A, "W": W, "h": h},
    )


def _published_jumps(A, W, h, first, fresh, period) -> tuple[np.ndarray, np.ndarray]:
    """The itineraries, and which are cycles, one search after the other: Eisenmann et al. (2023), algorithm 1."""
    seen, hits = np.zeros((len(fresh), period, *fresh.shape[2:])), np.zeros(fresh.shape[::3])
    for lane in range(fresh.shape[-1]):
        patterns, age = first[..., lane], 0
        for i in range(len(fresh)):
            seen[i, ..., lane] = patterns[:period]
            motion, constant = np.eye(len(A)), np.zeros(len(A))
            for gate in patterns[:period]:
                jacobian = np.diag(A) + W * gate
                motion, constant = jacobian @ motion, jacobian @ constant + h
            z = np.linalg.solve(np.eye(len(A)) - motion, constant)
            visited = patterns.copy()
            for j in range(period):
                visited[j] = z > 0
                z = A * z + W @ np.maximum(z, 0) + h
            hits[i, lane] = (visited[:period] == patterns[:period]).all()
            over = hits[i, lane] or age >= _PATIENCE
            patterns, age = (fresh[i, ..., lane], 0) if over else (visited, age + 1)
    return seen, hits


# Of the chaotic map of the plane, by period from 1 on, as published.
_COUNTS = (1, 1, 2, 3, 4, 5, 6, 6, 12, 16)


@case(group="piecewise", check={"max_period": 3}, quick=[{"max_period": 10}])
def certified_cycles(*, max_period: int, seed: int) -> Kernel:
    """All cycles of the chaotic map of the plane up to a period, with the proof that there are no others."""
    f, key = dw.systems.BorderCollisionMap.preset("fig5"), jax.random.key(seed)
    return Kernel(
        function=_find,
        arguments=(f, max_period, key),
        digest=lambda found: np.array([len(found.of_period(k)) for k in range(1, max_period + 1)], np.float64),
        reference=lambda: float64(_COUNTS[:max_period]),
        tolerance=0.0,
        work=sum(_COUNTS[:max_period]),
        unit="cycles",
        compiled=False,
    )


def _find(f, max_period, key):
    return dw.piecewise.find_cycles(f, max_period, key=key)
