"""Whole training runs by a rule: on its exact expectation, on sequences, and within a sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from dynwarp._checks import check_positive, check_positive_integer
from dynwarp._results import RESULTS
from dynwarp._typing import Inputs, PRNGKey, Scalar, State
from dynwarp.errors import ArgumentError
from dynwarp.learning._descent import descend
from dynwarp.learning._engine import check_sequence, emit, send
from dynwarp.learning._expected_update import expected_loss, expected_update
from dynwarp.learning._rules import AbstractRule
from dynwarp.learning._teacher import cast
from dynwarp.learning._traces import DEFAULT_MEMORY, advance_trace, start_trace
from dynwarp.learning._transport import Moment, advance
from dynwarp.models import AbstractMap, LinearRNN
from dynwarp.models._cell import computing_dtype


class ExpectedTraining(eqx.Module):
    """What [`train_on_expectation`][dynwarp.learning.train_on_expectation] returns.

    **Attributes:**

    - `student`: after the last step; a run that diverged stays where its loss first passed the limit.
    - `losses`: the expected loss before every `record_every`-th step and after the last,
      `(steps // record_every + 1,)`.
    - `result`: `RESULTS.successful`, or `RESULTS.diverged` where the loss passed `give_up` times the first.
    """

    student: LinearRNN
    losses: Float[Array, " K"]
    result: RESULTS


class SampleTraining(eqx.Module):
    """What [`train_on_samples`][dynwarp.learning.train_on_samples] and
    [`learn_online`][dynwarp.learning.learn_online] return.

    **Attributes:**

    - `model`, `readout`: after the last step.
    - `losses`: of every step, before it.
    - `optimizer_state`: to go on with.
    - `result`: `RESULTS.successful`, or `RESULTS.diverged` where the last loss is not finite.
    """

    model: AbstractMap
    readout: Any
    losses: Float[Array, " K"]
    optimizer_state: Any
    result: RESULTS


class WhiteNoiseTask(eqx.Module):
    """Sequences of a teacher: inputs N(0, I), and what the teacher makes of them.

    **Arguments:**

    - `teacher`: a [`LinearRNN`][dynwarp.models.LinearRNN], started at zero.
    - `steps`: the length of a sequence.

    Called as `task(key)` -> (inputs (steps, d), targets (steps, o)).

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> teacher = dw.models.LinearRNN(jnp.eye(2) * 0.5, jnp.ones((2, 1)), jnp.ones((3, 2)))
    >>> inputs, targets = dw.learning.WhiteNoiseTask(teacher, 5)(jax.random.key(0))
    >>> inputs.shape, targets.shape
    ((5, 1), (5, 3))
    """

    teacher: LinearRNN
    steps: int = eqx.field(static=True)

    def __call__(self, key: PRNGKey) -> tuple[Array, Array]:
        inputs = jax.random.normal(key, (self.steps, self.teacher.input_size), self.teacher.B.dtype)
        states = self.teacher.sequential(jnp.zeros(self.teacher.state_size, inputs.dtype), inputs)
        return inputs, jax.vmap(self.teacher.readout())(states)


def half_squared_error(output: Float[Array, " o"], target: Float[Array, " o"]) -> Scalar:
    """Half the sum of squares of output - target: the loss of the theory.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> float(dw.learning.half_squared_error(jnp.array([1.0, 2.0]), jnp.zeros(2)))
    2.5
    """
    return jnp.sum((output - target) ** 2) / 2


def train_on_expectation(
    rule: AbstractRule,
    student: LinearRNN,
    teacher: LinearRNN,
    *,
    steps: int,
    optimizer: optax.GradientTransformation,
    horizon: int | None = None,
    record_every: int = 1,
    give_up: float = 1e3,
) -> ExpectedTraining:
    """Trains a linear student on the exact expectation of a rule's updates: no sampling noise at all.

    **Arguments:**

    - `rule`, `student`, `teacher`, `horizon`: as for [`expected_update`][dynwarp.learning.expected_update].
    - `steps`: of the optimiser.
    - `optimizer`: from optax; `optax.sgd(eta)` is Euler's method for the flow at t = eta times the step.
    - `record_every`: steps between two losses; it must divide `steps`.
    - `give_up`: a run whose loss exceeds this many times its first one, or is not finite, has diverged and stops there.

    **Returns:** an [`ExpectedTraining`][dynwarp.learning.ExpectedTraining]; nothing is raised for runs that diverge,
    which are results here. Seeds: `eqx.filter_vmap` over students.

    **Raises:** `ArgumentError` unless `record_every` divides `steps`, and as `expected_update` for shapes.

    **Cost:** `steps` expected updates, in one compiled program for one optimiser object.

    **Example:**

    >>> import jax.numpy as jnp, optax, dynwarp as dw
    >>> net = lambda w: dw.models.LinearRNN(jnp.array([[w]]), jnp.ones((1, 1)), jnp.ones((1, 1)))
    >>> run = dw.learning.train_on_expectation(
    ...     dw.learning.BPTT(), net(0.2), net(0.5), steps=50, optimizer=optax.sgd(0.1), horizon=8
    ... )
    >>> bool(run.losses[-1] < 0.01 * run.losses[0])
    True
    """
    steps = check_positive_integer(steps, "steps", caller="train_on_expectation")
    record_every = check_positive_integer(record_every, "record_every", caller="train_on_expectation")
    if steps % record_every:
        raise ArgumentError(
            f"train_on_expectation: `record_every` must divide `steps`; got {record_every} and {steps}."
        )
    check_positive(give_up, "give_up", caller="train_on_expectation")
    return _expected(rule, student, teacher, optimizer, horizon, steps // record_every, record_every, give_up)


@eqx.filter_jit
def _expected(rule, student, teacher, optimizer, horizon, records, record_every, give_up):
    limit = give_up * expected_loss(student, teacher, horizon=horizon)

    def step(carry, _):
        student, state = carry
        loss = expected_loss(student, teacher, horizon=horizon)
        update = expected_update(rule, student, teacher, horizon=horizon)
        gradient = eqx.tree_at(lambda m: (m.W, m.B, m.A), student, tuple(update))
        new = descend(optimizer, gradient, state, student)
        return jax.tree.map(lambda new, old: jnp.where(loss <= limit, new, old), new, carry), loss

    def record(carry, _):
        carry, losses = jax.lax.scan(step, carry, length=record_every)
        return carry, losses[0]

    (student, _), losses = jax.lax.scan(record, (student, optimizer.init(student)), length=records)
    last = expected_loss(student, teacher, horizon=horizon)
    result = RESULTS.where(last <= limit, RESULTS.successful, RESULTS.diverged)
    return ExpectedTraining(student, jnp.append(losses, last), result)


def train_on_samples(
    rule: AbstractRule,
    model: AbstractMap,
    readout: Any,
    sample: Callable[[PRNGKey], tuple[Array, Array]],
    *,
    steps: int,
    optimizer: optax.GradientTransformation,
    key: PRNGKey,
    batch_size: int = 1,
    loss: Callable[[Any, Any], Any] = half_squared_error,
    state0: State | None = None,
) -> SampleTraining:
    """Trains a network by a rule on random sequences; the weights are frozen within each.

    **Arguments:**

    - `rule`, `model`, `readout`, `loss`, `state0`: as for the rule's `gradients`; the state starts at zero if None.
    - `sample`: `key -> (inputs (T, d), targets (T, ...))`, such as
      [`WhiteNoiseTask`][dynwarp.learning.WhiteNoiseTask].
    - `steps`: of the optimiser, each on the mean over `batch_size` fresh sequences.
    - `optimizer`: from optax, for model and readout together.
    - `key`: step i uses `fold_in(key, i)`.

    **Returns:** a [`SampleTraining`][dynwarp.learning.SampleTraining]; a run that diverges is a result, not an error.

    **Raises:** as the rule's `gradients`.

    **Example:**

    >>> import jax, jax.numpy as jnp, optax, dynwarp as dw
    >>> teacher = dw.models.LinearRNN(jnp.eye(1) * 0.5, jnp.ones((1, 1)), jnp.ones((1, 1)))
    >>> student = dw.models.LinearRNN(jnp.eye(1) * 0.2, jnp.ones((1, 1)), jnp.ones((1, 1)))
    >>> run = dw.learning.train_on_samples(
    ...     dw.learning.BPTT(), student, student.readout(), dw.learning.WhiteNoiseTask(teacher, 8),
    ...     steps=60, optimizer=optax.sgd(0.1), key=jax.random.key(0), batch_size=4,
    ... )
    >>> bool(run.losses[-10:].mean() < 0.1 * run.losses[:10].mean())
    True
    """
    steps = check_positive_integer(steps, "steps", caller="train_on_samples")
    batch_size = check_positive_integer(batch_size, "batch_size", caller="train_on_samples")
    if not callable(sample):
        raise ArgumentError(
            f"train_on_samples: `sample` must be a function key -> (inputs, targets); got {type(sample).__name__}."
        )
    return _on_samples(rule, model, readout, sample, optimizer, key, loss, state0, steps, batch_size)


@eqx.filter_jit
def _on_samples(rule, model, readout, sample, optimizer, key, loss, state0, steps, batch_size):
    parameters, rest = eqx.partition((model, readout), eqx.is_inexact_array)
    start = jnp.zeros(model.state_size, computing_dtype(model)) if state0 is None else state0

    def one(model, readout, key):
        data_key, rule_key = jax.random.split(key)
        inputs, targets = sample(data_key)
        return rule.gradients(model, readout, inputs, targets, state0=start, loss=loss, key=rule_key)

    def step(carry, i):
        parameters, state = carry
        keys = jax.random.split(jax.random.fold_in(key, i), batch_size)
        values, gradients = eqx.filter_vmap(one, in_axes=(None, None, 0))(*eqx.combine(parameters, rest), keys)
        gradient = jax.tree.map(lambda g: jnp.mean(g, axis=0), gradients)
        return descend(optimizer, gradient, state, parameters), jnp.mean(values)

    carry = (parameters, optimizer.init(parameters))
    (parameters, state), losses = jax.lax.scan(step, carry, jnp.arange(steps))
    result = RESULTS.where(jnp.isfinite(losses[-1]), RESULTS.successful, RESULTS.diverged)
    model, readout = eqx.combine(parameters, rest)
    return SampleTraining(model, readout, losses, state, result)


def learn_online(
    rule: AbstractRule,
    model: AbstractMap,
    readout: Any,
    inputs: Inputs | None,
    targets: Any,
    *,
    state0: State,
    optimizer: optax.GradientTransformation,
    loss: Callable[[Any, Any], Any] = half_squared_error,
    optimizer_state: Any = None,
    key: PRNGKey | None = None,
    memory_limit: int = DEFAULT_MEMORY,
) -> SampleTraining:
    """Learns within one sequence: after every step the weights move, and the next step is made with them.

    The rule runs as a forward trace, which keeps what was made with the weights of its time. The step takes the loss of
    the present output alone, so that the sum of small steps is T times the mean gradient of the sequence, up to
    O(learning rate).

    **Arguments:** as for the rule's `gradients`; `optimizer` from optax, for model and readout together;
    `optimizer_state` of an earlier call, to go on.

    **Returns:** a [`SampleTraining`][dynwarp.learning.SampleTraining].

    **Raises:** as the rule's `gradients`; `ArgumentError` for a sliding horizon, which has no trace.

    **Example:**

    >>> import jax, jax.numpy as jnp, optax, dynwarp as dw
    >>> net, out = dw.models.Elman(1, 4, key=jax.random.key(0)), dw.models.Readout(4, 1, key=jax.random.key(1))
    >>> rule = dw.learning.RFLO(feedback=jnp.ones((1, 4)), decay=0.5)
    >>> run = dw.learning.learn_online(
    ...     rule, net, out, jnp.ones((40, 1)), jnp.ones((40, 1)), state0=jnp.zeros(4), optimizer=optax.sgd(0.1)
    ... )
    >>> bool(run.losses[-1] < 0.1 * run.losses[0])
    True
    """
    state0 = check_sequence(rule, model, inputs, targets, state0, "learn_online")
    if rule.estimator == "rank_one" and key is None:
        raise ArgumentError("learn_online: the random signs need a `key`; got None.")
    return _online(
        rule, model, readout, inputs, targets, state0, optimizer, loss, optimizer_state, key, memory_limit
    )  # fmt: skip


@eqx.filter_jit
def _online(rule, model, readout, inputs, targets, state0, optimizer, loss, optimizer_state, key, memory_limit):
    rule = cast(rule, state0.dtype)
    parameters, rest = eqx.partition((model, readout), eqx.is_inexact_array)

    def step(carry, x):
        parameters, optimizer_state, state, trace = carry
        input, target, index = x
        model, readout = eqx.combine(parameters, rest)
        own = None if key is None else jax.random.fold_in(key, index)
        trace = advance_trace(rule, trace, model, state, input, step=index, key=own)
        state = advance(model, state, Moment(state, input, index))
        value, error, of_readout = _output_error(readout, state, input, target, loss)
        gradient = (trace.gradient(model, send(rule.feedback, readout, state, input, error)), of_readout)
        parameters, optimizer_state = descend(optimizer, gradient, optimizer_state, parameters)
        return (parameters, optimizer_state, state, trace), value

    trace = start_trace(rule, model, dtype=state0.dtype, memory_limit=memory_limit)
    optimizer_state = optimizer.init(parameters) if optimizer_state is None else optimizer_state
    steps = jnp.arange(len(targets), dtype=jnp.int32)
    carry = (parameters, optimizer_state, state0, trace)
    (parameters, optimizer_state, _, _), losses = jax.lax.scan(step, carry, (inputs, targets, steps))
    result = RESULTS.where(jnp.isfinite(losses[-1]), RESULTS.successful, RESULTS.diverged)
    model, readout = eqx.combine(parameters, rest)
    return SampleTraining(model, readout, losses, optimizer_state, result)


def _output_error(readout, state, input, target, loss):
    """The loss of one output, its derivative with respect to the output, and the gradient of the readout."""
    parameters, rest = eqx.partition(readout, eqx.is_inexact_array)
    output, pull = jax.vjp(lambda p: emit(eqx.combine(p, rest), state, input), parameters)
    value, error = jax.value_and_grad(loss)(output, target)
    return value, error, pull(error)[0]
