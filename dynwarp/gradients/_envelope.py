"""How much of a perturbation is left so many steps later, unit by unit: the envelope of what can be learned."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dynwarp._checks import (
    check_choice,
    check_finite,
    check_inputs,
    check_positive,
    check_positive_integer,
    check_shape,
    check_state,
    default_float,
)
from dynwarp._results import RESULTS, raise_failed
from dynwarp._simulate import simulate
from dynwarp._typing import Inputs, State
from dynwarp.dynamics._stepping import as_floating, is_field
from dynwarp.errors import ArgumentError, ModelError, ShapeError
from dynwarp.gradients._diagonal_terms import diagonal_terms
from dynwarp.models import LSTM, AbstractMap
from dynwarp.models._cell import prepared


class Envelope(eqx.Module):
    """What [`envelope`][dynwarp.gradients.envelope] returns. L lags.

    **Attributes:**

    - `lags`: in steps, `(L,)`.
    - `log_values`: log f(l), `(L,)`: the sum over the units of what is left, averaged over windows. Natural logarithms,
      which neither overflow nor vanish.
    - `log_error`: the standard error of `log_values`, from the windows, `(L,)`; infinity where there is one window, and
      0 where all are equal.
    - `windows`: how many, `(L,)`.
    - `result`: `vanished` where nothing is left at some lag, `non_finite`.
    """

    lags: Int[Array, " L"]
    log_values: Float[Array, " L"]
    log_error: Float[Array, " L"]
    windows: Int[Array, " L"]
    result: RESULTS

    @property
    def values(self) -> Float[Array, " L"]:
        """f(l), `(L,)`."""
        return jnp.exp(self.log_values)


def envelope(
    model: AbstractMap,
    inputs: Inputs | None,
    lags: Sequence[int],
    *,
    kind: Literal["exact", "diagonal", "released"] = "exact",
    state0: State | None = None,
    steps: int | None = None,
    probes: int | None = 8,
    rates: Float[Array, "..."] | None = None,
    throw: bool = True,
) -> Envelope:
    """f(l) = mean over t of the sum over units q of |row q of dh_t/dh_{t-l}|: how much each unit still feels of l steps
    ago.

    The theory of learnability has the diagonal entry of unit q in place of its row, and expands it to first order in
    the recurrent weights about the product of the gates, prod leak (1 + sum recurrent / leak). Where the transport is
    diagonal, row and entry are the same number and only the expansion remains, which as a rule makes the decay steeper
    than it is: by factors between 1.2 and 6 in trained networks.

    **Arguments:**

    - `model`: a map; for other kinds than `"exact"` a `GatedLeak`, `GRU` or `LSTM`.
    - `inputs`: `(T, d)`, or None with `steps`.
    - `lags`: increasing, at least 1, at most T - 1.
    - `kind`: `"exact"`, tangents through the steps themselves; or `"diagonal"`. In an LSTM both measure what the output
      h_t feels of the memory c_{t-l}, and the expansion leaves the feedback of the output gate on itself out, as the
      theory does. `"released"` is the expansion of the authors' program, to compare with its numbers: in a GRU it adds
      the products of the reset gates, and of these times the leak, which transport nothing, and forgets what the reset
      gate does to what comes from other units. Not for conclusions.
    - `state0`: `(n,)`; zeros if None.
    - `steps`: T, where there are no inputs.
    - `probes`: how many random tangents (entries +1 and -1, the same in every call) a window of the exact kind follows;
      None, or at least as many as units: a tangent for every unit, no randomness. With probes the square of a row's
      norm is unbiased and the bias of its root removed to second order; for diagonal transports they are exact.
    - `rates`: of an optimiser, from [`adapted_rates`][dynwarp.gradients.adapted_rates]: `(q,)` or, by step, `(T, q)`.
      Unit q of step t - l then counts with its rate, the generalised effective learning rate.
    - `throw`: raise where `result` is not successful.

    **Returns:** an [`Envelope`][dynwarp.gradients.Envelope]. Differentiable. The exact kind cuts the sequence in blocks
    of l steps; cost: one forward pass with `probes` tangents a lag. The other kinds take every t; one simulation.

    **Raises:** `ArgumentError` for lags that are none or beyond the sequence; `ShapeError`, `NonFiniteError`,
    `ModelError`; `ConvergenceError` with `throw`.

    **Source:** Livi, arXiv:2512.05790, version 4 and later; the rows and probes: Hutchinson, Commun. Stat. Simul. 18
    (1989) 1059.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.LinearRNN(jnp.diag(jnp.array([0.9, 0.5])), jnp.zeros((2, 0)), jnp.eye(2))
    >>> found = dw.gradients.envelope(net, None, [1, 2], steps=50)
    >>> [round(x, 3) for x in found.values.tolist()]
    [1.4, 1.06]
    """
    caller = "envelope"
    state0, steps = check_start(model, inputs, state0, steps, caller)
    check_choice(kind, "kind", ("exact", "diagonal", "released"), caller=caller)
    lags = check_lags(lags, steps, caller)
    units = _units(model)
    if probes is not None and check_positive_integer(probes, "probes", caller=caller) >= units:
        probes = None
    if rates is not None:
        shape = (units,) if jnp.ndim(rates) == 1 else (steps, units)
        check_shape(rates, "rates", shape, caller=caller)
        check_finite(rates, "rates", caller=caller)
        rates = jnp.broadcast_to(as_floating(rates), (steps, units))
    chosen = jnp.asarray(lags, jnp.int32)
    if kind == "exact":
        found = _exact(model, state0, inputs, chosen, rates, steps, probes)
    else:
        released = kind == "released"
        diagonal_terms(model, *jax.tree.map(lambda x: x[0], (state0[None], inputs)), released=released)
        found = _diagonal(model, state0, inputs, chosen, rates, steps, released)
    if throw:
        raise_failed(found.result, caller, "Shorten the lags, or look for dead units.")
    return found


def adapted_rates(
    second_moment: Float[Array, "q n"],
    previous_states: Float[Array, "T n"],
    *,
    learning_rate: float | Array,
    epsilon: float = 1e-8,
) -> Float[Array, "T q"]:
    """The learning rate that Adam or RMSprop leaves to each unit at each step: the Rayleigh quotient
    sum_j h_j^2 lr / (sqrt(v_qj) + epsilon) / sum_j h_j^2 with the second moments v of the recurrent weights.

    **Arguments:**

    - `second_moment`: of the gradient of the recurrent weights, with its bias corrected, `(q, n)`.
    - `previous_states`: the states before each step, `(T, n)`; where one is zero the mean over j is taken.
    - `learning_rate`, `epsilon`: of the optimiser.

    **Returns:** `(T, q)`, for `rates` of [`envelope`][dynwarp.gradients.envelope]. For plain gradient descent the rate
    is the learning rate itself. Differentiable.

    **Raises:** `ShapeError`, `NonFiniteError`, `ArgumentError`.

    **Source:** Livi, arXiv:2512.05790, version 8, the generalised effective learning rate.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> states = jnp.array([[1.0, 0.0], [0.0, 0.0]])
    >>> dw.gradients.adapted_rates(jnp.array([[1.0, 4.0]]), states, learning_rate=0.1).round(4).tolist()
    [[0.1], [0.075]]
    """
    caller = "adapted_rates"
    check_shape(second_moment, "second_moment", ("q", "n"), caller=caller)
    check_shape(previous_states, "previous_states", ("T", jnp.shape(second_moment)[1]), caller=caller)
    check_finite(second_moment, "second_moment", caller=caller)
    check_positive(learning_rate, "learning_rate", caller=caller)
    check_positive(epsilon, "epsilon", caller=caller)
    moment = as_floating(second_moment)
    states = as_floating(previous_states).astype(moment.dtype)
    rates = jnp.asarray(learning_rate, moment.dtype) / (jnp.sqrt(jnp.maximum(moment, 0)) + epsilon)
    squares = states**2
    total = jnp.sum(squares, axis=1, keepdims=True)
    weights = jnp.where(total > 0, squares / jnp.where(total > 0, total, 1), 1 / moment.shape[1])
    return weights @ rates.T


def check_start(model, inputs, state0, steps, caller: str) -> tuple[Array, int]:
    """The initial state and the number of steps; raises unless all is of one sequence of one map."""
    if is_field(model, caller):
        raise ModelError(f"{caller} needs a map; {type(model).__name__} is a field.")
    if inputs is None:
        if steps is None:
            raise ArgumentError(f"{caller}: without `inputs` give `steps`.")
        steps = check_positive_integer(steps, "steps", caller=caller)
    else:
        check_inputs(model, inputs, caller=caller)
        check_finite(inputs, "inputs", caller=caller)
        if steps is not None and steps != len(inputs):
            raise ShapeError(f"{caller}: `inputs` has {len(inputs)} steps and `steps` is {steps}.")
        steps = len(inputs)
    if state0 is None:
        arrays = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
        state0 = jnp.zeros(model.state_size, jnp.finfo(arrays[0].dtype).dtype if arrays else default_float())
    check_state(model, state0, caller=caller)
    check_finite(state0, "state0", caller=caller)
    return as_floating(state0), steps


def check_lags(lags: Any, steps: int, caller: str) -> tuple[int, ...]:
    """The lags as whole numbers; raises unless they increase from at least 1 to below the length of the sequence."""
    try:
        values = np.asarray(lags)
    except (TypeError, ValueError):
        values = np.zeros(0)
    whole = values.ndim == 1 and values.size and np.issubdtype(values.dtype, np.integer)
    if not whole or values[0] < 1 or (np.diff(values) <= 0).any():
        raise ArgumentError(f"{caller}: `lags` must be increasing whole numbers of at least 1; got {lags!r}.")
    if values[-1] >= steps:
        raise ArgumentError(f"{caller}: `lags` must be below the {steps} steps of the sequence; got {values[-1]}.")
    return tuple(int(lag) for lag in values)


def _units(model) -> int:
    return model.hidden_size if isinstance(model, LSTM) else model.state_size


@functools.lru_cache
def random_tangents(units: int, probes: int | None) -> np.ndarray:
    """The tangents of a window, entries +1 and -1, `(probes, units)`; the axes for None."""
    if probes is None:
        return np.eye(units)
    return np.random.default_rng(0).choice([-1.0, 1.0], (probes, units))


@eqx.filter_jit
def _exact(model, state0, inputs, lags, rates, steps, probes):
    model = prepared(model)
    states = simulate(model, state0, inputs, steps=steps, mode="scan")
    dtype, n = states.dtype, _units(model)
    basis = jnp.asarray(random_tangents(n, probes), dtype)
    indices = jnp.arange(1, steps, dtype=jnp.int32)
    rows = (indices, states[:-1], None if inputs is None else inputs[1:])
    rows = (*rows, None if rates is None else rates[:-1].astype(dtype))
    exits = None
    if isinstance(model, LSTM):
        # What a change of the memory makes of the output of the same step: it begins with both changed.
        before = jnp.concatenate([state0.astype(dtype)[None], states[:-2]])
        at = None if inputs is None else inputs[:-1]
        exits = jax.vmap(lambda z, x: diagonal_terms(model, z, x).exit)(before, at)

    def follow(lag):
        count = (steps - 1) // lag
        skipped = (steps - 1) - count * lag

        def step(carry, x):
            tangents, log_scale = carry
            (index, state, input, rate), exit = x
            begins = (index - 1 - skipped) % lag == 0
            start = basis if rate is None else basis * rate
            if exit is not None:
                start = jnp.concatenate([start * exit, start], axis=1)
            tangents = jnp.where(begins, start, tangents)
            log_scale = jnp.where(begins, 0, log_scale)
            push = jax.linearize(lambda z: model(z, input, step=index).astype(dtype), state)[1]
            tangents = jax.vmap(push)(tangents)
            size = jax.lax.stop_gradient(jnp.max(jnp.abs(tangents)))
            size = jnp.where((size > 0) & jnp.isfinite(size), size, 1)
            tangents, log_scale = tangents / size, log_scale + jnp.log(size)
            total = _sum_of_rows(tangents[:, :n], probes is None)
            return (tangents, log_scale), jnp.where(total > 0, log_scale + _log(total), -jnp.inf)

        width = n if exits is None else 2 * n
        carry = (jnp.zeros((len(basis), width), dtype), jnp.zeros((), dtype))
        _, logs = jax.lax.scan(step, carry, (rows, exits))
        ends = (indices > skipped) & ((indices - skipped) % lag == 0)
        return _mean_of_windows(logs, ends)

    return _as_envelope(lags, *jax.lax.map(follow, lags))


def _sum_of_rows(tangents, complete: bool):
    """The sum over units of the norm of the row of the transport, from tangents `(p, n)`."""
    squares = tangents**2
    total = jnp.sum(squares, axis=0)
    if complete:
        return jnp.sum(_root(total))
    p = len(tangents)
    roots = _root(total / p)
    if p > 1:
        # The jackknife: the root of a mean of p squares is too small by a term in 1 / p.
        without = _root(jnp.maximum(total - squares, 0) / (p - 1))
        roots = p * roots - (p - 1) * jnp.mean(without, axis=0)
    return jnp.sum(jnp.maximum(roots, 0))


@eqx.filter_jit
def _diagonal(model, state0, inputs, lags, rates, steps, released):
    states = simulate(model, state0, inputs, steps=steps, mode="scan")
    dtype = states.dtype
    before = jnp.concatenate([state0.astype(dtype)[None], states[:-1]])
    terms = jax.vmap(lambda z, x: diagonal_terms(model, z, x, released=released))(before, inputs)
    leak, *others = (jnp.maximum(gate, jnp.finfo(dtype).tiny) for gate in (terms.leak, *terms.others))
    # An entry at the step before, through which the recurrent weights see what was kept.
    entry = jnp.concatenate([jnp.ones_like(leak[:1]), terms.entry[:-1]])
    log_leak, *log_others = (jnp.cumsum(jnp.log(gate), axis=0) for gate in (leak, *others))
    ratio = jnp.cumsum(terms.recurrent * entry / leak, axis=0)
    indices = jnp.arange(steps, dtype=jnp.int32)

    def one(lag):
        begin = jnp.maximum(indices - lag, 0)
        products = [sums - sums[begin] for sums in (log_leak, *log_others)]
        factors = [terms.exit * (1 + ratio - ratio[begin])] + [1] * len(others)
        top = jax.lax.stop_gradient(jnp.max(jnp.stack(products), axis=(0, 2)))
        left = jnp.abs(sum(jnp.exp(p - top[:, None]) * factor for p, factor in zip(products, factors)))
        if rates is not None:
            left = left * jnp.abs(rates[begin]).astype(dtype)
        total = jnp.sum(left, axis=1)
        logs = jnp.where(total > 0, top + _log(total), -jnp.inf)
        return _mean_of_windows(logs, indices >= lag)

    return _as_envelope(lags, *jax.lax.map(one, lags))


def _mean_of_windows(logs, counted):
    """log of the mean of the exponentials of what counts, its standard error, and how many there are."""
    count = jnp.sum(counted)
    number = count.astype(logs.dtype)
    top = jax.lax.stop_gradient(jnp.max(jnp.where(counted, logs, -jnp.inf)))
    top = jnp.where(jnp.isfinite(top), top, 0)
    values = jnp.where(counted & (logs > -jnp.inf), jnp.exp(jnp.where(counted, logs, 0) - top), 0)
    mean = jnp.sum(values) / number
    spread = jnp.sum(jnp.where(counted, (values - mean) ** 2, 0)) / jnp.maximum(number - 1, 1)
    relative = jnp.sqrt(jax.lax.stop_gradient(spread / number)) / jnp.where(mean > 0, mean, 1)
    error = jnp.where(count > 1, relative, jnp.inf)
    return jnp.where(mean > 0, top + _log(mean), jnp.where(mean == 0, -jnp.inf, jnp.nan)), error, count


def _as_envelope(lags, log_values, log_error, windows):
    result = RESULTS.where(jnp.any(jnp.isneginf(log_values)), RESULTS.vanished, RESULTS.successful)
    bad = jnp.any(jnp.isnan(log_values) | (log_values == jnp.inf))
    return Envelope(lags, log_values, log_error, windows, RESULTS.where(bad, RESULTS.non_finite, result))


def _root(x):
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0)


def _log(x):
    return jnp.log(jnp.where(x > 0, x, 1))
