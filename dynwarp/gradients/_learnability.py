"""How far back a dependence may lie to be learned from so many samples, and by which law envelopes decay."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dynwarp._checks import check_positive, check_shape
from dynwarp._compat import concrete
from dynwarp._results import RESULTS, raise_failed
from dynwarp._typing import Scalar
from dynwarp.dynamics._stepping import as_floating
from dynwarp.errors import ArgumentError, ShapeError

REGIMES = ("exponential", "power", "logarithmic")


class LearnabilityWindow(eqx.Module):
    """What [`learnability_window`][dynwarp.gradients.learnability_window] returns. L lags; N may be an array.

    **Attributes:**

    - `window`: H_N, the largest of the lags with N(l) <= N, shaped like `n_samples`; 0 where there is none.
    - `interval`: the window with the envelope two standard errors lower and higher, `(2, ...)`.
    - `censored`: whether the window is the largest lag that was measured, and may be longer.
    - `lags`, `sample_complexity`: N(l), `(L,)`; infinity where nothing is left of the signal.
    - `kappa`: alpha / (alpha - 1), the power by which samples are needed; infinity for alpha <= 1.
    """

    window: Int[Array, "..."]
    interval: Int[Array, "2 ..."]
    censored: Bool[Array, "..."]
    lags: Int[Array, " L"]
    sample_complexity: Float[Array, " L"]
    kappa: Scalar


def learnability_window(
    envelope: Any, *, alpha: float | Scalar, scale: Any, n_samples: Any, threshold: float = 0.1
) -> LearnabilityWindow:
    """H_N = max {l : N(l) <= N}, the longest dependence that N samples reveal.

    The mean of N samples with stable noise of index alpha and this scale has the error scale N^(1/alpha - 1), so that a
    signal f(l) stands out by the factor `threshold` from N(l) = (threshold scale / f(l))^kappa samples on, kappa =
    alpha / (alpha - 1). (Versions before the fourth have f^-alpha; both give the power 2 at alpha = 2 alone.)

    **Arguments:**

    - `envelope`: an [`Envelope`][dynwarp.gradients.Envelope], or a
      [`MatchedStatistic`][dynwarp.gradients.MatchedStatistic], whose signal is in the units of its own noise.
    - `alpha`, `scale`: of the noise, such as those of [`tail_index`][dynwarp.gradients.tail_index]; 0 < alpha <= 2. The
      scale may be one a lag, `(L,)`.
    - `n_samples`: N, a number or an array: samples, not time.
    - `threshold`: the signal-to-noise ratio that is asked for.

    **Returns:** a [`LearnabilityWindow`][dynwarp.gradients.LearnabilityWindow]; with alpha <= 1 no number of samples is
    enough. `sample_complexity` is differentiable.

    **Raises:** `ArgumentError` for parameters out of their range.

    **Source:** Livi, arXiv:2512.05790, version 4 and later.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.LinearRNN(jnp.array([[0.5]]), jnp.zeros((1, 0)), jnp.eye(1))
    >>> found = dw.gradients.envelope(net, None, [1, 2, 3, 4], steps=20)
    >>> window = dw.gradients.learnability_window(found, alpha=2.0, scale=1.0, n_samples=64, threshold=1.0)
    >>> int(window.window), [round(x, 6) for x in window.sample_complexity.tolist()]
    (3, [4.0, 16.0, 64.0, 256.0])
    """
    caller = "learnability_window"
    for name in ("lags", "log_values", "log_error"):
        if not hasattr(envelope, name):
            raise ArgumentError(
                f"{caller}: `envelope` must be an Envelope or a MatchedStatistic; got {type(envelope).__name__}."
            )
    alpha, noise = _parameters(alpha, scale, threshold, envelope.log_values.dtype, caller)
    check_positive(n_samples, "n_samples", caller=caller)
    return _window(envelope.lags, envelope.log_values, envelope.log_error, alpha, noise, jnp.asarray(n_samples))


@eqx.filter_jit
def _window(lags, log_values, log_error, alpha, noise, samples):
    kappa, log_needed = _log_needed(log_values, alpha, noise)
    log_samples = jnp.log(samples.astype(log_needed.dtype))

    def longest(log_needed):
        # A number of samples that is just enough is enough, whatever rounding makes of it.
        finite = jnp.isfinite(log_needed)
        slack = 64 * jnp.finfo(log_needed.dtype).eps * (1 + jnp.abs(jnp.where(finite, log_needed, 0)))
        enough = log_needed <= log_samples[..., None] + slack
        return jnp.max(jnp.where(enough, lags, 0), axis=-1)

    error = 2 * log_error
    ends = [longest(_log_needed(log_values + sign * error, alpha, noise)[1]) for sign in (-1, 1)]
    window = longest(log_needed)
    return LearnabilityWindow(window, jnp.stack(ends), window == lags[-1], lags, jnp.exp(log_needed), kappa)


def _parameters(alpha, scale, threshold, dtype, caller):
    """alpha, and the scale that a signal must stand out of."""
    known = concrete(alpha)
    if known is not None and not (0 < known <= 2):
        raise ArgumentError(f"{caller}: `alpha` must lie in (0, 2]; got {alpha}.")
    check_positive(scale, "scale", caller=caller)
    check_positive(threshold, "threshold", caller=caller)
    alpha, scale, threshold = (jnp.asarray(x).astype(dtype) for x in (alpha, scale, threshold))
    return alpha, threshold * scale


def _log_needed(log_values, alpha, noise):
    enough = alpha > 1
    kappa = jnp.where(enough, alpha / jnp.where(enough, alpha - 1, 1), jnp.inf)
    gone = ~(log_values > -jnp.inf)
    gap = jnp.log(noise) - jnp.where(gone, 0, log_values)
    needed = jnp.where(enough, kappa, 1) * gap
    return kappa, jnp.where(enough & ~gone, needed, jnp.inf)


class RegimeFit(eqx.Module):
    """What [`fit_regime`][dynwarp.gradients.fit_regime] returns. One entry for each of the laws in `names`:
    exponential C exp(-l / tau), power C l^-beta, logarithmic C / log(1 + l).

    **Attributes:**

    - `best`: the index of the law with the largest `weights`.
    - `weights`: Akaike weights, `(3,)`: the probability of each law, given that one of them holds.
    - `log_amplitude`: log C, `(3,)`.
    - `rate`: 1 / tau, beta, and 1, `(3,)`: the logarithmic law has none to fit.
    - `rate_error`: standard errors, `(3,)`.
    - `residual`: root mean square of the logarithms, `(3,)`.
    - `result`: `vanished` where an envelope is zero.
    - `names`: of the laws.
    """

    best: Int[Array, ""]
    weights: Float[Array, " 3"]
    log_amplitude: Float[Array, " 3"]
    rate: Float[Array, " 3"]
    rate_error: Float[Array, " 3"]
    residual: Float[Array, " 3"]
    result: RESULTS
    names: tuple[str, ...] = eqx.field(static=True, default=REGIMES)

    @property
    def time_constant(self) -> Scalar:
        """tau of the exponential law, in steps."""
        return 1 / self.rate[0]

    def windows(
        self, *, alpha: float | Scalar, scale: float | Scalar, n_samples: Any, threshold: float = 0.1
    ) -> Float[Array, "... 3"]:
        """H_N under each law, in closed form, with N(l) as in
        [`learnability_window`][dynwarp.gradients.learnability_window]: (tau / kappa) log N and a constant; a power of
        N; exponential in a power of N."""
        caller = "RegimeFit.windows"
        alpha, noise = _parameters(alpha, scale, threshold, self.rate.dtype, caller)
        check_positive(n_samples, "n_samples", caller=caller)
        log_samples = jnp.log(jnp.asarray(n_samples).astype(self.rate.dtype))[..., None]
        # f(H) = threshold scale N^(-1 / kappa).
        level = self.log_amplitude - jnp.log(noise) + (1 - 1 / alpha) * log_samples
        exponential = level[..., 0] / self.rate[0]
        power = jnp.exp(level[..., 1] / self.rate[1])
        logarithmic = jnp.expm1(jnp.exp(level[..., 2]))
        windows = jnp.stack([exponential, power, logarithmic], axis=-1)
        windows = jnp.where(self.rate > 0, jnp.maximum(windows, 0), jnp.inf)
        return jnp.where(alpha > 1, windows, 0)


def fit_regime(lags: Any, log_values: Float[Array, " L"] | None = None, *, throw: bool = True) -> RegimeFit:
    """Which law an envelope follows, exponential, power or logarithmic: lines through its logarithm by least squares,
    and Akaike's criterion for small samples to choose.

    **Arguments:**

    - `lags`: an [`Envelope`][dynwarp.gradients.Envelope]; or lags `(L,)`, at least 4, with
    - `log_values`: the natural logarithms of its values, `(L,)`.
    - `throw`: raise where `result` is not successful.

    **Returns:** a [`RegimeFit`][dynwarp.gradients.RegimeFit]; differentiable.

    **Raises:** `ShapeError`, `ArgumentError`; `ConvergenceError` with `throw`.

    **Source:** regimes: Livi, arXiv:2512.05790; Burnham and Anderson, Model Selection (2002), for the weights.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> lags = jnp.array([1, 2, 4, 8, 16])
    >>> fit = dw.gradients.fit_regime(lags, jnp.log(3.0) - 0.7 * jnp.log(lags.astype(float)))
    >>> fit.names[int(fit.best)], round(float(fit.rate[fit.best]), 6)
    ('power', 0.7)
    """
    caller = "fit_regime"
    if log_values is None:
        if not hasattr(lags, "log_values"):
            raise ArgumentError(f"{caller}: give an Envelope, or lags and `log_values`; got {type(lags).__name__}.")
        lags, log_values = lags.lags, lags.log_values
    check_shape(lags, "lags", ("L",), caller=caller)
    check_shape(log_values, "log_values", jnp.shape(lags), caller=caller)
    if len(lags) < 4:
        raise ShapeError(f"{caller}: a law of two parameters needs at least 4 lags; got {len(lags)}.")
    known = concrete(lags)
    if known is not None and not ((known > 0).all() and np.unique(known).size == known.size):
        raise ArgumentError(f"{caller}: `lags` must be positive and distinct; got {known}.")
    values = as_floating(log_values)
    fit = _fit(jnp.asarray(lags).astype(values.dtype), values)
    if throw:
        raise_failed(fit.result, caller, "Leave out the lags at which nothing is left.")
    return fit


@eqx.filter_jit
def _fit(lags, values):
    finite = jnp.all(jnp.isfinite(values))
    values = jnp.where(finite, values, 0)
    count = len(lags)

    def line(x):
        x = x - (mean := jnp.mean(x))
        slope = jnp.sum(x * values) / jnp.sum(x**2)
        intercept = jnp.mean(values) - slope * mean
        rest = jnp.sum((values - jnp.mean(values) - slope * x) ** 2)
        return intercept, -slope, jnp.sqrt(rest / (count - 2) / jnp.sum(x**2)), rest

    exponential, power = line(lags), line(jnp.log(lags))
    shape = jnp.log(jnp.log1p(lags))
    amplitude = jnp.mean(values + shape)
    one = jnp.ones((), values.dtype)
    logarithmic = (amplitude, one, 0 * one, jnp.sum((values + shape - amplitude) ** 2))
    amplitudes, rates, errors, rests = (jnp.stack(x) for x in zip(exponential, power, logarithmic))
    # Below rounding all fits are perfect.
    variance = rests / count + (jnp.finfo(values.dtype).eps * (1 + jnp.max(jnp.abs(values)))) ** 2
    parameters = jnp.asarray([3, 3, 2], values.dtype)
    corrected = 2 * parameters * count / jnp.maximum(count - parameters - 1, 0.5)
    criterion = count * jnp.log(variance) + corrected
    weights = jnp.exp(-(criterion - jnp.min(criterion)) / 2)
    result = RESULTS.where(finite, RESULTS.successful, RESULTS.vanished)
    return RegimeFit(
        jnp.argmin(criterion), weights / jnp.sum(weights), amplitudes, rates, errors, jnp.sqrt(rests / count), result
    )
