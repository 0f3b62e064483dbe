"""How far an attractor is from its basin boundary, the stable manifold of a saddle; differentiable in the map."""

from __future__ import annotations

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dynwarp._checks import check_choice, check_finite, check_float64, check_positive_integer
from dynwarp._compat import concrete
from dynwarp._linalg import point_polyline_distance
from dynwarp._typing import Input, PRNGKey, Scalar
from dynwarp.errors import ArgumentError, ShapeError
from dynwarp.models import PiecewiseLinearMap
from dynwarp.piecewise._as_map import as_map
from dynwarp.piecewise._cycle import Cycle, cycle_at
from dynwarp.piecewise._cyclic import solve_cyclic
from dynwarp.piecewise._foot import Foot, descend, foot_on_piece
from dynwarp.piecewise._host import HostMap
from dynwarp.piecewise._manifold import Manifold
from dynwarp.piecewise._rays import cross
from dynwarp.piecewise._retrace import retrace
from dynwarp.piecewise._stable_side import StableSide
from dynwarp.piecewise._trace import trace_manifold

Method = Literal["auto", "manifold", "rays"]

_MAX_PIECES = 2**18
# Pieces first met by rays from which the search descends.
_STARTS = 16
# Itineraries are padded to multiples of this many steps, so that few programs are compiled.
_PAD = 16
_NEWTON = 4


class BoundaryFoot(eqx.Module):
    """The nearest point of a basin boundary to an attractor, with what makes it: the piece and its borders.

    **Attributes:**

    - `point`: on W^s of the saddle, `(M,)`; `distance`: from there to the attractor.
    - `index`: of the attractor's points, the nearest.
    - `itinerary`: the regions of the foot's orbit, `(N, H)`: at the end it is on the local stable manifold of cycle
      point `target`; `iterations`: the least number of steps after which it is.
    - `active`: the borders on which the foot is held at a corner of W^s, rows (step, ReLU), `(r, 2)`.
    - `normals`: of the local manifolds, `(k, M)`.
    - `guarantee`: `"exact"`: no point of the pieces that were traced is nearer; `"local"`: none on its piece and those
      next to it, so that the distance is an upper bound.
    - `truncated`: whether a limit cut what was looked at.
    """

    point: Float[Array, " M"]
    distance: Scalar
    index: int = eqx.field(static=True)
    itinerary: Bool[np.ndarray, "N H"]
    target: int = eqx.field(static=True)
    iterations: int = eqx.field(static=True)
    active: Int[np.ndarray, "r 2"]
    normals: Float[np.ndarray, "k M"]
    guarantee: Literal["exact", "local"] = eqx.field(static=True)
    truncated: bool = eqx.field(static=True)


def nearest_boundary(
    map: Any,
    attractor_points: Float[Array, "n M"],
    saddle: Cycle,
    *,
    iterations: int = 30,
    method: Method = "auto",
    manifold: Manifold | None = None,
    box: tuple[Any, Any] | None = None,
    rays: int = 64,
    key: PRNGKey | None = None,
    max_pieces: int = _MAX_PIECES,
    input: Input | None = None,
) -> BoundaryFoot:
    """The point of a saddle's stable manifold that is nearest to an attractor (host).

    - `method="manifold"`: over all pieces of a traced manifold, exactly: to segments in closed form; to polyhedra by a
      quadratic program each, in the order of the distances to their hyperplanes, until these exceed the least.
    - `method="rays"`: nothing is traced. Rays from the attractor, to the saddle and in random directions, meet pieces
      of W^s; from those, and from W^s_loc, the search goes to the foot on the piece and on over the borders that hold
      it, until it comes no nearer. What it finds is a local minimum: an upper bound of the distance.
    - `"auto"`: the manifold in two dimensions, rays in more.

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in float64.
    - `attractor_points`: `(n, M)` or `(M,)`.
    - `saddle`: a cycle with one unstable direction.
    - `iterations`: how far back W^s is followed, for both methods.
    - `manifold`: a stable manifold of this saddle that was traced already; `box`: else that of
      [`trace_manifold`][dynwarp.piecewise.trace_manifold].
    - `rays`: how many in random directions; `key`: for these, a fixed one if None.
    - `max_pieces`: the limit of the manifold, or of the rays' images.
    - `input`: a constant input, `(d,)`.

    **Returns:** a [`BoundaryFoot`][dynwarp.piecewise.BoundaryFoot]. Cost: tracing; or mapping the rays, and a small
    quadratic program for each piece on the way.

    **Raises:** `ArgumentError` for a cycle without exactly one unstable direction, nonhyperbolic, on a border or of
    another map; `ShapeError`, `ModelError`, `PrecisionError`, `NonFiniteError`.

    **Source:** quadratic programs: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig3a_right")
    >>> saddle, sink = (dw.piecewise.cycle_at(f, jnp.array([[right]])) for right in (True, False))
    >>> foot = dw.piecewise.nearest_boundary(f, sink.points, saddle)
    >>> round(float(foot.distance), 4), foot.iterations, foot.guarantee
    (1.4841, 0, 'exact')
    """
    caller = "nearest_boundary"
    form = as_map(map, input, caller=caller)
    points = _points(form, attractor_points, caller=caller)
    check_choice(method, "method", ("auto", "manifold", "rays"), caller=caller)
    check_positive_integer(iterations, "iterations", minimum=0, caller=caller)
    check_positive_integer(rays, "rays", minimum=0, caller=caller)
    check_positive_integer(max_pieces, "max_pieces", caller=caller)
    if any(concrete(x) is None for x in (form.A, form.W1, form.W2, form.h1, form.h2, points)):
        raise ArgumentError(f"{caller} runs on the host: map and points must be concrete, not traced.")
    f, known = HostMap.of(form), np.asarray(points, np.float64)
    planes = StableSide.parting(f, saddle, caller=caller)
    if method == "manifold" or (method == "auto" and (manifold is not None or f.size == 2)):
        if manifold is None:
            manifold = trace_manifold(form, saddle, iterations=iterations, box=box, max_pieces=max_pieces)
        _check_manifold(manifold, f, planes, caller=caller)
        search = _over_lines if manifold.lines is not None else _over_polyhedra
        index, foot = search(f, planes, known, manifold)
        truncated, guarantee = manifold.truncated, "exact"
    else:
        index, foot, truncated = _by_rays(f, planes, known, iterations, rays, key, max_pieces)
        guarantee = "local"
    last = int(foot.active[:, 0].max()) + 1 if len(foot.active) else 0
    steps = max(len(foot.itinerary), last)
    more = planes.itinerary[(foot.target + np.arange(steps - len(foot.itinerary))) % len(planes.points)]
    return BoundaryFoot(
        point=jnp.asarray(foot.point),
        distance=jnp.asarray(foot.distance),
        index=int(index),
        itinerary=np.concatenate([foot.itinerary, more]),
        target=int((foot.target + steps - len(foot.itinerary)) % len(planes.points)),
        iterations=len(foot.itinerary),
        active=foot.active,
        normals=planes.normal,
        guarantee=guarantee,
        truncated=truncated,
    )


def basin_distance(
    map: Any,
    attractor_points: Float[Array, "n M"],
    saddle: Cycle,
    *,
    foot: BoundaryFoot | None = None,
    iterations: int = 30,
    method: Method = "auto",
    manifold: Manifold | None = None,
    box: tuple[Any, Any] | None = None,
    rays: int = 64,
    key: PRNGKey | None = None,
    max_pieces: int = _MAX_PIECES,
    input: Input | None = None,
) -> Scalar:
    """The distance of an attractor to the stable manifold of a saddle, its basin boundary; differentiable in the map.

    The nearest piece is searched for on the host, by [`nearest_boundary`][dynwarp.piecewise.nearest_boundary]; then the
    distance is solved for once more, in JAX, from the itinerary of the foot and the borders that hold it. The foot
    minimises the distance, so that the derivative is the one at a fixed foot (envelope theorem), exact wherever the
    distance has one.

    **Arguments:**

    - `map`, `attractor_points`, `saddle`: as for `nearest_boundary`; the points may depend on the map as well, as those
      of [`cycle_at`][dynwarp.piecewise.cycle_at] do. Of the saddle the itinerary counts: it moves with the map.
    - `foot`: what `nearest_boundary` found, for this map or one near it. With it nothing is searched and the function
      is pure: for `jit`, `vmap` and long fits, where it is renewed now and then.
    - `manifold`: a stable manifold of this saddle. Polylines, of this map or one near it, are retraced, and the
      distance is the least to all of their segments: pure too. Polyhedra, of this map, are searched.
    - `iterations`, `method`, `box`, `rays`, `key`, `max_pieces`: of the search; `input`: a constant input, `(d,)`.

    **Returns:** a scalar, the least over the points. Under `jax.grad` alone the search works, on the values; under
    `jit` and `vmap` give `foot` or `manifold`. Cost with a `foot` of N steps: O(N M^3).

    **Raises:** as `nearest_boundary`; `ArgumentError` for a traced map with neither a `foot` nor a `manifold`.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig3a_right").canonical()
    >>> saddle, sink = (dw.piecewise.cycle_at(f, jnp.array([[right]])) for right in (True, False))
    >>> distance, slope = jax.value_and_grad(dw.piecewise.basin_distance)(f, sink.points, saddle)
    >>> round(float(distance), 4), [round(float(x), 4) for x in slope.h1]
    (1.4841, [-1.6098, 0.7016])
    """
    caller = "basin_distance"
    form = as_map(map, input, caller=caller)
    points = _points(form, attractor_points, caller=caller)
    if not isinstance(saddle, Cycle):
        raise ArgumentError(
            f"{caller}: `saddle` must be a Cycle, of find_cycles or cycle_at; got {type(saddle).__name__}."
        )
    if foot is None:
        if manifold is not None and manifold.lines is not None:
            _check_kind(manifold, caller=caller)
            return _to_lines(points, retrace(form, manifold))
        # The values behind the tracers of grad; those of jit and vmap have none.
        frozen, at, itinerary = jax.lax.stop_gradient((form, points, jnp.asarray(saddle.itinerary)))
        if any(concrete(x) is None for x in jax.tree.leaves((frozen, at, itinerary))):
            raise ArgumentError(
                f"{caller}: the map is traced by jit or vmap, and the search for the boundary runs on the host: give "
                "`foot`, from nearest_boundary, or in two dimensions `manifold`, from trace_manifold."
            )
        foot = nearest_boundary(
            frozen,
            at,
            cycle_at(frozen, itinerary),
            iterations=iterations,
            method=method,
            manifold=manifold,
            box=box,
            rays=rays,
            key=key,
            max_pieces=max_pieces,
        )
    elif foot.point.shape != (form.state_size,) or foot.index >= len(points):
        raise ArgumentError(
            f"{caller}: `foot` is of point {foot.index} of a map of {foot.point.shape[0]} dimensions; got "
            f"{len(points)} points of {form.state_size}."
        )
    steps = len(foot.itinerary)
    padded = np.pad(foot.itinerary, ((0, -steps % _PAD), (0, 0)))
    return _distance(
        form,
        points[foot.index],
        jnp.asarray(saddle.itinerary),
        jnp.asarray(foot.normals),
        jnp.asarray(padded),
        jnp.asarray(steps),
        jnp.asarray(foot.target),
        jnp.asarray(foot.active),
    )


def _points(form: PiecewiseLinearMap, points, *, caller: str):
    points = jnp.asarray(points)
    if points.ndim not in (1, 2) or points.shape[-1] != form.state_size or not points.size:
        raise ShapeError(
            f"{caller}: `attractor_points` must have shape (n, {form.state_size}) or ({form.state_size},), n at least "
            f"1; got {points.shape}."
        )
    check_float64(points, "attractor_points", caller=caller)
    check_finite(points, "attractor_points", caller=caller)
    return jnp.atleast_2d(points)


def _check_kind(manifold: Any, *, caller: str) -> None:
    if not isinstance(manifold, Manifold) or manifold.kind != "stable":
        raise ArgumentError(f"{caller}: `manifold` must be a stable one, from trace_manifold.")
    size = manifold.cycle.points.shape[1]
    if manifold.dimension != size - 1:
        raise ArgumentError(
            f"{caller}: `manifold` must have codimension 1, to part the space; it has {manifold.dimension} of {size} "
            "dimensions."
        )


def _check_manifold(manifold: Any, f: HostMap, planes: StableSide, *, caller: str) -> None:
    _check_kind(manifold, caller=caller)
    points = np.asarray(manifold.cycle.points)
    if points.shape != planes.points.shape or np.abs(points - planes.points).max() > 1e-9 * (1 + np.abs(points).max()):
        raise ArgumentError(f"{caller}: `manifold` must be that of `saddle`, of this map.")


def _over_lines(f, planes, points, manifold: Manifold) -> tuple[int, Foot]:
    """The nearest segment of polylines in the plane, then its itinerary: from the ray that meets it."""
    from dynwarp.piecewise._manifold import _squared_to_segments

    index = int(np.argmin(np.asarray(manifold.distance(points))))
    a = points[index]
    lines = manifold.lines
    assert lines is not None, "chosen by the caller"
    starts = np.flatnonzero(lines.joined)
    p, q = lines.vertices[starts], lines.vertices[starts + 1]
    squared = _squared_to_segments(a, p, q)
    near = int(np.argmin(squared))
    least = float(np.sqrt(squared[near]))
    direction = q[near] - p[near]
    t = np.clip((a - p[near]) @ direction / max(direction @ direction, 1e-300), 0, 1)
    # At a corner the ray is aimed beside it, at the segment's inside.
    aims = np.clip(t + np.array([0.0, 1e-6, -1e-6, 1e-3, -1e-3]), 0, 1)
    rays = p[near] + aims[:, None] * direction - a
    rays = rays[np.linalg.norm(rays, axis=1) > 0]
    origins, lengths = np.tile(a, (len(rays), 1)), np.full(len(rays), 1 + 1e-6)
    found = cross(f, planes, origins, rays, lengths, manifold.iterations, _MAX_PIECES)
    best = _of_hits(f, planes, a, found, np.arange(len(found.t)))
    return index, _from_starts(f, planes, points, [(index, foot) for foot in best], manifold.iterations, least)[1]


def _over_polyhedra(f, planes, points, manifold: Manifold) -> tuple[int, Foot]:
    """The nearest of many polyhedra: their hyperplanes tell which need not be looked at."""
    pieces = manifold.polyhedra
    bases = np.stack([piece.basis for piece in pieces])
    centers = np.stack([piece.center for piece in pieces])
    normals = np.linalg.svd(bases, full_matrices=True)[0][:, :, -1]
    bounds = np.abs(points @ normals.T - np.sum(normals * centers, axis=1))
    best: tuple[int, Foot] | None = None
    for flat in np.argsort(bounds, axis=None):
        index, at = np.unravel_index(flat, bounds.shape)
        if best is not None and bounds[index, at] >= best[1].distance * (1 + 1e-12):
            break
        foot = foot_on_piece(f, planes, points[index], pieces[at].itinerary, pieces[at].origin)
        if foot is not None and (best is None or foot.distance < best[1].distance):
            best = int(index), foot
    return _from_starts(f, planes, points, [] if best is None else [best], manifold.iterations, np.inf)


def _by_rays(f, planes, points, iterations, rays, key, max_pieces) -> tuple[int, Foot, bool]:
    """A local minimum: from the local manifolds, and from what rays meet that is nearer."""
    best = _from_starts(f, planes, points, [], iterations, np.inf)
    seed = np.asarray(jax.random.bits(jax.random.key(0) if key is None else key, (4,), "uint32"))
    generator = np.random.default_rng([int(word) for word in seed])
    aims = generator.normal(size=(rays, f.size))
    sources = generator.integers(len(points), size=rays)
    # To the nearest point of the cycle, too, from a sample of the attractor.
    some = generator.permutation(len(points))[: max(rays, 1)]
    gaps = np.linalg.norm(points[some, None] - planes.points, axis=2).argmin(axis=1)
    aims = np.concatenate([aims, planes.points[gaps] - points[some]])
    sources = np.concatenate([sources, some])
    sizes = np.linalg.norm(aims, axis=1)
    aims, sources = aims[sizes > 0] / sizes[sizes > 0, None], sources[sizes > 0]
    lengths = np.full(len(aims), best[1].distance)
    found = cross(f, planes, points[sources], aims, lengths, iterations, max_pieces)
    order = np.argsort(found.t, kind="stable")[:_STARTS]
    starts = [
        (int(sources[found.ray[i]]), foot)
        for i in order
        for foot in _of_hits(f, planes, points[sources[found.ray[i]]], found, [i])
    ]
    index, foot = _from_starts(f, planes, points, starts, iterations, np.inf, best)
    return index, foot, found.done < iterations or found.undecided > 0


def _of_hits(f, planes, a, found, hits) -> list[Foot]:
    """The feet on the pieces that rays have met."""
    feet, seen = [], set()
    for i in hits:
        n = int(found.iterations[i])
        code = found.codes[i, :n]
        name = (code.tobytes(), n, int(found.target[i]))
        if name in seen:
            continue
        seen.add(name)
        itinerary = np.unpackbits(code, axis=1, count=len(f.h2)).astype(bool)
        foot = foot_on_piece(f, planes, a, itinerary, int(found.target[i]))
        if foot is not None:
            feet.append(foot)
    return feet


def _from_starts(f, planes, points, starts, iterations, least, best=None) -> tuple[int, Foot]:
    """The best local minimum from several feet; from the local manifolds where these are not nearer than `least`."""
    if best is None and not any(foot.distance <= least * (1 + 1e-9) for _, foot in starts):
        none = np.zeros((0, len(f.h2)), bool)
        for target in range(len(planes.points)):
            gaps = np.linalg.norm(points - planes.points[target], axis=1)
            for index in np.argsort(gaps)[:_STARTS]:
                foot = foot_on_piece(f, planes, points[index], none, target)
                if foot is not None:
                    starts = [*starts, (int(index), foot)]
    for index, foot in sorted(starts, key=lambda start: start[1].distance):
        foot = descend(f, planes, points[index], foot, iterations)
        if best is None or foot.distance < best[1].distance:
            best = index, foot
    assert best is not None, "a local manifold holds its cycle point"
    return best


def _to_lines(points, lines) -> Scalar:
    distances = [jax.vmap(point_polyline_distance, (0, None))(points, line) for line in lines]
    return jnp.min(jnp.stack([jnp.min(distance) for distance in distances]))


@eqx.filter_jit
def _distance(form: PiecewiseLinearMap, a, cycle_itinerary, start, itinerary, steps, target, active) -> Scalar:
    """The distance of a point to {z : the orbit is on the hyperplane in the end, and on the active borders before}."""
    normal, level = _hyperplane(form, cycle_itinerary, start, target)
    jacobians, offsets = jax.vmap(form.affine)(itinerary)
    m = form.state_size
    real = jnp.arange(len(itinerary)) < steps
    # Padding is the identity.
    jacobians = jnp.where(real[:, None, None], jacobians, jnp.eye(m, dtype=form.A.dtype))
    offsets = jnp.where(real[:, None], offsets, 0.0)

    def back(carry, step):
        row, level = carry
        jacobian, offset = step
        row, level = row @ jacobian, level - row @ offset
        size = jnp.linalg.norm(row)
        return (row / size, level / size), carry

    first, after = jax.lax.scan(back, (normal, level), (jacobians, offsets), reverse=True)
    off = first[0] @ a - first[1]
    if not active.shape[0]:
        return jnp.abs(off)

    def along(carry, step):
        x, moved = carry
        jacobian, offset, row, level = step
        x, moved = jacobian @ x + offset, jacobian @ moved
        # What has drifted off the hyperplane is put back, as the unstable direction would carry it away.
        return (x - row * (row @ x - level), moved - jnp.outer(row, row @ moved)), carry

    x0 = a - first[0] * off
    tangent = jnp.eye(m, dtype=form.A.dtype) - jnp.outer(first[0], first[0])
    _, (xs, moves) = jax.lax.scan(along, (x0, tangent), (jacobians, offsets, *after))
    step, relu = active[:, 0], active[:, 1]
    rows = jnp.einsum("rm,rmn->rn", form.W2[relu], moves[step])
    gaps = -(jnp.sum(form.W2[relu] * xs[step], axis=1) + form.h2[relu])
    sizes = jnp.linalg.norm(rows, axis=1)
    rows, gaps = rows / sizes[:, None], gaps / sizes
    # As below, this waits for the points of the cycle.
    shift = rows.T @ jnp.linalg.solve(rows @ rows.T + 0 * gaps, gaps)
    return jnp.sqrt(off**2 + jnp.sum(shift**2))


def _hyperplane(form: PiecewiseLinearMap, itinerary, start, target):
    """The hyperplane of the local manifold at cycle point `target`: its unit normal and its level."""
    jacobians, offsets = jax.vmap(form.affine)(itinerary)
    k = len(jacobians)
    # One turn from the target on.
    turn, _ = jax.lax.scan(
        lambda product, i: (jacobians[(target + i) % k] @ product, None),
        jnp.eye(form.state_size, dtype=form.A.dtype),
        jnp.arange(k),
    )
    reference, eye = start[target], jnp.eye(form.state_size, dtype=form.A.dtype)

    def newton(x, turn):
        # row turn = factor row, reference row = 1: the bordered system for both.
        row, factor = x[:-1], x[-1]
        top = jnp.concatenate([turn.T - factor * eye, -row[:, None]], axis=1)
        bordered = jnp.concatenate([top, jnp.append(reference, 0.0)[None]])
        miss = jnp.append(row @ turn - factor * row, reference @ row - 1)
        return x - jnp.linalg.solve(bordered, miss)

    # From the normal of the map that was searched; the last step, at the solution, carries the derivative.
    held = jax.lax.stop_gradient(turn)
    x = jnp.append(reference, reference @ held @ reference)
    x = newton(jax.lax.fori_loop(0, _NEWTON, lambda _, x: newton(x, held), x), turn)
    normal = x[:-1] / jnp.linalg.norm(x[:-1])
    # By a zero the points wait for the normal: calls of LAPACK for a large batch that do not wait for each other can
    # hold both threads of a machine of two cores for good.
    points = solve_cyclic(jacobians, offsets + 0 * normal)
    return normal, normal @ points[target]
