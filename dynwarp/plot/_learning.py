"""How rules learn: stability of optima, speeds, paths of modes, losses, ranks, convergence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dynwarp._checks import check_shape
from dynwarp.errors import ArgumentError
from dynwarp.plot._axes import REFERENCE, axes_or_new, tidy

# Stable, saddle, unstable, nonhyperbolic: the order of `Stability.code`.
_KINDS = {"stable": "#0072b2", "saddle": "#e69f00", "unstable": "#d55e00", "nonhyperbolic": "#999999"}


def stability_map(stability: Any, s: Any, values: Any, *, label: str = "feedback", ax=None):
    """Where optima are stable, over a grid of optima and of a parameter of a rule; oscillations are hatched.

    **Arguments:**

    - `stability`: of [`learning.stability_map`][dynwarp.learning.stability_map], leading axes `(k, m)`.
    - `s`, `values`: the grid, `(m,)` and `(k,)`.
    - `label`: what `values` are.
    - `ax`: matplotlib axes; None makes a figure.

    **Returns:** the mesh.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> l, s, r = dw.learning, jnp.array([-2.0, -1.0, 1.0, 2.0]), jnp.array([0.5, 1.0])
    >>> found = l.stability_map(lambda r: l.RFLO(r, 0.5), l.Teacher(1.0, 1.0, 0.6), s, r)
    >>> type(dw.plot.stability_map(found, s, r)).__name__
    'QuadMesh'
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    s, values, code = (np.asarray(x) for x in (s, values, stability.code))
    check_shape(code, "stability", (values.size, s.size), caller="plot.stability_map")
    ax = axes_or_new(ax, figsize=(5.0, 3.6))
    colours = ListedColormap(list(_KINDS.values()))
    mesh = ax.pcolormesh(s, values, code, cmap=colours, vmin=-0.5, vmax=3.5, shading="nearest", rasterized=True)
    oscillates = np.asarray(stability.oscillates)
    if oscillates.any() and not oscillates.all():
        ax.contourf(s, values, oscillates.astype(float), levels=[0.5, 1.5], colors="none", hatches=["///"])
    shown = [Patch(color=colour, label=kind) for i, (kind, colour) in enumerate(_KINDS.items()) if (code == i).any()]
    if oscillates.any():
        shown.append(Patch(facecolor="none", edgecolor="black", hatch="///", label="oscillates"))
    ax.legend(handles=shown, fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    ax.set_xlabel("output strength s of the optimum")
    ax.set_ylabel(label)
    return mesh


def convergence_rates(s: Any, rates: Mapping[str, Any], *, ax=None):
    """Rates of convergence along the manifold of optima, one curve a rule, on logarithmic axes.

    **Arguments:** `s`, shape `(m,)`; `rates`, a curve `(m,)` for each name; `ax`: matplotlib axes.

    **Returns:** the lines, a list.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> s = np.geomspace(0.1, 10.0, 20)
    >>> len(dw.plot.convergence_rates(s, {"BPTT": s + 1 / s}))
    1
    """
    ax = axes_or_new(ax, figsize=(5.0, 3.6))
    lines = _curves(ax, s, rates, "plot.convergence_rates")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("output strength s of the optimum")
    ax.set_ylabel("rate of convergence")
    return lines


def learning_curves(times: Any, losses: Mapping[str, Any], predicted: Mapping[str, Any] | None = None, *, ax=None):
    """Losses over learning, one colour a rule, and dashed what a theory predicts of the same names.

    **Arguments:** `times`, shape `(k,)`; `losses` and `predicted`, a curve `(k,)` for each name; `ax`: matplotlib axes.

    **Returns:** the lines, a list.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> t = np.linspace(0.0, 5.0, 20)
    >>> len(dw.plot.learning_curves(t, {"BPTT": np.exp(-t)}, {"BPTT": np.exp(-1.1 * t)}))
    2
    """
    predicted = {} if predicted is None else predicted
    unknown = set(predicted) - set(losses)
    if unknown:
        raise ArgumentError(f"plot.learning_curves: `predicted` names {sorted(unknown)}, which `losses` do not have.")
    ax = axes_or_new(ax, figsize=(5.0, 3.6))
    lines = _curves(ax, times, losses, "plot.learning_curves")
    colours = {line.get_label(): line.get_color() for line in lines}
    for name, curve in predicted.items():
        lines += ax.plot(np.asarray(times), np.asarray(curve), "--", color=colours[name], lw=1)
    ax.set_yscale("log")
    ax.set_xlabel("time (steps times learning rate)")
    ax.set_ylabel("loss")
    return lines


def mode_paths(paths: Mapping[str, Any], teacher: Any, *, ax=None):
    """Paths of a mode in the plane of output strength and multiplier, and the line that the optima lie on.

    **Arguments:** `paths`, (a, b, w) along the way, `(k, 3)`, for each name; NaN after an end. `teacher`: one
    [`Teacher`][dynwarp.learning.Teacher] mode. `ax`: matplotlib axes.

    **Returns:** the lines, a list, without that of the optima.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> paths = {"BPTT": np.array([[1.0, 1.0, 0.6], [1.0, 1.0, 0.8]])}
    >>> len(dw.plot.mode_paths(paths, dw.learning.Teacher(1.0, 1.0, 0.8)))
    1
    """
    ax = axes_or_new(ax, figsize=(5.0, 3.6))
    ax.axhline(float(np.squeeze(teacher.w)), color=REFERENCE, lw=1, ls=":", label="optima")
    ax.axvline(0.0, color=REFERENCE, lw=0.5)
    lines = []
    for name, path in paths.items():
        path = np.asarray(path)
        check_shape(path, name, ("k", 3), caller="plot.mode_paths")
        lines += ax.plot(path[:, 0], path[:, 2], lw=1.2, label=name)
        kept = path[np.isfinite(path).all(axis=1)]
        if len(kept):
            ax.plot(kept[[0, -1], 0], kept[[0, -1], 2], "o", ms=4, color=lines[-1].get_color())
    ax.set_xlabel("output strength a")
    ax.set_ylabel("multiplier w")
    ax.legend(frameon=False, fontsize="small")
    tidy(ax)
    return lines


def singular_values(profiles: Mapping[str, Any], *, floor: float = 1e-18, ax=None):
    """Singular values of what learning has changed, relative to the largest, one curve a rule.

    **Arguments:** `profiles`, a [`RankProfile`][dynwarp.learning.RankProfile] or a vector of singular values for each
    name; `floor`, below which values are drawn at the floor; `ax`: matplotlib axes.

    **Returns:** the lines, a list.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> profile = dw.learning.rank_profile(jnp.zeros((3, 3)), jnp.diag(jnp.array([2.0, 1.0, 0.0])))
    >>> len(dw.plot.singular_values({"some rule": profile}))
    1
    """
    from matplotlib.ticker import MaxNLocator

    ax = axes_or_new(ax, figsize=(5.0, 3.6))
    lines = []
    for name, profile in profiles.items():
        values = np.asarray(getattr(profile, "singular_values", profile))
        check_shape(values, name, ("r",), caller="plot.singular_values")
        largest = values.max(initial=0.0)
        relative = np.maximum(values / (largest if largest > 0 else 1.0), floor)
        lines += ax.plot(np.arange(1, values.size + 1), relative, "o-", ms=3, lw=1, label=name)
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("index")
    ax.set_ylabel("singular value / largest")
    ax.legend(frameon=False, fontsize="small")
    tidy(ax)
    return lines


def convergence_map(converged: Any, rows: Any, columns: Any, *, labels: tuple[str, str] = ("", ""), ax=None):
    """A grid of shares of runs that converged, each cell with its number.

    **Arguments:** `converged`, shares `(r, c)` in [0, 1]; `rows` `(r,)` and `columns` `(c,)`, the settings; `labels` of
    rows and columns; `ax`: matplotlib axes.

    **Returns:** the image.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> type(dw.plot.convergence_map(np.eye(2), [0.1, 0.2], [1.0, 4.5])).__name__
    'AxesImage'
    """
    shares, rows, columns = np.asarray(converged), np.asarray(rows), np.asarray(columns)
    check_shape(shares, "converged", (rows.size, columns.size), caller="plot.convergence_map")
    ax = axes_or_new(ax, figsize=(4.0, 3.2))
    image = ax.imshow(shares, vmin=0.0, vmax=1.0, cmap="cividis", origin="lower", aspect="auto")
    for (i, j), share in np.ndenumerate(shares):
        ax.text(j, i, f"{share:.2f}", ha="center", va="center", color="white" if share < 0.6 else "black")
    ax.set_xticks(range(columns.size), [f"{x:g}" for x in columns])
    ax.set_yticks(range(rows.size), [f"{x:g}" for x in rows])
    ax.set_ylabel(labels[0])
    ax.set_xlabel(labels[1])
    return image


def _curves(ax, x, curves, caller):
    x, lines = np.asarray(x), []
    check_shape(x, "s" if caller.endswith("rates") else "times", ("k",), caller=caller)
    for name, values in curves.items():
        values = np.asarray(values)
        check_shape(values, name, x.shape, caller=caller)
        lines += ax.plot(x, values, lw=1.2, label=name)
    ax.legend(frameon=False, fontsize="small")
    tidy(ax)
    return lines
