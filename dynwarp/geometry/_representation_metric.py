"""How a model stretches a manifold of inputs: the pullback metric of its states, at every time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import (
    check_choice,
    check_finite,
    check_positive,
    check_positive_integer,
    check_shape,
    check_state,
)
from dynwarp._compat import concrete
from dynwarp._results import RESULTS, raise_failed
from dynwarp._typing import State
from dynwarp.dynamics._stepping import as_floating, is_field
from dynwarp.errors import ArgumentError
from dynwarp.geometry._adaptive import SolveOptions, solve
from dynwarp.geometry._observation import Observation
from dynwarp.geometry._schedule import Schedule, initial, schedule_field, schedule_map
from dynwarp.geometry._sensitivities import forward, reference, reverse
from dynwarp.models import AbstractField, AbstractMap
from dynwarp.models._cell import prepared
from dynwarp.tasks import InputManifold

_CALLER = "representation_metric"
_KERNELS = {"forward": forward, "adjoint": reverse, "jacfwd": reference}
# The two methods cost the same where rows and tangents are equal in number (Elman networks of 64 and 256 units, 100
# steps); the adjoint has the states to keep besides.
_ROW = 1.5


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
    - `method`: the method that was used.
    """

    G: Float[Array, "... T m m"]
    states: Float[Array, "... T n"] | None
    tangents: Float[Array, "... T o m"] | None
    log_scale: Float[Array, "... T"]
    result: RESULTS
    method: str = eqx.field(static=True)

    def volume(self) -> Float[Array, "... T"]:
        """sqrt(det G), the volume of states per volume of coordinates; 0 where the metric is degenerate."""
        m = self.G.shape[-1]
        return jnp.sqrt(jnp.maximum(jnp.linalg.det(self.G), 0)) * jnp.exp(m * self.log_scale)

    def stretches(self) -> Float[Array, "... T m"]:
        """The principal stretches, the square roots of the eigenvalues of G in ascending order.

        Derivatives do not exist where two of them are equal.
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
    readout: Callable[[Array], Array] | None = None,
    weight: Any = None,
    keep: Literal["all", "metric"] = "all",
    batch_size: int | None = None,
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
      holds arrays should be an `eqx.Module`.
    - `steps`: of a map, how many rows of the inputs are used, all by default; of a field with `dt`, the number of steps
      from time 0.
    - `ts`: of a field, increasing times, `(T,)`; `state0` holds at the first, which is among those returned.
    - `at`: of a map, the indices of the states wanted, increasing (negative ones count from the end); all if None.
      `at=(-1,)` is the last state alone.
    - `method`: `"forward"` steps the state and its m tangents together; `"adjoint"` steps the derivatives of what is
      seen of each state wanted backwards, which costs the same for every m; `"jacfwd"` is the reference, automatic
      differentiation of the whole simulation. `"auto"` takes the adjoint where it is the cheaper one: where m is more
      than 1.5 times the number of states wanted times that of observed dimensions.
    - `readout`: a function `(n,) -> (o,)`; the metric is then that of the outputs.
    - `weight`: the matrix M of the inner product y^T M y', `(o, o)`, symmetric, or its diagonal `(o,)`.
    - `keep`: `"metric"` returns neither states nor tangents.
    - `batch_size`: how many points at once; all if None.
    - `dt`: of a field: fixed steps of the classical Runge-Kutta method, the derivatives being exactly those of the
      discrete steps. Without it steps are adaptive, with the errors of state and tangents both controlled.
    - `breakpoints`: of a field, times at which the input jumps; by default those that a task names itself.
    - `solver`, `stepsize_controller`, `adjoint`, `max_steps`: of adaptive solves, as in
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
    thetas = as_floating(thetas)
    _check_points(manifold, thetas)
    start: Any = _check_initial(model, state0)
    check_choice(method, "method", ("auto", *_KERNELS), caller=_CALLER)
    check_choice(keep, "keep", ("all", "metric"), caller=_CALLER)
    if batch_size is not None:
        batch_size = check_positive_integer(batch_size, "batch_size", caller=_CALLER)
    theta = jax.ShapeDtypeStruct(thetas.shape[-1:], thetas.dtype)
    state = eqx.filter_eval_shape(initial, start, theta)
    check_state(model, state, name="state0(theta)" if callable(state0) else "state0", caller=_CALLER)
    observation = Observation(readout, weight)
    observed = _check_observation(observation, model, state)

    options = None
    if of_field:
        _refuse("a field takes `ts`, without", at=at)
        breaks = _breakpoints(manifold, breakpoints)
        if dt is None:
            _refuse("an adaptive solve is without", remedy=" Give `dt`.", steps=steps)
            plan = jnp.asarray(_times(ts), state.dtype)
            options = SolveOptions(
                diffrax.Tsit5() if solver is None else solver,
                stepsize_controller,
                adjoint,
                None if breaks is None else jnp.asarray(breaks, state.dtype),
                max_steps,
            )
            kept = len(plan)
        else:
            _refuse("fixed steps are without", solver=solver, stepsize_controller=stepsize_controller, adjoint=adjoint)
            plan = _fixed_schedule(ts, steps, dt, breaks, state.dtype)
            kept = plan.kept
    else:
        _refuse(
            "a map moves in discrete time, without",
            ts=ts,
            dt=dt,
            breakpoints=breakpoints,
            solver=solver,
            stepsize_controller=stepsize_controller,
            adjoint=adjoint,
        )
        plan = _map_schedule(model, manifold, theta, steps, at)
        kept = plan.kept
    if method == "auto":
        method = "adjoint" if thetas.shape[-1] > _ROW * kept * observed else "forward"

    points = thetas.reshape(-1, thetas.shape[-1])
    found, result = _run(model, manifold, start, points, plan, options, method, observation, keep == "all", batch_size)
    found, result = jax.tree.map(lambda x: x.reshape(*thetas.shape[:-1], *x.shape[1:]), (found, result))
    tangents = None if found.tangents is None else jnp.swapaxes(found.tangents, -1, -2)
    log_scale = found.exponent * math.log(2.0)
    if throw:
        remedy = "Shorten the time, or where tangents exploded use their `log_scale`."
        raise_failed(result, _CALLER, remedy)
    return RepresentationMetric(found.metric, found.states, tangents, log_scale, result, method)


@eqx.filter_jit
def _run(model, manifold, state0, thetas, plan, options, method, observation, keep, batch_size):
    model = prepared(model)

    def one(theta):
        if options is not None:
            found, result = solve(model, manifold, state0, plan, method, options, observation, keep, theta)
        else:
            found = _KERNELS[method](model, manifold, state0, plan, observation, keep, theta)
            result = RESULTS.where(jnp.any(found.exponent > 0), RESULTS.diverged, RESULTS.successful)
        # What ended a solve early explains the infinities that it leaves.
        whole = jnp.all(found.finite) | ~((result == RESULTS.successful) | (result == RESULTS.diverged))
        return found, RESULTS.where(whole, result, RESULTS.non_finite)

    if batch_size is None:
        return jax.vmap(one)(thetas)
    return jax.lax.map(one, thetas, batch_size=batch_size)


def _check_points(manifold, thetas):
    if manifold is not None and not isinstance(manifold, InputManifold):
        raise ArgumentError(
            f"{_CALLER}: `manifold` must be an InputManifold; got {type(manifold).__name__}. A function becomes one by "
            "dynwarp.tasks.FunctionManifold(fn, dim=m)."
        )
    m = "m" if manifold is None else manifold.dim
    check_shape(thetas, "thetas", (*thetas.shape[:-1], m), caller=_CALLER)
    if thetas.size == 0:
        raise ArgumentError(f"{_CALLER}: `thetas` must hold at least one point; got shape {thetas.shape}.")
    check_finite(thetas, "thetas", caller=_CALLER)
    known = concrete(thetas)
    if manifold is None or known is None:
        return
    for i, (period, bound) in enumerate(manifold._axes()):
        if period is not None or bound is None:
            continue
        slack = 1e-6 * (bound[1] - bound[0])
        worst = known[..., i].ravel()
        outside = (worst < bound[0] - slack) | (worst > bound[1] + slack)
        if outside.any():
            raise ArgumentError(
                f"{_CALLER}: coordinate {i} of `thetas` must lie in {tuple(bound)}, the bounds of the manifold; got "
                f"{worst[outside][0]:g}."
            )


def _check_initial(model, state0):
    if callable(state0):
        return state0
    state0 = as_floating(state0)
    check_state(model, state0, caller=_CALLER)
    check_finite(state0, "state0", caller=_CALLER)
    return state0


def _check_observation(observation, model, state):
    """The number of observed dimensions."""
    if observation.readout is not None and not callable(observation.readout):
        raise ArgumentError(f"{_CALLER}: `readout` must be a function (n,) -> (o,); got {observation.readout!r}.")
    seen = eqx.filter_eval_shape(observation, jax.ShapeDtypeStruct((model.state_size,), state.dtype))
    check_shape(seen, "readout(state)", ("o",), caller=_CALLER)
    size = seen.shape[0]
    if observation.weight is not None:
        shape = (size,) if jnp.ndim(observation.weight) == 1 else (size, size)
        check_shape(observation.weight, "weight", shape, caller=_CALLER)
        check_finite(observation.weight, "weight", caller=_CALLER)
        known = concrete(observation.weight)
        if known is not None and known.ndim == 2 and not np.allclose(known, known.T, rtol=1e-6, atol=0):
            raise ArgumentError(f"{_CALLER}: `weight` must be symmetric.")
    return size


def _map_schedule(model, manifold, theta, steps, at) -> Schedule:
    if manifold is None:
        if steps is None:
            raise ArgumentError(f"{_CALLER}: a map without a manifold of inputs needs `steps`.")
        rows = check_positive_integer(steps, "steps", caller=_CALLER)
    else:
        inputs = eqx.filter_eval_shape(manifold, theta)
        check_shape(inputs, "manifold(theta)", ("T", model.input_size), caller=_CALLER)
        rows = inputs.shape[0]
    if steps is not None and check_positive_integer(steps, "steps", caller=_CALLER) > rows:
        raise ArgumentError(f"{_CALLER}: `steps` is {steps}, but the inputs have {rows} rows.")
    steps = rows if steps is None else int(steps)
    if steps == 0:
        raise ArgumentError(f"{_CALLER}: the manifold has inputs of no steps.")
    if at is not None:
        wanted = np.asarray(at)
        inside = wanted.ndim == 1 and len(wanted) and np.issubdtype(wanted.dtype, np.integer)
        if not inside or (wanted < -steps).any() or (wanted >= steps).any() or (np.diff(wanted % steps) <= 0).any():
            raise ArgumentError(f"{_CALLER}: `at` must be increasing indices of the {steps} states; got {at!r}.")
        at = tuple(int(i) for i in wanted % steps)
    return schedule_map(steps, at)


def _fixed_schedule(ts, steps, dt, breaks, dtype) -> Schedule:
    step = concrete(dt)
    if step is None or (ts is not None and concrete(ts) is None):
        raise ArgumentError(f"{_CALLER}: `dt` and `ts` fix the number of steps, and cannot be traced.")
    check_positive(step, "dt", caller=_CALLER)
    if (ts is None) == (steps is None):
        raise ArgumentError(f"{_CALLER}: a field with `dt` needs either `ts` or `steps`; got both or neither.")
    if ts is None:
        times = np.arange(check_positive_integer(steps, "steps", caller=_CALLER) + 1) * float(step)
    else:
        times = _times(ts)
    breaks = np.zeros(0) if breaks is None else breaks
    return schedule_field(times, float(step), breaks, dtype, first=ts is not None)


def _times(ts) -> np.ndarray:
    if ts is None:
        raise ArgumentError(f"{_CALLER}: a field needs `ts`, or `dt` with `ts` or `steps`.")
    times = concrete(ts)
    if times is None:
        raise ArgumentError(f"{_CALLER}: `ts` cannot be traced; use a numpy array.")
    check_shape(times, "ts", ("T",), caller=_CALLER)
    check_finite(times, "ts", caller=_CALLER)
    times = times.astype(np.float64)
    if len(times) < 2 or (np.diff(times) <= 0).any():
        raise ArgumentError(f"{_CALLER}: `ts` must be at least two times that increase; got {ts!r}.")
    return times


def _breakpoints(manifold, breakpoints) -> np.ndarray | None:
    """The times given, or those at which a task says that its inputs jump."""
    if breakpoints is None:
        if not hasattr(manifold, "breakpoints"):
            return None
        with jax.ensure_compile_time_eval():
            breakpoints = manifold.breakpoints()
    times = concrete(breakpoints)
    if times is None:
        raise ArgumentError(f"{_CALLER}: `breakpoints` cannot be traced; use a numpy array.")
    check_shape(times, "breakpoints", ("B",), caller=_CALLER)
    check_finite(times, "breakpoints", caller=_CALLER)
    return times.astype(np.float64) if len(times) else None


def _refuse(why: str, *, remedy: str = "", **options: Any) -> None:
    """Raises if one of these options was given."""
    given = [f"`{name}`" for name, value in options.items() if value is not None]
    if given:
        raise ArgumentError(f"{_CALLER}: {why} {', '.join(given)}.{remedy}")
