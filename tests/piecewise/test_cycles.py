"""Cycles: published and exhaustive ground truth, brute force on random maps, derivatives, degenerate maps, errors."""

import itertools
import json
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynwarp import models
from dynwarp._results import RESULTS
from dynwarp.errors import ArgumentError, ModelError, NonFiniteError, PrecisionError, ShapeError
from dynwarp.piecewise import cycle_at, enumerate_regions, find_cycles, fixed_points_by_region
from dynwarp.piecewise._words import count_lyndon, single_letters
from dynwarp.systems import BorderCollisionMap

DATA = pathlib.Path(__file__).parents[3] / "shared" / "data"
KEY = jax.random.key(0)
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the reference data are not beside the repository")


def Map(A, W1, W2, h1, h2):  # noqa: N802
    return models.PiecewiseLinearMap(*(jnp.asarray(x, float) for x in (A, W1, W2, h1, h2)))


def brute_force(f, patterns, period):
    """All cycles of a period by solving every word, in plain numpy: their first points."""
    A, W1, W2, h1, h2 = (np.asarray(x) for x in (f.A, f.W1, f.W2, f.h1, f.h2))
    found = []
    for word in itertools.product(range(len(patterns)), repeat=period):
        rotations = {word[i:] + word[:i] for i in range(period)}
        if len(rotations) < period or word != min(rotations):
            continue
        P, c = np.eye(len(A)), np.zeros(len(A))
        for letter in word:
            gated = W1 * patterns[letter]
            P, c = (A + gated @ W2) @ P, (A + gated @ W2) @ c + gated @ h2 + h1
        start = z = np.linalg.solve(np.eye(len(A)) - P, c)
        good = True
        for letter in word:
            values = W2 @ z + h2
            good &= bool(((values > 0) == patterns[letter]).all())
            z = A @ z + W1 @ np.maximum(values, 0) + h1
        if good:
            found.append(start)
    return found


def distance(cycle, points):
    points = np.asarray(points)
    return min(np.abs(np.roll(cycle.points, s, axis=0) - points).max() for s in range(len(points)))


def counts(cycles, max_period):
    return [len(cycles.of_period(k)) for k in range(1, max_period + 1)]


# ---- one cycle


@pytest.fixture(scope="module")
def fig5():
    return BorderCollisionMap.preset("fig5")


def test_cycle_at_matches_iteration_and_the_product_of_jacobians(fig5):
    itinerary = jnp.array([[False], [False], [True], [True]])
    cycle = cycle_at(fig5, itinerary)
    z = cycle.points[0]
    product = jnp.eye(2)
    for i in range(4):
        np.testing.assert_allclose(z, cycle.points[i], atol=1e-13)
        product = jax.jacfwd(fig5)(z) @ product
        z = fig5(z)
    expected = np.linalg.eigvals(product)
    np.testing.assert_allclose(np.sort(np.abs(cycle.multipliers)), np.sort(np.abs(expected)), rtol=1e-11)
    assert cycle.kind == "saddle"
    assert bool(cycle.result == RESULTS.successful)
    assert float(cycle.residual) < 1e-14
    assert not cycle.on_border.any()


def test_small_multipliers_keep_their_digits(fig5):
    # The product of the two multipliers is the product of the determinants, 1e-9 of the larger one squared.
    cycle = cycle_at(fig5, jnp.array([[False]] * 13 + [[True]]))
    expected = 0.2745**13 * 0.675
    assert float((cycle.multipliers[0] * cycle.multipliers[1]).real) == pytest.approx(expected, rel=1e-9)


def test_virtual_singular_and_marginal_itineraries_say_so(fig5):
    assert bool(cycle_at(fig5, jnp.array([[True]])).result == RESULTS.virtual)
    identity = Map(np.eye(2), np.zeros((2, 1)), [[1.0, 0.0]], np.zeros(2), [1.0])
    assert bool(cycle_at(identity, jnp.array([[True]])).result == RESULTS.singular)
    turn = Map([[0.0, -1.0], [1.0, 0.0]], np.zeros((2, 1)), [[1.0, 0.0]], np.zeros(2), [1.0])
    marginal = cycle_at(turn, jnp.array([[True]]))
    assert bool(marginal.result == RESULTS.nonhyperbolic)
    assert marginal.kind == "nonhyperbolic"


def test_derivatives_against_finite_differences(random_map):
    f = random_map(3, 3, 4, scale=1.5)
    start = find_cycles(f, 2, key=KEY).of_period(2)[0]

    def outcome(g):
        cycle = cycle_at(g, start.itinerary)
        return jnp.sum(jnp.sin(cycle.points)) + jnp.sum(jnp.abs(cycle.multipliers) ** 2)

    value, forward = jax.jit(outcome), jax.jit(lambda way: jax.jvp(outcome, (f,), (way,))[1])
    gradient = jax.jit(jax.grad(outcome))(f)
    step = 1e-6
    for leaf in ("A", "W1", "W2", "h1", "h2"):
        direction = jnp.asarray(np.random.default_rng(1).normal(size=getattr(f, leaf).shape))
        way = eqx.tree_at(lambda m, leaf=leaf: getattr(m, leaf), jax.tree.map(jnp.zeros_like, f), direction)
        ends = (value(jax.tree.map(lambda x, d, sign=sign: x + sign * step * d, f, way)) for sign in (1, -1))
        central = float(next(ends) - next(ends)) / (2 * step)
        assert float(jnp.vdot(getattr(gradient, leaf), direction)) == pytest.approx(central, rel=1e-6, abs=1e-8), leaf
        assert float(forward(way)) == pytest.approx(central, rel=1e-6, abs=1e-8), leaf


def test_cycle_at_under_jit_and_vmap_over_maps(fig5, check_waits):
    check_waits(lambda f: cycle_at(f, jnp.array([[False], [True]])), fig5)
    itinerary = jnp.array([[False], [True]])
    h1 = jnp.array([-0.7, -0.65, -0.6])
    many = jax.vmap(lambda h: eqx.tree_at(lambda m: m.h1, fig5, h))(h1)
    batch = jax.jit(jax.vmap(cycle_at, in_axes=(0, None)))(many, itinerary)
    for i in range(3):
        one = cycle_at(eqx.tree_at(lambda m: m.h1, fig5, h1[i]), itinerary)
        np.testing.assert_allclose(batch.points[i], one.points, rtol=1e-12)
        np.testing.assert_allclose(batch.multipliers[i], one.multipliers, rtol=1e-11)


# ---- ground truth


def test_published_counts_by_search_and_by_both_certificates(fig5):
    published = [1, 1, 2, 3, 4, 5, 6, 6, 12, 16]
    searched = find_cycles(fig5, 14, key=KEY, certify="none")
    pruned = find_cycles(fig5, 14, key=KEY, certify="pruned")
    exhausted = find_cycles(fig5, 14, key=KEY, certify="exhaustive")
    assert counts(searched, 10) == published
    assert counts(searched, 14) == counts(pruned, 14) == counts(exhausted, 14)
    assert all(pruned.complete.values())
    assert all(exhausted.complete.values())
    assert not any(searched.complete.values())
    assert not pruned.truncated
    for a, b in zip(pruned, exhausted, strict=True):
        np.testing.assert_array_equal(a.itinerary, b.itinerary)
        np.testing.assert_allclose(a.points, b.points, atol=1e-11)
        assert a.kind == "saddle"


@needs_data
def test_reference_cases():
    cases = json.loads((DATA / "cycles_2d_ground_truth.json").read_text())
    cases += json.loads((DATA / "cycles_shplrnn_ground_truth.json").read_text())
    for case in cases:
        given = {name: np.array(value, float) for name, value in case["params"].items()}
        A = np.diag(given["A"]) if given["A"].ndim == 1 else given["A"]
        f = Map(A, given["W1"], given["W2"], given["h1"], given["h2"])
        # Padded to one capacity, the cases share their compiled programs.
        period = case["k"]
        capacity = 8 if len(given["h2"]) > 2 else 83
        certify = "auto" if period < 50 else "none"
        found = find_cycles(f, max(capacity, period), periods=[period], key=KEY, certify=certify).of_period(period)
        assert len(found) == case["n"], case["test"]
        for wanted in case["cycles"]:
            nearest = min(found, key=lambda c: distance(c, wanted["points"]))
            assert distance(nearest, wanted["points"]) < 1e-9
            moduli = np.sort(np.hypot(wanted["eig_re"], wanted["eig_im"]))
            np.testing.assert_allclose(np.sort(np.abs(nearest.multipliers)), moduli, atol=1e-9)


@needs_data
def test_fixed_points_of_a_trained_network():
    arrays = np.load(DATA / "alrnn_lorenz63_m20_p2.npz")
    f = models.ALRNN.from_parameters(*(jnp.asarray(arrays[name], float) for name in ("A", "W", "h")), 2)
    wanted = json.loads((DATA / "alrnn_m20_p2_fixed_points.json").read_text())["m20_p2"]
    found = find_cycles(f, 1, key=KEY)
    assert len(found) == len(wanted) == 4
    assert found.complete[1]
    for cycle in wanted:
        assert min(np.abs(np.asarray(c.points[0]) - cycle["z"]).max() for c in found) < 1e-9


@needs_data
def test_ten_dimensional_network_against_all_regions():
    given = json.loads((DATA / "plrnn_10d_parameters.json").read_text())
    f = models.PLRNN.from_parameters(
        *(jnp.asarray(given[name]) for name in ("A", "W")), jnp.ravel(jnp.asarray(given["h"]))
    )
    patterns = np.asarray(enumerate_regions(f).patterns)
    assert len(patterns) == 1024
    brute = brute_force(f.canonical(), patterns, 1)
    for certify in ("auto", "none"):
        found = find_cycles(f, 1, key=KEY, certify=certify)
        assert len(found) == len(brute)
        for z in brute:
            assert min(np.abs(c.points[0] - z).max() for c in found) < 1e-9


@pytest.mark.parametrize(("m", "hidden", "seed"), [(1, 2, 55), (2, 4, 5), (3, 3, 4), (4, 2, 1)])
def test_random_maps_against_brute_force(m, hidden, seed, random_map):
    f = random_map(m, hidden, seed, scale=1.5)
    patterns = np.asarray(enumerate_regions(f).patterns)
    expected = [brute_force(f, patterns, k) for k in (1, 2, 3)]
    assert sum(map(len, expected)) >= 4
    for certify in ("exhaustive", "pruned", "none"):
        cycles = find_cycles(f, 3, key=KEY, certify=certify, n_starts=256)
        assert counts(cycles, 3) == [len(e) for e in expected], certify
        assert all(complete == (certify != "none") for complete in cycles.complete.values())
        for k, points in enumerate(expected, start=1):
            for z in points:
                assert min(np.abs(c.points - z).max(axis=1).min() for c in cycles.of_period(k)) < 1e-9


def test_a_constant_input_moves_the_cycles():
    f = models.PLRNN.from_parameters(
        jnp.array([0.5, 0.3]),
        jnp.array([[0.0, 0.4], [-0.6, 0.0]]),
        jnp.zeros(2),
        input_weight=jnp.array([[1.0], [2.0]]),
    )
    points = []
    for value in (0.5, 2.0):
        (cycle,) = find_cycles(f, 1, key=KEY, input=jnp.array([value]))
        points.append(cycle.points[0])
        np.testing.assert_allclose(f(points[-1], jnp.array([value])), points[-1], atol=1e-12)
    np.testing.assert_allclose(points[1], 4 * points[0], rtol=1e-12)


def test_results_do_not_depend_on_the_key_where_complete(fig5):
    a, b = (find_cycles(fig5, 10, key=jax.random.key(i)) for i in (1, 2))
    for first, second in zip(a, b, strict=True):
        np.testing.assert_array_equal(first.points, second.points)


# ---- degenerate maps


def test_families_of_fixed_points_are_reported_by_one_nonhyperbolic_cycle():
    relu = Map([[0.0]], [[1.0]], [[1.0]], [0.0], [0.0])  # every z >= 0 is fixed, every other is mapped to 0
    for certify in ("auto", "pruned"):
        cycles = find_cycles(relu, 2, key=KEY, certify=certify)
        assert cycles.continuum == {1: 1, 2: 0}
        family = next(c for c in cycles if bool(c.result == RESULTS.singular))
        assert float(family.points[0, 0]) > 0
        assert all(c.kind == "nonhyperbolic" for c in cycles)
    reflection = Map(-np.eye(2), np.zeros((2, 1)), [[1.0, 0.3]], np.zeros(2), [1.0])  # every state has period 2
    cycles = find_cycles(reflection, 2, key=KEY)
    assert cycles.continuum[2] == 1
    np.testing.assert_allclose(cycles.of_period(2)[0].points.sum(axis=0), 0.0, atol=1e-12)


def test_a_translation_has_no_cycle():
    shift = Map(np.eye(2), np.zeros((2, 1)), [[1.0, 0.3]], [1.0, 0.0], [1.0])
    cycles = find_cycles(shift, 3, key=KEY)
    assert len(cycles) == 0
    assert all(cycles.complete.values())


def test_a_point_on_a_border_is_one_flagged_fixed_point():
    f = Map(0.5 * np.eye(2), [[0.2], [0.0]], [[1.0, 0.0]], np.zeros(2), [0.0])
    for certify in ("auto", "none"):
        (cycle,) = find_cycles(f, 2, key=KEY, certify=certify)
        assert cycle.on_border.tolist() == [True]
        assert cycle.kind == "nonhyperbolic"
        assert cycle.itinerary.tolist() == [[False]]


@pytest.mark.parametrize("unit", [1.0, 1e-9])
def test_a_border_is_near_or_far_beside_the_size_of_the_state(unit):
    # Coordinate ReLUs: a coordinate of 3e-12 beside one of 2000 cannot be told from zero, one of 3e-3 can.
    for offset, touches in ((1e-12, True), (1e-3, False)):
        f = Map(0.5 * np.eye(2), 0.2 * np.eye(2), np.eye(2), unit * np.array([-1000.0, offset]), np.zeros(2))
        (cycle,) = find_cycles(f, 1, key=KEY)
        assert cycle.on_border.tolist() == [touches]
        assert cycle.kind == ("nonhyperbolic" if touches else "stable")
        found = fixed_points_by_region(f)
        assert bool(found.is_hyperbolic[0]) != touches
        np.testing.assert_allclose(found.points[0], unit * np.array([-2000, offset / 0.3]), rtol=1e-9, atol=1e-9 * unit)


def test_tent_map_has_as_many_cycles_as_words():
    tent = Map([[2.0]], [[-4.0]], [[1.0]], [0.0], [-0.5])
    assert counts(find_cycles(tent, 9, key=KEY, certify="pruned"), 9) == [2] + [
        count_lyndon(2, k) for k in range(2, 10)
    ]


def test_lyndon_words_are_counted_by_the_necklace_formula():
    words = single_letters(np.arange(3))
    for k in range(2, 7):
        words = words.children(3)
        assert np.sum(words.is_lyndon()) == count_lyndon(3, k)


def test_cycles_print_what_they_are(fig5):
    cycles = find_cycles(fig5, 10, periods=[1, 2, 3], key=KEY)
    assert repr(cycles) == "Cycles(4 by period {1: 1, 2: 1, 3: 2}, complete=[1, 2, 3], truncated=False)"
    text = repr(cycles[0])
    assert text.startswith("Cycle(period=1, kind='saddle', points[0]=[-0.288478 -0.165141]")
    assert "-1.427738" in text
    traced = []
    jax.jit(lambda f: traced.append(repr(cycle_at(f, jnp.array([[False]])))))(fig5)
    assert "points" in traced[0]


def test_limits_are_reported(fig5):
    stopped = find_cycles(fig5, 12, key=KEY, max_certificate_work=10, periods=[12], n_starts=128)
    assert stopped.truncated
    assert not stopped.complete[12]
    assert 0 < stopped.coverage[12] <= 1
    capped = find_cycles(fig5, 10, key=KEY, max_cycles=5, periods=[10])
    assert len(capped) == 5
    assert (capped.truncated, capped.complete[10]) == (True, False)


# ---- all regions at once


def test_fixed_points_by_region_agree_with_the_search(random_map):
    keys = np.arange(12)
    many = [random_map(3, 3, int(seed), scale=1.5) for seed in keys]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *many)
    found = jax.jit(jax.vmap(fixed_points_by_region))(stacked)
    for i, f in enumerate(many):
        cycles = find_cycles(f, 1, key=KEY)
        valid = np.asarray(found.valid[i])
        assert valid.sum() == found.count[i] == len(cycles)
        for cycle in cycles:
            j = int(np.argmin(np.abs(found.points[i] - cycle.points).max(axis=1) + 1e9 * ~valid))
            np.testing.assert_allclose(found.points[i, j], cycle.points[0], atol=1e-10)
            np.testing.assert_array_equal(found.patterns[i, j], cycle.itinerary[0])
            assert found.n_unstable[i, j] == np.sum(np.abs(cycle.multipliers) > 1)
        signs = [
            np.sign(np.linalg.det(f.affine(jnp.asarray([r >> b & 1 for b in range(3)], bool))[0])) for r in range(8)
        ]
        np.testing.assert_array_equal(found.determinant_sign[i], signs)
        assert bool(found.is_coherent[i]) == (abs(sum(signs)) == 8)


def test_many_regions_of_a_large_map():
    # Above 12 dimensions LAPACK works on all regions at once.
    rng = np.random.default_rng(0)
    m, hidden = 14, 9
    f = Map(
        np.diag(rng.uniform(0.2, 0.8, m)),
        0.3 * rng.normal(size=(m, hidden)),
        np.eye(m)[-hidden:],
        rng.normal(size=m),
        np.zeros(hidden),
    )
    patterns = (np.arange(2**hidden)[:, None] >> np.arange(hidden)) & 1
    jacobians = np.asarray(f.A) + np.einsum("ih,rh,hj->rij", f.W1, patterns, f.W2)
    points = np.linalg.solve(np.eye(m) - jacobians, np.asarray(f.h1)[:, None])[..., 0]
    inside = np.all((points[:, -hidden:] > 0) == patterns, axis=1)
    assert inside.sum() == 4
    # Again and again: two factorisations side by side block the CPU's threads now and then.
    for _ in range(5):
        found = jax.block_until_ready(fixed_points_by_region(f, capacity=8))
    assert found.count == inside.sum()
    np.testing.assert_allclose(found.points[: found.count], points[inside], atol=1e-11)
    np.testing.assert_array_equal(found.determinant_sign, np.linalg.slogdet(jacobians)[0])
    unstable = np.sum(np.abs(np.linalg.eigvals(jacobians[inside])) > 1, axis=1)
    np.testing.assert_array_equal(found.n_unstable[: found.count], unstable)


@pytest.mark.parametrize("m", [2, 5, 7])
def test_stability_counts(m):
    # One region and many maps: the count by the polynomial (m <= 6) or the eigenvalues against numpy's.
    rng = np.random.default_rng(m)
    matrices = rng.normal(size=(40, m, m)) / np.sqrt(m) * rng.uniform(0.5, 2.0, (40, 1, 1))
    pattern = jnp.ones((1, 1), bool)
    found = jax.vmap(
        lambda A: fixed_points_by_region(
            models.PiecewiseLinearMap(A, jnp.zeros((m, 1)), jnp.ones((1, m)), jnp.zeros(m), jnp.ones(1)), pattern
        )
    )(jnp.asarray(matrices))
    expected = np.sum(np.abs(np.linalg.eigvals(matrices)) > 1, axis=1)
    np.testing.assert_array_equal(found.n_unstable[:, 0], expected)
    assert found.is_hyperbolic.all()


def test_marginal_and_area_preserving_points():
    pattern = jnp.ones((1, 1), bool)

    def at(A):
        return fixed_points_by_region(Map(A, np.zeros((2, 1)), [[1.0, 0.0]], np.zeros(2), [1.0]), pattern)

    assert not at([[0.0, -1.0], [1.0, 0.0]]).is_hyperbolic[0]
    saddle = at([[2.0, 0.3], [0.0, 0.5]])  # determinant 1: the recursion's degenerate case
    assert saddle.is_hyperbolic[0]
    assert int(saddle.n_unstable[0]) == 1
    assert at(np.eye(2)).is_singular.tolist() == [True]


# ---- errors


def test_errors(fig5):
    with pytest.raises(ModelError, match="piecewise-linear model"):
        find_cycles(models.GRU(1, 2, key=KEY), 1, key=KEY)
    with pytest.raises(PrecisionError, match="float64"):
        find_cycles(models.PLRNN(2, dtype=jnp.float32, key=KEY), 1, key=KEY)
    with pytest.raises(NonFiniteError, match="`h1`"):
        find_cycles(eqx.tree_at(lambda m: m.h1, fig5, jnp.array(jnp.nan)), 1, key=KEY)
    with pytest.raises(ArgumentError, match="`max_period`"):
        find_cycles(fig5, 0, key=KEY)
    with pytest.raises(ArgumentError, match="`periods` must lie"):
        find_cycles(fig5, 3, periods=[4], key=KEY)
    with pytest.raises(ArgumentError, match="`certify` must be one of"):
        find_cycles(fig5, 1, key=KEY, certify="proof")
    with pytest.raises(ShapeError, match="`input`"):
        find_cycles(models.PLRNN(2, input_size=1, key=KEY), 1, key=KEY, input=jnp.ones(2))
    with pytest.raises(ShapeError, match="`itinerary`"):
        cycle_at(fig5, jnp.zeros((3, 2), bool))
    with pytest.raises(ArgumentError, match="boolean"):
        cycle_at(fig5, jnp.zeros((3, 1)))
    with pytest.raises(ArgumentError, match="too many patterns"):
        fixed_points_by_region(models.PLRNN(17, key=KEY))
