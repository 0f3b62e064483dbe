"""The almost-linear recurrent network: ReLUs on a few coordinates only."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer, check_shape, default_float
from dynwarp.errors import ArgumentError
from dynwarp.models import _plrnn_parts as parts
from dynwarp.models._base import AbstractPiecewiseLinearModel
from dynwarp.models._piecewise_linear import PiecewiseLinearMap


class ALRNN(AbstractPiecewiseLinearModel):
    """The almost-linear network z' = A z + W phi(z) + h + C s: phi is the ReLU on the last P coordinates only.

    **Arguments:**

    - `state_size`: M.
    - `relu_size`: P, from 1 to M; the map has at most 2^P linear regions.
    - `input_size`: d, the size of s; 0 for an autonomous network.
    - `dtype`: of the parameters; JAX's default if None.
    - `key`: draws the initial values.

    **Attributes:** `A`, the diagonal (M,), or a full (M, M) where `from_parameters` was given one; `W`, (M, M);
    `h`, (M,); `input_weight`, C, (M, d).

    Initial values: A as in [`PLRNN`][dynwarp.models.PLRNN]; W normal with standard deviation 0.01; h = 0; C uniform in
    +-1/sqrt(d).

    **Raises:** `ArgumentError` where a size is not a whole number in its range.

    **Source:** Brenner et al., NeurIPS (2024), arXiv:2410.14240.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> model = dw.models.ALRNN.from_parameters(jnp.zeros(2), jnp.eye(2), jnp.zeros(2), 1)
    >>> model(jnp.array([-3.0, -3.0])).tolist()
    [-3.0, 0.0]
    """

    A: Float[Array, " M"] | Float[Array, "M M"]
    W: Float[Array, "M M"]
    h: Float[Array, " M"]
    input_weight: Float[Array, "M d"]
    state_size: int = eqx.field(static=True)
    relu_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(self, state_size: int, relu_size: int, *, input_size: int = 0, dtype=None, key):
        self.state_size = check_positive_integer(state_size, "state_size", caller="ALRNN")
        self.relu_size = check_positive_integer(relu_size, "relu_size", caller="ALRNN")
        self.input_size = check_positive_integer(input_size, "input_size", minimum=0, caller="ALRNN")
        if relu_size > state_size:
            raise ArgumentError(f"ALRNN: `relu_size` must be at most `state_size`, {state_size}; got {relu_size}.")
        dtype = default_float(dtype)
        diagonal_key, weight_key, input_key = jax.random.split(key, 3)
        self.A = jnp.diagonal(parts.normalised_positive_definite(diagonal_key, state_size, dtype))
        self.W = 0.01 * jax.random.normal(weight_key, (state_size, state_size), dtype)
        self.h = jnp.zeros(state_size, dtype)
        self.input_weight = parts.uniform(input_key, (state_size, input_size), input_size, dtype)

    @classmethod
    def from_parameters(cls, A, W, h, relu_size: int, *, input_weight=None) -> ALRNN:
        """The network with these parameters, kept as given.

        **Arguments:** `A`, (M,) or (M, M); `W`, (M, M); `h`, (M,); `relu_size`, P; `input_weight`, (M, d) or None.

        **Raises:** `ShapeError` where the shapes do not fit; `ArgumentError` where `relu_size` is out of range.
        """
        caller = "ALRNN.from_parameters"
        given = parts.as_parameters(caller, A, h, W=W, input_weight=input_weight)
        size = given["h"].shape[0]
        check_shape(given["W"], "W", (size, size), caller=caller)
        given["input_weight"] = parts.input_columns(caller, given.get("input_weight"), given["h"])
        inputs = given["input_weight"].shape[1]
        skeleton = eqx.filter_eval_shape(lambda: cls(size, relu_size, input_size=inputs, key=jax.random.key(0)))
        return parts.fill(skeleton, given)

    def __call__(self, state, input=None, *, step=None):
        """The next state; see [`AbstractMap`][dynwarp.models.AbstractMap]."""
        linear = self.state_size - self.relu_size
        activity = jnp.concatenate([state[:linear], jax.nn.relu(state[linear:])])
        bias = parts.driven(self.h, self.input_weight, input)
        return parts.linear_part(self.A, state) + self.W @ activity + bias

    def canonical(self, input=None) -> PiecewiseLinearMap:
        """The same map for this input: A + [W_linear, 0]; W1 the last P columns of W, W2 the last P rows of I."""
        linear = self.state_size - self.relu_size
        A = parts.full_matrix(self.A).at[:, :linear].add(self.W[:, :linear])
        rows = jnp.eye(self.state_size, dtype=self.W.dtype)[linear:]
        bias = parts.driven(self.h, self.input_weight, input)
        return PiecewiseLinearMap(A, self.W[:, linear:], rows, bias, jnp.zeros_like(bias[linear:]))
