"""Recurrent weights that stay orthogonal while they are learned."""

from __future__ import annotations

import math
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_choice, check_positive_integer
from dynwarp._typing import Activation, PRNGKey
from dynwarp.models._base import AbstractMap
from dynwarp.models._cell import check_activation, check_step, draw, parameter_dtype
from dynwarp.models._initialisers import XAVIER_UNIFORM, Initialiser


class OrthogonalRNN(AbstractMap):
    """A network whose recurrent matrix is orthogonal for every value of its parameters: h' = phi(Q h + U x, b).

    Q is the exponential exp(S), or the Cayley transform (I + S)^-1 (I - S), of a skew-symmetric S = A - A^T. Both are
    rotations; the exponential reaches all of them, Cayley those without the eigenvalue -1. A linear network (phi the
    identity) has all its Lyapunov exponents at 0.

    **Arguments:**

    - `input_size`: d, the length of x; 0 for a network without input.
    - `state_size`: n, the length of h.
    - `parametrisation`: `"exponential"` (the expRNN) or `"cayley"` (the scoRNN).
    - `activation`: None is the modReLU, sign(z) relu(|z| + b) with z = Q h + U x; a function phi is phi(z + b).
    - `init`: S at the start is of blocks [[0, s], [-s, 0]]. `"henaff"`: Q rotates each plane by an angle uniform on
      (-pi, pi). `"cayley"`: s = -sqrt((1 - cos t) / (1 + cos t)) with t uniform on [0, pi / 2].
    - `input_init`, `dtype`, `key`: as for [`Elman`][dynwarp.models.Elman].

    Parameters: `generator` A `(n, n)`, of which the part above the diagonal is used, `input_weight` U `(n, d)`, `bias`
    b `(n,)`. A call by itself costs the n^3 of Q; `simulate` makes Q once for the whole run, by `prepared()`.

    **Raises:** `ArgumentError` for sizes and choices that are none; a step raises `ShapeError` unless it is given one
    state and one input.

    **Source:** Lezcano-Casado & Martínez-Rubio, ICML 2019 (exponential); Helfrich, Willmott & Ye, ICML 2018 (Cayley);
    Henaff, Szlam & LeCun, ICML 2016 (the start); Arjovsky, Shah & Bengio, ICML 2016 (modReLU).

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.OrthogonalRNN(2, 4, key=jax.random.key(0))
    >>> Q = net.recurrent_matrix()
    >>> bool(jnp.allclose(Q @ Q.T, jnp.eye(4)))
    True
    """

    generator: Float[Array, "n n"]
    input_weight: Float[Array, "n d"]
    bias: Float[Array, " n"]
    activation: Activation | None = eqx.field(static=True)
    parametrisation: Literal["exponential", "cayley"] = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        state_size: int,
        *,
        parametrisation: Literal["exponential", "cayley"] = "exponential",
        activation: Activation | None = None,
        init: Literal["henaff", "cayley"] = "henaff",
        input_init: Initialiser = XAVIER_UNIFORM,
        dtype: Any = None,
        key: PRNGKey,
    ):
        self.input_size = check_positive_integer(input_size, "input_size", minimum=0, caller="OrthogonalRNN")
        self.state_size = n = check_positive_integer(state_size, "state_size", caller="OrthogonalRNN")
        check_choice(parametrisation, "parametrisation", ("exponential", "cayley"), caller="OrthogonalRNN")
        check_choice(init, "init", ("henaff", "cayley"), caller="OrthogonalRNN")
        self.parametrisation = parametrisation
        self.activation = None if activation is None else check_activation(activation, "OrthogonalRNN")
        dtype = parameter_dtype(dtype, "OrthogonalRNN")
        generator_key, input_key = jax.random.split(key)
        if init == "henaff":
            angle = jax.random.uniform(generator_key, (n // 2,), dtype, -math.pi, math.pi)
            # Cayley turns a block s into a rotation by -2 arctan(s).
            values = angle if parametrisation == "exponential" else -jnp.tan(angle / 2)
        else:
            values = -jnp.tan(jax.random.uniform(generator_key, (n // 2,), dtype, 0, math.pi / 2) / 2)
        first = jnp.arange(n // 2) * 2
        self.generator = jnp.zeros((n, n), dtype).at[first, first + 1].set(values)
        self.input_weight = draw(input_init, input_key, (n, self.input_size), dtype, "input_init")
        self.bias = jnp.zeros(n, dtype)

    def recurrent_matrix(self) -> Float[Array, "n n"]:
        """Q, orthogonal, `(n, n)`; cost n^3."""
        upper = jnp.triu(self.generator, 1)
        skew = upper - upper.T
        if self.parametrisation == "exponential":
            return jax.scipy.linalg.expm(skew)
        identity = jnp.eye(self.state_size, dtype=skew.dtype)
        return jnp.linalg.solve(identity + skew, identity - skew)

    def prepared(self) -> AbstractMap:
        """The same map with Q already there, for many steps with the same parameters; it has their derivatives."""
        return _FixedRotation(self.recurrent_matrix(), self.input_weight, self.bias, self.activation)

    def __call__(self, state, input=None, *, step=None):
        check_step(self, state, input)
        return self.prepared()(state, input)


class _FixedRotation(AbstractMap):
    """What `OrthogonalRNN.prepared()` returns: the map with its orthogonal matrix as an array.

    **Attributes:** `recurrent_weight` Q `(n, n)`, `input_weight` U `(n, d)`, `bias` b `(n,)`, `activation`, as there.
    """

    recurrent_weight: Float[Array, "n n"]
    input_weight: Float[Array, "n d"]
    bias: Float[Array, " n"]
    activation: Activation | None = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(self, recurrent_weight: Array, input_weight: Array, bias: Array, activation: Activation | None):
        self.recurrent_weight, self.input_weight, self.bias = recurrent_weight, input_weight, bias
        self.activation = activation
        self.state_size, self.input_size = input_weight.shape

    def __call__(self, state, input=None, *, step=None):
        check_step(self, state, input)
        z = self.recurrent_weight @ state
        if input is not None:
            z = z + self.input_weight @ input
        if self.activation is not None:
            return self.activation(z + self.bias)
        return jnp.sign(z) * jax.nn.relu(jnp.abs(z) + self.bias)
