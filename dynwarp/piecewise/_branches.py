"""The inverse branches of a piecewise-linear map, region by region (host, numpy)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dynwarp.piecewise._arrangement import codes
from dynwarp.piecewise._host import HostMap

# Entries of the matrices held at a time.
_ENTRIES = 2**22
# Beyond this condition, one that does not change with the scale of the rows, a Jacobian has no inverse in float64.
_SINGULAR = 1e13
_ROUNDING = 16 * np.finfo(np.float64).eps


class Branches(NamedTuple):
    """The maps z -> J z + b of some regions and their inverses.

    - `patterns`: `(R, H)`; `jacobians`, `inverses`: `(R, M, M)`; `offsets`: `(R, M)`.
    - `signs`: of the determinants, as computed, `(R,)`; `regular`: where the sign is certain and the inverse is one.
    """

    patterns: np.ndarray
    jacobians: np.ndarray
    inverses: np.ndarray
    offsets: np.ndarray
    signs: np.ndarray
    regular: np.ndarray


class Solutions(NamedTuple):
    """Solutions of F(x) = z, `(n, M)`, the regions `(n, H)` they were found in, and the preactivations there with the
    bounds of their rounding errors, `(n, H)` each."""

    points: np.ndarray
    patterns: np.ndarray
    values: np.ndarray
    errors: np.ndarray

    def take(self, rows) -> Solutions:
        return Solutions(*(field[rows] for field in self))


def branches(f: HostMap, patterns: np.ndarray) -> Iterator[Branches]:
    """The branches of regions `(R, H)`, in blocks that fit the memory. Cost O(M^3) a region."""
    size = max(1, _ENTRIES // max(1, f.size, len(f.h2)) ** 2)
    for start in range(0, len(patterns), size):
        yield _block(f, patterns[start : start + size])


def _block(f: HostMap, patterns: np.ndarray) -> Branches:
    jacobians, offsets = f.affine(patterns)
    signs = np.linalg.slogdet(jacobians)[0]
    regular = signs != 0
    inverses = np.linalg.inv(np.where(regular[:, None, None], jacobians, np.eye(f.size)))
    with np.errstate(all="ignore"):
        condition = np.max(np.sum(np.abs(inverses) @ np.abs(jacobians), axis=2), axis=1, initial=0.0)
    return Branches(patterns, jacobians, inverses, offsets, signs, regular & (condition < _SINGULAR))


def solve(f: HostMap, block: Branches, z: np.ndarray) -> Solutions:
    """The solutions of F(x) = z in the regular regions of a block; on a border, once for each region there."""
    rows = np.flatnonzero(block.regular)
    patterns, inverses = block.patterns[rows], block.inverses[rows]
    right = z - block.offsets[rows]
    points = np.einsum("rij,rj->ri", inverses, right)
    # One step of refinement: what is left is the rounding of the last residual.
    points += np.einsum("rij,rj->ri", inverses, right - np.einsum("rij,rj->ri", block.jacobians[rows], points))
    values = points @ f.W2.T + f.h2
    terms = np.abs(points) @ np.abs(f.W2).T + np.abs(f.h2)
    size = np.abs(points) @ np.abs(f.A).T + (patterns * terms) @ np.abs(f.W1).T + np.abs(f.h1) + np.abs(z)
    shift = np.einsum("rij,rj->ri", np.abs(inverses), size)
    errors = _ROUNDING * (shift @ np.abs(f.W2).T + terms)
    found = np.all(((values > 0) == patterns) | (np.abs(values) <= errors), axis=1)
    return Solutions(points, patterns, values, errors).take(found)


def distinct(f: HostMap, found: Solutions) -> tuple[np.ndarray, np.ndarray]:
    """The rows that are different points, and the borders each lies on, `(n, H)`.

    Two solutions are one point where their patterns differ in borders only that neither is told from.
    """
    sees = np.any(f.W2 != 0, axis=1)
    border = (np.abs(found.values) <= found.errors) & sees
    kept: list[int] = []
    _, once = np.unique(codes(found.patterns), return_index=True)
    for i in once[np.argsort(border[once].sum(axis=1), kind="stable")].tolist():
        if border[i].any() and kept:
            margin = 2 * (found.errors[kept] + found.errors[i])
            near = (np.abs(found.values[kept]) <= margin) & (np.abs(found.values[i]) <= margin)
            if np.any(np.all((found.patterns[kept] == found.patterns[i]) | near, axis=1)):
                continue
        kept.append(i)
    kept.sort()
    return np.array(kept, int), border[kept]
