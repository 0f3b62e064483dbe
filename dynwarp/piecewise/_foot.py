"""The nearest point of a stable manifold of codimension one: a quadratic program a piece, and from piece to piece."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynwarp.piecewise._host import HostMap
from dynwarp.piecewise._stable_side import StableSide

# A preactivation this small, relative to the size of the state, is zero: the foot lies on that border.
_TIGHT = 1e-9
_VIOLATED = 1e-11
# Local steps whose regions bound a piece; more are asked for where the foot leaves W^s_loc later.
_MAX_LOCAL = 4096
_MAX_HOPS = 1000
_MAX_ROUNDS = 200


class Foot(NamedTuple):
    """The nearest point to `a` of the piece of W^s with a given itinerary.

    - `itinerary`: the regions of the first n steps, `(n, H)`, after which the orbit is on the hyperplane of cycle point
      `target`, and stays in the cycle's regions.
    - `active`: the borders that hold the foot, rows (step, ReLU), `(r, 2)`; `tight`: all on which it lies.
    """

    point: np.ndarray
    distance: float
    itinerary: np.ndarray
    target: int
    active: np.ndarray
    tight: np.ndarray


def foot_on_piece(f: HostMap, planes: StableSide, a: np.ndarray, itinerary: np.ndarray, target: int) -> Foot | None:
    """The foot on one piece; None where the piece is empty."""
    k = len(planes.points)
    local = 2 * k
    while True:
        program = _program(f, planes, a, itinerary, target, local)
        solved = None if program is None else _least(program.G, program.g, program.scale)
        if program is None or solved is None:
            return None
        s, active = solved
        reached = (program.arrival + program.moved @ s)[None]
        if local > _MAX_LOCAL or planes.membership(reached, np.array([target])).inside[0]:
            break
        local *= 2
    point = program.origin + program.basis @ s
    tight = np.flatnonzero(np.abs(program.g - program.G @ s) <= _TIGHT * program.scale)
    relus = len(f.h2)
    active, tight = (np.stack([rows // relus, rows % relus], axis=1) for rows in (active, tight))
    return Foot(point, float(np.linalg.norm(a - point)), itinerary, target, active, tight)


class _Program(NamedTuple):
    """{origin + basis s : G s <= g}, row h + H j of the ReLU h at step j, and where it arrives after n steps."""

    G: np.ndarray
    g: np.ndarray
    scale: np.ndarray
    origin: np.ndarray
    basis: np.ndarray
    arrival: np.ndarray
    moved: np.ndarray


def _program(f, planes, a, itinerary, target, local) -> _Program | None:
    """The piece in coordinates s of its hyperplane, from the foot of `a` on the hyperplane; None if it is empty.

    Along the orbit what has drifted off the hyperplane, which the unstable direction would carry away, is put back.
    """
    n, k = len(itinerary), len(planes.points)
    phases = (target + np.arange(local + 1)) % k
    patterns = np.concatenate([itinerary, planes.itinerary[phases[:-1]]])
    jacobians, offsets = f.affine(patterns)
    normals = np.concatenate([np.zeros((n, f.size)), planes.normal[phases]])
    levels = np.concatenate([np.zeros(n), planes.height[phases]])
    for j in range(n - 1, -1, -1):
        row, level = normals[j + 1] @ jacobians[j], levels[j + 1] - normals[j + 1] @ offsets[j]
        size = np.linalg.norm(row)
        if size <= 1e-300:
            return None
        normals[j], levels[j] = row / size, level / size
    x = a - normals[0] * (normals[0] @ a - levels[0])
    basis = np.linalg.svd(normals[:1], full_matrices=True)[2][1:].T
    carried, origin, lengths = basis, x, np.linalg.norm(f.W2, axis=1)
    G, g, scale, arrival = [], [], [], (x, basis)
    for j, pattern in enumerate(patterns):
        if j == n:
            arrival = (x, carried)
        sign = np.where(pattern, 1.0, -1.0)
        G.append(-sign[:, None] * (f.W2 @ carried))
        g.append(sign * (f.W2 @ x + f.h2))
        scale.append(lengths * np.linalg.norm(x) + np.abs(f.h2))
        x, carried = jacobians[j] @ x + offsets[j], jacobians[j] @ carried
        x = x - normals[j + 1] * (normals[j + 1] @ x - levels[j + 1])
        carried = carried - np.outer(normals[j + 1], normals[j + 1] @ carried)
    return _Program(np.concatenate(G), np.concatenate(g), np.concatenate(scale), origin, basis, *arrival)


def _least(G, g, scale) -> tuple[np.ndarray, np.ndarray] | None:
    """The least |s| with G s <= g and the rows that hold it; None where there is no s. Rows are added as violated."""
    from scipy.optimize import nnls

    norms = np.linalg.norm(G, axis=1)
    flat = norms <= 1e-13 * np.maximum(scale, 1e-300)
    if np.any(g[flat] < -_VIOLATED * scale[flat]):
        return None
    s, active = np.zeros(G.shape[1]), np.zeros(0, np.int64)
    chosen = np.zeros(len(g), bool)
    for _ in range(_MAX_ROUNDS):
        violated = ~flat & ~chosen & (G @ s - g > _VIOLATED * scale)
        if not violated.any():
            return s, active
        chosen |= violated
        index = np.flatnonzero(chosen)
        rows, levels = G[index] / norms[index, None], g[index] / norms[index]
        unit = max(float(np.max(-levels)), 1e-300)
        stacked = np.concatenate([-rows.T, -levels[None] / unit])
        target = np.zeros(len(stacked))
        target[-1] = 1.0
        weights, _ = nnls(stacked, target, maxiter=50 * stacked.shape[1] + 100)
        if not abs((stacked @ weights - target)[-1]) > 1e-12:
            return None
        active = index[weights > 0]
        # Of the rows that hold it, exactly.
        s = np.linalg.lstsq(G[active] / norms[active, None], g[active] / norms[active], rcond=None)[0]
    return None


def descend(f: HostMap, planes: StableSide, a: np.ndarray, foot: Foot, iterations: int) -> Foot:
    """From piece to piece over the borders that hold the foot, as long as it comes nearer: a local minimum."""
    for _ in range(_MAX_HOPS):
        best = foot
        for itinerary, target in _neighbours(planes, foot):
            if len(itinerary) > iterations:
                continue
            other = foot_on_piece(f, planes, a, itinerary, target)
            if other is not None and other.distance < best.distance * (1 - 1e-12):
                best = other
        if best is foot:
            return foot
        foot = best
    return foot


def _neighbours(planes: StableSide, foot: Foot):
    """The itineraries on the other side of each border that holds the foot, and of all on which it lies together."""
    groups = [row[None] for row in foot.active]
    if len(foot.tight) > 1:
        groups.append(foot.tight)
    k, n = len(planes.points), len(foot.itinerary)
    for rows in groups:
        steps = max(n, int(rows[:, 0].max()) + 1) if len(rows) else n
        more = planes.itinerary[(foot.target + np.arange(steps - n)) % k]
        itinerary = np.concatenate([foot.itinerary, more])
        itinerary[rows[:, 0], rows[:, 1]] ^= True
        yield itinerary, (foot.target + steps - n) % k
