"""What every study returns: claims with a verdict, the numbers behind them, figures, and how they are written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import equinox as eqx

from dynwarp._checks import check_choice
from dynwarp._version import __version__
from dynwarp.errors import MissingDependencyError, PrecisionError

VERDICTS = ("holds", "holds in part", "fails", "new", "not reached")


class Claim(eqx.Module):
    """A statement of the literature against what was computed here.

    **Arguments:** `statement`; `published`, what the source says, or that it leaves the question open; `ours`, what was
    computed; `verdict`, one of "holds", "holds in part", "fails", "new" where the source says nothing, and
    "not reached" where what the claim is about could not be made here, such as a network whose training failed.
    """

    statement: str
    published: str
    ours: str
    verdict: str

    def __check_init__(self):
        check_choice(self.verdict, "verdict", VERDICTS, caller="Claim")


class StudyFigure(eqx.Module):
    """A matplotlib `figure`, or an animation, with its file's `name`, a `caption`, and a `description` for those who do
    not see it."""

    name: str
    figure: Any
    caption: str
    description: str


class Part(eqx.Module):
    """One question of a study: `title`, `text`, `claims`, `values` (numbers, lists and dicts alone) and `figures`."""

    title: str
    text: str
    claims: tuple[Claim, ...]
    values: dict[str, Any]
    figures: tuple[StudyFigure, ...] = ()


class StudyResult(eqx.Module):
    """What a study returns.

    **Attributes:** `name`; `title`; `source`, the paper; `config`, the settings as a dict; `parts`, in order.

    `claims` are those of all parts; `write(folder)` writes `report.html`, `results.json` and `figures/`.
    """

    name: str
    title: str
    source: str
    config: dict[str, Any]
    parts: tuple[Part, ...]

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(claim for part in self.parts for claim in part.claims)

    def to_html(self) -> str:
        """The report, one self-contained page."""
        from dynwarp import report

        counts = ", ".join(f"{sum(c.verdict == v for c in self.claims)} {v}" for v in VERDICTS)
        settings = ", ".join(f"{name} = {value}" for name, value in self.config.items())
        sections = [report.Section("Claims", [_claims_table(self.claims), report.Text(f"Verdicts: {counts}.")])]
        for part in self.parts:
            pictures = [report.Figure(f.figure, f.caption, f.description) for f in part.figures]
            sections.append(report.Section(part.title, [report.Text(part.text), _claims_table(part.claims), *pictures]))
        return report.page(self.title, sections, summary=f"Source: {self.source}\n\nSettings: {settings}.")

    def to_json(self) -> str:
        """Settings, claims and numbers."""
        content = {
            "study": self.name,
            "dynwarp": __version__,
            "config": self.config,
            "claims": [
                {"statement": c.statement, "published": c.published, "ours": c.ours, "verdict": c.verdict}
                for c in self.claims
            ],
            "values": {part.title: part.values for part in self.parts},
        }
        return json.dumps(content, indent=2, default=_plain) + "\n"

    def write(self, folder: str | Path) -> Path:
        """Writes report, numbers and figures into `folder` and returns it."""
        from dynwarp import io
        from dynwarp.report._page import drawn

        folder = Path(folder)
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        for part in self.parts:
            for figure in part.figures:
                kind, picture = drawn(figure.figure)
                (folder / "figures" / f"{figure.name}.{kind}").write_bytes(picture)
        for name, text in (("results.json", self.to_json()), ("report.html", self.to_html())):
            with io.atomic_write(folder / name, "w") as file:
                file.write(text)
        return folder


def run_parts(
    name: str,
    title: str,
    source: str,
    config: Any,
    parts: Iterable[Callable[[Any], Part]],
    progress: Callable[[str], None],
) -> StudyResult:
    """Runs the parts of a study in order. `progress` is told the title of each part that is done."""
    import jax.numpy as jnp

    if jnp.zeros(()).dtype != jnp.float64:
        raise PrecisionError(f"The {name} study needs double precision: jax.config.update('jax_enable_x64', True).")
    done = []
    for part in parts:
        done.append(part(config))
        progress(done[-1].title)
    settings = {field: getattr(config, field) for field in config.__dataclass_fields__}
    return StudyResult(name, title, source, settings, tuple(done))


def new_figure(columns: int = 1, *, width: float = 4.2, height: float = 3.2):
    """A figure that no window shows, and its axes."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("Studies draw figures: pip install 'dynwarp[plot]'.") from error
    figure = Figure(figsize=(width * columns, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    return figure, (axes[0] if columns == 1 else axes)


def _claims_table(claims):
    from dynwarp import report

    rows = [[c.statement, c.published, c.ours, f"**{c.verdict}**"] for c in claims]
    return report.Table(["claim", "published", "ours", "verdict"], rows)


def _plain(value):
    """Arrays and numpy's numbers as JSON knows them."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def printed(result: StudyResult) -> str:
    """The claims as lines of text."""
    return "".join(f"{c.verdict:>14}  {c.statement}: {c.ours}\n" for c in result.claims)


def reproduce_study(name: str, run: Callable[..., StudyResult], config: Any, folder: Path) -> StudyResult:
    """Runs a study, tells what it finds on the standard output, and writes everything into `folder`."""

    def say(text):
        sys.stdout.write(text)
        sys.stdout.flush()

    result = run(config, progress=lambda title: say(f"{name}: {title}\n"))
    say(f"{printed(result)}{result.write(folder) / 'report.html'}\n")
    return result
