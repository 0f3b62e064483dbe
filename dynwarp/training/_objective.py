"""What is minimised: the error of a reconstruction on a batch of windows, and how it is differentiated."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp.training._forcing import AbstractForcing
from dynwarp.training._loss import AbstractLoss, Loss
from dynwarp.training._penalties import AbstractPenalty, Penalty
from dynwarp.training._reconstruction import Reconstruction, trainable


class Objective(eqx.Module):
    """The loss, the forcing, the noise on what the model is shown, and the rule, None for autodiff; the penalties, and
    whether NaN among the observations stand for what was not observed."""

    loss: Loss
    forcing: AbstractForcing | None
    noise: Float[Array, ""]
    rule: Any
    penalties: tuple[Penalty, ...] = ()
    missing: bool = eqx.field(static=True, default=False)

    def with_forcing(self, forcing: AbstractForcing | None) -> Objective:
        """The same objective under another forcing."""
        return dataclasses.replace(self, forcing=forcing)

    def error(self, model: Reconstruction, windows, inputs, key) -> Float[Array, ""]:
        """The loss of windows (B, T + 1, N) with inputs (B, T, d), without penalties; `key` None: without noise."""
        return self._error(self._run(model, windows, inputs, key)[0], windows[:, 1:])

    def gradient(self, model: Reconstruction, windows, inputs, key) -> tuple[Float[Array, ""], Reconstruction]:
        """The loss with its penalties and the gradient, or what the rule has in its place, in the shape of the trained
        parameters."""
        parameters, rest = eqx.partition(model, trainable(model))
        if self.rule is None:

            def value(parameters):
                model = eqx.combine(parameters, rest)
                outputs, states = self._run(model, windows, inputs, key)
                return self._error(outputs, windows[:, 1:]) + self._penalty(model, states)

            return jax.value_and_grad(value)(parameters)
        loss, gradient = self._by_rule(model, windows, inputs, key)
        if not self.penalties:
            return loss, gradient
        penalty, more = jax.value_and_grad(lambda p: self._penalty(eqx.combine(p, rest), None))(parameters)
        return loss + penalty, jax.tree.map(jnp.add, gradient, more)

    def shown(self, windows, key):
        """The observations as the model gets to see them."""
        return windows if key is None else windows + self.noise * jax.random.normal(key, windows.shape, windows.dtype)

    def _run(self, model: Reconstruction, windows, inputs, key):
        """What the model makes of windows, (B, T, N), and its states, (B, T, M), where a penalty wants them."""
        weight = None if self.forcing is None or model.observes_state else model.output_weight
        inverse = None if weight is None else jnp.linalg.pinv(weight)
        keep = any(isinstance(p, AbstractPenalty) for p in self.penalties)

        def one(shown, inputs):
            def step(state, x):
                i, observation, input = x
                state = model.map(state, input, step=i)
                output = model.decode(state, input)
                seen = state if keep else None
                if self.forcing is not None:
                    state = self.forcing(state, self._target(state, output, observation, inverse), i)
                return state, (output, seen)

            steps = jnp.arange(inputs.shape[0])
            return jax.lax.scan(step, model.encode(shown[0]), (steps, shown[1:], inputs))[1]

        return jax.vmap(one)(self.shown(windows, key), inputs)

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

    def _penalty(self, model: Reconstruction, states):
        parts = [p(model, states) if isinstance(p, AbstractPenalty) else p(model) for p in self.penalties]
        return sum(parts, jnp.zeros((), self.noise.dtype))

    def _by_rule(self, model: Reconstruction, windows, inputs, key):
        noise_key, rule_key = jax.random.split(key)
        shown = self.shown(windows, noise_key)

        def one(window, first, inputs, key):
            return self.rule.gradients(
                model.map, model.readout, inputs, window[1:], state0=model.encode(first), loss=self.loss, key=key
            )

        keys = jax.random.split(rule_key, windows.shape[0])
        losses, (map_gradient, readout_gradient) = jax.vmap(one)(windows, shown[:, 0], inputs, keys)
        # A rule knows the map and the readout; the initial state stays as it is.
        gradient = jax.tree.map(jnp.zeros_like, eqx.filter(model, trainable(model)))
        means = [jax.tree.map(lambda g: jnp.mean(g, 0), g) for g in (map_gradient, readout_gradient)]
        return jnp.mean(losses), eqx.tree_at(lambda m: (m.map, m.readout), gradient, means)
