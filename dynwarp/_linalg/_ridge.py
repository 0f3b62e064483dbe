"""Ridge regression by normal equations that are never factored in single precision where double is to be had."""

from __future__ import annotations

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_shape, default_float
from dynwarp._compat import concrete
from dynwarp._results import RESULTS
from dynwarp._typing import Scalar
from dynwarp.errors import ArgumentError, PrecisionError

# Panels narrower than this are not worth their overhead.
_PANEL = 64


class RidgeSolution(eqx.Module):
    """What [`ridge_regression`][] returns.

    **Attributes:**

    - `weights`: shape `(o, n)`: predictions are `features @ weights.T`.
    - `residual`: of the normal equations, relative to their right-hand side.
    - `result`: `singular` where the Gram matrix plus the ridge could not be factored.
    """

    weights: Float[Array, "o n"]
    residual: Scalar
    result: RESULTS


def ridge_regression(
    features: Float[Array, "T n"], targets: Float[Array, "T o"], ridge: float | Scalar, *, relative: bool = True
) -> RidgeSolution:
    """Minimises |X W^T - Y|^2 + r |W|^2, with r = `ridge` * trace(X^T X) / n.

    **Arguments:**

    - `features`: X, shape `(T, n)`; give it a column of ones for an intercept.
    - `targets`: Y, shape `(T, o)`.
    - `ridge`: not negative. Scaled by the mean diagonal entry of the Gram matrix, so that its meaning does not depend
      on the units of X or on T; with `relative=False` it is r itself.
    - `relative`: see above.

    **Returns:** a [`RidgeSolution`][] in the dtype of `targets`. The Gram matrix and its Cholesky factor are made in
    float64 wherever x64 is on, whatever the dtype of X: in float32 its rounding errors are of the size of
    eps * trace, and a smaller ridge gives an indefinite matrix. Differentiable both ways. Cost O(T n^2 + n^3).

    **Raises:** `ShapeError`; `ArgumentError` for a negative ridge; `PrecisionError` where float64 is off and the ridge
    is below what float32 can resolve, 10 n eps of the mean diagonal.

    **Source:** Lukoševičius and Jaeger, Comput. Sci. Rev. 3 (2009) 127, section 8.1.

    **Example:**

    >>> import jax.numpy as jnp
    >>> from dynwarp._linalg import ridge_regression
    >>> x = jnp.array([[1.0], [2.0]])
    >>> ridge_regression(x, 3 * x, 0.5).weights.round(6).tolist()
    [[2.0]]
    """
    check_shape(features, "features", ("T", "n"), caller="ridge_regression")
    check_shape(targets, "targets", (features.shape[0], "o"), caller="ridge_regression")
    working = default_float()
    check_ridge(ridge, features.shape[1], "ridge_regression", scale=None if relative else features)
    return _solve(
        features.astype(working), targets.astype(working), jnp.asarray(ridge, working), relative, targets.dtype
    )


def check_ridge(ridge: Any, n: int, caller: str, *, scale: Any = None) -> None:
    """Raises unless a concrete `ridge` is one that the normal equations of n features can resolve.

    `scale`: None where the ridge is relative to the mean diagonal of the Gram matrix; else the features themselves.
    """
    known = concrete(ridge)
    if known is None:
        return
    if not (known >= 0).all():
        raise ArgumentError(f"{caller}: `ridge` must not be negative; got {ridge!r}.")
    working = default_float()
    if working == jnp.float64:
        return
    features = None if scale is None else concrete(scale)
    factor = 1.0 if features is None else float((features**2).sum(0).mean())
    floor = 10 * n * float(jnp.finfo(working).eps) * factor
    if known.min() < floor:
        raise PrecisionError(
            f"{caller}: a ridge of {float(known.min()):.1e} is below the {floor:.1e} that float32 normal equations can "
            'resolve; set jax.config.update("jax_enable_x64", True) first, or raise `ridge`.'
        )


def gram_matrix(x: Float[Array, "T n"]) -> Float[Array, "n n"]:
    """X^T X. Of a wide X only the panels on and above the diagonal are multiplied, five eighths of the work."""
    n = x.shape[1]
    if n < 4 * _PANEL:
        return x.T @ x
    ends = [n * i // 4 for i in range(5)]
    rows = [x[:, a:b].T @ x[:, a:] for a, b in itertools.pairwise(ends)]
    upper = jnp.concatenate([jnp.pad(row, ((0, 0), (a, 0))) for row, a in zip(rows, ends)])
    return jnp.triu(upper) + jnp.triu(upper, 1).T


@eqx.filter_jit
def _solve(x, y, ridge, relative, dtype):
    return solve_normal_equations(gram_matrix(x), x.T @ y, ridge, relative, dtype)


def solve_normal_equations(
    gram: Float[Array, "n n"], cross: Float[Array, "n o"], ridge: Scalar, relative: bool, dtype: Any
) -> RidgeSolution:
    """The ridge solution of X^T X and X^T Y, in `dtype`; see [`ridge_regression`][]."""
    n = len(gram)
    scale = jnp.trace(gram) / n if relative else jnp.ones((), gram.dtype)
    matrix = gram + ridge * scale * jnp.eye(n, dtype=gram.dtype)
    weights = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(matrix), True), cross)
    size = jnp.maximum(jnp.max(jnp.abs(cross)), jnp.finfo(gram.dtype).tiny)
    residual = jax.lax.stop_gradient(jnp.max(jnp.abs(matrix @ weights - cross)) / size)
    # Cholesky answers NaN for a matrix that is not positive definite; an all-but-singular one shows in the residual.
    good = residual < jnp.sqrt(jnp.finfo(gram.dtype).eps)
    return RidgeSolution(
        weights.T.astype(dtype), residual.astype(dtype), RESULTS.where(good, RESULTS.successful, RESULTS.singular)
    )
