"""Exact forward images of many rays at once, and where they meet local stable manifolds of codimension one (host)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dynwarp.piecewise._host import ZERO, HostMap
from dynwarp.piecewise._stable_side import StableSide

# Pieces of all levels together whose itineraries are kept.
_MAX_HISTORY = 2**24
# Hits at corners or rims are one hit if their parameters agree to this share.
_SAME = 1e-12
_CHUNK = 4_000_000


class Crossings(NamedTuple):
    """Hits of rays, sorted by ray and along it; `(N,)` each but for `codes`.

    - `ray`, `t`, `iterations` (the least n), `sign`, `target` (the cycle's point whose hyperplane is met).
    - `codes`: the regions of the first n steps, packed bits `(N, iterations, ceil(H / 8))`.
    - `done`: the iterations that were completed; `undecided`: how many memberships were not decided.
    """

    ray: np.ndarray
    t: np.ndarray
    iterations: np.ndarray
    sign: np.ndarray
    target: np.ndarray
    codes: np.ndarray
    done: int
    undecided: int


class _Level(NamedTuple):
    """Of each piece: the piece before the step it is an image of, and the pattern of its region."""

    parent: np.ndarray
    code: np.ndarray


def cross(
    f: HostMap,
    planes: StableSide,
    origins: np.ndarray,
    directions: np.ndarray,
    lengths: np.ndarray,
    iterations: int,
    max_pieces: int,
    settled: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> Crossings:
    """All crossings of origin + t direction, 0 < t <= length, with F^-n(W^s_loc), n <= iterations.

    The image of a ray is a polyline, cut at each border before each step. Vertices are homogeneous, (w z, w), of size
    1: w = 0 is a direction, the end of an infinite ray. So what diverges does not overflow. A piece meets
    a hyperplane anew only where its image before lay outside the region of the cycle point before: no hit is found
    twice, and none is told from another by its distance. `settled` may tell of finite pieces, by their ends `(n, M)`,
    which will never meet W^s_loc again, so that they need not be followed.
    """
    rays, k = len(origins), len(planes.points)
    W, move = np.column_stack([f.W2, f.h2]), np.column_stack([f.A, f.h1])
    functionals = np.column_stack([planes.normal, -planes.height])
    finite = np.isfinite(lengths)
    ends = np.where(finite[:, None], origins + np.where(finite, lengths, 0.0)[:, None] * directions, directions)
    vertices = np.empty((2 * rays, f.size + 1))
    vertices[0::2] = np.column_stack([origins, np.ones(rays)])
    vertices[1::2] = np.column_stack([ends, finite.astype(np.float64)])
    vertices = _unit(vertices)
    joined = np.tile([True, False], rays)
    parent, before = np.arange(rays), np.zeros((rays, k), bool)
    levels: list[_Level] = []
    found, kept, done = [], 0, -1
    for n in range(iterations + 1):
        vertices, values, joined, parent = _cut(W, vertices, joined, parent)
        start = np.flatnonzero(joined)
        kept += len(start)
        if len(start) > max_pieces or kept > _MAX_HISTORY:
            break
        pattern, here = _patterns(values, start, planes.itinerary)
        fresh = here & ~np.roll(before[parent], 1, axis=1)
        met = _meet(functionals, vertices, start, fresh)
        levels.append(_Level(parent, np.packbits(pattern, axis=1)))
        found.append((np.full(len(met[0]), n), *met))
        before, done = here, n
        parent = np.arange(len(start))
        if settled is not None:
            vertices, values, joined, parent = _leave_out(settled, vertices, values, joined, start)
        image = vertices @ move.T + np.maximum(values, 0.0) @ f.W1.T
        vertices = _unit(np.column_stack([image, vertices[:, -1]]))
    return _solve(f, planes, origins, directions, lengths, levels, found, done)


def _leave_out(settled, vertices, values, joined, start):
    """The polylines without the pieces that are settled: (vertices, preactivations, joined, which pieces are left)."""
    weight = vertices[:, -1:]
    finite = (weight[start, 0] > 0) & (weight[start + 1, 0] > 0)
    piece = np.flatnonzero(finite)
    at = start[piece]
    with np.errstate(over="ignore"):
        gone = piece[settled(vertices[at, :-1] / weight[at], vertices[at + 1, :-1] / weight[at + 1])]
    left = np.delete(np.arange(len(start)), gone)
    joined = joined.copy()
    joined[start[gone]] = False
    used = joined.copy()
    used[1:] |= joined[:-1]
    return vertices[used], values[used], joined[used], left


def _unit(vertices):
    size = np.abs(vertices).max(axis=1, keepdims=True)
    return vertices / np.where(size > 0, size, 1.0)


def _snapped(functionals, vertices):
    values = vertices @ functionals.T
    return np.where(np.abs(values) <= ZERO * (np.abs(vertices) @ np.abs(functionals).T), 0.0, values)


def _cut(W, vertices, joined, parent):
    """A vertex at every crossing of a border: (vertices, their preactivations, joined, the piece each comes from)."""
    values = _snapped(W, vertices)
    sign = np.sign(values)
    segment, relu = np.nonzero((sign[:-1] * sign[1:] < 0) & joined[:-1, None])
    pieces = np.zeros(len(joined), np.int64)
    pieces[joined] = parent
    if not len(segment):
        return vertices, values, joined, parent
    left, right = np.abs(values[segment, relu]), np.abs(values[segment + 1, relu])
    s = left / (left + right)
    order = np.lexsort((s, segment))
    segment, relu, s, left, right = segment[order], relu[order], s[order], left[order], right[order]
    # ReLUs with one border meet it in one vertex.
    first = np.ones(len(s), bool)
    first[1:] = (segment[1:] != segment[:-1]) | (s[1:] - s[:-1] > ZERO)
    group = np.cumsum(first) - 1
    at = segment[first]
    a, b = (right / (left + right))[first, None], s[first, None]
    new = a * vertices[at] + b * vertices[at + 1]
    size = np.abs(new).max(axis=1, keepdims=True)
    # Preactivations are linear: interpolated, so that their signs do not depend on rounding at the new vertex.
    new_values = (a * values[at] + b * values[at + 1]) / size
    new_values[group, relu] = 0.0
    place = at + 1
    vertices = np.insert(vertices, place, new / size, axis=0)
    values = np.insert(values, place, new_values, axis=0)
    pieces = np.insert(pieces, place, pieces[at])
    joined = np.insert(joined, place, True)
    return vertices, values, joined, pieces[joined]


def _patterns(values, start, itinerary):
    """The pattern of each piece, and in the closed regions of which cycle points it lies, `(pieces, k)`."""
    pattern = np.empty((len(start), values.shape[1]), bool)
    here = np.empty((len(start), len(itinerary)), bool)
    chunk = max(1, _CHUNK // max(1, values.shape[1]))
    for begin in range(0, len(start), chunk):
        part = slice(begin, begin + chunk)
        a, b = values[start[part]], values[start[part] + 1]
        on = (a == 0) & (b == 0)
        pattern[part] = a + b > 0
        for i, own in enumerate(itinerary):
            here[part, i] = np.all((pattern[part] == own) | on, axis=1)
    return pattern, here


def _meet(functionals, vertices, start, fresh):
    """Where pieces meet the hyperplanes of cycle points: (piece, cycle point, sign, at an end of it, position)."""
    piece, target = np.nonzero(fresh)
    rows = functionals[target]
    a, b = vertices[start[piece]], vertices[start[piece] + 1]
    fa, fb = _paired(rows, a), _paired(rows, b)
    total = np.abs(fa) + np.abs(fb)
    meets = (fa * fb <= 0) & (total > 0)
    piece, target, fa, fb, total = (x[meets] for x in (piece, target, fa, fb, total))
    z = (np.abs(fb) / total)[:, None] * a[meets] + (np.abs(fa) / total)[:, None] * b[meets]
    # Not at infinity.
    near = z[:, -1] > 0
    piece, target, fa, fb, z = (x[near] for x in (piece, target, fa, fb, z))
    return piece, target, np.sign(fb - fa).astype(np.int64), fa * fb == 0, z[:, :-1] / z[:, -1:]


def _paired(rows, vertices):
    values = np.sum(rows * vertices, axis=1)
    return np.where(np.abs(values) <= ZERO * np.sum(np.abs(rows) * np.abs(vertices), axis=1), 0.0, values)


def _solve(f, planes, origins, directions, lengths, levels, found, done) -> Crossings:
    """Which of the places found belong to W^s_loc, with their parameters, from their itineraries; each once."""
    if done < 0:
        found = [(np.zeros(0, np.int64),) * 5 + (np.zeros((0, f.size)),)]
    n, index, target, sign, corner, z = (np.concatenate(x) for x in zip(*found))
    member = planes.membership(z, target)
    undecided = int(np.sum(~member.decided))
    corner = corner | member.on_rim
    n, index, target, sign, corner = (x[member.inside] for x in (n, index, target, sign, corner))
    code = np.zeros((len(n), max(done, 0), (f.h2.shape[0] + 7) // 8), np.uint8)
    for j in range(done, 0, -1):
        moved = n >= j
        index[moved] = levels[j].parent[index[moved]]
        code[moved, j - 1] = levels[j - 1].code[index[moved]]
    ray = levels[0].parent[index] if levels else index
    t = _parameters(f, planes, origins[ray], directions[ray], code, n, target)
    order = np.lexsort((n, t, ray))
    ray, t, n, sign, target, corner, code = (x[order] for x in (ray, t, n, sign, target, corner, code))
    size = np.linalg.norm(directions, axis=1)[ray]
    rounding = _SAME * (1 + np.linalg.norm(origins, axis=1)[ray] + np.abs(t) * size) / size
    ok = (t > rounding) & (t <= lengths[ray] + rounding)
    ray, t, n, sign, target, corner, code, rounding = (x[ok] for x in (ray, t, n, sign, target, corner, code, rounding))
    keep, sign = _merge(ray, t, n, sign, corner, rounding)
    return Crossings(ray[keep], t[keep], n[keep], sign[keep], target[keep], code[keep], done, undecided)


def _merge(ray, t, n, sign, corner, rounding):
    """Hits at a corner of the ray's image or on a rim are seen from both sides: one hit, with the least n."""
    keep, sign = np.ones(len(t), bool), sign.copy()
    for i in np.flatnonzero(corner):
        if not keep[i]:
            continue
        low, high = i, i + 1
        while low > 0 and ray[low - 1] == ray[i] and t[i] - t[low - 1] <= rounding[i]:
            low -= 1
        while high < len(t) and ray[high] == ray[i] and t[high] - t[i] <= rounding[i]:
            high += 1
        group = np.arange(low, high)[keep[low:high]]
        least = group[np.argmin(n[group])]
        # From both sides of a corner at which the ray turns back the signs differ: it touches and does not cross.
        sign[least] = np.sign(sign[group[n[group] == n[least]]].sum())
        keep[group] = False
        keep[least] = True
    return keep, sign


def _parameters(f: HostMap, planes: StableSide, origin, direction, code, n, target):
    """The t at which the image after the steps of an itinerary lies on the hyperplane; a linear equation each."""
    normal, level = planes.normal[target], planes.height[target]
    along = follow(f, direction, code, n, homogeneous=True)
    slope = np.sum(normal * along, axis=1)
    t = np.zeros(len(origin))
    # Once from the origin, once more from there, where what is subtracted is small.
    for _ in range(2):
        z = follow(f, origin + t[:, None] * direction, code, n)
        t = t - (np.sum(normal * z, axis=1) - level) / slope
    return t


def follow(f: HostMap, z: np.ndarray, code: np.ndarray, n: np.ndarray, *, homogeneous: bool = False) -> np.ndarray:
    """Points (or directions) after n steps of the affine maps of given regions, packed `(N, steps, bytes)`."""
    z = z.copy()
    h2, h1 = (0.0, 0.0) if homogeneous else (f.h2, f.h1)
    for j in range(int(n.max(initial=0))):
        lanes = np.flatnonzero(n > j)
        gate = np.unpackbits(code[lanes, j], axis=1, count=f.h2.shape[0])
        x = z[lanes]
        z[lanes] = x @ f.A.T + (gate * (x @ f.W2.T + h2)) @ f.W1.T + h1
    return z
