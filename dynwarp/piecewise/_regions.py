"""The linear regions of a piecewise-linear map: all of them where that is possible, a measured sample elsewhere."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from dynwarp._checks import check_choice, check_finite, check_positive_integer, check_shape
from dynwarp._typing import Input, PRNGKey
from dynwarp.errors import ArgumentError
from dynwarp.piecewise._arrangement import Arrangement, arrangement, codes, count_bound, interior_points
from dynwarp.piecewise._as_map import as_map
from dynwarp.piecewise._halfspaces import centre

Method = Literal["auto", "independent", "arrangement", "search", "sample"]
# The arrangement method's recursion costs about 1e-4 s a line.
_MAX_LINES = 100_000


class Regions(eqx.Module):
    """What [`enumerate_regions`][dynwarp.piecewise.enumerate_regions] returns.

    **Attributes:**

    - `patterns`: the ReLU patterns, distinct, in lexicographic order, `(R, H)`.
    - `points`: a state inside each region, `(R, M)`.
    - `complete`: whether these are all regions (of the box, if one was given).
    - `certificate`: how that is known, or what was done instead.
    - `coverage`: the share of all regions that was found: 1 where complete, else the exact or estimated share.
    """

    patterns: Bool[Array, "R H"]
    points: Float[Array, "R M"]
    complete: bool = eqx.field(static=True)
    certificate: str = eqx.field(static=True)
    coverage: float = eqx.field(static=True)

    def __len__(self) -> int:
        return self.patterns.shape[0]


def enumerate_regions(
    map: Any,
    *,
    method: Method = "auto",
    box: tuple[Any, Any] | None = None,
    max_regions: int = 131_072,
    n_samples: int = 20_000,
    key: PRNGKey | None = None,
    input: Input | None = None,
) -> Regions:
    """The linear regions of a piecewise-linear map, each with a state inside it (host).

    Regions are open: a pattern that occurs on borders only is none. Parallel, repeated and concurrent borders and fewer
    borders than dimensions are fine.

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in float64.
    - `method`: `"independent"` where the rows of W2 are linearly independent, as in a PLRNN or an AL-RNN: all 2^H
      patterns; `"arrangement"`, exact: each border's cells from the lower-dimensional arrangement the others induce on
      it; `"search"`, exact: from region to region across facets by linear programs, for few regions in many dimensions
      or in a box; `"sample"`: random vertices of the arrangement and a random region at each. `"auto"` takes the first
      of them that stays below `max_regions` (`"search"` only with a box).
    - `box`: `(lower, upper)`, each `(M,)`: only regions that meet the inside of the box.
    - `max_regions`: the most regions returned.
    - `n_samples`, `key`: draws of `"sample"`; the key is needed only there.
    - `input`: a constant input, `(d,)`.

    **Returns:** a [`Regions`][dynwarp.piecewise.Regions]. Cost: time and memory in proportion to the number of
    regions times H; `"search"` solves about H linear programs a region. A sample's coverage is Chao's estimate, seen /
    (seen + f1^2 / 2 f2) with f1 and f2 the numbers of regions seen once and twice.

    **Raises:** `ArgumentError` for a method that does not fit the map, or a missing key; `ShapeError`, `ModelError`,
    `PrecisionError`, `NonFiniteError`.

    **Source:** Zaslavsky, Mem. AMS 154 (1975), for the count; Chao, Scand. J. Stat. 11 (1984) 265.

    **Example:**

    >>> import dynwarp as dw
    >>> regions = dw.piecewise.enumerate_regions(dw.systems.BorderCollisionMap())
    >>> regions.patterns.tolist(), regions.complete
    ([[False], [True]], True)
    """
    caller = "enumerate_regions"
    form = as_map(map, input, caller=caller)
    check_choice(method, "method", get_args(Method), caller=caller)
    check_positive_integer(max_regions, "max_regions", caller=caller)
    check_positive_integer(n_samples, "n_samples", caller=caller)
    limits = None if box is None else _box(box, form.state_size, caller)
    W2, h2 = np.asarray(form.W2), np.asarray(form.h2)
    planes = arrangement(W2, h2)
    n, r = planes.normals.shape
    if method == "auto":
        method = _choose(n, r, limits, max_regions)
    if limits is not None and method in ("independent", "arrangement"):
        raise ArgumentError(f"{caller}: method={method!r} takes no `box`; use 'search' or 'sample'.")
    if method == "independent" and n != r:
        raise ArgumentError(
            f"{caller}: method='independent' needs borders with linearly independent normals; "
            f"got {n} borders of rank {r}."
        )

    if method == "sample":
        if key is None:
            raise ArgumentError(
                f"{caller}: the regions are more than `max_regions`, so they are sampled: give a `key`."
            )
        generator = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, 0))).ravel())
        states, coverage = _sample(planes, generator, n_samples, limits, W2, h2)
        share = "the exact share" if n == r and limits is None else "Chao's estimate of the share"
        certificate = f"none: {n_samples} random vertices of {n} borders; coverage is {share} of all regions"
        complete = False
    elif method == "search":
        states, complete = _search(planes, limits, max_regions)
        certificate = (
            "exhaustive: facet by facet, by linear programs" if complete else f"none: stopped at {max_regions} regions"
        )
        coverage = 1.0 if complete else min(1.0, len(states) / count_bound(n, r))
    else:
        bound = 2**n if n == r else count_bound(n, r)
        if method == "independent":
            if bound > max_regions:
                raise ArgumentError(f"{caller}: the map has {bound} regions, more than `max_regions`, {max_regions}.")
            signs = 2.0 * ((np.arange(bound)[:, None] >> np.arange(n)) & 1) - 1
            inside = np.linalg.solve(planes.normals, (signs - planes.offsets).T).T if n else np.zeros((1, 0))
            certificate = "exhaustive: the borders have linearly independent normals, so every pattern occurs"
        else:
            inside = interior_points(planes.normals, planes.offsets)
            certificate = f"exhaustive: the cells of {n} borders in {r} dimensions"
        states = inside @ planes.basis.T
        complete, coverage = True, 1.0

    patterns = states @ W2.T + h2 > 0
    _, first = np.unique(codes(patterns), return_index=True)
    if len(first) > max_regions:
        complete, coverage = False, coverage * max_regions / len(first)
        certificate = f"none: stopped at {max_regions} of {len(first)} regions found"
        first = first[:max_regions]
    return Regions(jnp.asarray(patterns[first]), jnp.asarray(states[first]), complete, certificate, float(coverage))


def _choose(n: int, r: int, limits, max_regions: int) -> Method:
    if limits is not None:
        return "search" if count_bound(n, r) <= 2000 or n <= 24 else "sample"
    if n == r:
        return "independent" if 2**n <= max_regions else "sample"
    if count_bound(n, r) <= max_regions and math.comb(n, max(r - 1, 0)) <= _MAX_LINES:
        return "arrangement"
    return "sample"


def _search(planes: Arrangement, limits, max_regions: int):
    """The regions reached from one of them across facets, a state in each, and whether the search ended by itself."""
    w, h = planes.normals @ planes.basis.T, planes.offsets
    # A start on a border is moved off it.
    start = 1e-6 * np.cos(np.arange(1, w.shape[1] + 1))
    if limits is not None:
        lower, upper = limits
        start = 0.5 * (lower + upper) + start * (upper - lower)
    signs = np.where(start @ w.T + h > 0, 1.0, -1.0)
    seen, todo, states = {signs.tobytes()}, [signs], [start]
    while todo:
        signs = todo.pop()
        for i in range(len(h)):
            other = signs.copy()
            other[i] = -other[i]
            if other.tobytes() in seen:
                continue
            point, depth = centre(-other[:, None] * w, other * h, box=limits)
            if depth <= 1e-9:
                continue
            if len(states) == max_regions:
                return np.array(states), False
            seen.add(other.tobytes())
            todo.append(other)
            states.append(point)
    return np.array(states), True


def _sample(planes: Arrangement, generator, n_samples: int, limits, W2, h2):
    """States at random vertices, moved into a random cell there, and the share of all cells that they cover."""
    n, r = planes.normals.shape
    if limits is not None:
        states = generator.uniform(*limits, size=(n_samples, len(limits[0])))
    else:
        chosen = np.argsort(generator.random((n_samples, n)), axis=1)[:, :r]
        normals, offsets = planes.normals[chosen], planes.offsets[chosen]
        good = np.linalg.cond(normals) < 1e9 if r else np.ones(n_samples, bool)
        vertices = np.linalg.solve(normals[good], -offsets[good][..., None])[..., 0]
        # A step along which the chosen borders are left to random sides, short of all others.
        signs = generator.choice([-1.0, 1.0], size=vertices.shape)
        step = np.linalg.solve(normals[good], signs[..., None])[..., 0]
        values, speed = vertices @ planes.normals.T + planes.offsets, step @ planes.normals.T
        np.put_along_axis(values, chosen[good], np.inf, axis=1)
        reach = np.min(np.abs(values) / np.maximum(np.abs(speed), 1e-300), axis=1, initial=np.inf)
        states = (vertices + np.minimum(0.5 * reach, 1.0)[:, None] * step) @ planes.basis.T
    _, counts = np.unique(codes(states @ W2.T + h2 > 0), return_counts=True)
    if n == r and limits is None:
        return states, len(counts) / 2.0**n
    return states, chao_coverage(counts)


def chao_coverage(counts: np.ndarray) -> float:
    """The share of all kinds that were seen, by Chao's estimate, from how often each was."""
    if not len(counts):
        return 0.0
    once, twice = np.sum(counts == 1), np.sum(counts == 2)
    unseen = once * (once - 1) / (2 * (twice + 1))
    return float(len(counts) / (len(counts) + unseen))


def _box(box, size: int, caller: str):
    lower, upper = (np.asarray(side, dtype=float) for side in box)
    for side, name in ((lower, "box[0]"), (upper, "box[1]")):
        check_shape(side, name, (size,), caller=caller)
        check_finite(side, name, caller=caller)
    if not (lower < upper).all():
        raise ArgumentError(f"{caller}: `box` must have its lower below its upper corner; got {lower} and {upper}.")
    return lower, upper
