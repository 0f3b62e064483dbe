"""The sample engine: what a learning rule makes of one sequence, in any cell, by g[t] = F e[t] + Z g[t+1].

The parameters then move by the sum over steps of (dF/dtheta)^T g[t], one step's own derivative from a frozen state, so
that nothing here knows what the cell is.
"""

from __future__ import annotations

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_choice, check_inputs, check_state
from dynwarp.dynamics._stepping import as_floating, is_field
from dynwarp.errors import ArgumentError, ModelError, ShapeError
from dynwarp.learning._feedback import AbstractFeedback, Fixed, Symmetric
from dynwarp.learning._propagators import Reach
from dynwarp.learning._teacher import cast
from dynwarp.learning._traces import advance_trace, start_trace
from dynwarp.learning._transport import (
    Moment,
    advance,
    apply_blocks,
    is_unitwise,
    reach_mask,
    step_jacobian,
    transport,
    unit_blocks,
)
from dynwarp.learning._units import unit_count

Engine = Literal["auto", "reverse", "forward"]


def rule_gradients(rule, model, readout, inputs, targets, *, state0, loss, key, engine: Engine, memory_limit: int):
    """What [`AbstractRule.gradients`][dynwarp.learning.AbstractRule] returns; see there."""
    caller = f"{type(rule).__name__}.gradients"
    state0 = check_sequence(rule, model, inputs, targets, state0, caller)
    check_choice(engine, "engine", ("auto", "reverse", "forward"), caller=caller)
    if engine == "auto":
        engine = "forward" if rule.estimator != "recursion" else "reverse"
    if rule.estimator == "rank_one":
        if engine == "reverse":
            raise ArgumentError(f"{caller}: a rank-one trace runs forwards; `engine` must be 'auto' or 'forward'.")
        if key is None:
            raise ArgumentError(f"{caller}: the random signs need a `key`; got None.")
    return _run(rule, model, readout, inputs, targets, state0, loss, key, engine == "forward", memory_limit)


def check_sequence(rule, model, inputs, targets, state0, caller: str) -> Array:
    """Checks one sequence for one model; returns the initial state as floats."""
    if is_field(model, caller):
        raise ModelError(f"{caller} needs a map; {type(model).__name__} is a field. Learning rules act step by step.")
    if targets is None or jnp.ndim(targets) == 0:
        raise ShapeError(f"{caller}: `targets` must have a leading axis of steps; got {targets!r}.")
    if inputs is not None:
        check_inputs(model, inputs, caller=caller)
        if len(inputs) != len(targets):
            raise ShapeError(
                f"{caller}: `inputs` has {len(inputs)} steps and `targets` {len(targets)}; they must agree."
            )
    if len(targets) == 0:
        raise ShapeError(f"{caller}: `targets` must have at least one step; got shape {jnp.shape(targets)}.")
    check_state(model, state0, caller=caller)
    if isinstance(rule.feedback, Fixed) and (jnp.ndim(rule.feedback.value) != 2):
        raise ShapeError(
            f"{caller}: `feedback` must have shape (outputs, {model.state_size}) for a network; "
            f"got {rule.feedback.value.shape}."
        )
    return as_floating(state0)


def send(feedback: AbstractFeedback, readout: Any, state: Array, input: Array | None, error: Array) -> Array:
    """F e, the error of an output at the hidden state that made it."""
    if isinstance(feedback, Symmetric):
        return jax.vjp(lambda z: emit(readout, z, input), state)[1](error)[0]
    # A fixed feedback asks for the shape of the readout alone.
    through = jnp.zeros((error.shape[0], state.shape[0]), state.dtype)
    if not isinstance(feedback, Fixed):
        through = jax.jacrev(lambda z: emit(readout, z, input))(state)
    return feedback.matrix(through) @ error


def emit(readout: Any, state: Array, input: Array | None) -> Array:
    """The output at one step."""
    return (readout(state) if input is None else readout(state, input)).astype(state.dtype)


def moments(model: Any, state0: Array, inputs: Array | None, steps: int) -> tuple[Moment, Array]:
    """The starts of all steps, and the states after them."""
    indices = jnp.arange(steps, dtype=jnp.int32)

    def step(state, x):
        after = advance(model, state, Moment(state, *x))
        return after, (state, after)

    _, (before, after) = jax.lax.scan(step, state0, (inputs, indices))
    return Moment(before, inputs, indices), after


def output_errors(readout, loss, states, inputs, targets):
    """The mean loss, its derivative with respect to every output, and the true gradient of the readout."""
    parameters, rest = eqx.partition(readout, eqx.is_inexact_array)

    def outputs_of(parameters):
        return jax.vmap(lambda z, x: emit(eqx.combine(parameters, rest), z, x))(states, inputs)

    outputs, pull = jax.vjp(outputs_of, parameters)
    value, errors = jax.value_and_grad(lambda y: jnp.mean(jax.vmap(loss)(y, targets)))(outputs)
    return value, errors, pull(errors)[0]


def adjoints(rule: Any, model: Any, path: Moment, signals: Float[Array, "T n"]) -> Array:
    """g of every step from the signals F e, `(T, n)`; for SnAp of higher order every unit's own, `(T, n)` still."""
    unitwise = is_unitwise(rule.propagator, model)
    if isinstance(rule.propagator, Reach) and not unitwise:
        return _adjoints_within_reach(rule, model, path, signals)
    carriers = jax.vmap(lambda m: unit_blocks(rule.propagator, model, m))(path) if unitwise else path

    def back(carrier, g):
        return apply_blocks(carrier, g) if unitwise else transport(rule.propagator, model, carrier, g)

    if rule.horizon is not None and not rule.chunked and rule.horizon < len(signals):
        return _sliding(back, carriers, signals, rule.horizon)

    def step(transported, x):
        carrier, signal, cut = x
        g = signal + jnp.where(cut, 0, transported)
        return back(carrier, g), g

    cuts = _cuts(rule, len(signals))
    return jax.lax.scan(step, jnp.zeros_like(signals[0]), (carriers, signals, cuts), reverse=True)[1]


def _cuts(rule, steps: int) -> Array:
    """Whether the error of step t + 1 is kept from step t: at the end of every chunk."""
    after = jnp.arange(1, steps + 1)
    return after % rule.horizon == 0 if rule.chunked else jnp.zeros(steps, bool)


def _sliding(back, carriers, signals, horizon: int):
    """Exactly `horizon` terms: g <- F e + Z g of the next step, for all steps at once, horizon - 1 times."""

    def widen(g, _):
        transported = jax.vmap(back)(carriers, g)
        return signals.at[:-1].add(transported[1:]), None

    return jax.lax.scan(widen, signals, length=horizon - 1)[0]


def _adjoints_within_reach(rule, model, path, signals):
    units = unit_count(model)
    mask = reach_mask(rule.propagator, model).astype(signals.dtype)
    own = jnp.tile(jnp.eye(units, dtype=signals.dtype), (1, model.state_size // units))

    def step(transported, x):
        moment, signal, cut = x
        g = mask * (signal + jnp.where(cut, 0, transported))
        return g @ step_jacobian(model, moment), jnp.sum(own * g, axis=0)

    start = jnp.zeros((units, model.state_size), signals.dtype)
    if rule.horizon is not None and not rule.chunked:
        raise ArgumentError("A Reach propagator has no sliding horizon: leave `horizon` out.")
    return jax.lax.scan(step, start, (path, signals, _cuts(rule, len(signals))), reverse=True)[1]


def parameter_gradient(model: Any, path: Moment, g: Float[Array, "T n"]) -> Any:
    """The sum over steps of (dF/dtheta)^T g from frozen states: one product over all steps at once."""
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)

    def after(parameters):
        return jax.vmap(lambda m: advance(eqx.combine(parameters, rest), m.state, m))(path)

    return jax.vjp(after, parameters)[1](g)[0]


def trace_contributions(rule, model, path: Moment, signals, key, memory_limit: int, *, each: bool = False):
    """The gradient by the forward trace; with `each`, what the error of every step makes of it, `(T, *leaf.shape)`."""
    trace = start_trace(rule, model, dtype=signals.dtype, memory_limit=memory_limit)
    zeros = jax.tree.map(jnp.zeros_like, eqx.filter(model, eqx.is_inexact_array))

    def step(carry, x):
        trace, total = carry
        moment, signal = x
        own = None if key is None else jax.random.fold_in(key, moment.index)
        trace = advance_trace(rule, trace, model, moment.state, moment.input, step=moment.index, key=own)
        gradient = trace.gradient(model, signal)
        return (trace, jax.tree.map(jnp.add, total, gradient)), gradient if each else None

    (_, total), every = jax.lax.scan(step, (trace, zeros), (path, signals))
    return every if each else total


@eqx.filter_jit
def _run(rule, model, readout, inputs, targets, state0, loss, key, forward, memory_limit):
    rule = cast(rule, state0.dtype)
    path, states = moments(model, state0, inputs, len(targets))
    value, errors, of_readout = output_errors(readout, loss, states, inputs, targets)
    signals = jax.vmap(lambda z, x, e: send(rule.feedback, readout, z, x, e))(states, inputs, errors)
    if forward:
        gradient = trace_contributions(rule, model, path, signals, key, memory_limit)
    else:
        gradient = parameter_gradient(model, path, adjoints(rule, model, path, signals))
    return value, (gradient, of_readout)
