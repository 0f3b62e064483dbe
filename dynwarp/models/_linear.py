"""The linear recurrent network."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_shape
from dynwarp.models._base import AbstractLinearRecurrence
from dynwarp.models._cell import check_step
from dynwarp.models._diagonal import BLOCK
from dynwarp.models._readout import LinearReadout
from dynwarp.models._recurrence import chunked_scan, fft_length


class LinearRNN(AbstractLinearRecurrence):
    """The linear network h' = W h + B x with outputs y = A h.

    **Arguments:** `W`, shape `(n, n)`; `B`, shape `(n, d)`; `A`, shape `(o, n)`. `readout()` is the output map.

    **Raises:** `ShapeError` where the shapes do not fit.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> model = dw.models.LinearRNN(jnp.array([[0.5]]), jnp.ones((1, 1)), jnp.ones((1, 1)))
    >>> dw.simulate(model, jnp.zeros(1), jnp.ones((3, 1)))[:, 0].tolist()
    [1.0, 1.5, 1.75]
    """

    W: Float[Array, "n n"]
    B: Float[Array, "n d"]
    A: Float[Array, "o n"]
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(self, W: Float[Array, "n n"], B: Float[Array, "n d"], A: Float[Array, "o n"]):
        check_shape(W, "W", ("n", "n"), caller="LinearRNN")
        check_shape(B, "B", (jnp.shape(W)[0], "d"), caller="LinearRNN")
        check_shape(A, "A", ("o", jnp.shape(W)[0]), caller="LinearRNN")
        self.W, self.B, self.A = (_floating(x) for x in (W, B, A))
        self.state_size, self.input_size = self.B.shape

    def __call__(self, state, input=None, *, step=None):
        """The next state; see [`AbstractMap`][dynwarp.models.AbstractMap]."""
        check_step(self, state, input)
        return self.W @ state if input is None else self.W @ state + self.B @ input

    def readout(self) -> LinearReadout:
        """The output map y = A h."""
        return LinearReadout(self.A)

    def sequential(self, state0: Float[Array, " n"], inputs: Float[Array, "T d"]) -> Float[Array, "T n"]:
        """The states after each input, by a scan; the drive of a block of inputs is one matrix product."""
        return chunked_scan(
            lambda state, drive: self.W @ state + drive,
            state0,
            inputs,
            len(inputs),
            chunk=BLOCK,
            prepare=lambda inputs: inputs @ self.B.T,
        )

    def associative(self, state0, inputs):
        """The states after each input, by doubling: after round k every state has seen its last 2^k inputs.

        One `(T, n) x (n, n)` product a round and log2 T rounds; the powers W^(2^k) are shared by all times.
        """
        states = inputs @ self.B.T
        states = states.at[:1].add(self.W @ state0)
        power, shift = self.W, 1
        while shift < len(inputs):
            states = states.at[shift:].add(states[:-shift] @ power.T)
            power, shift = power @ power, 2 * shift
        return states

    def convolution(self, state0, inputs):
        """The states after each input, as a convolution with W^t B by FFT.

        It holds T n min(d, n) numbers, and powers of W that must not overflow.
        """
        length = len(inputs)
        if length == 0:
            return jnp.zeros((0, self.state_size), state0.dtype)
        wide = self.input_size > self.state_size
        kernel, signal = (jnp.eye(self.state_size, dtype=self.W.dtype), inputs @ self.B.T) if wide else (self.B, inputs)
        # The response to the initial state is one more column.
        response, power = jnp.concatenate([kernel, (self.W @ state0)[:, None]], axis=1)[None], self.W
        while len(response) < length:
            response = jnp.concatenate([response, power @ response])
            power = power @ power
        response = response[:length]
        size = fft_length(length)
        spectrum = jnp.einsum(
            "fnd,fd->fn", jnp.fft.rfft(response[..., :-1], size, axis=0), jnp.fft.rfft(signal, size, axis=0)
        )
        return jnp.fft.irfft(spectrum, size, axis=0)[:length] + response[..., -1]


def _floating(x):
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)
