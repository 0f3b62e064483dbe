"""The states at one time as a surface over the inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import diffrax
import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_real, check_shape
from dynwarp._simulate import simulate
from dynwarp._simulate._runge_kutta import RUNGE_KUTTA
from dynwarp._typing import State
from dynwarp.dynamics._stepping import is_field
from dynwarp.errors import ArgumentError
from dynwarp.geometry._adaptive import Signal
from dynwarp.geometry._immersion import Immersion
from dynwarp.geometry._kinks import refuse_kinks
from dynwarp.geometry._observation import Observation, as_readout, check_observation
from dynwarp.geometry._schedule import Step, explicit, initial
from dynwarp.geometry._sensitivities import Problem
from dynwarp.geometry._setting import (
    check_breakpoints,
    check_initial,
    check_solve,
    check_step,
    fixed_schedule,
    in_precision,
    map_schedule,
)
from dynwarp.models import AbstractField, AbstractMap
from dynwarp.models._cell import computing_dtype, prepared
from dynwarp.tasks import InputManifold

_CALLER = "state_manifold"


def state_manifold(
    model: AbstractMap | AbstractField,
    manifold: InputManifold,
    *,
    state0: State | Callable[[Array], State],
    step: int | None = None,
    t: float | None = None,
    readout: Callable[[Array], Array] | Float[Array, "o n"] | Literal["rate"] | None = None,
    t0: float = 0.0,
    dt: float | None = None,
    solver: diffrax.AbstractSolver | None = None,
    breakpoints: Any = None,
    smooth: bool | None = None,
    tolerance: float | None = None,
) -> Immersion:
    """The states of a model at one time, or the outputs, as a surface over a manifold of inputs, with its geometry.

    **Arguments:**

    - `model`: a map or a field.
    - `manifold`: an [`InputManifold`][dynwarp.geometry.InputManifold].
    - `state0`: the initial state `(n,)`, or a function `(m,) -> (n,)`. Its precision is that of the surface.
    - `step`: of a map, the index of the state: that after row `step` of the inputs; negative counts from the end, and
      None is the last.
    - `t`: of a field, the time of the state; `t0` is that of `state0`.
    - `readout`: a function `(n,) -> (o,)`, o >= m, a matrix `(o, n)` or `"rate"`, as in
      [`representation_metric`][dynwarp.geometry.representation_metric]; the surface is then that of the outputs.
    - `dt`: of a field, fixed Runge-Kutta steps, whose derivatives are exact. Without it steps are adaptive, and the
      error of second derivatives is not controlled: it is larger than the tolerance of the state.
    - `solver`: of a field, an explicit diffrax solver in the place of the classical Runge-Kutta method; without `dt`
      any, in the place of Tsit5.
    - `breakpoints`: of a field, times at which the input jumps; by default those that a task names itself.
    - `smooth`: curvature needs two derivatives. None looks for kinks in the step of the model and in the readout,
      and refuses those that have one: ReLU networks are flat in pieces, and all their curvature sits in the creases,
      where no derivative sees it. True skips the search, for a smooth function made of pieces. False allows kinks: the
      metric is then right almost everywhere, and curvature is that between the creases.
    - `tolerance`: of the [`Immersion`][dynwarp.geometry.Immersion].

    **Returns:** an [`Immersion`][dynwarp.geometry.Immersion] of dimension `manifold.dim` with its periods and bounds.

    **Raises:** `ModelError` for kinks, naming the operation; `ArgumentError`, `ShapeError`, `NonFiniteError`.

    **Cost:** of its metric 1 + m simulations up to the time, of its curvature 1 + m + m^2.

    **Example:**

    >>> net = dw.models.Elman(2, 8, key=jax.random.key(0))
    >>> torus = dw.tasks.Torus(jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    >>> surface = dw.geometry.state_manifold(net, torus, state0=jnp.zeros(8))
    >>> jax.vmap(surface.gaussian_curvature)(torus.sample(jax.random.key(1), 5)).shape
    (5,)
    """
    of_field = is_field(model, _CALLER)
    if not isinstance(manifold, InputManifold):
        raise ArgumentError(f"{_CALLER}: `manifold` must be an InputManifold; got {type(manifold).__name__}.")
    theta = jax.ShapeDtypeStruct((manifold.dim,), computing_dtype((manifold, model)))
    state0, state = check_initial(model, state0, theta, _CALLER)
    model, manifold, readout = in_precision(state.dtype, (model, manifold, readout))
    theta = jax.ShapeDtypeStruct(theta.shape, state.dtype)
    check_step(model, manifold, theta, state, of_field, _CALLER)
    readout = as_readout(model, readout, state.dtype, _CALLER)
    observation = Observation(readout)
    check_observation(observation, model, state.dtype, _CALLER)
    if smooth is None:
        refuse_kinks(model, readout, _CALLER)

    tableau, plan = RUNGE_KUTTA, None
    if of_field:
        if t is None or step is not None:
            raise ArgumentError(f"{_CALLER}: a field needs `t`, the time of the states, and takes no `step`.")
        for name, value in (("t", t), ("t0", t0)):
            check_real(value, name, caller=_CALLER)
            check_shape(value, name, (), caller=_CALLER)
        if not (np.isfinite([t0, t]).all() and t > t0):
            raise ArgumentError(f"{_CALLER}: `t` must be after `t0`, {t0}; got {t}.")
        breaks = check_breakpoints(manifold, breakpoints, _CALLER)
        times = (float(t0), float(t))
        if dt is None:
            check_solve(_CALLER, solver, None, None, None)
        else:
            tableau = explicit(solver, _CALLER)
            plan = fixed_schedule(np.asarray(times), None, dt, breaks, state.dtype, _CALLER)
    else:
        if any(option is not None for option in (t, dt, solver, breakpoints)):
            raise ArgumentError(f"{_CALLER}: a map takes `step`, without `t`, `dt`, `solver` and `breakpoints`.")
        steps = eqx.filter_eval_shape(manifold, theta).shape[0]
        step = steps - 1 if step is None else step
        if not isinstance(step, int | np.integer) or not -steps <= step < steps:
            raise ArgumentError(f"{_CALLER}: `step` must be the index of one of the {steps} states; got {step!r}.")
        plan = map_schedule(manifold, theta, int(step) % steps + 1, None, _CALLER)
    if plan is None:
        fn = _AdaptiveStates(model, manifold, state0, observation, times, solver, breaks)
    else:
        fn = _FixedStates(Problem(Step(model, tableau), manifold, state0, plan, observation, time=False, keep=False))
    # It has been searched already, if it was to be.
    smooth = True if smooth is None else smooth
    return Immersion(
        fn,
        dim=manifold.dim,
        periods=manifold.periods,
        bounds=manifold.bounds,
        tolerance=tolerance,
        smooth=smooth,
    )


class _FixedStates(eqx.Module):
    """theta -> what is seen of the state after the last of fixed steps, of a map or of a field."""

    problem: Problem

    @eqx.filter_jit
    def __call__(self, theta):
        problem = self.problem
        step = eqx.tree_at(lambda s: s.model, problem.step, prepared(problem.step.model))
        of_steps, state = problem.start(theta)
        clock = problem.schedule.flat_clock()
        state, _ = jax.lax.scan(lambda z, x: (step(z, *x), None), state, (of_steps, clock))
        return problem.observation(state)


class _AdaptiveStates(eqx.Module):
    """theta -> what is seen of the state of a field at the second of two times, by adaptive steps."""

    model: Any
    manifold: Any
    state0: Any
    observation: Observation
    times: tuple[float, float] = eqx.field(static=True)
    solver: Any
    breakpoints: Any

    def __call__(self, theta):
        state = simulate(
            self.model,
            initial(self.state0, theta),
            Signal(self.manifold, theta),
            ts=np.asarray(self.times),
            solver=self.solver,
            breakpoints=self.breakpoints,
            adjoint=diffrax.DirectAdjoint(),
            last_only=True,
        )
        return self.observation(state)
