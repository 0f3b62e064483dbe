"""Losses and penalties: against their formulas, in a training, and with analyses in them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynwarp as dw
from dynwarp import training
from dynwarp.errors import ArgumentError, ModelError

CIRCLE = np.stack([np.cos(0.3 * np.arange(60.0)), np.sin(0.3 * np.arange(60.0))], axis=1)


@pytest.fixture(scope="module")
def model():
    return training.Reconstruction(dw.models.ALRNN(4, 2, key=jax.random.key(0)), 2, key=jax.random.key(1))


def run(model, **options):
    defaults = {"steps": 1, "key": jax.random.key(2), "sequence_length": 6, "batch_size": 3}
    return training.fit(model, CIRCLE, **(defaults | {"optimizer": optax.sgd(1.0), "clip": None} | options))


def test_the_gaussian_likelihood_is_that_of_scipy():
    from scipy.stats import norm

    rng = np.random.default_rng(0)
    predictions, targets = rng.normal(size=(2, 3, 5, 2))
    observed = rng.random((3, 5, 2)) < 0.7
    fixed = training.GaussianLikelihood([0.5, 2.0])
    density = -norm.logpdf(targets, predictions, [0.5, 2.0])
    np.testing.assert_allclose(fixed(predictions, targets), density.mean(), rtol=1e-12)
    np.testing.assert_allclose(fixed(predictions, targets, observed), density[observed].mean(), rtol=1e-12)
    learned = training.GaussianLikelihood()
    best = [
        norm.fit(np.where(observed, targets - predictions, np.nan)[..., i][observed[..., i]], floc=0)[1] for i in (0, 1)
    ]
    np.testing.assert_allclose(learned.deviation(predictions, targets, observed), best, rtol=1e-12)
    np.testing.assert_allclose(
        learned(predictions, targets, observed), -norm.logpdf(targets, predictions, best)[observed].mean(), rtol=1e-12
    )
    # Any other deviation is less likely, and the gradient is that at the best one held fixed.
    for factor in (0.9, 1.1):
        assert training.GaussianLikelihood(factor * np.array(best))(predictions, targets, observed) > learned(
            predictions, targets, observed
        )
    held = training.GaussianLikelihood(best)
    p, t, o = (jnp.asarray(x) for x in (predictions, targets, observed))
    np.testing.assert_allclose(jax.grad(learned)(p, t, o), jax.grad(held)(p, t, o), rtol=1e-10, atol=1e-14)
    assert learned.deviation(targets, targets).tolist() == [1e-3, 1e-3]


def test_a_likelihood_is_trained_and_weighs_channels(model):
    fitted = run(model, loss=training.GaussianLikelihood(), steps=150, optimizer=optax.adam(1e-2), validation=CIRCLE)
    assert fitted.history.loss[-1] < fitted.history.loss[0] - 0.5
    assert fitted.history.validation[-1] < fitted.history.loss[0]


def test_penalties_are_their_formulas(model):
    map = model.map
    A, W, h = (np.asarray(x) for x in (map.A, map.W, map.h))
    latent = np.sum((1 - A) ** 2) + np.sum(W**2) + np.sum(h**2)
    np.testing.assert_allclose(training.ParameterPenalty(0.3)(model), 0.3 * latent, rtol=1e-12)
    full = eqx.tree_at(lambda m: m.map.A, model, jnp.diag(map.A))
    np.testing.assert_allclose(training.ParameterPenalty(0.3)(full), 0.3 * latent, rtol=1e-12)
    readout = dw.models.Readout(4, 5, key=jax.random.key(3))
    observing = training.Reconstruction(map, 5, readout=readout, key=jax.random.key(1))
    B = np.asarray(readout.weight)
    np.testing.assert_allclose(
        training.ParameterPenalty(0.3, 0.2)(observing), 0.3 * latent + 0.2 * np.sum(B**2), rtol=1e-12
    )
    gru = training.Reconstruction(dw.models.GRU(0, 3, key=jax.random.key(0)), 2, key=jax.random.key(1))
    squares = sum(np.sum(np.asarray(x) ** 2) for x in jax.tree.leaves(gru.map) if eqx.is_inexact_array(x))
    np.testing.assert_allclose(training.ParameterPenalty(1.0)(gru), squares, rtol=1e-12)
    attractor = np.sum((1 - A[2:]) ** 2) + np.sum(W[2:] ** 2) + np.sum(h[2:] ** 2)
    np.testing.assert_allclose(training.ManifoldAttractorPenalty(2.0)(model), 2 * attractor, rtol=1e-12)
    np.testing.assert_allclose(training.ManifoldAttractorPenalty(2.0, (2, 4))(full), 2 * attractor, rtol=1e-12)
    np.testing.assert_allclose(
        training.ConditionPenalty(0.5)(observing), 0.5 * (1 - np.linalg.cond(B)) ** 2, rtol=1e-10
    )
    for penalty in (training.ManifoldAttractorPenalty(1.0), training.ConditionPenalty(1.0)):
        with pytest.raises(ModelError, match=type(penalty).__name__):
            penalty(gru)
    with pytest.raises(ArgumentError, match="end at 9"):
        training.ManifoldAttractorPenalty(1.0, (2, 9))(model)
    for call in (
        lambda: training.ManifoldAttractorPenalty(-1.0),
        lambda: training.ManifoldAttractorPenalty(1.0, (3, 3)),
        lambda: training.ParameterPenalty(latent=np.inf),
        lambda: training.GaussianLikelihood(0.0),
        lambda: run(model, penalty=3),
        lambda: run(model, loss=3),
    ):
        with pytest.raises(ArgumentError):
            call()


class MeanSquare(training.AbstractPenalty):
    """Of the states of the batch."""

    def __call__(self, model, states):
        return jnp.mean(states**2)


def test_a_penalty_adds_to_the_loss_and_to_the_gradient(model):
    plain = run(model)
    weights = run(model, penalty=training.ParameterPenalty(0.3))
    np.testing.assert_allclose(
        weights.history.loss[0] - plain.history.loss[0], training.ParameterPenalty(0.3)(model), rtol=1e-10
    )
    # One step of gradient descent at rate 1 moves W by another 2 * 0.3 * W.
    np.testing.assert_allclose(plain.model.W - weights.model.W, 0.6 * model.map.W, rtol=1e-10, atol=1e-14)
    both = run(model, penalty=[training.ParameterPenalty(0.3), MeanSquare()])
    states = both.history.loss[0] - weights.history.loss[0]
    # The first two coordinates lie near a circle of radius 1 only where the model is good; all that is certain is that
    # the observed part of the mean square is what predictions give.
    assert states > 0

    def negative(model):
        return 0.3 * jnp.sum(model.map.W**2)

    class Exact(eqx.Module):
        def gradients(self, model, readout, inputs, targets, *, state0, loss, key=None):
            def value(modules):
                states = dw.simulate(modules[0], state0, inputs)
                return jnp.mean(jax.vmap(loss)(jax.vmap(modules[1])(states), targets))

            return eqx.filter_value_and_grad(value)((model, readout))

    ruled, ruled_more = run(model, rule=Exact()), run(model, rule=Exact(), penalty=negative)
    np.testing.assert_allclose(ruled.model.W - ruled_more.model.W, 0.6 * model.map.W, rtol=1e-10, atol=1e-14)
    with pytest.raises(ArgumentError, match="keeps no states"):
        run(model, rule=Exact(), penalty=MeanSquare())
    with pytest.raises(ArgumentError, match="one observation"):
        run(model, rule=Exact(), loss=training.GaussianLikelihood())


def test_an_exponent_or_a_multiplier_may_sit_in_the_penalty():
    """A map trained, without a data term, to a given Lyapunov exponent and to a given multiplier."""
    start = dw.models.PLRNN.from_parameters(jnp.array([0.5, 0.2]), jnp.zeros((2, 2)), jnp.zeros(2))
    start = training.Reconstruction(start, 2, key=jax.random.key(0))

    def exponent(model):
        spectrum = dw.dynamics.lyapunov_spectrum(model.map, jnp.ones(2), steps=20, throw=False)
        return (spectrum.exponents[0] - jnp.log(0.9)) ** 2

    def multiplier(model):
        return 10 * (jnp.max(jnp.abs(jnp.diagonal(dw.dynamics.jacobian(model.map, jnp.zeros(2))))) - 0.7) ** 2

    fitted = run(
        start, loss=lambda p, t: 0.0 * jnp.sum(p), penalty=[exponent, multiplier], steps=150, optimizer=optax.adam(1e-2)
    )
    for penalty in (exponent, multiplier):
        assert penalty(start) > 0.1
        assert penalty(fitted.reconstruction) < 1e-3
    np.testing.assert_allclose(fitted.history.loss[0], exponent(start) + multiplier(start), rtol=1e-10)
