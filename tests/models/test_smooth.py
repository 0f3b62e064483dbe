"""Elman, LeakyRNN, CTRNN, LowRankRNN and the readouts: the equations, in numpy, and what users may do with them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import dynwarp as dw
from dynwarp.errors import ArgumentError, ShapeError

m = dw.models
N, D = 5, 2


def _filled(model, seed=0):
    """The model with every parameter random: zero biases would hide mistakes."""
    leaves, structure = jax.tree.flatten(eqx.filter(model, eqx.is_inexact_array))
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    new = [
        0.5 + jnp.abs(jax.random.normal(k, x.shape, x.dtype)) if x.ndim == 0 else jax.random.normal(k, x.shape, x.dtype)
        for k, x in zip(keys, leaves)
    ]
    return eqx.combine(jax.tree.unflatten(structure, new), model)


MAKERS = {
    "elman": lambda d, **kw: m.Elman(d, N, **kw),
    "elman_pre": lambda d, **kw: m.Elman(d, N, form="pre", **kw),
    "leaky": lambda d, **kw: m.LeakyRNN(d, N, dt=0.3, tau=1.5, **kw),
    "ctrnn": lambda d, **kw: m.CTRNN(d, N, tau=0.7, **kw),
    "low_rank": lambda d, **kw: m.LowRankRNN(d, N, 2, tau=0.7, **kw),
}
ACTIVATIONS = {
    "tanh": (jnp.tanh, np.tanh),
    "relu": (jax.nn.relu, lambda x: np.maximum(x, 0)),
    "lambda": (lambda x: x**3, lambda x: x**3),
}


def _reference(name, net, phi, state, input):
    """The published equations, one unit at a time, from the arrays by their names."""
    W, U = np.asarray(net.recurrent_weight), np.asarray(net.input_weight)
    out = np.zeros(N)
    for i in range(N):
        external = sum(U[i, k] * input[k] for k in range(len(input))) + (0 if net.bias is None else float(net.bias[i]))
        of_state = sum(W[i, j] * state[j] for j in range(N)) + external
        of_rate = sum(W[i, j] * phi(state[j]) for j in range(N)) + external
        out[i] = {
            "elman": lambda a, r, i=i: phi(a),
            "elman_pre": lambda a, r, i=i: r,
            "leaky": lambda a, r, i=i: 0.8 * state[i] + 0.2 * phi(a),
            "ctrnn": lambda a, r, i=i: (-state[i] + r) / 0.7,
            "low_rank": lambda a, r, i=i: (-state[i] + r) / 0.7,
        }[name](of_state, of_rate)
    return out


def _call(net, state, input=None):
    return net(0.0, state, input) if isinstance(net, m.AbstractField) else net(state, input)


@pytest.fixture(scope="module")
def state():
    return jax.random.normal(jax.random.key(10), (N,))


@pytest.fixture(scope="module")
def signal():
    return jax.random.normal(jax.random.key(11), (D,))


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", MAKERS)
def test_equations(key, state, signal, name, activation, use_bias):
    phi, numpy_phi = ACTIVATIONS[activation]
    net = _filled(MAKERS[name](D, activation=phi, use_bias=use_bias, key=key))
    assert (net.bias is None) is not use_bias
    expected = _reference(name, net, numpy_phi, np.asarray(state), np.asarray(signal))
    np.testing.assert_allclose(_call(net, state, signal), expected, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(
        _call(net, state), _reference(name, net, numpy_phi, np.asarray(state), np.zeros(D)), rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize("name", MAKERS)
def test_missing_input_is_zero_and_networks_may_have_none(key, state, name):
    net = _filled(MAKERS[name](D, key=key))
    np.testing.assert_array_equal(_call(net, state), _call(net, state, jnp.zeros(D)))
    closed = MAKERS[name](0, key=key)
    assert closed.input_size == 0
    np.testing.assert_array_equal(_call(closed, state), _call(closed, state, jnp.zeros(0)))


@pytest.mark.parametrize("name", MAKERS)
def test_transformations_and_precision(key, state, signal, name):
    net = _filled(MAKERS[name](D, key=key))
    value = _call(net, state, signal)
    # Plain jax.jit takes the model as an argument: nothing in it but arrays and numbers is a leaf.
    np.testing.assert_allclose(jax.jit(_call)(net, state, signal), value, rtol=1e-14, atol=1e-15)
    states = jnp.stack([state, 2 * state])
    batched = jax.vmap(_call, (None, 0, None))(net, states, signal)
    np.testing.assert_allclose(batched[1], _call(net, states[1], signal), rtol=1e-13, atol=1e-14)

    keys = jax.random.split(key, 3)
    nets = eqx.filter_vmap(lambda k: MAKERS[name](D, key=k))(keys)
    each = eqx.filter_vmap(_call, in_axes=(eqx.if_array(0), None, None))(nets, state, signal)
    one = _call(MAKERS[name](D, key=keys[2]), state, signal)
    np.testing.assert_allclose(each[2], one, rtol=1e-13, atol=1e-14)

    single = MAKERS[name](D, dtype=jnp.float32, key=key)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(eqx.filter(single, eqx.is_array)))
    out = _call(single, state.astype(jnp.float32), signal.astype(jnp.float32))
    assert out.dtype == jnp.float32
    double = jax.tree.map(lambda x: x.astype(float) if eqx.is_array(x) else x, single)
    np.testing.assert_allclose(out, _call(double, state, signal), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MAKERS)
def test_gradients_by_finite_differences(key, state, signal, name):
    net = _filled(MAKERS[name](D, use_bias=True, key=key))
    arrays, rest = eqx.partition(net, eqx.is_inexact_array)

    @jax.jit
    def loss(arrays, state):
        return jnp.sum(jnp.sin(_call(eqx.combine(arrays, rest), state, signal)))

    check_grads(loss, (arrays, state), order=1, modes=("fwd", "rev"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["leaky", "ctrnn", "low_rank"])
def test_time_constants_are_numbers_or_parameters(key, state, name):
    make = {"leaky": m.LeakyRNN, "ctrnn": m.CTRNN, "low_rank": lambda d, n, **kw: m.LowRankRNN(d, n, 2, **kw)}[name]
    number = make(0, N, tau=np.float64(2.0), key=key)
    assert type(number.tau) is float
    taus = np.array([2.0, 2.0, 2.0, 2.0, 4.0])
    array = make(0, N, tau=taus, key=key)
    assert eqx.is_inexact_array(array.tau)
    np.testing.assert_allclose(_call(array, state)[:4], _call(number, state)[:4], rtol=1e-14)
    slow = _call(make(0, N, tau=4.0, key=key), state)
    np.testing.assert_allclose(_call(array, state)[4], slow[4], rtol=1e-14)
    traced = jax.jit(lambda tau: _call(make(0, N, tau=tau, key=key), state))(jnp.array(2.0))
    np.testing.assert_allclose(traced, _call(number, state), rtol=1e-14)
    for bad in (0.0, -1.0, np.nan, np.array([1.0, 0.0, 1.0, 1.0, 1.0])):
        with pytest.raises(ArgumentError, match=r"`tau` must be positive and finite"):
            make(0, N, tau=bad, key=key)
    with pytest.raises(ShapeError, match=r"`tau` must have shape \(5,\); got \(3,\)"):
        make(0, N, tau=np.ones(3), key=key)


def test_leaky_is_elman_at_full_leak(key, state, signal):
    leaky = _filled(m.LeakyRNN(D, N, dt=2.0, tau=2.0, key=key))
    elman = _filled(m.Elman(D, N, key=key))
    elman = eqx.tree_at(
        lambda e: (e.recurrent_weight, e.input_weight, e.bias),
        elman,
        (leaky.recurrent_weight, leaky.input_weight, leaky.bias),
    )
    np.testing.assert_allclose(leaky(state, signal), elman(state, signal), rtol=1e-14)


def test_pre_and_post_activation_are_one_network_in_two_coordinates(key, signal):
    """x = W h + U u + b turns the one into the other, and h = phi(x) back."""
    post = _filled(m.Elman(D, N, key=key))
    pre = eqx.tree_at(
        lambda e: (e.recurrent_weight, e.input_weight, e.bias),
        m.Elman(D, N, form="pre", key=key),
        (post.recurrent_weight, post.input_weight, post.bias),
    )
    h = x = jnp.zeros(N)
    for scale in (1.0, -0.5, 2.0):
        h = post(h, scale * signal)
        x = pre(x, scale * signal)
        np.testing.assert_allclose(jnp.tanh(x), h, rtol=1e-13)


def test_low_rank_is_a_ctrnn_with_that_matrix(key, state, signal):
    low = _filled(m.LowRankRNN(D, N, 2, tau=3.0, key=key))
    np.testing.assert_allclose(low.recurrent_weight, np.asarray(low.U) @ np.asarray(low.V).T / N, rtol=1e-14)
    assert np.linalg.matrix_rank(low.recurrent_weight) == 2
    full = eqx.tree_at(
        lambda c: (c.recurrent_weight, c.input_weight),
        m.CTRNN(D, N, tau=3.0, key=key),
        (low.recurrent_weight, low.input_weight),
    )
    np.testing.assert_allclose(low(0.0, state, signal), full(0.0, state, signal), rtol=1e-13, atol=1e-14)


def test_default_draws_are_those_of_the_literature(key):
    elman = m.Elman(3, 40, key=key)
    np.testing.assert_allclose(elman.recurrent_weight @ elman.recurrent_weight.T, np.eye(40), atol=1e-13)
    assert float(jnp.abs(elman.input_weight).max()) <= np.sqrt(6 / 43)
    assert not elman.bias.any()
    ctrnn = m.CTRNN(40, 200, key=key)
    assert abs(float(ctrnn.recurrent_weight.std()) / (0.5 / np.sqrt(200)) - 1) < 0.02
    assert abs(float(ctrnn.input_weight.std()) / np.sqrt(1 / 40) - 1) < 0.03
    assert ctrnn.bias is None
    low = m.LowRankRNN(1, 4000, 1, key=key)
    assert abs(float(low.U.std()) - 1) < 0.05
    assert abs(float(low.U[:, 0] @ low.V[:, 0]) / 4000) < 4 / np.sqrt(4000)
    readout = m.Readout(400, 10, key=key)
    assert abs(float(readout.weight.std()) * 20 - 1) < 0.05


@pytest.mark.parametrize("make", [m.Elman, m.LeakyRNN, m.CTRNN, lambda d, n, **kw: m.LowRankRNN(d, n, 1, **kw)])
def test_messages(key, make):
    with pytest.raises(ArgumentError, match=r"`state_size` must be a whole number of at least 1; got 0"):
        make(1, 0, key=key)
    with pytest.raises(ArgumentError, match=r"`input_size` must be a whole number of at least 0; got 1.5"):
        make(1.5, 2, key=key)
    with pytest.raises(ArgumentError, match=r"`activation` must be a function of an array; got 'tanh'"):
        make(1, 2, activation="tanh", key=key)
    with pytest.raises(ArgumentError, match=r"`activation` must hold no arrays; got PReLU"):
        make(1, 2, activation=eqx.nn.PReLU(), key=key)
    with pytest.raises(ArgumentError, match=r"`dtype` must be a real floating type"):
        make(1, 2, dtype=jnp.int32, key=key)
    net = make(1, 2, key=key)
    with pytest.raises(ShapeError, match=r"`state` must have shape \(2,\); got \(7, 2\)"):
        _call(net, jnp.zeros((7, 2)))
    with pytest.raises(ShapeError, match=r"`input` must have shape \(1,\); got \(3,\)"):
        _call(net, jnp.zeros(2), jnp.zeros(3))


def test_messages_of_single_cells(key):
    with pytest.raises(ArgumentError, match=r"Elman: `form` must be one of 'post', 'pre'; got 'both'"):
        m.Elman(1, 2, form="both", key=key)
    with pytest.raises(ArgumentError, match=r"`dt` must be positive and finite; got 0"):
        m.LeakyRNN(1, 2, dt=0.0, key=key)
    with pytest.raises(ArgumentError, match=r"LowRankRNN: `rank` must be at most `state_size`, 2; got 3"):
        m.LowRankRNN(1, 2, 3, key=key)


def test_readout(key, state):
    plain = _filled(m.Readout(N, 3, key=key))
    expected = np.asarray(plain.weight) @ np.asarray(state) + np.asarray(plain.bias)
    np.testing.assert_allclose(plain(state), expected, rtol=1e-13)
    np.testing.assert_array_equal(plain(state, jnp.ones(4)), plain(state))
    np.testing.assert_allclose(jax.jit(lambda r, z: r(z))(plain, state), expected, rtol=1e-13)
    rates = m.Readout(N, 3, activation=jnp.tanh, use_bias=False, key=key)
    assert rates.bias is None
    np.testing.assert_allclose(rates(state), np.asarray(rates.weight) @ np.tanh(state), rtol=1e-13)
    single = m.Readout(N, 3, dtype=jnp.float32, key=key)
    assert single(state.astype(jnp.float32)).dtype == jnp.float32
    check_grads(lambda r, z: r(z), (plain, state), order=1, rtol=1e-6, atol=1e-6)
    with pytest.raises(ShapeError, match=r"Readout: `state` must have shape \(5,\); got \(4,\)"):
        plain(jnp.zeros(4))


def test_linear_readout(state, signal):
    rng = np.random.default_rng(0)
    C, F = rng.normal(size=(3, N)), rng.normal(size=(3, D))
    fed = m.LinearReadout(C, F)
    np.testing.assert_allclose(fed(state, signal), C @ np.asarray(state) + F @ np.asarray(signal), rtol=1e-13)
    np.testing.assert_allclose(fed(state), C @ np.asarray(state), rtol=1e-13)
    np.testing.assert_array_equal(m.LinearReadout(C)(state, signal), fed(state))
    many = jax.vmap(fed)(jnp.stack([state, -state]), jnp.stack([signal, signal]))
    np.testing.assert_allclose(many[0] + many[1], 2 * F @ np.asarray(signal), rtol=1e-12)
    with pytest.raises(ShapeError, match=r"`D` must have shape \(3, d\); got \(2, 2\)"):
        m.LinearReadout(C, np.zeros((2, 2)))
    with pytest.raises(ShapeError, match=r"`state` must have shape \(5,\)"):
        fed(jnp.zeros(4))
    with pytest.raises(ShapeError, match=r"`input` must have shape \(2,\)"):
        fed(state, jnp.zeros(4))


def test_state_readout():
    np.testing.assert_array_equal(m.StateReadout(1, 3)(jnp.arange(5.0), jnp.ones(2)), [1.0, 2.0])
