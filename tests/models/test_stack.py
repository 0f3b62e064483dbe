"""Stack and Bidirectional against loops written out by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import dynwarp as dw
from dynwarp.errors import ArgumentError, ModelError, ShapeError

m = dw.models


class Emitter(m.AbstractMap):
    """A user's cell that counts its inputs and emits C z + D x: clocked, with a feedthrough, fields not static."""

    C: jax.Array
    D: jax.Array
    state_size: int
    input_size: int

    def __call__(self, state, input=None, *, step=None):
        clock = 0 if step is None else step
        return 0.5 * state + jnp.sum(input) + clock

    def readout(self):
        return m.LinearReadout(self.C, self.D)


class Copy(m.AbstractMap):
    """Its state is what it was given last."""

    state_size: int
    input_size: int

    def __call__(self, state, input=None, *, step=None):
        return jnp.zeros_like(state) if input is None else input


@pytest.fixture(scope="module")
def layers():
    keys = jax.random.split(jax.random.key(5), 5)
    C, D = jax.random.normal(keys[0], (2, 2)), jax.random.normal(keys[1], (2, 3))
    emitter = Emitter(C=C, D=D, state_size=2, input_size=3)
    return m.LSTM(2, 3, key=keys[2]), emitter, m.Elman(2, 4, key=keys[3])


def _norm(x):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_stack_is_the_loop_over_its_layers(layers, layer_norm):
    lstm, emitter, elman = layers
    net = m.Stack(layers, layer_norm=layer_norm)
    assert (net.state_size, net.input_size) == (12, 2)
    norm = _norm if layer_norm else (lambda x: x)
    state = jax.random.normal(jax.random.key(0), (12,))
    inputs = jax.random.normal(jax.random.key(1), (4, 2))
    a, b, c = state[:6], state[6:8], state[8:]
    for t, x in enumerate(inputs):
        a = lstm(a, x)
        into_b = jnp.asarray(norm(a[:3]))
        b = 0.5 * b + jnp.sum(into_b) + t
        emitted = emitter.C @ b + emitter.D @ into_b
        c = elman(c, jnp.asarray(norm(emitted)))
        state = net(state, x, step=t)
        np.testing.assert_allclose(state, jnp.concatenate([a, b, c]), rtol=1e-12)
        for part, expected in zip(net.split(state), (a, b, c), strict=True):
            np.testing.assert_allclose(part, expected, rtol=1e-12)
    np.testing.assert_allclose(net.readout()(state, x), c, rtol=1e-12)


def test_readout_of_a_stack_is_that_of_its_top_layer(layers):
    lstm, emitter, _ = layers
    state, x = jax.random.normal(jax.random.key(0), (8,)), jnp.array([0.3, -0.4])
    on_top = m.Stack([lstm, emitter])
    # The feedthrough of the top layer reads what the LSTM emits, its h.
    expected = emitter.C @ state[6:] + emitter.D @ state[:3]
    np.testing.assert_allclose(on_top.readout()(state, x), expected, rtol=1e-13)
    np.testing.assert_allclose(jax.jit(lambda z: on_top.readout()(z))(state), expected, rtol=1e-13)
    below = m.Stack([Copy(2, 2), lstm])
    np.testing.assert_array_equal(below.readout()(state), state[2:5])
    nested = m.Stack([below, m.GRU(3, 2, key=jax.random.key(2))])
    np.testing.assert_array_equal(nested.readout()(jnp.arange(10.0)), [8.0, 9.0])


def test_one_layer_is_the_cell(layers):
    lstm = layers[0]
    net = m.Stack([lstm], dropout=0.5, layer_norm=True)
    state, x = jnp.arange(6.0) / 6, jnp.ones(2)
    assert not net.stochastic
    np.testing.assert_array_equal(net(state, x), lstm(state, x))
    np.testing.assert_array_equal(net(state), lstm(state))
    np.testing.assert_array_equal(net.readout()(state), state[:3])


def test_dropout_masks_what_passes_between_layers():
    size, rate = 400, 0.3
    net = m.Stack([Copy(size, size)] * 3, dropout=rate)
    assert net.stochastic
    state, x = jnp.zeros(3 * size), 1.0 + jnp.arange(size) / size
    np.testing.assert_array_equal(net(state, x), jnp.tile(x, 3))
    dropped = net(state, x, key=jax.random.key(0)).reshape(3, size)
    np.testing.assert_array_equal(dropped[0], x)
    first = np.asarray(dropped[1] / x)
    np.testing.assert_allclose(np.unique(first.round(12)), [0, 1 / (1 - rate)], rtol=1e-11)
    # Binomial standard error of the fraction dropped: 0.023.
    assert abs((first == 0).mean() - rate) < 0.1
    second = np.asarray(dropped[2])[first > 0]
    assert abs((second == 0).mean() - rate) < 0.12
    assert not np.array_equal(dropped[1], net(state, x, key=jax.random.key(1)).reshape(3, size)[1])
    np.testing.assert_array_equal(net(state, x, key=jax.random.key(0)).reshape(3, size), dropped)


def test_dropout_of_a_stack_within_a_stack():
    inner = m.Stack([Copy(50, 50), Copy(50, 50)], dropout=0.5)
    net = m.Stack([inner, Copy(50, 50)])
    assert net.stochastic
    out = net(jnp.zeros(150), jnp.ones(50), key=jax.random.key(0))
    assert 0 < int(jnp.sum(out[50:100] == 0)) < 50
    np.testing.assert_array_equal(out[50:100], out[100:])


@pytest.mark.parametrize("layer_norm", [False, True])
def test_stack_transformations_precision_and_gradients(layer_norm):
    def make(key, dtype=None):
        k1, k2 = jax.random.split(key)
        cells = [m.LSTM(2, 3, dtype=dtype, key=k1), m.GRU(3, 2, dtype=dtype, key=k2)]
        return m.Stack(cells, dropout=0.2, layer_norm=layer_norm)

    net = make(jax.random.key(0))
    state, x = jax.random.normal(jax.random.key(1), (8,)), jnp.array([1.0, -2.0])
    value = net(state, x)
    np.testing.assert_allclose(eqx.filter_jit(net)(state, x), value, rtol=1e-13)
    np.testing.assert_allclose(jax.vmap(net)(jnp.stack([state, 0 * state]), jnp.stack([x, x]))[0], value, rtol=1e-13)
    check_grads(jax.jit(lambda z, x: jnp.sin(net(z, x))), (state, x), order=1, rtol=1e-5, atol=1e-5)
    single = make(jax.random.key(0), jnp.float32)
    out = single(state.astype(jnp.float32), x.astype(jnp.float32))
    assert out.dtype == jnp.float32
    assert all(p.dtype == jnp.float32 for p in jax.tree.leaves(eqx.filter(single, eqx.is_inexact_array)))


def test_stack_messages(layers, key):
    lstm, emitter, elman = layers
    with pytest.raises(ArgumentError, match=r"`cells` must hold at least one cell"):
        m.Stack([])
    with pytest.raises(ModelError, match=r"`cells\[1\]` must be an AbstractMap; got CTRNN.*a field"):
        m.Stack([elman, m.CTRNN(4, 3, key=key)])
    with pytest.raises(ModelError, match=r"`cells\[0\]` must be an AbstractMap; got GRUCell.*`from_cell`"):
        m.Stack([eqx.nn.GRUCell(2, 3, key=key)])
    with pytest.raises(
        ShapeError, match=r"`cells\[2\]` takes inputs of shape \(3,\), but `cells\[1\]` emits shape \(4,"
    ):
        m.Stack([Copy(2, 2), elman, emitter])
    for bad in (1.0, -0.1, float("nan")):
        with pytest.raises(ArgumentError, match=r"`dropout` must be at least 0 and below 1"):
            m.Stack([lstm], dropout=bad)
    net = m.Stack(layers)
    with pytest.raises(ShapeError, match=r"Stack: `state` must have shape \(12,\); got \(11,\)"):
        net(jnp.zeros(11))
    with pytest.raises(ShapeError, match=r"Stack: `input` must have shape \(2,\); got \(3,\)"):
        net(jnp.zeros(12), jnp.zeros(3))


@pytest.fixture(scope="module")
def both():
    k1, k2 = jax.random.split(jax.random.key(8))
    return m.Bidirectional(m.Elman(2, 3, key=k1), m.LSTM(2, 2, key=k2))


@pytest.mark.parametrize("start", [False, True])
def test_bidirectional_is_the_two_loops(both, start):
    inputs = jax.random.normal(jax.random.key(0), (5, 2))
    state0 = jnp.arange(7.0) / 7 if start else None
    out = both(inputs, state0=state0)
    assert out.shape == (5, 7)
    ahead, back = (state0[:3], state0[3:]) if start else (jnp.zeros(3), jnp.zeros(4))
    for i in range(5):
        ahead = both.forward(ahead, inputs[i])
        np.testing.assert_allclose(out[i, :3], ahead, rtol=1e-12)
    for i in (4, 3, 2, 1, 0):
        back = both.backward(back, inputs[i])
        np.testing.assert_allclose(out[i, 3:], back, rtol=1e-12)


def test_bidirectional_sees_the_whole_sequence(both):
    """The first entry depends on the last input, the last on the first; neither would in one direction alone."""
    inputs = jax.random.normal(jax.random.key(0), (4, 2))
    sensitivity = jnp.abs(jax.jit(jax.jacobian(both))(inputs)).sum(axis=-1)
    assert float(sensitivity[0, 3:, 3].min()) > 0
    assert float(sensitivity[0, :3, 1:].max()) == 0
    assert float(sensitivity[3, :3, 0].min()) > 0
    assert float(sensitivity[3, 3:, :3].max()) == 0


def test_bidirectional_clocks_count_what_was_read():
    class Clock(m.AbstractMap):
        state_size: int = 1
        input_size: int = 0

        def __call__(self, state, input=None, *, step=None):
            return jnp.asarray(step, state.dtype)[None]

    out = m.Bidirectional(Clock(), Clock())(jnp.zeros((4, 0)))
    np.testing.assert_array_equal(out, [[0, 3], [1, 2], [2, 1], [3, 0]])


def test_bidirectional_transformations_precision_and_gradients(both):
    inputs = jax.random.normal(jax.random.key(0), (4, 2))
    out = both(inputs)
    np.testing.assert_allclose(jax.jit(lambda net, x: net(x))(both, inputs), out, rtol=1e-13)
    np.testing.assert_allclose(jax.vmap(both)(jnp.stack([inputs, -inputs]))[0], out, rtol=1e-13)
    check_grads(jax.jit(lambda x: jnp.sin(both(x))), (inputs,), order=1, rtol=1e-5, atol=1e-5)
    single = jax.tree.map(lambda p: p.astype(jnp.float32) if eqx.is_array(p) else p, both)
    assert single(inputs.astype(jnp.float32)).dtype == jnp.float32
    assert both(jnp.zeros((0, 2))).shape == (0, 7)


def test_bidirectional_dropout():
    stack = m.Stack([Copy(20, 20), Copy(20, 20)], dropout=0.5)
    net = m.Bidirectional(stack, Copy(20, 20))
    inputs = jnp.ones((6, 20))
    np.testing.assert_array_equal(net(inputs), jnp.ones((6, 60)))
    out = np.asarray(net(inputs, key=jax.random.key(0)))[:, 20:40]
    assert 0 < (out == 0).sum() < 120
    assert len({row.tobytes() for row in out}) == 6  # a new mask at every step


def test_bidirectional_messages(both, key):
    with pytest.raises(ModelError, match=r"Bidirectional: `backward` must be an AbstractMap; got CTRNN"):
        m.Bidirectional(both.forward, m.CTRNN(2, 3, key=key))
    with pytest.raises(ShapeError, match=r"must have one `input_size`; got 2 and 1"):
        m.Bidirectional(both.forward, m.GRU(1, 3, key=key))
    with pytest.raises(ShapeError, match=r"Bidirectional: `inputs` must have shape \(T, 2\); got \(5, 3\)"):
        both(jnp.zeros((5, 3)))
    with pytest.raises(ShapeError, match=r"Bidirectional: `state0` must have shape \(7,\); got \(3,\)"):
        both(jnp.zeros((5, 2)), state0=jnp.zeros(3))
