"""Local invariant manifolds: the largest sets that the affine maps of a cycle never carry out of their regions."""

from __future__ import annotations

from typing import Literal, NamedTuple

import equinox as eqx
import numpy as np

from dynwarp._linalg import ordered_schur
from dynwarp.errors import ArgumentError
from dynwarp.piecewise._cycle import Cycle
from dynwarp.piecewise._halfspaces import maximum, normalise, polygon, tight
from dynwarp.piecewise._host import Box, HostMap, borders

Kind = Literal["stable", "unstable"]

# Rounds of pulled-back constraints before an inner bound is taken instead.
_MAX_ROUNDS = 2000
_MAX_ROWS = 2000


class Piece(eqx.Module):
    """A polyhedral piece {center + basis s : G s <= g} of a manifold.

    **Attributes:**

    - `center`: `(M,)`; `basis`: `(M, d)`; `G`: `(r, d)`; `g`: `(r,)`, in numpy.
    - `itinerary`: `(n, H)`: the regions of its orbit; for W^s from the piece onwards until it is in the local manifold,
      for W^u from the local manifold until the piece.
    - `origin`: the index of the cycle point to whose local manifold the orbit leads, or from which it comes.
    """

    center: np.ndarray
    basis: np.ndarray
    G: np.ndarray
    g: np.ndarray
    itinerary: np.ndarray
    origin: int = eqx.field(static=True)


class End(NamedTuple):
    """An end of a one-dimensional local manifold: `at` along the direction of its point, from a border.

    The border `border` (a ReLU, or H + a face of the box) is met at the cycle point `source`, `hops` steps of the local
    maps away (after it on a stable manifold, before it on an unstable one).
    """

    at: float
    border: int
    source: int
    hops: int


class LocalManifold(NamedTuple):
    """The local manifolds of all points of a cycle.

    - `bases`: orthonormal, `(k, M, d)`; `steps`: `(k, d, d)` with J[i] bases[i] = bases[i + 1] steps[i].
    - `pieces`: one [`Piece`][dynwarp.piecewise.Piece] a point, its center the point.
    - `ends`: in one dimension, (lower, upper) of each point.
    - `unbounded`: whether something was cut by the box.
    - `capped`: whether constraints went on beyond the cap, so that the pieces are an inner bound.
    """

    points: np.ndarray
    bases: np.ndarray
    steps: np.ndarray
    pieces: tuple[Piece, ...]
    ends: tuple[tuple[End, End], ...]
    unbounded: bool
    capped: bool

    @property
    def dimension(self) -> int:
        return self.bases.shape[2]


def invariant_subspaces(jacobians: np.ndarray, multipliers: np.ndarray, kind: Kind) -> np.ndarray:
    """Orthonormal bases of the stable or unstable subspaces at all points of a cycle, `(k, M, d)`.

    From the ordered real Schur form of one turn, then carried around the cycle, in which direction errors shrink: the
    unstable subspace forwards, the left unstable subspace, whose null space is the stable one, backwards. So complex,
    defective and zero multipliers need no care and no Jacobian is inverted.
    """
    k, m, _ = jacobians.shape
    moduli = np.sort(np.abs(multipliers))[::-1]
    dimension = int(np.sum(moduli > 1))
    if dimension == 0:
        frames = np.zeros((k, m, 0))
    elif dimension == m:
        frames = np.broadcast_to(np.eye(m), (k, m, m)).copy()
    else:
        # Left vectors are right vectors of the transposed product, which runs backwards.
        chain = jacobians if kind == "unstable" else np.swapaxes(jacobians[::-1], 1, 2)
        threshold = np.sqrt(moduli[dimension - 1] * max(moduli[dimension], 1e-300))
        frame, turns = _dominant(chain, threshold, dimension)
        frames = np.empty((k, m, dimension))
        for _ in range(turns):
            for i in range(k):
                frames[i] = frame
                frame = np.linalg.qr(chain[i] @ frame)[0]
        if kind == "stable":
            # chain[i] is J[k - 1 - i]^T: frames[i] are left vectors at the point after it.
            frames = frames[(-np.arange(k)) % k]
    if kind == "unstable":
        return frames
    return np.stack([np.linalg.svd(frame.T)[2][dimension:].T for frame in frames])


def _dominant(chain, threshold, dimension):
    """A basis of the dominant subspace of one turn, and how many turns to refine it."""
    turn = np.eye(chain.shape[1])
    scale = 0.0
    for jacobian in chain:
        turn = jacobian @ turn
        size = max(np.abs(turn).max(), 1e-300)
        turn, scale = turn / size, scale + np.log(size)
    limit = np.exp(np.log(threshold) - scale)
    try:
        form = ordered_schur(turn, lambda value: abs(value) > limit)
    except ArgumentError:
        form = None
    if form is not None and form.dimension == dimension:
        return form.basis, 2
    # The product has lost its small multipliers in rounding: the gap is then so wide that any start converges.
    return np.linalg.qr(np.random.default_rng(0).normal(size=(chain.shape[1], dimension)))[0], 40


def local_manifold(f: HostMap, cycle: Cycle, kind: Kind, box: Box) -> LocalManifold:
    """The local manifolds at all points of a hyperbolic cycle with no point on a border.

    W^s_loc(p_i): all z in p_i + E^s whose orbit under the affine maps of the itinerary stays in its regions; W^u_loc
    the same with the inverse on E^u. In one dimension an interval in closed form, in more a polyhedron, found by adding
    the constraints of later and later steps until they say nothing new. What is unbounded is cut at the box.

    **Source:** Gilbert and Tan, IEEE Trans. Automat. Contr. 36 (1991) 1008, for the maximal output admissible set.
    """
    points = np.asarray(cycle.points, np.float64)
    itinerary = np.asarray(cycle.itinerary)
    jacobians, _ = f.affine(itinerary)
    bases = invariant_subspaces(jacobians, np.asarray(cycle.multipliers), kind)
    d = bases.shape[2]
    if d == 1:
        bases = _orient(bases, jacobians)
    after = np.roll(bases, -1, axis=0)
    steps = np.swapaxes(after, 1, 2) @ jacobians @ bases
    if d == 1:
        return _lines(f, points, itinerary, bases, steps, kind, box)
    return _polyhedra(f, points, itinerary, bases, steps, kind, box)


def _orient(bases, jacobians):
    bases = bases.copy()
    for i in range(len(bases) - 1):
        if bases[i + 1, :, 0] @ jacobians[i] @ bases[i, :, 0] < 0:
            bases[i + 1] = -bases[i + 1]
    return bases


def _lines(f, points, itinerary, bases, steps, kind, box):
    k = len(points)
    W, h = borders(f, box)
    relus = f.h2.shape[0]
    signs = np.concatenate([np.where(itinerary, 1.0, -1.0), np.ones((k, 2 * f.size))], axis=1)
    distance = signs * (points @ W.T + h)
    slope = signs * np.einsum("hm,km->kh", W, bases[:, :, 0])
    factor = steps[:, 0, 0]
    ends, unbounded = [], False
    for i in range(k):
        pair = []
        for side in (-1.0, 1.0):
            end = End(np.inf, -1, i, 0)
            # Along the orbit for W^s, back along it for W^u; a negative multiplier repeats after two turns.
            carried, j = side, i
            for hop in range(2 * k):
                border, at = _first(distance[j, :relus], slope[j, :relus] * carried)
                if at < end.at:
                    end = End(at, border, j, hop)
                if kind == "stable":
                    carried, j = carried * factor[j], (j + 1) % k
                else:
                    j = (j - 1) % k
                    carried = carried / factor[j]
                if carried == 0:
                    break
            cut = box.given and kind == "stable"
            if np.isinf(end.at) or cut:
                face, at = _first(distance[i, relus:], slope[i, relus:] * side)
                if at < end.at:
                    end, unbounded = End(max(at, 0.0), relus + face, i, 0), True
            pair.append(end._replace(at=side * end.at))
        ends.append((pair[0], pair[1]))
    pieces = tuple(
        Piece(points[i], bases[i], np.array([[-1.0], [1.0]]), np.array([-low.at, high.at]), itinerary[:0], i)
        for i, (low, high) in enumerate(ends)
    )
    return LocalManifold(points, bases, steps, pieces, tuple(ends), unbounded, False)


def _first(distance, speed):
    """The first border that is met: its index and how far away it is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        at = np.where(speed < 0, distance / -speed, np.inf)
    if not len(at):
        return -1, np.inf
    border = int(np.argmin(at))
    return border, float(at[border])


def _polyhedra(f, points, itinerary, bases, steps, kind, box):
    k, d = len(points), bases.shape[2]
    own = []
    for i in range(k):
        R, r = f.region(itinerary[i])
        own.append((R @ bases[i], r - R @ points[i]))
    moves = steps if kind == "stable" else np.linalg.inv(steps)
    G_box, g_box = box.rows()
    pieces, unbounded, capped = [], False, False
    for i in range(k):
        rows_box = normalise(G_box @ bases[i], g_box - G_box @ points[i])
        if rows_box is None:
            raise ArgumentError(f"trace_manifold: `box` must hold every point of the cycle; it leaves out {points[i]}.")
        G, g = rows_box
        n_box = len(g)
        reach = 2 * float(np.linalg.norm(box.upper - box.lower))
        carried, j, quiet, hop, bound = np.eye(d), i, 0, 0, None
        while quiet < k and hop < _MAX_ROUNDS and len(g) < _MAX_ROWS:
            rows = normalise(own[j][0] @ carried, own[j][1])
            assert rows is not None, "a cycle point lies in its own region"
            new = _needed(G, g, *rows, reach, bound)
            quiet = 0 if new.any() or hop == 0 else quiet + 1
            G, g = np.concatenate([G, rows[0][new]]), np.concatenate([g, rows[1][new]])
            if hop == 0 and d > 2:
                bound = np.array([max(maximum(G, g, a), maximum(G, g, -a)) for a in np.eye(d)])
            if kind == "stable":
                carried, j = moves[j] @ carried, (j + 1) % k
            else:
                j = (j - 1) % k
                carried = moves[j] @ carried
            hop += 1
        if quiet < k:
            G, g = _inner_bound(own, moves, i, kind, (G[:n_box], g[:n_box]))
            capped = True
        # A face of the box that bounds the piece shows as a tight row.
        needed = tight(G, g, reach)
        unbounded |= bool(
            np.any(
                [
                    maximum(np.delete(G, q, 0), np.delete(g, q), G[q]) > g[q] + 1e-9
                    for q in np.flatnonzero(needed[:n_box])
                ]
            )
        )
        pieces.append(Piece(points[i], bases[i], G[needed], g[needed], itinerary[:0], i))
    return LocalManifold(points, bases, steps, tuple(pieces), (), unbounded, capped)


def _needed(G, g, rows, levels, reach, bound):
    """Which of the new rows cut the polyhedron."""
    slack = 1e-10 * (1 + np.abs(levels))
    if rows.shape[1] == 2:
        vertices = polygon(G, g, reach)
        return np.max(vertices @ rows.T, axis=0) > levels + slack
    new = np.ones(len(levels), bool) if bound is None else np.abs(rows) @ bound > levels + slack
    for q in np.flatnonzero(new):
        others = np.flatnonzero(new[:q])
        largest = maximum(np.concatenate([G, rows[others]]), np.concatenate([g, levels[others]]), rows[q])
        new[q] = largest > levels[q] + slack[q]
    return new


def _inner_bound(own, moves, i, kind, box_rows):
    """A parallelepiped inside a ball of an adapted norm, which the local map carries into itself."""
    from scipy.linalg import solve_discrete_lyapunov

    k, d = len(own), moves.shape[1]
    carried, j = np.eye(d), i
    rows = []
    for _ in range(k):
        rows.append((own[j][0] @ carried, own[j][1]))
        if kind == "stable":
            carried, j = moves[j] @ carried, (j + 1) % k
        else:
            j = (j - 1) % k
            carried = moves[j] @ carried
    G = np.concatenate([row[0] for row in rows] + [box_rows[0]])
    g = np.concatenate([row[1] for row in rows] + [box_rows[1]])
    # s Q s decreases along the map; a row G s <= g holds on the ball s Q s <= g^2 / (G Q^-1 G).
    Q = solve_discrete_lyapunov(carried.T, np.eye(d))
    lower = np.linalg.cholesky(Q)
    widths = np.linalg.norm(np.linalg.solve(lower, G.T), axis=0)
    radius = np.min(np.where(widths > 0, g / np.where(widths > 0, widths, 1.0), np.inf))
    faces = np.concatenate([lower.T, -lower.T])
    normals = np.linalg.norm(faces, axis=1)
    return faces / normals[:, None], np.full(2 * d, radius / np.sqrt(d)) / normals
