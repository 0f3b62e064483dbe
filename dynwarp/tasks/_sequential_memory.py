"""A sequence of angles, one of which is asked for by its place."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp._checks import check_positive_integer
from dynwarp.errors import ArgumentError
from dynwarp.tasks._angle_memory import AbstractAngleMemory
from dynwarp.tasks._timeline import Timeline, on_circle


class SequentialMemory(AbstractAngleMemory):
    """Sequential memory: angles are shown one after another, and after a delay a cue names the place that is asked for.

    As [`WorkingMemory`][dynwarp.tasks.WorkingMemory], with one cue channel for each place and one answer: (cos, sin) of
    the angle at that place. All angles matter until the cue, and one thereafter. Recall of the whole sequence is
    `WorkingMemory(n_items)`.

    **Arguments:**

    - `n_items`: how many angles.
    - `delays`, `pulse`, `dt`: as there.
    - `place`: the one asked for in the reference condition, 0 for the first.

    The inputs have 2 + `n_items` channels, and 125 steps at the defaults. Chance: 1/8, by the answer 0.

    **Source:** sequences of locations as in Xie et al., Science 375 (2022) 632; times of working memory in Pellegrino &
    Chadwick, NeurIPS (2025), arXiv:2512.04310.

    **Example:**

    >>> task = dw.tasks.SequentialMemory(place=1)
    >>> angles = jnp.array([0.0, jnp.pi, 0.0])
    >>> task(angles).shape, task.targets(angles).sum(0).round(3).tolist()
    ((125, 5), [-5.0, 0.0])
    """

    n_items: int = eqx.field(default=3, static=True)
    delays: tuple[float, ...] = eqx.field(default=(0.5, 1.5, 2.5, 3.5), static=True)
    pulse: float = eqx.field(default=0.5, static=True)
    dt: float = eqx.field(default=0.1, static=True)
    place: int = eqx.field(default=0, static=True)
    output_size: ClassVar[int] = 2
    classes: ClassVar[bool] = False
    chance_level: ClassVar[float] = 0.125

    def __check_init__(self):
        caller = "SequentialMemory"
        check_positive_integer(self.n_items, "n_items", caller=caller)
        if check_positive_integer(self.place, "place", minimum=0, caller=caller) >= self.n_items:
            raise ArgumentError(f"{caller}: `place` must be less than `n_items` {self.n_items}; got {self.place}.")
        _ = self._timeline

    @property
    def _timeline(self):
        return Timeline.of(self.n_items, 1, self.delays, self.pulse, self.dt, caller="SequentialMemory")

    @property
    def input_size(self):
        return 2 + self.n_items

    @property
    def dim(self):
        return self.n_items

    def reference(self):
        """The index of the delay and the place that is asked for, two integers `()`."""
        return jnp.asarray(self._timeline.longest), jnp.asarray(self.place)

    def draw(self, key):
        """Uniform angles, one of the delays and one of the places."""
        angle_key, delay_key, place_key = jax.random.split(key, 3)
        place = jax.random.randint(place_key, (), 0, self.n_items)
        return self.sample(angle_key, 1)[0], (self._timeline.draw(delay_key), place)

    def inputs(self, theta, condition=None):
        theta, (delay, place) = self._trial(theta, condition)
        shown = self._timeline.items(theta.dtype).T @ on_circle(theta)
        cue = self._timeline.cue(delay, theta.dtype)[:, None] * jax.nn.one_hot(place, self.n_items, dtype=theta.dtype)
        return jnp.concatenate([shown, cue], axis=1)

    def targets(self, theta, condition=None):
        theta, (delay, place) = self._trial(theta, condition)
        return self._timeline.answers(delay, theta.dtype).T @ on_circle(theta[place][None])

    def mask(self, condition=None):
        delay, _ = self.reference() if condition is None else condition
        return self._timeline.mask(delay)
