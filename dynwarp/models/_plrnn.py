"""Piecewise-linear recurrent networks: the PLRNN and its mean-centred form."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer, check_shape, default_float
from dynwarp.models import _plrnn_parts as parts
from dynwarp.models._base import AbstractPiecewiseLinearModel
from dynwarp.models._piecewise_linear import PiecewiseLinearMap


class PLRNN(AbstractPiecewiseLinearModel):
    """The piecewise-linear recurrent network z' = A z + W relu(z) + h + C s.

    **Arguments:**

    - `state_size`: M.
    - `input_size`: d, the size of s; 0 for an autonomous network.
    - `off_diagonal`: W contributes only off its diagonal, as in the literature, where A carries it: the diagonal of `W`
      is ignored and gets no gradient.
    - `dtype`: of the parameters; JAX's default if None.
    - `key`: draws the initial values.

    **Attributes:** `A`, the diagonal (M,), or a full (M, M) where `from_parameters` was given one; `W`, (M, M);
    `h`, (M,); `input_weight`, C, (M, d).

    Initial values: A and W are the diagonal and the rest of K = (R^T R / M + I) / lambda_max with R standard normal,
    h = 0, C uniform in +-1/sqrt(d).

    **Raises:** `ArgumentError` where a size is not a whole number.

    **Source:** Durstewitz, PLoS Comput. Biol. 13 (2017) e1005542; initial values Talathi & Vartak, arXiv:1511.03771.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> model = dw.models.PLRNN.from_parameters(
    ...     jnp.array([0.5, 0.5]), jnp.array([[0.0, 1.0], [1.0, 0.0]]), jnp.zeros(2)
    ... )
    >>> model(jnp.array([2.0, -2.0])).tolist()
    [1.0, 1.0]
    """

    A: Float[Array, " M"] | Float[Array, "M M"]
    W: Float[Array, "M M"]
    h: Float[Array, " M"]
    input_weight: Float[Array, "M d"]
    off_diagonal: bool = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(self, state_size: int, *, input_size: int = 0, off_diagonal: bool = True, dtype=None, key):
        self.state_size = check_positive_integer(state_size, "state_size", caller="PLRNN")
        self.input_size = check_positive_integer(input_size, "input_size", minimum=0, caller="PLRNN")
        self.off_diagonal = off_diagonal
        dtype = default_float(dtype)
        matrix_key, input_key = jax.random.split(key)
        matrix = parts.normalised_positive_definite(matrix_key, state_size, dtype)
        self.A = jnp.diagonal(matrix)
        self.W = parts.without_diagonal(matrix)
        self.h = jnp.zeros(state_size, dtype)
        self.input_weight = parts.uniform(input_key, (state_size, input_size), input_size, dtype)

    @classmethod
    def from_parameters(cls, A, W, h, *, input_weight=None, off_diagonal: bool = False) -> PLRNN:
        """The network with these parameters, kept as given.

        **Arguments:** `A`, (M,) or (M, M); `W`, (M, M), whose diagonal counts unless `off_diagonal`; `h`, (M,);
        `input_weight`, (M, d) or None.

        **Raises:** `ShapeError` where the shapes do not fit; `ArgumentError` where `off_diagonal` is asked of a `W`
        with a diagonal.
        """
        return _from_parameters(cls, A, W, h, input_weight, off_diagonal)

    def __call__(self, state, input=None, *, step=None):
        """The next state; see [`AbstractMap`][dynwarp.models.AbstractMap]."""
        weights = parts.without_diagonal(self.W) if self.off_diagonal else self.W
        bias = parts.driven(self.h, self.input_weight, input)
        return parts.linear_part(self.A, state) + weights @ jax.nn.relu(state) + bias

    def canonical(self, input=None) -> PiecewiseLinearMap:
        """The same map for this input: W1 = W, W2 = I, h2 = 0."""
        weights = parts.without_diagonal(self.W) if self.off_diagonal else self.W
        bias = parts.driven(self.h, self.input_weight, input)
        eye = jnp.eye(self.state_size, dtype=self.W.dtype)
        return PiecewiseLinearMap(parts.full_matrix(self.A), weights, eye, bias, jnp.zeros_like(bias))


class MeanCentredPLRNN(AbstractPiecewiseLinearModel):
    """The mean-centred network z' = A z + W relu(z - mean(z)) + h + C s, with the mean over the M units.

    Arguments, attributes, initial values and errors are those of [`PLRNN`][dynwarp.models.PLRNN].

    **Source:** Brenner et al., ICML (2022), arXiv:2207.02542: layer normalisation without the division, which keeps the
    map piecewise linear.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> model = dw.models.MeanCentredPLRNN.from_parameters(jnp.zeros(2), jnp.eye(2), jnp.zeros(2))
    >>> model(jnp.array([3.0, 1.0])).tolist()
    [1.0, 0.0]
    """

    A: Float[Array, " M"] | Float[Array, "M M"]
    W: Float[Array, "M M"]
    h: Float[Array, " M"]
    input_weight: Float[Array, "M d"]
    off_diagonal: bool = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(self, state_size: int, *, input_size: int = 0, off_diagonal: bool = True, dtype=None, key):
        start = PLRNN(state_size, input_size=input_size, off_diagonal=off_diagonal, dtype=dtype, key=key)
        self.A, self.W, self.h, self.input_weight = start.A, start.W, start.h, start.input_weight
        self.off_diagonal = off_diagonal
        self.state_size = start.state_size
        self.input_size = start.input_size

    @classmethod
    def from_parameters(cls, A, W, h, *, input_weight=None, off_diagonal: bool = False) -> MeanCentredPLRNN:
        """The network with these parameters, kept as given; see [`PLRNN`][dynwarp.models.PLRNN]."""
        return _from_parameters(cls, A, W, h, input_weight, off_diagonal)

    def __call__(self, state, input=None, *, step=None):
        """The next state; see [`AbstractMap`][dynwarp.models.AbstractMap]."""
        weights = parts.without_diagonal(self.W) if self.off_diagonal else self.W
        bias = parts.driven(self.h, self.input_weight, input)
        return parts.linear_part(self.A, state) + weights @ jax.nn.relu(state - jnp.mean(state)) + bias

    def canonical(self, input=None) -> PiecewiseLinearMap:
        """The same map for this input: W1 = W, W2 = I - 1 1^T / M, h2 = 0."""
        weights = parts.without_diagonal(self.W) if self.off_diagonal else self.W
        bias = parts.driven(self.h, self.input_weight, input)
        centring = jnp.eye(self.state_size, dtype=self.W.dtype) - 1.0 / self.state_size
        return PiecewiseLinearMap(parts.full_matrix(self.A), weights, centring, bias, jnp.zeros_like(bias))


def _from_parameters(cls, A, W, h, input_weight, off_diagonal):
    caller = f"{cls.__name__}.from_parameters"
    given = parts.as_parameters(caller, A, h, W=W, input_weight=input_weight)
    size = given["h"].shape[0]
    check_shape(given["W"], "W", (size, size), caller=caller)
    if off_diagonal:
        parts.check_zero_diagonal(caller, given["W"])
    given["input_weight"] = parts.input_columns(caller, given.get("input_weight"), given["h"])
    inputs = given["input_weight"].shape[1]
    skeleton = eqx.filter_eval_shape(
        lambda: cls(size, input_size=inputs, off_diagonal=off_diagonal, key=jax.random.key(0))
    )
    return parts.fill(skeleton, given)
