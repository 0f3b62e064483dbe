"""The expected update of diagonal recurrences (state-space models), without alignment: sums over pairs of poles.

With C~ = [C, -C*], B~ = [B; B*], L = [lambda, lambda*], G = B B~^T, H = F C~, K_ij = 1 / (1 - lambda_i L_j), and with
E_ij = 1 / (1 - z_i L_j) for the rule's propagator z,

    Delta C = sum_j C~_oj G_ij K_ij,   Delta B_i = sum_j H_ij E_ij B~_j,   Delta lambda_i = sum_j H_ij G_ij K_ij E_ij
    L_j.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact

from dynwarp._checks import check_shape
from dynwarp._compat import concrete
from dynwarp.errors import ArgumentError
from dynwarp.learning._mode_flow import lag_sums
from dynwarp.learning._rules import AbstractRule


class DiagonalNetwork(eqx.Module):
    """h' = poles h + B x, y = C h, element by element in h; complex poles come in conjugate pairs, both present.

    **Arguments:** `poles` `(n,)`, `B` `(n, inputs)`, `C` `(outputs, n)`, real or complex.

    **Raises:** `ShapeError` where the shapes do not fit.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.learning.DiagonalNetwork(jnp.array([0.5, 0.2]), jnp.ones((2, 3)), jnp.ones((1, 2))).poles.shape
    (2,)
    """

    poles: Inexact[Array, " n"]
    B: Inexact[Array, "n i"]
    C: Inexact[Array, "o n"]

    def __init__(self, poles, B, C):
        self.poles, self.B, self.C = jnp.asarray(poles), jnp.asarray(B), jnp.asarray(C)
        check_shape(self.poles, "poles", ("n",), caller="DiagonalNetwork")
        check_shape(self.B, "B", (self.poles.shape[0], None), caller="DiagonalNetwork")
        check_shape(self.C, "C", (None, self.poles.shape[0]), caller="DiagonalNetwork")


class DiagonalUpdate(NamedTuple):
    """Delta of the poles, of B and of C."""

    dpoles: Inexact[Array, " n"]
    dB: Inexact[Array, "n i"]
    dC: Inexact[Array, "o n"]


def diagonal_update(rule: AbstractRule, student: DiagonalNetwork, teacher: DiagonalNetwork) -> DiagonalUpdate:
    """The exact expectation of a rule's update of a diagonal network, in the stationary limit of white noise.

    **Arguments:**

    - `rule`: any rule whose propagator acts on each pole by itself; a fixed feedback has shape `(outputs, n)`.
    - `student`, `teacher`: their numbers of poles may differ.

    **Returns:** `(dpoles, dB, dC)`. For BPTT they are the holomorphic derivatives of the loss; a real loss falls
    along their negative conjugates. NaN under a user's jit where a pole is not inside the unit circle.

    **Raises:** `ShapeError`; `ArgumentError` for a pole, or a pole times the rule's propagator, at or beyond the unit
    circle.

    **Cost:** O(n (n + n*) (inputs + outputs)), against O(n^3) of [`expected_update`][dynwarp.learning.expected_update].

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> one = lambda w, b, c: dw.learning.DiagonalNetwork(jnp.array([w]), jnp.array([[b]]), jnp.array([[c]]))
    >>> dpoles, dB, dC = dw.learning.diagonal_update(dw.learning.BPTT(), one(0.55, 1.3, 0.7), one(-0.35, 0.8, 1.1))
    >>> print(dC.round(6), dpoles.round(6))
    [[0.736728]] [1.13327]
    """
    caller = "diagonal_update"
    check_shape(teacher.B, "teacher.B", (None, student.B.shape[1]), caller=caller)
    check_shape(teacher.C, "teacher.C", (student.C.shape[0], None), caller=caller)
    z = jnp.broadcast_to(rule.propagator.mode(student.poles), student.poles.shape)
    others = jnp.concatenate([student.poles, teacher.poles.astype(student.poles.dtype)])
    reach = jnp.max(jnp.abs(others)) * (jnp.max(jnp.abs(z)) if rule.horizon is None else 0)
    largest = concrete(jnp.maximum(jnp.max(jnp.abs(others)), reach))
    if largest is not None and not largest < 1:
        raise ArgumentError(
            f"{caller}: poles, and poles times the propagator, must be inside the unit circle; got {largest:.6g}."
        )
    update = _pair_sums(rule, student, teacher, z, others)
    inside = (jnp.max(jnp.abs(others)) < 1) & (reach < 1)
    return jax.tree.map(lambda x: jnp.where(inside, x, np.nan), update)


@eqx.filter_jit
def _pair_sums(rule, student, teacher, z, others):
    dtype = student.poles.dtype
    B, C = student.B.astype(dtype), student.C.astype(dtype)
    D = jnp.concatenate([B, teacher.B.astype(dtype)])
    E = jnp.concatenate([C, -teacher.C.astype(dtype)], axis=1)
    x = z[:, None].astype(dtype) * others
    lags = lag_sums(rule, x, x).gx
    # H = F C~ and the pair sums of B~ are weighted by the same matrices.
    sent = rule.feedback.matrix(student.C).astype(dtype) @ E
    pairs = (B @ D.T) / (1 - student.poles[:, None] * others)
    return DiagonalUpdate(jnp.sum(sent * pairs * lags * others, axis=1), (sent * lags) @ D, E @ pairs.T)
