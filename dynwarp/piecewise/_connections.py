"""Orbits from the local unstable manifold of one cycle to the local stable manifold of another (host)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dynwarp.piecewise._host import Box, HostMap
from dynwarp.piecewise._local import LocalManifold
from dynwarp.piecewise._pushforward import push_forward
from dynwarp.piecewise._stable_side import StableSide
from dynwarp.piecewise._trace_lines import Lines, push

# A value this small, relative to its terms, is zero.
_ZERO = 1e-13
# Candidates this far outside of a local manifold, relative to the state, are left to the exact solve.
_NEAR = 1e-6
# Where the search ends, before numbers overflow.
_FAR = 1e100
# Where on a segment that lies in the stable subspace a point of the local manifold is looked for.
_FRACTIONS = np.linspace(0.5, 4.5, 9)[[4, 3, 5, 2, 6, 1, 7, 0, 8]] / 5


class Hits(NamedTuple):
    """Candidates after one number of steps, all of n regions.

    - `origin`: the cycle point from whose local manifold each comes; `target`: the one whose stable subspace it meets.
    - `patterns`: the regions of the orbit but for its last point, `(N, n, H)`.
    - `end`: the last point, to working precision of the search, `(N, M)`.
    - `tangent`: whether the piece lies in the stable subspace, where `end` is one point of many.
    """

    origin: np.ndarray
    target: np.ndarray
    patterns: np.ndarray
    end: np.ndarray
    tangent: np.ndarray


def search_lines(
    f: HostMap, local: LocalManifold, stable: StableSide, box: Box, iterations: int, cap: int, limits: set[str]
) -> Iterator[Hits]:
    """Candidates of each number of steps 0, 1, ..., where the unstable manifold is one-dimensional.

    Only what one image adds to the local manifold is followed, so that a point comes with its least number of steps.
    """
    yield _local_hits(f, local, stable)
    lines, origins, at_ends = _fundamental(local, f.h2.shape[0])
    history, levels = [lines.vertices], []
    for _ in range(iterations):
        if not len(lines.vertices):
            return
        image = push(f, lines, box, at_ends, cap)
        if image is None:
            limits.add("pieces")
            return
        lines, level, left_out = image
        limits |= {"box"} if left_out else set()
        if np.abs(lines.vertices).max(initial=0.0) > _FAR:
            limits.add("overflow")
            return
        at_ends = None
        history.append(lines.vertices)
        levels.append(level)
        segments, target, end, tangent = _crossings(lines, stable)
        # Most crossings of the subspace are far from the local manifold.
        near = stable.margins(end, target) >= -_NEAR
        segments, target, end, tangent = segments[near], target[near], end[near], tangent[near]
        patterns, first = _regions_of(f, history, levels, segments)
        yield Hits(origins[first], target, patterns, end, tangent)


def _local_hits(f: HostMap, local: LocalManifold, stable: StableSide) -> Hits:
    """Where the local manifolds themselves meet: lines with hyperplanes."""
    directions = local.bases[:, :, 0]
    gap = stable.points[None] - local.points[:, None]
    speed = np.einsum("jm,im->ij", stable.normals[:, 0], directions)
    with np.errstate(divide="ignore", invalid="ignore"):
        at = np.einsum("jm,ijm->ij", stable.normals[:, 0], gap) / speed
    low, high = infinite_ends(local, f.h2.shape[0])
    room = 1e-9 * (1 + np.abs(at))
    same = np.abs(gap).max(axis=2) <= _ZERO * (1 + np.abs(local.points).max())
    i, j = np.nonzero((at >= low[:, None] - room) & (at <= high[:, None] + room) & (np.abs(speed) > _ZERO) & ~same)
    end = local.points[i] + at[i, j][:, None] * directions[i]
    return Hits(i, j, np.zeros((len(i), 0, f.h2.shape[0]), bool), end, np.zeros(len(i), bool))


def infinite_ends(local: LocalManifold, relus: int) -> tuple[np.ndarray, np.ndarray]:
    """The ends of lines along their directions; infinite where only the box ends them."""
    low = np.array([low.at if low.border < relus else -np.inf for low, _ in local.ends])
    high = np.array([high.at if high.border < relus else np.inf for _, high in local.ends])
    return low, high


def _fundamental(local: LocalManifold, relus: int) -> tuple[Lines, np.ndarray, np.ndarray]:
    """The parts of the local manifolds whose images leave them: lines of one segment, the origin of each vertex, and
    the border on which a vertex is known to lie."""
    k = len(local.points)
    low, high = infinite_ends(local, relus)
    vertices, origins, at_ends = [], [], []
    for i in range(k):
        point, direction, factor = local.points[i], local.bases[i, :, 0], local.steps[i, 0, 0]
        inner = sorted((low[(i + 1) % k] / factor, high[(i + 1) % k] / factor))
        for outer, inside, end in zip((low[i], high[i]), inner, local.ends[i]):
            if np.isfinite(outer) and abs(outer - inside) > 1e-12 * abs(outer):
                vertices += [point + outer * direction, point + inside * direction]
                origins += [i, i]
                at_ends += [end.border if end.hops == 0 else -1, -1]
    joined = np.arange(max(len(vertices) - 1, 0)) % 2 == 0
    shaped = np.array(vertices).reshape(-1, local.points.shape[1])
    return Lines(shaped, joined, np.zeros(len(shaped), bool)), np.array(origins, np.int64), np.array(at_ends, np.int64)


def _crossings(lines: Lines, stable: StableSide):
    """Where polylines meet the stable subspaces: segments, targets, points, and whether the segment lies in it."""
    vertices, joined = lines.vertices, lines.joined
    size = np.abs(vertices)
    found = []
    for j, (q, normal) in enumerate(zip(stable.points, stable.normals[:, 0])):
        value = (vertices - q) @ normal
        value[np.abs(value) <= _ZERO * ((size + np.abs(q)) @ np.abs(normal))] = 0.0
        a, b = value[:-1], value[1:]
        cross = np.flatnonzero(joined & (a * b <= 0) & (a != b))
        t = a[cross] / (a[cross] - b[cross])
        end = (b[cross] / (b[cross] - a[cross]))[:, None] * vertices[cross] + t[:, None] * vertices[cross + 1]
        found.append((cross, np.full(len(cross), j), end, np.zeros(len(cross), bool)))
        flat = np.flatnonzero(joined & (a == 0) & (b == 0))
        length = np.linalg.norm(vertices[flat + 1] - vertices[flat], axis=1)
        flat = flat[length > 1e-10 * (1 + size[flat].max(axis=1))]
        if len(flat):
            tried = vertices[flat, None] + _FRACTIONS[:, None] * (vertices[flat + 1] - vertices[flat])[:, None]
            inside = stable.margins(tried.reshape(-1, len(q)), np.full(tried.shape[0] * tried.shape[1], j)) > 0
            first = np.argmax(inside.reshape(tried.shape[:2]), axis=1)
            found.append((flat, np.full(len(flat), j), tried[np.arange(len(flat)), first], np.ones(len(flat), bool)))
    return tuple(np.concatenate(parts) for parts in zip(*found))


def _regions_of(f: HostMap, history, levels, segments):
    """The regions that segments of the last line have passed, `(N, n, H)`, and the first vertices they come from.

    In every step the middle of what was mapped tells the region: no rounding error is carried along.
    """
    patterns = np.zeros((len(segments), len(levels), f.h2.shape[0]), bool)
    if not len(segments):
        return patterns, segments
    for step in reversed(range(len(levels))):
        vertices, level = history[step], levels[step]
        parent = level.left[segments]
        a, b = vertices[parent], vertices[parent + 1]
        middle = np.zeros(len(segments))
        for vertex in (segments, segments + 1):
            left, border = level.left[vertex], level.border[vertex]
            inserted = left != level.right[vertex]
            row = np.where(inserted, border, 0)
            start, stop = (np.einsum("nm,nm->n", x, f.W2[row]) + f.h2[row] for x in (a, b))
            crossing = start / np.where(inserted, start - stop, 1.0)
            middle += 0.5 * np.where(inserted, crossing, left != parent)
        patterns[:, step] = f.values(a + middle[:, None] * (b - a)) > 0
        segments = parent
    return patterns, segments


def search_polyhedra(
    f: HostMap, local: LocalManifold, stable: StableSide, box: Box, iterations: int, cap: int, limits: set[str]
) -> Iterator[Hits]:
    """The same for unstable manifolds of more dimensions, d, and stable ones of codimension d: d equations a piece."""
    pieces = local.pieces
    known: set[tuple[int, int, bytes]] = set()
    relus = f.h2.shape[0]
    for n in range(iterations + 1):
        if n:
            pieces, done, left_out = push_forward(f, pieces, box, 1, cap)
            limits |= {"box"} if left_out else set()
            if not done:
                limits.add("pieces")
                return
        found, names = [], set()
        for piece in pieces:
            for j, (q, normals) in enumerate(zip(stable.points, stable.normals)):
                if n == 0 and np.abs(q - piece.center).max() <= _ZERO * (1 + np.abs(q).max()):
                    continue
                matrix = normals @ piece.basis
                scale = np.prod(np.linalg.norm(piece.basis, axis=0))
                if abs(np.linalg.det(matrix)) <= 1e-12 * scale:
                    continue
                s = np.linalg.solve(matrix, normals @ (q - piece.center))
                at_cycle = np.abs(s).max() <= _ZERO * (1 + np.abs(piece.g).max(initial=0.0))
                if at_cycle or np.any(piece.G @ s > piece.g + 1e-9 * (1 + np.abs(piece.g))):
                    continue
                end = piece.center + piece.basis @ s
                if stable.margins(end[None], np.array([j]))[0] < -_NEAR:
                    continue
                name = (piece.origin, j, piece.itinerary.tobytes())
                names.add(name)
                # The same orbit, without its first point, was found a step before.
                after = ((piece.origin + 1) % len(local.points), j, piece.itinerary[1:].tobytes())
                if n and after in known:
                    continue
                found.append((piece.origin, j, piece.itinerary.reshape(n, relus), end))
        known = names
        count = len(found)
        yield Hits(
            np.array([hit[0] for hit in found], np.int64),
            np.array([hit[1] for hit in found], np.int64),
            np.array([hit[2] for hit in found], bool).reshape(count, n, relus),
            np.array([hit[3] for hit in found]).reshape(count, f.size),
            np.zeros(count, bool),
        )


class Orbits(NamedTuple):
    """Orbits re-solved: `points` `(N, n + 1, M)`, `start` in the coordinates of the local manifold `(N, d)`, and the
    volume that the unit tangent frames of both manifolds span at every point, `(N, n + 1)`; 0 where they touch."""

    points: np.ndarray
    start: np.ndarray
    volumes: np.ndarray


def solve_orbits(f: HostMap, local: LocalManifold, stable: StableSide, hits: Hits) -> Orbits:
    """The orbits of given regions with their first point in p + E^u and their last in q + E^s: one linear system each.

    The boundary value problem is decoupled: what decays is carried forwards, what grows backwards, so that the orbit
    has the precision of its conditions, whatever its length.

    **Source:** Ascher, Mattheij and Russell, Numerical Solution of Boundary Value Problems (1988), chapter 6.
    """
    jacobians, offsets = f.affine(hits.patterns)
    count, n = hits.patterns.shape[:2]
    p, frame = local.points[hits.origin], local.bases[hits.origin]
    normals, q = stable.normals[hits.target], stable.points[hits.target]
    # x[m] = rest[m] + frame[m] s[m], the rest orthogonal to the frame; s[m + 1] = growth[m] s[m] + shift[m].
    start = _dot(np.swapaxes(frame, 1, 2), p)
    rests, frames, growths, shifts = [p - _dot(frame, start)], [frame], [], []
    for m in range(n):
        image = _dot(jacobians[:, m], rests[-1]) + offsets[:, m]
        frame, growth = np.linalg.qr(jacobians[:, m] @ frames[-1])
        shift = _dot(np.swapaxes(frame, 1, 2), image)
        rests.append(image - _dot(frame, shift))
        frames.append(frame)
        growths.append(growth)
        shifts.append(shift)
    fitted = _solve(normals @ frames[-1], _dot(normals, q - rests[-1]))
    last = np.where(hits.tangent[:, None], _dot(np.swapaxes(frames[-1], 1, 2), hits.end - rests[-1]), fitted)
    s = [last]
    for m in reversed(range(n)):
        s.append(_solve(growths[m], s[-1] - shifts[m]))
    s.reverse()
    points = np.stack([rest + _dot(frame, x) for rest, frame, x in zip(rests, frames, s)], axis=1)
    volumes = [_volume(normals, frames[-1])]
    for m in reversed(range(n)):
        normals = np.linalg.qr(np.swapaxes(normals @ jacobians[:, m], 1, 2))[0].swapaxes(1, 2)
        volumes.append(_volume(normals, frames[m]))
    volumes = np.stack(volumes[::-1], axis=1)
    # A collapsed frame has lost its direction.
    lost = np.zeros(count, bool)
    for m, growth in enumerate(growths):
        one = growth.shape[1] == 1
        least = np.abs(growth[:, 0, 0]) if one else np.linalg.svd(growth, compute_uv=False)[:, -1]
        lost |= least <= 1e-13 * np.linalg.norm(jacobians[:, m], axis=(1, 2))
    volumes[lost | hits.tangent] = 0.0
    return Orbits(points, s[0] - start, volumes)


def _dot(matrix, vector):
    return np.einsum("nij,nj->ni", matrix, vector)


def _volume(normals, frame):
    return np.abs(np.linalg.det(normals @ frame))


def _singular(matrix):
    if matrix.shape[1] == 1:
        return matrix[:, 0, 0] == 0
    values = np.linalg.svd(matrix, compute_uv=False)
    return values[:, -1] <= 1e-13 * np.maximum(values[:, 0], 1e-300)


def _solve(matrix, right):
    """Batched solutions; of a singular system the shortest."""
    bad = _singular(matrix) | (np.abs(matrix).max(axis=(1, 2), initial=0.0) < 1e-290)
    safe = np.where(bad[:, None, None], np.eye(matrix.shape[1]), matrix)
    solution = np.linalg.solve(safe, right[:, :, None])[:, :, 0]
    if bad.any():
        solution[bad] = _dot(np.linalg.pinv(matrix[bad]), right[bad])
    return solution
