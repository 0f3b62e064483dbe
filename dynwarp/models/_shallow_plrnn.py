"""Shallow piecewise-linear networks: one hidden ReLU layer in the recurrence."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer, check_shape, default_float
from dynwarp.models import _plrnn_parts as parts
from dynwarp.models._base import AbstractPiecewiseLinearModel
from dynwarp.models._piecewise_linear import PiecewiseLinearMap


class ShallowPLRNN(AbstractPiecewiseLinearModel):
    """The shallow PLRNN z' = A z + W1 relu(W2 z + h2) + h1 + C s.

    **Arguments:**

    - `state_size`: M.
    - `hidden_size`: H, the number of ReLUs.
    - `clipped`: z' = A z + W1 [relu(W2 z + h2) - relu(W2 z)] + h1 + C s, whose orbits stay bounded if |A| < 1.
    - `input_size`: d, the size of s; 0 for an autonomous network.
    - `dtype`: of the parameters; JAX's default if None.
    - `key`: draws the initial values.

    **Attributes:** `A`, the diagonal (M,), or a full (M, M) where `from_parameters` was given one; `W1`, (M, H);
    `W2`, (H, M); `h1`, (M,); `h2`, (H,); `input_weight`, C, (M, d).

    Initial values: A as in [`PLRNN`][dynwarp.models.PLRNN]; W1 and W2 uniform in +-1/sqrt(fan in); h1 = 0; h2 = 0, but
    uniform in +-1/sqrt(H) if clipped, where h2 = 0 would switch the hidden layer off; C uniform in +-1/sqrt(d).

    **Raises:** `ArgumentError` where a size is not a whole number.

    **Source:** Hess et al., ICML (2023), arXiv:2306.04406.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> model = dw.models.ShallowPLRNN.from_parameters(
    ...     jnp.array([0.5]), jnp.array([[2.0]]), jnp.array([[1.0]]), jnp.array([0.0]), jnp.array([1.0]), clipped=True
    ... )
    >>> model(jnp.array([10.0])).tolist()
    [7.0]
    """

    A: Float[Array, " M"] | Float[Array, "M M"]
    W1: Float[Array, "M H"]
    W2: Float[Array, "H M"]
    h1: Float[Array, " M"]
    h2: Float[Array, " H"]
    input_weight: Float[Array, "M d"]
    clipped: bool = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    hidden_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self, state_size: int, hidden_size: int, *, clipped: bool = False, input_size: int = 0, dtype=None, key
    ):
        self.state_size = check_positive_integer(state_size, "state_size", caller="ShallowPLRNN")
        self.hidden_size = check_positive_integer(hidden_size, "hidden_size", caller="ShallowPLRNN")
        self.input_size = check_positive_integer(input_size, "input_size", minimum=0, caller="ShallowPLRNN")
        self.clipped = clipped
        dtype = default_float(dtype)
        keys = jax.random.split(key, 5)
        self.A = jnp.diagonal(parts.normalised_positive_definite(keys[0], state_size, dtype))
        self.W1 = parts.uniform(keys[1], (state_size, hidden_size), hidden_size, dtype)
        self.W2 = parts.uniform(keys[2], (hidden_size, state_size), state_size, dtype)
        self.h1 = jnp.zeros(state_size, dtype)
        if clipped:
            self.h2 = parts.uniform(keys[3], (hidden_size,), hidden_size, dtype)
        else:
            self.h2 = jnp.zeros(hidden_size, dtype)
        self.input_weight = parts.uniform(keys[4], (state_size, input_size), input_size, dtype)

    @classmethod
    def from_parameters(cls, A, W1, W2, h1, h2, clipped: bool = False, *, input_weight=None) -> ShallowPLRNN:
        """The network with these parameters, kept as given.

        **Arguments:** `A`, (M,) or (M, M); `W1`, (M, H); `W2`, (H, M); `h1`, (M,); `h2`, (H,); `input_weight`,
        (M, d) or None.

        **Raises:** `ShapeError` where the shapes do not fit.
        """
        caller = "ShallowPLRNN.from_parameters"
        given = parts.as_parameters(caller, A, h1, W1=W1, W2=W2, h2=h2, input_weight=input_weight)
        given["h1"] = given.pop("h")
        check_shape(given["h2"], "h2", ("H",), caller=caller)
        size, hidden = given["h1"].shape[0], given["h2"].shape[0]
        check_shape(given["W1"], "W1", (size, hidden), caller=caller)
        check_shape(given["W2"], "W2", (hidden, size), caller=caller)
        given["input_weight"] = parts.input_columns(caller, given.get("input_weight"), given["h1"])
        inputs = given["input_weight"].shape[1]
        skeleton = eqx.filter_eval_shape(
            lambda: cls(size, hidden, clipped=clipped, input_size=inputs, key=jax.random.key(0))
        )
        return parts.fill(skeleton, given)

    def __call__(self, state, input=None, *, step=None):
        """The next state; see [`AbstractMap`][dynwarp.models.AbstractMap]."""
        projected = self.W2 @ state
        hidden = jax.nn.relu(projected + self.h2)
        if self.clipped:
            hidden = hidden - jax.nn.relu(projected)
        bias = parts.driven(self.h1, self.input_weight, input)
        return parts.linear_part(self.A, state) + self.W1 @ hidden + bias

    def canonical(self, input=None) -> PiecewiseLinearMap:
        """The same map for this input: itself, or if clipped with 2 H ReLUs, [W1, -W1], [W2; W2], [h2; 0]."""
        W1, W2, h2 = self.W1, self.W2, self.h2
        if self.clipped:
            W1, W2 = jnp.concatenate([W1, -W1], axis=1), jnp.concatenate([W2, W2])
            h2 = jnp.concatenate([h2, jnp.zeros_like(h2)])
        return PiecewiseLinearMap(
            parts.full_matrix(self.A), W1, W2, parts.driven(self.h1, self.input_weight, input), h2
        )
