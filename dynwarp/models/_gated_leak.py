"""The simplest gates: a leak that is constant, shared by the units, or one a unit."""

from __future__ import annotations

import math
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_choice, check_positive_integer
from dynwarp._typing import PRNGKey
from dynwarp.errors import ArgumentError
from dynwarp.models._base import AbstractMap
from dynwarp.models._cell import check_step, draw, drive, parameter_dtype
from dynwarp.models._initialisers import HAAR_ORTHOGONAL, XAVIER_UNIFORM, Initialiser

_GATES = ("constant", "shared", "diagonal")


class GatedLeak(AbstractMap):
    """A leak with a gate, h' = (1 - s) h + s tanh(W h + U x + b).

    The gate s is a learned number (`"constant"`), or sigmoid(V h + Y x + c): one number for all units (`"shared"`), or
    one a unit (`"diagonal"`). The time constant of a constant gate is -1 / log(1 - s) steps.

    **Arguments:**

    - `input_size`: d, the length of x; 0 for a network without input.
    - `state_size`: n, the length of h.
    - `gate`: see above.
    - `leak`: the value of s at the start, where V h + Y x is 0.
    - `use_bias`, `recurrent_init`, `input_init`, `dtype`, `key`: as for [`Elman`][dynwarp.models.Elman], with the same
      defaults; they make W and U. V and Y are drawn from N(0, 1 / n).

    Parameters: `recurrent_weight` W `(n, n)`, `input_weight` U `(n, d)`, `bias` b `(n,)` or None, and with g = 1 gates
    (shared, constant) or n (diagonal): `gate_recurrent_weight` V `(g, n)`, `gate_input_weight` Y `(g, d)`, both None
    for a constant gate, and `gate_bias` c `(g,)`. Cost of a step: (n + g) (n + d) multiplications.

    **Raises:** `ArgumentError` for sizes and choices that are none, and a leak outside (0, 1); a step raises
    `ShapeError` unless it is given one state and one input.

    **Source:** Livi, arXiv 2512.05790.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.GatedLeak(2, 3, gate="diagonal", leak=0.05, key=jax.random.key(0))
    >>> leak = net.leak(jnp.zeros(3), jnp.zeros(2))
    >>> leak.shape, round(float(-1 / jnp.log(1 - leak[0])), 4)
    ((3,), 19.4957)
    """

    recurrent_weight: Float[Array, "n n"]
    input_weight: Float[Array, "n d"]
    bias: Float[Array, " n"] | None
    gate_recurrent_weight: Float[Array, "g n"] | None
    gate_input_weight: Float[Array, "g d"] | None
    gate_bias: Float[Array, " g"]
    gate: Literal["constant", "shared", "diagonal"] = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        state_size: int,
        *,
        gate: Literal["constant", "shared", "diagonal"] = "diagonal",
        leak: float = 0.05,
        use_bias: bool = True,
        recurrent_init: Initialiser = HAAR_ORTHOGONAL,
        input_init: Initialiser = XAVIER_UNIFORM,
        dtype: Any = None,
        key: PRNGKey,
    ):
        self.input_size = d = check_positive_integer(input_size, "input_size", minimum=0, caller="GatedLeak")
        self.state_size = n = check_positive_integer(state_size, "state_size", caller="GatedLeak")
        check_choice(gate, "gate", _GATES, caller="GatedLeak")
        self.gate = gate
        if not 0 < leak < 1:
            raise ArgumentError(f"GatedLeak: `leak` must lie in (0, 1); got {leak!r}.")
        dtype = parameter_dtype(dtype, "GatedLeak")
        recurrent_key, input_key, *gate_keys = jax.random.split(key, 4)
        self.recurrent_weight = draw(recurrent_init, recurrent_key, (n, n), dtype, "recurrent_init")
        self.input_weight = draw(input_init, input_key, (n, d), dtype, "input_init")
        self.bias = jnp.zeros(n, dtype) if use_bias else None
        gates = n if gate == "diagonal" else 1
        self.gate_recurrent_weight = self.gate_input_weight = None
        if gate != "constant":
            weights = (jax.random.normal(k, (gates, size), dtype) for k, size in zip(gate_keys, (n, d)))
            self.gate_recurrent_weight, self.gate_input_weight = (weight / n**0.5 for weight in weights)
        self.gate_bias = jnp.full(gates, math.log(leak / (1 - leak)), dtype)

    def leak(self, state: Float[Array, " n"], input: Float[Array, " d"] | None = None) -> Float[Array, " g"]:
        """The gate s at this state and input, `(1,)` or `(n,)`."""
        argument = self.gate_bias
        if self.gate_recurrent_weight is not None:
            argument = argument + self.gate_recurrent_weight @ state
        if self.gate_input_weight is not None and input is not None:
            argument = argument + self.gate_input_weight @ input
        return jax.nn.sigmoid(argument)

    def __call__(self, state, input=None, *, step=None):
        check_step(self, state, input)
        candidate = jnp.tanh(self.recurrent_weight @ state + drive(self, input))
        return state + self.leak(state, input) * (candidate - state)
