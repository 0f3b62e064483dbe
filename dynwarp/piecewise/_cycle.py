"""Cycles of a piecewise-linear map: one by its itinerary, differentiable; many with their completeness."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Complex, Float, Int

from dynwarp._checks import check_shape
from dynwarp._compat import concrete
from dynwarp._results import RESULTS
from dynwarp._typing import Input, Scalar
from dynwarp.errors import ArgumentError
from dynwarp.models import PiecewiseLinearMap
from dynwarp.piecewise._as_map import as_map
from dynwarp.piecewise._cyclic import solve_with_multipliers

# A point this near to a border, relative to its size, lies on it.
BORDER_TOLERANCE = 1e-10
# Rounding in an orbit is of the size of its largest point: a smaller one counts as this share of that.
_ORBIT_SHARE = 1e-4
# A modulus this near to 1 is not told from 1.
HYPERBOLICITY_TOLERANCE = 1e-9

CycleKind = Literal["stable", "saddle", "unstable", "nonhyperbolic"]


class Cycle(eqx.Module):
    """A cycle z_0 -> z_1 -> ... -> z_{k-1} -> z_0; a fixed point is a cycle of period 1.

    **Attributes:**

    - `points`: in time order, `(k, M)`.
    - `multipliers`: eigenvalues of the Jacobian of F^k, largest modulus first, complex `(M,)`.
    - `itinerary`: the ReLU patterns of the points, `(k, H)`.
    - `residual`: `max |F(z_i) - z_{i+1}|`, with the map itself.
    - `on_border`: which points lie on a border of a region, where the map has no derivative, `(k,)`.
    - `result`: `successful`; `virtual` where the solution lies in other regions than the itinerary says, so that it is
      no cycle; `nonhyperbolic` where a multiplier lies on the unit circle; `singular` where one is 1 and the linear
      system has no unique solution.
    """

    points: Float[Array, "k M"]
    multipliers: Complex[Array, " M"]
    itinerary: Bool[Array, "k H"]
    residual: Scalar
    on_border: Bool[Array, " k"]
    result: RESULTS

    @property
    def period(self) -> int:
        """k."""
        return self.points.shape[-2]

    @property
    def kind(self) -> CycleKind:
        """By the moduli of the multipliers (host): all below 1, all above 1, both, or one that is 1 to 1e-9.

        Nonhyperbolic as well where a point lies on a border: the map has no derivative there, and the multipliers are
        those of one side.
        """
        moduli = np.abs(np.asarray(self.multipliers))
        marginal = not np.isfinite(moduli).all() or np.any(np.abs(moduli - 1) <= HYPERBOLICITY_TOLERANCE)
        if marginal or np.any(self.on_border):
            return "nonhyperbolic"
        if (moduli < 1).all():
            return "stable"
        return "unstable" if (moduli > 1).all() else "saddle"

    def __repr__(self) -> str:
        points, multipliers = concrete(self.points), concrete(self.multipliers)
        if points is None or multipliers is None or points.ndim != 2:
            return super().__repr__()
        start, factors = (np.array2string(x, precision=6, threshold=12) for x in (points[0], multipliers))
        return f"Cycle(period={self.period}, kind={self.kind!r}, points[0]={start}, multipliers={factors})"


class Cycles(eqx.Module):
    """What [`find_cycles`][dynwarp.piecewise.find_cycles] returns: an iterable of [`Cycle`][dynwarp.piecewise.Cycle].

    **Attributes:**

    - `cycles`: by period.
    - `complete`: by period, whether it is proved that there are no others.
    - `certificate`: by period, in words, how; or what was tried.
    - `coverage`: by period, the estimated share of all cycles that was found: 1 where complete, else the share Chao's
      estimate gives from how often each was hit (0 where nothing was).
    - `truncated`: whether a stated limit on work or number ended something early.
    - `continuum`: by period, the number of families of cycles that are not isolated (one is 1 among the multipliers);
      each stands in `cycles` by one nonhyperbolic representative.
    """

    cycles: tuple[Cycle, ...]
    complete: dict[int, bool] = eqx.field(static=True)
    certificate: dict[int, str] = eqx.field(static=True)
    coverage: dict[int, float] = eqx.field(static=True)
    continuum: dict[int, int] = eqx.field(static=True)
    truncated: bool = eqx.field(static=True)

    def __iter__(self) -> Iterator[Cycle]:
        return iter(self.cycles)

    def __len__(self) -> int:
        return len(self.cycles)

    def __getitem__(self, index: int) -> Cycle:
        return self.cycles[index]

    def __repr__(self) -> str:
        counts = {period: len(self.of_period(period)) for period in self.complete}
        whole = [period for period, complete in self.complete.items() if complete]
        return f"Cycles({len(self)} by period {counts}, complete={whole}, truncated={self.truncated})"

    def of_period(self, period: int) -> list[Cycle]:
        """The cycles of this least period."""
        return [cycle for cycle in self.cycles if cycle.period == period]


def cycle_at(map: Any, itinerary: Bool[Array, "k H"], *, input: Input | None = None) -> Cycle:
    """The cycle of a given itinerary: pure, differentiable in the map.

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in float64.
    - `itinerary`: the ReLU patterns of the k points, boolean `(k, H)`; k is static.
    - `input`: a constant input, `(d,)`.

    **Returns:** a [`Cycle`][dynwarp.piecewise.Cycle]; its `result` says whether it is one. Points and multipliers have
    derivatives of every order in the map and the input, forwards and backwards (multipliers where they are simple).
    Works under jit, vmap and grad. Cost O(k M^3) and one eigenvalue problem of size M.

    **Raises:** `ShapeError`, `ModelError`, `PrecisionError`, `NonFiniteError`.

    **Source:** the points solve one block-cyclic linear system: Wright, SIAM J. Sci. Stat. Comput. 13 (1992) 742.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig5")
    >>> cycle = dw.piecewise.cycle_at(f, jnp.array([[False], [True]]))
    >>> cycle.kind, [round(float(x), 4) for x in cycle.points[0]]
    ('saddle', [-0.5775, -0.4369])
    """
    form = as_map(map, input, caller="cycle_at")
    itinerary = jnp.asarray(itinerary)
    check_shape(itinerary, "itinerary", ("k", form.h2.shape[0]), caller="cycle_at")
    if itinerary.dtype != jnp.bool_ or not itinerary.shape[0]:
        raise ArgumentError(
            "cycle_at: `itinerary` must be boolean with at least one row; got "
            f"{itinerary.dtype}, shape {itinerary.shape}."
        )
    return _cycle_at(form, itinerary)


@eqx.filter_jit
def _cycle_at(form: PiecewiseLinearMap, itinerary) -> Cycle:
    jacobians, offsets = jax.vmap(form.affine)(itinerary)
    return _judge(form, itinerary, *solve_with_multipliers(jacobians, offsets))


def _judge(form: PiecewiseLinearMap, itinerary, points, multipliers, active=None) -> Cycle:
    """The cycle with its certificate; where it is padded, only the `active` steps count."""
    following = jnp.roll(points, -1, axis=0)
    images = jax.vmap(form)(points)
    values, border = border_values(form, points)
    wrong = ((values > 0) != itinerary) & ~border
    if active is not None:
        images = jnp.where(active[:, None], images, following)
        wrong, border = wrong & active[:, None], border & active[:, None]
    residual = jnp.max(jnp.abs(images - following), initial=0.0)
    marginal = jnp.any(jnp.abs(jnp.abs(multipliers) - 1) <= HYPERBOLICITY_TOLERANCE)
    singular = jnp.any(jnp.abs(multipliers - 1) <= HYPERBOLICITY_TOLERANCE) | ~jnp.all(jnp.isfinite(points))
    size = 1 + jnp.max(jnp.abs(points), initial=0.0)
    result = RESULTS.where(residual <= 1e-9 * size, RESULTS.successful, RESULTS.inaccurate)
    result = RESULTS.where(marginal, RESULTS.nonhyperbolic, result)
    result = RESULTS.where(jnp.any(wrong), RESULTS.virtual, result)
    result = RESULTS.where(singular, RESULTS.singular, result)
    return Cycle(points, multipliers, itinerary, residual, jnp.any(border, axis=1), result)


@eqx.filter_jit
def cycles_at(form: PiecewiseLinearMap, itineraries: Bool[Array, "N K H"], orders: Int[Array, " N"]) -> Cycle:
    """A batch of cycles of periods `orders` <= K: steps from the period on are filled with the identity.

    One compiled program for all periods; the points from the period on repeat the first.
    """

    def lane(itinerary, order):
        active = jnp.arange(itinerary.shape[0]) < order
        jacobians, offsets = jax.vmap(form.affine)(itinerary)
        jacobians = jnp.where(active[:, None, None], jacobians, jnp.eye(form.state_size, dtype=jacobians.dtype))
        offsets = jnp.where(active[:, None], offsets, 0)
        return _judge(form, itinerary, *solve_with_multipliers(jacobians, offsets), active)

    return jax.vmap(lane)(itineraries, orders)


def border_values(form: PiecewiseLinearMap, points):
    """The preactivations W2 z + h2 of an orbit `(k, M)`, and which of them are zero to rounding, both `(k, H)`.

    The distance to a border is held against the size of the state, not of the preactivation's own terms: a coordinate
    that is rounding beside the others is zero. A ReLU that does not look at the state has no border.
    """
    values = points @ form.W2.T + form.h2
    sizes = jnp.max(jnp.abs(points), axis=1, initial=0.0)
    sizes = jnp.maximum(sizes, _ORBIT_SHARE * jnp.max(sizes, initial=0.0))
    return values, on_borders(values, sizes[:, None], form.W2, form.h2)


def on_borders(values, sizes, W2, h2):
    """Whether preactivations at states of these sizes, largest coordinates, are zero to working precision."""
    lengths = jnp.sum(jnp.abs(W2), axis=1)
    return (jnp.abs(values) <= BORDER_TOLERANCE * (lengths * sizes + jnp.abs(h2))) & (lengths > 0)
