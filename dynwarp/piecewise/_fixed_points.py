"""All fixed points of a map, their kinds, and its determinants, as one pure program: thousands of maps under vmap."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dynwarp._checks import check_positive_integer, check_shape
from dynwarp._linalg import eigenvalues
from dynwarp._typing import Input
from dynwarp.errors import ArgumentError
from dynwarp.models import PiecewiseLinearMap
from dynwarp.piecewise._as_map import as_map
from dynwarp.piecewise._cycle import border_values
from dynwarp.piecewise._lanes import determinant_signs, solve_lanes

_MAX_RELUS = 16
# Up to this size the characteristic polynomial is safe, and far cheaper than eigenvalues.
_MAX_POLYNOMIAL = 6
_MARGIN = 1e-7


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


@eqx.filter_jit
def _fixed_points(form: PiecewiseLinearMap, patterns, capacity: int) -> RegionFixedPoints:
    m, dtype = form.state_size, form.A.dtype
    gates = patterns.T.astype(dtype)
    # Regions stay in the last axis, where the processor's vectors are.
    jacobians = jnp.broadcast_to(form.A[..., None], (m, m, gates.shape[1]))
    for h in range(len(gates)):
        jacobians = jacobians + (form.W1[:, h, None] * form.W2[h])[..., None] * gates[h]
    # Made once: fused into its several uses it would be made again in each.
    jacobians = jax.lax.optimization_barrier(jacobians)
    offsets = (form.W1 * form.h2) @ gates + form.h1[:, None]
    eye = jnp.eye(m, dtype=dtype)[..., None]
    points, singular = solve_lanes(jnp.concatenate([eye - jacobians, offsets[:, None]], axis=1))
    signs = determinant_signs(jacobians)
    values, border = border_values(form, points.T)
    admissible = jnp.all(((values > 0) == patterns) | border, axis=1) & ~singular

    chosen = jnp.nonzero(admissible, size=capacity, fill_value=0)[0]
    count = jnp.sum(admissible)
    valid = jnp.arange(capacity) < count
    n_unstable, hyperbolic = _stability(jacobians[:, :, chosen])
    return RegionFixedPoints(
        jnp.where(valid[:, None], points[:, chosen].T, 0.0),
        patterns[chosen] & valid[:, None],
        valid,
        jnp.where(valid, n_unstable, 0),
        valid & hyperbolic & ~jnp.any(border[chosen], axis=1),
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
        product = jax.lax.optimization_barrier(jnp.sum(a[:, :, None] * power[None], axis=1))
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
