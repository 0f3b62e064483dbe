"""Prediction errors against plain loops."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw

error, persistence = dw.metrics.prediction_error, dw.metrics.persistence_error


@pytest.fixture(scope="module")
def series():
    t = np.arange(40)
    return jnp.asarray(np.stack([np.sin(0.3 * t), np.cos(0.2 * t)], axis=1))


def _advance(model, state, steps, inputs=None, start=0):
    for i in range(steps):
        state = model(state, None if inputs is None else inputs[start + i], step=start + i)
    return state


@pytest.mark.parametrize("n", [1, 4])
def test_state_as_wide_as_the_series(series, n, key):
    model = dw.models.Elman(3, 2, key=key)
    inputs = jax.random.normal(key, (40, 3))
    found = error(model, series, n, inputs=inputs)
    # inputs[t] drives the step that ends at series[t].
    predicted = [_advance(model, series[t], n, inputs, t + 1) for t in range(40 - n)]
    np.testing.assert_allclose(found, np.mean((np.stack(predicted) - series[n:]) ** 2), rtol=1e-12)


def test_true_model_predicts_its_own_orbit():
    henon = dw.systems.Henon()
    orbit = dw.simulate(henon, jnp.array([0.1, 0.1]), steps=60)
    assert error(henon, orbit, 10) == 0
    assert persistence(orbit, 10) > 0.1


def test_wider_state_is_forced_along_the_series(series, key):
    model = dw.models.ALRNN(5, 2, key=key)
    state, predicted = jnp.zeros(5), []
    for t in range(40):
        state = state.at[:2].set(series[t])
        predicted.append(_advance(model, state, 3)[:2])
        state = model(state)
    expected = (np.stack(predicted[:37]) - series[3:]) ** 2
    np.testing.assert_allclose(error(model, series, 3), np.mean(expected), rtol=1e-12)
    np.testing.assert_allclose(error(model, series, 3, warm_up=10), np.mean(expected[10:]), rtol=1e-12)


def test_forced_and_driven(series, key):
    model = dw.models.GRU(1, 4, key=key)
    inputs = jax.random.normal(key, (40, 1))
    state, predicted = jnp.zeros(4), []
    for t in range(39):
        state = state.at[:2].set(series[t])
        predicted.append(_advance(model, state, 1, inputs, t + 1)[:2])
        state = model(state, inputs[t + 1])
    np.testing.assert_allclose(
        error(model, series, 1, inputs=inputs), np.mean((np.stack(predicted) - series[1:]) ** 2), rtol=1e-12
    )


def test_readout_and_initial_state(series, key):
    model = dw.models.Elman(1, 4, key=key)
    readout = dw.models.Readout(4, 2, key=key)
    pseudo = jnp.linalg.pinv(readout.weight)

    def encode(x):
        return pseudo @ x

    predicted = [readout(_advance(model, encode(x), 2)) for x in series[:-2]]
    found = error(model, series, 2, readout=readout, initial_state=encode)
    np.testing.assert_allclose(found, np.mean((np.stack(predicted) - series[2:]) ** 2), rtol=1e-12)


def test_fields_step_by_rk4():
    lorenz = dw.systems.Lorenz63()
    orbit = dw.simulate(lorenz, jnp.array([1.0, 2.0, 20.0]), steps=50, dt=0.01)
    assert error(lorenz, orbit, 5, dt=0.01) < 1e-24
    assert error(lorenz, orbit, 5, dt=0.011) > 1e-6


def test_persistence(series):
    np.testing.assert_allclose(persistence(series, 3), np.mean((series[3:] - series[:-3]) ** 2), rtol=1e-14)


def test_transformations(series, key):
    model = dw.models.Elman(1, 2, key=key)

    def f(x):
        return error(jax.tree.map(lambda p: x * p if eqx.is_inexact_array(p) else p, model), series, 2)

    h = 1e-6
    numeric = (f(1 + h) - f(1 - h)) / (2 * h)
    np.testing.assert_allclose(jax.grad(f)(1.0), numeric, rtol=1e-7)
    np.testing.assert_allclose(jax.jvp(f, (1.0,), (1.0,))[1], numeric, rtol=1e-7)
    many = jax.jit(jax.vmap(f))(jnp.array([0.5, 1.0]))
    np.testing.assert_allclose(many, [f(0.5), f(1.0)], rtol=1e-12)
    single = jax.tree.map(lambda p: p.astype(jnp.float32) if eqx.is_inexact_array(p) else p, model)
    assert error(single, series.astype(jnp.float32), 2).dtype == jnp.float32


def test_errors(series, key):
    model = dw.models.Elman(1, 2, key=key)
    with pytest.raises(dw.errors.SeriesError, match=r"longer than n \+ warm_up = 40 time steps; got 40"):
        error(model, series, 40)
    with pytest.raises(dw.errors.ArgumentError, match="`n` must be a whole number of at least 1"):
        error(model, series, 0)
    with pytest.raises(dw.errors.ShapeError, match="3 columns, the model 2 coordinates"):
        error(model, jnp.zeros((40, 3)), 1)
    with pytest.raises(dw.errors.ArgumentError, match="`initial_state` must say"):
        error(model, series, 1, readout=lambda z: z)
    with pytest.raises(dw.errors.ArgumentError, match="`dt`, the time between samples, is required"):
        error(dw.systems.Lorenz63(), jnp.zeros((40, 3)), 1)
    with pytest.raises(dw.errors.ArgumentError, match="`dt` is for fields"):
        error(model, series, 1, dt=0.1)
    with pytest.raises(dw.errors.ShapeError, match=r"`inputs` must have shape \(40, 1\); got \(39, 1\)"):
        error(model, series, 1, inputs=jnp.zeros((39, 1)))
    with pytest.raises(dw.errors.NonFiniteError, match="`series` must be finite"):
        error(model, series.at[3, 0].set(jnp.nan), 1)
    with pytest.raises(dw.errors.SeriesError, match="persistence_error"):
        persistence(series, 50)
