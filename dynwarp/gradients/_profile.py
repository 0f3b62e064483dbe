"""How large the gradient is at every step, and how much of every loss term is left so many steps before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dynwarp._checks import check_positive_integer
from dynwarp._results import RESULTS, raise_failed
from dynwarp._typing import Inputs, Scalar, State
from dynwarp.errors import ArgumentError
from dynwarp.gradients._backpropagate import backpropagate, check_sequence, half_squared_error
from dynwarp.models import AbstractMap

_LAGS = 100


class GradientProfile(eqx.Module):
    """What [`gradient_profile`][dynwarp.gradients.gradient_profile] returns. T steps, L lags.

    **Attributes:**

    - `norms`: |dL/dh_t|, the whole gradient at each step, `(T,)`. Terms may cancel in it.
    - `signal_norms`: the part of it through the output of step t alone, `(T,)`.
    - `log_term_norms`: `[l, s]` = log |dL_s/dh_{s-l}|, what the loss term of step s still sends l steps back,
      `(L + 1, T)`; -infinity where that is nothing, s < l, or the step has no loss. Natural logarithms, and no
      underflow.
    - `lag_norms`: the root mean square over the terms that reach l steps back, `(L + 1,)`; 0 where none does.
    - `decay`: the mean of log(|dL_s/dh_{s-l}| / |dL_s/dh_s|) / l over the terms with the largest lag that there is,
      nats per step: negative where gradients vanish.
    - `state0_norm`: |dL/dh_0|.
    - `loss`: the mean loss.
    - `result`: `vanished` where the gradient is exactly zero at every step, `non_finite` where it is not finite.
    """

    norms: Float[Array, " T"]
    signal_norms: Float[Array, " T"]
    log_term_norms: Float[Array, "L T"]
    lag_norms: Float[Array, " L"]
    decay: Scalar
    state0_norm: Scalar
    loss: Scalar
    result: RESULTS


def gradient_profile(
    model: AbstractMap,
    readout: Any,
    inputs: Inputs | None,
    targets: Any,
    *,
    state0: State | None = None,
    loss: Callable[[Any, Any], Any] = half_squared_error,
    mask: Bool[Array, " T"] | None = None,
    lags: int | None = None,
    throw: bool = True,
) -> GradientProfile:
    """The norms of the gradient of the mean loss with respect to the states, by step, by loss term and by lag.

    **Arguments:** as for [`backpropagate`][dynwarp.gradients.backpropagate], with a mask for padded sequences, and

    - `lags`: how many steps back each loss term is followed; None: 100, or as many as there are.
    - `throw`: raise where `result` is not successful.

    **Returns:** a [`GradientProfile`][dynwarp.gradients.GradientProfile]. Differentiable where no norm is zero. Cost:
    four simulations, and one backward pass a lag over all steps at once.

    **Raises:** `ArgumentError` for more lags than steps; `ShapeError`, `NonFiniteError`, `ModelError`;
    `ConvergenceError` with `throw`.

    **Source:** Pascanu, Mikolov and Bengio, ICML 2013, arXiv:1211.5063, equations 3 to 5.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> half = dw.models.LinearRNN(jnp.array([[0.5]]), jnp.ones((1, 1)), jnp.ones((1, 1)))
    >>> profile = dw.gradients.gradient_profile(
    ...     half, half.readout(), jnp.ones((4, 1)), jnp.zeros((4, 1)), mask=jnp.arange(4) == 3
    ... )
    >>> profile.norms.tolist(), round(float(profile.decay), 4)
    ([0.234375, 0.46875, 0.9375, 1.875], -0.6931)
    """
    caller = "gradient_profile"
    state0, mask = check_sequence(model, inputs, targets, state0, mask, caller)
    steps = len(targets)
    if lags is None:
        lags = min(_LAGS, steps - 1)
    elif check_positive_integer(lags, "lags", minimum=0, caller=caller) >= steps:
        raise ArgumentError(f"{caller}: `lags` must be below the {steps} steps of the sequence; got {lags}.")
    profile = _profile(model, readout, inputs, targets, state0, loss, mask, lags)
    if throw:
        raise_failed(profile.result, caller, "Check the loss, the mask and the units that are dead or saturated.")
    return profile


@eqx.filter_jit
def _profile(model, readout, inputs, targets, state0, loss, mask, lags):
    found = backpropagate(model, readout, inputs, targets, state0=state0, loss=loss, mask=mask)
    signals = found.signals
    steps = len(signals)
    indices = jnp.arange(steps, dtype=jnp.int32)
    previous = jnp.concatenate([state0.astype(signals.dtype)[None], found.states[:-1]])

    def transpose(g, state, input, index):
        pull = jax.vjp(lambda z: model(z, input, step=index).astype(z.dtype), state)[1]
        return pull(g)[0]

    def follow(carry, lag):
        directions, logs = carry
        # Row s holds dL_s at the state s - lag, which the step s - lag made.
        rows = indices - lag
        there = rows >= 0
        at = jnp.maximum(rows, 0)
        moved = jax.vmap(transpose)(directions, previous[at], None if inputs is None else inputs[at], at)
        directions, logs = _unit(jnp.where((rows >= 1)[:, None], moved, 0), jnp.where(there, logs, -jnp.inf))
        return (directions, logs), logs

    start = _unit(signals, jnp.zeros(steps, signals.dtype))
    _, later = jax.lax.scan(follow, start, jnp.arange(lags, dtype=jnp.int32))
    logs = jnp.concatenate([start[1][None], later])

    norms, signal_norms = _norms(found.adjoints), _norms(signals)
    # A term counts at a lag where there is such a step, and the term is one.
    reaches = mask[None, :] & (indices[None, :] >= jnp.arange(lags + 1, dtype=jnp.int32)[:, None])
    counts = jnp.sum(reaches, axis=1).astype(norms.dtype)
    squares = jnp.sum(jnp.where(reaches, jnp.exp(2 * logs), 0), axis=1)
    lag_norms = jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1) / jnp.maximum(counts, 1)), 0)
    farthest = jnp.maximum(jnp.max(jnp.where(counts > 0, jnp.arange(lags + 1), 0)), 0)
    usable = reaches[farthest] & jnp.isfinite(start[1])
    rates = jnp.where(usable, logs[farthest] - jnp.where(usable, start[1], 0), 0)
    number = jnp.sum(usable).astype(norms.dtype) * farthest.astype(norms.dtype)
    decay = jnp.where(number > 0, jnp.sum(rates) / jnp.where(number > 0, number, 1), jnp.nan)

    finite = jnp.all(jnp.isfinite(norms)) & jnp.isfinite(found.loss)
    result = RESULTS.where(jnp.any(norms > 0), RESULTS.successful, RESULTS.vanished)
    result = RESULTS.where(finite, result, RESULTS.non_finite)
    return GradientProfile(
        norms=norms,
        signal_norms=signal_norms,
        log_term_norms=logs,
        lag_norms=lag_norms,
        decay=decay,
        state0_norm=_norms(found.state0),
        loss=found.loss,
        result=result,
    )


def _norms(x):
    """Euclidean norms along the last axis, with derivative 0 at 0."""
    square = jnp.sum(x**2, axis=-1)
    return jnp.where(square == 0, 0, jnp.sqrt(jnp.where(square == 0, 1, square)))


def _unit(vectors, logs):
    """Unit vectors and the logarithm of their lengths on top of `logs`; zero and -infinity where there is none."""
    # The largest entry first: squares of what is small are nothing.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(vectors), axis=1))
    scale = jnp.where(largest > 0, largest, 1)
    scaled = vectors / scale[:, None]
    length = _norms(scaled)
    gone = length == 0
    safe = jnp.where(gone, 1, length)
    logs = jnp.where(gone, -jnp.inf, logs + jnp.log(scale) + jnp.log(safe))
    return scaled / safe[:, None], logs
