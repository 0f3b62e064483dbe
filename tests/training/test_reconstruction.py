"""Forcing, the reconstruction module and its score."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp import training
from dynwarp.errors import ArgumentError, ModelError, SeriesError, ShapeError


@pytest.fixture(scope="module")
def model():
    map = dw.models.ALRNN(4, 2, key=jax.random.key(0))
    return training.Reconstruction(map, 2, mean=jnp.array([1.0, 2.0]), scale=3.0, key=jax.random.key(1))


@pytest.fixture(scope="module")
def rotation():
    angle = 0.2
    A = jnp.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    map = dw.models.PiecewiseLinearMap(A, jnp.zeros((2, 1)), jnp.zeros((1, 2)), jnp.zeros(2), jnp.zeros(1))
    return training.Reconstruction(map, 2, key=jax.random.key(0))


def test_sparse_forcing_overwrites_at_multiples_and_cuts_the_gradient():
    forcing = training.SparseTeacherForcing(4)
    forced = [bool(forcing(jnp.zeros(2), jnp.ones(1), i)[0]) for i in range(9)]
    assert forced == [True, False, False, False, True, False, False, False, True]
    jacobian = jax.jacobian(lambda z: forcing(z, jnp.ones(2), 0))(jnp.arange(3.0))
    np.testing.assert_array_equal(jacobian, np.diag([0.0, 0.0, 1.0]))


def test_generalized_forcing_interpolates():
    z, x = jnp.array([1.0, 2.0, 3.0]), jnp.array([5.0])
    for alpha in (0.0, 0.3, 1.0):
        forced = training.GeneralizedTeacherForcing(alpha)(z, x, 3)
        np.testing.assert_allclose(forced, [(1 - alpha) * 1 + alpha * 5, 2.0, 3.0], rtol=1e-15)
    with pytest.raises(ArgumentError, match="alpha"):
        training.GeneralizedTeacherForcing(1.5)
    with pytest.raises(ArgumentError, match="interval"):
        training.SparseTeacherForcing(0)


def test_encode_decode_generate_predict_agree_with_a_loop(model):
    x = np.array([2.0, -1.0])
    z = (x - np.array([1.0, 2.0])) / 3.0
    z = np.concatenate([z, np.asarray(model.initial_weight) @ z])
    expected = []
    for _ in range(5):
        z = np.asarray(model.map(jnp.asarray(z)))
        expected.append(z[:2] * 3.0 + np.array([1.0, 2.0]))
    np.testing.assert_allclose(model.generate(x, 5), expected, rtol=1e-13)
    np.testing.assert_allclose(model.predict(jnp.stack([x, x]), 5), [expected[-1]] * 2, rtol=1e-13)
    np.testing.assert_allclose(
        jax.jit(lambda m, v: m.predict(v, 5))(model, jnp.asarray(x)[None])[0], expected[-1], rtol=1e-13
    )
    many = jax.vmap(lambda v: model.generate(v, 5))(jnp.stack([x, x]))
    np.testing.assert_allclose(many[1], expected, rtol=1e-13)


def test_a_readout_in_place_of_coordinates():
    map = dw.models.Elman(0, 3, key=jax.random.key(0))
    model = training.Reconstruction(
        map, 5, readout=dw.models.Readout(3, 5, key=jax.random.key(1)), key=jax.random.key(2)
    )
    assert not model.observes_state
    assert model.initial_weight.shape == (3, 5)
    assert model.generate(jnp.ones(5), 4).shape == (4, 5)


def test_saved_and_loaded(model, tmp_path):
    path = dw.io.save(tmp_path / "model.dynwarp", model, metadata={"source": "test"})
    loaded = dw.io.load(path)
    assert isinstance(loaded, training.Reconstruction)
    np.testing.assert_array_equal(loaded.generate(jnp.ones(2), 5), model.generate(jnp.ones(2), 5))


def test_reconstruction_messages(model):
    map = dw.models.ALRNN(4, 2, key=jax.random.key(0))
    with pytest.raises(ArgumentError, match="5 observed channels"):
        training.Reconstruction(map, 5, key=jax.random.key(0))
    with pytest.raises(ModelError, match="AbstractMap"):
        training.Reconstruction(dw.systems.Lorenz63(), 3, key=jax.random.key(0))
    with pytest.raises(ShapeError, match="observation"):
        model.generate(jnp.ones(3), 4)
    with pytest.raises(ShapeError, match="observations"):
        model.predict(jnp.ones(2), 4)


def test_the_score_orders_models(rotation):
    t = 0.2 * np.arange(200)
    values = np.stack([np.cos(t), np.sin(t)], axis=1)
    score = training.ReconstructionScore(values, horizon=7)
    exact = float(score(rotation))
    still = dw.models.PiecewiseLinearMap(jnp.eye(2), jnp.zeros((2, 1)), jnp.zeros((1, 2)), jnp.zeros(2), jnp.zeros(1))
    persistent = float(score(training.Reconstruction(still, 2, key=jax.random.key(0))))
    assert exact < 0.1
    # Persistence scores 1 for its predictions, and 1 for a constant free run, which has no spectrum.
    assert persistent == pytest.approx(2.0)
    growing = dw.models.PiecewiseLinearMap(
        1.1 * rotation.map.A, jnp.zeros((2, 1)), jnp.zeros((1, 2)), jnp.zeros(2), jnp.zeros(1)
    )
    assert np.isinf(score(training.Reconstruction(growing, 2, key=jax.random.key(0))))
    np.testing.assert_allclose(jax.jit(lambda m: score(m))(rotation), exact, rtol=1e-9)


def test_score_messages():
    with pytest.raises(SeriesError, match="too few"):
        training.ReconstructionScore(np.zeros((10, 2)), horizon=20)
    with pytest.raises(ShapeError, match="values"):
        training.ReconstructionScore(np.zeros(10))


def test_the_score_of_a_recording_with_gaps_counts_what_was_observed():
    t = np.arange(60.0)
    x = np.stack([np.sin(t / 3), np.cos(t / 3), np.sin(t / 5)], axis=1)
    x[0, 0], x[20:23, 1], x[40] = np.nan, np.nan, np.nan
    model = dw.training.Reconstruction(dw.models.ALRNN(4, 1, key=jax.random.key(0)), 3, key=jax.random.key(1))
    horizon = 4
    score = dw.training.ReconstructionScore(jnp.asarray(x), channels=2, horizon=horizon)
    assert score.start == 1
    filled = dw.io.fill_gaps(x)
    predicted = np.asarray(model.predict(jnp.asarray(filled), horizon))
    errors, still = [], []
    for i in range(len(x) - horizon):
        for channel in range(2):
            if np.isfinite(x[i]).all() and np.isfinite(x[i + horizon, channel]):
                errors.append((predicted[i, channel] - x[i + horizon, channel]) ** 2)
                still.append((x[i, channel] - x[i + horizon, channel]) ** 2)
    free = np.asarray(model.generate(jnp.asarray(x[1]), 4 * len(x)))
    free = np.concatenate([x[1:2], free])[3 * len(x) : 4 * len(x), :2]
    distance = dw.metrics.power_spectrum_distance(jnp.asarray(filled[:, :2]), jnp.asarray(free), smoothing=2.0)
    np.testing.assert_allclose(score(model), np.mean(errors) / np.mean(still) + distance, rtol=1e-9)
    with pytest.raises(dw.errors.SeriesError, match="no complete row"):
        dw.training.ReconstructionScore(jnp.asarray(np.where(np.arange(3) == 2, np.nan, x)), horizon=horizon)
