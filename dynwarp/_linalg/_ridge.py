"""Ridge regression by normal equations that are never factored in single precision."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_shape, default_float
from dynwarp._compat import concrete
from dynwarp._results import RESULTS
from dynwarp._typing import Scalar
from dynwarp.errors import ArgumentError, PrecisionError


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
    known = concrete(ridge)
    if known is not None and not known >= 0:
        raise ArgumentError(f"ridge_regression: `ridge` must not be negative; got {ridge!r}.")
    working = default_float()
    if working != jnp.float64 and known is not None:
        floor = 10 * features.shape[1] * float(jnp.finfo(working).eps)
        known_features = concrete(features)
        scale = 1.0 if relative or known_features is None else float((known_features**2).sum(0).mean())
        if known < floor * scale:
            raise PrecisionError(
                f"ridge_regression: a ridge of {float(known):.1e} is below the {floor * scale:.1e} that float32 normal "
                'equations can resolve; set jax.config.update("jax_enable_x64", True) first, or raise `ridge`.'
            )
    return _solve(
        features.astype(working), targets.astype(working), jnp.asarray(ridge, working), relative, targets.dtype
    )


@eqx.filter_jit
def _solve(x, y, ridge, relative, dtype):
    n = x.shape[1]
    gram, cross = x.T @ x, x.T @ y
    scale = jnp.trace(gram) / n if relative else jnp.ones((), x.dtype)
    matrix = gram + ridge * scale * jnp.eye(n, dtype=x.dtype)
    weights = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(matrix), True), cross)
    size = jnp.maximum(jnp.max(jnp.abs(cross)), jnp.finfo(x.dtype).tiny)
    residual = jax.lax.stop_gradient(jnp.max(jnp.abs(matrix @ weights - cross)) / size)
    # Cholesky answers NaN for a matrix that is not positive definite; an all-but-singular one shows in the residual.
    good = residual < jnp.sqrt(jnp.finfo(x.dtype).eps)
    return RidgeSolution(
        weights.T.astype(dtype), residual.astype(dtype), RESULTS.where(good, RESULTS.successful, RESULTS.singular)
    )
