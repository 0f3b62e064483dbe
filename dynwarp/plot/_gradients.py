"""How far gradients travel: bounds, profiles, envelopes, sensitivities, memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dynwarp._checks import check_shape
from dynwarp.plot._axes import GENERATED, RECORDED, REFERENCE, UNSTABLE, axes_or_new, drawable, tidy


def gradient_bounds(report: Any, *, ax=None):
    """The norm of the product of the last l Jacobians beside its bounds, over l.

    **Arguments:** `report`, a [`BoundReport`][dynwarp.gradients.BoundReport]; `ax`: matplotlib axes, None makes a
    figure.

    **Returns:** the lines, a list: the norm, the product of the largest singular values, the uniform bound, the product
    of the smallest, as far as it is in sight. What vanished is not drawn.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.LinearRNN(jnp.diag(jnp.array([0.9, 0.5])), jnp.zeros((2, 1)), jnp.eye(2))
    >>> len(dw.plot.gradient_bounds(dw.gradients.bound_report(net, jnp.zeros((5, 2)))))
    4
    """
    ax = axes_or_new(ax, figsize=(5.0, 3.6))
    curves = (
        (report.log_norms, "norm of the product", RECORDED, "-"),
        (report.log_bounds, "product of largest singular values", GENERATED, "-"),
        (report.log_uniform_bounds, "uniform bound", UNSTABLE, "--"),
        (report.log_floors, "product of smallest singular values", REFERENCE, ":"),
    )
    lines = []
    for values, label, colour, style in curves:
        values = np.asarray(values, float)
        lags, values = np.arange(1, values.size + 1), np.where(np.isfinite(values), values, np.nan)
        lines += ax.plot(lags, values / np.log(10), style, lw=1.2, color=colour, label=label)
    # The floor falls so fast that it would flatten the rest.
    shown = np.concatenate([line.get_ydata() for line in lines[:3]])
    low, high = np.nanmin(shown), np.nanmax(shown)
    ax.set_ylim(low - 0.5 * (high - low) - 0.1, high + 0.05 * (high - low) + 0.1)
    ax.axhline(0.0, color=REFERENCE, lw=0.5)
    ax.set_xlabel("lag")
    ax.set_ylabel("log10 of the norm")
    ax.legend(frameon=False, fontsize="small")
    tidy(ax)
    return lines


def gradient_profile(profiles: Mapping[str, Any], *, ax=None):
    """What a loss still sends l steps back, over l, one curve a network.

    **Arguments:** `profiles`, a [`GradientProfile`][dynwarp.gradients.GradientProfile] or the norms by lag `(L,)` for
    each name; `ax`: matplotlib axes.

    **Returns:** the lines, a list.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> len(dw.plot.gradient_profile({"vanishing": 0.5 ** np.arange(10)}))
    1
    """
    ax = axes_or_new(ax, figsize=(5.0, 3.6))
    lines = []
    for name, profile in profiles.items():
        norms = np.asarray(getattr(profile, "lag_norms", profile), float)
        check_shape(norms, name, ("L",), caller="plot.gradient_profile")
        lines += ax.plot(np.arange(norms.size), _positive(norms), lw=1.2, label=name)
    ax.set_yscale("log")
    ax.set_xlabel("lag")
    ax.set_ylabel("norm of the gradient")
    ax.legend(frameon=False, fontsize="small")
    tidy(ax)
    return lines


def sensitivities(
    memory: Any, predicted: Mapping[str, Any], measured: Mapping[str, Any] | None = None, *, label: str = "", ax=None
):
    """Second moments over the memory 1 / (1 - |lam|), on logarithmic axes: curves of a theory, dots of a measurement.

    **Arguments:** `memory`, `(k,)`; `predicted`, a curve `(k,)` for each name; `measured`, values `(k,)` of some of the
    same names; `label` of the vertical axis; `ax`: matplotlib axes.

    **Returns:** the lines, a list: the curves, then the dots.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> memory = np.geomspace(10.0, 1000.0, 5)
    >>> len(dw.plot.sensitivities(memory, {"white": memory**3}, {"white": 1.01 * memory**3}))
    2
    """
    ax = axes_or_new(ax, figsize=(5.0, 3.6))
    memory, lines, colours = np.asarray(memory, float), [], {}
    for name, values in predicted.items():
        values = np.asarray(values, float)
        check_shape(values, name, memory.shape, caller="plot.sensitivities")
        lines += ax.plot(memory, _positive(values), lw=1.2, label=name)
        colours[name] = lines[-1].get_color()
    for name, values in ({} if measured is None else measured).items():
        values = np.asarray(values, float)
        check_shape(values, name, memory.shape, caller="plot.sensitivities")
        lines += ax.plot(memory, _positive(values), "o", ms=3.5, color=colours.get(name))
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("memory 1 / (1 - |lam|)")
    ax.set_ylabel(label)
    ax.legend(frameon=False, fontsize="small")
    tidy(ax)
    return lines


def envelopes(lags: Any, curves: Mapping[str, Any], *, ax=None):
    """Envelopes of what a loss term sends back, over the lag, on a logarithmic scale.

    **Arguments:** `lags`, `(L,)`; `curves`, values `(L,)` for each name; `ax`: matplotlib axes.

    **Returns:** the lines, a list.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> lags = np.array([1, 2, 4, 8])
    >>> len(dw.plot.envelopes(lags, {"exact": 0.9**lags, "diagonal": 0.8**lags}))
    2
    """
    ax = axes_or_new(ax, figsize=(5.0, 3.6))
    lags, lines = np.asarray(lags, float), []
    for name, values in curves.items():
        values = np.asarray(values, float)
        check_shape(values, name, lags.shape, caller="plot.envelopes")
        lines += ax.plot(lags, _positive(values), "o-", ms=3, lw=1.2, label=name)
    ax.set_yscale("log")
    ax.set_xlabel("lag")
    ax.set_ylabel("envelope")
    ax.legend(frameon=False, fontsize="small")
    tidy(ax)
    return lines


def memory_capacities(capacities: Mapping[str, Any], *, ax=None):
    """How much of the input k steps ago is still there, over the delay k, one curve a network.

    **Arguments:** `capacities`, a [`MemoryCapacity`][dynwarp.gradients.MemoryCapacity] or values `(K,)` from delay 0 on
    for each name; `ax`: matplotlib axes.

    **Returns:** the lines, a list.

    **Example:**

    >>> import numpy as np, dynwarp as dw
    >>> len(dw.plot.memory_capacities({"line of three": np.array([1.0, 1.0, 1.0, 0.0])}))
    1
    """
    ax = axes_or_new(ax, figsize=(5.0, 3.6))
    lines = []
    for name, capacity in capacities.items():
        values = np.asarray(getattr(capacity, "capacities", capacity), float)
        check_shape(values, name, ("K",), caller="plot.memory_capacities")
        lines += ax.plot(np.arange(values.size), drawable(values), lw=1.2, label=name)
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlabel("delay k")
    ax.set_ylabel("capacity m(k)")
    ax.legend(frameon=False, fontsize="small")
    tidy(ax)
    return lines


def _positive(values):
    """What a logarithmic axis can show; NaN for the rest."""
    values = drawable(values)
    return np.where(values > 0, values, np.nan)
