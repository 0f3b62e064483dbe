"""A penalty on the regions where a piecewise-linear map folds."""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from dynwarp._checks import check_choice, check_positive, check_shape
from dynwarp._typing import Input, Scalar
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.models import PiecewiseLinearMap

Compat = Literal["paper"]


def invertibility_penalty(
    map: Any,
    patterns: Bool[Array, "R H"],
    *,
    margin: Any = 1e-3,
    input: Input | None = None,
    compat: Compat | None = None,
) -> Scalar:
    """How far the determinants of some regions are from having one sign, which an invertible map needs.

    With s_r and l_r the sign and the logarithm of |det J_r|, c the mean of l_r and s the sign of the majority (positive
    on a tie): the mean over r of relu(asinh(margin) - s s_r asinh(exp(l_r - c))). Determinants count relative to their
    geometric mean, so that neither the size of the map nor its contraction matters and nothing underflows; the penalty
    is linear in a determinant near zero, so that a region can be drawn across, and logarithmic far from it. It is zero
    if and only if all determinants have one sign and none is smaller than `margin` times their geometric mean.

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in any precision.
    - `patterns`: the regions, `(R, H)`, such as those a trajectory visits, `jax.vmap(form.pattern)(states)`.
    - `margin`: not negative.
    - `input`: a constant input, `(d,)`.
    - `compat`: `"paper"` gives the published mean of max(0, -det J_r), which asks for positive determinants where
      equal signs would do, and underflows in many dimensions.

    **Returns:** a scalar. Works under jit, vmap and grad; c and s are constants of the derivative, and a region whose
    determinant is exactly zero has none. Cost O(R M^3).

    **Raises:** `ModelError` for what is not piecewise linear, `ShapeError`, `ArgumentError`.

    **Source:** Eisenmann et al., ICLR (2026), arXiv:2510.03814, equation 5, for the published form.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> fold = dw.models.PiecewiseLinearMap(  # x -> 2 x - 4 relu(x) + 1
    ...     jnp.array([[2.0]]), jnp.array([[-4.0]]), jnp.array([[1.0]]), jnp.array([1.0]), jnp.array([0.0])
    ... )
    >>> patterns = jnp.array([[False], [True]])
    >>> round(float(dw.training.invertibility_penalty(fold, patterns)), 3)
    0.442
    >>> float(dw.training.invertibility_penalty(fold, patterns, compat="paper"))
    1.0
    """
    caller = "invertibility_penalty"
    canonical = getattr(map, "canonical", None)
    if not callable(canonical):
        raise ModelError(
            f"{caller} needs a piecewise-linear model, one with `.canonical(input)`; got {type(map).__name__}."
        )
    form = canonical(input)
    if not isinstance(form, PiecewiseLinearMap):
        raise ModelError(
            f"{caller}: `canonical` of {type(map).__name__} must return a PiecewiseLinearMap; "
            f"got {type(form).__name__}."
        )
    patterns = jnp.asarray(patterns)
    check_shape(patterns, "patterns", ("R", form.h2.shape[0]), caller=caller)
    if not patterns.shape[0] or patterns.dtype != jnp.bool_:
        raise ArgumentError(
            f"{caller}: `patterns` must be boolean with at least one row; got {patterns.dtype}, shape {patterns.shape}."
        )
    if compat is not None:
        check_choice(compat, "compat", get_args(Compat), caller=caller)
    if not (isinstance(margin, int | float) and margin == 0):
        check_positive(margin, "margin", caller=caller)

    jacobians = jax.vmap(lambda pattern: form.affine(pattern)[0])(patterns)
    if compat == "paper":
        return jnp.mean(jax.nn.relu(-jnp.linalg.det(jacobians)))
    # Singular matrices are kept from the factorisation, whose derivative there is not finite.
    regular = jax.lax.stop_gradient(jnp.linalg.slogdet(jacobians).sign) != 0
    eye = jnp.eye(form.state_size, dtype=jacobians.dtype)
    signs, logs = jnp.linalg.slogdet(jnp.where(regular[:, None, None], jacobians, eye))
    signs = jax.lax.stop_gradient(jnp.where(regular, signs, 0.0))
    centre = jnp.sum(jnp.where(regular, logs, 0.0)) / jnp.maximum(jnp.sum(regular), 1)
    majority = jnp.where(jnp.sum(signs) < 0, -1.0, 1.0)
    sizes = _asinh_of_exp(logs - jax.lax.stop_gradient(centre))
    return jnp.mean(jax.nn.relu(jnp.arcsinh(jnp.asarray(margin, sizes.dtype)) - majority * signs * sizes))


def _asinh_of_exp(x):
    """asinh(e^x) for every x that is finite."""
    small = jnp.minimum(x, 0.0)
    large = jnp.maximum(x, 0.0)
    return jnp.where(x > 0, large + jnp.log1p(jnp.sqrt(1 + jnp.exp(-2 * large))), jnp.arcsinh(jnp.exp(small)))
