"""The local stable manifolds of a cycle as conditions on a point: on the subspace, and never out of the regions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynwarp.piecewise._cycle import Cycle
from dynwarp.piecewise._host import HostMap
from dynwarp.piecewise._local import invariant_subspaces

# A point this far beyond a border, relative to its size, is on it.
TOLERANCE = 1e-9
_MAX_STEPS = 100_000


class StableSide(NamedTuple):
    """W^s_loc of the points q of a cycle: normals (x - q) = 0, and the local orbit of x stays in the regions of q.

    - `points`: `(k, M)`; `itinerary`: their regions, `(k, H)`.
    - `bases`: of the stable subspaces, `(k, M, d)`; `normals`: orthonormal rows, `(k, M - d, M)`.
    - `steps`: the map in these bases, `(k, d, d)`.
    - `rows`, `levels`: the borders as rows z <= levels, unit rows, `(k, H', M)` and `(k, H')`.
    - `shapes`, `radii`: |shapes s| <= radii is carried into itself and lies inside all the regions, `(k, d, d)`.
    """

    points: np.ndarray
    itinerary: np.ndarray
    bases: np.ndarray
    normals: np.ndarray
    steps: np.ndarray
    rows: np.ndarray
    levels: np.ndarray
    shapes: np.ndarray
    radii: np.ndarray

    @classmethod
    def of(cls, f: HostMap, cycle: Cycle) -> StableSide:
        points, itinerary = np.asarray(cycle.points, np.float64), np.asarray(cycle.itinerary)
        jacobians, _ = f.affine(itinerary)
        bases = invariant_subspaces(jacobians, np.asarray(cycle.multipliers), "stable")
        d = bases.shape[2]
        normals = np.stack([np.linalg.svd(basis, full_matrices=True)[0][:, d:].T for basis in bases])
        steps = np.swapaxes(np.roll(bases, -1, axis=0), 1, 2) @ jacobians @ bases
        norms = np.linalg.norm(f.W2, axis=1)
        facing = norms > 0
        signs = np.where(itinerary[:, facing], 1.0, -1.0)
        rows = -signs[:, :, None] * (f.W2[facing] / norms[facing, None])
        levels = signs * (f.h2[facing] / norms[facing])
        shapes, radii = _balls(points, bases, steps, rows, levels)
        return cls(points, itinerary, bases, normals, steps, rows, levels, shapes, radii)

    def margins(self, x: np.ndarray, target: np.ndarray) -> np.ndarray:
        """The least distance to a border on the way of points x `(N, M)` to the cycle; negative where one is crossed.

        x is taken for its projection on the stable subspace of the cycle point `target`, `(N,)`.
        """
        k = len(self.points)
        s = np.einsum("nmd,nm->nd", self.bases[target], x - self.points[target])
        least = np.full(len(x), np.inf)
        lanes, j = np.arange(len(x)), target.copy()
        for _ in range(_MAX_STEPS):
            if not len(lanes):
                break
            z = self.points[j] + np.einsum("nmd,nd->nm", self.bases[j], s)
            slack = self.levels[j] - np.einsum("nhm,nm->nh", self.rows[j], z)
            least[lanes] = np.minimum(least[lanes], slack.min(axis=1, initial=np.inf))
            size = np.linalg.norm(np.einsum("nij,nj->ni", self.shapes[j], s), axis=1)
            scale = 1 + np.abs(z).max(axis=1)
            going = (size > 0.5 * self.radii[j]) & (least[lanes] >= -TOLERANCE * scale)
            lanes = lanes[going]
            s = np.einsum("nij,nj->ni", self.steps[j[going]], s[going])
            j = (j[going] + 1) % k
        return least


def _balls(points, bases, steps, rows, levels):
    """An ellipsoid about every cycle point that the local maps carry inwards and that touches no border on the way."""
    from scipy.linalg import solve_discrete_lyapunov

    k, d = len(points), bases.shape[2]
    shapes, radii = np.empty((k, d, d)), np.empty(k)
    for i in range(k):
        carried, widths, slacks = np.eye(d), [], []
        for hop in range(k):
            j = (i + hop) % k
            widths.append(rows[j] @ bases[j] @ carried)
            slacks.append(levels[j] - rows[j] @ points[j])
            carried = steps[j] @ carried
        # |shape s| decreases in one turn; a row is at most |row shape^-1| |shape s|.
        shapes[i] = np.linalg.cholesky(solve_discrete_lyapunov(carried.T, np.eye(d))).T
        most = np.linalg.norm(np.linalg.solve(shapes[i].T, np.concatenate(widths).T), axis=0)
        with np.errstate(divide="ignore"):
            radii[i] = np.min(np.concatenate(slacks) / most, initial=np.inf)
    return shapes, radii
