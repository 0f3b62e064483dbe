"""The product of the Jacobians of many steps: all its singular values, as logarithms, to working precision."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_float64, check_positive_integer
from dynwarp._linalg import eigenvalues
from dynwarp._results import RESULTS, raise_failed
from dynwarp._typing import Inputs, Scalar, States
from dynwarp.dynamics._orthonormalise import gram_schmidt
from dynwarp.errors import ArgumentError
from dynwarp.gradients._jacobi import graded_svd
from dynwarp.gradients._steps import check_orbit, state_jacobians
from dynwarp.models import AbstractMap

# The error of a logarithm from which on the result is called inaccurate.
_ERROR = 1e-6


class JacobianProduct(eqx.Module):
    """What [`jacobian_product`][dynwarp.gradients.jacobian_product] returns, the singular value decomposition of
    P = dh_T/dh_{T-lag} and its non-normality.

    **Attributes:**

    - `log_singular_values`: of P, largest first, `(n,)`, natural logarithms; -infinity for a direction that vanished.
      Divided by `lag` they are the finite-time exponents.
    - `left`, `right`: the singular vectors as columns, `(n, n)`; columns of zeros belong to directions that vanished. A
      gradient at the end along `left[:, i]` becomes `exp(log_singular_values[i])` times `right[:, i]` at the start.
    - `log_determinant`: log |det P|, which is the sum of the logarithms.
    - `log_spectral_radius`: of P.
    - `departure_from_normality`: Henrici's, relative, sqrt(1 - sum |eigenvalue|^2 / |P|_F^2): 0 for a normal P, 1 for a
      nilpotent one.
    - `error`: an estimate of the error of the logarithms from rounding.
    - `result`: `inaccurate` where `error` is above 1e-6, `non_finite` where a Jacobian is.
    - `lag`: the number of steps.
    """

    log_singular_values: Float[Array, " n"]
    left: Float[Array, "n n"]
    right: Float[Array, "n n"]
    log_determinant: Scalar
    log_spectral_radius: Scalar
    departure_from_normality: Scalar
    error: Scalar
    result: RESULTS
    lag: int = eqx.field(static=True)


def jacobian_product(
    model: AbstractMap, previous_states: States, inputs: Inputs | None = None, *, lag: int, throw: bool = True
) -> JacobianProduct:
    """dh_T/dh_{T-lag} = J_T J_{T-1} ... J_{T-lag+1}, the last `lag` steps of an orbit, latest on the left.

    Multiplied out, such a product loses all but its largest singular values after a few steps, and overflows after
    some hundred. Here a backward pass of QR decompositions finds the directions that the steps grade, a forward pass
    from there leaves a triangular factor, diag(exp d) U with d held as logarithms and U well conditioned, and Jacobi
    rotations that know d finish the work.

    **Arguments:**

    - `model`: a map.
    - `previous_states`: the states before each step, `(T, n)`, float64: `states[:-1]` of a simulation with
      `include_initial=True`. Another end than T: cut the orbit there.
    - `inputs`: of these steps, `(T, d)`, or None.
    - `lag`: how many steps, at most T.
    - `throw`: raise where `result` is not successful.

    **Returns:** a [`JacobianProduct`][dynwarp.gradients.JacobianProduct]. The logarithms have a derivative in the model
    and the orbit, forwards and backwards; what else is in it is not differentiated. In one step a direction that is
    shrunk by about 1e-14 of the largest stretch or more counts as vanished. An orbit that first shrinks and later
    stretches the same direction by many orders of magnitude has no accurate small singular values: `error` says so.
    Cost about 12 n^3 flops a step and memory for `lag` Jacobians.

    **Raises:** `ArgumentError` for a lag beyond the sequence; `ShapeError`, `NonFiniteError`, `ModelError`;
    `PrecisionError` for float32; `ConvergenceError` with `throw`.

    **Source:** Stewart, BIT 37 (1997) 216, for graded decompositions of products.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> shear = dw.models.LinearRNN(jnp.array([[2.0, 1.0], [0.0, 0.5]]), jnp.zeros((2, 1)), jnp.eye(2))
    >>> product = dw.gradients.jacobian_product(shear, jnp.zeros((500, 2)), lag=500)
    >>> [round(float(x) / 500, 2) for x in product.log_singular_values], abs(float(product.log_determinant)) < 1e-9
    ([0.69, -0.69], True)
    """
    caller = "jacobian_product"
    orbit = check_orbit(model, previous_states, inputs, caller)
    check_positive_integer(lag, "lag", caller=caller)
    if lag > len(orbit.states):
        raise ArgumentError(
            f"{caller}: `lag` must be at most the {len(orbit.states)} steps of `previous_states`; got {lag}."
        )
    check_float64(orbit.states, "previous_states", caller=caller)
    check_float64(model, "model", caller=caller)
    product = _product(model, orbit.last(lag))
    if throw:
        raise_failed(product.result, caller, "Shorten `lag`, or look at `error`: small values may be beyond float64.")
    return product


def _generic_frame(n: int) -> np.ndarray:
    """Orthonormal rows that no model has a reason to prefer."""
    return np.linalg.qr(np.random.default_rng(0).standard_normal((n, n)))[0]


@eqx.filter_jit
def _product(model, orbit):
    jacobians = state_jacobians(model, orbit)
    lag, n, _ = jacobians.shape
    finite = jnp.all(jnp.isfinite(jacobians))
    jacobians = jnp.where(finite, jacobians, jnp.eye(n, dtype=jacobians.dtype))
    frame = _graded_frame(jax.lax.stop_gradient(jacobians))
    q, d, u, paths, spreads = _triangular(jacobians, frame)
    svd = graded_svd(d, u)
    left, right = q.T @ svd.W.T, frame.T @ svd.Y.T
    alive = jnp.isfinite(svd.log_values)
    left = jax.lax.stop_gradient(jnp.where(alive, left, 0))

    error = _rounding_error(*jax.lax.stop_gradient((d, u, paths)), spreads)
    exact = svd.converged & (error <= _ERROR)
    result = RESULTS.where(exact, RESULTS.successful, RESULTS.inaccurate)
    result = RESULTS.where(finite, result, RESULTS.non_finite)
    values = jnp.where(finite, svd.log_values, jnp.nan)
    log_radius, departure = _normality(jax.lax.stop_gradient(values), left, right)
    return JacobianProduct(
        log_singular_values=values,
        left=left,
        right=right,
        log_determinant=jnp.where(finite, jnp.sum(d), jnp.nan),
        log_spectral_radius=log_radius,
        departure_from_normality=departure,
        error=error,
        result=result,
        lag=lag,
    )


def _graded_frame(jacobians):
    """Orthonormal rows that the product stretches in decreasing order, nearly its right singular vectors."""

    def back(frame, jacobian):
        return jnp.linalg.qr(jacobian.T @ frame)[0], None

    start = jnp.asarray(_generic_frame(jacobians.shape[1]), jacobians.dtype)
    return jax.lax.scan(back, start, jacobians, reverse=True)[0].T


def _triangular(jacobians, frame):
    """P frame^T = q^T diag(exp d) u: the rows q, d and u, and of every step d and the spread of its stretches."""
    n = len(frame)
    eye = jnp.eye(n, dtype=frame.dtype)
    floor = 64 * n * jnp.finfo(frame.dtype).eps

    def step(carry, jacobian):
        q, d, u = carry
        moved = q @ jacobian.T
        q, stretch = gram_schmidt(moved)
        gone = stretch <= floor * jnp.max(jax.lax.stop_gradient(stretch))
        q, one = jnp.where(gone[:, None], 0, q), jnp.where(gone, 1, stretch)
        r = jnp.triu(q @ moved.T, 1)
        # Row i of diag(exp d)^-1 R diag(exp d), with ones on the diagonal; rows that vanished are replaced.
        known = jnp.isfinite(d)
        ratio = jnp.where(known[None, :] & known[:, None], jnp.where(known, d, 0) - jnp.where(known, d, 0)[:, None], 0)
        transfer = jnp.where(known[None, :], r / one[:, None] * jnp.exp(jnp.minimum(ratio, 700.0)), 0)
        u = (transfer + eye) @ u
        d = jnp.where(gone, -jnp.inf, d + jnp.log(one))
        u = jnp.where(jnp.isfinite(d)[:, None], u, eye)
        least = jnp.min(jnp.where(gone, jnp.inf, stretch))
        spread = jax.lax.stop_gradient(jnp.where(jnp.all(gone), 0, jnp.linalg.norm(moved) / least))
        return (q, d, u), (d, spread)

    start = (frame, jnp.zeros(n, frame.dtype), eye)
    (q, d, u), (paths, spreads) = jax.lax.scan(step, start, jacobians)
    return q, d, u, paths, spreads


def _rounding_error(d, u, paths, spreads):
    """How far rounding errors of every step may move a logarithm: more where its part of the orbit runs against the
    order of the whole, as what shrinks first and is stretched later is drowned in between."""

    def disorder(x):
        after = jax.lax.cummax(x, axis=x.ndim - 1, reverse=True)
        return jnp.max(after - jnp.where(jnp.isfinite(x), x, jnp.inf), axis=-1)

    before = disorder(jnp.where(jnp.isfinite(d), paths, -jnp.inf))
    rest = jnp.where(jnp.isfinite(d), d - paths, -jnp.inf)
    amplification = jnp.maximum(jnp.maximum(before, disorder(rest)), 0)
    growth = jnp.sum(spreads * jnp.exp(jnp.minimum(amplification, 600.0)))
    return jnp.finfo(d.dtype).eps * len(d) * jnp.linalg.norm(u) * growth


def _normality(values, left, right):
    """log spectral radius and Henrici's relative departure of the product."""
    alive = jnp.isfinite(values)
    scale = jnp.where(alive[0], values[0], 0)
    sizes = jnp.where(alive, jnp.exp(jnp.where(alive, values - scale, 0)), 0)
    multipliers = jnp.abs(eigenvalues(jax.lax.stop_gradient((left * sizes) @ right.T)))
    total = jnp.sum(sizes**2)
    share = jnp.sum(multipliers**2) / jnp.where(total > 0, total, 1)
    departure = jnp.where(total > 0, jnp.sqrt(jnp.clip(1 - share, 0, 1)), 0)
    return jnp.log(multipliers[0]) + scale, departure
