"""A stable or unstable manifold as exact pieces: polylines in one dimension, polyhedra in more."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_finite, check_positive_integer, check_shape
from dynwarp._results import RESULTS
from dynwarp._typing import PRNGKey
from dynwarp.errors import ArgumentError
from dynwarp.piecewise._cycle import Cycle
from dynwarp.piecewise._halfspaces import interior, normalise, polygon
from dynwarp.piecewise._local import Kind, LocalManifold, Piece
from dynwarp.piecewise._trace_lines import Level, Lines

# Segments a bounding box holds, in the search for the nearest one.
_BLOCK = 32
# Draws of a rejection before it gives up.
_MAX_DRAWS = 200


class History(eqx.Module):
    """What `retrace` replays: the local manifolds, then one [`Level`] a step."""

    directions: np.ndarray
    factors: np.ndarray
    ends: tuple[tuple[int, int, int], ...] = eqx.field(static=True)
    levels: tuple[Level, ...]
    patterns: np.ndarray


class Manifold(eqx.Module):
    """A manifold of a cycle, after a number of images (W^u) or preimages (W^s) of its local manifolds.

    **Attributes:**

    - `kind`: `"stable"` or `"unstable"`; `dimension`: d, that of the local manifold.
    - `cycle`: whose manifold it is.
    - `iterations`: the images or preimages done, fewer than asked for where a limit was reached.
    - `truncated`: whether something was left out or cut; `limits` says by what: `"pieces"`, `"length"`, `"box"` (the
      box given), `"unbounded"` (a large box that cuts what is unbounded), `"regions"` (not all regions are known).
    - `box`: the `(lower, upper)` in force.
    - `result`: `successful`, or `max_steps_reached` where the constraints of a local manifold never ended, so that it,
      and all that grows from it, is an inner bound.

    Everything is on the host, in numpy.
    """

    kind: Kind = eqx.field(static=True)
    dimension: int = eqx.field(static=True)
    iterations: int = eqx.field(static=True)
    limits: tuple[str, ...] = eqx.field(static=True)
    cycle: Cycle
    box: tuple[np.ndarray, np.ndarray]
    box_given: bool = eqx.field(static=True)
    result: RESULTS
    local: LocalManifold
    lines: Lines | None
    line_sizes: tuple[int, ...] = eqx.field(static=True)
    polyhedra: tuple[Piece, ...]
    history: History | None

    def __repr__(self) -> str:
        return (
            f"Manifold(kind={self.kind!r}, dimension={self.dimension}, iterations={self.iterations}, "
            f"{self.number_of_pieces} pieces, limits={self.limits})"
        )

    @property
    def truncated(self) -> bool:
        return bool(self.limits)

    @property
    def number_of_pieces(self) -> int:
        """How many affine pieces there are; `len(manifold.pieces)` without making them."""
        return len(self.polyhedra) if self.lines is None else self.lines.number_of_pieces()

    @property
    def length(self) -> float:
        """Of all polylines together; one dimension only."""
        return self._lines("length").length()

    @property
    def vertices(self) -> list[np.ndarray]:
        """In one dimension the polylines, `(n_i, M)` each; in two the corners of each piece, in order."""
        if self.lines is not None:
            return np.split(self.lines.vertices, np.cumsum(self.line_sizes)[:-1]) if self.line_sizes else []
        if any(piece.basis.shape[1] != 2 for piece in self.polyhedra):
            raise ArgumentError(
                f"`vertices` need one or two dimensions; this has {self.dimension}: use `pieces` or `sample`."
            )
        return [piece.center + polygon(piece.G, piece.g, self._reach) @ piece.basis.T for piece in self.polyhedra]

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The maximal affine pieces, each with one itinerary. Polylines keep no itineraries: theirs are empty.

        An image of a cycle point is a vertex of a polyline, but no end of a piece.
        """
        if self.lines is None:
            return self.polyhedra
        vertices, joined, on_cycle = self.lines
        inner = np.zeros(len(vertices), bool)
        inner[1:-1] = on_cycle[1:-1] & joined[:-1] & joined[1:]
        starts = np.flatnonzero(joined & ~inner[:-1])
        ends = starts + 1 + inner[starts + 1]
        nothing = np.zeros((0, self.cycle.itinerary.shape[1]), bool)
        pieces = []
        for a, b in zip(vertices[starts], vertices[ends]):
            half = 0.5 * np.linalg.norm(b - a)
            basis = (0.5 * (b - a) / max(half, 1e-300))[:, None]
            pieces.append(Piece(0.5 * (a + b), basis, np.array([[-1.0], [1.0]]), np.array([half, half]), nothing, 0))
        return tuple(pieces)

    def sample(self, key: PRNGKey, n: int, *, box=None) -> Float[Array, "n M"]:
        """Random points of the manifold, `(n, M)`, where asked for inside a `box`.

        Uniform by length or area in one and two dimensions. In more, a piece is drawn at random and a point of it by
        hit and run.

        **Raises:** `ArgumentError` where the manifold has no piece, or none is met inside the box.
        """
        check_positive_integer(n, "n", caller="Manifold.sample")
        if not self.number_of_pieces:
            raise ArgumentError("Manifold.sample: the manifold has no piece; a larger `box` may show one.")
        seed = np.asarray(jax.random.bits(key, (4,), "uint32"))
        generator = np.random.default_rng([int(word) for word in seed])
        if box is not None:
            m = self.cycle.points.shape[1]
            box = lower, upper = tuple(np.broadcast_to(np.asarray(side, np.float64), (m,)) for side in box)
        draw = self._drawer(generator, box)
        if box is None:
            return jnp.asarray(draw(n))
        found: list[np.ndarray] = []
        for _ in range(_MAX_DRAWS):
            points = draw(2 * n)
            found.append(points[np.all((points >= lower) & (points <= upper), axis=1)])
            if sum(map(len, found)) >= n:
                return jnp.asarray(np.concatenate(found)[:n])
        raise ArgumentError(f"Manifold.sample: too little of the manifold lies inside `box` {box!r}.")

    def distance(self, points: Float[Array | np.ndarray, "n M"]) -> Float[Array, " n"]:
        """The exact distance of points `(n, M)` or `(M,)` to the manifold (host).

        To segments in closed form, to polyhedra by a least-distance program each. Infinity where there is no piece.

        **Source:** Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23, for polyhedra.
        """
        single = np.ndim(points) == 1
        given = np.atleast_2d(np.asarray(points, np.float64))
        check_shape(given, "points", ("n", self.cycle.points.shape[1]), caller="Manifold.distance")
        check_finite(given, "points", caller="Manifold.distance")
        if not self.number_of_pieces:
            distances = np.full(len(given), np.inf)
        elif self.lines is not None:
            distances = _distance_to_lines(given, self.lines)
        else:
            distances = np.array([min(distance_to_piece(x, piece) for piece in self.polyhedra) for x in given])
        return jnp.asarray(distances[0] if single else distances)

    @property
    def _reach(self) -> float:
        return 4 * float(np.linalg.norm(np.maximum(np.abs(self.box[0]), np.abs(self.box[1]))))

    def _lines(self, what: str) -> Lines:
        if self.lines is None:
            raise ArgumentError(f"`{what}` belongs to a manifold of one dimension, not of {self.dimension}.")
        return self.lines

    def _drawer(self, generator, box):
        if self.lines is not None:
            starts = np.flatnonzero(self.lines.joined)
            a, b = self.lines.vertices[starts], self.lines.vertices[starts + 1]
            if box is not None:
                a, b = _clip_to_box(a, b, *box)
            weights = np.linalg.norm(b - a, axis=1)
            if not weights.sum() > 0:
                raise ArgumentError(f"Manifold.sample: no part of the manifold lies inside `box` {box!r}.")

            return lambda n: _on_segments(generator, a, b, weights / weights.sum(), n)
        pieces = self.polyhedra if box is None else _within_box(self.polyhedra, box[0], box[1], self._reach)
        if not pieces:
            raise ArgumentError(f"Manifold.sample: no part of the manifold lies inside `box` {box!r}.")
        if all(piece.basis.shape[1] == 2 for piece in pieces):
            return _on_polygons(generator, pieces, self._reach)
        return lambda n: _hit_and_run(generator, pieces, n, self._reach)


def _on_segments(generator, a, b, weights, n):
    which = generator.choice(len(a), size=n, p=weights)
    return a[which] + generator.uniform(size=(n, 1)) * (b[which] - a[which])


def _on_polygons(generator, pieces, reach):
    corners = [polygon(piece.G, piece.g, reach) for piece in pieces]
    # Triangles from the first corner of each piece.
    triangles = [(i, c[0], c[j], c[j + 1]) for i, c in enumerate(corners) for j in range(1, len(c) - 1)]
    index = np.array([triangle[0] for triangle in triangles])
    first, second, third = (np.array([triangle[j] for triangle in triangles]) for j in (1, 2, 3))
    u, v = second - first, third - first
    stretch = np.array([np.sqrt(max(np.linalg.det(p.basis.T @ p.basis), 0.0)) for p in pieces])
    weights = np.abs(u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]) * stretch[index]
    centres, bases = np.stack([piece.center for piece in pieces]), np.stack([piece.basis for piece in pieces])

    def draw(n):
        which = generator.choice(len(triangles), size=n, p=weights / weights.sum())
        x, y = generator.uniform(size=(2, n, 1))
        x, y = np.where(x + y > 1, 1 - x, x), np.where(x + y > 1, 1 - y, y)
        s = first[which] + x * u[which] + y * v[which]
        return centres[index[which]] + np.einsum("nij,nj->ni", bases[index[which]], s)

    return draw


def _within_box(pieces, lower, upper, reach):
    """The parts of polyhedral pieces inside a box; those without interior there are left out."""
    inside = []
    for piece in pieces:
        G = np.concatenate([piece.G, piece.basis, -piece.basis])
        g = np.concatenate([piece.g, upper - piece.center, piece.center - lower])
        rows = normalise(G, g)
        if rows is not None and interior(*rows, reach) is not None:
            inside.append(Piece(piece.center, piece.basis, *rows, piece.itinerary, piece.origin))
    return tuple(inside)


def _clip_to_box(a, b, lower, upper):
    """The parts of segments inside a box; those outside become a point."""
    direction = b - a
    with np.errstate(divide="ignore", invalid="ignore"):
        first, second = (lower - a) / direction, (upper - a) / direction
    parallel = direction == 0
    miss = np.any(parallel & ((a < lower) | (a > upper)), axis=1)
    t0 = np.where(parallel, 0.0, np.minimum(first, second)).max(axis=1).clip(0, 1)
    t1 = np.where(parallel, 1.0, np.maximum(first, second)).min(axis=1).clip(0, 1)
    t1 = np.where(miss, t0, np.maximum(t0, t1))
    return a + t0[:, None] * direction, a + t1[:, None] * direction


def _hit_and_run(generator, pieces, n: int, reach: float, steps: int = 60):
    which = generator.integers(len(pieces), size=n)
    out = np.empty((n, len(pieces[0].center)))
    for i in np.unique(which):
        piece, lanes = pieces[i], np.flatnonzero(which == i)
        inside = interior(piece.G, piece.g, reach)
        s = np.tile(np.zeros(piece.G.shape[1]) if inside is None else inside[0], (len(lanes), 1))
        for _ in range(steps):
            direction = generator.normal(size=s.shape)
            direction /= np.linalg.norm(direction, axis=1, keepdims=True)
            speed, slack = direction @ piece.G.T, np.maximum(piece.g - s @ piece.G.T, 0)
            with np.errstate(divide="ignore", invalid="ignore"):
                at = slack / speed
            high = np.where(speed > 0, at, reach).min(axis=1, initial=reach)
            low = np.where(speed < 0, at, -reach).max(axis=1, initial=-reach)
            s = s + generator.uniform(low, high)[:, None] * direction
        out[lanes] = piece.center + s @ piece.basis.T
    return out


def _distance_to_lines(points, lines: Lines):
    from scipy.spatial import cKDTree

    starts = np.flatnonzero(lines.joined)
    a, b = lines.vertices[starts], lines.vertices[starts + 1]
    if not len(starts):
        return cKDTree(lines.vertices).query(points)[0]
    # Neighbours in the list are neighbours in space: boxes around runs of segments leave most of them unseen.
    cuts = np.arange(0, len(a), _BLOCK)
    lower = np.minimum.reduceat(np.minimum(a, b), cuts)
    upper = np.maximum.reduceat(np.maximum(a, b), cuts)
    at_most = cKDTree(lines.vertices).query(points)[0]
    out = np.empty(len(points))
    for i, x in enumerate(points):
        gap = np.maximum(np.maximum(lower - x, x - upper), 0)
        blocks = np.flatnonzero(np.einsum("ij,ij->i", gap, gap) <= at_most[i] ** 2 * (1 + 1e-12))
        if not len(blocks):
            out[i] = at_most[i]
            continue
        which = (blocks[:, None] * _BLOCK + np.arange(_BLOCK)).ravel()
        which = which[which < len(a)]
        out[i] = np.sqrt(_squared_to_segments(x, a[which], b[which]).min())
    return out


def _squared_to_segments(x, a, b):
    direction = b - a
    length2 = np.einsum("ij,ij->i", direction, direction)
    t = np.einsum("ij,ij->i", x - a, direction) / np.where(length2 > 0, length2, 1.0)
    off = x - a - np.clip(t, 0, 1)[:, None] * direction
    return np.einsum("ij,ij->i", off, off)


def distance_to_piece(x: np.ndarray, piece: Piece) -> float:
    """The distance of a point to {center + basis s : G s <= g}."""
    from scipy.optimize import nnls

    u, scale, vt = np.linalg.svd(piece.basis, full_matrices=False)
    # A collapsed direction moves nothing; it keeps a trace of length, too small to be seen in the distance.
    scale = np.maximum(scale, 1e-9 * max(scale.max(initial=0.0), 1e-300))
    offset = x - piece.center
    inner = u.T @ offset
    off = offset - u @ inner
    away2 = float(off @ off)
    # y = scale vt s - inner: the least |y| with rows y <= levels.
    rows = piece.G @ vt.T / scale
    levels = piece.g - rows @ inner
    norms = np.linalg.norm(rows, axis=1)
    rows, levels = rows / np.maximum(norms, 1e-300)[:, None], levels / np.maximum(norms, 1e-300)
    if (levels >= 0).all():
        return float(np.sqrt(away2))
    unit = max(float(np.max(np.abs(levels[levels < 0]))), 1e-300)
    stacked = np.concatenate([-rows.T, -levels[None] / unit])
    target = np.zeros(len(stacked))
    target[-1] = 1.0
    weights, _ = nnls(stacked, target, maxiter=50 * stacked.shape[1] + 100)
    residual = stacked @ weights - target
    y = -residual[:-1] / residual[-1] * unit
    return float(np.sqrt(away2 + y @ y))
