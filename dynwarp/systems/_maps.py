"""Classical maps of the line and the plane."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp._typing import Scalar, State
from dynwarp.models import AbstractMap, AbstractPiecewiseLinearModel, PiecewiseLinearMap
from dynwarp.systems._parameter import as_parameter


class LogisticMap(AbstractMap):
    """x' = r x (1 - x) on [0, 1].

    **Arguments:** `r`, a scalar; at 4 the exponent is ln 2 exactly.

    **Source:** May, Nature 261 (1976) 459.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.systems.LogisticMap()(jnp.array([0.25])).tolist()
    [0.75]
    """

    r: Scalar = eqx.field(default=4.0, converter=as_parameter)
    state_size: int = eqx.field(default=1, init=False, static=True)
    input_size: int = eqx.field(default=0, init=False, static=True)

    def __call__(self, state, input=None, *, step=None):
        """The next state; see [`AbstractMap`][dynwarp.models.AbstractMap]."""
        return self.r * state * (1.0 - state)

    def initial_state(self) -> State:
        """A point of a typical orbit."""
        return jnp.array([0.3])


class Henon(AbstractMap):
    """x' = 1 - a x^2 + y, y' = b x: the map of Hénon, of constant determinant -b.

    **Arguments:** `a`, `b`, scalars. At the defaults the exponents are 0.4192 and ln b - 0.4192 a step.

    **Source:** Hénon, Commun. Math. Phys. 50 (1976) 69.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.systems.Henon()(jnp.array([1.0, 0.5])).round(3).tolist()
    [0.1, 0.3]
    """

    a: Scalar = eqx.field(default=1.4, converter=as_parameter)
    b: Scalar = eqx.field(default=0.3, converter=as_parameter)
    state_size: int = eqx.field(default=2, init=False, static=True)
    input_size: int = eqx.field(default=0, init=False, static=True)

    def __call__(self, state, input=None, *, step=None):
        """The next state; see [`AbstractMap`][dynwarp.models.AbstractMap]."""
        x, y = state
        return jnp.stack([1.0 - self.a * x**2 + y, self.b * x])

    def initial_state(self) -> State:
        """A point in the basin of the attractor."""
        return jnp.array([0.1, 0.1])


class Lozi(AbstractPiecewiseLinearModel):
    """x' = 1 - a |x| + y, y' = b x: the piecewise-linear sister of Hénon's map.

    **Arguments:** `a`, `b`, scalars; the defaults are chaotic. At x = 0 the slope of |x| is taken to be -1.

    **Source:** Lozi, J. Phys. Colloques 39 (1978) C5-9.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.systems.Lozi()(jnp.array([-1.0, 0.5])).round(3).tolist()
    [-0.2, -0.5]
    """

    a: Scalar = eqx.field(default=1.7, converter=as_parameter)
    b: Scalar = eqx.field(default=0.5, converter=as_parameter)
    state_size: int = eqx.field(default=2, init=False, static=True)
    input_size: int = eqx.field(default=0, init=False, static=True)

    def __call__(self, state, input=None, *, step=None):
        """The next state; see [`AbstractMap`][dynwarp.models.AbstractMap]."""
        x, y = state
        # |x| in this form has the library's slope at 0, that of the ReLU's closed side.
        magnitude = 2.0 * jax.nn.relu(x) - x
        return jnp.stack([1.0 - self.a * magnitude + y, self.b * x])

    def canonical(self, input=None) -> PiecewiseLinearMap:
        """The same map with one ReLU: A = [[a, 1], [b, 0]], W1 = (-2 a, 0)."""
        zero, one = jnp.zeros_like(self.a), jnp.ones_like(self.a)
        return PiecewiseLinearMap(
            jnp.stack([jnp.stack([self.a, one]), jnp.stack([self.b, zero])]),
            jnp.stack([-2.0 * self.a, zero])[:, None],
            jnp.stack([one, zero])[None, :],
            jnp.stack([one, zero]),
            zero[None],
        )

    def initial_state(self) -> State:
        """A point in the basin of the attractor."""
        return jnp.array([0.1, 0.1])
