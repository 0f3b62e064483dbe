"""`dynwarp analyze`: what a model does, as a table, as JSON and as one HTML page."""

from __future__ import annotations

import json
import math
from pathlib import Path

from dynwarp.cli import _recording
from dynwarp.cli._environment import add_device_option, computing
from dynwarp.errors import ArgumentError, ModelError, SeriesError


def add_parser(commands):
    """Adds the command."""
    parser = commands.add_parser(
        "analyze",
        help="report what a model does",
        description="Reports the fixed points, Lyapunov spectrum, predictions, free run and power spectra of a model. "
        "Of a piecewise-linear model also its regions, cycles, manifolds of saddles, homoclinic points and basins. "
        "With --inputs also how the model warps a manifold of inputs. "
        "Writes analysis.json, report.html and, for three or more states, state_space.html, which can be turned.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a file written by `dynwarp fit` or dynwarp.io.save")
    parser.add_argument("--series", type=Path, help="the recording, if it has moved, or another one of the same kind")
    parser.add_argument(
        "--out", type=Path, help="folder for what is written (default: MODEL with -report for its ending)"
    )
    parser.add_argument(
        "--inputs", type=Path, metavar="FILE", help="a TOML file of a manifold of inputs, whose metric is reported"
    )
    parser.add_argument(
        "--dt",
        type=float,
        help="of a continuous model, the longest step; states are this far apart, or with --inputs as far as there "
        "(default: 0.1)",
    )
    parser.add_argument("--steps", type=int, default=5000, help="length of the free run (default: %(default)s)")
    group = parser.add_argument_group("piecewise-linear models")
    group.add_argument("--max-period", type=int, default=4, help="largest period of cycles (default: %(default)s)")
    group.add_argument("--iterations", type=int, default=10, help="images of manifolds (default: %(default)s)")
    group.add_argument(
        "--saddles",
        type=int,
        default=2,
        help="trace the manifolds of so many saddles; 0 leaves all of this out (default: 2)",
    )
    parser.add_argument("--json", action="store_true", help="write analysis.json only, no figures")
    add_device_option(parser)
    return parser


def run(arguments) -> int:
    """Analyzes, prints and writes."""
    out: Path = arguments.out or arguments.model.parent / (arguments.model.stem + "-report")
    if out.exists() and not out.is_dir():
        raise ArgumentError(f"`--out` {str(out)!r} must be a folder; it is a file.")
    if arguments.steps < 100:
        raise ArgumentError(f"`--steps` must be at least 100; got {arguments.steps}.")
    if arguments.dt is not None and not 0 < arguments.dt < math.inf:
        raise ArgumentError(f"`--dt` must be positive and finite; got {arguments.dt}.")
    for name, least in (("max_period", 1), ("iterations", 1), ("saddles", 0)):
        if getattr(arguments, name) < least:
            option = "--" + name.replace("_", "-")
            raise ArgumentError(f"`{option}` must be at least {least}; got {getattr(arguments, name)}.")
    with computing(arguments.device):
        return _analyze(arguments, out)


def _analyze(arguments, out: Path) -> int:
    import equinox as eqx
    import jax

    from dynwarp import io
    from dynwarp.cli._analysis import analyze
    from dynwarp.cli._analysis_inputs import check_sizes
    from dynwarp.cli._flow import FlowMap
    from dynwarp.cli._input_manifold import read_inputs
    from dynwarp.cli._present import html_page, print_table
    from dynwarp.cli._present_piecewise import state_space_page
    from dynwarp.models import AbstractField, AbstractMap
    from dynwarp.training import Reconstruction

    model = io.load(arguments.model)
    fitted = io.load_metadata(arguments.model).get(_recording.METADATA, {})
    if not isinstance(model, Reconstruction | AbstractMap | AbstractField):
        raise ModelError(
            f"{str(arguments.model)!r} holds a {type(model).__name__}; analyze takes maps, fields and what fit writes."
        )
    # Before anything that takes time: what is wrong with the file is told at once.
    inputs = None if arguments.inputs is None else read_inputs(arguments.inputs)
    if isinstance(model, AbstractField):
        longest = 0.1 if arguments.dt is None else arguments.dt
        apart = longest if inputs is None else inputs.dt
        # A step that is the longest one but for rounding is one step.
        model = FlowMap(model, apart, math.ceil(apart / longest * (1 - 1e-9)))
    elif arguments.dt is not None:
        raise ArgumentError("`--dt` is for continuous models; the steps of a map are its own.")
    model = jax.tree.map(lambda x: x.astype(float) if eqx.is_inexact_array(x) else x, model)
    series, parts = None, None
    if isinstance(model, Reconstruction) and (arguments.series is not None or fitted):
        series = _recording.recorded(fitted, arguments.series)
        if series.values.shape[1] != model.observation_size:
            raise SeriesError(
                f"The recording has {series.values.shape[1]} channels and the model {model.observation_size}."
            )
        parts = _recording.split(series, fitted["validation_fraction"])
    elif arguments.series is not None:
        raise ArgumentError("`--series` needs a model that `dynwarp fit` wrote; this file holds the map alone.")

    if inputs is not None:
        check_sizes(model.map if isinstance(model, Reconstruction) else model, inputs)
    analysis = analyze(
        model, series, parts, arguments.steps, max_period=arguments.max_period, iterations=arguments.iterations,
        saddles=arguments.saddles, inputs=inputs,
    )  # fmt: skip
    facts = {"file": arguments.model.name, **analysis.facts, "training": fitted}
    written = [out / "analysis.json"]
    space = None if arguments.json else state_space_page(analysis)
    page = None if arguments.json else html_page(
        facts, analysis.arrays, series, analysis.pieces, space is not None, analysis.of_inputs
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    with io.atomic_write(written[0], "w") as file:
        json.dump(facts, file, indent=1, allow_nan=False)
    if page is not None:
        written.append(out / "report.html")
        with io.atomic_write(written[1], "w") as file:
            file.write(page)
    if space is not None:
        written.append(out / "state_space.html")
        with io.atomic_write(written[-1], "w") as file:
            file.write(space)
    print_table(facts, written)
    return 0
