"""Envelopes against brute-force products of Jacobians and the published expansions; tails, windows and regimes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import dynwarp as dw

gr = dw.gradients
T, N, D = 25, 3, 2
LAGS = [1, 3, 8]


def _cells():
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        "leak": dw.models.GatedLeak(D, N, leak=0.2, key=keys[0]),
        "gru": dw.models.GRU(D, N, key=keys[1]),
        "lstm": dw.models.LSTM(D, N, key=keys[2]),
    }


CELLS = _cells()
INPUTS = jax.random.normal(jax.random.key(3), (T, D))


@eqx.filter_jit
def _jacobians(model, inputs):
    states = dw.simulate(model, jnp.zeros(model.state_size), inputs, include_initial=True)
    return states, jax.vmap(lambda z, x: jax.jacfwd(lambda z: model(z, x))(z))(states[:-1], inputs)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _gates(model, states):
    """i, f, g, o and c of an LSTM at every step, by NumPy."""
    pre = states[:-1, :N] @ np.asarray(model.recurrent_weight).T + np.asarray(INPUTS) @ np.asarray(model.input_weight).T
    i, f, g, o = np.split(pre + np.asarray(model.bias), 4, axis=1)
    return _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o), states[1:, N:]


def _brute_force(model, lag, rates=None):
    """The mean over the blocks of the sum of the norms of the rows of the products, by NumPy."""
    states, jacobians = (np.asarray(x) for x in _jacobians(model, INPUTS))
    lstm = isinstance(model, dw.models.LSTM)
    totals = []
    for block in range((T - 1) // lag):
        end = T - 1 - block * lag
        source = end - lag
        product = np.eye(model.state_size)
        for t in range(source + 1, end + 1):
            product = jacobians[t] @ product
        if lstm:
            _, _, _, o, c = _gates(model, states)
            slope = o[source] * (1 - np.tanh(c[source]) ** 2)
            product = product[:N] @ np.concatenate([np.diag(slope), np.eye(N)])
        if rates is not None:
            product = product * rates[source]
        totals.append(np.linalg.norm(product, axis=1).sum())
    return np.mean(totals), np.std(totals, ddof=1) / np.sqrt(len(totals))


@pytest.mark.parametrize("name", CELLS)
def test_exact_envelope_is_the_product_of_the_jacobians(name):
    model = CELLS[name]
    found = gr.envelope(model, INPUTS, LAGS)
    for i, lag in enumerate(LAGS):
        mean, error = _brute_force(model, lag)
        assert found.values[i] == pytest.approx(mean, rel=1e-12)
        assert found.log_error[i] == pytest.approx(error / mean, rel=1e-9)
        assert found.windows[i] == (T - 1) // lag


def test_rates_of_an_optimiser_weigh_the_source():
    rates = 1 + np.random.default_rng(0).random((T, N))
    rated = gr.envelope(CELLS["leak"], INPUTS, LAGS, rates=jnp.asarray(rates))
    expected = [_brute_force(CELLS["leak"], lag, rates)[0] for lag in LAGS]
    np.testing.assert_allclose(rated.values, expected, rtol=1e-12)


def _diagonal_expansion(name, lag):
    """mu0 + mu1 of the theory, entry by entry, from the formulas written out."""
    model = CELLS[name]
    states, jacobians = (np.asarray(x) for x in _jacobians(model, INPUTS))
    before = states[:-1]
    drive = np.asarray(INPUTS) @ np.asarray(model.input_weight).T + np.asarray(model.bias)
    total = []
    if name == "lstm":
        i, f, g, o, c = _gates(model, states)
        ui, uf, ug, _ = (np.diag(w) for w in np.split(np.asarray(model.recurrent_weight), 4))
        cell = before[:, N:] * f * (1 - f) * uf + i * (1 - g**2) * ug + g * i * (1 - i) * ui
        e = o * (1 - np.tanh(c) ** 2)
        for t in range(lag, T):
            js = np.arange(t - lag + 1, t + 1)
            mu0 = e[t] * f[js].prod(0)
            total.append(np.abs(mu0 * (1 + (cell[js] * e[js - 1] / f[js]).sum(0))).sum())
        return np.mean(total)
    if name == "leak":
        leak = 1 - _sigmoid(
            np.asarray(model.gate_bias)
            + before @ np.asarray(model.gate_recurrent_weight).T
            + np.asarray(INPUTS) @ np.asarray(model.gate_input_weight).T
        )
    else:
        z = drive + before @ np.asarray(model.recurrent_weight).T
        leak = _sigmoid(z[:, N : 2 * N])
    # The rest of the diagonal of the true Jacobian, to all of its terms.
    rest = np.diagonal(jacobians, axis1=1, axis2=2) - leak
    for t in range(lag, T):
        js = np.arange(t - lag + 1, t + 1)
        total.append(np.abs(leak[js].prod(0) * (1 + (rest[js] / leak[js]).sum(0))).sum())
    return np.mean(total)


@pytest.mark.parametrize("name", CELLS)
def test_diagonal_envelope_is_the_first_order_expansion(name):
    found = gr.envelope(CELLS[name], INPUTS, LAGS, kind="diagonal")
    expected = [_diagonal_expansion(name, lag) for lag in LAGS]
    np.testing.assert_allclose(found.values, expected, rtol=1e-12)
    assert bool(jnp.all(found.windows == T - np.asarray(LAGS)))


def test_the_expansion_of_the_released_program():
    """Of a GRU, written out; of the others it is the expansion of the theory."""
    model = eqx.tree_at(lambda m: m.bias_n, CELLS["gru"], jnp.array([0.3, -0.2, 0.1]))
    states = np.asarray(_jacobians(model, INPUTS)[0])[:-1]
    W_r, W_z, W_n = np.split(np.asarray(model.recurrent_weight), 3)
    a_r, a_z, a_n = np.split(np.asarray(INPUTS) @ np.asarray(model.input_weight).T + np.asarray(model.bias), 3, axis=1)
    r, keep = _sigmoid(a_r + states @ W_r.T), _sigmoid(a_z + states @ W_z.T)
    g = np.tanh(a_n + r * (states @ W_n.T + np.asarray(model.bias_n)))
    through = np.diag(W_n) * (r + states * r * (1 - r) * np.diag(W_r))
    rest = (1 - keep) * (1 - g**2) * through + (states - g) * keep * (1 - keep) * np.diag(W_z)
    expected = []
    for lag in LAGS:
        windows = [np.arange(t - lag + 1, t + 1) for t in range(lag, T)]
        mu = [keep[j].prod(0) * (1 + (rest / keep)[j].sum(0)) + r[j].prod(0) + (keep * r)[j].prod(0) for j in windows]
        expected.append(np.abs(mu).sum(1).mean())
    found = gr.envelope(model, INPUTS, LAGS, kind="released")
    np.testing.assert_allclose(found.values, expected, rtol=1e-12)
    for name in ("leak", "lstm"):
        same = [gr.envelope(CELLS[name], INPUTS, LAGS, kind=kind).log_values for kind in ("released", "diagonal")]
        np.testing.assert_allclose(*same, rtol=1e-14)


def test_a_gate_that_is_shared():
    model = dw.models.GatedLeak(D, N, gate="shared", leak=0.2, key=jax.random.key(5))
    _, jacobians = (np.asarray(x) for x in _jacobians(model, INPUTS))
    diagonal = np.abs(np.diagonal(jacobians, axis1=1, axis2=2))[1:]
    # At lag 1 the expansion is the diagonal of the Jacobian.
    one = gr.envelope(model, INPUTS, [1], kind="diagonal")
    assert one.values[0] == pytest.approx(diagonal.sum(1).mean(), rel=1e-12)


def test_without_recurrent_weights_expansion_and_truth_agree():
    for name, zero in (("lstm", ["recurrent_weight"]), ("leak", ["recurrent_weight", "gate_recurrent_weight"])):
        model = CELLS[name]
        for field in zero:
            model = eqx.tree_at(lambda m: getattr(m, field), model, jnp.zeros_like(getattr(model, field)))  # noqa: B023
        # Of the longest lag there is one window, the same in both.
        lags = [1, 3, T - 1]
        exact = gr.envelope(model, INPUTS, lags, probes=2)
        diagonal = gr.envelope(model, INPUTS, lags, kind="diagonal")
        # Random tangents are exact where the transport is diagonal.
        np.testing.assert_allclose(exact.log_values[2], diagonal.log_values[2], atol=1e-13)
        assert exact.log_error[2] == jnp.inf


def test_probes_estimate_the_rows():
    W = np.random.default_rng(1).normal(size=(12, 12)) / 12**0.5
    net = dw.models.LinearRNN(jnp.asarray(W), jnp.zeros((12, 0)), jnp.eye(12))
    complete = gr.envelope(net, None, [1, 4], steps=5, probes=None)
    expected = [np.linalg.norm(np.linalg.matrix_power(W, lag), axis=1).sum() for lag in (1, 4)]
    np.testing.assert_allclose(complete.values, expected, rtol=1e-12)
    # Twelve rows, each known to 1 / sqrt(2 * 8) of itself: 7 percent for their sum; 4 standard errors.
    np.testing.assert_allclose(gr.envelope(net, None, [1, 4], steps=5).values, expected, rtol=0.3)


def test_envelopes_neither_overflow_nor_vanish_nor_fail_in_float32():
    for factor in (2.0, 0.01):
        net = dw.models.LinearRNN(factor * jnp.eye(2, dtype=jnp.float32), jnp.zeros((2, 0), jnp.float32), jnp.eye(2))
        found = gr.envelope(net, None, [1, 300], state0=jnp.zeros(2, jnp.float32), steps=301)
        assert found.log_values.dtype == jnp.float32
        np.testing.assert_allclose(found.log_values, np.log(2) + np.array([1, 300]) * np.log(factor), rtol=1e-5)
    single = jax.tree.map(lambda x: x.astype(jnp.float32), eqx.filter(CELLS["leak"], eqx.is_array))
    single = eqx.combine(single, CELLS["leak"])
    found = gr.envelope(single, INPUTS.astype(jnp.float32), LAGS, kind="diagonal")
    expected = gr.envelope(CELLS["leak"], INPUTS, LAGS, kind="diagonal").values
    np.testing.assert_allclose(found.values, expected, rtol=1e-5)


def test_envelope_under_jit_and_its_derivative():
    def total(scale, kind):
        model = eqx.tree_at(lambda m: m.gate_bias, CELLS["leak"], CELLS["leak"].gate_bias + scale)
        return jnp.sum(gr.envelope(model, INPUTS, LAGS, kind=kind, throw=False).log_values)

    for kind in ("exact", "diagonal"):
        both = jax.jit(jax.value_and_grad(lambda s, kind=kind: total(s, kind)))
        (low, _), (value, slope), (high, _) = (both(s) for s in (-1e-6, 0.0, 1e-6))
        assert value == pytest.approx(float(jnp.sum(gr.envelope(CELLS["leak"], INPUTS, LAGS, kind=kind).log_values)))
        assert slope == pytest.approx(float(high - low) / 2e-6, rel=1e-6)


def test_envelope_says_what_is_wrong():
    with pytest.raises(dw.errors.ModelError, match="GatedLeak, a GRU or an LSTM; got Elman"):
        gr.envelope(dw.models.Elman(D, N, key=jax.random.key(0)), INPUTS, [1], kind="diagonal")
    with pytest.raises(dw.errors.ModelError, match='kind="released" expands'):
        gr.envelope(dw.models.Elman(D, N, key=jax.random.key(0)), INPUTS, [1], kind="released")
    with pytest.raises(dw.errors.ArgumentError, match="below the 25 steps"):
        gr.envelope(CELLS["gru"], INPUTS, [1, T])
    with pytest.raises(dw.errors.ArgumentError, match="increasing whole numbers"):
        gr.envelope(CELLS["gru"], INPUTS, [3, 1])
    with pytest.raises(dw.errors.ArgumentError, match="give `steps`"):
        gr.envelope(CELLS["gru"], None, [1])
    with pytest.raises(dw.errors.ShapeError, match="rates"):
        gr.envelope(CELLS["gru"], INPUTS, [1], rates=jnp.ones((2, 3)))
    dead = dw.models.LinearRNN(jnp.zeros((2, 2)), jnp.zeros((2, 0)), jnp.eye(2))
    with pytest.raises(dw.errors.ConvergenceError, match="exactly zero"):
        gr.envelope(dead, None, [1], steps=4)


def test_adapted_rates_are_rayleigh_quotients():
    rng = np.random.default_rng(0)
    moment, states = rng.random((3, 4)), rng.normal(size=(5, 4))
    states[2] = 0
    rate = 0.1 / (np.sqrt(moment) + 1e-8)
    expected = (states**2 @ rate.T) / np.maximum((states**2).sum(1, keepdims=True), 1e-300)
    expected[2] = rate.mean(1)
    found = gr.adapted_rates(jnp.asarray(moment), jnp.asarray(states), learning_rate=0.1)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_matched_statistics_add_up_to_the_gradient(key):
    model = dw.models.Elman(D, N, key=key)
    readout = dw.models.Readout(N, 1, key=jax.random.key(1))
    inputs, targets = INPUTS[:6], jnp.ones((6, 1))
    found = gr.matched_statistic(model, readout, inputs, targets, range(6), key=key, directions=2)

    def loss(model):
        states = dw.simulate(model, jnp.zeros(N), inputs)
        return 0.5 * jnp.sum((jax.vmap(readout)(states, inputs) - targets) ** 2)

    flat, _ = jax.flatten_util.ravel_pytree(jax.grad(loss)(model))
    draws = jax.random.normal(key, (2, len(flat)))
    along = (draws / jnp.linalg.norm(draws, axis=1, keepdims=True)) @ flat
    np.testing.assert_allclose(jnp.sum(found.samples, axis=(0, 2)), along, rtol=1e-12)
    assert bool(jnp.all(found.samples[2, :, :2] == 0))
    signal = jnp.mean(jnp.abs(jnp.sum(found.samples[2], axis=1)) / 4)
    assert found.log_values[2] == pytest.approx(float(jnp.log(signal)), abs=1e-12)
    window = gr.learnability_window(found, alpha=1.8, scale=1e-9, n_samples=10)
    assert window.window == 5
    assert bool(window.censored)
    with pytest.raises(dw.errors.ArgumentError, match="stay below the 6 steps"):
        gr.matched_statistic(model, readout, inputs, targets, [0, 6], key=key)


# ---- tails


@pytest.fixture(scope="module")
def stable():
    rng = np.random.default_rng(7)
    return {a: scipy.stats.levy_stable.rvs(a, 0, loc=3, scale=2, size=20000, random_state=rng) for a in (1.0, 1.5, 1.9)}


@pytest.mark.parametrize("method", ["characteristic", "quantile"])
def test_tail_index_of_known_laws(stable, method):
    for alpha, samples in stable.items():
        found = gr.tail_index(jnp.asarray(samples), method=method)
        # Standard errors at this size are 0.01 to 0.03.
        assert abs(float(found.alpha) - alpha) < 0.07
        assert abs(float(found.scale) / 2 - 1) < 0.05
        assert 0.003 < float(found.standard_error) < 0.06
        assert found.interval[0] <= found.alpha <= found.interval[1] <= 2
        assert abs(float(found.alpha) - alpha) < 4 * float(found.standard_error)
    normal = gr.tail_index(jax.random.normal(jax.random.key(0), (20000,)), method=method)
    assert float(normal.alpha) > 1.95
    assert float(normal.scale) == pytest.approx(0.5**0.5, rel=0.03)


def test_tail_index_knows_its_coverage():
    """The interval of 95 percent holds the truth as often as it says: 40 trials, so 33 with 99.9 percent."""
    keys = jax.random.split(jax.random.key(4), 40)
    covers = jax.jit(jax.vmap(lambda k: gr.tail_index(jax.random.cauchy(k, (800,)), throw=False).interval))(keys)
    assert int(jnp.sum((covers[:, 0] < 1) & (covers[:, 1] > 1))) >= 33


def test_table_of_quantiles():
    from dynwarp.gradients._stable_quantiles import ALPHAS, INTERQUARTILE_RANGES, TAIL_RATIOS

    published = {2: (2.43866, 1.90775), 1.9: (2.51282, 1.91361), 1.8: (2.60991, 1.91951), 1.5: (3.14980, 1.93787)}
    published |= {1.4: (3.46562, 1.94473), 1: (6.31375, 2.0)}
    for alpha, (ratio, width) in published.items():
        at = int(np.argmin(abs(ALPHAS - alpha)))
        assert ALPHAS[at] == pytest.approx(alpha)
        assert TAIL_RATIOS[at] == pytest.approx(ratio, abs=6e-6)
        assert INTERQUARTILE_RANGES[at] == pytest.approx(width, abs=6e-6)
    # The ends of the table by another way: Gauss, Cauchy.
    assert TAIL_RATIOS[-1] == pytest.approx(scipy.stats.norm.ppf(0.95) / scipy.stats.norm.ppf(0.75), abs=1e-6)
    assert TAIL_RATIOS[20] == pytest.approx(np.tan(0.45 * np.pi), abs=1e-6)


def test_tail_index_float32_and_bad_samples(stable):
    single = gr.tail_index(jnp.asarray(stable[1.5], jnp.float32), method="quantile")
    assert single.alpha.dtype == jnp.float32
    double = gr.tail_index(jnp.asarray(stable[1.5]), method="quantile")
    assert float(single.alpha) == pytest.approx(float(double.alpha), abs=1e-4)
    with pytest.raises(dw.errors.ShapeError, match="at least 64"):
        gr.tail_index(jnp.ones(10))
    with pytest.raises(dw.errors.NonFiniteError):
        gr.tail_index(jnp.full(100, jnp.nan))
    with pytest.raises(dw.errors.ConvergenceError, match="most are the same"):
        gr.tail_index(jnp.ones(20000), method="quantile")
    with pytest.raises(dw.errors.ArgumentError, match="method"):
        gr.tail_index(jnp.ones(100), method="hill")


# ---- windows and regimes


def _envelope(lags, log_values, log_error=0.0):
    lags = jnp.asarray(lags)
    errors = jnp.full(len(lags), log_error)
    return gr.Envelope(lags, jnp.asarray(log_values), errors, jnp.ones_like(lags), dw.RESULTS.successful)


LAWS = {
    "exponential": lambda lags: 0.7 - lags / 12,
    "power": lambda lags: 0.7 - 1.3 * jnp.log(lags),
    "logarithmic": lambda lags: 0.7 - jnp.log(jnp.log1p(lags)),
}


@pytest.mark.parametrize("name", LAWS)
def test_regimes_are_told_and_windows_invert_them(name):
    lags = jnp.array([1.0, 2, 4, 8, 16, 32])
    fit = gr.fit_regime(lags, LAWS[name](lags))
    index = int(fit.best)
    assert fit.names[index] == name
    assert float(fit.weights[index]) > 0.99
    assert float(fit.rate[index]) == pytest.approx({"exponential": 1 / 12, "power": 1.3, "logarithmic": 1}[name])
    assert float(fit.log_amplitude[index]) == pytest.approx(0.7)
    # N samples are just enough for the closed form: N(H) = N.
    alpha, scale, samples, threshold = 1.6, 2.0, jnp.array([10.0, 50.0]), 0.5
    window = fit.windows(alpha=alpha, scale=scale, n_samples=samples, threshold=threshold)[:, index]
    kappa = alpha / (alpha - 1)
    needed = (threshold * scale / jnp.exp(LAWS[name](window))) ** kappa
    np.testing.assert_allclose(needed, samples, rtol=1e-6)


def test_regimes_with_noise_and_errors(key):
    lags = jnp.arange(1, 40)
    noise = 0.05 * jax.random.normal(key, lags.shape)
    fit = gr.fit_regime(lags, LAWS["exponential"](lags.astype(float)) + noise)
    assert fit.names[int(fit.best)] == "exponential"
    assert abs(float(fit.rate[0]) - 1 / 12) < 4 * float(fit.rate_error[0]) < 0.01
    assert float(fit.time_constant) == pytest.approx(12, rel=0.1)
    fitted = scipy.stats.linregress(lags, LAWS["exponential"](lags.astype(float)) + noise)
    assert float(fit.rate_error[0]) == pytest.approx(fitted.stderr, rel=1e-9)
    assert bool(fit.windows(alpha=1.0, scale=1.0, n_samples=10)[0] == 0)
    with pytest.raises(dw.errors.ShapeError, match="at least 4"):
        gr.fit_regime(lags[:3], noise[:3])
    with pytest.raises(dw.errors.ConvergenceError):
        gr.fit_regime(lags, noise.at[3].set(-jnp.inf))


def test_window_is_the_longest_lag_within_the_samples():
    found = _envelope([1, 2, 3, 4], np.log([0.5, 0.25, 0.5, 0.01]), log_error=0.1)
    window = gr.learnability_window(found, alpha=1.5, scale=1.0, n_samples=jnp.array([10, 1e3, 1e9]), threshold=1.0)
    assert float(window.kappa) == pytest.approx(3)
    np.testing.assert_allclose(window.sample_complexity, [8, 64, 8, 1e6], rtol=1e-12)
    assert window.window.tolist() == [3, 3, 4]
    assert window.censored.tolist() == [False, False, True]
    # Lower ends: 8 exp(0.6) = 14.6 > 10.
    assert window.interval.tolist() == [[0, 3, 4], [3, 3, 4]]
    never = gr.learnability_window(found, alpha=1.0, scale=1.0, n_samples=10**9)
    assert int(never.window) == 0
    assert bool(jnp.all(jnp.isinf(never.sample_complexity)))
    gone = gr.learnability_window(_envelope([1, 2], [0.0, -jnp.inf]), alpha=2.0, scale=1.0, n_samples=10)
    assert int(gone.window) == 1
    with pytest.raises(dw.errors.ArgumentError, match="alpha"):
        gr.learnability_window(found, alpha=2.5, scale=1.0, n_samples=10)
    with pytest.raises(dw.errors.ArgumentError, match="Envelope"):
        gr.learnability_window(jnp.ones(3), alpha=2.0, scale=1.0, n_samples=10)


def test_means_of_heavy_tails_concentrate_as_the_window_assumes():
    """The interquartile range of means of 256 shrinks by 256^(1/alpha - 1), the law of version 4 and not f^-alpha."""
    alpha = 1.5
    draws = scipy.stats.levy_stable.rvs(alpha, 0, size=(256, 2000), random_state=np.random.default_rng(0))
    ratio = scipy.stats.iqr(draws.mean(0)) / scipy.stats.iqr(draws)
    assert ratio == pytest.approx(256 ** (1 / alpha - 1), rel=0.1)


def test_the_diagonal_expansion_overstates_the_decay():
    """A positive feedback on itself: prod (leak + rest) decays slower than prod leak (1 + sum rest / leak)."""
    model = dw.models.GatedLeak(D, N, gate="constant", leak=0.1, key=jax.random.key(8))
    model = eqx.tree_at(lambda m: m.recurrent_weight, model, 0.6 * jnp.eye(N))
    lags, inputs = [4, 8, 16, 24], 0.1 * jax.random.normal(jax.random.key(9), (T, D))
    rates = [float(gr.fit_regime(gr.envelope(model, inputs, lags, kind=k)).rate[0]) for k in ("diagonal", "exact")]
    assert 1.2 < rates[0] / rates[1] < 6
