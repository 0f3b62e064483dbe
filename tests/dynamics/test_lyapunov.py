"""Lyapunov spectra against exact values, the literature and a plain numpy loop; precision, failures, derivatives."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import dynwarp as dw
from dynwarp import RESULTS
from dynwarp.dynamics._orthonormalise import gram_schmidt, householder

spectrum = dw.dynamics.lyapunov_spectrum


def _orthogonal(n):
    return np.linalg.qr(np.random.default_rng(n).standard_normal((n, n)))[0]


# ---- orthonormalisation


@pytest.mark.parametrize(("k", "n"), [(1, 3), (4, 9), (7, 7), (40, 40)])
def test_gram_schmidt_equals_qr(k, n):
    vectors = jax.random.normal(jax.random.key(k), (k, n))
    (q, stretch), (expected, lengths) = gram_schmidt(vectors), householder(vectors)
    np.testing.assert_allclose(q, expected, atol=1e-12)
    np.testing.assert_allclose(stretch, lengths, rtol=1e-11)
    direction = jax.random.normal(jax.random.key(1), (k, n))

    def derivative(f):
        return jax.jvp(lambda v: jnp.sum(jnp.log(f(v)[1]) * jnp.arange(1.0, k + 1)), (vectors,), (direction,))[1]

    np.testing.assert_allclose(derivative(gram_schmidt), derivative(householder), rtol=1e-8)


@pytest.mark.parametrize("n", [3, 20])
def test_a_vanished_row_takes_nothing_from_the_rest(n):
    vectors = jax.random.normal(jax.random.key(n), (n, n))
    for spoilt in (vectors.at[1].set(0.0), vectors.at[1].set(-2 * vectors[0])):
        q, stretch = gram_schmidt(spoilt)
        assert stretch[1] == 0
        assert (q[1] == 0).all()
        _, rest = gram_schmidt(jnp.delete(spoilt, 1, axis=0))
        np.testing.assert_allclose(jnp.delete(stretch, 1), rest, rtol=1e-11)
        gradient = jax.grad(lambda v: jnp.sum(gram_schmidt(v)[1]))(spoilt)
        assert jnp.isfinite(gradient).all()


# ---- exact spectra


@pytest.mark.parametrize("n", [3, 12])
def test_scaled_orthogonal_matrix_and_its_derivative(models, n):
    Q = jnp.asarray(_orthogonal(n))

    def exponents(g):
        return spectrum(models.linear(g * Q), jnp.ones(n), steps=40).exponents

    np.testing.assert_allclose(exponents(1.1), np.log(1.1), atol=1e-12)
    derivative = jax.jacfwd if n == 3 else jax.jacrev
    np.testing.assert_allclose(derivative(exponents)(1.1), 1 / 1.1, rtol=1e-12)


def test_diagonal_matrix(models):
    d = np.array([0.9, -0.5, 1.2, 1e-9, 0.3, 0.99, -1.01, 0.7, 0.1])
    for k in (None, 9):
        found = spectrum(models.linear(np.diag(d)), jnp.ones(9), steps=100, transient=20, k=k)
        np.testing.assert_allclose(found.exponents, np.sort(np.log(np.abs(d)))[::-1], atol=1e-12)
        np.testing.assert_allclose(found.standard_error, 0, atol=1e-13)
    # Fewer than all: a generic frame turns into the leading directions.
    found = spectrum(models.linear(np.diag(d)), jnp.ones(9), steps=600, transient=256, k=2)
    np.testing.assert_allclose(found.exponents, np.log([1.2, 1.01]), atol=1e-3)


def test_linear_recurrent_unit(key):
    lru = dw.models.LRU(1, 6, 2, r_min=0.5, r_max=0.99, key=key)
    inputs = jax.random.normal(key, (60, 1))
    found = spectrum(lru, jnp.zeros(12), steps=60, inputs=inputs)
    J = np.asarray(dw.dynamics.jacobian(lru, jnp.zeros(12), jnp.zeros(1)))
    expected = np.sort(np.log(np.abs(np.linalg.eigvals(J))))[::-1]
    np.testing.assert_allclose(found.exponents, expected, atol=1e-12)


def test_linear_field(models):
    A = np.array([[-0.3, 2.0, 0.0], [-2.0, -0.3, 0.0], [0.0, 0.0, 0.1]])
    found = spectrum(models.field(A), jnp.ones(3), steps=400, dt=0.01)
    np.testing.assert_allclose(found.exponents, [0.1, -0.3, -0.3], atol=1e-8)
    # The discrete steps obey the sum rule to rounding errors.
    assert found.sum_rule_residual < 1e-10
    # A driven field: the drive moves the state and not the tangents.
    driven = spectrum(models.field(A), jnp.ones(3), steps=400, dt=0.01, inputs=lambda t: jnp.sin(t) * jnp.ones(3))
    np.testing.assert_allclose(driven.exponents, found.exponents, atol=1e-12)


def test_driven_field():
    # dz/dt = s(t) - z^3 settles at z = 1 for s = 1, where the velocity has slope -3.
    class Cubic(dw.models.AbstractField):
        state_size: int = 1
        input_size: int = 1

        def __call__(self, t, state, input=None):
            return (0.0 if input is None else input) - state**3

    found = spectrum(Cubic(), jnp.ones(1), steps=50, dt=0.01, inputs=lambda t: jnp.ones(1))
    np.testing.assert_allclose(found.exponents, -3.0, rtol=1e-7)
    # Time begins at t0: a drive that is switched off leaves -3 z^2 with z = (1 + 2 t)^(-1/2), whose mean is known.
    off = spectrum(Cubic(), jnp.ones(1), steps=50, dt=0.01, t0=5.0, inputs=lambda t: jnp.where(t < 5, 1.0, 0.0)[None])
    np.testing.assert_allclose(off.exponents, -1.5 * np.log(2.0) / 0.5, rtol=1e-7)


# ---- zero multipliers


def test_zero_multipliers(models):
    shift = jnp.diag(jnp.ones(2), 1)
    assert (spectrum(models.linear(shift), jnp.ones(3), steps=20).exponents == -jnp.inf).all()
    d = jnp.array([0.5, 0.0, 2.0])
    found = spectrum(models.linear(jnp.diag(d)), jnp.ones(3), steps=50)
    np.testing.assert_allclose(found.exponents, [np.log(2.0), np.log(0.5), -np.inf], atol=1e-13)
    assert found.kaplan_yorke_dimension == 2.0
    assert found.result == RESULTS.successful
    assert jnp.isnan(found.sum_rule_residual)


@pytest.mark.parametrize("seed", [0, 1])
def test_memory_of_inputs_beside_a_network(models, seed):
    # 4 units driven by a shift register of 8: whatever the order of the coordinates, 8 directions vanish.
    generator = np.random.default_rng(seed)
    A = np.zeros((12, 12))
    A[:4, :4], A[:4, 4:] = generator.standard_normal((4, 4)), generator.standard_normal((4, 8))
    A[4:, 4:] = np.diag(np.ones(7), 1)
    order = generator.permutation(12)
    expected = np.sort(np.log(np.abs(np.linalg.eigvals(A[:4, :4]))))[::-1]
    found = spectrum(models.linear(A[np.ix_(order, order)]), jnp.ones(12), steps=600, transient=256)
    np.testing.assert_allclose(found.exponents[:4], expected, atol=5e-3)
    assert (found.exponents[4:] == -jnp.inf).all()
    assert found.interval == 1
    gradient = jax.grad(
        lambda x: jnp.sum(spectrum(models.linear(x * A), jnp.ones(12), steps=30, throw=False).exponents[:4])
    )(1.0)
    np.testing.assert_allclose(gradient, 4.0, rtol=1e-9)


# ---- the literature


def test_henon():
    found = spectrum(dw.systems.Henon(), jnp.array([0.1, 0.1]), steps=100_000, transient=1000)
    np.testing.assert_allclose(found.exponents, [0.41922, -1.62319], atol=5 * float(found.standard_error[0]))
    assert found.standard_error[0] < 2e-3
    np.testing.assert_allclose(jnp.sum(found.exponents), np.log(0.3), atol=1e-12)
    assert found.sum_rule_residual < 1e-10
    np.testing.assert_allclose(found.kaplan_yorke_dimension, 1.2583, atol=2e-3)
    np.testing.assert_allclose(found.entropy, found.exponents[0])


def test_logistic_map():
    found = spectrum(dw.systems.LogisticMap(), jnp.array([0.3]), steps=200_000, transient=100)
    np.testing.assert_allclose(found.exponents, [np.log(2.0)], atol=1e-4)


def test_lorenz():
    found = spectrum(dw.systems.Lorenz63(), jnp.array([1.0, 1.0, 20.0]), steps=100_000, transient=2000, dt=0.01)
    np.testing.assert_allclose(jnp.sum(found.exponents), -41 / 3, atol=2e-4)
    np.testing.assert_allclose(found.exponents, [0.9056, 0.0, -14.5723], atol=0.015)
    np.testing.assert_allclose(found.kaplan_yorke_dimension, 2.062, atol=2e-3)
    assert 1 < found.interval <= 16
    assert found.sum_rule_residual < 1e-8
    # The error that is reported is of the size of the error that is made (standard deviation 0.0048 at this length).
    assert 0.002 < found.standard_error[0] < 0.03


def test_chaotic_lstm():
    class LSTM(dw.models.AbstractMap):
        W: jax.Array
        state_size: int = 4
        input_size: int = 0

        def __call__(self, state, input=None, *, step=None):
            h, c = state[:2], state[2:]
            i, f, g, o = jnp.split(self.W @ h, 4)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return jnp.concatenate([jax.nn.sigmoid(o) * jnp.tanh(c), c])

    W = jnp.array([[-1, -4], [-3, -2], [-2, 6], [0, -6], [-1, -6], [6, -9], [4, 1], [-9, -7]], float)
    golden = {1.0: 0.1683, 0.8: -0.449, 1.2: 0.053, 1.5: -0.485}
    for scale, value in golden.items():
        found = spectrum(LSTM(scale * W), jnp.full(4, 0.5), steps=40_000, transient=500)
        np.testing.assert_allclose(found.exponents[0], value, atol=5e-3)
        if scale == 1.0:
            np.testing.assert_allclose(found.exponents[1:], [-0.3845, -1.676, -4.625], atol=1.5e-2)


def test_products_of_gaussian_matrices():
    # A map driven by random matrices; Newman, Commun. Math. Phys. 103 (1986) 121.
    n, g = 6, 1.3

    class Product(dw.models.AbstractMap):
        state_size: int = n
        input_size: int = n * n

        def __call__(self, state, input=None, *, step=None):
            return input.reshape(n, n) @ state

    inputs = g / np.sqrt(n) * jax.random.normal(jax.random.key(0), (4000, n * n))
    found = spectrum(Product(), jnp.zeros(n), steps=4000, inputs=inputs)
    exact = 0.5 * (np.log(2 * g**2 / n) + scipy.special.digamma((n - np.arange(1, n + 1) + 1) / 2))
    # Each step adds half the log of a chi-square: its variance is known.
    error = 0.5 * np.sqrt(scipy.special.polygamma(1, (n - np.arange(1, n + 1) + 1) / 2) / 4000)
    assert (np.abs(found.exponents - exact) < 4 * error).all()
    np.testing.assert_allclose(found.standard_error, error, rtol=0.5)


@pytest.mark.slow
def test_lorenz96():
    model = dw.systems.Lorenz96(40)
    start = 8.0 + 0.01 * jax.random.normal(jax.random.key(0), (40,))
    found = spectrum(model, start, steps=100_000, transient=2000, dt=0.02)
    np.testing.assert_allclose(found.exponents[0], 1.675, rtol=0.02)
    assert int(jnp.sum(found.exponents > 0.01)) == 13
    np.testing.assert_allclose(found.kaplan_yorke_dimension, 27.05, atol=0.3)
    np.testing.assert_allclose(jnp.sum(found.exponents), -40.0, atol=0.05)


# ---- a driven network: sum rule, numpy loop, intervals


@pytest.fixture(scope="module")
def driven(models):
    generator = np.random.default_rng(4)
    W = 1.5 * generator.standard_normal((12, 12)) / np.sqrt(12)
    model = models.tanh(W, generator.standard_normal((12, 2)))
    return model, jnp.asarray(0.3 * generator.standard_normal((337, 2)))


def _numpy_spectrum(model, inputs, transient):
    W, B = np.asarray(model.W), np.asarray(model.B)
    z, Q, total = np.zeros(len(W)), np.eye(len(W)), 0.0
    for t, s in enumerate(np.asarray(inputs)):
        z = np.tanh(W @ z + B @ s)
        Q, R = np.linalg.qr((1 - z**2)[:, None] * W @ Q)
        total = total + (t >= transient) * np.log(np.abs(np.diag(R)))
    return np.sort(total / (len(inputs) - transient))[::-1], z


@pytest.mark.parametrize("method", ["mgs", "qr"])
@pytest.mark.parametrize("renormalise", [1, 3, "auto"])
def test_driven_network_equals_a_numpy_loop_and_the_sum_rule(driven, method, renormalise):
    model, inputs = driven
    # 300 steps are no multiple of any interval: the last block is shorter and counts.
    found = spectrum(
        model, jnp.zeros(12), steps=300, transient=37, inputs=inputs, method=method, renormalise=renormalise
    )
    expected, _ = _numpy_spectrum(model, inputs, 37)
    np.testing.assert_allclose(found.exponents, expected, atol=1e-9)
    states = dw.simulate(model, jnp.zeros(12), inputs)[37:]
    exact = np.linalg.slogdet(model.W)[1] + np.mean(np.sum(np.log(1 - states**2), axis=1))
    np.testing.assert_allclose(jnp.sum(found.exponents), exact, atol=1e-10)
    assert found.sum_rule_residual < 1e-8
    np.testing.assert_allclose(jnp.sum(found.log_stretches, axis=0) / 300, found.exponents, rtol=1e-12)


def test_leading_exponents_alone(driven):
    model, inputs = driven
    whole = spectrum(model, jnp.zeros(12), steps=300, transient=37, inputs=inputs)
    few = spectrum(model, jnp.zeros(12), steps=300, transient=37, inputs=inputs, k=3)
    np.testing.assert_allclose(few.exponents, whole.exponents[:3], atol=0.05)
    assert jnp.isnan(few.sum_rule_residual)


def test_renormalising_too_rarely_corrupts_the_bottom_and_is_noticed(driven):
    model, inputs = driven
    right = spectrum(model, jnp.zeros(12), steps=337, inputs=inputs, renormalise=1)
    rare = spectrum(model, jnp.zeros(12), steps=337, inputs=inputs, renormalise=40, throw=False)
    # The top still looks perfect.
    np.testing.assert_allclose(rare.exponents[0], right.exponents[0], atol=1e-2)
    assert rare.exponents[-1] - right.exponents[-1] > 0.5
    assert rare.result == RESULTS.inaccurate
    assert rare.sum_rule_residual > 0.1
    with pytest.raises(dw.errors.ConvergenceError, match=r"misses the accuracy.*renormalise"):
        spectrum(model, jnp.zeros(12), steps=337, inputs=inputs, renormalise=40)
    # Without the whole spectrum there is no sum rule; the spread alone tells.
    few = spectrum(model, jnp.zeros(12), steps=337, inputs=inputs, renormalise=40, k=11, throw=False)
    assert few.result == RESULTS.inaccurate


# ---- derivatives, transformations, units, errors


def test_derivative_through_the_orthonormalisation(tanh_rnn):
    weights = jnp.arange(1.0, 5.0)

    def f(x):
        model = eqx.tree_at(lambda m: m.W, tanh_rnn, x * tanh_rnn.W)
        return jnp.sum(weights * spectrum(model, jnp.full(4, 0.1), steps=20, transient=3, renormalise=2).exponents)

    h = 1e-5
    numeric = (8 * (f(1 + h) - f(1 - h)) - (f(1 + 2 * h) - f(1 - 2 * h))) / (12 * h)
    np.testing.assert_allclose(jax.grad(f)(1.0), numeric, rtol=1e-6)
    np.testing.assert_allclose(jax.jvp(f, (1.0,), (1.0,))[1], numeric, rtol=1e-6)


def test_the_interval_is_chosen_under_a_gradient_as_without(models):
    Q = jnp.asarray(_orthogonal(3))

    def f(g):
        found = spectrum(models.linear(g * Q), jnp.ones(3), steps=20)
        return found.exponents[0], found.interval

    (value, interval), derivative = jax.value_and_grad(f, has_aux=True)(0.9)
    assert interval == f(0.9)[1] > 1
    np.testing.assert_allclose([value, derivative], [np.log(0.9), 1 / 0.9], rtol=1e-12)


def test_under_jit_and_vmap(tanh_rnn):
    states = 0.1 * jax.random.normal(jax.random.key(0), (3, 4))
    many = jax.jit(jax.vmap(lambda z: spectrum(tanh_rnn, z, steps=50, transient=5).exponents))(states)
    for state, exponents in zip(states, many):
        one = spectrum(tanh_rnn, state, steps=50, transient=5, renormalise=1)
        np.testing.assert_allclose(exponents, one.exponents, atol=1e-10)
        # The choice of the interval does not show.
        auto = spectrum(tanh_rnn, state, steps=50, transient=5)
        np.testing.assert_allclose(auto.exponents, one.exponents, atol=1e-9)


def test_a_map_with_a_time_step(tanh_rnn):
    steps = spectrum(tanh_rnn, jnp.full(4, 0.1), steps=64)
    rates = spectrum(tanh_rnn, jnp.full(4, 0.1), steps=64, dt=0.1)
    np.testing.assert_allclose(rates.exponents, 10 * steps.exponents, rtol=1e-13)
    np.testing.assert_allclose(rates.standard_error, 10 * steps.standard_error, rtol=1e-12)
    np.testing.assert_allclose(rates.kaplan_yorke_dimension, steps.kaplan_yorke_dimension, rtol=1e-13)
    assert jnp.isinf(spectrum(tanh_rnn, jnp.full(4, 0.1), steps=3).standard_error).all()


def test_clocked_user_model_with_plain_fields():
    class Clocked(dw.models.AbstractMap):
        factors: tuple
        state_size: int = 1
        input_size: int = 0

        def __call__(self, state, input=None, *, step=None):
            return jnp.where(step % 2 == 0, self.factors[0], self.factors[1]) * state

    found = spectrum(Clocked((0.5, 0.8)), jnp.ones(1), steps=100, transient=7)
    np.testing.assert_allclose(found.exponents, 0.5 * np.log(0.4), rtol=1e-13)


def test_divergence_is_a_code(models):
    found = spectrum(dw.systems.Henon(), jnp.array([5.0, 5.0]), steps=50, throw=False)
    assert found.result == RESULTS.diverged
    with pytest.raises(dw.errors.ConvergenceError, match="left every bound"):
        spectrum(dw.systems.Henon(), jnp.array([5.0, 5.0]), steps=50)


def test_errors(tanh_rnn):
    lorenz, z = dw.systems.Lorenz63(), jnp.ones(3)
    with pytest.raises(dw.errors.ArgumentError, match="`dt`, the step of the integrator, is required"):
        spectrum(lorenz, z, steps=10)
    with pytest.raises(dw.errors.ArgumentError, match="`dt` must be positive"):
        spectrum(lorenz, z, steps=10, dt=-0.1)
    with pytest.raises(dw.errors.ArgumentError, match="function of time"):
        spectrum(lorenz, z, steps=10, dt=0.1, inputs=jnp.zeros((10, 1)))
    with pytest.raises(dw.errors.ShapeError, match=r"`state0` must have shape \(3,\); got \(2, 3\)"):
        spectrum(lorenz, jnp.ones((2, 3)), steps=10, dt=0.1)
    with pytest.raises(dw.errors.ShapeError, match=r"`inputs` must have shape \(15, 2\); got \(10, 2\)"):
        spectrum(tanh_rnn, jnp.zeros(4), steps=10, transient=5, inputs=jnp.zeros((10, 2)))
    with pytest.raises(dw.errors.ArgumentError, match="`k` must be at most the state size 4; got 5"):
        spectrum(tanh_rnn, jnp.zeros(4), steps=10, k=5)
    with pytest.raises(dw.errors.ArgumentError, match="`steps` must be a whole number of at least 1; got 0"):
        spectrum(tanh_rnn, jnp.zeros(4), steps=0)
    with pytest.raises(dw.errors.ArgumentError, match="`renormalise`"):
        spectrum(tanh_rnn, jnp.zeros(4), steps=10, renormalise=0)
    with pytest.raises(dw.errors.NonFiniteError, match="`state0` must be finite"):
        spectrum(tanh_rnn, jnp.full(4, jnp.nan), steps=10)
    single = jax.tree.map(lambda x: x.astype(jnp.float32), tanh_rnn)
    with pytest.raises(dw.errors.PrecisionError, match="needs float64: `state0` holds float32"):
        spectrum(single, jnp.zeros(4, jnp.float32), steps=10)
    with pytest.raises(dw.errors.PrecisionError, match="needs float64: `model` holds float32"):
        spectrum(single, jnp.zeros(4), steps=10)
