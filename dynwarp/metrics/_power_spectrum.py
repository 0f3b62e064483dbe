"""Power spectra of trajectories and the Hellinger distance between them, D_H."""

from __future__ import annotations

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_shape
from dynwarp._compat import concrete
from dynwarp._typing import Scalar
from dynwarp.dynamics._stepping import as_floating
from dynwarp.errors import ArgumentError, SeriesError
from dynwarp.metrics._series import check_pair


def power_spectrum(series: Float[Array, "T N"], *, smoothing: float = 20.0) -> Float[Array, "F N"]:
    """The power spectrum of each column as a probability over frequencies, F = T // 2 + 1.

    Each column is standardised, |rfft|^2 is smoothed by a Gaussian and divided by its sum.

    **Arguments:**

    - `series`: shape `(T, N)`.
    - `smoothing`: the standard deviation of the Gaussian, in bins of the spectrum; cut at 4 of them, reflected at the
      ends. 0: none.

    **Returns:** shape `(F, N)`; bin i is the frequency i / T per step. A constant column has no power: zeros.
    Differentiable. Cost O(N T log T + N T smoothing).

    **Raises:** `ShapeError`; `SeriesError` for fewer than 2 steps; `ArgumentError` for negative smoothing.

    **Source:** Mikhaeil, Monfared and Durstewitz, NeurIPS 2022.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> wave = jnp.sin(2 * jnp.pi * 0.1 * jnp.arange(400.0))[:, None]
    >>> int(jnp.argmax(dw.metrics.power_spectrum(wave, smoothing=2.0)))
    40
    """
    check_shape(series, "series", ("T", "N"), caller="power_spectrum")
    if series.shape[0] < 2:
        raise SeriesError(f"power_spectrum: `series` must have at least 2 time steps; got {series.shape[0]}.")
    return _spectrum(as_floating(series), _check_smoothing(smoothing, "power_spectrum"))


def power_spectrum_distance(
    true: Float[Array, "T N"], generated: Float[Array, "S N"], *, smoothing: float = 20.0
) -> Scalar:
    """The Hellinger distance between the power spectra of two trajectories, D_H, averaged over columns.

    **Arguments:**

    - `true`, `generated`: shapes `(T, N)` and `(S, N)`; the longer one is cut to the length of the other.
    - `smoothing`: as in [`power_spectrum`][dynwarp.metrics.power_spectrum]. A spectrum of fewer bins than some eight
      standard deviations, 320 steps at the default, is smoothed flat, and the distance then says little: lower it.

    **Returns:** a scalar between 0 and 1: (1/sqrt 2) |sqrt f - sqrt g|. A column that is constant, or not finite, in
    one of them counts 1; constant in both, 0. Differentiable where the spectra differ.

    **Raises:** `ShapeError`; `SeriesError`; `NonFiniteError` in `true`; `ArgumentError`.

    **Source:** Mikhaeil, Monfared and Durstewitz, NeurIPS 2022.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> wave = jnp.sin(jnp.arange(500.0) / 5)[:, None]
    >>> float(dw.metrics.power_spectrum_distance(wave, 3 * wave + 1).round(6))
    0.0
    """
    caller = "power_spectrum_distance"
    true, generated = check_pair(true, generated, caller)
    length = min(len(true), len(generated))
    return _distance(true[:length], generated[:length], _check_smoothing(smoothing, caller))


def _check_smoothing(smoothing, caller: str) -> float:
    known = concrete(smoothing)
    if known is None or not (np.isfinite(known) and known >= 0):
        raise ArgumentError(f"{caller}: `smoothing` must be a number that is not negative; got {smoothing!r}.")
    return float(known)


@eqx.filter_jit
def _spectrum(series, smoothing):
    centred = series - jnp.mean(series, axis=0)
    # Rounding leaves a constant column a spread of its own; that is no power.
    noise = 16 * jnp.finfo(series.dtype).eps * jnp.max(jnp.abs(series), axis=0)
    constant = jnp.max(jnp.abs(centred), axis=0) <= noise
    one, zero = jnp.ones((), series.dtype), jnp.zeros((), series.dtype)
    centred = jnp.where(constant, zero, centred)
    power = (
        jnp.abs(
            jnp.fft.rfft(centred / jnp.where(constant, one, jnp.std(jnp.where(constant, one, series), axis=0)), axis=0)
        )
        ** 2
    )
    power = jnp.where(constant, zero, _smooth(power, smoothing))
    return power / jnp.where(constant, one, jnp.sum(power, axis=0))


def _smooth(power, smoothing):
    """A Gaussian filter along the first axis, cut at 4 standard deviations, reflected about the outer edges."""
    radius = math.floor(4 * smoothing + 0.5)
    if radius == 0:
        return power
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / smoothing) ** 2)
    weights = jnp.asarray(weights / weights.sum(), power.dtype)
    padded = jnp.pad(power, ((radius, radius), (0, 0)), mode="symmetric")
    columns = [jnp.convolve(padded[:, i], weights, mode="valid") for i in range(power.shape[1])]
    return jnp.stack(columns, axis=1)


@eqx.filter_jit
def _distance(true, generated, smoothing):
    f, g = _spectrum(true, smoothing), _spectrum(generated, smoothing)
    zero, one = jnp.zeros((), f.dtype), jnp.ones((), f.dtype)
    f_any, g_any = (jnp.sum(x, axis=0) > 0.5 for x in (f, g))
    both = f_any & g_any
    # The root has no slope at 0: there the argument is replaced before, the result after.
    roots = [jnp.where(both & (x > 0), jnp.sqrt(jnp.where(x > 0, x, one)), zero) for x in (f, g)]
    square = jnp.sum((roots[0] - roots[1]) ** 2, axis=0) / 2
    distance = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, one)), zero)
    return jnp.mean(jnp.where(both, distance, jnp.where(f_any == g_any, zero, one)))
