"""Two angles shown one after another, whose difference is to be told."""

from __future__ import annotations

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp.tasks._task import AbstractTask
from dynwarp.tasks._timeline import Timeline, on_circle


class MemorySubtraction(AbstractTask):
    """Memory subtraction: two angles are shown, and after a delay and a cue their difference is to be told.

    As [`WorkingMemory`][dynwarp.tasks.WorkingMemory] of two items, with one answer: (cos, sin) of theta_1 - theta_2.
    The two variables have to be reduced to one.

    **Arguments:** `delays`, `pulse`, `dt` as there.

    The inputs have 2 + 1 channels, and 115 steps at the defaults. Chance: 1/8, by the answer 0.

    **Source:** the task of Pellegrino & Chadwick, NeurIPS (2025), arXiv:2512.04310; the times are those of working
    memory, since its own were not to be had.

    **Example:**

    >>> task = dw.tasks.MemorySubtraction()
    >>> answer = task.targets(jnp.array([1.0, 1.0])).sum(0)
    >>> answer.tolist()
    [5.0, 0.0]
    """

    delays: tuple[float, ...] = eqx.field(default=(0.5, 1.5, 2.5, 3.5), static=True)
    pulse: float = eqx.field(default=0.5, static=True)
    dt: float = eqx.field(default=0.1, static=True)
    dim: ClassVar[int] = 2
    periods: ClassVar[tuple[float, ...]] = (2 * math.pi, 2 * math.pi)
    bounds: ClassVar[tuple[None, ...]] = (None, None)
    input_size: ClassVar[int] = 3
    output_size: ClassVar[int] = 2
    classes: ClassVar[bool] = False
    chance_level: ClassVar[float] = 0.125

    def __check_init__(self):
        _ = self._timeline

    @property
    def _timeline(self):
        return Timeline.of(2, 1, self.delays, self.pulse, self.dt, caller="MemorySubtraction")

    @property
    def steps(self):
        return self._timeline.steps

    def reference(self):
        """The index of the delay, an integer `()`."""
        return jnp.asarray(self._timeline.longest)

    def draw(self, key):
        """Uniform angles, and one of the delays."""
        angle_key, delay_key = jax.random.split(key)
        return self.sample(angle_key, 1)[0], self._timeline.draw(delay_key)

    def inputs(self, theta, condition=None):
        theta, delay = self._trial(theta, condition)
        shown = self._timeline.items(theta.dtype).T @ on_circle(theta)
        return jnp.concatenate([shown, self._timeline.cue(delay, theta.dtype)[:, None]], axis=1)

    def targets(self, theta, condition=None):
        theta, delay = self._trial(theta, condition)
        return self._timeline.answers(delay, theta.dtype).T @ on_circle(theta[:1] - theta[1:])

    def mask(self, condition=None):
        return self._timeline.mask(self.reference() if condition is None else condition)
