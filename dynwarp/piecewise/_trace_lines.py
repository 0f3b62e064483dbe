"""One-dimensional manifolds as exact polylines: W^u by the map, W^s by all branches of its inverse."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array

from dynwarp.piecewise._host import ZERO, Box, HostMap, borders
from dynwarp.piecewise._local import LocalManifold

# Pieces shorter than this share of the segment they come from are rounding.
_SHORT = 1e-13


class Level(eqx.Module):
    """How the vertices after one step come from those before it; what `retrace` replays.

    **Attributes:** integer arrays `(n,)`.

    - `left`, `right`: the ends of the segment a vertex comes from; equal for the image of a vertex.
    - `border`: the ReLU (or H + a face of the box) whose border it crosses there; -1 for none.
    - `region`: for W^s, the row of the manifold's `patterns` that tells the branch of the inverse; zeros for W^u.
    """

    left: np.ndarray | Array
    right: np.ndarray | Array
    border: np.ndarray | Array
    region: np.ndarray | Array


class Lines(NamedTuple):
    """Polylines, one after the other: `joined[i]` tells whether vertices i and i + 1 are the ends of a segment.

    `on_cycle` marks the images of cycle points, at which a piece goes on.
    """

    vertices: np.ndarray
    joined: np.ndarray
    on_cycle: np.ndarray

    def length(self) -> float:
        steps = np.linalg.norm(np.diff(self.vertices, axis=0), axis=1)
        return float(steps[self.joined].sum())

    def sizes(self) -> tuple[int, ...]:
        cuts = np.flatnonzero(~self.joined) + 1
        return tuple(int(n) for n in np.diff(np.concatenate([[0], cuts, [len(self.vertices)]])))

    def number_of_pieces(self) -> int:
        inner = self.on_cycle[1:-1] & self.joined[:-1] & self.joined[1:]
        return int(self.joined.sum() - inner.sum())


def local_lines(local: LocalManifold) -> Lines:
    """The local manifolds as polylines: end, point, end."""
    vertices, joined, on_cycle = [], [], []
    for point, basis, (low, high) in zip(local.points, local.bases[:, :, 0], local.ends):
        vertices += [point + low.at * basis, point, point + high.at * basis]
        joined += [True, True, False]
        on_cycle += [False, True, False]
    return Lines(np.array(vertices), np.array(joined[:-1]), np.array(on_cycle))


def push(
    f: HostMap, lines: Lines, box: Box, at_ends: np.ndarray | None, max_segments: int
) -> tuple[Lines, Level, bool] | None:
    """One image under the map: a vertex is inserted, exactly, at every crossing of a border, and all are mapped.

    `at_ends`, `(n,)`: the border on which a vertex is known to lie, -1 for none. Segments outside a given box go. None,
    before memory is taken, where the image has more than `max_segments`.
    """
    vertices, joined, on_cycle = lines
    n = len(vertices)
    kept = np.arange(n)
    dropped = False
    if box.given:
        # A segment is outside where both of its ends are beyond one face.
        beyond = np.concatenate([vertices < box.lower, vertices > box.upper], axis=1)
        outside = joined & np.any(beyond[:-1] & beyond[1:], axis=1)
        if outside.any():
            dropped = True
            joined = joined & ~outside
            used = np.zeros(n, bool)
            used[:-1] |= joined
            used[1:] |= joined
            kept = np.flatnonzero(used)
            joined = joined[kept[:-1]] if len(kept) else np.zeros(0, bool)
            vertices, on_cycle = vertices[kept], on_cycle[kept]
            at_ends = None if at_ends is None else at_ends[kept]
    values = f.values(vertices)
    if at_ends is not None:
        rows = np.flatnonzero((at_ends >= 0) & (at_ends < f.h2.shape[0]))
        values[rows, at_ends[rows]] = 0.0
    sign = np.sign(values)
    segment, relu = np.nonzero((sign[:-1] * sign[1:] < 0) & joined[:, None])
    left_value, right_value = values[segment, relu], values[segment + 1, relu]
    t, s = left_value / (left_value - right_value), right_value / (right_value - left_value)
    order = np.lexsort((t, segment))
    segment, relu, t, s = segment[order], relu[order], t[order], s[order]
    # ReLUs with one border meet it in one vertex.
    fresh = np.ones(len(t), bool)
    fresh[1:] = (segment[1:] != segment[:-1]) | (t[1:] - t[:-1] > ZERO)
    segment, relu, t, s = segment[fresh], relu[fresh], t[fresh], s[fresh]
    if joined.sum() + len(segment) > max_segments:
        return None

    place = segment + 1
    at = np.insert(np.arange(len(vertices)), place, segment)
    to = np.insert(np.arange(len(vertices)), place, segment + 1)
    border = np.insert(np.full(len(vertices), -1) if at_ends is None else at_ends, place, relu)
    # Convex combinations: an end that is far away takes no digits from a crossing near the other.
    s = np.insert(np.ones(len(vertices)), place, s)[:, None]
    t = np.insert(np.zeros(len(vertices)), place, t)[:, None]
    x = s * vertices[at] + t * vertices[to]
    w = x @ f.W2.T + f.h2
    rows = np.flatnonzero((border >= 0) & (border < f.h2.shape[0]))
    w[rows, border[rows]] = 0.0
    image = x @ f.A.T + np.maximum(w, 0) @ f.W1.T + f.h1
    new = Lines(image, np.insert(joined, segment, True), np.insert(on_cycle, place, False))
    level = Level(kept[at], kept[to], border, np.zeros(len(at), np.int64))
    return new, level, dropped


class Branches(NamedTuple):
    """The inverse of a map in all of its regions: z = inverse (x - offset) where the Jacobian is regular."""

    patterns: np.ndarray
    jacobians: np.ndarray
    offsets: np.ndarray
    inverses: np.ndarray
    kernels: np.ndarray
    left_kernels: np.ndarray
    nullity: np.ndarray
    neighbours: np.ndarray

    @classmethod
    def of(cls, f: HostMap, patterns: np.ndarray) -> Branches:
        jacobians, offsets = f.affine(patterns)
        u, s, vt = np.linalg.svd(jacobians)
        small = s <= 1e-13 * np.maximum(s[:, :1], 1e-300)
        nullity = small.sum(axis=1)
        regular = nullity == 0
        inverses = np.zeros_like(jacobians)
        inverses[regular] = np.linalg.inv(jacobians[regular])
        index = {row.tobytes(): i for i, row in enumerate(np.packbits(patterns, axis=1))}
        neighbours = np.full(patterns.shape, -1)
        for h in range(patterns.shape[1]):
            across = patterns.copy()
            across[:, h] = ~across[:, h]
            neighbours[:, h] = [index.get(row.tobytes(), -1) for row in np.packbits(across, axis=1)]
        return cls(patterns, jacobians, offsets, inverses, vt[:, -1], u[:, :, -1], nullity, neighbours)


class _Edges(NamedTuple):
    """Parts of the preimage: segment, region, and at its two ends the fraction and the border (-1: a vertex)."""

    segment: np.ndarray
    region: np.ndarray
    t: np.ndarray
    border: np.ndarray
    position: np.ndarray


def pull(f: HostMap, lines: Lines, branches: Branches, box: Box) -> tuple[Lines, Level, bool]:
    """The whole preimage of polylines inside the box: every branch of the inverse, joined at the borders."""
    W, h = borders(f, box)
    edges = _edges(lines, branches, W, h, f.h2.shape[0])
    ends, joined = _chains(edges, lines, branches, f.h2.shape[0])
    edge, side = ends[:, 0], ends[:, 1]
    if not len(edge):
        empty = np.zeros(0, np.int64)
        return Lines(np.zeros((0, f.size)), np.zeros(0, bool), np.zeros(0, bool)), Level(*([empty] * 4)), False
    border, segment = edges.border[edge, side], edges.segment[edge]
    copied = border < 0
    left = np.where(copied, segment + (edges.t[edge, side] > 0.5), segment)
    right = np.where(copied, left, segment + 1)
    level = Level(left, right, border, edges.region[edge])
    new = Lines(edges.position[edge, side], joined, copied & lines.on_cycle[left])
    return new, level, bool(np.any(border >= f.h2.shape[0]))


def _edges(lines, branches, W, h, relus) -> _Edges:
    start = np.flatnonzero(lines.joined)
    parts = []
    signs = np.concatenate(
        [np.where(branches.patterns, 1.0, -1.0), np.ones((len(branches.patterns), len(h) - relus))], axis=1
    )
    regular = np.flatnonzero(branches.nullity == 0)
    # Bounded memory: so many segments at a time.
    chunk = max(1, int(4e6 // max(1, len(regular) * len(h))))
    for begin in range(0, len(start), chunk):
        segments = start[begin : begin + chunk]
        a, b = lines.vertices[segments], lines.vertices[segments + 1]
        inverse, offset = branches.inverses[regular], branches.offsets[regular]
        ya = np.einsum("rij,nrj->nri", inverse, a[:, None] - offset)
        yb = np.einsum("rij,nrj->nri", inverse, b[:, None] - offset)
        n, r, t0, t1, h0, h1 = _clip(ya, yb, signs[regular], W, h)
        t, border = np.stack([t0, t1], axis=1), np.stack([h0, h1], axis=1)
        p, q = ya[n, r], yb[n, r]
        # Convex combinations, which at t = 0 and 1 are the ends.
        position = (1 - t)[:, :, None] * p[:, None] + t[:, :, None] * q[:, None]
        parts.append(_Edges(segments[n], regular[r], t, border, position))
    for r in np.flatnonzero(branches.nullity == 1):
        parts.append(_collapsed(lines, start, branches, r, signs[r], W, h))
    fields = [np.concatenate([part[i] for part in parts]) for i in range(5)]
    order = np.lexsort((fields[1], fields[0]))
    return _Edges(*(field[order] for field in fields))


def _clip(ya, yb, signs, W, h):
    """The part of each segment ya yb `(n, r, M)` inside its region: indices, fractions and borders at both ends."""
    scale = np.abs(ya) @ np.abs(W).T + np.abs(h)
    va, vb = ya @ W.T + h, yb @ W.T + h
    va = signs * np.where(np.abs(va) <= ZERO * scale, 0.0, va)
    vb = signs * np.where(np.abs(vb) <= ZERO * (np.abs(yb) @ np.abs(W).T + np.abs(h)), 0.0, vb)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = va / (va - vb)
    enters, leaves = (va < 0) & (vb > 0), (va > 0) & (vb < 0)
    lower, upper = np.where(enters, t, 0.0), np.where(leaves, t, 1.0)
    never = np.any((va <= 0) & (vb <= 0) & (va + vb < 0), axis=2)
    h0, h1 = np.argmax(lower, axis=2), np.argmin(upper, axis=2)
    t0, t1 = lower.max(axis=2), upper.min(axis=2)
    n, r = np.nonzero((t1 - t0 > _SHORT) & ~never)
    t0, t1, h0, h1 = t0[n, r], t1[n, r], h0[n, r], h1[n, r]
    return n, r, t0, t1, np.where(t0 > 0, h0, -1), np.where(t1 < 1, h1, -1)


def _collapsed(lines, start, branches, r, signs, W, h) -> _Edges:
    """The preimage where the Jacobian has a kernel: of the one point of a segment in its image, a line."""
    a, b = lines.vertices[start], lines.vertices[start + 1]
    normal = branches.left_kernels[r]
    va, vb = (a - branches.offsets[r]) @ normal, (b - branches.offsets[r]) @ normal
    hit = np.flatnonzero(va * vb < 0)
    t = va[hit] / (va[hit] - vb[hit])
    target = (1 - t)[:, None] * a[hit] + t[:, None] * b[hit]
    foot = (target - branches.offsets[r]) @ np.linalg.pinv(branches.jacobians[r], rcond=1e-13).T
    values, speed = signs * (foot @ W.T + h), signs * (W @ branches.kernels[r])
    with np.errstate(divide="ignore", invalid="ignore"):
        cross = -values / speed
    lower, upper = np.where(speed > 0, cross, -np.inf), np.where(speed < 0, cross, np.inf)
    blocked = np.any((speed == 0) & (values < 0), axis=1)
    h0, h1 = np.argmax(lower, axis=1), np.argmin(upper, axis=1)
    low, high = lower.max(axis=1), upper.min(axis=1)
    ok = np.flatnonzero((high > low) & ~blocked)
    position = foot[ok, None] + np.stack([low, high], axis=1)[ok][:, :, None] * branches.kernels[r]
    return _Edges(
        start[hit][ok], np.full(len(ok), r), np.stack([t, t], axis=1)[ok], np.stack([h0, h1], axis=1)[ok], position
    )


def _chains(edges: _Edges, lines: Lines, branches: Branches, relus: int):
    """Walks along the parts, over vertices and borders: (edge, side) of every vertex in order, and what is joined."""
    count = len(edges.segment)
    regions = len(branches.patterns)
    key = edges.segment * regions + edges.region

    def find(segment, region):
        at = np.searchsorted(key, segment * regions + region)
        at = np.minimum(at, count - 1)
        return np.where(key[at] == segment * regions + region, at, -1)

    partner = np.full((count, 2), -1)
    if not count:
        return np.zeros((0, 2), np.int64), np.zeros(0, bool)
    # Over a vertex of the polyline, in one region.
    e = np.flatnonzero(edges.border[:, 1] < 0)
    goes_on = np.zeros(len(lines.vertices) + 1, bool)
    goes_on[: len(lines.joined)] = lines.joined
    e = e[goes_on[edges.segment[e] + 1]]
    other = find(edges.segment[e] + 1, edges.region[e])
    good = (other >= 0) & (edges.border[other, 0] < 0)
    partner[e[good], 1], partner[other[good], 0] = 2 * other[good], 2 * e[good] + 1
    # Over a border, on the same segment.
    for side in (0, 1):
        e = np.flatnonzero((edges.border[:, side] >= 0) & (edges.border[:, side] < relus))
        border = edges.border[e, side]
        region = branches.neighbours[edges.region[e], border]
        other = np.where(region >= 0, find(edges.segment[e], np.maximum(region, 0)), -1)
        for far in (0, 1):
            good = (other >= 0) & (edges.border[other, far] == border)
            partner[e[good], side] = 2 * other[good] + far

    done = np.zeros(count, bool)
    order: list[tuple[int, int]] = []
    joined: list[bool] = []
    links = partner.tolist()
    seeds = [(int(e), int(s)) for e, s in np.argwhere(partner < 0)] + [(e, 0) for e in range(count)]
    for edge, side in seeds:
        if done[edge]:
            continue
        order.append((edge, side))
        while not done[edge]:
            done[edge] = True
            order.append((edge, 1 - side))
            joined.append(True)
            link = links[edge][1 - side]
            if link < 0:
                break
            edge, side = divmod(link, 2)
        joined.append(False)
    return np.array(order), np.array(joined[:-1], bool)
