"""How eigenvalues are written in parameters, how the state is normalised, and what both do to the sensitivity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Inexact

from dynwarp._checks import check_choice
from dynwarp._compat import concrete
from dynwarp.dynamics._stepping import as_floating
from dynwarp.errors import ArgumentError
from dynwarp.gradients._signal import Autocorrelation, covariance_slope, lags_of, signal_moments

Parametrisation = Literal["cartesian", "polar", "exp", "scaled", "tanh"]
Normalisation = Literal["none", "l2", "l1"]
PARAMETRISATIONS = ("cartesian", "polar", "exp", "scaled", "tanh")
NORMALISATIONS = ("none", "l2", "l1")


def eigenvalue_from_parameters(
    first: Float[Array, "..."] | float,
    second: Float[Array, "..."] | float = 0.0,
    *,
    parametrisation: Parametrisation = "exp",
) -> Complex[Array, "..."]:
    """The eigenvalue that two real parameters stand for.

    **Arguments:**

    - `first`, `second`: nu and theta, any shapes that broadcast.
    - `parametrisation`: `"cartesian"`, nu + i theta; `"polar"`, nu exp(i theta); `"exp"`, that of the LRU,
      exp(-exp(nu) + i exp(theta)); `"scaled"`, exp(-exp(nu)) with the angle (1 - |lam|) theta, the factor taken as a
      constant in derivatives; `"tanh"`, tanh(nu) exp(i theta).

    **Returns:** complex. Differentiable.

    **Source:** Zucchet and Orvieto, NeurIPS 2024, arXiv:2405.21064; Orvieto et al., ICML 2023, arXiv:2303.06349.

    **Example:**

    >>> import dynwarp as dw
    >>> round(float(abs(dw.gradients.eigenvalue_from_parameters(-2.0, 0.5))), 6)
    0.873423
    """
    check_choice(parametrisation, "parametrisation", PARAMETRISATIONS, caller="eigenvalue_from_parameters")
    first, second = _together(as_floating(first), as_floating(second))
    if parametrisation == "cartesian":
        return jax.lax.complex(first, second)
    if parametrisation == "tanh":
        magnitude, angle = jnp.tanh(first), second
    elif parametrisation == "polar":
        magnitude, angle = first, second
    else:
        magnitude = jnp.exp(-jnp.exp(first))
        # 1 - |lam| without cancellation near the circle.
        scale = jax.lax.stop_gradient(-jnp.expm1(-jnp.exp(first)))
        angle = jnp.exp(second) if parametrisation == "exp" else scale * second
    return jax.lax.complex(magnitude * jnp.cos(angle), magnitude * jnp.sin(angle))


def parameters_from_eigenvalue(
    lam: Inexact[Array, "..."] | complex, *, parametrisation: Parametrisation = "exp"
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The parameters (nu, theta) of an eigenvalue: the inverse of
    [`eigenvalue_from_parameters`][dynwarp.gradients.eigenvalue_from_parameters].

    **Arguments:** the eigenvalues, inside the unit circle and not 0 for `"exp"` and `"scaled"`, whose logarithm is
    taken; angles are in [0, 2 pi) there and for `"exp"` not 0, else in (-pi, pi].

    **Returns:** two real arrays of the shape of `lam`.

    **Raises:** `ArgumentError` for an eigenvalue that the parametrisation cannot reach.

    **Example:**

    >>> import dynwarp as dw
    >>> nu, theta = dw.gradients.parameters_from_eigenvalue(0.9 + 0.1j)
    >>> round(complex(dw.gradients.eigenvalue_from_parameters(nu, theta)).real, 12)
    0.9
    """
    caller = "parameters_from_eigenvalue"
    check_choice(parametrisation, "parametrisation", PARAMETRISATIONS, caller=caller)
    lam = _complex(lam)
    known = concrete(lam)
    if known is not None:
        outside = (abs(known) >= 1) if parametrisation in ("exp", "scaled", "tanh") else abs(known) < 0
        if parametrisation in ("exp", "scaled"):
            outside = outside | (known == 0)
        if parametrisation == "exp":
            outside = outside | ((known.imag == 0) & (known.real > 0))
        if outside.any():
            raise ArgumentError(f"{caller}: {parametrisation!r} does not reach every `lam`; got {known}.")
    if parametrisation == "cartesian":
        return lam.real, lam.imag
    magnitude, angle = jnp.abs(lam), jnp.angle(lam)
    if parametrisation == "polar":
        return magnitude, angle
    if parametrisation == "tanh":
        return jnp.arctanh(magnitude), angle
    angle = jnp.where(angle < 0, angle + 2 * jnp.pi, angle)
    nu = jnp.log(-jnp.log(magnitude))
    return nu, jnp.log(angle) if parametrisation == "exp" else angle / (1 - magnitude)


def parameter_sensitivity(
    lam: Inexact[Array, "..."] | complex,
    rho: Float[Array, "..."] | float | Callable[[Array], Array] = 0.0,
    *,
    parametrisation: Parametrisation = "exp",
    normalisation: Normalisation = "none",
    autocorrelation: Autocorrelation | None = None,
    terms: int | None = None,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """E |d(gamma h)/dnu|^2 and E |d(gamma h)/dtheta|^2 of a normalised mode in the parameters of its eigenvalue.

    With gamma = sqrt(1 - |lam|^2) and lam = tanh(nu) the first is 1 for every eigenvalue under a white signal: the
    curse of memory is gone from the magnitude. That of the angle still diverges, unless the angle is scaled.

    **Arguments:**

    - `lam`, `rho`, `autocorrelation`, `terms`: as for [`signal_moments`][dynwarp.gradients.signal_moments].
    - `parametrisation`: as for [`eigenvalue_from_parameters`][dynwarp.gradients.eigenvalue_from_parameters]. A real
      positive `lam` has no angle that `"exp"` could write: its second value is 0.
    - `normalisation`: gamma; `"none"`, 1; `"l2"`, sqrt(1 - |lam|^2), which makes E |gamma h|^2 = 1 under a white
      signal; `"l1"`, 1 - |lam|.

    **Returns:** two real arrays, shaped like `lam` and `rho` together. Differentiable.

    **Raises:** as [`signal_moments`][dynwarp.gradients.signal_moments]; `ArgumentError` for unknown choices.

    **Source:** Zucchet and Orvieto, NeurIPS 2024, arXiv:2405.21064, section 3.

    **Example:**

    >>> import dynwarp as dw
    >>> of_nu, of_theta = dw.gradients.parameter_sensitivity(0.99, parametrisation="tanh", normalisation="l2")
    >>> round(float(of_nu), 9), round(float(of_theta), 1)
    (1.0, 4900.6)
    """
    caller = "parameter_sensitivity"
    check_choice(parametrisation, "parametrisation", PARAMETRISATIONS, caller=caller)
    check_choice(normalisation, "normalisation", NORMALISATIONS, caller=caller)
    lam = _complex(lam)
    second, sensitivity = signal_moments(lam, rho, autocorrelation=autocorrelation, terms=terms)
    lam, r0, a, da, b, _ = lags_of(caller, lam, None, rho, autocorrelation, terms)
    conj = jnp.conj(lam)
    # E[h_lam conj(h)]; with it E |u h + v h_lam|^2 is a quadratic form in what the parameters move.
    cross = covariance_slope(lam, conj, r0, a, da, b)
    magnitude = jnp.abs(lam)
    gamma, gamma_slope = _gamma(magnitude, normalisation)
    unit = jnp.where(magnitude > 0, lam / jnp.where(magnitude > 0, magnitude, 1).astype(lam.dtype), 1)

    def moved(direction):
        """`direction`: d lam / d parameter."""
        u = gamma_slope * jnp.real(jnp.conj(unit) * direction)
        v = gamma.astype(direction.dtype) * direction
        return u**2 * second + jnp.abs(v) ** 2 * sensitivity + 2 * u * jnp.real(v * cross)

    along_nu, along_theta = _directions(lam, magnitude, unit, parametrisation)
    return moved(along_nu), moved(along_theta)


def _complex(lam):
    lam = as_floating(lam)
    return lam if jnp.iscomplexobj(lam) else jax.lax.complex(lam, jnp.zeros_like(lam))


def _together(a, b):
    dtype = jnp.result_type(a.dtype, b.dtype)
    return jnp.broadcast_arrays(a.astype(dtype), b.astype(dtype))


def _gamma(magnitude, normalisation):
    one = jnp.ones_like(magnitude)
    if normalisation == "none":
        return one, jnp.zeros_like(magnitude)
    if normalisation == "l1":
        return 1 - magnitude, -one
    gamma = jnp.sqrt((1 - magnitude) * (1 + magnitude))
    return gamma, -magnitude / gamma


def _directions(lam, magnitude, unit, parametrisation):
    """d lam/d nu and d lam/d theta."""
    size, turn = magnitude.astype(lam.dtype), lam * jnp.asarray(1j, lam.dtype)
    if parametrisation == "cartesian":
        return jnp.ones_like(lam), jnp.full_like(lam, 1j)
    if parametrisation == "polar":
        return unit, turn
    if parametrisation == "tanh":
        return unit * (1 - size) * (1 + size), turn
    radial = lam * jnp.log(jnp.where(size.real > 0, size, 1))
    if parametrisation == "scaled":
        return radial, turn * (1 - size)
    angle = jnp.angle(unit)
    return radial, turn * jnp.where(angle < 0, angle + 2 * jnp.pi, angle).astype(lam.dtype)
