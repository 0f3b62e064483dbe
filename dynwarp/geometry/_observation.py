"""In which space lengths are measured: of states, of outputs, of rates, or under a weight."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._checks import check_finite, check_real, check_shape
from dynwarp._compat import concrete
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.models import CTRNN, Elman, LowRankRNN


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


class _Rates(eqx.Module):
    """The rates of a network whose state is what its activation is given."""

    activation: Any = eqx.field(static=True)

    def __call__(self, state):
        return self.activation(state)


class _Matrix(eqx.Module):
    """Outputs that are linear in the state."""

    matrix: jax.Array

    def __call__(self, state):
        return self.matrix @ state


def as_readout(model: Any, readout: Any, dtype: Any, caller: str) -> Any:
    """A function of the state, or None: from a function, a matrix `(o, n)`, or the word for rates."""
    if readout is None or callable(readout):
        return readout
    if isinstance(readout, str):
        if readout != "rate":
            raise ArgumentError(f"{caller}: the one `readout` with a name is 'rate'; got {readout!r}.")
        if isinstance(model, CTRNN | LowRankRNN) or (isinstance(model, Elman) and model.form == "pre"):
            return _Rates(model.activation)
        raise ModelError(
            f"{caller}: readout='rate' is for networks whose state is what the activation is given, CTRNN, LowRankRNN "
            f"and Elman(form='pre'); of {type(model).__name__} give the rates as a function of the state."
        )
    if not isinstance(readout, jax.Array | np.ndarray):
        raise ArgumentError(
            f"{caller}: `readout` must be a function (n,) -> (o,), a matrix (o, n) or 'rate'; got {readout!r}."
        )
    check_real(readout, "readout", caller=caller)
    matrix = jnp.asarray(readout, dtype)
    check_shape(matrix, "readout", ("o", model.state_size), caller=caller)
    check_finite(matrix, "readout", caller=caller)
    return _Matrix(matrix)


def check_observation(observation: Observation, model: Any, dtype: Any, caller: str) -> int:
    """The number of observed dimensions; raises for readouts and weights that do not fit."""
    seen = eqx.filter_eval_shape(observation, jax.ShapeDtypeStruct((model.state_size,), dtype))
    check_shape(seen, "readout(state)", ("o",), caller=caller)
    size = seen.shape[0]
    if observation.weight is not None:
        check_real(observation.weight, "weight", caller=caller)
        shape = (size,) if jnp.ndim(observation.weight) == 1 else (size, size)
        check_shape(observation.weight, "weight", shape, caller=caller)
        check_finite(observation.weight, "weight", caller=caller)
        known = concrete(observation.weight)
        if known is not None and known.ndim == 2 and not np.allclose(known, known.T, rtol=1e-6, atol=0):
            raise ArgumentError(f"{caller}: `weight` must be symmetric.")
    return size
