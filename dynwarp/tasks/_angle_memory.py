"""What working memory and memory subtraction share: angles shown one after another, a delay, a cue."""

from __future__ import annotations

import abc
import math

import jax
import jax.numpy as jnp

from dynwarp.tasks._task import AbstractTask
from dynwarp.tasks._timeline import Timeline, on_circle


class AbstractAngleMemory(AbstractTask):
    """The inputs and the schedule of a task on the angles of shown items; what is to be told is the task's own."""

    @property
    @abc.abstractmethod
    def _timeline(self) -> Timeline: ...

    @property
    def steps(self):
        return self._timeline.steps

    @property
    def periods(self):
        return (2 * math.pi,) * self.dim

    @property
    def bounds(self):
        return (None,) * self.dim

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

    def mask(self, condition=None):
        return self._timeline.mask(self.reference() if condition is None else condition)
