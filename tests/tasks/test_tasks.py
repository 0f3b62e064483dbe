"""Every task: its trials against plain NumPy definitions, its chance level, its derivatives, its messages."""

import math
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynwarp as dw
from dynwarp.errors import ArgumentError, ShapeError

t = dw.tasks
N, FEW = 4000, 40
# What is run once has to be compiled fast, not to run fast.
FAST = {"xla_backend_optimization_level": 0}
TASKS = {
    "integration": t.ContextualIntegration(duration=1.0, dt=0.25, levels=5, context=1),
    "working memory": t.WorkingMemory(delays=(0.5, 1.0), dt=0.25),
    "subtraction": t.MemorySubtraction(delays=(1.0, 0.5), dt=0.25),
    "sequential memory": t.SequentialMemory(delays=(0.5, 1.0), dt=0.25, place=2),
    "flip-flop": t.FlipFlop(n_bits=2, steps=7, probability=0.4),
    "centre-out": t.CentreOut(n_neurons=6, delays=(0.2, 0.4), dt=0.2, observation="poisson"),
    "sine": t.SineGenerator(steps=20),
    "copy": t.Copy(delay=3, length=2, n_symbols=4),
    "adding": t.Adding(steps=9),
    "temporal order": t.TemporalOrder(steps=23, min_steps=11, n_relevant=3),
    "random permutation": t.RandomPermutation(steps=9, min_steps=4, n_symbols=5),
}
names = pytest.mark.parametrize("name", list(TASKS))


# The definitions once more, trial by trial in loops: (theta, condition) -> inputs, targets, mask.
def integration(task, theta, context):
    row = [theta[0], theta[1], float(context == 0), float(context == 1)]
    mask = np.zeros(4)
    mask[3] = 1
    return np.array([row] * 4), np.full((4, 1), np.sign(theta[context])), mask


def memory(items, answers, delay, channel=0, channels=1):
    """Pulses of two steps every four, a silence of 16 steps at the end, trials padded to the longer delay."""
    go = 4 * len(items) + delay
    end = go + 4 + 4 * len(answers) + 16
    steps = 4 * len(items) + 4 + 4 + 4 * len(answers) + 16
    inputs, targets, mask = np.zeros((steps, 2 + channels)), np.zeros((steps, 2)), np.zeros(steps)
    for k, angle in enumerate(items):
        inputs[4 * k : 4 * k + 2, :2] = np.cos(angle), np.sin(angle)
    inputs[go : go + 2, 2 + channel] = 1
    for k, angle in enumerate(answers):
        start = go + 4 + 4 * k
        targets[start : start + 2] = np.cos(angle), np.sin(angle)
        mask[start : start + 4] = 0.5 / (4 * len(answers))
    silent = [i for i in range(end) if i < go or i >= end - 16]
    mask[silent] = 0.5 / len(silent)
    return inputs, targets, mask


def flip_flop(task, theta, pulses):
    inputs = pulses.copy()
    inputs[0] = theta
    targets = inputs.copy()
    for i in range(1, len(targets)):
        targets[i] = np.where(targets[i] == 0, targets[i - 1], targets[i])
    return inputs, targets, np.ones(len(inputs))


def centre_out(task, theta, delay):
    bell = [16 * (s * (1 - s)) ** 2 for s in (0.1, 0.3, 0.5, 0.7, 0.9)]
    phi = 2 * np.pi * np.arange(6) / 6
    inputs, targets = np.full((9, 6), 2.0), np.zeros((9, 2))
    for i in range(1, 2 + delay):
        inputs[i] *= np.exp(0.5 * theta[1] * np.cos(theta[0] - 2 * phi))
    for j, b in enumerate(bell):
        inputs[2 + delay + j] *= np.exp(theta[1] * b * np.cos(theta[0] - phi))
        targets[2 + delay + j] = theta[1] * b * np.array([np.cos(theta[0]), np.sin(theta[0])])
    return inputs, targets, np.ones(9)


def sine(task, theta, _):
    level = (theta[0] - np.pi / 16) / (np.pi / 16) + 0.25
    return np.full((20, 1), level), np.sin(theta[0] * np.arange(20))[:, None], np.ones(20)


def copy(task, theta, _):
    symbols = [int(np.argmax(w)) if w.any() else 3 for w in theta.reshape(2, 3)]
    inputs = np.eye(6)[[*symbols, 4, 4, 5, 4, 4]]
    return inputs, np.eye(5)[[4] * 5 + symbols], np.ones(7)


def adding(task, theta, condition):
    places, others = condition
    assert 0 <= places[0] < 4 <= places[1] < 9
    inputs = np.stack([others, np.zeros(9)], axis=1)
    inputs[places[0]], inputs[places[1]] = (theta[0], 1), (theta[1], 1)
    return inputs, np.full((9, 1), theta.sum()), np.eye(9)[8]


def temporal_order(task, theta, condition):
    length, places, others = condition
    inputs = np.zeros((23, 6))
    for i in range(length):
        inputs[i, 2 + others[i]] = 1
    for tenth, place, value in zip((1, 3, 6), places, theta):
        assert length * tenth // 10 <= place < max(length * (tenth + 1) // 10, length * tenth // 10 + 1)
        inputs[place] = np.eye(6)[int(value)]
    kind = int(theta @ [1, 2, 4])
    return inputs, np.tile(np.eye(8)[kind], (23, 1)), np.eye(23)[length - 1]


def random_permutation(task, theta, condition):
    length, others = condition
    symbols = [int(theta[0]), *others[1:length]]
    assert min(symbols[1:]) >= 2
    inputs = np.zeros((9, 5))
    inputs[:length] = np.eye(5)[symbols]
    return inputs, np.tile(np.eye(5)[symbols[0]], (9, 1)), np.eye(9)[length - 1]


DEFINITIONS = {
    "integration": integration,
    "working memory": lambda task, theta, delay: memory(theta, theta, (2, 4)[delay]),
    "subtraction": lambda task, theta, delay: memory(theta, [theta[0] - theta[1]], (4, 2)[delay]),
    "sequential memory": lambda task, theta, c: memory(theta, [theta[c[1]]], (2, 4)[c[0]], c[1], 3),
    "flip-flop": flip_flop,
    "centre-out": centre_out,
    "sine": sine,
    "copy": copy,
    "adding": adding,
    "temporal order": temporal_order,
    "random permutation": random_permutation,
}


def everything(task, key):
    """All that the tests look at of a task, in one program."""
    batch = task.batch(key, N)
    clean = jax.vmap(task.inputs)(batch.thetas[:FEW], jax.tree.map(lambda leaf: leaf[:FEW], batch.conditions))

    low, high = np.array(task._ranges("test")).T
    inside = jnp.asarray(low + 0.3 * (high - low) * (1 + 0.01 * np.arange(task.dim)))
    direction = jnp.cos(jnp.arange(1.0, task.dim + 1))
    derivative = jax.jvp(lambda x: (task(x), task.targets(x)), (inside,), (direction,))[1]
    h = 1e-5
    ahead, behind = (inside + s * h * direction for s in (1, -1))
    difference = jax.tree.map(
        lambda a, b: (a - b) / (2 * h), (task(ahead), task.targets(ahead)), (task(behind), task.targets(behind))
    )
    times = jnp.asarray(np.arange(task.steps) * task.dt)
    held = jax.vmap(lambda s: (task(inside, s), task(inside, s + 0.6 * task.dt)))(times)
    mean = jnp.mean(batch.targets, axis=0)
    answer = jnp.broadcast_to(jnp.log(mean + 1e-30) if task.classes else mean, batch.targets.shape)
    chance = task.loss(answer, batch.targets, batch.mask), task.error(answer, batch.targets, batch.mask)
    return batch, clean, derivative, difference, task(inside), held, chance


@pytest.fixture(scope="module")
def programs():
    key = jax.random.key(1)
    return {n: jax.jit(partial(everything, task)).lower(key).compile(FAST) for n, task in TASKS.items()}


@pytest.fixture(scope="module")
def results(programs):
    return {name: jax.tree.map(np.asarray, program(jax.random.key(1))) for name, program in programs.items()}


@names
def test_shapes_and_protocol(results, name):
    task, (batch, *_) = TASKS[name], results[name]
    assert isinstance(task, dw.tasks.InputManifold)
    assert batch.inputs.shape == (N, task.steps, task.input_size)
    assert batch.targets.shape == (N, task.steps, task.output_size)
    assert batch.mask.shape == (N, task.steps)
    assert batch.thetas.shape == (N, task.dim)
    assert (batch.mask >= 0).all()
    np.testing.assert_allclose(batch.mask.sum(1), batch.mask[0].sum(), rtol=1e-12)
    low, high = np.array(task._ranges("test")).T
    assert ((batch.thetas >= low) & (batch.thetas <= high)).all()
    assert len(np.unique(batch.inputs.reshape(N, -1), axis=0)) > 1


@names
def test_trials_follow_the_definition(results, name):
    batch, clean, *_ = results[name]
    for i in range(FEW):
        condition = jax.tree.map(lambda leaf, i=i: leaf[i], batch.conditions)
        inputs, targets, mask = DEFINITIONS[name](TASKS[name], batch.thetas[i], condition)
        np.testing.assert_allclose(clean[i], inputs, atol=1e-14)
        np.testing.assert_allclose(batch.targets[i], targets, atol=1e-14)
        np.testing.assert_allclose(batch.mask[i] / batch.mask[i].sum(), mask / mask.sum(), atol=1e-14)
        if name != "centre-out":
            np.testing.assert_array_equal(batch.inputs[i], clean[i])


@names
def test_chance_is_the_loss_of_the_best_answer_without_inputs(results, name):
    loss, error = results[name][-1]
    level = TASKS[name].chance_level
    # The error of a mean over 4000 trials of terms no more variable than these is below a percent.
    assert loss == pytest.approx(level, rel=0.04)
    if name in ("temporal order", "random permutation", "copy"):
        wrong = {"temporal order": 7 / 8, "random permutation": 1 / 2, "copy": 2 / 7 * 3 / 4}[name]
        assert error == pytest.approx(wrong, rel=0.05)
    elif not TASKS[name].classes:
        assert error == pytest.approx(math.sqrt(loss))


@names
def test_derivatives(results, name):
    _, _, derivative, difference, *_ = results[name]
    for got, expected in zip(derivative, difference):
        np.testing.assert_allclose(got, expected, atol=1e-8 * max(1, np.abs(expected).max()))
    assert np.abs(derivative[0]).max() > 0


@names
def test_as_a_signal_rows_are_held(results, name):
    rows, (at, later) = results[name][4:6]
    np.testing.assert_array_equal(at, rows)
    np.testing.assert_array_equal(later, rows)


def test_breakpoints():
    np.testing.assert_allclose(t.WorkingMemory().breakpoints(), [0.5, 1.0, 1.5, 5.5, 6.0])
    assert t.ContextualIntegration().breakpoints().size == 0


def test_counts_have_the_mean_of_the_rates(results):
    batch, *_ = results["centre-out"]
    assert (batch.inputs == np.round(batch.inputs)).all()
    task = TASKS["centre-out"]
    # Before the target all rates are 10 Hz, two counts a bin; the variance of a count is its mean.
    first = batch.inputs[:, 0]
    assert first.mean() == pytest.approx(2, abs=5 * math.sqrt(2 / first.size))
    assert first.var() == pytest.approx(2, rel=0.05)
    inputs = jnp.ones((task.steps, 6))
    assert eqx.tree_equal(t.CentreOut(n_neurons=6).observe(inputs, jax.random.key(0)), inputs)


def test_what_neurons_do_in_the_delay_is_orthogonal_to_what_they_do_in_the_movement():
    task = t.CentreOut(n_neurons=8)
    rows = np.log(np.asarray(jax.jit(jax.vmap(task))(jnp.array([[0.4, 1.0], [2.0, 1.0]]))) * 2)
    waiting, moving = rows[:, 10], rows[:, 30]
    np.testing.assert_allclose(waiting @ moving.T, 0, atol=1e-12)
    assert (np.linalg.norm(waiting, axis=1) > 0.5).all()


@names
def test_keys_decide(programs, results, name):
    same, other = programs[name](jax.random.key(1))[0], programs[name](jax.random.key(7))[0]
    assert eqx.tree_equal(jax.tree.map(np.asarray, same), results[name][0])
    assert not np.allclose(same.inputs, other.inputs)


def test_published_settings():
    # spec values: the copy baseline 10 ln 8 / (T + 20), the sum and the mean of two numbers.
    for delay, level in ((100, 0.173287), (500, 0.0399893), (1000, 0.0203867)):
        assert t.Copy(delay=delay).chance_level == pytest.approx(level, rel=3e-6)
    assert t.Adding(target="mean").chance_level == pytest.approx(1 / 24)
    assert t.ContextualIntegration().chance_level == pytest.approx(10 / 11)
    assert t.ContextualIntegration(levels=4).chance_level == 1
    memory = t.WorkingMemory()
    assert (memory.steps, memory.input_size, memory.dim) == (125, 3, 2)
    onset = np.flatnonzero(np.abs(np.asarray(memory.targets(jnp.array([0.1, 0.1])))).sum(1))[[0, 5]] * memory.dt
    np.testing.assert_allclose(onset, [6.5, 7.5])
    order = t.TemporalOrder()
    assert (order.steps, order.min_steps, order.input_size, order.output_size) == (200, 50, 6, 4)


def test_loss_of_classes_and_precision():
    task = t.Copy(delay=1, length=1, n_symbols=2)
    targets = jax.nn.one_hot(jnp.array([[2, 2, 0]]), 3, dtype=jnp.float64)
    outputs = jnp.array([[[0.0, 0, 2], [0, 0, 0], [1, 3, 0]]], jnp.float32)
    e = np.exp
    expected = (math.log(2 + e(2)) - 2) + 0 + (math.log(e(1) + e(3) + 1) - 1) * 2
    loss = task.loss(outputs, targets, jnp.array([[1.0, 0.0, 2.0]]))
    assert loss.dtype == jnp.float32
    assert float(loss) == pytest.approx(expected / 3, rel=1e-6)
    assert float(task.error(outputs, targets, jnp.array([[1.0, 0.0, 2.0]]))) == pytest.approx(2 / 3)
    assert t.WorkingMemory()(jnp.zeros(2, jnp.float32)).dtype == jnp.float32


def test_a_network_learns_a_bit():
    task = t.FlipFlop(n_bits=1, steps=6)
    net_key, readout_key, data_key = jax.random.split(jax.random.key(0), 3)
    model = dw.models.Elman(1, 6, key=net_key), dw.models.Readout(6, 1, key=readout_key)
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    optimizer = optax.adam(0.02)

    def loss(parameters, key):
        net, readout = eqx.combine(parameters, rest)
        batch = task.batch(key, 32)
        states = jax.vmap(lambda x: dw.simulate(net, jnp.zeros(6), x))(batch.inputs)
        return task.loss(jax.vmap(jax.vmap(readout))(states), batch.targets, batch.mask)

    def train(parameters, keys):
        def step(carry, key):
            parameters, state = carry
            value, gradient = jax.value_and_grad(loss)(parameters, key)
            with jax.numpy_dtype_promotion("standard"):
                updates, state = optimizer.update(gradient, state)
            return (eqx.apply_updates(parameters, updates), state), value

        return jax.lax.scan(step, (parameters, optimizer.init(parameters)), keys)[1]

    keys = jax.random.split(data_key, 150)
    losses = jax.jit(train).lower(parameters, keys).compile(FAST)(parameters, keys)
    assert losses[-1] < 0.1 * task.chance_level


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: t.ContextualIntegration(context=2), "ContextualIntegration: `context` must be 0 or 1; got 2"),
        (lambda: t.ContextualIntegration(limit=-1.0), "`limit` must be positive"),
        (lambda: t.ContextualIntegration(levels=1), "`levels` must be a whole number of at least 2; got 1"),
        (lambda: t.WorkingMemory(n_items=0), "WorkingMemory: `n_items` must be a whole number"),
        (lambda: t.WorkingMemory(delays=(0.55,)), "`delays` must be a whole number of steps of `dt` 0.1; got 0.55"),
        (lambda: t.WorkingMemory(delays=[0.5]), r"`delays` must be a tuple of at least one time; got \[0.5\]"),
        (lambda: t.MemorySubtraction(pulse=0.0), "MemorySubtraction: `pulse` must be positive"),
        (lambda: t.SequentialMemory(place=3), "`place` must be less than `n_items` 3; got 3"),
        (lambda: t.FlipFlop(probability=1.5), "`probability` must be a number from 0 to 1; got 1.5"),
        (lambda: t.CentreOut(observation="spikes"), "`observation` must be one of 'rate', 'poisson'; got 'spikes'"),
        (lambda: t.CentreOut(speeds=(2.0, 1.0)), "`speeds` must be two finite numbers that increase"),
        (lambda: t.CentreOut(n_neurons=4), "`n_neurons` must be a whole number of at least 5"),
        (lambda: t.CentreOut(dt=0.3), "must be a whole number of steps of `dt` 0.3"),
        (lambda: t.SineGenerator(frequencies=(0.0, 1.0)), r"`frequencies\[0\]` must be positive"),
        (lambda: t.Copy(n_symbols=1), "Copy: `n_symbols` must be a whole number of at least 2"),
        (lambda: t.Adding(target="product"), "`target` must be one of 'sum', 'mean'; got 'product'"),
        (lambda: t.TemporalOrder(n_relevant=4), "`n_relevant` must be 2 or 3; got 4"),
        (lambda: t.TemporalOrder(min_steps=5), "`min_steps` must be a whole number of at least 10"),
        (lambda: t.RandomPermutation(steps=10), "`steps` must be a whole number of at least 50; got 10"),
        (lambda: t.FlipFlop().batch(jax.random.key(0), 0), "FlipFlop.batch: `n` must be a whole number"),
    ],
)
def test_messages(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_messages_of_shapes():
    task = t.WorkingMemory()
    with pytest.raises(ShapeError, match=r"WorkingMemory: `theta` must have shape \(2,\); got \(3,\)"):
        task(jnp.zeros(3))
    with pytest.raises(ShapeError, match=r"`outputs` must have shape \(125, 2\); got \(125, 1\)"):
        task.loss(jnp.zeros((125, 1)), jnp.zeros((125, 2)), jnp.ones(125))
    with pytest.raises(TypeError, match="abstract"):
        t.AbstractTask()
