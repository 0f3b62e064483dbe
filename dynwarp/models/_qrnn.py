"""The quasi-recurrent network."""

from __future__ import annotations

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_choice, check_positive_integer
from dynwarp._typing import PRNGKey
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.models._base import AbstractLinearRecurrence
from dynwarp.models._cell import check_step, draw_gates, parameter_dtype
from dynwarp.models._diagonal import BLOCK, diagonal_scan
from dynwarp.models._initialisers import XAVIER_UNIFORM, Initialiser
from dynwarp.models._readout import StateReadout
from dynwarp.models._recurrence import chunked_scan


class QRNN(AbstractLinearRecurrence):
    """The quasi-recurrent network: gates from a causal convolution of the inputs, and a recurrence unit by unit.

    With z = tanh(W_z * X) and f, o, i = sigmoid(W * X), where * reaches over the last `kernel_size` inputs:

    - `"f"`: h' = f h + (1 - f) z;
    - `"fo"`: c' = f c + (1 - f) z, h' = o c';
    - `"ifo"`: c' = f c + i z, h' = o c'.

    The state is [h, memory] for `"f"` and [h, c, memory] for the others; `memory` holds the last `kernel_size` - 1
    inputs, newest first, and is zero before the sequence begins. The memory is nilpotent, and so is h where there is a
    c: these directions are gone after `kernel_size` steps, and have Lyapunov exponents of -infinity. Given the inputs
    the rest is linear in the state, so that `simulate` has the mode `"associative"`.

    **Arguments:**

    - `input_size`: d, the length of x.
    - `state_size`: n, the length of h. (The attribute `state_size` counts everything the state holds.)
    - `kernel_size`: 1 uses the present input alone.
    - `pooling`: see above.
    - `zoneout`: the probability p with which an entry of the forget gate is set to 1, so that the unit keeps its value.
      Used in a call with a `key`; without one the gate is its mean over such draws, p + (1 - p) f.
    - `use_bias`, `input_init`, `dtype`, `key`: as for [`Elman`][dynwarp.models.Elman].

    Parameters, gates stacked in the order z, f, o, i: `input_weight` `(gates n, kernel_size d)`, the columns of the
    newest input first; `bias` `(gates n,)` or None. `readout()` is the map from the state to h.
    Cost of a step: gates n kernel_size d multiplications.

    **Raises:** `ArgumentError` for sizes, choices and probabilities that are none; a step raises `ShapeError` unless it
    is given one state and one input.

    **Source:** Bradbury, Merity, Xiong & Socher, ICLR 2017 (arXiv 1611.01576); the mean at rest: Krueger et al., ICLR
    2017.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.QRNN(2, 3, kernel_size=2, pooling="fo", key=jax.random.key(0))
    >>> states = dw.simulate(net, jnp.zeros(net.state_size), jnp.ones((5, 2)))
    >>> states.shape, jax.vmap(net.readout())(states).shape
    ((5, 8), (5, 3))
    """

    input_weight: Float[Array, "gates*n k*d"]
    bias: Float[Array, " gates*n"] | None
    pooling: Literal["f", "fo", "ifo"] = eqx.field(static=True)
    zoneout: float = eqx.field(static=True)
    kernel_size: int = eqx.field(static=True)
    hidden_size: int = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        state_size: int,
        *,
        kernel_size: int = 2,
        pooling: Literal["f", "fo", "ifo"] = "fo",
        zoneout: float = 0.0,
        use_bias: bool = True,
        input_init: Initialiser = XAVIER_UNIFORM,
        dtype: Any = None,
        key: PRNGKey,
    ):
        self.input_size = d = check_positive_integer(input_size, "input_size", caller="QRNN")
        self.hidden_size = n = check_positive_integer(state_size, "state_size", caller="QRNN")
        self.kernel_size = k = check_positive_integer(kernel_size, "kernel_size", caller="QRNN")
        check_choice(pooling, "pooling", ("f", "fo", "ifo"), caller="QRNN")
        self.pooling = pooling
        if not 0 <= zoneout < 1:
            raise ArgumentError(f"QRNN: `zoneout` must be a probability in [0, 1); got {zoneout!r}.")
        self.zoneout = float(zoneout)
        dtype = parameter_dtype(dtype, "QRNN")
        gates = 1 + len(pooling)
        self.state_size = (1 if pooling == "f" else 2) * n + (k - 1) * d
        self.input_weight = draw_gates(input_init, key, gates, (n, k * d), dtype, "input_init")
        self.bias = jnp.zeros(gates * n, dtype) if use_bias else None

    @property
    def stochastic(self) -> bool:
        """Whether a call with a `key` draws random numbers."""
        return self.zoneout > 0

    def __call__(self, state, input=None, *, step=None, key: PRNGKey | None = None):
        """The next state; see [`AbstractMap`][dynwarp.models.AbstractMap]. With a `key`, zoneout is drawn."""
        check_step(self, state, input)
        input = jnp.zeros(self.input_size, state.dtype) if input is None else input
        memory = state[self.state_size - (self.kernel_size - 1) * self.input_size :]
        window = jnp.concatenate([input.astype(state.dtype), memory])
        pooled = self._pool(state, self._gates(window, key))
        return jnp.concatenate([pooled, window[: memory.shape[0]]])

    def _gates(self, windows, key=None) -> tuple[Array, Array, Array | None]:
        """The factor f, the summand and the output gate (None where h is c) for windows `(..., k d)`."""
        drive = windows @ self.input_weight.T
        if self.bias is not None:
            drive = drive + self.bias
        z, *gates = jnp.split(drive, 1 + len(self.pooling), axis=-1)
        z = jnp.tanh(z)
        keep, *rest = (jax.nn.sigmoid(g) for g in gates)
        if self.stochastic:
            # The rest, 1 - f, is what zoneout drops: by a coin if there is a key, on average if there is none.
            open_ = 1 - self.zoneout
            mask = open_ if key is None else jax.random.bernoulli(key, open_, keep.shape).astype(keep.dtype)
            keep = 1 - mask * (1 - keep)
        summand = rest[1] * z if self.pooling == "ifo" else (1 - keep) * z
        return keep, summand, rest[0] if rest else None

    def _pool(self, state, gates):
        """[h'] or [h', c'] from a state that begins with [h] or [h, c]."""
        keep, summand, output = gates
        n = self.hidden_size
        if output is None:
            return keep * state[:n] + summand
        c = keep * state[n : 2 * n] + summand
        return jnp.concatenate([output * c, c])

    def _windows(self, state0, inputs):
        """What the convolution sees at each time, `(T, k d)`, newest input first."""
        length, d = inputs.shape
        memory = state0[self.state_size - (self.kernel_size - 1) * d :].reshape(-1, d)
        padded = jnp.concatenate([memory[::-1], inputs.astype(state0.dtype)])
        return jnp.concatenate([padded[len(memory) - j :][:length] for j in range(self.kernel_size)], axis=1)

    def _with_memory(self, pooled, windows):
        return jnp.concatenate([pooled, windows[:, : (self.kernel_size - 1) * self.input_size]], axis=1)

    def sequential(self, state0: Float[Array, " n"], inputs: Float[Array, "T d"]) -> Float[Array, "T n"]:
        """The states after each input, by a scan; the gates of a block of inputs are one matrix product."""
        windows = self._windows(state0, inputs)
        start = state0[: (1 if self.pooling == "f" else 2) * self.hidden_size]
        pooled = chunked_scan(self._pool, start, windows, len(inputs), chunk=BLOCK, prepare=self._gates)
        return self._with_memory(pooled, windows)

    def associative(self, state0, inputs):
        """The states after each input, by `jax.lax.associative_scan`: about 2 T products in 2 log2 T rounds."""
        windows = self._windows(state0, inputs)
        keep, summand, output = self._gates(windows)
        n = self.hidden_size
        start = state0[:n] if output is None else state0[n : 2 * n]
        c = diagonal_scan(keep, summand.at[:1].add(keep[:1] * start))
        return self._with_memory(c if output is None else jnp.concatenate([output * c, c], axis=1), windows)

    def convolution(self, state0, inputs):
        """Raises `ModelError`: what multiplies the state depends on the input, so that there is no convolution."""
        raise ModelError("QRNN depends on its input in every step and is no convolution; use mode 'scan'.")

    def readout(self) -> StateReadout:
        """The map from the state to the output h."""
        return StateReadout(0, self.hidden_size)
