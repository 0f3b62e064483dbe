"""Gated cells, in the conventions of cuDNN, PyTorch and Equinox."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer
from dynwarp._typing import PRNGKey
from dynwarp.models._base import AbstractMap
from dynwarp.models._cell import check_step, draw_gates, drive, parameter_dtype
from dynwarp.models._initialisers import HAAR_ORTHOGONAL, XAVIER_UNIFORM, Initialiser
from dynwarp.models._readout import StateReadout


class GRU(AbstractMap):
    """The gated recurrent unit.

    r = sigmoid(U_r x + W_r h + b_r), z = sigmoid(U_z x + W_z h + b_z), n = tanh(U_n x + b_n + r (W_n h + c_n)),
    h' = (1 - z) n + z h. The reset gate acts after the product with W_n, as in cuDNN, PyTorch and Equinox, not before
    it, as in the first paper.

    **Arguments:**

    - `input_size`: the length of x; 0 for a network without input.
    - `hidden_size`: the length of h, the state.
    - `use_bias`: False leaves all biases out.
    - `recurrent_init`, `input_init`: functions `(key, shape, dtype) -> array`, called once a gate. The default is
      Haar-orthogonal W, Glorot-uniform U and zero biases.
    - `dtype`: of the parameters; JAX's default float if None.
    - `key`: of the random draw.

    Parameters, gates stacked in the order r, z, n: `recurrent_weight` W `(3 hidden, hidden)`, `input_weight` U
    `(3 hidden, input)`, `bias` b `(3 hidden,)`, `bias_n` c_n `(hidden,)`. They are Equinox's `weight_hh`, `weight_ih`,
    `bias`, `bias_n`. From PyTorch: `bias` is b_ih, plus b_hh for r and z; `bias_n` is b_hh for n.
    Cost of a step: 3 hidden (hidden + input) multiplications.

    **Raises:** `ArgumentError` for sizes and functions that are none; a step raises `ShapeError` unless it is given one
    state and one input.

    **Source:** Cho et al., EMNLP 2014; the variant is that of `torch.nn.GRU`.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.GRU(2, 3, key=jax.random.key(0))
    >>> net(jnp.ones(3), jnp.ones(2)).shape
    (3,)
    """

    recurrent_weight: Float[Array, "3*n n"]
    input_weight: Float[Array, "3*n d"]
    bias: Float[Array, " 3*n"] | None
    bias_n: Float[Array, " n"] | None
    hidden_size: int = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        use_bias: bool = True,
        recurrent_init: Initialiser = HAAR_ORTHOGONAL,
        input_init: Initialiser = XAVIER_UNIFORM,
        dtype: Any = None,
        key: PRNGKey,
    ):
        self.input_size = d = check_positive_integer(input_size, "input_size", minimum=0, caller="GRU")
        self.state_size = self.hidden_size = n = check_positive_integer(hidden_size, "hidden_size", caller="GRU")
        dtype = parameter_dtype(dtype, "GRU")
        recurrent_key, input_key = jax.random.split(key)
        self.recurrent_weight = draw_gates(recurrent_init, recurrent_key, 3, (n, n), dtype, "recurrent_init")
        self.input_weight = draw_gates(input_init, input_key, 3, (n, d), dtype, "input_init")
        self.bias = jnp.zeros(3 * n, dtype) if use_bias else None
        self.bias_n = jnp.zeros(n, dtype) if use_bias else None

    def __call__(self, state, input=None, *, step=None):
        check_step(self, state, input)
        outer_r, outer_z, outer_n = jnp.split(drive(self, input), 3)
        inner_r, inner_z, inner_n = jnp.split(self.recurrent_weight @ state, 3)
        reset = jax.nn.sigmoid(outer_r + inner_r)
        keep = jax.nn.sigmoid(outer_z + inner_z)
        candidate = jnp.tanh(outer_n + reset * (inner_n if self.bias_n is None else inner_n + self.bias_n))
        return candidate + keep * (state - candidate)


class LSTM(AbstractMap):
    """Long short-term memory. The state is [h, c], the output and the memory.

    i, f, o = sigmoid(U x + W h + b), g = tanh(U_g x + W_g h + b_g), c' = f c + i g, h' = o tanh(c').

    **Arguments:**

    - `input_size`: the length of x; 0 for a network without input.
    - `hidden_size`: the length of h and of c; `state_size` is twice that.
    - `use_bias`: False leaves b out.
    - `recurrent_init`, `input_init`: functions `(key, shape, dtype) -> array`, called once a gate. The default is
      Haar-orthogonal W, Glorot-uniform U and b = 0 but for the forget gate, where it is 1.
    - `dtype`: of the parameters; JAX's default float if None.
    - `key`: of the random draw.

    Parameters, gates stacked in the order i, f, g, o: `recurrent_weight` W `(4 hidden, hidden)`, `input_weight` U
    `(4 hidden, input)`, `bias` b `(4 hidden,)` or None. They are Equinox's `weight_hh`, `weight_ih`, `bias`. From
    PyTorch: `bias` is b_ih + b_hh. Cost of a step: 4 hidden (hidden + input) multiplications.

    **Raises:** `ArgumentError` for sizes and functions that are none; a step raises `ShapeError` unless it is given one
    state and one input.

    **Source:** Hochreiter & Schmidhuber, Neural Computation 9 (1997) 1735; forget gate: Gers, Schmidhuber & Cummins,
    Neural Computation 12 (2000) 2451; its bias: Jozefowicz, Zaremba & Sutskever, ICML 2015.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.LSTM(2, 3, key=jax.random.key(0))
    >>> state = net(jnp.zeros(6), jnp.ones(2))
    >>> net.readout()(state).shape
    (3,)
    """

    recurrent_weight: Float[Array, "4*n n"]
    input_weight: Float[Array, "4*n d"]
    bias: Float[Array, " 4*n"] | None
    hidden_size: int = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        use_bias: bool = True,
        recurrent_init: Initialiser = HAAR_ORTHOGONAL,
        input_init: Initialiser = XAVIER_UNIFORM,
        dtype: Any = None,
        key: PRNGKey,
    ):
        self.input_size = d = check_positive_integer(input_size, "input_size", minimum=0, caller="LSTM")
        self.hidden_size = n = check_positive_integer(hidden_size, "hidden_size", caller="LSTM")
        self.state_size = 2 * n
        dtype = parameter_dtype(dtype, "LSTM")
        recurrent_key, input_key = jax.random.split(key)
        self.recurrent_weight = draw_gates(recurrent_init, recurrent_key, 4, (n, n), dtype, "recurrent_init")
        self.input_weight = draw_gates(input_init, input_key, 4, (n, d), dtype, "input_init")
        self.bias = jnp.repeat(jnp.array([0, 1, 0, 0], dtype), n) if use_bias else None

    def __call__(self, state, input=None, *, step=None):
        check_step(self, state, input)
        hidden, memory = jnp.split(state, 2)
        i, f, g, o = jnp.split(self.recurrent_weight @ hidden + drive(self, input), 4)
        memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jnp.concatenate([jax.nn.sigmoid(o) * jnp.tanh(memory), memory])

    def readout(self) -> StateReadout:
        """The map from the state [h, c] to the output h."""
        return StateReadout(0, self.hidden_size)
