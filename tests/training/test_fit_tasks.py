"""training.fit on a task: its trials and loss, validation, resuming, seeds, rules, messages."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynwarp as dw
from dynwarp import training
from dynwarp.errors import ArgumentError, NonFiniteError, ShapeError

KEY = jax.random.key(5)
OPTIMIZER = optax.sgd(0.1)


class Hold(dw.tasks.AbstractTask):
    """Repeat a number that is shown at first, once a cue of random time has come; the cue's height weighs the steps."""

    dim: int = 1
    periods: tuple = (None,)
    bounds: tuple = ((-1.0, 1.0),)
    steps: int = 6
    input_size: int = 2
    output_size: int = 1
    dt: float = 1.0
    classes: bool = False
    chance_level: float = 1 / 3

    def draw(self, key):
        return self.sample(key, 1)[0], jax.random.uniform(jax.random.fold_in(key, 1), (), minval=1.0, maxval=4.0)

    def reference(self):
        return jnp.asarray(2.0)

    def inputs(self, theta, condition=None):
        theta, condition = self._trial(theta, condition)
        shown = jnp.zeros(self.steps).at[0].set(theta[0])
        return jnp.stack([shown, condition * self.mask(condition)], axis=1)

    def targets(self, theta, condition=None):
        return jnp.broadcast_to(theta, (self.steps, 1))

    def mask(self, condition=None):
        condition = self.reference() if condition is None else condition
        return jnp.maximum(jnp.arange(6.0) - condition, 0.0)


TASK = Hold()


@pytest.fixture(scope="module")
def held_out():
    return TASK.batch(jax.random.key(9), 20)


def elman(key):
    return dw.models.Elman(2, 4, key=key)


def readout(key):
    return dw.models.Readout(4, 1, key=key)


def run(model=None, task=TASK, **options):
    model = elman(jax.random.key(0)) if model is None else model
    defaults = {
        "steps": 6, "key": KEY, "batch_size": 5, "clip": None, "optimizer": OPTIMIZER,
        "readout": readout(jax.random.key(1)),
    }  # fmt: skip
    return training.fit(model, task, **(defaults | options))


def arrays(tree):
    return jax.tree.leaves(eqx.filter(tree, eqx.is_array))


def identical(a, b):
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(arrays(a), arrays(b), strict=True))


@pytest.fixture(scope="module")
def fitted(held_out):
    return run(validation=held_out, validate_every=3)


@eqx.filter_jit
def by_hand(modules, batch, state0):
    """The loss and its gradient, a step at a time."""

    def trial(modules, inputs, targets, mask):
        cell, out = modules
        state, error = state0, 0.0
        for i in range(TASK.steps):
            state = cell(state, inputs[i])
            error += mask[i] * (out(state)[0] - targets[i, 0]) ** 2
        return error / jnp.sum(mask)

    def loss(modules):
        return jnp.mean(jax.vmap(lambda *x: trial(modules, *x))(batch.inputs, batch.targets, batch.mask))

    return eqx.filter_value_and_grad(loss)(modules)


@pytest.mark.parametrize("start", [None, 0.3])
def test_steps_follow_the_gradient_of_the_tasks_loss_on_fresh_trials(fitted, start):
    state0 = jnp.zeros(4) if start is None else jnp.full(4, start)
    found = fitted if start is None else run(state0=state0)
    modules = (elman(jax.random.key(0)), readout(jax.random.key(1)))
    for step in range(6):
        value, gradient = by_hand(modules, TASK.batch(jax.random.fold_in(KEY, step), 5), state0)
        np.testing.assert_allclose(found.history.loss[step], value, rtol=1e-12)
        modules = eqx.apply_updates(modules, jax.tree.map(lambda g: -0.1 * g, gradient))
    for x, y in zip(arrays((found.last.map, found.last.readout)), arrays(modules), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-14)


def test_a_map_without_a_kernel_of_its_own_learns_in_its_precision(fitted):
    """A leaky network of leak 1 is the Elman network, by the general way; float32 is kept under x64."""
    net = elman(jax.random.key(0))
    leaky = dw.models.LeakyRNN(2, 4, dt=1.0, key=jax.random.key(0), dtype=jnp.float32)
    leaky = eqx.tree_at(
        lambda m: (m.recurrent_weight, m.input_weight), leaky,
        tuple(w.astype(jnp.float32) for w in (net.recurrent_weight, net.input_weight)),
    )  # fmt: skip
    single = jax.tree.map(lambda x: x.astype(jnp.float32) if eqx.is_array(x) else x, readout(jax.random.key(1)))
    found = run(leaky, readout=single)
    assert {str(x.dtype) for x in arrays((found.model, found.reconstruction))} == {"float32"}
    # Single precision, six steps.
    np.testing.assert_allclose(found.history.loss, fitted.history.loss, rtol=1e-5)


def test_validation_is_the_loss_on_fixed_trials_and_a_goal_ends_the_training(fitted, held_out):
    assert fitted.history.validation_step.tolist() == [3, 6]
    last = fitted.last
    states = jax.vmap(lambda x: dw.simulate(last.map, jnp.zeros(4), x))(held_out.inputs)
    outputs = jax.vmap(jax.vmap(last.readout))(states)
    value = TASK.loss(outputs, held_out.targets, held_out.mask)
    np.testing.assert_allclose(fitted.history.validation[1], value, rtol=1e-12)
    first, second = fitted.history.validation
    assert fitted.stats["best_step"] == (3 if first < second else 6)
    early = run(validation=held_out, validate_every=3, goal=float(first))
    assert early.stats["steps"] == 3
    assert identical(early.history.loss, fitted.history.loss[:3])
    assert run(validation=held_out, validate_every=3, goal=-1.0).stats["steps"] == 6


def test_an_interrupted_run_resumes_bit_for_bit(fitted, held_out, tmp_path):
    def interrupt(step, steps, figures):
        if step >= 3:
            raise KeyboardInterrupt

    options = {"validation": held_out, "validate_every": 3, "directory": tmp_path}
    assert run(progress=interrupt, **options).stats["interrupted"]
    resumed = run(resume=True, **options)
    assert resumed.stats["steps"] == 6
    assert identical((resumed.last, resumed.reconstruction), (fitted.last, fitted.reconstruction))
    assert identical(resumed.history, fitted.history)
    with pytest.raises(ArgumentError, match="another `task`"):
        run(task=Hold(chance_level=0.5), resume=True, **options)
    with pytest.raises(ArgumentError, match="another `state0`"):
        run(state0=jnp.ones(4), resume=True, **options)


def test_each_seed_is_a_training_of_its_own(held_out):
    keys = jax.random.split(jax.random.key(2), 2)
    options = {"batch_size": 5, "clip": None, "optimizer": OPTIMIZER, "validation": held_out, "validate_every": 3}
    found = training.fit_seeds(elman, TASK, keys=keys, readout=readout, steps=6, **options)
    first, second = jax.random.split(keys[1])
    alone = run(elman(first), key=second, readout=readout(jax.random.fold_in(first, 1)), **options)
    np.testing.assert_allclose(found.seed(1).history.loss, alone.history.loss, rtol=1e-12)
    np.testing.assert_allclose(found.seed(1).history.validation, alone.history.validation, rtol=1e-12)
    assert not np.allclose(found.history.loss[0], found.history.loss[1])


def test_a_rule_is_given_the_weights_of_the_steps(fitted):
    found = run(rule=dw.learning.BPTT(), penalty=lambda model: 0.0 * jnp.sum(model.readout.weight))
    np.testing.assert_allclose(found.history.loss, fitted.history.loss, rtol=1e-12)
    for x, y in zip(arrays(found.last.map), arrays(fitted.last.map), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-13)


def test_classes_and_states_that_are_read_directly():
    """A task with classes; the first coordinates are its logits, and a penalty sees the states."""

    class Small(training.AbstractPenalty):
        def __call__(self, model, states):
            assert states.shape == (5, 12, 6)
            return jnp.mean(states**2)

    task = dw.tasks.TemporalOrder(steps=12, min_steps=10)
    model = dw.models.Elman(task.input_size, 6, key=jax.random.key(0))
    found = training.fit(
        model, task, steps=1, key=KEY, batch_size=5, clip=None, optimizer=OPTIMIZER, penalty=Small(),
    )  # fmt: skip
    batch = task.batch(jax.random.fold_in(KEY, 0), 5)
    states = jax.vmap(lambda x: dw.simulate(model, jnp.zeros(6), x))(batch.inputs)
    value = task.loss(states[..., : task.output_size], batch.targets, batch.mask) + jnp.mean(states**2)
    np.testing.assert_allclose(found.history.loss[0], value, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"forcing": training.SparseTeacherForcing(3)}, ArgumentError, "`forcing` is for recordings"),
        ({"loss": training.mean_squared_error}, ArgumentError, "`loss` is for recordings"),
        ({"inputs": np.zeros((9, 2))}, ArgumentError, "`inputs` is for recordings"),
        ({"observed": "finite"}, ArgumentError, "`observed` is for recordings"),
        ({"noise": 0.1}, ArgumentError, "`noise` is for recordings"),
        ({"readout": dw.models.Readout(4, 3, key=KEY)}, ShapeError, r"`readout` must give 1 .* gives \(3,\)"),
        ({"readout": dw.models.Readout(5, 1, key=KEY)}, ShapeError, "Readout"),
        ({"model": dw.models.Elman(3, 4, key=KEY)}, ArgumentError, "Hold has 2 inputs; the Elman takes 3"),
        ({"state0": jnp.zeros(3)}, ShapeError, "`state0`"),
        ({"state0": jnp.full(4, jnp.nan)}, NonFiniteError, "`state0`"),
        ({"validation": TASK}, ArgumentError, r"task.batch\(key, n\)"),
        ({"validation": dw.tasks.FlipFlop().batch(KEY, 2)}, ShapeError, "validation.inputs"),
        ({"goal": 0.1}, ArgumentError, "give `validation`"),
        ({"goal": "low"}, ArgumentError, "`goal`"),
        ({"rule": 3}, ArgumentError, "`rule`"),
        ({"task": np.zeros((200, 1)), "state0": jnp.zeros(4)}, ArgumentError, "`state0` is for tasks"),
    ],
)
def test_messages(options, error, message):
    with pytest.raises(error, match=message):
        run(**options)
