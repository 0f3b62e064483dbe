"""Fixed points and periodic orbits: closed forms, stability, merging, slow points, derivatives."""

import json
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp import RESULTS
from dynwarp._results import describe

DATA = pathlib.Path(__file__).parents[3] / "shared" / "data"
METHODS = ["newton", "levenberg_marquardt"]


@pytest.fixture(scope="module")
def starts():
    return 8 * jax.random.normal(jax.random.key(0), (24, 3)) + jnp.array([0.0, 0.0, 20.0])


@pytest.mark.parametrize("method", METHODS)
def test_lorenz_has_three(starts, method):
    found = dw.dynamics.find_fixed_points(dw.systems.Lorenz63(), starts, method=method)
    kept = found.distinct()
    order = np.argsort(kept.points[:, 0])
    c = np.sqrt(72.0)
    np.testing.assert_allclose(kept.points[order], [[-c, -c, 27], [0, 0, 0], [c, c, 27]], atol=1e-10)
    assert not kept.is_stable.any()
    # The eigenvalues at the origin: those of [[-10, 10], [28, -1]], and -8/3.
    root = np.sqrt(1201.0) / 2
    origin = kept.eigenvalues[order[1]]
    np.testing.assert_allclose(origin, sorted([-5.5 + root, -8 / 3, -5.5 - root], reverse=True), rtol=1e-11)
    # Lanes that found one point hold one row of numbers.
    good = np.asarray(found.result == RESULTS.successful)
    assert len(np.unique(np.asarray(found.points)[good], axis=0)) == 3
    assert int(jnp.sum(found.is_new & good)) == 3
    assert (found.residual[good] < 1e-9).all()


@pytest.mark.skipif(not DATA.exists(), reason="the shared ground truth is not beside the repository")
def test_trained_alrnn_equals_ground_truth():
    arrays = np.load(DATA / "alrnn_lorenz63_m20_p2.npz", allow_pickle=False)
    A, W, h = (jnp.asarray(arrays[name], float) for name in ("A", "W", "h"))
    model = dw.models.ALRNN.from_parameters(A, W, h, relu_size=2)
    truth = json.loads((DATA / "alrnn_m20_p2_fixed_points.json").read_text())["m20_p2"]
    candidates = jax.random.normal(jax.random.key(1), (64, 20))
    kept = dw.dynamics.find_fixed_points(model, candidates).distinct()
    assert len(kept.points) == len(truth) == 4
    for point in truth:
        assert np.min(np.max(np.abs(kept.points - np.asarray(point["z"])), axis=1)) < 1e-9


def test_stability_of_maps_and_of_fields(models):
    rotation = 0.9 * jnp.array([[0.6, -0.8], [0.8, 0.6]])
    found = dw.dynamics.find_fixed_points(models.linear(rotation), jnp.ones((1, 2)))
    np.testing.assert_allclose(np.abs(found.eigenvalues), 0.9, rtol=1e-12)
    assert found.is_stable.all()
    assert not dw.dynamics.find_fixed_points(models.linear(1.2 * rotation), jnp.ones((1, 2))).is_stable.any()
    # Of a field: moduli above 1 are stable where the real parts are negative, and the input moves the point.
    field = models.field(jnp.array([[-2.0, 5.0], [-5.0, -2.0]]))
    found = dw.dynamics.find_fixed_points(field, jnp.ones((1, 2)), input=jnp.array([29.0, 0.0]))
    assert found.is_stable.all()
    np.testing.assert_allclose(found.points[0], [2.0, -5.0], rtol=1e-12)
    np.testing.assert_allclose(found.eigenvalues[0].real, -2.0)


def test_slow_points_are_told_apart():
    # x' = x + x^2 + c: no fixed point for c > 0, the speed is least at 0.
    class Ghost(dw.models.AbstractMap):
        c: float
        state_size: int = 1
        input_size: int = 0

        def __call__(self, state, input=None, *, step=None):
            return state + state**2 + self.c

    starts = jnp.array([[0.5], [-0.7], [2.0]])
    found = dw.dynamics.find_fixed_points(Ghost(0.01), starts, method="levenberg_marquardt", throw=False)
    assert (found.result == RESULTS.slow_point).all()
    np.testing.assert_allclose(found.points, 0.0, atol=1e-9)
    assert not found.is_stable.any()
    assert len(found.distinct().points) == 0
    assert len(found.distinct(slow_points=True).points) == 1
    with pytest.raises(dw.errors.ConvergenceError, match="slow point"):
        dw.dynamics.find_fixed_points(Ghost(0.01), starts, method="levenberg_marquardt")
    both = dw.dynamics.find_fixed_points(Ghost(-0.01), starts, method="levenberg_marquardt")
    assert (both.result == RESULTS.successful).all()
    np.testing.assert_allclose(np.sort(both.distinct().points.ravel()), [-0.1, 0.1], rtol=1e-9)


def test_failed_lanes_leave_the_others_alone(starts):
    lorenz = dw.systems.Lorenz63()
    spoilt = starts.at[1].set(jnp.nan).at[2].set(1e300)
    found = dw.dynamics.find_fixed_points(lorenz, spoilt)
    assert describe(found.result)[1] == "A NaN or an infinity appeared."
    assert (found.result != RESULTS.successful)[2]
    alone = dw.dynamics.find_fixed_points(lorenz, starts)
    good = np.asarray(found.result == RESULTS.successful)
    assert good.sum() >= 20
    np.testing.assert_allclose(np.asarray(found.points)[good], np.asarray(alone.points)[good], atol=1e-9)
    short = dw.dynamics.find_fixed_points(lorenz, jnp.full((1, 3), 1e6), max_steps=2, throw=False)
    assert describe(short.result) == ["The step limit was reached before convergence."]


def test_near_points_are_not_merged():
    # Two fixed points 2e-5 apart, which rounding to digits may or may not tell apart.
    class Pair(dw.models.AbstractMap):
        state_size: int = 1
        input_size: int = 0

        def __call__(self, state, input=None, *, step=None):
            return state + (state - 0.49999) * (state - 0.50001)

    found = dw.dynamics.find_fixed_points(Pair(), jnp.array([[0.4], [0.6], [0.41]]))
    np.testing.assert_array_equal(found.representative, [0, 1, 0])
    merged = dw.dynamics.find_fixed_points(Pair(), jnp.array([[0.4], [0.6], [0.41]]), merge_tolerance=1e-4)
    np.testing.assert_array_equal(merged.representative, [0, 0, 0])


@pytest.mark.parametrize("method", METHODS)
def test_implicit_derivatives(method):
    # x* = sqrt(r^2 ...): the pitchfork x' = r tanh(x) has dx*/dr = tanh(x) / (1 - r sech(x)^2).
    class Pitchfork(dw.models.AbstractMap):
        r: jax.Array
        state_size: int = 1
        input_size: int = 0

        def __call__(self, state, input=None, *, step=None):
            return self.r * jnp.tanh(state)

    def point(r):
        return dw.dynamics.find_fixed_points(Pitchfork(r), jnp.array([[2.0]]), method=method).points[0, 0]

    r = jnp.array(1.7)
    x = point(r)
    first = jnp.tanh(x) / (1 - r / jnp.cosh(x) ** 2)
    np.testing.assert_allclose(jax.grad(point)(r), first, rtol=1e-12)
    np.testing.assert_allclose(jax.jvp(point, (r,), (jnp.ones(()),))[1], first, rtol=1e-12)
    if method != "newton":
        return
    h = 1e-5
    second = (jax.grad(point)(r + h) - jax.grad(point)(r - h)) / (2 * h)
    np.testing.assert_allclose(jax.grad(jax.grad(point))(r), second, rtol=1e-7)
    np.testing.assert_allclose(jax.jacfwd(jax.grad(point))(r), second, rtol=1e-7)


def test_derivatives_of_eigenvalues_and_of_failed_lanes(tanh_rnn):
    candidates = jnp.stack([jnp.full(4, 0.9), jnp.full(4, jnp.nan)])

    def f(x):
        model = eqx.tree_at(lambda m: m.W, tanh_rnn, x * tanh_rnn.W)
        found = dw.dynamics.find_fixed_points(model, candidates, input=jnp.array([0.4, -0.2]))
        return jnp.sum(jnp.abs(found.eigenvalues[0])) + jnp.sum(found.points[0])

    h = 1e-6
    numeric = (f(1.0 + h) - f(1.0 - h)) / (2 * h)
    np.testing.assert_allclose(jax.grad(f)(1.0), numeric, rtol=1e-7)
    np.testing.assert_allclose(jax.jvp(f, (1.0,), (1.0,))[1], numeric, rtol=1e-7)


def test_under_jit_and_vmap(tanh_rnn):
    candidates = jax.random.normal(jax.random.key(2), (5, 4))
    scales = jnp.array([0.5, 1.0])

    def points(x):
        model = eqx.tree_at(lambda m: m.W, tanh_rnn, x * tanh_rnn.W)
        found = dw.dynamics.find_fixed_points(model, candidates, throw=True)
        return found.points, found.result == RESULTS.successful

    many, good = jax.jit(jax.vmap(points))(scales)
    for x, p, g in zip(scales, many, good):
        one, one_good = points(x)
        np.testing.assert_array_equal(g, one_good)
        np.testing.assert_allclose(p[g], one[one_good], atol=1e-9)
        assert g.sum() >= 3


@pytest.mark.parametrize("method", METHODS)
def test_float32(method):
    model = dw.models.ALRNN(6, 3, key=jax.random.key(5), dtype=jnp.float32)
    model = eqx.tree_at(lambda m: m.h, model, jnp.ones(6, jnp.float32))
    found = dw.dynamics.find_fixed_points(model, jnp.ones((4, 6), jnp.float32), method=method)
    assert found.points.dtype == jnp.float32
    assert len(found.distinct().points) >= 1
    assert (found.distinct().residual < 1e-5).all()


def test_errors(starts):
    lorenz, find = dw.systems.Lorenz63(), dw.dynamics.find_fixed_points
    with pytest.raises(dw.errors.ShapeError, match=r"`candidates` must have shape \(N, 3\); got \(3,\)"):
        find(lorenz, starts[0])
    with pytest.raises(dw.errors.ArgumentError, match="at least one state"):
        find(lorenz, starts[:0])
    with pytest.raises(dw.errors.ArgumentError, match="`method` must be one of 'newton', 'levenberg_marquardt'"):
        find(lorenz, starts, method="bfgs")  # pyright: ignore[reportArgumentType]
    with pytest.raises(dw.errors.ArgumentError, match="`tolerance` must be positive"):
        find(lorenz, starts, tolerance=0.0)
    with pytest.raises(dw.errors.ShapeError, match="`input`"):
        find(dw.models.GRU(2, 3, key=jax.random.key(0)), starts, input=jnp.zeros(5))
    with pytest.raises(dw.errors.ConvergenceError, match="2 of 2 lanes failed"):
        find(lorenz, jnp.full((2, 3), jnp.nan))


# ---- periodic orbits


@pytest.fixture(scope="module")
def henon_states():
    return dw.simulate(dw.systems.Henon(), jnp.array([0.1, 0.1]), steps=200)[50:]


def test_henon_orbits(henon_states):
    henon = dw.systems.Henon()
    # The 2-cycle in closed form: x^2 a^2 - (1 - b) a x + (1 - b)^2 - a = 0.
    a, b = 1.4, 0.3
    xs = np.roots([a**2, -(1 - b) * a, (1 - b) ** 2 - a])
    found = dw.dynamics.find_periodic_orbits(henon, henon_states[:40], period=2)
    kept = found.distinct()
    assert len(kept.points) == 1
    np.testing.assert_allclose(np.sort(kept.points[0, :, 0]), np.sort(xs), rtol=1e-12)
    np.testing.assert_allclose(kept.multipliers[0, 0] * kept.multipliers[0, 1], b**2, rtol=1e-12)
    assert not kept.is_stable.any()
    # Fixed points appear among them, marked by their least period.
    assert set(found.distinct(primitive=False).minimal_period.tolist()) == {1, 2}
    # The numbers of orbits of Henon's attractor at each period are known.
    for period, count in {3: 0, 6: 2}.items():
        orbits = dw.dynamics.find_periodic_orbits(henon, henon_states, period=period, throw=False).distinct()
        assert len(orbits.points) == count
        for orbit in orbits.points:
            np.testing.assert_allclose(jax.vmap(henon)(orbit), np.roll(orbit, -1, axis=0), atol=1e-10)


def test_unstable_long_orbit_and_derivative():
    # All fixed points of F^12 of the logistic map at r = 4: sin^2(pi j / (2^12 +- 1)).
    logistic = dw.systems.LogisticMap()
    starts = jnp.sin(jnp.pi * jnp.array([3.0, 5.0, 7.0]) / 4097)[:, None] ** 2 + 1e-9
    found = dw.dynamics.find_periodic_orbits(logistic, starts, period=12)
    np.testing.assert_allclose(found.points[:, 0], starts - 1e-9, atol=1e-9)
    np.testing.assert_allclose(np.abs(found.multipliers[:, 0]), 2.0**12, rtol=1e-8)

    def f(r):
        orbit = dw.dynamics.find_periodic_orbits(dw.systems.LogisticMap(r), jnp.array([[0.51]]), period=2)
        return orbit.points[0, 0, 0] * orbit.multipliers[0, 0].real

    # The multiplier of the 2-cycle is 4 + 2 r - r^2.
    h = 1e-6
    np.testing.assert_allclose(jax.grad(f)(3.3), (f(3.3 + h) - f(3.3 - h)) / (2 * h), rtol=1e-7)
    orbit = dw.dynamics.find_periodic_orbits(dw.systems.LogisticMap(3.3), jnp.array([[0.51]]), period=2)
    np.testing.assert_allclose(orbit.multipliers[0, 0], 4 + 6.6 - 3.3**2, rtol=1e-11)
    assert orbit.is_stable.all()


def test_periodic_orbit_errors(models):
    with pytest.raises(dw.errors.ModelError, match="LinearField is a field"):
        dw.dynamics.find_periodic_orbits(models.field(jnp.eye(2)), jnp.ones((1, 2)), period=2)
    with pytest.raises(dw.errors.ArgumentError, match="`period` must be a whole number of at least 1; got 0"):
        dw.dynamics.find_periodic_orbits(dw.systems.Henon(), jnp.ones((1, 2)), period=0)
