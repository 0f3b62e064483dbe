"""The `learning` study: what the theory of local learning rules claims, computed again.

The theory is of linear networks that learn from a linear teacher on white noise. Modes first, where everything is in
closed form, then whole networks without alignment, then what the theory leaves open: other optimisers, nonlinear and
state-space cells, finite steps and minibatches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from dynwarp._checks import check_choice
from dynwarp.studies._learning_modes import optima, sequences, speed, trajectories
from dynwarp.studies._learning_networks import convergence, noise, rank, state_space, theory_and_alignment
from dynwarp.studies._study import StudyResult, reproduce_study, run_parts

TITLE = "Learning rules and how they learn"
SOURCE = "Williams, Payeur and Lajoie, ICML 2026 (arXiv 2606.00243)"


@dataclasses.dataclass(frozen=True)
class LearningConfig:
    """Sizes of the learning study; the defaults are the preset "quick".

    Numbers of: random optima (`box`), points a side of the maps (`grid`), starts of modes (`starts`), steps of a
    sequence loss (`horizon`); seeds, steps and rate of the runs that start unaligned with weights of `small_scale`;
    `seeds`, horizon, rate and steps of the convergence runs, over initial scales `sigmas` and feedback `scales`; steps
    of the runs whose rank is measured, on expectations and on samples; sequences and steps of the noise part.
    """

    seed: int = 0
    box: int = 20_000
    grid: int = 161
    starts: int = 1_024
    horizon: int = 200
    alignment_seeds: int = 5
    alignment_steps: int = 2_400
    alignment_rate: float = 0.01
    small_scale: float = 0.05
    seeds: int = 10
    sigmas: tuple[float, ...] = (0.05, 0.1, 0.2)
    scales: tuple[float, ...] = (1.0, 2.0, 4.5)
    training_horizon: int = 30
    training_rate: float = 0.01
    training_steps: int = 2_400
    rank_steps: int = 400
    sample_steps: int = 200
    noise_sequences: int = 2_000
    noise_steps: int = 400


PRESETS = {
    "quick": LearningConfig(),
    "paper": LearningConfig(
        box=400_000,
        grid=401,
        starts=100_000,
        alignment_seeds=20,
        alignment_steps=9_600,
        alignment_rate=0.0025,
        seeds=20,
        sigmas=(0.05, 0.1, 0.15, 0.2, 0.25),
        scales=(0.5, 1.0, 2.0, 4.5),
        training_rate=0.005,
        training_steps=8_000,
        sample_steps=1_000,
        noise_sequences=40_000,
        noise_steps=2_000,
    ),
}


def run(config: LearningConfig | None = None, *, progress: Callable[[str], None] = lambda _: None) -> StudyResult:
    """Runs the study; about a minute of two cores with the default config, the preset "quick".

    **Arguments:** `config`; `progress`, told the title of each part that is done.

    **Returns:** [`StudyResult`][dynwarp.studies.StudyResult].

    **Raises:** `PrecisionError` unless JAX computes in double precision.
    """
    parts = (
        optima, speed, trajectories, sequences, theory_and_alignment, convergence, rank, state_space, noise,
    )  # fmt: skip
    return run_parts("learning", TITLE, SOURCE, config or LearningConfig(), parts, progress)


def reproduce(preset: str, folder: Path) -> StudyResult:
    """Runs a preset, tells what it finds on the standard output, and writes everything into `folder`."""
    check_choice(preset, "preset", tuple(PRESETS), caller="learning study")
    return reproduce_study("learning", run, PRESETS[preset], folder)
