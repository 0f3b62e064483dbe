"""Products of Jacobians against 400-digit arithmetic, bounds and their counterexamples, input sensitivities."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw

gr = dw.gradients
T, N = 200, 4


def _network(W):
    W = jnp.asarray(W)
    cell = dw.models.Elman(1, len(W), key=jax.random.key(0))
    return eqx.tree_at(lambda m: m.recurrent_weight, cell, W)


def _orbit(model, steps=T):
    inputs = 0.3 * jax.random.normal(jax.random.key(1), (steps, 1))
    states = dw.simulate(model, jnp.zeros(model.state_size), inputs, include_initial=True)
    return states, inputs


def _steps(model, states):
    return (1 - np.asarray(states[1:]) ** 2)[:, :, None] * np.asarray(model.recurrent_weight)


@pytest.fixture(scope="module")
def mp():
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(400):
        yield mpmath


def _exact(mp, jacobians):
    product = mp.eye(jacobians.shape[1])
    for J in jacobians:
        product = mp.matrix(J.tolist()) * product
    values = sorted((float(mp.log(x)) for x in mp.svd_r(product, compute_uv=False)), reverse=True)
    return product, np.array(values)


def test_every_singular_value_at_lag_200(mp):
    model = _network(0.8 * np.random.default_rng(3).standard_normal((N, N)) / N**0.5)
    states, inputs = _orbit(model)
    found = gr.jacobian_product(model, states[:-1], inputs, lag=T)
    product, expected = _exact(mp, _steps(model, states))
    # Multiplied out, nothing would be left of the smallest.
    assert expected[0] - expected[-1] > 100
    np.testing.assert_allclose(found.log_singular_values, expected, atol=1e-10)
    assert np.abs(found.log_singular_values - expected).max() < max(100 * float(found.error), 1e-12)
    np.testing.assert_allclose(found.log_determinant, float(mp.log(abs(mp.det(product)))), atol=1e-10)
    # P v = sigma u in long arithmetic.
    image = product * mp.matrix(np.asarray(found.right)[:, 0].tolist()) / mp.exp(float(expected[0]))
    np.testing.assert_allclose([float(x) for x in image], found.left[:, 0], atol=1e-10)
    for vectors in (found.left, found.right):
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(N), atol=1e-9)


def test_short_products_equal_numpy_and_their_order_is_descending():
    model = _network(np.random.default_rng(0).standard_normal((N, N)) / 2)
    states, inputs = _orbit(model)
    J = _steps(model, states)
    found = gr.jacobian_product(model, states[:-1], inputs, lag=3)
    product = J[-1] @ J[-2] @ J[-3]
    s = np.linalg.svd(product, compute_uv=False)
    np.testing.assert_allclose(found.log_singular_values, np.log(s), atol=1e-12)
    rebuilt = (found.left * jnp.exp(found.log_singular_values)) @ found.right.T
    np.testing.assert_allclose(rebuilt, product, atol=1e-13)
    # The other order is another matrix with other singular values.
    assert np.abs(np.log(np.linalg.svd(J[-3] @ J[-2] @ J[-1])[1]) - found.log_singular_values).max() > 1e-3
    multipliers = np.abs(np.linalg.eigvals(product))
    np.testing.assert_allclose(found.log_spectral_radius, np.log(multipliers.max()), atol=1e-10)
    henrici = np.sqrt(1 - np.sum(multipliers**2) / np.sum(product**2))
    np.testing.assert_allclose(found.departure_from_normality, henrici, atol=1e-9)
    assert found.lag == 3


def test_orthogonal_and_nilpotent_products():
    Q = dw.models.Elman(1, N, key=jax.random.key(5)).recurrent_weight
    linear = dw.models.LinearRNN(1.1 * Q, jnp.zeros((N, 1)), jnp.eye(N))
    found = gr.jacobian_product(linear, jnp.zeros((T, N)), lag=T)
    np.testing.assert_allclose(found.log_singular_values, T * np.log(1.1), atol=1e-10)
    assert found.departure_from_normality < 1e-6
    shift = dw.models.LinearRNN(5 * jnp.diag(jnp.ones(N - 1), 1), jnp.zeros((N, 1)), jnp.eye(N))
    two = gr.jacobian_product(shift, jnp.zeros((T, N)), lag=2)
    np.testing.assert_allclose(two.log_singular_values[:2], 2 * np.log(5.0), atol=1e-12)
    assert (two.log_singular_values[2:] == -jnp.inf).all()
    gone = gr.jacobian_product(shift, jnp.zeros((T, N)), lag=T)
    assert (gone.log_singular_values == -jnp.inf).all()
    assert gone.log_determinant == -jnp.inf


def test_derivatives_and_transformations():
    generator = np.random.default_rng(1)
    W, dW = jnp.asarray(generator.standard_normal((2, N, N)) / 2)
    inputs = 0.3 * jax.random.normal(jax.random.key(1), (20, 1))

    @jax.jit
    def values(W):
        model = _network(W)
        states = dw.simulate(model, jnp.zeros(N), inputs, include_initial=True)
        return gr.jacobian_product(model, states[:-1], inputs, lag=20).log_singular_values

    h = 1e-6
    numeric = (values(W + h * dW) - values(W - h * dW)) / (2 * h)
    forward = jax.jvp(values, (W,), (dW,))[1]
    np.testing.assert_allclose(forward, numeric, rtol=1e-5)
    backward = jax.grad(lambda W: values(W)[-1])(W)
    np.testing.assert_allclose(jnp.sum(backward * dW), forward[-1], rtol=1e-9)
    many = jax.vmap(values)(jnp.stack([W, 2 * W]))
    np.testing.assert_allclose(many[0], values(W), atol=1e-11)


def test_disorder_is_reported():
    # One direction is shrunk by e^-46 first and stretched back later, the other the other way round: P = 1, and what
    # a rounding error makes in between is as large.
    class Detour(dw.models.AbstractMap):
        state_size: int = 2
        input_size: int = 0

        def __call__(self, state, input=None, *, step=None):
            factor = jnp.where(step < 20, 0.1, 10.0)
            return jnp.stack([factor, 1 / factor]) * state

    found = gr.jacobian_product(Detour(), jnp.zeros((40, 2)), lag=40, throw=False)
    assert found.result == dw.RESULTS.inaccurate
    with pytest.raises(dw.errors.ConvergenceError, match="Shorten `lag`"):
        gr.jacobian_product(Detour(), jnp.zeros((40, 2)), lag=40)
    assert gr.jacobian_product(Detour(), jnp.zeros((40, 2)), lag=20).result == dw.RESULTS.successful


# ---- bounds


def test_bounds_hold_on_a_thousand_random_cases():
    generator = np.random.default_rng(0)
    W = jnp.asarray(generator.standard_normal((1000, 3, 3)) * generator.uniform(0.2, 2.5, (1000, 1, 1)) / 3**0.5)
    z = jnp.asarray(generator.standard_normal((1000, 3)))

    @jax.jit
    @jax.vmap
    def report(W, z):
        model = dw.models.Elman(0, 3, key=jax.random.key(0))
        model = eqx.tree_at(lambda m: m.recurrent_weight, model, W)
        states = dw.simulate(model, z, steps=12, include_initial=True)
        return states, gr.bound_report(model, states[:-1], gamma=1.0)

    states, found = report(W, z)
    assert found.holds.all()
    # A product of numpy's own, and the bound of the weights.
    J = (1 - np.asarray(states[:, 1:]) ** 2)[..., None] * np.asarray(W)[:, None]
    product, sigma = np.tile(np.eye(3), (1000, 1, 1)), np.linalg.norm(np.asarray(W), 2, axis=(1, 2))
    for lag in range(1, 13):
        product = product @ J[:, -lag]
        norm = np.linalg.norm(product, 2, axis=(1, 2))
        np.testing.assert_allclose(found.log_norms[:, lag - 1], np.log(norm), atol=1e-9)
        assert (norm <= sigma**lag * (1 + 1e-12)).all()
    np.testing.assert_allclose(found.log_uniform_bounds[:, -1], 12 * np.log(sigma), rtol=1e-12)
    assert (found.vanishing_certain == (sigma < 1)).all()
    assert (found.exploding_possible == (sigma > 1)).all()
    # Sufficient: where it is certain, it happens. Necessary and not sufficient: possible, and mostly it does not.
    assert (found.log_norms[:, -1][found.vanishing_certain] < 0).all()
    assert (found.log_norms[:, -1][found.exploding_possible] < 0).mean() > 0.3
    np.testing.assert_allclose(found.spectral_radius[:, -1], np.abs(np.linalg.eigvals(J[:, -1])).max(1), atol=1e-9)
    assert ((found.tightness > 0) & (found.tightness <= 1)).all()


def test_counterexamples():
    nilpotent = dw.models.LinearRNN(jnp.array([[0.0, 5.0], [0.0, 0.0]]), jnp.zeros((2, 1)), jnp.eye(2))
    report = gr.bound_report(nilpotent, jnp.zeros((4, 2)), gamma=1.0)
    assert report.exploding_possible
    assert not report.exploding_certain
    assert not report.vanishing_certain
    np.testing.assert_allclose(jnp.exp(report.log_norms), [5, 0, 0, 0], rtol=1e-14)
    np.testing.assert_allclose(report.tightness, [1, 0, 0, 0], rtol=1e-14)
    np.testing.assert_allclose(report.departure_from_normality, 1)
    # sigma_max = 1.78 and spectral radius 0.94 in one matrix: a hump, then decay.
    A = 0.9 * np.random.default_rng(0).standard_normal((40, 40)) / 40**0.5
    linear = dw.models.LinearRNN(jnp.asarray(A), jnp.zeros((40, 1)), jnp.eye(40))
    report = gr.bound_report(linear, jnp.zeros((150, 40)))
    powers = [np.linalg.norm(np.linalg.matrix_power(A, k), 2) for k in (1, 3, 150)]
    np.testing.assert_allclose(jnp.exp(report.log_norms[jnp.array([0, 2, 149])]), powers, rtol=1e-9)
    assert report.sigma_max[0] > 1.5
    assert report.spectral_radius[0] < 1
    assert powers[2] < 0.05 < powers[0]
    Q = dw.models.LinearRNN(1.1 * jnp.eye(2), jnp.zeros((2, 1)), jnp.eye(2))
    report = gr.bound_report(Q, jnp.zeros((900, 2)))
    assert report.exploding_certain
    np.testing.assert_allclose(report.tightness, 1, rtol=1e-12)
    # No overflow: 1.1^9000 is beyond floats.
    np.testing.assert_allclose(report.log_norms[-1], 900 * np.log(1.1), rtol=1e-12)


def test_input_sensitivity():
    model = _network(np.random.default_rng(0).standard_normal((N, N)) / 2)
    states, inputs = _orbit(model, 12)
    found = gr.input_sensitivity(model, states[:-1], inputs)

    def last(inputs):
        return dw.simulate(model, jnp.zeros(N), inputs, last_only=True)

    exact = np.asarray(jax.jacrev(last)(inputs))
    norms = [np.linalg.norm(exact[:, t], 2) for t in range(12)]
    np.testing.assert_allclose(found.log_norms, np.log(norms), atol=1e-10)
    np.testing.assert_allclose(found.log_unit_norms, np.log(np.linalg.norm(exact, axis=2)).T, atol=1e-9)


def test_errors():
    model = _network(np.eye(2))
    states, inputs = jnp.zeros((5, 2)), jnp.zeros((5, 1))
    with pytest.raises(dw.errors.ArgumentError, match="`lag` must be at most the 5 steps of `previous_states`; got 6"):
        gr.jacobian_product(model, states, inputs, lag=6)
    with pytest.raises(dw.errors.ShapeError, match=r"`inputs` must have shape \(5, 1\); got \(4, 1\)"):
        gr.jacobian_product(model, states, inputs[:4], lag=2)
    with pytest.raises(dw.errors.ShapeError, match=r"`previous_states` must have shape \(T, 2\); got \(2,\)"):
        gr.bound_report(model, states[0], inputs)
    with pytest.raises(dw.errors.NonFiniteError, match="`previous_states` must be finite"):
        gr.bound_report(model, states.at[1].set(jnp.nan), inputs)
    with pytest.raises(dw.errors.PrecisionError, match="needs float64"):
        gr.jacobian_product(model, states.astype(jnp.float32), inputs, lag=2)
    with pytest.raises(dw.errors.ModelError, match="needs a map; Lorenz63 is a field"):
        gr.bound_report(dw.systems.Lorenz63(), jnp.zeros((5, 3)))
    with pytest.raises(dw.errors.ModelError, match="`gamma` needs a model with a square"):
        gr.bound_report(dw.models.GRU(1, 2, key=jax.random.key(0)), states, inputs, gamma=1.0)
    with pytest.raises(dw.errors.ShapeError, match="`inputs` must have shape"):
        gr.input_sensitivity(model, states, None)
    broken = eqx.tree_at(lambda m: m.recurrent_weight, model, jnp.full((2, 2), jnp.inf))
    assert gr.bound_report(broken, states, inputs, throw=False).result == dw.RESULTS.non_finite
    found = gr.jacobian_product(broken, states, inputs, lag=2, throw=False)
    assert found.result == dw.RESULTS.non_finite
    assert jnp.isnan(found.log_singular_values).all()
