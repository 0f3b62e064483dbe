"""Periodic orbits of smooth maps by multiple shooting."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Complex, Float, Int

from dynwarp._checks import check_positive_integer
from dynwarp._results import RESULTS
from dynwarp._typing import Input
from dynwarp.dynamics._fixed_points import take_lanes
from dynwarp.dynamics._search import Method, search
from dynwarp.dynamics._stepping import is_field
from dynwarp.errors import ModelError
from dynwarp.models import AbstractMap


class PeriodicOrbits(eqx.Module):
    """What [`find_periodic_orbits`][dynwarp.dynamics.find_periodic_orbits] returns: one lane per candidate.

    Lanes that found the same orbit, whatever the phase, hold the same numbers. `distinct()` keeps one lane an orbit.

    **Attributes:**

    - `points`: the orbit in time order, `(N, k, n)`.
    - `multipliers`: eigenvalues of the Jacobian of F^k, largest modulus first, complex `(N, n)`.
    - `residual`: `max |F(z_i) - z_{i+1}|`, `(N,)`.
    - `is_stable`: all moduli below 1, `(N,)`.
    - `minimal_period`: the least period of the orbit, a divisor of k, `(N,)`.
    - `representative`: the first lane that found the same orbit, `(N,)`.
    - `result`: as in [`FixedPoints`][dynwarp.dynamics.FixedPoints].
    """

    points: Float[Array, "N k n"]
    multipliers: Complex[Array, "N n"]
    residual: Float[Array, " N"]
    is_stable: Bool[Array, " N"]
    minimal_period: Int[Array, " N"]
    representative: Int[Array, " N"]
    result: RESULTS

    @property
    def is_new(self) -> Bool[Array, " N"]:
        """Which lanes are the first to find their orbit, `(N,)`."""
        return self.representative == jnp.arange(len(self.representative), dtype=self.representative.dtype)

    def distinct(self, *, primitive: bool = True) -> PeriodicOrbits:
        """The distinct orbits alone, an exact-length batch (host only); with `primitive`, those of least period k."""
        kept = (self.result == RESULTS.successful) & self.is_new
        if primitive:
            kept &= self.minimal_period == self.points.shape[1]
        return take_lanes(self, np.flatnonzero(kept))


def find_periodic_orbits(
    model: AbstractMap,
    candidates: Float[Array, "N n"],
    *,
    period: int,
    input: Input | None = None,
    method: Method = "newton",
    tolerance: float | None = None,
    max_steps: int = 100,
    merge_tolerance: float | None = None,
    throw: bool = True,
) -> PeriodicOrbits:
    """Orbits z_1 -> z_2 -> ... -> z_k -> z_1 of a map, one search from each candidate and its next k - 1 images.

    All k points are unknowns of one system, F(z_i) = z_{i+1} (multiple shooting): solving F^k(z) = z instead loses
    digits as fast as the orbit is unstable. For piecewise-linear maps `dynwarp.piecewise` has an exact search.

    **Arguments:**

    - `model`: an `AbstractMap`.
    - `candidates`: starts, `(N, n)`, such as states of a simulation.
    - `period`: k, at least 1. Orbits whose least period divides k are found too, and marked.
    - the rest: as in [`find_fixed_points`][dynwarp.dynamics.find_fixed_points].

    **Returns:** a [`PeriodicOrbits`][dynwarp.dynamics.PeriodicOrbits], differentiable like fixed points. Multipliers
    are eigenvalues of the product of the k Jacobians, and accurate to eps times the largest. Cost per step and lane:
    k n forward derivatives and a factorisation of size k n.

    **Raises:** `ShapeError`, `ArgumentError`; `ModelError` for what is not a map; `ConvergenceError` where no lane
    succeeded.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> starts = jnp.array([[1.0, 0.3], [-0.5, 0.3], [0.9, -0.1]])
    >>> orbits = dw.dynamics.find_periodic_orbits(dw.systems.Henon(), starts, period=2).distinct()
    >>> orbits.points.shape
    (1, 2, 2)
    """
    caller = "find_periodic_orbits"
    if is_field(model, caller):
        raise ModelError(f"{caller} needs a map; {type(model).__name__} is a field.")
    check_positive_integer(period, "period", caller=caller)
    found = search(model, candidates, period, input, 0.0, method, tolerance, max_steps, merge_tolerance, throw, caller)
    return PeriodicOrbits(
        found.points,
        found.multipliers,
        found.residual,
        found.is_stable,
        _minimal_period(found.points, merge_tolerance),
        found.representative,
        found.result,
    )


def _minimal_period(points, tolerance):
    """The least shift of each orbit onto itself."""
    period = points.shape[1]
    tolerance = float(jnp.finfo(points.dtype).eps) ** 0.5 if tolerance is None else tolerance
    scale = tolerance * (1 + jnp.max(jnp.abs(points), axis=(1, 2)))
    least = jnp.full(points.shape[0], period, jnp.int32)
    for shift in range(period - 1, 0, -1):
        if period % shift == 0:
            distance = jnp.max(jnp.abs(points - jnp.roll(points, shift, axis=1)), axis=(1, 2))
            least = jnp.where(distance <= scale, jnp.int32(shift), least)
    return least
