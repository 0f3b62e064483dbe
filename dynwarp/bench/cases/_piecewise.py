"""Exact analysis of piecewise-linear maps: many small ones at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import dynwarp as dw
from dynwarp.bench._case import Kernel, case
from dynwarp.bench.cases._tools import float64


def _analyse(maps, patterns, owner):
    return dw.piecewise.fixed_points_of_maps(maps, patterns, owner, capacity=2 * len(maps.h1))


def _verdicts(found):
    return found.count, found.is_coherent, jnp.sum(found.n_unstable)


@case(
    group="piecewise",
    check={"maps": 8},
    quick=[{"maps": 1000}],
    gpu=[{"maps": n} for n in (1000, 100_000)],
)
def piecewise_maps(*, maps: int, seed: int) -> Kernel:
    """Fixed points, their unstable directions and the signs of all determinants of random maps, M = 5, P = 1 to 5."""
    rng = np.random.default_rng(seed)
    relus = 1 + np.arange(maps) % 5
    on = np.arange(5) < relus[:, None]
    stacked = jax.vmap(dw.models.PiecewiseLinearMap)(
        *(
            jnp.asarray(x)
            for x in (
                rng.uniform(-0.9, 0.9, (maps, 5))[:, None] * np.eye(5),
                rng.normal(size=(maps, 5, 5)),
                on[:, :, None] * np.eye(5),
                rng.normal(size=(maps, 5)),
                np.where(on, 0.0, -1.0),
            )
        )
    )
    patterns = np.concatenate([(np.arange(2**p)[:, None] >> np.arange(5)) & 1 == 1 for p in relus])
    owner = np.repeat(np.arange(maps), 2**relus)

    def reference():
        fields = [float64(x) for x in (stacked.A, stacked.W1, stacked.W2, stacked.h1, stacked.h2)]
        count, signs, unstable = np.zeros(maps), [set() for _ in range(maps)], 0
        for i, gate in zip(owner, patterns, strict=True):
            A, W1, W2, h1, h2 = (field[i] for field in fields)
            jacobian = A + (W1 * gate) @ W2
            signs[i].add(np.sign(np.linalg.det(jacobian)))
            z = np.linalg.solve(np.eye(5) - jacobian, (W1 * gate) @ h2 + h1)
            if ((W2 @ z + h2 > 0) == gate).all():
                count[i] += 1
                unstable += np.sum(np.abs(np.linalg.eigvals(jacobian)) > 1)
        return count, np.array([len(each) == 1 for each in signs]), unstable

    regions = len(owner)
    return Kernel(
        function=_analyse,
        arguments=(stacked, jnp.asarray(patterns), jnp.asarray(owner)),
        digest=_verdicts,
        reference=reference,
        tolerance=1e-12,
        # The Jacobian and two eliminations a region; the characteristic polynomial a fixed point, about one a map.
        flops=regions * (2 * 5 * 25 + 2 * 2 / 3 * 125) + maps * 2 * 5 * 125,
        bytes=(maps * 85 + regions * 8) * 8,
        work=maps,
        unit="maps",
    )
