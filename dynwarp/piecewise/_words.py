"""Cyclic words: the one canonical spelling of a cycle's itinerary (host)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Prenecklaces(NamedTuple):
    """Words that begin some least rotation: `letters` `(n, j)` and the length of the period each has so far, `(n,)`.

    A word is a least rotation of a primitive cyclic word (a Lyndon word) where its period is its length.
    """

    letters: np.ndarray
    period: np.ndarray

    def is_lyndon(self) -> np.ndarray:
        return self.period == self.letters.shape[1]

    def least_next(self) -> np.ndarray:
        """The least letter that may follow each word, `(n,)`."""
        length = self.letters.shape[1]
        return self.letters[np.arange(len(self.letters)), length - self.period]

    def extended(self, parents: np.ndarray, letters: np.ndarray) -> tuple[Prenecklaces, np.ndarray]:
        """The words of `parents` with one more letter, those of them that stay prenecklaces, and which they are."""
        least = self.least_next()[parents]
        kept = np.flatnonzero(letters >= least)
        parents, letters, least = parents[kept], letters[kept], least[kept]
        words = np.column_stack([self.letters[parents], letters])
        period = np.where(letters == least, self.period[parents], words.shape[1])
        return Prenecklaces(words, period), kept

    def children(self, n_letters: int) -> Prenecklaces:
        """All one letter longer prenecklaces over the letters 0, ..., n_letters - 1."""
        counts = n_letters - self.least_next()
        parents = np.repeat(np.arange(len(self.letters)), counts)
        ranks = np.arange(len(parents)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.extended(parents, self.least_next()[parents] + ranks)[0]


def single_letters(letters: np.ndarray) -> Prenecklaces:
    """Words of one letter."""
    return Prenecklaces(np.asarray(letters)[:, None], np.ones(len(letters), int))


def count_lyndon(n_letters: int, length: int) -> int:
    """The number of primitive cyclic words, (1 / k) sum over d | k of mu(d) n^(k / d)."""
    return sum(_moebius(d) * n_letters ** (length // d) for d in range(1, length + 1) if length % d == 0) // length


def _moebius(n: int) -> int:
    value, p = 1, 2
    while n > 1:
        if n % p == 0:
            n //= p
            if n % p == 0:
                return 0
            value = -value
        p += 1
    return value


def least_rotation(rows: np.ndarray) -> np.ndarray:
    """The rotation of a cyclic word of patterns `(k, H)` that is first in lexicographic order."""
    spelled = [row.tobytes() for row in np.ascontiguousarray(rows)]
    k = len(spelled)
    best = min(range(k), key=lambda i: spelled[i:] + spelled[:i])
    return np.roll(rows, -best, axis=0)


def is_primitive(rows: np.ndarray) -> bool:
    """Whether a word is no repetition of a shorter one."""
    k = len(rows)
    return all(k % d or (rows != np.roll(rows, d, axis=0)).any() for d in range(1, k // 2 + 1))
