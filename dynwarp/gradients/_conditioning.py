"""How badly a loss is conditioned, and how much of that a rate for every parameter can mend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer
from dynwarp._results import RESULTS, raise_failed
from dynwarp._typing import Scalar
from dynwarp.errors import ArgumentError

_CHUNK = 16


class ConditioningReport(eqx.Module):
    """What [`conditioning_report`][dynwarp.gradients.conditioning_report] returns. P parameters.

    **Attributes:**

    - `hessian`: `(P, P)`, in the order of `jax.flatten_util.ravel_pytree`.
    - `eigenvalues`: of it, largest first, `(P,)`.
    - `condition_number`: the largest eigenvalue by the smallest modulus that is above rounding (`rank` of them are).
    - `scaled_condition_number`: the same after dividing rows and columns by the roots of the diagonal, which is the
      best that one rate for each parameter, as of Adam, can do up to a factor P.
    - `off_diagonal`: the share |H - diag H|_F / |H|_F, 0 where parameters do not interact.
    - `rank`: how many eigenvalues are above rounding.
    - `gradient_norm`: at this point; a Hessian speaks of a minimum only where it is small.
    - `result`: `non_finite`, or `vanished` where the Hessian is zero.
    """

    hessian: Float[Array, "P P"]
    eigenvalues: Float[Array, " P"]
    condition_number: Scalar
    scaled_condition_number: Scalar
    off_diagonal: Scalar
    rank: Array
    gradient_norm: Scalar
    result: RESULTS


def conditioning_report(
    loss: Callable[..., Scalar], parameters: Any, *arguments: Any, limit: int = 2048, throw: bool = True
) -> ConditioningReport:
    """The Hessian of a loss, column by column as products with vectors, and what it says about gradient descent.

    A dense recurrence mixes its eigenvalues, so that its Hessian is far from diagonal and a rate for every parameter
    does not help; in a diagonal one each eigenvalue is a parameter.

    **Arguments:**

    - `loss`: `loss(parameters, *arguments) -> scalar`, twice differentiable.
    - `parameters`: a pytree; its floating arrays are the parameters. A part of a model: a loss that puts it in place.
    - `arguments`: whatever else the loss needs: models and data as arguments, not as closures, compile once.
    - `limit`: the most parameters; the Hessian has their square in entries.
    - `throw`: raise where `result` is not successful.

    **Returns:** a [`ConditioningReport`][dynwarp.gradients.ConditioningReport]. Cost: P derivatives of the gradient.

    **Raises:** `ArgumentError` for more parameters than `limit`, or none; `ConvergenceError` with `throw`.

    **Source:** Zucchet and Orvieto, NeurIPS 2024, arXiv:2405.21064; products: Pearlmutter, Neural Comput. 6 (1994) 147;
    diagonal scaling: van der Sluis, Numer. Math. 14 (1969) 14.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> report = dw.gradients.conditioning_report(lambda p: 50 * p[0] ** 2 + 0.5 * p[1] ** 2, jnp.zeros(2))
    >>> float(report.condition_number), float(report.scaled_condition_number), float(report.off_diagonal)
    (100.0, 1.0, 0.0)
    """
    caller = "conditioning_report"
    check_positive_integer(limit, "limit", caller=caller)
    count = sum(x.size for x in jax.tree.leaves(eqx.filter(parameters, eqx.is_inexact_array)))
    if not 1 <= count <= limit:
        raise ArgumentError(
            f"{caller}: `parameters` must hold between 1 and `limit` = {limit} numbers; got {count}. "
            "Take a part of the model, or raise `limit`."
        )
    report = _report(loss, parameters, arguments)
    if throw:
        raise_failed(report.result, caller, "Check the loss and the parameters.")
    return report


@eqx.filter_jit
def _report(loss, parameters, arguments):
    dynamic, static = eqx.partition(parameters, eqx.is_inexact_array)
    flat, unravel = jax.flatten_util.ravel_pytree(dynamic)

    def gradient(flat):
        return jax.grad(lambda p: loss(eqx.combine(unravel(p), static), *arguments))(flat)

    slope, push = jax.linearize(gradient, flat)
    columns = jax.lax.map(push, jnp.eye(len(flat), dtype=flat.dtype), batch_size=min(len(flat), _CHUNK))
    hessian = (columns + columns.T) / 2
    finite = jnp.all(jnp.isfinite(hessian))
    hessian = jnp.where(finite, hessian, 0)
    values = jnp.linalg.eigvalsh(hessian)[::-1]
    diagonal = jnp.diag(hessian)
    total = jnp.linalg.norm(hessian)
    number, rank = _condition(values)
    root = jnp.sqrt(jnp.where(jnp.abs(diagonal) > 0, jnp.abs(diagonal), 1))
    scaled, _ = _condition(jnp.linalg.eigvalsh(hessian / root[:, None] / root)[::-1])
    rest = jnp.linalg.norm(hessian - jnp.diag(diagonal))
    result = RESULTS.where(total > 0, RESULTS.successful, RESULTS.vanished)
    result = RESULTS.where(finite, result, RESULTS.non_finite)
    share = jnp.where(total > 0, rest / jnp.where(total > 0, total, 1), 0)
    return ConditioningReport(hessian, values, number, scaled, share, rank, jnp.linalg.norm(slope), result)


def _condition(values):
    sizes = jnp.abs(values)
    largest = jnp.max(sizes)
    counted = sizes > len(values) * jnp.finfo(values.dtype).eps * largest
    smallest = jnp.min(jnp.where(counted, sizes, jnp.inf))
    return jnp.where(largest > 0, largest / smallest, jnp.nan), jnp.sum(counted)
