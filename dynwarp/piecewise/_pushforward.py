"""W^u of two or more dimensions: pieces in the coordinates of the local manifold, split at the borders and mapped."""

from __future__ import annotations

import numpy as np

from dynwarp.piecewise._halfspaces import FLAT, interior, maximum, normalise, polygon, tight
from dynwarp.piecewise._host import Box, HostMap
from dynwarp.piecewise._local import Piece


def push_forward(f: HostMap, pieces, box: Box, iterations: int, max_pieces: int):
    """`iterations` images of the pieces: (pieces, completed iterations, whether a given box left some out).

    A piece keeps its coordinates s; its basis is multiplied by Jacobians and may lose rank where the map does.
    """
    reach = 2 * float(np.linalg.norm(box.upper - box.lower))
    pieces, left_out = list(pieces), False
    for done in range(iterations):
        images = []
        for piece in pieces:
            if box.given and _outside(piece, box, reach):
                left_out = True
                continue
            parts = _split(f, piece, reach, max_pieces - len(images))
            if parts is None:
                return tuple(pieces), done, left_out
            images += [_image(f, part, reach) for part in parts]
        pieces = images
    return tuple(pieces), iterations, left_out


def _extent(piece: Piece, row: np.ndarray, vertices) -> tuple[float, float]:
    if vertices is not None:
        values = vertices @ row
        return float(values.min()), float(values.max())
    return -maximum(piece.G, piece.g, -row), maximum(piece.G, piece.g, row)


def _vertices(piece: Piece, reach: float):
    return polygon(piece.G, piece.g, reach) if piece.G.shape[1] == 2 else None


def _split(f: HostMap, piece: Piece, reach: float, limit: int) -> list[Piece] | None:
    """The parts of a piece in the closed regions; None as soon as they are more than the limit."""
    parts = [piece]
    values, slopes = f.values(piece.center), f.W2 @ piece.basis
    for value, slope in zip(values, slopes):
        norm = np.linalg.norm(slope)
        if norm <= 1e-13 * max(np.abs(piece.basis).max(), 1e-300):
            continue
        row, level = slope / norm, -value / norm
        after = []
        for part in parts:
            low, high = _extent(part, row, _vertices(part, reach))
            if low >= level - FLAT * (1 + abs(level)) or high <= level + FLAT * (1 + abs(level)):
                after.append(part)
                continue
            for sign in (1.0, -1.0):
                G, g = np.concatenate([part.G, sign * row[None]]), np.append(part.g, sign * level)
                needed = tight(G, g, reach)
                if interior(G, g, reach) is not None:
                    after.append(Piece(part.center, part.basis, G[needed], g[needed], part.itinerary, part.origin))
            if len(after) > limit:
                return None
        parts = after
    return parts if len(parts) <= limit else None


def _image(f: HostMap, piece: Piece, reach: float) -> Piece:
    inside = interior(piece.G, piece.g, reach)
    assert inside is not None, "parts have an interior"
    pattern = (piece.center + piece.basis @ inside[0]) @ f.W2.T + f.h2 > 0
    jacobian, offset = f.affine(pattern)
    itinerary = np.concatenate([piece.itinerary, pattern[None]])
    return Piece(jacobian @ piece.center + offset, jacobian @ piece.basis, piece.G, piece.g, itinerary, piece.origin)


def _outside(piece: Piece, box: Box, reach: float) -> bool:
    faces, walls = box.rows()
    rows = normalise(
        np.concatenate([piece.G, faces @ piece.basis]), np.concatenate([piece.g, walls - faces @ piece.center])
    )
    return rows is None or interior(*rows, reach) is None
