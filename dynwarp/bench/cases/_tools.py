"""What the cases share: precisions, random arrays, and the loop of published formulas that references are made of."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


def cast(tree: Any, dtype: str) -> Any:
    """A pytree with its inexact arrays in another precision."""
    return jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, tree)


def float64(x: Any) -> np.ndarray:
    """An array as NumPy float64."""
    return np.asarray(x, np.float64)


def normal(seed: int, shape: tuple[int, ...], dtype: str, *, scale: float = 1.0) -> jax.Array:
    """Gaussian numbers; the same for every dtype of one seed, up to rounding."""
    return (scale * jax.random.normal(jax.random.key(seed), shape, jnp.float64)).astype(dtype)


def itemsize(dtype: str) -> int:
    """Bytes of one number."""
    return np.dtype(dtype).itemsize


def lanes_at_once() -> int:
    """How many mode flows are at work at once: an accelerator has room for far more than the default."""
    return 256 if jax.default_backend() == "cpu" else 131_072
