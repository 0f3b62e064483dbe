"""Jacobians of one step, or of the velocity, in the state and in the input."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_shape, check_state
from dynwarp._typing import Input, Scalar, State
from dynwarp.dynamics._stepping import Model, as_floating, is_field
from dynwarp.models._state_jacobian import state_jacobian


def jacobian(
    model: Model, state: State, input: Input | None = None, *, t: float | Scalar = 0.0, step: int | None = None
) -> Float[Array, "n n"]:
    """The Jacobian in the state: dF/dz of a map, df/dz of a field.

    **Arguments:**

    - `model`: an `AbstractMap` or an `AbstractField`.
    - `state`: shape `(n,)`. Many states: `jax.vmap`.
    - `input`: shape `(d,)`, or None.
    - `t`: the time, for fields.
    - `step`: the index of the step, for clocked maps.

    **Returns:** shape `(n, n)`, entry [i, j] = d out_i / d state_j. Where a ReLU is at 0 its slope is taken as 0. Cost
    n forward derivatives; less for `Elman`, `LeakyRNN` and `GRU`, whose Jacobians are written out.

    **Raises:** `ShapeError`; `ModelError` for what is not a model.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> f = dw.models.PiecewiseLinearMap(
    ...     2 * jnp.eye(2), jnp.array([[0.0], [1.0]]), jnp.array([[1.0, 0.0]]), jnp.zeros(2), jnp.zeros(1)
    ... )
    >>> dw.dynamics.jacobian(f, jnp.array([1.0, 0.0])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    is_field(model, "jacobian")
    check_state(model, state, name="state", caller="jacobian")
    if input is not None:
        check_shape(input, "input", (model.input_size,), caller="jacobian")
    return _jacobian(model, as_floating(state), input, t, step)


def input_jacobian(
    model: Model, state: State, input: Input, *, t: float | Scalar = 0.0, step: int | None = None
) -> Float[Array, "n d"]:
    """The Jacobian in the input: dF/ds of a map, df/ds of a field.

    **Arguments:** as [`jacobian`][dynwarp.dynamics.jacobian], with an input of shape `(d,)`.

    **Returns:** shape `(n, d)`, entry [i, j] = d out_i / d input_j.

    **Raises:** `ShapeError`; `ModelError` for what is not a model.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> cell = dw.models.Elman(2, 3, key=jax.random.key(0))
    >>> dw.dynamics.input_jacobian(cell, jnp.zeros(3), jnp.zeros(2)).shape
    (3, 2)
    """
    is_field(model, "input_jacobian")
    check_state(model, state, name="state", caller="input_jacobian")
    check_shape(input, "input", (model.input_size,), caller="input_jacobian")
    return _input_jacobian(model, as_floating(state), as_floating(input), t, step)


def advance(model: Model, state: jax.Array, input, t, step=None) -> jax.Array:
    """The next state of a map, the velocity of a field."""
    if is_field(model, "advance"):
        return model(jnp.asarray(t, state.dtype), state, input)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return model(state, input, step=step)  # pyright: ignore[reportCallIssue]


@eqx.filter_jit
def _jacobian(model, state, input, t, step):
    if is_field(model, "jacobian"):
        return jax.jacfwd(lambda z: advance(model, z, input, t, step))(state)
    return state_jacobian(model, state, input, step)


@eqx.filter_jit
def _input_jacobian(model, state, input, t, step):
    return jax.jacfwd(lambda s: advance(model, state, s, t, step))(input)
