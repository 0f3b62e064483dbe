"""Rays shot at stable manifolds: where a ray crosses W^s, in any state dimension, without a piece of W^s."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dynwarp._checks import check_finite, check_float64, check_positive_integer, check_shape
from dynwarp._compat import concrete
from dynwarp._typing import Input
from dynwarp.errors import ArgumentError
from dynwarp.piecewise._as_map import as_map
from dynwarp.piecewise._cycle import Cycle
from dynwarp.piecewise._host import HostMap
from dynwarp.piecewise._rays import cross
from dynwarp.piecewise._stable_side import StableSide

MAX_PIECES = 2**18


class RayHits(eqx.Module):
    """Where a ray crosses the stable manifold of a cycle, in order along the ray; N hits, on the host.

    **Attributes:**

    - `t`: the ray's parameter, `(N,)`; `points`: origin + t direction, `(N, M)`.
    - `iterations`: the least n with F^n(point) in W^s_loc, `(N,)`.
    - `target`: the index of the cycle point whose local manifold is reached, `(N,)`.
    - `sign`: 1 where the n-th image of the ray crosses W^s_loc towards the side of `normals[target]`, -1 away from it,
      0 where it touches, `(N,)`.
    - `normals`: of the local manifolds, `(k, M)`: along the cycle each is the pull-back of the next times a positive
      number. So where the unstable multiplier is positive the sign tells to which branch of W^u the ray goes over.
    - `completed`: the iterations that were done; `truncated`: whether a limit came before those asked for, or a
      membership of W^s_loc was not decided.
    """

    t: Float[Array, " N"]
    points: Float[Array, "N M"]
    iterations: Int[Array, " N"]
    target: Int[Array, " N"]
    sign: Int[Array, " N"]
    normals: Float[Array, "k M"]
    codes: np.ndarray
    relus: int = eqx.field(static=True)
    completed: int = eqx.field(static=True)
    truncated: bool = eqx.field(static=True)

    def __len__(self) -> int:
        return self.t.shape[0]

    def itinerary(self, index: int) -> np.ndarray:
        """The ReLU patterns of a hit's orbit until it is in W^s_loc, boolean `(n, H)`."""
        steps = int(self.iterations[index])
        return np.unpackbits(self.codes[index, :steps], axis=1, count=self.relus).astype(bool)


def shoot_ray(
    map: Any,
    cycle: Cycle,
    origin: Float[Array, " M"],
    direction: Float[Array, " M"],
    *,
    iterations: int,
    length: float = np.inf,
    max_pieces: int = MAX_PIECES,
    input: Input | None = None,
) -> RayHits:
    """All crossings of origin + t direction, 0 < t <= length, with the stable manifold of a cycle (host).

    The ray is mapped forward exactly, as a polyline cut at the borders of the regions; its n-th image meets W^s_loc, a
    hyperplane as far as local orbits stay in the cycle's regions, where the ray meets the n-th preimage of W^s_loc.
    Each crossing comes once, with its least n, and its t is solved for from its itinerary. Nothing of W^s is stored, no
    inverse is needed, and the dimension of the state does not matter.

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in float64.
    - `cycle`: hyperbolic, with one unstable direction; W^s of all its points.
    - `origin`, `direction`: `(M,)`; the direction need not be of unit length.
    - `iterations`: the largest n.
    - `length`: the largest t, in units of `direction`; infinite by default, 1 for the segment from `origin` to
      `origin + direction`.
    - `max_pieces`: stops before the first iteration whose polyline has more pieces.
    - `input`: a constant input, `(d,)`.

    **Returns:** a [`RayHits`][dynwarp.piecewise.RayHits]. The origin itself does not count, nor does a piece of the ray
    that lies within W^s. Hits at corners of the polyline and on rims of W^s_loc count once; where two hits nearer
    than 1e-12 include such a one they are taken for one. Cost: 10^5 pieces a second; the number of pieces grows with
    the length of the ray's images.

    **Raises:** `ArgumentError` for a cycle without exactly one unstable direction, nonhyperbolic, on a border or of
    another map, and for a direction of length 0; `ShapeError`, `NonFiniteError`, `ModelError`, `PrecisionError`.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig3a_right")
    >>> saddle = dw.piecewise.cycle_at(f, jnp.array([[True]]))
    >>> hits = dw.piecewise.shoot_ray(f, saddle, jnp.array([-0.4, 0.6]), jnp.array([1.0, 0.5]), iterations=30)
    >>> [round(float(t), 4) for t in hits.t], hits.iterations.tolist(), hits.truncated
    ([2.0814], [0], False)
    """
    caller = "shoot_ray"
    form = as_map(map, input, caller=caller)
    check_positive_integer(iterations, "iterations", minimum=0, caller=caller)
    check_positive_integer(max_pieces, "max_pieces", caller=caller)
    origin, direction = jnp.asarray(origin), jnp.asarray(direction)
    for name, x in (("origin", origin), ("direction", direction)):
        check_shape(x, name, (form.state_size,), caller=caller)
        check_finite(x, name, caller=caller)
        check_float64(x, name, caller=caller)
    known = concrete(direction)
    if known is None or concrete(origin) is None:
        raise ArgumentError(f"{caller} runs on the host: `origin` and `direction` must be concrete, not traced.")
    if not np.any(known):
        raise ArgumentError(f"{caller}: `direction` must not be zero.")
    if not length > 0:
        raise ArgumentError(f"{caller}: `length` must be positive (it may be infinite); got {length!r}.")
    f = HostMap.of(form)
    planes = StableSide.parting(f, cycle, caller=caller)
    start, along = np.asarray(origin, np.float64)[None], np.asarray(known, np.float64)[None]
    found = cross(f, planes, start, along, np.array([float(length)]), iterations, max_pieces)
    return RayHits(
        t=jnp.asarray(found.t),
        points=jnp.asarray(start + found.t[:, None] * along),
        iterations=jnp.asarray(found.iterations),
        target=jnp.asarray(found.target),
        sign=jnp.asarray(found.sign),
        normals=jnp.asarray(planes.normal),
        codes=found.codes,
        relus=f.h2.shape[0],
        completed=found.done,
        truncated=found.done < iterations or found.undecided > 0,
    )
