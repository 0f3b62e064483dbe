"""What is asked of a model besides fitting the data."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.models import AbstractPiecewiseLinearModel
from dynwarp.training._reconstruction import Reconstruction


class AbstractPenalty(eqx.Module):
    """A penalty that also looks at where the model goes. One that does not may be any function of the model."""

    @abc.abstractmethod
    def __call__(self, model: Reconstruction, states: Float[Array, "B T M"]) -> Float[Array, ""]:
        """What is added to the loss; `states` are those of the batch, after each step and before it is forced."""


class ParameterPenalty(eqx.Module):
    """Squares of the parameters: `latent` for the map, `observation` for a readout.

    Of a piecewise-linear map z' = A z + ... it is the distance of A from the identity that counts: latent times
    (|1 - A|^2 + the squares of everything else).

    **Arguments:** `latent`, `observation`, not negative.

    Called with a [`Reconstruction`][dynwarp.training.Reconstruction]; a scalar.

    **Source:** the regularisers of Hess et al., ICML (2023), arXiv:2306.04406, with `latent=1e-5`.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> map = dw.models.ALRNN.from_parameters(jnp.ones(2), 2 * jnp.eye(2), jnp.zeros(2), 1)
    >>> float(dw.training.ParameterPenalty(0.5)(dw.training.Reconstruction(map, 2, key=jax.random.key(0))))
    4.0
    """

    latent: float = eqx.field(static=True)
    observation: float = eqx.field(static=True)

    def __init__(self, latent: float = 1e-5, observation: float = 0.0):
        self.latent, self.observation = (
            _strength(value, name, "ParameterPenalty")
            for name, value in (("latent", latent), ("observation", observation))
        )

    def __call__(self, model: Reconstruction) -> Float[Array, ""]:
        map: Any = model.map
        if isinstance(map, AbstractPiecewiseLinearModel) and hasattr(map, "A"):
            map = eqx.tree_at(lambda m: m.A, map, _identity_like(map.A) - map.A)
        return self.latent * _square(map) + self.observation * _square(model.readout)


class ManifoldAttractorPenalty(eqx.Module):
    """Draws some units of a PLRNN z' = A z + W phi(z) + h towards keeping their value: memory over long times.

    strength times the sum over the units i of (1 - A_ii)^2 + h_i^2 + the squares of row i of W.

    **Arguments:**

    - `strength`: not negative.
    - `units`: the first and one past the last unit; None: the last half of the states, which are not observed where
      the first are.

    Called with a [`Reconstruction`][dynwarp.training.Reconstruction]; raises `ModelError` unless its map has `A`, `W`
    and `h`, `ArgumentError` where the units are not among its states.

    **Source:** Schmidt, Koppe, Monfared, Beutelspacher and Durstewitz, ICLR (2021), arXiv:1910.03471.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> map = dw.models.PLRNN.from_parameters(jnp.array([0.0, 0.5]), jnp.zeros((2, 2)), jnp.ones(2))
    >>> penalty = dw.training.ManifoldAttractorPenalty(2.0)
    >>> float(penalty(dw.training.Reconstruction(map, 2, key=jax.random.key(0))))
    2.5
    """

    strength: float = eqx.field(static=True)
    units: tuple[int, int] | None = eqx.field(static=True)

    def __init__(self, strength: float, units: tuple[int, int] | None = None):
        self.strength = _strength(strength, "strength", "ManifoldAttractorPenalty")
        if units is not None:
            first, last = (check_positive_integer(i, "units", minimum=0) for i in units)
            if first >= last:
                raise ArgumentError(f"ManifoldAttractorPenalty: `units` must be (first, one past last); got {units!r}.")
            units = first, last
        self.units = units

    def __call__(self, model: Reconstruction) -> Float[Array, ""]:
        map: Any = model.map
        size = map.state_size
        if not all(eqx.is_array(getattr(map, name, None)) for name in ("A", "W", "h")):
            raise ModelError(f"ManifoldAttractorPenalty needs a map with A, W and h; got {type(map).__name__}.")
        first, last = (size // 2, size) if self.units is None else self.units
        if last > size:
            raise ArgumentError(f"ManifoldAttractorPenalty: `units` end at {last}; the map has {size} states.")
        A = (_identity_like(map.A) - map.A)[first:last]
        return self.strength * (jnp.sum(A**2) + jnp.sum(map.W[first:last] ** 2) + jnp.sum(map.h[first:last] ** 2))


class ConditionPenalty(eqx.Module):
    """Keeps the pseudo-inverse of a linear readout y = B z + c tame: strength (1 - s_1 / s_N)^2 with the largest and
    the smallest singular value of B.

    **Arguments:** `strength`, not negative.

    Called with a [`Reconstruction`][dynwarp.training.Reconstruction]; raises `ModelError` unless its readout is linear.

    **Source:** the observation model of Hess et al., ICML (2023), arXiv:2306.04406.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> readout = dw.models.LinearReadout(jnp.array([[3.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    >>> map = dw.models.ALRNN(2, 1, key=jax.random.key(0))
    >>> model = dw.training.Reconstruction(map, 3, readout=readout, key=jax.random.key(1))
    >>> float(dw.training.ConditionPenalty(1.0)(model))
    4.0
    """

    strength: float = eqx.field(static=True)

    def __init__(self, strength: float):
        self.strength = _strength(strength, "strength", "ConditionPenalty")

    def __call__(self, model: Reconstruction) -> Float[Array, ""]:
        weight = model.output_weight
        if weight is None:
            raise ModelError(f"ConditionPenalty needs a linear readout; got {type(model.readout).__name__}.")
        values = jnp.linalg.svd(weight, compute_uv=False)
        return self.strength * (1 - values[0] / values[-1]) ** 2


Penalty = Callable[[Reconstruction], Any] | AbstractPenalty


def as_penalties(penalty: Any) -> tuple[Penalty, ...]:
    """The penalties that are added up."""
    items = () if penalty is None else tuple(penalty) if isinstance(penalty, list | tuple) else (penalty,)
    for item in items:
        if not callable(item):
            raise ArgumentError(
                "fit: `penalty` must be a function of the reconstruction that gives a number, or a list of them; "
                f"got {item!r}."
            )
    return items


def _strength(value: Any, name: str, caller: str) -> float:
    if not (isinstance(value, int | float) and 0 <= value < float("inf")):
        raise ArgumentError(f"{caller}: `{name}` must be a number that is not negative; got {value!r}.")
    return float(value)


def _identity_like(A):
    return jnp.eye(A.shape[0], dtype=A.dtype) if A.ndim == 2 else jnp.ones_like(A)


def _square(tree) -> Float[Array, ""]:
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return sum((jnp.sum(jnp.abs(x) ** 2) for x in leaves), jnp.zeros((), leaves[0].dtype if leaves else None))
