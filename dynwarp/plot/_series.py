"""Recordings and what a model makes of them: in time, as spectra, as errors of prediction."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynwarp._checks import check_shape
from dynwarp.plot._axes import GENERATED, RECORDED, REFERENCE, axes_or_new, drawable, tidy


def series(recorded: Any, generated: Any = None, *, sampling_interval: float | None = None, unit: str = "s", ax=None):
    """One channel of a recording over time, and what a model generates.

    **Arguments:**

    - `recorded`, `generated`: shapes `(T,)` and `(S,)`, or None.
    - `sampling_interval`: the time between samples in `unit`; None puts steps on the axis.
    - `ax`: matplotlib axes; None makes a figure.

    **Returns:** the lines, a list.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> len(dw.plot.series(np.sin(np.arange(50.0)), np.cos(np.arange(80.0))))
    2
    """
    ax = axes_or_new(ax)
    lines = []
    for name, values, colour in (("recording", recorded, RECORDED), ("model", generated, GENERATED)):
        if values is not None:
            values = np.asarray(values)
            check_shape(values, name, ("T",), caller="plot.series")
            times = np.arange(values.size) * (1.0 if sampling_interval is None else sampling_interval)
            lines += ax.plot(times, drawable(values), color=colour, lw=1, label=name)
    ax.set_xlabel("step" if sampling_interval is None else f"time / {unit}")
    ax.legend(frameon=False, loc="upper right")
    tidy(ax)
    return lines


def power_spectrum(recorded: Any, generated: Any = None, *, sampling_interval: float | None = None, ax=None):
    """The power spectra of one channel of a recording and of what a model generates, each normalised to a sum of 1.

    **Arguments:** as of [`series`][dynwarp.plot.series]; frequencies are in cycles a step, or a unit of time.

    **Returns:** the lines, a list.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> len(dw.plot.power_spectrum(np.sin(np.arange(50.0))))
    1
    """
    ax = axes_or_new(ax)
    lines = []
    for name, values, colour in (("recording", recorded, RECORDED), ("model", generated, GENERATED)):
        if values is not None:
            values = np.asarray(values)
            check_shape(values, name, ("T",), caller="plot.power_spectrum")
            power = np.abs(np.fft.rfft((values - values.mean()) * np.hanning(values.size)))[1:] ** 2
            total = power.sum()
            frequencies = np.fft.rfftfreq(values.size, 1.0 if sampling_interval is None else sampling_interval)[1:]
            # A constant signal has no spectrum; it shows as nothing on the logarithmic axis.
            shown = np.where(power > 0, power, np.nan) / (total if total > 0 else 1.0)
            lines += ax.plot(frequencies, shown, color=colour, lw=1, label=name)
    ax.set_yscale("log")
    ax.set_xlabel("frequency / " + ("cycles a step" if sampling_interval is None else "cycles a unit of time"))
    ax.set_ylabel("share of power")
    ax.legend(frameon=False, loc="upper right")
    tidy(ax)
    return lines


def prediction_error(horizons: Any, errors: dict[str, Any], *, ax=None):
    """Errors of prediction against the horizon.

    **Arguments:** `horizons`, shape `(k,)`; `errors`, a curve `(k,)` for each name. Names with "persistence" in them
    are drawn grey.

    **Returns:** the lines, a list.

    **Example:**

    >>> import dynwarp as dw
    >>> len(dw.plot.prediction_error([1, 2], {"model": [0.1, 0.2], "persistence": [0.3, 0.6]}))
    2
    """
    ax = axes_or_new(ax)
    lines = []
    for i, (name, curve) in enumerate(errors.items()):
        colour = REFERENCE if "persistence" in name else GENERATED
        lines += ax.plot(horizons, drawable(curve), color=colour, lw=1.5, ls=("-", "--")[i % 2], label=name)
    ax.set_yscale("log")
    ax.set_xlabel("steps ahead")
    ax.set_ylabel("mean squared error")
    ax.legend(frameon=False)
    tidy(ax)
    return lines


def training_history(history: Any, *, smoothing: int = 50, steps: Any = None, ax=None):
    """The loss of a training over its steps, as a running median, and the scores of its validations.

    **Arguments:** `history`, a [`training.History`][dynwarp.training.History] or anything with its attributes;
    `smoothing`, losses in a window; `steps`, the step of each loss, shape `(k,)`, counted from 1 if None.

    **Returns:** the artists, a list.

    **Example:**

    >>> import numpy as np, types, dynwarp as dw
    >>> history = types.SimpleNamespace(loss=np.ones(9), validation_step=np.array([9]), validation=np.array([0.5]))
    >>> len(dw.plot.training_history(history, smoothing=3))
    2
    """
    ax = axes_or_new(ax)
    loss = np.asarray(history.loss)
    blocks = np.array_split(loss, max(1, loss.size // smoothing))
    ends = np.cumsum([block.size for block in blocks])
    steps = ends if steps is None else np.asarray(steps)[ends - 1]
    medians = [np.nanmedian(block) if np.isfinite(block).any() else np.nan for block in blocks]
    lines = ax.plot(steps, drawable(medians), color=GENERATED, lw=1.2, label="loss")
    if np.size(history.validation):
        lines += ax.plot(
            history.validation_step, drawable(history.validation), ".", color=RECORDED, label="validation score"
        )
    ax.set_yscale("log")
    ax.set_xlabel("step")
    ax.legend(frameon=False)
    tidy(ax)
    return lines
