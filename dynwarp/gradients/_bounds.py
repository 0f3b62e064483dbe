"""Bounds on how far gradients travel, beside how far they do; and how much each input is still felt."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dynwarp._checks import check_positive
from dynwarp._linalg import eigenvalues
from dynwarp._results import RESULTS, raise_failed
from dynwarp._typing import Inputs, Scalar, States
from dynwarp.errors import ModelError, ShapeError
from dynwarp.gradients._steps import check_orbit, input_jacobians, state_jacobians
from dynwarp.models import AbstractMap


class BoundReport(eqx.Module):
    """What [`bound_report`][dynwarp.gradients.bound_report] returns. T steps; entry l - 1 of a row over lags is for the
    last l steps. Natural logarithms.

    **Attributes:**

    - `log_norms`: log |dh_T/dh_{T-l}|, spectral norms, `(T,)`; -infinity where the product vanished.
    - `log_bounds`: the sum of log sigma_max over the last l steps, `(T,)`, never below `log_norms`.
    - `log_uniform_bounds`: l log(gamma sigma_max(W)) with `gamma`, else l times the largest log sigma_max of a step,
      `(T,)`, never below `log_bounds`.
    - `log_floors`: the sum of log sigma_min over the last l steps, `(T,)`, never above `log_norms`.
    - `tightness`: exp((log_norms - log_bounds) / l), the share of the bound that a step delivers, in [0, 1], `(T,)`.
    - `holds`: whether bounds and floors hold, up to rounding, `(T,)`.
    - `vanishing_certain`: sigma_max < 1 in the uniform bound: sufficient for vanishing.
    - `exploding_possible`: sigma_max > 1 there: necessary for exploding, and not sufficient.
    - `exploding_certain`: every step has sigma_min > 1: sufficient.
    - `sigma_max`, `sigma_min`, `spectral_radius`: of the Jacobian of each step, `(T,)`. A spectral radius bounds
      nothing: neither that of a step the norm of the step, nor those of the steps the growth of their product.
    - `departure_from_normality`: Henrici's, relative, of each step, `(T,)`.
    - `result`: `non_finite` where a Jacobian is.
    """

    log_norms: Float[Array, " T"]
    log_bounds: Float[Array, " T"]
    log_uniform_bounds: Float[Array, " T"]
    log_floors: Float[Array, " T"]
    tightness: Float[Array, " T"]
    holds: Bool[Array, " T"]
    vanishing_certain: Bool[Array, ""]
    exploding_possible: Bool[Array, ""]
    exploding_certain: Bool[Array, ""]
    sigma_max: Float[Array, " T"]
    sigma_min: Float[Array, " T"]
    spectral_radius: Float[Array, " T"]
    departure_from_normality: Float[Array, " T"]
    result: RESULTS


def bound_report(
    model: AbstractMap,
    previous_states: States,
    inputs: Inputs | None = None,
    *,
    gamma: float | Scalar | None = None,
    throw: bool = True,
) -> BoundReport:
    """How the norms of the products of Jacobians compare with what the norms of the factors allow.

    |J_T ... J_{T-l+1}| <= prod sigma_max(J_t) <= (gamma sigma_max(W))^l. Below 1 the right side is *sufficient* for
    gradients to vanish; above 1 it is only *necessary* for them to explode: a nilpotent W of any norm sends every
    gradient to zero.

    **Arguments:**

    - `model`: a map.
    - `previous_states`: the states before each step, `(T, n)`: `states[:-1]` of a simulation with
      `include_initial=True`.
    - `inputs`: `(T, d)`, or None.
    - `gamma`: the largest slope of the activation, 1 for tanh and ReLU, 1/4 for the logistic function: gives the bound
      of the weights, for models whose Jacobians are a slope times `recurrent_weight`. Without, the uniform bound is
      that of the steepest step.
    - `throw`: raise where `result` is not successful.

    **Returns:** a [`BoundReport`][dynwarp.gradients.BoundReport]. The spectral radii and departures are not
    differentiated. Cost: a singular value decomposition of an `(n, n)` matrix for every step and every lag, and the
    eigenvalues of every step.

    **Raises:** `ModelError` for `gamma` with a model that has no square `recurrent_weight`; `ShapeError`,
    `NonFiniteError`, `ArgumentError`; `ConvergenceError` with `throw`.

    **Source:** Pascanu, Mikolov and Bengio, ICML 2013, arXiv:1211.5063; Bengio, Simard and Frasconi, IEEE Trans. Neural
    Netw. 5 (1994) 157.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> nilpotent = dw.models.LinearRNN(jnp.array([[0.0, 5.0], [0.0, 0.0]]), jnp.zeros((2, 1)), jnp.eye(2))
    >>> report = dw.gradients.bound_report(nilpotent, jnp.zeros((3, 2)))
    >>> bool(report.exploding_possible), jnp.exp(report.log_norms).round(9).tolist()
    (True, [5.0, 0.0, 0.0])
    """
    caller = "bound_report"
    orbit = check_orbit(model, previous_states, inputs, caller)
    weight: Any = None
    if gamma is not None:
        check_positive(gamma, "gamma", caller=caller)
        weight = getattr(model, "recurrent_weight", getattr(model, "W", None))
        if jnp.shape(weight) != (model.state_size, model.state_size):
            raise ModelError(
                f"{caller}: `gamma` needs a model with a square `recurrent_weight`; {type(model).__name__} has none."
            )
    report = _bounds(model, orbit, weight, gamma)
    if throw:
        raise_failed(report.result, caller, "Check the orbit and the weights.")
    return report


@eqx.filter_jit
def _bounds(model, orbit, weight, gamma):
    jacobians = state_jacobians(model, orbit)
    count, n, _ = jacobians.shape
    finite = jnp.all(jnp.isfinite(jacobians))
    jacobians = jnp.where(finite, jacobians, jnp.eye(n, dtype=jacobians.dtype))
    values = jnp.linalg.svd(jacobians, compute_uv=False)
    sigma_max, sigma_min = values[:, 0], values[:, -1]
    constant = jax.lax.stop_gradient(jacobians)
    multipliers = jnp.abs(eigenvalues(constant))
    squares = jnp.sum(constant**2, axis=(1, 2))
    share = jnp.sum(multipliers**2, axis=1) / jnp.where(squares > 0, squares, 1)

    log_norms = _suffix_products(jacobians, jacobians)[0][::-1]
    # Entry l - 1 is the sum over the last l steps.
    log_bounds, log_floors = (jnp.cumsum(_log(x)[::-1]) for x in (sigma_max, sigma_min))
    if weight is None:
        steepest = jnp.max(_log(sigma_max))
    else:
        steepest = _log(jnp.asarray(gamma, jacobians.dtype) * jnp.linalg.svd(weight, compute_uv=False)[0])
    lags = jnp.arange(1, count + 1, dtype=jacobians.dtype)
    uniform = lags * steepest
    slack = lags * n * 16 * jnp.finfo(jacobians.dtype).eps
    slack = slack * (1 + jnp.where(jnp.isfinite(log_bounds), jnp.abs(log_bounds), 0))
    gone = jnp.isneginf(log_norms)
    holds = (log_floors <= log_norms + slack) & (log_norms <= log_bounds + slack) & (log_bounds <= uniform + slack)
    rate = (jnp.where(gone, 0, log_norms) - jnp.where(gone, 0, log_bounds)) / lags
    result = RESULTS.where(finite, RESULTS.successful, RESULTS.non_finite)
    return BoundReport(
        log_norms=log_norms,
        log_bounds=log_bounds,
        log_uniform_bounds=uniform,
        log_floors=log_floors,
        tightness=jnp.where(gone, 0, jnp.minimum(jnp.exp(rate), 1)),
        holds=holds & finite,
        vanishing_certain=finite & (steepest < 0),
        exploding_possible=finite & (steepest > 0),
        exploding_certain=finite & jnp.all(sigma_min > 1),
        sigma_max=sigma_max,
        sigma_min=sigma_min,
        spectral_radius=multipliers[:, 0],
        departure_from_normality=jnp.where(squares > 0, jnp.sqrt(jnp.clip(1 - share, 0, 1)), 0),
        result=result,
    )


class InputSensitivity(eqx.Module):
    """What [`input_sensitivity`][dynwarp.gradients.input_sensitivity] returns.

    **Attributes:**

    - `log_norms`: log |dh_T/dx_t|, spectral norms, `(T,)`, by t; -infinity where an input is not felt at all.
    - `log_unit_norms`: the same for each unit of the last state, log |dh_T,i/dx_t|, `(T, n)`.
    - `result`: `non_finite` where a derivative is.
    """

    log_norms: Float[Array, " T"]
    log_unit_norms: Float[Array, "T n"]
    result: RESULTS


def input_sensitivity(
    model: AbstractMap, previous_states: States, inputs: Inputs, *, throw: bool = True
) -> InputSensitivity:
    """How much the last state of an orbit still feels of each input, |dh_T/dx_t| = |J_T ... J_{t+1} B_t|.

    **Arguments:** as for [`bound_report`][dynwarp.gradients.bound_report]; the inputs are required.

    **Returns:** an [`InputSensitivity`][dynwarp.gradients.InputSensitivity]; logarithms, as the norms may lie beyond
    the range of floats. Differentiable. Cost 2 n^3 flops and a decomposition of an `(n, d)` matrix a step.

    **Raises:** `ShapeError`, `NonFiniteError`, `ModelError`; `ConvergenceError` with `throw`.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> half = dw.models.LinearRNN(jnp.array([[0.5]]), jnp.ones((1, 1)), jnp.ones((1, 1)))
    >>> jnp.exp(dw.gradients.input_sensitivity(half, jnp.zeros((3, 1)), jnp.zeros((3, 1))).log_norms).tolist()
    [0.25, 0.5, 1.0]
    """
    caller = "input_sensitivity"
    if inputs is None or model.input_size == 0:
        raise ShapeError(f"{caller}: `inputs` must have shape (T, d) with d of at least 1; got none.")
    sensitivity = _sensitivity(model, check_orbit(model, previous_states, inputs, caller))
    if throw:
        raise_failed(sensitivity.result, caller, "Check the orbit and the weights.")
    return sensitivity


@eqx.filter_jit
def _sensitivity(model, orbit):
    jacobians, of_inputs = state_jacobians(model, orbit), input_jacobians(model, orbit)
    finite = jnp.all(jnp.isfinite(jacobians)) & jnp.all(jnp.isfinite(of_inputs))
    jacobians, of_inputs = (jnp.where(finite, x, jnp.zeros((), x.dtype)) for x in (jacobians, of_inputs))
    log_norms, log_units = _suffix_products(jacobians, of_inputs)
    result = RESULTS.where(finite, RESULTS.successful, RESULTS.non_finite)
    return InputSensitivity(jnp.where(finite, log_norms, jnp.nan), jnp.where(finite, log_units, jnp.nan), result)


def _suffix_products(jacobians, tails):
    """log of the norm of J_T ... J_{t+1} X_t, and of each of its rows, for every t."""
    n = jacobians.shape[1]

    def back(carry, x):
        product, scale = carry
        jacobian, tail = x
        reached = product @ tail
        norms = scale + _log(_top(reached)), scale + _log(_row_norms(reached))
        product = product @ jacobian
        size = jax.lax.stop_gradient(jnp.sqrt(jnp.sum(product**2)))
        size = jnp.where(size > 0, size, 1)
        return (product / size, scale + jnp.log(size)), norms

    start = (jnp.eye(n, dtype=jacobians.dtype), jnp.zeros((), jacobians.dtype))
    return jax.lax.scan(back, start, (jacobians, tails), reverse=True)[1]


def _top(matrix):
    return jnp.linalg.svd(matrix, compute_uv=False)[0]


def _row_norms(matrix):
    square = jnp.sum(matrix**2, axis=1)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)


def _log(x):
    """log, with log 0 = -infinity and no derivative there."""
    return jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1)), -jnp.inf)
