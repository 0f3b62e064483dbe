"""How a model stretches a manifold of inputs: the pullback metric of its states, at every time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import as_real, check_choice, check_positive_integer
from dynwarp._results import RESULTS, raise_failed
from dynwarp._simulate._runge_kutta import RUNGE_KUTTA
from dynwarp._simulate._scan import chunk_size
from dynwarp._typing import PRNGKey, State
from dynwarp.dynamics._stepping import is_field
from dynwarp.geometry._adaptive import SolveOptions, solve
from dynwarp.geometry._observation import Observation, as_readout, check_observation
from dynwarp.geometry._realisations import average
from dynwarp.geometry._schedule import Step, explicit
from dynwarp.geometry._sensitivities import Problem, forward, reference, reverse
from dynwarp.geometry._setting import (
    as_keys,
    check_breakpoints,
    check_initial,
    check_noise,
    check_points,
    check_solve,
    check_step,
    check_times,
    fixed_schedule,
    in_precision,
    map_schedule,
    refuse,
    seen_times,
)
from dynwarp.models import AbstractField, AbstractMap
from dynwarp.models._cell import prepared
from dynwarp.tasks import InputManifold

_CALLER = "representation_metric"
_KERNELS = {"forward": forward, "adjoint": reverse, "jacfwd": reference}


class RepresentationMetric(eqx.Module):
    """What [`representation_metric`][dynwarp.geometry.representation_metric] returns: m coordinates, T states kept.

    **Attributes:**

    - `G`: the metric G_ij = <d_i y, d_j y> of what is seen of the states, `(..., T, m, m)`.
    - `states`: `(..., T, n)`, or None with `keep="metric"`.
    - `tangents`: `[..., t, a, i]` = d y_a / d theta_i at state t, `(..., T, o, m)`, or None with `keep="metric"`; y is
      the state, or the readout of it.
    - `log_scale`: c where tangents and G are given in units of exp(c) and exp(2 c), `(..., T)`. It is 0 unless tangents
      explode.
    - `result`: a code a point, `(...)`: `non_finite`; `diverged` where tangents exploded, so that `log_scale` is not 0;
      or what ended an adaptive solve.
    - `standard_error`: of G, `(..., T, m, m)`, where it is a mean over realisations of noise, else None. `states` and
      `tangents` are then means too; the metric of those is that of the mean state, which is never longer than G.
    - `method`: the method that was used.

    With time as a coordinate, m counts it, and it is coordinate 0.
    """

    G: Float[Array, "... T m m"]
    states: Float[Array, "... T n"] | None
    tangents: Float[Array, "... T o m"] | None
    log_scale: Float[Array, "... T"]
    result: RESULTS
    standard_error: Float[Array, "... T m m"] | None
    method: str = eqx.field(static=True)

    def volume(self) -> Float[Array, "... T"]:
        """sqrt(det G), the volume of states per volume of coordinates; 0 where the metric is degenerate."""
        m = self.G.shape[-1]
        return jnp.sqrt(jnp.maximum(jnp.linalg.det(self.G), 0)) * jnp.exp(m * self.log_scale)

    def stretches(self) -> Float[Array, "... T m"]:
        """The principal stretches, the square roots of the eigenvalues of G in ascending order.

        Derivatives do not exist where two of them are equal. Those that are small are exact to about the root of the
        rounding error of the largest: singular values of `tangents` are exact to the rounding error itself.
        """
        values = jnp.linalg.eigvalsh(self.G)
        return jnp.sqrt(jnp.maximum(values, 0)) * jnp.exp(self.log_scale)[..., None]


def representation_metric(
    model: AbstractMap | AbstractField,
    manifold: InputManifold | None,
    thetas: Float[Array, "... m"],
    *,
    state0: State | Callable[[Array], State],
    steps: int | None = None,
    ts: Any = None,
    at: Sequence[int] | None = None,
    method: Literal["auto", "forward", "adjoint", "jacfwd"] = "auto",
    readout: Callable[[Array], Array] | Float[Array, "o n"] | Literal["rate"] | None = None,
    weight: Any = None,
    time_coordinate: bool = False,
    noise: Any = None,
    key: PRNGKey | None = None,
    keep: Literal["all", "metric"] = "all",
    batch_size: int | None = None,
    remat: int | Literal["sqrt"] | None = None,
    dt: float | None = None,
    breakpoints: Any = None,
    solver: diffrax.AbstractSolver | None = None,
    stepsize_controller: diffrax.AbstractStepSizeController | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    max_steps: int | None = 65536,
    throw: bool = True,
) -> RepresentationMetric:
    """The metric that the states of a model induce on a manifold of inputs, at every time and at many points.

    The inputs are a function of m coordinates theta, so the state at a time is one too, x_t(theta). Its metric
    G_ij = d_i x_t . d_j x_t tells how far apart the model moves neighbouring inputs: G_ii is the stretch along a
    coordinate, G_ij how two of them are told apart.

    **Arguments:**

    - `model`: a map or a field.
    - `manifold`: an [`InputManifold`][dynwarp.geometry.InputManifold], called as `manifold(theta)` for a map, and as
      `manifold(theta, t)` for a field. None: no inputs; theta then only moves `state0`.
    - `thetas`: points, shape `(..., m)`, within the bounds of the manifold.
    - `state0`: the initial state `(n,)`, or a function `(m,) -> (n,)` where it depends on the point. A function that
      holds arrays should be an `eqx.Module`. Its precision is that of the result: all else is cast.
    - `steps`: of a map, how many rows of the inputs are used, all by default; of a field with `dt`, the number of steps
      from time 0.
    - `ts`: of a field, increasing times, `(T,)`; `state0` holds at the first, which is among those returned.
    - `at`: of a map, the indices of the states wanted, increasing (negative ones count from the end); all if None.
      `at=(-1,)` is the last state alone.
    - `method`: `"forward"` steps the state and its m tangents together; `"adjoint"` steps the derivatives of what is
      seen of each state wanted backwards, which costs the same for every m; `"jacfwd"` is the reference, automatic
      differentiation of the whole simulation. `"auto"` takes the adjoint where it is the cheaper one: where m is more
      than the number of states wanted times that of observed dimensions. Tangents that overflow themselves, and not
      only their squares, are `non_finite` with `"jacfwd"` and in adaptive solves; the other two scale on the way.
    - `readout`: the metric is then that of outputs: a function `(n,) -> (o,)`, a matrix `(o, n)`, or `"rate"` for the
      activation of the state of a [`CTRNN`][dynwarp.models.CTRNN], [`LowRankRNN`][dynwarp.models.LowRankRNN] or
      `Elman(form="pre")`.
    - `weight`: the matrix M of the inner product y^T M y', `(o, o)`, symmetric, or its diagonal `(o,)`.
    - `time_coordinate`: puts time before the coordinates. Its tangent is the velocity f(t, x, u(t)) of a field, at a
      breakpoint that before the jump (at the first time that after it), and the step x_t - x_t-1 of a map. Time and
      inputs have other units: compare G_00 with itself, and take no volume of the whole.
    - `noise`: a standard deviation, as in [`simulate`][dynwarp.simulate], added to the states of a map or of a field
      with `dt`. The metric is that along the path, whose noise is the same at every point; a velocity is without it.
    - `key`: of `noise`, and of models with dropout. One key gives the path that `simulate` takes with it; several,
      `jax.random.split(key, R)`, give the mean of G over R realisations, the same at every point, with its standard
      error. E[G] is not the metric of the mean state: the covariance of the tangents lies between them.
    - `keep`: `"metric"` returns neither states nor tangents.
    - `batch_size`: how many points at once; all if None.
    - `remat`: reverse mode through the forward method keeps one state with its tangents in every `remat` kept times,
      and makes the others again; `"sqrt"` is the root of their number.
    - `dt`: of a field: the longest of fixed steps, the derivatives being exactly those of the discrete steps: of the
      classical Runge-Kutta method, or of `solver` where that is an explicit one, such as `diffrax.Heun()`. Without it
      steps are adaptive, with the errors of state and tangents both controlled.
    - `breakpoints`: of a field, times at which the input jumps; by default those that a task names itself.
    - `solver`, `stepsize_controller`, `adjoint`, `max_steps`: of adaptive solves (and `solver` with `dt`), as in
      [`simulate`][dynwarp.simulate]. `adjoint` must support forward mode for `"jacfwd"` and reverse mode for
      `"adjoint"`.
    - `throw`: raise where a code is not successful.

    **Returns:** a [`RepresentationMetric`][dynwarp.geometry.RepresentationMetric]. Differentiable in the model, the
    manifold, the points and the initial state: for losses of the metric, by reverse mode over the forward method.

    **Raises:** `ArgumentError` for options that do not fit and points outside the bounds; `ShapeError`,
    `NonFiniteError`, `ModelError`; `ConvergenceError` with `throw`, outside of `jax.jit`.

    **Cost:** forward: 1 + m simulations, in matrix products over points and tangents; memory: the inputs and their
    derivatives, and what is returned. Adjoint: one simulation whose states are kept, and one to two for each state
    wanted and each observed dimension.

    **Source:** Pellegrino & Chadwick, NeurIPS (2025), arXiv:2512.04310; the two equations of sensitivity are those of
    Cao, Li, Petzold & Serban, SIAM J. Sci. Comput. 24 (2003) 1076.

    **Example:** a leaky integrator of a constant input theta: x = (1 - 2^-t) theta.

    >>> leaky = dw.models.LinearRNN(jnp.array([[0.5]]), jnp.array([[0.5]]), jnp.ones((1, 1)))
    >>> line = dw.tasks.Line(jnp.ones(3), jnp.ones(1))
    >>> metric = dw.geometry.representation_metric(leaky, line, jnp.array([[0.0], [0.3]]), state0=jnp.zeros(1))
    >>> metric.G[1, :, 0, 0].tolist()
    [0.25, 0.5625, 0.765625]
    """
    of_field = is_field(model, _CALLER)
    thetas = as_real(thetas, "thetas", caller=_CALLER)
    check_points(manifold, thetas, _CALLER)
    check_choice(method, "method", ("auto", *_KERNELS), caller=_CALLER)
    check_choice(keep, "keep", ("all", "metric"), caller=_CALLER)
    if batch_size is not None:
        batch_size = check_positive_integer(batch_size, "batch_size", caller=_CALLER)
    if remat is not None and remat != "sqrt":
        remat = check_positive_integer(remat, "remat", caller=_CALLER)
    theta = jax.ShapeDtypeStruct(thetas.shape[-1:], thetas.dtype)
    start, state = check_initial(model, state0, theta, _CALLER)
    model, manifold, readout, thetas = in_precision(state.dtype, (model, manifold, readout, thetas))
    theta = jax.ShapeDtypeStruct(theta.shape, state.dtype)
    check_step(model, manifold, theta, state, of_field, _CALLER)
    observation = Observation(as_readout(model, readout, state.dtype, _CALLER), weight)
    observed = check_observation(observation, model, state.dtype, _CALLER)
    key = as_keys(key, _CALLER)
    noise = check_noise(noise, key, model, state.dtype, _CALLER)

    adaptive, tableau = None, RUNGE_KUTTA
    if of_field:
        refuse(_CALLER, "a field takes `ts`, without", at=at)
        breaks = check_breakpoints(manifold, breakpoints, _CALLER)
        if dt is None:
            refuse(_CALLER, "an adaptive solve is without", remedy=" Give `dt`.", steps=steps, noise=noise, remat=remat)
            times = check_times(ts, _CALLER)
            check_solve(_CALLER, solver, stepsize_controller, adjoint, max_steps)
            plan, kept = None, len(times)
            options = SolveOptions(
                diffrax.Tsit5() if solver is None else solver,
                stepsize_controller,
                adjoint,
                None if breaks is None else jnp.asarray(breaks, state.dtype),
                max_steps,
            )
            adaptive = (jnp.asarray(times, state.dtype), seen_times(times, breaks, state.dtype), options)
        else:
            refuse(_CALLER, "fixed steps are without", stepsize_controller=stepsize_controller, adjoint=adjoint)
            tableau = explicit(solver, _CALLER)
            plan = fixed_schedule(ts, steps, dt, breaks, state.dtype, _CALLER)
            kept = plan.kept
    else:
        refuse(
            _CALLER,
            "a map moves in discrete time, without",
            ts=ts,
            dt=dt,
            breakpoints=breakpoints,
            solver=solver,
            stepsize_controller=stepsize_controller,
            adjoint=adjoint,
        )
        plan = map_schedule(manifold, theta, steps, at, _CALLER)
        kept = plan.kept
    if method == "auto":
        # A row of the adjoint costs about what a tangent does (Elman networks of 64 and 256 units, 100 steps).
        method = "adjoint" if thetas.shape[-1] > kept * observed else "forward"

    chunk = None if plan is None else chunk_size(remat, plan.shape[0])
    problem = Problem(
        Step(model, tableau, noise), manifold, start, plan, observation, bool(time_coordinate), keep == "all", chunk
    )
    points = thetas.reshape(-1, thetas.shape[-1])
    found, error, result = _run(problem, points, key, adaptive, method, batch_size)
    found, error, result = jax.tree.map(lambda x: x.reshape(*thetas.shape[:-1], *x.shape[1:]), (found, error, result))
    tangents = None if found.tangents is None else jnp.swapaxes(found.tangents, -1, -2)
    log_scale = found.exponent * math.log(2.0)
    if throw:
        remedy = "Shorten the time, or where tangents exploded use their `log_scale`."
        raise_failed(result, _CALLER, remedy)
    return RepresentationMetric(found.metric, found.states, tangents, log_scale, result, error, method)


@eqx.filter_jit
def _run(problem, thetas, key, adaptive, method, batch_size):
    problem = eqx.tree_at(lambda p: p.step.model, problem, prepared(problem.step.model))

    def at_key(key):
        here = eqx.tree_at(lambda p: p.step, problem, problem.step.with_key(key))

        def one(theta):
            if adaptive is not None:
                ts, seen_at, options = adaptive
                found, result = solve(here, ts, seen_at, method, options, theta)
            else:
                found = _KERNELS[method](here, theta)
                result = RESULTS.where(jnp.any(found.exponent > 0), RESULTS.diverged, RESULTS.successful)
            # What ended a solve early explains the infinities that it leaves.
            whole = jnp.all(found.finite) | ~((result == RESULTS.successful) | (result == RESULTS.diverged))
            return found, RESULTS.where(whole, result, RESULTS.non_finite)

        if batch_size is None:
            return jax.vmap(one)(thetas)
        return jax.lax.map(one, thetas, batch_size=batch_size)

    if key is None or key.ndim == 0:
        found, result = at_key(key)
        return found, None, result
    return average(at_key, key)
