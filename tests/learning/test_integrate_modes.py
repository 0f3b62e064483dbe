"""Trajectories and landings of mode flows against published values, diffrax, scipy and conserved quantities."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import dynwarp as dw
from dynwarp import learning as l
from dynwarp._results import describe
from dynwarp.errors import ArgumentError, ConvergenceError, ShapeError

TEACHER = l.Teacher(1.0, 1.0, 0.8)
DETOUR = jnp.array([[1.0, 1.0, 0.6]])


@pytest.mark.parametrize(
    ("rule", "start", "w", "t", "state"),
    [
        (l.BPTT(), (0.5, 0.3, 0.1), 0.6, 1.0, (0.8786029094, 0.7822679032, 0.3604803703)),
        (l.BPTT(), (0.5, 0.3, 0.1), 0.6, 5.0, (1.0407542839, 0.9608170895, 0.6000111777)),
        (l.TBPTT(1), (0.5, 0.3, 0.1), 0.6, 2.0, (1.1092054611, 0.8735424220, 0.5632587255)),
        (l.RFLO(1.0, 0.5), (0.5, 0.3, 0.1), 0.6, 2.0, (0.9376786781, 1.0556384776, 0.6048082095)),
        (l.RFLO(-0.5, 0.5), (1.0, 1.0, 0.6), 0.8, 3.0, (0.9546241858, -0.7212869452, -0.2315196216)),
    ],
)
def test_published_trajectories(rule, start, w, t, state):
    run = l.integrate_modes(rule, l.Teacher(1.0, 1.0, w), jnp.array([start]), jnp.array([0.0, t]))
    assert np.asarray(run.values[0, 1]) == pytest.approx(state, abs=1e-8)


def test_scipy_and_diffrax_agree():
    ts = jnp.linspace(0.0, 4.0, 9)
    starts = jnp.array([[0.5, 0.3, 0.1], [1.2, -0.4, 0.5]])
    strengths = jnp.array([1.0, -0.3])
    rule, teacher = l.RFLO(strengths, 0.5), l.Teacher(1.0, jnp.array([1.0, 0.8]), 0.7)
    own = l.integrate_modes(rule, teacher, starts, ts, rtol=1e-10, atol=1e-12)
    other = l.integrate_modes(rule, teacher, starts, ts, rtol=1e-10, atol=1e-12, method=diffrax.Dopri8())
    assert np.abs(own.values - other.values).max() < 1e-8
    for i in range(2):
        flow = l.mode_flow(l.RFLO(strengths[i], 0.5), l.Teacher(1.0, teacher.b[i], 0.7))
        velocity = eqx.filter_jit(flow)
        reference = solve_ivp(
            lambda t, y, f=velocity: f(t, jnp.asarray(y)), (0, 4), starts[i], "DOP853", ts, rtol=1e-12, atol=1e-13
        )
        assert np.abs(own.values[i] - reference.y.T).max() < 1e-9


def test_order_four():
    exact = np.array([0.9546241858, -0.7212869452, -0.2315196216])
    errors, steps = [], []
    for rtol in (1e-4, 1e-6, 1e-8):
        run = l.integrate_modes(l.RFLO(-0.5, 0.5), TEACHER, DETOUR, jnp.array([0.0, 3.0]), rtol=rtol, atol=rtol / 100)
        errors.append(np.abs(run.values[0, 1] - exact).max())
        steps.append(int(run.steps[0]))
    slope = np.log(errors[0] / errors[2]) / np.log(steps[2] / steps[0])
    assert 3.5 < slope < 6.5


@pytest.mark.parametrize(
    ("rule", "time"),
    [(l.BPTT(), 1.425313), (l.TBPTT(1), 3.188331), (l.RFLO(1.0, 0.5), 1.991495), (l.RFLO(-0.5, 0.5), 5.509464)],
)
def test_event_times(rule, time):
    fine = l.find_landings(rule, TEACHER, DETOUR, loss_tolerance=1e-6, rtol=1e-10, atol=1e-12)
    assert float(fine.times[0]) == pytest.approx(time, abs=1e-6)
    rough = l.find_landings(rule, TEACHER, DETOUR, loss_tolerance=1e-6)
    assert float(rough.times[0]) == pytest.approx(
        time, abs=1.5e-4
    )  # interpolated: a step here is a hundred times longer


def test_detour_ends_on_the_other_branch():
    land = l.find_landings(l.RFLO(-0.5, 0.5), TEACHER, DETOUR, loss_tolerance=1e-14, rtol=1e-9, atol=1e-12)
    assert np.asarray(land.points[0]) == pytest.approx([-0.6266, -1.5958, 0.8], abs=5e-5)
    assert float(land.losses[0]) < 1e-14
    # The published end point, (-.62713, -1.59603), is where the loss passes 1e-6; digits by DOP853 at 1e-13.
    rule, ts = l.RFLO(-0.5, 0.5), jnp.array([0.0, 5.509464])
    passing = l.integrate_modes(rule, TEACHER, DETOUR, ts).values[0, 1]
    assert np.asarray(passing[:2]) == pytest.approx([-0.62714903, -1.59603215], abs=3e-8)
    assert float(l.mode_loss(TEACHER, passing)) == pytest.approx(1e-6, rel=1e-4)
    straight = l.find_landings(l.BPTT(), TEACHER, DETOUR)
    assert straight.points[0, 0] > 0


def test_wall_is_met_and_never_crossed():
    teacher = l.Teacher(1.0, 1.0, 0.9)
    land = l.find_landings(l.RFLO(-1.0, 0.5), teacher, DETOUR)
    assert describe(land.result) == [dw.RESULTS[dw.RESULTS.wall]]
    assert float(land.times[0]) == pytest.approx(1.597524, abs=1e-6)
    assert 1 - 1e-5 < abs(float(land.points[0, 2])) < 1
    assert float(land.losses[0]) >= 0
    ts = jnp.array([0.0, 1.0, 2.0])
    for method in ("auto", diffrax.Tsit5()):
        run = l.integrate_modes(l.RFLO(-1.0, 0.5), teacher, DETOUR, ts, method=method)
        assert describe(run.result) == [dw.RESULTS[dw.RESULTS.wall]]
        assert np.isfinite(run.values[0, :2]).all()
        assert np.isnan(run.values[0, 2]).all()


def test_codes_of_bad_lanes():
    starts = jnp.array([[1.0, 1.0, 0.6], [1.0, 1.0, 1.2], [jnp.nan, 1.0, 0.6], [1.0, 1.0, -1.0]])
    expected = ["", dw.RESULTS[dw.RESULTS.wall], dw.RESULTS[dw.RESULTS.non_finite], dw.RESULTS[dw.RESULTS.wall]]
    for method in ("rosenbrock", diffrax.Tsit5()):
        run = l.integrate_modes(l.BPTT(), TEACHER, starts, jnp.array([0.0, 1.0]), throw=False, method=method)
        assert describe(run.result) == expected
        assert np.isfinite(run.values[0]).all()
        assert np.isnan(run.values[1:, 1]).all()
    with pytest.raises(ConvergenceError, match="lane 2"):
        l.integrate_modes(l.BPTT(), TEACHER, starts, jnp.array([0.0, 1.0]))
    land = l.find_landings(l.BPTT(), TEACHER, starts, throw=False)
    assert describe(land.result) == expected


def test_time_limit_escape_and_step_limit():
    still = jnp.array([[0.0, 0.0, 0.3]])
    assert describe(l.find_landings(l.BPTT(), TEACHER, still, max_time=5.0).result) == [
        dw.RESULTS[dw.RESULTS.time_limit]
    ]
    out = l.find_landings(l.RFLO(-0.5, 0.5), TEACHER, DETOUR, escape_radius=1.2)
    assert describe(out.result) == [dw.RESULTS[dw.RESULTS.escaped]]
    with pytest.raises(ConvergenceError, match="step limit"):
        l.find_landings(l.RFLO(-0.5, 0.5), TEACHER, DETOUR, max_steps=5)


def test_saddle_passage():
    starts = jnp.array([[e, e, 0.1] for e in (0.1, 0.01, 0.001, 1e-4)])
    teacher = l.Teacher(1.0, 1.0, 0.6)
    for rule, times in (
        (l.BPTT(), (3.0126, 5.1768, 7.3411, 9.5056)),
        (l.TBPTT(1), (3.5336, 5.7607, 7.9931, 10.2255)),
        (l.RFLO(1.0, 0.5), (1.8439, 1.9369, 1.9453, 1.9461)),
    ):
        land = l.find_landings(rule, teacher, starts, loss_tolerance=1e-3, rtol=1e-8, atol=1e-11)
        assert np.asarray(land.times) == pytest.approx(times, abs=1e-4)


@pytest.fixture(scope="module")
def starts():
    return jnp.asarray(np.random.default_rng(1).uniform([-2, -2, -0.95], [2, 2, 0.95], (4096, 3)))


def test_landing_points_are_those_the_invariants_predict(starts):
    land = l.find_landings(l.BPTT(), TEACHER, starts)
    predicted = l.predicted_landing(l.BPTT(), TEACHER, starts)
    clear = np.abs(starts[:, 0] ** 2 - starts[:, 1] ** 2) > 1e-6
    assert set(describe(land.result)) == {""}
    assert (np.sign(land.points[:, 0]) == np.sign(predicted[:, 0]))[clear].all()
    assert np.abs(land.points[:, 0] - predicted[:, 0])[clear].max() < 2e-4
    assert float((land.points[:, 0] > 0).mean()) == pytest.approx(0.5, abs=0.03)
    assert float(jnp.median(land.times)) == pytest.approx(3.211, abs=0.1)


@pytest.mark.parametrize(("strength", "converged"), [(1.0, 0.6728), (-0.5, 0.7277), (0.2, 0.7771)])
def test_basin_fractions(starts, strength, converged):
    land = l.find_landings(l.RFLO(strength, 0.5), TEACHER, starts)
    good = np.asarray(land.result == dw.RESULTS.successful)
    wall = np.asarray(land.result == dw.RESULTS.wall)
    assert (good | wall).all()
    assert good.mean() == pytest.approx(converged, abs=4 * np.sqrt(0.25 / 4096))
    assert (np.sign(land.points[good, 0]) == np.sign(strength)).all()


def test_queue_gives_what_single_lanes_give(starts):
    few = starts[:40]
    together = l.find_landings(l.RFLO(1.0, 0.5), TEACHER, few, block=7)
    for i in (0, 13, 39):
        alone = l.find_landings(l.RFLO(1.0, 0.5), TEACHER, few[i : i + 1])
        assert np.abs(together.points[i] - alone.points[0]).max() < 1e-11
        assert int(together.steps[i]) == int(alone.steps[0])


def test_eprop_landings_and_invariants(starts):
    rule = l.EProp(1.0)
    land = l.find_landings(rule, TEACHER, starts[:200], loss_tolerance=1e-18, rtol=1e-10, atol=1e-13)
    good = np.asarray(land.result == dw.RESULTS.successful)
    assert 0.4 < good.mean() < 0.75
    predicted = l.predicted_landing(rule, TEACHER, starts[:200])
    assert np.abs(land.points - predicted)[good].max() < 1e-8
    drift = np.abs(l.mode_invariant(rule, land.points) - l.mode_invariant(rule, starts[:200]))
    assert drift[good].max() < 1e-9


def test_derivatives_of_trajectories_and_times():
    def values(strength, decay, w, initial):
        rule, teacher = l.RFLO(strength, decay), l.Teacher(1.0, 1.0, w)
        return l.integrate_modes(rule, teacher, initial, jnp.array([0.0, 1.0]), rtol=1e-10, atol=1e-12).values

    def times(strength, decay, w, initial):
        rule, teacher = l.RFLO(strength, decay), l.Teacher(1.0, 1.0, w)
        return l.find_landings(rule, teacher, initial, loss_tolerance=1e-6, rtol=1e-10, atol=1e-12).times

    point = (jnp.array(1.0), jnp.array(0.5), jnp.array(0.8), jnp.array([[1.0, 1.0, 0.6], [0.5, 0.3, 0.1]]))
    for function, tolerance in ((values, 1e-8), (times, 1e-6)):
        reverse = jax.jacrev(function, argnums=(0, 1, 2, 3))(*point)
        _, forward = jax.jvp(lambda d, f=function: f(point[0], d, *point[2:]), point[1:2], (jnp.array(1.0),))
        assert np.abs(forward - reverse[1]).max() < 1e-12
        assert np.abs(reverse[3][0, ..., 1, :]).max() == 0  # lanes do not see each other
        step = 1e-5
        for i in range(3):
            up, down = ([x + h * (j == i) for j, x in enumerate(point)] for h in (step, -step))
            assert np.abs((function(*up) - function(*down)) / (2 * step) - reverse[i]).max() < tolerance


def test_derivative_in_the_times():
    flow = l.mode_flow(l.BPTT(), TEACHER)
    run = lambda t: l.integrate_modes(l.BPTT(), TEACHER, DETOUR, jnp.stack([0 * t, t])).values[0, 1]  # noqa: E731
    assert np.abs(jax.jacfwd(run)(0.5) - flow(0.0, run(0.5))).max() < 1e-12


def test_jit_vmap_float32_and_user_rules():
    rule = l.Rule(None, lambda W: 0.5 * W.T, 3)
    ts = jnp.array([0.0, 1.0])
    strengths = jnp.array([1.0, -0.5])
    mapped = jax.jit(jax.vmap(lambda r: l.integrate_modes(l.RFLO(r, 0.5), TEACHER, DETOUR, ts).values))(strengths)
    lanes = l.integrate_modes(l.RFLO(strengths, 0.5), TEACHER, jnp.tile(DETOUR, (2, 1)), ts).values
    assert np.abs(mapped[:, 0] - lanes).max() < 1e-10
    own = l.integrate_modes(rule, TEACHER, DETOUR, ts)
    other = l.integrate_modes(rule, TEACHER, DETOUR, ts, method=diffrax.Dopri8())
    assert np.abs(own.values - other.values).max() < 1e-7
    low = l.integrate_modes(l.BPTT(), TEACHER, DETOUR.astype(jnp.float32), ts, rtol=1e-4, atol=1e-5)
    high = l.integrate_modes(l.BPTT(), TEACHER, DETOUR, ts)
    assert low.values.dtype == jnp.float32
    assert np.abs(np.asarray(low.values, float) - np.asarray(high.values)).max() < 1e-3


def test_finite_horizon_has_no_wall():
    run = l.integrate_modes(
        l.BPTT(), l.Teacher(1.0, 1.0, 1.02), jnp.array([[1.0, 1.0, 0.9]]), jnp.array([0.0, 50.0]), horizon=10
    )
    assert np.abs(run.values[0, 1, 2] - 1.02) < 1e-3


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda i, ts: l.integrate_modes(l.BPTT(), TEACHER, i[0], ts), ShapeError, "`initial`"),
        (lambda i, ts: l.integrate_modes(l.BPTT(), TEACHER, i[:0], ts), ShapeError, "at least one lane"),
        (lambda i, ts: l.integrate_modes(l.BPTT(), TEACHER, i, ts[::-1]), ArgumentError, "increasing"),
        (lambda i, ts: l.integrate_modes(l.BPTT(), TEACHER, i, ts, rtol=0.0), ArgumentError, "`rtol`"),
        (lambda i, ts: l.integrate_modes(l.BPTT(), TEACHER, i, ts, method="euler"), ArgumentError, "diffrax"),
        (lambda i, ts: l.integrate_modes(l.RFLO(jnp.ones(3), 0.5), TEACHER, i, ts), ShapeError, r"\(2,\)"),
        (lambda i, ts: l.integrate_modes(l.RFLO(1.0, 1.5), TEACHER, i, ts), ArgumentError, "decay"),
        (lambda i, ts: l.integrate_modes(l.BPTT(), l.Teacher(1, 1, 1.5), i, ts), ArgumentError, r"\|w\| < 1"),
        (lambda i, ts: l.find_landings(l.BPTT(), TEACHER, i, loss_tolerance=-1.0), ArgumentError, "`loss_tolerance`"),
        (lambda i, ts: l.find_landings(l.BPTT(), TEACHER, i, block=0), ArgumentError, "`block`"),
    ],
)
def test_bad_input(call, error, words):
    with pytest.raises(error, match=words):
        call(jnp.tile(DETOUR, (2, 1)), jnp.array([0.0, 1.0]))
