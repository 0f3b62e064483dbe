"""training.fit: that it learns, resumes exactly, survives NaNs and interrupts, and says what is wrong."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynwarp as dw
from dynwarp import training
from dynwarp._results import RESULTS
from dynwarp.errors import ArgumentError, CheckpointError, ConvergenceError, NonFiniteError, SeriesError, ShapeError

# The default has a program that takes longer to compile.
OPTIMIZER = optax.sgd(1e-2)
ROTATION = np.array([[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]])


@pytest.fixture(scope="module")
def circle():
    t = 0.3 * np.arange(120.0)
    return np.stack([np.cos(t), np.sin(t)], axis=1)


@pytest.fixture(scope="module")
def model():
    return dw.models.ALRNN(4, 2, key=jax.random.key(0))


def run(model, data, **options):
    defaults = {"steps": 12, "key": jax.random.key(1), "sequence_length": 8, "optimizer": OPTIMIZER}
    return training.fit(model, data, **(defaults | options))


def identical(a, b):
    return all(
        np.array_equal(x, y, equal_nan=True)
        for x, y in zip(jax.tree.leaves(eqx.filter(a, eqx.is_array)), jax.tree.leaves(eqx.filter(b, eqx.is_array)))
    )


def test_learns_a_rotation(circle):
    start = dw.models.PLRNN.from_parameters(jnp.zeros(2), jnp.zeros((2, 2)), jnp.zeros(2))
    fitted = training.fit(
        start, circle, steps=400, key=jax.random.key(0), sequence_length=10, optimizer=optax.adam(2e-2),
        forcing=training.SparseTeacherForcing(1),
    )  # fmt: skip
    # W relu(z) + A z + h cannot be the rotation, but gets far closer than the mean, whose error is 1/2.
    assert fitted.history.loss[-1] < 0.15
    assert fitted.history.loss[0] > 0.4


def test_loss_and_gradient_agree_with_a_plain_loop(circle):
    """One SGD step against the definition, written out step by step with numpy and finite differences."""
    A, W, h, L = (
        np.asarray(jax.random.normal(jax.random.key(i), s)) * 0.3 for i, s in enumerate([(3,), (3, 3), (3,), (1, 2)])
    )
    interval, length = 3, 7
    start = training.Reconstruction(dw.models.ALRNN.from_parameters(A, W, h, 1), 2, key=jax.random.key(0))
    start = eqx.tree_at(lambda m: m.initial_weight, start, jnp.asarray(L))
    data = circle[: length + 1]

    def loss(A, W, h, L):
        z, total = np.concatenate([data[0], L @ data[0]]), 0.0
        for i in range(length):
            z = A * z + W @ np.concatenate([z[:2], np.maximum(z[2:], 0)]) + h
            total += np.mean((z[:2] - data[i + 1]) ** 2) / length
            if i % interval == 0:
                z = np.concatenate([data[i + 1], z[2:]])
        return total

    fitted = training.fit(
        start, data, steps=1, key=jax.random.key(0), sequence_length=length, batch_size=2, clip=None,
        optimizer=optax.sgd(1.0), forcing=training.SparseTeacherForcing(interval),
    )  # fmt: skip
    np.testing.assert_allclose(fitted.history.loss[0], loss(A, W, h, L), rtol=1e-13)
    trained = fitted.reconstruction
    for name, i, value in (("A", 0, A), ("W", 1, W), ("h", 2, h), ("initial_weight", 3, L)):
        after = np.asarray(trained.initial_weight if name == "initial_weight" else getattr(trained.map, name))
        numeric = np.zeros_like(value)
        for position in np.ndindex(value.shape):
            values = [[A, W, h, L], [A, W, h, L]]
            for sign, group in zip((1, -1), values):
                moved = value.copy()
                moved[position] += sign * 1e-6
                group[i] = moved
            numeric[position] = (loss(*values[0]) - loss(*values[1])) / 2e-6
        # Central differences of a loss of order 1 at 1e-6 are good to 1e-9.
        np.testing.assert_allclose(value - after, numeric, atol=2e-9)


@pytest.mark.parametrize(
    "make",
    [
        lambda key: dw.models.PLRNN(4, key=key),
        lambda key: dw.models.MeanCentredPLRNN(4, key=key),
        lambda key: dw.models.ShallowPLRNN(4, 6, clipped=True, key=key),
        lambda key: dw.models.DendriticPLRNN(4, 3, key=key),
        lambda key: dw.models.ALRNN(4, 2, dtype=jnp.float32, key=key),
        lambda key: dw.models.from_cell(eqx.nn.GRUCell(0, 4, key=key), 4, 0),
    ],
)
def test_every_kind_of_map_is_trained_in_its_own_precision(make, circle):
    model = make(jax.random.key(3))
    fitted = run(model, circle, steps=6, clip=None)
    old, new = (jax.tree.leaves(eqx.filter(m, eqx.is_inexact_array)) for m in (model, fitted.model))
    assert [x.dtype for x in old] == [x.dtype for x in new]
    assert any(not np.array_equal(x, y) for x, y in zip(old, new))
    assert np.isfinite(fitted.history.loss).all()


def test_a_users_map_with_plain_fields(circle):
    class Affine(dw.models.AbstractMap):
        weight: jax.Array
        gain: float = 0.5
        names: tuple = ("a", "b")
        state_size: int = 2
        input_size: int = 0

        def __call__(self, state, input=None, *, step=None):
            return self.gain * (self.weight @ state)

    fitted = training.fit(
        Affine(jnp.eye(2)), circle, steps=300, key=jax.random.key(0), sequence_length=5, optimizer=optax.adam(3e-2)
    )
    np.testing.assert_allclose(0.5 * fitted.model.weight, ROTATION, atol=1e-3)
    assert fitted.model.gain == 0.5


def test_inputs_drive_the_step_to_their_row():
    """A scalar map z' = a z + b s recovered from a driven recording: the alignment of inputs and targets."""
    s = np.asarray(jax.random.normal(jax.random.key(0), (200, 1)))
    x = np.zeros((200, 1))
    for i in range(1, 200):
        x[i] = 0.5 * x[i - 1] + 0.7 * s[i]
    start = dw.models.LinearRNN(jnp.zeros((1, 1)), jnp.zeros((1, 1)), jnp.eye(1))
    fitted = run(start, x, inputs=s, steps=400, optimizer=optax.adam(2e-2))
    assert fitted.history.loss[-1] < 1e-6
    generated = fitted.reconstruction.generate(x[0], inputs=s[1:])
    np.testing.assert_allclose(generated, x[1:], atol=0.02)


def test_several_recordings_and_windows_that_stay_inside_them(model, circle):
    fitted = run(model, [circle[:40], circle[40:70], circle[:5]], sequence_length=20)
    assert np.isfinite(fitted.history.loss).all()
    from dynwarp.training._windows import make_windows

    windows = make_windows(
        [np.zeros((4, 1)), np.ones((6, 1)), np.ones((2, 1))], [np.zeros((n, 0)) for n in (4, 6, 2)], 3, float
    )
    # The short one has a window too, of which nothing is observed beyond its end.
    assert windows.starts.tolist() == [0, 4, 5, 6, 10]
    values, _ = windows.take(windows.starts)
    assert (values[:4] == values[:4, :1]).all()
    np.testing.assert_array_equal(values[4, :, 0], [1, 1, np.nan, np.nan])


def test_the_best_model_is_kept(model, circle):
    scores = iter([3.0, 1.0, 2.0])
    seen = []

    def score(reconstruction):
        seen.append(reconstruction)
        return jax.pure_callback(lambda: np.float64(next(scores)), jax.ShapeDtypeStruct((), jnp.float64))

    fitted = run(model, circle, steps=12, validate_every=4, validation=score)
    assert fitted.history.validation.tolist() == [3.0, 1.0, 2.0]
    assert fitted.history.validation_step.tolist() == [4, 8, 12]
    assert fitted.stats["best_step"] == 8
    assert not identical(fitted.reconstruction, fitted.last)


def test_validation_on_a_recording_is_the_loss_there(model, circle):
    fitted = run(model, circle, steps=4, validate_every=4, validation=circle[:9], noise=0.3)
    state, errors = fitted.last.encode(jnp.asarray(circle[0])), []
    for i, target in enumerate(circle[1:9]):
        state = fitted.last.map(state)
        errors.append(np.mean((state[:2] - target) ** 2))
        # Forcing every eight steps, the length of the only window.
        state = state.at[:2].set(target) if i == 0 else state
    np.testing.assert_allclose(fitted.history.validation[0], np.mean(errors), rtol=1e-12)


@pytest.mark.parametrize("stop", [4, 7])
def test_an_interrupted_run_resumes_bit_for_bit(model, circle, tmp_path, stop):
    options = {"steps": 12, "validate_every": 4, "noise": 0.1, "validation": circle[:30]}
    whole = run(model, circle, **options)

    def interrupt(step, steps, figures):
        if step >= stop:
            raise KeyboardInterrupt

    first = run(model, circle, directory=tmp_path, progress=interrupt, **options)
    assert first.stats["interrupted"]
    assert stop <= first.stats["steps"] < 12
    second = run(model, circle, directory=tmp_path, resume=True, **options)
    assert second.stats["steps"] == 12
    assert identical(second.reconstruction, whole.reconstruction)
    assert identical(second.last, whole.last)
    np.testing.assert_array_equal(second.history.loss, whole.history.loss)
    np.testing.assert_array_equal(second.history.validation, whole.history.validation)
    # A finished run resumes to itself.
    assert identical(run(model, circle, directory=tmp_path, resume=True, **options).last, whole.last)


def test_an_interrupt_during_a_validation_leaves_it_to_the_resumed_run(model, circle, tmp_path):
    score = training.ReconstructionScore(circle[:30], horizon=5)

    def interrupted(model):
        raise KeyboardInterrupt

    options = {"steps": 8, "validate_every": 4}
    whole = run(model, circle, validation=score, **options)
    first = run(model, circle, validation=interrupted, directory=tmp_path, **options)
    assert (first.stats["interrupted"], first.stats["steps"]) == (True, 4)
    second = run(model, circle, validation=score, directory=tmp_path, resume=True, **options)
    assert second.history.validation_step.tolist() == [4, 8]
    np.testing.assert_array_equal(second.history.validation, whole.history.validation)
    assert identical(second.reconstruction, whole.reconstruction)


def test_resuming_another_run_or_a_damaged_file_is_refused(model, circle, tmp_path):
    run(model, circle, directory=tmp_path)
    with pytest.raises(ArgumentError, match="another `noise`"):
        run(model, circle, directory=tmp_path, resume=True, noise=0.5)
    with pytest.raises(ArgumentError, match="another `key`"):
        run(model, circle, directory=tmp_path, resume=True, key=jax.random.key(9))
    with pytest.raises(CheckpointError, match="structure"):
        run(model, circle, directory=tmp_path, resume=True, optimizer=optax.adam(0.1))
    file = tmp_path / "training.dyn"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(CheckpointError):
        run(model, circle, directory=tmp_path, resume=True)
    # Without resume the damaged file is of no interest.
    assert run(model, circle, directory=tmp_path).stats["steps"] == 12


def test_what_a_checkpoint_remembers_is_the_same_in_another_process():
    from dynwarp.training._problem import name_of

    elman = dw.models.Elman(1, 2, activation=jnp.tanh, key=jax.random.key(0))
    assert "tanh" in name_of(elman)
    assert "0x" not in name_of(elman)
    assert name_of(elman) != name_of(dw.models.Elman(1, 2, activation=jax.nn.relu, key=jax.random.key(0)))


def test_one_bad_step_is_skipped_and_many_end_the_run(model, circle):
    def sometimes(prediction, target):
        # The third coordinate of the target marks the rows on which the loss breaks.
        return jnp.sum((prediction - target) ** 2) + jnp.where(target[0] > 0.999, jnp.nan, 0.0)

    fitted = run(model, circle, steps=40, batch_size=1, loss=sometimes)
    assert 0 < fitted.stats["skipped"] < 40
    assert np.isnan(fitted.history.loss).sum() == fitted.stats["skipped"]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(eqx.filter(fitted.model, eqx.is_array)))

    def always(prediction, target):
        return jnp.sum(prediction) * jnp.nan

    failed = run(model, circle, steps=100, loss=always, throw=False)
    assert failed.result == RESULTS.non_finite
    assert identical(failed.model, model)
    assert failed.stats["steps"] < 100
    with pytest.raises(ConvergenceError, match="fit"):
        run(model, circle, steps=100, loss=always)


def test_an_update_that_is_not_finite_is_skipped(model, circle):
    failed = run(model, circle, steps=3, optimizer=optax.sgd(np.inf), throw=False)
    assert failed.result == RESULTS.non_finite
    assert failed.stats["skipped"] == 3
    assert identical(failed.model, model)


def test_number_of_compilations_does_not_depend_on_the_steps(model, circle):
    from dynwarp.training import _loop

    traces = 0

    def counted(prediction, target):
        nonlocal traces
        traces += 1
        return jnp.mean((prediction - target) ** 2)

    optimizer = optax.sgd(1e-3)
    for steps in (3, 5, 20):
        run(model, circle, steps=steps, loss=counted, optimizer=optimizer, clip=None)
        first = traces if steps == 3 else first
    assert traces == first
    assert _loop.CHUNK > 20


def test_a_rule_stands_in_for_autodiff(circle):
    class Exact(eqx.Module):
        """The gradient of the free-running loss, with the signature of a learning rule."""

        def gradients(self, model, readout, inputs, targets, *, state0, loss, key=None):
            def value(modules):
                model, readout = modules
                states = dw.simulate(model, state0, inputs)
                return jnp.mean(jax.vmap(loss)(jax.vmap(readout)(states), targets))

            return eqx.filter_value_and_grad(value)((model, readout))

    start = dw.models.Elman(0, 5, key=jax.random.key(0))
    readout = dw.models.Readout(5, 2, key=jax.random.key(1))
    options = {"readout": readout, "optimizer": optax.sgd(0.1), "steps": 5, "noise": 0.05, "clip": None}
    plain = run(start, circle, **options)
    ruled = run(start, circle, rule=Exact(), **options)
    # Same windows and noise of another key: the losses start alike; the initial map is the rule's to leave alone.
    begin = training.Reconstruction(start, 2, readout=readout, key=jax.random.key(7))
    quiet = options | {"noise": 0.0, "readout": None}
    first, second = run(begin, circle, **quiet), run(begin, circle, rule=Exact(), **quiet)
    np.testing.assert_allclose(first.history.loss[0], second.history.loss[0], rtol=1e-13)
    assert identical(second.reconstruction.initial_weight, begin.initial_weight)
    assert not identical(first.reconstruction.initial_weight, begin.initial_weight)
    one = quiet | {"steps": 1}
    a, b = run(begin, circle, **one), run(begin, circle, rule=Exact(), **one)
    for x, y in zip(*(jax.tree.leaves(eqx.filter((m.model, m.reconstruction.readout), eqx.is_array)) for m in (a, b))):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-15)
    assert plain.history.loss.shape == ruled.history.loss.shape


def test_progress_goes_to_a_function_or_a_bar(model, circle, capsys):
    seen = []
    run(model, circle, progress=lambda step, steps, figures: seen.append((step, steps, sorted(figures))))
    assert seen[-1][:2] == (12, 12)
    assert "loss" in seen[-1][2]
    run(model, circle, progress=True, optimizer=None)
    assert "12/12" in capsys.readouterr().err


def test_series_brings_its_units(model):
    t = np.arange(120.0)
    series = dw.io.make_series(np.stack([5 + 2 * np.sin(t / 3), np.cos(t / 3)], axis=1))
    fitted = run(model, series)
    np.testing.assert_allclose(fitted.reconstruction.mean, series.mean)
    np.testing.assert_allclose(fitted.reconstruction.scale, series.scale)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"data": np.zeros(9)}, ShapeError, r"`data` must have shape \(T, N\)"),
        ({"data": [np.zeros((9, 2)), np.zeros((9, 1))]}, ShapeError, r"data\[1\]"),
        ({"data": []}, SeriesError, "empty list"),
        ({"data": np.zeros((1, 2))}, SeriesError, "1 time steps"),
        ({"data": np.array([[0.0, 1.0], [np.nan, 0.0]])}, NonFiniteError, "data"),
        ({"data": np.zeros((5, 2))}, SeriesError, "need 9 time steps"),
        ({"data": np.zeros((20, 9))}, ArgumentError, "9 observed channels"),
        ({"steps": 0}, ArgumentError, "`steps`"),
        ({"noise": -1.0}, ArgumentError, "`noise`"),
        ({"clip": 0.0}, ArgumentError, "`clip`"),
        ({"resume": True}, ArgumentError, "`directory`"),
        ({"forcing": 3}, ArgumentError, "`forcing`"),
        ({"rule": 3}, ArgumentError, "`rule`"),
        ({"inputs": np.zeros((3, 0))}, ShapeError, "inputs"),
        ({"validation": np.zeros((9, 3))}, ArgumentError, "`validation`"),
    ],
)
def test_messages(model, circle, options, error, message):
    with pytest.raises(error, match=message):
        run(model, options.pop("data", circle), **options)
