"""The facts of an analysis as a table on the terminal and as an HTML page."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from dynwarp import plot, report
from dynwarp._version import __version__
from dynwarp.cli._analysis_piecewise import Pieces
from dynwarp.cli._present_inputs import inputs_headline, inputs_sections
from dynwarp.cli._present_piecewise import piecewise_headline, piecewise_sections
from dynwarp.errors import MissingDependencyError
from dynwarp.io import Series
from dynwarp.report import Figure, Section, Table, Text

_STRETCHES = {"training": "training stretch", "held_out": "held-out tail"}


def headline(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The few lines a reader wants first: a name and a sentence each."""
    model = facts["model"]
    steps = f", steps of {model['time_step']:g}" if "time_step" in model else ""
    lines = [("model", f"{model['class']}, {model['state_size']} states, {model['parameters']} parameters{steps}")]
    prediction = facts.get("prediction", {})
    for part, name in _STRETCHES.items():
        p = prediction.get(part, {})
        if "times_better" in p:
            errors = f"{_number(p['prediction_error'])}; persistence {_number(p['persistence_error'])}"
            lines.append((f"PE({prediction['horizon']}), {name}", f"{errors}{_better(p['times_better'])}"))
    generation = facts["generation"]
    state = "bounded" if generation["bounded"] else "NOT bounded"
    reach = generation.get("largest_excursion")
    reach = "" if reach is None else f", up to {reach:.3g} times the half range of the recording"
    lines.append(("free run", f"{state} over {generation['steps']} steps{reach}"))
    if "power_spectrum_distance" in generation:
        for name, title, key in (
            ("power spectra", "Hellinger distance", "power_spectrum_distance"),
            ("state space", "divergence D_stsp", "state_space_divergence"),
        ):
            marks = generation["yardsticks"].get(key)
            beside = f"; halves {_number(marks['best_possible'])}, chance {_number(marks['chance'])}" if marks else ""
            lines.append((name, f"{title} {generation[key]:.3g}{beside}"))
    if "lyapunov" in facts:
        lyapunov = facts["lyapunov"]
        first = lyapunov["exponents"][0]
        text = "-inf" if first is None else f"{first:.4g}"
        error = lyapunov["standard_error"][0]
        lines.append(
            ("largest Lyapunov exponent", f"{text} a step" + (f" (standard error {error:.1g})" if error else ""))
        )
    found = facts["fixed_points"]
    stable = sum(point["is_stable"] for point in found["points"])
    certainty = "all there are" if found["complete"] else "more may exist"
    lines.append(("fixed points", f"{len(found['points'])}, {stable} of them stable; {certainty}"))
    return lines + piecewise_headline(facts.get("piecewise", {})) + inputs_headline(facts.get("inputs", {}))


def print_table(facts: dict[str, Any], written: list[Path]) -> None:
    """Prints the headline and what was written."""
    from rich.console import Console
    from rich.table import Table as TerminalTable

    table = TerminalTable(show_header=False, box=None, pad_edge=False)
    for name, text in headline(facts):
        table.add_row(name, text)
    table.add_row("wrote", ", ".join(map(str, written)))
    Console(file=sys.stdout, soft_wrap=True, highlight=False, markup=False).print(table)


def html_page(
    facts: dict[str, Any],
    arrays: dict[str, np.ndarray],
    series: Series | None,
    pieces: Pieces | None = None,
    rotatable: bool = False,
    of_inputs: dict[str, np.ndarray] | None = None,
) -> str:
    """The report, one self-contained page."""
    sections = [Section("Summary", [Table(["what", "result"], headline(facts))])]
    if series is not None:
        sections += [_recording(facts, arrays, series), _predictions(facts, arrays), _spectra(arrays, series)]
    if "lyapunov" in facts:
        sections.append(_lyapunov(facts, arrays))
    sections.append(_fixed_points(facts, arrays))
    if pieces is not None:
        sections += piecewise_sections(facts["piecewise"], pieces, arrays["states"], rotatable)
    if of_inputs is not None:
        sections += inputs_sections(facts["inputs"], of_inputs, figure)
    training = facts["training"]
    if "history" in training:
        sections.append(training_section(training))
    source = "" if series is None else f", trained on `{series.source}`"
    return report.page(
        f"{facts['model']['class']} of {facts['file']}",
        sections,
        summary=f"A model of {facts['model']['state_size']} states{source}. Written by dynwarp {__version__}.",
    )


def figure(rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (8.5, 2.8)):
    """A figure that no window system knows of, and its axes."""
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise MissingDependencyError(
            "The report needs matplotlib: pip install 'dynwarp[plot]', or use --json."
        ) from error
    canvas = Canvas(figsize=size, layout="constrained")
    return canvas, canvas.subplots(rows, columns)


def _recording(facts, arrays, series: Series) -> Section:
    recorded, free = arrays["recorded"][:, 0], arrays["free"][:, 0]
    canvas, (above, below) = figure(2, size=(8.5, 4.6))
    plot.series(recorded, None, sampling_interval=series.sampling_interval, ax=above)
    shown = free[: 3 * len(recorded)]
    plot.series(None, shown, sampling_interval=series.sampling_interval, ax=below)
    for ax in (above, below):
        ax.set_ylabel(series.columns[0])
    split = facts["prediction"]["training"]["rows"] * (series.sampling_interval or 1)
    above.axvline(split, color="#999999", ls=":", lw=1)
    text = (
        f"**{series.source}**: {len(series.values)} rows"
        + (f", delay embedding of dimension {series.dimension} at lag {series.lag}" if series.dimension > 1 else "")
        + ". The model starts at the first row and runs free: nothing of the recording reaches it after that."
    )
    picture = Figure(
        canvas,
        "Above: the recording; the model was not trained on what follows the dotted line. Below: the free run.",
        "Two curves over time, the recording above and what the model generates below.",
    )
    return Section("Recording and free run", [Text(text), picture])


def _predictions(facts, arrays) -> Section:
    prediction = facts["prediction"]
    n = prediction["horizon"]
    parts = [part for part in _STRETCHES if f"error_{part}" in arrays]
    canvas, axes = figure(1, len(parts))
    rows = []
    for ax, part in zip(np.atleast_1d(axes), parts):
        curves = {"model": arrays[f"error_{part}"], "persistence": arrays[f"persistence_{part}"]}
        plot.prediction_error(np.arange(1, len(curves["model"]) + 1), curves, ax=ax)
        ax.set_title(_STRETCHES[part], fontsize=10)
        p = prediction[part]
        if "times_better" in p:
            figures = (p["prediction_error"], p["persistence_error"], p["times_better"])
            rows.append([_STRETCHES[part], *("-" if x is None else x for x in figures)])
    text = (
        f"The model starts anew at every row and predicts {n} steps ahead; persistence predicts that the last value "
        "stays. Errors are mean squares in standard deviations of the recording."
    )
    blocks = [
        Text(text),
        Table(["stretch", f"PE({n})", f"persistence({n})", "times better"], rows),
        Figure(canvas, "The error against the number of steps ahead.", "Errors of the model and of persistence."),
    ]
    return Section("Predictions", blocks)


def _spectra(arrays, series: Series) -> Section:
    recorded = arrays["recorded"][:, 0]
    free = arrays["free"][len(recorded) // 4 :][: len(recorded), 0]
    canvas, ax = figure()
    plot.power_spectrum(
        recorded, free if np.isfinite(free).all() else None, sampling_interval=series.sampling_interval, ax=ax
    )
    caption = "The power spectrum of the recording and of a stretch of the free run of the same length."
    return Section("Power spectra", [Figure(canvas, caption, "Two power spectra on a logarithmic axis.")])


def _lyapunov(facts, arrays) -> Section:
    lyapunov = facts["lyapunov"]
    canvas, ax = figure(size=(5.5, 2.8))
    finite = np.isfinite(arrays["exponents"])
    plot.lyapunov_spectrum(arrays["exponents"][finite], standard_error=arrays["exponents_error"][finite], ax=ax)
    rows = [
        ["largest, a step", lyapunov["exponents"][0]],
        ["its standard error", lyapunov["standard_error"][0]],
        ["largest, a unit of time", lyapunov["largest_per_unit_of_time"]],
        ["Kaplan-Yorke dimension", lyapunov["kaplan_yorke_dimension"]],
        ["sum-rule residual", lyapunov["sum_rule_residual"]],
        ["result", lyapunov["result"]],
    ]
    rows = [[name, "-" if value is None else value] for name, value in rows]
    caption = "The Lyapunov exponents along the end of the free run, in nats a step."
    return Section(
        "Lyapunov spectrum",
        [Table(["quantity", "value"], rows), Figure(canvas, caption, "Exponents in decreasing order.")],
    )


def _fixed_points(facts, arrays) -> Section:
    found = facts["fixed_points"]
    certainty = (
        "Every linear region of the map was looked into, so that these are all there are."
        if found["complete"]
        else "The search went from many starts; more may exist."
    )
    blocks: list[Any] = [Text(f"{len(found['points'])} fixed points. {certainty}")]
    points = found["points"]
    if points:
        rows = [
            [
                i,
                ", ".join(f"{x:.3g}" for x in p["point"][:3]),
                p["spectral_radius"],
                p["unstable_directions"],
                p["residual"],
            ]
            for i, p in enumerate(points[:20], 1)
        ]
        header = ["number", "first coordinates", "spectral radius", "unstable directions", "residual"]
        blocks.append(Table(header, rows, "The first 20." if len(points) > 20 else ""))
        canvas, (left, right) = figure(1, 2, size=(8.5, 4.0))
        states = arrays["states"][len(arrays["states"]) // 5 :]
        plane = (0, 1) if states.shape[1] > 1 else (0, 0)
        shown = states if np.isfinite(states).all() else None
        plot.fixed_points(arrays["fixed_points"], arrays["is_stable"], trajectory=shown, coordinates=plane, ax=left)
        plot.eigenvalues(arrays["eigenvalues"], ax=right)
        caption = "Left: fixed points and the free run in two coordinates of the state. Right: their multipliers."
        blocks.append(Figure(canvas, caption, "Fixed points in state space and eigenvalues in the complex plane."))
    return Section("Fixed points", blocks)


def training_section(training: dict[str, Any]) -> Section:
    history = training["history"]
    canvas, ax = figure()
    plot.training_history(
        SimpleNamespace(
            loss=np.array(history["loss"], float),
            validation_step=np.array(history["validation_step"]),
            validation=np.array(history["validation"], float),
        ),
        smoothing=1,
        steps=history["step"],
        ax=ax,
    )
    stats, options = training["stats"], training["options"]
    shown = {"steps taken": stats["steps"], "best after step": stats["best_step"], "seconds": stats["seconds"]}
    rows = [[name, str(value)] for name, value in (shown | options).items()]
    caption = "The loss, averaged over short stretches of training, and the score by which the model was chosen."
    return Section("Training", [Figure(canvas, caption, "Loss against step."), Table(["option", "value"], rows)])


def _better(times: float | None) -> str:
    if times is None:
        return ""
    return f": {times:.2f} times better" if times >= 1 else f": {1 / times:.2f} times WORSE"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
