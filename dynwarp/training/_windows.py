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
from dynwarp.errors import ArgumentError, SeriesError, ShapeError
from dynwarp.io import Series


class Windows(eqx.Module):
    """Recordings end to end, and the first row of every window of `length + 1` rows that lies inside one of them and
    begins in a row without gaps. NaN stands for what was not observed."""

    values: Float[Array, "rows N"]
    inputs: Float[Array, "rows d"]
    starts: Int[Array, " windows"]
    length: int = eqx.field(static=True)

    def draw(self, count: int, key) -> tuple[Float[Array, "batch time N"], Float[Array, "batch time d"], Any]:
        """Windows of observations, `(count, length + 1, N)`, the inputs of their steps, `(count, length, d)`, and a key
        for what else is random in the step."""
        draw_key, rest_key = jax.random.split(key)
        return *self.take(self.starts[jax.random.randint(draw_key, (count,), 0, self.starts.size)]), rest_key

    def take(self, starts: Int[Array, " batch"]):
        """The windows that begin in these rows."""
        rows = starts[:, None] + jnp.arange(self.length + 1, dtype=starts.dtype)
        return self.values[rows], self.inputs[rows[:, 1:]]


def as_arrays(data: Any, name: str, observed: Any = None) -> list[np.ndarray]:
    """The recordings as checked arrays, each (T, N) with at least two rows.

    `observed`: None, all must be finite; "finite", the others are missing; or masks, one a recording. What is missing
    becomes NaN.
    """
    several = isinstance(data, list | tuple)
    items = list(data) if several else [data]
    if not items:
        raise SeriesError(f"fit: `{name}` is an empty list; at least one recording is needed.")
    masks: list[Any] = [None] * len(items)
    if observed is not None and not isinstance(observed, str):
        masks = list(observed) if isinstance(observed, list | tuple) else [observed]
        if len(masks) != len(items):
            raise ArgumentError(f"fit: {len(items)} recordings need as many masks in `observed`; got {len(masks)}.")
    elif observed not in (None, "finite"):
        raise ArgumentError(f"fit: `observed` must be None, 'finite' or boolean masks; got {observed!r}.")
    arrays: list[np.ndarray] = []
    for i, (item, mask) in enumerate(zip(items, masks)):
        label = f"{name}[{i}]" if several else name
        array = np.asarray(item.values if isinstance(item, Series) else item)
        if array.ndim != 2 or array.shape[1] == 0:
            raise ShapeError(f"fit: `{label}` must have shape (T, N); got {array.shape}.")
        if array.shape[1] != np.shape(arrays[0] if arrays else array)[1]:
            raise ShapeError(f"fit: `{label}` has {array.shape[1]} channels and the first has {arrays[0].shape[1]}.")
        if array.shape[0] < 2:
            raise SeriesError(f"fit: `{label}` has {array.shape[0]} time steps; at least two are needed.")
        if isinstance(observed, str):
            array = np.where(np.isfinite(array), array, np.nan)
        elif mask is not None:
            mask = np.asarray(mask)
            if mask.shape != array.shape or mask.dtype != bool:
                raise ShapeError(
                    f"fit: the mask of `{label}` must be boolean, shape {array.shape}; got {mask.dtype}, {mask.shape}."
                )
            check_finite(np.where(mask, array, 0), label, caller="fit")
            array = np.where(mask, array, np.nan)
        else:
            check_finite(array, label, caller="fit")
        arrays.append(array)
    for channel in range(arrays[0].shape[1]):
        values = np.concatenate([a[:, channel] for a in arrays])
        values = values[~np.isnan(values)]
        if values.size == 0:
            raise SeriesError(f"fit: nothing of channel {channel} of `{name}` was observed.")
    return arrays


def check_moving(arrays: Sequence[np.ndarray]) -> None:
    """Raises where a channel is the same throughout all recordings."""
    low, high = (np.nanmin, np.nanmax)
    rows = np.concatenate(list(arrays))
    for channel in np.flatnonzero(low(rows, axis=0) == high(rows, axis=0)):
        raise SeriesError(f"fit: channel {channel} of `data` is constant and has no dynamics; leave it out.")


def make_windows(arrays: Sequence[np.ndarray], inputs: Sequence[np.ndarray], length: int, dtype) -> Windows:
    """The windows of `length` steps of some recordings. Where one recording is long enough, those that are too short
    count as not observed beyond their end."""
    longest = max(len(a) for a in arrays)
    if longest <= length:
        raise SeriesError(
            f"fit: windows of `sequence_length` {length} need {length + 1} time steps; the longest "
            f"recording has {longest}."
        )
    arrays, inputs = (
        [np.pad(x, ((0, max(0, length + 1 - len(x))), (0, 0)), constant_values=fill) for x in items]
        for items, fill in ((arrays, np.nan), (inputs, 0.0))
    )
    offsets = np.cumsum([0, *(len(a) for a in arrays)])
    starts = np.concatenate([np.arange(o, o + len(a) - length) for o, a in zip(offsets, arrays)])
    values, driven = (np.concatenate(list(x)) for x in (arrays, inputs))
    starts = starts[~np.isnan(values[starts]).any(axis=1)]
    if starts.size == 0:
        raise SeriesError("fit: no window begins in a row in which every channel was observed.")
    return Windows(jnp.asarray(values, dtype), jnp.asarray(driven, dtype), jnp.asarray(starts, jnp.int32), length)
