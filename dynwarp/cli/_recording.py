"""Which recording a command works on, how it is split, and how a model file remembers both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynwarp.errors import ArgumentError, SeriesError

# The embedding of the built-in electrocardiogram: 70 samples, from before the P wave to the R peak.
DEFAULT_EMBEDDING = {"embed": 6, "lag": 14}
# Under this name `dynwarp fit` keeps in a model file what it knows; other names are the user's.
METADATA = "dynwarp fit"


def add_reading_options(parser) -> None:
    """The options that say how a file is read."""
    group = parser.add_argument_group("reading the recording")
    group.add_argument("--columns", type=_names, help="names or numbers of the columns, separated by commas")
    group.add_argument("--key", help="which array of an npz, mat or h5 file")
    group.add_argument(
        "--embed", type=_embedding, help="dimension of a delay embedding; 'auto', by false nearest neighbours; or "
        "'continuity', with delays that need not be even; 5 if there is one column, else none",
    )  # fmt: skip
    group.add_argument("--lag", type=int, help="its lag in samples; by default from the mutual information")
    group.add_argument("--detrend", type=int, help="degree of a polynomial in time to take off each column")
    group.add_argument(
        "--missing", choices=["refuse", "keep"], default="refuse",
        help="what becomes of values that are NaN or infinite: an error, or gaps that are left out of the training",
    )  # fmt: skip
    group.add_argument("--sampling-interval", type=float, help="time between samples")
    group.add_argument("--transpose", action="store_true", help="time runs along the rows of the array")


def reading_options(arguments) -> dict[str, Any]:
    """The options as they stand in a model file."""
    paths = [str(Path(path).resolve()) for path in arguments.series]
    return {
        "path": paths[0] if paths else None,
        "paths": paths,
        "columns": arguments.columns,
        "key": arguments.key,
        "embed": arguments.embed,
        "lag": arguments.lag,
        "detrend": arguments.detrend,
        "missing": arguments.missing,
        "sampling_interval": arguments.sampling_interval,
        "transpose": arguments.transpose,
    }


def read(options: dict[str, Any]):
    """The recording of these options; the electrocardiogram if there is no path."""
    from dynwarp import io

    options = {"detrend": None, "missing": "refuse"} | options
    if options["path"] is None:
        given = {name: options[name] for name in ("embed", "lag") if options[name] is not None}
        for name in ("columns", "key", "detrend", "sampling_interval", "transpose"):
            if options[name]:
                raise ArgumentError(f"`--{name.replace('_', '-')}` is for a file; name one, or leave it out.")
        return io.default_series(**(DEFAULT_EMBEDDING | given))
    lag = "mutual_information" if options["lag"] is None else options["lag"]
    names = ("columns", "key", "detrend", "missing", "sampling_interval", "transpose")
    rest = {name: options[name] for name in names}
    series = io.read_series(options["path"], embed=options["embed"], lag=lag, **rest)
    if options["embed"] is None and series.values.shape[1] == 1:
        # One channel alone is no state: the same value comes with different futures.
        series = io.read_series(options["path"], embed=5, lag=lag, **rest)
    return series


def read_all(options: dict[str, Any]) -> list[Any]:
    """The recordings of these options, in the units of all of them together."""
    if len(options["paths"]) < 2:
        return [read(options)]
    import numpy as np

    first = read(options)
    lag = first.lag if options["lag"] is None else options["lag"]
    embed = first.dimension if first.dimension > 1 else None
    series = [read(options | {"path": path, "lag": lag, "embed": embed}) for path in options["paths"]]
    for path, one in zip(options["paths"], series):
        if len(one.columns) != len(first.columns):
            raise SeriesError(f"{path!r} has {len(one.columns)} columns; {options['path']!r} has {len(first.columns)}.")
    # Delayed copies of a column share its mean and scale.
    channels = len(first.columns) // first.dimension
    rows = np.concatenate([one.to_original(one.values)[:, :channels] for one in series])
    mean, scale = (np.tile(x, first.dimension) for x in (np.nanmean(rows, 0), np.nanstd(rows, 0)))
    return [in_units(one, mean, scale) for one in series]


def in_units(series, mean, scale):
    """The series standardised by another mean and scale."""
    import equinox as eqx

    values = (series.to_original(series.values) - mean) / scale
    return eqx.tree_at(lambda s: (s.values, s.mean, s.scale), series, (values, mean, scale))


def gaps(series) -> int:
    """How many values of the recording are missing, the delayed copies not counted."""
    import numpy as np

    return int(np.isnan(series.values[:, : len(series.columns) // series.dimension]).sum())


def filled(series):
    """The series with straight lines over its gaps, for what needs a value at every time."""
    import equinox as eqx

    from dynwarp import io

    return eqx.tree_at(lambda s: s.values, series, io.fill_gaps(series.values))


def split(series, held_out: float):
    """The stretch to train on and the tail that is held out, without the rows that hold samples of both."""
    import numpy as np

    if not 0 < held_out < 1:
        raise ArgumentError(f"`--validation-fraction` must lie between 0 and 1; got {held_out!r}.")
    train, tail = series.split(1 - held_out)
    known = [column[np.isfinite(column)] for column in train.values.T]
    still = [name for name, values in zip(series.columns, known) if values.size == 0 or np.ptp(values) == 0]
    if still:
        raise SeriesError(
            f"{series.source}: column {', '.join(map(repr, still))} is constant, or missing, over the "
            f"{len(train.values)} rows to train on and has no dynamics there; choose others with --columns, or hold "
            "out less with --validation-fraction."
        )
    return train, tail


def recorded(fitted: dict[str, Any], path: Path | None):
    """The recording that a model was trained on, found again, or another one read in the same way; with straight lines
    over its gaps."""
    if not fitted:
        raise ArgumentError("The model file does not say how its recording is read; it was not made by `dynwarp fit`.")
    try:
        series = read(fitted["reading"] | ({} if path is None else {"path": str(path)}))
    except SeriesError as error:
        hint = "" if path is not None else " Give the recording with --series."
        raise SeriesError(f"{error}{hint}") from error
    trained = fitted["series"]
    if path is None and len(fitted["reading"].get("paths", ())) > 1:
        import numpy as np

        series = in_units(series, np.array(trained["mean"]), np.array(trained["scale"]))
    if len(series.columns) != len(trained["columns"]):
        raise SeriesError(f"The recording has {len(series.columns)} columns; the model has {len(trained['columns'])}.")
    return filled(series) if gaps(series) else series


def _embedding(text: str) -> int | str:
    return {"auto": "false_neighbours", "continuity": text}.get(text) or int(text)


def _names(text: str) -> list[str | int]:
    return [int(x) if x.lstrip("-").isdigit() else x for x in (part.strip() for part in text.split(","))]
