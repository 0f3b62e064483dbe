"""Local representation alignment: against a numpy loop with derivatives by hand, and where a closed form is known."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynwarp as dw
from dynwarp import learning as l
from dynwarp import models as m
from dynwarp.errors import ArgumentError, ModelError, ShapeError

N, D, OUTS, T, B = 5, 2, 3, 6, 4
LOSS = l.half_squared_error
INPUTS = jax.random.normal(jax.random.key(1), (B, T, D))
TARGETS = jax.random.normal(jax.random.key(2), (B, T, OUTS))
START = 0.3 * jax.random.normal(jax.random.key(3), (B, N))
NET = eqx.tree_at(lambda n: n.bias, m.Elman(D, N, key=jax.random.key(4)), 0.1 * jnp.arange(N, dtype=float))
READOUT = m.Readout(N, OUTS, key=jax.random.key(5))
PUBLISHED = l.LocalRepresentationAlignment(target_steps=3, max_norm=0.2, regularisation=0.3)


def changed(rule, *, rate, norm=1e9, alpha=0.0):
    """The same rule, with numbers that its program is not compiled for."""
    values = tuple(map(jnp.asarray, (rate, norm, alpha)))
    return eqx.tree_at(lambda r: (r.target_rate, r.max_norm, r.regularisation), rule, values)


RULES = {
    "published": changed(PUBLISHED, rate=1.0, norm=0.2, alpha=0.3),
    "bare": l.LocalRepresentationAlignment(
        target_rate=0.4, target_steps=2, max_norm=None, regularisation=0.0, local_loss="squared_error"
    ),
}


@eqx.filter_jit
def batch(rule, model=NET, readout=READOUT, inputs=INPUTS, targets=TARGETS, start=START):
    def one(inputs, targets, start):
        return rule.gradients(model, readout, inputs, targets, state0=start, loss=LOSS)

    return jax.vmap(one)(inputs, targets, start)


def assert_equal(a, b, tolerance=1e-11):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def cut(g, norm):
    size = np.linalg.norm(g)
    return g if norm is None or size < norm else g * norm / size


def omega_derivatives(M, h, signal):
    """Of (|D M^T u| - 1)^2, u along the signal: with respect to h, and to M where it stands."""
    if signal @ signal <= 1e-20:
        return np.zeros_like(h), np.zeros_like(M)
    u = signal / np.sqrt(signal @ signal)
    slope = 1 - np.tanh(h) ** 2
    pulled = slope * (M.T @ u)
    size = np.linalg.norm(pulled)
    factor = 2 * (size - 1) / size
    return factor * pulled * (-2 * np.tanh(h) * slope) * (M.T @ u), factor * np.outer(u, slope * pulled)


def weights_of(net, readout):
    return [np.asarray(w) for w in (net.recurrent_weight, net.input_weight, net.bias, readout.weight, readout.bias)]


def means(result):
    """The mean loss of a batch, and the mean derivatives in the order of the weights."""
    return float(result[0].mean()), [w.mean(0) for w in weights_of(*result[1])]


def gradient(weights, inputs, targets, start, linear=False):
    """The loss and its gradient, by the reverse recursion."""
    W, U, b, C, c = weights
    z = [np.asarray(start)]
    for x in inputs:
        h = W @ z[-1] + U @ x + b
        z.append(h if linear else np.tanh(h))
    errors = [(C @ after + c - y) / len(targets) for after, y in zip(z[1:], targets)]
    total, g = [np.zeros_like(w) for w in weights], np.zeros_like(b)
    for t in reversed(range(len(targets))):
        g = (1 if linear else 1 - z[t + 1] ** 2) * (C.T @ errors[t] + W.T @ g)
        parts = (np.outer(g, z[t]), np.outer(g, inputs[t]), g, np.outer(errors[t], z[t + 1]), errors[t])
        total = [sum_ + part for sum_, part in zip(total, parts)]
    return sum(e @ e for e in errors) * len(targets) / 2, total


def mean_gradient(weights, inputs=INPUTS, targets=TARGETS, start=START, linear=False):
    found = [gradient(weights, np.asarray(x), np.asarray(y), z, linear) for x, y, z in zip(inputs, targets, start)]
    return np.mean([loss for loss, _ in found]), [np.mean(parts, 0) for parts in zip(*(g for _, g in found))]


def by_loop(rule, inputs, targets, start):
    """One sequence; every derivative by hand for tanh, an affine readout and half the squared error."""
    W, U, b, C, c = weights_of(NET, READOUT)
    rate, alpha = float(rule.target_rate), float(rule.regularisation)
    norm = None if rule.max_norm is None else float(rule.max_norm)

    def local_signal(h, target):
        z = np.tanh(h)
        miss = z - target
        weight = 1 + miss**2 if rule.local_loss == "log_penalty" else 1
        return 2 * miss / weight / N * (1 - z**2)

    z, h = [np.asarray(start)], []
    for x in inputs:
        h.append(W @ z[-1] + U @ x + b)
        z.append(np.tanh(h[-1]))
    errors = [(C @ after + c - y) / T for after, y in zip(z[1:], targets)]
    value = sum(e @ e for e in errors) * T / 2
    dC = sum(np.outer(e, s) + alpha * omega_derivatives(C, a, e)[1] for e, s, a in zip(errors, z[1:], h))
    dc = sum(errors)
    dW, dU, db = np.zeros_like(W), np.zeros_like(U), np.zeros_like(b)
    next_target, next_signal = None, np.zeros(N)
    for t in reversed(range(T)):
        better = h[t]
        for _ in range(rule.target_steps):
            slope = 1 - np.tanh(better) ** 2
            error = (C @ np.tanh(better) + c - targets[t]) / T
            move = slope * (C.T @ error) + alpha * omega_derivatives(C, better, error)[0]
            if t < T - 1:
                signal = local_signal(W @ np.tanh(better) + U @ inputs[t + 1] + b, next_target)
                move = move + slope * (W.T @ signal) + alpha * omega_derivatives(W, better, signal)[0]
            better = better - rate * cut(move, norm)
        next_target = np.tanh(better)
        signal = local_signal(h[t], next_target)
        by_state, by_weight = omega_derivatives(W, h[t], next_signal)
        moved = signal + alpha * by_state
        dW += cut(np.outer(moved, z[t]) + alpha * by_weight, norm)
        dU += cut(np.outer(moved, inputs[t]), norm)
        db += moved
        next_signal = signal
    return value, dW, dU, db, cut(dC, norm), dc


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_is_the_published_update(rule):
    """Under jit and vmap; the cut is active in the published form."""
    loss, (net, readout) = batch(rule)
    ours = (loss, net.recurrent_weight, net.input_weight, net.bias, readout.weight, readout.bias)
    loops = [by_loop(rule, *map(np.asarray, one)) for one in zip(INPUTS, TARGETS, START)]
    assert_equal(ours, [np.stack(parts) for parts in zip(*loops)])


def test_only_the_last_output_where_the_others_have_no_loss():
    """The case that was published: a loss at the last step alone. The targets of the others do not matter."""
    here = jnp.arange(T) == T - 1

    def weighted(output, target):
        return target[-1] * LOSS(output, target[:-1])

    @eqx.filter_jit
    def run(others):
        targets = jnp.where(here[:, None], TARGETS[0], others)
        targets = jnp.concatenate([targets, here[:, None].astype(float)], axis=1)
        return PUBLISHED.gradients(NET, READOUT, INPUTS[0], targets, state0=START[0], loss=weighted)

    first, second = run(0.0), run(9.0)
    assert_equal(first, second)
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(first))
    assert np.linalg.norm(first[1][0].recurrent_weight) > 1e-3


def test_closed_forms_of_the_linear_network():
    """One step down the squared error at the rate n / 2 makes it the gradient; with W and the readout orthogonal,
    signals keep their length and Omega changes nothing; with a smaller W, Omega lets W grow."""
    net = m.Elman(D, N, activation=lambda h: h, key=jax.random.key(7))
    W = net.recurrent_weight
    readout = eqx.tree_at(lambda r: r.weight, m.Readout(N, N, key=jax.random.key(0)), W.T)
    targets = jnp.concatenate([TARGETS, TARGETS[..., :2]], axis=-1)
    rule = l.LocalRepresentationAlignment(target_steps=1, local_loss="squared_error")

    def run(net, alpha):
        return means(batch(changed(rule, rate=N / 2, alpha=alpha), net, readout, targets=targets))

    exact = mean_gradient(weights_of(net, readout), targets=targets, linear=True)
    assert_equal(run(net, 0.0), exact)
    assert_equal(run(net, 5.0), exact)
    smaller = eqx.tree_at(lambda n: n.recurrent_weight, net, 0.5 * W)
    assert_equal(run(smaller, 0.0), mean_gradient(weights_of(smaller, readout), targets=targets, linear=True))
    assert np.sum((run(smaller, 5.0)[1][0] - run(smaller, 0.0)[1][0]) * np.asarray(W)) < -0.1


def test_small_steps_of_the_targets():
    """Then only a step's own error counts, and its signal is 2 K gamma / n times slope^3 C^T e. In small states, where
    tanh is almost linear, one step at the rate n / 2 leads where the gradient does."""
    rate = 1e-7
    got = np.asarray(batch(changed(PUBLISHED, rate=rate))[1][0].bias) * N / (2 * PUBLISHED.target_steps * rate)
    W, U, b, C, c = weights_of(NET, READOUT)
    z, expected = np.asarray(START), 0
    for x, y in zip(np.asarray(INPUTS).swapaxes(0, 1), np.asarray(TARGETS).swapaxes(0, 1)):
        z = np.tanh(z @ W.T + x @ U.T + b)
        expected = expected + (1 - z**2) ** 3 * ((z @ C.T + c - y) / T @ C)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)

    small = (0.1 * INPUTS, 0.02 * TARGETS, 0.1 * START)
    rule = l.LocalRepresentationAlignment(target_rate=N / 2, target_steps=1, max_norm=None, regularisation=0.0)
    net = eqx.tree_at(lambda n: n.bias, NET, jnp.zeros(N))
    ours, exact = means(batch(rule, net, READOUT, *small))[1], mean_gradient(weights_of(net, READOUT), *small)[1]
    for a, g in zip(ours, exact):
        assert np.vdot(a, g) > 0.98 * np.linalg.norm(a) * np.linalg.norm(g)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_step_lowers_the_loss(rule):
    """Of the network alone, and of the readout alone; so does the gradient, whose loss it is."""
    loss, moves = means(batch(rule))
    weights = weights_of(NET, READOUT)
    assert_equal(loss, mean_gradient(weights)[0])
    for part in (range(3), range(3, 5)):
        moved = [w - 0.05 * move if i in part else w for i, (w, move) in enumerate(zip(weights, moves))]
        assert mean_gradient(moved)[0] < loss - 1e-4


# dW, dU and db of the released program, run in PyTorch on the arrays of `released_setting`.
PROGRAM = (
    [
        [-1.495920558e-06, 3.153818254e-03, -7.488047688e-03, 5.023608648e-04],
        [-5.901011617e-03, 9.169852871e-03, -1.002431192e-02, 2.818283021e-03],
        [1.438487771e-03, 7.500920927e-04, 2.741991734e-03, 7.677420737e-04],
        [6.598338214e-03, 9.537119089e-03, 2.443868272e-03, 1.725952975e-03],
    ],
    [
        [-0.043819200, 0.143177673],
        [-0.072184909, -0.046987041],
        [-0.140799994, -0.162573151],
        [0.032467245, -0.086089742],
    ],
    [0.008460504, -0.001419017, -0.000423185, -0.011244940],
)


def released_setting():
    draw = np.random.default_rng(0).normal
    W, U, C, b, c = (
        0.7 * draw(size=(4, 4)),
        draw(size=(2, 4)),
        draw(size=(4, 2)),
        0.1 * draw(size=4),
        0.1 * draw(size=2),
    )
    inputs, last = draw(size=(5, 3, 2)), draw(size=(3, 2))
    net, readout = m.Elman(2, 4, key=jax.random.key(0)), m.Readout(4, 2, key=jax.random.key(0))
    net = eqx.tree_at(lambda n: (n.recurrent_weight, n.input_weight, n.bias), net, (*map(jnp.asarray, (W.T, U.T, b)),))
    readout = eqx.tree_at(lambda r: (r.weight, r.bias), readout, (jnp.asarray(C.T), jnp.asarray(c)))
    # Only the targets at the end count.
    targets = np.full((3, 5, 2), np.inf)
    targets[:, -1] = last
    return net, readout, jnp.asarray(inputs.swapaxes(0, 1)), jnp.asarray(targets)


def test_the_released_program_on_a_batch():
    net, readout, inputs, targets = released_setting()
    rule = l.LocalRepresentationAlignment(target_steps=3, max_norm=0.2, regularisation=0.3, compat="released")

    @eqx.filter_jit
    def run(net, readout, inputs, targets):
        def one(x, y):
            return rule.gradients(
                net, readout, x, y, state0=jnp.zeros(4), loss=lambda y, target: jnp.mean((y - target) ** 2)
            )

        return jax.vmap(one)(inputs, targets)

    loss, (of_net, _) = run(net, readout, inputs, targets)
    ours = (of_net.recurrent_weight, of_net.input_weight, of_net.bias)
    for found, expected in zip(ours, PROGRAM):
        # All sequences are given the same.
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_allclose(found[0], expected, atol=2e-9)
    ends = jax.vmap(lambda x: readout(dw.simulate(net, jnp.zeros(4), x)[-1]))(inputs)
    assert float(loss[0]) == pytest.approx(float(jnp.mean((ends - targets[:, -1]) ** 2)), rel=1e-12)


def test_the_released_program_says_what_is_wrong_and_trains_by_fit():
    rule = l.LocalRepresentationAlignment(target_steps=2, regularisation=0.0, compat="released")

    def one(net, y):
        return rule.gradients(net, READOUT, None, y, state0=START[0], loss=LOSS)

    alone = jax.eval_shape(lambda: one(NET, np.zeros((T, OUTS))))
    assert [a.shape for a in jax.tree.leaves(alone)] == [(), (N, N), (N, D), (N,), (OUTS, N), (OUTS,)]
    with pytest.raises(ShapeError, match="at most 5 sequences"):
        jax.eval_shape(jax.vmap(lambda y: one(NET, y)), jnp.zeros((6, T, OUTS)))
    nets = jax.tree.map(lambda a: jnp.stack([a, a]), eqx.filter(NET, eqx.is_array))
    with pytest.raises(ModelError, match="one model"):
        jax.eval_shape(jax.vmap(lambda a: one(eqx.combine(a, NET), TARGETS[0])), nets)
    with pytest.raises(ArgumentError, match="`compat`"):
        l.LocalRepresentationAlignment(compat="bugs")
    fitted = dw.training.fit(
        m.Elman(0, N, key=jax.random.key(8)), jnp.sin(0.4 * jnp.arange(60.0))[:, None],
        readout=m.Readout(N, 1, key=jax.random.key(9)), rule=rule, steps=60,
        sequence_length=8, batch_size=4, optimizer=optax.sgd(0.05), key=jax.random.key(0),
    )  # fmt: skip
    losses = np.asarray(fitted.history.loss)
    assert losses[-10:].mean() < 0.8 * losses[:10].mean()


def test_trains_by_fit():
    data = jnp.sin(0.4 * jnp.arange(60.0))[:, None]
    net = m.Elman(0, N, key=jax.random.key(8))
    fitted = dw.training.fit(
        net, data, readout=m.Readout(N, 1, key=jax.random.key(9)), rule=PUBLISHED, steps=60,
        sequence_length=8, batch_size=4, optimizer=optax.sgd(0.1), key=jax.random.key(0),
    )  # fmt: skip
    losses = np.asarray(fitted.history.loss)
    assert losses[-10:].mean() < 0.7 * losses[:10].mean()


def test_float32_without_inputs():
    rule = RULES["bare"]
    net, readout, targets, start = jax.tree.map(lambda a: a.astype(jnp.float32), (NET, READOUT, TARGETS[0], START[0]))
    run = eqx.filter_jit(lambda y, z: rule.gradients(net, readout, None, y, state0=z, loss=LOSS))
    loss, gradients = run(targets, start)
    assert all(a.dtype == jnp.float32 for a in jax.tree.leaves((loss, gradients)))
    loop = by_loop(rule, np.zeros((T, D)), np.asarray(TARGETS[0]), np.asarray(START[0]))
    of_weights = weights_of(*gradients)
    assert (of_weights[1] == 0).all()
    assert_equal((loss, *of_weights), loop, 1e-5)


def test_errors():
    rule = RULES["bare"]

    def run(model=NET, inputs=INPUTS[0], targets=TARGETS[0], state0=START[0]):
        return rule.gradients(model, READOUT, inputs, targets, state0=state0, loss=LOSS)

    with pytest.raises(ModelError, match=r"form 'post'; got GRU"):
        run(m.GRU(D, N, key=jax.random.key(0)))
    with pytest.raises(ModelError, match=r"got Elman\(form='pre'\)"):
        run(m.Elman(D, N, form="pre", key=jax.random.key(0)))
    with pytest.raises(ShapeError, match="`inputs`"):
        run(inputs=INPUTS[0, :, :1])
    with pytest.raises(ShapeError, match=r"`inputs` has 5 steps and `targets` 6"):
        run(inputs=INPUTS[0, 1:])
    with pytest.raises(ShapeError, match="at least one step"):
        run(targets=TARGETS[0, :0])
    with pytest.raises(ShapeError, match="`state0`"):
        run(state0=jnp.zeros(N + 1))
    for options, name in [
        ({"target_rate": 0.0}, "target_rate"),
        ({"target_steps": 0}, "target_steps"),
        ({"max_norm": -1.0}, "max_norm"),
        ({"regularisation": -0.1}, "regularisation"),
        ({"regularisation": float("nan")}, "regularisation"),
        ({"local_loss": "huber"}, "local_loss"),
    ]:
        with pytest.raises(ArgumentError, match=f"`{name}`"):
            l.LocalRepresentationAlignment(**options)
