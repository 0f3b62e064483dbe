"""In which space lengths are measured: of states, of outputs, or under a weight."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp


class Observation(eqx.Module):
    """What is seen of a state, and the length of a tangent of it.

    `readout` is a function (n,) -> (o,), or None for the state itself; `weight` the matrix of the inner product,
    `(o, o)`, its diagonal `(o,)`, or None for the Euclidean one.
    """

    readout: Any = None
    weight: Any = None

    def __call__(self, state):
        """The observed state, `(o,)`."""
        return state if self.readout is None else self.readout(state)

    def push(self, state, tangents):
        """Tangents `(m, n)` at a state as tangents of what is seen, `(m, o)`."""
        if self.readout is None:
            return tangents
        return jax.vmap(lambda s: jax.jvp(self.readout, (state,), (s,))[1])(tangents)

    def metric(self, tangents):
        """The inner products of tangents `(..., m, o)`: `(..., m, m)`."""
        weighted = tangents
        if self.weight is not None:
            weight = jnp.asarray(self.weight, tangents.dtype)
            weighted = tangents * weight if weight.ndim == 1 else jnp.matmul(tangents, weight, precision="highest")
        return jnp.matmul(weighted, jnp.swapaxes(tangents, -1, -2), precision="highest")
