"""A model of a recording: a map, how it is observed, where it starts, and the units of what it was trained on."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer, check_shape, default_float
from dynwarp._simulate import simulate
from dynwarp._typing import PRNGKey
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.models import AbstractMap, LinearReadout, Readout, StateReadout


class Reconstruction(eqx.Module):
    """A model of a recording of N channels: what [`fit`][dynwarp.training.fit] trains and `dynwarp fit` saves.

    **Arguments:**

    - `map`: the [`AbstractMap`][dynwarp.models.AbstractMap] with M states.
    - `observation_size`: N.
    - `readout`: what is observed of a state, `readout(state, input=None)`, `(M,) -> (N,)`. None: the first N
      coordinates, which needs N <= M.
    - `mean`, `scale`: shape `(N,)` or a number; the map works in the standardised units (x - mean) / scale.
    - `key`: draws the initial map.

    **Attributes:** `map`, `readout`, `mean`, `scale`, and `initial_weight` L, a learned linear map to the state that
    goes with an observation x: `[x; L x]` with L `(M - N, N)` where the first N coordinates are observed, `L x` with L
    `(M, N)` where a readout is. L starts at random; with a linear readout y = B z + c it starts at pinv(B).

    **Raises:** `ModelError` unless `map` is a map; `ArgumentError` where N > M and no readout is given.

    **Source:** the initial state as in Hess et al., ICML (2023), arXiv:2306.04406.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> map = dw.models.ALRNN(4, 2, key=jax.random.key(0))
    >>> model = dw.training.Reconstruction(map, 3, key=jax.random.key(1))
    >>> model.generate(jnp.ones(3), 10).shape
    (10, 3)
    """

    map: AbstractMap
    readout: Any
    initial_weight: Float[Array, "K N"]
    mean: Float[Array, " N"]
    scale: Float[Array, " N"]
    observation_size: int = eqx.field(static=True)

    def __init__(
        self,
        map: AbstractMap,
        observation_size: int,
        *,
        readout: Any = None,
        mean: Any = 0.0,
        scale: Any = 1.0,
        key: PRNGKey,
    ):
        caller = "Reconstruction"
        if not isinstance(map, AbstractMap):
            raise ModelError(
                f"{caller}: `map` must be an AbstractMap; got {type(map).__name__}. models.from_cell wraps other cells."
            )
        size = check_positive_integer(observation_size, "observation_size", caller=caller)
        if readout is None and size > map.state_size:
            raise ArgumentError(
                f"{caller}: {size} observed channels need a map of at least {size} states, or a `readout`; "
                f"this {type(map).__name__} has {map.state_size}."
            )
        dtype = floating_dtype(map)
        self.map = map
        self.readout = StateReadout(0, size) if readout is None else readout
        self.observation_size = size
        self.mean, self.scale = (jnp.broadcast_to(jnp.asarray(x, dtype), (size,)) for x in (mean, scale))
        rows = map.state_size - size if self.observes_state else map.state_size
        weight = self.output_weight
        if self.observes_state or weight is None or weight.shape != (size, rows):
            self.initial_weight = jax.random.normal(key, (rows, size), dtype) * (0.5 / size**0.5)
        else:
            self.initial_weight = jnp.linalg.pinv(weight.astype(dtype))

    @property
    def observes_state(self) -> bool:
        """Whether the first N coordinates of the state are what is observed, as teacher forcing needs it."""
        r = self.readout
        return isinstance(r, StateReadout) and r.start == 0 and r.stop == self.observation_size

    @property
    def output_weight(self) -> Float[Array, "N M"] | None:
        """B of a linear readout y = B z + c; None for other readouts."""
        r = self.readout
        if isinstance(r, Readout) and r.activation is None:
            return r.weight
        return r.C if isinstance(r, LinearReadout) else None

    def explain(self, values: Float[Array, " N"], input: Float[Array, " d"] | None = None) -> Float[Array, " M"]:
        """The state that an observation implies, in standardised units: [`encode`][dynwarp.training.Reconstruction]
        where the first coordinates are observed, else pinv(B) (x - c) for a linear readout."""
        weight = self.output_weight
        if self.observes_state or weight is None:
            return self.encode(values)
        offset = self.decode(jnp.zeros(self.map.state_size, weight.dtype), input)
        return jnp.linalg.pinv(weight) @ (values - offset)

    def encode(self, values: Float[Array, " N"]) -> Float[Array, " M"]:
        """The state that goes with an observation in standardised units, `(N,) -> (M,)`."""
        rest = self.initial_weight @ values
        return jnp.concatenate([values, rest]) if self.observes_state else rest

    def decode(self, state: Float[Array, " M"], input: Float[Array, " d"] | None = None) -> Float[Array, " N"]:
        """What is observed of a state, in standardised units, `(M,) -> (N,)`."""
        return self.readout(state, input)

    def generate(
        self, observation: Float[Array, " N"], steps: int | None = None, *, inputs: Float[Array, "T d"] | None = None
    ) -> Float[Array, "T N"]:
        """Runs free from one observation.

        **Arguments:** `observation`, shape `(N,)`, and `steps`; or `inputs`, `(T, d)`, where `inputs[i]` drives the
        step to row i of what is returned.

        **Returns:** the observations that follow, shape `(steps, N)`, in the units of the recording.
        """
        check_shape(observation, "observation", (self.observation_size,), caller="generate")
        states = simulate(self.map, self.encode(self._standard(observation)), inputs, steps=steps, mode="scan")
        values = jax.vmap(self.decode)(states) if inputs is None else jax.vmap(self.decode)(states, inputs)
        return values * self.scale + self.mean

    def predict(self, observations: Float[Array, "T N"], steps: int) -> Float[Array, "T N"]:
        """What follows each observation after `steps` steps without input, in the units of the recording, (T, N)."""
        check_shape(observations, "observations", ("T", self.observation_size), caller="predict")
        steps = check_positive_integer(steps, "steps", caller="predict")
        return predict_standard(self, self._standard(observations), steps) * self.scale + self.mean

    def _standard(self, values):
        return (jnp.asarray(values, self.mean.dtype) - self.mean) / self.scale


@eqx.filter_jit
def predict_standard(model: Reconstruction, values: Float[Array, "T N"], steps: int) -> Float[Array, "T N"]:
    """[`Reconstruction.predict`][dynwarp.training.Reconstruction.predict] in standardised units."""

    def one(x):
        return model.decode(simulate(model.map, model.encode(x), steps=steps, mode="scan", last_only=True))

    return jax.vmap(one)(values)


def trainable(model: Reconstruction) -> Reconstruction:
    """A filter: which leaves of a reconstruction are trained. The units are not."""
    spec = jax.tree.map(eqx.is_inexact_array, model)
    return eqx.tree_at(lambda m: (m.mean, m.scale), spec, (False, False))


def floating_dtype(tree: Any):
    """The floating dtype of a model's parameters; JAX's default if it has none."""
    dtypes = [x.dtype for x in jax.tree.leaves(tree) if eqx.is_array(x) and jnp.issubdtype(x.dtype, jnp.floating)]
    return np.result_type(*dtypes) if dtypes else default_float()
