"""How good a manifold is: the published measures delta_sigma and Delta_sigma, and the exact invariance residual."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_choice, check_finite, check_float64, check_positive_integer, check_shape
from dynwarp._typing import Input, PRNGKey
from dynwarp.errors import ArgumentError
from dynwarp.models import PiecewiseLinearMap
from dynwarp.piecewise._as_map import as_map
from dynwarp.piecewise._cycle import Cycle
from dynwarp.piecewise._host import Box, HostMap
from dynwarp.piecewise._local import Kind, invariant_subspaces
from dynwarp.piecewise._manifold import Manifold
from dynwarp.piecewise._regions import enumerate_regions
from dynwarp.piecewise._trace import check_cycle, trace_manifold

# Within this share of its size, a point in the region of a cycle point is taken to lie on its local subspace.
_SNAP = 1e-9
# Preimages followed at a time, the nearest to the cycle.
_BEAM = 8


def delta_sigma(
    map: Any,
    cycle: Cycle,
    points: Float[Array, "n M"],
    *,
    kind: Kind,
    steps: int = 500,
    snap: float = 0.0,
    input: Input | None = None,
) -> Float[Array, " n"]:
    """How near the orbits of points come to a cycle: min_k |F^{+-k}(x) - p|^2 / |x - p|^2; 0 on its manifold (host).

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in float64.
    - `cycle`: hyperbolic; the distance is to the nearest of its points.
    - `points`: `(n, M)`.
    - `kind`: `"stable"`: forward orbits; `"unstable"`: backward ones. Where the map is not invertible, the 8 preimages
      nearest to the cycle are followed at a time.
    - `steps`: the orbit's length.
    - `snap`: an orbit point that lies within this share of its size of the local subspace of a cycle point, in the
      region of that point, is put on it. 0 is the measure as published; 1e-9 lets a point that is on the manifold up to
      rounding reach the cycle before the rounding error grows along the unstable direction.
    - `input`: a constant input, `(d,)`, the one the cycle belongs to.

    **Returns:** `(n,)`, between 0 and 1; NaN at the cycle itself. Cost: `steps` map evaluations a point; backwards,
    one product with every region's inverse.

    **Raises:** `ArgumentError`, `ShapeError`, `ModelError`, `PrecisionError`, `NonFiniteError`.

    **Source:** Eisenmann et al., ICLR (2026), arXiv:2510.03814, equation 6.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig3a_right")
    >>> saddle = dw.piecewise.cycle_at(f, jnp.array([[True]]))
    >>> manifold = dw.piecewise.trace_manifold(f, saddle, iterations=3)
    >>> on = manifold.sample(jax.random.key(0), 20, box=(-5, 5))
    >>> bool(jnp.all(dw.piecewise.delta_sigma(f, saddle, on, kind="stable") < 1e-15))
    True
    """
    caller = "delta_sigma"
    form = as_map(map, input, caller=caller)
    check_choice(kind, "kind", ("stable", "unstable"), caller=caller)
    check_positive_integer(steps, "steps", caller=caller)
    points = jnp.asarray(points)
    check_shape(points, "points", ("n", form.state_size), caller=caller)
    check_float64(points, "points", caller=caller)
    check_finite(points, "points", caller=caller)
    f = HostMap.of(form)
    check_cycle(f, cycle, kind, caller=caller)
    itinerary = np.asarray(cycle.itinerary)
    jacobians, _ = f.affine(itinerary)
    projections = np.stack([_projection(*bases) for bases in _both(jacobians, np.asarray(cycle.multipliers), kind)])
    frame = (np.asarray(cycle.points), itinerary, projections, np.asarray(snap, np.float64))
    if kind == "stable":
        return _forward(form, jax.tree.map(jnp.asarray, frame), points, steps)
    patterns = np.asarray(enumerate_regions(form, key=jax.random.key(0)).patterns)
    jacobians, offsets = f.affine(patterns)
    singular = np.linalg.svd(jacobians, compute_uv=False)
    regular = singular[:, -1] > 1e-13 * singular[:, 0]
    if not regular.any():
        raise ArgumentError(
            f"{caller}: kind='unstable' needs backward orbits, but every region has a singular Jacobian."
        )
    branches = (patterns[regular], np.linalg.inv(jacobians[regular]), offsets[regular])
    return jnp.asarray(_backward(f, frame, branches, np.asarray(points), steps))


def _both(jacobians, multipliers, kind: Kind):
    own = invariant_subspaces(jacobians, multipliers, kind)
    other = invariant_subspaces(jacobians, multipliers, "unstable" if kind == "stable" else "stable")
    return zip(own, other)


def _projection(own, other):
    """The projection onto the first subspace along the second."""
    frame = np.concatenate([own, other], axis=1)
    return own @ np.linalg.inv(frame)[: own.shape[1]]


def _snap(form: PiecewiseLinearMap, frame, x):
    """A point put on a local subspace where it all but lies on it."""
    points, itinerary, projections, tolerance = frame
    offset = x - points
    on = jnp.einsum("kij,kj->ki", projections, offset)
    gap = jnp.linalg.norm(offset - on, axis=1)
    here = jnp.all(itinerary == form.pattern(x), axis=1)
    here &= gap <= tolerance * (1 + jnp.linalg.norm(x))
    best = jnp.argmin(jnp.where(here, gap, jnp.inf))
    return jnp.where(here[best], points[best] + on[best], x)


def _squared(points, x):
    return jnp.min(jnp.sum((x - points) ** 2, axis=-1))


@eqx.filter_jit
def _forward(form, frame, points, steps):
    def one(x):
        start = _squared(frame[0], x)

        def step(carry, _):
            x, least = carry
            x = _snap(form, frame, form(x))
            # An orbit that has left every bound comes no nearer.
            return (x, jnp.fmin(least, _squared(frame[0], x))), None

        (_, least), _ = jax.lax.scan(step, (x, start), length=steps)
        return least / start

    return jax.vmap(one)(points)


def _backward(f: HostMap, frame, branches, points, steps):
    """Backward orbits, all branches up to the beam; on the host, since most orbits end after a few steps."""
    cycle = frame[0]
    start = _squared_to_cycle(cycle, points)
    least = start.copy()
    lanes, xs = np.arange(len(points)), points
    for _ in range(steps):
        lanes, xs = _preimages(f, branches, lanes, xs)
        xs = _snap_all(f, frame, xs)
        away = _squared_to_cycle(cycle, xs)
        np.minimum.at(least, lanes, away)
        # What has arrived comes no nearer, and what has left every bound does not come back.
        going = (away > 1e-30 * start[lanes]) & (away < 1e12 * (1 + start[lanes]))
        order = np.lexsort((away, lanes))
        order = order[going[order]]
        first = np.searchsorted(lanes[order], lanes[order])
        order = order[np.arange(len(order)) - first < _BEAM]
        lanes, xs = lanes[order], xs[order]
        if not len(lanes):
            break
    with np.errstate(invalid="ignore"):
        return least / start


def _preimages(f: HostMap, branches, lanes, xs):
    patterns, inverses, offsets = branches
    found_lanes, found = [], []
    chunk = max(1, int(4e6 // max(1, patterns.size)))
    for begin in range(0, len(xs), chunk):
        x = xs[begin : begin + chunk]
        y = np.einsum("rij,nrj->nri", inverses, x[:, None] - offsets)
        values = y @ f.W2.T + f.h2
        small = 1e-12 * (np.abs(y) @ np.abs(f.W2).T + np.abs(f.h2))
        lane, region = np.nonzero(np.all(((values > 0) == patterns) | (np.abs(values) <= small), axis=2))
        found_lanes.append(lanes[begin + lane])
        found.append(y[lane, region])
    return np.concatenate(found_lanes), np.concatenate(found)


def _snap_all(f: HostMap, frame, xs):
    points, itinerary, projections, tolerance = frame
    if not tolerance or not len(xs):
        return xs
    offset = xs[:, None] - points
    on = np.einsum("kij,nkj->nki", projections, offset)
    gap = np.linalg.norm(offset - on, axis=2)
    here = np.all((xs @ f.W2.T + f.h2 > 0)[:, None] == itinerary, axis=2)
    here &= gap <= tolerance * (1 + np.linalg.norm(xs, axis=1))[:, None]
    best = np.argmin(np.where(here, gap, np.inf), axis=1)
    lanes = np.arange(len(xs))
    return np.where(here[lanes, best][:, None], points[best] + on[lanes, best], xs)


def _squared_to_cycle(points, xs):
    return np.sum((xs[:, None] - points) ** 2, axis=2).min(axis=1) if len(xs) else np.zeros(0)


def manifold_quality(
    map: Any,
    manifold: Manifold,
    *,
    box: tuple[Any, Any],
    key: PRNGKey,
    n: int = 1000,
    steps: int = 500,
    snap: float = _SNAP,
    input: Input | None = None,
) -> float:
    """Delta_sigma of the paper: 1 where every point of the manifold is told from the points around it (host).

    The share of `n` uniform points of the box whose delta_sigma exceeds the largest one on the manifold, minus the
    median on the manifold; both samples by the same rule.

    **Arguments:**

    - `map`, `manifold`: from [`trace_manifold`][dynwarp.piecewise.trace_manifold].
    - `box`: `(lower, upper)`, each a number or `(M,)`; the manifold must meet it.
    - `key`: for both samples; `n`: the size of each.
    - `steps`, `snap`, `input`: see [`delta_sigma`][dynwarp.piecewise.delta_sigma].

    **Returns:** a float, at most 1.

    **Raises:** as `delta_sigma`; `ArgumentError` where too little of the manifold lies inside the box.

    **Source:** Eisenmann et al., ICLR (2026), arXiv:2510.03814, section 3.4.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig3a_right")
    >>> saddle = dw.piecewise.cycle_at(f, jnp.array([[True]]))
    >>> manifold = dw.piecewise.trace_manifold(f, saddle, iterations=3)
    >>> dw.piecewise.manifold_quality(f, manifold, box=(-3, 3), key=jax.random.key(0), n=100) > 0.9999
    True
    """
    caller = "manifold_quality"
    form = as_map(map, input, caller=caller)
    check_positive_integer(n, "n", caller=caller)
    room = Box.of(box, HostMap.of(form), np.asarray(manifold.cycle.points), caller=caller)
    on_key, off_key = jax.random.split(key)
    on = manifold.sample(on_key, n, box=(room.lower, room.upper))
    off = jax.random.uniform(off_key, (n, form.state_size), form.A.dtype, room.lower, room.upper)
    measure = [
        np.asarray(delta_sigma(form, manifold.cycle, x, kind=manifold.kind, steps=steps, snap=snap)) for x in (on, off)
    ]
    return float(np.mean(measure[1] > np.max(measure[0])) - np.median(measure[0]))


def invariance_residual(
    map: Any, manifold: Manifold, *, key: PRNGKey, n: int = 200, input: Input | None = None
) -> float:
    """How far a manifold is from being invariant, at random points: zero but for rounding (host).

    W^s at n steps contains its own image: the distance of images of its points to it. W^u at n steps is the image of
    W^u at n - 1: the distance of images of points of that one to it. Each is divided by 1 + the size of the image.

    **Arguments:** `map`; `manifold`, from [`trace_manifold`][dynwarp.piecewise.trace_manifold]; `key` and `n`: the
    points; `input`: a constant input, `(d,)`. Points whose images lie outside the box of a cut manifold are left out.

    **Returns:** the largest distance, a float; NaN where no image lies in the box.

    **Raises:** `ArgumentError`, `ModelError`, `PrecisionError`, `NonFiniteError`.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig5")
    >>> saddle = dw.piecewise.cycle_at(f, jnp.array([[False]]))
    >>> manifold = dw.piecewise.trace_manifold(f, saddle, kind="unstable", iterations=8)
    >>> dw.piecewise.invariance_residual(f, manifold, key=jax.random.key(0)) < 1e-12
    True
    """
    form = as_map(map, input, caller="invariance_residual")
    source = manifold
    if manifold.kind == "unstable" and manifold.iterations:
        source = trace_manifold(
            form,
            manifold.cycle,
            kind="unstable",
            iterations=manifold.iterations - 1,
            box=manifold.box if manifold.box_given else None,
            method="lines" if manifold.lines is not None else "polyhedra",
        )
    elif manifold.kind == "unstable":
        raise ArgumentError("invariance_residual: a local unstable manifold is no image; trace at least one iteration.")
    images = jax.vmap(form)(source.sample(key, n))
    lower, upper = manifold.box
    inside = np.asarray(jnp.all((images >= lower) & (images <= upper), axis=1))
    if manifold.kind == "stable" or manifold.box_given:
        images = images[inside]
    if not len(images):
        return float("nan")
    return float(np.max(np.asarray(manifold.distance(images)) / (1 + np.linalg.norm(np.asarray(images), axis=1))))
