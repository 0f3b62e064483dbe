"""The `manifolds` study: what is claimed of invariant manifolds in piecewise-linear networks, computed exactly.

Maps of the plane first, where everything can be checked by hand, then networks trained on systems whose saddles are
known, then what the paper leaves open.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from dynwarp._checks import check_choice
from dynwarp.studies._manifolds_ablation import invertibility
from dynwarp.studies._manifolds_lorenz import lorenz
from dynwarp.studies._manifolds_maps import chaos, related_systems, toy_maps
from dynwarp.studies._manifolds_trained import decision, duffing, electrocardiogram, neuron
from dynwarp.studies._study import StudyResult, reproduce_study, run_parts

TITLE = "Invariant manifolds of piecewise-linear networks"
SOURCE = "Eisenmann, Brändle, Monfared and Durstewitz, ICLR 2026 (arXiv 2510.03814)"


@dataclasses.dataclass(frozen=True)
class ManifoldsConfig:
    """Sizes of the manifolds study; the defaults are the preset "quick".

    `data` and `electrocardiogram` are files with recordings for the neuron and the heart; None takes the package's own
    neuron and the recording that PyWavelets ships. Then: points that measure a manifold (`samples`), pairs of states
    that test a boundary (`pairs`), points a side of basin maps (`grid`); largest periods of the cycles of the toy maps
    and of the chaotic one; steps of Lyapunov spectra; points and steps of the bifurcation diagram; gradient steps of
    each network, and the seeds that are tried (`tries`); images and preimages traced; seeds and steps of the ablation.
    """

    seed: int = 0
    data: str | None = None
    electrocardiogram: str | None = None
    samples: int = 400
    pairs: int = 1_000
    grid: int = 100
    toy_period: int = 6
    chaos_period: int = 10
    lyapunov_steps: int = 50_000
    bifurcation_points: int = 200
    bifurcation_steps: int = 2_000
    tries: int = 4
    duffing_steps: int = 6_000
    decision_steps: int = 6_000
    lorenz_steps: int = 6_000
    neuron_steps: int = 12_000
    heart_steps: int = 4_000
    duffing_iterations: int = 60
    lorenz_iterations: int = 8
    saturation_steps: int = 100_000
    ablation_seeds: int = 5
    oscillator_steps: int = 400
    ablation_lorenz_steps: int = 400


PRESETS = {
    "quick": ManifoldsConfig(),
    "paper": ManifoldsConfig(
        samples=1_000,
        pairs=4_000,
        grid=250,
        toy_period=14,
        chaos_period=12,
        lyapunov_steps=400_000,
        bifurcation_points=800,
        bifurcation_steps=10_000,
        tries=8,
        duffing_steps=20_000,
        decision_steps=20_000,
        lorenz_steps=20_000,
        neuron_steps=40_000,
        heart_steps=20_000,
        duffing_iterations=100,
        lorenz_iterations=16,
        saturation_steps=1_000_000,
        ablation_seeds=20,
        oscillator_steps=5_000,
        ablation_lorenz_steps=5_000,
    ),
}


def run(config: ManifoldsConfig | None = None, *, progress: Callable[[str], None] = lambda _: None) -> StudyResult:
    """Runs the study; some minutes of two cores with the default config, the preset "quick".

    **Arguments:** `config`; `progress`, told the title of each part that is done.

    **Returns:** [`StudyResult`][dynwarp.studies.StudyResult].

    **Raises:** `PrecisionError` unless JAX computes in double precision; `SeriesError` for a recording that cannot be
    used.
    """
    parts = (
        toy_maps, chaos, duffing, decision, lorenz, neuron, electrocardiogram, invertibility, related_systems,
    )  # fmt: skip
    return run_parts("manifolds", TITLE, SOURCE, config or ManifoldsConfig(), parts, progress)


def reproduce(preset: str, folder: Path, *, data: dict[str, str] | None = None) -> StudyResult:
    """Runs a preset, tells what it finds on the standard output, and writes everything into `folder`.

    `data`: files for "neuron" and "electrocardiogram".
    """
    check_choice(preset, "preset", tuple(PRESETS), caller="manifolds study")
    for name in data or {}:
        check_choice(name, "data", ("neuron", "electrocardiogram"), caller="manifolds study")
    files = data or {}
    config = dataclasses.replace(
        PRESETS[preset], data=files.get("neuron"), electrocardiogram=files.get("electrocardiogram")
    )
    return reproduce_study("manifolds", run, config, folder)
