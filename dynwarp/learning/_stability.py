"""Jacobians and stability of the mode flow on the manifold of optima (s, p/s, w*).

There the residuals d = a b - p and u = w - w* vanish, and their own linear flow is two by two, in closed form for
every rule: with Y = b^2, X = F s, c = 1 - w*^2, z = Z(w*) and the sums G, K, K' of a rule's horizon at (z w*, z w*),

    trace = Y / c + X G + X Y (K - z w*^3 K') / c^2,

and the determinant likewise. The third direction, (a, -b, 0), follows the manifold: its eigenvalue is 0.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, Int

from dynwarp._checks import check_finite, check_shape
from dynwarp._compat import concrete
from dynwarp.errors import ArgumentError
from dynwarp.learning._mode_flow import lag_sums, mode_flow
from dynwarp.learning._rules import AbstractRule
from dynwarp.learning._teacher import Teacher, cast, check_learnable, check_stable_teacher

_KINDS = ("stable", "saddle", "unstable", "nonhyperbolic")


class Stability(eqx.Module):
    """What [`stability`][dynwarp.learning.stability] returns; leading axes are those of the broadcast arguments.

    **Attributes:**

    - `eigenvalues`: of the flow's Jacobian, complex, the last axis of length 3: two transverse ones, the larger real
      part first, then the 0 along the manifold.
    - `trace`, `determinant`: of minus the transverse flow: stable where both are positive.
    - `code`: an index into ("stable", "saddle", "unstable", "nonhyperbolic"); `kind` is the word itself.
    - `oscillates`: whether the transverse eigenvalues are a complex pair.
    """

    eigenvalues: Complex[Array, "... 3"]
    trace: Float[Array, "..."]
    determinant: Float[Array, "..."]
    code: Int[Array, "..."]

    @property
    def oscillates(self) -> Array:
        return self.eigenvalues[..., 0].imag != 0

    @property
    def kind(self):
        """The class in a word, or an array of words; host only."""
        words = np.asarray(_KINDS)[np.asarray(self.code)]
        return str(words) if words.ndim == 0 else words

    @property
    def rate(self) -> Float[Array, "..."]:
        """How fast the slower transverse direction decays; negative where it grows."""
        return -self.eigenvalues[..., 0].real

    def __iter__(self):
        """`eigenvalues, kind = stability(...)`."""
        return iter((self.eigenvalues, self.kind))


def mode_jacobian(
    rule: AbstractRule, teacher: Teacher, state: Float[Array, " 3"], *, horizon: int | None = None
) -> Float[Array, "3 3"]:
    """The Jacobian of the mode flow at any state, by automatic differentiation.

    **Arguments:** one mode, as in [`mode_flow`][dynwarp.learning.mode_flow]; `state` is (a, b, w).

    **Returns:** J[i, j] = d velocity_i / d state_j, shape `(3, 3)`.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> l = dw.learning
    >>> J = l.mode_jacobian(l.BPTT(), l.Teacher(1.0, 1.0, 0.6), jnp.array([1.0, 1.0, 0.6]))
    >>> print(f"{jnp.trace(J):.6f}")
    -8.312988
    """
    state = jnp.asarray(state)
    check_shape(state, "state", (3,), caller="mode_jacobian")
    check_finite(state, "state", caller="mode_jacobian")
    flow = mode_flow(rule, teacher, horizon=horizon)
    return jax.jacfwd(lambda x: flow(jnp.zeros((), x.dtype), x))(state)


def stability(rule: AbstractRule, teacher: Teacher, s: Float[Array, "..."], *, tolerance: float = 1e-9) -> Stability:
    """Eigenvalues and class of the optimum (s, p/s, w*), in closed form for every rule at an infinite horizon.

    **Arguments:**

    - `rule`, `teacher`: leaves broadcast against `s`; a feedback `(k, 1)` against `s` `(m,)` is a map.
    - `s`: the output strengths of the optima; not zero.
    - `tolerance`: an eigenvalue counts as zero, and the optimum as nonhyperbolic, below this fraction of the other.

    **Returns:** [`Stability`][dynwarp.learning.Stability]. Differentiable, but where two eigenvalues meet.

    **Raises:** `ArgumentError` for s = 0, for a teacher with a b = 0 or |w| >= 1, and where |Z w*| >= 1.

    **Example:**

    >>> import dynwarp as dw
    >>> l = dw.learning
    >>> eigenvalues, kind = l.stability(l.RFLO(1.0, 0.5), l.Teacher(1.0, 1.0, 0.6), 1.0)
    >>> print(eigenvalues.real.round(6), kind)
    [-1.753924 -5.681504  0.      ] stable
    """
    caller = "stability"
    check_stable_teacher(teacher, caller)
    check_learnable(teacher, caller)
    s = jnp.asarray(s, dtype=None if eqx.is_inexact_array(s) else float)
    known = concrete(s)
    if known is not None and not (np.isfinite(known).all() and (known != 0).all()):
        raise ArgumentError(f"{caller}: `s` must be finite and not zero; got {known}.")
    rule, teacher = cast((rule, teacher), s.dtype)
    trace, determinant, product = _transverse(rule, teacher, s)
    known = concrete(product)
    if rule.horizon is None and known is not None and (np.abs(known) >= 1).any():
        raise ArgumentError(
            f"{caller}: the rule's sum over lags needs |z w*| < 1; got {np.abs(known).max():g} for its propagator z."
        )
    first, second = _roots(trace, determinant)
    zero = jnp.zeros_like(first)
    size = jnp.maximum(jnp.abs(first), jnp.abs(second))
    flat = (jnp.abs(first.real) <= tolerance * size) | (jnp.abs(second.real) <= tolerance * size)
    code = jnp.where(determinant < 0, 1, jnp.where(trace > 0, 0, 2))
    code = jnp.where(flat, 3, code)
    return Stability(jnp.stack([first, second, zero], axis=-1), trace, determinant, code)


def stability_map(rule_of, teacher: Teacher, s: Float[Array, " m"], values: Float[Array, " k"]) -> Stability:
    """Stability over a grid: of optima s, and of one parameter of a rule.

    **Arguments:**

    - `rule_of`: a function from the parameter to a rule, e.g. `lambda r: RFLO(r, decay=0.5)`.
    - `s`: `(m,)` points of the manifold.
    - `values`: `(k,)` values of the parameter.

    **Returns:** [`Stability`][dynwarp.learning.Stability] with leading axes `(k, m)`.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> l = dw.learning
    >>> s = jnp.array([-2.0, 1.0])
    >>> grid = l.stability_map(lambda r: l.RFLO(r, 0.5), l.Teacher(1.0, 1.0, 0.6), s, jnp.array([1.0]))
    >>> print(grid.kind)
    [['unstable' 'stable']]
    """
    values = jnp.asarray(values)
    check_shape(s, "s", ("m",), caller="stability_map")
    check_shape(values, "values", ("k",), caller="stability_map")
    return stability(rule_of(values[:, None]), teacher, s)


def _transverse(rule, teacher, s):
    """Trace and determinant of minus the flow of (d, u), and z w*."""
    p, v = teacher.product, teacher.w
    b = p / s
    F, z = rule.feedback.mode(s), rule.propagator.mode(v)
    c, x = (1 - v) * (1 + v), z * v
    X, Y = F * s, b**2
    if rule.horizon is None:
        g = 1 / (1 - x)
        trace = Y / c + X * g + X * Y * g**2 * (1 - x * v**2) / c**2
        # The sum below for an infinite horizon, where it simplifies: no cancellation as |w*| -> 1.
        return trace, X * Y * (g / c) ** 2 * (X + Y), x
    shape = jnp.broadcast_shapes(jnp.shape(x), jnp.shape(s))
    sums = lag_sums(rule, jnp.broadcast_to(x, shape), jnp.broadcast_to(x, shape))
    bend = sums.k - x * v**2 * sums.k_before
    trace = Y / c + X * sums.gx + X * Y * bend / c**2
    cross = v * sums.gx * (Y * v / c**2 + X * z * sums.k_before) / c
    return trace, X * Y * ((Y / c + X * sums.gx) * bend / c**2 - cross), x


def _roots(trace, determinant):
    """The roots of x^2 + trace x + determinant, complex, the larger real part first; neither cancels."""
    discriminant = trace**2 - 4 * determinant
    real = discriminant >= 0
    # The untaken branch must not poison derivatives.
    root = jnp.sqrt(jnp.where(real, discriminant, 1))
    far = -(trace + jnp.where(trace >= 0, root, -root)) / 2
    near = jnp.where(far == 0, 0, determinant / jnp.where(far == 0, 1, far))
    imaginary = jnp.sqrt(jnp.where(real, 1, -discriminant)) / 2
    upper = jnp.where(real, jnp.maximum(far, near), -trace / 2)
    lower = jnp.where(real, jnp.minimum(far, near), -trace / 2)
    imaginary = jnp.where(real, 0, imaginary)
    return jax.lax.complex(upper, imaginary), jax.lax.complex(lower, -imaginary)
