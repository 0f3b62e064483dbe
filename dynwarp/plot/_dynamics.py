"""Figures of dynamics: exponents, multipliers, fixed points in state space."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynwarp._checks import check_shape
from dynwarp.plot._axes import GENERATED, RECORDED, REFERENCE, UNSTABLE, axes_or_new, tidy


def lyapunov_spectrum(exponents: Any, *, standard_error: Any = None, ax=None):
    """A spectrum of Lyapunov exponents, largest first.

    **Arguments:** `exponents`, shape `(k,)`; `standard_error`, the same or None.

    **Returns:** the artists, a list.

    **Example:**

    >>> import dynwarp as dw
    >>> len(dw.plot.lyapunov_spectrum([0.9, 0.0, -14.6]))
    2
    """
    ax = axes_or_new(ax, figsize=(4.5, 3.0))
    exponents = np.asarray(exponents)
    check_shape(exponents, "exponents", ("k",), caller="plot.lyapunov_spectrum")
    zero = ax.axhline(0.0, color=REFERENCE, lw=0.8)
    index = np.arange(1, exponents.size + 1)
    error = None if standard_error is None else np.asarray(standard_error)
    bars = ax.errorbar(index, exponents, yerr=error, fmt="o", ms=4, color=GENERATED, capsize=2)
    ax.set_xlabel("index")
    ax.set_ylabel("Lyapunov exponent")
    tidy(ax)
    return [zero, bars]


def eigenvalues(values: Any, *, kind: str = "multiplier", ax=None):
    """Eigenvalues in the complex plane, with the border of stability.

    **Arguments:** `values`, complex, any shape; `kind`, "multiplier" (of a map: the unit circle is the border) or
    "rate" (of a field: the imaginary axis is).

    **Returns:** the artists, a list.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> len(dw.plot.eigenvalues(np.array([0.5, 1.1j])))
    3
    """
    ax = axes_or_new(ax, figsize=(3.6, 3.6))
    values = np.asarray(values).ravel()
    if kind == "multiplier":
        angle = np.linspace(0, 2 * np.pi, 200)
        artists: list[Any] = ax.plot(np.cos(angle), np.sin(angle), color=REFERENCE, lw=0.8)
        stable = np.abs(values) < 1
        ax.set_aspect("equal", adjustable="datalim")
    else:
        artists = [ax.axvline(0.0, color=REFERENCE, lw=0.8)]
        stable = values.real < 0
    for chosen, colour, name in ((stable, GENERATED, "stable"), (~stable, UNSTABLE, "unstable")):
        artists.append(ax.scatter(values[chosen].real, values[chosen].imag, s=14, color=colour, label=name))
    ax.set_xlabel("real part")
    ax.set_ylabel("imaginary part")
    ax.legend(frameon=False, loc="upper left", fontsize="small")
    tidy(ax)
    return artists


def fixed_points(
    points: Any, is_stable: Any, *, trajectory: Any = None, coordinates: tuple[int, int] = (0, 1), labels=None, ax=None
):
    """Fixed points in a plane of state space, over a trajectory.

    **Arguments:**

    - `points`: shape `(k, n)`; `is_stable`: shape `(k,)`. Stable ones are filled.
    - `trajectory`: shape `(T, n)` or None.
    - `coordinates`: which two are drawn.
    - `labels`: their names.

    **Returns:** the artists, a list.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> len(dw.plot.fixed_points(np.zeros((2, 3)), np.array([True, False])))
    2
    """
    ax = axes_or_new(ax, figsize=(4.0, 4.0))
    points, is_stable = np.asarray(points), np.asarray(is_stable, bool)
    check_shape(points, "points", ("k", "n"), caller="plot.fixed_points")
    check_shape(is_stable, "is_stable", (len(points),), caller="plot.fixed_points")
    i, j = coordinates
    artists = []
    if trajectory is not None:
        trajectory = np.asarray(trajectory)
        artists += ax.plot(trajectory[:, i], trajectory[:, j], color=GENERATED, lw=0.6, alpha=0.8, label="model")
    for chosen, name, face in (
        (is_stable, "stable fixed point", RECORDED),
        (~is_stable, "unstable fixed point", "none"),
    ):
        shown = points[chosen]
        artists.append(
            ax.scatter(shown[:, i], shown[:, j], s=36, facecolor=face, edgecolor=UNSTABLE, zorder=3, label=name)
        )
    names = labels or (f"z[{i}]", f"z[{j}]")
    ax.set_xlabel(names[0])
    ax.set_ylabel(names[1])
    ax.legend(frameon=False, fontsize="small")
    tidy(ax)
    return artists
