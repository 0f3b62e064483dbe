"""Homoclinic points and the splitting: published numbers, traced polylines, products, tangencies, derivatives."""

import sys
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.errors import ArgumentError, MissingDependencyError, ModelError, PrecisionError, ShapeError
from dynwarp.piecewise import cycle_at, homoclinic_points, splitting, trace_manifold

L, R = [False], [True]
FIG5 = dw.systems.BorderCollisionMap.preset("fig5").canonical()


def cycle_of(word, f=FIG5):
    return cycle_at(f, jnp.array(word))


@pytest.fixture(scope="module")
def chaos():
    return FIG5, cycle_of([L])


@pytest.fixture(scope="module")
def found(chaos):
    return homoclinic_points(*chaos, iterations=6)


def step(f, z):
    A, W1, W2, h1, h2 = (np.asarray(x) for x in (f.A, f.W1, f.W2, f.h1, f.h2))
    return z @ A.T + np.maximum(z @ W2.T + h2, 0) @ W1.T + h1


def counts(found, n):
    return [int((found.iterations <= i).sum()) for i in range(n + 1)]


def crossings(f, cycle, other, n, later=0):
    """The crossings of traced polylines, W^u after n images and W^s after `later` preimages, without the cycles."""
    up = trace_manifold(f, cycle, kind="unstable", iterations=n).vertices
    down = trace_manifold(f, other, kind="stable", iterations=later, box=(-30, 30)).vertices
    a, u = (np.concatenate(x) for x in ([v[:-1] for v in up], [np.diff(v, axis=0) for v in up]))
    b, v = (np.concatenate(x) for x in ([v[:-1] for v in down], [np.diff(v, axis=0) for v in down]))
    w = b[None] - a[:, None]
    cross = u[:, None, 0] * v[None, :, 1] - u[:, None, 1] * v[None, :, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        s = (w[..., 0] * v[None, :, 1] - w[..., 1] * v[None, :, 0]) / cross
        t = (w[..., 0] * u[:, None, 1] - w[..., 1] * u[:, None, 0]) / cross
    i, j = np.nonzero((s >= -1e-9) & (s <= 1 + 1e-9) & (t >= -1e-9) & (t <= 1 + 1e-9))
    x = a[i] + s[i, j][:, None] * u[i]
    centres = np.concatenate([np.asarray(cycle.points), np.asarray(other.points)])
    x = x[np.linalg.norm(x[:, None] - centres, axis=2).min(axis=1, initial=1.0) > 1e-9]
    kept = []
    for point in x:
        if all(np.linalg.norm(point - y) > 1e-10 for y in kept):
            kept.append(point)
    return np.array(kept).reshape(-1, 2)


def offsets(vertices, line, point):
    """The signed distances of vertices from a line through a point."""
    u = (line[-1] - line[0]) / np.linalg.norm(line[-1] - line[0])
    return (vertices - np.asarray(point)) @ np.array([-u[1], u[0]])


def same_points(one, other, tolerance=1e-12):
    assert one.shape == other.shape
    if len(one):
        gap = np.linalg.norm(one[:, None] - other, axis=2)
        assert gap.min(axis=0).max() < tolerance
        assert gap.min(axis=1).max() < tolerance


def test_published_numbers(found):
    assert counts(found, 4) == [0, 0, 1, 2, 4]
    np.testing.assert_allclose(
        found.points[0], [-0.4167269895285939624989504, -0.5023791939727799756488133], rtol=0, atol=5e-16
    )
    assert found.iterations[0] == 2
    assert not found.truncated
    assert found.searched == 6
    assert found.residual.max() < 1e-15
    assert not found.on_border.any()
    assert jnp.all(found.result == dw.RESULTS.successful)
    assert found.chaos
    assert "horseshoe" in found.verdict


# Counts by polylines with 60 digits, from the definition of the local manifolds by bisection.
@pytest.mark.parametrize(
    ("word", "expected"),
    [([L], [0, 0, 1, 2, 4, 7, 12]), ([L, R], [0, 1, 3, 6, 11]), ([L, L, R], [2, 6, 13, 23]), ([L, R, R], [0, 1, 3, 6])],
)
def test_cycles_of_any_period(word, expected):
    cycle, n = cycle_of(word), len(expected) - 1
    found = homoclinic_points(FIG5, cycle, iterations=n)
    assert counts(found, n) == expected
    same_points(found.points, crossings(FIG5, cycle, cycle, n))
    k, centres = len(word), np.asarray(cycle.points)
    for i in range(len(found)):
        orbit, regions = found.orbits[i], found.itineraries[i]
        assert orbit.shape == (found.iterations[i] + 1, 2)
        np.testing.assert_array_equal(orbit[-1], found.points[i])
        np.testing.assert_allclose(step(FIG5, orbit[:-1]), orbit[1:], atol=1e-14)
        np.testing.assert_array_equal(orbit[:-1, :1] > 0, regions)
        # Forwards it comes to the cycle; backwards it does so by definition of where it begins.
        z, least = found.points[i], np.inf
        for later in range(12 * k):
            least = min(least, np.linalg.norm(z - centres[(found.targets[i] + later) % k]))
            z = step(FIG5, z)
        assert least < 1e-5


def test_preimages_of_the_local_stable_manifold(chaos):
    f, saddle = chaos
    for n, later in ((3, 2), (2, 3)):
        found = homoclinic_points(f, saddle, iterations=n, stable_iterations=later)
        # The map is invertible: those of n + m images on W^s_loc, m steps before.
        plain = homoclinic_points(f, saddle, iterations=n + later)
        assert len(found) == len(plain)
        z = found.points
        for _ in range(later):
            z = step(f, z)
        same_points(z, plain.points)
        same_points(found.points, crossings(f, saddle, saddle, n, later), 1e-10)
        assert found.iterations.max() == n
        assert found.iterations.min() == 0


def test_near_points_are_told_apart(chaos):
    # Some lie nearer than 1e-14 to each other. The polyline of 20 images crosses W^s_loc so many times, p left out.
    f, saddle = chaos
    (up,), (down,) = (
        trace_manifold(f, saddle, kind=kind, iterations=n).vertices for kind, n in (("unstable", 20), ("stable", 0))
    )
    value, length = offsets(up, down, saddle.points[0]), np.linalg.norm(down[-1] - down[0])
    i = np.flatnonzero((value[:-1] * value[1:] < 0) & (np.minimum(abs(value[:-1]), abs(value[1:])) > 1e-12))
    x = up[i] + (value[i] / (value[i] - value[i + 1]))[:, None] * (up[i + 1] - up[i])
    inside = (np.linalg.norm(x - down[0], axis=1) < length) & (np.linalg.norm(x - down[-1], axis=1) < length)
    assert len(homoclinic_points(f, saddle, iterations=20)) == inside.sum() == 14577


def test_heteroclinic_points():
    one, two = cycle_of([L]), cycle_of([L, R])
    for a, b in ((one, two), (two, one)):
        found = homoclinic_points(FIG5, a, other=b, iterations=4)
        assert counts(found, 4) == [1, 2, 3, 5, 8]
        same_points(found.points, crossings(FIG5, a, b, 4))
        assert found.heteroclinic
        assert not found.chaos
        assert "no chaos" in found.verdict


@pytest.mark.parametrize("name", ["fig3a_right", "fig3b_left"])
def test_maps_without_homoclinic_points(name):
    word = {"fig3a_right": [R], "fig3b_left": [L, L, R]}[name]
    f = dw.systems.BorderCollisionMap.preset(name)
    found = homoclinic_points(f, cycle_at(f, jnp.array(word)), iterations=12)
    assert len(found) == 0
    assert found.points.shape == (0, 2)
    assert not found.chaos
    assert "nothing is proved" in found.verdict
    assert "HomoclinicPoints" in repr(found)


def join(f, third):
    """The map f beside a third coordinate z' = third z + 0.3 x + 0.1 y + 0.2 relu(x) + 0.1."""
    A = np.zeros((3, 3))
    A[:2, :2], A[2] = f.A, [0.3, 0.1, third]
    W1, W2 = np.vstack([np.asarray(f.W1), [[0.2]]]), np.array([[1.0, 0.0, 0.0]])
    return dw.models.PiecewiseLinearMap(*map(jnp.asarray, (A, W1, W2, np.append(f.h1, 0.1), np.asarray(f.h2))))


# W^s of codimension 1 and 2: a third coordinate that only follows changes no count.
@pytest.mark.parametrize("third", [0.5, -1.5])
def test_three_dimensions(chaos, found, third):
    f, _ = chaos
    joined = join(f, third)
    more = homoclinic_points(joined, cycle_of([L], joined), iterations=5)
    assert counts(more, 5) == counts(found, 5)
    same_points(more.points[:, :2], found.points[found.iterations <= 5])
    assert more.residual.max() < 1e-14
    assert more.limits == (() if third == 0.5 else ("unbounded",))
    for x, orbit in zip(more.points, more.orbits):
        z = orbit[0]
        for _ in range(len(orbit) - 1):
            z = step(joined, z)
        np.testing.assert_allclose(z, x, atol=1e-12)


def test_a_product_of_maps(chaos):
    # Points of the product are pairs, of homoclinic points or cycle points, but for the cycle itself.
    f, _ = chaos

    def twice(x):
        x = np.asarray(x)
        return jnp.asarray(np.kron(np.eye(2), x) if x.ndim == 2 else np.tile(x, 2))

    product = jax.tree.map(twice, f)
    found = homoclinic_points(product, cycle_of([L + L], product), iterations=3)
    assert counts(found, 3) == [0, 0, (1 + 1) ** 2 - 1, (2 + 1) ** 2 - 1]
    assert found.chaos


def test_singular_jacobians_prove_nothing(chaos):
    # A third coordinate that forgets itself: every Jacobian is singular.
    f, _ = chaos
    joined = join(f, 0.0)
    found = homoclinic_points(joined, cycle_of([L], joined), iterations=4)
    assert counts(found, 4) == [0, 0, 1, 2, 4]
    assert found.transversality.min() > 0.1
    assert not found.regular.any()
    assert not found.chaos


# Maps without inverse, with the saddle of one region; the counts by traced polylines too.
FOLDED = [
    ([1.0, 1.1], [[0.0, -0.9], [1.7, -3.6]], [0.3, 0.7], [True, True], [0, 0, 1, 2, 4, 8, 16]),
    ([0.1, -0.3], [[1.5, 1.3], [-4.0, 0.5]], [-0.4, 0.5], [True, False], [0, 0, 0, 1, 3, 5, 7]),
    ([0.8, 0.6], [[-3.2, -1.9], [0.1, 2.7]], [0.6, -0.4], [True, False], [0, 0, 1, 2, 4, 7, 12]),
]


@pytest.mark.parametrize(("A", "W", "h", "region", "expected"), FOLDED)
def test_maps_that_fold(A, W, h, region, expected):
    f = dw.models.PiecewiseLinearMap(*map(jnp.array, (np.diag(A), W, np.eye(2), h, np.zeros(2))))
    assert len({np.linalg.det(np.diag(A) + np.array(W) * d) > 0 for d in np.ndindex(2, 2)}) == 2
    cycle = cycle_at(f, jnp.array([region]))
    found = homoclinic_points(f, cycle, iterations=6)
    assert counts(found, 6) == expected
    same_points(found.points, crossings(f, cycle, cycle, 6), 1e-10)


def test_orbits_that_come_together_count_once(chaos, found):
    # Beside the chaotic map a tent map, which folds: many orbits lead to each point (x, fixed point of the tent).
    f, _ = chaos

    def beside(name, tent):
        x, y = np.asarray(getattr(f, name)), np.array(tent)
        if x.ndim == 1:
            return jnp.asarray(np.append(x, y))
        top = np.concatenate([x, np.zeros((len(x), 1))], axis=1)
        return jnp.asarray(np.concatenate([top, np.append(np.zeros(x.shape[1]), y)[None]]))

    tent = {"A": 1.5, "W1": -3.0, "W2": 1.0, "h1": 1.0, "h2": 0.0}
    folded = dw.models.PiecewiseLinearMap(*(beside(*item) for item in tent.items()))
    both = homoclinic_points(folded, cycle_of([L + R], folded), iterations=4)
    assert counts(both, 4) == counts(found, 4)
    same_points(both.points[:, :2], found.points[found.iterations <= 4])
    np.testing.assert_allclose(both.points[:, 2], 0.4, rtol=1e-14)


def test_certificate(chaos, found):
    pytest.importorskip("mpmath")
    f, saddle = chaos
    exact = homoclinic_points(f, saddle, iterations=4, certify="mpmath")
    assert exact.certificate.certified.all()
    assert exact.certificate.residual.max() < 1e-50
    assert exact.certificate.margin.min() > 0.01
    # The numbers of the map are taken as they are: 0.6 is the nearest float.
    assert exact.certificate.points[0][0].startswith("-0.4167269895285939")
    assert len(exact.certificate.points[0][1]) >= 50
    np.testing.assert_allclose(exact.points, found.points[:4], rtol=0, atol=3e-16)
    assert "certified" in exact.verdict
    two = cycle_of([L, R])
    pairs = homoclinic_points(f, two, iterations=2, certify="mpmath")
    assert pairs.certificate.certified.all()
    spatial = join(f, -1.5)
    surface = homoclinic_points(spatial, cycle_of([L], spatial), iterations=3, certify="mpmath")
    assert surface.certificate.certified.all()


def test_certificate_without_mpmath(chaos, monkeypatch):
    monkeypatch.setitem(sys.modules, "mpmath", None)
    with pytest.raises(MissingDependencyError, match="pip install mpmath"):
        homoclinic_points(*chaos, iterations=2, certify="mpmath")


def test_limits(chaos):
    few = homoclinic_points(*chaos, iterations=1000, max_pieces=300)
    assert few.limits == ("pieces",)
    assert few.truncated
    whole = homoclinic_points(*chaos, iterations=few.searched)
    same_points(few.points, whole.points)
    some = homoclinic_points(*chaos, iterations=1000, max_points=50)
    assert some.limits == ("points",)
    assert 50 <= len(some) < 120
    boxed = homoclinic_points(*chaos, iterations=6, box=(-0.45, 0.0))
    assert boxed.limits == ("box",)
    assert len(boxed) == 0
    diverging = dw.systems.BorderCollisionMap.preset("fig3a_left")
    ended = homoclinic_points(diverging, cycle_at(diverging, jnp.array([L])), iterations=5000)
    assert ended.limits == ("overflow",)


def tau(x):
    return eqx.tree_at(lambda f: f.tau_l, dw.systems.BorderCollisionMap.preset("fig5"), x)


@pytest.fixture(scope="module")
def primary(found):
    return jnp.asarray(found.itineraries[0])


@pytest.fixture(scope="module")
def distance(chaos, primary):
    """The splitting along the primary itinerary and its slope, as functions of tau_l."""
    return jax.jit(jax.value_and_grad(lambda x: splitting(tau(x), chaos[1], primary)))


def test_splitting_is_the_distance_of_a_corner(chaos, primary):
    f, saddle = chaos
    (up,) = trace_manifold(f, saddle, kind="unstable", iterations=2).vertices
    (down,) = trace_manifold(f, saddle, iterations=0).vertices
    offset = offsets(up, down, saddle.points[0])
    # The segment of the primary point goes from the third vertex to the fourth.
    assert offset[2] * offset[3] < 0
    np.testing.assert_allclose(splitting(f, saddle, primary), min(abs(offset[2:])), atol=1e-15)
    # No point of W^u_loc goes to the right at once.
    assert splitting(f, saddle, jnp.array([R, L])) < 0


def test_splitting_between_cycles():
    one, two = cycle_of([L]), cycle_of([L, R])
    found = homoclinic_points(FIG5, one, other=two, iterations=2)
    (i,) = np.flatnonzero([len(word) == 2 for word in found.itineraries])
    target = int(found.targets[i])
    word = jnp.asarray(found.itineraries[i])
    value = splitting(FIG5, one, word, other=two, target=target)
    # Along the orbit, the unstable direction: the ends of its segment, seen from W^s of the other.
    (up,) = trace_manifold(FIG5, one, kind="unstable", iterations=2).vertices
    down = trace_manifold(FIG5, two, iterations=0).vertices[target]
    offset = offsets(up, down, two.points[target])
    ends = [min(abs(a), abs(b)) for a, b in pairwise(offset) if a * b < 0]
    assert np.min(np.abs(np.array(ends) - float(value))) < 1e-14


def test_solves_of_a_batch_of_splittings_wait_for_each_other(primary, check_waits):
    one, two = cycle_of([L]), cycle_of([L, R])
    check_waits(jax.value_and_grad(lambda f: splitting(f, one, primary, other=two)), FIG5)


def test_tangency(chaos, distance):
    """At a zero of the splitting corners touch: on one side of it homoclinic points, on the other none."""
    x = jnp.asarray(-1.77)
    for _ in range(6):
        value, slope = distance(x)
        x = x - value / slope
    assert abs(distance(x)[0]) < 1e-14

    def at(x):
        return homoclinic_points(tau(x), cycle_at(tau(x), chaos[1].itinerary), iterations=5)

    before, touching, after = at(x - 1e-7), at(x), at(x + 1e-7)
    assert before.chaos
    assert not before.on_border.any()
    assert len(after) == 0
    assert 0 < len(touching) < len(before)
    assert touching.on_border.all()
    assert not touching.chaos
    assert "none of them regular" in touching.verdict


@pytest.mark.parametrize(("start", "goal", "chaotic"), [(-1.77, -0.1, False), (-1.5, 0.1, True)])
def test_training_into_and_out_of_chaos(chaos, distance, start, goal, chaotic):
    x = jnp.asarray(start)
    for _ in range(60):
        value, slope = distance(x)
        # The gradient of (splitting - goal)^2 / 2.
        x = x - 0.2 * (value - goal) * slope
    np.testing.assert_allclose(distance(x)[0], goal, atol=1e-5)
    assert homoclinic_points(tau(x), cycle_at(tau(x), chaos[1].itinerary), iterations=8).chaos == chaotic


def along(word):
    """The splitting along a homoclinic orbit, the map moved in a random direction, and 5 places there."""
    cycle = cycle_of(word)
    found = homoclinic_points(FIG5, cycle, iterations=2)
    regions, origin, target = jnp.asarray(found.itineraries[-1]), int(found.origins[-1]), int(found.targets[-1])
    keys = jax.random.split(jax.random.key(1), 5)
    way = dw.models.PiecewiseLinearMap(*(jax.random.normal(k, x.shape) for k, x in zip(keys, jax.tree.leaves(FIG5))))

    def value(eps):
        f = jax.tree.map(lambda x, d: x + eps * d, FIG5, way)
        return splitting(f, cycle, regions, origin=origin, target=target)

    return value, 1e-5 * jnp.array([-2.0, -1.0, 0.0, 1.0, 2.0])


def central(values, at):
    return (8 * (values[3] - values[1]) - (values[4] - values[0])) / (12 * (at[3] - at[2]))


def test_derivatives_of_the_splitting(distance):
    value, at = along([L, R])
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(value)))(at)
    np.testing.assert_allclose(slopes[2], central(values, at), rtol=1e-7)
    values, slopes = zip(*(distance(x - 1.77) for x in at))
    np.testing.assert_allclose(slopes[2], central(values, at), rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("word", [[L], [L, R]])
def test_second_derivatives_of_the_splitting(word):
    value, at = along(word)
    both = jax.jit(jax.vmap(lambda x: jax.jvp(jax.value_and_grad(value), (x,), (x * 0 + 1,))))
    (_, slopes), (forwards, second) = both(at)
    np.testing.assert_allclose(forwards, slopes, rtol=1e-11)
    np.testing.assert_allclose(second[2], central(slopes, at), rtol=1e-6)


@pytest.mark.slow
def test_splitting_of_every_orbit(chaos, found):
    for word in found.itineraries:
        assert splitting(*chaos, jnp.asarray(word)) > 0.1


def test_messages(chaos):
    f, saddle = chaos
    with pytest.raises(ArgumentError, match="`iterations` must be"):
        homoclinic_points(f, saddle, iterations=-1)
    with pytest.raises(ArgumentError, match="`certify` must be one of 'mpmath'"):
        homoclinic_points(f, saddle, iterations=1, certify="interval")
    with pytest.raises(ArgumentError, match="`cycle` must be a Cycle"):
        homoclinic_points(f, saddle.points, iterations=1)
    with pytest.raises(ModelError, match="piecewise-linear"):
        homoclinic_points(dw.systems.Henon(), saddle, iterations=1)
    low = jax.tree.map(lambda x: x.astype(jnp.float32), f)
    for verb in (lambda: homoclinic_points(low, saddle, iterations=1), lambda: splitting(low, saddle, jnp.array([L]))):
        with pytest.raises(PrecisionError):
            verb()
    stable = dw.systems.BorderCollisionMap.preset("fig3b_left")
    with pytest.raises(ArgumentError, match="no unstable direction"):
        homoclinic_points(stable, cycle_at(stable, jnp.array([L])), iterations=1)
    wide = join(f, -1.5)
    flat = join(f, 0.5)
    with pytest.raises(ArgumentError, match="no cycle of this map"):
        homoclinic_points(flat, cycle_of([L], wide), iterations=1)
    with pytest.raises(ArgumentError, match="one unstable direction; it has 2"):
        splitting(wide, cycle_of([L], wide), jnp.array([L]))
    with pytest.raises(ShapeError, match="`itinerary`"):
        splitting(f, saddle, jnp.array([[True, False]]))
    with pytest.raises(ArgumentError, match="`cycle` must be a Cycle"):
        splitting(f, saddle.points, jnp.array([L]))
    with pytest.raises(ArgumentError, match="lies on a border"):
        splitting(f, eqx.tree_at(lambda c: c.on_border, saddle, jnp.array([True])), jnp.array([L]))
    with pytest.raises(ArgumentError, match="must be boolean"):
        splitting(f, saddle, jnp.array([[1]]))
    with pytest.raises(ArgumentError, match="`target` must be below the period, 1"):
        splitting(f, saddle, jnp.array([L]), target=1)


def test_dimensions_must_add_up():
    # Two saddles, one with two unstable directions: W^u of one and W^s of the other in three dimensions.
    A, W1 = np.diag([1.5, 1.3, 0.5]), np.array([[-0.9], [0.0], [0.0]])
    f = dw.models.PiecewiseLinearMap(
        *map(jnp.asarray, (A, W1, np.array([[1.0, 0.0, 0.0]]), np.array([0.3, 0.1, 0.1]), np.zeros(1)))
    )
    two, one = cycle_of([L], f), cycle_of([R], f)
    with pytest.raises(ArgumentError, match="must add up to 3; these meet in curves"):
        homoclinic_points(f, two, other=one, iterations=2)
    with pytest.raises(ArgumentError, match="must add up to 3; in general these do not meet"):
        homoclinic_points(f, one, other=two, iterations=2)
