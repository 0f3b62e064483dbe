"""Global manifolds: published numbers, two representations against each other, brute force, derivatives."""

import json
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.errors import ArgumentError, NonFiniteError, ShapeError
from dynwarp.piecewise import (
    _pushforward,
    cycle_at,
    delta_sigma,
    enumerate_regions,
    homoclinic_points,
    invariance_residual,
    manifold_quality,
    retrace,
    trace_manifold,
)
from dynwarp.piecewise._halfspaces import interior
from dynwarp.piecewise._host import Box, HostMap
from dynwarp.piecewise._local import Piece
from dynwarp.piecewise._pushforward import push_forward
from dynwarp.piecewise._trace_lines import Lines, push

DATA = Path(__file__).parents[3] / "shared" / "data"
L, R = [False], [True]
WORDS = {"fig3a_left": [L], "fig3a_right": [R], "fig3b_left": [L, L, R], "fig3b_right": [L, L, L, R], "fig5": [L]}


def toy(name):
    f = dw.systems.BorderCollisionMap.preset(name).canonical()
    return f, cycle_at(f, jnp.array(WORDS[name]))


@pytest.fixture(scope="module")
def chaos():
    return toy("fig5")


@pytest.fixture(scope="module")
def folded():
    """A shallow network of 10 ReLUs without inverse, and its saddle 2-cycle."""
    if not DATA.exists():
        pytest.skip("the ground truth of cycles is not beside the repository")
    cases = json.loads((DATA / "cycles_shplrnn_ground_truth.json").read_text())
    case = next(c for c in cases if c["test"].startswith("test_finding_2_cycle") and int(c["k"]) == 2)
    form = dw.models.ShallowPLRNN.from_parameters(
        *(jnp.array(case["params"][k]) for k in ("A", "W1", "W2", "h1", "h2"))
    ).canonical()
    return form, cycle_at(form, jax.vmap(form.pattern)(jnp.array(case["cycles"][0]["points"])))


@pytest.fixture(scope="module")
def solid():
    """A saddle in three dimensions with a two-dimensional stable or unstable manifold, five ReLUs."""

    def make(J, seed):
        rng = np.random.default_rng(seed)
        W2, W1 = rng.normal(size=(5, 3)), 0.3 * rng.normal(size=(3, 5))
        h2 = rng.uniform(0.3, 1.0, 5) * np.array([1, -1, 1, -1, 1])
        on = h2 > 0
        f = dw.models.PiecewiseLinearMap(*map(jnp.asarray, (J - (W1 * on) @ W2, W1, W2, -(W1 * on) @ h2, h2)))
        return f, cycle_at(f, (f.h2 > 0)[None])

    stable = make(np.array([[1.5, 0.2, 0.0], [0.0, 0.6, -0.5], [0.1, 0.5, 0.6]]), 1)
    unstable = make(np.array([[0.4, 0.2, 0.0], [0.0, 1.0, -0.6], [0.1, 0.6, 1.0]]), 2)
    return {"stable": stable, "unstable": unstable}


def test_published_polyline(chaos):
    f, saddle = chaos
    manifold = trace_manifold(f, saddle, kind="unstable", iterations=20)
    (line,) = manifold.vertices
    assert line.shape == (15708, 2)
    np.testing.assert_allclose(manifold.length, 17209.217279, atol=1e-6)
    assert not manifold.truncated
    assert manifold.iterations == 20
    assert manifold.number_of_pieces == len(manifold.pieces) == 15706


def test_unstable_lines_are_images(chaos):
    f, saddle = chaos
    lines = [trace_manifold(f, saddle, kind="unstable", iterations=n) for n in range(3, 8)]
    for before, after in pairwise(lines):
        (a,), (b,) = before.vertices, after.vertices
        # Every image of a vertex is a vertex, in order, and between two of them the images of points lie on the line.
        images = np.asarray(jax.vmap(f)(jnp.asarray(a)))
        at = [int(np.argmin(np.linalg.norm(b - image, axis=1))) for image in images]
        np.testing.assert_allclose(b[at], images, atol=1e-12)
        assert at == sorted(at)
        assert len(b) == len(a) + np.sum(
            (a[:-1, 0] * a[1:, 0] < 0) & (np.minimum(abs(a[1:, 0]), abs(a[:-1, 0])) > 1e-13)
        )
        t = np.linspace(0, 1, 7)[:, None, None]
        between = (a[:-1] + t * (a[1:] - a[:-1])).reshape(-1, 2)
        assert np.max(after.distance(jax.vmap(f)(jnp.asarray(between)))) < 1e-12
        # A line contains the one before.
        assert np.max(after.distance(a)) < 1e-12


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("kind", ["stable", "unstable"])
def test_invariance_of_toy_manifolds(name, kind):
    f, cycle = toy(name)
    manifold = trace_manifold(f, cycle, kind=kind, iterations=6, box=(-40, 40))
    assert manifold.dimension == 1
    assert invariance_residual(f, manifold, key=jax.random.key(0)) < 1e-13
    for point in np.asarray(cycle.points):
        assert manifold.distance(point) < 1e-13


@pytest.mark.parametrize(("name", "box"), [("fig3a_right", 5.0), ("fig3b_left", 4.0), ("fig3b_right", 10.0)])
def test_basin_boundary_is_the_stable_manifold(name, box):
    f, cycle = toy(name)
    manifold = trace_manifold(f, cycle, iterations=60, box=(-60, 60))
    segments = np.concatenate([np.stack([v[:-1], v[1:]], axis=1) for v in manifold.vertices])
    rng = np.random.default_rng(0)
    pairs = rng.uniform(-box, box, (120, 2, 2))

    def bounded(z):
        z, _ = jax.lax.scan(lambda z, _: (jnp.clip(f(z), -1e6, 1e6), None), z, length=600)
        return jnp.max(jnp.abs(z)) < 1e3

    label = np.asarray(jax.jit(jax.vmap(jax.vmap(bounded)))(jnp.asarray(pairs)))
    assert 10 < label.sum() < 230
    p, q = pairs[:, None, 0], pairs[:, None, 1]
    a, b = segments[None, :, 0], segments[None, :, 1]

    def side(u, v, w):
        return (v[..., 0] - u[..., 0]) * (w[..., 1] - u[..., 1]) - (v[..., 1] - u[..., 1]) * (w[..., 0] - u[..., 0])

    crossings = ((side(p, q, a) * side(p, q, b) < 0) & (side(a, b, p) * side(a, b, q) < 0)).sum(axis=1)
    np.testing.assert_array_equal(crossings % 2 == 1, label[:, 0] != label[:, 1])


def test_bisected_boundary_lies_on_the_stable_manifold():
    f, cycle = toy("fig3a_right")
    manifold = trace_manifold(f, cycle, iterations=20, box=(-50, 50))
    step = jax.jit(lambda z: jax.lax.scan(lambda z, _: (jnp.clip(f(z), -1e9, 1e9), None), z, length=400)[0])
    inner = jnp.array([-0.391304, 0.599802])
    for angle in (0.3, 1.0, -0.7):
        direction, low, high = jnp.array([np.cos(angle), np.sin(angle)]), 0.0, 20.0
        assert jnp.max(jnp.abs(step(inner + high * direction))) > 1e3
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if jnp.max(jnp.abs(step(inner + middle * direction))) < 1e3 else (low, middle)
        assert manifold.distance(inner + low * direction) < 1e-11


def test_lines_and_polyhedra_agree_without_inverse(folded):
    f, cycle = folded
    counts = {}
    for method in ("lines", "polyhedra"):
        manifolds = [trace_manifold(f, cycle, iterations=n, box=(-60, 60), method=method) for n in range(5)]
        counts[method] = [m.number_of_pieces for m in manifolds]
        assert [len(m.pieces) for m in manifolds] == counts[method]
        assert manifolds[-1].limits == ("box",)
        counts[method + " last"] = manifolds[-1]
    assert counts["lines"] == counts["polyhedra"] == [2, 4, 7, 10, 13]
    lines, polyhedra = counts["lines last"], counts["polyhedra last"]
    for one, other in ((lines, polyhedra), (polyhedra, lines)):
        assert np.max(one.distance(other.sample(jax.random.key(0), 200))) < 1e-12
        assert invariance_residual(f, one, key=jax.random.key(1)) < 1e-12
    # The itinerary of a piece is that of its points.
    for piece in polyhedra.pieces:
        z = jnp.asarray(piece.center)
        for pattern in piece.itinerary:
            np.testing.assert_array_equal(f.pattern(z), pattern)
            z = f(z)


def test_all_of_the_preimage_is_found(folded):
    f, cycle = folded
    manifold = trace_manifold(f, cycle, iterations=2, box=(-60, 60))
    before = trace_manifold(f, cycle, iterations=0, box=(-60, 60))
    # Along random lines: where the second image crosses a local manifold, by bisection.
    rng = np.random.default_rng(0)
    start, stop = rng.uniform(-60, 60, (2, 600, 1, 2))
    t = np.linspace(0, 1, 1001)[:, None]
    z = start + t * (stop - start)
    twice = jax.vmap(lambda z: f(f(z)))
    images = np.asarray(twice(jnp.asarray(z.reshape(-1, 2)))).reshape(z.shape)
    found = 0
    for line in before.vertices:
        u = line[-1] - line[0]
        normal = np.array([-u[1], u[0]])
        value = (images - line[0]) @ normal
        lane, i = np.nonzero(value[:, :-1] * value[:, 1:] < 0)
        low, high, sign = z[lane, i], z[lane, i + 1], np.sign(value[lane, i])
        for _ in range(50):
            middle = 0.5 * (low + high)
            same = np.sign((np.asarray(twice(jnp.asarray(middle))) - line[0]) @ normal) == sign
            low, high = np.where(same[:, None], middle, low), np.where(same[:, None], high, middle)
        along = (np.asarray(twice(jnp.asarray(low))) - line[0]) @ u / (u @ u)
        once = np.abs(np.asarray(jax.vmap(f)(jnp.asarray(low)))).max(axis=1)
        # The path to the local manifold stays in the box.
        hits = low[(along > 1e-6) & (along < 1 - 1e-6) & (once < 60)]
        found += len(hits)
        assert np.max(manifold.distance(hits), initial=0.0) < 1e-10
    assert found > 10


@pytest.mark.parametrize("kind", ["stable", "unstable"])
def test_surfaces(solid, kind):
    f, cycle = solid[kind]
    manifold = trace_manifold(f, cycle, kind=kind, iterations=4, box=(-8, 8))
    assert manifold.dimension == 2
    assert manifold.number_of_pieces > 3
    assert invariance_residual(f, manifold, key=jax.random.key(0), n=60) < 1e-12
    x = manifold.sample(jax.random.key(1), 40)
    assert x.shape == (40, 3)
    assert np.max(manifold.distance(x)) < 1e-12
    if kind == "stable":
        # Where four images lead is the local manifold.
        z = x
        for _ in range(4):
            z = jax.vmap(f)(z)
        assert np.max(trace_manifold(f, cycle, iterations=0, box=(-8, 8)).distance(z)) < 1e-12
    for piece, corners in zip(manifold.pieces, manifold.vertices):
        s = np.linalg.lstsq(piece.basis, (corners - piece.center).T, rcond=None)[0]
        assert np.all(piece.G @ s <= piece.g[:, None] + 1e-8 * (1 + np.abs(piece.g[:, None])))
        z = jnp.asarray(piece.center + piece.basis @ s.mean(axis=1))
        if kind == "stable":
            for pattern in piece.itinerary:
                np.testing.assert_array_equal(f.pattern(z), pattern)
                z = f(z)


def test_distance_to_polyhedra_by_brute_force(solid):
    f, cycle = solid["stable"]
    manifold = trace_manifold(f, cycle, iterations=2, box=(-8, 8))
    rng = np.random.default_rng(0)
    cloud = np.asarray(manifold.sample(jax.random.key(2), 40000))
    for x in rng.uniform(-6, 6, (10, 3)):
        nearest = np.linalg.norm(cloud - x, axis=1).min()
        distance = float(manifold.distance(x))
        assert distance <= nearest + 1e-9
        assert nearest - distance < 0.15


def test_a_singular_region():
    # Left of the border all is mapped to one line: preimages there are lines along the kernel.
    f = dw.models.PiecewiseLinearMap(
        jnp.array([[0.3, 0.0], [0.2, 0.0]]),
        jnp.array([[1.5, 0.0], [0.0, 0.5]]),
        jnp.array([[1.0, 0.0], [0.0, 1.0]]),
        jnp.array([-0.5, -0.3]),
        jnp.array([0.0, 1.0]),
    )
    cycle = cycle_at(f, jnp.array([[True, True]]))
    assert cycle.kind == "saddle"
    lines, polyhedra = (
        trace_manifold(f, cycle, iterations=3, box=(-5, 5), method=method) for method in ("lines", "polyhedra")
    )
    for one, other in ((lines, polyhedra), (polyhedra, lines)):
        # The line x = 1, in two regions.
        assert one.number_of_pieces == 2
        assert min(piece.center[1] - piece.g.min() for piece in one.pieces) < -4.9
        assert invariance_residual(f, one, key=jax.random.key(0)) < 1e-13
        assert np.max(one.distance(other.sample(jax.random.key(1), 100))) < 1e-12


@pytest.mark.parametrize("order", [1, -1])
def test_a_far_end_takes_no_digits_from_a_crossing(chaos, order):
    f = HostMap.of(chaos[0])
    ends = np.array([[-1e-3, 0.12345678], [1e12, 3e11]])
    lines = Lines(ends[::order], np.array([True]), np.zeros(2, bool))
    (a, b), (c, d) = (map(Fraction, end) for end in ends.tolist())
    crossing = float(b - a * (d - b) / (c - a))
    found = push(f, lines, Box(np.full(2, -1e13), np.full(2, 1e13), False), None, 2)
    assert found is not None
    image, level, _ = found
    assert push(f, lines, Box(np.full(2, -1e13), np.full(2, 1e13), False), None, 1) is None
    assert level.border.tolist() == [-1, 0, -1]
    np.testing.assert_allclose(image.vertices[1], f.A @ [0, crossing] + f.h1, rtol=1e-14)


def test_a_constant_input_is_a_constant_of_the_map(chaos):
    form, saddle = chaos
    given = jnp.array([2.0])
    f = dw.models.ShallowPLRNN.from_parameters(
        form.A, form.W1, form.W2, jnp.zeros(2), form.h2, input_weight=form.h1[:, None] / 2
    )
    for kind in ("stable", "unstable"):
        one = trace_manifold(f, saddle, kind=kind, iterations=3, input=given)
        other = trace_manifold(form, saddle, kind=kind, iterations=3)
        np.testing.assert_array_equal(np.concatenate(one.vertices), np.concatenate(other.vertices))
        assert invariance_residual(f, one, key=jax.random.key(1), n=20, input=given) < 1e-10
    with pytest.raises(ArgumentError, match="no cycle of this map"):
        trace_manifold(f, saddle, iterations=1)
    found = homoclinic_points(f, saddle, iterations=3, input=given)
    np.testing.assert_array_equal(found.points, homoclinic_points(form, saddle, iterations=3).points)
    points = jnp.asarray(found.points) + 0.1
    measured = delta_sigma(f, saddle, points, kind="stable", steps=9, input=given)
    np.testing.assert_array_equal(measured, delta_sigma(form, saddle, points, kind="stable", steps=9))
    box = (-5.0, 5.0)
    quality = manifold_quality(f, one, box=box, key=jax.random.key(2), n=40, steps=9, input=given)
    assert quality == manifold_quality(form, one, box=box, key=jax.random.key(2), n=40, steps=9)
    np.testing.assert_array_equal(enumerate_regions(f, input=given).patterns, enumerate_regions(form).patterns)


def test_limits(chaos):
    f, saddle = chaos
    manifold = trace_manifold(f, saddle, kind="unstable", iterations=100, max_pieces=1000)
    assert manifold.truncated
    assert manifold.limits == ("pieces",)
    assert manifold.iterations < 20
    assert manifold.number_of_pieces <= 1000
    longest = trace_manifold(f, saddle, kind="unstable", iterations=100, max_length=50.0)
    assert longest.limits == ("length",)
    assert longest.length <= 50 < trace_manifold(f, saddle, kind="unstable", iterations=longest.iterations + 1).length
    backwards = trace_manifold(f, saddle, iterations=100, max_pieces=200)
    assert backwards.limits == ("pieces",)
    boxed = trace_manifold(f, saddle, kind="unstable", iterations=12, box=(-0.5, 0.5))
    whole = trace_manifold(f, saddle, kind="unstable", iterations=12)
    assert boxed.limits == ("box",)
    assert boxed.number_of_pieces < whole.number_of_pieces
    assert max(np.max(whole.distance(v)) for v in boxed.vertices) < 1e-10


def test_exponential_polyhedra_stop_at_their_cap():
    rng = np.random.default_rng(0)
    m, p = 6, 5
    A = np.diag([1.4, 0.6, 0.5, 0.4, 0.3, 0.2])
    model = dw.models.ALRNN.from_parameters(
        jnp.asarray(np.diag(A)), jnp.asarray(0.2 * rng.normal(size=(m, m))), jnp.full(m, 0.1), p
    )
    f = model.canonical()
    cycles = [
        c
        for c in (cycle_at(f, jnp.array([[bool(i >> j & 1) for j in range(p)]])) for i in range(2**p))
        if c.kind == "saddle" and c.result == dw.RESULTS.successful
    ]
    manifold = trace_manifold(model, cycles[0], iterations=50, box=(-20, 20), max_pieces=12)
    assert manifold.limits[-1] == "pieces"
    assert len(manifold.pieces) <= 12
    with pytest.raises(ArgumentError, match="`vertices` need one or two dimensions"):
        _ = manifold.vertices
    x = manifold.sample(jax.random.key(0), 20)
    assert np.max(manifold.distance(x)) < 1e-10


def test_a_piece_of_more_parts_than_the_cap_is_not_split_to_the_end(monkeypatch):
    rng = np.random.default_rng(0)
    f = HostMap(
        2 * np.eye(2), 0.1 * rng.normal(size=(2, 30)), rng.normal(size=(30, 2)), np.zeros(2), rng.normal(size=30)
    )
    square = Piece(
        np.zeros(2), np.eye(2), np.concatenate([np.eye(2), -np.eye(2)]), np.full(4, 3.0), np.zeros((0, 30)), 0
    )
    box = Box(np.full(2, -1e3), np.full(2, 1e3), False)
    whole, done, _ = push_forward(f, (square,), box, 1, 1000)
    assert done == 1
    assert len(whole) > 100
    tried = []
    monkeypatch.setattr(_pushforward, "interior", lambda *args: tried.append(1) or interior(*args))
    kept, done, _ = push_forward(f, (square,), box, 1, 12)
    assert done == 0
    assert kept == (square,)
    assert len(tried) < 60


def test_sample_is_uniform_by_length(chaos):
    f, saddle = chaos
    manifold = trace_manifold(f, saddle, kind="unstable", iterations=7)
    x = np.asarray(manifold.sample(jax.random.key(0), 4000))
    np.testing.assert_array_equal(x, manifold.sample(jax.random.key(0), 4000))
    assert np.max(manifold.distance(x)) < 1e-14
    (line,) = manifold.vertices
    steps = np.diff(line, axis=0)
    lengths = np.linalg.norm(steps, axis=1)
    mean = ((line[:-1] + line[1:]) / 2 * lengths[:, None]).sum(axis=0) / lengths.sum()
    assert np.max(np.abs(x.mean(axis=0) - mean)) < 5 * x.std() / np.sqrt(4000)
    boxed = np.asarray(manifold.sample(jax.random.key(1), 100, box=(-0.3, 0.1)))
    assert (boxed >= -0.3).all()
    assert (boxed <= 0.1).all()
    with pytest.raises(ArgumentError, match="lies inside `box`"):
        manifold.sample(jax.random.key(0), 5, box=(50.0, 51.0))
    with pytest.raises(ArgumentError, match="`n` must be"):
        manifold.sample(jax.random.key(0), 0)


def test_distance_by_brute_force(chaos):
    f, saddle = chaos
    manifold = trace_manifold(f, saddle, kind="unstable", iterations=12)
    points = np.random.default_rng(0).uniform(-2, 2, (40, 2))
    (line,) = manifold.vertices
    a, d = line[:-1], np.diff(line, axis=0)
    t = np.clip(np.einsum("nsi,si->ns", points[:, None] - a, d) / np.sum(d**2, axis=1), 0, 1)
    expected = np.linalg.norm(points[:, None] - a - t[..., None] * d, axis=2).min(axis=1)
    np.testing.assert_allclose(manifold.distance(points), expected, atol=1e-14)
    assert manifold.distance(points[0]).shape == ()
    with pytest.raises(ShapeError, match="`points`"):
        manifold.distance(np.zeros((3, 5)))
    with pytest.raises(NonFiniteError):
        manifold.distance(np.array([np.nan, 0.0]))


@pytest.mark.parametrize(
    ("name", "kind", "n"), [("fig5", "unstable", 9), ("fig5", "stable", 5), ("fig3b_left", "stable", 6)]
)
def test_retrace_is_the_trace(name, kind, n):
    f, cycle = toy(name)
    manifold = trace_manifold(f, cycle, kind=kind, iterations=n, box=(-20, 20))
    again = retrace(f, manifold)
    assert len(again) == len(manifold.vertices)
    for one, other in zip(again, manifold.vertices):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
    # A near map: the vertices are those of its own manifold.
    near = jax.tree.map(lambda x: x * (1 + 1e-6), f)
    traced = trace_manifold(near, cycle_at(near, cycle.itinerary), kind=kind, iterations=n, box=(-20, 20)).vertices
    for one, other in zip(retrace(near, manifold), traced):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("kind", "n"), [("unstable", 7), ("stable", 4)])
def test_derivatives_of_vertices(chaos, kind, n):
    f, cycle = chaos
    manifold = trace_manifold(f, cycle, kind=kind, iterations=n, box=(-20, 20))
    # Derivatives of all vertices in a random direction, against central differences and in both modes.
    keys = jax.random.split(jax.random.key(1), 5)
    way = dw.models.PiecewiseLinearMap(
        *(jax.random.normal(k, x.shape) for k, x in zip(keys, (f.A, f.W1, f.W2, f.h1, f.h2)))
    )
    run = eqx.filter_jit(lambda eps: jnp.concatenate(retrace(jax.tree.map(lambda x, d: x + eps * d, f, way), manifold)))
    slope = jax.jvp(run, (jnp.asarray(0.0),), (jnp.asarray(1.0),))[1]
    eps = 1e-6
    difference = (run(jnp.asarray(eps)) - run(jnp.asarray(-eps))) / (2 * eps)
    scale = float(jnp.max(jnp.abs(slope)))
    assert scale > 0.1
    np.testing.assert_allclose(slope, difference, rtol=1e-6, atol=1e-6 * scale)
    if kind == "stable":
        return
    weights = jax.random.normal(jax.random.key(2), slope.shape)
    reverse = jax.grad(lambda eps: jnp.sum(weights * run(eps)))(jnp.asarray(0.0))
    np.testing.assert_allclose(reverse, jnp.sum(weights * slope), rtol=1e-9)


def test_retrace_over_many_maps(chaos):
    f, saddle = chaos
    manifold = trace_manifold(f, saddle, kind="unstable", iterations=6)
    maps = eqx.filter_vmap(lambda s: jax.tree.map(lambda x: x * s, f))(jnp.array([1.0, 1.0001, 0.9999]))
    many = eqx.filter_vmap(lambda f: retrace(f, manifold)[0])(maps)
    assert many.shape == (3, len(manifold.vertices[0]), 2)
    np.testing.assert_allclose(many[0], manifold.vertices[0], atol=1e-11)
    assert jnp.max(jnp.abs(many[1] - many[0])) > 1e-6


def test_retrace_refuses_polyhedra(solid):
    f, cycle = solid["stable"]
    with pytest.raises(ArgumentError, match="must be of polylines"):
        retrace(f, trace_manifold(f, cycle, iterations=0, box=(-8, 8)))
    with pytest.raises(ArgumentError, match="method='lines' needs"):
        trace_manifold(f, cycle, iterations=0, method="lines")
    with pytest.raises(ArgumentError, match="`max_length` is for lines"):
        trace_manifold(f, cycle, iterations=0, max_length=3.0)
    with pytest.raises(ArgumentError, match="`length` belongs to"):
        _ = trace_manifold(f, cycle, iterations=0).length
