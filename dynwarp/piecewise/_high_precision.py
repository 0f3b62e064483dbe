"""Orbits between manifolds once more, with as many digits as one likes: the certificate of homoclinic points (host)."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import numpy as np

from dynwarp.errors import MissingDependencyError
from dynwarp.piecewise._confirm_orbits import Found
from dynwarp.piecewise._cycle import Cycle
from dynwarp.piecewise._host import HostMap
from dynwarp.piecewise._local import invariant_subspaces


class Certificate(eqx.Module):
    """What [`homoclinic_points`][dynwarp.piecewise.homoclinic_points] with `certify="mpmath"` adds, one row a point.

    The numbers of the map are taken as they are. Cycles and projections on their invariant subspaces are computed to
    `digits` digits, then the orbit; it is followed with the map itself, from its first point.

    **Attributes:**

    - `points`: the coordinates, M strings of `digits` digits each.
    - `residual`: the distance of the first point from p + E^u, of the last from q + E^s, and of the orbit of the map
      from the solution, the largest of them relative to the size of the orbit, `(n,)`.
    - `margin`: the least distance of the orbit to a border, relative to its size, `(n,)`: positive where it passes the
      regions it was solved for.
    - `certified`: whether the residual is at most 10^(10 - digits) and the margin exceeds 10^(20 - digits), `(n,)`.
    - `digits`.
    """

    points: tuple[tuple[str, ...], ...] = eqx.field(static=True)
    residual: np.ndarray
    margin: np.ndarray
    certified: np.ndarray
    digits: int = eqx.field(static=True)


def load_mpmath() -> Any:
    """The module; raises `MissingDependencyError` if it is not installed."""
    try:
        import mpmath
    except ImportError as error:
        raise MissingDependencyError("certify='mpmath' needs mpmath: pip install mpmath.") from error
    return mpmath


def certify_orbits(
    f: HostMap, cycle: Cycle, other: Cycle, found: Found, later: int, digits: int
) -> tuple[Certificate, np.ndarray]:
    """The certificate, and the points rounded from it, `(n, M)`.

    **Source:** Roberts, Internat. J. Control 32 (1980) 677, for the sign function that gives the projections.
    """
    mpmath = load_mpmath()
    growth = _digits_lost(f, found)
    texts, points = [], np.empty((len(found.points), f.size))
    residual, margin = np.empty(len(found.points)), np.empty(len(found.points))
    with mpmath.workdps(digits + 20 + growth):
        exact = _Exact(mpmath, f)
        start, end = _Frames(exact, cycle), _Frames(exact, other)
        for i, word in enumerate(found.itineraries):
            orbit, residual[i], margin[i] = exact.orbit(start, end, int(found.origins[i]), int(found.targets[i]), word)
            point = orbit[len(word) - later]
            texts.append(tuple(mpmath.nstr(x, digits) for x in point))
            points[i] = [float(x) for x in point]
    certified = (residual <= 10.0 ** (10 - digits)) & (margin >= 10.0 ** (20 - digits))
    return Certificate(tuple(texts), residual, margin, certified, digits), points


def _digits_lost(f: HostMap, found: Found) -> int:
    """Digits that the longest orbit, or one turn of a cycle, can lose in plain products."""
    longest = max((len(word) for word in found.itineraries), default=0)
    most = np.linalg.norm(np.abs(f.A) + np.abs(f.W1) @ np.abs(f.W2), 2)
    return int(np.ceil(min(2 * longest * max(np.log10(max(most, 1.0)), 0.1), 400.0)))


class _Exact:
    """The map with exact numbers; vectors are columns."""

    def __init__(self, mpmath, f: HostMap):
        self.mp = mpmath
        self.size = f.size
        self.A, self.W1, self.W2 = (mpmath.matrix(x.tolist()) for x in (f.A, f.W1, f.W2))
        self.h1, self.h2 = (mpmath.matrix(x.tolist()) for x in (f.h1, f.h2))
        self.rows = np.linalg.norm(f.W2, axis=1)
        self.facing = self.rows > 0
        self.known: dict[bytes, Any] = {}
        self.f = f

    def affine(self, pattern: np.ndarray):
        name = pattern.tobytes()
        if name not in self.known:
            jacobian, offset = self.A.copy(), self.h1.copy()
            for h in np.flatnonzero(pattern):
                jacobian += self.W1[:, int(h)] * self.W2[int(h), :]
                offset += self.W1[:, int(h)] * self.h2[int(h)]
            self.known[name] = jacobian, offset
        return self.known[name]

    def step(self, x):
        values = self.W2 * x + self.h2
        return self.A * x + self.W1 * values.apply(lambda v: v if v > 0 else self.mp.mpf(0)) + self.h1, values

    def orbit(self, start: _Frames, end: _Frames, origin: int, target: int, word: np.ndarray):
        """The orbit with its residual and its margin."""
        p, q = start.points[origin], end.points[target]
        frame, normals = start.unstable(origin), end.conditions(target)
        x, carried = p, frame
        for pattern in word:
            jacobian, offset = self.affine(pattern)
            x, carried = jacobian * x + offset, jacobian * carried
        try:
            s = self.mp.lu_solve(normals * carried, normals * (q - x))
        except ZeroDivisionError:
            return [p] * (len(word) + 1), np.inf, -np.inf
        first = p + frame * s
        orbit, margin = [first], np.inf
        solved, miss = first, self.mp.mpf(0)
        for pattern in word:
            jacobian, offset = self.affine(pattern)
            solved = jacobian * solved + offset
            following, values = self.step(orbit[-1])
            signed = np.where(pattern, 1, -1) * np.array([float(v) for v in values])
            margin = min(margin, np.min(signed[self.facing] / self.rows[self.facing], initial=np.inf))
            orbit.append(following)
            miss = max(miss, self.mp.norm(following - solved, self.mp.inf))
        size = 1 + max(self.mp.norm(x, self.mp.inf) for x in orbit)
        off = self.mp.norm(end.projections[target] * (orbit[-1] - q), self.mp.inf)
        out = self.mp.norm(first - p - start.projections[origin] * (first - p), self.mp.inf)
        return orbit, float(max(miss, off, out) / size), float(margin / size)


class _Frames:
    """The points of a cycle and the projections on its unstable subspaces along the stable ones."""

    def __init__(self, exact: _Exact, cycle: Cycle):
        mp, m = exact.mp, exact.size
        itinerary = np.asarray(cycle.itinerary)
        affine = [exact.affine(pattern) for pattern in itinerary]
        jacobians, _ = exact.f.affine(itinerary)
        self.mp = mp
        self.floats = invariant_subspaces(jacobians, np.asarray(cycle.multipliers), "unstable")
        self.lefts = invariant_subspaces(np.swapaxes(jacobians[::-1], 1, 2), np.asarray(cycle.multipliers), "unstable")
        eye = mp.eye(m)
        self.points, self.projections = [], []
        for i in range(len(itinerary)):
            turn, shift = mp.eye(m), mp.zeros(m, 1)
            for j in range(len(itinerary)):
                jacobian, offset = affine[(i + j) % len(itinerary)]
                turn, shift = jacobian * turn, jacobian * shift + offset
            self.points.append(mp.lu_solve(eye - turn, shift))
            self.projections.append((eye + _sign(mp, (turn + eye) * (turn - eye) ** -1)) / 2)

    def unstable(self, i: int):
        return self.projections[i] * self.mp.matrix(self.floats[i].tolist())

    def conditions(self, i: int):
        # lefts[j] belongs to the point before which j Jacobians of the reversed cycle were passed.
        left = self.lefts[(len(self.points) - i) % len(self.points)]
        return self.mp.matrix(left.T.tolist()) * self.projections[i]


def _sign(mp, matrix):
    """The matrix sign function by Newton's iteration, scaled by the determinant while far away."""
    x = matrix
    for _ in range(200):
        inverse = x**-1
        scale = mp.mpf(1)
        if mp.norm(x * x - mp.eye(x.rows), mp.inf) > 1e-2:
            scale = abs(mp.det(x)) ** (mp.mpf(-1) / x.rows)
        following = (scale * x + inverse / scale) / 2
        moved = mp.norm(following - x, 1)
        x = following
        if moved <= mp.norm(x, 1) * mp.eps * 10**5:
            break
    return x
