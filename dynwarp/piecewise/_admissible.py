"""All itineraries that some orbit follows, as cyclic words, by cutting up the set of states that follow each (host)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dynwarp.piecewise import _polygons
from dynwarp.piecewise._arrangement import codes
from dynwarp.piecewise._halfspaces import centre
from dynwarp.piecewise._host import HostMap
from dynwarp.piecewise._words import Prenecklaces, single_letters

# A set of states narrower than this is empty to working precision.
_THIN = 1e-10
# The cost of a set of states in more than two dimensions, in polygons.
PROGRAM_WORK = 300


class Level(NamedTuple):
    """The admissible words of one length that may be cycles: patterns `(n, k, H)`; and the work so far."""

    length: int
    itineraries: np.ndarray
    work: int


def admissible_words(form: HostMap, max_work: int) -> Iterator[Level]:
    """Level by level, the itineraries of least rotation that orbits follow.

    The states that follow one form a set, here one wider than about 1e-10. Stops before a level that would bring the
    number of sets above `max_work`. In one and two dimensions they are polygons, cut all at once; in more, polyhedra,
    whose sides are tested by linear programs: a set then counts as `PROGRAM_WORK`.
    """
    if form.A.shape[0] <= 2:
        yield from _by_polygons(form, max_work)
    else:
        yield from _by_programs(form, max_work)


class _Alphabet:
    """Numbers for patterns, in the order they appear."""

    def __init__(self):
        self.patterns: list[np.ndarray] = []
        self._number: dict[bytes, int] = {}

    def numbers(self, patterns: np.ndarray) -> np.ndarray:
        spelled, inverse = np.unique(codes(patterns), return_inverse=True)
        first = np.zeros(len(spelled), int)
        first[inverse[::-1]] = np.arange(len(patterns))[::-1]
        letters = np.zeros(len(spelled), int)
        for i, word in enumerate(spelled):
            key = word.tobytes()
            if key not in self._number:
                self._number[key] = len(self.patterns)
                self.patterns.append(patterns[first[i]])
            letters[i] = self._number[key]
        return letters[inverse]

    def spell(self, words: np.ndarray) -> np.ndarray:
        return np.stack(self.patterns)[words] if len(words) else np.zeros((0, words.shape[1], 0), bool)


def _by_polygons(form: HostMap, max_work: int) -> Iterator[Level]:
    if form.A.shape[0] == 1:
        # A line is a plane whose second coordinate is forgotten.
        A = np.zeros((2, 2))
        A[:1, :1] = form.A
        form = HostMap(
            A, np.pad(form.W1, ((0, 1), (0, 0))), np.pad(form.W2, ((0, 0), (0, 1))), np.pad(form.h1, (0, 1)), form.h2
        )
    alphabet = _Alphabet()
    polygons, _, patterns = _cut(form, _polygons.quadrants(), np.tile(np.eye(3), (4, 1, 1)), max_work)
    words = single_letters(alphabet.numbers(patterns))
    # After j steps a state z of the polygon is at Q (z, 1).
    motion = np.tile(np.eye(3), (len(patterns), 1, 1))
    work = len(patterns)
    while len(patterns):
        yield Level(words.letters.shape[1], alphabet.spell(np.unique(words.letters[words.is_lyndon()], axis=0)), work)
        J, b = form.affine(patterns)
        motion = np.concatenate([J @ motion[:, :2] + b[:, :, None] * motion[:, 2:], motion[:, 2:]], axis=1)
        polygons, parents, patterns = _cut(form, polygons, motion, max_work - work)
        if work + len(patterns) > max_work:
            return
        work += len(patterns)
        words, kept = words.extended(parents, alphabet.numbers(patterns))
        polygons, motion, patterns = polygons.take(kept), motion[parents[kept]], patterns[kept]


def _cut(form: HostMap, polygons, motion, limit: int):
    """The polygons cut by every border, seen after the motion: parts, the polygon each comes from, patterns there."""
    sources = np.arange(len(polygons.counts))
    patterns = np.zeros((len(sources), len(form.h2)), bool)
    for i in range(len(form.h2)):
        if len(sources) > limit:
            break
        row = np.append(form.W2[i], form.h2[i])
        if not row[:2].any():
            patterns[:, i] = row[2] > 0
            continue
        polygons, lanes, side = _polygons.split(polygons, np.einsum("j,njk->nk", row, motion[sources]))
        sources, patterns = sources[lanes], patterns[lanes]
        patterns[:, i] = side
    return polygons, sources, patterns


def _by_programs(form: HostMap, max_work: int) -> Iterator[Level]:
    alphabet = _Alphabet()
    m, hidden = form.A.shape[0], len(form.h2)
    borders = np.flatnonzero(form.W2.any(axis=1))
    constant = form.h2 > 0
    work = 0
    # A node: its rows G z <= g, and the motion (P, c) with the state now at P z + c.
    empty = Prenecklaces(np.zeros((1, 0), int), np.zeros(1, int))
    nodes = [(np.zeros((0, m)), np.zeros(0), np.eye(m), np.zeros(m))]
    words = empty
    while nodes:
        parents, patterns, sets = [], [], []
        for index, (G, g, P, c) in enumerate(nodes):
            rows, offsets = form.W2 @ P, form.W2 @ c + form.h2
            parts = [(G, g, constant.copy())]
            for i in borders:
                parts = [new for part in parts for new in _sides(*part, i, rows[i], offsets[i])]
                work += PROGRAM_WORK * len(parts) // len(borders)
                if work > max_work:
                    return
            for G_part, g_part, pattern in parts:
                parents.append(index)
                patterns.append(pattern)
                sets.append((G_part, g_part))
            work += PROGRAM_WORK * (not len(borders))
            if work > max_work:
                return
        patterns = np.array(patterns).reshape(len(patterns), hidden)
        letters = alphabet.numbers(patterns)
        if words.letters.shape[1]:
            words, kept = words.extended(np.array(parents, int), letters)
        else:
            words, kept = single_letters(letters), np.arange(len(letters))
        yield Level(words.letters.shape[1], alphabet.spell(words.letters[words.is_lyndon()]), work)
        J, b = form.affine(patterns[kept])
        motions = [nodes[parents[i]][2:] for i in kept]
        nodes = [(*sets[i], J[j] @ P, J[j] @ c + b[j]) for j, (i, (P, c)) in enumerate(zip(kept, motions, strict=True))]


def _sides(G, g, pattern, border, row, offset):
    """The parts of a polyhedron on the two sides of a border, those that have an inside."""
    size = np.linalg.norm(row)
    parts = []
    for side in (True, False):
        inside = pattern.copy()
        inside[border] = side
        sign = -1.0 if side else 1.0
        if size <= 1e-12 * (1 + abs(offset)):
            # The border is not seen from here: all states are on one side of it, or all on it.
            if sign * offset <= 1e-12:
                parts.append((G, g, inside))
            continue
        new_G, new_g = np.vstack([G, sign * row / size]), np.append(g, -sign * offset / size)
        if centre(new_G, new_g)[1] > _THIN:
            parts.append((new_G, new_g, inside))
    return parts
