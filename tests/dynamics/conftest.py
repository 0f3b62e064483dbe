"""Small models that every test of dynamics may use."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw


class Tanh(dw.models.AbstractMap):
    """z' = tanh(W z + B s)."""

    W: jax.Array
    B: jax.Array
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(self, W, B=None):
        self.W = jnp.asarray(W)
        self.state_size = self.W.shape[0]
        self.B = jnp.zeros((self.state_size, 1), self.W.dtype) if B is None else jnp.asarray(B)
        self.input_size = self.B.shape[1]

    def __call__(self, state, input=None, *, step=None):
        drive = jnp.zeros(self.input_size, state.dtype) if input is None else input
        return jnp.tanh(self.W @ state + self.B @ drive)


class Linear(dw.models.AbstractMap):
    """z' = A z."""

    A: jax.Array
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(self, A):
        self.A = jnp.asarray(A)
        self.state_size, self.input_size = self.A.shape[0], 0

    def __call__(self, state, input=None, *, step=None):
        return self.A @ state


class LinearField(dw.models.AbstractField):
    """dz/dt = A z + s(t)."""

    A: jax.Array
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(self, A):
        self.A = jnp.asarray(A)
        self.state_size = self.input_size = self.A.shape[0]

    def __call__(self, t, state, input=None):
        return self.A @ state if input is None else self.A @ state + input


@pytest.fixture(scope="session")
def tanh_rnn():
    generator = np.random.default_rng(0)
    return Tanh(1.6 * generator.standard_normal((4, 4)) / 2, 0.5 * generator.standard_normal((4, 2)))


@pytest.fixture(scope="session")
def models():
    """The classes, for tests that build their own."""

    class Names:
        tanh, linear, field = Tanh, Linear, LinearField

    return Names
