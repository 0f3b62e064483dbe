"""W^s of any codimension: pieces pulled back as constraints through the forward map, so that no inverse is needed."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np

from dynwarp.piecewise._halfspaces import interior, maximum, normalise, tight
from dynwarp.piecewise._host import Box, HostMap, borders
from dynwarp.piecewise._local import Piece

# Singular values below this share of the largest one are zero.
_RANK = 1e-12
# Corners of an arrangement that are looked at.
_MAX_CORNERS = 60_000


class Regions:
    """The regions a preimage may lie in, with what is known of their images inside the box.

    In few dimensions the images of their corners, whose hull the image is; else bounds on the regions themselves.
    """

    def __init__(self, f: HostMap, patterns: np.ndarray, box: Box):
        self.patterns = patterns
        self.jacobians, self.offsets = f.affine(patterns)
        self.corners = _corners(f, patterns, box)
        if self.corners is None:
            sign = np.where(patterns, 1.0, -1.0)
            self.lower, self.upper, self.possible = _bounds(sign[:, :, None] * f.W2, sign * f.h2, box)

    def candidates(self, piece: Piece) -> np.ndarray:
        """The regions whose image no hyperplane of the piece separates from it."""
        normals = _complement(piece.basis)
        rows = np.concatenate([normals.T, -normals.T, piece.G @ piece.basis.T])
        levels = np.concatenate([np.zeros(2 * normals.shape[1]), piece.g])
        if self.corners is not None:
            images, starts, regions = self.corners
            values = (images - piece.center) @ rows.T - levels
            least = np.minimum.reduceat(values, starts, axis=0)
            return regions[np.all(least <= 1e-9 * (1 + np.abs(levels)), axis=1)]
        functionals = np.einsum("qi,rij->rqj", rows, self.jacobians)
        constants = (self.offsets - piece.center) @ rows.T - levels
        least = (
            np.einsum("rqj,rj->rq", np.maximum(functionals, 0), self.lower)
            + np.einsum("rqj,rj->rq", np.minimum(functionals, 0), self.upper)
            + constants
        )
        size = np.einsum("rqj,rj->rq", np.abs(functionals), np.maximum(np.abs(self.lower), np.abs(self.upper)))
        return np.flatnonzero(self.possible & np.all(least <= 1e-12 * (size + np.abs(constants)), axis=1))


def _corners(f: HostMap, patterns: np.ndarray, box: Box):
    """Images of the corners of the regions in the box, region by region: (images, starts, regions); None if many."""
    W, h = borders(f, box)
    if comb(len(h), f.size) > _MAX_CORNERS:
        return None
    chosen = np.array(list(combinations(range(len(h)), f.size)))
    matrices = W[chosen]
    size = np.prod(np.linalg.norm(matrices, axis=2), axis=1)
    good = np.abs(np.linalg.det(matrices)) > 1e-11 * size
    chosen, matrices = chosen[good], matrices[good]
    points = np.linalg.solve(matrices, -h[chosen][:, :, None])[:, :, 0]
    values = points @ W.T + h
    scale = 1e-9 * (np.abs(points) @ np.abs(W).T + np.abs(h))
    np.put_along_axis(values, chosen, 0.0, axis=1)
    values[np.abs(values) <= scale] = 0.0
    inside = np.all(values[:, f.h2.shape[0] :] >= 0, axis=1)
    points, values = points[inside], values[inside, : f.h2.shape[0]]
    above, below = (values > 0).astype(np.float64), (values < 0).astype(np.float64)
    on, off = patterns.astype(np.float64), (~patterns).astype(np.float64)
    pairs = []
    chunk = max(1, int(2e7 // max(1, len(patterns))))
    for begin in range(0, len(points), chunk):
        part = slice(begin, begin + chunk)
        # A corner belongs to every region that no border keeps from it.
        corner, region = np.nonzero(above[part] @ off.T + below[part] @ on.T == 0)
        pairs.append(np.stack([region, corner + begin]))
    region, corner = np.concatenate(pairs, axis=1)
    order = np.argsort(region, kind="stable")
    regions, starts = np.unique(region[order], return_index=True)
    return f.step(points)[corner[order]], starts, regions


def _bounds(W, h, box: Box):
    """Bounds on {W[r] z + h[r] >= 0} inside the box, `(R, M)` twice, row by row; and which may hold a point."""
    count = len(W)
    lower, upper = np.tile(box.lower, (count, 1)), np.tile(box.upper, (count, 1))
    for _ in range(3):
        for q in range(W.shape[1]):
            w, c = W[:, q], h[:, q]
            terms = np.maximum(w * lower, w * upper)
            # w_j z_j >= -c - the most that the others can give.
            need = -c[:, None] - (terms.sum(axis=1, keepdims=True) - terms)
            with np.errstate(divide="ignore", invalid="ignore"):
                at = need / w
            lower = np.where(w > 0, np.maximum(lower, at), lower)
            upper = np.where(w < 0, np.minimum(upper, at), upper)
    # Rounding must not lose a region.
    margin = 1e-9 * (1 + np.maximum(np.abs(lower), np.abs(upper)))
    most = np.einsum("rqj,rj->rq", np.maximum(W, 0), upper) + np.einsum("rqj,rj->rq", np.minimum(W, 0), lower) + h
    possible = np.all(lower <= upper + margin, axis=1) & np.all(most >= -1e-9 * (1 + np.abs(h)), axis=1)
    return lower - margin, upper + margin, possible


def _complement(basis: np.ndarray) -> np.ndarray:
    """An orthonormal basis of what is orthogonal to orthonormal columns, `(M, M - d)`."""
    return np.linalg.svd(basis, full_matrices=True)[0][:, basis.shape[1] :]


def preimage(f: HostMap, regions: Regions, r: int, piece: Piece, box: Box) -> Piece | None:
    """The part of the preimage of a piece in one closed region and the box; None where it has no interior."""
    jacobian, offset = regions.jacobians[r], regions.offsets[r]
    conditions = _complement(piece.basis).T
    K, target = conditions @ jacobian, conditions @ (piece.center - offset)
    # K z = target: a point and a basis of its solutions, whatever the rank.
    if len(K):
        u, s, vt = np.linalg.svd(K)
        rank = int(np.sum(s > _RANK * max(np.abs(jacobian).max(), 1e-300)))
        centre = vt[:rank].T @ ((u[:, :rank].T @ target) / s[:rank])
        if np.any(np.abs(K @ centre - target) > 1e-9 * (1 + np.abs(target))):
            return None
        basis = vt[rank:].T
    else:
        centre, basis = np.zeros(f.size), np.eye(f.size)
    own, levels = f.region(regions.patterns[r])
    faces, walls = box.rows()
    carried = piece.G @ piece.basis.T
    G = np.concatenate([carried @ jacobian, own, faces])
    g = np.concatenate([piece.g - carried @ (offset - piece.center), levels, walls]) - G @ centre
    rows = normalise(G @ basis, g)
    if rows is None:
        return None
    reach = np.abs(centre).max() * 2 + 2 * float(np.linalg.norm(np.maximum(np.abs(box.lower), np.abs(box.upper))))
    inside = interior(*rows, reach)
    if inside is None:
        return None
    # From a point well inside, numbers stay of the size of the piece.
    G, g = rows[0], rows[1] - rows[0] @ inside[0]
    needed = tight(G, g, 2 * reach)
    itinerary = np.concatenate([regions.patterns[r][None], piece.itinerary])
    return Piece(centre + basis @ inside[0], basis, G[needed], g[needed], itinerary, piece.origin)


def pull_back(f: HostMap, pieces, regions: Regions, box: Box, iterations: int, max_pieces: int):
    """`iterations` preimages of the pieces: (pieces, completed iterations)."""
    pieces = list(pieces)
    for done in range(iterations):
        before = []
        for piece in pieces:
            for r in regions.candidates(piece):
                found = preimage(f, regions, int(r), piece, box)
                if found is not None:
                    before.append(found)
                    if len(before) > max_pieces:
                        return tuple(pieces), done
        pieces = before
    return tuple(pieces), iterations


def touches(piece: Piece, box: Box) -> bool:
    """Whether a face of the box cuts the piece."""
    faces, walls = box.rows()
    lengths = np.linalg.norm(faces @ piece.basis, axis=1)
    slack = walls - faces @ piece.center
    for q in np.flatnonzero(lengths > 1e-12):
        normal = faces[q] @ piece.basis / lengths[q]
        bound = slack[q] / lengths[q]
        same = (piece.G @ normal > 1 - 1e-12) & (np.abs(piece.g - bound) <= 1e-9 * (1 + abs(bound)))
        if same.any() and maximum(piece.G[~same], piece.g[~same], normal) > bound + 1e-9 * (1 + abs(bound)):
            return True
    return False
