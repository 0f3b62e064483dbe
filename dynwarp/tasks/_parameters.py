"""How tasks and manifolds read what they are given."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynwarp._checks import check_positive
from dynwarp.errors import ArgumentError


def check_bounds(bounds: Any, name: str, *, caller: str) -> tuple[float, float]:
    """Two finite numbers that increase."""
    pair = increasing(bounds)
    if pair is None or not np.isfinite(pair).all():
        raise ArgumentError(f"{caller}: `{name}` must be two finite numbers that increase; got {bounds!r}.")
    return pair


def check_axes(dim: int, periods: Any, bounds: Any, *, caller: str) -> tuple[tuple, tuple]:
    """The periods and the bounds of the coordinates of a chart, one each; raises for what can be none."""
    periods, bounds = ((None,) * dim if axes is None else axes for axes in (periods, bounds))
    if not all(np.iterable(axes) and len(tuple(axes)) == dim for axes in (periods, bounds)):
        raise ArgumentError(
            f"{caller}: `periods` and `bounds` must have one entry for each of the {dim} coordinates; got {periods!r} "
            f"and {bounds!r}."
        )
    for period in periods:
        if period is not None:
            check_positive(period, "periods", caller=caller)
    for bound in bounds:
        if bound is not None and increasing(bound) is None:
            raise ArgumentError(
                f"{caller}: `bounds` must be two numbers that increase for each coordinate, or None; got {bound!r}."
            )
    return tuple(periods), tuple(bounds)


def increasing(bounds: Any) -> tuple[float, float] | None:
    """Two numbers that increase, which may be infinite, or None."""
    try:
        pair = np.asarray(bounds)
    except ValueError:
        return None
    fits = pair.shape == (2,) and pair.dtype.kind in "iuf" and pair[0] < pair[1]
    return (float(pair[0]), float(pair[1])) if fits else None
