"""What is minimised: the error of a reconstruction on a batch of windows, and how it is differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp.training._forcing import AbstractForcing
from dynwarp.training._reconstruction import Reconstruction, trainable

Loss = Callable[[Array, Array], Array]


class Objective(eqx.Module):
    """The loss per observation, the forcing, the noise on what the model is shown, and the rule, None for autodiff."""

    loss: Loss
    forcing: AbstractForcing | None
    noise: Float[Array, ""]
    rule: Any

    def value(self, model: Reconstruction, windows, inputs, key) -> Float[Array, ""]:
        """The mean loss of windows (B, T + 1, N) with inputs (B, T, d); `key` None: without noise."""
        shown = self.shown(windows, key)
        return jnp.mean(jax.vmap(self._sequence, (None, 0, 0, 0))(model, windows, shown, inputs))

    def gradient(self, model: Reconstruction, windows, inputs, key) -> tuple[Float[Array, ""], Reconstruction]:
        """The loss and its gradient, or what the rule has in its place, in the shape of the trained parameters."""
        if self.rule is not None:
            return self._by_rule(model, windows, inputs, key)
        parameters, rest = eqx.partition(model, trainable(model))
        return jax.value_and_grad(lambda p: self.value(eqx.combine(p, rest), windows, inputs, key))(parameters)

    def shown(self, windows, key):
        """The observations as the model gets to see them."""
        return windows if key is None else windows + self.noise * jax.random.normal(key, windows.shape, windows.dtype)

    def _sequence(self, model: Reconstruction, window, shown, inputs):
        def step(state, x):
            i, observation, input = x
            state = model.map(state, input, step=i)
            output = model.decode(state, input)
            if self.forcing is not None:
                state = self.forcing(state, observation, i)
            return state, output

        steps = jnp.arange(inputs.shape[0])
        _, outputs = jax.lax.scan(step, model.encode(shown[0]), (steps, shown[1:], inputs))
        return jnp.mean(jax.vmap(self.loss)(outputs, window[1:]))

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
