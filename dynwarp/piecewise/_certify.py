"""Certificates that all cycles of a period are known (host)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from dynwarp.models import PiecewiseLinearMap
from dynwarp.piecewise._admissible import PROGRAM_WORK, Level, admissible_words
from dynwarp.piecewise._confirm import Confirmed
from dynwarp.piecewise._jump import evaluate
from dynwarp.piecewise._regions import Regions
from dynwarp.piecewise._words import count_lyndon, single_letters

_LANES = 1024
# Below this many words, solving all of them is cheaper than telling which of them can occur.
_FEW = 20_000


class Certifier:
    """Solves every itinerary that can be a cycle, period by period, within a budget of work."""

    def __init__(
        self,
        form: PiecewiseLinearMap,
        regions: Regions,
        confirmed: Confirmed,
        capacity: int,
        method: str,
        max_work: int,
    ):
        self.form, self.regions, self.confirmed, self.capacity = form, regions, confirmed, capacity
        self.method, self.max_work = method, max_work
        self.patterns = np.asarray(regions.patterns)
        self._levels = admissible_words(confirmed.affine, max_work)
        self._level: Level | None = None
        # Words of one letter are the regions: where they are too many, there is no use in starting.
        each = 1 if form.state_size <= 2 else PROGRAM_WORK
        self._ended = len(self.patterns) * each > max_work

    def certify(self, period: int) -> str | None:
        """Finds all cycles of a period, and says how it is known that they are all; None if that takes too much."""
        if self.method == "none":
            return None
        n = len(self.patterns)
        if self.regions.complete:
            words = count_lyndon(n, period)
            planar = self.form.state_size <= 2
            limit = _FEW if planar and self.method == "auto" else self.max_work
            if period == 1 or (self.method != "pruned" and words <= min(limit, self.max_work)):
                self._exhaust(period)
                if period == 1:
                    return f"exhaustive: the fixed points of all {n} regions"
                return f"exhaustive: all {words} primitive words of {n} regions"
        if self.method == "exhaustive":
            return None
        level = self._level_of(period)
        if level is None:
            return None
        self._solve(level.itineraries)
        return (
            f"pruned: all {len(level.itineraries)} primitive words that orbits follow; "
            f"{level.work} sets of states wider than 1e-10"
        )

    def _exhaust(self, period: int) -> None:
        words = single_letters(np.arange(len(self.patterns)))
        for _ in range(period - 1):
            words = words.children(len(self.patterns))
        letters = words.letters[words.is_lyndon()]
        for start in range(0, len(letters), 64 * _LANES):
            self._solve(self.patterns[letters[start : start + 64 * _LANES]])

    def _level_of(self, period: int) -> Level | None:
        while not self._ended and (self._level is None or self._level.length < period):
            following = next(self._levels, None)
            self._ended = following is None
            self._level = following or self._level
        if self._level is not None and self._level.length == period:
            return self._level
        return None

    def _solve(self, itineraries: np.ndarray) -> None:
        """Itineraries `(n, k, H)`: those that are cycles, or singular, are confirmed one by one."""
        n, k, hidden = itineraries.shape
        for start in range(0, n, _LANES):
            chunk = itineraries[start : start + _LANES]
            padded = np.zeros((self.capacity, hidden, _LANES), bool)
            padded[:k, :, : len(chunk)] = np.moveaxis(chunk, 0, -1)
            found = evaluate(self.form, jnp.asarray(padded), jnp.asarray(k))
            chosen = np.asarray(found.is_cycle | found.is_singular)[: len(chunk)]
            self.confirmed.add(chunk[chosen])
