"""Rate networks in continuous time, with full and with low-rank connectivity."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer
from dynwarp._typing import Activation, PRNGKey
from dynwarp.errors import ArgumentError
from dynwarp.models._base import AbstractField
from dynwarp.models._cell import check_activation, check_step, draw, drive, parameter_dtype, time_constant
from dynwarp.models._initialisers import GaussianInit, Initialiser

_HALF_GAUSSIAN = GaussianInit(0.5)
_GAUSSIAN = GaussianInit()
_NORMAL = jax.nn.initializers.normal(1.0)


class CTRNN(AbstractField):
    """The rate network tau dx/dt = -x + W phi(x) + B u (+ b).

    **Arguments:**

    - `input_size`: d, the length of u; 0 for a network without input.
    - `state_size`: n, the length of x.
    - `tau`: the time constant, in units of time. A number is a constant; an array, `()` or `(n,)`, is a parameter that
      is trained with the others.
    - `activation`: phi, any function of an array that holds no arrays of its own.
    - `use_bias`: True adds b, zero at first.
    - `recurrent_init`, `input_init`: functions `(key, shape, dtype) -> array`. The default is W ~ N(0, g^2 / n) with
      g = 0.5, quiet without input, and B ~ N(0, 1 / d). `recurrent_init=GaussianInit(g)` with g > 1 is chaotic for tanh
      and large n.
    - `dtype`: of the parameters; JAX's default float if None.
    - `key`: of the random draw.

    Parameters: `recurrent_weight` W `(n, n)`, `input_weight` B `(n, d)`, `bias` b `(n,)` or None, `tau` if an array.
    Cost of a velocity: n (n + d) multiplications.

    **Raises:** `ArgumentError` for sizes and functions that are none and for a `tau` that is not positive; a call
    raises `ShapeError` unless it is given one state and one input.

    **Source:** Sompolinsky, Crisanti & Sommers, Phys. Rev. Lett. 61 (1988) 259.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.CTRNN(2, 3, tau=2.0, key=jax.random.key(0))
    >>> net(0.0, jnp.zeros(3), jnp.zeros(2)).tolist()
    [0.0, 0.0, 0.0]
    """

    recurrent_weight: Float[Array, "n n"]
    input_weight: Float[Array, "n d"]
    bias: Float[Array, " n"] | None
    tau: float | Float[Array, "..."]
    activation: Activation = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        state_size: int,
        *,
        tau: float | Float[Array, "..."] = 1.0,
        activation: Activation = jnp.tanh,
        use_bias: bool = False,
        recurrent_init: Initialiser = _HALF_GAUSSIAN,
        input_init: Initialiser = _GAUSSIAN,
        dtype: Any = None,
        key: PRNGKey,
    ):
        self.input_size = check_positive_integer(input_size, "input_size", minimum=0, caller="CTRNN")
        self.state_size = n = check_positive_integer(state_size, "state_size", caller="CTRNN")
        self.activation = check_activation(activation, "CTRNN")
        dtype = parameter_dtype(dtype, "CTRNN")
        self.tau = time_constant(tau, "tau", n, dtype, "CTRNN")
        recurrent_key, input_key = jax.random.split(key)
        self.recurrent_weight = draw(recurrent_init, recurrent_key, (n, n), dtype, "recurrent_init")
        self.input_weight = draw(input_init, input_key, (n, self.input_size), dtype, "input_init")
        self.bias = jnp.zeros(n, dtype) if use_bias else None

    def __call__(self, t, state, input=None):
        check_step(self, state, input)
        return (self.recurrent_weight @ self.activation(state) + drive(self, input) - state) / self.tau


class LowRankRNN(AbstractField):
    """The rate network tau dx/dt = -x + W phi(x) + B u (+ b) with W = U V^T / n of low rank.

    W is kept in its factors: a velocity costs n (2 r + d) multiplications, and gradients respect the rank.

    **Arguments:**

    - `input_size`: d, the length of u; 0 for a network without input.
    - `state_size`: n, the length of x.
    - `rank`: r, from 1 to n.
    - `factor_init`: how U and V are drawn, a function `(key, shape, dtype) -> array`. The default is independent
      standard normal entries.
    - `tau`, `activation`, `use_bias`, `input_init`, `dtype`, `key`: as for [`CTRNN`][dynwarp.models.CTRNN], with the
      same defaults.

    Parameters: `U`, `V` `(n, r)`, `input_weight` B `(n, d)`, `bias` b `(n,)` or None, `tau` if an array.
    `recurrent_weight` is a property, the product W.

    **Raises:** as [`CTRNN`][dynwarp.models.CTRNN].

    **Source:** Mastrogiuseppe & Ostojic, Neuron 99 (2018) 609, where U and V are m and n.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.LowRankRNN(2, 8, 1, key=jax.random.key(0))
    >>> int(jnp.linalg.matrix_rank(net.recurrent_weight))
    1
    """

    U: Float[Array, "n r"]
    V: Float[Array, "n r"]
    input_weight: Float[Array, "n d"]
    bias: Float[Array, " n"] | None
    tau: float | Float[Array, "..."]
    activation: Activation = eqx.field(static=True)
    rank: int = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        state_size: int,
        rank: int,
        *,
        tau: float | Float[Array, "..."] = 1.0,
        activation: Activation = jnp.tanh,
        use_bias: bool = False,
        factor_init: Initialiser = _NORMAL,
        input_init: Initialiser = _GAUSSIAN,
        dtype: Any = None,
        key: PRNGKey,
    ):
        self.input_size = check_positive_integer(input_size, "input_size", minimum=0, caller="LowRankRNN")
        self.state_size = n = check_positive_integer(state_size, "state_size", caller="LowRankRNN")
        self.rank = check_positive_integer(rank, "rank", caller="LowRankRNN")
        if self.rank > n:
            raise ArgumentError(f"LowRankRNN: `rank` must be at most `state_size`, {n}; got {rank}.")
        self.activation = check_activation(activation, "LowRankRNN")
        dtype = parameter_dtype(dtype, "LowRankRNN")
        self.tau = time_constant(tau, "tau", n, dtype, "LowRankRNN")
        u_key, v_key, input_key = jax.random.split(key, 3)
        self.U = draw(factor_init, u_key, (n, self.rank), dtype, "factor_init")
        self.V = draw(factor_init, v_key, (n, self.rank), dtype, "factor_init")
        self.input_weight = draw(input_init, input_key, (n, self.input_size), dtype, "input_init")
        self.bias = jnp.zeros(n, dtype) if use_bias else None

    @property
    def recurrent_weight(self) -> Float[Array, "n n"]:
        """W = U V^T / n, shape `(n, n)`."""
        return self.U @ self.V.T / self.state_size

    def __call__(self, t, state, input=None):
        check_step(self, state, input)
        recurrent = self.U @ (self.V.T @ self.activation(state)) / self.state_size
        return (recurrent + drive(self, input) - state) / self.tau
