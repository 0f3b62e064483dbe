"""Delays that need not be evenly spaced, chosen one by one: where a new one tells most, as long as it helps."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from dynwarp._checks import check_positive, check_positive_integer
from dynwarp.errors import SeriesError
from dynwarp.io._embedding import as_columns, choose_lag

# Neighbours of the continuity statistic, the chance that one lies in the interval, and the level of the test.
_NEIGHBOURS, _CHANCE, _LEVEL = range(8, 14), 0.5, 0.05
# Neighbours of the L-statistic.
_FEW = 3
# Squared distances, in squared standard deviations, below which points are one.
_FLOOR = 1e-12


def choose_delays(
    values: Float[np.ndarray, "T ..."],
    *,
    max_delay: int | None = None,
    max_dimension: int = 8,
    tolerance: float = 0.05,
    most: int = 1000,
) -> tuple[int, ...]:
    """The delays of an embedding that need not be evenly spaced: `embed(values, len(delays) + 1, delays)`.

    The embedding starts as the present values. Each round looks at every delay for how badly the embedding so far
    determines the value at that delay: the continuity statistic, the least radius within which the images of close
    neighbours lie more often than chance has it. Its local maxima over the delays are the candidates. Each is tried,
    and the one that lowers the L-statistic most is kept, of several within `tolerance` the shortest: L is the logarithm
    of how much close neighbours spread as they move on, relative to their distance, times their typical distance. The
    rounds end where no candidate lowers it by `tolerance`.

    **Arguments:**

    - `values`: shape `(T,)` or `(T, N)`. With N columns a delay adds all of them at that delay, so that the first N
      coordinates of a state are what is measured; the statistics are means over the columns.
    - `max_delay`: in samples; by default 8 times the first minimum of the mutual information, an eighth of the
      recording at most.
    - `max_dimension`: the most values kept of each column.
    - `tolerance`: in decades of L. Noise, and few samples, make it fall a little with any delay; raise it for these.
    - `most`: points, evenly spaced, whose neighbours are looked at.

    **Returns:** the delays in samples, in the order in which they were chosen; none where the present alone is a state.

    **Raises:** `SeriesError` for a constant column, missing values, or fewer samples than 4 `max_delay` and 100.

    **Cost:** a search for neighbours a candidate, `O(T log T)` in few dimensions.

    **Source:** after Kraemer et al., New J. Phys. 23 (2021) 033017 (PECUZAL), with the continuity statistic of Pecora
    et al., Chaos 17 (2007) 013110, and the L-statistic of Uzal, Grinblat and Verdes, Phys. Rev. E 84 (2011) 016223, for
    the measured values up to 4 times that minimum ahead. It differs in that columns share their delays, points near in
    time (the same minimum) are no neighbours, and `tolerance` is not 0.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> delays = dw.io.choose_delays(np.sin(0.156 * np.arange(1000)))
    >>> len(delays), abs(delays[0] - 2 * np.pi / 0.156 / 4) < 3
    (1, True)
    """
    caller = "choose_delays"
    x = as_columns(values, caller).astype(float)
    check_positive(tolerance, "tolerance", caller=caller)
    max_dimension = check_positive_integer(max_dimension, "max_dimension", caller=caller)
    most = check_positive_integer(most, "most", caller=caller)
    spread = x.std(axis=0)
    if not (np.isfinite(spread) & (spread > 0)).all():
        raise SeriesError(f"{caller}: the recording has a column that is constant or not finite.")
    if len(x) < 100:
        raise SeriesError(f"{caller}: {len(x)} time steps are too few to choose delays; at least 100 are needed.")
    x = (x - x.mean(axis=0)) / spread
    window = min(choose_lag(x), len(x) // 32)
    if max_delay is None:
        max_delay = max(3, min(8 * window, len(x) // 8))
    max_delay = check_positive_integer(max_delay, "max_delay", caller=caller)
    if len(x) < 4 * max_delay:
        raise SeriesError(f"{caller}: {len(x)} time steps are too few for delays up to {max_delay}.")

    horizon = max(1, min(4 * window, len(x) // 8))
    # Every statistic is of the same times, so that one embedding can be compared with another.
    times = np.arange(max_delay, len(x) - horizon)
    asked = np.unique(np.linspace(0, len(times) - 1, min(most, len(times))).astype(int))
    delays: list[int] = []
    rows = x[times]
    spreads = _spreads(x, times, asked, rows, window, horizon)
    while len(delays) + 1 < max_dimension:
        trials = []
        for delay in _peaks(_continuity(x, times, asked, rows, window, max_delay)):
            wider = np.concatenate([rows, x[times - delay]], axis=1)
            found = _spreads(x, times, asked, wider, window, horizon)
            trials.append((float(np.min(found - spreads)), delay, wider, found))
        if not trials:
            break
        least = min(change for change, *_ in trials)
        if least > -tolerance:
            break
        # Of delays that are as good, such as a quarter of a period and five of them, the shortest.
        _, delay, wider, found = next(trial for trial in trials if trial[0] <= least + tolerance)
        delays.append(int(delay))
        rows, spreads = wider, found
    return tuple(delays)


def _neighbours(rows: np.ndarray, asked: np.ndarray, count: int, window: int) -> np.ndarray:
    """The `count` nearest rows to each of the `asked` ones that are more than `window` rows away, `(asked, count)`."""
    from scipy.spatial import KDTree

    wanted = min(len(rows), count + 2 * window + 1)
    found = np.asarray(KDTree(rows).query(rows[asked], k=wanted)[1])
    far = np.abs(found - asked[:, None]) > window
    # A stable sort brings those that count to the front, still by distance.
    first = np.argsort(~far, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(found, first, axis=1)


def _continuity(x, times, asked, rows, window: int, max_delay: int) -> np.ndarray:
    """The continuity statistic of every delay from 0 to `max_delay`, a mean over points and columns."""
    near = _neighbours(rows, asked, _NEIGHBOURS[-1], window)
    here, there = times[asked], times[near]
    needed = [_needed(count) for count in _NEIGHBOURS]
    out = np.empty(max_delay + 1)
    for delay in range(max_delay + 1):
        distances = np.abs(x[there - delay] - x[here - delay][:, None])
        radii = [np.sort(distances[:, :n], axis=1)[:, k - 1] for n, k in zip(_NEIGHBOURS, needed)]
        out[delay] = np.mean(np.min(radii, axis=0))
    return out


def _needed(count: int) -> int:
    """How many of so many neighbours must lie in an interval for chance to be rejected."""
    tail = 0.0
    for hits in range(count, 0, -1):
        tail += math.comb(count, hits) * _CHANCE**hits * (1 - _CHANCE) ** (count - hits)
        if tail > _LEVEL:
            return hits + 1
    return 1


def _peaks(statistic: np.ndarray) -> np.ndarray:
    """The delays of the local maxima; the last one counts where the statistic still rises there."""
    rising = np.diff(statistic) > 0
    falling = np.append(~rising[1:], True)
    return np.flatnonzero(rising & falling) + 1


def _spreads(x, times, asked, rows, window: int, horizon: int) -> np.ndarray:
    """The L-statistic of an embedding for each horizon from 1 to `horizon`."""
    group = np.concatenate([asked[:, None], _neighbours(rows, asked, _FEW, window)], axis=1)
    members = rows[group]
    size = 2 / _FEW * np.sum((members - members.mean(axis=1, keepdims=True)) ** 2, axis=(1, 2)) + _FLOOR
    spread = np.zeros(len(asked))
    out = np.empty(horizon)
    for ahead in range(1, horizon + 1):
        spread = spread + np.mean(np.var(x[times[group] + ahead], axis=1), axis=-1)
        noise = np.mean((spread / ahead + _FLOOR) / size)
        out[ahead - 1] = 0.5 * np.log10(noise / np.mean(1 / size))
    return out
