"""Batches of convex polygons in the plane, unbounded ones too, cut by lines (host, numpy).

A polygon is the cone over it: its corners are homogeneous vectors (x, y, t), t > 0 at a point, t = 0 in a direction.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# A value this small, relative to the functional and the corner, is zero: slivers thinner than that are left out.
_ZERO = 1e-12


class Polygons(NamedTuple):
    """`corners`, in order round each polygon, `(n, V, 3)`; `counts`, how many of them count, `(n,)`."""

    corners: np.ndarray
    counts: np.ndarray

    def take(self, lanes) -> Polygons:
        return Polygons(self.corners[lanes], self.counts[lanes])

    def values(self, functionals: np.ndarray) -> np.ndarray:
        """Functionals `(n, 3)` at the corners, `(n, V)`, rounded to zero where they cannot be told from it."""
        values = np.einsum("nvi,ni->nv", self.corners, functionals)
        scale = np.einsum("nvi,ni->nv", np.abs(self.corners), np.abs(functionals))
        values[np.abs(values) <= _ZERO * scale] = 0.0
        values[np.arange(self.corners.shape[1]) >= self.counts[:, None]] = 0.0
        return values


def quadrants() -> Polygons:
    """The plane as four polygons without straight lines in them."""
    x, y = np.array([1.0, 0, 0]), np.array([0, 1.0, 0])
    corners = [np.stack([np.array([0, 0, 1.0]), a * x, b * y]) for a in (1, -1) for b in (1, -1)]
    return Polygons(np.stack(corners), np.full(4, 3))


def concatenate(parts: list[Polygons]) -> Polygons:
    """Batches as one batch, padded to the most corners."""
    width = max(part.corners.shape[1] for part in parts)
    padded = [np.pad(part.corners, ((0, 0), (0, width - part.corners.shape[1]), (0, 0))) for part in parts]
    return Polygons(np.concatenate(padded), np.concatenate([part.counts for part in parts]))


def split(polygons: Polygons, functionals: np.ndarray) -> tuple[Polygons, np.ndarray, np.ndarray]:
    """The parts of each polygon where its functional is positive and where it is negative.

    Returns the parts, the polygon each comes from, and its side (True: positive). A polygon on which the functional
    vanishes is on both sides, whole.
    """
    values = polygons.values(functionals)
    up, down = (values > 0).any(axis=1), (values < 0).any(axis=1)
    whole_up, whole_down = np.flatnonzero(~down), np.flatnonzero(~up)
    cut = np.flatnonzero(up & down)
    if not len(cut):
        lanes = np.concatenate([whole_up, whole_down])
        return polygons.take(lanes), lanes, np.arange(len(lanes)) < len(whole_up)
    crossing = polygons.take(cut)
    parts = [
        polygons.take(whole_up),
        _clip(crossing, values[cut]),
        polygons.take(whole_down),
        _clip(crossing, -values[cut]),
    ]
    sources = np.concatenate([whole_up, cut, whole_down, cut])
    return concatenate(parts), sources, np.arange(len(sources)) < len(whole_up) + len(cut)


def _clip(polygons: Polygons, values: np.ndarray) -> Polygons:
    """The parts where the values are not negative (Sutherland and Hodgman)."""
    corners, counts = polygons
    width = corners.shape[1]
    index = np.arange(width)
    following = np.where(index + 1 < counts[:, None], index + 1, 0)
    next_values = np.take_along_axis(values, following, axis=1)
    next_corners = np.take_along_axis(corners, following[..., None], axis=1)
    real = index < counts[:, None]
    crosses = real & (values * next_values < 0)
    weight = np.abs(values) + np.abs(next_values) + ~crosses
    between = (np.abs(next_values)[..., None] * corners + np.abs(values)[..., None] * next_corners) / weight[..., None]
    kept = np.stack([real & (values >= 0), crosses], axis=2).reshape(len(corners), -1)
    candidates = np.stack([corners, between], axis=2).reshape(len(corners), -1, 3)
    counts = kept.sum(axis=1)
    order = np.argsort(~kept, axis=1, kind="stable")[:, : max(int(counts.max(initial=0)), 1)]
    chosen = np.take_along_axis(candidates, order[..., None], axis=1)
    # Corners are directions: only their ratios count.
    size = np.abs(chosen).max(axis=2, keepdims=True)
    return Polygons(chosen / np.where(size > 0, size, 1.0), counts)
