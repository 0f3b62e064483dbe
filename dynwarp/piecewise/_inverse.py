"""The inverse of a piecewise-linear map, which may have many values: all preimages of a point (host)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from dynwarp._checks import check_choice, check_finite, check_float64, check_positive_integer, check_shape
from dynwarp._results import RESULTS, raise_failed
from dynwarp._typing import Input, State
from dynwarp.piecewise._arrangement import arrangement, count_bound
from dynwarp.piecewise._as_map import as_map
from dynwarp.piecewise._branches import Solutions, branches, distinct, solve
from dynwarp.piecewise._complementarity import Search
from dynwarp.piecewise._halfspaces import centre
from dynwarp.piecewise._host import HostMap
from dynwarp.piecewise._regions import Regions, enumerate_regions

Method = Literal["auto", "table", "complementarity", "paper"]
_TABLE = 2**16
# Sets of preimages wider than this, relative to their size, are a continuum.
_WIDE = 1e-9


class Preimages(eqx.Module):
    """What [`preimages`][dynwarp.piecewise.preimages] returns; unpacks as `points, patterns`.

    **Attributes:**

    - `points`: the states x with F(x) = z, `(n, M)`.
    - `patterns`: their ReLU patterns, False on a border, `(n, H)`.
    - `on_border`: which of them lie on a border of a region, `(n,)`.
    - `result`: of each, `successful`, or `singular` where it is one of a continuum: a region that the map flattens.
    - `complete`: whether these are all (of a continuum, one for each region it crosses).
    - `certificate`: how that is known, or what was done instead.
    """

    points: Float[Array, "n M"]
    patterns: Bool[Array, "n H"]
    on_border: Bool[Array, " n"]
    result: RESULTS
    complete: bool = eqx.field(static=True)
    certificate: str = eqx.field(static=True)

    def __iter__(self) -> Iterator[Array]:
        yield self.points
        yield self.patterns


def preimages(
    map: Any,
    z: State,
    *,
    method: Method = "auto",
    input: Input | None = None,
    regions: Regions | None = None,
    max_regions: int = _TABLE,
    max_programs: int = 20_000,
    throw: bool = True,
) -> Preimages:
    """All states that a piecewise-linear map sends to a point (host).

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in float64.
    - `z`: the point, `(M,)`.
    - `method`: `"table"`, the inverse branches of all regions at once; `"complementarity"`, which tells from linear
      programs in which regions a preimage may lie, for more than 16 ReLUs: each node of its tree bounds all ReLUs, and
      unbounded states are covered too, in homogeneous coordinates; `"paper"`, the published search for one preimage:
      the region of z, that of the candidate, those of `regions`, then flips of ever more ReLUs of the last candidate's
      pattern until a branch agrees with its region. `"auto"` takes the table where there are at most `max_regions`.
    - `input`: a constant input, `(d,)`.
    - `regions`: from [`enumerate_regions`][dynwarp.piecewise.enumerate_regions], to use them again.
    - `max_regions`: the most branches of the table or of the published search.
    - `max_programs`: linear programs, of about 2 ms each, after which the tree is left unfinished.
    - `throw`: whether to raise where a region is flattened and holds a continuum of preimages.

    **Returns:** [`Preimages`][dynwarp.piecewise.Preimages]: `points, patterns = preimages(f, z)`. No rows where z has
    none. A point on a border is one, whatever the number of regions that meet there. Cost of the table: O(M^3) a
    region, of the tree at worst exponential in H.

    **Raises:** `ConvergenceError` for a continuum, unless `throw=False`; `ArgumentError`, `ShapeError`, `ModelError`,
    `PrecisionError`, `NonFiniteError`.

    **Source:** Cottle, Pang and Stone, The Linear Complementarity Problem (1992); the published search: Eisenmann et
    al., ICLR (2026), arXiv:2510.03814, appendix C.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> fold = dw.models.PiecewiseLinearMap(  # x -> 2 x - 4 relu(x) + 1
    ...     jnp.array([[2.0]]), jnp.array([[-4.0]]), jnp.array([[1.0]]), jnp.array([1.0]), jnp.array([0.0])
    ... )
    >>> points, patterns = dw.piecewise.preimages(fold, jnp.array([0.5]))
    >>> points[:, 0].tolist(), patterns[:, 0].tolist()
    ([-0.25, 0.25], [False, True])
    """
    caller = "preimages"
    form = as_map(map, input, caller=caller)
    check_choice(method, "method", get_args(Method), caller=caller)
    check_positive_integer(max_regions, "max_regions", caller=caller)
    check_positive_integer(max_programs, "max_programs", caller=caller)
    z = jnp.asarray(z)
    check_shape(z, "z", (form.state_size,), caller=caller)
    check_finite(z, "z", caller=caller)
    check_float64(z, "z", caller=caller)
    if regions is not None:
        check_shape(regions.patterns, "regions.patterns", ("R", form.h2.shape[0]), caller=caller)
    f, target = HostMap.of(form), np.asarray(z, np.float64)

    if method == "auto":
        normals = arrangement(f.W2, f.h2).normals
        few = regions is not None or count_bound(*normals.shape) <= max_regions
        method = "table" if few else "complementarity"
    if method == "paper":
        found = _published(f, target, None if regions is None else np.asarray(regions.patterns), max_regions)
        return _finish(f, found, np.zeros(len(found.points), bool), False, _FOUND[len(found.points)], throw)
    if method == "table":
        if regions is None:
            regions = enumerate_regions(form, max_regions=max_regions, key=jax.random.key(0))
        found, flat = _collect(f, np.asarray(regions.patterns), target)
        certificate = f"the branches of {len(regions)} regions; regions: {regions.certificate}"
        return _finish(f, found, flat, regions.complete, certificate, throw)
    search = Search(f, target, max_programs)
    found, flat = _joined(f, [_collect(f, patterns, target) for patterns in search.run()])
    certificate = f"every other region is excluded by one of {search.programs} linear programs"
    if not search.complete:
        certificate = f"none: stopped after {search.programs} linear programs"
    return _finish(f, found, flat, search.complete, certificate, throw)


_FOUND = ("none: the published search found no branch", "none: the published search ends at the first")


def _finish(f: HostMap, found: Solutions, flat, complete: bool, certificate: str, throw: bool) -> Preimages:
    # Isolated points first: where a continuum ends on a border, its end is no new point.
    order = np.argsort(flat, kind="stable")
    found, flat = found.take(order), flat[order]
    rows, border = distinct(f, found)
    found, flat = found.take(rows), flat[rows]
    codes = RESULTS.singular, RESULTS.successful
    result = jax.tree.map(lambda yes, no: jnp.asarray(np.where(flat, yes, no)), *codes)
    if throw:
        raise_failed(result, "preimages", "There is a continuum of preimages in a region that the map flattens.")
    return Preimages(
        jnp.asarray(found.points),
        jnp.asarray(found.patterns & ~border),
        jnp.asarray(border.any(axis=1)),
        result,
        complete,
        certificate,
    )


def _collect(f: HostMap, patterns: np.ndarray, z: np.ndarray) -> tuple[Solutions, np.ndarray]:
    """The solutions in these regions, and which of them stand for a continuum."""
    parts = []
    for block in branches(f, patterns):
        found = solve(f, block, z)
        parts.append((found, np.zeros(len(found.points), bool)))
        singular = ~block.regular
        if singular.any():
            parts.append(_flattened(f, block.jacobians[singular], block.offsets[singular], block.patterns[singular], z))
    return _joined(f, parts)


def _joined(f: HostMap, parts: list[tuple[Solutions, np.ndarray]]) -> tuple[Solutions, np.ndarray]:
    none = np.zeros((0, f.size)), np.zeros((0, len(f.h2)), bool), *np.zeros((2, 0, len(f.h2)))
    fields = zip(none, *(found for found, _ in parts), strict=True)
    flat = np.concatenate([np.zeros(0, bool), *(wide for _, wide in parts)])
    return Solutions(*(np.concatenate(field) for field in fields)), flat


def _flattened(f: HostMap, jacobians, offsets, patterns, z) -> tuple[Solutions, np.ndarray]:
    """One solution of F(x) = z in each region with a singular Jacobian that has any, and whether it has a continuum."""
    u, s, vt = np.linalg.svd(jacobians)
    kept = s > 1e-13 * np.max(s, axis=1, keepdims=True, initial=0.0)
    right = z - offsets
    parts = np.einsum("rji,rj->ri", u, right)
    size = np.abs(z) + np.abs(f.h1) + np.abs(f.W1) @ np.abs(f.h2)
    consistent = np.max(np.where(kept, 0, np.abs(parts)), axis=1, initial=0.0) <= 1e-11 * size.max(initial=1e-300)
    rows, points, wide = [], [], []
    for i in np.flatnonzero(consistent).tolist():
        start = vt[i].T @ np.where(kept[i], parts[i] / np.where(kept[i], s[i], 1.0), 0.0)
        found = _inside(f, patterns[i], start, vt[i][~kept[i]].T)
        if found is not None:
            rows.append(i)
            points.append(found[0])
            wide.append(found[1])
    states = np.array(points).reshape(len(rows), f.size)
    values = states @ f.W2.T + f.h2
    errors = _WIDE * (np.abs(states) @ np.abs(f.W2).T + np.abs(f.h2))
    return Solutions(states, patterns[rows], values, errors), np.array(wide, bool)


def _inside(f: HostMap, pattern, start, free) -> tuple[np.ndarray, bool] | None:
    """The point of {start + free t} deepest in a closed region, and whether there are others; None if none is in it."""
    G, g = f.region(pattern)
    along, slack = G @ free, g - G @ start
    size = np.linalg.norm(G, axis=1)
    fixed = np.linalg.norm(along, axis=1) <= 1e-9 * size
    if np.any(slack[fixed] < -_WIDE * (np.abs(G) @ np.abs(start) + np.abs(g))[fixed]):
        return None
    t, depth = centre(along[~fixed], slack[~fixed])
    reach = 1 + np.abs(start).max(initial=0.0)
    if depth < -_WIDE * reach:
        return None
    return start + free @ t, depth > _WIDE * reach


def _published(f: HostMap, z: np.ndarray, pool: np.ndarray | None, max_patterns: int) -> Solutions:
    """The first branch that agrees with its region, in the published order."""

    def at(patterns: np.ndarray) -> Solutions:
        found, _ = _collect(f, patterns, z)
        return found.take(slice(0, 1))

    pattern = f.values(z) > 0
    for _ in range(2):
        found = at(pattern[None])
        (block,) = branches(f, pattern[None])
        if len(found.points) or not block.regular[0]:
            break
        pattern = f.values(block.inverses[0] @ (z - block.offsets[0])) > 0
    if len(found.points):
        return found
    tried = 2
    if pool is not None:
        found = at(pool)
        tried += len(pool)
    for distance in range(len(pattern) + 1):
        flips = itertools.combinations(range(len(pattern)), distance)
        while not len(found.points) and tried < max_patterns:
            chosen = np.array(list(itertools.islice(flips, min(4096, max_patterns - tried))), int)
            if not len(chosen):
                break
            flipped = np.tile(pattern, (len(chosen), 1))
            flipped[np.arange(len(chosen))[:, None], chosen] ^= True
            found = at(flipped)
            tried += len(chosen)
    return found
