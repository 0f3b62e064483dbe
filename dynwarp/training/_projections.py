"""Projections onto parameters whose recurrence is stable, and an optax transformation that keeps them there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Inexact

from dynwarp._checks import check_positive, check_shape
from dynwarp.errors import ArgumentError


def project_spectral_norm(weight: Float[Array, "m n"], limit: float | Array = 1.0) -> Float[Array, "m n"]:
    """The nearest matrix (Frobenius) whose largest singular value is at most `limit`: larger ones are cut to it.

    With slopes of the activation of at most 1 and a limit below 1 the recurrence contracts, and no gradient explodes.

    **Arguments:** `weight`, `(m, n)`; `limit`, positive.

    **Returns:** the matrix. Cost: a singular value decomposition.

    **Raises:** `ShapeError`, `ArgumentError`.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.training.project_spectral_norm(jnp.diag(jnp.array([3.0, 0.5]))).round(6).tolist()
    [[1.0, 0.0], [0.0, 0.5]]
    """
    check_shape(weight, "weight", ("m", "n"), caller="project_spectral_norm")
    check_positive(limit, "limit", caller="project_spectral_norm")
    left, values, right = jnp.linalg.svd(weight, full_matrices=False)
    # What is cut off is taken away, so that a matrix that may stay is not touched by rounding.
    excess = jnp.maximum(values - jnp.asarray(limit, weight.dtype), 0)
    return weight - (left * excess) @ right


def project_modulus(values: Inexact[Array, "..."], limit: Any = 1.0) -> Inexact[Array, "..."]:
    """Each number shortened to modulus `limit` where it is longer: the same for a diagonal recurrence.

    **Arguments:** `values`, real or complex, any shape; `limit`, positive, broadcasts. An IndRNN that may amplify by
    gamma in T steps has the limit gamma^(1 / T).

    **Returns:** the numbers.

    **Raises:** `ArgumentError`.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.training.project_modulus(jnp.array([-2.0, 0.5])).tolist()
    [-1.0, 0.5]
    """
    check_positive(limit, "limit", caller="project_modulus")
    values = jnp.asarray(values)
    size = jnp.abs(values)
    limit = jnp.asarray(limit, size.dtype)
    factor = jnp.where(size > limit, limit / jnp.where(size > limit, size, 1), 1)
    return values * factor.astype(values.dtype)


def project_parameters(project: Callable[[Any], Any]) -> optax.GradientTransformation:
    """An optax transformation, the last of a chain, after which the parameters are `project(parameters)`.

    **Arguments:** `project`, from a tree of parameters to one of the same structure, for instance
    `lambda m: eqx.tree_at(lambda m: m.recurrent_weight, m, dw.training.project_spectral_norm(m.recurrent_weight))`.

    **Returns:** an `optax.GradientTransformation` whose `update` needs the parameters.

    **Raises:** `ArgumentError` in `update` without parameters.

    **Example:**

    >>> import jax.numpy as jnp, optax, dynwarp as dw
    >>> optimizer = optax.chain(optax.sgd(1.0), dw.training.project_parameters(dw.training.project_modulus))
    >>> parameters = jnp.array([0.5])
    >>> update, _ = optimizer.update(jnp.array([-3.0]), optimizer.init(parameters), parameters)
    >>> optax.apply_updates(parameters, update).tolist()
    [1.0]
    """
    if not callable(project):
        raise ArgumentError(f"project_parameters: `project` must be a function of the parameters; got {project!r}.")

    def update(updates, state, params=None):
        if params is None:
            raise ArgumentError("project_parameters: needs the parameters: update(updates, state, params).")
        moved = project(optax.apply_updates(params, updates))
        return jax.tree.map(lambda new, old: new - old, moved, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
