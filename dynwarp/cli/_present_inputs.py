"""The sections on a manifold of inputs in the report of `dynwarp analyze --inputs`."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynwarp import plot
from dynwarp.report import Figure, Section, Table, Text


def inputs_headline(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The lines on the inputs for the summary."""
    if not facts:
        return []
    m, rank = facts["coordinates"], facts["rank"]
    points = " x ".join(str(n) for n in facts["points"])
    failed = f"; {facts['failed_points']} points FAILED" if facts["failed_points"] else ""
    coordinates = "1 coordinate" if m == 1 else f"{m} coordinates"
    lines = [("inputs", f"{facts['chart']}, {coordinates}, {points} points, {facts['steps']} steps{failed}")]
    for space in ("states", "outputs"):
        if space in facts:
            last = facts[space]["principal_stretches"]["median"][-1]
            text = f"stretches {', '.join(_number(x) for x in last)} (medians)"
            if facts[space]["index"][-1] is not None:
                text += f", warping index {_number(facts[space]['index'][-1])}"
            if "relevance_ratio" in facts[space]:
                text += f", relevant over others {_number(facts[space]['relevance_ratio'][-1])}"
            lines.append((f"metric of {space}, last step", text))
    first = rank["first_full_step"]
    when = f"{m} from step {first} on" if first else f"never {m} at all points"
    time = "" if rank["with_time"] is None else f"; with time {rank['with_time']}, of at most {rank['bound']}"
    lines.append(("dimension of the states", when + time))
    curvature = facts["curvature"]
    if "refused" in curvature:
        lines.append(("curvature", curvature["refused"]))
    elif curvature["median"][-1] is None:
        lines.append(("curvature", "none at the last step: the metric is degenerate"))
    else:
        low, middle, high = (_number(curvature[name][-1]) for name in ("low", "median", "high"))
        lines.append((f"{curvature['kind']} curvature, last step", f"median {middle}, 5-95 % {low} to {high}"))
    return lines


def inputs_sections(facts: dict[str, Any], arrays: dict[str, np.ndarray], figure) -> list[Section]:
    """Stretches, warping, rank and curvature over the steps as a section of the page; `figure` makes a canvas."""
    times = np.array(facts["time"])
    canvas, (left, right) = figure(1, 2, size=(8.5, 3.2))
    plot.stretches(arrays["stretches"], times=times, ax=left)
    curves = {f"of {name}": arrays[f"index_{name}"] for name in ("states", "outputs") if name in facts}
    curves = {name: curve for name, curve in curves.items() if np.isfinite(curve).any()}
    if curves:
        plot.timeline(times, curves, label="warping index", ax=right)
    for ax in (left, right):
        ax.set_xlabel("time" if facts["dt"] != 1 else "step")
    blocks: list[Any] = [
        Text(
            "The metric of the states over the inputs: how far they move where an input changes a little, at every "
            "step. The warping index compares it with the metric of the inputs themselves; it is 0 where the "
            "representation is the input up to one scale, and is left out where the metric is degenerate: before "
            "every coordinate has reached the states, and for fewer outputs than coordinates."
        ),
        Table(["what", "result"], inputs_headline(facts)),
        Figure(
            canvas,
            "Left: principal stretches, medians over the inputs with bands of 5 to 95 %. Right: the warping index.",
            "Two panels of curves over time.",
        ),
    ]
    blocks.append(Table(["step", "rank", "independence", *_names(facts), "index"], _rows(facts)))
    if facts["coordinates"] == 2:
        blocks += _maps(facts, arrays, figure)
    return [Section("Warping of the inputs", blocks)]


def _names(facts):
    m = facts["coordinates"]
    ratio = ["relevant / others"] if "relevance_ratio" in facts["states"] else []
    return [f"stretch {i + 1}" for i in range(m)] + ratio


def _rows(facts, count: int = 12):
    """Some steps, evenly, the last among them."""
    rows = []
    states, rank = facts["states"], facts["rank"]
    for i in np.unique(np.linspace(0, facts["steps"] - 1, count).round().astype(int)):
        least, largest = rank["least"][i], rank["largest"][i]
        ratio = [_number(states["relevance_ratio"][i])] if "relevance_ratio" in states else []
        rows.append(
            [
                str(i + 1),
                str(least) if least == largest else f"{least} to {largest}",
                _number(rank["independence"][i]),
                *(_number(x) for x in states["principal_stretches"]["median"][i]),
                *ratio,
                _number(states["index"][i]),
            ]
        )
    return rows


def _maps(facts, arrays, figure):
    """Tissot's ellipses and the curvature over the chart at the last step, where they are there."""
    G, thetas = arrays["G"][..., -1, :, :], arrays["thetas"]
    curvature = arrays.get("curvature")
    curved = curvature is not None and np.isfinite(curvature[..., -1]).any()
    if not np.isfinite(G).all() or not G.any():
        return []
    canvas, axes = figure(1, 1 + curved, size=(4.2 * (1 + curved), 3.6))
    axes = np.atleast_1d(axes)
    plot.tissot(G, thetas, ax=axes[0])
    caption = "The last step. Ellipses: the image of a circle of inputs, long where states move far."
    if curvature is not None and curved:
        plot.curvature_map(curvature[..., -1], thetas, ax=axes[1])
        caption += " Colours: the Gaussian curvature of the states."
    return [Figure(canvas, caption, "The metric over the chart of the inputs.")]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
