"""Progress on a terminal, or to a function of the caller."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

Report = Callable[[int, int, dict[str, float]], Any]


@contextlib.contextmanager
def progress_report(progress: bool | Report) -> Iterator[Report]:
    """Yields `report(step, steps, figures)`: a bar, nothing, or the function that was given."""
    if callable(progress):
        yield progress
    elif not progress:
        yield lambda step, steps, figures: None
    else:
        with _bar() as report:
            yield report


@contextlib.contextmanager
def _bar() -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=None, figures="compiling")

        def report(step: int, steps: int, figures: dict[str, float]) -> None:
            text = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
            bar.update(task, completed=step, total=steps, figures=text)

        yield report
