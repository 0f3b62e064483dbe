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

    The mean over the regions of relu(margin - s s_r |det J_r|^(1/M)), with s_r the sign of the determinant and s the
    sign of the majority, positive on a tie. |det|^(1/M) is the geometric mean of the singular values: it does not
    underflow in many dimensions as the determinant does, nor does its weight depend on their number. The penalty is
    zero if and only if all determinants have one sign and none of these means is below `margin`.

    **Arguments:**

    - `map`: a piecewise-linear model or a `PiecewiseLinearMap`, in any precision.
    - `patterns`: the regions, `(R, H)`, such as those a trajectory visits, `jax.vmap(form.pattern)(states)`.
    - `margin`: of the geometric mean of the singular values; not negative.
    - `input`: a constant input, `(d,)`.
    - `compat`: `"paper"` gives the published mean of max(0, -det J_r), which asks for positive determinants where
      equal signs would do, and underflows in many dimensions.

    **Returns:** a scalar. Works under jit, vmap and grad; where a determinant passes zero the derivative is
    unbounded, as |det|^(1/M - 1), so clip it in training; where one is exactly zero it is taken as 0. Cost O(R M^3).

    **Raises:** `ModelError` for what is not piecewise linear, `ShapeError`, `ArgumentError`.

    **Source:** Eisenmann et al., ICLR (2026), arXiv:2510.03814, equation 5, for the published form.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> fold = dw.models.PiecewiseLinearMap(  # x -> 2 x - 4 relu(x) + 1
    ...     jnp.array([[2.0]]), jnp.array([[-4.0]]), jnp.array([[1.0]]), jnp.array([1.0]), jnp.array([0.0])
    ... )
    >>> patterns = jnp.array([[False], [True]])
    >>> round(float(dw.training.invertibility_penalty(fold, patterns)), 3)
    1.0
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
    majority = jnp.where(jnp.sum(signs) < 0, -1.0, 1.0)
    sizes = jnp.exp(logs / form.state_size)
    return jnp.mean(jax.nn.relu(jnp.asarray(margin, sizes.dtype) - majority * signs * sizes))
