"""Metrics over time: curves with bands over the inputs, and animations of ellipses and grids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dynwarp._checks import check_choice, check_real, check_shape
from dynwarp.errors import ArgumentError, ShapeError
from dynwarp.plot._axes import GENERATED, axes_or_new, drawable, tidy
from dynwarp.plot._geometry import (
    check_power,
    checked_grid,
    ellipses,
    fitting_scale,
    frame_grid,
    grid_lines,
    warped_points,
)


def timeline(
    times: Any,
    curves: Mapping[str, Any],
    *,
    epochs: Mapping[str, tuple[float, float]] | None = None,
    quantiles: tuple[float, float] = (0.05, 0.95),
    logarithmic: bool = False,
    label: str = "",
    ax=None,
):
    """Quantities over the time of a trial: ratios, stretches, traces, alignments; the epochs of the task shaded.

    **Arguments:**

    - `times`: `(T,)`.
    - `curves`: for each name `(T,)`, or `(..., T)` with the points of the chart on the leading axes, drawn as the
      median over points with a band of two quantiles.
    - `epochs`: for each name (from, to), in the units of `times`.
    - `quantiles`: of the band.
    - `logarithmic`: the vertical axis; what is not positive is left out.
    - `label`: of the vertical axis; `ax`: matplotlib axes; None makes a figure.

    **Returns:** the lines, a list.

    **Raises:** `ShapeError`, `ArgumentError` for what does not fit.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> trace = np.linspace(1.0, 2.0, 5) * np.ones((3, 3, 1))
    >>> len(dw.plot.timeline(np.arange(5.0), {"trace": trace}, epochs={"stimulus": (0.0, 2.0)}))
    1
    """
    caller = "plot.timeline"
    times = np.asarray(times, float)
    check_shape(times, "times", ("T",), caller=caller)
    low, high = quantiles
    if not 0 <= low <= high <= 1:
        raise ArgumentError(f"{caller}: `quantiles` must satisfy 0 <= low <= high <= 1; got {quantiles!r}.")
    ax = axes_or_new(ax)
    for i, (name, (start, stop)) in enumerate(_epochs(epochs, caller)):
        ax.axvspan(start, stop, color=("#e8e8e8", "#f4f4f4")[i % 2], lw=0, zorder=0)
        at = {"transform": ax.get_xaxis_transform(), "ha": "center", "va": "bottom", "fontsize": "small"}
        ax.text((start + stop) / 2, 1.0, name, color="#555555", **at)
    lines = []
    for name, values in curves.items():
        values = np.asarray(values, float)
        check_shape(values, name, (*values.shape[:-1], times.size), caller=caller)
        spread = values.reshape(-1, times.size)
        if logarithmic:
            spread = np.where(spread > 0, spread, np.nan)
        lines += ax.plot(times, drawable(_quantile(spread, 0.5)), lw=1.4, label=name)
        if len(spread) > 1:
            below, above = (drawable(_quantile(spread, q)) for q in quantiles)
            ax.fill_between(times, below, above, color=lines[-1].get_color(), alpha=0.2, lw=0)
    if logarithmic:
        ax.set_yscale("log")
    ax.set_xlabel("time")
    ax.set_ylabel(label)
    if len(lines) > 1 or label == "":
        ax.legend(frameon=False, fontsize="small")
    tidy(ax)
    return lines


def _epochs(epochs: Any, caller: str) -> list[tuple[str, tuple[float, float]]]:
    """The names and times of epochs, checked."""
    if epochs is None:
        return []
    if not isinstance(epochs, Mapping):
        raise ArgumentError(f"{caller}: `epochs` must map names to (from, to); got {epochs!r}.")
    for name, times in epochs.items():
        check_real(times, f"epochs[{name!r}]", caller=caller)
        check_shape(np.asarray(times), f"epochs[{name!r}]", (2,), caller=caller)
    return list(epochs.items())


def stretches(metric: Any, *, times: Any = None, epochs=None, quantiles: tuple[float, float] = (0.05, 0.95), ax=None):
    """The principal stretches over time, from the largest to the smallest, with bands over the inputs.

    **Arguments:** `metric`, a [`RepresentationMetric`][dynwarp.geometry.RepresentationMetric], or stretches
    `(..., T, m)` in ascending order; `times`, `(T,)`, steps counted from 1 if None; the others as of
    [`timeline`][dynwarp.plot.timeline].

    **Returns:** the lines, a list of m.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> len(dw.plot.stretches(np.ones((3, 3, 5, 2))))
    2
    """
    values = np.asarray(metric.stretches() if hasattr(metric, "stretches") else metric, float)
    if values.ndim < 2:
        raise ShapeError(f"plot.stretches: `metric` must have shape (..., T, m); got {values.shape}.")
    count, m = values.shape[-2:]
    names = ["stretch"] if m == 1 else [f"stretch {i + 1}" for i in range(m)]
    curves = {name: values[..., m - 1 - i] for i, name in enumerate(names)}
    times = np.arange(1.0, count + 1) if times is None else times
    label = "principal stretch"
    return timeline(times, curves, epochs=epochs, quantiles=quantiles, logarithmic=True, label=label, ax=ax)


def animation(
    G: Any,
    thetas: Any,
    *,
    kind: str = "tissot",
    times: Any = None,
    power: float = 0.5,
    rescale: bool = False,
    interval: float = 80.0,
    ax=None,
):
    """Tissot's ellipses, or the warped grid, over time.

    **Arguments:**

    - `G`: the metric at all times, `(n_1, n_2, T, 2, 2)`.
    - `thetas`: the points, `(n_1, n_2, 2)`.
    - `kind`: `"tissot"`, as of [`tissot`][dynwarp.plot.tissot], or `"grid"`, as of
      [`warped_grid`][dynwarp.plot.warped_grid].
    - `times`: `(T,)`, for the title; steps counted from 1 if None.
    - `power`: of G, for the ellipses.
    - `rescale`: each frame for itself, so that only the shape is seen; else one scale for all.
    - `interval`: between frames, in ms.
    - `ax`: matplotlib axes; None makes a figure.

    **Returns:** a `matplotlib.animation.FuncAnimation`: `.save("warp.gif", writer="pillow")` writes it,
    `.to_jshtml()` makes a player for a notebook. Keep it until then.

    **Raises:** `ShapeError`, `ArgumentError` for what does not fit.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> thetas = np.stack(np.meshgrid([0.0, 1.0], [0.0, 1.0], indexing="ij"), axis=-1)
    >>> shown = dw.plot.animation(np.broadcast_to(np.eye(2), (2, 2, 2, 2, 2)), thetas)
    >>> "<img" in shown.to_jshtml()
    True
    """
    from matplotlib.animation import FuncAnimation
    from matplotlib.collections import LineCollection, PolyCollection

    caller = "plot.animation"
    check_choice(kind, "kind", ("tissot", "grid"), caller=caller)
    G, thetas = checked_grid(G, thetas, caller, times=True)
    check_power(power, caller)
    over_time = np.moveaxis(G, 2, 0)
    times = np.arange(1.0, len(over_time) + 1) if times is None else np.asarray(times, float)
    check_shape(times, "times", (len(over_time),), caller=caller)
    ax = axes_or_new(ax, figsize=(4.0, 4.0))
    figure: Any = ax.figure
    title = ax.set_title("")

    if kind == "tissot":
        collection: Any = PolyCollection([], facecolors=GENERATED, edgecolors=GENERATED, alpha=0.5, linewidths=0.8)
        common = fitting_scale(over_time, thetas, power)
        frame_grid(ax, thetas)

        def shapes(frame):
            now = over_time[frame]
            return ellipses(now, thetas, power, fitting_scale(now, thetas, power) if rescale else common)
    else:
        collection = LineCollection([], colors=GENERATED, linewidths=0.9)
        frames = warped_points(G, thetas)
        sizes = np.nanmax(np.abs(frames), axis=(1, 2, 3))
        if rescale:
            frames = frames / np.where(sizes > 0, sizes, 1.0)[:, None, None, None]
        reach = 1.05 * (np.nanmax(np.abs(frames)) or 1.0)
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach))
        ax.set_xlabel("length along input 1")
        ax.set_ylabel("length along input 2")
        ax.set_aspect("equal")

        def shapes(frame):
            return grid_lines(frames[frame])

    ax.add_collection(collection)

    def draw(frame):
        collection.set_verts(shapes(frame))
        title.set_text(f"t = {times[frame]:g}")
        return collection, title

    return FuncAnimation(figure, draw, frames=len(over_time), interval=interval, blit=False)


def _quantile(values, q):
    """Over the points that are finite; NaN where none is."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanquantile(values, q, axis=0)
