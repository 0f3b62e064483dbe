"""Two marked numbers of many, to be added."""

from __future__ import annotations

from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp._checks import check_choice, check_positive_integer
from dynwarp.tasks._task import AbstractTask, last_step


class Adding(AbstractTask):
    """Adding: of a sequence of numbers two are marked, and at the end their sum is to be told.

    Variables: the two marked numbers, each in [0, 1]. Inputs: the numbers, and 1 where one is marked, else 0. The
    condition holds the two places, integers `(2,)`, one in the first and one in the second half, and the other numbers,
    `(T,)`; in the reference condition the places are T // 4 and 3 T // 4, and the other numbers 1/2. A trial draws
    all numbers and both places uniformly. The squared error of the last step is scored.

    **Arguments:**

    - `steps`: T, at least 2.
    - `target`: `"sum"` or `"mean"` of the two.

    Chance: 1/6 for the sum, by the answer 1; 1/24 for the mean, by the answer 1/2.

    **Source:** Hochreiter & Schmidhuber, Neural Computation 9 (1997) 1735; places and sum of Arjovsky, Shah & Bengio,
    ICML (2016), arXiv:1511.06464; the mean as in Pascanu, Mikolov & Bengio, ICML (2013), arXiv:1211.5063.

    **Example:**

    >>> task = dw.tasks.Adding(steps=8)
    >>> task(jnp.array([0.25, 1.0]))[2].tolist(), task.targets(jnp.array([0.25, 1.0]))[-1].tolist()
    ([0.25, 1.0], [1.25])
    """

    steps: int = eqx.field(default=100, static=True)
    target: Literal["sum", "mean"] = eqx.field(default="sum", static=True)
    dim: ClassVar[int] = 2
    periods: ClassVar[tuple[None, None]] = (None, None)
    bounds: ClassVar[tuple[tuple[float, float], ...]] = ((0.0, 1.0), (0.0, 1.0))
    input_size: ClassVar[int] = 2
    output_size: ClassVar[int] = 1
    dt: ClassVar[float] = 1.0
    classes: ClassVar[bool] = False

    def __check_init__(self):
        check_positive_integer(self.steps, "steps", minimum=2, caller="Adding")
        check_choice(self.target, "target", ("sum", "mean"), caller="Adding")

    @property
    def chance_level(self):
        return 1 / 6 if self.target == "sum" else 1 / 24

    def reference(self):
        """The places, `(2,)`, and the numbers that are not marked, `(T,)`."""
        return jnp.asarray((self.steps // 4, 3 * self.steps // 4)), jnp.full(self.steps, 0.5)

    def draw(self, key):
        """Random numbers and places."""
        value_key, place_key, other_key = jax.random.split(key, 3)
        half = self.steps // 2
        places = jax.random.randint(place_key, (2,), jnp.asarray((0, half)), jnp.asarray((half, self.steps)))
        return self.sample(value_key, 1)[0], (places, jax.random.uniform(other_key, (self.steps,)))

    def inputs(self, theta, condition=None):
        theta, (places, others) = self._trial(theta, condition)
        numbers = jnp.asarray(others, theta.dtype).at[places].set(theta)
        return jnp.stack([numbers, jnp.zeros_like(numbers).at[places].set(1.0)], axis=1)

    def targets(self, theta, condition=None):
        theta, _ = self._trial(theta, condition)
        answer = jnp.sum(theta) if self.target == "sum" else jnp.mean(theta)
        return jnp.tile(answer, (self.steps, 1))

    def mask(self, condition=None):
        return last_step(self.steps)
