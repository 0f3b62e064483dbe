"""How gradients travel: the figures of a diagnosis, and what networks do along their training."""

from __future__ import annotations

from typing import Any

import numpy as np

from dynwarp._checks import check_shape
from dynwarp.errors import ArgumentError
from dynwarp.plot._axes import GENERATED, RECORDED, REFERENCE, UNSTABLE, axes_or_new, drawable, tidy


def diagnosis(found: Any, *, axes: Any = None):
    """The four figures of a diagnosis: gradients by step, exponents, Jacobians of the steps, the envelope.

    **Arguments:** `found`, a [`Diagnosis`][dynwarp.gradients.Diagnosis]; `axes`: four matplotlib axes, in any shape;
    None makes a figure.

    **Returns:** the figure.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net, out = dw.models.GRU(1, 4, key=jax.random.key(0)), dw.models.Readout(4, 1, key=jax.random.key(1))
    >>> found = dw.gradients.diagnose(net, out, jax.random.normal(jax.random.key(2), (40, 1)), jnp.zeros((40, 1)))
    >>> len(dw.plot.diagnosis(found).axes)
    4
    """
    if axes is None:
        axes_or_new(object())  # asks for matplotlib, or says what is missing
        import matplotlib.pyplot as plt

        axes = plt.subplots(2, 2, figsize=(8.0, 5.5), layout="constrained")[1]
    axes = np.asarray(axes, object).ravel()
    if axes.size != 4:
        raise ArgumentError(f"plot.diagnosis: `axes` must be four; got {axes.size}.")
    profile, spectrum, steps, decay = axes

    profile.semilogy(np.arange(len(found.adjoint_norms)), _positive(found.adjoint_norms), color=GENERATED, lw=1)
    profile.set_xlabel("step t")
    profile.set_ylabel("|dL/dh_t|")

    order = np.arange(1, len(found.exponents) + 1)
    errors = np.asarray(found.exponent_errors)
    errors = np.where(np.isfinite(errors), errors, 0)
    spectrum.axhline(0, color=REFERENCE, lw=0.8)
    spectrum.errorbar(order, drawable(found.exponents), yerr=2 * errors, fmt="o", ms=4, color=GENERATED, capsize=2)
    spectrum.set_xticks(order)
    spectrum.set_xlabel("exponent (2 standard errors)")
    spectrum.set_ylabel("nats per step")

    steps.axhline(1, color=REFERENCE, lw=0.8)
    steps.plot(found.looked_at, drawable(found.sigma_max), color=UNSTABLE, lw=1, label="largest singular value")
    steps.plot(found.looked_at, drawable(found.spectral_radius), color=GENERATED, lw=1, label="spectral radius")
    steps.set_xlabel("step t")
    steps.legend(frameon=False, fontsize="small")

    lags, values = np.asarray(found.envelope.lags), np.asarray(found.envelope.log_values, float)
    errors = np.asarray(found.envelope.log_error, float)
    errors = np.where(np.isfinite(errors), errors, 0)
    decay.errorbar(lags, drawable(values), yerr=2 * errors, fmt="o", ms=4, color=RECORDED, capsize=2, label="exact")
    best = int(found.regime.best)
    rate, amplitude = float(found.regime.rate[best]), float(found.regime.log_amplitude[best])
    x = np.linspace(lags[0], lags[-1], 100)
    shape = (x, np.log(x), np.log(np.log1p(x)))[best]
    decay.plot(x, drawable(amplitude - rate * shape), color=GENERATED, lw=1, label=found.regime.names[best])
    decay.set_xlabel("lag")
    decay.set_ylabel("log envelope")
    decay.legend(frameon=False, fontsize="small")
    for ax in axes:
        tidy(ax)
    return axes[0].figure


def orbit_diagram(parameters: Any, diagram: Any, *, unit: int = 0, ax=None):
    """The tails of orbits over a parameter, or over the epochs of a training: a bifurcation diagram.

    **Arguments:**

    - `parameters`: `(E,)`.
    - `diagram`: an [`OrbitDiagram`][dynwarp.gradients.OrbitDiagram] with a leading axis of E models, such as the
      `.orbits` of an [`attractor_history`][dynwarp.gradients.attractor_history].
    - `unit`: the coordinate that is drawn.
    - `ax`: matplotlib axes; None makes a figure.

    **Returns:** the points.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> models = [dw.systems.LogisticMap(r) for r in (2.5, 3.2)]
    >>> history = dw.gradients.attractor_history(models, jnp.array([[0.4]]), steps=20, max_period=4)
    >>> type(dw.plot.orbit_diagram([2.5, 3.2], history.orbits)).__name__
    'Line2D'
    """
    parameters, states = np.asarray(parameters), np.asarray(diagram.states)
    check_shape(parameters, "parameters", (len(states),), caller="plot.orbit_diagram")
    ax = axes_or_new(ax)
    values = states[..., unit].reshape(len(states), -1)
    (points,) = ax.plot(
        np.repeat(parameters, values.shape[1]), drawable(values.ravel()), ",", color=RECORDED, rasterized=True
    )
    ax.set_xlabel("parameter")
    ax.set_ylabel(f"unit {unit}")
    tidy(ax)
    return points


def _positive(values):
    values = drawable(values)
    return np.where(values > 0, values, np.nan)
