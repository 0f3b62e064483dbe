"""The local stable manifolds of a cycle as conditions on a point: on the subspace, and never out of the regions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dynwarp.errors import ArgumentError
from dynwarp.piecewise._cycle import Cycle
from dynwarp.piecewise._host import HostMap
from dynwarp.piecewise._local import invariant_subspaces
from dynwarp.piecewise._trace import check_cycle
from dynwarp.piecewise._trapping import trapping_ellipsoids

# A point this far beyond a border, relative to its size, may be on it.
TOLERANCE = 1e-9
# A point of a closed local manifold that is known to rounding is at most so far outside, relative to its size.
_CLOSED = 1e-12
# Steps after which a point that has neither left nor been trapped is not followed any more.
_MAX_STEPS = 100_000


class Membership(NamedTuple):
    """Of points on the subspaces, `(n,)` each: whether in the closed local manifold; whether on its rim to rounding;
    whether this was decided."""

    inside: np.ndarray
    on_rim: np.ndarray
    decided: np.ndarray


class StableSide(NamedTuple):
    """W^s_loc of the points q of a cycle: normals (x - q) = 0, and the local orbit of x stays in the regions of q.

    - `points`: `(k, M)`; `itinerary`: their regions, `(k, H)`.
    - `bases`: of the stable subspaces, `(k, M, d)`; `normals`: orthonormal rows, `(k, M - d, M)`. One row alone is, up
      to a positive factor, the pull-back of the next one, but for the last, where the sign is that of the multiplier.
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
        if normals.shape[1] == 1:
            for i in range(len(points) - 1):
                if normals[i + 1, 0] @ jacobians[i] @ normals[i, 0] < 0:
                    normals[i + 1] = -normals[i + 1]
        steps = np.swapaxes(np.roll(bases, -1, axis=0), 1, 2) @ jacobians @ bases
        norms = np.linalg.norm(f.W2, axis=1)
        facing = norms > 0
        signs = np.where(itinerary[:, facing], 1.0, -1.0)
        rows = -signs[:, :, None] * (f.W2[facing] / norms[facing, None])
        levels = signs * (f.h2[facing] / norms[facing])
        traps = trapping_ellipsoids(f, points, itinerary, bases, steps)
        return cls(points, itinerary, bases, normals, steps, rows, levels, traps)

    @classmethod
    def parting(cls, f: HostMap, cycle: Any, *, caller: str) -> StableSide:
        """Of a cycle with one unstable direction, whose W^s parts the space; one clear error for any other."""
        check_cycle(f, cycle, "unstable", caller=caller)
        unstable = int(np.sum(np.abs(np.asarray(cycle.multipliers)) > 1))
        if unstable != 1:
            raise ArgumentError(
                f"{caller}: the cycle must have one unstable direction, so that its stable manifold has codimension 1; "
                f"it has {unstable}."
            )
        return cls.of(f, cycle)

    @property
    def normal(self) -> np.ndarray:
        """In codimension one: normal[i] z = height[i] is the hyperplane of point i, `(k, M)`."""
        return self.normals[:, 0]

    @property
    def height(self) -> np.ndarray:
        return np.sum(self.normal * self.points, axis=1)

    def margins(self, x: np.ndarray, target: np.ndarray) -> np.ndarray:
        """The least distance to a border on the way of points x `(N, M)` to the cycle, each relative to the size of the
        state there; negative where a border is crossed.

        x is taken for its projection on the stable subspace of the cycle point `target`, `(N,)`.
        """
        return self._follow(x, target)[0]

    def membership(self, x: np.ndarray, target: np.ndarray) -> Membership:
        """Whether points `(N, M)` on the stable subspaces of the cycle points `target`, `(N,)`, are in W^s_loc."""
        least, decided = self._follow(x, target)
        inside = least >= -_CLOSED
        return Membership(inside, inside & (least <= _CLOSED), decided)

    def _follow(self, x: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The margins, and whether each point was followed until it left or was trapped.

        In the coordinates of the subspaces an orbit does not feel the unstable direction.
        """
        k = len(self.points)
        s = np.einsum("nmd,nm->nd", self.bases[target], x - self.points[target])
        least, decided = np.full(len(x), np.inf), np.zeros(len(x), bool)
        lanes, j = np.arange(len(x)), np.asarray(target)
        for _ in range(_MAX_STEPS):
            if not len(lanes):
                break
            z = self.points[j] + np.einsum("nmd,nd->nm", self.bases[j], s)
            slack = self.levels[j] - np.einsum("nhm,nm->nh", self.rows[j], z)
            size = np.linalg.norm(z, axis=1)[:, None] + np.abs(self.levels[j])
            least[lanes] = np.minimum(least[lanes], (slack / np.maximum(size, 1e-300)).min(axis=1, initial=np.inf))
            trapped = np.linalg.norm(np.einsum("nij,nj->ni", self.traps[j], s), axis=1) <= 0.5
            over = trapped | (least[lanes] < -TOLERANCE)
            decided[lanes[over]] = True
            lanes, j, s = lanes[~over], j[~over], s[~over]
            s = np.einsum("nij,nj->ni", self.steps[j], s)
            j = (j + 1) % k
        return least, decided
