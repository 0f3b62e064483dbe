"""One step of an optax optimiser."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import optax


def descend(optimizer: optax.GradientTransformation, gradient: Any, state: Any, parameters: Any) -> tuple[Any, Any]:
    """The parameters and the state of the optimiser after one step; all trees hold arrays alone."""
    # Optax counts in int32 and mixes it with floats, which strict promotion forbids.
    with jax.numpy_dtype_promotion("standard"):
        updates, state = optimizer.update(gradient, state, parameters)
        return eqx.apply_updates(parameters, updates), state
