"""What `dynwarp analyze` computes: numbers for the JSON, and the arrays that its figures show."""

from __future__ import annotations

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp import dynamics, metrics
from dynwarp._results import RESULTS
from dynwarp._simulate import simulate
from dynwarp.cli._analysis_inputs import analyze_inputs
from dynwarp.cli._analysis_piecewise import Pieces, analyze_pieces
from dynwarp.cli._flow import FlowMap
from dynwarp.cli._input_manifold import InputFile
from dynwarp.io import Series
from dynwarp.models import AbstractMap, AbstractPiecewiseLinearModel
from dynwarp.training import Reconstruction

HORIZON, LONGEST_HORIZON = 20, 40
# Regions of a piecewise-linear map that are all looked into for fixed points.
_MAX_RELUS = 10
# A free run that leaves this many ranges of the recording counts as unbounded.
_BOUND = 3.0


class Analysis(eqx.Module):
    """`facts`, plain numbers and strings for the JSON; `arrays`, `pieces` and `of_inputs` for the figures."""

    facts: dict[str, Any]
    arrays: dict[str, np.ndarray]
    pieces: Pieces | None = None
    of_inputs: dict[str, np.ndarray] | None = None


def analyze(
    model: Reconstruction | AbstractMap,
    series: Series | None,
    parts: tuple[Series, Series] | None,
    steps: int,
    *,
    max_period: int = 4,
    iterations: int = 10,
    saddles: int = 2,
    inputs: InputFile | None = None,
):
    """All that is known of a model, and of a piecewise-linear one its cycles, manifolds and basins.

    **Arguments:** `model`, in double precision, a field as its `FlowMap`; `series` and its `parts`, the stretch it was
    trained on and the tail that was held out, or None; `steps` of the free run; `max_period`, `iterations` and
    `saddles` of the analysis of a piecewise-linear map, which `saddles=0` leaves out; `inputs`, a manifold whose metric
    is reported.
    """
    facts: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    if isinstance(model, Reconstruction):
        map = model.map
        start = jnp.zeros(model.observation_size) if parts is None else jnp.asarray(parts[0].values[0])
        state0 = model.encode(start)
    else:
        map, state0 = model, jnp.zeros(model.state_size)
    continuous = isinstance(map, FlowMap)
    name = type(map.field if continuous else map).__name__
    facts["model"] = {"class": name, "state_size": map.state_size, "parameters": _parameter_count(model)}
    if continuous:
        facts["model"]["time_step"] = map.dt

    states = np.asarray(simulate(map, state0, steps=steps, mode="scan"))
    if series is not None and parts is not None and isinstance(model, Reconstruction):
        channels = series.values.shape[1] // series.dimension
        facts["prediction"] = prediction(model, parts, channels, arrays)
        facts["generation"] = generation(model, states, series, parts[0], channels, arrays)
        bounded = facts["generation"]["bounded"]
    else:
        bounded = bool(np.isfinite(states).all())
        facts["generation"] = {"steps": steps, "bounded": bounded}

    if bounded:
        interval = map.dt if continuous else None if series is None else series.sampling_interval
        facts["lyapunov"] = lyapunov(map, jnp.asarray(states[-1]), steps, interval, arrays)
    facts["fixed_points"] = _fixed_points(map, states[np.isfinite(states).all(1)], arrays)
    arrays["states"] = states
    pieces = None
    if saddles:
        pieces = analyze_pieces(map, states, max_period=max_period, iterations=iterations, saddles=saddles)
    if pieces is not None:
        facts["piecewise"] = pieces.facts
    of_inputs = None
    if inputs is not None:
        readout = model.readout if isinstance(model, Reconstruction) else None
        found = analyze_inputs(map, readout, state0, inputs)
        facts["inputs"], of_inputs = found.facts, found.arrays
    return Analysis(plain(facts), arrays, pieces, of_inputs)


@eqx.filter_jit
def _predictions(model: Reconstruction, values, longest: int):
    """What follows each observation, `(T, longest, N)`."""

    def follow(x):
        return jax.vmap(model.decode)(simulate(model.map, model.encode(x), steps=longest, mode="scan"))

    return jax.vmap(follow)(values)


def prediction(model: Reconstruction, parts, channels: int, arrays) -> dict[str, Any]:
    facts: dict[str, Any] = {"horizon": HORIZON, "channels": channels}
    for name, part in zip(("training", "held_out"), parts):
        values = np.asarray(part.values)
        longest = min(LONGEST_HORIZON, len(values) - 1)
        predicted = np.asarray(_predictions(model, jnp.asarray(values), longest))[..., :channels]
        seen = values[:, :channels]
        ahead = range(1, longest + 1)
        with np.errstate(over="ignore"):
            errors = np.array([np.mean((predicted[:-n, n - 1] - seen[n:]) ** 2) for n in ahead])
        persistence = np.array([np.mean((seen[:-n] - seen[n:]) ** 2) for n in ahead])
        arrays[f"error_{name}"], arrays[f"persistence_{name}"] = errors, persistence
        facts[name] = {"rows": len(values)}
        if longest >= HORIZON:
            e, p = errors[HORIZON - 1], persistence[HORIZON - 1]
            # None where there is no such ratio: persistence is without error on a stretch that stands still.
            better = p / e if p > 0 and 0 < e < np.inf else None
            facts[name] |= {"prediction_error": e, "persistence_error": p, "times_better": better}
            arrays[f"predicted_{name}"] = predicted[:-HORIZON, HORIZON - 1]
    return facts


def generation(model: Reconstruction, states, series: Series, train: Series, channels: int, arrays) -> dict[str, Any]:
    free = np.asarray(jax.vmap(model.decode)(jnp.asarray(states)))
    seen, values = train.values[:, :channels], free[:, :channels]
    low, high = seen.min(0), seen.max(0)
    with np.errstate(invalid="ignore"):
        excursion = np.abs(values - (low + high) / 2).max(0) / (high - low) * 2
    bounded = bool(np.all(excursion <= 2 * _BOUND))
    facts: dict[str, Any] = {"steps": len(free), "bounded": bounded, "largest_excursion": excursion.max()}
    arrays["free"] = np.asarray(series.to_original(free)[:, :channels])
    arrays["recorded"] = np.asarray(series.to_original(series.values)[:, :channels])
    if bounded:
        # After a transient of a quarter of the recording, as in the literature.
        late = free[len(seen) // 4 :][: len(train.values)]
        if len(late) == len(train.values):
            facts |= _distances(train.values, late, channels)
            facts["yardsticks"] = yardsticks(train.values, channels)
    return facts


def yardsticks(recorded, channels: int) -> dict[str, dict[str, float]]:
    """For each distance what the halves of the recording make of each other, and what noise reaches."""
    whole, seen = jnp.asarray(recorded), jnp.asarray(recorded[:, :channels])
    out: dict[str, dict[str, float]] = {}
    for name, metric, values in (
        ("power_spectrum_distance", metrics.power_spectrum_distance, seen),
        ("state_space_divergence", metrics.state_space_divergence, whole),
    ):
        if len(values) >= 4:
            halves, chance = metrics.split_half(metric, values), metrics.chance_level(metric, values)
            out[name] = {"best_possible": float(halves), "chance": float(chance)}
    return out


def _distances(recorded, generated, channels: int) -> dict[str, float]:
    return {
        "power_spectrum_distance": float(
            metrics.power_spectrum_distance(jnp.asarray(recorded[:, :channels]), jnp.asarray(generated[:, :channels]))
        ),
        "state_space_divergence": float(
            metrics.state_space_divergence(jnp.asarray(recorded), jnp.asarray(generated), key=jax.random.key(0))
        ),
    }


def lyapunov(map, state, steps: int, interval: float | None, arrays) -> dict[str, Any]:
    spectrum = dynamics.lyapunov_spectrum(map, state, steps=steps, throw=False)
    exponents = np.asarray(spectrum.exponents)
    arrays["exponents"], arrays["exponents_error"] = exponents, np.asarray(spectrum.standard_error)
    return {
        "exponents": exponents,
        "standard_error": spectrum.standard_error,
        "sum_rule_residual": spectrum.sum_rule_residual,
        "kaplan_yorke_dimension": spectrum.kaplan_yorke_dimension,
        "unit": "nats per step",
        "largest_per_unit_of_time": None if interval is None else exponents[0] / interval,
        "result": str(RESULTS[spectrum.result]) or "successful",
    }


def _fixed_points(map, states, arrays) -> dict[str, Any]:
    candidates, complete = _candidates(map, states)
    facts: dict[str, Any] = {"candidates": len(candidates), "complete": complete, "points": []}
    if len(candidates) == 0:
        return facts
    found = dynamics.find_fixed_points(map, jnp.asarray(candidates), throw=False).distinct()
    arrays["fixed_points"], arrays["is_stable"] = np.asarray(found.points), np.asarray(found.is_stable)
    arrays["eigenvalues"] = np.asarray(found.eigenvalues)
    for point, values, residual, stable in zip(found.points, found.eigenvalues, found.residual, found.is_stable):
        moduli = np.abs(np.asarray(values))
        facts["points"].append(
            {
                "point": point,
                "eigenvalues": [[v.real, v.imag] for v in np.asarray(values)],
                "spectral_radius": moduli.max(),
                "unstable_directions": int((moduli > 1).sum()),
                "is_stable": bool(stable),
                "residual": residual,
            }
        )
    return facts


def _candidates(map, states) -> tuple[np.ndarray, bool]:
    """Starts of the search for fixed points, and whether every fixed point is among them.

    A fixed point of a piecewise-linear map is the fixed point of the affine map of its region. Where the regions are
    few, that of every pattern is a start, so that none is missed; else those of the patterns that the free run visits.
    """
    spread = states[:: max(1, len(states) // 256)]
    if not isinstance(map, AbstractPiecewiseLinearModel):
        return spread, False
    linear = map.canonical()
    relus = linear.h2.size
    if relus <= _MAX_RELUS:
        patterns = np.array(list(itertools.product([False, True], repeat=relus)), bool).reshape(-1, relus)
    else:
        visited = np.asarray(jax.vmap(linear.pattern)(jnp.asarray(states)))
        patterns = np.unique(visited, axis=0)[:4096]
    J, b = (np.asarray(x) for x in jax.vmap(linear.affine)(jnp.asarray(patterns)))
    eye = np.eye(linear.state_size)
    finite = np.isfinite(J).all((1, 2)) & np.isfinite(b).all(1)
    conditions = np.linalg.cond(np.where(np.expand_dims(finite, (1, 2)), eye - J, 0.0))
    regular = finite & (conditions < 1e12)
    virtual = np.linalg.solve(eye - J[regular], b[regular][..., None])[..., 0]
    complete = relus <= _MAX_RELUS and bool(regular.all())
    return np.concatenate([virtual, spread]), complete


def _parameter_count(model) -> int:
    return sum(x.size for x in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))


def plain(value: Any) -> Any:
    """Numbers and arrays as JSON holds them; what is not finite becomes null."""
    if isinstance(value, dict):
        return {name: plain(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [plain(x) for x in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return plain(np.asarray(value).tolist())
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value
