"""Parameters from other libraries as arrays of JAX: real, finite, and in their own precision or the one asked for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._checks import check_finite
from dynwarp.errors import ArgumentError, CheckpointError, PrecisionError


def as_parameter(value: np.ndarray, name: str, dtype: Any, caller: str) -> jax.Array:
    """One parameter; integers become floats."""
    value = np.asarray(value)
    if value.dtype.kind not in "iuf":
        raise CheckpointError(f"{caller}: {name!r} must hold real numbers; got an array of {value.dtype}.")
    wanted = np.dtype(value.dtype if value.dtype.kind == "f" else np.float64) if dtype is None else jnp.dtype(dtype)
    if not jnp.issubdtype(wanted, jnp.floating):
        raise ArgumentError(f"{caller}: `dtype` must be a real floating type; got {dtype!r}.")
    if wanted == np.float64 and jnp.zeros(0, float).dtype != jnp.float64:
        raise PrecisionError(
            f"{caller}: {name!r} is float64, and JAX is in single precision. First set "
            'jax.config.update("jax_enable_x64", True), or pass dtype=jnp.float32 to round it.'
        )
    check_finite(value, name, caller=caller)
    return jnp.asarray(value.astype(wanted))
