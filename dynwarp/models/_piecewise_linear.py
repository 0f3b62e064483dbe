"""The one form in which every piecewise-linear model is analysed."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dynwarp.errors import ShapeError
from dynwarp.models._base import AbstractPiecewiseLinearModel


class PiecewiseLinearMap(AbstractPiecewiseLinearModel):
    """F(z) = A z + W1 relu(W2 z + h2) + h1.

    **Arguments:**

    - `A`: shape `(M, M)`.
    - `W1`: shape `(M, H)`.
    - `W2`: shape `(H, M)`.
    - `h1`: shape `(M,)`.
    - `h2`: shape `(H,)`.

    A region is the set of states with one ReLU pattern 1[W2 z + h2 > 0], a boolean vector of length H: there the map is
    z -> J z + b. On a border (an entry exactly 0) the pattern is False, and the slope of the ReLU is 0.

    **Raises:** `ShapeError` where the shapes do not fit.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> f = dw.models.PiecewiseLinearMap(
    ...     jnp.zeros((1, 1)), jnp.array([[2.0]]), jnp.array([[1.0]]), jnp.array([-1.0]), jnp.array([0.0])
    ... )
    >>> float(f(jnp.array([3.0]))[0])
    5.0
    """

    A: Float[Array, "M M"]
    W1: Float[Array, "M H"]
    W2: Float[Array, "H M"]
    h1: Float[Array, " M"]
    h2: Float[Array, " H"]
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(self, A, W1, W2, h1, h2):
        self.A, self.W1, self.W2, self.h1, self.h2 = (jnp.asarray(x) for x in (A, W1, W2, h1, h2))
        m = self.A.shape[0] if self.A.ndim else -1
        h = self.h2.shape[0] if self.h2.ndim else -1
        shapes = {"A": (m, m), "W1": (m, h), "W2": (h, m), "h1": (m,), "h2": (h,)}
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ShapeError(
                    "PiecewiseLinearMap needs A (M, M), W1 (M, H), W2 (H, M), h1 (M,), h2 (H,); got "
                    + ", ".join(f"{key} {getattr(self, key).shape}" for key in shapes)
                    + "."
                )
        self.state_size = m
        self.input_size = 0

    def __call__(self, state, input=None, *, step=None):
        return self.A @ state + self.W1 @ jax.nn.relu(self.W2 @ state + self.h2) + self.h1

    def pattern(self, state: Float[Array, " M"]) -> Bool[Array, " H"]:
        """The ReLU pattern 1[W2 z + h2 > 0] of a state: the name of its region."""
        return self.W2 @ state + self.h2 > 0

    def affine(self, pattern: Bool[Array, " H"]) -> tuple[Float[Array, "M M"], Float[Array, " M"]]:
        """The map of a region: (J, b) with F(z) = J z + b. J = A + W1 D W2, b = W1 D h2 + h1."""
        gated = self.W1 * jnp.asarray(pattern, self.W1.dtype)
        return self.A + gated @ self.W2, gated @ self.h2 + self.h1

    def canonical(self, input=None):
        return self
