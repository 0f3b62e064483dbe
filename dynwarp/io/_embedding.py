"""Delay embedding, its lag from the mutual information between a signal and its past, its dimension from neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from dynwarp._checks import check_positive, check_positive_integer
from dynwarp.errors import ArgumentError, SeriesError


def embed(values: Float[np.ndarray, "T ..."], dimension: int, lag: int | Sequence[int]) -> np.ndarray:
    """The delay embedding of a recording: each row holds the present and `dimension - 1` past values.

    **Arguments:**

    - `values`: shape `(T,)` or `(T, N)`, numpy or JAX.
    - `dimension`: the number of values kept of each column.
    - `lag`: the samples between them; or the `dimension - 1` delays of the past values, in any order.

    **Returns:** shape `(T - (dimension - 1) * lag, N * dimension)`, numpy, in the dtype of `values`. Row i belongs to
    sample `t = (dimension - 1) * lag + i` and holds `x[t], x[t - lag], x[t - 2 lag], ...`: all columns at the present,
    then all of them one lag ago, and so on. So the first N columns are what was measured, and no row looks ahead. With
    delays t starts at the longest of them.

    **Raises:** `SeriesError` where the recording is too short; `ArgumentError` for a dimension or lag below 1, and for
    delays that are not `dimension - 1` different ones.

    **Source:** Takens, Lecture Notes in Mathematics 898 (1981) 366.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> dw.io.embed(np.arange(5), dimension=3, lag=1)[0].tolist(), dw.io.embed(np.arange(9), 3, (7, 2))[0].tolist()
    ([2, 1, 0], [7, 0, 5])
    """
    dimension = check_positive_integer(dimension, "dimension", caller="embed")
    delays = as_delays(dimension, lag, "embed")
    x = as_columns(values, "embed")
    lost = max(delays)
    rows = x.shape[0] - lost
    if rows < 2:
        where = f"lag {lag}" if isinstance(lag, int) else f"delays {', '.join(map(str, delays[1:]))}"
        raise SeriesError(
            f"embed: {x.shape[0]} time steps are too few for dimension {dimension} at {where}; "
            f"at least {lost + 2} are needed."
        )
    return np.concatenate([x[lost - delay : lost - delay + rows] for delay in delays], axis=1)


def as_delays(dimension: int, lag: int | Sequence[int], caller: str) -> tuple[int, ...]:
    """The delays of an embedding, 0 first, from its lag or from the others."""
    if not isinstance(lag, list | tuple):
        lag = check_positive_integer(lag, "lag", caller=caller)
        return tuple(range(0, dimension * lag, lag))
    delays = (0, *(check_positive_integer(delay, "lag", caller=caller) for delay in lag))
    if len(delays) != dimension or len(set(delays)) != dimension:
        raise ArgumentError(
            f"{caller}: `lag` must be a whole number, or {dimension - 1} different ones for dimension {dimension}; "
            f"got {list(lag)}."
        )
    return delays


def mutual_information(values: Float[np.ndarray, " T"], lag: int) -> float:
    """The mutual information, in nats, between a signal and itself `lag` samples earlier.

    **Arguments:**

    - `values`: one signal, shape `(T,)`.
    - `lag`: at least 1.

    **Returns:** a kernel density estimate. Its Gaussian kernel has the width h = T^(-1/6) standard deviations, so that
    it estimates the information of the signal seen through noise of that size: finite for a signal without noise
    too, and for a Gaussian one of autocorrelation r equal to `-log(1 - (r / (1 + h^2))^2) / 2`.

    **Raises:** `SeriesError` for a constant signal, or one with fewer than 8 samples beyond the lag.

    **Cost:** `O(T)` and the smoothing of a grid of at most 256 x 256.

    **Source:** Moon, Rajagopalan and Lall, Phys. Rev. E 52 (1995) 2318.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> signal = np.sin(np.arange(1000) * 2 * np.pi / 40)
    >>> dw.io.mutual_information(signal, 10) < dw.io.mutual_information(signal, 5)
    True
    """
    lag = check_positive_integer(lag, "lag", caller="mutual_information")
    x = np.asarray(values)
    if x.ndim != 1:
        raise SeriesError(f"mutual_information takes one signal, shape (T,); got {x.shape}.")
    if x.size < lag + 8:
        raise SeriesError(
            f"mutual_information: {x.size} time steps are too few for lag {lag}; at least {lag + 8} are needed."
        )
    return _information(*_cells(x), lag)


def choose_lag(values: Float[np.ndarray, "T ..."], *, max_lag: int | None = None) -> int:
    """The lag for a delay embedding: the first minimum of the mutual information, averaged over the columns.

    **Arguments:**

    - `values`: shape `(T,)` or `(T, N)`.
    - `max_lag`: the longest lag tried; by default a quarter of the recording.

    **Returns:** the lag in samples, at least 1. Where the information has no minimum, the first lag at which it has
    fallen to 1/e of that at lag 1, or `max_lag` if it never does.

    **Raises:** `SeriesError` for a constant column, or a recording with fewer than 8 samples beyond `max_lag`.

    **Cost:** that of [`mutual_information`][dynwarp.io.mutual_information] for each lag up to the minimum.

    **Source:** Fraser and Swinney, Phys. Rev. A 33 (1986) 1134.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> dw.io.choose_lag(np.sin(np.arange(1000) * 2 * np.pi / 40))
    10
    """
    x = as_columns(values, "choose_lag")
    max_lag = check_positive_integer(
        max(x.shape[0] // 4, 1) if max_lag is None else max_lag, "max_lag", caller="choose_lag"
    )
    if x.shape[0] < max_lag + 8:
        raise SeriesError(
            f"choose_lag: {x.shape[0]} time steps are too few for lags up to {max_lag}; "
            f"at least {max_lag + 8} are needed."
        )
    columns = [_cells(column) for column in x.T]
    information = []
    for lag in range(1, max_lag + 1):
        information.append(np.mean([_information(*column, lag) for column in columns]))
        if lag > 2 and information[-3] > information[-2] <= information[-1]:
            return lag - 1
    fallen = np.flatnonzero(np.array(information) <= information[0] / np.e)
    return int(fallen[0]) + 1 if fallen.size else max_lag


def false_neighbours(
    values: Float[np.ndarray, "T ..."],
    dimension: int,
    lag: int,
    *,
    ratio: float = 15.0,
    size: float = 2.0,
    most: int = 5000,
) -> float:
    """The share of nearest neighbours in an embedding that one more delay shows to be no neighbours.

    A neighbour at distance r that the next delayed value moves away by s is false where s > ratio r, or where
    sqrt(r^2 + s^2) is more than `size` standard deviations of the recording.

    **Arguments:**

    - `values`: shape `(T,)` or `(T, N)`.
    - `dimension`, `lag`: of the embedding, as of [`embed`][dynwarp.io.embed].
    - `ratio`, `size`: the two criteria.
    - `most`: points, evenly spaced, whose neighbours are looked at.

    **Returns:** between 0 and 1; 0 where the embedding unfolds the attractor and there is no noise.

    **Raises:** `SeriesError` for a constant column, missing values, or a recording too short to embed once more.

    **Cost:** `O(T log T)` in few dimensions.

    **Source:** Kennel, Brown and Abarbanel, Phys. Rev. A 45 (1992) 3403.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> wave = np.sin(0.156 * np.arange(1000))
    >>> dw.io.false_neighbours(wave, 1, 10) > 0.2, dw.io.false_neighbours(wave, 2, 10) < 0.01
    (True, True)
    """
    from scipy.spatial import KDTree

    caller = "false_neighbours"
    x = as_columns(values, caller).astype(float)
    check_positive(ratio, "ratio", caller=caller)
    check_positive(size, "size", caller=caller)
    most = check_positive_integer(most, "most", caller=caller)
    spread = x.std(axis=0)
    if not (np.isfinite(spread) & (spread > 0)).all():
        raise SeriesError(f"{caller}: the recording has a column that is constant or not finite.")
    rows = embed((x - x.mean(axis=0)) / spread, check_positive_integer(dimension, "dimension", caller=caller) + 1, lag)
    points, following = rows[:, : -x.shape[1]], rows[:, -x.shape[1] :]
    asked = np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int))
    found = KDTree(points).query(points[asked], k=2)
    distances, neighbours = np.asarray(found[0]), np.asarray(found[1])
    # Of points that coincide the first found may be another than the point itself.
    other = np.where(neighbours[:, 0] == asked, neighbours[:, 1], neighbours[:, 0])
    distance = np.where(neighbours[:, 0] == asked, distances[:, 1], distances[:, 0])
    moved = np.linalg.norm(following[asked] - following[other], axis=1)
    # What lies within rounding of each other is one point.
    moved = np.where(moved > 1e-9, moved, 0.0)
    return float(np.mean((moved > ratio * distance) | (np.hypot(distance, moved) > size)))


def choose_dimension(
    values: Float[np.ndarray, "T ..."], lag: int, *, max_dimension: int = 10, tolerance: float = 0.01
) -> int:
    """The dimension for a delay embedding: the least whose share of false nearest neighbours is below `tolerance`.

    **Arguments:**

    - `values`: shape `(T,)` or `(T, N)`; with N columns the state has N times as many entries.
    - `lag`: in samples.
    - `max_dimension`: the most that is tried.
    - `tolerance`: noise leaves false neighbours in every dimension; raise it for noisy recordings.

    **Returns:** the dimension; where none is good enough, the first whose share is within `tolerance` of the least.

    **Raises:** `SeriesError` as [`false_neighbours`][dynwarp.io.false_neighbours], for the largest dimension.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> dw.io.choose_dimension(np.sin(0.156 * np.arange(1000)), 10)
    2
    """
    max_dimension = check_positive_integer(max_dimension, "max_dimension", caller="choose_dimension")
    check_positive(tolerance, "tolerance", caller="choose_dimension")
    shares = []
    for dimension in range(1, max_dimension + 1):
        shares.append(false_neighbours(values, dimension, lag))
        if shares[-1] < tolerance:
            return dimension
    return int(np.argmax(np.array(shares) < min(shares) + tolerance)) + 1


def as_columns(values, caller: str) -> np.ndarray:
    """A recording as (T, N)."""
    x = np.asarray(values)
    if x.ndim not in (1, 2):
        raise SeriesError(f"{caller}: a recording has shape (T,) or (T, N); got {x.shape}.")
    return x[:, None] if x.ndim == 1 else x


def _cells(x: np.ndarray) -> tuple[np.ndarray, int, float]:
    """The grid cell of each value, the number of cells, and the width of the kernel in cells."""
    x = x.astype(float)
    scale = x.std()
    if not scale > 0 or not np.isfinite(scale):
        raise SeriesError("The signal is constant or not finite, so that it holds no information about its past.")
    width = x.size ** (-1 / 6) * scale
    low, extent = x.min() - 4 * width, np.ptp(x) + 8 * width
    # Two cells a kernel width resolve it; a signal with rare, huge values gets a coarser grid.
    count = min(int(np.ceil(2 * extent / width)), 256)
    return ((x - low) / extent * count).astype(np.int64), count, width / extent * count


def _information(cells: np.ndarray, count: int, width: float, lag: int) -> float:
    from scipy.ndimage import gaussian_filter

    pairs = cells[lag:] * count + cells[:-lag]
    joint = np.bincount(pairs, minlength=count * count).reshape(count, count) / pairs.size
    joint = gaussian_filter(joint, width, mode="constant", truncate=4.0)
    product = joint.sum(1, keepdims=True) * joint.sum(0)
    filled = joint > 0
    return float(np.sum(joint[filled] * np.log(joint[filled] / product[filled])))
