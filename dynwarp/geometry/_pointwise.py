"""What a chart says at one point: its tensors, masked where there are none, stretches, and a code."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._results import RESULTS
from dynwarp._typing import Scalar
from dynwarp.geometry._frames import independence, invert_upper, semidefinite_factor, solve_transposed


@eqx.filter_jit
def metric(chart, x):
    return chart._metric(x)


@eqx.filter_jit
def volume(chart, x):
    return jnp.prod(jnp.diagonal(chart._factor(x)))


@eqx.filter_jit
def christoffel(chart, x):
    return masked(*chart._connection(x))


@eqx.filter_jit
def riemann(chart, x):
    valid, _, tensor = chart._curvature(x)
    return masked(valid, tensor)


@eqx.filter_jit
def ricci(chart, x):
    valid, factor, tensor = chart._curvature(x)
    # With R^{-1} = A: G^ik = A_ia A_ka.
    inverse = invert_upper(factor)
    return masked(valid, jnp.einsum("ia,ka,ijkl->jl", inverse, inverse, tensor, precision="highest"))


@eqx.filter_jit
def scalar_curvature(chart, x):
    valid, factor, tensor = chart._curvature(x)
    return masked(valid, total_curvature(factor, tensor))


def total_curvature(factor: Float[Array, "m m"], riemann: Float[Array, "m m m m"]) -> Scalar:
    """The scalar curvature, from the components of the Riemann tensor in an orthonormal frame."""
    for _ in range(4):
        riemann = jnp.moveaxis(solve_transposed(factor, riemann), 0, -1)
    return jnp.einsum("abab->", riemann)


@eqx.filter_jit
def sectional(chart, x, v, w):
    """The curvature of the plane of two tangents; NaN where they do not span one."""
    valid, factor, tensor = chart._curvature(x)
    plane = jnp.stack([jnp.matmul(factor, each, precision="highest") for each in (v, w)], axis=1)
    # In orthonormal components of the plane, so that nearly parallel directions lose no more digits than they must.
    sizes = jnp.linalg.norm(plane, axis=0)
    plane = plane / jnp.where(sizes > 0, sizes, 1)
    along = plane[:, 0] @ plane[:, 1]
    across = plane[:, 1] - along * plane[:, 0]
    sine = jnp.linalg.norm(across)
    inverse = invert_upper(factor)
    first, second = inverse @ plane[:, 0], inverse @ (across / jnp.where(sine > 0, sine, 1))
    value = jnp.einsum("ijkl,i,j,k,l->", tensor, first, second, first, second, precision="highest")
    spans = jnp.all(sizes > 0) & (sine >= tolerance_of(chart, factor.dtype))
    return masked(valid & spans, value)


@eqx.filter_jit
def stretches(chart, x, reference):
    """The singular values of R R_ref^-1, least first: no digits are lost to squares."""
    relative = chart._factor(x)
    if reference is not None:
        factor = semidefinite_factor(reference) if eqx.is_array(reference) else reference._factor(x)
        relative = jnp.matmul(relative, invert_upper(factor), precision="highest")
    return jnp.linalg.svd(relative, compute_uv=False)[::-1]


@eqx.filter_jit
def status(chart, x, inside):
    """Why there is no connection and no curvature at a point."""
    valid, _ = sound(chart, chart._factor(x))
    finite = jnp.all(jnp.isfinite(chart._metric(x)))
    result = RESULTS.where(valid, RESULTS.successful, RESULTS.singular)
    result = RESULTS.where(finite, result, RESULTS.non_finite)
    return RESULTS.where(inside, result, RESULTS.outside)


def sound(chart, factor):
    """Whether the coordinate directions are independent, and R, the unit matrix where they are not: what is masked
    afterwards then leaves the derivatives of the rest alone."""
    valid = independence(factor) >= tolerance_of(chart, factor.dtype)
    return valid, jnp.where(valid, factor, jnp.eye(len(factor), dtype=factor.dtype))


def masked(valid, value):
    return jnp.where(valid, value, jnp.nan)


def tolerance_of(chart, dtype):
    """The least sine between coordinate directions that counts as independent."""
    return np.finfo(dtype).eps ** 0.25 if chart.tolerance is None else chart.tolerance
