"""The local stable manifolds of a cycle as conditions on a point: on the subspace, and never out of the regions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynwarp.piecewise._cycle import Cycle
from dynwarp.piecewise._host import HostMap
from dynwarp.piecewise._local import invariant_subspaces
from dynwarp.piecewise._trapping import trapping_ellipsoids

# A point this far beyond a border, relative to its size, is on it.
TOLERANCE = 1e-9
_MAX_STEPS = 100_000


class StableSide(NamedTuple):
    """W^s_loc of the points q of a cycle: normals (x - q) = 0, and the local orbit of x stays in the regions of q.

    - `points`: `(k, M)`; `itinerary`: their regions, `(k, H)`.
    - `bases`: of the stable subspaces, `(k, M, d)`; `normals`: orthonormal rows, `(k, M - d, M)`.
    - `steps`: the map in these bases, `(k, d, d)`.
    - `rows`, `levels`: the borders as rows z <= levels, unit rows, `(k, H', M)` and `(k, H')`.
    - `traps`: |traps s| <= 1 is carried into itself and lies inside all the regions, `(k, d, d)`.
    """

    points: np.ndarray
    itinerary: np.ndarray
    bases: np.ndarray
    normals: np.ndarray
    steps: np.ndarray
    rows: np.ndarray
    levels: np.ndarray
    traps: np.ndarray

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
        traps = trapping_ellipsoids(f, points, itinerary, bases, steps)
        return cls(points, itinerary, bases, normals, steps, rows, levels, traps)

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
            size = np.linalg.norm(np.einsum("nij,nj->ni", self.traps[j], s), axis=1)
            scale = 1 + np.abs(z).max(axis=1)
            going = (size > 0.5) & (least[lanes] >= -TOLERANCE * scale)
            lanes = lanes[going]
            s = np.einsum("nij,nj->ni", self.steps[j[going]], s[going])
            j = (j[going] + 1) % k
        return least
