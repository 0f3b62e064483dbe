"""What came of the seeds of a `dynwarp fit`: metrics of each beside their yardsticks, and the report."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp import metrics, plot, report
from dynwarp._simulate import simulate
from dynwarp._version import __version__
from dynwarp.cli import _analysis, _present
from dynwarp.io import Series
from dynwarp.report import Figure, Section, Table, Text
from dynwarp.training import FitResult

_NAMES = {
    "prediction_error": f"PE({_analysis.HORIZON}), held out",
    "state_space_divergence": "D_stsp",
    "power_spectrum_distance": "D_H",
    "largest_exponent": "largest Lyapunov exponent, a step",
}


def evaluate(result: FitResult, series: Series, parts: tuple[Series, Series]) -> _analysis.Analysis:
    """The metrics of every seed, in double precision, and the free run of the best.

    Facts: for each metric its `values`, None where a seed has none, and the two yardsticks: `best_possible`, what the
    halves of the training stretch make of each other, and `chance`, noise or persistence.
    """
    count = result.seeds or 1
    best = 0 if result.seeds is None else result.best_seed()
    channels = series.values.shape[1] // series.dimension
    steps = math.ceil(1.25 * len(parts[0].values)) + 1
    values: dict[str, list[Any]] = {name: [] for name in _NAMES}
    arrays: dict[str, np.ndarray] = {}
    for i in range(count):
        model = (result if result.seeds is None else result.seed(i)).reconstruction
        model = jax.tree.map(lambda x: x.astype(float) if eqx.is_inexact_array(x) else x, model)
        found: dict[str, np.ndarray] = {}
        states = np.asarray(
            simulate(model.map, model.encode(jnp.asarray(parts[0].values[0])), steps=steps, mode="scan")
        )
        prediction = _analysis.prediction(model, parts, channels, found)["held_out"]
        generation = _analysis.generation(model, states, series, parts[0], channels, found)
        values["prediction_error"].append(prediction.get("prediction_error"))
        for name in ("state_space_divergence", "power_spectrum_distance"):
            values[name].append(generation.get(name))
        exponent = None
        if generation["bounded"]:
            exponent = _analysis.lyapunov(model.map, jnp.asarray(states[-1]), 1000, None, found)["exponents"][0]
        values["largest_exponent"].append(exponent)
        if i == best:
            arrays = found
    facts: dict[str, Any] = {name: {"values": v} for name, v in values.items()}
    for name, marks in _analysis.yardsticks(parts[0].values, channels).items():
        facts[name] |= marks
    held_out = parts[1].values[:, :channels]
    if len(held_out) > _analysis.HORIZON:
        persistence = metrics.persistence_error(jnp.asarray(held_out), _analysis.HORIZON)
        facts["prediction_error"] |= {"best_possible": None, "chance": float(persistence)}
    facts["best_seed"] = best
    arrays["losses"] = np.atleast_2d(result.history.loss)
    return _analysis.Analysis(_analysis.plain(facts), arrays)


def lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """A name and a sentence for every metric that there is."""
    out = []
    for key, name in _NAMES.items():
        median, low, high, count = _interval(facts[key]["values"])
        if median is not None:
            spread = f" (seeds {low:.3g} to {high:.3g})" if count > 1 else ""
            marks = [(word, facts[key].get(mark)) for word, mark in (("halves", "best_possible"), ("chance", "chance"))]
            beside = ", ".join(f"{word} {value:.3g}" for word, value in marks if value is not None)
            out.append((name, f"{median:.3g}{spread}" + (f"; {beside}" if beside else "")))
    return out


def _interval(values):
    known = np.array([v for v in values if v is not None], float)
    if known.size == 0:
        return None, None, None, 0
    return float(np.median(known)), float(known.min()), float(known.max()), known.size


def html_page(file: str, metadata: dict[str, Any], evaluation: _analysis.Analysis, series: Series) -> str:
    """The report of a training, one self-contained page."""
    facts, arrays = evaluation.facts, evaluation.arrays
    seeds = len(facts["prediction_error"]["values"])
    sections = [
        _metrics(facts, seeds, metadata["series"]["missing"]),
        _runs(arrays, series),
        _spectra(arrays, series),
        _projections(arrays, series),
    ]
    if seeds > 1:
        sections.append(_losses(arrays["losses"], facts["best_seed"]))
    history = {name: np.asarray(x, float).tolist() for name, x in metadata["history"].items()}
    sections.append(_present.training_section(metadata | {"history": history}))
    return report.page(
        f"Training of {file}",
        sections,
        summary=f"{seeds} {'seeds' if seeds > 1 else 'seed'} trained on `{series.source}`. "
        f"Written by dynwarp {__version__}.",
    )


def _metrics(facts, seeds: int, missing: int) -> Section:
    rows = []
    for key, name in _NAMES.items():
        median, low, high, count = _interval(facts[key]["values"])
        marks = [facts[key].get("best_possible"), facts[key].get("chance")]
        cells = [median, low, high, *marks]
        rows.append([name, *("-" if x is None else x for x in cells), f"{count} of {seeds}"])
    header = ["quantity", "median", "least", "most", "halves of the data", "chance", "seeds that have it"]
    text = (
        "In standard deviations of the recording. The free run of each seed starts at the first row of the training "
        "stretch and is compared with it after a quarter of its length; one that leaves three ranges of the recording "
        "has no D_stsp and D_H. Halves: the metric between the halves of the training stretch. Chance: noise of the "
        "same covariance; for predictions, that the last value stays."
    )
    if missing:
        text += (
            f" {missing} values of the recording are missing. The training left them out; here and in the figures "
            "straight lines stand in their place."
        )
    return Section("Metrics", [Text(text), Table(header, rows)])


def _runs(arrays, series: Series) -> Section:
    recorded, free = arrays["recorded"], arrays["free"]
    count = min(3, recorded.shape[1])
    canvas, axes = _present.figure(count, size=(8.5, 1.2 + 1.8 * count))
    shown = min(len(recorded), len(free), 3000)
    for i, ax in enumerate(np.atleast_1d(axes)):
        plot.series(recorded[:shown, i], free[:shown, i], sampling_interval=series.sampling_interval, ax=ax)
        ax.set_ylabel(series.columns[i])
    caption = (
        "The recording and the free run of the best seed from its first row. On chaotic systems they part after a few "
        "times the inverse of the exponent, however good the model."
    )
    return Section("Generated and true trajectories", [Figure(canvas, caption, "Curves over time, two a channel.")])


def _late(arrays) -> tuple[np.ndarray, np.ndarray | None]:
    recorded, free = arrays["recorded"], arrays["free"]
    late = free[len(free) // 5 :][: len(recorded)]
    return recorded, late if np.isfinite(late).all() else None


def _spectra(arrays, series: Series) -> Section:
    recorded, free = _late(arrays)
    count = min(3, recorded.shape[1])
    canvas, axes = _present.figure(1, count)
    for i, ax in enumerate(np.atleast_1d(axes)):
        plot.power_spectrum(
            recorded[:, i], None if free is None else free[:, i], sampling_interval=series.sampling_interval, ax=ax
        )
        ax.set_title(series.columns[i], fontsize=10)
    caption = "Power spectra of the recording and of the free run without its first fifth."
    return Section("Power spectra", [Figure(canvas, caption, "Power spectra on logarithmic axes.")])


def _projections(arrays, series: Series) -> Section:
    recorded, free = _late(arrays)
    if recorded.shape[1] == 1:
        # One channel against its past.
        lag = series.lag or 1
        lag = lag if isinstance(lag, int) else lag[0]
        recorded = np.concatenate([recorded[lag:], recorded[:-lag]], axis=1)
        free = None if free is None else np.concatenate([free[lag:], free[:-lag]], axis=1)
        names = [series.columns[0], f"{series.columns[0]}, {lag} samples earlier"]
    else:
        names = list(series.columns)
    pairs = [(0, 1)] if recorded.shape[1] == 2 else [(0, 1), (0, 2), (1, 2)]
    canvas, axes = _present.figure(1, len(pairs), size=(8.5, 3.2))
    for (i, j), ax in zip(pairs, np.atleast_1d(axes)):
        plot.projection(recorded[:10_000], None if free is None else free[:10_000], coordinates=(i, j), ax=ax)
        ax.set_xlabel(names[i])
        ax.set_ylabel(names[j])
    return Section(
        "State space", [Figure(canvas, "The recording and the free run, projected.", "Curves in the plane.")]
    )


def _losses(losses: np.ndarray, best: int) -> Section:
    canvas, ax = _present.figure()
    width = max(1, losses.shape[1] // 400)
    ends = np.arange(width, losses.shape[1] + 1, width)
    for i, row in enumerate(losses):
        blocks = [row[end - width : end] for end in ends]
        curve = [np.nanmedian(b) if np.isfinite(b).any() else np.nan for b in blocks]
        ax.plot(ends, curve, lw=1.5 if i == best else 0.6, color="#0072b2" if i == best else "#999999")
    ax.set_yscale("log")
    ax.set_xlabel("step")
    ax.set_ylabel("loss")
    return Section("Losses of the seeds", [Figure(canvas, "Running medians; the best seed is blue.", "Loss curves.")])
