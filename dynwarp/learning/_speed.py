"""How fast rules converge along the manifold of optima: slowest points, ratios, crossings, and RFLO's stable pocket."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from dynwarp.errors import ArgumentError
from dynwarp.learning._feedback import Fixed
from dynwarp.learning._propagators import Leak
from dynwarp.learning._rules import AbstractRule
from dynwarp.learning._stability import stability
from dynwarp.learning._teacher import Teacher, check_learnable, check_stable_teacher, one_mode


class SlowestPoint(eqx.Module):
    """What [`slowest_point`][dynwarp.learning.slowest_point] returns: `s`, its `rate`, and whether it is `interior`."""

    s: Float[Array, ""]
    rate: Float[Array, ""]
    interior: Bool[Array, ""]


class StablePocket(eqx.Module):
    """The feedback strengths that are stable although R s < 0: `lower` < |R| < `upper`; `empty` if none."""

    lower: Float[Array, "..."]
    upper: Float[Array, "..."]

    @property
    def empty(self) -> Bool[Array, "..."]:
        return ~(self.lower < self.upper)


def slowest_point(rule: AbstractRule, teacher: Teacher, *, branch: int = 1, decades: float = 3.0) -> SlowestPoint:
    """The optimum to which a rule converges most slowly, on one branch of the manifold.

    **Arguments:**

    - `rule`, `teacher`: one mode.
    - `branch`: the sign of s, 1 or -1.
    - `decades`: |s| is searched this far to both sides of sqrt|p|.

    **Returns:** [`SlowestPoint`][dynwarp.learning.SlowestPoint]; not `interior` where the rate falls towards an end
    of the search, as it does for RFLO. `rate` is differentiable in rule and teacher, by the envelope theorem; `s` is
    not.

    **Example:**

    >>> import dynwarp as dw
    >>> slowest = dw.learning.slowest_point(dw.learning.TBPTT(1), dw.learning.Teacher(1.0, 1.0, 0.6))
    >>> print(slowest.s.round(3), slowest.rate.round(5))
    0.794 1.26197
    """
    _check_branch(branch, "slowest_point")
    check_stable_teacher(teacher, "slowest_point")
    check_learnable(teacher, "slowest_point")
    rule, teacher = one_mode(rule, "rule", "slowest_point"), one_mode(teacher, "teacher", "slowest_point")
    scale = jnp.sqrt(jnp.abs(teacher.product))

    def rate(log_s):
        return stability(rule, teacher, branch * scale * jnp.exp(log_s)).rate

    reach = decades * np.log(10.0)
    grid = jnp.linspace(-reach, reach, 513, dtype=scale.dtype)
    best = jnp.argmin(rate(grid))
    low, high = grid[jnp.maximum(best - 1, 0)], grid[jnp.minimum(best + 1, 512)]
    golden = (5**0.5 - 1) / 2

    def narrow(_, bracket):
        low, high = bracket
        left, right = high - golden * (high - low), low + golden * (high - low)
        keep_left = rate(left) < rate(right)
        return jnp.where(keep_left, low, left), jnp.where(keep_left, right, high)

    low, high = jax.lax.fori_loop(0, 50, narrow, (low, high))
    log_s = jax.lax.stop_gradient((low + high) / 2)
    s = jax.lax.stop_gradient(branch * scale * jnp.exp(log_s))
    return SlowestPoint(s, stability(rule, teacher, s).rate, (best > 0) & (best < 512))


def speed_ratio(
    rule: AbstractRule, reference: AbstractRule, teacher: Teacher, s: Float[Array, "..."]
) -> Float[Array, "..."]:
    """The rate of the slow direction under a rule over that under another: above 1 the rule is faster.

    **Arguments, errors:** as in [`stability`][dynwarp.learning.stability]. Meaningful where both are stable.

    **Example:**

    >>> import dynwarp as dw
    >>> l = dw.learning
    >>> print(l.speed_ratio(l.RFLO(1.0, 0.6), l.BPTT(), l.Teacher(1.0, 1.0, 0.6), 1.0).round(9))
    1.0
    """
    return stability(rule, teacher, s).rate / stability(reference, teacher, s).rate


def speed_crossings(
    rule: AbstractRule, reference: AbstractRule, teacher: Teacher, *, branch: int = 1, decades: float = 3.0
) -> Float[np.ndarray, " crossings"]:
    """The optima at which two rules are equally fast, in increasing |s|. Host only.

    **Arguments:** as in [`slowest_point`][dynwarp.learning.slowest_point]; every change of sign of the difference on a
    logarithmic grid of 2001 points is refined by bisection.

    **Returns:** s, exact length; empty where the rules never cross.

    **Example:**

    >>> import dynwarp as dw
    >>> l = dw.learning
    >>> l.speed_crossings(l.RFLO(1.0, 0.9), l.BPTT(), l.Teacher(1.0, 1.0, 0.6)).round(6).tolist()
    [1.187745]
    """
    from scipy.optimize import brentq

    _check_branch(branch, "speed_crossings")
    teacher = one_mode(teacher, "teacher", "speed_crossings")
    rule, reference = (one_mode(r, "rule", "speed_crossings") for r in (rule, reference))
    scale = float(jnp.sqrt(jnp.abs(teacher.product)))

    def difference(log_s):
        return np.log(np.asarray(speed_ratio(rule, reference, teacher, branch * scale * jnp.exp(jnp.asarray(log_s)))))

    grid = np.linspace(-decades, decades, 2001) * np.log(10.0)
    with np.errstate(invalid="ignore"):
        values = difference(grid)
    changes = np.flatnonzero(np.isfinite(values[:-1]) & np.isfinite(values[1:]) & (values[:-1] * values[1:] <= 0))
    roots = [brentq(difference, grid[i], grid[i + 1], xtol=1e-14) for i in changes if values[i] != 0 or i == 0]
    return branch * scale * np.exp(np.asarray(roots, dtype=float))


def _check_branch(branch, caller):
    if branch not in (1, -1):
        raise ArgumentError(f"{caller}: `branch` must be 1 or -1, the sign of s; got {branch!r}.")


def stable_pocket(rule: AbstractRule, teacher: Teacher, s: Float[Array, "..."]) -> StablePocket:
    """RFLO's stable optima with the wrong sign of feedback, R s < 0.

    With Y = (p/s)^2, c = 1 - w*^2 and g = 1 / (1 - decay w*) they are those with Y < |R s| < Y / (c g (1 + Y (1/c +
    decay w* g) / c)), which is not empty only if decay w* < w*^2.

    **Arguments:** `rule`: an RFLO with fixed feedback, whose strength does not matter; `teacher`, `s`: as in
    [`stability`][dynwarp.learning.stability].

    **Returns:** [`StablePocket`][dynwarp.learning.StablePocket], bounds of |R|; differentiable.

    **Raises:** `ArgumentError` for another rule.

    **Example:**

    >>> import dynwarp as dw
    >>> pocket = dw.learning.stable_pocket(dw.learning.RFLO(1.0, 0.0), dw.learning.Teacher(0.5, 1.0, 0.9), -2.0)
    >>> print(pocket.lower.round(5), pocket.upper.round(5))
    0.03125 0.06022
    """
    if not isinstance(rule.propagator, Leak) or not isinstance(rule.feedback, Fixed) or rule.horizon is not None:
        raise ArgumentError(f"stable_pocket is for RFLO with fixed feedback; got {type(rule).__name__}.")
    check_stable_teacher(teacher, "stable_pocket")
    check_learnable(teacher, "stable_pocket")
    s = jnp.asarray(s, dtype=None if eqx.is_inexact_array(s) else float)
    v, x = teacher.w, rule.propagator.decay * teacher.w
    c, g, Y = (1 - v) * (1 + v), 1 / (1 - x), (teacher.product / s) ** 2
    upper = Y / (c * g * (1 + Y * (1 / c + x * g) / c))
    return StablePocket(Y / jnp.abs(s), upper / jnp.abs(s))
