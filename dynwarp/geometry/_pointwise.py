"""What a metric says at one point besides its curvature: stretches, distortion, sectional curvature, and a code."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from dynwarp._results import RESULTS
from dynwarp.geometry._frames import independence, invert_upper, upper_factor


@eqx.filter_jit
def stretches(chart, x, reference):
    """The singular values of R R_ref^-1, least first: no digits are lost to squares."""
    relative = chart._factor(x)
    if reference is not None:
        factor = upper_factor(reference) if eqx.is_array(reference) else reference._factor(x)
        relative = jnp.matmul(relative, invert_upper(factor), precision="highest")
    return jnp.linalg.svd(relative, compute_uv=False)[::-1]


@eqx.filter_jit
def sectional(chart, x, v, w):
    """The curvature of the plane of two tangents; NaN where they do not span one."""
    factor, riemann = chart._curvature(x)
    plane = jnp.stack([jnp.matmul(factor, each, precision="highest") for each in (v, w)], axis=1)
    # In orthonormal components of the plane, so that nearly parallel directions lose no more digits than they must.
    sizes = jnp.linalg.norm(plane, axis=0)
    plane = plane / jnp.where(sizes > 0, sizes, 1)
    along = plane[:, 0] @ plane[:, 1]
    across = plane[:, 1] - along * plane[:, 0]
    sine = jnp.linalg.norm(across)
    inverse = invert_upper(factor)
    first, second = inverse @ plane[:, 0], inverse @ (across / jnp.where(sine > 0, sine, 1))
    value = jnp.einsum("ijkl,i,j,k,l->", riemann, first, second, first, second, precision="highest")
    spans = jnp.all(sizes > 0) & (sine >= tolerance_of(chart, factor.dtype))
    return jnp.where(spans, chart._check(factor, value)[0], jnp.nan)


@eqx.filter_jit
def status(chart, x, inside):
    """Why there is no connection and no curvature at a point."""
    factor = chart._factor(x)
    finite = jnp.all(jnp.isfinite(chart._metric(x)))
    regular = independence(factor) >= tolerance_of(chart, factor.dtype)
    result = RESULTS.where(regular, RESULTS.successful, RESULTS.singular)
    result = RESULTS.where(finite, result, RESULTS.non_finite)
    return RESULTS.where(inside, result, RESULTS.outside)


def tolerance_of(chart, dtype):
    """The least sine between coordinate directions that counts as independent."""
    return np.finfo(dtype).eps ** 0.25 if chart.tolerance is None else chart.tolerance
