"""The verb: checks its arguments on the host and hands them to the kernel that fits the model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._checks import (
    check_choice,
    check_finite,
    check_inputs,
    check_positive,
    check_positive_integer,
    check_shape,
    check_state,
)
from dynwarp._compat import concrete
from dynwarp._results import raise_failed
from dynwarp._simulate._fields import plan_steps, solve_adaptive, solve_fixed
from dynwarp._simulate._scan import chunk_size, run_linear, scan_map
from dynwarp._typing import Inputs, PRNGKey, Scalar, State, States
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.models import AbstractField, AbstractLinearRecurrence, AbstractMap, Bidirectional

_FORMS = {"scan": "sequential", "associative": "associative", "fft": "convolution"}


def simulate(
    model: AbstractMap | AbstractField | Bidirectional,
    state0: State,
    inputs: Inputs | Callable[[Scalar], Any] | diffrax.AbstractPath | None = None,
    *,
    steps: int | None = None,
    ts: Any = None,
    mode: Literal["auto", "scan", "associative", "fft"] = "auto",
    include_initial: bool = False,
    last_only: bool = False,
    dt: float | None = None,
    solver: diffrax.AbstractSolver | None = None,
    stepsize_controller: diffrax.AbstractStepSizeController | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    breakpoints: Any = None,
    max_steps: int | None = 65536,
    remat: int | Literal["sqrt"] | None = None,
    noise: Any = None,
    key: PRNGKey | None = None,
    throw: bool = True,
) -> States:
    """Steps a model through time: one sequence; batches are made with `jax.vmap`.

    **A map** takes `inputs`, shape `(T, d)`, or `steps`; `states[i]` is the state after `inputs[i]`, shape `(T, n)`.

    **A field** starts from `state0` at `ts[0]`, and `states[i]` is the state at `ts[i]`, so `states[0]` is `state0`.
    Steps are adaptive (diffrax), or with `dt` a scan over fixed Runge-Kutta steps of fourth order. `steps` with `dt`
    returns, as for a map, the states after each step from time 0.

    **Arguments:**

    - `state0`: shape `(n,)`, float32 or float64: what it and the model promote to is what is computed in.
    - `inputs`: of a map, shape `(T, d)`; of a field, a function `t -> (d,)` or a diffrax path. None is no input. A
      function that holds arrays should be an `eqx.Module`: a new lambda compiles anew.
    - `steps`: the number of steps, where there are no `inputs` to count, or with `dt`.
    - `ts`: increasing times, shape `(T,)`.
    - `mode`: how a linear recurrence is run: `"scan"`, `"associative"` (parallel in time) or `"fft"`. `"auto"` is the
      associative form on an accelerator and the scan on a CPU, where it is the fastest, but for one sequence of up to
      some 32 modes that is not differentiated. Other models have the scan.
    - `include_initial`: puts `state0` first, where it is not there already.
    - `last_only`: returns the last state alone, shape `(n,)`, and holds no other: for transients, and for losses of
      long sequences that need no more.
    - `dt`: the longest fixed step. Every gap between times is split into equal steps.
    - `solver`: of a field; adaptive, `diffrax.Tsit5()` by default. With `dt`, its steps take the place of RK4. An
      implicit method needs tolerances there, as `diffrax.ImplicitEuler(root_finder=diffrax.VeryChord(rtol=1e-8,
      atol=1e-8))` has them, and has no forward-mode derivative.
    - `stepsize_controller`: by default a PID controller with `rtol=1e-7, atol=1e-9` (float32: 1e-5, 1e-7).
    - `adjoint`: how an adaptive solve is differentiated. The default, `diffrax.DirectAdjoint()`, works forwards and
      backwards; `diffrax.RecursiveCheckpointAdjoint()` is up to three times faster backwards, and forbids `jax.jvp`.
    - `breakpoints`: times at which the field or its input jumps. No step crosses one, and the two steps that meet
      there see its left and its right limit.
    - `max_steps`: of an adaptive solve.
    - `remat`: reverse mode keeps one state in every `remat` steps and recomputes the others; `"sqrt"` is sqrt(T). The
      states returned, and their cotangents, are as long as they are: with `last_only` the temporary memory of T = 4096
      steps falls by 40.
    - `noise`: a standard deviation, a number or shape `(n,)`. A map adds noise N(0, noise^2) to the state after each
      step, a field with `dt` noise N(0, noise^2 h) after each step of length h (Euler-Maruyama). Needs `key`.
    - `key`: of the noise and of models with dropout; without one, those run as in inference.
    - `throw`: whether a failed adaptive solve raises; else the rows that it did not reach are infinite.

    A `Bidirectional` network takes `inputs`, both initial states one after the other, and `key`.

    **Returns:** states, shape `(T, n)`, or `(n,)` with `last_only`. Differentiable forwards and backwards in the model,
    the initial state and the inputs. A state that runs to infinity is no error.

    **Raises:** `ShapeError`, `ArgumentError` and `NonFiniteError` for arguments that do not fit; `ModelError` for a
    mode that the model does not have; `ConvergenceError` where an adaptive solve ends early (outside of `jax.jit`).

    **Cost:** T steps. Reverse mode keeps T states and what each step needs, with `remat="sqrt"` 2 sqrt(T) of them.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> half = dw.models.LinearRNN(jnp.array([[0.5]]), jnp.ones((1, 1)), jnp.ones((1, 1)))
    >>> dw.simulate(half, jnp.array([8.0]), steps=3)[:, 0].tolist()
    [4.0, 2.0, 1.0]
    >>> dw.simulate(half, jnp.array([8.0]), jnp.ones((2, 1)), include_initial=True)[:, 0].tolist()
    [8.0, 5.0, 3.5]
    """
    if not isinstance(model, AbstractMap | AbstractField | Bidirectional):
        raise ModelError(
            f"simulate: `model` must be an AbstractMap or an AbstractField; got {type(model).__name__}. "
            "`models.from_cell` wraps a cell."
        )
    state0 = jnp.asarray(state0)
    check_state(model, state0, caller="simulate")
    check_finite(state0, "state0", caller="simulate")
    if not jnp.issubdtype(state0.dtype, jnp.floating):
        state0 = state0.astype(float)
    check_choice(mode, "mode", (*_FORMS, "auto"), caller="simulate")
    if steps is not None:
        steps = check_positive_integer(steps, "steps", minimum=0, caller="simulate")
    if remat is not None and remat != "sqrt":
        remat = check_positive_integer(remat, "remat", caller="simulate")
    if noise is not None:
        noise = _check_noise(noise, key, state0)
    if include_initial and last_only:
        raise ArgumentError("simulate: `include_initial` and `last_only` exclude each other.")
    keep = "last" if last_only else "all" if include_initial else "steps"

    if isinstance(model, AbstractField):
        if mode not in ("auto", "scan"):
            raise ModelError(f"simulate: {type(model).__name__} is a field and has no mode {mode!r}.")
        _check_signal(inputs)
        breakpoints = None if breakpoints is None else _check_times(breakpoints, "breakpoints", increasing=False)
        if dt is not None:
            _refuse("`dt` takes fixed steps, without", stepsize_controller=stepsize_controller, adjoint=adjoint)
            with _precisions_named(model, state0, inputs):
                return _simulate_fixed(
                    model, state0, inputs, steps, ts, keep, dt, solver, breakpoints, remat, noise, key
                )
        _refuse("an adaptive solve is without", noise=noise, remat=remat, steps=steps, remedy=" Give `dt`.")
        with _precisions_named(model, state0, inputs):
            return _simulate_adaptive(
                model, state0, inputs, ts, keep, solver, stepsize_controller, adjoint, breakpoints, max_steps, throw
            )

    _refuse(
        f"{type(model).__name__} moves in discrete time, without",
        ts=ts,
        dt=dt,
        solver=solver,
        stepsize_controller=stepsize_controller,
        adjoint=adjoint,
        breakpoints=breakpoints,
    )
    if inputs is not None:
        check_inputs(model, inputs, caller="simulate")
        check_finite(inputs, "inputs", caller="simulate")
        inputs = jnp.asarray(inputs)
        if steps not in (None, len(inputs)):
            raise ArgumentError(f"simulate: `steps` is {steps}, but `inputs` has {len(inputs)} rows.")
        steps = len(inputs)
    if isinstance(model, Bidirectional):
        _refuse("Bidirectional is without", noise=noise, remat=remat)
        if inputs is None or keep != "steps" or mode not in ("auto", "scan"):
            raise ModelError(
                "simulate: Bidirectional needs `inputs`, has the mode 'scan' only, and no single first or last state."
            )
        return model(inputs, state0=state0, key=key)
    if steps is None:
        raise ArgumentError("simulate: a map needs `inputs`, shape (T, d), or `steps`.")
    with _precisions_named(model, state0, inputs):
        return _simulate_map(model, state0, inputs, steps, mode, keep, remat, noise, key)


def _simulate_map(model, state0, inputs, steps, mode, keep, remat, noise, key):
    linear = isinstance(model, AbstractLinearRecurrence)
    drawn = key is not None and getattr(model, "stochastic", False)
    plain = noise is None and remat is None and not drawn
    if mode in ("associative", "fft"):
        if not linear:
            raise ModelError(f"simulate: {type(model).__name__} is no linear recurrence and has no mode {mode!r}.")
        last = True if keep == "last" else None
        _refuse(f"mode {mode!r} is without", noise=noise, remat=remat, last_only=last, key=key if drawn else None)
    if mode == "auto":
        mode = "associative" if linear and plain and jax.default_backend() != "cpu" else "scan"
    form = _FORMS[mode]
    # A user's own linear recurrence need not have a sequential form, for which its step will do.
    if plain and linear and hasattr(model, form) and keep != "last":
        inputs = jnp.zeros((steps, model.input_size), state0.dtype) if inputs is None else inputs
        states = run_linear(model, state0, inputs, form)
    else:
        states = scan_map(model, state0, inputs, steps, chunk_size(remat, steps), keep == "last", noise, key)
    return _with_initial(state0, states) if keep == "all" else states


def _simulate_fixed(model, state0, inputs, steps, ts, keep, dt, solver, breakpoints, remat, noise, key):
    step = concrete(dt)
    if step is None or (ts is not None and concrete(ts) is None):
        raise ArgumentError("simulate: `dt` and `ts` fix the number of steps, and cannot be traced; use numpy arrays.")
    check_positive(step, "dt", caller="simulate")
    if (ts is None) == (steps is None):
        raise ArgumentError("simulate: a field with `dt` needs either `ts` or `steps`; got both or neither.")
    times = np.arange(steps + 1) * float(step) if ts is None else _check_times(ts, "ts")
    if not isinstance(getattr(getattr(solver, "root_finder", None), "rtol", 0.0), float | np.generic | jax.Array):
        raise ArgumentError(
            "simulate: with `dt` there is no controller whose tolerances the implicit `solver` could take; give "
            f"diffrax.{type(solver).__name__}(root_finder=diffrax.VeryChord(rtol=1e-8, atol=1e-8))."
        )
    if breakpoints is not None and concrete(breakpoints) is None:
        raise ArgumentError("simulate: with `dt`, `breakpoints` cannot be traced; use a numpy array.")
    if len(times) == 1:
        states = state0 if keep == "last" else state0[None][1:]
    else:
        breaks = np.zeros(0) if breakpoints is None else np.asarray(breakpoints)
        plan = plan_steps(np.asarray(times), float(step), breaks, state0.dtype)
        chunk = chunk_size(remat, len(plan.length))
        states = solve_fixed(model, inputs, state0, plan, solver, chunk, keep == "last", noise, key)
    # Of a field, the state at the first time is the initial one.
    first = keep == "all" or (keep == "steps" and ts is not None)
    return _with_initial(state0, states) if first else states


def _simulate_adaptive(model, state0, inputs, ts, keep, solver, controller, adjoint, breakpoints, max_steps, throw):
    if ts is None:
        raise ArgumentError("simulate: a field needs `ts`, or `dt` with `ts` or `steps`.")
    ts = jnp.asarray(_check_times(ts, "ts"), state0.dtype)
    if max_steps is not None:
        check_positive_integer(max_steps, "max_steps", caller="simulate")
    if len(ts) == 1:
        return state0 if keep == "last" else state0[None]
    if keep == "last":
        ts = ts[jnp.array([0, -1])]
    states, result = solve_adaptive(
        model,
        inputs,
        state0,
        ts,
        diffrax.Tsit5() if solver is None else solver,
        controller,
        diffrax.DirectAdjoint() if adjoint is None else adjoint,
        None if breakpoints is None else jnp.asarray(breakpoints, ts.dtype),
        max_steps,
    )
    if throw:
        raise_failed(result, "simulate", "Raise `max_steps`, loosen the tolerances, or pass a stiff `solver`.")
    return states[-1] if keep == "last" else states


@contextlib.contextmanager
def _precisions_named(model, state0, inputs):
    """Says which arguments JAX's strict promotion keeps apart."""
    try:
        yield
    except ValueError as error:
        if type(error).__name__ != "TypePromotionError":  # JAX has no public name for it.
            raise
        held = {
            name: sorted({leaf.dtype.name for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))})
            for name, tree in (("model", model), ("state0", state0), ("inputs", inputs))
        }
        got = ", ".join(f"`{name}` {' and '.join(dtypes)}" for name, dtypes in held.items() if dtypes)
        raise ArgumentError(
            "simulate: JAX's strict promotion does not mix precisions: `state0`, `model` and `inputs`, or what a "
            f"function of time returns, must have the same; got {got}."
        ) from error


def _with_initial(state0, states):
    return jnp.concatenate([state0.astype(states.dtype)[None], states])


def _check_noise(noise, key, state0):
    if key is None:
        raise ArgumentError("simulate: `noise` needs a `key`, such as jax.random.key(0).")
    if jnp.ndim(noise):
        check_shape(noise, "noise", state0.shape, caller="simulate")
    known = concrete(noise)
    if known is not None and not (np.isfinite(known).all() and (known >= 0).all()):
        raise ArgumentError(f"simulate: `noise` must be a standard deviation, finite and not negative; got {noise!r}.")
    return jnp.asarray(noise, state0.dtype)


def _check_signal(inputs: Any) -> None:
    """Raises unless this can be the input of a field."""
    if inputs is not None and not callable(getattr(inputs, "evaluate", inputs)):
        raise ArgumentError(
            "simulate: the `inputs` of a field must be a function t -> (d,) or a diffrax path; got "
            f"{type(inputs).__name__}. Samples become one by diffrax.LinearInterpolation(ts, samples)."
        )


def _check_times(times: Any, name: str, *, increasing: bool = True) -> Any:
    """Returns `times`, floating-point and one-dimensional; raises unless a concrete one is finite and increasing."""
    times = times if isinstance(times, jax.Array) else np.asarray(times)
    check_shape(times, name, ("T",), caller="simulate")
    check_finite(times, name, caller="simulate")
    known = concrete(times)
    if increasing and len(times) == 0:
        raise ArgumentError(f"simulate: `{name}` must hold at least one time; got none.")
    if known is None:
        return times
    if increasing and (np.diff(known) <= 0).any():
        raise ArgumentError(
            f"simulate: `{name}` must increase; entry {int(np.argmax(np.diff(known) <= 0)) + 1} does not."
        )
    return known if np.issubdtype(known.dtype, np.floating) else known.astype(np.float64)


def _refuse(why: str, *, remedy: str = "", **options: Any) -> None:
    """Raises if one of these options was given."""
    given = [f"`{name}`" for name, value in options.items() if value is not None]
    if given:
        raise ArgumentError(f"simulate: {why} {', '.join(given)}.{remedy}")
