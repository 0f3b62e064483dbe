"""Rank: profiles, the space that a rule cannot leave, and what leaves it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynwarp as dw
from dynwarp import learning as l
from dynwarp import models as m
from dynwarp.errors import ArgumentError, ModelError, NonFiniteError, ShapeError

N, OUTS, D = 16, 2, 3


@pytest.fixture(scope="module")
def problem():
    """A student without symmetry, a teacher, and a feedback."""
    keys = jax.random.split(jax.random.key(0), 7)
    draw = lambda k, *shape: jax.random.normal(k, shape)  # noqa: E731
    student = m.LinearRNN(0.12 * draw(keys[0], N, N), 0.5 * draw(keys[1], N, D), 0.3 * draw(keys[2], OUTS, N))
    teacher = m.LinearRNN(jnp.diag(jnp.array([0.7, -0.4, 0.2])), draw(keys[3], 3, D), draw(keys[4], OUTS, 3))
    return student, teacher, draw(keys[5], OUTS, N) / 4


def with_diagonal(student, diagonal):
    W = student.W - jnp.diag(jnp.diag(student.W))
    return eqx.tree_at(lambda s: s.W, student, W + jnp.diag(diagonal))


def test_profile_of_known_matrices():
    zero = jnp.zeros((3, 4))
    q = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]
    change = jnp.asarray(np.eye(3) @ np.diag([4.0, 2.0, 1e-13]) @ q[:3])
    profile = l.rank_profile(zero, change)
    np.testing.assert_allclose(profile.singular_values, [4, 2, 1e-13], atol=1e-14)
    p = np.array([4, 2]) / 6
    np.testing.assert_allclose(profile.effective_rank, np.exp(-np.sum(p * np.log(p))), rtol=1e-10)
    assert int(profile.rank()) == 2
    assert int(profile.rank(1e-15)) == 3
    np.testing.assert_allclose([profile.tail(1), profile.tail(3)], [0.5, 0])
    nothing = l.rank_profile(change, change)
    assert float(nothing.effective_rank) == 0
    assert int(nothing.rank()) == 0

    batch = jnp.stack([change, change.at[0].set(0)])
    many = jax.jit(jax.vmap(lambda x: l.rank_profile(zero, x)))(batch)
    np.testing.assert_allclose(many.effective_rank, [profile.effective_rank, 1], rtol=1e-10)
    single = l.rank_profile(zero.astype(jnp.float32), change.astype(jnp.float32))
    assert single.effective_rank.dtype == jnp.float32
    np.testing.assert_allclose(single.effective_rank, profile.effective_rank, rtol=1e-5)

    slope = jax.grad(lambda x: l.rank_profile(zero, x).effective_rank)(change.at[2].add(0.3 * q[2]))
    h = 1e-6 * q[0]
    f = lambda x: l.rank_profile(zero, change.at[2].add(0.3 * q[2]).at[0].add(x)).effective_rank  # noqa: E731
    np.testing.assert_allclose(slope[0] @ q[0] * 1e-6, (f(h) - f(-h)) / 2, rtol=1e-6)


def test_profile_of_models():
    first, second = (m.Elman(D, N, key=jax.random.key(k)) for k in (0, 1))
    of_models = l.rank_profile(first, second)
    of_matrices = l.rank_profile(first.recurrent_weight, second.recurrent_weight)
    np.testing.assert_array_equal(of_models.singular_values, of_matrices.singular_values)
    of_input = l.rank_profile(first, second, of="input")
    np.testing.assert_array_equal(
        of_input.singular_values, l.rank_profile(first.input_weight, second.input_weight).singular_values
    )
    lru = m.LRU(D, 4, OUTS, key=jax.random.key(0))
    with pytest.raises(ModelError, match=r'LRU has no recurrent weight matrix.*of="input"'):
        l.rank_profile(lru, lru)
    with pytest.raises(ShapeError, match=r"`after` must have shape \(16, 16\); got \(2, 2\)"):
        l.rank_profile(first, jnp.eye(2))
    with pytest.raises(NonFiniteError, match="`after - before` must be finite"):
        l.rank_profile(jnp.eye(2), jnp.eye(2) * jnp.nan)
    with pytest.raises(ShapeError, match="must be a matrix or a model"):
        l.rank_profile(jnp.zeros(3), jnp.zeros(3))


# Proposition 3.1: rank(W_K - W_0) <= outputs for RFLO, whatever the data.

OPTIMISERS = {
    "sgd": (optax.sgd(0.02), True),
    "momentum": (optax.sgd(0.001, momentum=0.9), True),
    "clipped": (optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.02)), True),
    "adam": (optax.adam(0.005), False),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_rflo_learns_as_many_directions_as_outputs(name, problem):
    student, teacher, R = problem
    optimizer, kept = OPTIMISERS[name]
    rule = l.RFLO(R, 0.5)
    run = l.train_on_samples(
        rule, student, student.readout(), l.WhiteNoiseTask(teacher, 12),
        steps=400, optimizer=optimizer, key=jax.random.key(1), batch_size=2,
    )  # fmt: skip
    profile = l.rank_profile(student, run.model)
    space = l.column_space(rule, student.W, student.A, horizon=12)
    assert space.dimension == OUTS
    assert space.powers == 1
    assert (float(profile.tail(OUTS)) < 1e-12) == kept
    assert (float(space.residual(student, run.model)) < 1e-12) == kept
    assert (float(space.residual(student, run.model, of="input")) < 1e-12) == kept
    assert (l.column_space_drift(optimizer) < 1e-12) == kept
    assert float(profile.tail(1)) > 1e-3  # the bound is reached


@pytest.mark.parametrize("linear", [True, False])
def test_rflo_online_keeps_the_rank_unless_units_saturate(linear, problem):
    student, teacher, R = problem
    inputs, targets = l.WhiteNoiseTask(teacher, 400)(jax.random.key(2))
    if linear:
        model = student
    else:
        model = m.Elman(D, N, key=jax.random.key(3))
    readout = m.Readout(N, OUTS, use_bias=False, key=jax.random.key(4))
    run = l.learn_online(
        l.RFLO(R, 0.5), model, readout, inputs, targets, state0=jnp.zeros(N), optimizer=optax.sgd(0.005)
    )
    assert bool(jnp.isfinite(run.losses[-1]))
    profile = l.rank_profile(model, run.model)
    assert (float(profile.tail(OUTS)) < 1e-12) == linear


@pytest.mark.parametrize("distinct", [1, 2, 3, 5])
def test_eprop_learns_outputs_times_distinct_diagonals(distinct, problem):
    student, teacher, R = problem
    values = jnp.linspace(-0.6, 0.7, distinct) if distinct > 1 else jnp.array([0.4])
    student = with_diagonal(student, values[jnp.arange(N) % distinct])
    rule = l.EProp(R)
    update = l.expected_update(rule, student, teacher, horizon=60)
    profile = l.rank_profile(jnp.zeros((N, N)), update.dW)
    assert int(profile.rank()) == OUTS * distinct
    space = l.column_space(rule, student.W, student.A, horizon=60)
    assert (space.dimension, space.powers) == (OUTS * distinct, distinct)
    assert float(space.residual(jnp.zeros((N, N)), update.dW)) < 1e-12
    assert float(space.residual(jnp.zeros((N, D)), update.dB)) < 1e-12
    if distinct == 1:  # and is then RFLO with that decay
        leaky = l.expected_update(l.RFLO(R, 0.4), student, teacher, horizon=60)
        np.testing.assert_allclose(update.dW, leaky.dW, atol=1e-13)


def test_eprop_is_nearly_of_low_rank_where_diagonals_are_nearly_equal(problem):
    """sigma_{o p + 1} / sigma_1 = O(delta^p) for diagonals within delta of each other."""
    student, teacher, R = problem
    spread = jnp.linspace(-1, 1, N)
    deltas = np.array([0.1, 0.05, 0.025])
    tails = []
    for delta in deltas:
        update = l.expected_update(l.EProp(R), with_diagonal(student, 0.2 + delta * spread), teacher, horizon=60)
        profile = l.rank_profile(jnp.zeros((N, N)), update.dW)
        tails.append([float(profile.tail(OUTS * p)) for p in (1, 2, 3, 4)])
    slopes = np.polyfit(np.log(deltas), np.log(tails), 1)[0]
    np.testing.assert_allclose(slopes, [1, 2, 3, 4], atol=0.8)


def test_the_space_of_each_rule_holds_its_training(problem):
    """Along a whole run: every W and every A that were met count."""
    student, teacher, R = problem
    rules = {"sliding": l.TBPTT(1), "eprop": l.EProp(R), "bptt": l.BPTT()}
    rules["mixed"] = l.Rule(l.Mixed(R, 0.5), l.Leak(0.3))
    dimension = {}
    for name, rule in rules.items():
        weights, readouts, net = [], [], student
        for _ in range(3):
            weights.append(net.W)
            readouts.append(net.A)
            update = l.expected_update(rule, net, teacher, horizon=8)
            net = eqx.tree_at(lambda x: (x.W, x.B, x.A), net, tuple(
                old - 0.05 * new for old, new in zip((net.W, net.B, net.A), update)
            ))  # fmt: skip
        space = l.column_space(rule, jnp.stack(weights), jnp.stack(readouts), horizon=8)
        assert float(space.residual(student, net)) < 1e-10
        assert int(l.rank_profile(student, net).rank()) <= space.dimension
        dimension[name] = space.dimension
    # Truncated to one step: the span of the readouts met, OUTS at each step. Mixed likewise.
    assert dimension["sliding"] == dimension["mixed"] == 3 * OUTS
    assert dimension["bptt"] == N


def test_rank_of_the_input_weights_of_a_diagonal_network():
    """For an LRU the constraint moves to B: exact and e-prop updates are full, one-step and leaky ones have rank o."""
    modes, inputs, outputs, steps = 12, 6, 2, 30
    lru = m.LRU(inputs, modes, outputs, r_min=0.4, r_max=0.95, key=jax.random.key(0))
    xs = jax.random.normal(jax.random.key(1), (steps, inputs))
    ys = jax.random.normal(jax.random.key(2), (steps, outputs))
    R = jax.random.normal(jax.random.key(3), (outputs, 2 * modes))
    ranks = {}
    for name, rule in {"bptt": l.BPTT(), "eprop": l.EProp(R), "one": l.TBPTT(1), "rflo": l.RFLO(R, 0.5)}.items():
        _, (gradient, _) = rule.gradients(
            lru, lru.readout(), xs, ys, state0=jnp.zeros(2 * modes), loss=l.half_squared_error
        )
        moved = eqx.apply_updates(lru, gradient)
        ranks[name] = int(l.rank_profile(lru, moved, of="input").rank())
    assert ranks == {"bptt": inputs, "eprop": inputs, "one": outputs, "rflo": outputs}


def test_errors_of_column_space(problem):
    student, _, R = problem
    with pytest.raises(ArgumentError, match="SnAp has a propagator for every unit"):
        l.column_space(l.SnAp(2), student.W, student.A, horizon=3)
    with pytest.raises(ShapeError, match="3 `recurrent_weights` and 2 `readouts` must be as many"):
        l.column_space(l.BPTT(), jnp.stack([student.W] * 3), jnp.stack([student.A] * 2), horizon=3)
    with pytest.raises(ShapeError, match="`recurrent_weights` must have shape"):
        l.column_space(l.BPTT(), student.W[0], student.A, horizon=3)
    with pytest.raises(ShapeError, match="`feedback` must have shape"):
        l.column_space(l.RFLO(R[:, :3], 0.5), student.W, student.A, horizon=3)
    with pytest.raises(ArgumentError, match="`horizon` must be a whole number"):
        l.column_space(l.BPTT(), student.W, student.A, horizon=0)
    space = l.column_space(l.RFLO(R, 0.5), student.W, student.A, horizon=3)
    with pytest.raises(ShapeError, match="`after - before` must have shape"):
        space.residual(jnp.zeros((2, 2)), jnp.zeros((2, 2)))
    assert dw.learning.column_space_drift(optax.rmsprop(0.1)) > 1e-2
