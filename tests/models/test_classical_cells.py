"""The classical variants of the recurrent cell against their formulas in numpy, in every analysis."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import dynwarp as dw
from dynwarp.errors import ArgumentError, ModelError, ShapeError

m = dw.models
D, N, T = 2, 3, 24


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _perturbed(net, seed=1):
    """Every parameter moved by noise, so that no zero of the initial values hides a mistake."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + 0.3 * rng.normal(size=x.shape) if eqx.is_inexact_array(x) else x, net)


def _array(x):
    return np.asarray(x, np.float64)


def _indrnn(net):
    u, U, b = map(_array, (net.recurrent_weight, net.input_weight, net.bias))
    bound = net.gamma ** (1 / net.horizon)
    return lambda h, x, t: np.maximum(0, U @ x + np.clip(u, -bound, bound) * h + b)


def _qrnn(net):
    W, b = _array(net.input_weight), _array(net.bias)
    k, n, d = net.kernel_size, net.hidden_size, net.input_size

    def step(state, x, t):
        window = [x, *(state[len(state) - (k - 1) * d + j * d :][:d] for j in range(k - 1))]
        # One tap of the convolution after the other.
        gates = b + sum(W[:, j * d : (j + 1) * d] @ window[j] for j in range(k))
        z, f, *rest = gates.reshape(-1, n)
        z, f, rest = np.tanh(z), net.zoneout + (1 - net.zoneout) * _sigmoid(f), [_sigmoid(r) for r in rest]
        if net.pooling == "f":
            head = [f * state[:n] + (1 - f) * z]
        else:
            c = f * state[n : 2 * n] + (rest[1] if net.pooling == "ifo" else 1 - f) * z
            head = [rest[0] * c, c]
        return np.concatenate([*head, *window[: k - 1]])

    return step


def _skip(net):
    cell, w, b = net.cell, _array(net.gate_weight), float(net.gate_bias)
    W, U, c = map(_array, (cell.recurrent_weight, cell.input_weight, cell.bias))

    def step(state, x, t):
        s, p = state[:-1], 1 - state[-1]
        update = p >= 0.5
        s = np.tanh(W @ s + U @ x + c) if update else s
        delta = _sigmoid(w @ s + b)
        p = delta if update else p + min(delta, 1 - p)
        return np.append(s, 1 - p)

    return step


def _clockwork(net):
    W, U, b = map(_array, (net.recurrent_weight, net.input_weight, net.bias))
    periods = [p for p, size in zip(net.periods, net.sizes) for _ in range(size)]

    def step(h, x, t):
        new = h.copy()
        for i, period in enumerate(periods):
            if t % period == 0:
                new[i] = np.tanh(sum(W[i, j] * h[j] for j, p in enumerate(periods) if p >= period) + U[i] @ x + b[i])
        return new

    return step


def _gated_leak(net):
    W, U, b, c = map(_array, (net.recurrent_weight, net.input_weight, net.bias, net.gate_bias))

    def step(h, x, t):
        a = c
        if net.gate != "constant":
            a = c + _array(net.gate_recurrent_weight) @ h + _array(net.gate_input_weight) @ x
        s = _sigmoid(a)
        return (1 - s) * h + s * np.tanh(W @ h + U @ x + b)

    return step


def _orthogonal(net):
    A = np.triu(_array(net.generator), 1)
    S = A - A.T
    Q = scipy.linalg.expm(S) if net.parametrisation == "exponential" else np.linalg.inv(np.eye(N) + S) @ (np.eye(N) - S)
    U, b = _array(net.input_weight), _array(net.bias)

    def step(h, x, t):
        z = Q @ h + U @ x
        return np.tanh(z + b) if net.activation is not None else np.sign(z) * np.maximum(np.abs(z) + b, 0)

    return step


def _elman_cell(input_size, size, *, key):
    return m.Elman(input_size, size, key=key)


KEY = jax.random.key(0)
CELLS = {
    "ind": (lambda: m.IndRNN(D, N, gamma=2.0, horizon=5, key=KEY), _indrnn),
    "qrnn_f1": (lambda: m.QRNN(D, N, kernel_size=1, pooling="f", key=KEY), _qrnn),
    "qrnn_fo3": (lambda: m.QRNN(D, N, kernel_size=3, pooling="fo", zoneout=0.2, key=KEY), _qrnn),
    "qrnn_ifo2": (lambda: m.QRNN(D, N, kernel_size=2, pooling="ifo", key=KEY), _qrnn),
    "skip": (lambda: m.SkipRNN(D, N, cell=_elman_cell, straight_through=False, key=KEY), _skip),
    "clockwork": (lambda: m.ClockworkRNN(D, N, periods=(1, 3), key=KEY), _clockwork),
    "leak_constant": (lambda: m.GatedLeak(D, N, gate="constant", leak=0.3, key=KEY), _gated_leak),
    "leak_shared": (lambda: m.GatedLeak(D, N, gate="shared", leak=0.3, key=KEY), _gated_leak),
    "leak_diagonal": (lambda: m.GatedLeak(D, N, gate="diagonal", leak=0.3, key=KEY), _gated_leak),
    "exponential": (lambda: m.OrthogonalRNN(D, N, key=KEY), _orthogonal),
    "cayley": (lambda: m.OrthogonalRNN(D, N, parametrisation="cayley", activation=jnp.tanh, key=KEY), _orthogonal),
}


ANALYSED = ("ind", "qrnn_fo3", "skip", "clockwork", "leak_shared", "exponential")
SPECTRA = ("clockwork", "leak_shared", "exponential")


@eqx.filter_jit
def _all(model, state0, inputs, with_spectrum):
    """States of two sequences, Jacobians along the first, its spectrum, and derivatives both ways."""
    states = jax.vmap(lambda s, x: dw.simulate(model, s, x, include_initial=True))(state0, inputs)
    steps = jnp.arange(T)
    jacobians = jax.vmap(lambda z, x, t: dw.dynamics.jacobian(model, z, x, step=t))(states[0, :-1], inputs[0], steps)
    spectrum = None
    if with_spectrum:
        spectrum = dw.dynamics.lyapunov_spectrum(
            model, state0[0], steps=T, inputs=inputs[0], renormalise=1, throw=False
        ).exponents

    def loss(model):
        return jnp.sum(dw.simulate(model, state0[0], inputs[0]) ** 2)

    return states, jacobians, spectrum, eqx.filter_grad(loss)(model)


@pytest.mark.parametrize("name", [name for name in CELLS if name not in ANALYSED])
def test_step_is_its_formula(name):
    make, reference = CELLS[name]
    net = _perturbed(make())
    step, move = reference(net), eqx.filter_jit(net)
    rng = np.random.default_rng(0)
    h = rng.normal(size=net.state_size)
    for t in range(4):
        x = rng.normal(size=D)
        new = step(h, x, t)
        np.testing.assert_allclose(move(jnp.asarray(h), jnp.asarray(x), step=t), new, rtol=1e-12, atol=1e-13)
        h = new


@pytest.mark.parametrize("name", ANALYSED)
def test_cell_is_its_formula_in_every_analysis(name, tmp_path):
    make, reference = CELLS[name]
    net = _perturbed(make())
    step = reference(net)
    rng = np.random.default_rng(0)
    starts, inputs = 0.4 * rng.normal(size=(2, net.state_size)), rng.normal(size=(2, T, D))
    starts[:, -1] = np.abs(starts[:, -1])  # SkipRNN: probabilities
    states, jacobians, spectrum, grads = _all(net, jnp.asarray(starts), jnp.asarray(inputs), name in SPECTRA)

    for start, xs, got in zip(starts, inputs, states):
        h = start
        np.testing.assert_array_equal(got[0], h)
        for t in range(T):
            h = step(h, xs[t], t)
            np.testing.assert_allclose(got[t + 1], h, rtol=1e-11, atol=1e-13)

    eps, eye = 1e-6, np.eye(net.state_size)
    frame, total = eye, np.zeros(net.state_size)
    for t in range(T):
        z, x = np.asarray(states[0, t]), inputs[0, t]
        J = np.stack([(step(z + eps * e, x, t) - step(z - eps * e, x, t)) / (2 * eps) for e in eye], 1)
        np.testing.assert_allclose(jacobians[t], J, atol=2e-8)
        # Rounding of the difference quotient must not stand in for a direction that is gone.
        frame, r = np.linalg.qr(np.where(np.abs(J) < 1e-9, 0, J) @ frame)
        with np.errstate(divide="ignore"):
            total += np.log(np.abs(np.diag(r)))
    if spectrum is not None:
        np.testing.assert_allclose(np.sort(spectrum), np.sort(total / T), atol=1e-5)

    # The derivative along all parameters at once, by a difference quotient of the loop in numpy.
    def loss(shift):
        moved = jax.tree.map(lambda x: x + shift if eqx.is_inexact_array(x) else x, net)
        h, moved_step, total = starts[0], reference(moved), 0.0
        for t in range(T):
            h = moved_step(h, inputs[0, t], t)
            total += np.sum(h**2)
        return total

    found = sum(float(jnp.sum(g)) for g in jax.tree.leaves(eqx.filter(grads, eqx.is_inexact_array)))
    np.testing.assert_allclose(found, (loss(eps) - loss(-eps)) / (2 * eps), rtol=1e-6, atol=1e-6)

    if name != "skip":  # its cell factory above is no class of the library; see the test below
        again = dw.io.load(dw.io.save(tmp_path / "net.dyn", net))
        after = again(jnp.asarray(starts[0]), jnp.asarray(inputs[0, 0]), step=0)
        np.testing.assert_allclose(after, states[0, 1], rtol=1e-13, atol=1e-15)


def test_skip_with_an_lstm_saves_and_loads(tmp_path):
    net = m.SkipRNN(D, N, cell=m.LSTM, key=KEY)
    again = dw.io.load(dw.io.save(tmp_path / "net.dyn", net))
    state, x = jnp.arange(7.0) / 20, jnp.ones(D)
    np.testing.assert_array_equal(again(state, x), net(state, x))
    assert again.readout()(state).shape == (2 * N,)


# ---- IndRNN


@pytest.mark.parametrize(("horizon", "bound"), [(784, 1.000885), (50, 1.013959)])
def test_indrnn_holds_its_gain(horizon, bound):
    """Li et al.: |u|^T stays below gamma; the two published bounds for gamma = 2."""
    net = m.IndRNN(1, 2, gamma=2.0, horizon=horizon, key=KEY)
    assert abs(net.bound - bound) < 1e-6
    net = eqx.tree_at(lambda n: n.recurrent_weight, net, jnp.array([5.0, -5.0]))
    h = jnp.array([1.0, 0.0])
    for _ in range(horizon if horizon < 100 else 0):
        h = net(h)
    if horizon < 100:
        np.testing.assert_allclose(h[0], 2.0, rtol=1e-12)
    projected = net.project()
    np.testing.assert_allclose(projected.recurrent_weight, [net.bound, -net.bound], rtol=1e-15)
    # On the bound the derivative is that of the inside, so that a projected weight can come back.
    slope = jax.grad(lambda u: jnp.sum(eqx.tree_at(lambda n: n.recurrent_weight, net, u).clamped()))
    np.testing.assert_array_equal(slope(projected.recurrent_weight), [1.0, 1.0])
    np.testing.assert_array_equal(slope(net.recurrent_weight), [0.0, 0.0])


def test_linear_indrnn_has_the_exponents_of_its_weights():
    net = m.IndRNN(1, 3, activation=jax.nn.identity, key=KEY)
    found = dw.dynamics.lyapunov_spectrum(net, jnp.ones(3), steps=20).exponents
    np.testing.assert_allclose(found, np.sort(np.log(np.asarray(net.recurrent_weight)))[::-1], atol=1e-12)


# ---- QRNN


@pytest.mark.parametrize(("pooling", "kernel"), [("f", 1), ("fo", 3), ("ifo", 2)])
def test_qrnn_forms_agree(pooling, kernel):
    net = _perturbed(m.QRNN(D, N, kernel_size=kernel, pooling=pooling, key=KEY))
    rng = np.random.default_rng(0)
    state, inputs = jnp.asarray(rng.normal(size=net.state_size)), jnp.asarray(rng.normal(size=(37, D)))
    expected = dw.simulate(net, state, inputs, remat=40)  # the step itself, in a scan
    for mode in ("scan", "associative"):
        np.testing.assert_allclose(dw.simulate(net, state, inputs, mode=mode), expected, rtol=1e-12, atol=1e-13)
    with pytest.raises(ModelError, match="no convolution"):
        dw.simulate(net, state, inputs, mode="fft")
    short = dw.simulate(net, state, inputs[:1], mode="associative")
    np.testing.assert_allclose(short, expected[:1], rtol=1e-12, atol=1e-13)


def test_qrnn_zoneout_drops_updates_with_its_probability():
    net = m.QRNN(1, 4000, kernel_size=1, pooling="f", zoneout=0.25, key=KEY)
    assert net.stochastic
    assert not m.QRNN(1, 2, key=KEY).stochastic
    state, x = jnp.full(4000, 3.0), jnp.ones((1, 1))
    one = dw.simulate(net, state, x, key=jax.random.key(1))[0]
    kept = float(jnp.mean(one == state))
    assert abs(kept - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 4000)
    rest = net(state, x[0])
    dropped = np.where(np.asarray(one == state), 3.0, 0.75 / 0.75 * np.asarray(one))
    assert abs(float(np.mean(dropped - np.asarray(rest)))) < 0.1  # without a key: the mean over draws
    with pytest.raises(ArgumentError, match="without `key`"):
        dw.simulate(net, state, x, key=KEY, mode="associative")


def test_qrnn_spectrum_is_that_of_its_forget_gates():
    """c decays by f alone; h and the memory of inputs are gone after kernel_size steps."""
    net = _perturbed(m.QRNN(D, N, kernel_size=2, pooling="fo", key=KEY))
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=(T, D)))
    found = dw.dynamics.lyapunov_spectrum(net, jnp.zeros(net.state_size), steps=T, inputs=inputs, renormalise=1)
    drive = np.stack([inputs, np.concatenate([np.zeros((1, D)), inputs[:-1]])], 1).reshape(T, -1)
    f = _sigmoid(drive @ np.asarray(net.input_weight[N : 2 * N]).T + np.asarray(net.bias[N : 2 * N]))
    # The first tangents lie in c, the last ones in h = o c as well: a stretch of its own, once in T steps.
    o = _sigmoid(drive[-1] @ np.asarray(net.input_weight[2 * N :]).T + np.asarray(net.bias[2 * N :]))
    expected = np.log(f).mean(0) + 0.5 * np.log1p(o**2) / T
    np.testing.assert_allclose(found.exponents[:N], np.sort(expected)[::-1], atol=1e-12)
    assert bool(jnp.all(jnp.isneginf(found.exponents[N:])))


# ---- SkipRNN


def test_skip_gate_straight_through_and_budget():
    net = m.SkipRNN(1, 2, cell=m.Elman, key=KEY)
    net = eqx.tree_at(lambda n: (n.gate_weight, n.gate_bias), net, (jnp.zeros(2), jnp.asarray(math.log(0.2 / 0.8))))
    states = dw.simulate(net, jnp.zeros(3), jnp.ones((10, 1)), include_initial=True)
    # delta = 0.2 for ever: the probability climbs 0.2, 0.4, 0.6 and an update follows; so one step in three.
    np.testing.assert_array_equal(net.updates(states[:-1]), [1, 0, 0, 1, 0, 0, 1, 0, 0, 1])
    assert float(net.budget_loss(states[:-1])) == 4
    changed = np.any(np.diff(states[:, :2], axis=0) != 0, axis=1)
    np.testing.assert_array_equal(changed, np.asarray(net.updates(states[:-1])) == 1)

    def budget(bias, straight):
        moved = eqx.tree_at(lambda n: (n.gate_bias, n.straight_through), net, (bias, straight))
        return moved.budget_loss(dw.simulate(moved, jnp.zeros(3), jnp.ones((10, 1)), include_initial=True)[:-1])

    assert float(jax.grad(budget)(net.gate_bias, True)) > 0
    assert float(jax.grad(budget)(net.gate_bias, False)) == 0


# ---- ClockworkRNN, OrthogonalRNN, GatedLeak


def test_clockwork_without_a_step_moves_every_module():
    net = m.ClockworkRNN(1, 5, key=KEY)
    assert (net.periods, net.sizes) == ((1, 2, 4, 8), (2, 1, 1, 1))
    h, x = jnp.arange(5.0), jnp.ones(1)
    np.testing.assert_array_equal(net(h, x), net(h, x, step=8))
    np.testing.assert_array_equal(net(h, x, step=3)[2:], h[2:])
    assert float(jnp.abs(jnp.tril(net.recurrent_matrix(), -2)).max()) == 0


@pytest.mark.parametrize("parametrisation", ["exponential", "cayley"])
@pytest.mark.parametrize("init", ["henaff", "cayley"])
def test_orthogonal_at_the_start(parametrisation, init):
    """Both starts make the same rotations in both parametrisations but for the map from s to the angle."""
    net = m.OrthogonalRNN(1, 5, parametrisation=parametrisation, init=init, activation=jax.nn.identity, key=KEY)
    Q = np.asarray(net.recurrent_matrix())
    np.testing.assert_allclose(Q @ Q.T, np.eye(5), atol=1e-14)
    assert np.linalg.det(Q) > 0
    moduli = np.abs(np.linalg.eigvals(Q))
    np.testing.assert_allclose(moduli, 1, atol=1e-13)
    if init == "henaff":
        other = "cayley" if parametrisation == "exponential" else "exponential"
        twin = m.OrthogonalRNN(1, 5, parametrisation=other, init=init, key=KEY)
        np.testing.assert_allclose(Q, twin.recurrent_matrix(), atol=1e-12)


def test_constant_leak_has_the_time_constant_of_its_gate():
    """s = 0.05 is 19.4957 steps: with no weights the state decays as exp(-t / tau)."""
    net = m.GatedLeak(1, 2, gate="constant", leak=0.05, recurrent_init=jax.nn.initializers.zeros, key=KEY)
    states = dw.simulate(net, jnp.ones(2), steps=40)
    tau = -1 / np.log(states[1:] / states[:-1])
    np.testing.assert_allclose(tau, 19.495726, atol=1e-5)


def test_float32():
    for make, _ in CELLS.values():
        net = jax.tree.map(lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, make())
        state, input = (jax.ShapeDtypeStruct((size,), jnp.float32) for size in (net.state_size, D))
        assert eqx.filter_eval_shape(lambda z, x: net(z, x, step=1), state, input).dtype == jnp.float32  # noqa: B023


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: m.IndRNN(1, 0, key=KEY), "`state_size`"),
        (lambda: m.IndRNN(1, 2, gamma=-1.0, key=KEY), "`gamma`"),
        (lambda: m.IndRNN(1, 2, horizon=0, key=KEY), "`horizon`"),
        (lambda: m.IndRNN(1, 2, epsilon=3.0, key=KEY), "`epsilon`"),
        (lambda: m.QRNN(1, 2, kernel_size=0, key=KEY), "`kernel_size`"),
        (lambda: m.QRNN(1, 2, pooling="of", key=KEY), "`pooling`"),
        (lambda: m.QRNN(1, 2, zoneout=1.0, key=KEY), "`zoneout`"),
        (lambda: m.ClockworkRNN(1, 4, periods=(4, 2), key=KEY), "`periods`"),
        (lambda: m.ClockworkRNN(1, 4, periods=(1, 2), sizes=(1, 2), key=KEY), "`sizes`"),
        (lambda: m.GatedLeak(1, 2, gate="none", key=KEY), "`gate`"),
        (lambda: m.GatedLeak(1, 2, leak=1.0, key=KEY), "`leak`"),
        (lambda: m.OrthogonalRNN(1, 2, parametrisation="qr", key=KEY), "`parametrisation`"),
        (lambda: m.OrthogonalRNN(1, 2, init="zeros", key=KEY), "`init`"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_bad_shapes_and_cells():
    with pytest.raises(ModelError, match="`cell`"):
        m.SkipRNN(1, 2, cell=lambda d, n, key: jnp.zeros(n), key=KEY)
    for make, _ in CELLS.values():
        with pytest.raises(ShapeError, match="`state`"):
            make()(jnp.zeros(30))
