"""Projections onto parameters whose recurrence is stable, and an optax transformation that keeps them there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Inexact

from dynwarp._checks import check_positive, check_shape
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.models import LSTM

# With f <= phi = 0.6 = sigmoid(0.155 + 0.25): the sums of i and o below 1 - phi, of f below (1 - phi)^2 and of g below
# (1 - phi) / 4, in the order of the gates.
_STABLE_ROWS, _STABLE_INPUT = (0.395, 0.155, 0.099, 0.395), 0.25


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


def project_row_sums(weight: Float[Array, "m n"], limit: float | Array = 1.0) -> Float[Array, "m n"]:
    """The nearest matrix (Frobenius) whose rows have sums of moduli of at most `limit`.

    The largest of these sums is the matrix norm that belongs to max_i |h_i|, the norm in which gates, each bounded by
    itself, are easily kept stable.

    **Arguments:** `weight`, `(m, n)`; `limit`, positive.

    **Returns:** the matrix; rows that are short enough stay as they are. Cost: a sort of each row.

    **Raises:** `ShapeError`, `ArgumentError`.

    **Source:** Duchi, Shalev-Shwartz, Singer and Chandra, ICML 2008, for the projection.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.training.project_row_sums(jnp.array([[3.0, -2.5], [0.2, 0.5]])).tolist()
    [[0.75, -0.25], [0.2, 0.5]]
    """
    check_shape(weight, "weight", ("m", "n"), caller="project_row_sums")
    check_positive(limit, "limit", caller="project_row_sums")
    limit, sizes = jnp.asarray(limit, weight.dtype), jnp.abs(weight)
    # What is taken from every entry so that the k largest, which stay, add up to the limit.
    counts = jnp.arange(1, weight.shape[1] + 1, dtype=weight.dtype)
    largest = -jnp.sort(-sizes, axis=1)
    excess = (jnp.cumsum(largest, axis=1) - limit) / counts
    cut = jnp.max(jnp.where(largest > excess, excess, 0), axis=1, keepdims=True, initial=0)
    return jnp.sign(weight) * jnp.maximum(sizes - cut, 0)


def project_stable_lstm(model: LSTM) -> LSTM:
    """The nearest LSTM that forgets its initial state whatever its inputs, if none of these exceeds 1 in modulus.

    Row sums of the recurrent weights are kept to 0.395 for the gates i and o, 0.155 for f, 0.099 for g, those of the
    input weights of f to 0.25, and the bias of f below 0: so f stays below 0.6, and with that the state contracts.

    **Arguments:** `model`, a [`LSTM`][dynwarp.models.LSTM], or its filtered parameters.

    **Returns:** the same with its weights projected; for
    [`project_parameters`][dynwarp.training.project_parameters], or once after every update.

    **Raises:** `ModelError` for another model.

    **Source:** Miller and Hardt, ICLR 2019, arXiv:1805.10369, proposition 2, with the numbers of Ribeiro, Tiels,
    Aguirre and Schoen, AISTATS 2020.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.training.project_stable_lstm(dw.models.LSTM(1, 4, key=jax.random.key(0)))
    >>> round(float(jnp.abs(net.recurrent_weight[8:12]).sum(1).max()), 6)
    0.099
    """
    if not isinstance(model, LSTM):
        raise ModelError(f"project_stable_lstm: `model` must be an LSTM; got {type(model).__name__}.")
    W = [project_row_sums(w, limit) for w, limit in zip(jnp.split(model.recurrent_weight, 4), _STABLE_ROWS)]
    U_i, U_f, U_g, U_o = jnp.split(model.input_weight, 4)
    U = [U_i, project_row_sums(U_f, _STABLE_INPUT), U_g, U_o] if model.input_size else [model.input_weight]
    moved = eqx.tree_at(lambda m: (m.recurrent_weight, m.input_weight), model, (jnp.concatenate(W), jnp.concatenate(U)))
    if model.bias is None:
        return moved
    n = model.hidden_size
    return eqx.tree_at(lambda m: m.bias, moved, model.bias.at[n : 2 * n].min(0))


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
