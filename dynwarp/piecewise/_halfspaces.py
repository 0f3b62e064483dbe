"""Polyhedra {s : G s <= g}: interior points, extents, polygons; in one and two dimensions in closed form."""

from __future__ import annotations

import numpy as np

# Half-widths below this, relative to size, are zero: the polyhedron has no interior.
FLAT = 1e-11


def normalise(G: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Unit rows; rows that say nothing are left out. None where a row cannot be satisfied."""
    norms = np.linalg.norm(G, axis=1)
    zero = norms <= 1e-13
    if np.any(g[zero] < -1e-12):
        return None
    return G[~zero] / norms[~zero, None], g[~zero] / norms[~zero]


def interval(G: np.ndarray, g: np.ndarray) -> tuple[float, float]:
    """The ends of a one-dimensional polyhedron; infinite where nothing bounds it."""
    a = G[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = g / a
    return float(np.max(ends[a < 0], initial=-np.inf)), float(np.min(ends[a > 0], initial=np.inf))


def clip_polygon(vertices: np.ndarray, a: np.ndarray, c: float) -> np.ndarray:
    """The part of a convex polygon, vertices `(n, 2)` in order, with a s <= c."""
    if not len(vertices):
        return vertices
    slack = c - vertices @ a
    slack[np.abs(slack) <= 1e-14 * (abs(c) + np.abs(vertices) @ np.abs(a))] = 0.0
    inside = slack >= 0
    if inside.all():
        return vertices
    if not inside.any():
        return vertices[:0]
    following = np.roll(vertices, -1, axis=0)
    next_slack = np.roll(slack, -1)
    crosses = slack * next_slack < 0
    t = np.where(crosses, slack / np.where(crosses, slack - next_slack, 1.0), 0.0)
    cut = vertices + t[:, None] * (following - vertices)
    kept = np.stack([inside, crosses], axis=1).ravel()
    return np.stack([vertices, cut], axis=1).reshape(-1, 2)[kept]


def polygon(G: np.ndarray, g: np.ndarray, reach: float) -> np.ndarray:
    """The vertices of a polyhedron in the plane that lies in |s| <= reach, in order, `(n, 2)`; none if empty."""
    vertices = reach * np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    for a, c in zip(G, g):
        vertices = clip_polygon(vertices, a, c)
    return vertices


def maximum(G: np.ndarray, g: np.ndarray, a: np.ndarray) -> float:
    """The largest a s on the polyhedron: infinity where unbounded, -infinity where it is empty. One linear program."""
    from scipy.optimize import linprog

    answer = linprog(-a, A_ub=G, b_ub=g, bounds=(None, None), method="highs")
    if answer.status == 0:
        return -float(answer.fun)
    return -np.inf if answer.status == 2 else np.inf


def interior(G: np.ndarray, g: np.ndarray, reach: float) -> tuple[np.ndarray, float] | None:
    """A point well inside and its distance to the nearest face; None where there is no interior.

    Rows have unit norm, and the polyhedron lies in |s| <= reach.
    """
    d = G.shape[1]
    if d == 0:
        return (np.zeros(0), np.inf) if (g >= -FLAT * reach).all() else None
    if d == 1:
        low, high = interval(G, g)
        low, high = max(low, -reach), min(high, reach)
        point, radius = np.array([0.5 * (low + high)]), 0.5 * (high - low)
    elif d == 2:
        vertices = polygon(G, g, reach)
        if len(vertices) < 3:
            return None
        point = vertices.mean(axis=0)
        radius = min(float(np.min(g - G @ point, initial=np.inf)), reach)
    else:
        found = _deepest(G, g, 0.0, reach)
        if found is None:
            return None
        point, radius = found
    return None if radius <= FLAT * (1 + np.abs(point).max()) else (point, radius)


def centre(G: np.ndarray, g: np.ndarray, *, box: tuple | None = None) -> tuple[np.ndarray, float]:
    """The deepest point of {z : G z <= g} and its depth, the distance to the nearest face, capped at 1.

    A negative depth says that the polyhedron is empty. Rows of G that are zero are conditions without a distance.

    **Arguments:** `G`, `(m, d)`; `g`, `(m,)`; `box`, (lower, upper), each `(d,)`: its faces count like the others.
    """
    d = G.shape[1]
    if box is not None:
        lower, upper = box
        G = np.concatenate([G, np.eye(d), -np.eye(d)])
        g = np.concatenate([g, upper, -lower])
    length = np.linalg.norm(G, axis=1)
    zero = length == 0
    if np.any(g[zero] < 0):
        return np.full(d, np.nan), -np.inf
    rows, bounds = G[~zero] / length[~zero, None], g[~zero] / length[~zero]
    if not len(rows):
        return np.zeros(d), 1.0
    # The depth is bounded below too, so that the program always has an answer.
    found = _deepest(rows, bounds, -1.0 - np.max(np.abs(bounds)), 1.0)
    return (np.full(d, np.nan), -np.inf) if found is None else found


def _deepest(G: np.ndarray, g: np.ndarray, low: float, high: float) -> tuple[np.ndarray, float] | None:
    """The point of largest distance to the nearest face, and that distance, held between bounds; None if there is none.

    Rows have unit norm.
    """
    from scipy.optimize import linprog

    d = G.shape[1]
    answer = linprog(
        np.r_[np.zeros(d), -1.0],
        A_ub=np.column_stack([G, np.ones(len(g))]),
        b_ub=g,
        bounds=[(None, None)] * d + [(low, high)],
        method="highs",
    )
    return None if answer.x is None else (answer.x[:-1], float(answer.x[-1]))


def tight(G: np.ndarray, g: np.ndarray, reach: float) -> np.ndarray:
    """Which rows a two-dimensional polyhedron needs; in other dimensions, all but copies that are looser."""
    if G.shape[1] == 2:
        vertices = polygon(G, g, reach)
        touching = np.abs(vertices @ G.T - g) <= 1e-10 * (1 + np.abs(g))
        kept = touching.sum(axis=0) >= 2
    elif G.shape[1] == 1:
        low, high = interval(G, g)
        kept = np.zeros(len(g), bool)
        for sign, end in ((-1, low), (1, high)):
            if np.isfinite(end):
                kept[
                    np.argmin(
                        np.where(np.sign(G[:, 0]) == sign, np.abs(g / np.where(G[:, 0] == 0, 1, G[:, 0]) - end), np.inf)
                    )
                ] = True
    else:
        kept = np.ones(len(g), bool)
    # Of equal normals the tightest stays.
    seen: dict[bytes, int] = {}
    for i in np.flatnonzero(kept).tolist():
        name = np.round(G[i], 12).tobytes()
        if name in seen:
            looser = i if g[i] >= g[seen[name]] else seen[name]
            kept[looser] = False
            if looser == i:
                continue
        seen[name] = i
    return kept
