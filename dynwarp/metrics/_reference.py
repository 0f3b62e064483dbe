"""What a metric says where there is nothing to reproduce, and where there is nothing left to improve."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_finite, check_shape
from dynwarp._typing import PRNGKey, Scalar
from dynwarp.dynamics._stepping import as_floating
from dynwarp.errors import SeriesError

Metric = Callable[[Array, Array], Array]


def split_half(metric: Metric, series: Float[Array, "T N"]) -> Scalar:
    """The metric between the two halves of a recording: about what a perfect model of it can be expected to reach.

    **Arguments:**

    - `metric`: `metric(true, generated) -> scalar`, such as
      [`state_space_divergence`][dynwarp.metrics.state_space_divergence].
    - `series`: shape `(T, N)`, T at least 4; of an odd number of rows the one in the middle is left out.

    **Returns:** a scalar. It is 0 for no finite recording: half as many states, seen at another time, differ. Above
    it a model can get better; below it the metric cannot tell.

    **Raises:** `ShapeError`, `SeriesError`, `NonFiniteError`.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> wave = jnp.sin(jnp.arange(2000.0) / 5)[:, None]
    >>> bool(dw.metrics.split_half(dw.metrics.power_spectrum_distance, wave) < 0.05)
    True
    """
    series = _checked(series, "split_half")
    half = len(series) // 2
    return metric(series[:half], series[-half:])


def chance_level(metric: Metric, series: Float[Array, "T N"], *, key: PRNGKey | None = None) -> Scalar:
    """The metric between a recording and noise: what a model reaches that has learnt nothing but means and covariances.

    **Arguments:**

    - `metric`, `series`: as of [`split_half`][dynwarp.metrics.split_half].
    - `key`: draws the noise, Gaussian, independent from step to step, with the mean and the covariance of the series;
      fixed if None.

    **Returns:** a scalar. Predictions have a yardstick of their own,
    [`persistence_error`][dynwarp.metrics.persistence_error].

    **Raises:** `ShapeError`, `SeriesError`, `NonFiniteError`.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> wave = jnp.sin(jnp.arange(2000.0) / 5)[:, None]
    >>> bool(dw.metrics.chance_level(dw.metrics.power_spectrum_distance, wave) > 0.5)
    True
    """
    series = _checked(series, "chance_level")
    centred = series - jnp.mean(series, axis=0)
    # Rows of independent weights mix the centred rows into noise of their covariance; no factorisation can fail.
    _, triangle = jnp.linalg.qr(centred / jnp.sqrt(jnp.asarray(len(series), series.dtype)))
    key = jax.random.key(0) if key is None else key
    white = jax.random.normal(key, (len(series), triangle.shape[0]), series.dtype)
    return metric(series, jnp.mean(series, axis=0) + white @ triangle)


def _checked(series, caller: str) -> jax.Array:
    check_shape(series, "series", ("T", "N"), caller=caller)
    if series.shape[0] < 4:
        raise SeriesError(f"{caller}: `series` must have at least 4 time steps; got {series.shape[0]}.")
    check_finite(series, "series", caller=caller)
    return as_floating(series)
