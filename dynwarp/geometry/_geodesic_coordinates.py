"""The lengths of the lines of a grid of inputs, as coordinates."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import as_real, check_finite, check_shape
from dynwarp._compat import concrete
from dynwarp.errors import ArgumentError, ShapeError
from dynwarp.geometry._warping import root


class GeodesicCoordinates(eqx.Module):
    """What [`geodesic_coordinates`][dynwarp.geometry.geodesic_coordinates] returns.

    **Attributes:**

    - `coordinates`: `[..., t, i]` is the length of the line of coordinate i from the first point of the grid on it,
      `(n_1, ..., n_m, T, m)`.
    - `lengths`: the length of the whole line, of a periodic one with the way back to its first point; same shape.
    """

    coordinates: Float[Array, "... T m"]
    lengths: Float[Array, "... T m"]

    def normalised(self) -> Float[Array, "... T m"]:
        """The share of the line that lies before each point; NaN where the line has no length."""
        return self.coordinates / self.lengths


def geodesic_coordinates(
    G: Float[Array, "... T m m"], thetas: Float[Array, "... m"], *, periods: Sequence[float | None] | None = None
) -> GeodesicCoordinates:
    """How far along each coordinate the points of a grid are, in lengths of the metric instead of units of the input.

    Coordinate i is the integral of sqrt(G_ii) along the line on which the others are constant. Where a network has
    stretched the line the coordinate runs faster. These are lengths of lines of the grid, which need not be geodesics,
    though in one dimension they are.

    **Arguments:**

    - `G`: the metric on the grid, `(n_1, ..., n_m, T, m, m)`, each n_i at least 2.
    - `thetas`: the grid, `(n_1, ..., n_m, m)`, such as `manifold.grid(n)`: along axis i coordinate i increases.
    - `periods`: of the coordinates, such as `manifold.periods`. Lines of a periodic coordinate are closed: across the
      seam the last point is followed by the first.

    **Returns:** [`GeodesicCoordinates`][dynwarp.geometry.GeodesicCoordinates]; differentiable in G.

    **Raises:** `ShapeError`, `NonFiniteError`, `ArgumentError` for what does not fit.

    **Cost:** that of a sum; the trapezoidal rule, whose error is O(h^2) in the spacing h of the grid, and for the
    length of a closed line of a smooth metric less than any power of h.

    **Source:** Pellegrino & Chadwick, NeurIPS (2025), arXiv:2512.04310.

    **Example:** a line that is stretched where theta is large.

    >>> line = dw.tasks.Line(jnp.ones(1), jnp.ones(1), bounds=(0.0, 1.0))
    >>> G = (2 * line.grid(3))[:, None, :, None] ** 2
    >>> dw.geometry.geodesic_coordinates(G, line.grid(3)).normalised()[:, 0, 0].tolist()
    [0.0, 0.25, 1.0]
    """
    caller = "geodesic_coordinates"
    G, thetas = as_real(G, "G", caller=caller), as_real(thetas, "thetas", caller=caller)
    m = thetas.shape[-1] if thetas.ndim else 0
    if thetas.ndim < 2 or thetas.ndim != m + 1 or min(thetas.shape[:-1]) < 2:
        raise ShapeError(
            f"{caller}: `thetas` must be a grid, (n_1, ..., n_m, m), of at least 2 points along each coordinate; got "
            f"{thetas.shape}."
        )
    check_shape(G, "G", (*thetas.shape[:-1], "T", m, m), caller=caller)
    check_finite(thetas, "thetas", caller=caller)
    periods = (None,) * m if periods is None else tuple(None if p is None else float(p) for p in periods)
    if len(periods) != m:
        raise ArgumentError(
            f"{caller}: `periods` must have one entry for each of the {m} coordinates; got {periods!r}."
        )
    known = concrete(thetas)
    for i, period in enumerate(periods):
        if known is None:
            break
        steps = np.diff(known[..., i], axis=i)
        if not (steps > 0).all():
            raise ArgumentError(f"{caller}: coordinate {i} of `thetas` must increase along axis {i}.")
        if period is not None and not (steps.sum(i) < period).all():
            raise ArgumentError(
                f"{caller}: the grid must leave out the upper end of coordinate {i}, of period {period:g}: it is the "
                "lower one again."
            )
    return _coordinates(G, thetas, periods)


@eqx.filter_jit
def _coordinates(G, thetas, periods) -> GeodesicCoordinates:
    found = [_lines(G[..., i, i], thetas[..., i], i, period) for i, period in enumerate(periods)]
    coordinates, lengths = (jnp.stack(parts, axis=-1) for parts in zip(*found))
    return GeodesicCoordinates(coordinates, lengths)


def _lines(square: jax.Array, theta: jax.Array, axis: int, period: float | None) -> tuple[jax.Array, jax.Array]:
    """Lengths up to each point and of the whole line, `(n_1, ..., n_m, T)`."""
    speed = jnp.moveaxis(root(square), axis, 0)
    theta = jnp.moveaxis(theta, axis, 0)[..., None].astype(speed.dtype)
    steps = (speed[1:] + speed[:-1]) / 2 * (theta[1:] - theta[:-1])
    lengths = jnp.concatenate([jnp.zeros_like(speed[:1]), jnp.cumsum(steps, axis=0)])
    total = lengths[-1]
    if period is not None:
        total += (speed[0] + speed[-1]) / 2 * (period - (theta[-1] - theta[0]))
    total = jnp.broadcast_to(total, lengths.shape)
    return jnp.moveaxis(lengths, 0, axis), jnp.moveaxis(total, 0, axis)
