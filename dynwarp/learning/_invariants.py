"""What learning conserves, and where it must therefore land."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_shape
from dynwarp.errors import ArgumentError
from dynwarp.learning._expected_update import matrices_of
from dynwarp.learning._feedback import Fixed, Symmetric
from dynwarp.learning._propagators import Diagonal, Exact, Reach
from dynwarp.learning._rules import AbstractRule
from dynwarp.learning._teacher import Teacher, cast, check_learnable


def mode_invariant(rule: AbstractRule, state: Float[Array, "... 3"]) -> Float[Array, "..."]:
    """The conserved quantity of a mode: a^2 - b^2 for BPTT, a - b^2 / (2 R) for fixed feedback R and exact propagation.

    **Arguments:**

    - `rule`: its propagator must be the mode's own multiplier, at any length of sequence: BPTT, RTRL, UORO, e-prop,
      feedback alignment. Truncation and RFLO's decay conserve nothing.
    - `state`: (a, b, w) along the last axis.

    **Raises:** `ArgumentError` for a rule without an invariant.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> float(dw.learning.mode_invariant(dw.learning.BPTT(), jnp.array([2.0, 1.0, 0.3])))
    3.0
    """
    state = jnp.asarray(state)
    check_shape(state, "state", (*state.shape[:-1], 3), caller="mode_invariant")
    _check_conserving(rule, "mode_invariant")
    rule = cast(rule, state.dtype)
    a, b = state[..., 0], state[..., 1]
    if isinstance(rule.feedback, Symmetric):
        return a**2 - b**2
    return a - b**2 / (2 * rule.feedback.mode(a))


def predicted_landing(rule: AbstractRule, teacher: Teacher, initial: Float[Array, "... 3"]) -> Float[Array, "... 3"]:
    """Where a mode lands, from its invariant alone, without integrating.

    BPTT: s^2 = (C + sqrt(C^2 + 4 p^2)) / 2 with C = a^2 - b^2, with the sign of a if C > 0, else of p b; a start
    exactly on the saddle's stable manifold (C = 0, p a b < 0) goes to (0, 0, .) instead and is NaN here. Fixed
    feedback R: the root of 2 R s^3 - 2 R C s^2 = p^2, C = a - b^2 / (2 R), with R s > 0, if the lane does not meet a
    wall first.

    **Arguments:**

    - `rule`: as in [`mode_invariant`][dynwarp.learning.mode_invariant].
    - `teacher`: leaves broadcast against the leading axes of `initial`.
    - `initial`: (a, b, w) along the last axis.

    **Returns:** the optimum (s, p/s, w*), the shape of `initial`; differentiable.

    **Raises:** `ArgumentError` for a rule without an invariant, or a teacher with a b = 0.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> l = dw.learning
    >>> print(l.predicted_landing(l.BPTT(), l.Teacher(1.0, 1.0, 0.6), jnp.array([0.5, 0.3, 0.1])).round(5))
    [1.04077 0.96083 0.6    ]
    """
    check_learnable(teacher, "predicted_landing")
    initial = jnp.asarray(initial)
    invariant = mode_invariant(rule, initial)
    rule, teacher = cast((rule, teacher), initial.dtype)
    a, b, p = initial[..., 0], initial[..., 1], teacher.product
    if isinstance(rule.feedback, Symmetric):
        root = jnp.sqrt(invariant**2 + 4 * p**2)
        # For C < 0 the sum cancels; the product of the two roots is -p^2.
        square = jnp.where(invariant >= 0, (invariant + root) / 2, 2 * p**2 / (root - invariant))
        sign = jnp.where(invariant > 0, jnp.sign(a), jnp.sign(p * b))
        sign = jnp.where((invariant == 0) & (p * a * b <= 0), jnp.nan, sign)
        s = sign * jnp.sqrt(square)
    else:
        s = _cubic_root(rule.feedback.mode(a), invariant, p)
    return jnp.stack(jnp.broadcast_arrays(s, p / s, teacher.w), axis=-1)


def network_invariants(student: Any) -> Float[Array, "n n"]:
    """A^T A - B B^T + W^T W - W W^T, which the stationary BPTT flow of a linear network conserves.

    **Arguments:** `student`: a [`LinearRNN`][dynwarp.models.LinearRNN], or any object with W, B and A.

    **Returns:** the symmetric matrix of n (n + 1) / 2 invariants, by Noether's theorem for changes of basis.

    **Example:**

    >>> import jax.numpy as jnp, types, dynwarp as dw
    >>> net = types.SimpleNamespace(W=jnp.array([[0.5]]), B=jnp.array([[1.0]]), A=jnp.array([[2.0]]))
    >>> dw.learning.network_invariants(net).tolist()
    [[3.0]]
    """
    (W, B, A), _ = matrices_of(student, student, "network_invariants")
    return A.T @ A - B @ B.T + W.T @ W - W @ W.T


def _check_conserving(rule, caller):
    propagates = isinstance(rule.propagator, Exact | Diagonal | Reach)
    if rule.horizon is None and propagates and isinstance(rule.feedback, Symmetric | Fixed):
        return
    raise ArgumentError(
        f"{caller}: only rules with exact propagation, no horizon, and symmetric or fixed feedback have an invariant; "
        f"got {type(rule).__name__} with {rule.feedback}, {rule.propagator}, horizon {rule.horizon}."
    )


def _cubic_root(R, C, p):
    # With x = s sign(R): x^2 (x - C sign(R)) = p^2 / (2 |R|) has one positive root.
    c, k = jnp.broadcast_arrays(C * jnp.sign(R), p**2 / (2 * jnp.abs(R)))
    # Newton's method falls monotonically from above: the start has x >= c and x^2 (x - c) >= k.
    start = jax.lax.stop_gradient(jnp.maximum(c, 0) + jnp.cbrt(k))

    def newton(_, x):
        return x - (x**2 * (x - c) - k) / (x * (3 * x - 2 * c))

    x = jax.lax.stop_gradient(jax.lax.fori_loop(0, 60, newton, start))
    # One more step, now with derivatives: those of the root, by the implicit function theorem.
    slope = jax.lax.stop_gradient(x * (3 * x - 2 * c))
    return (x - (x**2 * (x - c) - k) / slope) * jnp.sign(R)
