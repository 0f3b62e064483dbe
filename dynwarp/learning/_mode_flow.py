"""The expected update of one mode in closed form, and the flow it drives.

A linear network whose matrices share their singular and eigen-directions with the teacher's splits into modes (a, b,
w), each a network h' = w h + b x, y = a h. With d = a b - p, p = a* b*, and u = w - w* what is left to learn, every
rule (F, Z, tau) has

    Delta a = b [d / (1 - w^2) + p w u / ((1 - w^2)(1 - w w*))]
    Delta b = F [d G_tau(z w) + p z u K_{tau-1}(z w, z w*)]
    Delta w = F b [d w G_tau(z w) / (1 - w^2) + p u (K_tau - z w^2 w* K_{tau-1}) / ((1 - w^2)(1 - w w*))]

with the sums of `_sums.py` (their limits where tau is infinite). Written in d and u nothing cancels near the optimum,
so that float32 is as good as its rounding. Finite sequences are the same sums over finitely many lags.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_choice, check_positive_integer, check_shape
from dynwarp.errors import ArgumentError
from dynwarp.learning._rules import AbstractRule
from dynwarp.learning._sums import Sums, first_moment, mean_sums, sums, windowed
from dynwarp.learning._teacher import Teacher, cast, check_stable_teacher, one_mode
from dynwarp.models import AbstractField

Mode = tuple[Array, Array, Array]


class ModeFlow(AbstractField):
    """d(a, b, w)/dt = -Delta, the flow of one mode; made by [`mode_flow`][dynwarp.learning.mode_flow]."""

    rule: AbstractRule
    teacher: Teacher
    horizon: int | None = eqx.field(static=True)
    sequence: bool = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(self, rule: AbstractRule, teacher: Teacher, horizon: int | None, sequence: bool):
        self.rule, self.teacher, self.horizon, self.sequence = rule, teacher, horizon, sequence
        self.state_size, self.input_size = 3, 0

    def __call__(self, t, state, input=None):
        check_shape(state, "state", (3,), caller="mode_flow")
        rule, teacher = cast((self.rule, self.teacher), state.dtype)
        delta = mode_update(rule, teacher, (state[0], state[1], state[2]), self.horizon, self.sequence)
        return -jnp.stack(delta)


def mode_flow(rule: AbstractRule, teacher: Teacher, *, horizon: int | None = None, loss: str = "final") -> ModeFlow:
    """The flow of one mode under a learning rule: theta' = -Delta, with t = eta k for steps k of a small rate eta.

    **Arguments:**

    - `rule`: any rule; its feedback a scalar or `(1,)`.
    - `teacher`: one [`Teacher`][dynwarp.learning.Teacher] mode.
    - `horizon`: the length T of the sequences, white-noise inputs from h = 0; None is the stationary limit.
    - `loss`: "final", half the squared error after the last step; "sequence", its mean over the T steps (needs
      `horizon`).

    **Returns:** a field over (a, b, w) with `state_size` 3 and no inputs. At an infinite horizon it is NaN where the
    loss does not exist: |w| >= 1, or |z w| >= 1, |z w*| >= 1 for the rule's propagator z (unless the rule itself has
    a horizon).

    **Raises:** `ArgumentError` for an unstable teacher at an infinite horizon; `ShapeError` for more than one mode.

    **Source:** Williams, Payeur and Lajoie, ICML 2026 (arXiv 2606.00243), in the residual form above.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> flow = dw.learning.mode_flow(dw.learning.TBPTT(1), dw.learning.Teacher(1.1, 0.8, -0.35))
    >>> print(flow(0.0, jnp.array([0.7, 1.3, 0.55])).round(6))
    [-0.736728 -0.021    -0.888018]
    """
    horizon, sequence = checked_horizon(teacher, horizon, loss, "mode_flow")
    return ModeFlow(one_mode(rule, "rule", "mode_flow"), one_mode(teacher, "teacher", "mode_flow"), horizon, sequence)


def mode_loss(
    teacher: Teacher, state: Float[Array, "... 3"], *, horizon: int | None = None, loss: str = "final"
) -> Float[Array, "..."]:
    """The expected loss of modes, half the squared output error.

    **Arguments:**

    - `teacher`: leaves broadcast against the leading axes of `state`.
    - `state`: (a, b, w) along the last axis.
    - `horizon`, `loss`: as in [`mode_flow`][dynwarp.learning.mode_flow].

    **Returns:** the loss; never negative, and infinite at an infinite horizon where |w| >= 1.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> teacher = dw.learning.Teacher(1.0, 1.0, 0.6)
    >>> print(f"{dw.learning.mode_loss(teacher, jnp.array([0.5, 0.5, 0.2])):.6f}")
    0.529711
    """
    horizon, sequence = checked_horizon(teacher, horizon, loss, "mode_loss")
    state = jnp.asarray(state)
    check_shape(state, "state", (*state.shape[:-1], 3), caller="mode_loss")
    return loss_of(cast(teacher, state.dtype), (state[..., 0], state[..., 1], state[..., 2]), horizon, sequence)


def sequence_correction(rule: AbstractRule, teacher: Teacher, state: Float[Array, " 3"]) -> Float[Array, " 3"]:
    """C in Delta_sequence(T) = Delta(infinity) + C / T + O(T rho^2T): what a mean over a finite sequence adds.

    **Arguments:** one mode, as in [`mode_flow`][dynwarp.learning.mode_flow]; `state` is (a, b, w) with |w| < 1.

    **Returns:** the correction of (a, b, w), shape `(3,)`; NaN where the infinite-horizon update does not exist.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> teacher = dw.learning.Teacher(1.1, 0.8, -0.35)
    >>> print(dw.learning.sequence_correction(dw.learning.BPTT(), teacher, jnp.array([0.7, 1.3, 0.55])).round(6))
    [-0.890426 -0.47946  -1.88166 ]
    """
    caller = "sequence_correction"
    check_shape(state, "state", (3,), caller=caller)
    check_stable_teacher(teacher, caller)
    rule, teacher = one_mode(rule, "rule", caller), one_mode(teacher, "teacher", caller)
    rule, teacher = cast((rule, teacher), state.dtype)
    a, b, w = state[0], state[1], state[2]
    p, v = teacher.product, teacher.w
    F, z = rule.feedback.mode(a), rule.propagator.mode(w)
    f, q = (1 - w) * (1 + w), 1 - w * v

    def corrections(n):
        s = sums(z * w, z * v, n)
        mx, my = first_moment(z * w, n), first_moment(z * v, n)
        input_part = a * b * mx - p * my
        recurrent = a * b * w * (mx / f + s.gx / f**2) - p * v * (my / q + s.gy / q**2)
        return jnp.stack([-F * input_part, -F * b * recurrent])

    windows = range(1, (rule.horizon or 0) + 1) if rule.chunked else [rule.horizon]
    terms = jnp.mean(jnp.stack([corrections(n) for n in windows]), axis=0)
    output = -(a * b**2 * w**2 / f**2 - p * b * w * v / q**2)
    valid = _exists(rule, w, v, z)
    return jnp.where(valid, jnp.stack([output, terms[0], terms[1]]), jnp.nan)


def checked_horizon(teacher: Teacher, horizon: int | None, loss: str, caller: str) -> tuple[int | None, bool]:
    """The horizon as an int or None, and whether the loss is a mean over the sequence."""
    check_choice(loss, "loss", ("final", "sequence"), caller=caller)
    if horizon is None:
        if loss == "sequence":
            raise ArgumentError(f'{caller}: loss="sequence" needs a finite `horizon`; at infinity it equals "final".')
        check_stable_teacher(teacher, caller)
        return None, False
    return check_positive_integer(horizon, "horizon", caller=caller), loss == "sequence"


def mode_update(rule: AbstractRule, teacher: Teacher, mode: Mode, horizon: int | None, sequence: bool = False) -> Mode:
    """Delta of (a, b, w), element by element over lanes."""
    if horizon is None:
        return _stationary_update(rule, teacher, mode)
    return _finite_update(rule, teacher, mode, horizon, sequence)


def _stationary_update(rule, teacher, mode):
    a, b, w = mode
    p, v = teacher.product, teacher.w
    F, z = rule.feedback.mode(a), rule.propagator.mode(w)
    d, u = a * b - p, w - v
    f, q = (1 - w) * (1 + w), 1 - w * v
    s = lag_sums(rule, z * w, z * v)
    da = b * (d / f + p * w * u / (f * q))
    db = F * (d * s.gx + p * z * u * s.k_before)
    dw = F * b * (d * w * s.gx / f + p * u * (s.k - z * w**2 * v * s.k_before) / (f * q))
    valid = _exists(rule, w, v, z)
    return jnp.where(valid, da, jnp.nan), jnp.where(valid, db, jnp.nan), jnp.where(valid, dw, jnp.nan)


def lag_sums(rule: AbstractRule, x: Array, y: Array) -> Sums:
    """The sums over the lags that a rule keeps, at an infinite horizon."""
    if rule.chunked:
        assert rule.horizon is not None
        return mean_sums(x, y, rule.horizon)
    return sums(x, y, rule.horizon)


def _exists(rule, w, v, z):
    inside = (jnp.abs(w) < 1) & (jnp.abs(v) < 1)
    return inside if rule.horizon is not None else inside & (jnp.abs(z * w) < 1) & (jnp.abs(z * v) < 1)


def _finite_update(rule, teacher, mode, horizon, sequence):
    a, b, w = mode
    p, v = teacher.product, teacher.w
    F, z = rule.feedback.mode(a), rule.propagator.mode(w)

    def against(multiplier):
        """The sums over lags against the student's or the teacher's multiplier: of h h^T, of eps x^T, of eps h^T."""
        x, y = jnp.broadcast_arrays(z * multiplier, w * multiplier)
        if sequence or rule.chunked:
            return _weighted_sums(rule, x, y, horizon, sequence)
        kept = horizon if rule.horizon is None else min(rule.horizon, horizon)
        recurrent = windowed(x, y, min(kept, horizon - 1), horizon - 1) if horizon > 1 else jnp.zeros_like(x)
        return sums(y, y, horizon).gx, sums(x, x, kept).gx, recurrent

    hs, xs, ws = against(w)
    ht, xt, wt = against(v)
    return b * (a * b * hs - p * ht), F * (a * b * xs - p * xt), F * b * (a * b * w * ws - p * v * wt)


def _weighted_sums(rule, x, y, horizon, sequence):
    # Lag m has the weight c_m; a final loss takes the sums at T, a sequence loss their mean over T = 1 ... horizon.
    def step(t, carry):
        (xt, yt, lagged, g, h, k), total = carry
        weight = _lag_weight(rule, t).astype(x.dtype)
        h, g = h + yt, g + weight * xt
        now = (h, g, k)
        lagged = y * lagged + weight * xt
        total = jax.tree.map(lambda old, new: old + new if sequence else new, total, now)
        return (x * xt, y * yt, lagged, g, h, k + lagged), total

    one, zero = jnp.ones_like(x), jnp.zeros_like(x)
    _, total = jax.lax.fori_loop(0, horizon, step, ((one, one, zero, zero, zero, zero), (zero, zero, zero)))
    return tuple(part / horizon for part in total) if sequence else total


def _lag_weight(rule, lag):
    if rule.horizon is None:
        return jnp.ones_like(lag)
    left = jnp.maximum(rule.horizon - lag, 0)
    return left / rule.horizon if rule.chunked else jnp.minimum(left, 1)


def loss_of(teacher: Teacher, mode: Mode, horizon: int | None, sequence: bool = False) -> Array:
    """The expected loss, element by element: half a sum of squares, so never negative."""
    a, b, w = mode
    p, v = teacher.product, teacher.w
    d, u = a * b - p, w - v
    if horizon is None:
        f, q, c = (1 - w) * (1 + w), 1 - w * v, (1 - v) * (1 + v)
        value = (d**2 / f + 2 * d * p * w * u / (f * q) + p**2 * u**2 * (1 + w * v) / (f * c * q)) / 2
        inside = (jnp.abs(w) < 1) & (jnp.abs(v) < 1)
        # Rounding may leave -1e-33 at the optimum; NaN stays NaN.
        return jnp.where(inside, jnp.maximum(value, 0), jnp.where(jnp.isnan(w), jnp.nan, jnp.inf))

    def add(k, carry):
        wk, vk, gap, total = carry
        weight = ((horizon - k) / horizon).astype(wk.dtype) if sequence else 1
        error = d * wk + p * gap * u
        return w * wk, v * vk, w * gap + vk, total + weight * error**2 / 2

    zero = 0 * (a * b * w * p * v)
    return jax.lax.fori_loop(0, horizon, add, (zero + 1, zero + 1, zero, zero))[-1]
