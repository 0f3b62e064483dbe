"""All fixed points of a map, their kinds, and its determinants, as one pure program: thousands of maps under vmap."""

from __future__ import annotations

import functools
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dynwarp._checks import check_float64, check_positive_integer, check_shape
from dynwarp._linalg import eigenvalues
from dynwarp._typing import Input
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.models import PiecewiseLinearMap
from dynwarp.piecewise._as_map import as_map
from dynwarp.piecewise._cycle import on_borders
from dynwarp.piecewise._lanes import solve_with_signs

_MAX_RELUS = 16
# Up to this size the characteristic polynomial is safe, and far cheaper than eigenvalues.
_MAX_POLYNOMIAL = 6
_MARGIN = 1e-7
# Regions solved at a time stay in the cache.
_BLOCK = 128


class RegionFixedPoints(eqx.Module):
    """What [`fixed_points_by_region`][dynwarp.piecewise.fixed_points_by_region] returns.

    **Attributes:**

    - `points`: the fixed points, `(capacity, M)`; rows that are not `valid` hold 0.
    - `patterns`: the regions they lie in, `(capacity, H)`.
    - `valid`: which rows count, `(capacity,)`.
    - `n_unstable`: multipliers outside the unit circle, `(capacity,)`: a point is stable where it is 0, unstable where
      it is M, else a saddle.
    - `is_hyperbolic`: no multiplier within 1e-7 of the unit circle, and no border at the point, `(capacity,)`.
    - `count`: how many there are; more than `capacity` means that the rest were left out. A point on a border counts
      once for every region that agrees with it.
    - `is_singular`: of each region, whether it has no unique fixed point: none, or a continuum, `(R,)`.
    - `determinant_sign`: of the Jacobian of each region: -1, 0 or 1, `(R,)`.
    - `is_coherent`: whether all determinants have the same sign and none is 0, which an invertible map needs.
    """

    points: Float[Array, "C M"]
    patterns: Bool[Array, "C H"]
    valid: Bool[Array, " C"]
    n_unstable: Int[Array, " C"]
    is_hyperbolic: Bool[Array, " C"]
    count: Int[Array, ""]
    is_singular: Bool[Array, " R"]
    determinant_sign: Float[Array, " R"]
    is_coherent: Bool[Array, ""]


def fixed_points_by_region(
    map: Any, patterns: Bool[Array, "R H"] | None = None, *, capacity: int = 4, input: Input | None = None
) -> RegionFixedPoints:
    """The fixed points of a map in all its regions at once: pure, for use under jit and vmap over many maps.

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in float64.
    - `patterns`: its regions, `(R, H)`, such as those of [`enumerate_regions`][dynwarp.piecewise.enumerate_regions];
      None means all 2^H patterns, right where the rows of W2 are linearly independent (H at most 16).
    - `capacity`: the most fixed points that are returned.
    - `input`: a constant input, `(d,)`.

    **Returns:** a [`RegionFixedPoints`][dynwarp.piecewise.RegionFixedPoints]. Cost O(R M^3), memory O(R M^2). For
    derivatives hand a pattern to [`cycle_at`][dynwarp.piecewise.cycle_at].

    **Raises:** `ArgumentError` for more than 16 ReLUs without `patterns`; `ShapeError`, `ModelError`, `PrecisionError`.

    **Source:** stability by the recursion of Schur and Cohn: Marden, Geometry of Polynomials (1966), chapter 10.

    **Example:**

    >>> import dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig3a_right")
    >>> found = dw.piecewise.fixed_points_by_region(f, capacity=2)
    >>> int(found.count), found.n_unstable.tolist(), bool(found.is_coherent)
    (2, [0, 1], True)
    """
    caller = "fixed_points_by_region"
    form = as_map(map, input, caller=caller)
    check_positive_integer(capacity, "capacity", caller=caller)
    hidden = form.h2.shape[0]
    if patterns is None:
        if hidden > _MAX_RELUS:
            raise ArgumentError(f"{caller}: {hidden} ReLUs have too many patterns; give `patterns`, (R, {hidden}).")
        patterns = jnp.asarray((np.arange(2**hidden)[:, None] >> np.arange(hidden)) & 1 == 1)
    check_shape(patterns, "patterns", ("R", hidden), caller=caller)
    return _fixed_points(form, jnp.asarray(patterns, bool), min(capacity, patterns.shape[0]))


class FixedPointsOfMaps(eqx.Module):
    """What [`fixed_points_of_maps`][dynwarp.piecewise.fixed_points_of_maps] returns.

    **Attributes:** `points`, `patterns`, `valid`, `n_unstable`, `is_hyperbolic`, as in
    [`RegionFixedPoints`][dynwarp.piecewise.RegionFixedPoints], of all maps together, in the order of the regions; and

    - `owner`: the map of each point, `(capacity,)`.
    - `count`: the number of fixed points of each map, `(N,)`; more than `capacity` in all: the rest were left out.
    - `is_singular`, `determinant_sign`: of each region, `(L,)`.
    - `is_coherent`: of each map, whether the determinants of its regions have the same sign and none is 0, `(N,)`.
    """

    points: Float[Array, "C M"]
    patterns: Bool[Array, "C H"]
    owner: Int[Array, " C"]
    valid: Bool[Array, " C"]
    n_unstable: Int[Array, " C"]
    is_hyperbolic: Bool[Array, " C"]
    count: Int[Array, " N"]
    is_singular: Bool[Array, " L"]
    determinant_sign: Float[Array, " L"]
    is_coherent: Bool[Array, " N"]


def fixed_points_of_maps(
    maps: PiecewiseLinearMap, patterns: Bool[Array, "L H"], owner: Int[Array, " L"], *, capacity: int
) -> FixedPointsOfMaps:
    """The fixed points of many maps of different numbers of regions in one program: pure, for use under jit.

    The regions of all maps stand side by side, so that a map costs what its regions do. Maps of different sizes are
    padded to one: further coordinates halve, further ReLUs have W2 = 0, h2 = -1 and stay off.

    **Arguments:**

    - `maps`: N maps in float64 as one `PiecewiseLinearMap` whose arrays have a leading axis N, as `jax.vmap` makes it.
    - `patterns`: the regions of all maps, `(L, H)`.
    - `owner`: the map each of them belongs to, `(L,)`.
    - `capacity`: the most fixed points that are returned, of all maps together.

    **Returns:** [`FixedPointsOfMaps`][dynwarp.piecewise.FixedPointsOfMaps]. Cost O(L M^3); memory O(L M + N M^2), since
    regions are worked through in blocks.

    **Raises:** `ArgumentError`, `ShapeError`, `ModelError`, `PrecisionError`.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> maps = [dw.systems.BorderCollisionMap.preset(name).canonical() for name in ("fig3a_right", "fig5")]
    >>> stacked = jax.tree.map(lambda *x: jnp.stack(x), *maps)
    >>> patterns, owner = jnp.array([[False], [True], [False], [True]]), jnp.array([0, 0, 1, 1])
    >>> found = dw.piecewise.fixed_points_of_maps(stacked, patterns, owner, capacity=4)
    >>> found.count.tolist(), found.owner.tolist(), found.is_coherent.tolist()
    ([2, 1], [0, 0, 1, 0], [True, True])
    """
    caller = "fixed_points_of_maps"
    if not isinstance(maps, PiecewiseLinearMap) or maps.h2.ndim != 2:
        raise ModelError(f"{caller} needs PiecewiseLinearMaps stacked along a leading axis; got {type(maps).__name__}.")
    check_float64(maps, "maps", caller=caller)
    check_positive_integer(capacity, "capacity", caller=caller)
    patterns, owner = jnp.asarray(patterns, bool), jnp.asarray(owner)
    check_shape(patterns, "patterns", ("L", maps.h2.shape[1]), caller=caller)
    check_shape(owner, "owner", (patterns.shape[0],), caller=caller)
    if not patterns.shape[0]:
        raise ArgumentError(f"{caller}: `patterns` must have at least one row.")
    return _of_maps(maps, patterns, owner, min(capacity, patterns.shape[0]))


@eqx.filter_jit
def _of_maps(maps: PiecewiseLinearMap, patterns, owner, capacity: int) -> FixedPointsOfMaps:
    fields = maps.A, maps.W1, maps.W2, maps.h1, maps.h2
    number = len(maps.h1)
    # One row a map, so that its numbers are fetched together.
    rows = jnp.concatenate([x.reshape(number, -1) for x in fields], axis=1)
    ends = np.cumsum([x[0].size for x in fields])[:-1].tolist()

    def fetch(which):
        parts = jnp.split(rows[which].T, ends)
        return [part.reshape(*x.shape[1:], -1) for part, x in zip(parts, fields, strict=True)]

    total = len(patterns)

    def solve(block):
        which, gates = block
        return _solve(fetch(which), gates.T)[:-1]

    points, singular, signs, admissible, border = jax.lax.map(solve, _blocks((owner, patterns)))
    points = jnp.moveaxis(points, 1, 2).reshape(-1, points.shape[1])[:total]
    singular, signs, admissible, border = (x.reshape(-1)[:total] for x in (singular, signs, admissible, border))
    chosen = jnp.nonzero(admissible, size=capacity, fill_value=0)[0]
    valid = jnp.arange(capacity) < jnp.sum(admissible)
    whose = owner[chosen]
    n_unstable, hyperbolic = jax.lax.map(
        lambda lane: _stability(_jacobians(fetch(lane[0])[:3], lane[1].T)),
        _blocks((whose, patterns[chosen])),
    )
    n_unstable, hyperbolic = (x.reshape(-1)[:capacity] for x in (n_unstable, hyperbolic))

    def per_map(condition):
        return jnp.zeros(number, int).at[owner].add(condition.astype(int))

    agree = (per_map(signs > 0) == 0) | (per_map(signs < 0) == 0)
    return FixedPointsOfMaps(
        jnp.where(valid[:, None], points[chosen], 0.0),
        patterns[chosen] & valid[:, None],
        jnp.where(valid, whose, 0),
        valid,
        jnp.where(valid, n_unstable, 0),
        valid & hyperbolic & ~border[chosen],
        per_map(admissible),
        singular,
        signs,
        agree & (per_map(signs == 0) == 0),
    )


def _blocks(arrays):
    """Arrays cut into blocks of lanes, the last one filled with zeros."""
    total = len(arrays[0])
    block = min(_BLOCK, total)
    padded = (jnp.pad(x, ((0, -total % block),) + ((0, 0),) * (x.ndim - 1)) for x in arrays)
    return tuple(x.reshape(-1, block, *x.shape[1:]) for x in padded)


def _jacobians(lanes, gates: Bool[Array, "H L"]) -> Float[Array, "M M L"]:
    """A + W1 D W2; regions stay in the last axis, where the processor's vectors are."""
    A, W1, W2 = lanes
    jacobians = jnp.broadcast_to(A, (*A.shape[:2], gates.shape[1]))
    for h in range(len(gates)):
        jacobians = jacobians + W1[:, None, h] * W2[h] * gates[h].astype(A.dtype)
    # Made once: fused into its several uses it would be made again in each.
    return jax.lax.optimization_barrier(jacobians)


def _solve(lanes, gates: Bool[Array, "H L"]):
    """The fixed points of the maps of L regions, whether they are none, the signs of the determinants, which points lie
    in their region, which on a border; and the Jacobians. `lanes` are the maps, each last axis L or 1."""
    A, W1, W2, h1, h2 = lanes
    jacobians = _jacobians((A, W1, W2), gates)
    offsets = jnp.sum(W1 * (h2 * gates.astype(A.dtype)), axis=1) + h1
    eye = jnp.eye(len(A), dtype=A.dtype)[..., None]
    system = jnp.concatenate([eye - jacobians, offsets[:, None]], axis=1)
    points, singular, signs = solve_with_signs(system, jacobians)
    values = jnp.sum(W2 * points, axis=1) + h2
    border = on_borders(values, jnp.max(jnp.abs(points), axis=0), W2, h2)
    admissible = jnp.all(((values > 0) == gates) | border, axis=0) & ~singular
    return points, singular, signs, admissible, jnp.any(border, axis=0), jacobians


@eqx.filter_jit
def _fixed_points(form: PiecewiseLinearMap, patterns, capacity: int) -> RegionFixedPoints:
    lanes = [x[..., None] for x in (form.A, form.W1, form.W2, form.h1, form.h2)]
    points, singular, signs, admissible, border, jacobians = _solve(lanes, patterns.T)
    chosen = jnp.nonzero(admissible, size=capacity, fill_value=0)[0]
    count = jnp.sum(admissible)
    valid = jnp.arange(capacity) < count
    n_unstable, hyperbolic = _stability(jacobians[:, :, chosen])
    return RegionFixedPoints(
        jnp.where(valid[:, None], points[:, chosen].T, 0.0),
        patterns[chosen] & valid[:, None],
        valid,
        jnp.where(valid, n_unstable, 0),
        valid & hyperbolic & ~border[chosen],
        count,
        singular,
        signs,
        jnp.all(signs == signs[0]) & (signs[0] != 0),
    )


def _stability(jacobians: Float[Array, "M M C"]) -> tuple[Int[Array, " C"], Bool[Array, " C"]]:
    """The number of eigenvalues outside the unit circle, and whether none lies near it."""
    m = len(jacobians)
    if m > _MAX_POLYNOMIAL:
        moduli = jnp.abs(eigenvalues(jnp.moveaxis(jacobians, -1, 0)))
        return jnp.sum(moduli > 1, axis=1), jnp.all(jnp.abs(moduli - 1) > _MARGIN, axis=1)
    coefficients = _characteristic_polynomial(jacobians)
    inner, outer = (_count_inside(coefficients, radius) for radius in (1 - _MARGIN, 1 + _MARGIN))
    return m - outer, inner == outer


def _characteristic_polynomial(a: Float[Array, "M M C"]) -> list[Float[Array, " C"]]:
    """The coefficients of det(x - a), leading one first (Faddeev and Le Verrier)."""
    eye = jnp.eye(len(a), dtype=a.dtype)[..., None]
    coefficients, power = [jnp.ones(a.shape[-1], a.dtype)], jnp.broadcast_to(eye, a.shape)
    for i in range(1, len(a) + 1):
        terms = (a[:, k, None] * power[None, k] for k in range(len(a)))
        product = jax.lax.optimization_barrier(functools.reduce(operator.add, terms))
        coefficients.append(-jnp.sum(product * eye, axis=(0, 1)) / i)
        power = product + coefficients[-1] * eye
    return coefficients


def _count_inside(coefficients: list[Float[Array, " C"]], radius: float) -> Int[Array, " C"]:
    """The number of zeros of modulus below the radius (the recursion of Schur and Cohn)."""
    poly = [c * radius**-i for i, c in enumerate(coefficients)]
    leads = []
    while len(poly) > 1:
        # On the circle a polynomial and its reverse have equal modulus: the larger end coefficient decides which of
        # them has as many zeros inside as this combination, one of whose zeros is 0 and is divided out.
        lead, constant = poly[0], poly[-1]
        leads.append(jnp.abs(lead) > jnp.abs(constant))
        poly = [lead * c - constant * d for c, d in zip(poly[:-1], poly[:0:-1], strict=True)]
        size = sum(jnp.abs(c) for c in poly)
        poly = [c / jnp.where(size > 0, size, 1.0) for c in poly]
    inside = jnp.zeros(coefficients[0].shape, int)
    for degree, larger in enumerate(reversed(leads), start=1):
        inside = jnp.where(larger, 1 + inside, degree - 1 - inside)
    return inside
