"""Recordings cut into trials of bins."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynwarp._checks import check_finite, check_positive, check_positive_integer, check_shape
from dynwarp.errors import ArgumentError


def bin_spikes(times: Any, units: Any, starts: Any, *, dt: float, steps: int, n_units: int | None = None) -> np.ndarray:
    """Spikes counted in the bins of trials, `(n, steps, n_units)` (host).

    Bin i of a trial that starts at s holds the spikes in [s + i dt, s + (i + 1) dt).

    **Arguments:**

    - `times`: of all spikes, in any order, `(k,)`; `units`, the number of the unit of each, `(k,)`, from 0.
    - `starts`: of the trials, `(n,)`, in the units of `times`; trials may overlap.
    - `dt`, `steps`: the length of a bin and how many there are.
    - `n_units`: how many units; one more than the greatest number if None.

    **Raises:** `ShapeError`, `NonFiniteError`, `ArgumentError` for what does not fit.

    **Example:**

    >>> dw.tasks.bin_spikes([0.1, 1.7, 0.2], [0, 1, 0], [0.0, 1.5], dt=0.5, steps=2).tolist()
    [[[2.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]]
    """
    caller = "bin_spikes"
    times, units = np.asarray(times, float), np.asarray(units)
    check_shape(times, "times", ("k",), caller=caller)
    check_shape(units, "units", times.shape, caller=caller)
    check_finite(times, "times", caller=caller)
    starts, edges = _edges(starts, dt, steps, caller)
    if units.size and not np.issubdtype(units.dtype, np.integer):
        raise ArgumentError(f"{caller}: `units` must be whole numbers; got an array of {units.dtype}.")
    least = int(units.max(initial=-1)) + 1
    n_units = check_positive_integer(least if n_units is None else n_units, "n_units", caller=caller)
    if units.size and not (units.min() >= 0 and least <= n_units):
        raise ArgumentError(f"{caller}: `units` must be whole numbers from 0 to {n_units - 1}.")
    order = np.argsort(times, kind="stable")
    times, units = times[order], units[order].astype(int)
    counts = np.zeros((len(starts), steps, n_units))
    for trial, trial_edges in zip(counts, edges):
        # A spike on an edge, but for rounding, belongs to the bin that begins there.
        ends = np.searchsorted(times, trial_edges - 1e-9 * dt, side="left")
        bins = np.repeat(np.arange(steps), np.diff(ends))
        np.add.at(trial, (bins, units[ends[0] : ends[-1]]), 1.0)
    return counts


def bin_signal(times: Any, values: Any, starts: Any, *, dt: float, steps: int) -> np.ndarray:
    """The mean of a sampled signal in the bins of trials, `(n, steps, k)` (host): exact for what is linear between the
    samples, which may be denser or sparser than the bins.

    **Arguments:** `times` of the samples, increasing, `(T,)`; `values`, `(T, k)`; the others as of
    [`bin_spikes`][dynwarp.tasks.bin_spikes].

    **Raises:** `ShapeError`, `NonFiniteError`; `ArgumentError` where a trial is not within the samples.

    **Example:**

    >>> dw.tasks.bin_signal([0.0, 4.0], [[0.0], [4.0]], [1.0], dt=1.0, steps=2).tolist()
    [[[1.5], [2.5]]]
    """
    caller = "bin_signal"
    times, values = np.asarray(times, float), np.asarray(values, float)
    check_shape(times, "times", ("T",), caller=caller)
    check_shape(values, "values", (times.size, "k"), caller=caller)
    check_finite(times, "times", caller=caller)
    check_finite(values, "values", caller=caller)
    if times.size < 2 or (np.diff(times) <= 0).any():
        raise ArgumentError(f"{caller}: `times` must be at least 2 numbers that increase.")
    _, edges = _edges(starts, dt, steps, caller)
    slack = 1e-9 * (times[-1] - times[0])
    if edges.min() < times[0] - slack or edges.max() > times[-1] + slack:
        raise ArgumentError(
            f"{caller}: the trials must lie within the samples, from {times[0]:g} to {times[-1]:g}; they range from "
            f"{edges.min():g} to {edges.max():g}."
        )
    areas = np.cumsum(np.diff(times)[:, None] * (values[1:] + values[:-1]) / 2, axis=0)
    areas = np.concatenate([np.zeros_like(areas[:1]), areas])
    last = np.clip(np.searchsorted(times, edges, side="right") - 1, 0, times.size - 2)
    within = (edges - times[last])[..., None]
    slope = ((values[1:] - values[:-1]) / np.diff(times)[:, None])[last]
    integral = areas[last] + within * values[last] + within**2 * slope / 2
    return np.diff(integral, axis=1) / dt


def _edges(starts, dt, steps, caller):
    starts = np.asarray(starts, float)
    check_shape(starts, "starts", ("n",), caller=caller)
    check_finite(starts, "starts", caller=caller)
    check_positive(dt, "dt", caller=caller)
    steps = check_positive_integer(steps, "steps", caller=caller)
    return starts, starts[:, None] + dt * np.arange(steps + 1)
