"""The independently recurrent network."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive, check_positive_integer
from dynwarp._typing import Activation, PRNGKey
from dynwarp.errors import ArgumentError
from dynwarp.models._base import AbstractMap
from dynwarp.models._cell import check_activation, check_step, draw, drive, parameter_dtype
from dynwarp.models._initialisers import XAVIER_UNIFORM, Initialiser


class IndRNN(AbstractMap):
    """The independently recurrent network, h' = phi(U x + u * h + b): every unit feels itself alone.

    With slopes of phi of at most one, the state of a unit T steps ago acts with at most |u|^T. Weights are therefore
    held to |u| <= gamma^(1/T), so that this factor stays below gamma over a horizon of T steps.

    **Arguments:**

    - `input_size`: d, the length of x; 0 for a network without input.
    - `state_size`: n, the length of h.
    - `activation`: phi; the ReLU of the paper by default.
    - `gamma`, `horizon`: the largest gain, and over how many steps T. Without a `horizon` u is free.
    - `epsilon`: u is drawn uniformly from `[epsilon^(1/T), gamma^(1/T)]` (from `[0, 1]` without a horizon). 0 is for
      the lower layers; a small positive one, for the last, keeps every unit's memory.
    - `use_bias`, `input_init`, `dtype`, `key`: as for [`Elman`][dynwarp.models.Elman].

    Parameters: `recurrent_weight` u `(n,)`, `input_weight` U `(n, d)`, `bias` b `(n,)` or None. A step clamps u, and
    the derivative of a clamped weight is 0: after each update of an optimiser call `project()`, as the paper does, so
    that no weight stays outside. Cost of a step: n d multiplications.

    **Raises:** `ArgumentError` for sizes, functions and gains that are none; a step raises `ShapeError` unless it is
    given one state and one input.

    **Source:** Li, Li, Cook, Zhu & Gao, CVPR 2018 (arXiv 1803.04831).

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.IndRNN(2, 3, gamma=2.0, horizon=50, key=jax.random.key(0))
    >>> round(net.bound, 6)
    1.013959
    >>> net(jnp.zeros(3), jnp.zeros(2)).tolist()
    [0.0, 0.0, 0.0]
    """

    recurrent_weight: Float[Array, " n"]
    input_weight: Float[Array, "n d"]
    bias: Float[Array, " n"] | None
    activation: Activation = eqx.field(static=True)
    gamma: float = eqx.field(static=True)
    horizon: int | None = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        state_size: int,
        *,
        activation: Activation = jax.nn.relu,
        gamma: float = 2.0,
        horizon: int | None = None,
        epsilon: float = 0.0,
        use_bias: bool = True,
        input_init: Initialiser = XAVIER_UNIFORM,
        dtype: Any = None,
        key: PRNGKey,
    ):
        self.input_size = check_positive_integer(input_size, "input_size", minimum=0, caller="IndRNN")
        self.state_size = n = check_positive_integer(state_size, "state_size", caller="IndRNN")
        self.activation = check_activation(activation, "IndRNN")
        check_positive(gamma, "gamma", caller="IndRNN")
        self.gamma = float(gamma)
        self.horizon = None if horizon is None else check_positive_integer(horizon, "horizon", caller="IndRNN")
        if not 0 <= epsilon <= gamma:
            raise ArgumentError(f"IndRNN: `epsilon` must lie between 0 and gamma = {gamma}; got {epsilon!r}.")
        dtype = parameter_dtype(dtype, "IndRNN")
        recurrent_key, input_key = jax.random.split(key)
        low, high = (0.0, 1.0) if self.horizon is None else (epsilon ** (1 / self.horizon), self.bound)
        self.recurrent_weight = jax.random.uniform(recurrent_key, (n,), dtype, low, high)
        self.input_weight = draw(input_init, input_key, (n, self.input_size), dtype, "input_init")
        self.bias = jnp.zeros(n, dtype) if use_bias else None

    @property
    def bound(self) -> float:
        """The largest |u|, gamma^(1/T); infinity without a horizon."""
        return math.inf if self.horizon is None else self.gamma ** (1 / self.horizon)

    def clamped(self) -> Float[Array, " n"]:
        """The recurrent weights as a step uses them."""
        u = self.recurrent_weight
        return jnp.where(jnp.abs(u) <= self.bound, u, jnp.sign(u) * self.bound)

    def project(self) -> IndRNN:
        """The same network with every recurrent weight moved into the bound: to be called after each update."""
        return eqx.tree_at(lambda net: net.recurrent_weight, self, self.clamped())

    def __call__(self, state, input=None, *, step=None):
        check_step(self, state, input)
        return self.activation(drive(self, input) + self.clamped() * state)
