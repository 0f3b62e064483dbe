"""Bits that pulses set and a network has to hold."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._checks import check_positive_integer
from dynwarp.errors import ArgumentError
from dynwarp.tasks._task import AbstractTask


class FlipFlop(AbstractTask):
    """Flip-flop: each output holds the sign of the last pulse on its channel.

    Variables: the pulses of the first step, one a channel in [-1, 1]; in trials they are -1 or 1. The condition holds
    the later pulses, shape `(T, n_bits)`, -1, 0 or 1, its first row being ignored; there are none in the reference
    condition. Targets: the last pulse of each channel. All steps are scored by the squared error.

    **Arguments:**

    - `n_bits`: how many channels.
    - `steps`: T.
    - `probability`: of a pulse in a step and a channel.

    Chance: 1, by the answer 0.

    **Source:** Sussillo & Barak, Neural Computation 25 (2013) 626.

    **Example:**

    >>> task = dw.tasks.FlipFlop(n_bits=1, steps=4)
    >>> later = jnp.array([[0.0], [0.0], [-1.0], [0.0]])
    >>> task.targets(jnp.array([1.0]), later)[:, 0].tolist()
    [1.0, 1.0, -1.0, -1.0]
    """

    n_bits: int = eqx.field(default=3, static=True)
    steps: int = eqx.field(default=64, static=True)
    probability: float = eqx.field(default=0.2, static=True)
    dt: ClassVar[float] = 1.0
    classes: ClassVar[bool] = False
    chance_level: ClassVar[float] = 1.0

    def __check_init__(self):
        check_positive_integer(self.n_bits, "n_bits", caller="FlipFlop")
        check_positive_integer(self.steps, "steps", caller="FlipFlop")
        if not (np.ndim(self.probability) == 0 and 0 <= self.probability <= 1):
            raise ArgumentError(f"FlipFlop: `probability` must be a number from 0 to 1; got {self.probability!r}.")

    @property
    def dim(self):
        return self.n_bits

    @property
    def input_size(self):
        return self.n_bits

    @property
    def output_size(self):
        return self.n_bits

    @property
    def periods(self):
        return (None,) * self.n_bits

    @property
    def bounds(self):
        return ((-1.0, 1.0),) * self.n_bits

    def reference(self):
        """No pulses after the first step, `(T, n_bits)`."""
        return jnp.zeros((self.steps, self.n_bits))

    def draw(self, key):
        """Random bits, and random pulses after them."""
        sign_key, pulse_key = jax.random.split(key)
        signs = jax.random.rademacher(sign_key, (self.steps, self.n_bits), float)
        pulses = jax.random.bernoulli(pulse_key, self.probability, (self.steps, self.n_bits))
        return signs[0], signs * pulses.astype(float)

    def inputs(self, theta, condition=None):
        theta, pulses = self._trial(theta, condition)
        return jnp.asarray(pulses, theta.dtype).at[0].set(theta)

    def targets(self, theta, condition=None):
        _, pulses = self._trial(theta, condition)
        steps = jnp.arange(self.steps)[:, None]
        last = jax.lax.cummax(jnp.where(pulses != 0, steps, 0), axis=0)
        return jnp.take_along_axis(self.inputs(theta, condition), last, axis=0)

    def mask(self, condition=None):
        return jnp.ones(self.steps)
