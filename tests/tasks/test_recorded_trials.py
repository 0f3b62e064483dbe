"""Recordings as trials: binning against plain loops, splines and residuals against the recording, messages."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.integrate import quad

import dynwarp as dw
from dynwarp.errors import ArgumentError, NonFiniteError, ShapeError

t = dw.tasks
TWO_PI = 2 * np.pi


def test_spikes_are_counted_bin_by_bin():
    rng = np.random.default_rng(0)
    times, units = rng.uniform(0, 10, 200), rng.integers(0, 4, 200)
    times[:3] = 1.0, 1.5, 3.0
    starts, dt, steps = np.array([1.0, 2.5, 8.0]), 0.5, 4
    found = t.bin_spikes(times, units, starts, dt=dt, steps=steps, n_units=5)
    expected = np.zeros((3, 4, 5))
    for i, j, unit in np.ndindex(expected.shape):
        low, high = starts[i] + j * dt, starts[i] + (j + 1) * dt
        expected[i, j, unit] = np.sum((times >= low) & (times < high) & (units == unit))
    np.testing.assert_array_equal(found, expected)
    assert t.bin_spikes([], [], [0.0], dt=1.0, steps=2, n_units=3).shape == (1, 2, 3)
    # Edges that are rounded up: 3 * 0.1 > 0.3.
    on_edges = t.bin_spikes([0.3, 0.6, 0.7], [0, 0, 0], [0.0], dt=0.1, steps=10)
    assert np.flatnonzero(on_edges).tolist() == [3, 6, 7]


def test_signals_are_averaged_in_bins():
    rng = np.random.default_rng(1)
    times, values = np.cumsum(rng.uniform(0.05, 0.7, 40)), rng.normal(size=(40, 2))
    starts = np.array([times[0], 4.0, times[-1] - 1.2])
    found = t.bin_signal(times, values, starts, dt=0.3, steps=4)
    for i, j, k in np.ndindex(found.shape):
        low, high = starts[i] + 0.3 * j, starts[i] + 0.3 * (j + 1)
        kinks = times[(times > low) & (times < high)]
        area = quad(lambda x, k=k: np.interp(x, times, values[:, k]), low, high, points=kinks, epsabs=1e-13)[0]
        np.testing.assert_allclose(found[i, j, k], area / 0.3, atol=1e-10)


batch_of = eqx.filter_jit(lambda task, key, n: task.batch(key, n))


@eqx.filter_jit
def at(task, points, i):
    """The manifold, and the inputs and targets of trial i."""
    inputs, targets = (jax.vmap(lambda x, f=f: f(x, i))(points) for f in (task.inputs, task.targets))
    return jax.vmap(task)(points), inputs, targets


@pytest.fixture(scope="module")
def recorded():
    """Rates and velocities of reaches with noise, 120 trials."""
    task = t.CentreOut(n_neurons=6, delays=(0.2,), dt=0.2)
    batch = batch_of(task, jax.random.key(0), 120)
    rng = np.random.default_rng(2)
    inputs = np.asarray(batch.inputs) + 0.1 * rng.normal(size=batch.inputs.shape)
    targets = np.asarray(batch.targets) + 0.01 * rng.normal(size=batch.targets.shape)
    mask = rng.uniform(0.5, 1.0, targets.shape[:2])
    made = t.RecordedTrials(inputs, targets, batch.thetas, [9, 4], periods=(TWO_PI, None), dt=0.2, mask=mask)
    return task, batch, inputs, targets, mask, made


def test_trials_are_the_recordings(recorded):
    _, batch, inputs, targets, mask, made = recorded
    trials = made.trials()
    for found, expected in ((trials.inputs, inputs), (trials.targets, targets), (trials.mask, mask)):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    drawn = batch_of(made, jax.random.key(1), 50)
    rows = np.asarray(drawn.conditions)
    assert len(set(rows.tolist())) > 20
    np.testing.assert_allclose(drawn.inputs, inputs[rows], atol=1e-12)
    np.testing.assert_allclose(drawn.targets, targets[rows], atol=1e-12)
    np.testing.assert_array_equal(drawn.thetas, batch.thetas[rows])


def test_the_manifold_is_the_mean_of_the_trials(recorded):
    """Least squares averages the noise away; what is left is the error of the splines."""
    task, batch, _, targets, _, made = recorded
    assert (made.dim, made.steps, made.input_size, made.output_size) == (2, task.steps, 6, 2)
    assert made.periods == (TWO_PI, None)
    points = np.stack([np.append(np.arange(19) * TWO_PI / 19, batch.thetas[3, 0]), np.full(20, 1.2)], axis=-1)
    points[-1] = batch.thetas[3]
    smooth, inputs, found = at(made, jnp.asarray(points), 3)
    true = at(task, jnp.asarray(points), 0)[0]
    assert np.sqrt(np.mean((smooth[:19] - true[:19]) ** 2)) < 0.07
    # A condition moves with theta as the manifold does.
    np.testing.assert_allclose(inputs[0] - inputs[1], smooth[0] - smooth[1], atol=1e-12)
    np.testing.assert_allclose(found[-1], targets[3], atol=1e-12)


def test_chance_is_the_loss_of_the_mean_target(recorded):
    made = recorded[-1]
    trials = made.trials()
    weights = trials.mask / trials.mask.sum(1, keepdims=True)
    mean = jnp.einsum("nt,nto->to", weights, trials.targets) / weights.sum(0)[:, None]
    answer = jnp.broadcast_to(mean, trials.targets.shape)
    np.testing.assert_allclose(made.chance_level, made.loss(answer, trials.targets, trials.mask), rtol=1e-12)
    worse = made.loss(answer + 0.01, trials.targets, trials.mask)
    assert made.chance_level < float(worse)


def test_subsets_share_the_manifold(recorded):
    made = recorded[-1]
    part = made.subset([5, 0, 7])
    np.testing.assert_array_equal(part.trials().thetas, made.thetas[np.array([5, 0, 7])])
    np.testing.assert_allclose(part.trials().inputs, made.trials().inputs[np.array([5, 0, 7])], atol=1e-13)
    np.testing.assert_array_equal(part.input_manifold.values, made.input_manifold.values)
    drawn = jax.jit(jax.vmap(lambda key: part.draw(key)[1]))(jax.random.split(jax.random.key(0), 20))
    assert set(drawn.tolist()) == {0, 1, 2}
    for wrong in ([], [120], [-1], [0.5]):
        with pytest.raises(ArgumentError, match="indices"):
            made.subset(wrong)


def test_a_decoder_of_spikes_learns_from_them(recorded):
    """Float32, 100 recorded trials, 60 steps: more than 0.8 of the variance of the velocities."""
    m, made, key = dw.models, recorded[-1], jax.random.key(0)
    backbone = m.S4D(8, 2, dt_min=0.1, dt_max=1.0, dtype=jnp.float32, key=key)
    net = m.SpikeDecoder(6, backbone, 2, key=jax.random.key(1))
    fitted = dw.training.fit(
        net, made.subset(range(100)), readout=net.readout(), steps=60, key=key, batch_size=16, clip=1.0,
        optimizer=optax.adam(1e-2),
    )  # fmt: skip
    assert {str(x.dtype) for x in jax.tree.leaves(eqx.filter(fitted.model, eqx.is_inexact_array))} == {"float32"}
    assert np.mean(fitted.history.loss[-5:]) < 0.2 * made.chance_level


def test_variables_of_reaches(recorded):
    task, batch, *_ = recorded
    found = t.reach_variables(batch.targets)
    np.testing.assert_allclose(found[:, 0], batch.thetas[:, 0], atol=1e-12)
    np.testing.assert_allclose(found[:, 1], batch.thetas[:, 1] * task._bell.max(), rtol=1e-12)


def test_neurons_differ():
    """The rates with a spread, by their definition."""
    task, theta = t.CentreOut(n_neurons=5, delays=(0.2,), dt=0.2, spread=0.4, seed=7), jnp.array([0.7, 1.5])
    g = 0.4 * np.random.default_rng(7).standard_normal((3, 5))
    phi = TWO_PI * np.arange(5) / 5 + g[2]
    # Bins: one of rest, one of delay, five of movement, one of rest.
    found = np.asarray(jax.jit(task)(theta))
    np.testing.assert_allclose(found[0], 2 * np.exp(g[0]))
    np.testing.assert_allclose(found[1], found[0] * np.exp(0.75 * np.cos(0.7 - 2 * phi)))
    np.testing.assert_allclose(found[4], found[0] * np.exp(1.5 * np.exp(g[1]) * np.cos(0.7 - phi)))


def test_recordings_keep_their_precision():
    values = np.float32([[[0.0]], [[1.0]], [[3.0]], [[2.0]]])
    task = t.RecordedTrials(values, values.astype(float), np.arange(4.0)[:, None], [3])
    batch = task.trials()
    assert (batch.inputs.dtype, batch.targets.dtype) == (jnp.float32, jnp.float64)
    np.testing.assert_allclose(batch.inputs, values, atol=1e-6)
    np.testing.assert_allclose(batch.targets, values, atol=1e-14)


ONES = np.ones((4, 3, 2))
THETAS = np.arange(4.0)[:, None]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: t.RecordedTrials(ONES[0], ONES, THETAS, [3]), ShapeError, "inputs"),
        (lambda: t.RecordedTrials(ONES, ONES[:, :2], THETAS, [3]), ShapeError, "targets"),
        (lambda: t.RecordedTrials(ONES, ONES, THETAS[:2], [3]), ShapeError, "thetas"),
        (lambda: t.RecordedTrials(ONES * np.nan, ONES, THETAS, [3]), NonFiniteError, "inputs"),
        (lambda: t.RecordedTrials(ONES, ONES, THETAS, [3, 3]), ArgumentError, "knots"),
        (lambda: t.RecordedTrials(ONES, ONES, THETAS, 3), ArgumentError, "knots"),
        (lambda: t.RecordedTrials(ONES, ONES, THETAS, [0], periods=(4.0,)), ArgumentError, "knots"),
        (lambda: t.RecordedTrials(ONES, ONES, THETAS, [3], periods=4.0), ArgumentError, "periods"),
        (lambda: t.RecordedTrials(ONES, ONES, THETAS, [6]), ArgumentError, "determine"),
        (lambda: t.RecordedTrials(ONES, ONES, THETAS, [3], mask=np.zeros(3)), ArgumentError, "mask"),
        (lambda: t.RecordedTrials(ONES, ONES, THETAS, [3], mask=np.ones(2)), ShapeError, "mask"),
        (lambda: t.RecordedTrials(ONES, ONES, THETAS, [3], dt=0.0), ArgumentError, "dt"),
        (lambda: t.reach_variables(np.ones((3, 2))), ShapeError, "velocities"),
        (lambda: t.bin_spikes([0.0], [1, 2], [0.0], dt=1.0, steps=1), ShapeError, "units"),
        (lambda: t.bin_spikes([0.0], [3], [0.0], dt=1.0, steps=1, n_units=2), ArgumentError, "units"),
        (lambda: t.bin_spikes([0.0], [0.5], [0.0], dt=1.0, steps=1), ArgumentError, "units"),
        (lambda: t.bin_spikes([0.0], [np.nan], [0.0], dt=1.0, steps=1), ArgumentError, "units"),
        (lambda: t.bin_spikes([0.0], ["a"], [0.0], dt=1.0, steps=1), ArgumentError, "units"),
        (lambda: t.bin_spikes([np.inf], [0], [0.0], dt=1.0, steps=1), NonFiniteError, "times"),
        (lambda: t.bin_spikes([0.0], [0], [0.0], dt=-1.0, steps=1), ArgumentError, "dt"),
        (lambda: t.bin_signal([0.0, 1.0], np.ones((3, 1)), [0.0], dt=1.0, steps=1), ShapeError, "values"),
        (lambda: t.bin_signal([1.0, 0.0], np.ones((2, 1)), [0.0], dt=1.0, steps=1), ArgumentError, "increase"),
        (lambda: t.bin_signal([0.0, 1.0], np.ones((2, 1)), [0.5], dt=1.0, steps=1), ArgumentError, "within"),
        (lambda: t.CentreOut(spread=-1.0), ArgumentError, "spread"),
        (lambda: t.CentreOut(seed=-1), ArgumentError, "seed"),
    ],
)
def test_messages(make, error, message):
    with pytest.raises(error, match=message):
        make()
