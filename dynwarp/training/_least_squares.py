"""Least squares whose rows arrive in pieces: normal equations, and the recursion that has an answer at every row."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive, check_positive_integer, check_shape, default_float
from dynwarp._linalg import RidgeSolution
from dynwarp._linalg._ridge import check_ridge, gram_matrix, solve_normal_equations
from dynwarp._typing import Scalar
from dynwarp.errors import ArgumentError


class RidgePath(eqx.Module):
    """What [`NormalEquations.path`][dynwarp.training.NormalEquations] returns, one row a ridge.

    **Attributes:**

    - `ridges`: shape `(R,)`, as they were given.
    - `weights`: shape `(R, o, n)`.
    - `mean_squared_error`: on the rows of the fit, summed over outputs, `(R,)`.
    - `degrees_of_freedom`: the trace of the hat matrix, `(R,)`.
    - `score`: of generalized cross-validation, error / (1 - degrees of freedom / rows)^2, `(R,)`.
    - `best`: the index of the least score.
    """

    ridges: Float[Array, " R"]
    weights: Float[Array, "R o n"]
    mean_squared_error: Float[Array, " R"]
    degrees_of_freedom: Float[Array, " R"]
    score: Float[Array, " R"]

    @property
    def best(self) -> Array:
        """The index of the least score, an integer array `()`."""
        return jnp.argmin(self.score)


class NormalEquations(eqx.Module):
    """X^T X and X^T Y of rows that were seen: `equations = equations.update(features, targets)`, as often as there are
    pieces, gives the sums of all of them, and `solve` the ridge regression on them.

    **Arguments:** `feature_size` n, `output_size` o. The sums are held in float64 wherever x64 is on, whatever the
    dtype of the rows.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> equations = dw.training.NormalEquations(1, 1)
    >>> for x in (jnp.array([[1.0]]), jnp.array([[2.0]])):
    ...     equations = equations.update(x, 3 * x)
    >>> equations.solve(0.5).weights.round(6).tolist()
    [[2.0]]
    """

    gram: Float[Array, "n n"]
    cross: Float[Array, "n o"]
    power: Scalar
    rows: Scalar

    def __init__(self, feature_size: int, output_size: int):
        n = check_positive_integer(feature_size, "feature_size", caller="NormalEquations")
        o = check_positive_integer(output_size, "output_size", caller="NormalEquations")
        working = default_float()
        self.gram, self.cross = jnp.zeros((n, n), working), jnp.zeros((n, o), working)
        self.power, self.rows = jnp.zeros((), working), jnp.zeros((), working)

    def update(self, features: Float[Array, "T n"], targets: Float[Array, "T o"]) -> NormalEquations:
        """The sums with these rows added; cost T n^2. **Raises:** `ShapeError`."""
        n, o = self.cross.shape
        check_shape(features, "features", ("T", n), caller="NormalEquations.update")
        check_shape(targets, "targets", (features.shape[0], o), caller="NormalEquations.update")
        return _update(self, features, targets)

    def solve(self, ridge: float | Scalar, *, relative: bool = True) -> RidgeSolution:
        """Minimises |X W^T - Y|^2 + r |W|^2 with r = `ridge` trace(X^T X) / n, or `ridge` itself.

        **Returns:** a module with `weights` `(o, n)`, `residual` (of the equations), `result`, `singular` where they
        could not be factored. Cost n^3.

        **Raises:** `ArgumentError` for a negative ridge; `PrecisionError` where float64 is off and the ridge is below
        what float32 can resolve.
        """
        self._check_ridge(ridge, relative)
        ridge = jnp.asarray(ridge, self.gram.dtype)
        return solve_normal_equations(self.gram, self.cross, ridge, relative, self.gram.dtype)

    def path(self, ridges: Float[Array, " R"], *, relative: bool = True) -> RidgePath:
        """The solutions for many ridges from one eigendecomposition, with their cross-validation scores.

        **Raises:** as `solve`.

        **Source:** Golub, Heath & Wahba, Technometrics 21 (1979) 215.
        """
        check_shape(ridges, "ridges", ("R",), caller="NormalEquations.path")
        self._check_ridge(ridges, relative)
        return _path(self, jnp.asarray(ridges, self.gram.dtype), relative)

    def _check_ridge(self, ridge, relative):
        # The root of the diagonal stands for the features: its squares sum to the trace.
        scale = None if relative else jnp.sqrt(jnp.diagonal(self.gram))[None]
        check_ridge(ridge, len(self.gram), "NormalEquations", scale=scale)


@eqx.filter_jit
def _update(equations, features, targets):
    working = equations.gram.dtype
    x, y = features.astype(working), targets.astype(working)
    sums = (gram_matrix(x), x.T @ y, jnp.sum(y**2), jnp.asarray(len(x), working))
    names = ("gram", "cross", "power", "rows")
    return eqx.tree_at(
        lambda e: [getattr(e, name) for name in names],
        equations,
        [getattr(equations, n) + s for n, s in zip(names, sums)],
    )


@eqx.filter_jit
def _path(equations, ridges, relative):
    size = len(equations.gram)
    scale = jnp.trace(equations.gram) / size if relative else jnp.ones((), ridges.dtype)
    values, vectors = jnp.linalg.eigh(equations.gram)
    # Rounding makes the smallest eigenvalues negative; the matrix has none.
    values = jnp.maximum(values, 0.0)
    turned = vectors.T @ equations.cross
    shrunk = values + scale * ridges[:, None]
    safe = jnp.where(shrunk > 0, shrunk, 1.0)
    coefficients = jnp.where((shrunk > 0)[..., None], turned / safe[..., None], 0.0)  # (R, n, o)
    explained = jnp.sum(coefficients * (2 * turned - values[:, None] * coefficients), axis=(1, 2))
    error = jnp.maximum(equations.power - explained, 0.0) / equations.rows
    freedom = jnp.sum(values / safe, axis=1)
    left = jnp.maximum(1 - freedom / equations.rows, 0.0)
    score = jnp.where(left > 0, error / jnp.where(left > 0, left, 1.0) ** 2, jnp.inf)
    weights = jnp.einsum("nk,rko->ron", vectors, coefficients)
    return RidgePath(ridges, weights, error, freedom, score)


class RecursiveLeastSquares(eqx.Module):
    """Ridge regression that has its answer after every row: `fit, error = fit.update(feature, target)`.

    Without forgetting, `weights` are those of a ridge regression on all rows so far with r = `ridge`; a `forgetting`
    lambda < 1 weighs a row k steps ago by lambda^k. The recursion wants float64: in float32 its covariance is soon
    indefinite.

    **Arguments:**

    - `feature_size` n, `output_size` o.
    - `ridge`: r > 0, which makes the first covariance 1 / r.
    - `forgetting`: lambda, in (0, 1].
    - `dtype`: JAX's default float if None.

    **Attributes:** `weights` `(o, n)`, `covariance` `(n, n)`, `forgetting`. Cost of a row: n^2.

    **Source:** Haykin, Adaptive Filter Theory, chapter 9; for reservoirs: Jaeger, NIPS 2002.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> fit = dw.training.RecursiveLeastSquares(1, 1, ridge=2.5)
    >>> fit, errors = fit.update_many(jnp.array([[1.0], [2.0]]), jnp.array([[3.0], [6.0]]))
    >>> fit.weights.round(6).tolist(), errors.round(4).tolist()
    ([[2.0]], [[3.0], [4.2857]])
    """

    weights: Float[Array, "o n"]
    covariance: Float[Array, "n n"]
    forgetting: Scalar

    def __init__(
        self,
        feature_size: int,
        output_size: int,
        *,
        ridge: float | Scalar = 1e-6,
        forgetting: float | Scalar = 1.0,
        dtype: Any = None,
    ):
        caller = "RecursiveLeastSquares"
        n = check_positive_integer(feature_size, "feature_size", caller=caller)
        o = check_positive_integer(output_size, "output_size", caller=caller)
        check_positive(ridge, "ridge", caller=caller)
        check_positive(forgetting, "forgetting", caller=caller)
        if isinstance(forgetting, float | int) and forgetting > 1:
            raise ArgumentError(f"{caller}: `forgetting` must lie in (0, 1]; got {forgetting!r}.")
        dtype = default_float(dtype)
        self.weights = jnp.zeros((o, n), dtype)
        self.covariance = jnp.eye(n, dtype=dtype) / jnp.asarray(ridge, dtype)
        self.forgetting = jnp.asarray(forgetting, dtype)

    def update(
        self, feature: Float[Array, " n"], target: Float[Array, " o"]
    ) -> tuple[RecursiveLeastSquares, Float[Array, " o"]]:
        """The fit with one more row, and the error of the prediction before it was seen."""
        check_shape(feature, "feature", (self.weights.shape[1],), caller="RecursiveLeastSquares.update")
        check_shape(target, "target", (self.weights.shape[0],), caller="RecursiveLeastSquares.update")
        error = target - self.weights @ feature
        spread = self.covariance @ feature
        gain = spread / (self.forgetting + feature @ spread)
        covariance = (self.covariance - jnp.outer(gain, spread)) / self.forgetting
        weights = self.weights + jnp.outer(error, gain)
        # Rounding would make the covariance unsymmetric, and then indefinite.
        new = (weights, (covariance + covariance.T) / 2)
        return eqx.tree_at(lambda fit: (fit.weights, fit.covariance), self, new), error

    def update_many(
        self, features: Float[Array, "T n"], targets: Float[Array, "T o"]
    ) -> tuple[RecursiveLeastSquares, Float[Array, "T o"]]:
        """The fit with more rows, one after the other, and all errors before each."""
        check_shape(features, "features", ("T", self.weights.shape[1]), caller="RecursiveLeastSquares.update_many")
        shape = (features.shape[0], self.weights.shape[0])
        check_shape(targets, "targets", shape, caller="RecursiveLeastSquares.update_many")
        return _update_many(self, features, targets)


@eqx.filter_jit
def _update_many(fit, features, targets):
    return jax.lax.scan(lambda fit, row: fit.update(*row), fit, (features, targets))
