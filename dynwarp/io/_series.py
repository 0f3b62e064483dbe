"""Recordings: a file becomes a standardised, delay-embedded series."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import numpy as np
from jaxtyping import Float

from dynwarp._checks import check_choice, check_positive, check_positive_integer
from dynwarp.errors import ArgumentError, SeriesError
from dynwarp.io import _arrays, _table
from dynwarp.io._delays import choose_delays
from dynwarp.io._embedding import as_delays, choose_dimension, choose_lag
from dynwarp.io._embedding import embed as embed_delays
from dynwarp.io._gaps import longest_stretch


class Series(eqx.Module):
    """A recording, ready to be trained on.

    **Attributes:**

    - `values`: shape `(T, N)`, numpy float64, standardised (and embedded) as asked for.
    - `mean`, `scale`: shape `(N,)`; `values * scale + mean` is in the units of the file. 0 and 1 if not standardised.
    - `columns`: the names of the N columns; `"x[-40]"` is x 40 samples earlier.
    - `sampling_interval`: the time between samples, None if not known.
    - `source`: the name of the file.
    - `dimension`, `lag`: of the delay embedding; 1 and None without. Delays that are not even are a tuple in `lag`.
    - `trend`: what was taken off, in the units of the file, shape `(T, N)`, so that `to_original(values) + trend` is
      what the file holds; None if nothing was.

    It holds numpy arrays, so that nothing is rounded where JAX is in single precision; `jnp.asarray(series.values)` is
    in the precision of JAX.
    """

    values: Float[np.ndarray, "T N"]
    mean: Float[np.ndarray, " N"]
    scale: Float[np.ndarray, " N"]
    columns: tuple[str, ...] = eqx.field(static=True)
    sampling_interval: float | None = eqx.field(static=True)
    source: str = eqx.field(static=True)
    dimension: int = eqx.field(static=True)
    lag: int | tuple[int, ...] | None = eqx.field(static=True)
    trend: Float[np.ndarray, "T N"] | None = None

    @property
    def span(self) -> int:
        """How many samples before its own a row reaches back, 0 without an embedding."""
        return 0 if self.lag is None else max(as_delays(self.dimension, self.lag, "Series"))

    def to_original(self, values: Float[Any, "... N"]) -> Any:
        """Undoes the standardisation of values, `(..., N)`: of this series or of what a model generates. Works under
        jit, in the dtype of `values`."""
        return values * self.scale.astype(values.dtype) + self.mean.astype(values.dtype)

    def to_standard(self, values: Float[Any, "... N"]) -> Any:
        """Standardises values in the units of the file, `(..., N)`, as this series was."""
        return (values - self.mean.astype(values.dtype)) / self.scale.astype(values.dtype)

    def split(self, fraction: float = 0.8, *, gap: int | None = None) -> tuple[Series, Series]:
        """Splits by time into the first `fraction` and the rest, both with the mean and scale of the whole.

        **Arguments:**

        - `fraction`: between 0 and 1.
        - `gap`: how many rows after the split are left out. By default `span`: the rows of an embedding that hold
          samples of the first part too, so that nothing in the second has been seen.

        **Raises:** `SeriesError` where a part would have fewer than two rows.
        """
        if not 0 < fraction < 1:
            raise ArgumentError(f"split: `fraction` must lie between 0 and 1; got {fraction!r}.")
        if gap is None:
            gap = self.span
        gap = check_positive_integer(gap, "gap", minimum=0, caller="split")
        rows = self.values.shape[0]
        end = round(fraction * rows)
        if end < 2 or rows - end - gap < 2:
            raise SeriesError(
                f"split: {rows} rows are too few for a first part of {end}, a gap of {gap} and a second part of at "
                "least 2."
            )
        return self._rows(0, end), self._rows(end + gap, rows)

    def parts(self, *fractions: float, gap: int | None = None) -> tuple[Series, ...]:
        """Splits by time into more parts, such as training, validation and test: `series.parts(0.7, 0.15, 0.15)`.

        **Arguments:** `fractions`, positive, of a sum of at most 1; `gap` between the parts, as of
        [`split`][dynwarp.io.Series].

        **Raises:** as [`split`][dynwarp.io.Series].
        """
        if len(fractions) < 2 or not all(f > 0 for f in fractions) or sum(fractions) > 1 + 1e-9:
            raise ArgumentError(
                f"parts: `fractions` must be positive, two or more, of sum 1 at most; got {fractions!r}."
            )
        rows, parts, begin = self.values.shape[0], [], 0
        if gap is None:
            gap = self.span
        gap = check_positive_integer(gap, "gap", minimum=0, caller="parts")
        for end in np.round(np.cumsum(fractions) * rows).astype(int):
            if end - begin < 2:
                raise SeriesError(f"parts: {rows} rows are too few for {len(fractions)} parts {gap} rows apart.")
            parts.append(self._rows(begin, int(end)))
            begin = int(end) + gap
        return tuple(parts)

    def _rows(self, begin: int, end: int) -> Series:
        part = eqx.tree_at(lambda s: s.values, self, self.values[begin:end])
        return part if self.trend is None else eqx.tree_at(lambda s: s.trend, part, self.trend[begin:end])

    def summary(self) -> dict[str, Any]:
        """All but the values as plain numbers and strings, for the metadata of a model that was trained on it."""
        return {
            "source": self.source,
            "columns": list(self.columns),
            "rows": int(self.values.shape[0]),
            "sampling_interval": self.sampling_interval,
            "dimension": self.dimension,
            "lag": self.lag,
            "mean": self.mean.tolist(),
            "scale": self.scale.tolist(),
        }


def read_series(
    path: str | os.PathLike,
    *,
    columns: str | int | Sequence[str | int] | None = None,
    key: str | None = None,
    embed: int | Literal["false_neighbours", "continuity"] | None = None,
    lag: int | Sequence[int] | Literal["mutual_information"] = "mutual_information",
    detrend: int | None = None,
    standardise: bool = True,
    missing: Literal["refuse", "keep"] = "refuse",
    sampling_interval: float | None = None,
    time: str | Literal["auto"] | None = "auto",
    header: bool | None = None,
    delimiter: str | None = None,
    transpose: bool = False,
) -> Series:
    """Reads a recording from a file: csv, tsv, txt, npy, npz, mat (5 and 7.3) or h5.

    **Arguments:**

    - `path`: the file; time runs down the rows.
    - `columns`: names or numbers of the columns to keep; all if None.
    - `key`: which array of an npz, mat or h5 file; may be left out where only one can be a recording.
    - `embed`: the dimension of a delay embedding of the kept columns, None for none; "false_neighbours" chooses it
      ([`choose_dimension`][dynwarp.io.choose_dimension]), and "continuity" chooses it and delays that need not be even
      ([`choose_delays`][dynwarp.io.choose_delays]).
    - `lag`: of the embedding in samples, or its delays; by default the first minimum of the mutual information
      ([`choose_lag`][dynwarp.io.choose_lag]). Where values are missing, what chooses sees the longest stretch without.
    - `detrend`: the degree of a polynomial in time that is fitted to each column and taken off; None for none.
    - `standardise`: to mean 0 and standard deviation 1, before the embedding, so that the delayed copies of a column
      share its mean and scale.
    - `missing`: "refuse" raises where values are NaN or infinite; "keep" turns them into NaN, for
      `training.fit(..., observed="finite")`.
    - `sampling_interval`: the time between rows, in a unit of your choice.
    - `time`: the column of a text file that holds the time. It must run evenly, gives the sampling interval and is left
      out. "auto" takes one called t or time, in any case, with or without a unit, unless `columns` are given.
    - `header`, `delimiter`: of a text file; found out if None.
    - `transpose`: for arrays in which time runs along the columns.

    **Returns:** a [`Series`][dynwarp.io.Series].

    **Raises:** `SeriesError`, one sentence, for a file that is missing, empty, damaged or of another type; for an array
    that is not there, holds no real numbers or more than two axes; for fewer than two time steps; for columns that are
    missing, not numeric, constant, or hold NaN or infinity; for a recording too short to embed.
    `MissingDependencyError` where h5py is needed. Nothing is ever unpickled.

    **Example:**

    >>> import tempfile, pathlib, dynwarp as dw
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "decay.csv"
    >>> _ = path.write_text("time,voltage\\n0.0,4\\n0.5,2\\n1.0,0\\n")
    >>> series = dw.io.read_series(path)
    >>> series.columns, series.sampling_interval, series.mean.tolist()
    (('voltage',), 0.5, [2.0])
    """
    file = _arrays.existing_file(path)
    suffix = file.suffix.lower()
    if suffix in _table.SUFFIXES:
        if key is not None:
            raise SeriesError(
                f"{str(path)!r} is a table and holds no arrays with names; use `columns` in place of `key`."
            )
        if transpose:
            raise SeriesError(f"{str(path)!r} is a table, which has its time down the rows; `transpose` is for arrays.")
        table = _table.read_table(file, header=header, delimiter=delimiter)
    elif suffix in _arrays.SUFFIXES:
        array = _pick(_arrays.read_arrays(file, key), key, file)
        array = array[:, None] if array.ndim == 1 else array.T if transpose else array
        table = {f"column {i}": array[:, i] for i in range(array.shape[1])}
    else:
        raise SeriesError(
            f"{str(path)!r}: unknown extension {suffix!r}; known are {', '.join(_table.SUFFIXES + _arrays.SUFFIXES)}."
        )

    clock = _clock(table, time, columns)
    if clock is not None:
        interval = _interval(table.pop(clock), clock, file)
        sampling_interval = interval if sampling_interval is None else sampling_interval
    chosen = _select(table, columns, file)
    text = [name for name in chosen if not np.issubdtype(table[name].dtype, np.number)]
    if text:
        raise SeriesError(
            f"{str(path)!r}: not all of column {', '.join(map(repr, text))} is numbers; choose others with `columns`."
        )
    values = np.stack([table[name] for name in chosen], axis=1) if chosen else np.zeros((0, 0))
    return make_series(
        values,
        columns=chosen,
        embed=embed,
        lag=lag,
        detrend=detrend,
        standardise=standardise,
        missing=missing,
        sampling_interval=sampling_interval,
        source=file.name,
    )


def make_series(
    values: Any,
    *,
    columns: Sequence[str] | None = None,
    embed: int | Literal["false_neighbours", "continuity"] | None = None,
    lag: int | Sequence[int] | Literal["mutual_information"] = "mutual_information",
    detrend: int | None = None,
    standardise: bool = True,
    missing: Literal["refuse", "keep"] = "refuse",
    sampling_interval: float | None = None,
    source: str = "array",
) -> Series:
    """A [`Series`][dynwarp.io.Series] from an array, shape `(T,)` or `(T, N)`.

    **Arguments:** as of [`read_series`][dynwarp.io.read_series]; `columns` are the names of all columns.

    **Raises:** `SeriesError` as [`read_series`][dynwarp.io.read_series] does.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> series = dw.io.make_series(np.arange(6.0), embed=2, lag=1, columns=["ramp"])
    >>> series.columns, series.values.shape
    (('ramp', 'ramp[-1]'), (5, 2))
    """
    x = _real(np.asarray(values), source)
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2:
        raise SeriesError(f"{source}: a recording has shape (T,) or (T, N); got {x.shape}.")
    names = tuple(f"column {i}" for i in range(x.shape[1])) if columns is None else tuple(columns)
    if len(names) != x.shape[1]:
        raise SeriesError(f"{source}: {x.shape[1]} columns and {len(names)} names, {', '.join(map(repr, names))}.")
    if sampling_interval is not None:
        check_positive(sampling_interval, "sampling_interval")
        sampling_interval = float(sampling_interval)
    check_choice(missing, "missing", ("refuse", "keep"))
    if missing == "keep":
        x = np.where(np.isfinite(x), x, np.nan)
    _check_values(x, names, source, keep=missing == "keep")

    trend = None
    if detrend is not None:
        trend = _trend(x, check_positive_integer(detrend, "detrend", minimum=0), source)
        x = x - trend
    mean, scale = np.zeros(x.shape[1]), np.ones(x.shape[1])
    if standardise:
        with np.errstate(over="ignore", invalid="ignore"):
            mean, scale = np.nanmean(x, 0), np.nanstd(x, 0)
        if not (np.isfinite(scale) & (scale > 0)).all():
            name = names[int(np.argmin(np.isfinite(scale) & (scale > 0)))]
            raise SeriesError(f"{source}: the standard deviation of column {name!r} cannot be computed in float64.")
        x = (x - mean) / scale

    dimension, chosen_lag = _embedding(x, embed, lag, source)
    if chosen_lag is not None:
        x = embed_delays(x, dimension, chosen_lag)
        trend = None if trend is None else embed_delays(trend, dimension, chosen_lag)
        delays = as_delays(dimension, chosen_lag, source)
        names += tuple(f"{name}[-{delay}]" for delay in delays[1:] for name in names)
        mean, scale = np.tile(mean, dimension), np.tile(scale, dimension)
    return Series(x, mean, scale, names, sampling_interval, source, dimension, chosen_lag, trend)


def default_series(*, embed: int | None = 5, lag: int | Literal["mutual_information"] = "mutual_information") -> Series:
    """The recording that is always there: the electrocardiogram that PyWavelets ships.

    **Arguments:** `embed`, `lag` as of [`read_series`][dynwarp.io.read_series].

    **Returns:** a [`Series`][dynwarp.io.Series], standardised: 1024 samples of one lead, three heartbeats, in the
    integer units of the converter. PyWavelets documents neither its origin nor its rate. The interval given, 1/360 s,
    is the one of the MIT-BIH arrhythmia database and an assumption; with it, the beats are 0.91 s apart.

    **Raises:** `MissingDependencyError` where PyWavelets is not installed.

    **Example:**

    >>> import dynwarp as dw
    >>> dw.io.default_series(embed=None).values.shape
    (1024, 1)
    """
    data = _arrays.optional("pywt.data", "PyWavelets", "The default recording")
    return make_series(
        data.ecg(),
        columns=["ecg"],
        embed=embed,
        lag=lag,
        sampling_interval=1 / 360,
        source="pywt.data.ecg",
    )


def _real(array: np.ndarray, source: str) -> np.ndarray:
    if np.issubdtype(array.dtype, np.complexfloating):
        raise SeriesError(f"{source}: a recording holds real numbers; got {array.dtype}. Pass its parts as columns.")
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise SeriesError(f"{source}: a recording holds real numbers; got an array of {array.dtype}.")
    return array.astype(np.float64)


def _trend(x: np.ndarray, degree: int, source: str) -> np.ndarray:
    """The polynomial in time of each column, fitted to what is there."""
    times, trend = np.arange(len(x)), np.empty_like(x)
    for column, fitted in zip(x.T, trend.T):
        known = np.isfinite(column)
        if known.sum() < degree + 2:
            raise SeriesError(f"{source}: {known.sum()} time steps are too few for a trend of degree {degree}.")
        fitted[:] = np.polynomial.Polynomial.fit(times[known], column[known], degree)(times)
    rest = x - trend
    # Rounding leaves a column that is its own trend a spread of its own.
    if not (np.nanstd(rest, 0) > 1e-10 * np.nanstd(x, 0)).all():
        raise SeriesError(f"{source}: a column is a polynomial of degree {degree} and has no dynamics.")
    return trend


def _embedding(x: np.ndarray, embed: Any, lag: Any, source: str) -> tuple[int, int | tuple[int, ...] | None]:
    """The dimension of the embedding and its lag, or delays; 1 and None for none."""
    if embed is not None and not isinstance(embed, str) and check_positive_integer(embed, "embed") == 1:
        return 1, None
    match embed:
        case None:
            return 1, None
        case "continuity":
            if lag != "mutual_information":
                raise ArgumentError(f"`lag` is chosen too where `embed` is 'continuity'; leave it out, got {lag!r}.")
            delays = choose_delays(_without_gaps(x, 100, source))
            return len(delays) + 1, delays or None
        case "false_neighbours":
            lag = _lag(x, lag, source)
            if not isinstance(lag, int):
                raise ArgumentError(f"`lag` must be a whole number where `embed` is 'false_neighbours'; got {lag!r}.")
            dimension = choose_dimension(_without_gaps(x, 16, source), lag)
            return dimension, lag if dimension > 1 else None
        case str():
            raise ArgumentError(f"`embed` must be a whole number, 'false_neighbours' or 'continuity'; got {embed!r}.")
    return int(embed), _lag(x, lag, source)


def _lag(x: np.ndarray, lag: Any, source: str) -> int | tuple[int, ...]:
    if isinstance(lag, str):
        if lag != "mutual_information":
            raise ArgumentError(f"`lag` must be a whole number or 'mutual_information'; got {lag!r}.")
        return choose_lag(_without_gaps(x, 16, source))
    if isinstance(lag, list | tuple):
        return tuple(check_positive_integer(delay, "lag") for delay in lag)
    return check_positive_integer(lag, "lag")


def _without_gaps(x: np.ndarray, rows: int, source: str) -> np.ndarray:
    """The longest stretch in which nothing is missing, of so many rows at least."""
    stretch = longest_stretch(x)
    if len(stretch) < rows:
        gaps = " without a gap" if len(stretch) < len(x) else ""
        raise SeriesError(
            f"{source}: {len(stretch)} time steps{gaps} are too few to choose an embedding; give `embed` and `lag`, or "
            f"{rows} at least."
        )
    return stretch


def _pick(arrays: dict[str, np.ndarray], key: str | None, file: Path) -> np.ndarray:
    """The array that is the recording."""
    listing = ", ".join(f"{name!r} {value.shape} {value.dtype}" for name, value in arrays.items()) or "nothing"
    if key is not None:
        if key not in arrays:
            raise SeriesError(f"{str(file)!r} has no array {key!r}; it holds {listing}.")
        array = arrays[key]
    elif len(arrays) == 1:
        (array,) = arrays.values()
    else:
        usable = [
            value
            for value in arrays.values()
            if np.issubdtype(value.dtype, np.number) and value.ndim in (1, 2) and value.shape[0] > 1
        ]
        if len(usable) != 1:
            raise SeriesError(f"{str(file)!r}: name the array with `key`; it holds {listing}.")
        (array,) = usable
    if array.dtype.names:
        raise SeriesError(
            f"{str(file)!r} holds records with fields {', '.join(array.dtype.names)}; save plain numbers."
        )
    array = _real(array, repr(str(file)))
    if array.ndim not in (1, 2):
        raise SeriesError(f"{str(file)!r}: a recording has shape (T,) or (T, N); got {array.shape}.")
    return array


def _clock(table: dict[str, np.ndarray], time: str | None, columns: Any) -> str | None:
    """The name of the column that holds the time."""
    if time == "auto":
        if columns is not None or len(table) < 2:
            return None
        named = [name for name in table if re.fullmatch(r"(t|time)\s*([(\[].*[)\]])?", name.strip(), re.IGNORECASE)]
        return named[0] if named and np.issubdtype(table[named[0]].dtype, np.number) else None
    if time is not None and time not in table:
        raise SeriesError(f"There is no column {time!r} for the time; there are {', '.join(map(repr, table))}.")
    return time


def _interval(times: np.ndarray, name: str, file: Path) -> float:
    steps = np.diff(times) if np.issubdtype(times.dtype, np.number) else np.zeros(0)
    if steps.size == 0:
        raise SeriesError(f"{str(file)!r}: the time in column {name!r} must be numbers, at least two.")
    interval = float(np.mean(steps))
    if not interval > 0 or not np.abs(steps - interval).max() < 0.1 * interval:
        raise SeriesError(
            f"{str(file)!r}: the time in column {name!r} does not run in even steps; resample the recording, or "
            "keep the column with time=None."
        )
    return interval


def _select(table: dict[str, np.ndarray], columns: Any, file: Path) -> list[str]:
    names = list(table)
    if columns is None:
        return names
    chosen = []
    for column in [columns] if isinstance(columns, str | int | np.integer) else columns:
        if isinstance(column, str) and column in table:
            chosen.append(column)
        elif isinstance(column, int | np.integer) and -len(names) <= column < len(names):
            chosen.append(names[column])
        else:
            raise SeriesError(
                f"{str(file)!r} has no column {column!r}; it has {', '.join(map(repr, names))}, numbers 0 to "
                f"{len(names) - 1}."
            )
    if len(set(chosen)) < len(chosen):
        raise SeriesError(f"`columns` names a column twice: {', '.join(map(repr, chosen))}.")
    return chosen


def _check_values(x: np.ndarray, names: tuple[str, ...], source: str, *, keep: bool) -> None:
    rows, width = x.shape
    if width == 0 or rows == 0:
        raise SeriesError(f"{source} is empty: it has no {'rows' if width else 'columns'}.")
    if rows == 1:
        wide = f" The array has shape {x.shape}: if time runs along it, pass transpose=True." if width > 1 else ""
        raise SeriesError(f"{source}: one time step is no recording; at least two are needed.{wide}")
    bad = ~np.isfinite(x)
    empty = [name for name, all_bad in zip(names, np.all(bad, axis=0).tolist()) if all_bad]
    if empty:
        raise SeriesError(
            f"{source}: every value is missing in column {', '.join(map(repr, empty))}; choose others with `columns`."
        )
    if bad.any() and not keep:
        row, column = (int(i) for i in np.argwhere(bad)[0])
        raise SeriesError(
            f"{source}: {int(bad.sum())} values are missing, NaN or infinite, the first in column {names[column]!r}, "
            f"row {row}; fill them in, choose other `columns`, or keep them as gaps, missing='keep' (--missing keep)."
        )
    constant = [name for name, low, high in zip(names, np.nanmin(x, 0), np.nanmax(x, 0)) if low == high]
    if constant:
        raise SeriesError(
            f"{source}: column {', '.join(map(repr, constant))} is constant and has no dynamics; choose others with "
            "`columns`."
        )
