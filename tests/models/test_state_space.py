"""The linear and state-space recurrences: against numpy, against each other, against the numbers of the literature."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.models._diagonal import discretise, legs_normal_part
from dynwarp.models._recurrence import checkpointed_scan, chunked_scan, fft_length

m = dw.models
LENGTH = 37  # no power of two, no multiple of the block


def _linear(dtype):
    rng = np.random.default_rng(0)
    orthogonal = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    weights = (0.95 * orthogonal, rng.standard_normal((6, 3)), rng.standard_normal((2, 6)))
    return m.LinearRNN(*(jnp.asarray(w, dtype) for w in weights))


def _wide(dtype):
    rng = np.random.default_rng(1)
    weights = (0.6 * rng.standard_normal((2, 2)), rng.standard_normal((2, 3)), rng.standard_normal((1, 2)))
    return m.LinearRNN(*(jnp.asarray(w, dtype) for w in weights))


MAKERS = {
    "LinearRNN": _linear,
    "LinearRNN-wide": _wide,
    "LRU": lambda dtype: m.LRU(3, 5, 2, r_min=0.9, r_max=0.999, dtype=dtype, key=jax.random.key(1)),
    "S4D-inv-bilinear": lambda dtype: m.S4D(
        3, 4, init="inv", discretisation="bilinear", dtype=dtype, key=jax.random.key(3)
    ),
    "S5": lambda dtype: m.S5(3, 5, 2, dtype=dtype, key=jax.random.key(5)),
    "SelectiveSSM": lambda dtype: m.SelectiveSSM(3, 4, rank=2, dtype=dtype, key=jax.random.key(6)),
}
CONVOLUTIONS = [name for name in MAKERS if name != "SelectiveSSM"]


def _data(model, dtype, length=LENGTH):
    k1, k2 = jax.random.split(jax.random.key(7))
    state0 = jax.random.normal(k1, (model.state_size,), dtype)
    return state0, jax.random.normal(k2, (length, model.input_size), dtype)


def _relative(a, b):
    return float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)))


@pytest.fixture(scope="module", params=list(MAKERS))
def made(request):
    """A model with data, and the states of the plain loop over its step."""
    model = MAKERS[request.param](jnp.float64)
    return request.param, model, *_data(model, jnp.float64)


def _loop(model, state0, inputs):
    return jax.lax.scan(lambda h, x: (model(h, x),) * 2, state0, inputs)[1]


# ---- The forms agree.


def test_forms_agree_with_the_step(made):
    name, model, state0, inputs = made
    expected = _loop(model, state0, inputs)
    for mode in ("scan", "associative", "fft") if name in CONVOLUTIONS else ("scan", "associative"):
        assert _relative(dw.simulate(model, state0, inputs, mode=mode), expected) < 1e-12


# Relative to the largest state. A prefix scan squares multipliers, which doubles their relative error every round.
@pytest.mark.parametrize("name", ["LinearRNN", "LRU", "SelectiveSSM"])
def test_forms_agree_in_float32(name):
    model = MAKERS[name](jnp.float32)
    state0, inputs = _data(model, jnp.float32, 256 if name == "LRU" else LENGTH)
    modes = {"associative": 4e-6, "fft": 3e-5} if name in CONVOLUTIONS else {"associative": 4e-6}

    def states_and_gradient(mode):
        def loss(arguments):
            states = dw.simulate(*arguments, mode=mode)
            return jnp.mean((states - 0.5) ** 2), states

        gradient, states = eqx.filter_jit(eqx.filter_grad(loss, has_aux=True))((model, state0, inputs))
        return states, jax.tree.leaves(gradient)

    states, gradients = states_and_gradient("scan")
    assert states.dtype == jnp.float32
    assert _relative(states, _loop(model, state0, inputs)) < 4e-6
    for mode, tolerance in modes.items():
        other, other_gradients = states_and_gradient(mode)
        assert other.dtype == jnp.float32
        assert _relative(other, states) < tolerance
        for got, want in zip(other_gradients, gradients, strict=True):
            assert got.size == 0 or not jnp.any(want) or _relative(got, want) < max(tolerance, 5e-6)


def test_gradient_against_finite_differences(made):
    _, model, state0, inputs = made
    arrays, static = eqx.partition((model, state0), eqx.is_inexact_array)

    def loss(arrays):
        model, state0 = eqx.combine(arrays, static)
        states = dw.simulate(model, state0, inputs[:8])
        emitted = jax.vmap(model.readout())(states, inputs[:8])
        return jnp.sum(jnp.sin(emitted)) + jnp.sum(states**2)

    leaves, treedef = jax.tree.flatten(arrays)
    keys = jax.random.split(jax.random.key(8), len(leaves))
    direction = treedef.unflatten([jax.random.normal(k, x.shape) for k, x in zip(keys, leaves)])
    step = 1e-6

    @jax.jit
    def at(h):
        return loss(jax.tree.map(lambda x, d: x + h * d, arrays, direction))

    difference = (at(step) - at(-step)) / (2 * step)
    backward = sum(
        jnp.vdot(g, d) for g, d in zip(jax.tree.leaves(jax.jit(jax.grad(loss))(arrays)), jax.tree.leaves(direction))
    )
    forward = jax.jit(lambda: jax.jvp(loss, (arrays,), (direction,))[1])()
    # Central differences: rounding 1e-16 / 1e-6, times the size of the loss.
    assert forward == pytest.approx(float(difference), rel=2e-7)
    assert forward == pytest.approx(float(backward), rel=1e-12)


@pytest.mark.parametrize("mode", ["scan", "associative", "fft"])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_short_sequences(mode, length):
    for name in ("LRU", "LinearRNN"):
        model = MAKERS[name](jnp.float64)
        state0, inputs = _data(model, jnp.float64, length)
        states = dw.simulate(model, state0, inputs, mode=mode, include_initial=True)
        assert states.shape == (length + 1, model.state_size)
        h = state0
        for x, got in zip(inputs, states[1:]):
            h = model(h, x)
            np.testing.assert_allclose(got, h, atol=1e-13)


def test_vmap_over_sequences_and_over_models():
    model = MAKERS["LRU"](jnp.float64)
    state0, inputs = _data(model, jnp.float64, 20)
    batch = jnp.stack([inputs, 2 * inputs, -inputs])
    zero = jnp.zeros_like(state0)
    for mode in ("scan", "associative", "fft"):
        states = jax.vmap(lambda x, mode=mode: dw.simulate(model, zero, x, mode=mode))(batch)
        np.testing.assert_allclose(states[1], 2 * states[0], atol=1e-12)
        np.testing.assert_allclose(states[2], -states[0], atol=1e-12)
    ensemble = eqx.filter_vmap(lambda key: m.S5(3, 4, 2, key=key))(jax.random.split(jax.random.key(0), 3))
    states = eqx.filter_vmap(lambda model: dw.simulate(model, jnp.zeros(8), inputs))(ensemble)
    single = dw.simulate(m.S5(3, 4, 2, key=jax.random.split(jax.random.key(0), 3)[1]), jnp.zeros(8), inputs)
    np.testing.assert_allclose(states[1], single, atol=1e-13)


def test_no_input_is_a_zero_input(made):
    _, model, state0, _ = made
    np.testing.assert_array_equal(model(state0), model(state0, jnp.zeros(model.input_size)))
    free = dw.simulate(model, state0, steps=9)
    np.testing.assert_allclose(free, dw.simulate(model, state0, jnp.zeros((9, model.input_size))), atol=1e-13)
    readout = model.readout()
    np.testing.assert_allclose(readout(state0), readout(state0, jnp.zeros(model.input_size)), atol=1e-15)


# ---- Against numpy.


def test_linear_rnn_against_matrix_powers():
    model = MAKERS["LinearRNN"](jnp.float64)
    state0, inputs = _data(model, jnp.float64, 12)
    W, B, x = np.asarray(model.W), np.asarray(model.B), np.asarray(inputs)
    expected = [
        np.linalg.matrix_power(W, t + 1) @ state0
        + sum(np.linalg.matrix_power(W, t - s) @ B @ x[s] for s in range(t + 1))
        for t in range(12)
    ]
    np.testing.assert_allclose(dw.simulate(model, state0, inputs), expected, atol=1e-13)
    np.testing.assert_allclose(model.readout()(state0), np.asarray(model.A) @ np.asarray(state0), atol=1e-14)


def test_linear_rnn_takes_lists_of_whole_numbers():
    model = m.LinearRNN(np.eye(2, dtype=int), np.ones((2, 1), int), np.ones((1, 2), int))
    assert model.W.dtype == jnp.float64
    assert model(jnp.zeros(2), jnp.ones(1)).tolist() == [1.0, 1.0]


def _complex_loop(multipliers, drives, state0):
    modes = len(multipliers)
    h, out = np.asarray(state0[:modes]) + 1j * np.asarray(state0[modes:]), []
    for u in drives:
        h = multipliers * h + u
        out.append(h)
    return np.stack(out)


def test_lru_against_numpy():
    model = MAKERS["LRU"](jnp.float64)
    state0, inputs = _data(model, jnp.float64)
    lam = np.exp(-np.exp(np.asarray(model.nu)) + 1j * np.exp(np.asarray(model.theta)))
    B = np.asarray(model.B_real) + 1j * np.asarray(model.B_imag)
    C = np.asarray(model.C_real) + 1j * np.asarray(model.C_imag)
    h = _complex_loop(lam, np.exp(np.asarray(model.log_gamma)) * (np.asarray(inputs) @ B.T), state0)
    states = dw.simulate(model, state0, inputs)
    np.testing.assert_allclose(states, np.concatenate([h.real, h.imag], axis=1), atol=1e-12)
    outputs = jax.vmap(model.readout())(states, inputs)
    np.testing.assert_allclose(outputs, (h @ C.T).real + np.asarray(inputs) @ np.asarray(model.D).T, atol=1e-12)


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_s4d_against_numpy_channel_by_channel(method):
    model = m.S4D(3, 4, discretisation=method, key=jax.random.key(2))
    state0, inputs = _data(model, jnp.float64)
    a = -np.exp(np.asarray(model.log_decay)) + 1j * np.asarray(model.frequency)
    dt = np.exp(np.asarray(model.log_dt))[:, None]
    lam, factor = (np.exp(dt * a), (np.exp(dt * a) - 1) / a)
    if method == "bilinear":
        lam, factor = (1 + dt * a / 2) / (1 - dt * a / 2), dt / (1 - dt * a / 2)
    channels, modes = a.shape
    start = np.asarray(state0).reshape(2, channels, modes)
    states = np.asarray(dw.simulate(model, state0, inputs)).reshape(-1, 2, channels, modes)
    outputs = jax.vmap(model.readout())(states.reshape(len(states), -1), inputs)
    for c in range(channels):
        h = _complex_loop(lam[c], np.asarray(inputs)[:, c, None] * factor[c], start[:, c].ravel())
        np.testing.assert_allclose(states[:, 0, c] + 1j * states[:, 1, c], h, atol=1e-12)
        C = np.asarray(model.C_real)[c] + 1j * np.asarray(model.C_imag)[c]
        expected = 2 * (h @ C).real + float(model.D[c]) * np.asarray(inputs)[:, c]
        np.testing.assert_allclose(outputs[:, c], expected, atol=1e-12)


def test_s5_is_the_real_system_it_stands_for():
    """With equal time steps, n complex modes and their conjugates are 2n real dimensions, discretised by expm."""
    import scipy.linalg

    model = MAKERS["S5"](jnp.float64)
    model = eqx.tree_at(lambda s: s.log_dt, model, jnp.full(5, math.log(0.05)))
    _, inputs = _data(model, jnp.float64, 30)
    rates = -np.exp(np.asarray(model.log_decay)) + 1j * np.asarray(model.frequency)
    B = np.asarray(model.B_real) + 1j * np.asarray(model.B_imag)
    C = np.asarray(model.C_real) + 1j * np.asarray(model.C_imag)
    # Coordinates sqrt(2) [Re, Im] of the modes: a block [[re, -im], [im, re]] each, and y = sqrt(2) (Re C, -Im C) z.
    A = np.block([[np.diag(rates.real), -np.diag(rates.imag)], [np.diag(rates.imag), np.diag(rates.real)]])
    A_bar = scipy.linalg.expm(0.05 * A)
    B_bar = np.linalg.solve(A, (A_bar - np.eye(10)) @ np.concatenate([B.real, B.imag]))
    z, outputs = np.zeros(10), []
    for x in np.asarray(inputs):
        z = A_bar @ z + B_bar @ x
        outputs.append(2 * np.concatenate([C.real, -C.imag], axis=1) @ z + np.asarray(model.D) @ x)
    states = dw.simulate(model, jnp.zeros(10), inputs)
    np.testing.assert_allclose(jax.vmap(model.readout())(states, inputs), outputs, atol=1e-12)


def test_s5_starts_from_the_legs_system():
    """Its impulse response at the start is that of the full real normal matrix, whatever basis it is written in."""
    import scipy.linalg

    n = 4
    model = m.S5(1, n, 1, key=jax.random.key(9))
    root = np.sqrt(2 * np.arange(2 * n) + 1)
    upper = np.triu(np.outer(root, root) / 2, 1)
    normal = -0.5 * np.eye(2 * n) + upper - upper.T
    rates, basis = legs_normal_part(n)
    np.testing.assert_allclose(normal @ basis, basis * rates, atol=1e-12)
    B = np.asarray(model.B_real) + 1j * np.asarray(model.B_imag)
    C = np.asarray(model.C_real) + 1j * np.asarray(model.C_imag)
    real_B = 2 * (basis @ B).real
    real_C = 2 * (C @ basis.conj().T).real
    for t in (0.0, 0.1, 0.7):
        response = 2 * (C @ (np.exp(rates * t)[:, None] * B)).real
        np.testing.assert_allclose(response, real_C @ scipy.linalg.expm(normal * t) @ real_B, atol=1e-11)


def test_selective_against_a_brute_force_loop():
    model = MAKERS["SelectiveSSM"](jnp.float64)
    state0, inputs = _data(model, jnp.float64, 20)
    p = {name: np.asarray(getattr(model, name)) for name in ("log_rate", "B", "C", "dt_down", "dt_up", "dt_bias", "D")}
    h = np.asarray(state0).reshape(3, 4).copy()
    states = dw.simulate(model, state0, inputs)
    outputs = jax.vmap(model.readout())(states, inputs)
    for t, x in enumerate(np.asarray(inputs)):
        for c in range(3):
            delta = np.log1p(np.exp(p["dt_up"][c] @ (p["dt_down"] @ x) + p["dt_bias"][c]))
            for n in range(4):
                h[c, n] = np.exp(-delta * np.exp(p["log_rate"][c, n])) * h[c, n] + delta * (p["B"][n] @ x) * x[c]
        np.testing.assert_allclose(states[t], h.ravel(), atol=1e-13)
        expected = [h[c] @ (p["C"] @ x) + p["D"][c] * x[c] for c in range(3)]
        np.testing.assert_allclose(outputs[t], expected, atol=1e-13)


# ---- The numbers of the literature.


def test_s4d_golden_values():
    rate, step = jnp.array([-0.5 + 3j * np.pi]), jnp.array([0.05])
    for method, multiplier, factor in [
        ("zoh", 0.869007 + 0.442781j, 0.0475840 + 0.0113743j),
        ("bilinear", 0.873833 + 0.436060j, 0.0468458 + 0.0109015j),
    ]:
        got = discretise(rate, step, method)
        np.testing.assert_allclose(got[0][0], multiplier, atol=1e-6)
        np.testing.assert_allclose(got[1][0], factor, atol=1e-6)
    # The same through the model: its mode 3 has this rate.
    for method in ("zoh", "bilinear"):
        model = m.S4D(1, 5, discretisation=method, dt_min=0.05, dt_max=0.05, key=jax.random.key(0))
        multiplier, factor = discretise(rate, step, method)
        np.testing.assert_allclose(model.multipliers()[3], multiplier[0], atol=1e-12)
        np.testing.assert_allclose(model.drive(jnp.ones(1))[jnp.array([3, 8])], [factor[0].real, factor[0].imag])


def test_zero_order_hold_of_a_tiny_step_is_accurate():
    """(exp(x) - 1) loses all digits where x is tiny; expm1 does not."""
    factor = discretise(jnp.array([-0.5 + 3j]), jnp.array([1e-12]), "zoh")[1][0]
    np.testing.assert_allclose(factor, 1e-12, rtol=1e-11)


def test_s4d_initial_rates():
    inverse = m.S4D(2, 32, init="inv", key=jax.random.key(0))
    np.testing.assert_allclose(inverse.frequency[0, :2], [1283.425, 414.227], atol=1e-3)
    np.testing.assert_allclose(np.exp(inverse.log_decay), 0.5)
    np.testing.assert_allclose(m.S4D(1, 3, key=jax.random.key(0)).frequency[0], np.pi * np.arange(3))
    legs = m.S4D(1, 32, init="legs", key=jax.random.key(0)).frequency[0]
    assert float(legs.max()) == pytest.approx(1303.27, abs=1e-2)
    n = np.arange(64)
    root = np.sqrt(2 * n + 1)
    hippo = -np.tril(np.outer(root, root), -1) - np.diag(n + 1.0)
    eigenvalues = np.linalg.eigvals(hippo + np.outer(root, root) / 2)
    np.testing.assert_allclose(eigenvalues.real, -0.5, atol=1e-10)
    np.testing.assert_allclose(np.sort(eigenvalues.imag[eigenvalues.imag > 0]), legs, rtol=1e-10)


def test_lru_ring_and_its_white_noise_gain():
    """E 1 / (1 - |lambda|^2) over the ring is log((1 - r_min^2) / (1 - r_max^2)) / (r_max^2 - r_min^2)."""
    model = m.LRU(1, 200_000, 1, r_min=0.9, r_max=0.999, max_phase=1.0, key=jax.random.key(0))
    lam = model.multipliers()
    modulus, phase = jnp.abs(lam), jnp.angle(lam)
    assert bool(jnp.all((modulus >= 0.9) & (modulus <= 0.999)))
    assert bool(jnp.all((phase >= 0) & (phase <= 1)))
    gain = 1 / (1 - modulus**2)
    exact = math.log((1 - 0.9**2) / (1 - 0.999**2)) / (0.999**2 - 0.9**2)
    assert exact == pytest.approx(24.2253, abs=1e-4)
    error = float(jnp.std(gain)) / math.sqrt(200_000)
    assert abs(float(gain.mean()) - exact) < 4 * error
    np.testing.assert_allclose(jnp.exp(2 * model.log_gamma) * gain, 1, rtol=1e-9)


def test_lru_normalisation_gives_unit_variance():
    """gamma makes the stationary E |h|^2 = 1 under white noise whose projection has E |B x|^2 = 1."""
    model = m.LRU(1, 3, 1, r_min=0.5, r_max=0.8, key=jax.random.key(0))
    ones = jnp.full((3, 1), math.sqrt(0.5))
    model = eqx.tree_at(lambda lru: (lru.B_real, lru.B_imag), model, (ones, ones))
    states = dw.simulate(model, jnp.zeros(6), jax.random.normal(jax.random.key(1), (40_000, 1)))[100:]
    power = jnp.mean(states[:, :3] ** 2 + states[:, 3:] ** 2, axis=0)
    np.testing.assert_allclose(power, 1, atol=0.05)


def test_extreme_rings_stay_finite():
    for r_min, r_max in [(0.0, 1.0), (1.0, 1.0), (0.0, 1e-3)]:
        model = m.LRU(2, 500, 1, r_min=r_min, r_max=r_max, dtype=jnp.float32, key=jax.random.key(0))
        for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)):
            assert bool(jnp.isfinite(leaf).all())
        assert float(jnp.abs(model.multipliers()).max()) <= 1


def test_selective_initial_values():
    model = m.SelectiveSSM(40, 3, dt_min=0.01, dt_max=0.1, key=jax.random.key(0))
    np.testing.assert_allclose(jnp.exp(model.log_rate), np.broadcast_to([1.0, 2.0, 3.0], (40, 3)))
    assert model.dt_down.shape == (3, 40)
    steps = jax.nn.softplus(model.dt_bias)
    assert bool(jnp.all((steps > 0.01 - 1e-12) & (steps < 0.1 + 1e-12)))


# ---- Helpers.


def test_fft_length_holds_a_linear_convolution():
    for length in (1, 2, 3, 64, 65, 1000):
        assert 2 * length - 1 <= fft_length(length) <= 4 * length


@pytest.mark.parametrize("chunk", [None, 1, 4, 13, 20])
def test_chunked_scans_are_the_scan(chunk):
    xs = jax.random.normal(jax.random.key(0), (13, 2))

    expected = jax.lax.scan(lambda h, x: (jnp.tanh(h + jnp.sin(x)),) * 2, jnp.zeros(2), xs)[1]
    prepared = chunked_scan(lambda h, x: jnp.tanh(h + x), jnp.zeros(2), xs, 13, chunk=chunk, prepare=jnp.sin)
    np.testing.assert_allclose(prepared, expected, atol=1e-15)
    for last_only, want in [(False, expected), (True, expected[-1])]:
        got = checkpointed_scan(
            lambda h, x: jnp.tanh(h + jnp.sin(x)), jnp.zeros(2), xs, 13, chunk=chunk, last_only=last_only
        )
        np.testing.assert_allclose(got, want, atol=1e-15)


# ---- Bad input.


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: m.LinearRNN(jnp.ones((2, 3)), jnp.ones((2, 1)), jnp.ones((1, 2))), dw.errors.ShapeError, "`W`"),
        (lambda: m.LinearRNN(jnp.eye(2), jnp.ones((3, 1)), jnp.ones((1, 2))), dw.errors.ShapeError, "`B`"),
        (lambda: m.LinearRNN(jnp.eye(2), jnp.ones((2, 1)), jnp.ones((1, 3))), dw.errors.ShapeError, "`A`"),
        (lambda: m.LRU(0, 2, 1, key=jax.random.key(0)), dw.errors.ArgumentError, "`input_size`"),
        (lambda: m.LRU(1, 2.0, 1, key=jax.random.key(0)), dw.errors.ArgumentError, "`n_modes`"),
        (lambda: m.LRU(1, 2, 1, r_min=0.9, r_max=0.5, key=jax.random.key(0)), dw.errors.ArgumentError, "r_min"),
        (lambda: m.LRU(1, 2, 1, r_max=1.5, key=jax.random.key(0)), dw.errors.ArgumentError, "1.5"),
        (lambda: m.LRU(1, 2, 1, max_phase=0.0, key=jax.random.key(0)), dw.errors.ArgumentError, "max_phase"),
        (lambda: m.LRU(1, 2, 1, dtype=int, key=jax.random.key(0)), dw.errors.ArgumentError, "dtype"),
        (lambda: m.S4D(1, 2, init="random", key=jax.random.key(0)), dw.errors.ArgumentError, "'lin', 'inv', 'legs'"),
        (lambda: m.S4D(1, 2, discretisation="euler", key=jax.random.key(0)), dw.errors.ArgumentError, "'bilinear'"),
        (lambda: m.S5(1, 2, 1, dt_min=0.0, key=jax.random.key(0)), dw.errors.ArgumentError, "dt_min"),
        (lambda: m.SelectiveSSM(1, 2, rank=0, key=jax.random.key(0)), dw.errors.ArgumentError, "`rank`"),
    ],
)
def test_constructors_name_what_is_wrong(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_steps_and_readouts_name_what_is_wrong(made):
    _, model, state0, _ = made
    with pytest.raises(dw.errors.ShapeError, match="`state`"):
        model(state0[:-1])
    with pytest.raises(dw.errors.ShapeError, match="`input`"):
        model(state0, jnp.zeros(7))
    with pytest.raises(dw.errors.ShapeError, match="`state`"):
        model.readout()(state0[:-1])


def test_a_selective_model_is_no_convolution():
    model = MAKERS["SelectiveSSM"](jnp.float64)
    with pytest.raises(dw.errors.ModelError, match="SelectiveSSM"):
        dw.simulate(model, *_data(model, jnp.float64), mode="fft")
