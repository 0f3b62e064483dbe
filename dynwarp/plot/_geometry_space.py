"""Manifolds of inputs in three dimensions: the states over them, and what is painted on the standard torus."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dynwarp._checks import check_finite, check_positive_integer, check_shape
from dynwarp.errors import ArgumentError, ShapeError
from dynwarp.plot._axes import REFERENCE
from dynwarp.plot._geometry import grid_lines, symmetric_end


def snapshots(
    states: Any,
    thetas: Any,
    *,
    steps: Sequence[int] = (-1,),
    coordinate: int = 0,
    periods: Sequence[float | None] | None = None,
    times: Any = None,
    ax=None,
):
    """The states over a manifold of inputs at some steps, on their first three principal components, coloured by an
    input.

    The components are those of each step by itself, all three on one scale; how much of the variance they hold is in
    the title.

    **Arguments:**

    - `states`: on a grid of one or two inputs, `(n_1, T, n)` or `(n_1, n_2, T, n)`, n >= 3, such as those of
      [`representation_metric`][dynwarp.geometry.representation_metric].
    - `thetas`: the points, `(n_1, 1)` or `(n_1, n_2, 2)`.
    - `steps`: indices of states, one panel each; negative ones count from the end.
    - `coordinate`: the input that is the colour.
    - `periods`: of the inputs; along those that have one the grid is closed, and the colours are cyclic.
    - `times`: `(T,)`, for the titles.
    - `ax`: axes with `projection="3d"`, one or a sequence of one for each step; None makes a figure.

    **Returns:** the collections of points, a list.

    **Raises:** `ShapeError`, `ArgumentError` for what does not fit.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> angle = np.linspace(0.0, 2 * np.pi, 12, endpoint=False)
    >>> states = np.stack([np.cos(angle), np.sin(angle), np.cos(2 * angle)], axis=-1)[:, None]
    >>> len(dw.plot.snapshots(states, angle[:, None], periods=(2 * np.pi,)))
    1
    """
    caller = "plot.snapshots"
    states, thetas = np.asarray(states, float), np.asarray(thetas, float)
    m = _check_thetas(thetas, coordinate, caller)
    check_shape(states, "states", (*thetas.shape[:-1], "T", "n"), caller=caller)
    if states.shape[-1] < 3:
        raise ShapeError(f"{caller}: `states` must have at least 3 dimensions; they have {states.shape[-1]}.")
    periods = (None,) * m if periods is None else tuple(periods)
    if times is not None:
        times = np.asarray(times, float)
        check_shape(times, "times", (states.shape[-2],), caller=caller)
    found = []
    for step, panel in zip(steps, _spaces(ax, len(steps), caller)):
        points, share = _principal(states[..., step, :], caller)
        found.append(_net(panel, points, thetas[..., coordinate], periods, periods[coordinate] is not None))
        when = f"step {step % states.shape[-2]}" if times is None else f"t = {times[step]:g}"
        panel.set_title(f"{when} ({share:.0%} of the variance)", fontsize="small")
    return found


def own_shape(
    distances: Any, thetas: Any, *, coordinate: int = 0, periods: Sequence[float | None] | None = None, ax=None
):
    """The shape that a grid of inputs has by its geodesic distances, in three dimensions, coloured by an input.

    Classical multidimensional scaling: of all points in three dimensions those whose inner products come nearest to
    the ones that the distances would have in a flat space. Inputs that the metric keeps apart lie apart, however the
    chart draws them. A curved surface does not fit without error: the title tells what is left, the root of the mean
    squared error of the distances by that of the distances.

    **Arguments:**

    - `distances`: between all points, in C order of the grid, `(P, P)`, such as those of
      [`Metric.distances`][dynwarp.geometry.Metric.distances].
    - `thetas`: the points, `(n_1, 1)` or `(n_1, n_2, 2)`, P in all.
    - `coordinate`, `periods`: as of [`snapshots`][dynwarp.plot.snapshots].
    - `ax`: axes with `projection="3d"`; None makes a figure.

    **Returns:** the collection of points.

    **Raises:** `ShapeError`, `ArgumentError` for what does not fit, `NonFiniteError` for distances that were not found.

    **Cost:** the eigenvectors of a matrix, P^3.

    **Source:** Torgerson, *Psychometrika* 17 (1952) 401.

    **Example:** a circle, whose distances are not those of a plane.

    >>> import numpy as np, dynwarp as dw
    >>> angle = np.linspace(0.0, 2 * np.pi, 12, endpoint=False)
    >>> apart = np.abs(angle[:, None] - angle)
    >>> points = dw.plot.own_shape(np.minimum(apart, 2 * np.pi - apart), angle[:, None], periods=(2 * np.pi,))
    >>> len(points.get_offsets())
    12
    """
    caller = "plot.own_shape"
    distances, thetas = np.asarray(distances, float), np.asarray(thetas, float)
    m = _check_thetas(thetas, coordinate, caller)
    count = math.prod(thetas.shape[:-1])
    check_shape(distances, "distances", (count, count), caller=caller)
    check_finite(distances, "distances", caller=caller)
    if not np.allclose(distances, distances.T) or count < 4:
        raise ArgumentError(f"{caller}: `distances` must be symmetric, of at least 4 points.")
    centre = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(-0.5 * centre @ distances**2 @ centre)
    points = vectors[:, :-4:-1] * np.sqrt(np.maximum(values[:-4:-1], 0))
    drawn = np.linalg.norm(points[:, None] - points, axis=-1)
    left = np.sqrt(np.sum((drawn - distances) ** 2) / (np.sum(distances**2) or 1.0))
    periods = (None,) * m if periods is None else tuple(periods)
    (panel,) = _spaces(ax, 1, caller)
    cyclic = periods[coordinate] is not None
    found = _net(panel, points.reshape(*thetas.shape[:-1], 3), thetas[..., coordinate], periods, cyclic)
    panel.set_title(f"distances to {left:.0%}", fontsize="small")
    return found


def _check_thetas(thetas, coordinate, caller) -> int:
    """The number of inputs."""
    m = thetas.ndim - 1
    if m not in (1, 2) or thetas.shape[-1] != m:
        raise ShapeError(f"{caller}: `thetas` must have shape (n_1, 1) or (n_1, n_2, 2); got {thetas.shape}.")
    if not 0 <= coordinate < m:
        raise ArgumentError(f"{caller}: `coordinate` must be the index of one of the {m} inputs; got {coordinate!r}.")
    return m


def _net(panel, points, colours, periods, cyclic):
    """Points of a grid in space, `(n_1, 3)` or `(n_1, n_2, 3)`, with its lines, closed along its periods."""
    closed = points
    for i, period in enumerate(periods):
        if period is not None:
            closed = np.concatenate([closed, np.take(closed, [0], axis=i)], axis=i)
    for line in grid_lines(closed) if points.ndim == 3 else [closed]:
        panel.plot(*line.T, color=REFERENCE, lw=0.4, zorder=1)
    flat = points.reshape(-1, 3).T
    style = {"s": 10, "depthshade": False, "edgecolors": "#555555", "linewidths": 0.2}
    found = panel.scatter(*flat, c=colours.ravel(), cmap="twilight" if cyclic else "viridis", **style)
    _equal_scales(panel, np.abs(flat).max() or 1.0)
    panel.set(xticklabels=[], yticklabels=[], zticklabels=[])
    return found


def curvature_torus(
    K: Any, *, quantile: float = 0.95, radii: tuple[float, float] = (2.0, 0.9), label="Gaussian curvature", ax=None
):
    """A curvature over two angles, painted on the standard torus, red where it is positive.

    **Arguments:**

    - `K`: on the regular grid of both angles, `(n_1, n_2)`, their upper ends left out; the first goes around the hole.
    - `quantile`: of |K| at which the scale, symmetric about 0, ends.
    - `radii`: from the middle to the tube, and of the tube.
    - `label`: of the colours; `ax`: axes with `projection="3d"`; None makes a figure.

    **Returns:** the collection of faces; the colour of a face is the mean over its corners.

    **Raises:** `ShapeError`, `ArgumentError` for what does not fit.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> angle = np.linspace(0.0, 2 * np.pi, 6, endpoint=False)
    >>> faces = dw.plot.curvature_torus(np.cos(angle) * np.ones((6, 1)), quantile=1.0)
    >>> faces.get_clim()
    (-1.0, 1.0)
    """
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    caller = "plot.curvature_torus"
    K = np.asarray(K, float)
    check_shape(K, "K", ("n_1", "n_2"), caller=caller)
    n_1, n_2 = (check_positive_integer(n, "the grid of K", minimum=3, caller=caller) for n in K.shape)
    end = symmetric_end(K, quantile, caller)
    u, v = np.meshgrid(2 * np.pi * np.arange(n_1) / n_1, 2 * np.pi * np.arange(n_2) / n_2, indexing="ij")
    ring = radii[0] + radii[1] * np.cos(v)
    surface = np.stack([ring * np.cos(u), ring * np.sin(u), radii[1] * np.sin(v)], axis=-1)
    corners, values = [], []
    for i, j in ((0, 0), (1, 0), (1, 1), (0, 1)):
        corners.append(np.roll(surface, (-i, -j), axis=(0, 1)))
        values.append(np.roll(K, (-i, -j), axis=(0, 1)))
    panel: Any = _spaces(ax, 1, caller)[0]
    faces: Any = Poly3DCollection(np.stack(corners, axis=-2).reshape(-1, 4, 3), cmap="RdBu_r", linewidths=0.0)
    faces.set_array(np.mean(values, axis=0).ravel())
    faces.set_clim(-end, end)
    panel.add_collection3d(faces)
    _equal_scales(panel, radii[0] + radii[1], zoom=1.5)
    panel.set_axis_off()
    panel.figure.colorbar(faces, ax=panel, label=label, shrink=0.6, extend="both" if quantile < 1 else "neither")
    return faces


def _principal(states, caller):
    """States `(..., n)` on their first three principal components, and the share of the variance."""
    flat = states.reshape(-1, states.shape[-1])
    centred = flat - flat.mean(axis=0)
    if not np.isfinite(centred).all():
        raise ArgumentError(f"{caller}: `states` must be finite at the steps that are shown.")
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    total = np.sum(sizes**2)
    points = centred @ directions[:3].T
    return points.reshape(*states.shape[:-1], -1), float(np.sum(sizes[:3] ** 2) / total) if total > 0 else 1.0


def _equal_scales(panel, reach, zoom=1.0):
    panel.set(xlim=(-reach, reach), ylim=(-reach, reach), zlim=(-reach, reach))
    panel.set_box_aspect((1, 1, 1), zoom=zoom)


def _spaces(ax, count, caller):
    """`count` axes of three dimensions."""
    if ax is None:
        import matplotlib.pyplot as plt

        figure = plt.figure(figsize=(3.6 * count, 3.6), layout="constrained")
        return [figure.add_subplot(1, count, i + 1, projection="3d") for i in range(count)]
    spaces = list(np.ravel(np.asarray(ax, dtype=object)))
    if len(spaces) != count or any(getattr(space, "name", None) != "3d" for space in spaces):
        raise ArgumentError(f'{caller}: `ax` must be {count} axes with projection="3d".')
    return spaces
