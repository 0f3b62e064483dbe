"""What the constructors and steps of the cells share."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dynwarp._checks import check_positive, check_shape, default_float
from dynwarp._typing import Activation, PRNGKey
from dynwarp.errors import ArgumentError
from dynwarp.models._initialisers import Initialiser


def draw(init: Initialiser, key: PRNGKey, shape: tuple[int, int], dtype: Any, name: str) -> Array:
    """One weight matrix, checked: `init` may be the user's own."""
    if not callable(init):
        raise ArgumentError(f"`{name}` must be a function (key, shape, dtype) -> array; got {init!r}.")
    weight = jnp.asarray(init(key, shape, dtype), dtype)
    check_shape(weight, f"the matrix that {name} returns", shape)
    return weight


def draw_gates(init: Initialiser, key: PRNGKey, gates: int, shape: tuple[int, int], dtype: Any, name: str) -> Array:
    """The matrices of all gates, each drawn for itself, one above the other."""
    return jnp.concatenate([draw(init, k, shape, dtype, name) for k in jax.random.split(key, gates)])


def parameter_dtype(dtype: Any, caller: str) -> Any:
    """The dtype of new parameters; raises unless it is a real floating one."""
    resolved = default_float(dtype)
    if not jnp.issubdtype(resolved, jnp.floating):
        raise ArgumentError(f"{caller}: `dtype` must be a real floating type; got {dtype!r}.")
    return resolved


def computing_dtype(tree: Any) -> Any:
    """The real dtype in which the user's cells compute: that of their first array, else JAX's default."""
    for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array)):
        return leaf.real.dtype
    return default_float()


def check_activation(activation: Activation, caller: str) -> Activation:
    """Returns `activation`; raises unless it can be a static field: a function that holds no arrays."""
    if not callable(activation):
        raise ArgumentError(f"{caller}: `activation` must be a function of an array; got {activation!r}.")
    if any(eqx.is_array(leaf) for leaf in jax.tree.leaves(activation)):
        raise ArgumentError(
            f"{caller}: `activation` must hold no arrays; got {type(activation).__name__}. For an activation with "
            "parameters of its own write a subclass of AbstractMap or AbstractField."
        )
    return activation


def time_constant(value: Any, name: str, state_size: int, dtype: Any, caller: str) -> float | Array:
    """A number stays a number, which no optimiser sees; an array, one entry a unit, becomes a parameter."""
    check_positive(value, name, caller=caller)
    if isinstance(value, int | float | np.number):
        return float(value)
    constant = jnp.asarray(value, dtype)
    if constant.ndim:
        check_shape(constant, name, (state_size,), caller=caller)
    return constant


def check_step(model: Any, state: Any, input: Any) -> None:
    """Raises `ShapeError` unless these are one state and one input of `model`."""
    check_shape(state, "state", (model.state_size,), caller=type(model).__name__)
    if input is not None:
        check_shape(input, "input", (model.input_size,), caller=type(model).__name__)


def prepared(model: Any) -> Any:
    """The model for many steps with the same parameters: what does not change from step to step, such as a matrix
    exponential of parameters, is made once."""
    return model.prepared() if hasattr(model, "prepared") else model


def drive(model: Any, input: Array | None) -> Array:
    """What reaches the units from outside, B u + b; a missing input or bias is zero."""
    weight, bias = model.input_weight, model.bias
    if bias is None:
        bias = jnp.zeros(weight.shape[0], weight.dtype)
    return bias if input is None else weight @ input + bias
