"""The studies that `dynwarp reproduce` runs, one module each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dynwarp.studies._study import Claim as Claim
from dynwarp.studies._study import Part as Part
from dynwarp.studies._study import StudyFigure as StudyFigure
from dynwarp.studies._study import StudyResult as StudyResult


def _gradients(preset: str, folder: Path) -> StudyResult:
    from dynwarp.studies._gradients import reproduce

    return reproduce(preset, folder)


def _learning(preset: str, folder: Path) -> StudyResult:
    from dynwarp.studies._learning import reproduce

    return reproduce(preset, folder)


def _manifolds(preset: str, folder: Path, **options: Any) -> StudyResult:
    from dynwarp.studies._manifolds import reproduce

    return reproduce(preset, folder, **options)


def _warping(preset: str, folder: Path) -> StudyResult:
    from dynwarp.studies._warping import reproduce

    return reproduce(preset, folder)


# Name -> a function that imports the study and runs it: `run(preset, out) -> result`. A study module adds itself here.
STUDIES: dict[str, Callable[..., Any]] = {
    "gradients": _gradients,
    "learning": _learning,
    "manifolds": _manifolds,
    "warping": _warping,
}
# The recordings that a study takes as `data={name: file}`, the first of them where a file is given without a name.
RECORDINGS: dict[str, tuple[str, ...]] = {"manifolds": ("neuron", "electrocardiogram")}
