"""The sample engine: every rule by its reverse recursion, by its forward trace, and by loops in numpy."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp import learning as l
from dynwarp import models as m
from dynwarp.errors import ArgumentError, ModelError, ShapeError
from dynwarp.learning import _engine as engine
from dynwarp.learning._traces import RankOneTrace
from dynwarp.learning._transport import Moment, unit_blocks
from dynwarp.learning._units import parameter_kinds

N, D, OUTS, T = 9, 3, 2, 40
LOSS = l.half_squared_error
R = jax.random.normal(jax.random.key(7), (OUTS, N))
INPUTS = jax.random.normal(jax.random.key(1), (T, D))
TARGETS = jax.random.normal(jax.random.key(2), (T, OUTS))
START = 0.3 * jax.random.normal(jax.random.key(3), (N,))
ELMAN = m.Elman(D, N, key=jax.random.key(4))
READOUT = m.Readout(N, OUTS, key=jax.random.key(5))

RULES = {
    "bptt": l.BPTT(),
    "sliding": l.TBPTT(3),
    "chunked": l.ChunkedTBPTT(3),
    "rflo": l.RFLO(R, 0.6),
    "eprop": l.EProp(),
    "eprop random": l.EProp(R),
    "eprop leak": l.EProp(propagator="leak"),
    "alignment": l.FeedbackAlignment(R),
    "homotopy": l.homotopy(0.4, feedback=R, decay=0.6),
    "user": l.Rule(R, lambda J: 0.8 * J.T @ J, None),
}


def distance(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max((float(jnp.max(jnp.abs(x - y))) for x, y in pairs if x.size), default=0.0)


def gradients(rule, model=ELMAN, readout=READOUT, state0=START, **options):
    return rule.gradients(model, readout, INPUTS, TARGETS, state0=state0, loss=LOSS, **options)


def by_autodiff(model, readout, state0):
    def loss(networks):
        model, readout = networks
        states = dw.simulate(model, state0, INPUTS)
        return jnp.mean(jax.vmap(LOSS)(jax.vmap(readout)(states, INPUTS), TARGETS))

    return eqx.filter_value_and_grad(loss)((model, readout))


@pytest.fixture(scope="module")
def reverse():
    return {name: gradients(rule, engine="reverse") for name, rule in RULES.items()}


def test_the_rules_differ_from_each_other(reverse):
    # A comparison of engines says nothing where the rules agree anyway.
    for first, second in itertools.combinations(reverse, 2):
        assert distance(reverse[first][1][0], reverse[second][1][0]) > 1e-3, (first, second)
    for _, (_, of_readout) in reverse.values():
        assert distance(of_readout, reverse["bptt"][1][1]) == 0  # all train the readout alike


@pytest.mark.parametrize("name", RULES)
def test_elman_by_hand(name, reverse):
    """Every term of every rule written out: e[k] goes back through a product of Z, one lag after the other."""
    W, U, b = (np.asarray(getattr(ELMAN, f)) for f in ("recurrent_weight", "input_weight", "bias"))
    A = np.asarray(READOUT.weight)
    states, slopes = [np.asarray(START)], []
    for x in np.asarray(INPUTS):
        states.append(np.tanh(W @ states[-1] + U @ x + b))
        slopes.append(1 - states[-1] ** 2)
    r = np.asarray(R)
    F = {"rflo": r.T, "eprop random": r.T, "alignment": r.T, "user": r.T, "homotopy": 0.6 * A.T + 0.4 * r.T}
    dW, dU = np.zeros_like(W), np.zeros_like(U)
    for k in range(T):
        error = (A @ states[k + 1] + np.asarray(READOUT.bias) - np.asarray(TARGETS[k])) / T
        g = F.get(name, A.T) @ error
        for j in range(k, -1, -1):  # g is the error at the state after step j
            if (name == "sliding" and k - j >= 3) or (name == "chunked" and j < k - k % 3):
                break
            dW += np.outer(slopes[j] * g, states[j])
            dU += np.outer(slopes[j] * g, np.asarray(INPUTS[j]))
            J = slopes[j][:, None] * W
            Z = {
                "rflo": 0.6 * np.eye(N),
                "eprop": np.diag(np.diag(J)),
                "eprop random": np.diag(np.diag(J)),
                "eprop leak": np.zeros((N, N)),
                "homotopy": 0.6 * J.T + 0.4 * 0.6 * np.eye(N),
                "user": 0.8 * J.T @ J,
            }.get(name, J.T)
            g = Z @ g
    gradient = reverse[name][1][0]
    np.testing.assert_allclose(gradient.recurrent_weight, dW, rtol=0, atol=1e-13)
    np.testing.assert_allclose(gradient.input_weight, dU, rtol=0, atol=1e-13)


def contributions(rule, model, state0, forward):
    """What the error of every step makes of the parameters, by either engine."""
    signals = jax.random.normal(jax.random.key(9), (T, model.state_size))
    return _contributions(rule, model, state0, signals, forward)


@eqx.filter_jit
def _contributions(rule, model, state0, signals, forward):
    path, _ = engine.moments(model, state0, INPUTS, T)
    if forward:
        return engine.trace_contributions(rule, model, path, signals, None, 2**30, each=True)
    alone = jax.vmap(lambda k: jnp.where(jnp.arange(T)[:, None] == k, signals, 0))(jnp.arange(T))
    return jax.vmap(lambda s: engine.parameter_gradient(model, path, engine.adjoints(rule, model, path, s)))(alone)


# Feedback has no part in this: rules that differ in it alone are left out, and a sliding horizon has no trace.
@pytest.mark.parametrize("name", ["bptt", "chunked", "rflo", "eprop", "eprop leak", "homotopy", "user"])
def test_traces_agree_with_the_recursion_step_by_step(name):
    rule = RULES[name]
    assert distance(contributions(rule, ELMAN, START, True), contributions(rule, ELMAN, START, False)) < 1e-13


def sparse_elman():
    ring = jnp.roll(jnp.eye(N), 1, axis=0) * 0.9 + 0.3 * jnp.eye(N)
    return eqx.tree_at(lambda e: e.recurrent_weight, ELMAN, ring)


def full_matrix_plrnn():
    model = m.PLRNN(N, input_size=D, off_diagonal=False, key=jax.random.key(4))
    weights = 0.12 * jax.random.normal(jax.random.key(6), (2, N, N))
    return eqx.tree_at(lambda p: (p.A, p.W), model, (weights[0], weights[1]))


CELLS = {
    "elman pre": (lambda: m.Elman(D, N, form="pre", key=jax.random.key(4)), l.EProp()),
    "elman without bias": (lambda: m.Elman(D, N, use_bias=False, key=jax.random.key(4)), l.EProp()),
    "leaky, one time constant": (
        lambda: m.LeakyRNN(D, N, dt=0.4, tau=jnp.array(1.3), key=jax.random.key(4)),
        l.EProp(propagator="leak"),
    ),
    "leaky, snap": (lambda: m.LeakyRNN(D, N, dt=0.4, tau=jnp.array(1.3), key=jax.random.key(4)), l.SnAp(2)),
    "sparse, snap": (sparse_elman, l.SnAp(2)),
    "gru": (lambda: m.GRU(D, N, key=jax.random.key(4)), l.EProp()),
    "lstm": (lambda: m.LSTM(D, N, key=jax.random.key(4)), l.EProp()),
    "plrnn": (full_matrix_plrnn, l.EProp()),
    "alrnn": (lambda: m.ALRNN(N, 3, input_size=D, key=jax.random.key(4)), l.RFLO(R, 0.7)),
    "lru": (lambda: m.LRU(D, N, OUTS, r_min=0.3, r_max=0.9, key=jax.random.key(4)), l.ChunkedTBPTT(3)),
    "equinox": (lambda: m.from_cell(eqx.nn.GRUCell(D, N, key=jax.random.key(4)), N, D), l.EProp(R)),
}


@pytest.mark.parametrize("name", [name for name in CELLS if name not in ("alrnn", "elman without bias")])
def test_engines_agree_in_every_cell(name):
    make, rule = CELLS[name]
    model = make()
    start = 0.3 * jax.random.normal(jax.random.key(3), (model.state_size,))
    forward, backward = (contributions(rule, model, start, f) for f in (True, False))
    assert distance(forward, backward) < 1e-13
    if name in ("lstm", "plrnn", "sparse, snap"):  # nothing that holds for the gradient alone
        assert distance(backward, contributions(l.BPTT(), model, start, False)) > 1e-3


@pytest.mark.parametrize("name", ["linear", "lstm", "lru", "equinox"])
def test_the_exact_rules_are_the_gradient(name):
    key = jax.random.key(4)
    model = {
        "linear": lambda: m.LinearRNN(
            0.4 * jax.random.normal(key, (N, N)), jax.random.normal(key, (N, D)), jax.random.normal(key, (OUTS, N))
        ),
    }.get(name, CELLS.get(name, (None,))[0])()
    start = 0.3 * jax.random.normal(jax.random.key(3), (model.state_size,))
    readout = m.Readout(model.state_size, OUTS, activation=jnp.tanh, key=jax.random.key(5))
    value, expected = by_autodiff(model, readout, start)
    for rule in (l.BPTT(), l.RTRL(), l.TBPTT(T)) if name == "linear" else (l.BPTT(), l.RTRL()):
        loss, gradient = gradients(rule, model, readout, start)
        assert abs(loss - value) < 1e-14
        assert distance(gradient, expected) < 1e-12
        assert jax.tree.structure(gradient[0]) == jax.tree.structure(eqx.filter(model, eqx.is_inexact_array))
        assert jax.tree.structure(gradient[1]) == jax.tree.structure(eqx.filter(readout, eqx.is_inexact_array))
    if name == "lru":  # modes that do not mix: e-prop and SnAp leave nothing out
        assert distance(gradients(l.EProp(), model, readout, start)[1], expected) < 1e-12
    if name == "linear":
        states = dw.simulate(model, start, INPUTS)
        cotangents = jax.vmap(jax.grad(lambda z, y: LOSS(readout(z), y) / T))(states, TARGETS)
        recursion = dw.dynamics.adjoint_recursion(model, start, INPUTS, cotangents)
        assert distance(gradients(l.BPTT(), model, readout, start)[1][0], recursion.model) < 1e-12


def test_a_readout_that_sees_the_input_and_a_model_without_any():
    lru = m.LRU(D, N, OUTS, r_min=0.3, r_max=0.9, key=jax.random.key(4))
    start = jnp.ones(2 * N) / 4
    value, expected = by_autodiff(lru, lru.readout(), start)
    loss, gradient = gradients(l.BPTT(), lru, lru.readout(), start)
    assert abs(loss - value) < 1e-14
    assert distance(gradient, expected) < 1e-12
    assert distance(gradient[1].D, jnp.zeros((OUTS, D))) > 1e-3

    free = m.Elman(0, N, key=jax.random.key(4))
    loss, (of_net, _) = l.BPTT().gradients(free, eqx.nn.Linear(N, OUTS, key=jax.random.key(5)), None, TARGETS,
                                           state0=START, loss=LOSS)  # fmt: skip
    with_none = l.RFLO(R, 0.5).gradients(free, READOUT, None, TARGETS, state0=START, loss=LOSS)
    assert bool(jnp.isfinite(loss))
    assert distance(of_net, with_none[1][0]) > 1e-3


def test_snap_on_a_sparse_network_keeps_the_entries_within_reach():
    model = sparse_elman()
    W = np.asarray(model.recurrent_weight)
    snap, exact = gradients(l.SnAp(2), model)[1][0], gradients(l.BPTT(), model)[1][0]
    assert distance(snap, exact) > 1e-3
    assert distance(snap, gradients(l.SnAp(1), model)[1][0]) > 1e-3
    assert distance(gradients(l.SnAp(N), model)[1], gradients(l.BPTT(), model)[1]) < 1e-13

    # RTRL in numpy with every entry set to zero that a weight does not reach within two steps.
    reached = (np.eye(N) + (W != 0)) > 0
    influence, state, total = np.zeros((N, N, N)), np.asarray(START), np.zeros((N, N))
    for x, y in zip(np.asarray(INPUTS), np.asarray(TARGETS)):
        after = np.tanh(W @ state + np.asarray(model.input_weight) @ x)
        slope = 1 - after**2
        influence = np.einsum("ab,bij->aij", slope[:, None] * W, influence)
        influence[np.arange(N), np.arange(N)] += slope[:, None] * state
        influence *= reached[:, :, None]
        state = after
        error = (np.asarray(READOUT.weight) @ state + np.asarray(READOUT.bias) - y) / T
        total += np.einsum("a,aij->ij", np.asarray(READOUT.weight).T @ error, influence)
    np.testing.assert_allclose(snap.recurrent_weight, total, rtol=0, atol=1e-14)


def test_murrays_leak_is_a_linear_network_with_another_weight():
    alpha = 0.3
    leaky = m.LeakyRNN(D, N, dt=alpha, activation=lambda u: u, use_bias=False, key=jax.random.key(4))
    V, U = leaky.recurrent_weight, leaky.input_weight
    linear = m.LinearRNN((1 - alpha) * jnp.eye(N) + alpha * V, alpha * U, READOUT.weight)
    rule = l.RFLO(R, 1 - alpha)
    _, (of_leaky, _) = gradients(rule, leaky)
    _, (of_linear, _) = gradients(rule, linear)
    np.testing.assert_allclose(of_leaky.recurrent_weight, alpha * of_linear.W, atol=1e-14)
    np.testing.assert_allclose(of_leaky.input_weight, alpha * of_linear.B, atol=1e-14)


def test_murrays_trace_of_a_synapse():
    alpha = 0.3
    net = m.LeakyRNN(D, N, dt=alpha, key=jax.random.key(4))
    trace, state, total = np.zeros((N, N)), np.asarray(START), np.zeros((N, N))
    for x, y in zip(np.asarray(INPUTS), np.asarray(TARGETS)):
        current = np.asarray(net.recurrent_weight) @ state + np.asarray(net.input_weight) @ x
        trace = (1 - alpha) * trace + alpha * (1 - np.tanh(current) ** 2)[:, None] * state
        state = (1 - alpha) * state + alpha * np.tanh(current)
        error = (np.asarray(READOUT(jnp.asarray(state))) - y) / T
        total += (np.asarray(R).T @ error)[:, None] * trace
    _, (gradient, _) = gradients(l.RFLO(R, 1 - alpha), net, engine="forward")
    np.testing.assert_allclose(gradient.recurrent_weight, total, rtol=0, atol=1e-14)


blocks_of = eqx.filter_jit(unit_blocks)


def test_units_feel_themselves_alone():
    """Z = Diag(J) of the true Jacobian, in blocks of a unit for the LSTM; the leak is what is left without W."""
    state = jax.random.normal(jax.random.key(10), (N,))
    moment = Moment(state, INPUTS[0], jnp.array(0))
    for name in ("elman pre", "elman without bias", "gru", "plrnn", "alrnn", "equinox"):
        model = CELLS[name][0]()
        jacobian = dw.dynamics.jacobian(model, state, INPUTS[0])
        blocks = blocks_of(l.Diagonal(), model, moment)
        np.testing.assert_allclose(blocks[0, 0], jnp.diag(jacobian), atol=1e-15)

    lstm = CELLS["lstm"][0]()
    wide = Moment(jnp.concatenate([state, 0.5 * state]), INPUTS[0], jnp.array(0))
    jacobian = dw.dynamics.jacobian(lstm, wide.state, INPUTS[0]).reshape(2, N, 2, N)
    blocks = blocks_of(l.Diagonal(), lstm, wide)
    np.testing.assert_allclose(blocks, jnp.einsum("iujv,uv->jiu", jacobian, jnp.eye(N)), atol=1e-15)
    pre = lstm.recurrent_weight @ state + lstm.input_weight @ INPUTS[0] + lstm.bias
    i, f, g, o = jnp.split(pre, 4)
    forget = jax.nn.sigmoid(f)
    memory = forget * 0.5 * state + jax.nn.sigmoid(i) * jnp.tanh(g)
    leak = blocks_of(l.CellLeak(), lstm, wide)
    np.testing.assert_allclose(leak[1, 1], forget, atol=1e-15)
    np.testing.assert_allclose(leak[1, 0], jax.nn.sigmoid(o) * (1 - jnp.tanh(memory) ** 2) * forget, atol=1e-15)
    np.testing.assert_array_equal(leak[0], 0)

    gru = CELLS["gru"][0]()
    keep = jax.nn.sigmoid((gru.recurrent_weight @ state + gru.input_weight @ INPUTS[0])[N : 2 * N])
    np.testing.assert_allclose(blocks_of(l.CellLeak(), gru, moment)[0, 0], keep, atol=1e-15)
    leaky = CELLS["leaky, snap"][0]()
    np.testing.assert_allclose(blocks_of(l.CellLeak(), leaky, moment)[0, 0], 1 - 0.4 / 1.3, atol=1e-15)


@pytest.mark.parametrize("name", ["lru", "gru", "lstm", "plrnn", "alrnn"])
def test_local_parameters_are_local(name):
    """The table of which parameter acts on which unit, against the whole derivative of a step."""
    model = CELLS[name][0]()
    state = jax.random.normal(jax.random.key(8), (model.state_size,))
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    whole = jax.jacrev(lambda p: eqx.combine(p, rest)(state, INPUTS[0]))(parameters)
    kinds = jax.tree.leaves(parameter_kinds(model))
    assert "shared" not in kinds
    units = N
    for kind, jacobian in zip(kinds, jax.tree.leaves(whole), strict=True):
        if kind == "idle":
            assert not np.any(jacobian)
            continue
        rows = np.asarray(jacobian).reshape(model.state_size, jacobian.shape[1], -1)
        other = (np.arange(model.state_size) % units)[:, None] != (np.arange(rows.shape[1]) % units)
        assert np.any(rows)
        assert not np.any(rows[other])


def test_the_smallest_trace_is_taken():
    linear = m.LinearRNN(jnp.eye(N) / 2, jnp.ones((N, D)), jnp.ones((OUTS, N)))
    count = lambda rule, model: sum(x.size for x in jax.tree.leaves(l.start_trace(rule, model)))  # noqa: E731
    assert count(l.RFLO(R, 0.5), linear) == N + D
    assert count(l.EProp(R), linear) == N * N + N * D
    assert count(l.RFLO(R, 0.5), ELMAN) == N * N + N * D + N
    assert count(l.RTRL(), ELMAN) == N * (N * N + N * D + N)
    assert count(l.UORO(), ELMAN) == N + N * N + N * D + N
    lru = CELLS["lru"][0]()
    assert count(l.RTRL(), lru) == 2 * (3 * N + 2 * N * D)  # nothing but the modes' own


def test_uoro_is_unbiased():
    """The mean over all signs, not a sample of them, is the gradient."""
    n, steps = 2, 4
    net, out = m.Elman(1, n, key=jax.random.key(0)), m.Readout(n, 1, key=jax.random.key(1))
    inputs, targets = jax.random.normal(jax.random.key(2), (2, steps, 1))
    start = jnp.array([0.2, -0.5])
    path, states = eqx.filter_jit(engine.moments)(net, start, inputs, steps)
    _, errors, _ = eqx.filter_jit(engine.output_errors)(out, LOSS, states, inputs, targets)
    signals = errors @ out.weight
    zero = l.start_trace(l.UORO(), net)
    assert isinstance(zero, RankOneTrace)

    def one(signs):
        def step(trace, x):
            moment, signal, sign = x
            trace = trace.mix(net, moment, sign)
            return trace, trace.gradient(net, signal)

        return jax.tree.map(lambda g: jnp.sum(g, 0), jax.lax.scan(step, zero, (path, signals, signs))[1])

    signs = jnp.array(list(itertools.product([-1.0, 1.0], repeat=n * steps))).reshape(-1, steps, n)
    every = eqx.filter_jit(jax.vmap(one))(signs)
    mean = jax.tree.map(lambda g: jnp.mean(g, 0), every)
    exact = l.BPTT().gradients(net, out, inputs, targets, state0=start, loss=LOSS)[1][0]
    assert distance(mean, exact) < 1e-13
    assert float(jnp.std(every.recurrent_weight)) > 1e-2

    keys = jax.random.split(jax.random.key(3), 400)
    run = lambda k: l.UORO().gradients(net, out, inputs, targets, state0=start, loss=LOSS, key=k)[1][0]  # noqa: E731
    draws = jax.vmap(run)(keys).recurrent_weight
    error = (jnp.mean(draws, 0) - exact.recurrent_weight) / (jnp.std(draws, 0) / 20)
    assert float(jnp.max(jnp.abs(error))) < 5
    assert distance(run(keys[0]), run(keys[0])) == 0 < distance(run(keys[0]), run(keys[1]))


@pytest.mark.parametrize("name", ["rflo", "eprop random", "sliding"])
def test_the_mean_over_sequences_is_the_expected_update(name):
    n, steps, count = 3, 6, 4000
    keys = jax.random.split(jax.random.key(11), 8)
    feedback = jax.random.normal(keys[0], (2, n))
    rule = {"rflo": l.RFLO(feedback, 0.5), "eprop random": l.EProp(feedback), "sliding": l.TBPTT(2)}[name]
    draw = lambda k, *shape: 0.6 * jax.random.normal(k, shape)  # noqa: E731
    student = m.LinearRNN(draw(keys[1], n, n), draw(keys[2], n, 2), draw(keys[3], 2, n))
    teacher = m.LinearRNN(draw(keys[4], 2, 2), draw(keys[5], 2, 2), draw(keys[6], 2, 2))
    expected = l.expected_update(rule, student, teacher, horizon=steps)
    assert distance(expected.dW, l.expected_update(l.BPTT(), student, teacher, horizon=steps).dW) > 1e-2

    # The theory's loss is that of the last output: its weight travels with the target.
    def loss(output, target):
        return target[-1] * LOSS(output, target[:-1])

    def one(key):
        inputs = jax.random.normal(key, (steps, 2))
        outputs = jax.vmap(teacher.readout())(dw.simulate(teacher, jnp.zeros(2), inputs))
        weight = jnp.zeros((steps, 1)).at[-1].set(steps)
        targets = jnp.concatenate([outputs, weight], axis=1)
        _, (g, r) = rule.gradients(student, student.readout(), inputs, targets, state0=jnp.zeros(n), loss=loss)
        return l.expected_update(rule, student, teacher, horizon=steps)._replace(dW=g.W, dB=g.B, dA=r.C)

    draws = eqx.filter_jit(jax.vmap(one))(jax.random.split(keys[7], count))
    for sample, mean in zip(draws, expected):
        z = (jnp.mean(sample, 0) - mean) / (jnp.std(sample, 0) / count**0.5)
        assert float(jnp.max(jnp.abs(z))) < 5
        assert 0.3 < float(jnp.sqrt(jnp.mean(z**2))) < 1.8


def test_under_jit_vmap_and_grad():
    rule = RULES["homotopy"]
    batch = jnp.stack([INPUTS, -INPUTS])
    run = lambda x: rule.gradients(ELMAN, READOUT, x, TARGETS, state0=START, loss=LOSS)  # noqa: E731
    both = jax.jit(jax.vmap(run))(batch)
    for i in range(2):
        assert distance(jax.tree.map(lambda g, i=i: g[i], both), run(batch[i])) < 1e-14

    @eqx.filter_jit
    def size(decay, theta):
        rule = l.homotopy(theta, feedback=R, decay=decay)
        return sum(jnp.sum(gradients(rule, engine=e)[1][0].recurrent_weight ** 2) for e in ("reverse", "forward"))

    slope = jax.grad(size, (0, 1))(0.6, 0.4)
    h = 1e-5
    numeric = [
        (size(0.6 + h, 0.4) - size(0.6 - h, 0.4)) / (2 * h),
        (size(0.6, 0.4 + h) - size(0.6, 0.4 - h)) / (2 * h),
    ]
    np.testing.assert_allclose(slope, numeric, rtol=1e-8)


def test_float32():
    single = lambda tree: jax.tree.map(  # noqa: E731
        lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, tree
    )
    for rule in (RULES["rflo"], RULES["homotopy"]):
        value, gradient = rule.gradients(
            single(ELMAN), single(READOUT), single(INPUTS), single(TARGETS), state0=single(START), loss=LOSS
        )
        assert {x.dtype for x in jax.tree.leaves((value, gradient))} == {jnp.dtype(jnp.float32)}
        exact = gradients(rule)[1]
        assert distance(jax.tree.map(lambda x: x.astype(jnp.float64), gradient), exact) < 1e-5


class UserMap(m.AbstractMap):
    """Plain numbers and functions as fields, and a clock."""

    weight: jax.Array
    state_size: int = 4
    input_size: int = 3
    gain: float = 0.5
    activation: object = jnp.tanh

    def __call__(self, state, input=None, *, step=None):
        current = self.gain * self.weight @ state + jnp.sum(input) * jnp.cos(jnp.asarray(step, state.dtype))
        return self.activation(current)


def test_a_users_map():
    model = UserMap(jax.random.normal(jax.random.key(1), (4, 4)))
    readout = m.Readout(4, OUTS, key=jax.random.key(2))
    start = jnp.ones(4) / 3
    value, expected = by_autodiff(model, readout, start)
    for rule in (l.BPTT(), l.RTRL()):
        loss, gradient = gradients(rule, model, readout, start)
        assert abs(loss - value) < 1e-14
        assert distance(gradient, expected) < 1e-13
    feedback = jnp.ones((OUTS, 4))
    both = [gradients(l.EProp(feedback), model, readout, start, engine=e) for e in ("reverse", "forward")]
    assert distance(*both) < 1e-13
    with pytest.raises(ModelError, match=r"leak of a cell.*not known for UserMap"):
        gradients(l.EProp(propagator="leak"), model, readout, start)
    with pytest.raises(ModelError, match=r"SnAp\(2\): UserMap has no additive recurrent weight"):
        gradients(l.SnAp(2), model, readout, start)


def test_what_has_no_meaning_is_refused():
    lru = CELLS["lru"][0]()
    with pytest.raises(ModelError, match=r"leak of a cell.*not known for LRU"):
        gradients(l.EProp(propagator="leak"), lru, lru.readout(), jnp.zeros(2 * N))
    with pytest.raises(ModelError, match=r"BPTT\.gradients needs a map; CTRNN is a field"):
        gradients(l.BPTT(), m.CTRNN(D, N, key=jax.random.key(0)))
    with pytest.raises(ModelError, match="Interpolated propagator cannot hold a Reach"):
        gradients(l.Rule(None, l.Interpolated(l.Exact(), l.Reach(2), 0.5)))
    with pytest.raises(ArgumentError, match="Reach propagator has no sliding horizon"):
        gradients(l.Rule(None, l.Reach(2), horizon=2))
    with pytest.raises(ArgumentError, match="sliding horizon of 3 has no forward trace"):
        gradients(RULES["sliding"], engine="forward")
    with pytest.raises(ArgumentError, match=r"UORO\.gradients: the random signs need a `key`"):
        gradients(l.UORO())
    with pytest.raises(ArgumentError, match="rank-one trace runs forwards"):
        gradients(l.UORO(), engine="reverse", key=jax.random.key(0))
    with pytest.raises(ArgumentError, match="`engine` must be one of"):
        gradients(l.BPTT(), engine="sideways")


def test_memory_is_refused_with_the_number():
    big = m.Elman(0, 600, recurrent_init=jax.nn.initializers.zeros, key=jax.random.key(0))
    message = r"RTRL: the trace of Elman with 600 states takes 1730880000 bytes \(1.61 GiB\)"
    with pytest.raises(ArgumentError, match=message):
        l.start_trace(l.RTRL(), big)
    needed = N * (N * N + N * D + N) * 8
    with pytest.raises(ArgumentError, match=f"takes {needed} bytes.*`memory_limit` is {needed - 1} bytes"):
        gradients(l.RTRL(), memory_limit=needed - 1)
    gradients(l.RTRL(), memory_limit=needed)


def test_shapes_are_checked():
    run = lambda **k: l.RFLO(k.pop("feedback", R), k.pop("decay", 0.5)).gradients(  # noqa: E731
        ELMAN, READOUT, k.pop("inputs", INPUTS), k.pop("targets", TARGETS), state0=k.pop("state0", START), loss=LOSS
    )
    with pytest.raises(ShapeError, match=r"`feedback` must have shape \(2, 9\); got \(2, 4\)"):
        run(feedback=R[:, :4])
    with pytest.raises(ShapeError, match=r"`feedback` must have shape \(outputs, 9\) for a network; got \(\)"):
        run(feedback=1.0)
    with pytest.raises(ShapeError, match=r"`decay` must have shape \(\); got \(9,\)"):
        run(decay=jnp.ones(N))
    with pytest.raises(ShapeError, match="`inputs` has 6 steps and `targets` 40"):
        run(inputs=INPUTS[:6])
    with pytest.raises(ShapeError, match=r"`state0` must have shape \(9,\); got \(4,\)"):
        run(state0=START[:4])
    with pytest.raises(ShapeError, match="at least one step"):
        run(inputs=INPUTS[:0], targets=TARGETS[:0])
    with pytest.raises(ShapeError, match="leading axis of steps"):
        run(targets=1.0)
