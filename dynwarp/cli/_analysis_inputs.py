"""What `dynwarp analyze --inputs` computes: how a model warps a manifold of inputs."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp import geometry
from dynwarp._results import RESULTS
from dynwarp.cli._input_manifold import InputFile
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.models import AbstractMap

# Points that are simulated at once.
_BATCH = 256


class InputsAnalysis(eqx.Module):
    """`facts`, plain numbers and strings for the JSON; `arrays` for the figures, with the axes of the grid in front."""

    facts: dict[str, Any]
    arrays: dict[str, np.ndarray]


def check_sizes(map: AbstractMap, inputs: InputFile) -> int:
    """The number of steps; raises where the inputs are none of the model."""
    theta = jax.ShapeDtypeStruct((inputs.manifold.dim,), jnp.zeros(()).dtype)
    shape = eqx.filter_eval_shape(inputs.manifold, theta).shape
    if len(shape) != 2 or shape[1] != map.input_size:
        raise ArgumentError(
            f"`--inputs`: the inputs have {shape[-1]} channels; the {type(getattr(map, 'field', map)).__name__} takes "
            f"{map.input_size}."
        )
    if map.state_size < inputs.manifold.dim:
        raise ArgumentError(
            f"`--inputs`: {inputs.manifold.dim} coordinates are too many for the {map.state_size} states of the model."
        )
    return shape[0]


def analyze_inputs(map: AbstractMap, readout: Any, state0: Any, inputs: InputFile) -> InputsAnalysis:
    """The metric of states, and of outputs where there is a `readout`, on the grid of the file, at every step.

    Whatever is not finite is NaN: before a coordinate has reached the states the metric is degenerate, and its
    logarithm and its curvature do not exist.
    """
    manifold, m = inputs.manifold, inputs.manifold.dim
    steps = check_sizes(map, inputs)
    grid = manifold.grid(inputs.points)
    state0 = jnp.asarray(state0, float)
    found: Any = geometry.representation_metric(
        map, manifold, grid, state0=state0, method="forward", batch_size=_BATCH, throw=False
    )
    G = found.G * jnp.exp(2 * found.log_scale)[..., None, None]
    before = jnp.concatenate([jnp.broadcast_to(state0, (*grid.shape[:-1], 1, state0.size)), found.states], axis=-2)
    input_metric = _input_metric(manifold, grid)
    arrays: dict[str, np.ndarray] = {
        "thetas": np.asarray(grid),
        "G": np.asarray(G),
        "stretches": np.asarray(found.stretches()),
    }
    facts: dict[str, Any] = {
        "chart": inputs.chart,
        "coordinates": m,
        "periods": [period for period, _ in manifold._axes()],
        "bounds": [bound for _, bound in manifold._axes()],
        "points": list(inputs.points),
        "steps": steps,
        "dt": inputs.dt,
        "time": inputs.dt * np.arange(1.0, steps + 1),
        "relevant": inputs.relevant,
        "failed_points": int(np.sum(np.asarray(found.result != RESULTS.successful))),
        "states": _measures(G, arrays["stretches"], input_metric, inputs.relevant, arrays, "states"),
        "rank": _rank(found.tangents, jnp.diff(before, axis=-2)),
        "curvature": _curvature(map, manifold, grid, state0, arrays),
    }
    if readout is not None:
        seen = geometry.representation_metric(
            map, manifold, grid, state0=state0, method="forward", batch_size=_BATCH, keep="metric", throw=False,
            readout=_Outputs(readout),
        )  # fmt: skip
        scaled = seen.G * jnp.exp(2 * seen.log_scale)[..., None, None]
        stretches = np.asarray(seen.stretches())
        facts["outputs"] = _measures(scaled, stretches, input_metric, inputs.relevant, arrays, "outputs")
    return InputsAnalysis(facts, arrays)


class _Outputs(eqx.Module):
    """A readout as a function of the state alone."""

    readout: Any

    def __call__(self, state):
        return self.readout(state, None)


def _input_metric(manifold, grid):
    """The metric of the inputs as functions of time: sums over steps and channels."""

    def one(theta):
        tangents = jax.jacfwd(manifold)(theta)
        return jnp.einsum("tdi,tdj->ij", tangents, tangents)

    flat = jax.lax.map(one, grid.reshape(-1, grid.shape[-1]), batch_size=_BATCH)
    return flat.reshape(*grid.shape[:-1], *flat.shape[1:])


def _measures(G, stretches, input_metric, relevant, arrays, name: str) -> dict[str, Any]:
    """Measures of a metric at every step; medians and quantiles are over the points."""
    warping = geometry.warping(G, input_metric=input_metric, relevant=relevant)
    points = tuple(range(stretches.ndim - 2))
    low, middle, high = np.quantile(stretches, [0.05, 0.5, 0.95], axis=points)
    facts: dict[str, Any] = {
        # From the largest to the smallest, one list a step.
        "principal_stretches": {"median": middle[:, ::-1], "low": low[:, ::-1], "high": high[:, ::-1]},
        "quantiles": [0.05, 0.5, 0.95],
    }
    for measure in ("scale", "anisotropy", "inhomogeneity", "shear", "index"):
        value = np.asarray(getattr(warping, measure))
        facts[measure] = np.where(np.isfinite(value), value, np.nan)
    if relevant is not None:
        facts["relevance_ratio"] = warping.relevance_ratio
        facts["relevance_quantiles"] = warping.relevance_quantiles
        facts["irrelevant_share"] = warping.irrelevant_share
    arrays[f"index_{name}"] = facts["index"]
    return facts


def _rank(tangents, velocities) -> dict[str, Any]:
    """How many dimensions the states have at each step, and all together with time."""
    m, n = tangents.shape[-1], tangents.shape[-2]
    rank = geometry.immersion_rank(tangents)
    full = np.asarray(rank.immersed()) == 1
    facts: dict[str, Any] = {
        "least": rank.rank.reshape(-1, rank.rank.shape[-1]).min(0),
        "largest": rank.rank.reshape(-1, rank.rank.shape[-1]).max(0),
        "immersed": rank.immersed(),
        "independence": rank.independence.reshape(-1, rank.rank.shape[-1]).min(0),
        "first_full_step": int(np.argmax(full)) + 1 if full.any() else None,
        "with_time": None,
        "bound": m + 1,
    }
    if n > m:
        facts["with_time"] = geometry.immersion_rank(tangents, velocities).dimension()
    return facts


def _curvature(map, manifold, grid, state0, arrays) -> dict[str, Any]:
    """The scalar curvature, half of which is Gauss's of a surface, at every step, or why there is none."""
    if manifold.dim < 2:
        return {"refused": "A line has no curvature of its own."}
    try:
        found = geometry.curvature_history(map, manifold, grid, state0=state0, batch_size=_BATCH, throw=False)
    except ModelError as error:
        return {"refused": str(error)}
    value = np.asarray(found.scalar_curvature)
    kind = "scalar"
    if manifold.dim == 2:
        value, kind = value / 2, "gaussian"
    arrays["curvature"] = value
    flat = value.reshape(-1, value.shape[-1])
    known = np.isfinite(flat)
    facts: dict[str, Any] = {"kind": kind, "defined": known.mean(0)}
    for name, level in (("low", 0.05), ("median", 0.5), ("high", 0.95)):
        facts[name] = [np.quantile(x[k], level) if k.any() else None for x, k in zip(flat.T, known.T)]
    return facts
