"""The `gradients` study: what is claimed of gradients through time in recurrent networks, computed again.

The claims are those of a widely read survey and of the papers that it cites; where the two differ, the paper's
statement is checked as such, and the survey's is shown to fail by a counterexample.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from dynwarp._checks import check_choice
from dynwarp.studies._gradients_alignment import alignment
from dynwarp.studies._gradients_bounds import bounds, smoothness
from dynwarp.studies._gradients_learnability import learnability
from dynwarp.studies._gradients_memory import curse_of_memory, depth_cutoff
from dynwarp.studies._gradients_spectra import reservoirs, spectra
from dynwarp.studies._gradients_variants import variants
from dynwarp.studies._study import StudyResult, reproduce_study, run_parts

TITLE = "Gradients through time"
SOURCE = (
    "a survey of vanishing and exploding gradients, and its sources: Pascanu, Mikolov and Bengio 2013 "
    "(arXiv 1211.5063), "
    "Zucchet and Orvieto 2024 (2405.21064), Livi 2025 (2512.05790), Cayci and Eryilmaz 2024 "
    "(2402.12241), Ribeiro et al. "
    "2020 (1906.08482), Engelken 2023, Jaeger 2001, Manchev and Garcia-Peraza-Herrera 2025 (2504.13531)"
)


@dataclasses.dataclass(frozen=True)
class GradientsConfig:
    """Sizes of the gradients study; the defaults are the preset "quick".

    Random networks that test a bound, and units and lags of the one that is shown; lengths of the scalar map; scales,
    burn-in and steps of the two-unit LSTM's orbits, steps of its exponents over scales and at 1; points and lengths of
    the slices of the cost; steps of the simulated modes; samples of stable laws; cells, units, lags, length, seeds and
    updates of the networks whose envelopes are compared; depths and widths of the diagonal networks, and their updates;
    units, steps and networks against mean-field theory; updates of flossing; steps of sampled capacities; cells (IndRNN
    may be left out), length of the tasks, symbols to copy, seeds, units, updates (a multiple of 50) and rate of the
    comparison of cells; steps and units of the network that is trained by targets.
    """

    seed: int = 0
    bound_cases: int = 1_000
    bound_units: int = 64
    bound_lag: int = 100
    smoothness_lengths: tuple[int, ...] = (25, 50, 100, 150, 200, 300, 400)
    orbit_points: int = 181
    orbit_burn_in: int = 200
    orbit_steps: int = 100
    exponent_steps: int = 2_000
    spectrum_steps: int = 20_000
    slice_points: int = 401
    slice_lengths: tuple[int, ...] = (20, 50, 100, 200)
    signal_steps: int = 2_000_000
    tail_samples: int = 50_000
    audit_cells: tuple[str, ...] = ("constant gate", "diagonal gate", "GRU", "LSTM")
    audit_units: int = 16
    audit_lags: tuple[int, ...] = (4, 8, 16, 24, 32)
    audit_length: int = 96
    audit_seeds: int = 2
    audit_steps: int = 120
    cutoff_depths: tuple[int, ...] = (5, 10, 20, 40)
    cutoff_width: int = 512
    cutoff_widths: tuple[int, ...] = (64, 256, 1_024)
    cutoff_steps: int = 400
    field_units: int = 400
    field_steps: int = 600
    field_networks: int = 2
    floss_steps: int = 150
    capacity_steps: int = 4_000
    variant_cells: tuple[str, ...] = ("Elman", "Elman, orthogonal", "orthogonal", "GRU", "LSTM", "LRU")
    variant_length: int = 50
    copy_length: int = 4
    variant_seeds: int = 1
    variant_units: int = 32
    variant_steps: int = 600
    variant_rate: float = 5e-3
    alignment_steps: int = 40
    alignment_units: int = 32


PRESETS = {
    "quick": GradientsConfig(),
    "paper": GradientsConfig(
        bound_cases=10_000,
        bound_units=100,
        bound_lag=200,
        orbit_points=1_501,
        orbit_burn_in=1_000,
        orbit_steps=200,
        exponent_steps=20_000,
        spectrum_steps=1_000_000,
        slice_points=4_001,
        signal_steps=50_000_000,
        tail_samples=200_000,
        audit_cells=("constant gate", "shared gate", "diagonal gate", "GRU", "LSTM"),
        audit_units=64,
        audit_lags=(8, 16, 32, 64, 96, 128),
        audit_length=384,
        audit_seeds=5,
        audit_steps=3_000,
        cutoff_depths=(5, 10, 20, 40, 80),
        cutoff_width=2_000,
        cutoff_widths=(64, 256, 1_024, 4_096),
        cutoff_steps=2_000,
        field_units=1_000,
        field_steps=4_000,
        field_networks=5,
        floss_steps=1_000,
        capacity_steps=40_000,
        variant_cells=("Elman", "Elman, orthogonal", "orthogonal", "IndRNN", "GRU", "LSTM", "LRU"),
        variant_length=100,
        copy_length=10,
        variant_seeds=5,
        variant_units=64,
        variant_steps=10_000,
        variant_rate=1e-3,
        alignment_steps=100,
        alignment_units=100,
    ),
}


def run(config: GradientsConfig | None = None, *, progress: Callable[[str], None] = lambda _: None) -> StudyResult:
    """Runs the study; about three minutes of two cores with the default config, the preset "quick".

    **Arguments:** `config`; `progress`, told the title of each part that is done.

    **Returns:** [`StudyResult`][dynwarp.studies.StudyResult].

    **Raises:** `PrecisionError` unless JAX computes in double precision.
    """
    parts = (
        bounds, smoothness, curse_of_memory, learnability, depth_cutoff, spectra, reservoirs, alignment, variants,
    )  # fmt: skip
    return run_parts("gradients", TITLE, SOURCE, config or GradientsConfig(), parts, progress)


def reproduce(preset: str, folder: Path) -> StudyResult:
    """Runs a preset, tells what it finds on the standard output, and writes everything into `folder`."""
    check_choice(preset, "preset", tuple(PRESETS), caller="gradients study")
    return reproduce_study("gradients", run, PRESETS[preset], folder)
