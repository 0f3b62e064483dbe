"""What a linear mode does to a stationary signal: the moments of its state and of the sensitivity to its eigenvalue.

All of them are values and derivatives of C(a, b) = E[h_a h_b], the covariance of two modes that see the same signal,
C(a, b) = (R(0) + A(a) + A(b)) / (1 - a b) with A(a) = sum over D >= 1 of a^D R(D).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact

from dynwarp._checks import check_finite, check_positive_integer, check_shape, default_float
from dynwarp._compat import concrete
from dynwarp.errors import ArgumentError

# The series of a function is cut where the rest is below rounding, if that is within so many terms.
_TERMS, _MOST_TERMS = 4096, 1 << 20

Autocorrelation = Float[Array, " K"] | Callable[[Array], Array]


def signal_moments(
    lam: Inexact[Array, "..."] | complex,
    rho: Float[Array, "..."] | float | Callable[[Array], Array] = 0.0,
    *,
    autocorrelation: Autocorrelation | None = None,
    terms: int | None = None,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """E |h|^2 and E |dh/dlam|^2 of the mode h[t+1] = lam h[t] + x[t+1] driven by a stationary signal x.

    Even where nothing vanishes or explodes, |lam| < 1, the sensitivity grows as (1 - |lam|)^-3 for a white signal and
    up to (1 - |lam|)^-4 for a slow one, while the state grows as the power 1 to 2: the curse of memory.

    **Arguments:**

    - `lam`: eigenvalues, |lam| < 1, real or complex, any shape.
    - `rho`: the correlation of x at lag 1 if it decays exponentially, R(D) = rho^|D|; -1 <= rho <= 1, any shape that
      broadcasts against `lam`. Or the function R itself, as below.
    - `autocorrelation`: any other real R in its place: its values at the lags 0, 1, ..., K - 1, shape `(K,)`, zero
      beyond; or a function of an array of lags, D >= 0.
    - `terms`: how many lags of a function are summed. None: enough for rounding errors, if |lam| is known and they are
      at most 2^20; 4096 under jit.

    **Returns:** `(second_moment, sensitivity)`, shaped like `lam` and `rho` together, real. Infinite where |lam| >= 1
    is only found under jit. Differentiable.

    **Raises:** `ArgumentError` unless |lam| < 1 and |rho| <= 1; `ShapeError`, `NonFiniteError` for `autocorrelation`.

    **Cost:** closed form for `rho`, else K multiplications an eigenvalue.

    **Source:** Zucchet and Orvieto, NeurIPS 2024, arXiv:2405.21064, equations 5 and 6.

    **Example:**

    >>> import dynwarp as dw
    >>> second_moment, sensitivity = dw.gradients.signal_moments(0.99, 0.9)
    >>> round(float(second_moment), 3), round(float(sensitivity), -1)
    (871.79, 4737810.0)
    """
    lam, a0, a, da, b, db = lags_of("signal_moments", lam, None, rho, autocorrelation, terms)
    conj = jnp.conj(lam)
    second, sensitivity = covariance(lam, conj, a0, a, b), _kernel(lam, conj, a0, a, da, b, db)
    inside = jnp.abs(lam) < 1
    return jnp.where(inside, second.real, jnp.inf), jnp.where(inside, sensitivity.real, jnp.inf)


def hessian_kernel(
    lam1: Inexact[Array, "..."] | complex,
    lam2: Inexact[Array, "..."] | complex,
    rho: Float[Array, "..."] | float | Callable[[Array], Array] = 0.0,
    *,
    autocorrelation: Autocorrelation | None = None,
    terms: int | None = None,
) -> Inexact[Array, "..."]:
    """S(a, b) = E[(dh_a/da) (dh_b/db)] of two modes with the eigenvalues a and b that see the same stationary signal.

    At a student that equals its linear teacher the Hessian of half the mean squared error in the eigenvalues is
    b_i c_i b_j c_j S(lam_i, lam_j), with b and c the input and output weights: its off-diagonal entries say how much of
    the bad conditioning an optimiser with a rate for each parameter cannot mend.

    **Arguments:** eigenvalues inside the unit circle, any shapes that broadcast, and the autocorrelation as for
    [`signal_moments`][dynwarp.gradients.signal_moments]. Nothing is conjugated: for E[u conj(v)] pass `conj(lam2)`.

    **Returns:** S, complex where an eigenvalue is. For `rho` = 0 it is (1 + a b) / (1 - a b)^3. Differentiable.

    **Raises:** as [`signal_moments`][dynwarp.gradients.signal_moments].

    **Source:** Zucchet and Orvieto, NeurIPS 2024, arXiv:2405.21064; the mixed derivative of C(a, b).

    **Example:**

    >>> import dynwarp as dw
    >>> float(dw.gradients.hessian_kernel(0.5, 0.0, 0.0)), round(float(dw.gradients.hessian_kernel(0.9, 0.9, 0.5)), 2)
    (1.0, 778.12)
    """
    lam1, a0, a, da, b, db = lags_of("hessian_kernel", lam1, lam2, rho, autocorrelation, terms)
    lam2 = jnp.asarray(lam2).astype(lam1.dtype)
    inside = (jnp.abs(lam1) < 1) & (jnp.abs(lam2) < 1)
    return jnp.where(inside, _kernel(lam1, lam2, a0, a, da, b, db), jnp.inf)


def covariance(lam1, lam2, r0, a, b):
    """C(lam1, lam2) from R(0), A(lam1) and A(lam2)."""
    return (r0 + a + b) / complement(lam1, lam2)


def covariance_slope(lam1, lam2, r0, a, da, b):
    """dC / dlam1."""
    gap = complement(lam1, lam2)
    return (lam2 * (r0 + a + b) / gap + da) / gap


def _kernel(lam1, lam2, r0, a, da, b, db):
    gap = complement(lam1, lam2)
    return ((1 + lam1 * lam2) * (r0 + a + b) / gap + lam1 * da + lam2 * db) / gap**2


def complement(lam1, lam2):
    """1 - a b, without the cancellation near a = b = 1 that a rounded product brings."""
    return (1 - lam1) + lam1 * (1 - lam2)


def lags_of(caller: str, lam1, lam2, rho, autocorrelation, terms: int | None):
    """Checked arguments in one dtype, and what the signal sends to each mode: (lam1, R(0), A, A', A(lam2), A'(lam2)).

    `lam2` None is the conjugate of `lam1`.
    """
    given = [lam1] if lam2 is None else [lam1, lam2]
    arrays = [jnp.asarray(x) for x in given]
    arrays = [x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(default_float()) for x in arrays]
    for x, name in zip(arrays, ["lam"] if lam2 is None else ["lam1", "lam2"]):
        known = concrete(x)
        if known is not None and not (np.abs(known) < 1).all():
            raise ArgumentError(f"{caller}: `{name}` must lie inside the unit circle, |{name}| < 1; got {known}.")
    dtype = jnp.result_type(*(x.dtype for x in arrays))
    lam1, *rest = (x.astype(dtype) for x in arrays)
    lam2 = rest[0] if rest else jnp.conj(lam1)

    if callable(rho):
        if autocorrelation is not None:
            raise ArgumentError(f"{caller}: give the autocorrelation once, as `rho` or as `autocorrelation`.")
        autocorrelation = rho
    if autocorrelation is None:
        known = concrete(rho)
        if known is not None and not (np.abs(known) <= 1).all():
            raise ArgumentError(f"{caller}: `rho` must be a correlation, |rho| <= 1; got {rho}.")
        rho = jnp.asarray(rho).astype(dtype)
        # The sum of a^D rho^D and its derivative.
        sums = [(rho * x / (1 - rho * x), rho / (1 - rho * x) ** 2) for x in (lam1, lam2)]
        r0 = jnp.ones((), dtype)
    else:
        values = _values(caller, autocorrelation, terms, arrays, dtype)
        r0 = values[0]
        sums = [_horner(values, x) for x in (lam1, lam2)]
    (a, da), (b, db) = sums
    return lam1, r0, a, da, b, db


def _values(caller, autocorrelation, terms, eigenvalues, dtype):
    if not callable(autocorrelation):
        check_shape(autocorrelation, "autocorrelation", ("K",), caller=caller)
        values = jnp.asarray(autocorrelation)
        if len(values) == 0:
            raise ArgumentError(f"{caller}: `autocorrelation` must begin with R(0); got no values.")
    else:
        count = (
            _enough(caller, eigenvalues, dtype)
            if terms is None
            else check_positive_integer(terms, "terms", caller=caller)
        )
        lags = jnp.arange(count, dtype=jnp.finfo(dtype).dtype)
        values = jnp.asarray(autocorrelation(lags))
        check_shape(values, "what `autocorrelation` returns", (count,), caller=caller)
    if jnp.iscomplexobj(values):
        raise ArgumentError(f"{caller}: `autocorrelation` must be real; got {values.dtype}.")
    check_finite(values, "autocorrelation", caller=caller)
    return values.astype(dtype)


def _enough(caller: str, eigenvalues: list[Any], dtype: Any) -> int:
    """So many terms that D |lam|^D is below rounding; under jit a fixed number."""
    known = [concrete(jax.lax.stop_gradient(x)) for x in eigenvalues]
    if any(x is None for x in known):
        return _TERMS
    largest = max((float(np.abs(x).max(initial=0.0)) for x in known if x is not None), default=0.0)
    if largest == 0:
        return 2
    rate = -math.log(largest)
    count = math.ceil((-math.log(float(jnp.finfo(dtype).eps)) - 2 * math.log(min(rate, 1.0))) / rate) + 2
    if count > _MOST_TERMS:
        raise ArgumentError(
            f"{caller}: |lam| = {largest} remembers {count} lags, more than {_MOST_TERMS}; set `terms`, or use `rho`."
        )
    # Whole powers of two, so that few lengths are compiled.
    return 1 << (count - 1).bit_length()


@jax.jit
def _horner(values, x):
    """The sum over D >= 1 of x^D values[D], and its derivative in x."""

    def step(carry, value):
        p, dp = carry
        return (p * x + value, dp * x + p), None

    start = (jnp.zeros_like(x), jnp.zeros_like(x))
    (p, dp), _ = jax.lax.scan(step, start, values[1:], reverse=True)
    return p * x, dp * x + p
