"""Dimensions of attractors: from a Lyapunov spectrum, and from a series."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_finite, check_positive_integer, check_shape
from dynwarp._results import RESULTS, raise_failed
from dynwarp._typing import Scalar
from dynwarp.dynamics._stepping import as_floating
from dynwarp.errors import SeriesError


def kaplan_yorke_dimension(exponents: Float[Array, " k"], *, size: int | None = None) -> Scalar:
    """The Kaplan-Yorke dimension j + (lambda_1 + ... + lambda_j) / |lambda_{j+1}|, j the last index with a sum >= 0.

    **Arguments:**

    - `exponents`: Lyapunov exponents, largest first, shape `(k,)`; -infinity is allowed.
    - `size`: the number of exponents of the whole spectrum, if more than k.

    **Returns:** a scalar. 0 where lambda_1 < 0; k where no sum is negative and k is all; NaN where no sum is negative
    but the spectrum goes on. Differentiable where it is smooth.

    **Source:** Kaplan and Yorke, Lect. Notes Math. 730 (1979) 204.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> float(dw.dynamics.kaplan_yorke_dimension(jnp.array([0.9, 0.0, -14.4])))
    2.0625
    """
    check_shape(exponents, "exponents", ("k",), caller="kaplan_yorke_dimension")
    exponents = as_floating(exponents)
    k = len(exponents)
    sums = jnp.cumsum(exponents)
    j = jnp.sum(jnp.cumprod((sums >= 0).astype(jnp.int32)))
    whole = j.astype(exponents.dtype)
    # The exponent that makes the sum negative is negative itself; where there is none, any number will do.
    ending = j < k
    last = jnp.where(ending, exponents[jnp.minimum(j, k - 1)], -jnp.ones((), exponents.dtype))
    total = jnp.where(ending & (j > 0), sums[jnp.maximum(j - 1, 0)], jnp.zeros((), exponents.dtype))
    beyond = jnp.asarray(k if size is None or size <= k else jnp.nan, exponents.dtype)
    dimension = jnp.where(ending, whole + total / jnp.abs(last), beyond)
    return jnp.where(jnp.any(jnp.isnan(exponents)), jnp.asarray(jnp.nan, exponents.dtype), dimension)


class CorrelationDimension(eqx.Module):
    """What [`correlation_dimension`][dynwarp.dynamics.correlation_dimension] returns.

    **Attributes:**

    - `dimension`: the slope of log C(r) against log r in the scaling range.
    - `standard_error`: of the straight-line fit alone.
    - `radii`, `correlation_sum`: the curve, `(R,)` each, for a look at how straight it is.
    - `result`: `inaccurate` where the local slopes in the range differ by more than a quarter of the dimension.
    """

    dimension: Scalar
    standard_error: Scalar
    radii: Float[Array, " R"]
    correlation_sum: Float[Array, " R"]
    result: RESULTS


def correlation_dimension(
    series: Float[Array, "T n"],
    *,
    theiler_window: int = 10,
    scaling_range: tuple[float, float] = (1e-3, 1e-1),
    throw: bool = False,
) -> CorrelationDimension:
    """The correlation dimension of the set that a series visits (Grassberger-Procaccia).

    C(r) is the fraction of pairs of points nearer than r in the maximum norm. The dimension is the slope between the
    radii at which C takes the two values of `scaling_range`.

    **Arguments:**

    - `series`: states or a delay embedding, `(T, n)`; the number of points limits what can be resolved, about
      dimension < 2 log10 T.
    - `theiler_window`: pairs less than this many steps apart are left out, as they are near by continuity.
    - `scaling_range`: between which values of C the slope is taken.
    - `throw`: raise where the curve is not straight.

    **Returns:** a [`CorrelationDimension`][dynwarp.dynamics.CorrelationDimension]. Cost O(T^2 n) time, O(T n) memory.

    **Raises:** `ShapeError`; `NonFiniteError`; `SeriesError` for a series that is too short or constant;
    `ConvergenceError` with `throw`.

    **Source:** Grassberger and Procaccia, Physica D 9 (1983) 189; Theiler, Phys. Rev. A 34 (1986) 2427.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> along = jax.random.uniform(jax.random.key(0), (2000,))
    >>> line = jnp.stack([along, 2 * along], axis=1)
    >>> round(float(dw.dynamics.correlation_dimension(line).dimension), 1)
    1.0
    """
    caller = "correlation_dimension"
    check_shape(series, "series", ("T", "n"), caller=caller)
    check_positive_integer(theiler_window, "theiler_window", caller=caller)
    length = series.shape[0]
    if length < theiler_window + 32:
        raise SeriesError(f"{caller}: `series` must have at least theiler_window + 32 points; got {length}.")
    check_finite(series, "series", caller=caller)
    found = _correlation_dimension(as_floating(series), theiler_window, scaling_range)
    if throw:
        raise_failed(found.result, caller, "Look at the curve and choose `scaling_range`, or take a longer series.")
    return found


# Bins of log2 r, an eighth of an octave each, below the largest extent of the series.
_BINS_PER_OCTAVE, _OCTAVES = 8, 40


@eqx.filter_jit
def _correlation_dimension(series, window, scaling_range):
    length, dtype = len(series), series.dtype
    extent = jnp.max(jnp.max(series, axis=0) - jnp.min(series, axis=0))
    extent = jnp.where(extent > 0, extent, jnp.ones((), dtype))
    bins = _BINS_PER_OCTAVE * _OCTAVES
    indices = jnp.arange(length, dtype=jnp.int32)

    def row(total, i):
        distance = jnp.max(jnp.abs(series - series[i]), axis=1) / extent
        level = jnp.log2(jnp.maximum(distance, 2.0**-_OCTAVES)) + _OCTAVES
        # A pair counts from the first radius that is not below its distance.
        place = jnp.clip(jnp.ceil(level * _BINS_PER_OCTAVE).astype(jnp.int32), 0, bins)
        pairs = (indices >= i + window).astype(jnp.int32)
        # One row is counted in whole numbers; all of them may exceed 2^31.
        return total + jnp.zeros(bins + 1, jnp.int32).at[place].add(pairs).astype(dtype), None

    total, _ = jax.lax.scan(row, jnp.zeros(bins + 1, dtype), indices)
    fraction = jnp.cumsum(total) / jnp.sum(total)
    radii = extent * 2.0 ** (jnp.arange(bins + 1, dtype=dtype) / _BINS_PER_OCTAVE - _OCTAVES)

    low, high = scaling_range
    inside = (fraction >= low) & (fraction <= high)
    x, y = jnp.log(radii), jnp.log(jnp.where(inside, fraction, jnp.ones((), dtype)))
    slope, error = _fit(x, y, inside)
    middle = jnp.sum(x * inside.astype(dtype)) / jnp.sum(inside).astype(dtype)
    lower, upper = (_fit(x, y, inside & half)[0] for half in (x <= middle, x >= middle))
    straight = jnp.abs(upper - lower) <= 0.25 * jnp.abs(slope)
    return CorrelationDimension(
        slope, error, radii, fraction, RESULTS.where(straight, RESULTS.successful, RESULTS.inaccurate)
    )


def _fit(x, y, chosen):
    """The slope of the least-squares line through the chosen points, and its standard error; NaN below two points."""
    weight = chosen.astype(x.dtype)
    count = jnp.sum(weight)
    x = x - jnp.sum(weight * x) / count
    y = y - jnp.sum(weight * y) / count
    spread = jnp.sum(weight * x**2)
    slope = jnp.sum(weight * x * y) / spread
    return slope, jnp.sqrt(jnp.sum(weight * (y - slope * x) ** 2) / spread / jnp.maximum(count - 2, 1))
