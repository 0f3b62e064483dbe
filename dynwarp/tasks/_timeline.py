"""When a memory trial shows its items, gives the cue to answer, and expects the answers."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._checks import check_positive
from dynwarp.errors import ArgumentError

# The time after the last answer in which silence is scored.
SILENCE = 4.0


@dataclasses.dataclass(frozen=True)
class Timeline:
    """Items and answers one after another, each shown for `pulse` steps and followed by as many without.

    The cue comes `delays[i]` steps after the last item's pause, and the first answer two pulses after the cue began.
    """

    n_items: int
    n_answers: int
    delays: tuple[int, ...]
    pulse: int
    silence: int

    @classmethod
    def of(cls, n_items: int, n_answers: int, delays: Any, pulse: float, dt: float, *, caller: str) -> Timeline:
        """The timeline in steps of `dt`, from checked times."""
        check_positive(dt, "dt", caller=caller)
        if not isinstance(delays, tuple) or not delays:
            raise ArgumentError(f"{caller}: `delays` must be a tuple of at least one time; got {delays!r}.")
        counts = [count_steps(d, dt, "delays", caller=caller) for d in delays]
        silence = max(1, round(SILENCE / dt))
        return cls(n_items, n_answers, tuple(counts), count_steps(pulse, dt, "pulse", caller=caller), silence)

    @property
    def steps(self) -> int:
        return self._fixed + max(self.delays)

    @property
    def longest(self) -> int:
        """The index of the longest delay."""
        return int(np.argmax(self.delays))

    @property
    def _fixed(self) -> int:
        return 2 * self.pulse * (self.n_items + 1 + self.n_answers) + self.silence

    def items(self, dtype):
        """Whether each item is shown at each step, (n_items, T)."""
        return self._pulses(0, self.n_items, dtype)

    def cue(self, delay, dtype):
        """Whether the cue is on, (T,)."""
        return self._pulses(self._go(delay), 1, dtype)[0]

    def answers(self, delay, dtype):
        """Whether each answer is expected, (n_answers, T)."""
        return self._pulses(self._go(delay) + 2 * self.pulse, self.n_answers, dtype)

    def mask(self, delay):
        """Silence until the cue and after the answers, and the answers; each of the two counts half."""
        i = jnp.arange(self.steps)
        go = self._go(delay)
        first = go + 2 * self.pulse
        last = first + 2 * self.pulse * self.n_answers
        silent = ((i < go) | (i >= last)) & (i < last + self.silence)
        answering = (i >= first) & (i < last)
        silent, answering = silent.astype(float), answering.astype(float)
        return (silent / jnp.sum(silent) + answering / jnp.sum(answering)) / 2

    def draw(self, key):
        """The index of a delay, at random."""
        return jax.random.randint(key, (), 0, len(self.delays))

    def _go(self, delay):
        return 2 * self.pulse * self.n_items + jnp.asarray(self.delays)[delay]

    def _pulses(self, start, count, dtype):
        since = jnp.arange(self.steps) - start - 2 * self.pulse * jnp.arange(count)[:, None]
        return ((since >= 0) & (since < self.pulse)).astype(dtype)


def count_steps(time: float, dt: float, name: str, *, caller: str) -> int:
    """How many steps of `dt` make `time`; raises unless it is a whole number of at least one."""
    check_positive(time, name, caller=caller)
    count = round(time / dt)
    if count < 1 or abs(count * dt - time) > 1e-6 * dt:
        raise ArgumentError(f"{caller}: `{name}` must be a whole number of steps of `dt` {dt}; got {time}.")
    return count


def on_circle(angles):
    """(cos, sin) of angles, (..., 2)."""
    return jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=-1)
