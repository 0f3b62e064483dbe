"""Moments of linear modes: closed forms against a discrete Lyapunov equation, double sums, Monte Carlo, autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import dynwarp as dw

gr = dw.gradients


def _lyapunov(lam, rho):
    """E h^2 and E (dh/dlam)^2 from the stationary covariance of (x, h, dh/dlam), x an AR(1) process of variance 1."""
    A = np.array([[rho, 0, 0], [1, lam, 0], [0, 1, lam]])
    noise = np.zeros((3, 3))
    noise[0, 0] = 1 - rho**2
    covariance = scipy.linalg.solve_discrete_lyapunov(A, noise)
    return covariance[1, 1], covariance[2, 2]


def test_real_modes_against_the_lyapunov_equation():
    lam, rho = (x.ravel() for x in np.meshgrid([0.5, 0.9, 0.99, -0.9], [0.0, 0.5, 0.9, 0.99]))
    found = gr.signal_moments(jnp.asarray(lam), jnp.asarray(rho))
    expected = np.array([_lyapunov(a, r) for a, r in zip(lam, rho)]).T
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-10)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-10)
    np.testing.assert_allclose(gr.hessian_kernel(jnp.asarray(lam), jnp.asarray(lam), jnp.asarray(rho)), found[1])
    for a, r, golden in ((0.99, 0.9, (871.790, 4.73781e6)), (0.99, 0.0, (50.2513, 251263.0))):
        np.testing.assert_allclose(gr.signal_moments(a, r), golden, rtol=2e-6)
    # rho = 1: a constant signal.
    np.testing.assert_allclose(gr.signal_moments(0.9, 1.0), (1 / 0.1**2, 1 / 0.1**4), rtol=1e-12)


def test_complex_modes_and_any_autocorrelation():
    lam = np.array([0.9 * np.exp(0.5j), 0.6j, -0.3 + 0.2j])
    # Any R: here one that no exponential is. Double sums of powers, cut where nothing is left.
    lags = np.arange(400)
    R = np.where(lags < 6, 1 - lags / 6.0, 0.0)
    index = np.abs(lags[:, None] - lags[None, :])
    second, sensitivity = [], []
    for z in lam:
        h, dh = z**lags, lags * z ** np.maximum(lags - 1, 0)
        second.append((h @ R[index] @ h.conj()).real)
        sensitivity.append((dh @ R[index] @ dh.conj()).real)
    for given in ({"autocorrelation": jnp.asarray(R[:6])}, {"rho": lambda d: jnp.maximum(1 - d / 6, 0)}):
        found = gr.signal_moments(jnp.asarray(lam), **given)
        np.testing.assert_allclose(found[0], second, rtol=1e-12)
        np.testing.assert_allclose(found[1], sensitivity, rtol=1e-12)
    # The closed form of an exponential and its series.
    for a, b in zip(gr.signal_moments(jnp.asarray(lam), 0.8), gr.signal_moments(jnp.asarray(lam), lambda d: 0.8**d)):
        np.testing.assert_allclose(a, b, rtol=1e-12)
        assert a.dtype == jnp.float64


def test_monte_carlo():
    lam, rho, steps = 0.9, 0.5, 200_000
    noise = jnp.sqrt(1 - rho**2) * jax.random.normal(jax.random.key(0), (steps,))

    def step(state, noise):
        x, h, dh = state
        new = (rho * x + noise, lam * h + x, lam * dh + h)
        return new, jnp.stack([new[1] ** 2, new[2] ** 2])

    squares = jax.lax.scan(step, (jnp.zeros(()),) * 3, noise)[1]
    np.testing.assert_allclose(jnp.mean(squares[1000:], axis=0), gr.signal_moments(lam, rho), rtol=0.05)


def test_hessian_kernel():
    def covariance(a, b, rho):
        return (1 - rho**2 * a * b) / ((1 - a * b) * (1 - rho * a) * (1 - rho * b))

    generator = np.random.default_rng(0)
    a, b, rho = (jnp.asarray(x) for x in generator.uniform(-0.95, 0.95, (3, 50)))
    mixed = jax.vmap(jax.grad(jax.grad(covariance, 0), 1))(a, b, rho)
    np.testing.assert_allclose(gr.hessian_kernel(a, b, rho), mixed, rtol=1e-11)
    np.testing.assert_allclose(gr.hessian_kernel(a, b), (1 + a * b) / (1 - a * b) ** 3, rtol=1e-12)
    table = gr.hessian_kernel(a, b, autocorrelation=jnp.asarray(0.7 ** np.arange(600)))
    np.testing.assert_allclose(table, gr.hessian_kernel(a, b, 0.7), rtol=1e-10)
    # The Hessian of a teacher-student pair at the teacher, by automatic derivatives of the expected error.
    modes = jnp.array([0.9, 0.5, -0.4])
    weights = jnp.array([1.0, 0.7, -1.2])

    def loss(student):
        both = jnp.concatenate([student, modes])
        w = jnp.concatenate([weights, -weights])
        return 0.5 * w @ covariance(both[:, None], both[None, :], 0.6) @ w

    expected = weights[:, None] * weights * gr.hessian_kernel(modes[:, None], modes[None, :], 0.6)
    np.testing.assert_allclose(jax.hessian(loss)(modes), expected, rtol=1e-9)
    report = gr.conditioning_report(loss, modes)
    np.testing.assert_allclose(report.hessian, expected, rtol=1e-9)
    np.testing.assert_allclose(report.condition_number, np.linalg.cond(expected), rtol=1e-8)
    root = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(
        report.scaled_condition_number, np.linalg.cond(expected / root[:, None] / root), rtol=1e-8
    )
    assert report.scaled_condition_number < report.condition_number
    assert report.gradient_norm < 1e-10
    assert int(report.rank) == 3
    assert 0 < report.off_diagonal < 1


PHASE = np.exp(0.7j)


@pytest.mark.parametrize("kind", ["cartesian", "polar", "exp", "scaled", "tanh"])
@pytest.mark.parametrize("norm", ["none", "l2", "l1"])
def test_parameter_sensitivity_from_impulse_responses(kind, norm):
    # d(gamma h)/d nu is the signal through the derivative of the impulse response gamma lam^k, taken automatically.
    lam, rho, lags = 0.8 * PHASE, 0.4, jnp.arange(150.0)
    nu, theta = gr.parameters_from_eigenvalue(lam, parametrisation=kind)
    np.testing.assert_allclose(gr.eigenvalue_from_parameters(nu, theta, parametrisation=kind), lam, rtol=1e-12)

    def response(nu, theta):
        z = gr.eigenvalue_from_parameters(nu, theta, parametrisation=kind)
        size = jnp.sqrt(z.real**2 + z.imag**2)
        gamma = {"none": 1.0, "l2": jnp.sqrt(1 - size**2), "l1": 1 - size}[norm]
        angle = jnp.arctan2(z.imag, z.real)
        return jnp.stack([gamma * size**lags * jnp.cos(lags * angle), gamma * size**lags * jnp.sin(lags * angle)])

    R = rho ** np.abs(np.subtract.outer(np.arange(150), np.arange(150)))
    found = gr.parameter_sensitivity(lam, rho, parametrisation=kind, normalisation=norm)
    for tangent, value in zip(((1.0, 0.0), (0.0, 1.0)), found):
        moved = jax.jvp(response, (nu, theta), tuple(map(jnp.asarray, tangent)))[1]
        np.testing.assert_allclose(sum(row @ R @ row for row in np.asarray(moved)), value, rtol=1e-9)


def test_parametrisations_of_the_literature():
    lam = jnp.array([0.5, 0.9, 0.999, 0.999999])
    of_nu, of_theta = gr.parameter_sensitivity(lam, parametrisation="tanh", normalisation="l2")
    np.testing.assert_allclose(of_nu, 1, rtol=1e-10)
    np.testing.assert_allclose(of_theta, lam**2 * (1 + lam**2) / (1 - lam**2) ** 2, rtol=1e-8)
    of_nu, _ = gr.parameter_sensitivity(lam, parametrisation="exp", normalisation="l2")
    np.testing.assert_allclose(of_nu, (lam * jnp.log(lam)) ** 2 / (1 - lam**2) ** 2, rtol=1e-8)
    np.testing.assert_allclose(of_nu[-1], 0.25, rtol=1e-5)
    _, scaled = gr.parameter_sensitivity(lam, parametrisation="scaled", normalisation="l2")
    assert (scaled < 1).all()
    gradient = jax.grad(lambda x: gr.parameter_sensitivity(x, 0.5, parametrisation="tanh")[0])(0.9)
    h = 1e-6
    ends = [gr.parameter_sensitivity(0.9 + s, 0.5, parametrisation="tanh")[0] for s in (h, -h)]
    np.testing.assert_allclose(gradient, (ends[0] - ends[1]) / (2 * h), rtol=1e-6)


def test_transformations_and_errors():
    many = jax.jit(jax.vmap(lambda a: gr.signal_moments(a, 0.5)[1]))(jnp.array([0.5, 0.9]))
    np.testing.assert_allclose(many, gr.signal_moments(jnp.array([0.5, 0.9]), 0.5)[1], rtol=1e-13)
    assert jnp.isinf(jax.jit(lambda a: gr.signal_moments(a, 0.5)[0])(1.5))
    assert gr.signal_moments(jnp.float32(0.5), 0.5)[0].dtype == jnp.float32
    with pytest.raises(dw.errors.ArgumentError, match=r"`lam` must lie inside the unit circle, \|lam\| < 1; got 1"):
        gr.signal_moments(1.0, 0.5)
    with pytest.raises(dw.errors.ArgumentError, match=r"`rho` must be a correlation"):
        gr.signal_moments(0.5, 1.5)
    with pytest.raises(dw.errors.ArgumentError, match="give the autocorrelation once"):
        gr.signal_moments(0.5, lambda d: 0.5**d, autocorrelation=jnp.ones(3))
    with pytest.raises(dw.errors.ArgumentError, match="lags, more than 1048576"):
        gr.signal_moments(1 - 1e-9, lambda d: 0.5**d)
    with pytest.raises(dw.errors.ShapeError, match="`autocorrelation` must have shape"):
        gr.signal_moments(0.5, autocorrelation=jnp.ones((2, 2)))
    with pytest.raises(dw.errors.NonFiniteError, match="`autocorrelation` must be finite"):
        gr.signal_moments(0.5, autocorrelation=jnp.array([1.0, jnp.nan]))
    with pytest.raises(dw.errors.ArgumentError, match="'exp' does not reach every `lam`"):
        gr.parameters_from_eigenvalue(0.5, parametrisation="exp")
    with pytest.raises(dw.errors.ArgumentError, match="`normalisation` must be one of 'none', 'l2', 'l1'; got 'max'"):
        gr.parameter_sensitivity(0.5, normalisation="max")
    with pytest.raises(dw.errors.ArgumentError, match="between 1 and `limit` = 4 numbers; got 5"):
        gr.conditioning_report(jnp.sum, jnp.zeros(5), limit=4)
    flat = gr.conditioning_report(jnp.sum, jnp.zeros(2), throw=False)
    assert flat.result == dw.RESULTS.vanished
