"""Two angles shown one after another, whose difference is to be told."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx

from dynwarp.tasks._angle_memory import AbstractAngleMemory
from dynwarp.tasks._timeline import Timeline, on_circle


class MemorySubtraction(AbstractAngleMemory):
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
    input_size: ClassVar[int] = 3
    output_size: ClassVar[int] = 2
    classes: ClassVar[bool] = False
    chance_level: ClassVar[float] = 0.125

    def __check_init__(self):
        _ = self._timeline

    @property
    def _timeline(self):
        return Timeline.of(2, 1, self.delays, self.pulse, self.dt, caller="MemorySubtraction")

    def targets(self, theta, condition=None):
        theta, delay = self._trial(theta, condition)
        return self._timeline.answers(delay, theta.dtype).T @ on_circle(theta[:1] - theta[1:])
