"""Trajectories as curves in two of their coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynwarp._checks import check_shape
from dynwarp.plot._axes import GENERATED, RECORDED, axes_or_new, drawable, tidy


def projection(recorded: Any, generated: Any = None, *, coordinates: tuple[int, int] = (0, 1), ax=None):
    """A recording, and what a model generates, projected on two coordinates.

    **Arguments:**

    - `recorded`, `generated`: shapes `(T, N)` and `(S, N)`, or None.
    - `coordinates`: which two columns.
    - `ax`: matplotlib axes; None makes a figure.

    **Returns:** the lines, a list.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> circle = np.stack([np.cos(np.arange(50.0)), np.sin(np.arange(50.0))], axis=1)
    >>> len(dw.plot.projection(circle, 0.9 * circle))
    2
    """
    ax = axes_or_new(ax, figsize=(4.0, 4.0))
    lines = []
    for name, values, colour in (("recording", recorded, RECORDED), ("model", generated, GENERATED)):
        if values is not None:
            check_shape(values, name, ("T", "N"), caller="plot.projection")
            shown = drawable(np.asarray(values)[:, list(coordinates)])
            lines += ax.plot(shown[:, 0], shown[:, 1], color=colour, lw=0.5, alpha=0.8, label=name)
    ax.set_xlabel(f"coordinate {coordinates[0]}")
    ax.set_ylabel(f"coordinate {coordinates[1]}")
    ax.legend(frameon=False, loc="upper right")
    tidy(ax)
    return lines
