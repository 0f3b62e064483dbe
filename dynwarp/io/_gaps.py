"""Gaps in recordings: the stretches between them, and straight lines over them."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from dynwarp.errors import SeriesError
from dynwarp.io._embedding import as_columns


def fill_gaps(values: Float[np.ndarray, "T ..."]) -> Float[np.ndarray, "T ..."]:
    """A recording with straight lines where values are missing, and the nearest value at its ends.

    For what needs a value at every time, such as a spectrum; training is better served by masks,
    `training.fit(..., observed="finite")`.

    **Arguments:** `values`, shape `(T,)` or `(T, N)`; NaN and infinities are missing.

    **Returns:** the same shape, numpy float64, all finite.

    **Raises:** `SeriesError` where a column has no values at all.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> dw.io.fill_gaps(np.array([1.0, np.nan, 3.0, np.nan])).tolist()
    [1.0, 2.0, 3.0, 3.0]
    """
    x = np.array(as_columns(values, "fill_gaps"), dtype=np.float64)
    times = np.arange(len(x))
    for column in x.T:
        known = np.isfinite(column)
        if not known.any():
            raise SeriesError("fill_gaps: a column has no values at all.")
        column[~known] = np.interp(times[~known], times[known], column[known])
    return x.reshape(np.shape(values))


def longest_stretch(x: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "S N"]:
    """The longest run of rows in which everything is finite."""
    edges = np.flatnonzero(np.concatenate([[True], ~np.isfinite(x).all(axis=1), [True]]))
    lengths = np.diff(edges) - 1
    best = int(np.argmax(lengths))
    return x[edges[best] : edges[best] + lengths[best]]
