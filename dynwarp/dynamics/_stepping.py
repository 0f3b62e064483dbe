"""What every analysis asks of a model: which kind it is, and one step of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp._checks import (
    check_finite,
    check_float64,
    check_positive,
    check_positive_integer,
    check_shape,
    check_state,
    default_float,
)
from dynwarp._simulate._runge_kutta import RUNGE_KUTTA, VectorField, field_step
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.models import AbstractField, AbstractMap
from dynwarp.models._cell import prepared

Model: TypeAlias = AbstractMap | AbstractField
Signal: TypeAlias = Callable[[Any], jax.Array]


def is_field(model: Any, caller: str) -> bool:
    """Whether the model is a field; raises `ModelError` for what is neither a field nor a map."""
    if isinstance(model, AbstractField):
        return True
    if isinstance(model, AbstractMap):
        return False
    raise ModelError(
        f"{caller} needs a model, an AbstractMap or an AbstractField; got {type(model).__name__}. "
        "`dynwarp.models.from_cell` makes a map of an Equinox cell."
    )


def as_floating(x: Any) -> jax.Array:
    """`x` as an array of floats: whole numbers become JAX's default float, floats keep their precision."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(default_float())


class Step(eqx.Module):
    """One step of any model as a function of (index, state, input): a map's own, or one RK4 step of a field.

    `start` and `dt` are the time of index 0 and the step of a field; `signal` is its input as a function of time.
    """

    model: Any
    signal: Any = None
    start: Any = None
    dt: Any = None

    def __call__(self, index, state, input=None):
        if isinstance(self.model, AbstractMap):
            return self.model(state, input, step=index).astype(state.dtype)
        h = jnp.asarray(self.dt, state.dtype)
        t = jnp.asarray(self.start, state.dtype) + h * jnp.asarray(index).astype(state.dtype)
        field = VectorField(self.model, self.signal)
        return field_step(RUNGE_KUTTA, field, t, t + h, h, state).astype(state.dtype)


def check_leading(k: Any, size: int, caller: str) -> int:
    """How many leading exponents or vectors are asked for: `k`, or all of a state of this size."""
    k = size if k is None else check_positive_integer(k, "k", caller=caller)
    if k > size:
        raise ArgumentError(f"{caller}: `k` must be at most the state size {size}; got {k}.")
    return k


def prepare_step(model: Model, state0: Any, inputs: Any, steps: int, t0: Any, dt: Any, caller: str):
    """The step, its start in double precision and the inputs of its index, `(steps, d)` or None; checked.

    The inputs of a field are part of the step.
    """
    field = is_field(model, caller)
    check_state(model, state0, caller=caller)
    if field and dt is None:
        raise ArgumentError(f"{caller}: `dt`, the step of the integrator, is required for a field.")
    if dt is not None:
        check_positive(dt, "dt", caller=caller)
    signal = None
    if inputs is not None and field:
        if not (callable(inputs) or hasattr(inputs, "evaluate")):
            raise ArgumentError(f"{caller}: `inputs` of a field must be a function of time or a diffrax path.")
        signal, inputs = inputs, None
    elif inputs is not None:
        check_shape(inputs, "inputs", (steps, model.input_size), caller=caller)
        check_finite(inputs, "inputs", caller=caller)
    state = as_floating(state0)
    check_finite(state, "state0", caller=caller)
    check_float64(state, "state0", caller=caller)
    check_float64(model, "model", caller=caller)
    if field:
        return Step(model, signal, jnp.asarray(t0, state.dtype), jnp.asarray(dt, state.dtype)), state, inputs
    return Step(prepared(model)), state, inputs
