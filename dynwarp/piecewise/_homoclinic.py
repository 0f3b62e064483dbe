"""Homoclinic and heteroclinic points: where an unstable manifold meets a stable one, each by its own linear system."""

from __future__ import annotations

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._checks import check_choice, check_positive_integer
from dynwarp._results import RESULTS
from dynwarp._typing import Input
from dynwarp.errors import ArgumentError
from dynwarp.piecewise._as_map import as_map
from dynwarp.piecewise._confirm_orbits import confirm, distinct, regular
from dynwarp.piecewise._connections import search_lines, search_polyhedra
from dynwarp.piecewise._cycle import Cycle
from dynwarp.piecewise._high_precision import Certificate, certify_orbits
from dynwarp.piecewise._host import Box, HostMap
from dynwarp.piecewise._local import local_manifold
from dynwarp.piecewise._stable_side import TOLERANCE, StableSide
from dynwarp.piecewise._trace import MAX_POLYGONS, MAX_POLYHEDRA, MAX_SEGMENTS, check_cycle

# Manifolds that span less than this are taken to touch.
_TRANSVERSAL = 1e-8


class HomoclinicPoints(eqx.Module):
    """The points that [`homoclinic_points`][dynwarp.piecewise.homoclinic_points] finds, by number of steps.

    **Attributes:** in numpy, one row a point.

    - `points`: `(n, M)`.
    - `iterations`: the least number of images of W^u_loc that hold the point, `(n,)`.
    - `transversality`: the volume that orthonormal tangent frames of both manifolds span, `(n,)`: in the plane the sine
      of their angle; 0 where they have a direction in common.
    - `orbits`: from the first point, in W^u_loc, to the last, in W^s_loc of the target, `(m + 1, M)` each.
    - `itineraries`: the regions of all but the last point of each orbit, `(m, H)`.
    - `origins`, `targets`: the cycle points of whose local manifolds these are, `(n,)`.
    - `on_border`: whether a point of the orbit lies on a border, or at an end of a local manifold, `(n,)`; there
      manifolds have corners, and two that only touch there cross or part under a small change of the map.
    - `regular`: whether the hypotheses of the theorem hold that `chaos` rests on, `(n,)`.
    - `residual`: by how much the orbit misses its images, relative to its size, `(n,)`.
    - `result`: `successful`; `singular` where the manifolds have a direction in common, or W^u has collapsed to a point
      on the way; `inaccurate` where the residual exceeds 1e-9.
    - `certificate`: in high precision, if asked for.
    - `heteroclinic`: whether a second cycle was given.
    - `searched`: the images that were searched whole; `limits`: what ended the search early or was left out:
      `"pieces"`, `"points"`, `"overflow"`, `"box"`, `"unbounded"` (a local manifold of more dimensions, cut by a large
      box), `"constraints"` (a local manifold of more dimensions is an inner bound).
    """

    points: np.ndarray
    iterations: np.ndarray
    transversality: np.ndarray
    orbits: tuple[np.ndarray, ...]
    itineraries: tuple[np.ndarray, ...]
    origins: np.ndarray
    targets: np.ndarray
    on_border: np.ndarray
    regular: np.ndarray
    residual: np.ndarray
    result: RESULTS
    certificate: Certificate | None
    heteroclinic: bool = eqx.field(static=True)
    searched: int = eqx.field(static=True)
    limits: tuple[str, ...] = eqx.field(static=True)

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        kind = "heteroclinic" if self.heteroclinic else "homoclinic"
        return f"HomoclinicPoints({len(self)} {kind} points, searched={self.searched}, limits={self.limits})"

    @property
    def truncated(self) -> bool:
        """Whether there may be points, up to the iterations asked for, that are not here."""
        return bool(self.limits)

    @property
    def chaos(self) -> bool:
        """Whether a transversal homoclinic point was found to which the theorem of Birkhoff and Smale applies.

        False says that none was found, not that there is no chaos.
        """
        return not self.heteroclinic and bool(np.any(self._proper))

    @property
    def verdict(self) -> str:
        """In words, what the points say about chaos."""
        count, proper = len(self), int(np.sum(self._proper))
        searched = f"{self.searched} images of the local unstable manifold"
        if self.heteroclinic:
            return (
                f"{count} heteroclinic points in {searched}, {proper} transversal and regular. A connection from one "
                "cycle to another alone proves no chaos; connections both ways do."
            )
        if not count:
            return f"No homoclinic point in {searched}: nothing is proved."
        if not proper:
            return (
                f"{count} homoclinic points in {searched}, none of them regular: each touches a border, has no "
                "transversal crossing, or meets a region with a singular Jacobian. Nothing is proved."
            )
        how = " (certified in high precision)" if self.certificate is not None else ""
        return (
            f"Chaos: {proper} of {count} homoclinic points in {searched} are transversal{how}, off all borders, and "
            "every Jacobian on the orbit is invertible. The map is then a diffeomorphism near the orbit and the cycle, "
            "and by the theorem of Birkhoff and Smale an iterate of it has a horseshoe there."
        )

    @property
    def _proper(self) -> np.ndarray:
        return self.regular if self.certificate is None else self.regular & self.certificate.certified


def homoclinic_points(
    map: Any,
    cycle: Cycle,
    *,
    iterations: int,
    other: Cycle | None = None,
    stable_iterations: int = 0,
    box: tuple[Any, Any] | None = None,
    max_pieces: int | None = None,
    max_points: int = 2**16,
    certify: Literal["mpmath"] | None = None,
    digits: int = 50,
    input: Input | None = None,
) -> HomoclinicPoints:
    """The points of F^n(W^u_loc) on W^s_loc, n <= `iterations`, each with its least n (host).

    W^u_loc and W^s_loc are the local manifolds of all points of the cycle, or W^s_loc that of `other`: the largest sets
    of p + E that the local affine maps (W^u: their inverses) never carry out of their regions. The cycle itself is no
    homoclinic point. The images of W^u_loc are followed exactly, as polylines in one dimension and as polyhedra in
    more; wherever a piece meets a local stable manifold, the orbit is solved anew as one linear system from the regions
    it passes, so that the points have the precision of the map, and are told apart by these regions.

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in float64.
    - `cycle`: a saddle of any period, with no point on a border.
    - `iterations`: how many images of W^u_loc; 0 for those of the local manifolds alone.
    - `other`: a second saddle: the heteroclinic points from `cycle` to it. The dimension of W^u of the one and of W^s
      of the other must add up to M, else the manifolds meet in no point or in more than points.
    - `stable_iterations`: m > 0 asks for the points on F^-m(W^s_loc), all branches of the inverse.
    - `box`: `(lower, upper)`: parts of W^u outside are not continued.
    - `max_pieces`: the search ends before an image with more; if None, 2^18 segments, 4096 polygons or 512 polyhedra.
    - `max_points`: the search ends after the image that reaches so many points.
    - `certify`: `"mpmath"` solves every orbit again with `digits` digits and follows it with the map itself.
    - `input`: a constant input, `(d,)`, the one the cycles belong to.

    **Returns:** [`HomoclinicPoints`][dynwarp.piecewise.HomoclinicPoints], sorted by `iterations`. Cost: a vertex of W^u
    costs O(M^2 + M H) a step, a point O(n M^2); in two and more dimensions a small program for each piece and border.

    **Raises:** `ArgumentError` for a cycle that is no saddle, nonhyperbolic, on a border, no cycle of this map, or
    dimensions that do not add up; `MissingDependencyError` without mpmath; `ModelError`, `PrecisionError`,
    `NonFiniteError`.

    **Source:** Eisenmann et al., ICLR (2026), arXiv:2510.03814, algorithm 4, for the plane. For the verdict: Smale, in
    Differential and Combinatorial Topology (1965) 63; Katok and Hasselblatt, Introduction to the Modern Theory of
    Dynamical Systems (1995), section 6.5, for embeddings of an open set.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig5")
    >>> saddle = dw.piecewise.cycle_at(f, jnp.array([[False]]))
    >>> found = dw.piecewise.homoclinic_points(f, saddle, iterations=4)
    >>> found.iterations.tolist(), found.points[0].round(6).tolist(), found.chaos
    ([2, 3, 4, 4], [-0.416727, -0.502379], True)
    """
    caller = "homoclinic_points"
    form = as_map(map, input, caller=caller)
    iterations = check_positive_integer(iterations, "iterations", minimum=0, caller=caller)
    later = check_positive_integer(stable_iterations, "stable_iterations", minimum=0, caller=caller)
    max_points = check_positive_integer(max_points, "max_points", caller=caller)
    digits = check_positive_integer(digits, "digits", minimum=20, caller=caller)
    if max_pieces is not None:
        check_positive_integer(max_pieces, "max_pieces", caller=caller)
    if certify is not None:
        check_choice(certify, "certify", ("mpmath",), caller=caller)
    f = HostMap.of(form)
    points = check_cycle(f, cycle, "unstable", caller=caller)
    end = cycle if other is None else other
    check_cycle(f, end, "stable", caller=caller)
    room = Box.of(box, f, points, caller=caller)
    stable = StableSide.of(f, end)
    unstable_dimension = int(np.sum(np.abs(np.asarray(cycle.multipliers)) > 1))
    stable_dimension = stable.bases.shape[2]
    if unstable_dimension + stable_dimension != f.size:
        less = unstable_dimension + stable_dimension < f.size
        raise ArgumentError(
            f"{caller}: the dimensions of the unstable manifold of `cycle`, {unstable_dimension}, and the stable one "
            f"of `other`, {stable_dimension}, must add up to {f.size}; "
            + ("in general these do not meet." if less else "these meet in curves or more, not in points.")
        )
    local = local_manifold(f, cycle, "unstable", room)
    limits: set[str] = set()
    if local.dimension == 1:
        search, cap = search_lines, max_pieces or MAX_SEGMENTS
    else:
        search, cap = search_polyhedra, max_pieces or (MAX_POLYGONS if local.dimension == 2 else MAX_POLYHEDRA)
        limits |= {"unbounded"} if local.unbounded else set()
        limits |= {"constraints"} if local.capped else set()
    parts, count, searched = [], 0, -1
    for hits in search(f, local, stable, room, iterations + later, cap, limits):
        part = confirm(f, local, stable, hits, np.asarray(cycle.itinerary), later)
        parts.append(part)
        count += len(part.points)
        searched += 1
        if count >= max_points and searched < iterations + later:
            limits.add("points")
            break
    if not limits & {"pieces", "points", "overflow"}:
        # Nothing may have been left to follow.
        searched = iterations + later
    found = distinct(parts, local, stable, np.asarray(cycle.itinerary), later, homoclinic=other is None)
    transversal = found.transversality > _TRANSVERSAL
    hyperbolic = bool(regular(f, np.asarray(cycle.itinerary)).all() and regular(f, np.asarray(end.itinerary)).all())
    certificate = None
    if certify is not None:
        certificate, exact = certify_orbits(f, cycle, end, found, later, digits)
        # Where it holds, the points are those of the certificate, rounded.
        found = found._replace(points=np.where(certificate.certified[:, None], exact, found.points))
    return HomoclinicPoints(
        points=found.points,
        iterations=found.iterations,
        transversality=found.transversality,
        orbits=found.orbits,
        itineraries=found.itineraries,
        origins=found.origins,
        targets=found.targets,
        on_border=found.on_border,
        regular=transversal & ~found.on_border & found.invertible & hyperbolic & (found.residual <= TOLERANCE),
        residual=found.residual,
        result=_results(found.residual, transversal),
        certificate=certificate,
        heteroclinic=other is not None,
        searched=max(searched - later, 0),
        limits=tuple(sorted(limits)),
    )


def _results(residual, transversal) -> RESULTS:
    @jax.vmap
    def lanes(accurate, crosses):
        result = RESULTS.where(accurate, RESULTS.successful, RESULTS.inaccurate)
        return RESULTS.where(crosses, result, RESULTS.singular)

    return lanes(jnp.asarray(residual <= TOLERANCE), jnp.asarray(transversal))
