"""What a network emits: maps from states, and at most the present input, to outputs."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer, check_shape
from dynwarp._typing import Activation, PRNGKey
from dynwarp.models._cell import check_activation, draw, parameter_dtype
from dynwarp.models._initialisers import GaussianInit, Initialiser

_GAUSSIAN = GaussianInit()


class Readout(eqx.Module):
    """An affine readout, y = C z + c, or y = C phi(z) + c with `activation=phi`.

    **Arguments:**

    - `state_size`: n, the length of z.
    - `output_size`: o, the length of y.
    - `use_bias`: False leaves c out.
    - `activation`: phi, applied to the state first: rate networks emit rates. None is the identity.
    - `weight_init`: a function `(key, shape, dtype) -> array`. The default is C ~ N(0, 1 / n) and c = 0.
    - `dtype`: of the parameters; JAX's default float if None.
    - `key`: of the random draw.

    Called as `readout(state, input=None)`, (n,) -> (o,); the input is ignored.
    Parameters: `weight` C `(o, n)`, `bias` c `(o,)` or None.

    **Raises:** `ArgumentError` for sizes and functions that are none; a call raises `ShapeError` unless it is given one
    state.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> dw.models.Readout(3, 2, key=jax.random.key(0))(jnp.zeros(3)).tolist()
    [0.0, 0.0]
    """

    weight: Float[Array, "o n"]
    bias: Float[Array, " o"] | None
    activation: Activation | None = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    output_size: int = eqx.field(static=True)

    def __init__(
        self,
        state_size: int,
        output_size: int,
        *,
        use_bias: bool = True,
        activation: Activation | None = None,
        weight_init: Initialiser = _GAUSSIAN,
        dtype: Any = None,
        key: PRNGKey,
    ):
        self.state_size = check_positive_integer(state_size, "state_size", caller="Readout")
        self.output_size = check_positive_integer(output_size, "output_size", caller="Readout")
        self.activation = None if activation is None else check_activation(activation, "Readout")
        dtype = parameter_dtype(dtype, "Readout")
        self.weight = draw(weight_init, key, (self.output_size, self.state_size), dtype, "weight_init")
        self.bias = jnp.zeros(self.output_size, dtype) if use_bias else None

    def __call__(self, state: Float[Array, " n"], input: Float[Array, " d"] | None = None) -> Float[Array, " o"]:
        check_shape(state, "state", (self.state_size,), caller="Readout")
        output = self.weight @ (state if self.activation is None else self.activation(state))
        return output if self.bias is None else output + self.bias


class LinearReadout(eqx.Module):
    """The output map of a linear state-space model, y = C z + D x.

    **Arguments:**

    - `C`: shape `(o, n)`.
    - `D`: the feedthrough, shape `(o, d)`, or None.

    Called as `readout(state, input=None)`; a missing input is zero.

    **Raises:** `ShapeError` where the shapes do not fit.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> r = dw.models.LinearReadout(jnp.array([[1.0, 2.0]]), jnp.array([[3.0]]))
    >>> r(jnp.array([1.0, 1.0]), jnp.array([2.0])).tolist()
    [9.0]
    """

    C: Float[Array, "o n"]
    D: Float[Array, "o d"] | None

    def __init__(self, C: Float[Array, "o n"], D: Float[Array, "o d"] | None = None):
        self.C = jnp.asarray(C)
        self.D = None if D is None else jnp.asarray(D)
        check_shape(self.C, "C", ("o", "n"), caller="LinearReadout")
        if self.D is not None:
            check_shape(self.D, "D", (self.C.shape[0], "d"), caller="LinearReadout")

    def __call__(self, state: Float[Array, " n"], input: Float[Array, " d"] | None = None) -> Float[Array, " o"]:
        check_shape(state, "state", (self.C.shape[1],), caller="LinearReadout")
        if self.D is None or input is None:
            return self.C @ state
        check_shape(input, "input", (self.D.shape[1],), caller="LinearReadout")
        return self.C @ state + self.D @ input


class StateReadout(eqx.Module):
    """The entries `start` to `stop` of the state: what a model emits whose state holds more than its output.

    Called as `readout(state, input=None)`; the input is ignored.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.models.StateReadout(1, 3)(jnp.arange(4.0)).tolist()
    [1.0, 2.0]
    """

    start: int = eqx.field(static=True)
    stop: int = eqx.field(static=True)

    def __call__(self, state: Float[Array, " n"], input: Float[Array, " d"] | None = None) -> Float[Array, " o"]:
        return state[self.start : self.stop]
