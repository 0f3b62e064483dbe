"""How tasks and manifolds read what they are given."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dynwarp.errors import ArgumentError


def as_floating(x: Any) -> Array:
    """An array of floating-point numbers; integers become JAX's default float."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)


def check_bounds(bounds: Any, name: str, *, caller: str) -> tuple[float, float]:
    """Two finite numbers that increase."""
    pair = tuple(bounds) if isinstance(bounds, tuple | list) else ()
    if len(pair) != 2 or not (np.isfinite(pair).all() and pair[0] < pair[1]):
        raise ArgumentError(f"{caller}: `{name}` must be two finite numbers that increase; got {bounds!r}.")
    return float(pair[0]), float(pair[1])
