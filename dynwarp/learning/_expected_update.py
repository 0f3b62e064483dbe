"""The exact expectation of a rule's update over white-noise inputs, for whole networks and without any alignment.

A finite horizon needs impulse responses alone: on white noise the update is the rule's own update for the impulses,
one an input. With e[k] = A W^k B - A* W*^k B*, h[k] = W^k B and g[k] = F e[k] + Z g[k+1], cut to the rule's horizon,

    Delta A = sum_k e[k] h[k]^T,    Delta B = g[0],    Delta W = sum_k g[k+1] h[k]^T.

The stationary limit needs four Stein equations: S = W S W^T + B B^T, X = W* X W^T + B* B^T, Q = Z Q W + F A,
Y = Z Y W* + F A*; then Delta A = A S - A* X, Delta B = Q B - Y B*, Delta W = Q W S - Y W* X.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer, check_shape
from dynwarp._compat import concrete
from dynwarp._linalg._shared_stein import solve_shared_stein
from dynwarp.errors import ArgumentError, ConvergenceError
from dynwarp.learning._propagators import Exact, Reach
from dynwarp.learning._rules import AbstractRule


class ExpectedUpdate(NamedTuple):
    """Delta of the recurrent, input and output matrices; learning is theta <- theta - eta Delta."""

    dW: Float[Array, "n n"]
    dB: Float[Array, "n i"]
    dA: Float[Array, "o n"]


def expected_update(rule: AbstractRule, student: Any, teacher: Any, *, horizon: int | None = None) -> ExpectedUpdate:
    """The exact expectation of a rule's update: white inputs N(0, I), h[0] = 0, half the squared error at the end.

    **Arguments:**

    - `rule`: any rule; a fixed feedback has shape `(outputs, n)`.
    - `student`, `teacher`: [`LinearRNN`][dynwarp.models.LinearRNN]s, or any object with matrices W (n, n), B (n,
      inputs) and A (outputs, n). Their numbers of units may differ.
    - `horizon`: the length T of the sequences; None is the stationary limit.

    **Returns:** `(dW, dB, dA)`. Differentiable in all matrices and in the rule, forwards and backwards. Under a
    user's own jit the result is NaN where the stationary limit does not exist.

    **Raises:** `ShapeError` where sizes do not fit; `ConvergenceError` where the stationary sums diverge: spectral
    radii of W, W*, or the propagator's times theirs, at or beyond 1.

    **Cost:** O(T n^2) for a finite horizon (times the rule's own horizon if it has one); for the limit about ten (n,
    n) products a doubling, 7 doublings at a spectral radius of 0.9 and 14 at 0.999.

    **Source:** the expectation of Williams, Payeur and Lajoie (arXiv 2606.00243) without their alignment; for BPTT the
    gradient of H2-optimal model reduction (Wilson 1970).

    **Example:**

    >>> import jax.numpy as jnp, types, dynwarp as dw
    >>> net = lambda w, b, a: types.SimpleNamespace(W=jnp.array([[w]]), B=jnp.array([[b]]), A=jnp.array([[a]]))
    >>> dW, dB, dA = dw.learning.expected_update(dw.learning.BPTT(), net(0.55, 1.3, 0.7), net(-0.35, 0.8, 1.1))
    >>> print(dA.round(6))
    [[0.736728]]
    """
    caller = "expected_update"
    student_matrices, teacher_matrices = matrices_of(student, teacher, caller)
    if horizon is not None:
        horizon = check_positive_integer(horizon, "horizon", caller=caller)
        return _finite(rule, student_matrices, teacher_matrices, horizon)
    update, converged = _stationary(rule, student_matrices, teacher_matrices)
    _raise_diverged(converged, rule, student_matrices[0], teacher_matrices[0], caller)
    return update


def expected_loss(student: Any, teacher: Any, *, horizon: int | None = None) -> Float[Array, ""]:
    """The expectation of half the squared output error after `horizon` steps of white noise, or in the limit.

    **Arguments, errors:** as in [`expected_update`][dynwarp.learning.expected_update], whose BPTT is its gradient.

    **Returns:** a scalar; differentiable.

    **Example:**

    >>> import jax.numpy as jnp, types, dynwarp as dw
    >>> net = lambda w, b, a: types.SimpleNamespace(W=jnp.array([[w]]), B=jnp.array([[b]]), A=jnp.array([[a]]))
    >>> print(f"{dw.learning.expected_loss(net(0.2, 0.5, 0.5), net(0.6, 1.0, 1.0)):.6f}")
    0.529711
    """
    caller = "expected_loss"
    student_matrices, teacher_matrices = matrices_of(student, teacher, caller)
    if horizon is not None:
        horizon = check_positive_integer(horizon, "horizon", caller=caller)
        errors, _ = _impulses(student_matrices, teacher_matrices, horizon)
        return jnp.sum(errors**2) / 2
    loss, converged = _stationary_loss(student_matrices, teacher_matrices)
    _raise_diverged(converged, None, student_matrices[0], teacher_matrices[0], caller)
    return loss


def matrices_of(student: Any, teacher: Any, caller: str):
    """(W, B, A) of both, with their shapes checked."""
    W, B, A = (jnp.asarray(getattr(student, name)) for name in "WBA")
    V, D, C = (jnp.asarray(getattr(teacher, name)) for name in "WBA")
    check_shape(B, "student.B", ("n", None), caller=caller)
    check_shape(A, "student.A", (None, "n"), caller=caller)
    n, inputs, outputs = B.shape[0], B.shape[1], A.shape[0]
    check_shape(W, "student.W", (n, n), caller=caller)
    check_shape(A, "student.A", (outputs, n), caller=caller)
    check_shape(D, "teacher.B", ("n", inputs), caller=caller)
    check_shape(V, "teacher.W", (D.shape[0], D.shape[0]), caller=caller)
    check_shape(C, "teacher.A", (outputs, D.shape[0]), caller=caller)
    if 0 in (n, inputs, outputs, D.shape[0]):
        raise ArgumentError(
            f"{caller}: networks need at least one unit, input and output; got B {B.shape}, A {A.shape}."
        )
    return (W, B, A), (V, D, C)


def _impulses(student, teacher, horizon):
    """Output errors (T, o, i) and hidden states (T, n, i) after an impulse at each input."""
    (W, B, A), (V, D, C) = student, teacher

    def step(carry, _):
        h, k = carry
        return (W @ h, V @ k), (A @ h - C @ k, h)

    return jax.lax.scan(step, (B, D), None, length=horizon)[1]


@eqx.filter_jit
def _finite(rule, student, teacher, horizon):
    W, _, A = student
    errors, hidden = _impulses(student, teacher, horizon)
    sent = rule.feedback.matrix(A) @ errors
    if isinstance(rule.propagator, Reach):
        rows = jax.vmap(lambda Z: _credit(rule, Z, sent))(rule.propagator.rows(W))
        credit = jax.vmap(lambda i: rows[i, :, i], out_axes=1)(jnp.arange(W.shape[0]))
    else:
        credit = _credit(rule, rule.propagator.matrix(W), sent)
    dA = jnp.einsum("koi,kni->on", errors, hidden)
    dW = jnp.einsum("kni,kmi->nm", credit[1:], hidden[:-1])
    return ExpectedUpdate(dW, credit[0], dA)


def _credit(rule, Z, sent):
    """g[k] = sum over the lags m that the rule keeps of Z^m sent[k + m]."""
    if rule.horizon is None:
        return jax.lax.scan(lambda g, e: (e + Z @ g,) * 2, jnp.zeros_like(sent[0]), sent, reverse=True)[1]

    def longer(_, carry):
        g, total = carry
        later = jnp.concatenate([g[1:], jnp.zeros_like(g[:1])])
        g = sent + Z @ later
        return g, total + g

    g, total = jax.lax.fori_loop(0, min(rule.horizon, sent.shape[0]), longer, (jnp.zeros_like(sent),) * 2)
    if not rule.chunked:
        return g
    return (total + max(rule.horizon - sent.shape[0], 0) * g) / rule.horizon


@eqx.filter_jit
def _stationary(rule, student, teacher):
    (W, B, A), (V, D, C) = student, teacher
    F = rule.feedback.matrix(A)
    if rule.horizon is not None or isinstance(rule.propagator, Reach):
        # The sums of S and X; those of Q and Y are finite, or differ from row to row.
        (S, X), settled = _gramians(W, B, V, D)
        if isinstance(rule.propagator, Reach):
            solve = jax.vmap(lambda Z, i: _adjoints(Z, W, V, F, A, C, i))
            Q, Y, rows_settled = solve(rule.propagator.rows(W), jnp.arange(W.shape[0]))
            settled = settled & jnp.all(rows_settled)
        else:
            Z = rule.propagator.matrix(W)
            Q, Y = _truncated(rule, Z, W, F @ A), _truncated(rule, Z, V, F @ C)
    else:
        exact = isinstance(rule.propagator, Exact)
        matrices = (W, V) if exact else (W, V, rule.propagator.matrix(W))
        z = (0, True) if exact else (2, False)
        equations = (((0, False), (0, True)), ((1, False), (0, True)), (z, (0, False)), (z, (1, False)))
        solution = solve_shared_stein(matrices, equations, (B @ B.T, D @ B.T, F @ A, F @ C))
        S, X, Q, Y = solution.values
        settled = solution.converged
    update = ExpectedUpdate(Q @ W @ S - Y @ V @ X, Q @ B - Y @ D, A @ S - C @ X)
    return jax.tree.map(lambda x: jnp.where(settled, x, jnp.nan), update), settled


def _gramians(W, B, V, D):
    equations = (((0, False), (0, True)), ((1, False), (0, True)))
    solution = solve_shared_stein((W, V), equations, (B @ B.T, D @ B.T))
    return solution.values, solution.converged


def _adjoints(Z, W, V, F, A, C, row):
    """Row `row` of Q and Y for a propagator that is that row's own."""
    equations = (((0, False), (1, False)), ((0, False), (2, False)))
    solution = solve_shared_stein((Z, W, V), equations, (F @ A, F @ C))
    Q, Y = solution.values
    return Q[row], Y[row], solution.converged


def _truncated(rule, Z, W, constant):
    """sum_{m < horizon} Z^m constant W^m, or for a chunked rule its mean over horizons 1 ... horizon."""

    def longer(_, carry):
        q, total = carry
        q = constant + Z @ q @ W
        return q, total + q

    q, total = jax.lax.fori_loop(0, rule.horizon, longer, (jnp.zeros_like(constant),) * 2)
    return total / rule.horizon if rule.chunked else q


@eqx.filter_jit
def _stationary_loss(student, teacher):
    (W, B, A), (V, D, C) = student, teacher
    # One Gramian of the difference system: its output energy is a sum of squares up to rounding.
    equations = (((0, False), (0, True)), ((1, False), (0, True)), ((1, False), (1, True)))
    solution = solve_shared_stein((W, V), equations, (B @ B.T, D @ B.T, D @ D.T))
    S, X, T = solution.values
    loss = jnp.trace(A @ S @ A.T - 2 * C @ X @ A.T + C @ T @ C.T) / 2
    # Rounding may leave a negative loss; the clamp moves the value alone, or derivatives would vanish at the teacher.
    loss = loss + jax.lax.stop_gradient(jnp.maximum(loss, 0) - loss)
    return jnp.where(solution.converged, loss, jnp.nan), solution.converged


def _raise_diverged(converged, rule, W, V, caller):
    known = concrete(converged)
    if known is None or known.all():
        return
    radius = {"W": _radius(W), "W*": _radius(V)}
    if rule is not None and rule.horizon is None and not isinstance(rule.propagator, Reach):
        radius["Z"] = _radius(rule.propagator.matrix(W))
    given = ", ".join(f"{name} {value:.6g}" for name, value in radius.items())
    raise ConvergenceError(
        f"{caller}: the stationary limit does not exist to working precision. It needs the spectral radii of W, W*, "
        f"and of the propagator Z times each, to be below 1; got {given}. A finite `horizon` takes any matrices."
    )


def _radius(x) -> float:
    known = concrete(x)
    if known is None or not np.isfinite(known).all():
        return float("nan")
    return float(np.abs(np.linalg.eigvals(known)).max())
