"""The two systems of Lorenz: three-mode convection, and the ring of 1996."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from dynwarp._checks import check_positive_integer
from dynwarp._typing import Scalar, State
from dynwarp.models import AbstractField
from dynwarp.systems._parameter import as_parameter


class Lorenz63(AbstractField):
    """x' = sigma (y - x), y' = x (rho - z) - y, z' = x y - beta z: the chaotic flow of Lorenz, in dimensionless time.

    **Arguments:** `sigma`, `rho`, `beta`, scalars.

    The largest exponent at the defaults is 0.906 per unit time, one turn takes about 0.75; RK4 with a step of 0.01 is
    usual.

    **Source:** Lorenz, J. Atmos. Sci. 20 (1963) 130.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.systems.Lorenz63()(0.0, jnp.ones(3)).round(3).tolist()
    [0.0, 26.0, -1.667]
    """

    sigma: Scalar = eqx.field(default=10.0, converter=as_parameter)
    rho: Scalar = eqx.field(default=28.0, converter=as_parameter)
    beta: Scalar = eqx.field(default=8.0 / 3.0, converter=as_parameter)
    state_size: int = eqx.field(default=3, init=False, static=True)
    input_size: int = eqx.field(default=0, init=False, static=True)
    time_step: ClassVar[float] = 0.01

    def __call__(self, t, state, input=None):
        """The velocity; see [`AbstractField`][dynwarp.models.AbstractField]."""
        x, y, z = state
        return jnp.stack([self.sigma * (y - x), x * (self.rho - z) - y, x * y - self.beta * z])

    def initial_state(self) -> State:
        """A state near the attractor."""
        return jnp.array([1.0, 1.0, 20.0])


class Lorenz96(AbstractField):
    """x_i' = (x_{i+1} - x_{i-2}) x_{i-1} - x_i + F on a ring of n sites: a toy atmosphere.

    **Arguments:**

    - `n`: the number of sites, at least 4.
    - `forcing`: F, a scalar; 8 is chaotic for n = 40, with 13 positive exponents, the largest about 1.67 per unit time.

    A unit of time is 5 days; RK4 with a step of 0.01 to 0.05 is usual.

    **Raises:** `ArgumentError` where `n` is not a whole number of at least 4.

    **Source:** Lorenz, Proc. ECMWF Seminar on Predictability (1996) 1.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.systems.Lorenz96(5)(0.0, 8.0 * jnp.ones(5)).tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0]
    """

    forcing: Scalar
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)
    time_step: ClassVar[float] = 0.01

    def __init__(self, n: int = 40, *, forcing: float | Array = 8.0):
        self.state_size = check_positive_integer(n, "n", minimum=4, caller="Lorenz96")
        self.input_size = 0
        self.forcing = as_parameter(forcing)

    def __call__(self, t, state, input=None):
        """The velocity; see [`AbstractField`][dynwarp.models.AbstractField]."""
        return (jnp.roll(state, -1) - jnp.roll(state, 2)) * jnp.roll(state, 1) - state + self.forcing

    def initial_state(self) -> State:
        """The unstable equilibrium x_i = F, with one site moved by 0.01."""
        return jnp.full(self.state_size, self.forcing, float).at[0].add(0.01)
