"""What `dynwarp analyze` adds for a piecewise-linear model: regions, cycles, manifolds, homoclinic points, basins.

Everything has a cap, so that a model of any size ends in bounded time; what a cap has cut off is told.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp import piecewise
from dynwarp.errors import DynwarpError
from dynwarp.models import AbstractPiecewiseLinearModel

_MAX_REGIONS = 8192
_MAX_WORK = 10_000
_STARTS = 128
_STATES = 256
_PIECES = {1: 20_000, 2: 200}
_PIECES_OF_MANY = 128
# Images of manifolds of two dimensions, and of more.
_ITERATIONS = {1: 1_000_000, 2: 4}
# Beyond these numbers nothing is said about a map: its states overflow.
_LARGEST = 1e8


class Pieces(eqx.Module):
    """`facts` for the JSON; `cycles` and `manifolds` for the figures."""

    facts: dict[str, Any]
    cycles: tuple[Any, ...] = ()
    manifolds: tuple[Any, ...] = ()


def analyze_pieces(model: Any, states: np.ndarray, *, max_period: int, iterations: int, saddles: int) -> Pieces | None:
    """The exact analysis of a piecewise-linear map; None for any other.

    **Arguments:** `model`; `states`, an orbit, `(T, M)`; `max_period` of cycles; `iterations` of manifolds; `saddles`,
    how many of the saddles, those nearest to the orbit, have their manifolds traced.
    """
    if not isinstance(model, AbstractPiecewiseLinearModel):
        return None
    sizes = [np.abs(np.asarray(x)).max(initial=0.0) for x in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))]
    if not all(size < _LARGEST for size in sizes):
        return Pieces({"skipped": "The parameters are not finite, or too large for states to stay finite."})
    form, key = model.canonical(), jax.random.key(0)
    facts: dict[str, Any] = {}
    regions = piecewise.enumerate_regions(form, max_regions=_MAX_REGIONS, key=key)
    facts["regions"] = {"number": len(regions), "complete": regions.complete, "certificate": regions.certificate}
    found = piecewise.find_cycles(
        form, max_period, key=key, max_certificate_work=_MAX_WORK, n_starts=_STARTS, n_iterations=32, max_cycles=200
    )
    facts["cycles"] = [_cycle(cycle) for cycle in found]
    facts["complete"] = {str(period): proof for period, proof in found.complete.items()}
    facts["certificate"] = {str(period): text for period, text in found.certificate.items()}
    facts["homeomorphism"] = _told(lambda: _homeomorphism(form))
    orbit = states[np.isfinite(states).all(axis=1)][-2000:]
    manifolds, traced, homoclinic = [], [], []
    for cycle in _nearest(found, orbit)[:saddles]:
        for kind in ("stable", "unstable"):
            traced.append(_told(lambda cycle=cycle, kind=kind: _trace(form, cycle, kind, iterations, orbit, manifolds)))
        homoclinic.append(_told(lambda cycle=cycle: _homoclinic(form, cycle, 3 * iterations)))
    facts["manifolds"], facts["homoclinic"] = traced, homoclinic
    facts["basins"] = _told(lambda: _basins(form, found, orbit))
    return Pieces(facts, tuple(found), tuple(manifolds))


def _told(compute) -> dict[str, Any]:
    """What `compute` finds, or in one sentence why there is nothing."""
    try:
        return compute()
    except DynwarpError as error:
        return {"error": str(error)}


def _cycle(cycle) -> dict[str, Any]:
    moduli = np.abs(np.asarray(cycle.multipliers))
    return {
        "period": cycle.period,
        "kind": cycle.kind,
        "point": cycle.points[0],
        "largest_multiplier": moduli.max(initial=0.0),
        "unstable_directions": int((moduli > 1).sum()),
        "residual": cycle.residual,
        "on_border": bool(np.any(np.asarray(cycle.on_border))),
    }


def _homeomorphism(form) -> dict[str, Any]:
    found = piecewise.is_homeomorphism(form)
    return {"value": found.value, "certificate": found.certificate}


def _nearest(cycles, orbit: np.ndarray) -> list[Any]:
    """The saddles, those first that come nearest to the orbit."""
    saddles = [cycle for cycle in cycles if cycle.kind == "saddle"]
    if not len(orbit):
        return saddles
    return sorted(saddles, key=lambda c: np.linalg.norm(np.asarray(c.points)[:, None] - orbit[None], axis=2).min())


def _trace(form, cycle, kind, iterations: int, orbit, manifolds) -> dict[str, Any]:
    unstable = int((np.abs(np.asarray(cycle.multipliers)) > 1).sum())
    dimension = unstable if kind == "unstable" else form.state_size - unstable
    cap = _PIECES.get(dimension, _PIECES_OF_MANY)
    steps = min(iterations, _ITERATIONS.get(dimension, 1))
    room = None
    if kind == "stable" and dimension <= 2:
        points = np.concatenate([np.asarray(cycle.points), orbit])
        middle, half = (points.max(0) + points.min(0)) / 2, (points.max(0) - points.min(0)) / 2
        room = (middle - 2 * half - 1.0, middle + 2 * half + 1.0)
    manifold = piecewise.trace_manifold(form, cycle, kind=kind, iterations=steps, box=room, max_pieces=cap)
    manifolds.append(manifold)
    return {
        "kind": kind,
        "period": cycle.period,
        "dimension": manifold.dimension,
        "pieces": manifold.number_of_pieces,
        "iterations": manifold.iterations,
        "limits": list(manifold.limits),
        "length": manifold.length if manifold.dimension == 1 else None,
    }


def _homoclinic(form, cycle, iterations: int) -> dict[str, Any]:
    unstable = int((np.abs(np.asarray(cycle.multipliers)) > 1).sum())
    steps = min(iterations, _ITERATIONS.get(unstable, 1))
    found = piecewise.homoclinic_points(
        form, cycle, iterations=steps, max_pieces=_PIECES.get(unstable, _PIECES_OF_MANY), max_points=2_000
    )
    return {
        "period": cycle.period,
        "points": len(found),
        "chaos": found.chaos,
        "verdict": found.verdict,
        "truncated": found.truncated,
    }


def _basins(form, cycles, orbit: np.ndarray) -> dict[str, Any]:
    attractors: list[Any] = [cycle for cycle in cycles if cycle.kind == "stable"]
    names = [f"stable cycle of period {cycle.period}" for cycle in attractors]
    scale = float(np.std(orbit)) if len(orbit) else 0.0
    away = [np.linalg.norm(np.asarray(c.points) - orbit[-1], axis=1).min() for c in attractors] if len(orbit) else []
    if len(orbit) and scale > 0 and not any(gap < 1e-3 * scale for gap in away):
        attractors.append(orbit[-1000:])
        names.append("the end of the free run")
    if not attractors:
        return {"error": "No attractor is known: no stable cycle was found, and the free run is not bounded."}
    low, high = (f(np.concatenate([orbit, *[np.asarray(c.points) for c in cycles]]), axis=0) for f in (np.min, np.max))
    room = 0.5 * (high - low) + 1e-3
    draw = np.random.default_rng(0).uniform(low - room, high + room, (_STATES, form.state_size))
    labels = np.asarray(
        piecewise.basin_of(form, jnp.asarray(draw), attractors, steps=5_000, tolerance=max(0.05 * scale, 1e-6))
    )
    return {
        "states": _STATES,
        "box": [low - room, high + room],
        "shares": [{"attractor": name, "share": float(np.mean(labels == i))} for i, name in enumerate(names)],
        "diverge": float(np.mean(labels == -1)),
        "undecided": float(np.mean(labels == -2)),
    }
