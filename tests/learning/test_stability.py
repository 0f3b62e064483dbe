"""Eigenvalues, classes, speeds, saddles and invariants on the manifolds of fixed points."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp import learning as l
from dynwarp.errors import ArgumentError, NonFiniteError, ShapeError


def eigenvalues_of(matrix):
    return np.sort_complex(np.linalg.eigvals(np.asarray(matrix)))


@pytest.mark.parametrize(
    ("rule", "s", "w", "first", "second", "kind"),
    [
        (l.BPTT(), 1.0, 0.6, -1.8422956647, -6.4706926165, "stable"),
        (l.BPTT(), 0.5, 0.6, -2.8083367422, -9.0202765390, "stable"),
        (l.BPTT(), 2.0, 0.6, -2.8083367422, -9.0202765390, "stable"),
        (l.BPTT(), 1.0, 0.9, -5.7114332103, -268.7017465535, "stable"),
        (l.TBPTT(1), 1.0, 0.6, -1.3285150398, -3.6753912102, "stable"),
        (l.TBPTT(1), 0.5, 0.6, -1.3705079909, -7.5708982591, "stable"),
        (l.TBPTT(1), 2.0, 0.6, -2.2788321799, -4.5531990701, "stable"),
        (l.TBPTT(3), 1.0, 0.6, -1.8060044723, -5.8503142777, "stable"),
        (l.RFLO(1.0, 0.5), 1.0, 0.6, -1.7539236137, -5.6815036823, "stable"),
        (l.RFLO(-1.0, 0.5), -1.0, 0.6, -1.7539236137, -5.6815036823, "stable"),
        (l.RFLO(1.0, 0.5), 0.1, 0.6, -29.0293272400, -171.8070885764, "stable"),
        (l.RFLO(1.0, 0.5), 2.0, 0.6, -1.3657368723, -4.1042089186, "stable"),
        (l.RFLO(1.0, 0.5), -1.0, 0.6, 4.3104272959, 0.0, "nonhyperbolic"),
        (l.RFLO(1.0, 0.5), -2.0, 0.6, 3.4103277436, 1.2783680472, "unstable"),
        (l.RFLO(0.5, -0.9), 1.0, 0.8, -0.4305922029, -4.5429003089, "stable"),
        (l.EProp(1.0), 1.0, 0.6, -1.8422956647, -6.4706926165, "stable"),
        (l.EProp(1.0), -2.0, 0.6, 4.0362170068, 1.2921521338, "unstable"),
    ],
)
def test_reference_table(rule, s, w, first, second, kind):
    teacher = l.Teacher(1.0, 1.0, w)
    found = l.stability(rule, teacher, s)
    assert np.asarray(found.eigenvalues) == pytest.approx([first, second, 0], rel=1e-10, abs=1e-10)
    assert found.kind == kind
    jacobian = l.mode_jacobian(rule, teacher, jnp.array([s, 1 / s, w]))
    assert eigenvalues_of(jacobian).real == pytest.approx(sorted([first, second, 0.0]), rel=1e-9, abs=1e-7)


@pytest.mark.parametrize(
    "rule",
    [
        l.ChunkedTBPTT(5),
        l.TBPTT(4),
        l.homotopy(0.4, feedback=0.7, decay=0.5),
        l.Rule(l.Mixed(1.0, 0.3), lambda W: 0.5 * W @ W + 0.1, 3),
        l.Rule(0.8, lambda W: 0.5 * W @ W + 0.1),
        l.RFLO(1.343, -0.797),
    ],
)
def test_closed_form_equals_automatic_differentiation(rule):
    for s, w in ((0.7, 0.7), (-2.0, 0.4), (3.85, 0.868)):
        teacher = l.Teacher(1.3, 0.8, w)
        found = l.stability(rule, teacher, s)
        jacobian = l.mode_jacobian(rule, teacher, l.fixed_points(rule, teacher).optimal.point(s))
        assert np.abs(eigenvalues_of(jacobian) - np.sort_complex(np.asarray(found.eigenvalues))).max() < 1e-11
        assert float(found.trace) == pytest.approx(-float(jnp.trace(jacobian)), rel=1e-12)


def test_complex_pair():
    found = l.stability(l.RFLO(1.343, -0.797), l.Teacher(1.0, 1.0, 0.868), 3.85)
    assert complex(found.eigenvalues[0]) == pytest.approx(-3.19 + 0.57j, abs=0.01)
    assert bool(found.oscillates)
    assert found.kind == "stable"


def test_mode_jacobian_at_a_general_state_by_differences():
    rule, teacher, state = l.RFLO(-0.6, 0.45), l.Teacher(1.1, 0.8, -0.35), jnp.array([0.7, 1.3, 0.55])
    flow = l.mode_flow(rule, teacher)
    h = 1e-6
    columns = [(flow(0.0, state + h * e) - flow(0.0, state - h * e)) / (2 * h) for e in jnp.eye(3)]
    assert np.abs(l.mode_jacobian(rule, teacher, state) - jnp.stack(columns, axis=1)).max() < 1e-8


def test_pocket_of_stability():
    teacher = l.Teacher(0.5, 1.0, 0.9)
    pocket = l.stable_pocket(l.RFLO(1.0, 0.0), teacher, -2.0)
    assert (float(pocket.lower), float(pocket.upper)) == pytest.approx((0.03125, 0.06022), abs=5e-6)
    found = l.stability(l.RFLO(jnp.array([0.02, 0.045, 0.07]), 0.0), teacher, -2.0)
    assert found.kind.tolist() == ["saddle", "stable", "unstable"]
    assert complex(found.eigenvalues[1, 0]) == pytest.approx(-0.041565 + 0.050570j, abs=1e-6)
    assert complex(found.eigenvalues[2, 0]) == pytest.approx(0.02672 + 0.13443j, abs=1e-5)
    # And the flow agrees: from nearby it returns to the stable one, from the unstable one it goes to a wall.
    start = jnp.array([[-1.99, -0.249, 0.9]])
    options = {"loss_tolerance": 1e-14, "rtol": 1e-8, "atol": 1e-11}
    inside = l.find_landings(l.RFLO(jnp.array([0.045]), 0.0), teacher, start, **options)
    assert float(inside.losses[0]) < 1e-14
    assert float(inside.points[0, 0]) == pytest.approx(-1.943, abs=1e-2)
    beyond = l.find_landings(l.RFLO(jnp.array([0.07]), 0.0), teacher, start, **options)
    assert bool((beyond.result == dw.RESULTS.wall)[0])
    assert bool(l.stable_pocket(l.RFLO(1.0, 0.95), teacher, -2.0).empty)


def test_random_box():
    rng = np.random.default_rng(0)
    s, r, d, w = (jnp.asarray(rng.uniform(-x, x, 20000)) for x in (4.0, 2.0, 1.0, 0.99))
    found = l.stability(l.RFLO(r, d), l.Teacher(1.0, 1.0, w), s)
    right = np.asarray(r * s > 0)
    assert (found.kind[right] == "stable").all()
    wrong = found.kind[~right]
    spiral = np.asarray(found.oscillates)[~right]
    fractions = [
        (wrong == "saddle").mean(),
        ((wrong == "unstable") & ~spiral).mean(),
        ((wrong == "unstable") & spiral).mean(),
    ]
    assert fractions == pytest.approx([0.293, 0.570, 0.134], abs=0.02)
    stable = wrong == "stable"
    assert 0.001 < stable.mean() < 0.006
    pocket = l.stable_pocket(l.RFLO(r, d), l.Teacher(1.0, 1.0, w), s)
    predicted = np.asarray((pocket.lower < jnp.abs(r)) & (jnp.abs(r) < pocket.upper))[~right]
    assert (predicted == stable).all()


def test_slowest_points():
    teacher = l.Teacher(1.0, 1.0, 0.6)
    bptt = l.slowest_point(l.BPTT(), teacher)
    assert (float(bptt.s), float(bptt.rate)) == pytest.approx((1.0, 1.8422956647), abs=1e-6)
    tbptt = l.slowest_point(l.TBPTT(1), teacher, branch=-1)
    assert (float(tbptt.s), float(tbptt.rate)) == pytest.approx((-0.794, 1.26197), abs=1e-3)
    rate = float(tbptt.rate)
    w2, c = 0.36, 0.64
    assert rate**3 - rate**2 / c**2 - 4 * rate / c + 4 / c**2 == pytest.approx(0, abs=1e-6), w2
    assert bool(tbptt.interior)
    assert not bool(l.slowest_point(l.RFLO(1.0, 0.5), teacher).interior)
    slope = jax.grad(lambda w: l.slowest_point(l.BPTT(), l.Teacher(1.0, 1.0, w)).rate)(0.6)
    ends = [float(l.slowest_point(l.BPTT(), l.Teacher(1.0, 1.0, 0.6 + h)).rate) for h in (1e-4, -1e-4)]
    assert float(slope) == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-5)


@pytest.mark.parametrize(
    ("strength", "decay", "crossing"),
    [
        (1.0, 0.0, 0.38374846),
        (1.0, 0.5, 0.91385972),
        (1.0, 0.6, 1.0),
        (1.0, 0.9, 1.18774476),
        (0.3, 0.5, 0.24941402),
        (3.0, 0.5, 2.82137849),
    ],
)
def test_crossings(strength, decay, crossing):
    teacher = l.Teacher(1.0, 1.0, 0.6)
    found = l.speed_crossings(l.RFLO(strength, decay), l.BPTT(), teacher)
    assert np.abs(found - crossing).min() < 1e-8
    faster = l.speed_ratio(l.RFLO(strength, decay), l.BPTT(), teacher, jnp.array([0.9, 1.1]) * crossing)
    assert faster[0] > 1 > faster[1]


@pytest.mark.parametrize("rule", [l.BPTT(), l.TBPTT(1), l.TBPTT(3), l.ChunkedTBPTT(3), l.EProp()])
def test_saddle_line(rule):
    teacher = l.Teacher(1.3, -0.7, 0.6)
    saddles = l.fixed_points(rule, teacher).saddles
    assert saddles is not None
    point = saddles.point(jnp.array(0.2))
    assert np.abs(l.mode_flow(rule, teacher)(0.0, point)).max() == 0
    assert float(saddles.loss) == pytest.approx(float(l.mode_loss(teacher, point)), rel=1e-14)
    values = saddles.eigenvalues(jnp.array(0.2))
    assert np.sort(values) == pytest.approx(eigenvalues_of(l.mode_jacobian(rule, teacher, point)).real, abs=1e-12)
    if isinstance(rule, l.BPTT):
        assert float(saddles.escape_time(0.2, jnp.e)) == pytest.approx((1 - 0.2 * 0.6) / 0.91, rel=1e-12)


def test_random_feedback_has_no_saddle_line():
    teacher = l.Teacher(1.0, 1.0, 0.6)
    assert l.fixed_points(l.RFLO(1.0, 0.5), teacher).saddles is None
    assert abs(float(l.mode_flow(l.RFLO(1.0, 0.5), teacher)(0.0, jnp.array([0.0, 0.0, 0.2]))[1])) > 1


def test_optimal_manifold_is_fixed():
    teacher = l.Teacher(1.3, -0.7, 0.6)
    for rule in (l.BPTT(), l.TBPTT(2), l.RFLO(0.4, 0.3), l.ChunkedTBPTT(3)):
        points = l.fixed_points(rule, teacher).optimal.point(jnp.array([-2.0, 0.5]))
        velocity = jax.vmap(lambda x, r=rule: l.mode_flow(r, teacher)(0.0, x))(points)
        assert np.abs(velocity).max() < 1e-14


def test_stability_map_and_gradient():
    teacher = l.Teacher(1.0, 1.0, 0.6)
    grid = l.stability_map(lambda r: l.RFLO(r, 0.5), teacher, jnp.array([-2.0, 0.5, 1.0]), jnp.array([-1.0, 1.0]))
    assert grid.eigenvalues.shape == (2, 3, 3)
    assert grid.kind[1, 2] == "stable"
    rate = lambda d: l.stability(l.RFLO(1.0, d), teacher, 1.0).rate  # noqa: E731
    assert float(jax.grad(rate)(0.5)) == pytest.approx(float(rate(0.5 + 1e-6) - rate(0.5 - 1e-6)) / 2e-6, rel=1e-7)
    assert float(jax.jit(rate)(0.5)) == pytest.approx(1.7539236137, abs=1e-9)


def test_predicted_landings():
    teacher = l.Teacher(1.0, 1.0, 0.6)
    starts = jnp.array([[2.0, 0.1, 0.0], [0.1, -2.0, 0.0], [1.0, -1.0, 0.0]])
    bptt = np.asarray(l.predicted_landing(l.BPTT(), teacher, starts))
    assert bptt[0, 0] > 0 > bptt[1, 0]
    assert np.isnan(bptt[2, 0])  # on the saddle's stable manifold
    assert bptt[:2, 0] ** 2 - 1 / bptt[:2, 0] ** 2 == pytest.approx([3.99, -3.99], abs=1e-12)
    for strength in (0.7, -0.7):
        s = np.asarray(l.predicted_landing(l.EProp(strength), teacher, starts))[:, 0]
        C = np.asarray(l.mode_invariant(l.EProp(strength), starts))
        assert (s * strength > 0).all()
        assert np.abs(2 * strength * s**3 - 2 * strength * C * s**2 - 1).max() < 1e-11
    slope = jax.grad(lambda r: l.predicted_landing(l.EProp(r), teacher, starts[0])[0])(0.7)
    ends = [float(l.predicted_landing(l.EProp(0.7 + h), teacher, starts[0])[0]) for h in (1e-6, -1e-6)]
    assert float(slope) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-7)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda t: l.stability(l.BPTT(), t, 0.0), ArgumentError, "`s`"),
        (lambda t: l.stability(l.BPTT(), l.Teacher(0.0, 1.0, 0.5), 1.0), ArgumentError, "must not be zero"),
        (lambda t: l.fixed_points(l.BPTT(), l.Teacher(0.0, 1.0, 0.5)), ArgumentError, "must not be zero"),
        (lambda t: l.stability(l.BPTT(), l.Teacher(1.0, 1.0, -1.0), 1.0), ArgumentError, r"\|w\| < 1"),
        (lambda t: l.stability(l.RFLO(1.0, 2.0), t, 1.0), ArgumentError, "propagator"),
        (lambda t: l.mode_jacobian(l.BPTT(), t, jnp.ones(2)), ShapeError, "`state`"),
        (lambda t: l.mode_jacobian(l.BPTT(), t, jnp.array([1.0, jnp.nan, 0.0])), NonFiniteError, "`state`"),
        (lambda t: l.mode_invariant(l.RFLO(1.0, 0.5), jnp.ones(3)), ArgumentError, "invariant"),
        (lambda t: l.mode_invariant(l.TBPTT(1), jnp.ones(3)), ArgumentError, "invariant"),
        (lambda t: l.stable_pocket(l.BPTT(), t, 1.0), ArgumentError, "RFLO"),
        (lambda t: l.slowest_point(l.BPTT(), t, branch=0), ArgumentError, "`branch`"),
    ],
)
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words):
        call(l.Teacher(1.0, 1.0, 0.6))
