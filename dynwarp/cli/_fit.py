"""`dynwarp fit`: trains a model on a recording and writes it to a file."""

from __future__ import annotations

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


def add_parser(commands):
    """Adds the command."""
    parser = commands.add_parser(
        "fit",
        help="train a model on a recording",
        description="Trains a piecewise-linear recurrent network on a recording (csv, tsv, npy, npz, mat, h5) and "
        "writes it to a file. Without SERIES it takes the electrocardiogram that PyWavelets ships.",
    )
    parser.add_argument("series", nargs="?", type=Path, metavar="SERIES", help="the recording; time runs down the rows")
    parser.add_argument("--out", type=Path, default=Path("model.dynwarp"), help="the model file (default: %(default)s)")
    _recording.add_reading_options(parser)
    parser.add_argument(
        "--validation-fraction",
        type=float,
        default=0.3,
        help="share of the end that is held out (default: %(default)s)",
    )

    model = parser.add_argument_group("the model")
    model.add_argument("--model", choices=MODELS, default="alrnn", help="(default: %(default)s)")
    model.add_argument("--state-size", type=int, default=40, help="M (default: %(default)s)")
    model.add_argument("--relu-size", type=int, default=10, help="P, of alrnn (default: %(default)s)")
    model.add_argument("--hidden-size", type=int, default=50, help="of the shallow ones (default: %(default)s)")
    model.add_argument("--bases", type=int, default=10, help="of dendritic-plrnn (default: %(default)s)")

    training = parser.add_argument_group("the training")
    training.add_argument("--steps", type=int, default=16000, help="gradient steps (default: %(default)s)")
    training.add_argument("--interval", type=int, default=25, help="steps between forcings (default: %(default)s)")
    training.add_argument("--sequence-length", type=int, default=50, help="steps in a window (default: %(default)s)")
    training.add_argument("--batch-size", type=int, default=32, help="windows in a step (default: %(default)s)")
    training.add_argument("--lr", type=float, default=5e-3, help="learning rate, falls to 1/100 (default: %(default)s)")
    training.add_argument("--noise", type=float, default=0.15, help="on what the model is shown (default: %(default)s)")
    training.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    training.add_argument("--float64", action="store_true", help="train in double precision, not in single")
    training.add_argument("--resume", action="store_true", help="go on with an interrupted run of the same options")
    training.add_argument("--quiet", action="store_true", help="no progress bar")
    add_device_option(parser)
    return parser


def run(arguments) -> int:
    """Trains and writes the model."""
    out: Path = arguments.out
    if (out.exists() and not out.is_file()) or not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise ArgumentError(f"`--out` {str(out)!r} must be a file in a folder that exists and can be written to.")
    for name in ("steps", "interval", "sequence_length", "batch_size", "state_size"):
        if getattr(arguments, name) < 1:
            raise ArgumentError(f"`--{name.replace('_', '-')}` must be at least 1; got {getattr(arguments, name)}.")
    if not 0 < arguments.lr < math.inf:
        raise ArgumentError(f"`--lr` must be positive and finite; got {arguments.lr}.")
    if not -(2**63) <= arguments.seed < 2**63:
        raise ArgumentError(f"`--seed` must be a whole number of 64 bits; got {arguments.seed}.")
    reading = _recording.reading_options(arguments)
    series = _recording.read(reading)
    train, _ = _recording.split(series, arguments.validation_fraction)
    with computing(arguments.device):
        result = _train(arguments, series, train)
        return _write(arguments, reading, series, result)


def _train(arguments, series, train):
    import jax
    import jax.numpy as jnp
    import optax

    from dynwarp import training

    key = jax.random.key(arguments.seed)
    dtype = jnp.float64 if arguments.float64 else jnp.float32
    model = _make_model(arguments, dtype, jax.random.fold_in(key, 1))
    channels = series.values.shape[1] // series.dimension
    length = min(arguments.sequence_length, len(train.values) - 1)
    return training.fit(
        model,
        train,
        steps=arguments.steps,
        key=jax.random.fold_in(key, 2),
        optimizer=optax.radam(optax.exponential_decay(arguments.lr, arguments.steps, 0.01)),
        forcing=training.SparseTeacherForcing(arguments.interval),
        sequence_length=length,
        batch_size=arguments.batch_size,
        noise=arguments.noise,
        # The tail stays unseen: the best model is the one that does best on the stretch it is trained on.
        validation=training.ReconstructionScore(
            train.values, channels=channels, horizon=min(20, len(train.values) // 2)
        ),
        validate_every=100,
        directory=_checkpoints(arguments.out),
        resume=arguments.resume,
        progress=not arguments.quiet,
    )


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


def _write(arguments, reading, series, result) -> int:
    import numpy as np

    from dynwarp import io

    options = {name: value for name, value in vars(arguments).items() if isinstance(value, str | int | float)}
    history = result.history
    blocks = np.array_split(history.loss, max(1, min(400, history.loss.size)))
    metadata = {
        "reading": reading,
        "series": series.summary(),
        "validation_fraction": arguments.validation_fraction,
        "options": options,
        "stats": result.stats,
        "history": {
            "step": np.cumsum([b.size for b in blocks]),
            "loss": [float(np.nanmean(b)) if np.isfinite(b).any() else None for b in blocks],
            "validation_step": history.validation_step,
            "validation": [float(v) if np.isfinite(v) else None for v in history.validation],
        },
    }
    io.save(arguments.out, result.reconstruction, metadata={_recording.METADATA: metadata})
    stats = result.stats
    sys.stdout.write(
        f"{stats['steps']} steps in {stats['seconds']:.0f} s, the best after {stats['best_step']}; "
        f"wrote {arguments.out}.\n"
    )
    if stats["interrupted"]:
        sys.stdout.write("Interrupted; --resume with the same options goes on from here.\n")
        return 130
    shutil.rmtree(_checkpoints(arguments.out), ignore_errors=True)
    return 0


def _checkpoints(out: Path) -> Path:
    return out.with_name(out.name + ".training")
