"""How far a piece of an unstable manifold reaches across a stable one: the splitting, a function of the map."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from dynwarp._checks import check_shape
from dynwarp._compat import concrete
from dynwarp._typing import Input, Scalar
from dynwarp.errors import ArgumentError
from dynwarp.models import PiecewiseLinearMap
from dynwarp.piecewise._as_map import as_map
from dynwarp.piecewise._cycle import HYPERBOLICITY_TOLERANCE, Cycle
from dynwarp.piecewise._cyclic import solve_cyclic

# A matrix to the power 2^40 is of rank one wherever one eigenvalue leads by more than 1e-11.
_SQUARINGS = 40
# Newton steps, with the slope held, from the converged pair: one gives it its first derivative, two its second.
_STEPS = 2


def splitting(
    map: Any,
    cycle: Cycle,
    itinerary: Bool[Array, "n H"],
    *,
    other: Cycle | None = None,
    origin: int = 0,
    target: int = 0,
    input: Input | None = None,
) -> Scalar:
    """The signed distance between W^u and W^s of a saddle along an itinerary: pure, differentiable in the map.

    The points of W^u_loc whose next n steps pass the regions of the itinerary form a segment. So does their n-th image,
    and it either crosses the stable subspace q + E^s or not. The splitting is the distance to that subspace of the end
    of the image that is nearer to crossing back: positive where the segment crosses, by how far its nearer end lies
    beyond; negative where it does not, by how far it misses. At zero an end of the segment, a corner of W^u, touches
    W^s: a homoclinic tangency of the piecewise-linear map, where homoclinic points are born or vanish. Every orbit of
    [`homoclinic_points`][dynwarp.piecewise.homoclinic_points] has a positive splitting along its itinerary. Where no
    point of W^u passes the regions, the two conditions that exclude each other take the place of the ends, and the
    splitting is negative.

    The ends of W^s_loc do not count: beyond them W^s goes on through the next region. An itinerary that is followed
    longer, into W^s_loc, takes them in.

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in float64.
    - `cycle`: a saddle with one unstable direction. Only its itinerary is used: its points move with the map.
    - `itinerary`: the regions of the first n points of the orbit, `(n, H)`; n is static.
    - `other`: a second such saddle, whose stable manifold is meant.
    - `origin`, `target`: the cycle points p and q, for periods above 1; as in
      [`HomoclinicPoints`][dynwarp.piecewise.HomoclinicPoints].
    - `input`: a constant input, `(d,)`.

    **Returns:** a scalar, in units of the state; infinity where nothing bounds the segment. It does not depend on the
    signs and lengths of eigenvectors. Differentiable to second order in both modes, but for a kink where the condition
    that ends the segment changes. Works under jit, vmap and grad. Cost O((n + k) M^2 + M^3).

    **Raises:** `ArgumentError` for a cycle with another number of unstable directions; `ShapeError`, `ModelError`,
    `PrecisionError`, `NonFiniteError`.

    **Source:** the counterpart, for polyhedral manifolds, of the splitting of separatrices: Guckenheimer and Holmes,
    Nonlinear Oscillations (1983), section 4.5.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig5")
    >>> saddle = dw.piecewise.cycle_at(f, jnp.array([[False]]))
    >>> found = dw.piecewise.homoclinic_points(f, saddle, iterations=2)
    >>> round(float(dw.piecewise.splitting(f, saddle, found.itineraries[0])), 4)
    0.2851
    """
    caller = "splitting"
    form = as_map(map, input, caller=caller)
    itinerary = jnp.asarray(itinerary)
    check_shape(itinerary, "itinerary", ("n", form.h2.shape[0]), caller=caller)
    if itinerary.dtype != jnp.bool_:
        raise ArgumentError(f"{caller}: `itinerary` must be boolean; got {itinerary.dtype}.")
    end = cycle if other is None else other
    for name, saddle, point, index in (("cycle", cycle, "origin", origin), ("other", end, "target", target)):
        if not isinstance(saddle, Cycle):
            raise ArgumentError(
                f"{caller}: `{name}` must be a Cycle, of find_cycles or cycle_at; got {type(saddle).__name__}."
            )
        check_shape(saddle.itinerary, f"{name}.itinerary", ("k", form.h2.shape[0]), caller=caller)
        known, position = concrete(saddle.multipliers), concrete(index)
        if known is not None and np.sum(np.abs(known) > 1) != 1:
            raise ArgumentError(
                f"{caller}: `{name}` must have one unstable direction; it has {int(np.sum(np.abs(known) > 1))}."
            )
        border = concrete(saddle.on_border)
        marginal = known is not None and np.any(np.abs(np.abs(known) - 1) <= HYPERBOLICITY_TOLERANCE)
        if marginal or (border is not None and border.any()):
            where = "a multiplier lies on the unit circle" if marginal else "a point of it lies on a border"
            raise ArgumentError(f"{caller}: `{name}` must be hyperbolic and off all borders; {where}.")
        if position is not None and not 0 <= position < saddle.period:
            raise ArgumentError(f"{caller}: `{point}` must be below the period, {saddle.period}; got {index!r}.")
    return _splitting(form, cycle.itinerary, end.itinerary, itinerary, jnp.asarray(origin), jnp.asarray(target))


@eqx.filter_jit
def _splitting(form: PiecewiseLinearMap, start, end, itinerary, origin, target):
    start, end = jnp.roll(start, -origin, axis=0), jnp.roll(end, -target, axis=0)
    jacobians, offsets = jax.vmap(form.affine)(start)
    end_jacobians, end_offsets = jax.vmap(form.affine)(end)
    # One inversion for both, then one solve for both, which waits for it by a zero: calls of LAPACK for a large batch
    # that do not wait for each other can hold both threads of a machine of two cores for good.
    turns = jnp.stack([_turn(jacobians), _turn(end_jacobians).T])
    (direction, normal), (multiplier, _) = jax.vmap(_dominant)(turns)
    normal = normal / jnp.linalg.norm(normal)
    k, length = len(start), max(len(start), len(end))
    cycles = [_lengthened(jacobians, offsets, length), _lengthened(end_jacobians, end_offsets, length)]
    both, beside = (jnp.stack(leaves) for leaves in zip(*cycles, strict=True))
    points, (q, *_) = jax.vmap(solve_cyclic)(both, beside + 0 * direction)
    points = points[:k]

    # Conditions a + b t >= 0 on the point p + t direction: its past in the regions of the cycle, two turns of it since
    # a negative multiplier takes turns with the sides, then its future in those of the itinerary.
    _, ahead = jax.lax.scan(lambda y, jacobian: (jacobian @ y, y), direction, jacobians)
    past = jnp.concatenate([ahead[:1], ahead / multiplier, ahead[1:] / multiplier**2])
    at = jnp.concatenate([points[:1], points, points[1:]])
    regions = jnp.concatenate([start[:1], start, start[1:]])

    def step(carry, pattern):
        x, y = carry
        jacobian, offset = form.affine(pattern)
        return (jacobian @ x + offset, jacobian @ y), carry

    (x, y), (xs, ys) = jax.lax.scan(step, (points[0], direction), itinerary)
    a, b = _conditions(
        form,
        jnp.concatenate([regions, itinerary]),
        jnp.concatenate([at, xs]),
        jnp.concatenate([past, ys]),
    )
    gap, speed = normal @ (x - q), normal @ y
    sign = jnp.where(speed < 0, -1.0, 1.0).astype(gap.dtype)
    # Where the distance sign (gap + speed t) starts and ends, least and largest t.
    low = jnp.max(jnp.where(b > 0, -a / jnp.where(b > 0, b, 1), -jnp.inf), initial=-jnp.inf)
    high = jnp.min(jnp.where(b < 0, -a / jnp.where(b < 0, b, 1), jnp.inf), initial=jnp.inf)
    behind = jnp.where(jnp.isfinite(low), -sign * (gap + speed * jnp.where(jnp.isfinite(low), low, 0)), jnp.inf)
    beyond = jnp.where(jnp.isfinite(high), sign * (gap + speed * jnp.where(jnp.isfinite(high), high, 0)), jnp.inf)
    # A condition that does not depend on t may be violated as a whole.
    violated = jnp.min(jnp.where((b == 0) & (a < 0), a, jnp.inf), initial=jnp.inf)
    return jnp.minimum(jnp.minimum(behind, beyond), violated)


def _lengthened(jacobians, offsets, length):
    """A cycle that rests at its first point after its last step."""
    more, m = length - len(jacobians), jacobians.shape[1]
    rest = jnp.broadcast_to(jnp.eye(m, dtype=jacobians.dtype), (more, m, m))
    return jnp.concatenate([jacobians, rest]), jnp.pad(offsets, ((0, more), (0, 0)))


def _turn(jacobians):
    turn, _ = jax.lax.scan(lambda p, j: (j @ p, None), jnp.eye(jacobians.shape[1], dtype=jacobians.dtype), jacobians)
    return turn


def _conditions(form, patterns, x, y):
    """The distances of points x + t y from the borders of their regions, as a + b t, in one row."""
    faces = jnp.any(form.W2 != 0, axis=1)
    norms = jnp.linalg.norm(jnp.where(faces[:, None], form.W2, 1), axis=1)
    sign = jnp.where(patterns, 1.0, -1.0).astype(x.dtype) / norms
    a = jnp.where(faces, sign * (x @ form.W2.T + form.h2), 1)
    b = jnp.where(faces, sign * (y @ form.W2.T), 0)
    return a.ravel(), b.ravel()


def _dominant(matrix):
    """The eigenvector of the largest modulus, where it is real and simple, and its eigenvalue.

    Up to its length, found by squaring the matrix again and again; its derivative by Newton's method on the pair.
    """
    m = matrix.shape[0]
    frozen = jax.lax.stop_gradient(matrix)

    def square(_, x):
        x = x @ x
        return x / jnp.max(jnp.abs(x))

    power = jax.lax.fori_loop(0, _SQUARINGS, square, frozen / jnp.max(jnp.abs(frozen)))
    column = jnp.argmax(jnp.sum(power**2, axis=0))
    fixed = frozen @ power[:, column]
    fixed = fixed / jnp.linalg.norm(fixed)
    start = jnp.append(fixed, fixed @ frozen @ fixed)
    shifted = frozen - start[m] * jnp.eye(m, dtype=frozen.dtype)
    slope = jnp.block([[shifted, -fixed[:, None]], [fixed[None], jnp.zeros((1, 1), frozen.dtype)]])
    inverse = jnp.linalg.inv(slope)
    pair = start
    for _ in range(_STEPS):
        vector, value = pair[:m], pair[m]
        miss = jnp.append(matrix @ vector - value * vector, fixed @ vector - 1)
        pair = pair - inverse @ miss
    return pair[:m], pair[m]
