"""GRU and LSTM against PyTorch's published formulas, in numpy, and against Equinox's cells."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import dynwarp as dw
from dynwarp.errors import ArgumentError, ShapeError

m = dw.models
H, D = 4, 3


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _random(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def _gru_torch(W_ih, W_hh, b_ih, b_hh, x, h):
    """The equations on the page of torch.nn.GRU, gate by gate."""
    (W_ir, W_iz, W_in), (b_ir, b_iz, b_in) = np.split(W_ih, 3), np.split(b_ih, 3)
    (W_hr, W_hz, W_hn), (b_hr, b_hz, b_hn) = np.split(W_hh, 3), np.split(b_hh, 3)
    r = _sigmoid(W_ir @ x + b_ir + W_hr @ h + b_hr)
    z = _sigmoid(W_iz @ x + b_iz + W_hz @ h + b_hz)
    n = np.tanh(W_in @ x + b_in + r * (W_hn @ h + b_hn))
    return (1 - z) * n + z * h


def _lstm_torch(W_ih, W_hh, b_ih, b_hh, x, h, c):
    """The equations on the page of torch.nn.LSTM, gate by gate."""
    (W_ii, W_if, W_ig, W_io), (b_ii, b_if, b_ig, b_io) = np.split(W_ih, 4), np.split(b_ih, 4)
    (W_hi, W_hf, W_hg, W_ho), (b_hi, b_hf, b_hg, b_ho) = np.split(W_hh, 4), np.split(b_hh, 4)
    i = _sigmoid(W_ii @ x + b_ii + W_hi @ h + b_hi)
    f = _sigmoid(W_if @ x + b_if + W_hf @ h + b_hf)
    g = np.tanh(W_ig @ x + b_ig + W_hg @ h + b_hg)
    o = _sigmoid(W_io @ x + b_io + W_ho @ h + b_ho)
    c = f * c + i * g
    return o * np.tanh(c), c


def _set(model, **arrays):
    names = list(arrays)
    return eqx.tree_at(lambda t: [getattr(t, k) for k in names], model, [jnp.asarray(arrays[k]) for k in names])


def _without_bias(net):
    return _set(net, **{k: jnp.zeros_like(getattr(net, k)) for k in ("bias", "bias_n") if hasattr(net, k)})


@pytest.fixture(scope="module")
def gru_torch():
    return _random([(3 * H, D), (3 * H, H), (3 * H,), (3 * H,)])


@pytest.fixture(scope="module")
def lstm_torch():
    return _random([(4 * H, D), (4 * H, H), (4 * H,), (4 * H,)])


@pytest.fixture(scope="module")
def gru(gru_torch):
    """The documented import from PyTorch."""
    W_ih, W_hh, b_ih, b_hh = gru_torch
    bias = b_ih + np.concatenate([b_hh[: 2 * H], np.zeros(H)])
    net = m.GRU(D, H, key=jax.random.key(0))
    return _set(net, input_weight=W_ih, recurrent_weight=W_hh, bias=bias, bias_n=b_hh[2 * H :])


@pytest.fixture(scope="module")
def lstm(lstm_torch):
    W_ih, W_hh, b_ih, b_hh = lstm_torch
    net = m.LSTM(D, H, key=jax.random.key(0))
    return _set(net, input_weight=W_ih, recurrent_weight=W_hh, bias=b_ih + b_hh)


def test_gru_is_that_of_torch(gru, gru_torch):
    xs, h = _random([(6, D), (H,)], seed=1)
    state = jnp.asarray(h)
    for x in xs:
        h, state = _gru_torch(*gru_torch, x, h), gru(state, jnp.asarray(x))
        np.testing.assert_allclose(state, h, rtol=1e-12, atol=1e-14)


def test_lstm_is_that_of_torch(lstm, lstm_torch):
    xs, h, c = _random([(6, D), (H,), (H,)], seed=1)
    state = jnp.concatenate([h, c])
    for x in xs:
        (h, c), state = _lstm_torch(*lstm_torch, x, h, c), lstm(state, jnp.asarray(x))
        np.testing.assert_allclose(state, np.concatenate([h, c]), rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(lstm.readout()(state), state[:H])


def test_the_reset_gate_acts_after_the_product(gru, gru_torch):
    """Had it acted before, as in the first paper, the value would differ: the test above can fail."""
    W_ih, W_hh, b_ih, b_hh = gru_torch
    x, h = _random([(D,), (H,)], seed=1)
    gates = [W_ih[k * H : (k + 1) * H] @ x + b_ih[k * H : (k + 1) * H] for k in range(3)]
    r, z = (_sigmoid(gates[k] + W_hh[k * H : (k + 1) * H] @ h + b_hh[k * H : (k + 1) * H]) for k in range(2))
    before = np.tanh(gates[2] + W_hh[2 * H :] @ (r * h) + b_hh[2 * H :])
    assert np.abs((1 - z) * before + z * h - gru(jnp.asarray(h), jnp.asarray(x))).max() > 1e-2


@pytest.mark.parametrize("use_bias", [True, False])
def test_gru_is_that_of_equinox(key, use_bias):
    cell = eqx.nn.GRUCell(D, H, use_bias=use_bias, key=key)
    net = m.GRU(D, H, use_bias=use_bias, key=key)
    assert (net.bias is None) is not use_bias
    assert (net.bias_n is None) is not use_bias
    net = _set(net, input_weight=cell.weight_ih, recurrent_weight=cell.weight_hh)
    if use_bias:
        net = _set(net, bias=cell.bias, bias_n=cell.bias_n)
    x, h = map(jnp.asarray, _random([(D,), (H,)]))
    np.testing.assert_allclose(net(h, x), cell(x, h), rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(net(h), cell(jnp.zeros(D), h), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("use_bias", [True, False])
def test_lstm_is_that_of_equinox(key, use_bias):
    cell = eqx.nn.LSTMCell(D, H, use_bias=use_bias, key=key)
    net = m.LSTM(D, H, use_bias=use_bias, key=key)
    assert (net.bias is None) is not use_bias
    net = _set(net, input_weight=cell.weight_ih, recurrent_weight=cell.weight_hh)
    if use_bias:
        net = _set(net, bias=cell.bias)
    x, h, c = map(jnp.asarray, _random([(D,), (H,), (H,)]))
    np.testing.assert_allclose(
        net(jnp.concatenate([h, c]), x), jnp.concatenate(cell(x, (h, c))), rtol=1e-14, atol=1e-15
    )
    np.testing.assert_allclose(
        net(jnp.concatenate([h, c])), jnp.concatenate(cell(jnp.zeros(D), (h, c))), rtol=1e-14, atol=1e-15
    )


@pytest.mark.parametrize("make", [m.GRU, m.LSTM])
def test_transformations_precision_and_no_input(key, make):
    net = make(D, H, key=key)
    states = jax.random.normal(key, (3, net.state_size))
    x = jnp.ones(D)
    values = jnp.stack([net(s, x) for s in states])
    np.testing.assert_allclose(jax.jit(lambda net, s: net(s, x))(net, states[0]), values[0], rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(jax.vmap(net, (0, None))(states, x), values, rtol=1e-13, atol=1e-15)

    single = make(D, H, dtype=jnp.float32, key=key)
    out = single(states[0].astype(jnp.float32), x.astype(jnp.float32))
    assert out.dtype == jnp.float32
    double = jax.tree.map(lambda p: p.astype(float), single)
    np.testing.assert_allclose(out, double(states[0], x), rtol=1e-5, atol=1e-6)

    closed = make(0, H, key=key)
    np.testing.assert_array_equal(closed(states[0]), closed(states[0], jnp.zeros(0)))
    bare = make(0, H, use_bias=False, key=key)
    np.testing.assert_array_equal(bare(states[0]), _without_bias(closed)(states[0]))


@pytest.mark.parametrize("make", [m.GRU, m.LSTM])
def test_gradients_by_finite_differences(key, make):
    net = make(2, 2, key=key)
    state = jax.random.normal(key, (net.state_size,))

    @jax.jit
    def loss(net, state):
        return jnp.sum(jnp.sin(net(net(state, jnp.ones(2)))))

    check_grads(loss, (net, state), order=1, modes=("fwd", "rev"), rtol=1e-5, atol=1e-5)


def test_default_draws_are_those_of_the_literature(key):
    for net, gates in ((m.GRU(2, 5, key=key), 3), (m.LSTM(2, 5, key=key), 4)):
        blocks = np.split(np.asarray(net.recurrent_weight), gates)
        for block in blocks:
            np.testing.assert_allclose(block @ block.T, np.eye(5), atol=1e-13)
        assert not np.allclose(blocks[0], blocks[1])
        # Glorot's bound counts the fan-out of one gate, not of all.
        assert np.sqrt(6 / (2 + 5 * gates)) < np.abs(net.input_weight).max() <= np.sqrt(6 / 7)
    assert not m.GRU(2, 5, key=key).bias.any()
    np.testing.assert_array_equal(m.LSTM(2, 2, key=key).bias, [0, 0, 1, 1, 0, 0, 0, 0])


def test_lstm_state_is_h_then_c(key):
    """An open forget gate and a closed input gate keep c, whatever h is."""
    net = _set(
        m.LSTM(0, 2, key=key),
        recurrent_weight=jnp.zeros((8, 2)),
        bias=jnp.array([-1e3, -1e3, 1e3, 1e3, 0.0, 0.0, 1e3, 1e3]),
    )
    after = net(jnp.array([9.0, 9.0, 0.3, -0.4]))
    np.testing.assert_allclose(after, [np.tanh(0.3), np.tanh(-0.4), 0.3, -0.4], rtol=1e-14)


def test_chaotic_lstm_of_the_literature():
    """Ribeiro et al. (2020): two units, no input, no bias; its largest exponent is 0.168 per step."""
    rows = [[-1, -4], [-3, -2], [-2, 6], [0, -6], [-1, -6], [6, -9], [4, 1], [-9, -7]]
    net = _set(m.LSTM(0, 2, use_bias=False, key=jax.random.key(0)), recurrent_weight=jnp.array(rows, float))

    @jax.jit
    def run(state):
        def step(carry, _):
            state, tangent = carry
            state, tangent = jax.jvp(net, (state,), (tangent,))
            size = jnp.linalg.norm(tangent)
            return (state, tangent / size), jnp.log(size)

        return jax.lax.scan(step, (state, jnp.array([1.0, 0.3, -0.2, 0.5])), length=60_000)[1]

    growth = run(jnp.full(4, 0.5))[1000:]
    # Averages over 6e4 chaotic steps scatter by a few thousandths.
    assert abs(float(growth.mean()) - 0.1683) < 5e-3


def test_messages(key):
    with pytest.raises(ArgumentError, match=r"GRU: `hidden_size` must be a whole number of at least 1; got 0"):
        m.GRU(1, 0, key=key)
    with pytest.raises(ArgumentError, match=r"LSTM: `input_size` must be a whole number of at least 0; got -1"):
        m.LSTM(-1, 2, key=key)
    with pytest.raises(ArgumentError, match=r"LSTM: `dtype` must be a real floating type"):
        m.LSTM(1, 2, dtype=jnp.complex64, key=key)
    with pytest.raises(ShapeError, match=r"LSTM: `state` must have shape \(4,\); got \(2,\)"):
        m.LSTM(1, 2, key=key)(jnp.zeros(2))
    with pytest.raises(ShapeError, match=r"GRU: `input` must have shape \(1,\); got \(2,\)"):
        m.GRU(1, 2, key=key)(jnp.zeros(2), jnp.zeros(2))
