"""Propagators: the matrix Z that carries a hidden error one step back in time."""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer, check_shape
from dynwarp.errors import ArgumentError
from dynwarp.learning._feedback import as_strength


class AbstractPropagator(eqx.Module):
    """How a hidden error goes one step back: a matrix for a network, a number for a mode."""

    @abc.abstractmethod
    def matrix(self, W: Float[Array, "n n"]) -> Float[Array, "n n"]:
        """Z for a network whose recurrent matrix is `W`."""

    @abc.abstractmethod
    def mode(self, w: Array) -> Array:
        """Z for modes (or diagonal recurrences) whose multipliers are `w`; element by element."""


class Exact(AbstractPropagator):
    """Backpropagation: Z is the transpose of W.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> float(dw.learning.Exact().mode(jnp.array(0.5)))
    0.5
    """

    def matrix(self, W):
        return W.T

    def mode(self, w):
        return w


class Leak(AbstractPropagator):
    """A fixed scalar decay, Z = decay I: the trace of RFLO.

    **Arguments:**

    - `decay`: a scalar; `(modes,)` for modes that differ.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> float(dw.learning.Leak(0.25).mode(jnp.array(0.5)))
    0.25
    """

    decay: Float[Array, "..."]

    def __init__(self, decay):
        self.decay = as_strength(decay, "decay")

    def matrix(self, W):
        check_shape(self.decay, "decay", ())
        return self.decay * jnp.eye(W.shape[0], dtype=W.dtype)

    def mode(self, w):
        return self.decay


class Diagonal(AbstractPropagator):
    """The diagonal of W, Z = Diag(W): e-prop on a linear network, and SnAp-1 where W is dense.

    For modes it is `w` itself, which holds where the recurrent eigenvectors are the units.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> float(dw.learning.Diagonal().matrix(jnp.ones((2, 2)))[0, 1])
    0.0
    """

    def matrix(self, W):
        return jnp.diag(jnp.diag(W))

    def mode(self, w):
        return w


class CellLeak(AbstractPropagator):
    """The leak of the cell alone, without its recurrent weight: Bellec's e-prop.

    A network h' = W h + B x has none: Z = 0.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> float(dw.learning.CellLeak().mode(jnp.array(0.5)))
    0.0
    """

    def matrix(self, W):
        return jnp.zeros_like(W)

    def mode(self, w):
        return jnp.zeros_like(w)


class Zero(AbstractPropagator):
    """No propagation, Z = 0: only the current step learns.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> float(dw.learning.Zero().mode(jnp.array(0.5)))
    0.0
    """

    def matrix(self, W):
        return jnp.zeros_like(W)

    def mode(self, w):
        return jnp.zeros_like(w)


class Reach(AbstractPropagator):
    """SnAp's sparsity: an influence is kept on the units a weight reaches within `order` steps.

    Each parameter row i has its own Z, W^T restricted to the units within `order - 1` hops of i. Order 1 is the
    diagonal of W; where W is dense, order 2 is already exact, so that `matrix` is the transpose of W masked by the
    hops.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.learning.Reach(2).rows(jnp.eye(3)).shape
    (3, 3, 3)
    """

    order: int = eqx.field(static=True)

    def __init__(self, order: int):
        self.order = check_positive_integer(order, "order")

    def matrix(self, W):
        raise ArgumentError(f"Reach({self.order}) has a propagator for every unit, not one matrix: use `rows`.")

    def mode(self, w):
        return w

    def rows(self, W: Float[Array, "n n"]) -> Float[Array, "n n n"]:
        """Z of every unit i, (n, n, n): the rows and columns outside the reach of i are zero."""
        n = W.shape[0]
        linked = (W != 0).astype(W.dtype)
        reached = jnp.eye(n, dtype=W.dtype)
        for _ in range(min(self.order - 1, n)):
            reached = jnp.minimum(reached + linked @ reached, 1)
        mask = reached.T  # [i, j]: unit j is within order - 1 steps of unit i
        return mask[:, :, None] * W.T * mask[:, None, :]


class Interpolated(AbstractPropagator):
    """The straight line between two propagators, Z = (1 - theta) first + theta second; differentiable in `theta`.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> l = dw.learning
    >>> float(l.Interpolated(l.Exact(), l.Leak(0.0), theta=0.5).mode(jnp.array(0.5)))
    0.25
    """

    first: AbstractPropagator
    second: AbstractPropagator
    theta: Float[Array, "..."]

    def __init__(self, first, second, theta):
        self.first, self.second = as_propagator(first), as_propagator(second)
        self.theta = as_strength(theta, "theta")

    def matrix(self, W):
        check_shape(self.theta, "theta", ())
        return (1 - self.theta) * self.first.matrix(W) + self.theta * self.second.matrix(W)

    def mode(self, w):
        return (1 - self.theta) * self.first.mode(w) + self.theta * self.second.mode(w)


class Custom(AbstractPropagator):
    """A user's own function of the recurrent matrix, W (n, n) -> Z (n, n). A mode is a network of one unit.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> float(dw.learning.Custom(lambda W: 0.5 * W.T).mode(jnp.array(0.5)))
    0.25
    """

    function: Callable

    def matrix(self, W):
        Z = self.function(W)
        check_shape(Z, "propagator(W)", W.shape)
        return Z

    def mode(self, w):
        w = jnp.asarray(w)
        return jax.vmap(lambda x: self.matrix(x[None, None])[0, 0])(w.ravel()).reshape(w.shape)


def as_propagator(propagator) -> AbstractPropagator:
    """A propagator is itself; any other callable becomes a [`Custom`][dynwarp.learning.Custom] one."""
    if isinstance(propagator, AbstractPropagator):
        return propagator
    if callable(propagator):
        return Custom(propagator)
    raise ArgumentError(f"`propagator` must be a propagator or a function W -> Z; got {propagator!r}.")
