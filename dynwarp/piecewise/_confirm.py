"""From itineraries that may be cycles to cycles: exact solves, identity, families of cycles (host)."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._linalg import eigenvalues
from dynwarp._results import RESULTS
from dynwarp.models import PiecewiseLinearMap
from dynwarp.piecewise._arrangement import codes
from dynwarp.piecewise._cycle import BORDER_TOLERANCE, Cycle, border_values, cycles_at
from dynwarp.piecewise._halfspaces import centre
from dynwarp.piecewise._host import HostMap
from dynwarp.piecewise._words import is_primitive, least_rotation

_LANES = 32


class Confirmed:
    """The distinct cycles found so far, by period and canonical itinerary, with how often each was met."""

    def __init__(self, form: PiecewiseLinearMap, capacity: int):
        self.form = form
        self.affine = HostMap.of(form)
        self.cycles: dict[int, dict[bytes, Cycle]] = {}
        self.families: dict[int, set[bytes]] = {}
        self.hits: dict[int, Counter[bytes]] = {}
        self._capacity = capacity
        # What became of an itinerary: the name of its cycle, or None where there is none.
        self._known: dict[tuple[int, bytes], bytes | None] = {}

    def add(self, itineraries: np.ndarray) -> int:
        """Takes itineraries of one period, `(n, k, H)`; returns how many new cycles there were."""
        n, k, _ = itineraries.shape
        if not n:
            return 0
        _, first, counts = np.unique(codes(itineraries.reshape(n, -1)), return_index=True, return_counts=True)
        names, words = [], {}
        for i in first:
            word = least_rotation(itineraries[i])
            names.append(word.tobytes())
            words[names[-1]] = word
        before = len(self.cycles.get(k, {}))
        self._resolve(k, {name: word for name, word in words.items() if (k, name) not in self._known})
        for name, count in zip(names, counts, strict=True):
            cycle = self._known[k, name]
            if cycle is not None:
                self.hits.setdefault(k, Counter())[cycle] += int(count)
        return len(self.cycles.get(k, {})) - before

    def of_period(self, k: int) -> list[Cycle]:
        """The cycles of least period k in the order of their itineraries."""
        return [cycle for _, cycle in sorted(self.cycles.get(k, {}).items())]

    def _resolve(self, k: int, words: dict[bytes, np.ndarray]) -> None:
        primitive = {name: word for name, word in words.items() if is_primitive(word)}
        self._known.update({(k, name): None for name in words.keys() - primitive.keys()})
        for name, cycle in zip(primitive, self._solve(k, list(primitive.values())), strict=True):
            self._known[k, name] = self._keep(k, cycle)

    def _solve(self, k: int, words: list[np.ndarray]) -> list[Cycle | None]:
        """The cycle of each itinerary, None where there is none."""
        cycles: list[Cycle | None] = []
        for start in range(0, len(words), _LANES):
            chunk = words[start : start + _LANES]
            padded = np.zeros((_LANES, self._capacity, chunk[0].shape[1]), bool)
            padded[: len(chunk), :k] = chunk
            batch = jax.device_get(cycles_at(self.form, jnp.asarray(padded), jnp.full(_LANES, k)))
            singular, virtual = (np.asarray(batch.result == code) for code in (RESULTS.singular, RESULTS.virtual))
            for i, word in enumerate(chunk):
                if singular[i]:
                    cycles.append(_family(self.affine, self.form, word))
                elif virtual[i]:
                    cycles.append(None)
                else:
                    lane = jax.tree.map(lambda x, i=i: x[i], batch)
                    cycles.append(_cut(lane, k))
        return cycles

    def _keep(self, k: int, cycle: Cycle | None) -> bytes | None:
        if cycle is None:
            return None
        # On a border the pattern is False: a cycle found from two sides of a border is one.
        _, border = border_values(self.form, cycle.points)
        named = np.asarray(cycle.itinerary) & ~np.asarray(border)
        if not is_primitive(named):
            return None
        canonical = least_rotation(named)
        name = canonical.tobytes()
        known = self.cycles.setdefault(k, {})
        if name not in known:
            shift = next(i for i in range(k) if (np.roll(named, -i, axis=0) == canonical).all())
            known[name] = _rotated(cycle, canonical, shift)
            if bool(cycle.result == RESULTS.singular):
                self.families.setdefault(k, set()).add(name)
        return name


def _cut(cycle: Cycle, k: int) -> Cycle:
    points, itinerary, border = (jnp.asarray(x[:k]) for x in (cycle.points, cycle.itinerary, cycle.on_border))
    return Cycle(points, jnp.asarray(cycle.multipliers), itinerary, jnp.asarray(cycle.residual), border, cycle.result)


def _rotated(cycle: Cycle, itinerary: np.ndarray, shift: int) -> Cycle:
    return Cycle(
        jnp.roll(cycle.points, -shift, axis=0),
        cycle.multipliers,
        jnp.asarray(itinerary),
        cycle.residual,
        jnp.roll(cycle.on_border, -shift),
        cycle.result,
    )


def _family(affine: HostMap, form: PiecewiseLinearMap, word: np.ndarray) -> Cycle | None:
    """One of the cycles of an itinerary whose system is singular, deep inside its regions; None where there is none."""
    k, m = len(word), affine.size
    J, b = affine.affine(word)
    motion, constant, rows, offsets = np.eye(m), np.zeros(m), [], []
    for i in range(k):
        sign = np.where(word[i], -1.0, 1.0)[:, None]
        rows.append(sign * (affine.W2 @ motion))
        offsets.append(-sign[:, 0] * (affine.W2 @ constant + affine.h2))
        motion, constant = J[i] @ motion, J[i] @ constant + b[i]
    u, s, vt = np.linalg.svd(np.eye(m) - motion)
    kept = s > 1e-9 * max(1.0, s[0])
    start = vt[kept].T @ ((u[:, kept].T @ constant) / s[kept])
    miss = np.max(np.abs(start - motion @ start - constant), initial=0.0)
    if miss > 1e-9 * (1 + np.max(np.abs(start), initial=0.0) + np.max(np.abs(constant), initial=0.0)):
        return None
    free = vt[~kept].T
    G, g = np.concatenate(rows), np.concatenate(offsets)
    along, slack = G @ free, g - G @ start
    # Conditions that do not change along the family hold to working precision or not at all.
    fixed = np.linalg.norm(along, axis=1) <= 1e-9 * np.linalg.norm(G, axis=1)
    scale = np.abs(G) @ np.abs(start) + np.abs(g)
    if np.any(slack[fixed] < -BORDER_TOLERANCE * (1 + scale[fixed])):
        return None
    t, depth = centre(along[~fixed], slack[~fixed])
    if depth < -1e-9:
        return None
    points = [start + free @ t]
    for i in range(k - 1):
        points.append(J[i] @ points[-1] + b[i])
    states = jnp.asarray(np.array(points))
    images = jax.vmap(form)(states)
    residual = jnp.max(jnp.abs(images - jnp.roll(states, -1, axis=0)))
    _, border = border_values(form, states)
    multipliers = eigenvalues(jnp.asarray(motion))
    return Cycle(states, multipliers, jnp.asarray(word), residual, jnp.any(border, axis=1), RESULTS.singular)
