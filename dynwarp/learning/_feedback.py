"""Feedback: the matrix F that carries an output error to the hidden units, or to one mode."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_shape
from dynwarp.errors import ArgumentError


class AbstractFeedback(eqx.Module):
    """How an output error reaches the hidden units: a matrix for a network, a number for a mode."""

    @abc.abstractmethod
    def matrix(self, A: Float[Array, "o n"]) -> Float[Array, "n o"]:
        """F for a network whose readout is `A`."""

    @abc.abstractmethod
    def mode(self, a: Array) -> Array:
        """F for modes whose output strengths are `a`; element by element."""


class Symmetric(AbstractFeedback):
    """The true gradient's feedback: F is the transpose of the current readout.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.learning.Symmetric().matrix(jnp.ones((2, 5))).shape
    (5, 2)
    """

    def matrix(self, A):
        return A.T

    def mode(self, a):
        return a


class Fixed(AbstractFeedback):
    """A feedback that is not learnt: random in RFLO and in feedback alignment.

    **Arguments:**

    - `value`: R of shape `(outputs, n)` for a network, so that F is its transpose; a scalar or `(modes,)` for modes.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.learning.Fixed(jnp.ones((2, 5))).matrix(jnp.zeros((2, 5))).shape
    (5, 2)
    """

    value: Float[Array, "..."]

    def __init__(self, value):
        self.value = as_strength(value, "feedback")

    def matrix(self, A):
        check_shape(self.value, "feedback", A.shape)
        return self.value.T

    def mode(self, a):
        return self.value


class Mixed(AbstractFeedback):
    """The straight line from symmetric to fixed feedback, F = (1 - theta) A^T + theta R^T.

    **Arguments:**

    - `value`: R, as in [`Fixed`][dynwarp.learning.Fixed].
    - `theta`: 0 is symmetric, 1 is fixed; differentiable.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> float(dw.learning.Mixed(2.0, theta=0.25).mode(jnp.array(1.0)))
    1.25
    """

    value: Float[Array, "..."]
    theta: Float[Array, "..."]

    def __init__(self, value, theta):
        self.value = as_strength(value, "feedback")
        self.theta = as_strength(theta, "theta")

    def matrix(self, A):
        check_shape(self.value, "feedback", A.shape)
        check_shape(self.theta, "theta", ())
        return (1 - self.theta) * A.T + self.theta * self.value.T

    def mode(self, a):
        return (1 - self.theta) * a + self.theta * self.value


def as_strength(value, name: str) -> Array:
    """`value` as a real floating array; numbers become the default dtype."""
    array = jnp.asarray(value)
    if jnp.issubdtype(array.dtype, jnp.complexfloating) or array.dtype == bool:
        raise ArgumentError(f"`{name}` must be real; got dtype {array.dtype}.")
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def as_feedback(feedback) -> AbstractFeedback:
    """None is symmetric, an array or a number is fixed, a feedback is itself."""
    if feedback is None:
        return Symmetric()
    return feedback if isinstance(feedback, AbstractFeedback) else Fixed(feedback)
