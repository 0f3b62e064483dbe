"""`dynwarp fit`: trains a model on a recording and writes it to a file."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from dynwarp.cli import _recording
from dynwarp.cli._environment import add_device_option, computing
from dynwarp.errors import ArgumentError

MODELS = ["alrnn", "plrnn", "mean-centred-plrnn", "shallow-plrnn", "clipped-shallow-plrnn", "dendritic-plrnn"]
FORCINGS = ["sparse", "generalized", "adaptive", "none"]

# What an option is where it is not given. "paper": the settings of the almost-linear networks in the literature.
PRESETS: dict[str, dict[str, Any]] = {
    "fast": {
        "state_size": 40, "relu_size": 10, "hidden_size": 50, "bases": 10, "steps": 16000, "interval": 25,
        "alpha": 0.15, "sequence_length": 50, "batch_size": 32, "lr": 5e-3, "noise": 0.15,
    },
    "paper": {
        "state_size": 20, "relu_size": 2, "hidden_size": 100, "bases": 20, "steps": 100_000, "interval": 16,
        "alpha": 0.15, "sequence_length": 200, "batch_size": 16, "lr": 1e-3, "noise": 0.05,
    },
}  # fmt: skip


def add_parser(commands):
    """Adds the command."""
    parser = commands.add_parser(
        "fit",
        help="train a model on a recording",
        description="Trains a piecewise-linear recurrent network on recordings (csv, tsv, npy, npz, mat, h5) and "
        "writes it to a file, with a report beside it. Without SERIES it takes the electrocardiogram that PyWavelets "
        "ships.",
    )
    parser.add_argument(
        "series", nargs="*", type=Path, metavar="SERIES",
        help="recordings of the same columns; time runs down the rows. The first is the one that is reported on",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("model.dynwarp"), help="the model file (default: %(default)s)")
    parser.add_argument(
        "--no-report", action="store_true", help="write the model only, not OUT with -fit.html for its end"
    )
    _recording.add_reading_options(parser)
    parser.add_argument(
        "--validation-fraction",
        type=float,
        default=0.3,
        help="share of the end that is held out (default: %(default)s)",
    )

    preset = "; ".join(f"{name}: " + "%s" for name in PRESETS)

    def add(group, name: str, kind, text: str) -> None:
        key = name.lstrip("-").replace("-", "_")
        group.add_argument(name, type=kind, help=f"{text} ({preset % tuple(p[key] for p in PRESETS.values())})")

    model = parser.add_argument_group("the model")
    model.add_argument("--model", choices=MODELS, default="alrnn", help="(default: %(default)s)")
    add(model, "--state-size", int, "M")
    add(model, "--relu-size", int, "P, of alrnn")
    add(model, "--hidden-size", int, "of the shallow ones")
    add(model, "--bases", int, "of dendritic-plrnn")

    training = parser.add_argument_group("the training")
    training.add_argument(
        "--preset", choices=list(PRESETS), default="fast", help="what is not given (default: %(default)s)"
    )
    training.add_argument("--seeds", type=int, default=1, help="trainings side by side; the best is kept (default: 1)")
    training.add_argument(
        "--forcing", choices=FORCINGS, default="sparse", help="teacher forcing (default: %(default)s)"
    )
    add(training, "--interval", int, "steps between forcings, of sparse")
    add(training, "--alpha", float, "strength, of generalized")
    add(training, "--steps", int, "gradient steps")
    add(training, "--sequence-length", int, "steps in a window")
    add(training, "--batch-size", int, "windows in a step")
    add(training, "--lr", float, "learning rate, falls to 1/100")
    add(training, "--noise", float, "on what the model is shown")
    training.add_argument(
        "--patience", type=int, help="stop after this many validations, one every 100 steps, without a better score"
    )
    training.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    training.add_argument("--float64", action="store_true", help="train in double precision, not in single")
    training.add_argument("--resume", action="store_true", help="go on with an interrupted run of the same options")
    training.add_argument("--quiet", action="store_true", help="no progress bar")
    add_device_option(parser)
    return parser


def run(arguments) -> int:
    """Trains and writes the model and its report."""
    out: Path = arguments.out
    if (out.exists() and not out.is_file()) or not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise ArgumentError(f"`--out` {str(out)!r} must be a file in a folder that exists and can be written to.")
    given = {name: getattr(arguments, name) for name in PRESETS["fast"]}
    for name, value in PRESETS[arguments.preset].items():
        if given[name] is None:
            setattr(arguments, name, value)
    for name in ("steps", "interval", "sequence_length", "batch_size", "state_size", "seeds"):
        if getattr(arguments, name) < 1:
            raise ArgumentError(f"`--{name.replace('_', '-')}` must be at least 1; got {getattr(arguments, name)}.")
    if not 0 < arguments.lr < math.inf:
        raise ArgumentError(f"`--lr` must be positive and finite; got {arguments.lr}.")
    if not -(2**63) <= arguments.seed < 2**63:
        raise ArgumentError(f"`--seed` must be a whole number of 64 bits; got {arguments.seed}.")
    reading = _recording.reading_options(arguments)
    series = _recording.read_all(reading)
    parts = [_recording.split(one, arguments.validation_fraction) for one in series]
    longest = max(len(train.values) for train, _ in parts) - 1
    if given["sequence_length"] is None:
        arguments.sequence_length = min(arguments.sequence_length, longest)
    elif arguments.sequence_length > longest:
        raise ArgumentError(
            f"`--sequence-length` {arguments.sequence_length} is too long for the {longest + 1} rows to train on."
        )
    if given["interval"] is None:
        arguments.interval = min(arguments.interval, arguments.sequence_length)
    with computing(arguments.device):
        result = _train(arguments, series[0], [train for train, _ in parts])
        return _write(arguments, reading, series[0], parts[0], result)


def _train(arguments, series, trains):
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    from dynwarp import training

    key = jax.random.key(arguments.seed)
    dtype = jnp.float64 if arguments.float64 else jnp.float32
    first = trains[0].values
    options: dict[str, Any] = {
        "steps": arguments.steps,
        "optimizer": optax.radam(optax.exponential_decay(arguments.lr, arguments.steps, 0.01)),
        "forcing": _make_forcing(arguments),
        "sequence_length": arguments.sequence_length,
        "batch_size": arguments.batch_size,
        "noise": arguments.noise,
        "observed": "finite" if any(np.isnan(train.values).any() for train in trains) else None,
        # The tail stays unseen: the best model is the one that does best on the stretch it is trained on.
        "validation": training.ReconstructionScore(
            first, channels=first.shape[1] // series.dimension, horizon=min(20, len(first) // 2)
        ),
        "validate_every": 100,
        "restart": 0.5,
        "patience": arguments.patience,
        "directory": _checkpoints(arguments.out),
        "resume": arguments.resume,
        "progress": not arguments.quiet,
    }

    def make(key):
        return _make_model(arguments, dtype, key)

    if arguments.seeds == 1:
        return training.fit(make(jax.random.fold_in(key, 1)), trains, key=jax.random.fold_in(key, 2), **options)
    keys = [jax.random.fold_in(key, i) for i in range(arguments.seeds)]
    return training.fit_seeds(make, trains, keys=keys, **options)


def _make_forcing(arguments):
    from dynwarp import training

    match arguments.forcing:
        case "sparse":
            return training.SparseTeacherForcing(arguments.interval)
        case "generalized":
            return training.GeneralizedTeacherForcing(arguments.alpha)
        case "adaptive":
            return training.AdaptiveTeacherForcing()
        case _:
            return None


def _make_model(arguments, dtype, key):
    from dynwarp import models

    common: dict[str, Any] = {"dtype": dtype, "key": key}
    size, hidden = arguments.state_size, arguments.hidden_size
    match arguments.model:
        case "alrnn":
            return models.ALRNN(size, arguments.relu_size, **common)
        case "plrnn":
            return models.PLRNN(size, **common)
        case "mean-centred-plrnn":
            return models.MeanCentredPLRNN(size, **common)
        case "shallow-plrnn":
            return models.ShallowPLRNN(size, hidden, **common)
        case "clipped-shallow-plrnn":
            return models.ShallowPLRNN(size, hidden, clipped=True, **common)
        case _:
            return models.DendriticPLRNN(size, arguments.bases, **common)


def _write(arguments, reading, series, parts, result) -> int:
    import numpy as np

    from dynwarp import io
    from dynwarp.cli import _seeds

    best = result if result.seeds is None else result.seed(result.best_seed())
    missing, values = _recording.gaps(series), series.values.shape[0] * len(series.columns) // series.dimension
    if missing:
        series = _recording.filled(series)
        parts = _recording.split(series, arguments.validation_fraction)
    evaluation = _seeds.evaluate(result, series, parts)
    options = {name: value for name, value in vars(arguments).items() if isinstance(value, str | int | float)}
    history = best.history
    blocks = np.array_split(history.loss, max(1, min(400, history.loss.size)))
    metadata = {
        "reading": reading,
        "series": series.summary() | {"missing": missing},
        "validation_fraction": arguments.validation_fraction,
        "options": options,
        "stats": best.stats,
        "metrics": evaluation.facts,
        "history": {
            "step": np.cumsum([b.size for b in blocks]),
            "loss": [float(np.nanmean(b)) if np.isfinite(b).any() else None for b in blocks],
            "validation_step": history.validation_step,
            "validation": [float(v) if np.isfinite(v) else None for v in history.validation],
        },
    }
    io.save(arguments.out, best.reconstruction, metadata={_recording.METADATA: metadata})
    stats, written = best.stats, [arguments.out]
    if not arguments.no_report and importlib.util.find_spec("matplotlib") is not None:
        written.append(arguments.out.with_name(arguments.out.stem + "-fit.html"))
        with io.atomic_write(written[1], "w") as file:
            file.write(_seeds.html_page(arguments.out.name, metadata, evaluation, series))
    trained = "" if result.seeds is None else f"{result.seeds} seeds, the best is number {result.best_seed()}: "
    sys.stdout.write(
        f"{trained}{stats['steps']} steps in {stats['seconds']:.0f} s, the best after {stats['best_step']}; "
        f"wrote {' and '.join(map(str, written))}.\n"
    )
    if missing:
        sys.stdout.write(f"missing: {missing} of {values} values, left out of the training; lines over them below\n")
    for name, text in _seeds.lines(evaluation.facts):
        sys.stdout.write(f"{name}: {text}\n")
    if stats["interrupted"]:
        sys.stdout.write("Interrupted; --resume with the same options goes on from here.\n")
        return 130
    shutil.rmtree(_checkpoints(arguments.out), ignore_errors=True)
    return 0


def _checkpoints(out: Path) -> Path:
    return out.with_name(out.name + ".training")
