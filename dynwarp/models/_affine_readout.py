"""A readout of the state, the input and a constant."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_shape


class AffineReadout(eqx.Module):
    """The output map y = C z + D x + c: what a fit of a readout to states gives.

    **Arguments:**

    - `C`: shape `(o, n)`.
    - `D`: the feedthrough, shape `(o, d)`, or None.
    - `bias`: c, shape `(o,)`, or None.

    Called as `readout(state, input=None)`; a missing input is zero.

    **Raises:** `ShapeError` where the shapes do not fit.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> r = dw.models.AffineReadout(jnp.array([[1.0, 2.0]]), jnp.array([[3.0]]), jnp.array([0.5]))
    >>> r(jnp.array([1.0, 1.0]), jnp.array([2.0])).tolist()
    [9.5]
    """

    C: Float[Array, "o n"]
    D: Float[Array, "o d"] | None
    bias: Float[Array, " o"] | None

    def __init__(
        self, C: Float[Array, "o n"], D: Float[Array, "o d"] | None = None, bias: Float[Array, " o"] | None = None
    ):
        self.C = jnp.asarray(C)
        self.D = None if D is None else jnp.asarray(D)
        self.bias = None if bias is None else jnp.asarray(bias)
        check_shape(self.C, "C", ("o", "n"), caller="AffineReadout")
        if self.D is not None:
            check_shape(self.D, "D", (self.C.shape[0], "d"), caller="AffineReadout")
        if self.bias is not None:
            check_shape(self.bias, "bias", (self.C.shape[0],), caller="AffineReadout")

    def __call__(self, state: Float[Array, " n"], input: Float[Array, " d"] | None = None) -> Float[Array, " o"]:
        check_shape(state, "state", (self.C.shape[1],), caller="AffineReadout")
        output = self.C @ state
        if self.bias is not None:
            output = output + self.bias
        if self.D is None or input is None:
            return output
        check_shape(input, "input", (self.D.shape[1],), caller="AffineReadout")
        return output + self.D @ input
