"""The cycles of a piecewise-linear map up to a period: searched in batches, proved complete where that can be done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._checks import check_choice, check_positive_integer
from dynwarp._typing import Input, PRNGKey
from dynwarp.errors import ArgumentError
from dynwarp.piecewise._as_map import as_map
from dynwarp.piecewise._certify import Certifier
from dynwarp.piecewise._confirm import Confirmed
from dynwarp.piecewise._cycle import Cycles
from dynwarp.piecewise._jump import jump
from dynwarp.piecewise._regions import Regions, chao_coverage, enumerate_regions

Certify = Literal["auto", "exhaustive", "pruned", "none"]
_JUMPS = 32
# On a CPU a block of searches should stay in the cache.
_CPU_LANES = 128
_MAX_ENTRIES = 16_000_000


def find_cycles(
    map: Any,
    max_period: int,
    *,
    key: PRNGKey,
    periods: Sequence[int] | None = None,
    input: Input | None = None,
    n_starts: int = 1024,
    n_iterations: int = 64,
    certify: Certify = "auto",
    max_certificate_work: int = 200_000,
    max_cycles: int = 10_000,
) -> Cycles:
    """The fixed points and cycles of a piecewise-linear map (host).

    A period is first certified: all itineraries that can be cycles are solved. Where that would take more than
    `max_certificate_work`, cycles are searched instead, by jumps between itineraries: the itinerary of the orbit
    that starts on the virtual cycle of one itinerary is the next, until it is its own.

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in float64.
    - `max_period`: the largest period.
    - `key`: of the random itineraries.
    - `periods`: only these periods, at most `max_period`; all if None.
    - `input`: a constant input, `(d,)`.
    - `n_starts`: searches that run at once, half of them from random words of regions, half from itineraries of orbits.
    - `n_iterations`: jumps of each; up to four times as many while cycles are still being found.
    - `certify`: `"exhaustive"`, all primitive words of regions; `"pruned"`, all that some orbit follows, found by
      cutting up the set of states that follow each (polygons in the plane, linear programs beyond); `"auto"`, the
      cheaper of the two; `"none"`, search only.
    - `max_certificate_work`: words solved, of one period, and polygons made, in total (a linear-program set counts as
      300), before a certificate is given up. 200 000 take some seconds. All fixed points are certified whenever all
      regions are known.
    - `max_cycles`: of each period.

    **Returns:** [`Cycles`][dynwarp.piecewise.Cycles], by period and itinerary. A cycle is named by its itinerary up to
    rotation; points on a border count as on its False side. Families of cycles that are not isolated have one
    representative, with `result` singular. A search makes `n_starts` x `n_iterations` solves a period, of O(k M^2 H)
    each; memory stays below about 100 MB.

    **Raises:** `ArgumentError`, `ShapeError`, `ModelError`, `PrecisionError`, `NonFiniteError`.

    **Source:** Eisenmann et al., NeurIPS (2023), arXiv:2310.17561, for the search.

    **Example:**

    >>> import jax, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig5")
    >>> cycles = dw.piecewise.find_cycles(f, 3, key=jax.random.key(0))
    >>> [len(cycles.of_period(k)) for k in (1, 2, 3)], cycles.complete[3], cycles[0].kind
    ([1, 1, 2], True, 'saddle')
    """
    caller = "find_cycles"
    form = as_map(map, input, caller=caller)
    check_positive_integer(max_period, "max_period", caller=caller)
    check_positive_integer(n_starts, "n_starts", caller=caller)
    check_positive_integer(n_iterations, "n_iterations", caller=caller)
    check_positive_integer(max_certificate_work, "max_certificate_work", minimum=0, caller=caller)
    check_positive_integer(max_cycles, "max_cycles", caller=caller)
    check_choice(certify, "certify", get_args(Certify), caller=caller)
    asked = list(range(1, max_period + 1)) if periods is None else sorted(set(periods))
    for period in asked:
        check_positive_integer(period, "periods", caller=caller)
    if not asked or asked[-1] > max_period:
        raise ArgumentError(f"{caller}: `periods` must lie between 1 and `max_period`, {max_period}; got {periods!r}.")

    region_key, search_key = jax.random.split(key)
    regions = enumerate_regions(form, key=region_key)
    # Padding to a power of two: one compiled program serves many calls.
    capacity = max(4, 1 << (max_period - 1).bit_length())
    confirmed = Confirmed(form, capacity)
    certifier = Certifier(form, regions, confirmed, capacity, certify, max_certificate_work)
    search: _Search | None = None
    complete, certificate, coverage, truncated = {}, {}, {}, not regions.complete
    for period in asked:
        proof = certifier.certify(period)
        complete[period] = proof is not None
        if proof is not None:
            certificate[period], coverage[period] = proof, 1.0
        else:
            search = search or _Search(form, regions, confirmed, capacity, n_starts, search_key)
            tried = search.run(period, n_iterations, max_cycles)
            certificate[period] = f"none: {tried} itineraries tried"
            coverage[period] = chao_coverage(np.array(list(confirmed.hits.get(period, {}).values())))
            truncated |= certify != "none"
    cycles = []
    for period in asked:
        found = confirmed.of_period(period)
        if len(found) > max_cycles:
            found, truncated, complete[period] = found[:max_cycles], True, False
            certificate[period] = f"none: stopped at {max_cycles} cycles"
        cycles.extend(found)
    families = {period: len(confirmed.families.get(period, ())) for period in asked}
    return Cycles(tuple(cycles), complete, certificate, coverage, families, truncated)


class _Search:
    """Jumps of many itineraries, from random ones and from those of orbits."""

    def __init__(self, form, regions: Regions, confirmed: Confirmed, capacity: int, n_starts: int, key):
        self.form, self.confirmed, self.capacity = form, confirmed, capacity
        self.generator = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
        self.hidden = form.h2.shape[0]
        block = _CPU_LANES if jax.default_backend() == "cpu" else n_starts
        self.lanes = max(1, min(n_starts, block, _MAX_ENTRIES // (_JUMPS * capacity * max(self.hidden, 1))))
        self.rounds = -(-n_starts // self.lanes)
        # Where every pattern is a region but not all are listed, patterns are drawn as bits.
        self.pool = (
            None if regions.certificate.startswith("none") and _independent(form) else np.asarray(regions.patterns)
        )
        self.orbits = self._simulate(np.asarray(regions.points))

    def run(self, period: int, n_iterations: int, max_cycles: int) -> int:
        """Searches for cycles of one period; returns how many itineraries were tried."""
        tried = 0
        for _ in range(self.rounds):
            itineraries, age = jnp.asarray(self._fresh(1, period)[0]), jnp.zeros(self.lanes, int)
            jumps, wanted = 0, n_iterations
            while jumps < wanted:
                fresh = jnp.asarray(self._fresh(_JUMPS, period))
                (itineraries, age), (seen, hit) = jump(
                    self.form, itineraries, age, fresh, jnp.asarray(period), jnp.asarray(max(30, 2 * period))
                )
                jumps += _JUMPS
                where = np.nonzero(np.asarray(hit))
                new = self.confirmed.add(np.asarray(seen)[where[0], :period, :, where[1]])
                if new:
                    wanted = min(4 * n_iterations, max(wanted, jumps + n_iterations // 2))
                if len(self.confirmed.cycles.get(period, ())) > max_cycles:
                    break
            tried += jumps * self.lanes
        return tried

    def _fresh(self, jumps: int, period: int) -> np.ndarray:
        """New itineraries, `(jumps, capacity, H, lanes)`."""
        draw = self.generator
        fresh = np.zeros((jumps, self.capacity, self.hidden, self.lanes), bool)
        shape = (jumps, period, self.lanes)
        if self.pool is None:
            fresh[:, :period] = draw.integers(0, 2, (jumps, period, self.hidden, self.lanes), dtype=np.int8)
        else:
            fresh[:, :period] = np.moveaxis(self.pool[draw.integers(len(self.pool), size=shape)], -1, 2)
        if len(self.orbits) >= period:
            half = self.lanes // 2
            at = draw.integers(len(self.orbits) - period + 1, size=(jumps, 1, half)) + np.arange(period)[:, None]
            whose = draw.integers(self.orbits.shape[1], size=(jumps, 1, half))
            fresh[:, :period, :, :half] = np.moveaxis(self.orbits[at, whose], -1, 2)
        return fresh

    def _simulate(self, points: np.ndarray) -> np.ndarray:
        """Patterns along orbits from all over the state space, `(steps, orbits, H)`, as long as they are finite."""
        form, draw = self.confirmed.affine, self.generator
        some = points[draw.integers(len(points), size=192)]
        size = 1 + np.median(np.abs(points)) if points.size else 1.0
        far = size * 10.0 ** draw.uniform(-1, 1.5, (64, 1)) * draw.normal(size=(64, points.shape[1]))
        states, patterns = np.concatenate([some, far]), []
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(2 * self.capacity + 32):
                values = states @ form.W2.T + form.h2
                patterns.append(values > 0)
                states = states @ form.A.T + np.maximum(values, 0) @ form.W1.T + form.h1
                # An orbit that leaves starts again elsewhere.
                lost = ~(np.abs(states).max(axis=1, initial=0.0) < 1e12)
                states[lost] = some[draw.integers(len(some), size=lost.sum())]
        return np.array(patterns)


def _independent(form) -> bool:
    W2 = np.asarray(form.W2)
    return np.linalg.matrix_rank(W2) == len(W2)
