"""Points and segments: distances in any dimension, crossings in the plane."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dynwarp._checks import check_shape
from dynwarp._typing import Scalar


def point_segment_distance(
    point: Float[Array, " M"], start: Float[Array, " M"], end: Float[Array, " M"]
) -> tuple[Scalar, Scalar]:
    """The distance from a point to the segment from `start` to `end`, and where it is attained.

    **Arguments:** three points, `(M,)` each; `start` may equal `end`.

    **Returns:** `(distance, fraction)`: the foot is `start + fraction * (end - start)`, 0 <= fraction <= 1.
    Differentiable both ways (the distance by the envelope theorem; its slope at distance 0 is taken as 0).

    **Example:**

    >>> import jax.numpy as jnp
    >>> from dynwarp._linalg import point_segment_distance
    >>> [float(x) for x in point_segment_distance(jnp.array([1.0, 3.0]), jnp.array([0.0, 0.0]), jnp.array([4.0, 0.0]))]
    [3.0, 0.25]
    """
    check_shape(point, "point", ("M",), caller="point_segment_distance")
    for name, x in (("start", start), ("end", end)):
        check_shape(x, name, jnp.shape(point), caller="point_segment_distance")
    fraction = _foot(point, start, end)
    # The foot is the minimiser: the distance does not change with it to first order, and it is held.
    held = jax.lax.stop_gradient(fraction)
    return _norm(point - start - held * (end - start)), fraction


def point_polyline_distance(
    point: Float[Array, " M"], vertices: Float[Array, "n M"], valid: Bool[Array, " n"] | None = None
) -> Scalar:
    """The distance from a point to a polyline, the least over its segments.

    **Arguments:**

    - `point`: shape `(M,)`.
    - `vertices`: shape `(n, M)`, n at least 1; one vertex alone is a point.
    - `valid`: which vertices exist; a segment needs both of its ends, so that an invalid vertex also cuts the polyline
      in two. A valid vertex alone counts as a point.

    **Returns:** a scalar, infinity where no vertex is valid. Differentiable both ways. Cost O(n M).

    **Example:**

    >>> import jax.numpy as jnp
    >>> from dynwarp._linalg import point_polyline_distance
    >>> float(point_polyline_distance(jnp.array([2.0, 1.0]), jnp.array([[0.0, 0.0], [1.0, 0.0], [1.0, 5.0]])))
    1.0
    """
    check_shape(point, "point", ("M",), caller="point_polyline_distance")
    check_shape(vertices, "vertices", ("n", point.shape[0]), caller="point_polyline_distance")
    exists = jnp.ones(vertices.shape[0], bool) if valid is None else valid
    check_shape(exists, "valid", (vertices.shape[0],), caller="point_polyline_distance")
    # Padding may hold anything, NaN included, and must not reach the arithmetic: its derivative would.
    vertices = jnp.where(exists[:, None], vertices, jax.lax.stop_gradient(point))
    ends = jnp.concatenate([vertices[1:], vertices[-1:]])
    joined = exists & jnp.concatenate([exists[1:], exists[-1:]])
    ends = jnp.where(joined[:, None], ends, vertices)
    distances = jax.vmap(lambda a, b: point_segment_distance(point, a, b)[0])(vertices, ends)
    return jnp.min(jnp.where(exists, distances, jnp.inf))


class SegmentIntersection(eqx.Module):
    """Where two segments of the plane cross.

    **Attributes:**

    - `crosses`: whether they have exactly one point in common, ends included.
    - `point`: that point, `(2,)`; of the two lines where the segments do not cross, NaN where these are parallel.
    - `s`, `t`: where on the first and on the second segment, as fractions.
    - `sine`: of the angle from the first to the second direction: its modulus is the transversality.
    - `certain`: whether the signs that decide `crosses` are beyond rounding errors. Where they are not, an end lies on
      the other segment, or all but.
    """

    crosses: Bool[Array, ""]
    point: Float[Array, " 2"]
    s: Scalar
    t: Scalar
    sine: Scalar
    certain: Bool[Array, ""]


def intersect_segments(
    a0: Float[Array, " 2"], a1: Float[Array, " 2"], b0: Float[Array, " 2"], b1: Float[Array, " 2"]
) -> SegmentIntersection:
    """The crossing of the segments a0 a1 and b0 b1 of the plane.

    They cross where b0 and b1 lie on opposite sides of the line of a, and a0 and a1 on opposite sides of that of b: the
    signs of four orientation determinants, each with its bound on rounding errors.

    **Arguments:** four points, `(2,)` each; batches by `jax.vmap`.

    **Returns:** a [`SegmentIntersection`][]. Collinear and degenerate segments do not cross. The point is
    differentiable both ways.

    **Source:** Shewchuk, Discrete Comput. Geom. 18 (1997) 305, for the bound.

    **Example:**

    >>> import jax.numpy as jnp
    >>> from dynwarp._linalg import intersect_segments
    >>> x = intersect_segments(*jnp.array([[0.0, 0.0], [2.0, 2.0], [0.0, 2.0], [2.0, 0.0]]))
    >>> bool(x.crosses), x.point.tolist(), float(x.sine.round(6))
    (True, [1.0, 1.0], -1.0)
    """
    for name, x in (("a0", a0), ("a1", a1), ("b0", b0), ("b1", b1)):
        check_shape(x, name, (2,), caller="intersect_segments")
    u, v, w = a1 - a0, b1 - b0, b0 - a0
    # Sides of b0 and b1 seen from line a, of a0 and a1 seen from line b.
    b_start, certain_b_start = _orientation(u, b0, a0, a1)
    b_end, certain_b_end = _orientation(u, b1, a0, a1)
    a_start, certain_a_start = _orientation(v, a0, b0, b1)
    a_end, certain_a_end = _orientation(v, a1, b0, b1)
    determinant = u[0] * v[1] - u[1] * v[0]
    parallel = determinant == 0
    safe = jnp.where(parallel, jnp.ones((), a0.dtype), determinant)
    nothing = jnp.asarray(jnp.nan, a0.dtype)
    s = jnp.where(parallel, nothing, (w[0] * v[1] - w[1] * v[0]) / safe)
    t = jnp.where(parallel, nothing, (w[0] * u[1] - w[1] * u[0]) / safe)
    crosses = (jnp.sign(b_start) * jnp.sign(b_end) <= 0) & (jnp.sign(a_start) * jnp.sign(a_end) <= 0) & ~parallel
    return SegmentIntersection(
        crosses=crosses,
        point=a0 + s * u,
        s=s,
        t=t,
        sine=determinant / jnp.maximum(_norm(u) * _norm(v), jnp.finfo(a0.dtype).tiny),
        certain=certain_b_start & certain_b_end & certain_a_start & certain_a_end,
    )


def _orientation(direction, point, start, end):
    """Twice the signed area of (start, end, point), taken from the nearer end, and whether its sign is certain."""
    from_start, from_end = point - start, point - end
    nearer = jnp.sum(from_start**2) <= jnp.sum(from_end**2)
    offset = jnp.where(nearer, from_start, from_end)
    left, right = direction[0] * offset[1], direction[1] * offset[0]
    value = left - right
    eps = jnp.finfo(value.dtype).eps / 2
    return value, jnp.abs(value) > (3 + 16 * eps) * eps * (jnp.abs(left) + jnp.abs(right))


def _foot(point, start, end):
    direction = end - start
    length2 = jnp.sum(direction**2)
    degenerate = length2 == 0
    fraction = jnp.sum((point - start) * direction) / jnp.where(degenerate, jnp.ones((), length2.dtype), length2)
    return jnp.clip(jnp.where(degenerate, jnp.zeros((), length2.dtype), fraction), 0, 1)


def _norm(x):
    """The Euclidean norm, scaled against overflow, with slope 0 at 0."""
    size = jax.lax.stop_gradient(jnp.max(jnp.abs(x)))
    zero = size == 0
    size = jnp.where(zero, jnp.ones((), x.dtype), size)
    squares = jnp.sum((x / size) ** 2)
    return size * jnp.where(zero, squares, jnp.sqrt(jnp.where(zero, jnp.ones((), x.dtype), squares)))
