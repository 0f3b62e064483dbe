"""Two or three symbols among distractors, whose order is to be told."""

from __future__ import annotations

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp._checks import check_positive_integer
from dynwarp.errors import ArgumentError
from dynwarp.tasks._task import AbstractTask, last_step

_DISTRACTORS = 4
# Where a symbol may stand, in tenths of the length; each window is a tenth long.
_WINDOWS = {2: (1, 5), 3: (1, 3, 6)}


class TemporalOrder(AbstractTask):
    """Temporal order: two or three symbols, each A or B, stand among distractors, and at the end all are to be told.

    Variables: for each symbol the weight of B, from 0 (A) to 1 (B); trials have 0 or 1. Inputs: six channels, A, B and
    four distractors, one of which is 1 at each step of the length L of the trial; thereafter all are 0. The symbols
    stand at random places of [L/10, 2L/10) and [5L/10, 6L/10), or of the tenths that begin at L/10, 3L/10 and 6L/10.
    Target: the class v_1 + 2 v_2 (+ 4 v_3), whose probability for other weights is the product of theirs, at step
    L - 1, scored by the cross-entropy. The condition holds L, the places and the distractors; a trial draws L uniformly
    from `min_steps` to `steps`, and in the reference condition it is `steps`.

    **Arguments:**

    - `steps`, `min_steps`: the greatest and the least length, at least 10.
    - `n_relevant`: 2 or 3 symbols.

    Chance: ln 4, or ln 8 for three symbols; three quarters, or seven eighths, of the guesses are wrong.

    **Source:** Hochreiter & Schmidhuber, Neural Computation 9 (1997) 1735; settings of Pascanu, Mikolov & Bengio, ICML
    (2013), arXiv:1211.5063.

    **Example:**

    >>> task = dw.tasks.TemporalOrder()
    >>> task(jnp.array([0.0, 1.0])).shape, task.targets(jnp.array([0.0, 1.0]))[-1].tolist()
    ((200, 6), [0.0, 0.0, 1.0, 0.0])
    """

    steps: int = eqx.field(default=200, static=True)
    min_steps: int = eqx.field(default=50, static=True)
    n_relevant: int = eqx.field(default=2, static=True)
    input_size: ClassVar[int] = 2 + _DISTRACTORS
    dt: ClassVar[float] = 1.0
    classes: ClassVar[bool] = True

    def __check_init__(self):
        caller = "TemporalOrder"
        if self.n_relevant not in _WINDOWS:
            raise ArgumentError(f"{caller}: `n_relevant` must be 2 or 3; got {self.n_relevant!r}.")
        check_positive_integer(self.min_steps, "min_steps", minimum=10, caller=caller)
        check_positive_integer(self.steps, "steps", minimum=self.min_steps, caller=caller)

    @property
    def dim(self):
        return self.n_relevant

    @property
    def periods(self):
        return (None,) * self.n_relevant

    @property
    def bounds(self):
        return ((0.0, 1.0),) * self.n_relevant

    @property
    def output_size(self):
        return 2**self.n_relevant

    @property
    def chance_level(self):
        return self.n_relevant * math.log(2)

    def reference(self):
        """The length `()`, the places `(n_relevant,)` and the distractors `(T,)`, all integers."""
        windows = jnp.asarray(_WINDOWS[self.n_relevant])
        return jnp.asarray(self.steps), windows * self.steps // 10, jnp.arange(self.steps) % _DISTRACTORS

    def draw(self, key):
        """Random symbols, length, places and distractors."""
        symbol_key, length_key, place_key, other_key = jax.random.split(key, 4)
        symbols = jax.random.bernoulli(symbol_key, 0.5, (self.n_relevant,)).astype(float)
        length = jax.random.randint(length_key, (), self.min_steps, self.steps + 1)
        windows = jnp.asarray(_WINDOWS[self.n_relevant])
        places = jax.random.randint(place_key, windows.shape, windows * length // 10, (windows + 1) * length // 10)
        return symbols, (length, places, jax.random.randint(other_key, (self.steps,), 0, _DISTRACTORS))

    def inputs(self, theta, condition=None):
        theta, (length, places, others) = self._trial(theta, condition)
        rows = jax.nn.one_hot(2 + others, self.input_size, dtype=theta.dtype)
        rows = jnp.where(jnp.arange(self.steps)[:, None] < length, rows, 0)
        symbols = jnp.pad(jnp.stack([1 - theta, theta], axis=1), ((0, 0), (0, _DISTRACTORS)))
        return rows.at[places].set(symbols)

    def targets(self, theta, condition=None):
        theta, _ = self._trial(theta, condition)
        probability = jnp.ones(1, theta.dtype)
        for weight in theta:
            probability = jnp.concatenate([(1 - weight) * probability, weight * probability])
        return jnp.tile(probability, (self.steps, 1))

    def mask(self, condition=None):
        length, _, _ = self.reference() if condition is None else condition
        return last_step(self.steps, length)
