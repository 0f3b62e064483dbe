"""One symbol to be held while many others pass."""

from __future__ import annotations

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp._checks import check_positive_integer
from dynwarp.tasks._task import AbstractTask, last_step


class RandomPermutation(AbstractTask):
    """Random permutation: the first symbol, one of two, is to be told at the end of a sequence of other symbols.

    Variable: the weight of the second of the two symbols, from 0 to 1; trials have 0 or 1. Inputs: one channel a
    symbol, of which one is 1 at each step of the length L of the trial; thereafter all are 0. Target: the class of the
    first symbol at step L - 1, scored by the cross-entropy. The condition holds L and the other symbols; a trial draws
    L uniformly from `min_steps` to `steps`, and the others independently and uniformly, as the code of the source does;
    in the reference condition they follow each other in order.

    **Arguments:**

    - `steps`, `min_steps`: the greatest and the least length.
    - `n_symbols`: of all symbols, at least 3.

    Chance: ln 2; half of the guesses are wrong.

    **Source:** Hochreiter & Schmidhuber, Neural Computation 9 (1997) 1735; settings of Pascanu, Mikolov & Bengio, ICML
    (2013), arXiv:1211.5063.

    **Example:**

    >>> task = dw.tasks.RandomPermutation(n_symbols=5)
    >>> task(jnp.array([1.0]))[0].tolist(), task.targets(jnp.array([1.0]))[-1].tolist()
    ([0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0])
    """

    steps: int = eqx.field(default=200, static=True)
    min_steps: int = eqx.field(default=50, static=True)
    n_symbols: int = eqx.field(default=100, static=True)
    dim: ClassVar[int] = 1
    periods: ClassVar[tuple[None]] = (None,)
    bounds: ClassVar[tuple[tuple[float, float]]] = ((0.0, 1.0),)
    dt: ClassVar[float] = 1.0
    classes: ClassVar[bool] = True
    chance_level: ClassVar[float] = math.log(2)

    def __check_init__(self):
        caller = "RandomPermutation"
        check_positive_integer(self.n_symbols, "n_symbols", minimum=3, caller=caller)
        check_positive_integer(self.min_steps, "min_steps", caller=caller)
        check_positive_integer(self.steps, "steps", minimum=self.min_steps, caller=caller)

    @property
    def input_size(self):
        return self.n_symbols

    @property
    def output_size(self):
        return self.n_symbols

    def reference(self):
        """The length `()` and the symbols `(T,)`, the first of which is ignored, all integers."""
        return jnp.asarray(self.steps), 2 + jnp.arange(self.steps) % (self.n_symbols - 2)

    def draw(self, key):
        """A random first symbol, length and other symbols."""
        first_key, length_key, other_key = jax.random.split(key, 3)
        first = jax.random.bernoulli(first_key, 0.5, (1,)).astype(float)
        length = jax.random.randint(length_key, (), self.min_steps, self.steps + 1)
        return first, (length, jax.random.randint(other_key, (self.steps,), 2, self.n_symbols))

    def inputs(self, theta, condition=None):
        theta, (length, others) = self._trial(theta, condition)
        rows = jax.nn.one_hot(others, self.n_symbols, dtype=theta.dtype)
        rows = jnp.where(jnp.arange(self.steps)[:, None] < length, rows, 0)
        return rows.at[0].set(self._first(theta))

    def targets(self, theta, condition=None):
        theta, _ = self._trial(theta, condition)
        return jnp.tile(self._first(theta), (self.steps, 1))

    def mask(self, condition=None):
        length, _ = self.reference() if condition is None else condition
        return last_step(self.steps, length)

    def _first(self, theta):
        return jnp.pad(jnp.concatenate([1 - theta, theta]), (0, self.n_symbols - 2))
