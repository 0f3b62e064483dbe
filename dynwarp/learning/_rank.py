"""The rank of what has been learnt: singular values, effective rank, and the space that a rule cannot leave.

In a linear network every update is a sum of terms Z^m F e h^T, so that its columns lie in the span of Z[k]^m F[k] over
the steps k and lags m so far, whatever the data: R^T for RFLO, diag(W)^m R^T for e-prop, a Krylov space for
backpropagation. Optimisers that multiply updates by numbers keep that space. Elementwise ones (Adam) and nonlinear
units leave it.
"""

from __future__ import annotations

from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from dynwarp._checks import check_choice, check_finite, check_positive_integer, check_shape
from dynwarp.errors import ArgumentError, ModelError, ShapeError
from dynwarp.learning._descent import descend
from dynwarp.learning._propagators import Reach
from dynwarp.learning._rules import AbstractRule
from dynwarp.learning._units import recurrent_name


class RankProfile(eqx.Module):
    """What [`rank_profile`][dynwarp.learning.rank_profile] returns.

    **Attributes:**

    - `singular_values`: of the change, descending.
    - `effective_rank`: exp of the entropy of the singular values over their sum (Roy and Vetterli 2007); 0 if nothing
      has changed.
    """

    singular_values: Float[Array, " r"]
    effective_rank: Float[Array, ""]

    def rank(self, tolerance: float = 1e-10) -> Array:
        """How many singular values exceed `tolerance` times the largest."""
        return jnp.sum(self.singular_values > tolerance * self.singular_values[0])

    def tail(self, rank: int) -> Array:
        """The singular value after the first `rank` ones, relative to the largest; 0 where there is none."""
        s = self.singular_values
        if rank >= s.shape[0]:
            return jnp.zeros_like(s[0])
        return s[rank] / jnp.where(s[0] > 0, s[0], 1)


class ColumnSpace(eqx.Module):
    """What [`column_space`][dynwarp.learning.column_space] returns: a certificate for updates of a linear network.

    **Attributes:**

    - `basis`: orthonormal columns `(n, r)`, which span every possible change of W (and of B).
    - `dimension`: r, so that rank(change) <= r.
    - `powers`: v, the dimension of the span of the powers of the propagator's diagonal, if it is diagonal, so that
      r <= v times the dimension of the feedback; None otherwise.
    """

    basis: Float[Array, "n r"]
    dimension: int = eqx.field(static=True)
    powers: int | None = eqx.field(static=True)

    def residual(self, before: Any, after: Any, *, of: Literal["recurrent", "input"] = "recurrent") -> Float[Array, ""]:
        """The part of a change outside the space, relative to the change (Frobenius); 0 if nothing has changed."""
        change = _change(before, after, of, "ColumnSpace.residual")
        check_shape(change, "after - before", (self.basis.shape[0], None), caller="ColumnSpace.residual")
        outside = change - self.basis @ (self.basis.T @ change)
        size = jnp.linalg.norm(change)
        return jnp.linalg.norm(outside) / jnp.where(size > 0, size, 1)


def rank_profile(before: Any, after: Any, *, of: Literal["recurrent", "input"] = "recurrent") -> RankProfile:
    """The singular values and the effective rank of what learning has changed.

    **Arguments:**

    - `before`, `after`: two matrices of one shape, or two models with a recurrent weight.
    - `of`: of models, "recurrent", W, or "input", the input matrix; for LRU and S5, whose W is diagonal, it is
      [Re B; Im B].

    **Returns:** a [`RankProfile`][dynwarp.learning.RankProfile]. Batches of matrices: `jax.vmap`.

    **Raises:** `ShapeError`, `NonFiniteError`, and `ModelError` for models without that matrix.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> profile = dw.learning.rank_profile(jnp.zeros((3, 3)), jnp.diag(jnp.array([2.0, 2.0, 0.0])))
    >>> print(profile.effective_rank.round(6), profile.rank())
    2.0 2
    """
    change = _change(before, after, of, "rank_profile")
    s = jnp.linalg.svd(change, compute_uv=False)
    total = jnp.sum(s)
    share = s / jnp.where(total > 0, total, 1)
    entropy = -jnp.sum(jnp.where(share > 0, share * jnp.log(jnp.where(share > 0, share, 1)), 0))
    return RankProfile(s, jnp.where(total > 0, jnp.exp(entropy), 0))


def column_space(
    rule: AbstractRule,
    recurrent_weights: Float[Array, "... n n"],
    readouts: Float[Array, "... o n"],
    *,
    horizon: int,
    tolerance: float = 1e-10,
) -> ColumnSpace:
    """The space that holds every column of a linear network's change under a rule: an exact bound on its rank (host).

    **Arguments:**

    - `rule`: its feedback F and propagator Z decide.
    - `recurrent_weights`: W at every step of the training so far, `(K, n, n)`, or one `(n, n)` if only that is known:
      Z of RFLO and truncation to one step do not depend on it.
    - `readouts`: A at the same steps, `(K, o, n)` or `(o, n)`; of a fixed feedback only its shape counts.
    - `horizon`: the length T of the sequences: lags are below it, and below the rule's own horizon if it has one.
    - `tolerance`: on singular values relative to the largest, in deciding a dimension.

    **Returns:** a [`ColumnSpace`][dynwarp.learning.ColumnSpace]. It holds for gradient descent with any step sizes and
    batches, momentum, clipping by a global norm, online or not; weight decay must be subtracted. Not for Adam and other
    elementwise optimisers, nor nonlinear units: see [`column_space_drift`][dynwarp.learning.column_space_drift].

    **Raises:** `ShapeError`; `ArgumentError` for SnAp of higher order, whose rows have a propagator each.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> rule = dw.learning.EProp(feedback=jnp.ones((1, 4)))
    >>> W = jnp.diag(jnp.array([0.5, 0.5, 0.2, 0.2]))
    >>> dw.learning.column_space(rule, W, jnp.ones((1, 4)), horizon=10).dimension
    2
    """
    horizon = check_positive_integer(horizon, "horizon", caller="column_space")
    if isinstance(rule.propagator, Reach):
        raise ArgumentError(f"column_space: {type(rule).__name__} has a propagator for every unit; there is no bound.")
    weights, outputs = jnp.asarray(recurrent_weights), jnp.asarray(readouts)
    if weights.ndim not in (2, 3) or outputs.ndim not in (2, 3):
        raise ShapeError(
            "column_space: `recurrent_weights` must have shape (K, n, n) or (n, n) and `readouts` (K, o, n) or (o, n); "
            f"got {weights.shape} and {outputs.shape}."
        )
    weights = weights.reshape(-1, *weights.shape[-2:])
    outputs = outputs.reshape(-1, *outputs.shape[-2:])
    n = weights.shape[-1]
    check_shape(weights, "recurrent_weights", ("K", n, n), caller="column_space")
    check_shape(outputs, "readouts", ("K", None, n), caller="column_space")
    count = max(len(weights), len(outputs))
    if {len(weights), len(outputs)} - {1, count}:
        raise ShapeError(
            f"column_space: {len(weights)} `recurrent_weights` and {len(outputs)} `readouts` must be as many, or one."
        )
    weights = jnp.broadcast_to(weights, (count, n, n))
    lags = horizon if rule.horizon is None else min(horizon, rule.horizon)
    basis, diagonals = np.zeros((n, 0)), np.zeros((n, 0))
    diagonal = True
    for W, A in zip(weights, jnp.broadcast_to(outputs, (count, *outputs.shape[1:]))):
        Z, F = np.asarray(rule.propagator.matrix(W)), np.asarray(rule.feedback.matrix(A))
        columns, power = [F], np.ones(n)
        powers = [power]
        diagonal = diagonal and not np.any(Z - np.diag(np.diag(Z)))
        for _ in range(lags - 1):
            columns.append(Z @ columns[-1])
            powers.append(np.diag(Z) * powers[-1])
        basis = _span(np.concatenate([basis, *(_scaled(c) for c in columns)], axis=1), tolerance)
        diagonals = _span(np.concatenate([diagonals, _scaled(np.stack(powers, axis=1))], axis=1), tolerance)
    return ColumnSpace(jnp.asarray(basis), basis.shape[1], diagonals.shape[1] if diagonal else None)


def column_space_drift(optimizer: optax.GradientTransformation, *, steps: int = 10, seed: int = 0) -> float:
    """How far an optimiser leaves the column space of the gradients it is given (host).

    It is fed random gradients u v[k]^T with one u of eight entries and a fresh v at each step; the part of the total
    update outside the span of u is returned, relative to the update: rounding for gradient descent, momentum and
    clipping by a global norm, of order 1 for Adam. A probe, not a proof.

    **Arguments:** `optimizer`, from optax; `steps` and `seed` of the probe.

    **Example:**

    >>> import optax, dynwarp as dw
    >>> drift = dw.learning.column_space_drift
    >>> drift(optax.sgd(0.1, momentum=0.9)) < 1e-6, drift(optax.adam(0.1)) > 1e-2
    (True, True)
    """
    steps = check_positive_integer(steps, "steps", caller="column_space_drift")
    draw = np.random.default_rng(seed)
    u = draw.standard_normal(8)
    start = jnp.asarray(draw.standard_normal((8, 8)))
    weight, state = start, optimizer.init(start)
    for _ in range(steps):
        gradient = jnp.asarray(np.outer(u, draw.standard_normal(8)))
        weight, state = descend(optimizer, gradient, state, weight)
    change = np.asarray(weight - start)
    outside = change - np.outer(u, u @ change) / (u @ u)
    return float(np.linalg.norm(outside) / np.linalg.norm(change))


def _span(columns: np.ndarray, tolerance: float) -> np.ndarray:
    U, s, _ = np.linalg.svd(columns, full_matrices=False)
    return U[:, s > tolerance * max(s[0], np.finfo(s.dtype).tiny)] if s.size else columns


def _scaled(columns: np.ndarray) -> np.ndarray:
    """Columns of one length at most, so that a decay of lags does not hide a direction; zeros stay."""
    size = np.linalg.norm(columns)
    return columns / size if size > 0 else columns


def _change(before, after, of, caller):
    check_choice(of, "of", ("recurrent", "input"), caller=caller)
    first, second = _matrix(before, of, caller), _matrix(after, of, caller)
    if first.ndim != 2:
        raise ShapeError(f"{caller}: `before` must be a matrix or a model; got shape {first.shape}.")
    check_shape(second, "after", first.shape, caller=caller)
    if 0 in first.shape:
        raise ShapeError(f"{caller}: `before` must not be empty; got shape {first.shape}.")
    change = second - first
    check_finite(change, "after - before", caller=caller)
    return change


def _matrix(model, of, caller):
    if not isinstance(model, eqx.Module):
        return jnp.asarray(model)
    if of == "recurrent":
        name = recurrent_name(model)
        if name is not None:
            return getattr(model, name)
        raise ModelError(
            f"{caller}: {type(model).__name__} has no recurrent weight matrix that dynwarp knows; pass two matrices, "
            'or of="input" for a diagonal recurrence.'
        )
    for names in (("input_weight",), ("B_real", "B_imag"), ("B",)):
        if all(hasattr(model, name) for name in names):
            return jnp.concatenate([getattr(model, name) for name in names])
    raise ModelError(f"{caller}: {type(model).__name__} has no input matrix that dynwarp knows; pass two matrices.")
