"""How tasks and manifolds read what they are given."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynwarp.errors import ArgumentError


def check_bounds(bounds: Any, name: str, *, caller: str) -> tuple[float, float]:
    """Two finite numbers that increase."""
    pair = increasing(bounds)
    if pair is None or not np.isfinite(pair).all():
        raise ArgumentError(f"{caller}: `{name}` must be two finite numbers that increase; got {bounds!r}.")
    return pair


def increasing(bounds: Any) -> tuple[float, float] | None:
    """Two numbers that increase, which may be infinite, or None."""
    try:
        pair = np.asarray(bounds)
    except ValueError:
        return None
    fits = pair.shape == (2,) and pair.dtype.kind in "iuf" and pair[0] < pair[1]
    return (float(pair[0]), float(pair[1])) if fits else None
