"""The cells of a hyperplane arrangement, one interior point each; on the host, in numpy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Directions and distances this small, relative to unit normals, are zero.
_ZERO = 1e-11


class Arrangement(NamedTuple):
    """The hyperplanes w z + h = 0 that matter: unit normals in an orthonormal basis of their span.

    - `normals`: `(n, r)`, unit; `offsets`: `(n,)`.
    - `basis`: `(M, r)`; a state with basis coordinates y is basis y, up to directions no hyperplane sees.
    """

    normals: np.ndarray
    offsets: np.ndarray
    basis: np.ndarray


def arrangement(W2: np.ndarray, h2: np.ndarray) -> Arrangement:
    """The arrangement of the borders of a ReLU layer: zero rows are left out, and so are copies of a hyperplane."""
    size = np.linalg.norm(W2, axis=1)
    kept = size > 0
    w, h = W2[kept] / size[kept, None], h2[kept] / size[kept]
    if not len(w):
        return Arrangement(np.zeros((0, 0)), np.zeros(0), np.zeros((W2.shape[1], 0)))
    # One orientation each, then copies go.
    first = np.argmax(np.abs(w) > 1e-9, axis=1)
    flip = np.sign(w[np.arange(len(w)), first])
    w, h = w * flip[:, None], h * flip
    distinct: list[int] = []
    for i in range(len(w)):
        same = [
            j for j in distinct if np.max(np.abs(w[i] - w[j])) <= _ZERO and abs(h[i] - h[j]) <= _ZERO * (1 + abs(h[i]))
        ]
        if not same:
            distinct.append(i)
    w, h = w[distinct], h[distinct]
    _, singular, right = np.linalg.svd(w, full_matrices=False)
    basis = right[singular > 1e-10 * singular[0]].T
    normals = w @ basis
    return Arrangement(normals / np.linalg.norm(normals, axis=1, keepdims=True), h, basis)


def count_bound(n: int, r: int) -> int:
    """The largest number of cells of n hyperplanes in r dimensions: C(n, 0) + ... + C(n, r)."""
    total, term = 0, 1
    for i in range(min(n, r) + 1):
        total += term
        term = term * (n - i) // (i + 1)
    return total


def interior_points(normals: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """A point inside every cell of an arrangement, `(R, r)`; exact for parallel, concurrent and repeated hyperplanes.

    Hyperplanes come one at a time. The cells a new one cuts are the cells of the arrangement it induces on itself by
    the earlier ones, one dimension lower; from a point of such a cell one steps a little to both sides. Cells whose
    width is below 1e-11 of their distance are not seen. Cost O(n^r), the order of the number of cells.
    """
    n, r = normals.shape
    if r == 0:
        return np.zeros((1, 0))
    if r == 1:
        return _on_a_line(normals[:, 0], offsets)
    points = np.zeros((1, r))
    for i in range(n):
        earlier, earlier_offsets = normals[:i], offsets[:i]
        foot = -offsets[i] * normals[i]
        plane = _orthogonal_complement(normals[i])
        w, h = earlier @ plane, earlier @ foot + earlier_offsets
        length = np.linalg.norm(w, axis=1)
        meets = length > _ZERO
        if np.any(~meets & (np.abs(h) <= _ZERO * (1 + np.abs(earlier_offsets)))):
            continue  # a copy of an earlier one
        inner = interior_points(w[meets] / length[meets, None], h[meets] / length[meets])
        on = foot + inner @ plane.T
        points = _cut(points, on, normals[i], offsets[i], earlier, earlier_offsets)
    return points


def _cut(points, on, normal, offset, earlier, earlier_offsets):
    """The cells after one more hyperplane: those it misses keep their point, those it cuts become two."""
    values = on @ earlier.T + earlier_offsets
    speed = np.abs(earlier @ normal)
    # Half way to the nearest hyperplane along the normal, and no further than the point is from the origin.
    reach = np.min(np.abs(values) / np.maximum(speed, 1e-300), axis=1, initial=np.inf)
    step = 0.5 * np.minimum(reach, 1 + np.linalg.norm(on, axis=1))
    if len(points) != len(on):
        cut = codes(values > 0)
        before = codes(points @ earlier.T + earlier_offsets > 0)
        uncut = points[~np.isin(before, cut)]
    else:
        uncut = points[:0]
    return np.concatenate([uncut, on + step[:, None] * normal, on - step[:, None] * normal])


def _on_a_line(slopes, offsets):
    at = np.sort(-offsets / slopes)
    if not len(at):
        return np.zeros((1, 1))
    gaps = np.diff(at) > _ZERO * (1 + np.abs(at[1:]))
    middles = 0.5 * (at[:-1] + at[1:])[gaps]
    ends = [at[0] - 1 - abs(at[0]), at[-1] + 1 + abs(at[-1])]
    return np.concatenate([ends[:1], middles, ends[1:]])[:, None]


def _orthogonal_complement(normal):
    """An orthonormal basis of the plane normal to a unit vector, `(r, r - 1)`: columns of a Householder reflection."""
    axis = int(np.argmax(np.abs(normal)))
    v = normal.copy()
    v[axis] += np.copysign(1.0, normal[axis])
    reflection = np.eye(len(normal)) - np.outer(v, v) * (2 / (v @ v))
    return np.delete(reflection, axis, axis=1)


def codes(patterns: np.ndarray) -> np.ndarray:
    """Rows of booleans `(..., H)` as one comparable bytes scalar each, `(...,)`."""
    packed = np.ascontiguousarray(np.packbits(patterns, axis=-1))
    if not packed.shape[-1]:
        return np.zeros(patterns.shape[:-1], "V1")
    return packed.view(f"V{packed.shape[-1]}")[..., 0]
