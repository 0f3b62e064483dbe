"""How alike two networks warp the same inputs."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynwarp._checks import as_real, check_shape
from dynwarp.errors import ShapeError
from dynwarp.geometry._warping import root, spectral


class MetricComparison(eqx.Module):
    """What [`compare_metrics`][dynwarp.geometry.compare_metrics] returns, at every time `(T,)`.

    **Attributes:**

    - `distance`: the root of the mean over the points of |log(G^-1/2 G' G^-1/2)|^2, the affine-invariant distance: 0
      where the metrics are the same. It does not depend on the coordinates.
    - `shape_distance`: the least that it becomes where one network is scaled as a whole.
    - `correlation`: of the warpings ell - mean(s) I, ell = log(G_in^-1/2 G G_in^-1/2) and s = tr(ell) / m, over all
      points and entries: 1 where both warp alike up to strength, NaN where one does not warp at all.
    """

    distance: Float[Array, " T"]
    shape_distance: Float[Array, " T"]
    correlation: Float[Array, " T"]


def compare_metrics(
    G: Float[Array, "... T m m"], other: Float[Array, "... T m m"], *, input_metric: Any = None
) -> MetricComparison:
    """How far the metrics of two networks over the same inputs are from each other, at every time.

    **Arguments:**

    - `G`, `other`: at the same points and times, `(..., T, m, m)`.
    - `input_metric`: the metric of the inputs, `(m, m)` or `(..., m, m)` with the axes of the points, of which the
      correlation asks how it was warped; the identity if None.

    **Returns:** a [`MetricComparison`][dynwarp.geometry.MetricComparison]; NaN where a metric is degenerate.
    Differentiable.

    **Raises:** `ShapeError` for what does not fit.

    **Cost:** four eigendecompositions of size m a point and time.

    **Source:** Pennec, Fillard & Ayache, Int. J. Comput. Vis. 66 (2006) 41: the affine-invariant distance.

    **Example:** all lengths doubled.

    >>> G = jnp.diag(jnp.array([1.0, 4.0]))[None, None]
    >>> found = dw.geometry.compare_metrics(G, 4 * G)
    >>> [round(float(x[0]), 4) for x in (found.distance, found.shape_distance, found.correlation)]
    [1.9605, 0.0, 1.0]
    """
    caller = "compare_metrics"
    G, other = as_real(G, "G", caller=caller), as_real(other, "other", caller=caller)
    if G.ndim < 3 or G.shape[-2] != G.shape[-1]:
        raise ShapeError(f"{caller}: `G` must have shape (..., T, m, m); got {G.shape}.")
    check_shape(other, "other", G.shape, caller=caller)
    m, points = G.shape[-1], G.shape[:-3]
    if input_metric is not None:
        input_metric = as_real(input_metric, "input_metric", caller=caller).astype(G.dtype)
        shape = (m, m) if input_metric.ndim == 2 else (*points, m, m)
        check_shape(input_metric, "input_metric", shape, caller=caller)
        input_metric = input_metric.reshape(-1, m, m)
    flat = (-1, *G.shape[-3:])
    return _compare(G.reshape(flat), other.astype(G.dtype).reshape(flat), input_metric)


@eqx.filter_jit
def _compare(G, other, input_metric):
    m = G.shape[-1]
    eye = jnp.eye(m, dtype=G.dtype)
    whitening = spectral(G, "inverse root")
    log = spectral(whitening @ other @ whitening, "log")
    scale = jnp.mean(jnp.trace(log, axis1=-2, axis2=-1), axis=0) / m
    shape = log - scale[:, None, None] * eye

    def warped(G):
        if input_metric is not None:
            whitening = spectral(input_metric, "inverse root")[:, None]
            G = whitening @ G @ whitening
        ell = spectral(G, "log")
        return ell - jnp.mean(jnp.trace(ell, axis1=-2, axis2=-1), axis=0)[:, None, None] / m * eye

    def product(a, b):
        return jnp.sum(a * b, axis=(0, -2, -1))

    a, b = warped(G), warped(other)
    return MetricComparison(
        root(jnp.mean(jnp.sum(log**2, (-2, -1)), axis=0)),
        root(jnp.mean(jnp.sum(shape**2, (-2, -1)), axis=0)),
        product(a, b) / (root(product(a, a)) * root(product(b, b))),
    )


class DistanceComparison(eqx.Module):
    """What [`compare_distances`][dynwarp.geometry.compare_distances] returns, scalars.

    **Attributes:**

    - `difference`: the mean over the pairs of |d - d'|, each distance in units of the mean of its own.
    - `largest`: the largest of them.
    - `correlation`: Pearson's, over the pairs.
    - `pairs`: how many were compared: those whose two distances are both known.
    """

    difference: Float[Array, ""]
    largest: Float[Array, ""]
    correlation: Float[Array, ""]
    pairs: Int[Array, ""]


def compare_distances(distances: Float[Array, "P P"], other: Float[Array, "P P"]) -> DistanceComparison:
    """How differently two networks space the same inputs: their geodesic distances beside each other, up to scale.

    **Arguments:** `distances`, `other`: between all pairs of the same points, `(P, P)`, P at least 3; NaN where a
    distance is not known. The diagonal is not looked at.

    **Returns:** a [`DistanceComparison`][dynwarp.geometry.DistanceComparison]; NaN where no pair is left.

    **Raises:** `ShapeError` for what does not fit.

    **Example:**

    >>> x = jnp.array([0.0, 1.0, 3.0])
    >>> distances = jnp.abs(x[:, None] - x)
    >>> found = dw.geometry.compare_distances(distances, 2 * distances)
    >>> float(found.difference), round(float(found.correlation), 6), int(found.pairs)
    (0.0, 1.0, 3)
    """
    caller = "compare_distances"
    distances = as_real(distances, "distances", caller=caller)
    other = as_real(other, "other", caller=caller)
    P = distances.shape[0] if distances.ndim else 0
    check_shape(distances, "distances", (max(P, 3),) * 2, caller=caller)
    check_shape(other, "other", distances.shape, caller=caller)
    return _compare_distances(distances, other.astype(distances.dtype))


@eqx.filter_jit
def _compare_distances(distances, other):
    P = distances.shape[0]
    rows, columns = jnp.triu_indices(P, 1)
    a, b = distances[rows, columns], other[rows, columns]
    known = jnp.isfinite(a) & jnp.isfinite(b)
    a, b = (jnp.where(known, x, 0) / jnp.mean(x, where=known) for x in (a, b))
    apart = jnp.abs(a - b)
    u, v = (jnp.where(known, x - 1, 0) for x in (a, b))
    correlation = jnp.sum(u * v) / (root(jnp.sum(u**2)) * root(jnp.sum(v**2)))
    largest = jnp.where(jnp.any(known), jnp.max(apart), jnp.nan)
    return DistanceComparison(jnp.mean(apart, where=known), largest, correlation, jnp.sum(known))
