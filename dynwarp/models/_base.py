"""The two things a user extends, and what some of them can do besides.

No postponed annotations here: Equinox must see `AbstractVar` itself, not its name.
"""

import abc
from typing import TYPE_CHECKING

import equinox as eqx

if TYPE_CHECKING:
    from dynwarp._typing import Input, Inputs, Scalar, State, States
    from dynwarp.models._piecewise_linear import PiecewiseLinearMap


class AbstractMap(eqx.Module):
    """Discrete time: z[t+1] = F(z[t], s[t]).

    A subclass sets `state_size` and `input_size` and implements `__call__` for one state and one input; batches are
    made with `jax.vmap`. The state is one real vector, whatever the network keeps in it.

    **Example:**

    >>> import equinox as eqx, jax.numpy as jnp, dynwarp as dw
    >>> class Rotation(dw.models.AbstractMap):
    ...     angle: float
    ...     state_size: int = 2
    ...     input_size: int = 0
    ...     def __call__(self, state, input=None, *, step=None):
    ...         c, s = jnp.cos(self.angle), jnp.sin(self.angle)
    ...         return jnp.stack([c * state[0] - s * state[1], s * state[0] + c * state[1]])
    >>> dw.simulate(Rotation(0.1), jnp.array([1.0, 0.0]), steps=5).shape
    (5, 2)
    """

    state_size: eqx.AbstractVar[int]
    input_size: eqx.AbstractVar[int]

    @abc.abstractmethod
    def __call__(self, state: "State", input: "Input | None" = None, *, step: "int | Scalar | None" = None) -> "State":
        """The next state.

        **Arguments:**

        - `state`: z[t], shape `(state_size,)`.
        - `input`: s[t], shape `(input_size,)`; None means no input, the same as zeros.
        - `step`: the index t, for clocked cells; others ignore it.
        """


class AbstractField(eqx.Module):
    """Continuous time: dz/dt = f(t, z, s(t)).

    A subclass sets `state_size` and `input_size` and implements `__call__` for one time, state and input.
    """

    state_size: eqx.AbstractVar[int]
    input_size: eqx.AbstractVar[int]

    @abc.abstractmethod
    def __call__(self, t: "Scalar", state: "State", input: "Input | None" = None) -> "State":
        """The velocity dz/dt.

        **Arguments:**

        - `t`: the time, a scalar.
        - `state`: z, shape `(state_size,)`.
        - `input`: s(t), shape `(input_size,)`; None means no input, the same as zeros.
        """


class AbstractLinearRecurrence(AbstractMap):
    """A map that is linear in its state, z[t+1] = M(s[t]) z[t] + b(s[t]), and so has forms that are parallel in time.

    [`simulate`][dynwarp.simulate] calls them for `mode="associative"` and `mode="fft"`.
    """

    @abc.abstractmethod
    def associative(self, state0: "State", inputs: "Inputs") -> "States":
        """The states after each input, shape `(T, n)`, by a parallel prefix scan over time."""

    @abc.abstractmethod
    def convolution(self, state0: "State", inputs: "Inputs") -> "States":
        """The states after each input, shape `(T, n)`, as a convolution by FFT.

        **Raises:** `ModelError` where M depends on the input, so that there is no convolution.
        """


class AbstractPiecewiseLinearModel(AbstractMap):
    """A map that is affine in every region of its ReLU pattern."""

    @abc.abstractmethod
    def canonical(self, input: "Input | None" = None) -> "PiecewiseLinearMap":
        """The same map for this constant input in the form F(z) = A z + W1 relu(W2 z + h2) + h1, A full."""
