"""What the authors' released program for local representation alignment does in place of the published algorithm."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from dynwarp.errors import ModelError, ShapeError
from dynwarp.learning._engine import emit
from dynwarp.models import Elman
from dynwarp.models._cell import drive

# A signal with a smaller squared norm has no direction.
_FLOOR = 1e-20


def as_released(rule, model: Elman, readout: Any, inputs, targets, state0, loss):
    """One sequence, or under `jax.vmap` the whole batch: its members do not learn each for itself, and each is given
    what all of them together learn."""
    weights, fixed = eqx.partition((rule, model, readout), eqx.is_array)

    def run(weights, sequences):
        rule, model, readout = eqx.combine(weights, fixed)
        inputs, targets, states0 = sequences
        return _released(rule, model, readout, inputs, targets, states0, loss)

    @custom_vmap
    def one(weights, sequence):
        return run(weights, jax.tree.map(lambda x: x[None], sequence))

    @one.def_vmap
    def _(size, in_batched, weights, sequences):
        if any(jax.tree.leaves(in_batched[0])):
            raise ModelError('LocalRepresentationAlignment(compat="released"): one model for all sequences of a batch.')
        whole = jax.tree.map(
            lambda x, mapped: x if mapped else jnp.broadcast_to(x, (size, *x.shape)), sequences, in_batched[1]
        )
        found = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), run(weights, whole))
        return found, jax.tree.map(lambda _: True, found)

    return one(weights, jax.tree.map(jnp.asarray, (inputs, targets, state0)))


def _released(rule, model: Elman, readout, inputs, targets, states0, loss):
    """The loss at the last step, and the update, of a batch: inputs `(B, T, d)`, targets `(B, T, ...)`, `(B, n)`."""
    batch, steps, n = len(targets), targets.shape[1], model.state_size
    if batch > n:
        raise ShapeError(
            f'LocalRepresentationAlignment(compat="released"): a batch of at most {n} sequences, the number of units, '
            f"as its slopes are those of unit b for sequence b; got {batch}."
        )
    dtype, activation = model.recurrent_weight.dtype, jax.vmap(model.activation)
    xs = None if inputs is None else jnp.swapaxes(inputs, 0, 1).astype(dtype)

    def stage(model, z, x):
        return jax.vmap(lambda z, x: model.recurrent_weight @ z + drive(model, x))(z, x)

    def sums(model):
        def step(z, x):
            h = stage(model, z, x)
            return activation(h), h

        return jax.lax.scan(step, states0.astype(dtype), xs, length=steps)[1]

    def output(readout, z):
        return jax.vmap(lambda z, x: emit(readout, z, x))(z, jax.tree.map(lambda x: x[-1], xs))

    def final(y):
        return jnp.mean(jax.vmap(loss)(y, targets[:, -1])).astype(dtype)

    def local(a, b):
        square = (a - b) ** 2
        return jnp.mean(jnp.log1p(square) if rule.local_loss == "log_penalty" else square)

    def omega(h, signal, pulled):
        # The diagonal of a matrix of sequences and units: of sequence b the slope of unit b, one number for all units.
        slopes = jax.vmap(jax.grad(model.activation))(jnp.diagonal(h))
        square = jnp.sum(signal**2)
        counts = square > _FLOOR
        size = jnp.sum((slopes[:, None] * pulled) ** 2) / jnp.where(counts, square, 1)
        length = jnp.where(size > 0, jnp.sqrt(jnp.where(size > 0, size, 1)), 0)
        return jnp.where(counts, (length - 1) ** 2, 0)

    def improve(h, cost, signal, pulled):
        g = jax.grad(cost)(h)
        if rule._regularised:
            g = g + rule.regularisation * jax.grad(omega)(h, signal, pulled)
        return h - rule.target_rate * rule._cut(g)

    def at_the_output(readout, z):
        """The signal there, which is held fixed, and what the readout makes of it."""
        y, pull = jax.vjp(lambda z: output(readout, z), z)
        signal = jax.lax.stop_gradient(jax.grad(final)(y))
        return signal, pull(signal)[0]

    h, pull = jax.vjp(sums, model)
    z = activation(h[-1])
    value, of_readout = eqx.filter_value_and_grad(lambda readout: final(output(readout, z)))(readout)
    if rule._regularised:
        more = eqx.filter_grad(lambda readout: omega(h[-1], *at_the_output(readout, z)))(readout)
        of_readout = jax.tree.map(lambda g, m: g + rule.regularisation * m, of_readout, more)

    def first_target(h, _):
        return improve(h, lambda h: final(output(readout, activation(h))), *at_the_output(readout, activation(h))), None

    target, _ = jax.lax.scan(first_target, h[-1], length=rule.target_steps)

    def of_step(carry, x):
        total, shift = carry
        index, h_before, h, x_here, x_next, is_last = x
        W, z = model.recurrent_weight, activation(h)

        def follow(model, z):
            return jnp.where(is_last, z, activation(stage(model, z, x_next)))

        def cost(model, h):
            """The target is moved along with the state, from which it differs by a constant."""
            return local(follow(model, activation(h)), follow(model, activation(h - shift)))

        def by_weights(signal):
            """Through all earlier steps."""
            whole = jnp.zeros((steps, *signal.shape), dtype).at[index].set(signal)
            return eqx.filter(pull(whole)[0], eqx.is_inexact_array)

        of_model, of_sums = eqx.filter_grad(lambda both: cost(*both))((model, h))
        of_model = jax.tree.map(jnp.add, of_model, by_weights(of_sums))
        there = follow(model, activation(h - shift))
        if rule._regularised:
            # Of the input weights alone, and not at the last step.
            signal = jax.grad(lambda h: local(activation(h), there))(stage(model, z, x_next))
            signal = jnp.where(is_last, 0, signal)
            more = by_weights(jax.grad(omega)(h, signal, signal @ W)).input_weight
            moved = of_model.input_weight + rule.regularisation * more
            of_model = eqx.tree_at(lambda m: m.input_weight, of_model, moved)

        # The target of the step before: once down the loss of this one, then back to where this state is.
        def ahead(h):
            return stage(model, activation(h), x_here)

        signal = jax.grad(lambda z: local(follow(model, z), there))(z)
        better = improve(h_before, lambda h: cost(model, ahead(h)), signal, signal @ W)

        def again(h, _):
            signal = jax.grad(lambda seen: local(z, seen))(activation(ahead(h)))
            return improve(h, lambda h: local(z, activation(ahead(h))), signal, signal @ W), None

        better, _ = jax.lax.scan(again, better, length=rule.target_steps - 1)
        return (jax.tree.map(jnp.add, total, rule._cut_matrices(of_model)), h_before - better), None

    indices = jnp.arange(1, steps, dtype=jnp.int32)
    x_here = None if xs is None else xs[1:]
    x_next = None if xs is None else jnp.roll(xs, -1, axis=0)[1:]
    zero = jax.tree.map(jnp.zeros_like, eqx.filter(model, eqx.is_inexact_array))
    # The first step learns nothing.
    path = (indices, h[:-1], h[1:], x_here, x_next, indices == steps - 1)
    (of_model, _), _ = jax.lax.scan(of_step, (zero, h[-1] - target), path, reverse=True)
    return value, (of_model, rule._cut_matrices(of_readout))
