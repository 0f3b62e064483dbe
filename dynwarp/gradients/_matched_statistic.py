"""What one sample says about a dependence l steps long: the loss at a step against a change of the parameters l steps
before, through the exact transport between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dynwarp._checks import check_positive_integer
from dynwarp._results import RESULTS, raise_failed
from dynwarp._typing import Inputs, PRNGKey, State
from dynwarp.errors import ArgumentError
from dynwarp.gradients._backpropagate import backpropagate, check_sequence, half_squared_error
from dynwarp.models import AbstractMap


class MatchedStatistic(eqx.Module):
    """What [`matched_statistic`][dynwarp.gradients.matched_statistic] returns. L lags, D directions, T steps.

    **Attributes:**

    - `lags`: `(L,)`.
    - `samples`: psi_t(l), `(L, D, T)`; 0 where t < l, or the step has no loss. `samples[l][:, lag:].ravel()` goes to
      [`tail_index`][dynwarp.gradients.tail_index].
    - `log_values`: log of the mean over directions of |mean over t of psi|, `(L,)`: the signal.
    - `log_error`: the standard error of `log_values`, from the directions, `(L,)`.
    - `result`: `vanished` where the signal of a lag is zero, `non_finite`.
    """

    lags: Int[Array, " L"]
    samples: Float[Array, "L D T"]
    log_values: Float[Array, " L"]
    log_error: Float[Array, " L"]
    result: RESULTS


def matched_statistic(
    model: AbstractMap,
    readout: Any,
    inputs: Inputs | None,
    targets: Any,
    lags: Sequence[int],
    *,
    key: PRNGKey,
    directions: int = 50,
    state0: State | None = None,
    loss: Callable[[Any, Any], Any] = half_squared_error,
    mask: Bool[Array, " T"] | None = None,
    throw: bool = True,
) -> MatchedStatistic:
    """psi_t(l) = delta_t . (dh_t/dh_{t-l}) v_{t-l}: delta_t, the derivative of the loss of step t in its state, and
    v_k, what a random unit direction in the parameters does to the state in step k alone.

    The sum over all t and l is the derivative of the summed loss along the direction: psi is the gradient, told apart
    by lag. The theory keeps the diagonal of the transport; here it is whole.

    **Arguments:**

    - `model`, `readout`, `inputs`, `targets`, `state0`, `loss`, `mask`: as for
      [`backpropagate`][dynwarp.gradients.backpropagate].
    - `lags`: increasing, from 0 on, at most T - 1.
    - `key`: of the directions.
    - `directions`: D.
    - `throw`: raise where `result` is not successful.

    **Returns:** a [`MatchedStatistic`][dynwarp.gradients.MatchedStatistic]. Differentiable. Cost: D simulations, and
    one backward pass over all steps at once for every lag up to the largest.

    **Raises:** `ArgumentError`, `ShapeError`, `NonFiniteError`, `ModelError`; `ConvergenceError` with `throw`.

    **Source:** Livi, arXiv:2512.05790.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net, out = dw.models.Elman(1, 3, key=jax.random.key(0)), dw.models.Readout(3, 1, key=jax.random.key(1))
    >>> found = dw.gradients.matched_statistic(
    ...     net, out, jnp.ones((9, 1)), jnp.zeros((9, 1)), [0, 2], key=jax.random.key(2), directions=4
    ... )
    >>> found.samples.shape
    (2, 4, 9)
    """
    caller = "matched_statistic"
    state0, mask = check_sequence(model, inputs, targets, state0, mask, caller)
    check_positive_integer(directions, "directions", caller=caller)
    lags = [check_positive_integer(lag, "lags", minimum=0, caller=caller) for lag in lags]
    if not lags or any(b <= a for a, b in itertools.pairwise(lags)) or lags[-1] >= len(targets):
        raise ArgumentError(f"{caller}: `lags` must increase and stay below the {len(targets)} steps; got {lags}.")
    found = _matched(
        model, readout, inputs, targets, state0, mask, loss, jnp.asarray(lags, jnp.int32), key, lags[-1], directions
    )
    if throw:
        raise_failed(found.result, caller, "Check the loss, and the units that are dead or saturated.")
    return found


@eqx.filter_jit
def _matched(model, readout, inputs, targets, state0, mask, loss, lags, key, longest, directions):
    found = backpropagate(model, readout, inputs, targets, state0=state0, loss=loss, mask=mask)
    steps = len(targets)
    dtype = found.signals.dtype
    # They belong to the mean loss.
    signals = found.signals * jnp.sum(mask).astype(dtype)
    previous = jnp.concatenate([state0.astype(dtype)[None], found.states[:-1]])
    indices = jnp.arange(steps, dtype=jnp.int32)
    changes = _changes(model, previous, inputs, indices, key, directions)

    def pull(g, state, input, index):
        return jax.vjp(lambda z: model(z, input, step=index).astype(dtype), state)[1](g)[0]

    def follow(carried, lag):
        # Row t holds delta_t carried back to the state of step t - lag.
        at = jnp.maximum(indices - lag, 0)
        there = indices >= lag
        psi = jnp.where(there, jnp.einsum("dtn,tn->dt", changes[:, at], carried), 0)
        moved = jax.vmap(pull)(carried, previous[at], None if inputs is None else inputs[at], at)
        return jnp.where((indices > lag)[:, None], moved, 0), psi

    def keep(carry, lag):
        carried, kept = carry
        carried, psi = follow(carried, lag)
        return (carried, jnp.where((lags == lag)[:, None, None], psi, kept)), None

    start = (signals, jnp.zeros((len(lags), directions, steps), dtype))
    (_, samples), _ = jax.lax.scan(keep, start, jnp.arange(longest + 1, dtype=jnp.int32))
    counts = jnp.sum(mask & (indices >= lags[:, None]), axis=1, keepdims=True).astype(dtype)
    signal = jnp.abs(jnp.sum(samples, axis=2)) / jnp.maximum(counts, 1)
    mean = jnp.mean(signal, axis=1)
    there = mean > 0
    safe = jnp.where(there, mean, 1)
    error = jnp.std(signal, axis=1) / safe / max(directions - 1, 1) ** 0.5
    error = error if directions > 1 else jnp.full_like(mean, jnp.inf)
    result = RESULTS.where(jnp.all(there), RESULTS.successful, RESULTS.vanished)
    result = RESULTS.where(jnp.all(jnp.isfinite(mean)), result, RESULTS.non_finite)
    logs = jnp.where(there, jnp.log(safe), jnp.where(mean == 0, -jnp.inf, jnp.nan))
    return MatchedStatistic(lags, samples, logs, jax.lax.stop_gradient(error), result)


def _changes(model, previous, inputs, indices, key, directions):
    """What each of the random unit directions in the parameters does to each step, `(D, T, n)`."""
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = jax.flatten_util.ravel_pytree(parameters)
    # Complex numbers are two parameters; none of the models holds one, a user's may.
    real = jnp.finfo(flat.dtype).dtype
    draws = jax.random.normal(key, (directions, len(flat)), real)
    draws = (draws / jnp.linalg.norm(draws, axis=1, keepdims=True)).astype(flat.dtype)

    def states(parameters):
        step = eqx.combine(parameters, rest)
        move = lambda z, x, t: step(z, x, step=t).astype(previous.dtype)  # noqa: E731
        return jax.vmap(move)(previous, inputs, indices)

    def change(draw):
        return jax.jvp(states, (parameters,), (unravel(draw),))[1]

    return jax.lax.map(change, draws)
