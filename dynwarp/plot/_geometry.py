"""Metrics and curvature over the chart of two inputs: Tissot ellipses, warped grids, panels, maps, geodesics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from dynwarp._checks import check_finite, check_real, check_shape
from dynwarp.errors import ArgumentError, ShapeError
from dynwarp.geometry import geodesic_coordinates
from dynwarp.plot._axes import GENERATED, REFERENCE, UNSTABLE, axes_or_new, tidy

_CORNERS = 48


def tissot(
    G: Any, thetas: Any, *, power: float = 0.5, scale: float | None = None, colour: str = GENERATED, label=None, ax=None
):
    """Tissot's ellipses of a metric on the grid of the inputs.

    An ellipse is the image of a circle under a power of G, in units of the distances of the grid. With `power=0.5` its
    axes are the principal stretches: long where states move far with the input. With `power=-0.5` it is a unit ball of
    the metric: inputs at its rim are moved equally far from its centre, and it is small where inputs are told apart
    well. Small powers, such as 1/8, show stretches that range over decades.

    **Arguments:**

    - `G`: the metric at one time, `(n_1, n_2, 2, 2)`.
    - `thetas`: the points, `(n_1, n_2, 2)`, such as `manifold.grid((n_1, n_2))`.
    - `power`: of G.
    - `scale`: the half axis of an ellipse where G is 1 in units of the grid; None lets the longest axis fit between
      two points of the grid. Give one scale to figures that are to be compared.
    - `colour`, `label`; `ax`: matplotlib axes; None makes a figure.

    **Returns:** the collection of ellipses, in C order of the grid. Where G is not finite, or degenerate and the power
    negative, there is none.

    **Raises:** `ShapeError`, `ArgumentError` for what does not fit.

    **Example:** twice as far along the first input.

    >>> import numpy as np, dynwarp as dw
    >>> thetas = np.stack(np.meshgrid([0.0, 1.0], [0.0, 1.0], indexing="ij"), axis=-1)
    >>> ellipses = dw.plot.tissot(np.broadcast_to(np.diag([4.0, 1.0]), (2, 2, 2, 2)), thetas)
    >>> np.ptp(ellipses.get_paths()[0].vertices, axis=0).round(2).tolist()
    [0.9, 0.45]
    """
    G, thetas = checked_grid(G, thetas, "plot.tissot")
    check_power(power, "plot.tissot")
    ax = axes_or_new(ax, figsize=(4.0, 4.0))
    from matplotlib.collections import PolyCollection

    if scale is None:
        scale = fitting_scale(G, thetas, power)
    polygons = ellipses(G, thetas, power, scale)
    collection = PolyCollection(polygons, facecolors=colour, edgecolors=colour, alpha=0.5, linewidths=0.8, label=label)
    ax.add_collection(collection)
    frame_grid(ax, thetas)
    return collection


def warped_grid(G: Any, thetas: Any, *, colour: str = GENERATED, ax=None):
    """The grid of the inputs as the metric stretches it, each point at the lengths of the lines of the grid from its
    middle: [`geodesic_coordinates`][dynwarp.geometry.geodesic_coordinates].

    They are lengths along lines of constant input; how much these lean on each other is not shown.

    **Arguments:** as of [`tissot`][dynwarp.plot.tissot].

    **Returns:** the collection of lines: those of constant second input first.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> thetas = np.stack(np.meshgrid([0.0, 1.0, 2.0], [0.0, 1.0], indexing="ij"), axis=-1)
    >>> len(dw.plot.warped_grid(np.broadcast_to(np.eye(2), (3, 2, 2, 2)), thetas).get_segments())
    5
    """
    from matplotlib.collections import LineCollection

    G, thetas = checked_grid(G, thetas, "plot.warped_grid")
    lines = grid_lines(warped_points(G[..., None, :, :], thetas)[0])
    ax = axes_or_new(ax, figsize=(4.0, 4.0))
    collection = LineCollection(lines, colors=colour, linewidths=0.9)
    ax.add_collection(collection)
    ax.autoscale_view()
    ax.set_aspect("equal", adjustable="datalim")
    ax.set_xlabel("length along input 1")
    ax.set_ylabel("length along input 2")
    tidy(ax)
    return collection


def metric_panels(G: Any, thetas: Any, *, names: Sequence[str] | None = None, ax=None):
    """The entries of a metric over the chart, one panel an entry, the lower triangle of the matrix.

    **Arguments:**

    - `G`: the metric at one time, `(n_1, n_2, m, m)`; m is 2, or 3 where time is a coordinate too.
    - `thetas`: the points, `(n_1, n_2, 2)`.
    - `names`: of the m coordinates.
    - `ax`: matplotlib axes, `(m, m)`; None makes a figure.

    **Returns:** the meshes, a list: G_11, G_21, G_22, ... Entries of the diagonal have scales of their own from 0, the
    others symmetric ones.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> thetas = np.stack(np.meshgrid([0.0, 1.0, 2.0], [0.0, 1.0], indexing="ij"), axis=-1)
    >>> len(dw.plot.metric_panels(np.broadcast_to(np.eye(2), (3, 2, 2, 2)), thetas))
    3
    """
    caller = "plot.metric_panels"
    G, thetas = np.asarray(G, float), np.asarray(thetas, float)
    check_shape(thetas, "thetas", ("n_1", "n_2", 2), caller=caller)
    check_shape(G, "G", (*thetas.shape[:2], "m", "m"), caller=caller)
    m = G.shape[-1]
    names = [str(i + 1) for i in range(m)] if names is None else list(names)
    if len(names) != m:
        raise ArgumentError(f"{caller}: `names` must name the {m} coordinates; got {names!r}.")
    panels = _panels(ax, m, caller)
    meshes = []
    for i in range(m):
        for j in range(m):
            panel = panels[i, j]
            if j > i:
                panel.set_visible(False)
                continue
            values = G[..., i, j]
            largest = np.nanmax(np.abs(values), initial=0.0) or 1.0
            limits = {"vmin": 0.0, "vmax": largest} if i == j else {"vmin": -largest, "vmax": largest}
            cmap = "viridis" if i == j else "RdBu_r"
            mesh = panel.pcolormesh(*thetas.transpose(2, 0, 1), values, cmap=cmap, shading="nearest", **limits)
            mesh.set_rasterized(True)
            panel.figure.colorbar(mesh, ax=panel)
            panel.set_title(f"G[{names[i]}, {names[j]}]", fontsize="small")
            meshes.append(mesh)
    return meshes


def curvature_map(K: Any, thetas: Any, *, quantile: float = 0.95, label: str = "Gaussian curvature", ax=None):
    """A curvature over the chart, red where it is positive, on a scale that is symmetric about 0.

    **Arguments:** `K`, `(n_1, n_2)`; NaN is left white; `thetas`, `(n_1, n_2, 2)`; `quantile` of |K| at which the scale
    ends; `label` of the colours; `ax`: matplotlib axes; None makes a figure.

    **Returns:** the mesh.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> thetas = np.stack(np.meshgrid([0.0, 1.0, 2.0], [0.0, 1.0], indexing="ij"), axis=-1)
    >>> dw.plot.curvature_map(np.array([[0.0, 1.0], [-2.0, 1.0], [0.5, 0.0]]), thetas, quantile=1.0).get_clim()
    (-2.0, 2.0)
    """
    caller = "plot.curvature_map"
    K, thetas = np.asarray(K, float), np.asarray(thetas, float)
    check_shape(thetas, "thetas", ("n_1", "n_2", 2), caller=caller)
    check_shape(K, "K", thetas.shape[:2], caller=caller)
    ax = axes_or_new(ax, figsize=(4.6, 3.8))
    end = symmetric_end(K, quantile, caller)
    mesh = ax.pcolormesh(*thetas.transpose(2, 0, 1), K, cmap="RdBu_r", vmin=-end, vmax=end, shading="nearest")
    mesh.set_rasterized(True)
    ax.figure.colorbar(mesh, ax=ax, label=label, extend="both" if quantile < 1 else "neither")
    ax.set_xlabel("input 1")
    ax.set_ylabel("input 2")
    return mesh


def geodesics(curves: Iterable[Any], *, periods: Sequence[float | None] | None = None, lower=(0.0, 0.0), ax=None):
    """Geodesics in the chart of two inputs, beside the straight lines between their ends.

    **Arguments:**

    - `curves`: each the points of one, `(n, 2)`, such as `chart.geodesic(x, y, n)`. Coordinates may run on through
      periods, as they do there. One with NaN is left out.
    - `periods`: of the two coordinates; along those that have one, curves are wrapped into [lower, lower + period).
    - `lower`: where the range of a periodic coordinate begins.
    - `ax`: matplotlib axes; None makes a figure.

    **Returns:** two collections of lines: of the geodesics, and of the straight lines.

    **Raises:** `ShapeError`; `ArgumentError` where there is no curve.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> plane = dw.geometry.Metric(lambda x: jnp.eye(2) / x[1] ** 2, dim=2)
    >>> curve = plane.geodesic(jnp.array([-1.0, 1.0]), jnp.array([1.0, 1.0]), 20, nodes=12)
    >>> len(dw.plot.geodesics([curve]))
    2
    """
    from matplotlib.collections import LineCollection

    caller = "plot.geodesics"
    curves = [np.asarray(curve, float) for curve in curves]
    for curve in curves:
        check_shape(curve, "curves", ("n", 2), caller=caller)
    if not curves:
        raise ArgumentError(f"{caller}: `curves` must hold at least one curve.")
    periods = (None, None) if periods is None else tuple(periods)
    curves = [curve for curve in curves if np.isfinite(curve).all()]
    straight = [np.linspace(curve[0], curve[-1], 200) for curve in curves]
    ax = axes_or_new(ax, figsize=(4.0, 4.0))
    found = []
    for lines, style in (
        (straight, {"colors": REFERENCE, "linestyles": "--", "linewidths": 1.0, "label": "straight in the inputs"}),
        (curves, {"colors": UNSTABLE, "linewidths": 1.4, "label": "geodesic"}),
    ):
        wrapped = [piece for line in lines for piece in _wrapped(line, periods, lower)]
        found.append(ax.add_collection(LineCollection(wrapped, **style)))
    if curves:
        ends = np.concatenate([curve[[0, -1]] for curve in curves])
        ends = np.stack([_into(ends[:, i], periods[i], lower[i]) for i in range(2)])
        ax.plot(*ends, "o", ms=4, color="black")
    ax.autoscale_view()
    ax.set_xlabel("input 1")
    ax.set_ylabel("input 2")
    ax.legend(frameon=False, fontsize="small")
    tidy(ax)
    return found[::-1]


def checked_grid(G: Any, thetas: Any, caller: str, *, times: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """A metric over a grid of two inputs, `(n_1, n_2, 2, 2)` or with times before the last two, and the grid."""
    G, thetas = np.asarray(G, float), np.asarray(thetas, float)
    check_shape(thetas, "thetas", ("n_1", "n_2", 2), caller=caller)
    if min(thetas.shape[:2]) < 2:
        raise ShapeError(f"{caller}: `thetas` must have at least 2 points along each input; got {thetas.shape}.")
    check_shape(G, "G", (*thetas.shape[:2], *(("T",) if times else ()), 2, 2), caller=caller)
    return G, thetas


def check_power(power: Any, caller: str) -> None:
    """Raises unless this is a number."""
    check_real(power, "power", caller=caller)
    check_shape(power, "power", (), caller=caller)
    check_finite(power, "power", caller=caller)


def fitting_scale(G: np.ndarray, thetas: np.ndarray, power: float) -> float:
    """The scale with which the longest of all axes is 0.45 of the distance of two points of the grid."""
    with np.errstate(divide="ignore"):
        axes = _eigenvalues(G, thetas)[0] ** power
    axes = axes[np.isfinite(axes)]
    longest = axes.max(initial=0.0)
    return 0.45 / longest if longest > 0 else 1.0


def ellipses(G: np.ndarray, thetas: np.ndarray, power: float, scale: float) -> list[np.ndarray]:
    """The corners of each ellipse, in C order of the grid; none where it is not finite."""
    values, vectors = _eigenvalues(G, thetas)
    with np.errstate(divide="ignore", invalid="ignore"):
        root = (vectors * (values**power)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    angle = np.linspace(0, 2 * np.pi, _CORNERS + 1)
    circle = scale * np.stack([np.cos(angle), np.sin(angle)])
    with np.errstate(invalid="ignore"):
        corners = thetas[..., None, :] + np.swapaxes(root @ circle, -1, -2) * _spacing(thetas)
    return [c if np.isfinite(c).all() else np.zeros((0, 2)) for c in corners.reshape(-1, _CORNERS + 1, 2)]


def warped_points(G: np.ndarray, thetas: np.ndarray) -> np.ndarray:
    """The points of the grid at lengths from its middle, `(T, n_1, n_2, 2)`; `G` `(n_1, n_2, T, 2, 2)`."""
    found = geodesic_coordinates(jnp.asarray(G), jnp.asarray(thetas)).coordinates
    first, second = np.moveaxis(np.asarray(found), (2, 3), (1, 0))
    i, j = ((n - 1) // 2 for n in thetas.shape[:2])
    return np.stack([first - first[:, i : i + 1], second - second[:, :, j : j + 1]], axis=-1)


def grid_lines(coordinates: np.ndarray) -> list[np.ndarray]:
    """The lines of a grid `(n_1, n_2, d)`: those of constant second index, then those of constant first."""
    return [*np.swapaxes(coordinates, 0, 1), *coordinates]


def frame_grid(ax, thetas) -> None:
    """Limits half a distance beyond the grid."""
    points, margin = thetas.reshape(-1, 2), _spacing(thetas) / 2
    low, high = points.min(0) - margin, points.max(0) + margin
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xlabel="input 1", ylabel="input 2")
    tidy(ax)


def symmetric_end(values: np.ndarray, quantile: float, caller: str) -> float:
    """Where a symmetric scale ends: at a quantile of the absolute values."""
    if not 0 < quantile <= 1:
        raise ArgumentError(f"{caller}: `quantile` must lie in (0, 1]; got {quantile!r}.")
    sizes = np.abs(values[np.isfinite(values)])
    return float(np.quantile(sizes, quantile)) or 1.0 if sizes.size else 1.0


def _eigenvalues(G, thetas):
    """Eigenvalues and eigenvectors of the metric per distances of the grid; NaN where it is not finite."""
    spacing = _spacing(thetas)
    relative = G * spacing[:, None] * spacing
    finite = np.isfinite(relative).all((-2, -1))
    values, vectors = np.linalg.eigh(np.where(finite[..., None, None], relative, 0.0))
    return np.where(finite[..., None], np.maximum(values, 0.0), np.nan), vectors


def _spacing(thetas):
    """The distance of neighbours along each input."""
    return np.array([np.median(np.abs(np.diff(thetas[..., i], axis=i))) for i in range(2)])


def _panels(ax, m, caller):
    if ax is None:
        axes_or_new(None)
        import matplotlib.pyplot as plt

        return plt.subplots(m, m, figsize=(2.6 * m, 2.3 * m), squeeze=False, layout="constrained")[1]
    panels = np.asarray(ax, dtype=object)
    if panels.shape != (m, m):
        raise ShapeError(f"{caller}: `ax` must be axes of shape ({m}, {m}); got {panels.shape}.")
    return panels


def _into(values, period, lower):
    return values if period is None else lower + np.mod(values - lower, period)


def _wrapped(line, periods, lower):
    """The pieces of a line between its crossings of the seams of the chart."""
    turns = np.stack(
        [np.zeros(len(line)) if p is None else np.floor((line[:, i] - lower[i]) / p) for i, p in enumerate(periods)], 1
    )
    shift = turns * np.array([0.0 if p is None else p for p in periods])
    cuts = 1 + np.flatnonzero((np.diff(turns, axis=0) != 0).any(axis=1))
    return [piece for piece in np.split(line - shift, cuts) if len(piece) > 1]
