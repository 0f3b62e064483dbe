"""Piecewise-linear maps in state space: cycles, manifolds, slices of them, basins, and diagrams over a parameter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dynwarp._checks import check_shape
from dynwarp.errors import ArgumentError, MissingDependencyError
from dynwarp.plot._axes import GENERATED, RECORDED, REFERENCE, UNSTABLE, axes_or_new, tidy

# Stable manifolds blue, unstable ones orange, as in the figures of the literature.
_COLOURS = {"stable": GENERATED, "unstable": UNSTABLE}
_MARKERS = {"stable": "o", "saddle": "D", "unstable": "^", "nonhyperbolic": "s"}
_SAMPLES = 1000


def manifold(
    manifold: Any, *, coordinates: Sequence[int] = (0, 1), colour: str | None = None, label: str | None = None, ax=None
):
    """A manifold of a cycle, projected onto two or three coordinates of the state.

    Lines are drawn as lines, two-dimensional pieces as polygons, more dimensions by 1000 random points.

    **Arguments:** `manifold`, of [`trace_manifold`][dynwarp.piecewise.trace_manifold]; `coordinates`, two, or three for
    matplotlib axes with `projection="3d"`; `colour`, blue for stable and orange for unstable ones if None; `label`;
    `ax`: matplotlib axes; None makes a figure.

    **Returns:** the collection.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig5")
    >>> saddle = dw.piecewise.cycle_at(f, jnp.array([[False]]))
    >>> found = dw.piecewise.trace_manifold(f, saddle, kind="unstable", iterations=5)
    >>> type(dw.plot.manifold(found)).__name__
    'LineCollection'
    """
    chosen = _coordinates(coordinates, manifold.cycle.points.shape[1], "plot.manifold")
    colour = colour or _COLOURS[manifold.kind]
    label = label or f"{manifold.kind} manifold"
    ax = _space_or_plane(ax, len(chosen))
    if manifold.dimension == 1:
        return _lines(ax, [line[:, chosen] for line in manifold.vertices], colour, label)
    if manifold.dimension == 2:
        return _polygons(ax, [corners[:, chosen] for corners in manifold.vertices], colour, label)
    points = _sampled(manifold)[:, chosen]
    return ax.scatter(*points.T, s=2, color=colour, alpha=0.4, label=label)


def cycles(cycles: Iterable[Any], *, coordinates: Sequence[int] = (0, 1), ax=None):
    """The points of cycles: circles for stable ones, diamonds for saddles, triangles for unstable ones.

    **Arguments:** `cycles`, an iterable of [`Cycle`][dynwarp.piecewise.Cycle]; `coordinates`, two or three; `ax`:
    matplotlib axes; None makes a figure.

    **Returns:** a list, an artist for each kind that occurs.

    **Example:**

    >>> import jax, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig3b_left")
    >>> found = dw.piecewise.find_cycles(f, 3, key=jax.random.key(0))
    >>> [artist.get_label() for artist in dw.plot.cycles(found)]
    ['stable', 'saddle']
    """
    found = list(cycles)
    ax, artists = _space_or_plane(ax, len(coordinates)), []
    for kind, marker in _MARKERS.items():
        points = [np.asarray(cycle.points) for cycle in found if cycle.kind == kind]
        if points:
            together = np.concatenate(points)
            chosen = _coordinates(coordinates, together.shape[1], "plot.cycles")
            face = RECORDED if kind == "stable" else "white"
            shown = together[:, chosen].T
            artist = ax.scatter(*shown, marker=marker, s=28, facecolor=face, edgecolor=RECORDED, zorder=5, label=kind)
            artists.append(artist)
    return artists


def manifold_slice(manifold: Any, origin: Any, directions: Any, *, colour: str | None = None, label=None, ax=None):
    """Where a manifold of codimension one meets a plane of the state space: exact line segments.

    **Arguments:**

    - `manifold`: of [`trace_manifold`][dynwarp.piecewise.trace_manifold], of dimension M - 1.
    - `origin`, `directions`: the plane origin + u directions[0] + v directions[1], shapes `(M,)` and `(2, M)`.
    - `colour`, `label`, `ax`: as of [`manifold`][dynwarp.plot.manifold]; the axes are u and v.

    **Returns:** the collection; its segments are [`slice_segments`][dynwarp.plot.slice_segments].

    **Raises:** `ArgumentError` for another dimension; `ShapeError`.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig3a_right")
    >>> found = dw.piecewise.trace_manifold(f, dw.piecewise.cycle_at(f, jnp.array([[True]])), iterations=2)
    >>> len(dw.plot.manifold_slice(found, jnp.zeros(2), jnp.eye(2)).get_segments()) == found.number_of_pieces
    True
    """
    segments = slice_segments(manifold, origin, directions)
    ax = axes_or_new(ax, figsize=(4.0, 4.0))
    name = label or f"{manifold.kind} manifold"
    return _lines(ax, list(segments), colour or _COLOURS[manifold.kind], name)


def slice_segments(manifold: Any, origin: Any, directions: Any) -> np.ndarray:
    """The segments in which the pieces of a manifold of codimension one meet a plane, `(k, 2, 2)`, in (u, v).

    **Arguments:** as of [`manifold_slice`][dynwarp.plot.manifold_slice].

    **Returns:** the ends of each segment. A piece that lies in the plane is left out.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig3a_right")
    >>> found = dw.piecewise.trace_manifold(f, dw.piecewise.cycle_at(f, jnp.array([[True]])), iterations=0)
    >>> dw.plot.slice_segments(found, jnp.zeros(2), jnp.eye(2)).shape
    (1, 2, 2)
    """
    caller, m = "plot.slice_segments", manifold.cycle.points.shape[1]
    if manifold.dimension != m - 1:
        raise ArgumentError(f"{caller} needs a manifold of dimension {m - 1}; got {manifold.dimension}.")
    origin, directions = np.asarray(origin, float), np.asarray(directions, float)
    check_shape(origin, "origin", (m,), caller=caller)
    check_shape(directions, "directions", (2, m), caller=caller)
    found = []
    for piece in manifold.pieces:
        left, scale, _ = np.linalg.svd(piece.basis, full_matrices=True)
        if scale[-1] <= 1e-12 * scale[0]:
            continue
        normal = left[:, -1]
        slope, offset = directions @ normal, normal @ (piece.center - origin)
        size = np.linalg.norm(slope)
        if size <= 1e-12 * np.linalg.norm(directions):
            continue
        # The plane meets the piece's hyperplane in foot + t along; its constraints leave an interval of t.
        foot, along = slope * offset / size**2, np.array([-slope[1], slope[0]]) / size
        inverse = np.linalg.pinv(piece.basis)
        speed = piece.G @ inverse @ (along @ directions)
        room = piece.g - piece.G @ inverse @ (origin + foot @ directions - piece.center)
        if np.any(room[np.abs(speed) <= 1e-14] < 0):
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            at = room / speed
        low = np.max(at[speed < -1e-14], initial=-np.inf)
        high = np.min(at[speed > 1e-14], initial=np.inf)
        if low < high and np.isfinite([low, high]).all():
            found.append(np.stack([foot + low * along, foot + high * along]))
    return np.array(found).reshape(-1, 2, 2)


def basins(labels: Any, x: Any, y: Any, *, names: Mapping[int, str] | None = None, ax=None):
    """A map of basins: which attractor each point of a grid goes to.

    **Arguments:** `labels`, whole numbers, `(k, n)`, with -1 for orbits that go to infinity; `x`, `(n,)`, and `y`,
    `(k,)`, the grid; `names` of the labels for the legend; `ax`: matplotlib axes.

    **Returns:** the mesh.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> type(dw.plot.basins(np.array([[0, -1], [0, 0]]), [0.0, 1.0], [0.0, 1.0])).__name__
    'QuadMesh'
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    labels, x, y = (np.asarray(value) for value in (labels, x, y))
    check_shape(labels, "labels", (y.size, x.size), caller="plot.basins")
    ax = axes_or_new(ax, figsize=(4.6, 4.0))
    tones = ["#e8e8e8", "#cfe3f2", "#f7d9bd", "#cdeee2", "#f2e0ec", "#fbf3c4"]
    index = np.where(labels < 0, 0, 1 + labels % (len(tones) - 1))
    mesh = ax.pcolormesh(
        x, y, index, cmap=ListedColormap(tones), vmin=-0.5, vmax=len(tones) - 0.5, shading="nearest", rasterized=True
    )
    if names:
        present = set(labels.ravel().tolist())
        patches = [
            Patch(color=tones[0 if i < 0 else 1 + i % (len(tones) - 1)], label=name)
            for i, name in names.items()
            if i in present
        ]
        ax.add_artist(ax.legend(handles=patches, fontsize="x-small", loc="upper right"))
    tidy(ax)
    return mesh


def bifurcation_diagram(values: Any, states: Any, *, exponents: Any = None, parameter: str = "parameter", ax=None):
    """The states that a map visits, over a parameter, and its Lyapunov exponents on an axis of their own.

    **Arguments:**

    - `values`: of the parameter, `(k,)`.
    - `states`: one coordinate of the states visited at each, `(k, T)`; NaN is left out.
    - `exponents`: `(k,)` or `(k, m)`, or None.
    - `parameter`: its name.
    - `ax`: matplotlib axes; None makes a figure.

    **Returns:** the artists, a list: the states, then the lines of the exponents and of zero.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> len(dw.plot.bifurcation_diagram([0.0, 1.0], np.zeros((2, 5)), exponents=[0.1, -0.1]))
    3
    """
    values, states = np.asarray(values, float), np.asarray(states, float)
    check_shape(values, "values", ("k",), caller="plot.bifurcation_diagram")
    check_shape(states, "states", (values.size, "T"), caller="plot.bifurcation_diagram")
    ax = axes_or_new(ax, figsize=(6.0, 3.6))
    across = np.repeat(values, states.shape[1])
    artists = list(ax.plot(across, states.ravel(), ",", color=RECORDED, alpha=0.4, rasterized=True))
    ax.set_xlabel(parameter)
    ax.set_ylabel("states visited")
    tidy(ax)
    if exponents is not None:
        exponents = np.asarray(exponents, float).reshape(values.size, -1)
        other = ax.twinx()
        artists += other.plot(values, exponents, color=UNSTABLE, lw=1)
        artists.append(other.axhline(0.0, color=REFERENCE, lw=0.6))
        other.set_ylabel("Lyapunov exponents", color=UNSTABLE)
        other.spines["top"].set_visible(False)
    return artists


def state_space(
    manifolds: Iterable[Any] = (),
    *,
    cycles: Iterable[Any] = (),
    trajectory: Any = None,
    coordinates: Sequence[int] = (0, 1, 2),
):
    """A figure of three coordinates of the state that a browser can turn: manifolds, cycles, a trajectory.

    **Arguments:** `manifolds`, of [`trace_manifold`][dynwarp.piecewise.trace_manifold]; `cycles`; `trajectory`,
    `(T, M)`; `coordinates`, which three.

    **Returns:** a plotly figure; its `write_html` makes a page of it.

    **Raises:** `MissingDependencyError` without plotly; `ArgumentError` unless there are three coordinates to show.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> len(dw.plot.state_space(trajectory=np.zeros((5, 3))).data)
    1
    """
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise MissingDependencyError("Rotatable figures need plotly: pip install 'dynwarp[plot]'.") from error
    figure = go.Figure()
    if len(coordinates) != 3:
        raise ArgumentError(f"plot.state_space needs three `coordinates`; got {tuple(coordinates)!r}.")
    if trajectory is not None:
        x, y, z = _three(np.asarray(trajectory), coordinates)
        line = {"color": REFERENCE, "width": 1.5}
        figure.add_trace(go.Scatter3d(x=x, y=y, z=z, mode="lines", line=line, name="trajectory"))
    for found in manifolds:
        colour, name = _COLOURS[found.kind], f"{found.kind} manifold, period {found.cycle.period}"
        if found.dimension == 1:
            gap = np.full((1, found.cycle.points.shape[1]), np.nan)
            x, y, z = _three(np.concatenate([part for line in found.vertices for part in (line, gap)]), coordinates)
            figure.add_trace(go.Scatter3d(x=x, y=y, z=z, mode="lines", line={"color": colour, "width": 4}, name=name))
        elif found.dimension == 2:
            corners, fans, at = [], [], 0
            for polygon in found.vertices:
                corners.append(polygon)
                fans += [(at, at + j, at + j + 1) for j in range(1, len(polygon) - 1)]
                at += len(polygon)
            x, y, z = _three(np.concatenate(corners), coordinates)
            i, j, k = np.array(fans).reshape(-1, 3).T
            figure.add_trace(
                go.Mesh3d(x=x, y=y, z=z, i=i, j=j, k=k, color=colour, opacity=0.45, name=name, showlegend=True)
            )
        else:
            x, y, z = _three(_sampled(found), coordinates)
            figure.add_trace(
                go.Scatter3d(
                    x=x, y=y, z=z, mode="markers", marker={"color": colour, "size": 1.5, "opacity": 0.5}, name=name
                )
            )
    symbols = {"stable": "circle", "saddle": "diamond-open", "unstable": "square-open", "nonhyperbolic": "x"}
    for cycle in cycles:
        x, y, z = _three(np.asarray(cycle.points), coordinates)
        marker = {"color": RECORDED, "size": 4, "symbol": symbols[cycle.kind]}
        name = f"{cycle.kind}, period {cycle.period}"
        figure.add_trace(go.Scatter3d(x=x, y=y, z=z, mode="markers", marker=marker, name=name))
    axes = {f"{axis}axis": {"title": {"text": f"z[{i}]"}} for axis, i in zip("xyz", coordinates)}
    figure.update_layout(scene=axes, margin={"l": 0, "r": 0, "t": 0, "b": 0})
    return figure


def _coordinates(coordinates, size: int, caller: str) -> list[int]:
    chosen = list(coordinates)
    if len(chosen) not in (2, 3) or not all(0 <= i < size for i in chosen):
        raise ArgumentError(f"{caller}: `coordinates` must be two or three of 0 to {size - 1}; got {coordinates!r}.")
    return chosen


def _space_or_plane(ax, dimensions: int):
    if ax is not None or dimensions == 2:
        return axes_or_new(ax, figsize=(4.4, 4.0))
    import matplotlib.pyplot as plt

    return plt.figure(figsize=(5.0, 4.4), layout="constrained").add_subplot(projection="3d")


def _three(points: np.ndarray, coordinates):
    if points.shape[1] <= max(coordinates):
        raise ArgumentError(f"plot.state_space: states have {points.shape[1]} coordinates; asked for {coordinates!r}.")
    return points[:, list(coordinates)].T


def _sampled(found) -> np.ndarray:
    import jax

    return np.asarray(found.sample(jax.random.key(0), _SAMPLES))


def _lines(ax, lines, colour, label):
    if lines and lines[0].shape[1] == 3:
        from mpl_toolkits.mplot3d.art3d import Line3DCollection

        collection: Any = Line3DCollection(lines, colors=colour, linewidths=1.0, label=label)
        return ax.add_collection3d(collection)
    from matplotlib.collections import LineCollection

    collection = ax.add_collection(LineCollection(lines, colors=colour, linewidths=1.0, label=label))
    ax.autoscale_view()
    return collection


def _polygons(ax, polygons, colour, label):
    if polygons and polygons[0].shape[1] == 3:
        from mpl_toolkits.mplot3d.art3d import Poly3DCollection

        collection: Any = Poly3DCollection(polygons, facecolors=colour, alpha=0.35, linewidths=0.0, label=label)
        return ax.add_collection3d(collection)
    from matplotlib.collections import PolyCollection

    collection = PolyCollection(polygons, facecolors=colour, edgecolors=colour, linewidths=0.2, alpha=0.35, label=label)
    ax.add_collection(collection)
    ax.autoscale_view()
    return collection
