"""How curved a manifold is altogether: integrals of its curvature."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp.errors import ArgumentError
from dynwarp.geometry._chart import AbstractChart
from dynwarp.tasks import FunctionManifold


class CurvatureEnergy(eqx.Module):
    """What [`curvature_energy`][dynwarp.geometry.curvature_energy] returns, K being half the scalar curvature: the
    Gaussian curvature of a surface.

    **Attributes:**

    - `energy`: the integral of K^2 over the volume.
    - `absolute`: that of |K|.
    - `total`: that of K: by Gauss and Bonnet 2 pi chi for a closed surface, 0 for a torus.
    - `volume`: the volume, or the area.
    - `defined`: the share of the points at which there is a curvature. Where it is below 1 the integrals are NaN.
    """

    energy: Float[Array, ""]
    absolute: Float[Array, ""]
    total: Float[Array, ""]
    volume: Float[Array, ""]
    defined: Float[Array, ""]


def curvature_energy(surface: AbstractChart, n: int | Sequence[int]) -> CurvatureEnergy:
    """The integrals of the curvature over a manifold, by quadrature.

    For a surface the energy has the unit 1 / length^2, and times the area none: a number that compares networks of
    different gains.

    **Arguments:**

    - `surface`: a [`Metric`][dynwarp.geometry.Metric] or an [`Immersion`][dynwarp.geometry.Immersion], such as
      [`state_manifold`][dynwarp.geometry.state_manifold], each coordinate periodic or bounded.
    - `n`: how many points along each coordinate, equally spaced along periodic ones and Gauss's nodes along others.

    **Returns:** a [`CurvatureEnergy`][dynwarp.geometry.CurvatureEnergy]. Take a larger `n` to see the error.

    **Raises:** `ArgumentError` where a coordinate has neither period nor bounds, or the manifold is a line, which has
    no curvature of its own.

    **Cost:** a curvature at each of the points.

    **Example:** the octant of a sphere but for its pole, of curvature 1.

    >>> def sphere(x):
    ...     s, c = jnp.sin(x), jnp.cos(x)
    ...     return jnp.stack([s[0] * c[1], s[0] * s[1], c[0]])
    >>> octant = dw.geometry.Immersion(sphere, dim=2, bounds=((0.1, jnp.pi / 2), (0.0, jnp.pi / 2)))
    >>> found = dw.geometry.curvature_energy(octant, 8)
    >>> round(float(found.total / found.volume), 9), float(found.defined)
    (1.0, 1.0)
    """
    if not isinstance(surface, AbstractChart):
        raise ArgumentError(
            f"curvature_energy: `surface` must be a Metric or an Immersion; got {type(surface).__name__}."
        )
    if surface.dim < 2:
        raise ArgumentError("curvature_energy: a line has no curvature of its own.")
    domain = FunctionManifold(lambda theta: theta, dim=surface.dim, periods=surface.periods, bounds=surface.bounds)
    points, weights = domain.quadrature(n)
    return _integrals(surface, points, weights)


@eqx.filter_jit
def _integrals(surface, points, weights):
    curvature, density = jax.vmap(lambda x: (surface.scalar_curvature(x) / 2, surface.volume(x)))(points)
    measure = weights * density
    energy, absolute, total = (jnp.sum(measure * f) for f in (curvature**2, jnp.abs(curvature), curvature))
    defined = jnp.mean(jnp.isfinite(curvature), dtype=density.dtype)
    return CurvatureEnergy(energy, absolute, total, jnp.sum(measure), defined)
