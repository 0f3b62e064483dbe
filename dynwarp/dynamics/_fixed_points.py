"""Fixed points of maps and of fields from many starts at once."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Complex, Float, Int

from dynwarp._results import RESULTS
from dynwarp._typing import Input, Scalar
from dynwarp.dynamics._search import Method, search
from dynwarp.dynamics._stepping import Model


class FixedPoints(eqx.Module):
    """What [`find_fixed_points`][dynwarp.dynamics.find_fixed_points] returns: one lane per candidate.

    Lanes that found the same point hold the same numbers, those of the first of them; `distinct()` keeps one of them.

    **Attributes:**

    - `points`: `(N, n)`; where a lane failed, the last state of its search.
    - `eigenvalues`: of the Jacobian there, complex `(N, n)`: multipliers of a map, largest modulus first; rates of a
      field, largest real part first.
    - `residual`: `max |F(z) - z|` of a map, `max |f(z)|` of a field, `(N,)`.
    - `is_stable`: all moduli below 1, or all real parts below 0, `(N,)`; False where a lane failed.
    - `representative`: the first lane that found the same point, `(N,)`.
    - `result`: `successful`, `slow_point` (a minimum of the speed that is no fixed point), `max_steps_reached`,
      `diverged`, `non_finite` (the candidate was).
    """

    points: Float[Array, "N n"]
    eigenvalues: Complex[Array, "N n"]
    residual: Float[Array, " N"]
    is_stable: Bool[Array, " N"]
    representative: Int[Array, " N"]
    result: RESULTS

    @property
    def is_new(self) -> Bool[Array, " N"]:
        """Which lanes are the first to find their point, `(N,)`."""
        return self.representative == jnp.arange(len(self.representative), dtype=self.representative.dtype)

    def distinct(self, *, slow_points: bool = False) -> FixedPoints:
        """The distinct fixed points alone, an exact-length batch (host only); with `slow_points`, these too."""
        kept = self.result == RESULTS.successful
        if slow_points:
            kept |= self.result == RESULTS.slow_point
        return take_lanes(self, np.flatnonzero(kept & self.is_new))


def find_fixed_points(
    model: Model,
    candidates: Float[Array, "N n"],
    *,
    input: Input | None = None,
    t: float | Scalar = 0.0,
    method: Method = "newton",
    tolerance: float | None = None,
    max_steps: int = 100,
    merge_tolerance: float | None = None,
    throw: bool = True,
) -> FixedPoints:
    """Fixed points F(z) = z of a map, or f(z) = 0 of a field, one search from each candidate.

    **Arguments:**

    - `model`: an `AbstractMap` or an `AbstractField`.
    - `candidates`: starts, `(N, n)`, such as states of a simulation.
    - `input`: a constant input, `(d,)`.
    - `t`: the time at which a field is taken.
    - `method`: `"newton"` converges quadratically, and on a ReLU model lands on the point once in the right region;
      `"levenberg_marquardt"` minimises the speed |F(z) - z|, comes down from far away, and tells slow points, where
      the speed has a minimum above zero, from fixed points.
    - `tolerance`: on the residual, relative to |Jacobian| (1 + |z|). Default eps^(2/3): 4e-11 in float64.
    - `max_steps`: of each search.
    - `merge_tolerance`: points nearer than this, relative to 1 + |z|, are one. Default eps^(1/2).
    - `throw`: raise where no candidate at all led to a fixed point. That some fail is the rule; their lanes say so.

    **Returns:** a [`FixedPoints`][dynwarp.dynamics.FixedPoints]. The points, and through them the eigenvalues, have the
    derivatives of the implicit function theorem in the model and the input, of every order, both ways; those of failed
    lanes are 0. Nothing flows to the candidates. Cost per step and lane: n forward derivatives and one factorisation.

    **Raises:** `ShapeError`, `ArgumentError`, `ModelError`; `ConvergenceError` as said under `throw`.

    **Source:** Sussillo and Barak, Neural Comput. 25 (2013) 626, for slow points.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> starts = jnp.array([[-9.0, -8.0, 26.0], [8.0, 9.0, 27.0], [1.0, 1.0, 1.0], [9.0, 9.0, 29.0]])
    >>> found = dw.dynamics.find_fixed_points(dw.systems.Lorenz63(), starts).distinct()
    >>> (found.points.round(3) + 0.0).tolist()
    [[-8.485, -8.485, 27.0], [8.485, 8.485, 27.0], [0.0, 0.0, 0.0]]
    """
    found = search(
        model, candidates, 1, input, t, method, tolerance, max_steps, merge_tolerance, throw, "find_fixed_points"
    )
    return FixedPoints(
        found.points[:, 0],
        found.multipliers,
        found.residual,
        found.is_stable,
        found.representative,
        found.result,
    )


def take_lanes(batch, lanes: np.ndarray):
    """A batch of results restricted to these lanes, each of them its own representative."""
    kept = jax.tree.map(lambda x: x[lanes], batch)
    return eqx.tree_at(lambda b: b.representative, kept, jnp.arange(len(lanes), dtype=kept.representative.dtype))
