"""The curvature of the states over a manifold of inputs, at every time of one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import as_real, check_positive_integer
from dynwarp._results import RESULTS, raise_failed
from dynwarp._simulate._runge_kutta import RUNGE_KUTTA
from dynwarp._typing import State
from dynwarp.dynamics._stepping import is_field
from dynwarp.errors import ArgumentError
from dynwarp.geometry._frames import independence, invert_upper, orthonormal_frame
from dynwarp.geometry._jets import push_jet
from dynwarp.geometry._kinks import refuse_kinks
from dynwarp.geometry._observation import Observation, as_readout, check_observation
from dynwarp.geometry._pointwise import total_curvature
from dynwarp.geometry._schedule import Step, explicit
from dynwarp.geometry._sensitivities import Problem
from dynwarp.geometry._setting import (
    check_breakpoints,
    check_initial,
    check_points,
    check_step,
    fixed_schedule,
    in_precision,
    map_schedule,
    refuse,
)
from dynwarp.models import AbstractField, AbstractMap
from dynwarp.models._cell import prepared
from dynwarp.tasks import InputManifold

_CALLER = "curvature_history"


class CurvatureHistory(eqx.Module):
    """What [`curvature_history`][dynwarp.geometry.curvature_history] returns: m coordinates, T states kept.

    **Attributes:**

    - `G`: the metric, `(..., T, m, m)`.
    - `riemann`: R_ijkl with all indices down, `(..., T, m, m, m, m)`; R_1212 is positive for a sphere.
    - `ricci`: G^ik R_ijkl, `(..., T, m, m)`.
    - `scalar_curvature`: `(..., T)`; 2 K of a surface.
    - `mean_curvature`: the length of the mean curvature vector G^ij II_ij / m, `(..., T)`; 1 / r of a sphere.
    - `independence`: the least sine between a coordinate direction and the span of those before it, `(..., T)`; 0 where
      the metric is degenerate.
    - `result`: a code a point and time, `(..., T)`: `singular` where `independence` is below the tolerance, and all
      curvatures are NaN; `non_finite`.
    """

    G: Float[Array, "... T m m"]
    riemann: Float[Array, "... T m m m m"]
    ricci: Float[Array, "... T m m"]
    scalar_curvature: Float[Array, "... T"]
    mean_curvature: Float[Array, "... T"]
    independence: Float[Array, "... T"]
    result: RESULTS

    def gaussian_curvature(self) -> Float[Array, "... T"]:
        """K = R_1212 / det G of surfaces.

        **Raises:** `ArgumentError` unless there are 2 coordinates.
        """
        if self.G.shape[-1] != 2:
            raise ArgumentError(
                f"gaussian_curvature is that of a surface, of 2 dimensions; this has {self.G.shape[-1]}: see `riemann` "
                "and `scalar_curvature`."
            )
        return self.scalar_curvature / 2


def curvature_history(
    model: AbstractMap | AbstractField,
    manifold: InputManifold | None,
    thetas: Float[Array, "... m"],
    *,
    state0: State | Callable[[Array], State],
    steps: int | None = None,
    ts: Any = None,
    at: Sequence[int] | None = None,
    readout: Callable[[Array], Array] | Float[Array, "o n"] | Literal["rate"] | None = None,
    batch_size: int | None = None,
    dt: float | None = None,
    solver: diffrax.AbstractSolver | None = None,
    breakpoints: Any = None,
    smooth: bool | None = None,
    tolerance: float | None = None,
    throw: bool = True,
) -> CurvatureHistory:
    """The curvature of the states of a model over a manifold of inputs, at every time and at many points.

    What [`state_manifold`][dynwarp.geometry.state_manifold] tells of one time, from one pass for all of them: the
    state, its m derivatives and its m^2 second ones are stepped together, and the equation of Gauss,
    R_ijkl = <II_ik, II_jl> - <II_il, II_jk>, is applied as soon as a state is there.

    **Arguments:**

    - `model`, `manifold`, `thetas`, `state0`, `steps`, `ts`, `at`, `readout`, `batch_size`, `solver`, `breakpoints`: as
      in [`representation_metric`][dynwarp.geometry.representation_metric].
    - `dt`: of a field, required: the longest of fixed steps, whose derivatives are exact.
    - `smooth`, `tolerance`: as in [`state_manifold`][dynwarp.geometry.state_manifold]: models with kinks are refused.
    - `throw`: raise where something is not finite. Degenerate metrics, as before an item is shown, have a code alone.

    **Returns:** a [`CurvatureHistory`][dynwarp.geometry.CurvatureHistory]. Differentiable in the model, the manifold,
    the points and the initial state; what is NaN has no derivative, and leaves those of the rest alone.

    **Raises:** `ModelError` for kinks, naming the operation; `ArgumentError`, `ShapeError`, `NonFiniteError`;
    `ConvergenceError` with `throw`, outside of `jax.jit`.

    **Cost:** 1 + m + m^2 simulations, in matrix products over points; memory: the inputs with their first and second
    derivatives, and what is returned.

    **Source:** do Carmo, *Riemannian Geometry* (1992), chapter 6.

    **Example:** a circle of radius r, of which a leaky integrator makes one of half the radius, then three quarters.

    >>> leaky = dw.models.LinearRNN(0.5 * jnp.eye(2), 0.5 * jnp.eye(2), jnp.eye(2))
    >>> circle = dw.tasks.Circle(jnp.ones(2))
    >>> found = dw.geometry.curvature_history(leaky, circle, jnp.array([0.3]), state0=jnp.zeros(2))
    >>> [round(float(r), 12) for r in 1 / found.mean_curvature]
    [0.5, 0.75]
    """
    of_field = is_field(model, _CALLER)
    thetas = as_real(thetas, "thetas", caller=_CALLER)
    check_points(manifold, thetas, _CALLER)
    if batch_size is not None:
        batch_size = check_positive_integer(batch_size, "batch_size", caller=_CALLER)
    theta = jax.ShapeDtypeStruct(thetas.shape[-1:], thetas.dtype)
    start, state = check_initial(model, state0, theta, _CALLER)
    model, manifold, readout, thetas = in_precision(state.dtype, (model, manifold, readout, thetas))
    theta = jax.ShapeDtypeStruct(theta.shape, state.dtype)
    check_step(model, manifold, theta, state, of_field, _CALLER)
    readout = as_readout(model, readout, state.dtype, _CALLER)
    observation = Observation(readout)
    observed = check_observation(observation, model, state.dtype, _CALLER)
    if observed < theta.shape[0]:
        raise ArgumentError(
            f"{_CALLER}: {theta.shape[0]} coordinates need as many observed dimensions; `readout` returns {observed}."
        )
    if smooth is None:
        refuse_kinks(model, readout, _CALLER)
    tableau = RUNGE_KUTTA
    if of_field:
        refuse(_CALLER, "a field takes `ts`, without", at=at)
        if dt is None:
            raise ArgumentError(
                f"{_CALLER}: a field needs `dt`: adaptive steps do not control the error of second derivatives."
            )
        breaks = check_breakpoints(manifold, breakpoints, _CALLER)
        tableau = explicit(solver, _CALLER)
        plan = fixed_schedule(ts, steps, dt, breaks, state.dtype, _CALLER)
    else:
        refuse(_CALLER, "a map moves in discrete time, without", ts=ts, dt=dt, breakpoints=breakpoints, solver=solver)
        plan = map_schedule(manifold, theta, steps, at, _CALLER)

    problem = Problem(Step(model, tableau), manifold, start, plan, observation, time=False, keep=False)
    found, points = _run(problem, thetas.reshape(-1, thetas.shape[-1]), tolerance, batch_size)
    if throw:
        raise_failed(points, _CALLER, "Shorten the time.")
    return jax.tree.map(lambda x: x.reshape(*thetas.shape[:-1], *x.shape[1:]), found)


@eqx.filter_jit
def _run(problem, thetas, tolerance, batch_size):
    """What is found at each point, and a code for the point."""
    problem = eqx.tree_at(lambda p: p.step.model, problem, prepared(problem.step.model))

    def one(theta):
        found = _history(problem, theta, tolerance)
        broken = jnp.any(found.result == RESULTS.non_finite)
        return found, RESULTS.where(broken, RESULTS.non_finite, RESULTS.successful)

    if batch_size is None:
        return jax.vmap(one)(thetas)
    return jax.lax.map(one, thetas, batch_size=batch_size)


def _history(problem: Problem, theta, tolerance) -> CurvatureHistory:
    """Of one point."""
    step, schedule, m = problem.step, problem.schedule, len(theta)
    basis = jnp.eye(m, dtype=theta.dtype)
    jet = push_jet(problem.start, (theta, basis, jnp.zeros((m, m, m), theta.dtype)))
    # Time first, then the coordinates.
    drives = [
        schedule.fold(jax.tree.map(lambda x, axis=axis: jnp.moveaxis(x, axis, 0), part[0]))
        for axis, part in enumerate(jet)
    ]

    def advance(carry, x):
        drives, clock = x
        values = [(state, drive) for state, drive in zip(carry, drives)]
        return push_jet(lambda at: step(at[0], at[1], clock), values), None

    def see(carry):
        if problem.observation.readout is not None:
            carry = push_jet(problem.observation.readout, carry)
        return _measure(carry, tolerance)

    def outer(carry, xs):
        if schedule.shape[1] == 1:
            carry, _ = advance(carry, jax.tree.map(lambda x: x[0], xs))
        else:
            carry, _ = jax.lax.scan(advance, carry, xs)
        return carry, see(carry)

    carry = tuple(part[1] for part in jet)
    _, found = jax.lax.scan(outer, carry, (drives, schedule.clock))
    if schedule.saved is not None:
        found = jax.tree.map(lambda x: x[np.asarray(schedule.saved)], found)
    if schedule.first:
        found = jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), see(carry), found)
    return found


def _measure(jet, tolerance) -> CurvatureHistory:
    """The curvatures at one point and time, from what is seen `(o,)` and its derivatives `(m, o)` and `(m, m, o)`."""
    state, tangents, second = jet
    m = len(tangents)
    frame, factor = orthonormal_frame(tangents.T)
    along = jnp.einsum("oa,ijo->ija", frame, second, precision="highest")
    normal = second - jnp.einsum("oa,ija->ijo", frame, along, precision="highest")
    products = jnp.einsum("iko,jlo->ijkl", normal, normal, precision="highest")
    riemann = products - jnp.swapaxes(products, 2, 3)

    sine = independence(jax.lax.stop_gradient(factor))
    tolerance = np.finfo(factor.dtype).eps ** 0.25 if tolerance is None else tolerance
    finite = jnp.all(jnp.isfinite(state)) & jnp.all(jnp.isfinite(tangents)) & jnp.all(jnp.isfinite(second))
    valid = (sine >= tolerance) & finite
    # Where there is no curvature there are no derivatives of it either, rather than NaN for all weights.
    factor = jnp.where(valid, factor, jnp.eye(m, dtype=factor.dtype))
    inverse = invert_upper(factor)
    ricci = jnp.einsum("ia,ka,ijkl->jl", inverse, inverse, riemann, precision="highest")
    bend = jnp.einsum("ia,ja,ijo->o", inverse, inverse, normal, precision="highest") / m
    square = jnp.dot(bend, bend, precision="highest")
    # The root of 0 has no derivative.
    mean = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)
    curvatures = (riemann, ricci, total_curvature(factor, riemann), mean)
    riemann, ricci, scalar, mean = (jnp.where(valid, x, jnp.nan) for x in curvatures)
    result = RESULTS.where(valid, RESULTS.successful, RESULTS.where(finite, RESULTS.singular, RESULTS.non_finite))
    metric = Observation().metric(tangents)
    return CurvatureHistory(metric, riemann, ricci, scalar, mean, jnp.where(sine >= 0, sine, 0), result)
