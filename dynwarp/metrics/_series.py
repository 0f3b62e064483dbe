"""What the metrics ask of their series."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._checks import check_finite, check_shape
from dynwarp.dynamics._stepping import as_floating
from dynwarp.errors import SeriesError


def check_pair(true, generated, caller: str) -> tuple[jax.Array, jax.Array]:
    """The two series as floats, of equal width and at least two steps. What is generated may hold NaN."""
    check_shape(true, "true", ("T", "N"), caller=caller)
    check_shape(generated, "generated", ("S", true.shape[1]), caller=caller)
    for name, series in (("true", true), ("generated", generated)):
        if series.shape[0] < 2:
            raise SeriesError(f"{caller}: `{name}` must have at least 2 time steps; got {series.shape[0]}.")
    check_finite(true, "true", caller=caller)
    true, generated = as_floating(true), as_floating(generated)
    dtype = np.promote_types(true.dtype, generated.dtype)
    return true.astype(dtype), generated.astype(dtype)


def standardise(series, reference):
    """`series` about the mean of `reference`, in units of its standard deviation, column by column; a column that is
    constant there is only shifted."""
    spread = jnp.std(reference, axis=0)
    return (series - jnp.mean(reference, axis=0)) / jnp.where(spread > 0, spread, jnp.ones((), spread.dtype))
