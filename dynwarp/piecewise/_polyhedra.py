"""Points deep inside polyhedra, by linear programs (host, scipy's HiGHS)."""

from __future__ import annotations

import numpy as np


def centre(G: np.ndarray, g: np.ndarray, *, box: tuple | None = None) -> tuple[np.ndarray, float]:
    """The deepest point of {z : G z <= g} and its depth, the distance to the nearest face, capped at 1.

    A negative depth says that the polyhedron is empty. Rows of G that are zero are conditions without a distance.

    **Arguments:** `G`, `(m, d)`; `g`, `(m,)`; `box`, (lower, upper), each `(d,)`: its faces count like the others.
    """
    from scipy.optimize import linprog

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
    worst = 1.0 + np.max(np.abs(bounds))
    solution = linprog(
        np.r_[np.zeros(d), -1.0],
        A_ub=np.column_stack([rows, np.ones(len(rows))]),
        b_ub=bounds,
        bounds=[(None, None)] * d + [(-worst, 1.0)],
        method="highs",
    )
    if solution.x is None:
        return np.full(d, np.nan), -np.inf
    return solution.x[:-1], float(solution.x[-1])
