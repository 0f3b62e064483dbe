"""The fixed points of mode flows come in curves: the optima, and for symmetric feedback a line of saddles."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp.learning._feedback import Symmetric
from dynwarp.learning._mode_flow import lag_sums
from dynwarp.learning._rules import AbstractRule
from dynwarp.learning._stability import Stability, stability
from dynwarp.learning._teacher import Teacher, check_learnable, check_stable_teacher


class OptimalManifold(eqx.Module):
    """The optima (s, p/s, w*), s != 0: two branches, one a sign of s. The loss is 0."""

    rule: AbstractRule
    teacher: Teacher

    def point(self, s: Float[Array, "..."]) -> Float[Array, "... 3"]:
        """(a, b, w) at the output strength s."""
        s = jnp.asarray(s)
        return jnp.stack(jnp.broadcast_arrays(s, self.teacher.product / s, self.teacher.w), axis=-1)

    def stability(self, s: Float[Array, "..."]) -> Stability:
        """Eigenvalues and class there; see [`stability`][dynwarp.learning.stability]."""
        return stability(self.rule, self.teacher, s)


class SaddleLine(eqx.Module):
    """The line (0, 0, w): a network that is silent stays so. Its points are saddles, with loss p^2 / (2 (1 - w*^2))."""

    rule: AbstractRule
    teacher: Teacher

    @property
    def loss(self) -> Float[Array, "..."]:
        """The loss along the line, the same everywhere."""
        return self.teacher.product**2 / (2 * (1 - self.teacher.w) * (1 + self.teacher.w))

    def point(self, w: Float[Array, "..."]) -> Float[Array, "... 3"]:
        """(a, b, w) at the multiplier w."""
        w = jnp.asarray(w)
        return jnp.stack([jnp.zeros_like(w), jnp.zeros_like(w), w], axis=-1)

    def eigenvalues(self, w: Float[Array, "..."]) -> Float[Array, "... 3"]:
        """Of the flow's Jacobian at (0, 0, w): growth, decay, and 0 along the line."""
        w = jnp.asarray(w)
        v = self.teacher.w
        x = self.rule.propagator.mode(w) * v
        growth = jnp.abs(self.teacher.product) * jnp.sqrt(lag_sums(self.rule, x, x).gx / (1 - w * v))
        return jnp.stack(jnp.broadcast_arrays(growth, -growth, 0 * growth), axis=-1)

    def escape_time(self, w: Float[Array, "..."], factor: float) -> Float[Array, "..."]:
        """The time in which a small distance to (0, 0, w) grows by `factor`: log(factor) over the growth rate."""
        return jnp.log(factor) / self.eigenvalues(w)[..., 0]


class FixedPointManifolds(eqx.Module):
    """What [`fixed_points`][dynwarp.learning.fixed_points] returns: `optimal`, and `saddles` or None."""

    optimal: OptimalManifold
    saddles: SaddleLine | None


def fixed_points(rule: AbstractRule, teacher: Teacher) -> FixedPointManifolds:
    """All fixed points of the mode flow at an infinite horizon, as curves.

    **Arguments:** as in [`mode_flow`][dynwarp.learning.mode_flow].

    **Returns:** the optima, and for symmetric feedback the line of silent networks; with any fixed feedback a silent
    network moves at once.

    **Raises:** `ArgumentError` for a teacher with a b = 0 (nothing to learn) or |w| >= 1.

    **Example:**

    >>> import dynwarp as dw
    >>> l = dw.learning
    >>> found = l.fixed_points(l.BPTT(), l.Teacher(1.0, 1.0, 0.6))
    >>> found.optimal.point(2.0).tolist()
    [2.0, 0.5, 0.6]
    >>> print(found.saddles.eigenvalues(0.0))
    [ 1. -1.  0.]
    """
    check_stable_teacher(teacher, "fixed_points")
    check_learnable(teacher, "fixed_points")
    silent = SaddleLine(rule, teacher) if isinstance(rule.feedback, Symmetric) else None
    return FixedPointManifolds(OptimalManifold(rule, teacher), silent)
