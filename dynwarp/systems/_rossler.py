"""The system of Rössler."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp

from dynwarp._typing import Scalar, State
from dynwarp.models import AbstractField
from dynwarp.systems._parameter import as_parameter


class Rossler(AbstractField):
    """x' = -y - z, y' = x + a y, z' = b + z (x - c): chaos with a single product, in dimensionless time.

    **Arguments:** `a`, `b`, `c`, scalars.

    The largest exponent at the defaults is about 0.071 per unit time, one turn takes about 5.9; RK4 with a step of 0.02
    is ample.

    **Source:** Rössler, Phys. Lett. A 57 (1976) 397.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.systems.Rossler()(0.0, jnp.array([1.0, 5.0, 0.0])).round(3).tolist()
    [-5.0, 2.0, 0.2]
    """

    a: Scalar = eqx.field(default=0.2, converter=as_parameter)
    b: Scalar = eqx.field(default=0.2, converter=as_parameter)
    c: Scalar = eqx.field(default=5.7, converter=as_parameter)
    state_size: int = eqx.field(default=3, init=False, static=True)
    input_size: int = eqx.field(default=0, init=False, static=True)
    time_step: ClassVar[float] = 0.02

    def __call__(self, t, state, input=None):
        """The velocity; see [`AbstractField`][dynwarp.models.AbstractField]."""
        x, y, z = state
        return jnp.stack([-y - z, x + self.a * y, self.b + z * (x - self.c)])

    def initial_state(self) -> State:
        """A state in the basin of the attractor."""
        return jnp.array([1.0, 1.0, 0.0])
