"""Local stable manifolds of codimension one: a hyperplane at each point of a cycle, and who belongs to it (host)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dynwarp.errors import ArgumentError
from dynwarp.piecewise._cycle import Cycle
from dynwarp.piecewise._host import HostMap
from dynwarp.piecewise._local import invariant_subspaces
from dynwarp.piecewise._trace import check_cycle
from dynwarp.piecewise._trapping import trapping_ellipsoids

# Steps of the local maps after which a point that has neither left nor been trapped is taken to belong.
_MAX_STEPS = 50_000
# A preactivation this far on the wrong side, relative to the size of the state, is on the border.
_CLOSED = 1e-12


class Membership(NamedTuple):
    """Of points on the hyperplanes, `(n,)` each: whether in the closed local manifold; whether on its rim to rounding;
    whether this was decided."""

    inside: np.ndarray
    on_rim: np.ndarray
    decided: np.ndarray


class Hyperplanes(NamedTuple):
    """W^s_loc of a cycle with one unstable direction: {z : normals[i] z = levels[i]}, as far as its orbit stays.

    - `normals`: left unstable vectors, of unit length, `(k, M)`; along the cycle each is the pull-back of the next one
      times a positive number, but for the last step, where the sign is that of the unstable multiplier.
    - `unstable`: right unstable vectors with normals[i] unstable[i] = 1, `(k, M)`.
    - `bases`: orthonormal, of the stable subspaces, `(k, M, M - 1)`; `traps`: see `trapping_ellipsoids`.
    """

    points: np.ndarray
    itinerary: np.ndarray
    jacobians: np.ndarray
    normals: np.ndarray
    levels: np.ndarray
    unstable: np.ndarray
    bases: np.ndarray
    traps: np.ndarray

    @classmethod
    def of(cls, f: HostMap, cycle: Any, *, caller: str) -> Hyperplanes:
        points = check_cycle(f, cycle, "unstable", caller=caller)
        check_codimension(cycle, caller=caller)
        itinerary = np.asarray(cycle.itinerary)
        jacobians, _ = f.affine(itinerary)
        multipliers = np.asarray(cycle.multipliers)
        k = len(points)
        bases = invariant_subspaces(jacobians, multipliers, "stable")
        normals = np.stack([np.linalg.svd(basis, full_matrices=True)[0][:, -1] for basis in bases])
        for i in range(k - 1):
            if normals[i + 1] @ jacobians[i] @ normals[i] < 0:
                normals[i + 1] = -normals[i + 1]
        unstable = invariant_subspaces(jacobians, multipliers, "unstable")[:, :, 0]
        unstable = unstable / np.sum(normals * unstable, axis=1, keepdims=True)
        steps = np.swapaxes(np.roll(bases, -1, axis=0), 1, 2) @ jacobians @ bases
        traps = trapping_ellipsoids(f, points, itinerary, bases, steps)
        levels = np.sum(normals * points, axis=1)
        return cls(points, itinerary, jacobians, normals, levels, unstable, bases, traps)

    def project(self, phase: np.ndarray, offset: np.ndarray) -> np.ndarray:
        """Offsets from the cycle's points, put on the stable subspace along the unstable direction."""
        return offset - np.sum(self.normals[phase] * offset, axis=1, keepdims=True) * self.unstable[phase]

    def membership(self, f: HostMap, phase: np.ndarray, z: np.ndarray) -> Membership:
        """Whether points `(n, M)` on the hyperplanes of the cycle's points `phase`, `(n,)`, are in W^s_loc.

        Their local orbits are followed until they leave a region or are trapped. Being put back on the hyperplane at
        each step they do not feel the unstable direction.
        """
        k, n = len(self.points), len(z)
        inside, rim, decided = np.ones(n, bool), np.zeros(n, bool), np.zeros(n, bool)
        lanes, phase, lengths = np.arange(n), np.asarray(phase), np.linalg.norm(f.W2, axis=1)
        offset = self.project(phase, z - self.points[phase])
        for _ in range(_MAX_STEPS):
            x = self.points[phase] + offset
            scale = _CLOSED * (np.linalg.norm(x, axis=1)[:, None] * lengths + np.abs(f.h2))
            slack = np.where(self.itinerary[phase], 1.0, -1.0) * (x @ f.W2.T + f.h2)
            out = np.any(slack < -scale, axis=1)
            rim[lanes] |= np.any(np.abs(slack) <= scale, axis=1)
            inner = np.einsum("nmd,nm->nd", self.bases[phase], offset)
            trapped = np.sum(np.einsum("nij,nj->ni", self.traps[phase], inner) ** 2, axis=1) <= 1
            inside[lanes[out]] = False
            decided[lanes[out | trapped]] = True
            going = ~(out | trapped)
            if not going.any():
                break
            lanes, phase, offset = lanes[going], phase[going], offset[going]
            offset = np.einsum("nij,nj->ni", self.jacobians[phase], offset)
            phase = (phase + 1) % k
            offset = self.project(phase, offset)
        return Membership(inside, rim & inside, decided)


def check_codimension(cycle: Cycle, *, caller: str) -> None:
    """Raises unless one multiplier lies outside the unit circle, so that W^s parts the space."""
    unstable = int(np.sum(np.abs(np.asarray(cycle.multipliers)) > 1))
    if unstable != 1:
        raise ArgumentError(
            f"{caller}: the cycle must have one unstable direction, so that its stable manifold has codimension 1; "
            f"it has {unstable}."
        )
