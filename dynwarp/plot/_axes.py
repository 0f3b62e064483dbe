"""Axes to draw on, and the colours that the figures share."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynwarp.errors import MissingDependencyError

# Colours that stay apart for colour-blind readers (Okabe and Ito); recordings are black.
RECORDED, GENERATED, REFERENCE, UNSTABLE = "#000000", "#0072b2", "#999999", "#d55e00"


def axes_or_new(ax: Any, *, figsize: tuple[float, float] = (7.0, 3.0)):
    """The axes given, or those of a new figure of pyplot."""
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingDependencyError("Figures need matplotlib: pip install 'dynwarp[plot]'.") from error
    return plt.subplots(figsize=figsize, layout="constrained")[1]


def tidy(ax) -> None:
    """No frame on the sides that carry no scale."""
    ax.spines[["top", "right"]].set_visible(False)


def drawable(values):
    """Values as floats, NaN where they are too large for matplotlib to find ticks."""
    values = np.asarray(values, float)
    return np.where(np.abs(values) < 1e100, values, np.nan)
