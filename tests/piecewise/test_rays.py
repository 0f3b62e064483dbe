"""Rays at stable manifolds: against traced manifolds, published numbers, simulation, and corners set up on purpose."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.errors import ArgumentError, NonFiniteError, PrecisionError, ShapeError
from dynwarp.piecewise import cycle_at, delta_sigma, fixed_points_by_region, shoot_ray, trace_manifold

DATA = Path(__file__).parents[3] / "shared" / "data"
L, R = [False], [True]
WORDS = {"fig3a_right": [R], "fig3b_left": [L, L, R], "fig5": [L]}


def toy(name):
    f = dw.systems.BorderCollisionMap.preset(name).canonical()
    return f, cycle_at(f, jnp.array(WORDS[name]))


@pytest.fixture(scope="module")
def right():
    return toy("fig3a_right")


def polyline_hits(lines, origin, direction):
    """Where a ray meets polylines of the plane, by signs of cross products."""
    normal = np.array([-direction[1], direction[0]])
    out = []
    for line in lines:
        a, b = line[:-1], line[1:]
        fa, fb = (a - origin) @ normal, (b - origin) @ normal
        meets = fa * fb < 0
        x = a[meets] + (fa[meets] / (fa[meets] - fb[meets]))[:, None] * (b - a)[meets]
        out.append((x - origin) @ direction / (direction @ direction))
    t = np.sort(np.concatenate(out))
    return t[t > 0]


@pytest.mark.parametrize(("name", "iterations"), [("fig3a_right", 12), ("fig3b_left", 10), ("fig5", 7)])
def test_hits_are_those_of_the_traced_manifold(name, iterations):
    f, cycle = toy(name)
    levels = [trace_manifold(f, cycle, iterations=n) for n in range(iterations + 1)]
    rng, total = np.random.default_rng(0), 0
    for _ in range(15):
        origin, direction = 2 * rng.normal(size=2), rng.normal(size=2)
        hits = shoot_ray(f, cycle, jnp.asarray(origin), jnp.asarray(direction), iterations=iterations)
        assert not hits.truncated
        t = np.asarray(hits.t)
        assert (np.diff(t) > 0).all()
        np.testing.assert_allclose(hits.points, origin + t[:, None] * direction, rtol=1e-14)
        # The traced manifolds end at a box of a thousand times the scale.
        near = np.abs(np.asarray(hits.points)).max(axis=1, initial=0) < 500
        for n in (iterations, iterations - 3):
            expected = polyline_hits(levels[n].vertices, origin, direction)
            expected = expected[np.abs(origin + expected[:, None] * direction).max(axis=1, initial=0) < 500]
            mine = t[near & (np.asarray(hits.iterations) <= n)]
            assert len(mine) == len(expected)
            np.testing.assert_allclose(mine, expected, rtol=1e-9, atol=1e-12)
            total += len(expected)
    assert total > 10


def test_hits_in_three_dimensions_are_those_of_polyhedra(solid):
    f, cycle = solid
    manifold = trace_manifold(f, cycle, iterations=4, box=(-30, 30))
    rng, total = np.random.default_rng(0), 0
    for _ in range(60):
        origin, direction = rng.normal(size=3), rng.normal(size=3)
        direction /= np.linalg.norm(direction)
        expected = []
        for piece in manifold.pieces:
            # origin + t direction = center + basis s.
            solved = np.linalg.solve(np.column_stack([direction, -piece.basis]), piece.center - origin)
            if solved[0] > 0 and (piece.G @ solved[1:] <= piece.g).all():
                expected.append(solved[0])
        hits = shoot_ray(f, cycle, jnp.asarray(origin), jnp.asarray(direction), iterations=4, length=20.0)
        expected = np.sort([t for t in expected if t < 20])
        np.testing.assert_allclose(hits.t, expected, atol=1e-10)
        total += len(expected)
        for i in range(len(hits)):
            n, z = int(hits.iterations[i]), np.asarray(hits.points[i])
            word = hits.itinerary(i)
            assert word.shape == (n, 5)
            for pattern in word:
                np.testing.assert_array_equal(np.asarray(f.pattern(jnp.asarray(z))), pattern)
                z = np.asarray(f(jnp.asarray(z)))
            # On the hyperplane at the end, and not in the region of the cycle just before.
            assert abs(np.asarray(hits.normals[0]) @ (z - np.asarray(cycle.points[0]))) < 1e-12 * 1.6**n * 10
            np.testing.assert_array_equal(np.asarray(f.pattern(jnp.asarray(z))), cycle.itinerary[0])
            if n:
                assert (word[-1] != np.asarray(cycle.itinerary[0])).any()
    assert total > 10


def test_sign_tells_the_side(right):
    f, saddle = right
    inside, outside = jnp.array([-0.4, 0.6]), jnp.array([2.0, 0.0])
    there = shoot_ray(f, saddle, inside, outside - inside, iterations=20, length=1)
    back = shoot_ray(f, saddle, outside, inside - outside, iterations=20, length=1)
    assert len(there) == len(back) == 1
    np.testing.assert_allclose(there.t[0], 1 - back.t[0], atol=1e-14)
    assert int(there.sign[0]) == -int(back.sign[0]) != 0
    # In order along a long segment they alternate: the unstable multiplier is positive.
    through = shoot_ray(f, saddle, jnp.array([3.0, -6.0]), jnp.array([-1.0, 1.9]), iterations=20)
    assert len(through) == 2
    assert int(through.sign.sum()) == 0


def test_infinite_ray_and_segments_agree(right):
    f, saddle = right
    origin, direction = jnp.array([3.0, -6.0]), jnp.array([-1.0, 1.9])
    whole = shoot_ray(f, saddle, origin, direction, iterations=10)
    part = shoot_ray(f, saddle, origin, direction, iterations=10, length=50.0)
    np.testing.assert_allclose(part.t, whole.t, rtol=1e-12)
    short = shoot_ray(f, saddle, origin, 100 * direction, iterations=10, length=0.5)
    np.testing.assert_allclose(100 * short.t, whole.t, rtol=1e-12)
    at_end = shoot_ray(f, saddle, origin, direction, iterations=10, length=float(whole.t[0]))
    assert len(at_end) == 1


def test_corners_and_borders_count_once(right):
    f, saddle = right
    p = np.asarray(saddle.points[0])
    # Through the saddle itself; the origin on W^s does not count.
    through = shoot_ray(f, saddle, jnp.asarray(p - [0.1, 0.05]), jnp.array([0.2, 0.1]), iterations=30)
    np.testing.assert_allclose(through.t, [0.5], rtol=1e-12)
    assert len(shoot_ray(f, saddle, saddle.points[0], jnp.array([0.2, 0.1]), iterations=30)) == 0
    # W^s crosses the border x = 0: through that corner, across and along the border.
    manifold = trace_manifold(f, saddle, iterations=1)
    corners = np.concatenate([v for v in manifold.vertices])
    corner = corners[np.argmin(np.abs(corners[:, 0]))]
    assert abs(corner[0]) < 1e-12
    corner = np.array([0.0, corner[1]])
    for direction in ([1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-0.3, 1.0]):
        step = np.array(direction)
        hits = shoot_ray(f, saddle, jnp.asarray(corner - step), jnp.asarray(step), iterations=30, length=1.5)
        near = np.abs(np.asarray(hits.t) - 1) < 1e-6
        assert near.sum() == 1
        # On the rim of W^s_loc to rounding: either side of it.
        assert int(hits.iterations[near][0]) == 0
    # A ray within W^s_loc has no isolated crossing there.
    v = np.linalg.svd(np.asarray(hits.normals))[2][1]
    assert not np.any(np.asarray(shoot_ray(f, saddle, saddle.points[0], jnp.asarray(v), iterations=0).t))


def test_unstable_point_of_the_line():
    # A tent on the line: its preimages of the unstable fixed point are dyadic.
    f = dw.models.PiecewiseLinearMap(
        *map(jnp.asarray, (np.array([[2.0]]), np.array([[-4.0]]), np.array([[1.0]]), np.array([0.0]), np.array([-0.5])))
    )
    top = cycle_at(f, jnp.array([[True]]))
    hits = shoot_ray(f, top, jnp.array([0.0]), jnp.array([1.0]), iterations=6, length=1)
    numbers = sorted({x for n in range(7) for x in _tent_preimages(2 / 3, n) if 0 < x <= 1})
    np.testing.assert_allclose(hits.t, numbers, atol=1e-14)


def _tent_preimages(x, n):
    found = [x]
    for _ in range(n):
        found = [z for y in found if y <= 1 for z in (y / 2, 1 - y / 2)]
    return [round(z, 14) for z in found]


@pytest.fixture(scope="module")
def lorenz():
    if not DATA.exists():
        pytest.skip("the trained networks are not beside the repository")
    stored = np.load(DATA / "alrnn_lorenz63_m20_p2.npz")
    A, W, h = (jnp.asarray(stored[k], jnp.float64) for k in ("A", "W", "h"))
    f = dw.models.ALRNN.from_parameters(A, W, h, 2).canonical()
    points = fixed_points_by_region(f)
    saddle = int(np.flatnonzero(np.asarray(points.n_unstable) == 1)[0])
    wings = [points.points[int(np.argmin(np.abs(np.asarray(points.points[:, 0]) - x)))] for x in (1.018, -0.818)]
    return f, cycle_at(f, points.patterns[saddle][None]), wings


def test_trained_network_of_twenty_dimensions(lorenz):
    f, saddle, (a, b) = lorenz
    for n in (0, 10, 50):
        hits = shoot_ray(f, saddle, a, b - a, iterations=n, length=1)
        np.testing.assert_allclose(hits.t, [0.497855165975], atol=1e-12)
        assert hits.iterations.tolist() == [0]
    hits = shoot_ray(f, saddle, a, b - a, iterations=100)
    assert len(hits) > 1
    assert not hits.truncated
    assert np.max(np.asarray(delta_sigma(f, saddle, hits.points, kind="stable"))) < 1e-10
    # Second way: after n steps of the map itself the points are in the plane, to the rounding that has grown.
    A, W1, W2, h1, h2 = (np.asarray(x) for x in (f.A, f.W1, f.W2, f.h1, f.h2))
    normal, level = np.asarray(hits.normals[0]), float(hits.normals[0] @ saddle.points[0])
    for z, n in zip(np.asarray(hits.points), hits.iterations.tolist()):
        for _ in range(n):
            z = A @ z + W1 @ np.maximum(W2 @ z + h2, 0) + h1
        assert abs(normal @ z - level) < 1e-9


def test_caps_and_errors(right):
    f, saddle = right
    origin, direction = jnp.array([-0.4, 0.6]), jnp.array([1.0, 0.5])
    hits = shoot_ray(f, saddle, origin, direction, iterations=40, max_pieces=5)
    assert hits.truncated
    assert 0 < hits.completed < 40
    assert len(hits) == 1
    chaos, point = toy("fig5")
    bounded = shoot_ray(chaos, point, jnp.array([-1.0, -1.0]), jnp.array([2.0, 1.9]), iterations=200, max_pieces=2000)
    assert bounded.truncated
    assert bounded.completed < 40
    sink = cycle_at(f, jnp.array([[False]]))
    with pytest.raises(ArgumentError, match="no unstable direction"):
        shoot_ray(f, sink, origin, direction, iterations=1)
    with pytest.raises(ArgumentError, match="must be a Cycle"):
        shoot_ray(f, None, origin, direction, iterations=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="`direction` must not be zero"):
        shoot_ray(f, saddle, origin, 0 * direction, iterations=1)
    with pytest.raises(ArgumentError, match="`length` must be positive"):
        shoot_ray(f, saddle, origin, direction, iterations=1, length=0)
    with pytest.raises(ShapeError, match="`origin`"):
        shoot_ray(f, saddle, origin[:1], direction, iterations=1)
    with pytest.raises(NonFiniteError, match="`direction`"):
        shoot_ray(f, saddle, origin, jnp.array([jnp.nan, 1.0]), iterations=1)
    with pytest.raises(PrecisionError, match="`origin`"):
        shoot_ray(f, saddle, origin.astype(jnp.float32), direction, iterations=1)
    with pytest.raises(ArgumentError, match="concrete"):
        jax.jit(lambda x: shoot_ray(f, saddle, x, direction, iterations=1).t)(origin)


def test_two_unstable_directions_are_refused():
    f = dw.models.PiecewiseLinearMap(
        jnp.diag(jnp.array([2.0, 3.0, 0.5])), jnp.zeros((3, 1)), jnp.ones((1, 3)), jnp.zeros(3), jnp.ones(1)
    )
    with pytest.raises(ArgumentError, match="one unstable direction"):
        shoot_ray(f, cycle_at(f, jnp.array([[True]])), jnp.zeros(3), jnp.ones(3), iterations=1)
