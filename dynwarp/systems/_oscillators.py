"""Nonlinear oscillators: Duffing's, and a bank of damped ones."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_shape
from dynwarp._typing import Scalar, State
from dynwarp.models import AbstractField
from dynwarp.systems._parameter import as_parameter


class Duffing(AbstractField):
    """x'' + delta x' + alpha x + beta x^3 = gamma cos(omega t) + s: a damped, driven particle in a double well.

    The state is (x, x'), the input s a force of one component; time is dimensionless.

    **Arguments:** `delta`, `alpha`, `beta`, `gamma`, `omega`, scalars; `gamma` = 0 leaves it undriven.

    At the defaults the wells lie at x = +-sqrt(10), apart from a saddle at 0. RK4 with a step of 0.02 is ample.

    **Source:** Duffing (1918); parameters of Eisenmann et al., ICLR (2026), arXiv:2510.03814, appendix H.3.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.systems.Duffing()(0.0, jnp.array([1.0, 0.0])).round(3).tolist()
    [0.0, 0.9]
    """

    delta: Scalar = eqx.field(default=0.5, converter=as_parameter)
    alpha: Scalar = eqx.field(default=-1.0, converter=as_parameter)
    beta: Scalar = eqx.field(default=0.1, converter=as_parameter)
    gamma: Scalar = eqx.field(default=0.0, converter=as_parameter)
    omega: Scalar = eqx.field(default=1.0, converter=as_parameter)
    state_size: int = eqx.field(default=2, init=False, static=True)
    input_size: int = eqx.field(default=1, init=False, static=True)
    time_step: ClassVar[float] = 0.02

    def __call__(self, t, state, input=None):
        """The velocity; see [`AbstractField`][dynwarp.models.AbstractField]."""
        x, v = state
        force = self.gamma * jnp.cos(self.omega * t) - self.delta * v - self.alpha * x - self.beta * x**3
        return jnp.stack([v, force if input is None else force + input[0]])

    def initial_state(self) -> State:
        """At rest on the slope of the right well."""
        return jnp.array([1.0, 0.0])


# Eisenmann et al., ICLR (2026), appendix H.3.
_STIFFNESS = (1.0, 0.8, 0.9, 0.3, 0.3, 0.25, 0.5, 0.89, 0.73, 0.21)
_CUBIC = (-0.02, -0.1, 0.01, -0.01, -0.01, 0.01, -0.06, -0.052, 0.03, -0.012)
_DAMPING = (0.1, 0.05, 0.12, 0.07, 0.0, 0.03, 0.09, 0.04, 0.06, 0.008)


class DampedOscillators(AbstractField):
    """x_i' = y_i, y_i' = -alpha_i x_i - beta_i x_i^3 - gamma_i y_i: uncoupled oscillators, ten by default.

    The state is [x, y], of size 2 k for k oscillators; time is dimensionless.

    **Arguments:** `alpha`, `beta`, `gamma`: stiffness, cubic stiffness and damping, each (k,).

    At the defaults the periods lie between 6 and 14, and the fifth oscillator is undamped. Where beta_i < 0 an
    oscillator escapes beyond |x_i| = sqrt(alpha_i / -beta_i), at the least 2.8. RK4 with a step of 0.05 is ample.

    **Raises:** `ShapeError` where the parameters differ in shape.

    **Source:** Eisenmann et al., ICLR (2026), arXiv:2510.03814, appendix H.3.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> field = dw.systems.DampedOscillators()
    >>> field.state_size, float(field(0.0, jnp.zeros(20).at[0].set(1.0))[10])
    (20, -0.98)
    """

    alpha: Float[Array, " k"]
    beta: Float[Array, " k"]
    gamma: Float[Array, " k"]
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)
    time_step: ClassVar[float] = 0.05

    def __init__(self, alpha=_STIFFNESS, beta=_CUBIC, gamma=_DAMPING):
        self.alpha, self.beta, self.gamma = as_parameter(alpha), as_parameter(beta), as_parameter(gamma)
        check_shape(self.alpha, "alpha", ("k",), caller="DampedOscillators")
        check_shape(self.beta, "beta", self.alpha.shape, caller="DampedOscillators")
        check_shape(self.gamma, "gamma", self.alpha.shape, caller="DampedOscillators")
        self.state_size = 2 * self.alpha.shape[0]
        self.input_size = 0

    def __call__(self, t, state, input=None):
        """The velocity; see [`AbstractField`][dynwarp.models.AbstractField]."""
        x, y = jnp.split(state, 2)
        return jnp.concatenate([y, -self.alpha * x - self.beta * x**3 - self.gamma * y])

    def initial_state(self) -> State:
        """Every oscillator at rest at x = 1."""
        count = self.state_size // 2
        return jnp.concatenate([jnp.ones(count), jnp.zeros(count)])
