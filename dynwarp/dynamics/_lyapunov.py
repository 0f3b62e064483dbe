"""Lyapunov spectra of maps, driven maps and fields, by tangent vectors orthonormalised inside the scan."""

from __future__ import annotations

from functools import partial
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_choice, check_positive_integer
from dynwarp._compat import concrete
from dynwarp._results import RESULTS, raise_failed
from dynwarp._typing import Inputs, Scalar, State
from dynwarp.dynamics._dimension import kaplan_yorke_dimension
from dynwarp.dynamics._orthonormalise import gram_schmidt, householder
from dynwarp.dynamics._stepping import Model, Signal, check_leading, prepare_step

# Steps that show how fast the tangents spread, and that turn them into place during the transient.
_PILOT = 256
# Between two orthonormalisations the last direction loses a factor exp(interval * spread) of its digits. Where
# orthonormalising is cheap ten digits are kept, else eight; beyond the last number next to none are left.
_FEW, _CHEAP_BUDGET, _BUDGET, _LOST = 8, 12.0, 18.0, 30.0
_LONGEST = 16
_AUDITED = 64
_BATCHES = 32


class LyapunovSpectrum(eqx.Module):
    """What [`lyapunov_spectrum`][dynwarp.dynamics.lyapunov_spectrum] returns. Rates: nats per step, or per unit time
    where there is a `dt`.

    **Attributes:**

    - `exponents`: largest first, `(k,)`; -infinity for a direction that a step maps to zero.
    - `standard_error`: of each, from batch means over the run, `(k,)`; infinity where the run is too short to tell.
    - `sum_rule_residual`: how far the sum of the exponents is from the mean log |det| of the steps, which is found from
      the Jacobians alone; audited on up to 64 pieces of the run; NaN where k < n, or no step has an inverse.
    - `kaplan_yorke_dimension`: NaN where k exponents do not reach it.
    - `entropy`: the sum of the positive exponents, an upper bound of the entropy rate (equal to it for an SRB measure).
    - `log_stretches`: of each direction in each piece of `interval` steps (the last may be shorter), nats, `(B, k)`.
    - `result`: `inaccurate` where the audit fails or too many steps lie between orthonormalisations, `diverged` where
      the state did, `non_finite` where the tangents did.
    - `interval`: steps between orthonormalisations.
    """

    exponents: Float[Array, " k"]
    standard_error: Float[Array, " k"]
    sum_rule_residual: Scalar
    kaplan_yorke_dimension: Scalar
    entropy: Scalar
    log_stretches: Float[Array, "B k"]
    result: RESULTS
    interval: int = eqx.field(static=True)


def lyapunov_spectrum(
    model: Model,
    state0: State,
    *,
    steps: int,
    k: int | None = None,
    inputs: Inputs | Signal | None = None,
    transient: int = 0,
    dt: float | Scalar | None = None,
    t0: float | Scalar = 0.0,
    renormalise: int | Literal["auto"] = "auto",
    method: Literal["auto", "mgs", "qr"] = "auto",
    throw: bool = True,
) -> LyapunovSpectrum:
    """The k largest Lyapunov exponents along the orbit of `state0`.

    **Arguments:**

    - `model`: an `AbstractMap`, or an `AbstractField`, stepped by RK4.
    - `state0`: shape `(n,)`, float64.
    - `steps`: length of the averaged run.
    - `k`: how many exponents; all n by default.
    - `inputs`: of a map, `(transient + steps, d)`, one a step; of a field, a function of time or a diffrax path.
    - `transient`: steps before the average begins.
    - `dt`: the step of a field (required); for a map, the time that one step stands for, if exponents shall be rates.
    - `t0`: the time at `state0`, for fields.
    - `renormalise`: steps between orthonormalisations. `"auto"` measures on a pilot run how fast the tangents spread
      and chooses so that the smallest exponent is right; where nothing can be measured (under jit or vmap), or a step
      has no inverse, it is 1. With more than 1, a direction that vanishes shows as one that shrinks by about eps.
    - `method`: `"auto"` is `"mgs"`, modified Gram-Schmidt; `"qr"` is LAPACK's QR, which is wrong where a step has no
      inverse.
    - `throw`: raise where `result` is not successful.

    **Returns:** a [`LyapunovSpectrum`][dynwarp.dynamics.LyapunovSpectrum]. Differentiable both ways in the model, the
    state and the inputs, through the orthonormalisation; on a chaotic orbit these derivatives grow as fast as the orbit
    diverges, so keep runs short, or average many. Cost per step: k forward derivatives, and 2 n k^2 flops every
    `interval` steps.

    **Raises:** `PrecisionError` for float32, in which the bottom of a spectrum is noise; `ShapeError`, `ArgumentError`,
    `NonFiniteError`, `ModelError`; `ConvergenceError` with `throw`.

    **Source:** Benettin et al., Meccanica 15 (1980) 9; Engelken, Wolf and Abbott, Phys. Rev. Research 5 (2023) 043044.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> spectrum = dw.dynamics.lyapunov_spectrum(dw.systems.Henon(), jnp.array([0.1, 0.1]), steps=2000, transient=100)
    >>> round(float(spectrum.exponents.sum()), 6), round(float(jnp.log(0.3)), 6)
    (-1.203973, -1.203973)
    """
    caller = "lyapunov_spectrum"
    check_positive_integer(steps, "steps", caller=caller)
    check_positive_integer(transient, "transient", minimum=0, caller=caller)
    check_choice(method, "method", ("auto", "mgs", "qr"), caller=caller)
    if renormalise != "auto":
        check_positive_integer(renormalise, "renormalise", caller=caller)
    step, state, inputs = prepare_step(model, state0, inputs, transient + steps, t0, dt, caller)
    size = len(state)
    k = check_leading(k, size, caller)
    tangents = jnp.asarray(_start(size, k), state.dtype)
    # The last steps of the transient turn the tangents into place, and serve as the pilot run if there are enough.
    ahead, aligning = min(_PILOT, steps), min(_PILOT, transient)
    pilot = None
    if transient:
        begin = transient - aligning
        state = _transient(step, state, _rows(inputs, 0, begin), begin)
        state, tangents, pilot, _ = _run(
            step, state, tangents, begin, _rows(inputs, begin, aligning), aligning, 1, method
        )
    if renormalise != "auto":
        interval = renormalise
    else:
        if pilot is None or aligning < ahead:
            pilot = _run(step, state, tangents, transient, _rows(inputs, transient, ahead), ahead, 1, method)[2]
        interval = _choose_interval(pilot)
    spectrum = _spectrum(
        step, state, tangents, transient, _rows(inputs, transient, steps), steps, min(interval, steps), method, dt
    )
    if throw:
        raise_failed(
            spectrum.result,
            caller,
            "Check the orbit, a smaller `dt` or `renormalise=1`, and that the model is bounded.",
        )
    return spectrum


def _rows(inputs, start: int, length: int):
    return None if inputs is None else inputs[start : start + length]


def _start(size: int, k: int) -> np.ndarray:
    """All directions: the axes, which diagonal and triangular models keep. Fewer: a generic frame, the same in every
    call, which misses none of the leading directions."""
    if k == size:
        return np.eye(size)
    return np.linalg.qr(np.random.default_rng(0).standard_normal((size, k)))[0].T


def _choose_interval(log_stretches) -> int:
    """The longest interval over which the bottom of the spectrum keeps its digits (host); 1 where it cannot be seen."""
    # Under an outer gradient the tangents of the tangents are no concern of the choice.
    known = concrete(jax.lax.stop_gradient(log_stretches))
    if known is None:
        return 1
    rates = known.mean(axis=0)
    if not np.isfinite(rates).all():
        return 1
    budget = _CHEAP_BUDGET if known.shape[1] <= _FEW else _BUDGET
    # The largest rate also bounds what may overflow where a single direction is followed.
    spread = max(rates.max() - rates.min(), abs(rates).max() / 20, 1e-3)
    return int(np.clip(budget / spread, 1, _LONGEST))


@eqx.filter_jit
def _transient(step, state, inputs, steps):
    def body(state, x):
        return step(x[0], state, x[1]), None

    return jax.lax.scan(body, state, (jnp.arange(steps, dtype=jnp.int32), inputs))[0]


@eqx.filter_jit
def _run(step, state, tangents, start, inputs, steps, interval, method):
    """States and tangents through `steps` steps: the last of both, the log stretches `(B, k)`, and the state before
    each whole block `(B, n)`. The last block takes what is left, so that every step counts."""
    blocks, rest = divmod(steps, interval)
    # After several steps a small remainder may be all that the others left of a long row: only one step tells.
    orthonormalise = householder if method == "qr" else partial(gram_schmidt, to_precision=interval == 1)

    def one(carry, x):
        state, tangents = carry
        index, input = x
        state, push = jax.linearize(lambda z: step(index, z, input), state)
        return (state, jax.vmap(push)(tangents)), None

    def block(carry, x):
        before = carry[0]
        (state, tangents), _ = jax.lax.scan(one, carry, x)
        tangents, stretch = orthonormalise(tangents)
        return (state, tangents), (_log(stretch), before)

    indices = start + jnp.arange(steps, dtype=jnp.int32)
    whole = jax.tree.map(lambda x: x[: blocks * interval].reshape(blocks, interval, *x.shape[1:]), (indices, inputs))
    (state, tangents), (logs, before) = jax.lax.scan(block, (state, tangents), whole)
    if rest:
        left = jax.tree.map(lambda x: x[blocks * interval :], (indices, inputs))
        (state, tangents), (last, _) = block((state, tangents), left)
        logs = jnp.concatenate([logs, last[None]])
    return state, tangents, logs, before


@eqx.filter_jit
def _spectrum(step, state, tangents, start, inputs, steps, interval, method, dt):
    state, tangents, logs, before = _run(step, state, tangents, start, inputs, steps, interval, method)
    size, k = len(state), logs.shape[1]
    scale = jnp.ones((), logs.dtype) if dt is None else 1 / jnp.asarray(dt, logs.dtype)
    rates = jnp.sum(logs, axis=0) / steps
    order = jnp.argsort(-rates, stable=True)
    logs, rates = logs[:, order], rates[order]
    exponents = rates * scale

    # The certificates are not differentiated.
    constant = jax.lax.stop_gradient(logs)
    alive = jnp.isfinite(constant)
    blocks = steps // interval
    error = _batch_error(constant[:blocks]) * scale / interval
    residual, failed = jnp.asarray(jnp.nan, logs.dtype), jnp.asarray(False)
    if k == size:
        residual = _audit(step, before, start, inputs, jnp.sum(constant[:blocks], axis=1), interval)
        failed = residual > 1e-3 * jnp.sum(jnp.abs(constant), where=alive) / steps + 1e-9
    if interval > 1:
        spread = jnp.max(constant, axis=1, where=alive, initial=-jnp.inf) - jnp.min(
            constant, axis=1, where=alive, initial=jnp.inf
        )
        failed = failed | (jnp.mean(spread) > _LOST)
    result = RESULTS.where(failed, RESULTS.inaccurate, RESULTS.successful)
    result = RESULTS.where(jnp.any(jnp.isnan(constant) | (constant == jnp.inf)), RESULTS.non_finite, result)
    result = RESULTS.where(jnp.all(jnp.isfinite(state)), result, RESULTS.diverged)
    return LyapunovSpectrum(
        exponents=exponents,
        standard_error=error,
        sum_rule_residual=residual * scale,
        kaplan_yorke_dimension=kaplan_yorke_dimension(rates, size=size),
        entropy=jnp.sum(jnp.maximum(exponents, 0)),
        log_stretches=logs,
        result=result,
        interval=interval,
    )


def _log(stretch):
    """log, with log 0 = -infinity and no derivative there."""
    vanished = stretch == 0
    return jnp.where(vanished, -jnp.inf, jnp.log(jnp.where(vanished, jnp.ones((), stretch.dtype), stretch)))


def _batch_error(logs):
    """The standard error of the mean of the rows, from the means of up to 32 batches; infinity for fewer than two."""
    rows, k = logs.shape
    batches = min(_BATCHES, int(rows**0.5))
    if batches < 2:
        return jnp.full(k, jnp.inf, logs.dtype)
    means = jnp.mean(logs[: rows - rows % batches].reshape(batches, -1, k), axis=1)
    vanished = jnp.any(jnp.isneginf(means), axis=0)
    means = jnp.where(vanished, jnp.zeros((), logs.dtype), means)
    return jnp.std(means, axis=0, ddof=1) / batches**0.5


def _audit(step, before, start, inputs, logs, interval):
    """The mean over evenly spaced blocks of |sum of log stretches - log |det of the steps||, per step. Each block by
    itself obeys the sum rule exactly, whatever frame it began with."""
    blocks = len(before)
    step, before, inputs = jax.tree.map(
        lambda x: jax.lax.stop_gradient(x) if eqx.is_inexact_array(x) else x, (step, before, inputs)
    )
    chosen = np.unique(np.linspace(0, blocks - 1, min(blocks, _AUDITED)).astype(np.int32))
    indices = chosen[:, None] * interval + np.arange(interval, dtype=np.int32)

    def log_determinant(state, x):
        index, input = x
        matrix = jax.jacfwd(lambda z: step(start + index, z, input))(state)
        return step(start + index, state, input), jnp.linalg.slogdet(matrix)[1]

    def block(state, x):
        return jnp.sum(jax.lax.scan(log_determinant, state, x)[1])

    rows = (jnp.asarray(indices), None if inputs is None else inputs[indices])
    expected = jax.vmap(block)(before[chosen], rows)
    found = logs[chosen]
    # Where a direction vanished both sides are -infinity, the right one up to rounding errors.
    usable = jnp.isfinite(found)
    gap = jnp.where(usable, jnp.abs(jnp.where(usable, found, 0.0) - expected), 0.0)
    count = jnp.sum(usable).astype(logs.dtype) * interval
    return jnp.where(count > 0, jnp.sum(gap) / count, jnp.asarray(jnp.nan, logs.dtype))
