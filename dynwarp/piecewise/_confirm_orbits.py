"""Candidates for orbits between manifolds: solved, held against what they must satisfy, and told apart (host)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynwarp.piecewise._connections import Hits, infinite_ends, solve_orbits
from dynwarp.piecewise._cycle import BORDER_TOLERANCE
from dynwarp.piecewise._host import HostMap
from dynwarp.piecewise._local import LocalManifold
from dynwarp.piecewise._stable_side import TOLERANCE, StableSide

# Gaps between two orbits, relative to their size: this small, they are together; this large, apart.
_TOGETHER = 256 * np.finfo(np.float64).eps
_APART = 1e-6


class Found(NamedTuple):
    """Columns of [`HomoclinicPoints`][dynwarp.piecewise.HomoclinicPoints].

    `invertible`: all Jacobians of the orbit; `head`: on the orbit, of which point in W^s_loc the point is an image.
    """

    points: np.ndarray
    iterations: np.ndarray
    transversality: np.ndarray
    orbits: tuple[np.ndarray, ...]
    itineraries: tuple[np.ndarray, ...]
    origins: np.ndarray
    targets: np.ndarray
    on_border: np.ndarray
    invertible: np.ndarray
    residual: np.ndarray
    head: np.ndarray

    def take(self, lanes: np.ndarray) -> Found:
        return Found._make(tuple(x[i] for i in lanes) if isinstance(x, tuple) else x[lanes] for x in self)


def regular(f: HostMap, patterns: np.ndarray) -> np.ndarray:
    """Whether the Jacobians of patterns `(N, H)` are invertible to working precision, `(N,)`."""
    jacobians, _ = f.affine(patterns)
    values = np.linalg.svd(jacobians, compute_uv=False)
    return values[:, -1] > 1e-12 * values[:, 0]


def confirm(
    f: HostMap, local: LocalManifold, stable: StableSide, hits: Hits, itinerary: np.ndarray, later: int
) -> Found:
    """The candidates of one number of steps that are orbits of the map; the point is `later` steps before the last."""
    count, n, relus = hits.patterns.shape
    if n < later:
        # The orbit is followed back into the local manifold.
        k = len(local.points)
        origin = (hits.origin - (later - n)) % k
        ahead = itinerary[(origin[:, None] + np.arange(later - n)) % k]
        hits = hits._replace(origin=origin, patterns=np.concatenate([ahead, hits.patterns], axis=1))
    orbits = solve_orbits(f, local, stable, hits)
    x, at = orbits.points, hits.patterns.shape[1] - later
    last = x[:, -1]
    size = 1 + np.abs(x).max(axis=(1, 2), initial=0.0)
    rows = np.linalg.norm(f.W2, axis=1)
    facing = rows > 0
    values = (x[:, :-1] @ f.W2[facing].T + f.h2[facing]) / rows[facing]
    slack = np.where(hits.patterns[:, :, facing], values, -values).min(axis=(1, 2), initial=np.inf) / size
    starts = _start_margins(local, hits.origin, orbits.start, relus) / size
    ends = np.minimum(starts, stable.margins(last, hits.target))
    kept = np.flatnonzero(np.isfinite(x).all(axis=(1, 2)) & (slack >= -TOLERANCE) & (ends >= -TOLERANCE))
    images = f.step(x[:, :-1])
    misses = np.abs(images - x[:, 1:]).max(axis=(1, 2), initial=0.0)
    off = np.abs(np.einsum("nij,nj->ni", stable.normals[hits.target], last - stable.points[hits.target])).max(axis=1)
    regions, which = np.unique(hits.patterns.reshape(-1, relus), axis=0, return_inverse=True)
    good = np.all(regular(f, regions)[which.reshape(hits.patterns.shape[:2])], axis=1, keepdims=True)[:, 0]
    length = hits.patterns.shape[1]
    on_the_way = stable.itinerary[(hits.target[:, None] - length + np.arange(length)) % len(stable.points)]
    matches = np.all(hits.patterns == on_the_way, axis=2)
    run = np.cumprod(matches[:, ::-1], axis=1).sum(axis=1)
    # Where W^s collapses, images of different points may be one.
    collapses = np.linalg.svd(stable.steps, compute_uv=False).min(initial=1.0) <= 1e-13
    found = Found(
        points=x[:, at],
        iterations=np.full(count, max(n - later, 0)),
        transversality=orbits.volumes[:, at],
        orbits=tuple(x),
        itineraries=tuple(hits.patterns),
        origins=hits.origin,
        targets=hits.target,
        on_border=(slack <= BORDER_TOLERANCE) | (ends <= BORDER_TOLERANCE),
        invertible=good,
        residual=np.maximum(misses, off) / size,
        head=np.full(count, at) if collapses else np.minimum(at, length - run),
    )
    return found.take(kept)


def _start_margins(local: LocalManifold, origin, start, relus):
    """How far inside its local manifold each orbit begins; negative outside."""
    if local.dimension == 1:
        low, high = infinite_ends(local, relus)
        return np.minimum(start[:, 0] - low[origin], high[origin] - start[:, 0])
    margins = np.full(len(start), np.inf)
    for i, piece in enumerate(local.pieces):
        lanes = origin == i
        margins[lanes] = (piece.g - start[lanes] @ piece.G.T).min(axis=1, initial=np.inf)
    return margins


def distinct(
    parts: list[Found], local: LocalManifold, stable: StableSide, itinerary: np.ndarray, later: int, *, homoclinic: bool
) -> Found:
    """All points, each once, the cycle itself left out.

    Orbits are known by their regions. Two that differ there can only meet where one touches a border, or where the map
    folds: then they are apart before some step and together from it on.
    """
    found = Found._make(sum(x, ()) if isinstance(x[0], tuple) else np.concatenate(x) for x in zip(*parts))
    # An image in W^s_loc is known by the point that is there first, and by how many steps it comes after.
    after = np.array([len(word) - later for word in found.itineraries], np.int64) - found.head
    gone: dict[tuple[int, bytes], int] = {}
    for lane in _repeated(found, local, itinerary, after == 0, later):
        name = _name(found, lane)
        gone[name] = min(gone.get(name, int(after[lane])), int(after[lane]))
    if homoclinic:
        q = stable.points
        near = np.abs(found.points[:, None] - q).max(axis=2).min(axis=1, initial=np.inf)
        for lane in np.flatnonzero((after == 0) & (near <= _TOGETHER * (1 + np.abs(q).max()))):
            gone[_name(found, int(lane))] = 0
    if not gone:
        return found
    never = int(after.max()) + 1
    kept = [lane for lane in range(len(after)) if after[lane] < gone.get(_name(found, lane), never)]
    return found.take(np.array(kept, np.int64))


def _name(found: Found, lane: int) -> tuple[int, bytes]:
    return int(found.origins[lane]), found.itineraries[lane][: found.head[lane]].tobytes()


def _repeated(found: Found, local: LocalManifold, itinerary, first: np.ndarray, later: int) -> set[int]:
    """Those that repeat one before them; of two, one must be the first of its orbit in W^s_loc."""
    from scipy.spatial import cKDTree

    dropped: set[int] = set()
    if not len(found.points):
        return dropped
    lanes = np.flatnonzero(first)
    size = 1 + np.abs(found.points).max()
    near = cKDTree(found.points[lanes]).query_ball_tree(cKDTree(found.points), _TOGETHER * size)
    pairs = {(min(i, j), max(i, j)) for i, others in zip(lanes.tolist(), near) if len(others) > 1 for j in others}
    for i, j in sorted(pairs):
        if i == j or i in dropped or j in dropped:
            continue
        length = max(len(found.itineraries[i]), len(found.itineraries[j])) - later
        (a, here), (b, there) = (_back(found, local, itinerary, lane, length, later) for lane in (i, j))
        gap = np.abs(a - b).max(axis=1) / size
        apart = np.flatnonzero(gap > _APART)
        if not len(apart):
            # A border between two pieces belongs to both.
            same = gap.max() <= 1e-10 and bool(found.on_border[i] or found.on_border[j])
        else:
            # In one region only a singular Jacobian brings points together.
            step = apart[-1]
            one_region = np.array_equal(here[step], there[step]) and found.invertible[i]
            same = gap[step + 1 :].max() <= 1e-11 and not one_region
        if same:
            dropped.add(j)
    return dropped


def _back(found: Found, local: LocalManifold, itinerary, lane: int, length: int, later: int):
    """The last `length` steps to a point, from within the local manifold if need be: points and regions."""
    points, word = found.orbits[lane], found.itineraries[lane]
    points, word = points[: len(points) - later], word[: len(word) - later]
    i = int(found.origins[lane])
    s = local.bases[i].T @ (points[0] - local.points[i])
    ahead, regions = [], []
    for _ in range(length - len(word)):
        i = (i - 1) % len(local.points)
        s = np.linalg.solve(local.steps[i], s)
        ahead.append(local.points[i] + local.bases[i] @ s)
        regions.append(itinerary[i])
    if ahead:
        points, word = np.concatenate([ahead[::-1], points]), np.concatenate([regions[::-1], word])
    return points, word
