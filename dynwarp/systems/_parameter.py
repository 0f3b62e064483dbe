"""How the systems hold their parameters: differentiable leaves that leave the precision to the state."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array


def as_parameter(value: Any) -> Array:
    """A floating array; Python numbers become weakly typed scalars, so that a float32 state stays float32."""
    if isinstance(value, int | float):
        return jnp.asarray(float(value))
    array = jnp.asarray(value)
    return array if jnp.issubdtype(array.dtype, jnp.inexact) else array.astype(float)
