"""The verb: checks its arguments on the host and hands them to the kernel that fits the model."""

from __future__ import annotations

from typing import Any, Literal

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._checks import (
    check_choice,
    check_finite,
    check_inputs,
    check_positive_integer,
    check_shape,
    check_state,
)
from dynwarp._results import raise_failed
from dynwarp._simulate._fields import adaptive_solve, fixed_step_solve, step_plan
from dynwarp._simulate._scan import scan_map
from dynwarp._typing import PRNGKey, State, States
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.models import AbstractField, AbstractLinearRecurrence, AbstractMap

_FIELD_ONLY = ("ts", "dt", "solver", "stepsize_controller", "adjoint", "breakpoints")


def simulate(
    model: AbstractMap | AbstractField,
    state0: State,
    inputs: Any = None,
    *,
    steps: int | None = None,
    ts: Any = None,
    mode: Literal["auto", "scan", "associative", "fft"] = "auto",
    include_initial: bool = False,
    dt: float | None = None,
    solver: Any = None,
    stepsize_controller: Any = None,
    adjoint: Any = None,
    breakpoints: Any = None,
    max_steps: int = 65536,
    remat: int | Literal["sqrt"] | None = None,
    noise: Any = None,
    key: PRNGKey | None = None,
    throw: bool = True,
) -> States:
    """Steps a model through time.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> rotation = dw.models.PiecewiseLinearMap(
    ...     jnp.array([[0.0, -1.0], [1.0, 0.0]]), jnp.zeros((2, 1)), jnp.zeros((1, 2)), jnp.zeros(2), jnp.zeros(1)
    ... )
    >>> dw.simulate(rotation, jnp.array([1.0, 0.0]), steps=4).shape
    (4, 2)
    """
    if not isinstance(model, AbstractMap | AbstractField):
        raise ModelError(
            f"simulate: `model` must be an AbstractMap or an AbstractField; got {type(model).__name__}. "
            "models.from_cell wraps other cells."
        )
    check_state(model, state0, caller="simulate")
    check_finite(state0, "state0", caller="simulate")
    check_choice(mode, "mode", ("auto", "scan", "associative", "fft"), caller="simulate")
    state0 = jnp.asarray(state0)
    state0 = state0.astype(jnp.result_type(float)) if not jnp.issubdtype(state0.dtype, jnp.floating) else state0
    if remat is not None and remat != "sqrt":
        check_positive_integer(remat, "remat", caller="simulate")
    if noise is not None:
        if key is None:
            raise ArgumentError("simulate: `noise` needs a `key`, such as jax.random.key(0).")
        noise = jnp.asarray(noise, state0.dtype)
        if noise.ndim:
            check_shape(noise, "noise", (model.state_size,), caller="simulate")
        check_finite(noise, "noise", caller="simulate")
    if isinstance(model, AbstractField):
        if mode != "auto" and mode != "scan":
            raise ModelError(f"simulate: {type(model).__name__} is a field and has no mode {mode!r}.")
        return _simulate_field(
            model, state0, inputs, steps, ts, include_initial, dt, solver, stepsize_controller, adjoint, breakpoints,
            max_steps, remat, noise, key, throw,
        )  # fmt: skip
    given = dict(zip(_FIELD_ONLY, (ts, dt, solver, stepsize_controller, adjoint, breakpoints)))
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(
                f"simulate: `{name}` is for fields; {type(model).__name__} is a map, step it by `steps`."
            )
    if inputs is not None:
        check_inputs(model, inputs, caller="simulate")
        check_finite(inputs, "inputs", caller="simulate")
        inputs = jnp.asarray(inputs)
        if steps is not None and steps != inputs.shape[0]:
            raise ArgumentError(f"simulate: `steps` is {steps}, but `inputs` has {inputs.shape[0]} rows.")
        steps = inputs.shape[0]
    if steps is None:
        raise ArgumentError("simulate: a map needs `inputs`, (T, d), or `steps`.")
    steps = check_positive_integer(steps, "steps", minimum=0, caller="simulate")
    states = _simulate_map(model, state0, inputs, steps, mode, remat, noise, key)
    return jnp.concatenate([state0.astype(states.dtype)[None], states]) if include_initial else states


def _simulate_map(model, state0, inputs, steps, mode, remat, noise, key):
    parallel = isinstance(model, AbstractLinearRecurrence)
    if mode in ("associative", "fft") and not parallel:
        raise ModelError(
            f"simulate: {type(model).__name__} is no linear recurrence and has no mode {mode!r}; use 'scan'."
        )
    if mode == "auto":
        on_cpu = jax.default_backend() == "cpu"
        mode = "associative" if parallel and not on_cpu and remat is None and noise is None else "scan"
    if mode == "scan":
        return scan_map(model, state0, inputs, steps, remat, noise, key)
    if noise is not None or remat is not None:
        raise ArgumentError(f"simulate: mode {mode!r} takes neither `noise` nor `remat`; use 'scan'.")
    if inputs is None:
        inputs = jnp.zeros((steps, model.input_size), state0.dtype)
    return model.associative(state0, inputs) if mode == "associative" else model.convolution(state0, inputs)


def _simulate_field(
    model, state0, inputs, steps, ts, include_initial, dt, solver, controller, adjoint, breakpoints, max_steps, remat,
    noise, key, throw,
):  # fmt: skip
    if inputs is not None and not callable(getattr(inputs, "evaluate", inputs)):
        raise ArgumentError("simulate: the `inputs` of a field are a callable t -> (d,) or a diffrax path.")
    dtype = state0.dtype
    breakpoints = None if breakpoints is None else np.atleast_1d(np.asarray(breakpoints))
    if dt is not None:
        dt = float(dt)
        times = np.arange(steps + 1) * dt if ts is None else np.asarray(ts)
        if len(times) == 1:
            return state0[None][1 if ts is None and not include_initial else 0 :]
        plan, kept = step_plan(times, dt, np.zeros(0) if breakpoints is None else breakpoints, dtype)
        plan = jax.tree.map(jnp.asarray, plan)
        states = fixed_step_solve((model, inputs), state0, plan, kept, solver, remat, noise, key)
        if ts is not None or include_initial:
            states = jnp.concatenate([state0.astype(states.dtype)[None], states])
        return states
    if noise is not None:
        raise ArgumentError("simulate: `noise` needs the fixed-step scan; give `dt`.")
    if ts is None:
        raise ArgumentError("simulate: a field needs `ts`, or `steps` with `dt`.")
    ts = jnp.asarray(ts, dtype)
    if ts.shape == (1,):
        return state0[None]
    solver = diffrax.Tsit5() if solver is None else solver
    if controller is None:
        double = dtype == jnp.float64
        controller = diffrax.PIDController(rtol=1e-7 if double else 1e-5, atol=1e-9 if double else 1e-7)
    adjoint = diffrax.DirectAdjoint() if adjoint is None else adjoint
    jumps = None if breakpoints is None else jnp.asarray(breakpoints, dtype)
    states, result = adaptive_solve((model, inputs), state0, ts, solver, controller, adjoint, jumps, max_steps)
    if throw:
        raise_failed(result, "simulate", "Raise `max_steps`, loosen the tolerances or pass a stiff `solver`.")
    return states
