"""What every analysis asks of a model: which kind it is, and one step of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp._checks import default_float
from dynwarp._simulate._rk4 import VectorField, rk4_step
from dynwarp.errors import ModelError
from dynwarp.models import AbstractField, AbstractMap

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
        return rk4_step(field, t, t + h, h, state).astype(state.dtype)
