"""Ellipsoids that the local maps of a cycle carry into themselves without leaving its regions (host)."""

from __future__ import annotations

import numpy as np

from dynwarp.piecewise._host import HostMap

# A radius this share below the one that touches a border: what is inside is inside to rounding.
_SHRINK = 1 - 1e-9


def trapping_ellipsoids(
    f: HostMap, points: np.ndarray, itinerary: np.ndarray, bases: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """Factors R `(k, d, d)`: {p[i] + bases[i] s : |R[i] s| <= 1} stays in the cycle's regions and tends to it.

    `bases`, `(k, M, d)`, span invariant subspaces on which one turn is a contraction in some norm; `steps`,
    `(k, d, d)`, are the local maps in them. The norm is s Q s with T' Q T = Q - 1 for the map T of one turn.
    """
    from scipy.linalg import solve_discrete_lyapunov

    k, _, d = bases.shape
    factors = np.zeros((k, d, d))
    if d == 0:
        return factors
    for i in range(k):
        carried, rows, levels = np.eye(d), [], []
        for j in (np.arange(k) + i) % k:
            G, g = f.region(itinerary[j])
            rows.append(G @ bases[j] @ carried)
            levels.append(g - G @ points[j])
            carried = steps[j] @ carried
        Q = solve_discrete_lyapunov(carried.T, np.eye(d))
        factor = np.linalg.cholesky(0.5 * (Q + Q.T)).T
        # A row G s <= g holds where s Q s <= g^2 / (G Q^-1 G).
        widths = np.linalg.norm(np.linalg.solve(factor.T, np.concatenate(rows).T), axis=0)
        levels = np.concatenate(levels)
        seen = widths > 1e-300
        radius = _SHRINK * np.min(levels[seen] / widths[seen], initial=1e150)
        factors[i] = factor / max(radius, 1e-150)
    return factors
