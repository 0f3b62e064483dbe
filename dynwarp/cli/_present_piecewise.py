"""The sections on a piecewise-linear map in the report of `dynwarp analyze`, and the page that can be turned."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynwarp import plot
from dynwarp.errors import MissingDependencyError
from dynwarp.report import Figure, Section, Table, Text

_SHOWN = 30


def piecewise_headline(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The lines on a piecewise-linear map for the summary."""
    if "cycles" not in facts:
        return []
    regions = facts["regions"]
    lines = [("linear regions", f"{regions['number']}, {'all there are' if regions['complete'] else 'more may exist'}")]
    periods = [int(k) for k in facts["complete"]]
    proved = [k for k in periods if facts["complete"][str(k)]]
    kinds = [cycle["kind"] for cycle in facts["cycles"] if cycle["period"] > 1]
    text = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))) or "none"
    certainty = "all there are" if len(proved) == len(periods) else f"proved complete for periods {proved}"
    lines.append((f"cycles of period 2 to {max(periods)}", f"{text}; {certainty}"))
    chaotic = [entry for entry in facts["homoclinic"] if entry.get("chaos")]
    if facts["homoclinic"]:
        lines.append(("homoclinic points", "chaos is proved" if chaotic else "none that proves chaos"))
    basins = facts["basins"]
    if "shares" in basins:
        shares = [f"{entry['share']:.2f} to {entry['attractor']}" for entry in basins["shares"]]
        lines.append(("basins", ", ".join([*shares, f"{basins['diverge']:.2f} diverge"])))
    return lines


def piecewise_sections(facts: dict[str, Any], pieces, states: np.ndarray, rotatable: bool) -> list[Section]:
    """Cycles, manifolds, homoclinic points and basins as sections of the page."""
    if "skipped" in facts:
        return [Section("Cycles and manifolds", [Text(facts["skipped"])])]
    proofs = ", ".join(f"period {k}: {text}" for k, text in facts["certificate"].items())
    rows = [
        [c["period"], c["kind"], ", ".join(f"{x:.3g}" for x in c["point"][:3]), c["largest_multiplier"], c["residual"]]
        for c in facts["cycles"][:_SHOWN]
    ]
    homeomorphism = facts["homeomorphism"]
    fold = homeomorphism.get("certificate", homeomorphism.get("error", ""))
    blocks: list[Any] = [Text(f"Certificates: {proofs}.\n\nInvertibility: {fold}")]
    if rows:
        header = ["period", "kind", "first coordinates", "largest multiplier", "residual"]
        more = len(facts["cycles"]) - _SHOWN
        blocks.append(Table(header, rows, f"{more} more are in analysis.json." if more > 0 else ""))
    sections = [Section("Cycles", blocks)]
    if facts["manifolds"]:
        sections.append(_manifolds(facts, pieces, states, rotatable))
    basins = facts["basins"]
    if "error" in basins:
        sections.append(Section("Basins", [Text(basins["error"])]))
    else:
        shares = [[entry["attractor"], entry["share"]] for entry in basins["shares"]]
        shares += [["infinity", basins["diverge"]], ["not decided", basins["undecided"]]]
        text = (
            f"Where {basins['states']} random states go, from a box around the free run and the cycles, twice as wide."
        )
        sections.append(Section("Basins", [Text(text), Table(["attractor", "share of states"], shares)]))
    return sections


def _manifolds(facts, pieces, states, rotatable: bool) -> Section:
    header = ["manifold", "of period", "dimension", "pieces", "images", "cut by"]
    rows = [
        [m["kind"], m["period"], m["dimension"], m["pieces"], m["iterations"], ", ".join(m["limits"]) or "nothing"]
        for m in facts["manifolds"]
        if "error" not in m
    ]
    texts = [entry.get("verdict", entry.get("error", "")) for entry in facts["homoclinic"]]
    texts += [m["error"] for m in facts["manifolds"] if "error" in m]
    blocks: list[Any] = [Text("\n\n".join(dict.fromkeys(texts)))]
    if rows:
        blocks.append(Table(header, rows))
    figure = _figure(pieces, states)
    if figure is not None:
        words = " The file state_space.html beside this page shows three coordinates and can be turned." * rotatable
        caption = f"Manifolds of the saddles nearest to the free run: stable blue, unstable orange.{words}"
        blocks.append(Figure(figure, caption, "Cycles, manifolds and the free run in two coordinates of the state."))
    return Section("Manifolds and homoclinic points", blocks)


def _figure(pieces, states):
    if not pieces.manifolds or pieces.manifolds[0].cycle.points.shape[1] < 2:
        return None
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise MissingDependencyError(
            "The report needs matplotlib: pip install 'dynwarp[plot]', or use --json."
        ) from error
    canvas = Canvas(figsize=(6.5, 5.0), layout="constrained")
    ax = canvas.subplots()
    shown = states[len(states) // 5 :]
    around = [np.concatenate([np.asarray(m.cycle.points) for m in pieces.manifolds])]
    if np.isfinite(shown).all():
        ax.plot(shown[:, 0], shown[:, 1], color="#999999", lw=0.5)
        around.append(shown)
    for manifold in pieces.manifolds:
        if manifold.number_of_pieces:
            plot.manifold(manifold, ax=ax)
    plot.cycles(pieces.cycles, ax=ax)
    together = np.concatenate(around)[:, :2]
    low, high = together.min(axis=0), together.max(axis=0)
    room = 0.3 * (high - low) + 0.1
    ax.set(xlim=(low[0] - room[0], high[0] + room[0]), ylim=(low[1] - room[1], high[1] + room[1]))
    ax.set(xlabel="z[0]", ylabel="z[1]")
    return canvas


def state_space_page(analysis) -> str | None:
    """A page with three coordinates of the state that can be turned; None where there are fewer, or no plotly."""
    pieces, states = analysis.pieces, analysis.arrays["states"]
    if pieces is None or not pieces.manifolds or states.shape[1] < 3:
        return None
    try:
        import plotly  # noqa: F401
    except ImportError:
        return None
    trajectory = states[-2000:] if np.isfinite(states).all() else None
    manifolds = [manifold for manifold in pieces.manifolds if manifold.number_of_pieces]
    figure = plot.state_space(manifolds, cycles=pieces.cycles[:_SHOWN], trajectory=trajectory)
    return figure.to_html(include_plotlyjs=True, full_html=True)
