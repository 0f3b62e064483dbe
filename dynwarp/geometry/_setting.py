"""The same arguments, checked once: what the verbs over inputs and times share."""

from __future__ import annotations

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._checks import (
    as_real,
    check_finite,
    check_positive,
    check_positive_integer,
    check_real,
    check_shape,
    check_state,
)
from dynwarp._compat import concrete
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.geometry._schedule import Schedule, initial, schedule_field, schedule_map
from dynwarp.tasks import InputManifold


def check_points(manifold: Any, thetas: jax.Array, caller: str) -> None:
    """Raises unless these are points of the manifold, within its bounds."""
    if manifold is not None and not isinstance(manifold, InputManifold):
        raise ArgumentError(
            f"{caller}: `manifold` must be an InputManifold; got {type(manifold).__name__}. A function becomes one by "
            "dynwarp.tasks.FunctionManifold(fn, dim=m)."
        )
    m = "m" if manifold is None else manifold.dim
    check_shape(thetas, "thetas", (*thetas.shape[:-1], m), caller=caller)
    if thetas.size == 0:
        raise ArgumentError(f"{caller}: `thetas` must hold at least one point; got shape {thetas.shape}.")
    check_finite(thetas, "thetas", caller=caller)
    known = concrete(thetas)
    if manifold is None or known is None:
        return
    for i, (period, bound) in enumerate(manifold._axes()):
        if period is not None or bound is None:
            continue
        slack = 1e-6 * (bound[1] - bound[0]) if np.isfinite(bound).all() else 0.0
        worst = known[..., i].ravel()
        outside = (worst < bound[0] - slack) | (worst > bound[1] + slack)
        if outside.any():
            raise ArgumentError(
                f"{caller}: coordinate {i} of `thetas` must lie in {tuple(bound)}, the bounds of the manifold; got "
                f"{worst[outside][0]:g}."
            )


def check_initial(model: Any, state0: Any, theta: Any, caller: str) -> tuple[Any, Any]:
    """The initial state, or the function of theta, and the shape and dtype of a state."""
    name = "state0(theta)" if callable(state0) else "state0"
    if not callable(state0):
        state0 = as_real(state0, "state0", caller=caller)
        check_finite(state0, "state0", caller=caller)
    state = eqx.filter_eval_shape(initial, state0, theta)
    check_state(model, state, name=name, caller=caller)
    return state0, state


def check_step(model: Any, manifold: Any, theta: Any, state: Any, of_field: bool, caller: str) -> None:
    """Raises unless the model and the inputs fit each other, by tracing one step."""
    name, clock = type(model).__name__, jax.ShapeDtypeStruct((), state.dtype if of_field else jnp.int32)
    if manifold is None:
        input = None
    elif of_field:
        input = eqx.filter_eval_shape(manifold, theta, clock)
        check_shape(input, "manifold(theta, t)", (model.input_size,), caller=caller)
    else:
        inputs = eqx.filter_eval_shape(manifold, theta)
        check_shape(inputs, "manifold(theta)", ("T", model.input_size), caller=caller)
        input = jax.ShapeDtypeStruct(inputs.shape[1:], inputs.dtype)

    def step(clock, state, input):
        return model(clock, state, input) if of_field else model(state, input, step=clock)

    try:
        after = eqx.filter_eval_shape(step, clock, state, input)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        raise ModelError(
            f"{caller}: {name} cannot be traced: its shapes or its choices depend on values of the state or the input. "
            "Use jnp.where or jax.lax.cond, and states of one size."
        ) from error
    if getattr(after, "shape", None) != state.shape:
        got = jax.tree.map(lambda x: getattr(x, "shape", x), after)
        what = "velocity" if of_field else "state"
        raise ModelError(f"{caller}: {name} must return a {what}, shape {tuple(state.shape)}; got {got}.")


def map_schedule(manifold: Any, theta: Any, steps: Any, at: Any, caller: str) -> Schedule:
    """All steps of a map, or those that the states wanted need."""
    if manifold is None:
        if steps is None:
            raise ArgumentError(f"{caller}: a map without a manifold of inputs needs `steps`.")
        rows = check_positive_integer(steps, "steps", caller=caller)
    else:
        rows = eqx.filter_eval_shape(manifold, theta).shape[0]
    if steps is not None and check_positive_integer(steps, "steps", caller=caller) > rows:
        raise ArgumentError(f"{caller}: `steps` is {steps}, but the inputs have {rows} rows.")
    steps = rows if steps is None else int(steps)
    if steps == 0:
        raise ArgumentError(f"{caller}: the manifold has inputs of no steps.")
    if at is not None:
        wanted = np.asarray(at)
        inside = wanted.ndim == 1 and len(wanted) and np.issubdtype(wanted.dtype, np.integer)
        if not inside or (wanted < -steps).any() or (wanted >= steps).any() or (np.diff(wanted % steps) <= 0).any():
            raise ArgumentError(f"{caller}: `at` must be increasing indices of the {steps} states; got {at!r}.")
        at = tuple(int(i) for i in wanted % steps)
    return schedule_map(steps, at)


def fixed_schedule(ts: Any, steps: Any, dt: Any, breaks: np.ndarray | None, dtype: Any, caller: str) -> Schedule:
    """Fixed steps of a field."""
    step = concrete(dt)
    if step is None or (ts is not None and concrete(ts) is None):
        raise ArgumentError(f"{caller}: `dt` and `ts` fix the number of steps, and cannot be traced.")
    check_positive(step, "dt", caller=caller)
    check_shape(step, "dt", (), caller=caller)
    if (ts is None) == (steps is None):
        raise ArgumentError(f"{caller}: a field with `dt` needs either `ts` or `steps`; got both or neither.")
    if ts is None:
        times = np.arange(check_positive_integer(steps, "steps", caller=caller) + 1) * float(step)
    else:
        times = check_times(ts, caller)
    breaks = np.zeros(0) if breaks is None else breaks
    return schedule_field(times, float(step), breaks, dtype, first=ts is not None)


def check_times(ts: Any, caller: str) -> np.ndarray:
    """The times as a NumPy array; raises unless there are two that increase."""
    if ts is None:
        raise ArgumentError(f"{caller}: a field needs `ts`, or `dt` with `ts` or `steps`.")
    times = concrete(ts)
    if times is None:
        raise ArgumentError(f"{caller}: `ts` cannot be traced; use a numpy array.")
    check_real(times, "ts", caller=caller)
    check_shape(times, "ts", ("T",), caller=caller)
    check_finite(times, "ts", caller=caller)
    times = times.astype(np.float64)
    if len(times) < 2 or (np.diff(times) <= 0).any():
        raise ArgumentError(f"{caller}: `ts` must be at least two times that increase; got {ts!r}.")
    return times


def check_breakpoints(manifold: Any, breakpoints: Any, caller: str) -> np.ndarray | None:
    """The times given, or those at which a task says that its inputs jump."""
    if breakpoints is None:
        if not hasattr(manifold, "breakpoints"):
            return None
        with jax.ensure_compile_time_eval():
            breakpoints = manifold.breakpoints()
    times = concrete(breakpoints)
    if times is None:
        raise ArgumentError(f"{caller}: `breakpoints` cannot be traced; use a numpy array.")
    check_real(times, "breakpoints", caller=caller)
    check_shape(times, "breakpoints", ("B",), caller=caller)
    check_finite(times, "breakpoints", caller=caller)
    return times.astype(np.float64) if len(times) else None


def seen_times(times: np.ndarray, breaks: np.ndarray | None, dtype: Any) -> jax.Array:
    """Where velocities at the times are evaluated: at a breakpoint just before it, at the first time just after."""
    times = times.astype(dtype)
    if breaks is None:
        return jnp.asarray(times)
    towards = np.where(np.arange(len(times)) == 0, np.inf, -np.inf).astype(dtype)
    return jnp.asarray(np.where(np.isin(times, breaks.astype(dtype)), np.nextafter(times, towards), times))


def as_keys(key: Any, caller: str) -> Any:
    """One key or an array of keys, in JAX's typed form, or None."""
    if key is None:
        return None
    if getattr(key, "dtype", None) == jnp.uint32:  # of jax.random.PRNGKey
        key = jax.random.wrap_key_data(key)
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not typed or key.ndim > 1 or key.shape in ((0,), (1,)):
        raise ArgumentError(
            f"{caller}: `key` must be one key, jax.random.key(0), or for a mean over realisations at least two, "
            f"jax.random.split(key, R); got {key!r}."
        )
    return key


def check_noise(noise: Any, key: Any, model: Any, dtype: Any, caller: str) -> Any:
    """The standard deviation of the noise, or None."""
    if noise is None:
        return None
    if key is None:
        raise ArgumentError(f"{caller}: `noise` needs a `key`, such as jax.random.key(0).")
    check_real(noise, "noise", caller=caller)
    if jnp.ndim(noise):
        check_shape(noise, "noise", (model.state_size,), caller=caller)
    known = concrete(noise)
    if known is not None and not (np.isfinite(known).all() and (known >= 0).all()):
        raise ArgumentError(f"{caller}: `noise` must be a standard deviation, finite and not negative; got {noise!r}.")
    return jnp.asarray(noise, dtype)


def check_solve(caller: str, solver: Any, stepsize_controller: Any, adjoint: Any, max_steps: Any) -> None:
    """Raises unless these are what diffrax takes, or None."""
    for name, value, kind in (
        ("solver", solver, diffrax.AbstractSolver),
        ("stepsize_controller", stepsize_controller, diffrax.AbstractStepSizeController),
        ("adjoint", adjoint, diffrax.AbstractAdjoint),
    ):
        if value is not None and not isinstance(value, kind):
            raise ArgumentError(f"{caller}: `{name}` must be a diffrax.{kind.__name__}, or None; got {value!r}.")
    if max_steps is not None:
        check_positive_integer(max_steps, "max_steps", caller=caller)


def in_precision(dtype: Any, tree: Any) -> Any:
    """With all arrays of real floats in one dtype, such as that of the initial state."""

    def cast(x):
        real = isinstance(x, jax.Array | np.ndarray) and jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(dtype) if real else x

    return jax.tree.map(cast, tree)


def refuse(caller: str, why: str, *, remedy: str = "", **options: Any) -> None:
    """Raises if one of these options was given."""
    given = [f"`{name}`" for name, value in options.items() if value is not None]
    if given:
        raise ArgumentError(f"{caller}: {why} {', '.join(given)}.{remedy}")
