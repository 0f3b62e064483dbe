"""The simple recurrent network, and the same with a leak."""

from __future__ import annotations

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_choice, check_positive_integer
from dynwarp._typing import Activation, PRNGKey
from dynwarp.models._base import AbstractMap
from dynwarp.models._cell import check_activation, check_step, draw, drive, parameter_dtype, time_constant
from dynwarp.models._initialisers import HAAR_ORTHOGONAL, XAVIER_UNIFORM, Initialiser


class Elman(AbstractMap):
    """The simple recurrent network: h' = phi(W h + U x + b).

    **Arguments:**

    - `input_size`: d, the length of x; 0 for a network without input.
    - `state_size`: n, the length of h.
    - `activation`: phi, any function of an array that holds no arrays of its own.
    - `form`: `"post"`, the state is what the activation gives, as above; `"pre"`, the state is what it is given,
      h' = W phi(h) + U x + b.
    - `use_bias`: False leaves b out.
    - `recurrent_init`, `input_init`: functions `(key, shape, dtype) -> array`. The default is a Haar-orthogonal W,
      Glorot-uniform U and b = 0.
    - `dtype`: of the parameters; JAX's default float if None.
    - `key`: of the random draw.

    Parameters: `recurrent_weight` W `(n, n)`, `input_weight` U `(n, d)`, `bias` b `(n,)` or None.
    Cost of a step: n (n + d) multiplications.

    **Raises:** `ArgumentError` for sizes, choices and functions that are none; a step raises `ShapeError` unless it is
    given one state and one input.

    **Source:** Elman, Cognitive Science 14 (1990) 179; the pre-activation form is that of Pascanu, Mikolov & Bengio,
    ICML 2013; orthogonal weights: Saxe, McClelland & Ganguli, ICLR 2014.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.Elman(2, 3, key=jax.random.key(0))
    >>> net(jnp.zeros(3), jnp.zeros(2)).tolist()
    [0.0, 0.0, 0.0]
    """

    recurrent_weight: Float[Array, "n n"]
    input_weight: Float[Array, "n d"]
    bias: Float[Array, " n"] | None
    activation: Activation = eqx.field(static=True)
    form: Literal["post", "pre"] = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        state_size: int,
        *,
        activation: Activation = jnp.tanh,
        form: Literal["post", "pre"] = "post",
        use_bias: bool = True,
        recurrent_init: Initialiser = HAAR_ORTHOGONAL,
        input_init: Initialiser = XAVIER_UNIFORM,
        dtype: Any = None,
        key: PRNGKey,
    ):
        self.input_size = check_positive_integer(input_size, "input_size", minimum=0, caller="Elman")
        self.state_size = n = check_positive_integer(state_size, "state_size", caller="Elman")
        self.activation = check_activation(activation, "Elman")
        check_choice(form, "form", ("post", "pre"), caller="Elman")
        self.form = form
        dtype = parameter_dtype(dtype, "Elman")
        recurrent_key, input_key = jax.random.split(key)
        self.recurrent_weight = draw(recurrent_init, recurrent_key, (n, n), dtype, "recurrent_init")
        self.input_weight = draw(input_init, input_key, (n, self.input_size), dtype, "input_init")
        self.bias = jnp.zeros(n, dtype) if use_bias else None

    def __call__(self, state, input=None, *, step=None):
        check_step(self, state, input)
        if self.form == "pre":
            return self.recurrent_weight @ self.activation(state) + drive(self, input)
        return self.activation(self.recurrent_weight @ state + drive(self, input))


class LeakyRNN(AbstractMap):
    """Leaky units: h' = (1 - alpha) h + alpha phi(W h + U x + b) with alpha = dt / tau.

    This is the Euler step of tau dh/dt = -h + phi(W h + U x + b); alpha = 1 is [`Elman`][dynwarp.models.Elman].

    **Arguments:**

    - `input_size`: d, the length of x; 0 for a network without input.
    - `state_size`: n, the length of h.
    - `dt`, `tau`: the time step and the time constant, in one unit. A number is a constant; an array, `()` or `(n,)`,
      is a parameter that is trained with the others.
    - `activation`, `use_bias`, `recurrent_init`, `input_init`, `dtype`, `key`: as for [`Elman`][dynwarp.models.Elman],
      with the same defaults.

    Parameters: `recurrent_weight` W `(n, n)`, `input_weight` U `(n, d)`, `bias` b `(n,)` or None, and `dt`, `tau` if
    arrays. Cost of a step: n (n + d) multiplications.

    **Raises:** as [`Elman`][dynwarp.models.Elman], and `ArgumentError` unless `dt` and `tau` are positive.

    **Source:** Yang et al., Nature Neuroscience 22 (2019) 297, with its random orthogonal W.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.LeakyRNN(2, 3, dt=0.2, key=jax.random.key(0))
    >>> net(jnp.zeros(3), jnp.zeros(2)).tolist()
    [0.0, 0.0, 0.0]
    """

    recurrent_weight: Float[Array, "n n"]
    input_weight: Float[Array, "n d"]
    bias: Float[Array, " n"] | None
    dt: float | Float[Array, "..."]
    tau: float | Float[Array, "..."]
    activation: Activation = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        state_size: int,
        *,
        dt: float | Float[Array, "..."] = 0.2,
        tau: float | Float[Array, "..."] = 1.0,
        activation: Activation = jnp.tanh,
        use_bias: bool = True,
        recurrent_init: Initialiser = HAAR_ORTHOGONAL,
        input_init: Initialiser = XAVIER_UNIFORM,
        dtype: Any = None,
        key: PRNGKey,
    ):
        self.input_size = check_positive_integer(input_size, "input_size", minimum=0, caller="LeakyRNN")
        self.state_size = n = check_positive_integer(state_size, "state_size", caller="LeakyRNN")
        self.activation = check_activation(activation, "LeakyRNN")
        dtype = parameter_dtype(dtype, "LeakyRNN")
        self.tau = time_constant(tau, "tau", n, dtype, "LeakyRNN")
        self.dt = time_constant(dt, "dt", n, dtype, "LeakyRNN")
        recurrent_key, input_key = jax.random.split(key)
        self.recurrent_weight = draw(recurrent_init, recurrent_key, (n, n), dtype, "recurrent_init")
        self.input_weight = draw(input_init, input_key, (n, self.input_size), dtype, "input_init")
        self.bias = jnp.zeros(n, dtype) if use_bias else None

    def __call__(self, state, input=None, *, step=None):
        check_step(self, state, input)
        alpha = self.dt / self.tau
        return (1 - alpha) * state + alpha * self.activation(self.recurrent_weight @ state + drive(self, input))
