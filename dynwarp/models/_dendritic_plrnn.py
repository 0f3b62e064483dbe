"""Dendritic piecewise-linear networks: a linear spline in place of each unit's single ReLU."""

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


class DendriticPLRNN(AbstractPiecewiseLinearModel):
    """The dendritic PLRNN z' = A z + W phi(z) + h + C s, phi(z) = sum_b alpha_b relu(z - H_b), with B bases.

    **Arguments:**

    - `state_size`: M.
    - `n_bases`: B.
    - `clipped`: phi(z) = sum_b alpha_b [relu(z - H_b) - relu(z)], whose orbits stay bounded if |A| < 1.
    - `data_range`: (least, largest) value the states take, usually of the standardised data: thresholds start there.
    - `input_size`: d, the size of s; 0 for an autonomous network.
    - `off_diagonal`: W contributes only off its diagonal; see [`PLRNN`][dynwarp.models.PLRNN].
    - `dtype`: of the parameters; JAX's default if None.
    - `key`: draws the initial values.

    **Attributes:** `A`, the diagonal (M,), or a full (M, M) where `from_parameters` was given one; `W`, (M, M); `h`,
    (M,); `alpha`, (B,); `thresholds`, H, (B, M); `input_weight`, C, (M, d).

    Initial values: A, W, h and C as in [`PLRNN`][dynwarp.models.PLRNN]; alpha uniform in +-1/sqrt(B); H uniform in
    `data_range`.

    **Raises:** `ArgumentError` where a size is not a whole number or `data_range` is no interval.

    **Source:** Brenner et al., ICML (2022), arXiv:2207.02542.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> model = dw.models.DendriticPLRNN.from_parameters(
    ...     jnp.zeros(1), jnp.ones((1, 1)), jnp.zeros(1), jnp.array([1.0, 2.0]), jnp.array([[0.0], [1.0]])
    ... )
    >>> model(jnp.array([3.0])).tolist()
    [7.0]
    """

    A: Float[Array, " M"] | Float[Array, "M M"]
    W: Float[Array, "M M"]
    h: Float[Array, " M"]
    alpha: Float[Array, " B"]
    thresholds: Float[Array, "B M"]
    input_weight: Float[Array, "M d"]
    clipped: bool = eqx.field(static=True)
    off_diagonal: bool = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    n_bases: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        state_size: int,
        n_bases: int,
        *,
        clipped: bool = False,
        data_range: tuple[float, float] = (-2.0, 2.0),
        input_size: int = 0,
        off_diagonal: bool = True,
        dtype=None,
        key,
    ):
        self.state_size = check_positive_integer(state_size, "state_size", caller="DendriticPLRNN")
        self.n_bases = check_positive_integer(n_bases, "n_bases", caller="DendriticPLRNN")
        self.input_size = check_positive_integer(input_size, "input_size", minimum=0, caller="DendriticPLRNN")
        least, largest = data_range
        if not least < largest:
            raise ArgumentError(
                f"DendriticPLRNN: `data_range` must be (least, largest) with least < largest; got {data_range}."
            )
        self.clipped = clipped
        self.off_diagonal = off_diagonal
        dtype = default_float(dtype)
        matrix_key, alpha_key, threshold_key, input_key = jax.random.split(key, 4)
        matrix = parts.normalised_positive_definite(matrix_key, state_size, dtype)
        self.A = jnp.diagonal(matrix)
        self.W = parts.without_diagonal(matrix)
        self.h = jnp.zeros(state_size, dtype)
        self.alpha = parts.uniform(alpha_key, (n_bases,), n_bases, dtype)
        self.thresholds = jax.random.uniform(threshold_key, (n_bases, state_size), dtype, least, largest)
        self.input_weight = parts.uniform(input_key, (state_size, input_size), input_size, dtype)

    @classmethod
    def from_parameters(
        cls, A, W, h, alpha, thresholds, clipped: bool = False, *, input_weight=None, off_diagonal: bool = False
    ) -> DendriticPLRNN:
        """The network with these parameters, kept as given.

        **Arguments:** `A`, (M,) or (M, M); `W`, (M, M), whose diagonal counts unless `off_diagonal`; `h`, (M,);
        `alpha`, (B,); `thresholds`, (B, M); `input_weight`, (M, d) or None.

        **Raises:** `ShapeError` where the shapes do not fit; `ArgumentError` where `off_diagonal` is asked of a `W`
        with a diagonal.
        """
        caller = "DendriticPLRNN.from_parameters"
        given = parts.as_parameters(caller, A, h, W=W, alpha=alpha, thresholds=thresholds, input_weight=input_weight)
        size = given["h"].shape[0]
        check_shape(given["W"], "W", (size, size), caller=caller)
        check_shape(given["alpha"], "alpha", ("B",), caller=caller)
        bases = given["alpha"].shape[0]
        check_shape(given["thresholds"], "thresholds", (bases, size), caller=caller)
        if off_diagonal:
            parts.check_zero_diagonal(caller, given["W"])
        given["input_weight"] = parts.input_columns(caller, given.get("input_weight"), given["h"])
        inputs = given["input_weight"].shape[1]
        skeleton = eqx.filter_eval_shape(
            lambda: cls(
                size, bases, clipped=clipped, input_size=inputs, off_diagonal=off_diagonal, key=jax.random.key(0)
            )
        )
        return parts.fill(skeleton, given)

    def __call__(self, state, input=None, *, step=None):
        """The next state; see [`AbstractMap`][dynwarp.models.AbstractMap]."""
        branches = jax.nn.relu(state - self.thresholds)
        if self.clipped:
            branches = branches - jax.nn.relu(state)
        weights = parts.without_diagonal(self.W) if self.off_diagonal else self.W
        bias = parts.driven(self.h, self.input_weight, input)
        return parts.linear_part(self.A, state) + weights @ (self.alpha @ branches) + bias

    def canonical(self, input=None) -> PiecewiseLinearMap:
        """The same map for this input: W1 = [alpha_b W], W2 = [I], h2 = [-H_b] over the bases, so M B ReLUs; if clipped
        M more, one for each unit at 0.
        """
        alpha, thresholds = self.alpha, self.thresholds
        if self.clipped:
            alpha = jnp.append(alpha, -jnp.sum(alpha))
            thresholds = jnp.concatenate([thresholds, jnp.zeros_like(thresholds[:1])])
        weights = parts.without_diagonal(self.W) if self.off_diagonal else self.W
        return PiecewiseLinearMap(
            parts.full_matrix(self.A),
            jnp.kron(alpha[None, :], weights),
            jnp.tile(jnp.eye(self.state_size, dtype=weights.dtype), (alpha.shape[0], 1)),
            parts.driven(self.h, self.input_weight, input),
            -thresholds.reshape(-1),
        )
