"""Symbols to be repeated after a delay."""

from __future__ import annotations

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp._checks import check_positive_integer
from dynwarp.tasks._task import AbstractTask


class Copy(AbstractTask):
    """Copy: symbols are shown one a step, and after a delay and a marker they are to be repeated in order.

    Variables: of each of the `length` symbols the weights of all but the last of `n_symbols`, which has what is left
    to 1: corners of a cube with at most one 1 are the symbols, and trials draw such. Inputs, T = `delay` + 2 `length`
    steps: the symbols as unit vectors, blanks, and the marker at step `length` + `delay` - 1, with channels for
    the symbols, the blank and the marker. Targets, one class a symbol and one for the blank: blanks, and the symbols at
    the last `length` steps. All steps are scored by the cross-entropy.

    **Arguments:** `delay`, `length`, `n_symbols`: whole numbers.

    Chance: `length` ln(`n_symbols`) / T, by blanks and a guess among the symbols; that guess is wrong in
    `length` (1 - 1 / `n_symbols`) / T of the steps.

    **Source:** Hochreiter & Schmidhuber, Neural Computation 9 (1997) 1735; settings of Arjovsky, Shah & Bengio, ICML
    (2016), arXiv:1511.06464.

    **Example:**

    >>> task = dw.tasks.Copy()
    >>> task.steps, task.input_size, task.output_size, round(task.chance_level, 6)
    (120, 10, 9, 0.173287)
    """

    delay: int = eqx.field(default=100, static=True)
    length: int = eqx.field(default=10, static=True)
    n_symbols: int = eqx.field(default=8, static=True)
    dt: ClassVar[float] = 1.0
    classes: ClassVar[bool] = True

    def __check_init__(self):
        check_positive_integer(self.delay, "delay", caller="Copy")
        check_positive_integer(self.length, "length", caller="Copy")
        check_positive_integer(self.n_symbols, "n_symbols", minimum=2, caller="Copy")

    @property
    def steps(self):
        return self.delay + 2 * self.length

    @property
    def dim(self):
        return self.length * (self.n_symbols - 1)

    @property
    def periods(self):
        return (None,) * self.dim

    @property
    def bounds(self):
        return ((0.0, 1.0),) * self.dim

    @property
    def input_size(self):
        return self.n_symbols + 2

    @property
    def output_size(self):
        return self.n_symbols + 1

    @property
    def chance_level(self):
        return self.length * math.log(self.n_symbols) / self.steps

    def draw(self, key):
        """Random symbols."""
        symbols = jax.random.randint(key, (self.length,), 0, self.n_symbols)
        return jax.nn.one_hot(symbols, self.n_symbols - 1, dtype=float).reshape(-1), None

    def inputs(self, theta, condition=None):
        symbols, blank = self._symbols(theta)
        rows = jnp.concatenate([symbols, jnp.tile(blank, (self.steps - self.length, 1))])
        rows = jnp.pad(rows, ((0, 0), (0, 1)))
        marker = jax.nn.one_hot(self.input_size - 1, self.input_size, dtype=rows.dtype)
        return rows.at[self.length + self.delay - 1].set(marker)

    def targets(self, theta, condition=None):
        symbols, blank = self._symbols(theta)
        return jnp.concatenate([jnp.tile(blank, (self.steps - self.length, 1)), symbols])

    def mask(self, condition=None):
        return jnp.ones(self.steps)

    def _symbols(self, theta):
        """The symbols and the blank over `n_symbols` + 1 channels."""
        theta, _ = self._trial(theta, None)
        weights = theta.reshape(self.length, self.n_symbols - 1)
        rest = 1 - jnp.sum(weights, axis=1, keepdims=True)
        blank = jax.nn.one_hot(self.n_symbols, self.n_symbols + 1, dtype=theta.dtype)
        return jnp.concatenate([weights, rest, jnp.zeros_like(rest)], axis=1), blank
