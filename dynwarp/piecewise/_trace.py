"""The verb that traces a manifold: local manifolds, then images or preimages, by the representation that fits."""

from __future__ import annotations

from typing import Any, Literal

import jax
import numpy as np

from dynwarp._checks import check_choice, check_positive, check_positive_integer
from dynwarp._results import RESULTS
from dynwarp._typing import Input
from dynwarp.errors import ArgumentError
from dynwarp.piecewise._as_map import as_map
from dynwarp.piecewise._cycle import Cycle
from dynwarp.piecewise._host import Box, HostMap
from dynwarp.piecewise._local import Kind, LocalManifold, local_manifold
from dynwarp.piecewise._manifold import History, Manifold
from dynwarp.piecewise._pullback import Regions, pull_back, touches
from dynwarp.piecewise._pushforward import push_forward
from dynwarp.piecewise._regions import enumerate_regions
from dynwarp.piecewise._trace_lines import Branches, local_lines, pull, push

MAX_SEGMENTS = 2**18
MAX_POLYGONS = 4096
MAX_POLYHEDRA = 512
_MAX_REGIONS = 8192


def trace_manifold(
    map: Any,
    cycle: Cycle,
    *,
    kind: Kind = "stable",
    iterations: int,
    max_length: float | None = None,
    box: tuple[Any, Any] | None = None,
    max_pieces: int | None = None,
    max_regions: int = _MAX_REGIONS,
    method: Literal["auto", "lines", "polyhedra"] = "auto",
    input: Input | None = None,
) -> Manifold:
    """The stable or unstable manifold of a cycle, in exact pieces (host).

    Every piece is polyhedral. It starts from the local manifolds of all points of the cycle: the largest sets of p + E
    that the local affine maps (W^u: their inverses) never carry out of the regions of the cycle.

    - W^u of one dimension: `iterations` images of polylines, a vertex inserted at each border before each step.
    - W^u of more: images of polyhedra in the coordinates of the local manifold, split at the borders.
    - W^s of one dimension: `iterations` preimages of polylines by all branches of the inverse.
    - W^s of more, or `method="polyhedra"`: constraints pulled back through the forward map, so that Jacobians may be
      singular.

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in float64.
    - `cycle`: one of its cycles, hyperbolic and with no point on a border.
    - `kind`: `"stable"` or `"unstable"`.
    - `iterations`: how many steps of the map, 0 for the local manifolds.
    - `max_length`: one dimension: the last iteration whose total length is within it.
    - `box`: `(lower, upper)`. W^s is cut at it, with what leads there only through points outside; of W^u the
      segments or pieces outside it are not continued. Without one, W^s and unbounded local manifolds are cut at a
      large box, 10^3 times the scale of cycle and borders.
    - `max_pieces`: the last iteration with at most so many pieces; if None, 2^18 segments, 4096 polygons or 512
      polyhedra of more dimensions.
    - `max_regions`: W^s looks for preimages in so many regions at most.
    - `method`: `"lines"` and `"polyhedra"` choose the representation; `"auto"` takes lines in one dimension.
    - `input`: a constant input, `(d,)`, the one the cycle belongs to.

    **Returns:** a [`Manifold`][dynwarp.piecewise.Manifold]; a limit that was met stands in `limits` and sets
    `truncated`. Cost: W^u lines 2 10^5 vertices a second; W^s in proportion to pieces times regions, one small linear
    program for each pair that bounds do not exclude in more than two dimensions.

    **Raises:** `ArgumentError` for a cycle that is nonhyperbolic, on a border, no cycle of this map, or without a
    direction of this kind; `ModelError`, `PrecisionError`, `NonFiniteError`.

    **Source:** the exact counterpart of Eisenmann et al., ICLR (2026), arXiv:2510.03814, algorithm 1.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig5")
    >>> saddle = dw.piecewise.cycle_at(f, jnp.array([[False]]))
    >>> manifold = dw.piecewise.trace_manifold(f, saddle, kind="unstable", iterations=10)
    >>> manifold.dimension, [len(line) for line in manifold.vertices], manifold.truncated
    (1, [103], False)
    """
    caller = "trace_manifold"
    form = as_map(map, input, caller=caller)
    check_choice(kind, "kind", ("stable", "unstable"), caller=caller)
    check_choice(method, "method", ("auto", "lines", "polyhedra"), caller=caller)
    iterations = check_positive_integer(iterations, "iterations", minimum=0, caller=caller)
    if max_length is not None:
        check_positive(max_length, "max_length", caller=caller)
    if max_pieces is not None:
        check_positive_integer(max_pieces, "max_pieces", caller=caller)
    f = HostMap.of(form)
    points = check_cycle(f, cycle, kind, caller=caller)
    room = Box.of(box, f, points, caller=caller)
    if not room.contains(points).all():
        raise ArgumentError(f"{caller}: `box` must hold every point of the cycle; got {box!r} for points {points}.")
    local = local_manifold(f, cycle, kind, room)
    as_lines = local.dimension == 1 if method == "auto" else method == "lines"
    if as_lines and local.dimension != 1:
        raise ArgumentError(f"{caller}: method='lines' needs a manifold of dimension 1; this has {local.dimension}.")
    if max_length is not None and not as_lines:
        raise ArgumentError(
            f"{caller}: `max_length` is for lines; this manifold is of polyhedra, dimension {local.dimension}."
        )
    limits: set[str] = set()
    if local.unbounded:
        limits.add("box" if room.given else "unbounded")
    if as_lines:
        trace = _unstable_lines if kind == "unstable" else _stable_lines
        lines, levels, patterns, done = trace(
            f, form, local, room, iterations, max_length, max_pieces or MAX_SEGMENTS, max_regions, limits
        )
        history = History(
            local.bases[:, :, 0],
            local.steps[:, 0, 0],
            tuple((end.border, end.source, end.hops) for pair in local.ends for end in pair),
            tuple(levels),
            patterns,
        )
        sizes, polyhedra = lines.sizes() if len(lines.vertices) else (), ()
    else:
        lines, history, sizes = None, None, ()
        cap = max_pieces or (MAX_POLYGONS if local.dimension <= 2 else MAX_POLYHEDRA)
        if kind == "unstable":
            polyhedra, done, left_out = push_forward(f, local.pieces, room, iterations, cap)
            limits |= {"box"} if left_out else set()
        else:
            regions = Regions(f, _patterns(form, max_regions, limits), room)
            polyhedra, done = pull_back(f, local.pieces, regions, room, iterations, cap)
            if any(touches(piece, room) for piece in polyhedra):
                limits.add("box" if room.given else "unbounded")
        limits |= {"pieces"} if done < iterations else set()
    return Manifold(
        kind=kind,
        dimension=local.dimension,
        iterations=done,
        limits=tuple(sorted(limits)),
        cycle=cycle,
        box=(room.lower, room.upper),
        box_given=room.given,
        result=RESULTS.max_steps_reached if local.capped else RESULTS.successful,
        local=local,
        lines=lines,
        line_sizes=sizes,
        polyhedra=polyhedra,
        history=history,
    )


def check_cycle(f: HostMap, cycle: Any, kind: Kind, *, caller: str) -> np.ndarray:
    """The points of a cycle that has an invariant manifold of this kind; one clear error for each that has not."""
    if not isinstance(cycle, Cycle):
        raise ArgumentError(
            f"{caller}: `cycle` must be a Cycle, of find_cycles or cycle_at; got {type(cycle).__name__}."
        )
    points, itinerary = np.asarray(cycle.points), np.asarray(cycle.itinerary)
    if points.ndim != 2 or points.shape[1] != f.size or itinerary.shape[1] != f.h2.shape[0]:
        raise ArgumentError(
            f"{caller}: `cycle` must be one of this map, of {f.size} dimensions and {f.h2.shape[0]} ReLUs; got points "
            f"{points.shape}, itinerary {itinerary.shape}."
        )
    if np.any(np.asarray(cycle.on_border)):
        raise ArgumentError(
            f"{caller}: a point of `cycle` lies on a border of its region, where the map has no derivative: "
            f"point {int(np.argmax(np.asarray(cycle.on_border)))}."
        )
    if cycle.kind == "nonhyperbolic":
        moduli = np.abs(np.asarray(cycle.multipliers))
        raise ArgumentError(
            f"{caller}: `cycle` must be hyperbolic; it has a multiplier on the unit circle (moduli "
            f"{np.sort(moduli)[::-1]}), and its center manifold is neither stable nor unstable."
        )
    residual = np.abs(f.step(points) - np.roll(points, -1, axis=0)).max()
    if not residual <= 1e-8 * (1 + np.abs(points).max()):
        raise ArgumentError(
            f"{caller}: `cycle` is no cycle of this map: its points miss their images by {residual:.1e}."
        )
    if cycle.kind == ("stable" if kind == "unstable" else "unstable"):
        raise ArgumentError(
            f"{caller}: `cycle` is {cycle.kind}: it has no {kind} direction and so no {kind} manifold but itself."
        )
    return points


def _patterns(form, max_regions: int, limits: set[str]) -> np.ndarray:
    """The patterns of all regions, or of those a sample finds where there are too many."""
    regions = enumerate_regions(form, max_regions=max_regions, key=jax.random.key(0))
    if not regions.complete:
        limits.add("regions")
    return np.asarray(regions.patterns)


def _unstable_lines(f, form, local: LocalManifold, box, iterations, max_length, max_pieces, max_regions, limits):
    lines, levels = local_lines(local), []
    # An end of a local manifold lies on a border: it must not be taken for a crossing.
    at_ends = np.array([b for low, high in local.ends for b in (_border(low), -1, _border(high))])
    for _ in range(iterations):
        image = push(f, lines, box, at_ends, max_pieces)
        if image is None:
            limits.add("pieces")
            break
        after, level, left_out = image
        if _too_much(after, max_length, max_pieces, limits):
            break
        limits |= {"box"} if left_out else set()
        lines, at_ends = after, None
        levels.append(level)
    return lines, levels, np.zeros((0, f.h2.shape[0]), bool), len(levels)


def _border(end) -> int:
    return end.border if end.hops == 0 else -1


def _stable_lines(f, form, local: LocalManifold, box, iterations, max_length, max_pieces, max_regions, limits):
    branches = Branches.of(f, _patterns(form, max_regions, limits))
    if (branches.nullity > 1).any():
        raise ArgumentError(
            "trace_manifold: a region maps two or more dimensions to a point, so that preimages of lines are no lines; "
            "use method='polyhedra'."
        )
    lines, levels = local_lines(local), []
    for _ in range(iterations):
        before, level, cut = pull(f, lines, branches, box)
        if _too_much(before, max_length, max_pieces, limits):
            break
        if cut:
            limits.add("box" if box.given else "unbounded")
        lines = before
        levels.append(level)
    return lines, levels, branches.patterns, len(levels)


def _too_much(lines, max_length, max_pieces, limits) -> bool:
    if lines.joined.sum() > max_pieces:
        limits.add("pieces")
        return True
    if max_length is not None and lines.length() > max_length:
        limits.add("length")
        return True
    return False
