"""How a metric differs from that of the inputs: in scale, in shape, and from place to place."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dynwarp._checks import as_real, check_shape
from dynwarp.errors import ArgumentError, ShapeError


class Warping(eqx.Module):
    """What [`warping`][dynwarp.geometry.warping] returns, at every time `(T,)` unless said otherwise.

    With G_in the metric of the inputs, A = G_in^(-1/2) G G_in^(-1/2) and ell = log A (the logarithm of the matrix), s =
    tr(ell) / m at each point, and means over the points:

    **Attributes:**

    - `scale`: the mean of s: twice the mean logarithm of the stretch.
    - `anisotropy`: the mean of |ell - s I|: 0 where all directions are stretched alike.
    - `inhomogeneity`: the root of the mean of |ell - mean ell|^2: 0 where all places are.
    - `shear`: the mean over points of |C - I|, C_ij = A_ij / sqrt(A_ii A_jj): how far the coordinates are from being
      encoded at right angles.
    - `index`: the root of the mean of |ell - mean(s) I|^2: 0 where, and only where, the representation is the input up
      to one scale. Its square is that of the anisotropy and of the spread of s together.
    - `speed`: the mean of |ell_t+1 - ell_t|, per step, `(T - 1,)`.
    - `relevance_ratio`: the mean of G along the relevant coordinates over its mean along the others; None without
      `relevant`.
    - `relevance_quantiles`: the 0.05, 0.5 and 0.95 quantiles over the points of the ratio at each point, `(3, T)`; None
      without `relevant`.
    - `irrelevant_share`: the mean over the points of the share of the other coordinates in tr G: how far they are
      compressed; None without `relevant`.
    - `boundary_stretch`: the mean of G along the relevant coordinates at the points of the boundary over its mean at
      the others; None without `boundary`.

    |.| is the Frobenius norm. Where the metric of a point is degenerate to working precision, as before a coordinate
    has reached the states, all that needs its logarithm is NaN at that time.
    """

    scale: Float[Array, " T"]
    anisotropy: Float[Array, " T"]
    inhomogeneity: Float[Array, " T"]
    shear: Float[Array, " T"]
    index: Float[Array, " T"]
    speed: Float[Array, " T-1"]
    relevance_ratio: Float[Array, " T"] | None
    relevance_quantiles: Float[Array, "3 T"] | None
    irrelevant_share: Float[Array, " T"] | None
    boundary_stretch: Float[Array, " T"] | None


def warping(
    G: Float[Array, "... T m m"],
    *,
    input_metric: Any = None,
    relevant: Sequence[int] | None = None,
    boundary: Bool[Array, "..."] | None = None,
) -> Warping:
    """Measures of how a network has warped the space of its inputs, at every time.

    **Arguments:**

    - `G`: the metric at all points and times, `(..., T, m, m)`, such as that of
      [`representation_metric`][dynwarp.geometry.representation_metric].
    - `input_metric`: the metric of the inputs, `(m, m)` or `(..., m, m)` with the axes of the points; the coordinates
      as they are if None. With it, scale, anisotropy, index and speed do not depend on the coordinates.
    - `relevant`: the indices of the coordinates that matter.
    - `boundary`: which points lie at the decision boundary, of the shape of the points; needs `relevant`.

    **Returns:** a [`Warping`][dynwarp.geometry.Warping]. Differentiable (once), also where eigenvalues are equal, so
    that losses and penalties may hold it.

    **Raises:** `ShapeError`, `ArgumentError` for what does not fit.

    **Cost:** an eigendecomposition of size m a point and time.

    **Example:** two coordinates, the first stretched by 2.

    >>> found = dw.geometry.warping(jnp.diag(jnp.array([4.0, 1.0]))[None, None], relevant=[0])
    >>> found.relevance_ratio.tolist(), found.shear.tolist(), round(float(found.index[0]), 4)
    ([4.0], [0.0], 0.9803)
    """
    G = as_real(G, "G", caller="warping")
    if G.ndim < 3 or G.shape[-2] != G.shape[-1]:
        raise ShapeError(f"warping: `G` must have shape (..., T, m, m); got {G.shape}.")
    m, points = G.shape[-1], G.shape[:-3]
    if input_metric is not None:
        input_metric = as_real(input_metric, "input_metric", caller="warping").astype(G.dtype)
        shape = (m, m) if input_metric.ndim == 2 else (*points, m, m)
        check_shape(input_metric, "input_metric", shape, caller="warping")
        input_metric = input_metric.reshape(-1, m, m)
    chosen = None
    if relevant is not None:
        chosen = tuple(sorted({int(i) for i in relevant}))
        if not chosen or chosen[0] < 0 or chosen[-1] >= m or len(chosen) == m > 1:
            raise ArgumentError(
                f"warping: `relevant` must be some but not all of the {m} coordinates; got {relevant!r}."
            )
    if boundary is not None:
        if chosen is None:
            raise ArgumentError("warping: `boundary` needs `relevant`, the coordinates whose stretch it compares.")
        check_shape(boundary, "boundary", points, caller="warping")
        boundary = jnp.asarray(boundary).reshape(-1, 1)
    return _measure(G.reshape(-1, *G.shape[-3:]), input_metric, chosen, boundary)


@eqx.filter_jit
def _measure(G, input_metric, relevant, boundary):
    m = G.shape[-1]
    relative = G
    if input_metric is not None:
        whitening = spectral(input_metric, "inverse root")[:, None]
        relative = whitening @ G @ whitening
    ratio = quantiles = share = stretch = None
    if relevant is not None:
        lengths = jnp.diagonal(G, axis1=-2, axis2=-1)
        along = jnp.mean(lengths[..., jnp.array(relevant)], axis=-1)
        others = [i for i in range(m) if i not in relevant]
        if others:
            across = jnp.mean(lengths[..., jnp.array(others)], axis=-1)
            ratio = jnp.mean(along, axis=0) / jnp.mean(across, axis=0)
            quantiles = jnp.quantile(along / across, jnp.array([0.05, 0.5, 0.95], G.dtype), axis=0)
            share = jnp.mean(len(others) * across / jnp.sum(lengths, axis=-1), axis=0)
        if boundary is not None:
            stretch = jnp.mean(along, axis=0, where=boundary) / jnp.mean(along, axis=0, where=~boundary)

    log = spectral(relative, "log")
    eye = jnp.eye(m, dtype=G.dtype)
    scale = jnp.trace(log, axis1=-2, axis2=-1) / m
    diagonal = jnp.sqrt(jnp.diagonal(relative, axis1=-2, axis2=-1))
    correlation = relative / (diagonal[..., :, None] * diagonal[..., None, :])
    spread = log - jnp.mean(log, axis=0)
    excess = log - jnp.mean(scale, axis=0)[:, None, None] * eye
    return Warping(
        scale=jnp.mean(scale, axis=0),
        anisotropy=jnp.mean(norm(log - scale[..., None, None] * eye), axis=0),
        inhomogeneity=root(jnp.mean(jnp.sum(spread**2, (-2, -1)), axis=0)),
        shear=jnp.mean(norm(correlation - eye), axis=0),
        index=root(jnp.mean(jnp.sum(excess**2, (-2, -1)), axis=0)),
        speed=jnp.mean(norm(jnp.diff(log, axis=1)), axis=0),
        relevance_ratio=ratio,
        relevance_quantiles=quantiles,
        irrelevant_share=share,
        boundary_stretch=stretch,
    )


def root(square):
    """The square root, whose derivative at 0 is 0."""
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), square)


def norm(matrix):
    """The Frobenius norm."""
    return root(jnp.sum(matrix**2, axis=(-2, -1)))


def _positive_eigh(matrix):
    w, v = jnp.linalg.eigh(matrix)
    # An eigenvalue below rounding may have either sign: its logarithm would be an accident.
    least = w.shape[-1] * jnp.finfo(w.dtype).eps * w[..., -1:]
    return jnp.where(w > least, w, jnp.nan), v


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def spectral(matrix, kind):
    """log(A) or A^(-1/2) of symmetric positive definite matrices, NaN where A is singular to working precision; its
    derivative needs no gap between eigenvalues."""
    w, v = _positive_eigh(matrix)
    values = jnp.log(w) if kind == "log" else 1 / jnp.sqrt(w)
    return (v * values[..., None, :]) @ jnp.swapaxes(v, -1, -2)


@spectral.defjvp
def _spectral_jvp(kind, primals, tangents):
    # Daleckii & Krein: the derivative in the basis of eigenvectors is the table of divided differences.
    (matrix,), (tangent,) = primals, tangents
    w, v = _positive_eigh(matrix)
    a, b = w[..., :, None], w[..., None, :]
    if kind == "log":
        z = (a - b) / (a + b)
        near = jnp.abs(z) < jnp.finfo(w.dtype).eps ** 0.25
        table = jnp.where(near, 1 + z**2 / 3, jnp.arctanh(z) / jnp.where(near, 1, z)) * 2 / (a + b)
    else:
        table = -1 / (jnp.sqrt(a) * jnp.sqrt(b) * (jnp.sqrt(a) + jnp.sqrt(b)))
    transposed = jnp.swapaxes(v, -1, -2)
    return spectral(matrix, kind), v @ (table * (transposed @ tangent @ v)) @ transposed
