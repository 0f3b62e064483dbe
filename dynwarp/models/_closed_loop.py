"""A model whose outputs are its inputs."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_shape
from dynwarp.errors import ModelError
from dynwarp.models._base import AbstractMap
from dynwarp.models._cell import check_step, computing_dtype
from dynwarp.models._readout import StateReadout


class ClosedLoop(AbstractMap):
    """A map and its readout in a loop: the last o inputs of the map are its own last outputs.

    z' = F(z, [x, y]), y' = r(z', [x, y]), with the state [z, y]. A forecaster that was fitted to give the next value of
    a series then runs by itself; a network with output feedback that was fitted with the true outputs then lives on its
    own. Where the readout does not use the input, y is a function of z: o directions of the state are nilpotent and
    have Lyapunov exponents of -infinity, the others are those of the loop.

    **Arguments:**

    - `model`: an `AbstractMap` of inputs `(d,)`.
    - `readout`: called as `readout(state, input)`, with o <= d outputs; d - o external inputs remain.

    The attributes `state_size` n + o, `input_size` d - o, `output_size` o follow. `start(state, output)` is the state
    that continues a driven run.

    **Raises:** `ModelError` for what is no map, or a readout with other shapes.

    **Source:** Jaeger & Haas, Science 304 (2004) 78.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.Elman(1, 3, key=jax.random.key(0))
    >>> loop = dw.models.ClosedLoop(net, dw.models.Readout(3, 1, key=jax.random.key(1)))
    >>> orbit = dw.simulate(loop, loop.start(jnp.zeros(3), jnp.ones(1)), steps=5)
    >>> orbit.shape, jax.vmap(loop.readout())(orbit).shape
    ((5, 4), (5, 1))
    """

    model: AbstractMap
    output_map: Any
    output_size: int = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(self, model: AbstractMap, readout: Any):
        if not isinstance(model, AbstractMap):
            raise ModelError(f"ClosedLoop: `model` must be an AbstractMap; got {type(model).__name__}.")
        if not callable(readout):
            raise ModelError(f"ClosedLoop: `readout` must be callable as readout(state, input); got {readout!r}.")
        dtype = computing_dtype(model)
        state, input = (jax.ShapeDtypeStruct((size,), dtype) for size in (model.state_size, model.input_size))
        out = eqx.filter_eval_shape(readout, state, input)
        shape = getattr(out, "shape", None)
        if shape is None or len(shape) != 1 or not 0 < shape[0] <= model.input_size:
            raise ModelError(
                f"ClosedLoop: `readout` must give (o,) with o at most the {model.input_size} inputs of the model; got "
                f"{shape}."
            )
        self.model, self.output_map = model, readout
        self.output_size = o = shape[0]
        self.state_size, self.input_size = model.state_size + o, model.input_size - o

    def start(self, state: Float[Array, " m"], output: Float[Array, " o"]) -> Float[Array, " n"]:
        """The state of the loop, [state of the model, last output]."""
        check_shape(state, "state", (self.model.state_size,), caller="ClosedLoop")
        check_shape(output, "output", (self.output_size,), caller="ClosedLoop")
        return jnp.concatenate([state, output])

    def __call__(self, state, input=None, *, step=None):
        check_step(self, state, input)
        inner, output = state[: self.model.state_size], state[self.model.state_size :]
        external = jnp.zeros(self.input_size, state.dtype) if input is None else input
        fed = jnp.concatenate([external, output])
        inner = self.model(inner, fed, step=step)
        return jnp.concatenate([inner, self.output_map(inner, fed)])

    def readout(self) -> StateReadout:
        """The map from the state of the loop to the output y."""
        return StateReadout(self.model.state_size, self.state_size)
