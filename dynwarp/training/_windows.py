"""The recordings a model is trained on, as one array and the places where a window fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dynwarp._checks import check_finite
from dynwarp.errors import SeriesError, ShapeError
from dynwarp.io import Series


class Windows(eqx.Module):
    """Recordings end to end, and the first row of every window of `length + 1` rows that lies inside one of them."""

    values: Float[Array, "rows N"]
    inputs: Float[Array, "rows d"]
    starts: Int[Array, " windows"]
    length: int = eqx.field(static=True)

    def draw(self, count: int, key) -> tuple[Float[Array, "batch time N"], Float[Array, "batch time d"]]:
        """Windows of observations, `(count, length + 1, N)`, and the inputs of their steps, `(count, length, d)`."""
        return self.take(self.starts[jax.random.randint(key, (count,), 0, self.starts.size)])

    def take(self, starts: Int[Array, " batch"]):
        """The windows that begin in these rows."""
        rows = starts[:, None] + jnp.arange(self.length + 1, dtype=starts.dtype)
        return self.values[rows], self.inputs[rows[:, 1:]]


def as_arrays(data: Any, name: str) -> list[np.ndarray]:
    """The recordings as checked arrays, each (T, N) with at least two rows."""
    items = list(data) if isinstance(data, list | tuple) else [data]
    if not items:
        raise SeriesError(f"fit: `{name}` is an empty list; at least one recording is needed.")
    arrays = []
    for i, item in enumerate(items):
        label = f"{name}[{i}]" if isinstance(data, list | tuple) else name
        array = np.asarray(item.values if isinstance(item, Series) else item)
        if array.ndim != 2 or array.shape[1] == 0:
            raise ShapeError(f"fit: `{label}` must have shape (T, N); got {array.shape}.")
        if array.shape[1] != np.shape(arrays[0] if arrays else array)[1]:
            raise ShapeError(f"fit: `{label}` has {array.shape[1]} channels and the first has {arrays[0].shape[1]}.")
        if array.shape[0] < 2:
            raise SeriesError(f"fit: `{label}` has {array.shape[0]} time steps; at least two are needed.")
        check_finite(array, label, caller="fit")
        arrays.append(array)
    return arrays


def make_windows(arrays: Sequence[np.ndarray], inputs: Sequence[np.ndarray], length: int, dtype) -> Windows:
    """The windows of `length` steps of some recordings."""
    offsets = np.cumsum([0, *(len(a) for a in arrays)])
    starts = [np.arange(o, o + len(a) - length) for o, a in zip(offsets, arrays) if len(a) > length]
    if not starts:
        longest = max(len(a) for a in arrays)
        raise SeriesError(
            f"fit: windows of `sequence_length` {length} need {length + 1} time steps; the longest "
            f"recording has {longest}."
        )
    values, driven = (jnp.asarray(np.concatenate(list(x)), dtype) for x in (arrays, inputs))
    return Windows(values, driven, jnp.asarray(np.concatenate(starts), jnp.int32), length)
