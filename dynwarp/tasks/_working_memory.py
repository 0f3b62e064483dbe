"""Angles shown one after another, to be reproduced in order."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx

from dynwarp._checks import check_positive_integer
from dynwarp.tasks._angle_memory import AbstractAngleMemory
from dynwarp.tasks._timeline import Timeline, on_circle


class WorkingMemory(AbstractAngleMemory):
    """Working memory of angles: two items are shown, and after a delay and a cue both are to be reproduced in order.

    Variables: the angle of each item; the inputs form a torus. Inputs: (cos, sin) of the item that is shown, and the
    cue. Items and answers last `pulse` and are followed by a pause as long; the cue begins a delay after the last
    pause, the first answer two pulses after it. Targets: (cos, sin) of each angle in turn, 0 at all other times.
    Silence, until the cue and for the 4 time units after the answers, counts half of the loss and the answers with
    their pauses the other half; the time from the cue to the first answer is not scored. A trial draws uniform angles
    and one of the delays.

    **Arguments:**

    - `n_items`: how many angles; three and more are recalled in sequence, and form a torus of as many dimensions.
    - `delays`: a tuple of times; the reference condition is the longest.
    - `pulse`: how long an item is shown.
    - `dt`: the time of a step, which divides the delays and the pulse. Times are in time constants of the network.

    The inputs have 2 + 1 channels, and 125 steps at the defaults. Chance: 1/8, by the answer 0.

    **Source:** settings of Pellegrino & Chadwick, NeurIPS (2025), arXiv:2512.04310.

    **Example:**

    >>> task = dw.tasks.WorkingMemory()
    >>> task(jnp.array([0.0, jnp.pi / 2])).shape, task.chance_level
    ((125, 3), 0.125)
    """

    n_items: int = eqx.field(default=2, static=True)
    delays: tuple[float, ...] = eqx.field(default=(0.5, 1.5, 2.5, 3.5), static=True)
    pulse: float = eqx.field(default=0.5, static=True)
    dt: float = eqx.field(default=0.1, static=True)
    input_size: ClassVar[int] = 3
    output_size: ClassVar[int] = 2
    classes: ClassVar[bool] = False
    chance_level: ClassVar[float] = 0.125

    def __check_init__(self):
        check_positive_integer(self.n_items, "n_items", caller="WorkingMemory")
        _ = self._timeline

    @property
    def _timeline(self):
        return Timeline.of(self.n_items, self.n_items, self.delays, self.pulse, self.dt, caller="WorkingMemory")

    @property
    def dim(self):
        return self.n_items

    def targets(self, theta, condition=None):
        theta, delay = self._trial(theta, condition)
        return self._timeline.answers(delay, theta.dtype).T @ on_circle(theta)
