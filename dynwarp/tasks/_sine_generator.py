"""A sine wave of the frequency that a constant input asks for."""

from __future__ import annotations

import math
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from dynwarp._checks import check_positive, check_positive_integer
from dynwarp.tasks._parameters import check_bounds
from dynwarp.tasks._task import AbstractTask


class SineGenerator(AbstractTask):
    """Sine generator: a constant input names a frequency, and the output is a sine wave of it.

    Variable: the angular frequency omega, in radians a step. Input: a level that grows with it linearly from 0.25 to
    1.25. Target: sin(omega i) after row i of the inputs. All steps are scored by the squared error. A trial draws omega
    uniformly.

    **Arguments:**

    - `frequencies`: the least and the greatest omega.
    - `steps`: T.

    Chance: the variance of the sine over frequencies, averaged over the steps; nearly 1/2 where T is long.

    **Source:** Sussillo & Barak, Neural Computation 25 (2013) 626; frequencies and length of Ribeiro, Tiels, Aguirre &
    Schön, AISTATS (2020), arXiv:1906.08482.

    **Example:**

    >>> task = dw.tasks.SineGenerator()
    >>> task(jnp.array([jnp.pi / 16])).shape, task.targets(jnp.array([jnp.pi / 16]))[8].round(6).tolist()
    ((400, 1), [1.0])
    """

    frequencies: tuple[float, float] = eqx.field(default=(math.pi / 16, math.pi / 8), static=True)
    steps: int = eqx.field(default=400, static=True)
    dim: ClassVar[int] = 1
    periods: ClassVar[tuple[None]] = (None,)
    input_size: ClassVar[int] = 1
    output_size: ClassVar[int] = 1
    dt: ClassVar[float] = 1.0
    classes: ClassVar[bool] = False

    def __check_init__(self):
        low, _ = check_bounds(self.frequencies, "frequencies", caller="SineGenerator")
        check_positive(low, "frequencies[0]", caller="SineGenerator")
        check_positive_integer(self.steps, "steps", caller="SineGenerator")

    @property
    def bounds(self):
        return (self.frequencies,)

    @property
    def chance_level(self):
        (a, b), i = self.frequencies, np.arange(1, self.steps)
        mean = (np.cos(a * i) - np.cos(b * i)) / (i * (b - a))
        square = 0.5 - (np.sin(2 * b * i) - np.sin(2 * a * i)) / (4 * i * (b - a))
        return float(np.sum(square - mean**2) / self.steps)

    def inputs(self, theta, condition=None):
        theta, _ = self._trial(theta, condition)
        low, high = self.frequencies
        return jnp.tile((theta - low) / (high - low) + 0.25, (self.steps, 1))

    def targets(self, theta, condition=None):
        theta, _ = self._trial(theta, condition)
        return jnp.sin(jnp.arange(self.steps, dtype=theta.dtype)[:, None] * theta)

    def mask(self, condition=None):
        return jnp.ones(self.steps)
