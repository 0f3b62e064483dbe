"""from_cell: Equinox's cells and users' own, any hidden pytree, and what it says when they do not fit."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import dynwarp as dw
from dynwarp.errors import ArgumentError, ModelError, ShapeError

m = dw.models


class Hidden(NamedTuple):
    fast: jax.Array
    slow: jax.Array


class TwoSpeeds(eqx.Module):
    """A user's cell: a nested hidden state with a matrix and a scalar, plain numbers and a function as fields."""

    weight: jax.Array
    leak: float = 0.25
    sizes: tuple = (2, 3)
    activation: object = jnp.tanh

    def __call__(self, input, hidden):
        fast = self.activation(hidden.fast @ self.weight + input[0])
        return Hidden(fast, (1 - self.leak) * hidden.slow + self.leak * jnp.sum(hidden.fast) * input[1])


class Oscillator(eqx.Module):
    """A user's complex cell."""

    eigenvalue: jax.Array

    def __call__(self, input, hidden):
        return self.eigenvalue * hidden + input[0].astype(hidden.dtype)


@pytest.fixture(scope="module")
def two_speeds():
    cell = TwoSpeeds(jax.random.normal(jax.random.key(3), (3, 3)))
    return m.from_cell(cell, 7, 2, hidden=Hidden(jnp.zeros((2, 3)), jnp.zeros(())))


def test_gru_cell(key):
    cell = eqx.nn.GRUCell(2, 3, key=key)
    net = m.from_cell(cell, 3, 2)
    h, x = jnp.array([0.1, -0.2, 0.3]), jnp.array([1.0, -1.0])
    assert isinstance(net, m.AbstractMap)
    assert (net.state_size, net.input_size) == (3, 2)
    np.testing.assert_array_equal(net(h, x), cell(x, h))
    np.testing.assert_array_equal(net(h), cell(jnp.zeros(2), h))


def test_lstm_cell_keeps_h_and_c(key):
    cell = eqx.nn.LSTMCell(2, 3, key=key)
    net = m.from_cell(cell, 6, 2)
    state, x = jnp.arange(6.0) / 6, jnp.array([1.0, -1.0])
    np.testing.assert_array_equal(net(state, x), jnp.concatenate(cell(x, (state[:3], state[3:]))))


def test_own_cells_survive_the_round_trip(key):
    """The wrapped equinox-style cell of our own GRU is the GRU."""
    gru = m.GRU(2, 3, key=key)
    wrapped = m.from_cell(lambda hidden, input: gru(hidden, input), 3, 2, order="state_first")
    h, x = jnp.array([0.1, -0.2, 0.3]), jnp.array([1.0, -1.0])
    np.testing.assert_array_equal(wrapped(h, x), gru(h, x))


def test_pytree_of_a_user(two_speeds):
    state, x = jnp.arange(7.0) / 8, jnp.array([0.5, -2.0])
    hidden = two_speeds.unravel(state)
    assert isinstance(hidden, Hidden)
    np.testing.assert_array_equal(hidden.fast, np.arange(6.0).reshape(2, 3) / 8)
    assert hidden.slow.shape == ()
    np.testing.assert_array_equal(two_speeds.ravel(hidden), state)
    weight = np.asarray(two_speeds.cell.weight)
    fast = np.tanh(np.arange(6.0).reshape(2, 3) / 8 @ weight + 0.5)
    slow = 0.75 * 6 / 8 + 0.25 * (15 / 8) * -2.0
    np.testing.assert_allclose(two_speeds(state, x), [*fast.ravel(), slow], rtol=1e-12)


def test_complex_hidden_states_are_re_then_im():
    cell = Oscillator(jnp.array([0.5 + 0.5j, -0.3 + 0.1j]))
    net = m.from_cell(cell, 4, 1, hidden=jnp.zeros(2, complex))
    state = jnp.array([1.0, 2.0, 3.0, 4.0])
    expected = np.array([0.5 + 0.5j, -0.3 + 0.1j]) * np.array([1 + 3j, 2 + 4j]) + 2.0
    np.testing.assert_allclose(net(state, jnp.array([2.0])), [*expected.real, *expected.imag], rtol=1e-14)


def test_transformations(two_speeds, key):
    state, x = jnp.arange(7.0) / 7, jnp.array([0.5, -2.0])
    value = two_speeds(state, x)
    np.testing.assert_allclose(eqx.filter_jit(two_speeds)(state, x), value, rtol=1e-14)
    states = jnp.stack([state, -state])
    np.testing.assert_allclose(eqx.filter_vmap(two_speeds, in_axes=(0, None))(states, x)[0], value, rtol=1e-14)
    check_grads(jax.jit(lambda z: two_speeds(z, x)), (state,), order=1, rtol=1e-6, atol=1e-6)
    grads = eqx.filter_jit(eqx.filter_grad(lambda net: jnp.sum(net(state, x))))(two_speeds)
    assert grads.cell.weight.shape == (3, 3)
    assert float(jnp.abs(grads.cell.weight).max()) > 0

    keys = jax.random.split(key, 2)
    nets = eqx.filter_vmap(lambda k: m.from_cell(eqx.nn.GRUCell(2, 3, key=k), 3, 2))(keys)
    many = eqx.filter_vmap(lambda net, z: net(z), in_axes=(eqx.if_array(0), None))(nets, jnp.ones(3))
    alone = eqx.nn.GRUCell(2, 3, key=keys[1])(jnp.zeros(2), jnp.ones(3))
    np.testing.assert_allclose(many[1], alone, rtol=1e-14)


def test_float32(key):
    net = m.from_cell(eqx.nn.LSTMCell(2, 3, dtype=jnp.float32, key=key), 6, 2)
    assert net(jnp.zeros(6, jnp.float32)).dtype == jnp.float32


def test_a_function_takes_its_precision_from_the_example():
    weight = jnp.eye(3, dtype=jnp.float32)
    net = m.from_cell(lambda x, h: jnp.tanh(weight @ h), 3, 0, hidden=jnp.zeros(3, jnp.float32))
    np.testing.assert_allclose(net(jnp.ones(3, jnp.float32)), np.tanh(np.ones(3)), rtol=1e-6)


def test_no_input(key):
    net = m.from_cell(eqx.nn.GRUCell(0, 3, key=key), 3, 0)
    np.testing.assert_array_equal(net(jnp.ones(3)), net(jnp.ones(3), jnp.zeros(0)))


def test_messages(key):
    gru, lstm = eqx.nn.GRUCell(2, 3, key=key), eqx.nn.LSTMCell(2, 3, key=key)
    with pytest.raises(ModelError, match=r"`cell` must be a function"):
        m.from_cell(3, 3, 2)
    with pytest.raises(ArgumentError, match=r"`state_size` must be a whole number"):
        m.from_cell(gru, -3, 2)
    with pytest.raises(ArgumentError, match=r"`order` must be one of 'input_first', 'state_first'; got 'hx'"):
        m.from_cell(gru, 3, 2, order="hx")
    with pytest.raises(ShapeError, match=r"LSTMCell of hidden_size 3 keeps \(h, c\), so `state_size` must be 6; got 3"):
        m.from_cell(lstm, 3, 2)
    with pytest.raises(ShapeError, match=r"holds 4 real numbers.*`state_size` must be 4; got 3"):
        m.from_cell(gru, 3, 2, hidden=(jnp.zeros(2), jnp.zeros(2)))
    with pytest.raises(ModelError, match=r"must hold floating or complex arrays; it has a leaf of dtype int"):
        m.from_cell(gru, 4, 2, hidden=(jnp.zeros(3), jnp.array(0)))
    with pytest.raises(ModelError, match=r"cell\(hidden, input\) failed for an input of shape \(2,\).*float64\[3\]"):
        m.from_cell(gru, 3, 2, order="state_first")
    with pytest.raises(ModelError, match=r"must return the next hidden state, float64\[3\]; it returned \(float64"):
        m.from_cell(lambda x, h: (gru(x, h), x), 3, 2)
    net = m.from_cell(gru, 3, 2)
    with pytest.raises(ShapeError, match=r"`state` must have shape \(3,\); got \(4,\)"):
        net(jnp.zeros(4))
    with pytest.raises(ShapeError, match=r"`input` must have shape \(2,\); got \(3,\)"):
        net(jnp.zeros(3), jnp.zeros(3))
