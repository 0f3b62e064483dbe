"""Covariant vectors against eigenvectors and brute force; bootstrap intervals; mean-field theory of tanh networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import dynwarp as dw
from dynwarp import RESULTS

covariant = dw.dynamics.covariant_lyapunov_vectors
spectrum = dw.dynamics.lyapunov_spectrum


def _aligned(a, b):
    """|cos| of the columns."""
    return np.abs(np.sum(np.asarray(a) * np.asarray(b), axis=0))


def test_linear_map_has_its_eigenvectors(models):
    V = np.random.default_rng(0).standard_normal((4, 4))
    V /= np.linalg.norm(V, axis=0)
    values = np.array([1.5, -1.1, 0.7, 0.3])
    A = V @ np.diag(values) @ np.linalg.inv(V)
    found = covariant(models.linear(A), jnp.zeros(4), steps=3, transient=150, settle=150)
    for vectors in found.vectors:
        np.testing.assert_allclose(_aligned(vectors, V), 1, atol=1e-12)
    np.testing.assert_allclose(found.local_exponents, np.tile(np.log(np.abs(values)), (3, 1)), atol=1e-10)
    cosine = abs(V[:, 0] @ V[:, 2])
    np.testing.assert_allclose(found.angle(0, 2), np.arccos(cosine), atol=1e-10)
    two = covariant(models.linear(A), jnp.zeros(4), steps=3, transient=150, settle=150, k=2)
    np.testing.assert_allclose(_aligned(two.vectors[1], V[:, :2]), 1, atol=1e-12)


@pytest.fixture(scope="module")
def henon():
    system = dw.systems.Henon()
    return system, covariant(system, jnp.array([0.1, 0.1]), steps=400, transient=200, settle=100)


def test_henon_against_brute_force(henon):
    system, found = henon
    J = np.asarray(jax.vmap(lambda z: dw.dynamics.jacobian(system, z))(found.states))
    V = np.asarray(found.vectors)
    # The unstable direction: any vector pushed forwards. The stable one: any vector pulled back.
    unstable, stable = np.array([1.0, 0.3]), np.array([0.2, 1.0])
    for t in range(0, 60):
        unstable = J[t] @ unstable
        unstable /= np.linalg.norm(unstable)
    for t in range(119, 59, -1):
        stable = np.linalg.solve(J[t], stable)
        stable /= np.linalg.norm(stable)
    np.testing.assert_allclose(_aligned(V[60], np.stack([unstable, stable], axis=1)), 1, atol=1e-12)
    # Covariance, and the stretches that come with it, at every step.
    images = J[:-1] @ V[:-1]
    lengths = np.linalg.norm(images, axis=1)
    np.testing.assert_allclose(np.log(lengths), found.local_exponents[:-1], atol=1e-9)
    np.testing.assert_allclose(np.abs(np.sum(images / lengths[:, None] * V[1:], axis=1)), 1, atol=1e-9)
    exponents = spectrum(system, found.states[0], steps=400).exponents
    np.testing.assert_allclose(found.exponents, exponents, atol=2e-2)
    # The sum of both is the log of the Jacobian's determinant, up to the change of the angle over the window.
    sines = np.sin(found.angle(0, 1))
    volume = np.sum(found.local_exponents[:-1], axis=1) + np.log(sines[1:] / sines[:-1])
    np.testing.assert_allclose(volume, np.log(0.3), atol=1e-9)
    assert (sines > 0).all()


def test_fields_transformations_and_rates(models):
    A = np.array([[0.3, 1.0], [0.0, -0.5]])
    found = covariant(models.field(A), jnp.zeros(2), steps=2, dt=0.1, transient=400, settle=400)
    np.testing.assert_allclose(found.exponents, [0.3, -0.5], atol=1e-6)
    eigenvector = np.array([1.0, -0.8]) / np.hypot(1.0, 0.8)
    np.testing.assert_allclose(_aligned(found.vectors[0], np.stack([[1.0, 0.0], eigenvector], 1)), 1, atol=1e-9)

    def one(scale):
        return covariant(models.linear(scale * A), jnp.zeros(2), steps=2, transient=40, settle=40).exponents

    many = jax.jit(jax.vmap(one))(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(many, np.log([[0.5, 0.3], [1.0, 0.6]]), atol=1e-4)


def test_directions_that_vanish_and_errors(models):
    flat = models.linear(jnp.diag(jnp.array([0.5, 0.0])))
    assert covariant(flat, jnp.zeros(2), steps=2, transient=4, settle=4, throw=False).result == RESULTS.singular
    with pytest.raises(dw.errors.ConvergenceError, match="Fewer vectors"):
        covariant(flat, jnp.zeros(2), steps=2, transient=4, settle=4)
    with pytest.raises(dw.errors.ArgumentError, match="`k` must be at most the state size 2; got 3"):
        covariant(flat, jnp.zeros(2), steps=2, k=3)
    with pytest.raises(dw.errors.ArgumentError, match="`settle` must be a whole number of at least 0; got -1"):
        covariant(flat, jnp.zeros(2), steps=2, settle=-1)
    with pytest.raises(dw.errors.ArgumentError, match="`dt`, the step of the integrator, is required"):
        covariant(dw.systems.Lorenz63(), jnp.zeros(3), steps=2)
    with pytest.raises(dw.errors.PrecisionError, match="needs float64"):
        covariant(flat, jnp.zeros(2, jnp.float32), steps=2)


# ---- intervals


def test_block_bootstrap():
    found = spectrum(dw.systems.Henon(), jnp.array([0.1, 0.1]), steps=4000, transient=100)
    ends = dw.dynamics.exponent_intervals(found, key=jax.random.key(0), level=0.95)
    assert (ends[0] < found.exponents).all()
    assert (found.exponents < ends[1]).all()
    # Half a 95 % interval is about two standard errors, which batch means estimate by another route.
    np.testing.assert_allclose((ends[1] - ends[0]) / 2, 1.96 * found.standard_error, rtol=0.5)
    rates = spectrum(dw.systems.Henon(), jnp.array([0.1, 0.1]), steps=4000, transient=100, dt=0.5)
    scaled = dw.dynamics.exponent_intervals(rates, key=jax.random.key(0), level=0.95)
    np.testing.assert_allclose(scaled, 2 * ends, rtol=1e-9)
    with pytest.raises(dw.errors.ArgumentError, match="`level` must lie between 0 and 1"):
        dw.dynamics.exponent_intervals(found, key=jax.random.key(0), level=1.5)
    with pytest.raises(dw.errors.ArgumentError, match="shorter than two blocks"):
        dw.dynamics.exponent_intervals(found, key=jax.random.key(0), block=4000)


# ---- mean field


def test_mean_field_table():
    gains = jnp.array([1.2, 1.5, 2.0, 3.0, 5.0, 2.0, 1.5])
    noise = jnp.array([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.5])
    found = dw.dynamics.mean_field_tanh(gains, noise=noise)
    # At gain 5 a Gauss-Hermite rule of even 100 nodes is off by a fifth; adaptive quadrature gives this value.
    expected = [0.0165, 0.0652, 0.1547, 0.3103, 0.53242794, 0.0460, -0.0167]
    np.testing.assert_allclose(found.exponent, expected, atol=6e-5)
    np.testing.assert_allclose(found.exponent[4], expected[4], rtol=1e-7)
    np.testing.assert_allclose(found.variance[1:5], [0.7934, 2.1215, 6.3054, 20.699367], rtol=1e-4)
    np.testing.assert_allclose(found.exponent, jnp.log(found.amplification) / 2, rtol=1e-14)
    # The self-consistent equation, with adaptive quadrature.
    for g, s, q in zip(gains.tolist(), noise.tolist(), found.variance.tolist()):
        mean = scipy.integrate.quad(lambda z, q=q: np.tanh(q**0.5 * z) ** 2 * np.exp(-z * z / 2), 0, 12, limit=200)[0]
        np.testing.assert_allclose(g**2 * mean * (2 / np.pi) ** 0.5 + s**2, q, rtol=1e-8)


def test_critical_gain_and_derivatives():
    silent = dw.dynamics.mean_field_tanh(jnp.array([0.3, 0.999, 1.0]))
    np.testing.assert_allclose(silent.variance, 0, atol=1e-15)
    np.testing.assert_allclose(silent.exponent, np.log([0.3, 0.999, 1.0]), atol=1e-15)
    # Just above, chaos sets in with the square of the distance.
    above = dw.dynamics.mean_field_tanh(jnp.array([1.01, 1.02]))
    assert (above.variance > 0).all()
    np.testing.assert_allclose(above.exponent[1] / above.exponent[0], 4, rtol=0.05)

    def exponent(g, s):
        return dw.dynamics.mean_field_tanh(g, noise=s).exponent

    h = 1e-5
    for g, s in ((1.5, 0.0), (0.8, 0.4), (2.5, 1.0)):
        numeric = (exponent(g + h, s) - exponent(g - h, s)) / (2 * h)
        np.testing.assert_allclose(jax.grad(exponent)(g, s), numeric, rtol=1e-7)
        second = (jax.grad(exponent)(g + h, s) - jax.grad(exponent)(g - h, s)) / (2 * h)
        np.testing.assert_allclose(jax.jacfwd(jax.grad(exponent))(g, s), second, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(exponent)(0.5, 0.0), 2.0, rtol=1e-12)
    with pytest.raises(dw.errors.ArgumentError, match="`gain` must be positive; got -1"):
        dw.dynamics.mean_field_tanh(-1.0)
    with pytest.raises(dw.errors.ArgumentError, match="`noise` must not be negative"):
        dw.dynamics.mean_field_tanh(1.0, noise=-1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("gain", "exponent"), [(1.5, 0.0652), (3.0, 0.3103)])
def test_mean_field_against_a_network_of_a_thousand(gain, exponent):
    n = 1000
    net = dw.models.Elman(
        0, n, form="pre", use_bias=False, recurrent_init=dw.models.GaussianInit(gain), key=jax.random.key(0)
    )
    found = spectrum(net, jax.random.normal(jax.random.key(1), (n,)), steps=2000, transient=300, k=1)
    np.testing.assert_allclose(found.exponents[0], exponent, rtol=0.05)
