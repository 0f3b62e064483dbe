"""Basins and their boundaries: labels, bisection, parity, edge tracking, distances and their derivatives."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import dynwarp as dw
from dynwarp import RESULTS
from dynwarp.errors import ArgumentError, ShapeError
from dynwarp.piecewise import (
    basin_distance,
    basin_of,
    basin_parity,
    bisect_boundary,
    cycle_at,
    find_cycles,
    nearest_boundary,
    trace_manifold,
    track_edge,
)

DATA = Path(__file__).parents[3] / "shared" / "data"
L, R = [False], [True]
# The saddle's word and the half-width of a box.
TOYS = {"fig3a_right": ([R], 5.0), "fig3b_left": ([L, L, R], 4.0), "fig3b_right": ([L, L, L, R], 10.0)}


def toy(name):
    f = dw.systems.BorderCollisionMap.preset(name).canonical()
    return f, cycle_at(f, jnp.array(TOYS[name][0])), cycle_at(f, jnp.array([L]))


@pytest.fixture(scope="module")
def right():
    return toy("fig3a_right")


def simulated(f, states, steps=600):
    """Whether orbits stay bounded, by NumPy."""
    A, W1, W2, h1, h2 = (np.asarray(x) for x in (f.A, f.W1, f.W2, f.h1, f.h2))
    z = np.array(states)
    for _ in range(steps):
        z = np.clip(z @ A.T + np.maximum(z @ W2.T + h2, 0) @ W1.T + h1, -1e6, 1e6)
    return np.abs(z).max(axis=-1) < 1e3


@pytest.mark.parametrize("name", TOYS)
def test_parity_of_crossings(name):
    f, saddle, sink = toy(name)
    box = TOYS[name][1]
    pairs = np.random.default_rng(0).uniform(-box, box, (300, 2, 2))
    found = basin_parity(f, saddle, jnp.asarray(pairs), sink, iterations=16)
    bounded = simulated(f, pairs)
    np.testing.assert_array_equal(found.labels, np.where(bounded, 0, -1))
    assert 50 < (bounded[:, 0] != bounded[:, 1]).sum() == len(found.boundary)
    assert found.agreement == 1.0
    assert bool(found.agrees.all())
    assert float(jnp.max(found.distance)) < 1e-11
    assert (found.unexplained, found.undecided, found.truncated) == (0.0, 0, False)
    # Second way: the boundary points lie on the traced manifold.
    manifold = trace_manifold(f, saddle, iterations=16)
    assert float(jnp.max(manifold.distance(np.asarray(found.boundary)))) < 1e-11


def test_what_is_not_explained_is_reported(right):
    # Too few preimages of W^s_loc explain a part of the boundary only.
    f, saddle, sink = right
    pairs = jnp.asarray(np.random.default_rng(1).uniform(-5, 5, (100, 2, 2)))
    full = basin_parity(f, saddle, pairs, sink, iterations=16)
    short = basin_parity(f, saddle, pairs, sink, iterations=0)
    assert short.agreement < 1
    assert 0 < short.unexplained < 1
    missing = np.asarray(short.distance) > 1e-8
    np.testing.assert_allclose(short.unexplained, missing.mean())
    assert (np.asarray(short.crossings) <= np.asarray(full.crossings)).all()
    # Nothing is decided in no time.
    hasty = basin_parity(f, saddle, pairs, sink, iterations=0, steps=1)
    assert hasty.undecided > 0
    assert not bool(hasty.agrees.all())


def test_labels(right):
    f, saddle, sink = right
    states = np.random.default_rng(2).uniform(-5, 5, (400, 2))
    labels = np.asarray(basin_of(f, jnp.asarray(states), sink))
    np.testing.assert_array_equal(labels == 0, simulated(f, states))
    assert set(labels.tolist()) == {0, -1}
    # Points of the cycle are the cycle; a ball does as well; one state gives one label.
    for attractors, tolerance in ((sink.points[0], None), ([np.asarray(sink.points) + 1e-7], 1e-3)):
        np.testing.assert_array_equal(basin_of(f, jnp.asarray(states), attractors, tolerance=tolerance), labels)
    assert basin_of(f, jnp.asarray(states[0]), [sink]).shape == ()
    assert basin_of(f, saddle.points, sink, steps=8).tolist() == [-2]


def test_traps_hold(right):
    """From everywhere on the ellipsoid the orbit stays in the region and inside the ellipsoid."""
    from dynwarp.piecewise._basin import make_traps

    f, _, sink = right
    traps = make_traps(f, sink, None, None, caller="test")
    angle = np.linspace(0, 2 * np.pi, 200)
    rim = np.linalg.solve(np.asarray(traps.factors[0]), np.stack([np.cos(angle), np.sin(angle)])).T
    rim = rim + np.asarray(sink.points[0])
    values = rim @ np.asarray(f.W2).T + np.asarray(f.h2)
    np.testing.assert_array_equal(values > 0, np.broadcast_to(np.asarray(sink.itinerary), values.shape))
    assert np.abs(values).min() < 1e-3
    image = np.asarray(jax.vmap(f)(jnp.asarray(rim)))
    offset = (image - np.asarray(sink.points[0])) @ np.asarray(traps.factors[0]).T
    assert np.linalg.norm(offset, axis=1).max() < 1


def test_bisection_and_edge(right):
    f, saddle, sink = right
    starts = jnp.tile(sink.points, (3, 1))
    ends = jnp.array([[3.0, 2.0], [4.0, -1.0], [2.0, 0.5]])
    found = bisect_boundary(f, starts, ends, sink)
    assert found.labels.tolist() == [[0, -1]] * 3
    assert float(found.gap.max()) < 1e-14
    manifold = trace_manifold(f, saddle, iterations=12)
    assert float(jnp.max(manifold.distance(np.asarray(found.points)))) < 1e-13
    assert bool(jnp.all(found.result == RESULTS.successful))
    hasty = bisect_boundary(f, starts, ends, sink, steps=48)
    assert not bool(jnp.all(hasty.result == RESULTS.successful))
    assert float(hasty.gap.max()) > 1e-14
    track = track_edge(f, sink.points[0], ends[0], sink, length=40)
    assert track.period == 1
    assert track.labels.tolist() == [0, -1]
    np.testing.assert_allclose(track.states[-1], saddle.points[0], atol=1e-8)
    assert float(track.gap[1:].max()) < 1e-6
    steps = np.linalg.norm(np.asarray(jax.vmap(f)(track.states[:-1]) - track.states[1:]), axis=1)
    assert (steps[1:] <= 2 * np.asarray(track.gap[1:-1]) + 2e-8).all()


def test_boundary_that_is_no_saddle():
    """A disc of states that spiral in, bounded by the edge of divergence: the edge state is an unstable cycle."""
    # On the line: |z| < 1 falls to 0, beyond it grows; z = 1 and -1 are unstable, no saddles.
    f = dw.models.PiecewiseLinearMap(
        *map(
            jnp.asarray,
            (np.array([[0.5]]), np.array([[1.5, -1.5]]), np.array([[1.0], [-1.0]]), np.zeros(1), np.full(2, -2 / 3)),
        )
    )
    found = bisect_boundary(f, jnp.zeros((2, 1)), jnp.array([[3.0], [-2.0]]), jnp.zeros(1))
    np.testing.assert_allclose(found.points, [[1.0], [-1.0]], rtol=1e-14)
    # Each of the two explains its own half of the boundary.
    top = cycle_at(f, jnp.array([[True, False]]))
    pairs = jnp.asarray(np.random.default_rng(0).uniform(-2, 2, (200, 2, 1)))
    half = basin_parity(f, top, pairs, jnp.zeros(1), iterations=3)
    assert 0.3 < half.unexplained < 0.7
    both = basin_parity(f, [top, cycle_at(f, jnp.array([[False, True]]))], pairs, jnp.zeros(1), iterations=3)
    assert (both.agreement, both.unexplained) == (1.0, 0.0)


@pytest.fixture(scope="module")
def duffing():
    if not DATA.exists():
        pytest.skip("the trained network is not beside the repository")
    stored = np.load(DATA / "shplrnn_duffing_m2_h10.npz")
    A, W1, W2, h1, h2 = (jnp.asarray(stored[k], jnp.float64) for k in ("A", "W1", "W2", "h1", "h2"))
    f = dw.models.ShallowPLRNN.from_parameters(A, W1, W2, h1, h2).canonical()
    points = find_cycles(f, 1, key=jax.random.key(0))
    return f, [c for c in points if c.kind == "saddle"], [c for c in points if c.kind == "stable"]


@pytest.mark.parametrize("count", [20, pytest.param(222, marks=pytest.mark.slow)])
def test_parity_of_a_trained_network(duffing, count):
    f, (saddle,), sinks = duffing
    assert len(sinks) == 2
    np.testing.assert_allclose(sorted(float(s.points[0, 0]) for s in sinks), [-3.1623, 3.1623], atol=0.1)
    pairs = jnp.asarray(np.random.default_rng(0).uniform(-4, 4, (count, 2, 2)))
    found = basin_parity(f, saddle, pairs, sinks, iterations=45)
    assert int(found.agrees.sum()) == count
    assert float(jnp.max(found.distance)) < 1e-11


@pytest.mark.parametrize("name", ["fig3a_right", "fig3b_right"])
def test_nearest_point_of_polylines(name):
    f, saddle, sink = toy(name)
    manifold = trace_manifold(f, saddle, iterations=12)
    rng, corners = np.random.default_rng(0), 0
    for x in rng.normal(size=(12, 2)) * 3:
        foot = nearest_boundary(f, jnp.asarray(x), saddle, manifold=manifold)
        np.testing.assert_allclose(foot.distance, manifold.distance(x), rtol=1e-9)
        np.testing.assert_allclose(np.linalg.norm(foot.point - x), foot.distance, rtol=1e-12)
        assert float(manifold.distance(foot.point)) < 1e-11
        assert foot.guarantee == "exact"
        pure = basin_distance(f, jnp.asarray(x), saddle, foot=foot)
        np.testing.assert_allclose(pure, foot.distance, rtol=1e-10)
        corners += len(foot.active) > 0
        bound = nearest_boundary(f, jnp.asarray(x), saddle, method="rays", iterations=12)
        assert bound.guarantee == "local"
        assert float(bound.distance) >= float(foot.distance) * (1 - 1e-9)
    assert corners > 0 or name == "fig3a_right"
    # Of several points the nearest counts.
    points = jnp.asarray(np.stack([sink.points[0] + 9.0, sink.points[0]]))
    foot = nearest_boundary(f, points, saddle, manifold=manifold)
    assert foot.index == int(np.argmin(manifold.distance(np.asarray(points))))


def test_nearest_point_of_polyhedra(solid):
    f, saddle = solid
    manifold = trace_manifold(f, saddle, iterations=3, box=(-30, 30))
    agree = 0
    for x in np.random.default_rng(1).normal(size=(6, 3)):
        exact = nearest_boundary(f, jnp.asarray(x), saddle, manifold=manifold)
        bound = nearest_boundary(f, jnp.asarray(x), saddle, iterations=3)
        np.testing.assert_allclose(exact.distance, manifold.distance(x), rtol=1e-9, atol=1e-12)
        assert float(bound.distance) >= float(exact.distance) * (1 - 1e-9)
        agree += float(bound.distance) < float(exact.distance) * (1 + 1e-9)
        np.testing.assert_allclose(basin_distance(f, jnp.asarray(x), saddle, foot=exact), exact.distance, rtol=1e-9)
    assert agree >= 4


@pytest.mark.parametrize("corner", [False, True])
def test_derivative_of_the_distance(right, corner, check_waits):
    f, saddle, sink = right
    vector, unravel = ravel_pytree(f)
    point = jnp.array([3.0, 4.0])
    if corner:
        # From the outer side of the first corner of W^s the corner itself is nearest.
        candidates = [jnp.asarray(x) for x in np.random.default_rng(0).normal(size=(40, 2)) * 3]
        point = next(x for x in candidates if len(nearest_boundary(f, x, saddle, iterations=6).active))

    def searched(v):
        g = unravel(v)
        # The attractor moves with the map.
        moved = point + (0.0 if corner else 1.0) * cycle_at(g, sink.itinerary).points[0]
        return basin_distance(g, moved, saddle, iterations=6)

    value, slope = jax.value_and_grad(searched)(vector)
    size = 1e-6
    for direction in np.random.default_rng(3).normal(size=(2, len(vector))):
        d = jnp.asarray(direction)
        difference = (searched(vector + size * d) - searched(vector - size * d)) / (2 * size)
        np.testing.assert_allclose(slope @ d, difference, rtol=1e-6)
    # The pure form, by the foot.
    at = point + (0.0 if corner else 1.0) * sink.points[0]
    foot = nearest_boundary(f, at, saddle, iterations=6)

    def pure(v):
        g = unravel(v)
        moved = point + (0.0 if corner else 1.0) * cycle_at(g, sink.itinerary).points[0]
        return basin_distance(g, moved, saddle, foot=foot)

    again, derivative = jax.jit(jax.value_and_grad(pure))(vector)
    np.testing.assert_allclose(again, value, rtol=1e-12)
    np.testing.assert_allclose(derivative, slope, rtol=1e-9, atol=1e-12)
    if corner:
        check_waits(jax.value_and_grad(lambda g: basin_distance(g, point, saddle, foot=foot)), f)
        # The other pure form, by all segments of the traced manifold.
        manifold = trace_manifold(f, saddle, iterations=6)
        lines = jax.jit(jax.value_and_grad(lambda g: basin_distance(g, point, saddle, manifold=manifold)))(f)
        np.testing.assert_allclose(lines[0], value, rtol=1e-10)
        np.testing.assert_allclose(ravel_pytree(lines[1])[0], slope, rtol=1e-6, atol=1e-9)


def test_a_fit_moves_the_boundary_away(right):
    """The distance as a loss: descent along its gradient, with one foot, widens the basin as asked."""
    f, saddle, sink = right
    foot = nearest_boundary(f, sink.points, saddle, iterations=6)
    goal = float(foot.distance) + 0.1

    @eqx.filter_jit
    def step(g):
        def loss(g):
            return (basin_distance(g, cycle_at(g, sink.itinerary).points, saddle, foot=foot) - goal) ** 2

        slope = eqx.filter_grad(loss)(g)
        return eqx.apply_updates(g, jax.tree.map(lambda s: -0.01 * s, slope))

    g = f
    for _ in range(60):
        g = step(g)
    np.testing.assert_allclose(
        basin_distance(g, cycle_at(g, sink.itinerary).points, saddle, iterations=6), goal, rtol=1e-4
    )


def test_errors(right, solid):
    f, saddle, sink = right
    states = jnp.zeros((2, 2))
    with pytest.raises(ArgumentError, match="stable cycle"):
        basin_of(f, states, saddle)
    with pytest.raises(ArgumentError, match="give `tolerance`"):
        basin_of(f, states, jnp.ones((3, 2)))
    with pytest.raises(ShapeError, match="`states`"):
        basin_of(f, jnp.zeros((2, 3)), sink)
    with pytest.raises(ArgumentError, match="different basins"):
        bisect_boundary(f, states, states, sink)
    with pytest.raises(ArgumentError, match="different basins"):
        track_edge(f, states[0], states[0], sink)
    with pytest.raises(ArgumentError, match="`separation`"):
        track_edge(f, states[0], states[0], sink, separation=(1.0, 0.1))
    with pytest.raises(ArgumentError, match="at least one saddle"):
        basin_parity(f, [], jnp.zeros((1, 2, 2)), sink, iterations=1)
    with pytest.raises(ShapeError, match="`attractor_points`"):
        basin_distance(f, jnp.zeros(3), saddle)
    with pytest.raises(ArgumentError, match="no unstable direction"):
        basin_distance(f, sink.points, sink)
    with pytest.raises(ArgumentError, match="traced by jit or vmap"):
        jax.jit(lambda g: basin_distance(g, sink.points, saddle))(f)
    unstable = trace_manifold(f, saddle, kind="unstable", iterations=1)
    with pytest.raises(ArgumentError, match="must be a stable one"):
        basin_distance(f, sink.points, saddle, manifold=unstable)
