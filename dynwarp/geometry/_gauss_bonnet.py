"""The total curvature of a chart, of its edges and of its corners, which by Gauss and Bonnet is a whole number."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._typing import Scalar


class GaussBonnet(eqx.Module):
    """What `gauss_bonnet` of a surface returns.

    **Attributes:**

    - `curvature`, `absolute`: the integrals of K dA and of |K| dA; `area`: that of dA.
    - `edges`: the integral of the geodesic curvature of the edges of bounded coordinates, with the surface on the left;
      an edge that is one point, as the pole of a sphere is, adds nothing.
    - `corners`: the sum of the angles by which the boundary turns where two bounded coordinates end.
    - `euler_characteristic`: (curvature + edges + corners) / 2 pi: 0 of a torus and of an annulus, 1 of a disc, 2 of a
      sphere. Its distance from a whole number is the error of the quadrature.

    **Example:** a hemisphere, of which one edge is the pole and the other one a geodesic.

    >>> def sphere(x):
    ...     s, c = jnp.sin(x), jnp.cos(x)
    ...     return jnp.stack([s[0] * c[1], s[0] * s[1], c[0]])
    >>> half = dw.geometry.Immersion(sphere, dim=2, periods=(None, 2 * jnp.pi), bounds=((0, jnp.pi / 2), None))
    >>> found = half.gauss_bonnet(12)
    >>> [round(float(value / jnp.pi), 9) for value in (found.curvature, found.edges)]
    [2.0, 0.0]
    >>> round(float(found.euler_characteristic), 9)
    1.0
    """

    curvature: Scalar
    absolute: Scalar
    area: Scalar
    edges: Scalar
    corners: Scalar
    euler_characteristic: Scalar


@eqx.filter_jit
def gauss_bonnet(chart, axes, dtype) -> GaussBonnet:
    """Of a chart of two coordinates; `axes` as of an interpolant."""
    rules = [_rule(axis) for axis in axes]
    points = np.stack(np.meshgrid(*(nodes for nodes, _ in rules), indexing="ij"), -1).reshape(-1, 2)
    weights = jnp.asarray(functools.reduce(np.multiply.outer, (w for _, w in rules)).reshape(-1), dtype)

    def at(x):
        return chart.gaussian_curvature(x), chart.volume(x), jnp.diagonal(chart._metric(x))

    K, volume, squares = jax.lax.map(at, jnp.asarray(points, dtype), batch_size=256)
    edges = corners = jnp.zeros((), dtype)
    for i in (0, 1):
        if axes[i].periodic:
            continue
        j = 1 - i
        along, along_weights = (jnp.asarray(a, dtype) for a in rules[j])
        for end, sign in ((axes[i].lower, -1), (axes[i].lower + axes[i].length, 1)):
            place = jnp.full_like(along, end)
            turns = jax.vmap(lambda x, j=j: _turning(chart, x, j))(
                jnp.stack([place, along] if i == 0 else [along, place], 1)
            )
            # An edge of no length is a point inside the surface.
            length = jax.vmap(lambda x, j=j: chart._metric(x)[j, j])(
                jnp.stack([place, along] if i == 0 else [along, place], 1)
            )
            point = jnp.max(length) <= jnp.finfo(dtype).eps * jnp.max(squares[:, j])
            total = jnp.where(point, 0, along_weights @ jnp.where(point, 0, turns))
            # Around the surface on the left the second coordinate rises where the first one ends, and falls where it
            # begins; the first one the other way round.
            edges = edges + (sign if i == 0 else -sign) * total
    if not any(axis.periodic for axis in axes):
        ends = [(axis.lower, axis.lower + axis.length) for axis in axes]
        for a in (0, 1):
            for b in (0, 1):
                G = chart._metric(jnp.asarray([ends[0][a], ends[1][b]], dtype))
                angle = jnp.arccos(G[0, 1] / jnp.sqrt(G[0, 0] * G[1, 1]))
                corners = corners + (np.pi - angle if a == b else angle)
    curvature, absolute = weights @ (K * volume), weights @ (jnp.abs(K) * volume)
    return GaussBonnet(
        curvature, absolute, weights @ volume, edges, corners, (curvature + edges + corners) / (2 * np.pi)
    )


def _turning(chart, x, j):
    """The geodesic curvature times the length, per coordinate, of the line along which coordinate j rises."""
    along = jnp.zeros_like(x).at[j].set(1)
    bend = chart._bend(x, along, along)
    cross = along[0] * bend[1] - along[1] * bend[0]
    return jnp.prod(jnp.diagonal(chart._factor(x))) * cross / chart._metric(x)[j, j]


def _rule(axis) -> tuple[np.ndarray, np.ndarray]:
    n, lower, length, periodic = axis
    if periodic:
        return lower + length * np.arange(n) / n, np.full(n, length / n)
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return lower + length * (nodes + 1) / 2, weights * length / 2
