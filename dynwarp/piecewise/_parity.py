"""Do stable manifolds explain a basin boundary? Crossings of segments counted against simulated labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dynwarp._checks import check_finite, check_float64, check_positive, check_positive_integer, check_shape
from dynwarp._results import RESULTS
from dynwarp._typing import Input
from dynwarp.errors import ArgumentError
from dynwarp.piecewise._as_map import as_map
from dynwarp.piecewise._basin import UNDECIDED, label, make_traps, settled_pieces
from dynwarp.piecewise._cycle import Cycle
from dynwarp.piecewise._edge import bisect
from dynwarp.piecewise._host import HostMap
from dynwarp.piecewise._rays import cross
from dynwarp.piecewise._stable_side import StableSide

_MAX_PIECES = 2**20


class BasinParity(eqx.Module):
    """What [`basin_parity`][dynwarp.piecewise.basin_parity] returns, of N pairs of states.

    **Attributes:**

    - `agreement`: the share of decided pairs whose number of crossings is odd where their basins differ, and even where
      they are the same.
    - `agrees`: pair by pair, `(N,)`, False where undecided; `crossings`: how often the segment between the two meets
      the stable manifolds, `(N,)`; `labels`: the basins, `(N, 2)`, numbered as by
      [`basin_of`][dynwarp.piecewise.basin_of].
    - `boundary`: for every decided pair in different basins a point of the boundary, by bisection of the segment,
      `(B, M)`; `distance`: from there along the segment to the nearest crossing, infinite where there is none, `(B,)`.
    - `unexplained`: the share of these points with a distance above the tolerance: of the boundary that is of another
      kind, an invariant circle or the border of divergence, or belongs to a saddle or an iteration not given. NaN where
      there is no such point.
    - `undecided`: pairs whose labels simulation did not decide.
    - `truncated`: whether crossings may be missing, since a limit came before `iterations`.
    """

    agreement: float
    agrees: Bool[Array, " N"]
    crossings: Int[Array, " N"]
    labels: Int[Array, "N 2"]
    boundary: Float[Array, "B M"]
    distance: Float[Array, " B"]
    unexplained: float
    undecided: int = eqx.field(static=True)
    truncated: bool = eqx.field(static=True)


def basin_parity(
    map: Any,
    saddles: Cycle | Sequence[Cycle],
    pairs: Float[Array, "N 2 M"],
    attractors: Any,
    *,
    iterations: int,
    unexplained_above: float = 1e-8,
    max_pieces: int = _MAX_PIECES,
    steps: int = 20_000,
    tolerance: float | None = None,
    escape: float | None = None,
    input: Input | None = None,
) -> BasinParity:
    """Whether the stable manifolds of saddles are the basin boundary, tested on pairs of states (host).

    Where they are, two states lie in different basins exactly if the segment between them crosses the manifolds an odd
    number of times. Crossings come from exact rays, labels and boundary points from simulation: two ways that share
    nothing but the map.

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in float64.
    - `saddles`: cycles with one unstable direction, one or several; their crossings are added up.
    - `pairs`: `(N, 2, M)`.
    - `attractors`, `steps`, `tolerance`, `escape`, `input`: as for [`basin_of`][dynwarp.piecewise.basin_of]; divergence
      is a basin as well.
    - `iterations`: how far back the manifolds are followed; see [`shoot_ray`][dynwarp.piecewise.shoot_ray].
    - `unexplained_above`: the distance, as a share of 1 + the size of the point, up to which a crossing explains a
      point of the boundary.
    - `max_pieces`: of the images of all segments together.

    **Returns:** a [`BasinParity`][dynwarp.piecewise.BasinParity]. Memory O(`max_pieces` M).

    **Raises:** as `shoot_ray` and `basin_of`.

    **Source:** the exact counterpart of the comparison in Eisenmann et al., ICLR (2026), arXiv:2510.03814, figure 3.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig3a_right")
    >>> saddle, sink = (dw.piecewise.cycle_at(f, jnp.array([[right]])) for right in (True, False))
    >>> pairs = jax.random.uniform(jax.random.key(0), (40, 2, 2), float, -4, 4)
    >>> found = dw.piecewise.basin_parity(f, saddle, pairs, sink, iterations=30)
    >>> found.agreement, found.unexplained, bool(found.distance.max() < 1e-11)
    (1.0, 0.0, True)
    """
    caller = "basin_parity"
    form = as_map(map, input, caller=caller)
    check_positive_integer(iterations, "iterations", minimum=0, caller=caller)
    check_positive_integer(max_pieces, "max_pieces", caller=caller)
    check_positive_integer(steps, "steps", caller=caller)
    check_positive(unexplained_above, "unexplained_above", caller=caller)
    pairs = jnp.asarray(pairs)
    check_shape(pairs, "pairs", ("N", 2, form.state_size), caller=caller)
    check_float64(pairs, "pairs", caller=caller)
    check_finite(pairs, "pairs", caller=caller)
    saddles = [saddles] if isinstance(saddles, Cycle) else list(saddles)
    if not saddles or not len(pairs):
        raise ArgumentError(f"{caller} needs at least one saddle and one pair; got {len(saddles)} and {len(pairs)}.")
    f = HostMap.of(form)
    planes = [StableSide.parting(f, saddle, caller=caller) for saddle in saddles]
    traps = make_traps(form, attractors, tolerance, escape, caller=caller)
    a, b = np.asarray(pairs[:, 0]), np.asarray(pairs[:, 1])
    count = len(a)
    labels = label(form, traps, np.concatenate([a, b]), steps).reshape(2, count).T
    ray, t, truncated = _crossings(f, planes, a, b - a, iterations, max_pieces, settled_pieces(traps))
    crossings = np.bincount(ray, minlength=count)
    decided = ~np.any(labels == UNDECIDED, axis=1)
    differ = decided & (labels[:, 0] != labels[:, 1])
    agrees = decided & ((crossings % 2 == 1) == (labels[:, 0] != labels[:, 1]))
    rows = np.flatnonzero(differ)
    if len(rows):
        found = bisect(form, traps, a[rows], b[rows], labels[rows], 1e-16, steps)
        clear = np.asarray(found.result == RESULTS.successful)
        rows = rows[clear]
        points, fraction = np.asarray(found.points)[clear], np.asarray(found.fraction)[clear]
        away = _nearest(ray, t, rows, fraction) * np.linalg.norm(b[rows] - a[rows], axis=1)
    else:
        points, away = np.zeros((0, form.state_size)), np.zeros(0)
    far = away > unexplained_above * (1 + np.abs(points).max(axis=1, initial=0.0))
    return BasinParity(
        agreement=float(agrees[decided].mean()) if decided.any() else float("nan"),
        agrees=jnp.asarray(agrees),
        crossings=jnp.asarray(crossings),
        labels=jnp.asarray(labels),
        boundary=jnp.asarray(points),
        distance=jnp.asarray(away),
        unexplained=float(far.mean()) if len(far) else float("nan"),
        undecided=int(count - decided.sum()),
        truncated=truncated,
    )


def _crossings(f, planes, origins, directions, iterations, max_pieces, settled):
    """The ray and the parameter of every crossing of segments with the manifolds of all saddles."""
    moves = np.linalg.norm(directions, axis=1) > 0
    lanes = np.flatnonzero(moves)
    rays, ts, truncated = [], [], False
    for plane in planes:
        segments = (origins[lanes], directions[lanes], np.ones(len(lanes)))
        found = cross(f, plane, *segments, iterations, max_pieces, settled)
        # A touch is no change of side.
        crosses = found.sign != 0
        rays.append(lanes[found.ray[crosses]])
        ts.append(found.t[crosses])
        truncated |= found.done < iterations or found.undecided > 0
    return np.concatenate(rays), np.concatenate(ts), bool(truncated)


def _nearest(ray, t, rows, fraction):
    """How far from `fraction` on segment `rows` the nearest of its crossings is."""
    order = np.argsort(ray, kind="stable")
    ray, t = ray[order], t[order]
    start, stop = np.searchsorted(ray, rows), np.searchsorted(ray, rows, side="right")
    return np.array([np.abs(t[i:j] - x).min(initial=np.inf) for i, j, x in zip(start, stop, fraction)])
