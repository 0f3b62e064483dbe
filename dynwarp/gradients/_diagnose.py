"""One report on how gradients travel in a network, on the data that it is trained with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from dynwarp._checks import check_positive, check_positive_integer
from dynwarp._linalg import eigenvalues
from dynwarp._results import RESULTS, raise_failed
from dynwarp._typing import Inputs, PRNGKey, Scalar, State
from dynwarp.errors import ArgumentError, ShapeError
from dynwarp.gradients._backpropagate import backpropagate, check_sequence, half_squared_error
from dynwarp.gradients._diagnosis import Diagnosis, Verdict
from dynwarp.gradients._envelope import check_lags, envelope
from dynwarp.gradients._learnability import fit_regime, learnability_window
from dynwarp.gradients._matched_statistic import matched_statistic
from dynwarp.gradients._steps import Orbit, state_jacobians
from dynwarp.gradients._stretches import batch_error, leading_stretches
from dynwarp.gradients._tail_index import tail_index
from dynwarp.models import LSTM, AbstractMap

_BLOCKS = 8
_FEWEST = 17
_LOOKED_AT = 64
_SATURATED = 0.97


def diagnose(
    model: AbstractMap,
    readout: Any,
    inputs: Inputs | None,
    targets: Any,
    *,
    state0: State | None = None,
    loss: Callable[[Any, Any], Any] = half_squared_error,
    mask: Bool[Array, " T"] | None = None,
    lags: Sequence[int] | None = None,
    exponents: int = 4,
    n_samples: float | Scalar = 1000,
    clip: float | Scalar | None = None,
    tolerance: float = 1e-3,
    directions: int = 8,
    key: PRNGKey | None = None,
    throw: bool = True,
) -> Diagnosis:
    """Loss, gradients, bounds, exponents, memory and learnability of a network on one sequence, and what follows.

    Every number comes with a standard error, every verdict with the inequality that it rests on, and whether that is
    more than two standard errors from turning over. Pure: works under jit, vmap (over sequences, or over networks) and
    in float32.

    **Arguments:**

    - `model`, `readout`, `inputs`, `targets`, `state0`, `loss`, `mask`: as for
      [`backpropagate`][dynwarp.gradients.backpropagate]; at least 17 steps.
    - `lags`: of the envelope, increasing, at least 4; None: up to 8 of them, geometrically to a quarter of the steps.
    - `exponents`: how many, at most n.
    - `n_samples`: how many samples the learnability window has; samples, not time.
    - `clip`: the norm at which training clips, if it does.
    - `tolerance`: what is left of a gradient over the whole sequence where it is said to vanish; its inverse, where it
      explodes.
    - `directions`, `key`: of the matched statistic; `jax.random.key(0)` if None.
    - `throw`: raise where `result` is not successful.

    **Returns:** a [`Diagnosis`][dynwarp.gradients.Diagnosis]; `.to_markdown()` writes it down,
    [`plot.diagnosis`][dynwarp.plot.diagnosis] draws it. Cost: about as much as 20 gradients, a backward pass for each
    lag up to the largest, and decompositions of up to 64 Jacobians.

    **Raises:** as [`backpropagate`][dynwarp.gradients.backpropagate]; `ShapeError` for fewer steps;
    `ConvergenceError` with `throw` where all gradients are zero, or something is not finite.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net, out = dw.models.GRU(1, 4, key=jax.random.key(0)), dw.models.Readout(4, 1, key=jax.random.key(1))
    >>> inputs = jax.random.normal(jax.random.key(2), (40, 1))
    >>> found = dw.gradients.diagnose(net, out, inputs, jnp.roll(inputs, 3))
    >>> bool(found.verdict("forgets its initial state").holds), found.to_markdown().splitlines()[0]
    (True, '# Diagnosis')
    """
    caller = "diagnose"
    state0, mask = check_sequence(model, inputs, targets, state0, mask, caller)
    steps = len(targets)
    if steps < _FEWEST:
        raise ShapeError(f"{caller}: `targets` must have at least {_FEWEST} steps; got {steps}.")
    if lags is None:
        longest = (steps - 1) // 4
        chosen = tuple(int(lag) for lag in np.unique(np.geomspace(1, longest, 8).round().astype(int)))
    else:
        chosen = check_lags(lags, steps, caller)
        if len(chosen) < 4 or 2 * chosen[-1] > steps:
            raise ArgumentError(f"{caller}: `lags` must be at least 4, none beyond half of the sequence; got {chosen}.")
    check_positive_integer(exponents, "exponents", caller=caller)
    check_positive_integer(directions, "directions", caller=caller)
    check_positive(n_samples, "n_samples", caller=caller)
    if clip is not None:
        check_positive(clip, "clip", caller=caller)
    if not 0 < tolerance < 1:
        raise ArgumentError(f"{caller}: `tolerance` must lie between 0 and 1; got {tolerance!r}.")
    key = jax.random.key(0) if key is None else key
    # At least 64 samples of the statistic, for its tail index.
    directions = max(directions, -(-64 // (steps - chosen[-1])))
    found = _diagnose(
        model, readout, inputs, targets, state0, loss, mask, chosen, min(exponents, model.state_size), n_samples, clip,
        tolerance, directions, key,
    )  # fmt: skip
    if throw:
        raise_failed(found.result, caller, "Look at the loss, the mask, the weights, and units that are dead.")
    return found


@eqx.filter_jit
def _diagnose(
    model, readout, inputs, targets, state0, loss, mask, lags, exponents, n_samples, clip, tolerance, directions, key
):
    steps = len(targets)
    blocks = jnp.arange(steps) * _BLOCKS // steps == jnp.arange(_BLOCKS)[:, None]

    def part(block):
        found = backpropagate(model, readout, inputs, targets, state0=state0, loss=loss, mask=mask & block)
        # The states are the same for all.
        return (found.model, found.readout), found.adjoints, found.loss, found.states

    gradients, adjoints, block_losses, states = jax.vmap(part)(blocks)
    states, dtype = states[0], states.dtype
    counts = jnp.sum(mask & blocks, axis=1).astype(dtype)
    weights = counts / jnp.maximum(jnp.sum(counts), 1)
    whole = jax.tree.map(lambda g: jnp.tensordot(weights.astype(g.dtype), g, 1), gradients)
    # Without one block at a time.
    kept = jnp.where(weights < 1, 1 - weights, 1)
    others = jax.tree.map(
        lambda w, g: (w - jax.vmap(jnp.multiply)(weights.astype(g.dtype), g)) / _rows(kept.astype(g.dtype), g),
        whole,
        gradients,
    )
    length = lambda x: _length(x).astype(dtype)  # noqa: E731
    parameter_norms = jax.tree.map(length, whole)
    other_norms, parts = (jax.tree.map(jax.vmap(length), tree) for tree in (others, gradients))
    norm, other_totals, block_norms = (
        jax.vmap(_length)(jnp.stack([jnp.atleast_1d(x) for x in jax.tree.leaves(tree)], axis=1))
        for tree in (parameter_norms, other_norms, parts)
    )
    norm, norm_error = norm[0], _jackknife(other_totals)
    loss_value = jnp.sum(weights * block_losses)
    loss_error = _jackknife((loss_value - weights * block_losses) / kept)
    adjoint_norms = jax.vmap(_length)(jnp.tensordot(weights, adjoints, 1))

    previous = jnp.concatenate([state0.astype(dtype)[None], states[:-1]])
    saturation, saturation_error = _saturation(model, states)
    looked_at = np.unique(np.linspace(0, steps - 1, min(steps, _LOOKED_AT)).round().astype(np.int32))
    at = None if inputs is None else inputs[looked_at]
    jacobians = state_jacobians(model, Orbit(previous[looked_at], at, jnp.asarray(looked_at)))
    finite = jnp.all(jnp.isfinite(jacobians)) & jnp.isfinite(norm) & jnp.isfinite(loss_value)
    jacobians = jnp.where(jnp.isfinite(jacobians), jacobians, 0)
    sigma_max = jnp.linalg.svd(jacobians, compute_uv=False)[:, 0]
    spectral_radius = jnp.max(jnp.abs(eigenvalues(jacobians)), axis=1)
    stretches = leading_stretches(model, state0.astype(dtype), inputs, steps, exponents)
    rates, rate_errors = jnp.mean(stretches, axis=0), batch_error(stretches)
    order = jnp.argsort(-rates, stable=True)
    rates, rate_errors = rates[order], rate_errors[order]

    decay = envelope(model, inputs, lags, state0=state0, steps=steps, throw=False)
    regime = fit_regime(decay, throw=False)
    matched = matched_statistic(
        model, readout, inputs, targets, lags, key=key, directions=directions, state0=state0, loss=loss, mask=mask,
        throw=False,
    )  # fmt: skip
    # Each direction by itself: neighbours are neighbours in time.
    psi = matched.samples[:, :, lags[-1] :].reshape(len(lags), -1)
    tails = jax.vmap(lambda x: tail_index(x, throw=False))(psi)
    alpha, alpha_error = jnp.mean(tails.alpha), jnp.mean(tails.standard_error)
    # The statistic of the shortest lag says how large signal and noise are, the envelope how the signal falls off from
    # there: at long lags the mean of one sequence is noise, whose size is no signal.
    scale = tails.scale[0] * jnp.exp(decay.log_values[0] - matched.log_values[0])
    log_error = jnp.sqrt(decay.log_error**2 + matched.log_error[0] ** 2)
    uncertain = eqx.tree_at(lambda e: e.log_error, decay, log_error)
    window = learnability_window(uncertain, alpha=alpha, scale=scale, n_samples=n_samples)

    clip_rate = clip_error = jnp.full((), jnp.nan, dtype)
    if clip is not None:
        above = (block_norms > clip) & (counts > 0)
        number = jnp.maximum(jnp.sum(counts > 0), 1).astype(dtype)
        clip_rate = jnp.sum(above).astype(dtype) / number
        clip_error = jnp.sqrt(clip_rate * (1 - clip_rate) / number)

    result = RESULTS.where(norm > 0, RESULTS.successful, RESULTS.vanished)
    result = RESULTS.where(finite, result, RESULTS.non_finite)
    every = "every step" if len(looked_at) == steps else f"{len(looked_at)} of {steps} steps"
    smallest = jnp.min(jnp.stack(jax.tree.leaves(parameter_norms)))
    log_sigma = jnp.log(sigma_max)
    steepest, spread = jnp.max(log_sigma), 0.0 if len(looked_at) == steps else jnp.std(log_sigma)
    # What does not decay lasts for ever; what is gone altogether, not at all.
    tau = jnp.where(regime.rate[0] > 0, regime.time_constant, jnp.inf)
    tau = jnp.where(decay.result == RESULTS.vanished, 0, tau)
    # Where no tail was found nothing is known of the window.
    reach = jnp.where(jnp.isnan(alpha), jnp.nan, window.window.astype(dtype))
    total, total_error, whole_way = rates[0] * steps, rate_errors[0] * steps, math.log(tolerance)
    verdicts = [
        _below(
            "gradients vanish", "exponent 1 times T < log(tolerance)", total, whole_way, total_error,
            "Of a perturbation of the first state less than the tolerance is left at the last.",
        ),
        _above(
            "gradients explode", "exponent 1 times T > -log(tolerance)", total, -whole_way, total_error,
            "A perturbation of the first state grows by more than the inverse tolerance.",
        ),
        _below(
            "vanishing is certain in the long run", f"max of log sigma_max over {every} < 0", steepest, 0.0, spread,
            "Every step shrinks every perturbation: sufficient for vanishing, and not necessary.",
        ),
        _above(
            "explosion is possible", f"max of log sigma_max over {every} > 0", steepest, 0.0, spread,
            "Necessary for an explosion, and not sufficient: the exponent decides.",
        ),
        _below(
            "forgets its initial state", "exponent 1 < 0", rates[0], 0.0, rate_errors[0],
            "Two runs with the same input come together (the echo state property on this input).",
        ),
        _above(
            "chaotic under its input", "exponent 1 > 0", rates[0], 0.0, rate_errors[0],
            "Two runs with the same input part; gradients over long stretches are noise.",
        ),
        _above(
            "saturated", f"share of |h| above {_SATURATED} > 0.5", saturation, 0.5, saturation_error,
            "Most units sit where their slope is below 0.06.",
        ),
        _below(
            "memory is short", "tau < T / 10", tau, steps / 10,
            jnp.where(tau > 0, regime.rate_error[0] * tau**2, 0),
            "By the exponential law of its envelope a perturbation is gone after a tenth of the sequence.",
        ),
        _below(
            "samples do not reach the longest lag", f"H_N < {lags[-1]}", reach, float(lags[-1]),
            (window.interval[1] - window.interval[0]).astype(dtype) / 4,
            "Longer dependences drown in the noise of the gradient with so many samples.",
        ),
        _below(
            "a parameter has no gradient", "least norm of a parameter's gradient < smallest float", smallest,
            float(jnp.finfo(dtype).tiny), 0.0, "Some array does not take part, or all its units are dead.",
        ),
    ]  # fmt: skip
    if clip is not None:
        verdicts.append(
            _above(
                "gradients are clipped", "gradient norm > clip", norm, clip, norm_error, "Steps have a fixed length."
            )
        )
    return Diagnosis(
        verdicts=tuple(verdicts),
        loss=loss_value,
        loss_error=loss_error,
        losses=_losses(readout, loss, states, inputs, targets, mask),
        gradient_norm=norm,
        gradient_norm_error=norm_error,
        parameter_norms=parameter_norms,
        parameter_norm_errors=jax.tree.map(_jackknife, other_norms),
        adjoint_norms=adjoint_norms,
        clip_rate=clip_rate,
        clip_rate_error=clip_error,
        saturation=saturation,
        saturation_error=saturation_error,
        looked_at=jnp.asarray(looked_at),
        sigma_max=sigma_max,
        spectral_radius=spectral_radius,
        exponents=rates,
        exponent_errors=rate_errors,
        envelope=decay,
        regime=regime,
        tail_alpha=alpha,
        tail_alpha_error=alpha_error,
        window=window,
        n_samples=jnp.asarray(n_samples, dtype),
        result=result,
    )


def _below(name, inequality, left, right, error, meaning):
    return _verdict(name, inequality, left, right, error, meaning, jnp.less)


def _above(name, inequality, left, right, error, meaning):
    return _verdict(name, inequality, left, right, error, meaning, jnp.greater)


def _verdict(name, inequality, left, right, error, meaning, holds):
    right, error = (jnp.asarray(x).astype(left.dtype) for x in (right, error))
    # What is not a number decides nothing.
    known = ~(jnp.isnan(left) | jnp.isnan(right) | jnp.isnan(error))
    certain = known & (jnp.abs(left - right) > 2 * error)
    return Verdict(left, right, error, holds(left, right) & known, certain, name, inequality, meaning)


def _saturation(model, states):
    seen = states[:, : model.hidden_size] if isinstance(model, LSTM) else states
    bounded = jnp.max(jnp.abs(seen)) <= 1
    shares = jnp.mean((jnp.abs(seen) > _SATURATED).astype(states.dtype), axis=1)
    value, error = jnp.mean(shares), batch_error(shares)
    return jnp.where(bounded, value, jnp.nan), jnp.where(bounded, error, jnp.nan)


def _losses(readout, loss, states, inputs, targets, mask):
    outputs = jax.vmap(readout)(states) if inputs is None else jax.vmap(readout)(states, inputs)
    targets = jnp.asarray(targets)
    targets = targets.astype(states.dtype) if jnp.issubdtype(targets.dtype, jnp.inexact) else targets
    return jnp.where(mask, jax.vmap(loss)(outputs, targets), 0)


def _rows(weights, like):
    return weights.reshape(-1, *(1,) * (like.ndim - 1))


def _length(x):
    """The Euclidean norm of all entries: the largest first, for squares of what has grown far overflow."""
    size = jnp.max(jnp.abs(x))
    safe = jnp.where(size > 0, size, 1)
    return size * jnp.sqrt(jnp.sum((jnp.abs(x) / safe) ** 2))


def _jackknife(without):
    # sqrt((B - 1) / B * sum of squares), in units that do not overflow.
    size = jnp.max(jnp.abs(without))
    return (_BLOCKS - 1) ** 0.5 * size * jnp.std(without / jnp.where(size > 0, size, 1))
