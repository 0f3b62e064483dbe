"""Training by a rule: on the expectation, on samples, online, and through `fit`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynwarp as dw
from dynwarp import learning as l
from dynwarp import models as m
from dynwarp._results import RESULTS
from dynwarp.errors import ArgumentError, ShapeError


def scalar_network(a, b, w):
    return m.LinearRNN(*(jnp.array([[x]]) for x in (w, b, a)))


@pytest.mark.parametrize("rule", [l.BPTT(), l.RFLO(jnp.array([[1.0]]), 0.5)], ids=["bptt", "rflo"])
def test_gradient_descent_becomes_the_flow_at_order_one(rule):
    student, teacher = scalar_network(0.5, 0.3, 0.1), scalar_network(1.0, 1.0, 0.6)
    mode_rule = l.BPTT() if isinstance(rule, l.BPTT) else l.RFLO(1.0, 0.5)
    flow = l.integrate_modes(
        mode_rule, l.Teacher(1.0, 1.0, 0.6), jnp.array([[0.5, 0.3, 0.1]]), jnp.array([0.0, 1.0]), rtol=1e-11, atol=1e-12
    )
    end = flow.values[0, -1]
    rates, errors = np.array([0.04, 0.02, 0.01, 0.005]), []
    for rate in rates:
        run = l.train_on_expectation(rule, student, teacher, steps=round(1 / rate), optimizer=optax.sgd(rate))
        reached = jnp.array([x[0, 0] for x in (run.student.A, run.student.B, run.student.W)])
        errors.append(float(jnp.linalg.norm(reached - end)))
    slope = np.polyfit(np.log(rates), np.log(errors), 1)[0]
    assert 0.95 < slope < 1.05
    assert errors[-1] < 0.01


def test_expected_training_is_what_the_updates_say():
    student, teacher = scalar_network(0.5, 0.3, 0.1), scalar_network(1.0, 1.0, 0.6)
    rule = l.TBPTT(2)
    run = l.train_on_expectation(rule, student, teacher, steps=6, optimizer=optax.sgd(0.1), horizon=5, record_every=3)
    net, losses = student, []
    for k in range(6):
        if k % 3 == 0:
            losses.append(l.expected_loss(net, teacher, horizon=5))
        dW, dB, dA = l.expected_update(rule, net, teacher, horizon=5)
        net = m.LinearRNN(net.W - 0.1 * dW, net.B - 0.1 * dB, net.A - 0.1 * dA)
    losses.append(l.expected_loss(net, teacher, horizon=5))
    np.testing.assert_allclose(run.losses, jnp.array(losses), rtol=1e-13)
    np.testing.assert_allclose(run.student.W, net.W, rtol=1e-13)
    assert bool(run.result == RESULTS.successful)

    # The wrong sign of feedback: the run is given up, finite, and the others in the batch go on.
    feedback = jnp.array([[[1.0]], [[-3.0]]])
    both = eqx.filter_vmap(
        lambda R: l.train_on_expectation(
            l.RFLO(R, 0.5), student, teacher, steps=600, optimizer=optax.sgd(0.05), horizon=20, record_every=100
        )
    )(feedback)
    assert [bool(x) for x in both.result == RESULTS.diverged] == [False, True]
    assert bool(jnp.all(jnp.isfinite(both.losses)))
    assert float(both.losses[0, -1]) < 1e-3 * float(both.losses[0, 0])
    with pytest.raises(ArgumentError, match="`record_every` must divide `steps`; got 4 and 6"):
        l.train_on_expectation(rule, student, teacher, steps=6, optimizer=optax.sgd(0.1), record_every=4)


N, D, OUTS, T = 4, 2, 1, 30


@pytest.fixture(scope="module")
def sequence():
    net, out = m.Elman(D, N, key=jax.random.key(0)), m.Readout(N, OUTS, key=jax.random.key(1))
    return net, out, jax.random.normal(jax.random.key(2), (T, D)), jax.random.normal(jax.random.key(3), (T, OUTS))


def test_online_is_frozen_up_to_the_rate(sequence):
    """The sum of small steps is T times the gradient of the mean loss, with an error of the order of the rate."""
    net, out, inputs, targets = sequence
    rule, start = l.EProp(), jnp.full(N, 0.1)
    loss, frozen = rule.gradients(net, out, inputs, targets, state0=start, loss=l.half_squared_error)
    errors = []
    for rate in (1e-3, 1e-4, 1e-5):
        run = l.learn_online(rule, net, out, inputs, targets, state0=start, optimizer=optax.sgd(rate))
        moved = jax.tree.map(
            lambda a, b: (a - b) / (rate * T),  # noqa: B023
            eqx.filter((net, out), eqx.is_inexact_array),
            eqx.filter((run.model, run.readout), eqx.is_inexact_array),
        )
        differences = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), moved, frozen)
        errors.append(max(float(x) for x in jax.tree.leaves(differences)))
    assert errors[0] > 1e-4
    assert np.all(np.abs(np.array(errors[:2]) / np.array(errors[1:]) - 10) < 1)
    assert abs(float(jnp.mean(run.losses)) - float(loss)) < 1e-3


def test_online_uses_the_weights_of_its_time(sequence):
    """Against a loop that calls the trace step by step."""
    net, out, inputs, targets = sequence
    R = jax.random.normal(jax.random.key(5), (OUTS, N))
    rule, rate, steps = l.RFLO(R, 0.7), 0.1, 5
    run = l.learn_online(rule, net, out, inputs[:steps], targets[:steps], state0=jnp.ones(N), optimizer=optax.sgd(rate))
    W, U, b, C, c = net.recurrent_weight, net.input_weight, net.bias, out.weight, out.bias
    trace, state = jnp.zeros((N, N)), jnp.ones(N)
    inputs_trace, bias_trace = jnp.zeros((N, D)), jnp.zeros(N)
    for x, y in zip(inputs[:steps], targets[:steps]):
        after = jnp.tanh(W @ state + U @ x + b)
        slope = (1 - after**2)[:, None]
        trace, inputs_trace = 0.7 * trace + slope * state, 0.7 * inputs_trace + slope * x
        bias_trace = 0.7 * bias_trace + slope[:, 0]
        state = after
        error = C @ state + c - y
        g = R.T @ error
        W, U, b = W - rate * g[:, None] * trace, U - rate * g[:, None] * inputs_trace, b - rate * g * bias_trace
        C, c = C - rate * jnp.outer(error, state), c - rate * error
    np.testing.assert_allclose(run.model.recurrent_weight, W, atol=1e-14)
    np.testing.assert_allclose(run.model.input_weight, U, atol=1e-14)
    np.testing.assert_allclose(run.readout.weight, C, atol=1e-14)


def test_online_goes_on_and_refuses(sequence):
    net, out, inputs, targets = sequence
    optimizer = optax.sgd(0.01, momentum=0.9)
    run = lambda model, readout, i, **k: l.learn_online(  # noqa: E731
        l.UORO(), model, readout, inputs[i], targets[i], state0=jnp.zeros(N), optimizer=optimizer, **k
    )
    first = run(net, out, slice(0, 10), key=jax.random.key(0))
    later = dict(i=slice(10, 20), key=jax.random.key(1))
    second = run(first.model, first.readout, **later, optimizer_state=first.optimizer_state)
    fresh = run(first.model, first.readout, **later)
    assert not jnp.allclose(second.model.recurrent_weight, fresh.model.recurrent_weight)
    with pytest.raises(ArgumentError, match="learn_online: the random signs need a `key`"):
        run(net, out, slice(0, 10))
    with pytest.raises(ArgumentError, match="sliding horizon of 2 has no forward trace"):
        l.learn_online(l.TBPTT(2), net, out, inputs, targets, state0=jnp.zeros(N), optimizer=optimizer)
    with pytest.raises(ShapeError, match="learn_online: `state0` must have shape"):
        l.learn_online(l.EProp(), net, out, inputs, targets, state0=jnp.zeros(3), optimizer=optimizer)
    with pytest.raises(ArgumentError, match="`sample` must be a function"):
        l.train_on_samples(l.BPTT(), net, out, inputs, steps=2, optimizer=optimizer, key=jax.random.key(0))


def test_samples_train_a_gated_network():
    teacher = scalar_network(1.0, 1.0, 0.6)
    net, out = m.GRU(1, 6, key=jax.random.key(0)), m.Readout(6, 1, key=jax.random.key(1))
    R = jax.random.normal(jax.random.key(2), (1, 6))
    for rule in (l.BPTT(), l.EProp(R)):
        run = l.train_on_samples(
            rule, net, out, l.WhiteNoiseTask(teacher, 12),
            steps=200, optimizer=optax.adam(0.01), key=jax.random.key(3), batch_size=4,
        )  # fmt: skip
        assert float(jnp.mean(run.losses[-20:])) < 0.5 * float(jnp.mean(run.losses[:20]))


def test_fit_learns_by_a_rule():
    t = jnp.arange(200.0)
    circle = np.asarray(jnp.stack([jnp.sin(t / 5), jnp.cos(t / 5)], axis=1))
    model = m.ALRNN(6, 2, key=jax.random.key(0))
    options = dict(steps=40, sequence_length=8, optimizer=optax.sgd(0.05), key=jax.random.key(1))
    rule = l.RFLO(jnp.eye(2, 6), 0.9)
    fitted = dw.training.fit(model, circle, rule=rule, **options)
    assert float(np.mean(fitted.history.loss[-5:])) < 0.5 * fitted.history.loss[0]
    # By the exact rule `fit` does what it does by differentiation, the initial state's map apart.
    exact = dw.training.fit(model, circle, rule=l.BPTT(), **options)
    plain = dw.training.fit(model, circle, forcing=None, **options)
    np.testing.assert_allclose(exact.history.loss[0], plain.history.loss[0], rtol=1e-12)


@pytest.mark.slow
def test_convergence_and_rank_over_twenty_seeds():
    """Section 4.2 of the reference: the counts are those of initial scale times feedback scale, not of a rule alone."""
    n, hidden, length = 20, 4, 30

    def draw(key):
        k = jax.random.split(key, 7)
        normal = jax.random.normal
        rates = jax.random.uniform(k[0], (hidden,), minval=0.2, maxval=0.8)
        teacher = m.LinearRNN(jnp.diag(rates), normal(k[1], (hidden, 1)), normal(k[2], (1, hidden)) / 2)
        student = m.LinearRNN(*(0.2 * normal(i, s) for i, s in zip(k[3:6], ((n, n), (n, 1), (1, n)))))
        return student, teacher, 4.5 * normal(k[6], (1, n)) / n**0.5

    students, teachers, feedback = jax.vmap(draw)(jax.random.split(jax.random.key(0), 20))
    optimizer = optax.sgd(0.005)
    rules = {"bptt": lambda R: l.BPTT(), "tbptt": lambda R: l.TBPTT(1)}
    rules |= {"rflo": lambda R: l.RFLO(R, 0.5), "eprop": l.EProp}
    converged, effective = {}, {}
    for name, make in rules.items():
        run = eqx.filter_vmap(
            lambda s, t, R, make=make: l.train_on_expectation(
                make(R), s, t, steps=8000, optimizer=optimizer, horizon=length, record_every=1000
            )
        )(students, teachers, feedback)
        converged[name] = int(jnp.sum(run.losses[:, -1] < 0.1 * run.losses[:, 0]))
        profiles = jax.vmap(l.rank_profile)(students.W, run.student.W)
        effective[name] = float(jnp.mean(profiles.effective_rank))
    assert converged["bptt"] >= 19
    assert converged["tbptt"] >= 18
    assert 9 <= converged["rflo"] <= 16
    assert 8 <= converged["eprop"] <= 15
    assert effective["bptt"] > effective["eprop"] > effective["tbptt"] > effective["rflo"]
    assert 5 < effective["bptt"] < 7
    assert 1.3 < effective["tbptt"] < 1.8
    assert 1.6 < effective["eprop"] < 2.3
    assert abs(effective["rflo"] - 1) < 0.01
