"""Of how many dimensions the states are, and whether two inputs end in the same one: facts from derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dynwarp._checks import check_finite, check_positive, check_shape
from dynwarp.dynamics._stepping import as_floating
from dynwarp.errors import ArgumentError, ShapeError
from dynwarp.geometry._warping import root


class ImmersionRank(eqx.Module):
    """What [`immersion_rank`][dynwarp.geometry.immersion_rank] returns, of k = m directions, or m + 1 with time.

    **Attributes:**

    - `rank`: how many directions are independent, `(..., T)`; -1 where they are not finite.
    - `singular_values`: of the matrix of all directions, decreasing, `(..., T, k)`.
    - `independence`: the least singular value where each direction has length 1, `(..., T)`: 1 where they are at
      right angles, 0 where they depend on each other or one vanishes. It does not depend on units.
    """

    rank: Int[Array, "... T"]
    singular_values: Float[Array, "... T k"]
    independence: Float[Array, "... T"]

    def dimension(self) -> Int[Array, ""]:
        """The largest rank: the dimension of the states that were looked at, all together."""
        return jnp.max(self.rank)

    def immersed(self) -> Float[Array, " T"]:
        """The share of the points, at each time, where all directions are independent."""
        full = self.rank == self.singular_values.shape[-1]
        return jnp.mean(full.reshape(-1, full.shape[-1]), axis=0, dtype=self.independence.dtype)


def immersion_rank(
    tangents: Float[Array, "... T n m"],
    velocities: Float[Array, "... T n"] | None = None,
    *,
    tolerance: float | None = None,
) -> ImmersionRank:
    """The dimension of a representation by the rank of its derivatives.

    Inputs from a manifold of m dimensions lead in finite time to states of m + 1 dimensions at most. They are of that
    many, near a state, where the velocity x' and the tangents d_i x are independent; fewer where an input has not
    come yet or was forgotten (a tangent is 0), at fixed points (x' = 0), or where different inputs have merged. The
    rank tells what is so at these points, where estimates from clouds of states guess.

    **Arguments:**

    - `tangents`: `(..., T, n, m)`, those of [`representation_metric`][dynwarp.geometry.representation_metric].
    - `velocities`: `(..., T, n)`: x' of a field; of a map the difference of successive states. None: the rank at each
      time by itself, m at most.
    - `tolerance`: singular values that are at most this many times the largest count as 0; the precision times the
      larger of n and k if None.

    **Returns:** an [`ImmersionRank`][dynwarp.geometry.ImmersionRank].

    **Raises:** `ShapeError`, `ArgumentError` for what does not fit.

    **Cost:** two singular value decompositions of n x k a state.

    **Source:** theorem 3.1 of Pellegrino & Chadwick, NeurIPS (2025), arXiv:2512.04310.

    **Example:** two items, the second of which comes at the third of four steps.

    >>> net = dw.models.LeakyRNN(2, 8, dt=0.5, key=jax.random.key(0))
    >>> torus = dw.tasks.Torus(jnp.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]))
    >>> found = dw.geometry.representation_metric(net, torus, torus.grid(2), state0=jnp.zeros(8))
    >>> velocities = jnp.diff(found.states, axis=-2, prepend=jnp.zeros((2, 2, 1, 8)))
    >>> dw.geometry.immersion_rank(found.tangents).rank[0, 0].tolist()
    [1, 1, 2, 2]
    >>> dw.geometry.immersion_rank(found.tangents, velocities).rank[0, 0].tolist()
    [2, 2, 3, 3]
    """
    caller = "immersion_rank"
    tangents = as_floating(tangents)
    if tangents.ndim < 3:
        raise ShapeError(f"{caller}: `tangents` must have shape (..., T, n, m); got {tangents.shape}.")
    directions = tangents
    if velocities is not None:
        velocities = as_floating(velocities).astype(tangents.dtype)
        check_shape(velocities, "velocities", tangents.shape[:-1], caller=caller)
        directions = jnp.concatenate([velocities[..., None], tangents], axis=-1)
    n, k = directions.shape[-2:]
    if n < k:
        raise ArgumentError(f"{caller}: {k} directions in {n} dimensions depend on each other.")
    if tolerance is None:
        tolerance = float(jnp.finfo(tangents.dtype).eps) * n
    check_positive(tolerance, "tolerance", caller=caller)
    return _rank(directions, float(tolerance))


@eqx.filter_jit
def _rank(directions, tolerance):
    finite = jnp.all(jnp.isfinite(directions), axis=(-2, -1))
    values = jnp.linalg.svd(jnp.where(finite[..., None, None], directions, 0), compute_uv=False)
    rank = jnp.sum(values > tolerance * values[..., :1], axis=-1)
    lengths = root(jnp.sum(directions**2, axis=-2))[..., None, :]
    unit = jnp.where(finite[..., None, None] & (lengths > 0), directions / jnp.where(lengths > 0, lengths, 1), 0)
    independence = jnp.linalg.svd(unit, compute_uv=False)[..., -1]
    return ImmersionRank(
        jnp.where(finite, rank, -1),
        jnp.where(finite[..., None], values, jnp.nan),
        jnp.where(finite, independence, jnp.nan),
    )


class SelfIntersection(eqx.Module):
    """What [`self_intersection`][dynwarp.geometry.self_intersection] returns, at every time `(T,)`.

    **Attributes:**

    - `ratio`: the least |x(p) - x(q)| / d(p, q) over pairs of inputs that are apart, in units of the root mean square
      over these pairs: 0 where two of them end in the same state; NaN where all do, and where states are not finite.
    - `pair`: the two points, as indices into the flattened points, `(T, 2)`.
    """

    ratio: Float[Array, " T"]
    pair: Int[Array, "T 2"]


def self_intersection(
    states: Float[Array, "... T n"],
    thetas: Float[Array, "... m"] | None = None,
    *,
    periods: Sequence[float | None] | None = None,
    distances: Float[Array, "P P"] | None = None,
    separation: float = 0.25,
) -> SelfIntersection:
    """Whether inputs that are apart end in states that are close: an immersion that meets itself is no embedding.

    **Arguments:**

    - `states`: of P points at T times, `(..., T, n)`.
    - `thetas`: the points, `(..., m)`; d(p, q) is then their distance with each coordinate in units of its period, or
      of its range.
    - `periods`: of the coordinates; None: no coordinate is periodic.
    - `distances`: d(p, q) itself in place of `thetas`, `(P, P)`, such as geodesic distances; NaN where it is not known.
    - `separation`: pairs that are closer than this share of the largest distance are left out: near them the tangents
      decide, see [`immersion_rank`][dynwarp.geometry.immersion_rank].

    **Returns:** a [`SelfIntersection`][dynwarp.geometry.SelfIntersection]. Between the points anything can happen: a
    crossing shows as a ratio of the order of the spacing, which falls with a finer grid.

    **Raises:** `ShapeError`, `ArgumentError`, `NonFiniteError` for what does not fit.

    **Cost:** P^2 T n; memory P^2.

    **Example:** a figure eight meets itself, a circle does not.

    >>> angles = jnp.arange(16.0)[:, None] * (jnp.pi / 8)
    >>> circle = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)
    >>> eight = jnp.concatenate([jnp.cos(angles), jnp.sin(2 * angles)], axis=1)
    >>> found = dw.geometry.self_intersection(jnp.stack([circle, eight], axis=1), angles, periods=(2 * jnp.pi,))
    >>> found.ratio.round(2).tolist(), found.pair[1].tolist()
    ([0.77, 0.0], [4, 12])
    """
    caller = "self_intersection"
    states = as_floating(states)
    if states.ndim < 3:
        raise ShapeError(f"{caller}: `states` must have shape (..., T, n), with an axis of points; got {states.shape}.")
    points, P = states.shape[:-2], int(np.prod(states.shape[:-2]))
    if (thetas is None) == (distances is None):
        raise ArgumentError(f"{caller}: give either `thetas` or `distances`.")
    if not 0 <= separation < 1:
        raise ArgumentError(f"{caller}: `separation` must be at least 0 and below 1; got {separation!r}.")
    if distances is None:
        thetas = as_floating(thetas)
        check_shape(thetas, "thetas", (*points, "m"), caller=caller)
        check_finite(thetas, "thetas", caller=caller)
        m = thetas.shape[-1]
        periods = (None,) * m if periods is None else tuple(None if p is None else float(p) for p in periods)
        if len(periods) != m:
            raise ArgumentError(f"{caller}: `periods` must have one entry for each of the {m} coordinates.")
        check_positive([p for p in periods if p is not None], "periods", caller=caller)
        distances = _chart_distances(thetas.reshape(P, m), periods)
    elif periods is not None:
        raise ArgumentError(f"{caller}: `periods` go with `thetas`.")
    else:
        distances = as_floating(distances)
        check_shape(distances, "distances", (P, P), caller=caller)
    if P < 3:
        raise ArgumentError(f"{caller}: at least 3 points are needed; got {P}.")
    return _closest(states.reshape(P, *states.shape[-2:]), distances.astype(states.dtype), float(separation))


@eqx.filter_jit
def _chart_distances(thetas, periods):
    columns = []
    for x, period in zip(thetas.T, periods):
        apart = jnp.abs(x[:, None] - x)
        if period is None:
            extent = jnp.max(apart)
            columns.append(apart / jnp.where(extent > 0, extent, 1))
        else:
            apart = jnp.mod(apart, period)
            columns.append(jnp.minimum(apart, period - apart) / period)
    return root(sum(c**2 for c in columns))


@eqx.filter_jit
def _closest(states, distances, separation):
    far = distances > separation * jnp.nanmax(distances)
    far &= jnp.isfinite(distances) & jnp.triu(jnp.ones_like(far), 1)

    def at(states):
        squares = jnp.sum((states[:, None] - states) ** 2, axis=-1)
        ratios = jnp.where(far, root(squares) / jnp.where(far, distances, 1), jnp.inf)
        index = jnp.argmin(ratios)
        typical = root(jnp.mean(ratios**2, where=far))
        finite = jnp.all(jnp.isfinite(states)) & (typical > 0)
        ratio = jnp.where(finite, ratios.ravel()[index] / jnp.where(typical > 0, typical, 1), jnp.nan)
        return ratio, jnp.stack(jnp.unravel_index(index, ratios.shape))

    ratio, pair = jax.lax.map(at, jnp.swapaxes(states, 0, 1))
    return SelfIntersection(ratio, pair)


def checked_cloud(states: Any, caller: str) -> np.ndarray:
    """Points `(P, n)` as a NumPy array in double precision, at least 4 of them."""
    check_finite(states, "states", caller=caller)
    states = np.asarray(states, np.float64)
    if states.ndim < 2:
        raise ShapeError(f"{caller}: `states` must have shape (..., n), with an axis of points; got {states.shape}.")
    states = states.reshape(-1, states.shape[-1])
    if len(states) < 4:
        raise ArgumentError(f"{caller}: at least 4 points are needed; got {len(states)}.")
    return states
