"""Mode flows in closed form against the expectation written out from its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp import learning as l
from dynwarp.errors import ArgumentError, NonFiniteError, ShapeError

STATE, TEACHER = (0.7, 1.3, 0.55), (1.1, 0.8, -0.35)
STRENGTH, DECAY = -0.6, 0.45
A, W = STATE[0], STATE[2]
# name: rule, F, Z, horizon, chunked
RULES = {
    "bptt": (l.BPTT(), A, W, None, False),
    "rtrl": (l.RTRL(), A, W, None, False),
    "uoro": (l.UORO(), A, W, None, False),
    "snap1": (l.SnAp(1), A, W, None, False),
    "snap2": (l.SnAp(2), A, W, None, False),
    "tbptt1": (l.TBPTT(1), A, W, 1, False),
    "tbptt4": (l.TBPTT(4), A, W, 4, False),
    "chunked4": (l.ChunkedTBPTT(4), A, W, 4, True),
    "rflo": (l.RFLO(STRENGTH, DECAY), STRENGTH, DECAY, None, False),
    "eprop": (l.EProp(STRENGTH), STRENGTH, W, None, False),
    "eprop_leak": (l.EProp(STRENGTH, "leak"), STRENGTH, 0.0, None, False),
    "alignment": (l.FeedbackAlignment(STRENGTH), STRENGTH, W, None, False),
    "user": (l.Rule(l.Mixed(STRENGTH, 0.3), lambda w: 0.7 * w.T, 6), 0.7 * A + 0.3 * STRENGTH, 0.7 * W, 6, False),
    "homotopy": (
        l.homotopy(0.3, feedback=STRENGTH, decay=DECAY),
        0.7 * A + 0.3 * STRENGTH,
        0.7 * W + 0.3 * DECAY,
        None,
        False,
    ),
}


def brute(F, Z, window, T, chunked, state=STATE, teacher=TEACHER):
    """E of the update after T steps of white noise: the last error against every earlier state and input."""
    a, b, w = state
    p, v = teacher[0] * teacher[1], teacher[2]
    k = np.arange(T + 1)
    error, hidden = a * b * w**k - p * v**k, b * w**k
    lag = [error[m + 1 : T] @ hidden[: T - 1 - m] for m in range(T)]

    def cut(tau):
        kept = range(min(tau, T))
        db = sum(F * Z**m * error[m] for m in kept)
        dw_ = sum(F * Z**m * lag[m] for m in kept)
        return np.array([error[:T] @ hidden[:T], db, dw_])

    return np.mean([cut(j) for j in range(1, window + 1)], axis=0) if chunked else cut(window or T)


@pytest.fixture(scope="module")
def teacher():
    return l.Teacher(*TEACHER)


def delta(rule, teacher, **options):
    return -np.asarray(l.mode_flow(rule, teacher, **options)(0.0, jnp.array(STATE)))


@pytest.mark.parametrize("name", RULES)
def test_updates_equal_the_brute_expectation(name, teacher):
    rule, *pair = RULES[name]
    F, Z, window, chunked = pair
    assert np.abs(delta(rule, teacher) - brute(F, Z, window, 400, chunked)).max() < 1e-13
    for T in (1, 2, 5, 7):
        assert np.abs(delta(rule, teacher, horizon=T) - brute(F, Z, window, T, chunked)).max() < 1e-14
    sequence = np.mean([brute(F, Z, window, t, chunked) for t in range(1, 7)], axis=0)
    assert np.abs(delta(rule, teacher, horizon=6, loss="sequence") - sequence).max() < 1e-14


def test_the_rules_differ(teacher):
    # Rules that all gave the gradient would pass any test of one of them.
    distinct = ("bptt", "tbptt1", "tbptt4", "chunked4", "rflo", "eprop", "eprop_leak", "user", "homotopy")
    updates = np.array([delta(RULES[name][0], teacher) for name in distinct])
    gaps = np.abs(updates[:, None] - updates[None]).max(-1) + np.eye(len(updates))
    assert gaps.min() > 1e-3


def test_published_updates(teacher):
    for name, (db, dw_) in {
        "bptt": (0.39669980, 1.13326990),
        "tbptt1": (0.021, 0.88801772),
        "rflo": (-0.26942589, -0.91783270),
    }.items():
        assert delta(RULES[name][0], teacher) == pytest.approx([0.73672821, db, dw_], abs=1e-8)
    assert delta(l.BPTT(), teacher, horizon=5) == pytest.approx([0.732179, 0.394250, 1.101999], abs=1e-6)
    assert delta(RULES["rflo"][0], teacher, horizon=5) == pytest.approx([0.732179, -0.268708, -0.899870], abs=1e-6)


def test_homotopy_joins_bptt_and_rflo(teacher):
    for theta, end in ((0.0, l.BPTT()), (1.0, RULES["rflo"][0])):
        path = l.homotopy(theta, feedback=STRENGTH, decay=DECAY)
        assert np.abs(delta(path, teacher) - delta(end, teacher)).max() < 1e-15
    slope = jax.grad(
        lambda t: l.mode_flow(l.homotopy(t, feedback=STRENGTH, decay=DECAY), teacher)(0.0, jnp.array(STATE))[1]
    )
    step = 1e-6
    ends = [delta(l.homotopy(0.4 + h, feedback=STRENGTH, decay=DECAY), teacher)[1] for h in (step, -step)]
    assert float(slope(0.4)) == pytest.approx(-(ends[0] - ends[1]) / (2 * step), rel=1e-7)


@pytest.mark.parametrize(
    ("name", "correction"),
    [
        ("bptt", (-0.89042635, -0.47946034, -1.88166037)),
        ("tbptt1", (-0.89042635, 0, -1.13326990)),
        ("rflo", (-0.89042635, 0.30071505, 1.43326247)),
        ("eprop", (-0.89042635, 0.41096601, 1.61285175)),
    ],
)
def test_sequence_correction(name, correction, teacher):
    C = l.sequence_correction(RULES[name][0], teacher, jnp.array(STATE))
    assert np.asarray(C) == pytest.approx(correction, abs=1e-8)


@pytest.mark.parametrize("name", ["tbptt4", "chunked4", "user", "homotopy"])
def test_sequence_correction_is_the_limit(name, teacher):
    rule = RULES[name][0]
    C = l.sequence_correction(rule, teacher, jnp.array(STATE))
    T = 200  # rho^2T is below rounding
    assert np.abs(T * (delta(rule, teacher, horizon=T, loss="sequence") - delta(rule, teacher)) - C).max() < 1e-12


@pytest.mark.parametrize(
    ("state", "target", "loss"),
    [
        ((0.5, 0.5, 0.2), (1, 1, 0.6), 0.5297111742),
        ((1, 1, 0.6), (1, 1, 0.9), 1.2389159039),
        ((1, 1, 0.6), (-1, 1, 0.9), 5.5867419908),
        ((0, 0, 0.3), (2, 0.5, 0.8), 1.3888888889),
    ],
)
def test_losses(state, target, loss):
    state, target = jnp.array(state, float), l.Teacher(*target)
    assert float(l.mode_loss(target, state)) == pytest.approx(loss, abs=1e-10)
    assert float(l.mode_loss(target, state, horizon=1000)) == pytest.approx(loss, abs=1e-10)
    gradient = jax.grad(lambda x: l.mode_loss(target, x))(state)
    assert np.abs(gradient + l.mode_flow(l.BPTT(), target)(0.0, state)).max() < 1e-13


def test_finite_and_sequence_losses_have_bptt_as_gradient(teacher):
    for options in ({"horizon": 7}, {"horizon": 7, "loss": "sequence"}):
        gradient = jax.grad(lambda x, o=options: l.mode_loss(teacher, x, **o))(jnp.array(STATE))
        assert np.abs(gradient - delta(l.BPTT(), teacher, **options)).max() < 1e-14


def test_no_loss_and_no_velocity_beyond_the_wall():
    target = l.Teacher(1.0, 1.0, 0.9)
    beyond = jnp.array([1.0, 1.0, 1.05])  # the closed form would say -20.4
    assert l.mode_loss(target, beyond) == np.inf
    assert np.isnan(l.mode_flow(l.BPTT(), target)(0.0, beyond)).all()
    assert np.isfinite(l.mode_flow(l.BPTT(), target, horizon=10)(0.0, beyond)).all()
    # decay times w beyond 1: the sum over lags diverges, though the loss is finite.
    assert np.isnan(l.mode_flow(l.RFLO(1.0, 2.0), l.Teacher(1.0, 1.0, 0.2))(0.0, jnp.array([1.0, 1.0, 0.6]))).all()


def test_symmetries(teacher):
    rng = np.random.default_rng(0)
    for _ in range(20):
        state, target = rng.uniform(-0.95, 0.95, 3), rng.uniform(-0.95, 0.95, 3)
        r, d = rng.uniform(-1, 1, 2)
        for make in (
            lambda r, d: l.RFLO(r, d),
            lambda r, d: l.EProp(r),
            lambda r, d: l.BPTT(),
            lambda r, d: l.TBPTT(2),
        ):
            base = l.mode_flow(make(r, d), l.Teacher(*target))(0.0, jnp.array(state))
            # a -> -a with the feedback and the teacher's output; w -> -w with the decay and the teacher's w.
            flip = l.mode_flow(make(-r, d), l.Teacher(-target[0], *target[1:]))(0.0, jnp.array(state * [-1, 1, 1]))
            assert (np.asarray(flip) == np.asarray(base) * [-1, 1, 1]).all()
            turn = l.mode_flow(make(r, -d), l.Teacher(*target[:2], -target[2]))(0.0, jnp.array(state * [1, 1, -1]))
            assert (np.asarray(turn) == np.asarray(base) * [1, 1, -1]).all()


def test_float32_is_accurate_near_the_optimum():
    target = l.Teacher(1.0, 1.0, 0.9)
    state = jnp.array([1.001, 1.0, 0.9005])
    exact = l.mode_flow(l.BPTT(), target)(0.0, state.astype(jnp.float32).astype(float))
    rough = l.mode_flow(l.BPTT(), target)(0.0, state.astype(jnp.float32))
    assert rough.dtype == jnp.float32
    # Both residuals are rounded at 1e-7 / 5e-4; differences of the closed forms would lose two digits more.
    assert np.abs(np.asarray(rough, float) / np.asarray(exact) - 1).max() < 1e-3


def test_jit_vmap_and_simulate(teacher):
    flow = l.mode_flow(l.BPTT(), l.Teacher(1.0, 1.0, 0.6))
    states = dw.simulate(flow, jnp.array([0.5, 0.3, 0.1]), ts=jnp.array([0.0, 1.0]), dt=0.002)
    assert np.asarray(states[-1]) == pytest.approx([0.8786029094, 0.7822679032, 0.3604803703], abs=1e-9)
    batch = jax.jit(jax.vmap(lambda w: l.mode_flow(l.RFLO(1.0, w), teacher)(0.0, jnp.array(STATE))))(
        jnp.array([0.2, 0.4])
    )
    assert np.abs(batch[1] + delta(l.RFLO(1.0, 0.4), teacher)).max() < 1e-15


def test_gradient_descent_converges_to_the_flow_at_order_one():
    flow = l.mode_flow(l.BPTT(), l.Teacher(1.0, 1.0, 0.6))
    exact = np.array([0.8786029094, 0.7822679032, 0.3604803703])
    errors = []
    for eta in (0.1, 0.05, 0.025, 0.0125):
        step = lambda _, x, eta=eta: x + eta * flow(0.0, x)  # noqa: E731
        state = jax.lax.fori_loop(0, round(1 / eta), step, jnp.array([0.5, 0.3, 0.1]))
        errors.append(np.linalg.norm(state - exact))
    slopes = np.log2(np.divide(errors[:-1], errors[1:]))
    assert (np.abs(slopes[1:] - 1) < 0.05).all()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: l.Teacher(jnp.nan, 1.0, 0.5), NonFiniteError, "`a` must be finite"),
        (lambda: l.Teacher(jnp.ones(2), jnp.ones(3), 0.5), ShapeError, "must broadcast"),
        (lambda: l.mode_flow(l.BPTT(), l.Teacher(1, 1, 1.0)), ArgumentError, r"\|w\| < 1"),
        (lambda: l.mode_flow(l.BPTT(), l.Teacher(jnp.ones(2), 1, 0.5)), ShapeError, "one mode"),
        (lambda: l.mode_flow(l.RFLO(jnp.ones(2), 0.5), l.Teacher(1, 1, 0.5)), ShapeError, "one mode"),
        (lambda: l.mode_flow(l.BPTT(), l.Teacher(1, 1, 0.5), loss="sequence"), ArgumentError, "finite `horizon`"),
        (lambda: l.mode_flow(l.BPTT(), l.Teacher(1, 1, 0.5), horizon=0), ArgumentError, "`horizon`"),
        (lambda: l.mode_flow(l.BPTT(), l.Teacher(1, 1, 0.5))(0.0, jnp.ones(4)), ShapeError, "`state`"),
        (lambda: l.TBPTT(0), ArgumentError, "`window`"),
        (lambda: l.ChunkedTBPTT(1.5), ArgumentError, "`chunk`"),
        (lambda: l.SnAp(0), ArgumentError, "`order`"),
        (lambda: l.EProp(propagator="full"), ArgumentError, "'diagonal', 'leak'"),
        (lambda: l.Rule(None, 3.0), ArgumentError, "`propagator`"),
        (lambda: l.Rule(None, l.Exact(), 2.0), ArgumentError, "`horizon`"),
        (lambda: l.Fixed(1j), ArgumentError, "must be real"),
    ],
)
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words):
        call()
