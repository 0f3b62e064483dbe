"""What is minimised: the error of a model on a batch, its penalties, and how they are differentiated."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._simulate import simulate
from dynwarp.models import AbstractMap, Elman, elman_states
from dynwarp.training._forcing import AbstractForcing
from dynwarp.training._loss import AbstractLoss, Loss
from dynwarp.training._penalties import AbstractPenalty, Penalty
from dynwarp.training._reconstruction import Reconstruction, trainable


class AbstractObjective(eqx.Module):
    """The error on a batch, the forcing and the rule, None for autodiff, and the penalties."""

    forcing: eqx.AbstractVar[AbstractForcing | None]
    rule: eqx.AbstractVar[Any]
    penalties: eqx.AbstractVar[tuple[Penalty, ...]]

    @abc.abstractmethod
    def error_and_states(self, model: Reconstruction, batch, inputs, key) -> tuple[Float[Array, ""], Any]:
        """The error without penalties, and the states (B, T, M), which may be None where no penalty wants them; `key`
        None: without noise."""

    @abc.abstractmethod
    def sequences(self, model: Reconstruction, batch, key) -> tuple[Any, Any, Loss]:
        """What a rule is given: targets and initial states, each with a leading axis of B, and the loss of a step."""

    def with_forcing(self, forcing: AbstractForcing | None) -> Self:
        """The same objective under another forcing."""
        return dataclasses.replace(self, forcing=forcing)

    def gradient(self, model: Reconstruction, batch, inputs, key) -> tuple[Float[Array, ""], Reconstruction]:
        """The loss with its penalties and the gradient, or what the rule has in its place, in the shape of the trained
        parameters; `inputs` (B, T, d)."""
        parameters, rest = eqx.partition(model, trainable(model))
        if self.rule is None:

            def value(parameters):
                model = eqx.combine(parameters, rest)
                error, states = self.error_and_states(model, batch, inputs, key)
                return error + self._penalty(model, states)

            return jax.value_and_grad(value)(parameters)
        loss, gradient = self._by_rule(model, batch, inputs, key)
        if not self.penalties:
            return loss, gradient
        penalty, more = jax.value_and_grad(lambda p: self._penalty(eqx.combine(p, rest), None))(parameters)
        return loss + penalty, jax.tree.map(jnp.add, gradient, more)

    def _penalty(self, model: Reconstruction, states):
        parts = [p(model, states) if isinstance(p, AbstractPenalty) else p(model) for p in self.penalties]
        return sum(parts, jnp.zeros((), model.mean.dtype))

    def _by_rule(self, model: Reconstruction, batch, inputs, key):
        own_key, rule_key = jax.random.split(key)
        targets, state0, loss = self.sequences(model, batch, own_key)

        def one(inputs, targets, state0, key):
            return self.rule.gradients(model.map, model.readout, inputs, targets, state0=state0, loss=loss, key=key)

        keys = jax.random.split(rule_key, len(inputs))
        losses, (map_gradient, readout_gradient) = jax.vmap(one)(inputs, targets, state0, keys)
        # A rule knows the map and the readout; the initial state stays as it is.
        gradient = jax.tree.map(jnp.zeros_like, eqx.filter(model, trainable(model)))
        means = [jax.tree.map(lambda g: jnp.mean(g, 0), g) for g in (map_gradient, readout_gradient)]
        return jnp.mean(losses), eqx.tree_at(lambda m: (m.map, m.readout), gradient, means)


def free_run(
    model: Reconstruction, state0: Float[Array, "B M"], inputs: Float[Array, "B T d"]
) -> tuple[Float[Array, "B T N"], Float[Array, "B T M"]]:
    """What a model emits, and its states, where nothing but the inputs acts on it."""
    states = _free_states(model.map, state0, inputs)
    return jax.vmap(jax.vmap(model.decode))(states, inputs), states


def _free_states(map: AbstractMap, state0, inputs):
    if isinstance(map, Elman):
        return elman_states(map, state0, inputs)
    return jax.vmap(lambda state, x: simulate(map, state, x))(state0, inputs)


class Objective(AbstractObjective):
    """The error on windows of recordings, (B, T + 1, N): the loss, the forcing, the noise on what the model is shown,
    the rule and the penalties, and whether NaN among the observations stand for what was not observed."""

    loss: Loss
    forcing: AbstractForcing | None
    noise: Float[Array, ""]
    rule: Any
    penalties: tuple[Penalty, ...]
    missing: bool = eqx.field(static=True)

    def __init__(
        self, loss: Loss, forcing: AbstractForcing | None, noise: Float[Array, ""], rule: Any,
        penalties: tuple[Penalty, ...] = (), missing: bool = False,
    ):  # fmt: skip
        self.loss, self.forcing, self.noise = loss, forcing, noise
        self.rule, self.penalties, self.missing = rule, penalties, missing

    def error_and_states(self, model, batch, inputs, key):
        outputs, states = self._run(model, batch, inputs, key)
        return self._error(outputs, batch[:, 1:]), states

    def sequences(self, model, batch, key):
        return batch[:, 1:], jax.vmap(model.encode)(self._shown(batch, key)[:, 0]), self.loss

    def _shown(self, windows, key):
        """The observations as the model gets to see them."""
        return windows if key is None else windows + self.noise * jax.random.normal(key, windows.shape, windows.dtype)

    def _run(self, model: Reconstruction, windows, inputs, key):
        """What the model makes of windows, (B, T, N), and its states, (B, T, M), where a penalty wants them."""
        shown, forcing = self._shown(windows, key), self.forcing
        if forcing is None:
            return free_run(model, jax.vmap(model.encode)(shown[:, 0]), inputs)
        weight = None if model.observes_state else model.output_weight
        inverse = None if weight is None else jnp.linalg.pinv(weight)
        keep = any(isinstance(p, AbstractPenalty) for p in self.penalties)

        def one(shown, inputs):
            def step(state, x):
                i, observation, input = x
                state = model.map(state, input, step=i)
                output = model.decode(state, input)
                seen = state if keep else None
                state = forcing(state, self._target(state, output, observation, inverse), i)
                return state, (output, seen)

            steps = jnp.arange(inputs.shape[0])
            return jax.lax.scan(step, model.encode(shown[0]), (steps, shown[1:], inputs))[1]

        return jax.vmap(one)(shown, inputs)

    def _target(self, state, output, observation, inverse):
        """The observation as a target of the first coordinates: itself, or a whole state that explains it."""
        if inverse is None:
            return self._filled(observation, state[: observation.shape[0]])
        return state + inverse @ (self._filled(observation, output) - output)

    def _filled(self, observations, instead):
        return jnp.where(jnp.isfinite(observations), observations, instead) if self.missing else observations

    def _error(self, outputs, targets):
        observed = jnp.isfinite(targets) if self.missing else None
        targets = self._filled(targets, outputs)
        if isinstance(self.loss, AbstractLoss):
            return self.loss(outputs, targets, observed)
        losses = jax.vmap(jax.vmap(self.loss))(outputs, targets)
        return jnp.mean(losses) if observed is None else jnp.mean(losses) / jnp.mean(observed, dtype=losses.dtype)
