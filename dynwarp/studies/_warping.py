"""The `warping` study: how networks warp the space of their inputs while they compute, and whether they must.

Published settings are those of a public copy of the authors' code; what is known of the paper's text alone at second
hand is said to be so. Networks are trained here, each once, and shared by the parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from dynwarp._checks import check_choice
from dynwarp.studies._study import StudyResult, reproduce_study, run_parts
from dynwarp.studies._warping_causal import causal
from dynwarp.studies._warping_decoding import decoding
from dynwarp.studies._warping_evidence import activations, dimension, evidence, linearisation
from dynwarp.studies._warping_memory import sequence, subtraction, torus
from dynwarp.studies._warping_networks import MEMORY, SEQUENCE, SUBTRACTION

TITLE = "Dynamic warping of representations"
SOURCE = (
    "Pellegrino and Chadwick, RNNs perform task computations by dynamically warping neural representations, "
    "NeurIPS 2025 (arXiv 2512.04310)"
)


@dataclasses.dataclass(frozen=True)
class WarpingConfig:
    """Sizes of the warping study; the defaults are the preset "quick".

    Units and seeds of all networks; steps of time of the two kinds of tasks, and delays of the memory tasks; steps
    and rates of the trainings, decoding among them; noise of units in that of subtraction; points a side of the grid
    between which geodesics are found, 0 for none. Of the experiment: tasks of memory, conditions, those with noise, its
    strengths (of inputs, of units), the delay of memories; points at which a metric is held, and times, of decoding its
    own; strength of the penalty; points a side of the grid on which it is looked at, and of that on which curvature is
    integrated.
    """

    seed: int = 0
    units: int = 48
    seeds: int = 1
    evidence_dt: float = 0.25
    evidence_steps: int = 600
    evidence_rate: float = 5e-3
    memory_dt: float = 0.25
    memory_steps: int = 800
    memory_rate: float = 6e-3
    decoding_steps: int = 300
    unit_noise: float = 0.1
    geodesic_points: int = 4
    delays: tuple[float, ...] = (1.0,)
    causal_evidence: tuple[str, ...] = ("task", "whole", "readout")
    causal_memories: tuple[str, ...] = (MEMORY, SUBTRACTION)
    causal_memory: tuple[str, ...] = ("task", "whole")
    causal_decoding: tuple[str, ...] = ("task", "whole")
    causal_noises: tuple[tuple[float, float], ...] = ()
    causal_noisy: tuple[str, ...] = ("task", "whole", "readout")
    causal_delays: tuple[float, ...] = (1.0,)
    penalty_points: int = 48
    penalty_times: int = 8
    decoding_times: int = 11
    penalty_strength: float = 2.0
    check_points: int = 41
    curvature_points: int = 32


PRESETS = {
    "quick": WarpingConfig(),
    "paper": WarpingConfig(
        units=100,
        seeds=5,
        evidence_dt=0.2,
        evidence_steps=3_000,
        memory_dt=0.1,
        memory_steps=5_000,
        decoding_steps=5_000,
        delays=(0.5, 1.5, 2.5, 3.5),
        evidence_rate=2e-3,
        memory_rate=1e-3,
        causal_evidence=("task", "ratio", "rigid", "whole", "rate", "readout", "warp ratio", "warp copy"),
        causal_memories=(MEMORY, SUBTRACTION, SEQUENCE),
        causal_memory=("task", "ratio", "rigid", "whole", "readout"),
        causal_decoding=("task", "ratio", "rigid", "whole", "readout", "warp copy"),
        causal_noises=((0.1, 0.0), (0.0, 0.1), (0.25, 0.025)),
        causal_delays=(3.5,),
        penalty_points=128,
        geodesic_points=8,
        check_points=81,
        curvature_points=64,
    ),
}


def run(config: WarpingConfig | None = None, *, progress: Callable[[str], None] = lambda _: None) -> StudyResult:
    """Runs the study; about four minutes of one core with the default config, the preset "quick".

    **Arguments:** `config`; `progress`, told the title of each part that is done.

    **Returns:** [`StudyResult`][dynwarp.studies.StudyResult].

    **Raises:** `PrecisionError` unless JAX computes in double precision.
    """
    parts = (evidence, linearisation, torus, subtraction, sequence, decoding, dimension, activations, causal)
    return run_parts("warping", TITLE, SOURCE, config or WarpingConfig(), parts, progress)


def reproduce(preset: str, folder: Path) -> StudyResult:
    """Runs a preset, tells what it finds on the standard output, and writes everything into `folder`."""
    check_choice(preset, "preset", tuple(PRESETS), caller="warping study")
    return reproduce_study("warping", run, PRESETS[preset], folder)
