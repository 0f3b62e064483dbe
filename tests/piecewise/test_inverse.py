"""All preimages, and whether a map is a homeomorphism: brute force, maps whose inverse is known, degenerate maps."""

import itertools
import pathlib

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from dynwarp import models
from dynwarp._results import RESULTS
from dynwarp.errors import ArgumentError, ConvergenceError, ModelError, NonFiniteError, PrecisionError, ShapeError
from dynwarp.piecewise import enumerate_regions, is_homeomorphism, preimages
from dynwarp.systems import BorderCollisionMap

DATA = pathlib.Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the reference data are not beside the repository")


def Map(A, W1, W2, h1, h2):  # noqa: N802
    return models.PiecewiseLinearMap(*(jnp.asarray(x, float) for x in (A, W1, W2, h1, h2)))


def arrays(f):
    return tuple(np.asarray(x) for x in (f.A, f.W1, f.W2, f.h1, f.h2))


def step(f, x):
    A, W1, W2, h1, h2 = arrays(f)
    return x @ A.T + np.maximum(x @ W2.T + h2, 0) @ W1.T + h1


def determinants(f):
    """Of all 2^H patterns, in numpy."""
    A, W1, W2, _, _ = arrays(f)
    gates = np.array(list(itertools.product([0.0, 1.0], repeat=len(W2))))
    return gates, np.linalg.det(A + (W1 * gates[:, None]) @ W2)


def brute_force(f, z):
    """All preimages, by solving every pattern: points in the order of the patterns."""
    A, W1, W2, h1, h2 = arrays(f)
    found = []
    for bits in itertools.product([False, True], repeat=len(h2)):
        gated = W1 * np.array(bits)
        x = np.linalg.solve(A + gated @ W2, z - gated @ h2 - h1)
        if ((W2 @ x + h2 > 0) == bits).all():
            found.append(x)
    return np.array(found).reshape(-1, len(A))


def ordered(points):
    points = np.asarray(points)
    return points[np.lexsort(np.round(points, 8).T)]


# ---- preimages


@pytest.mark.parametrize(("m", "hidden"), [(1, 3), (2, 2), (2, 7), (3, 3), (4, 6)])
def test_all_preimages_of_random_maps(m, hidden, random_map):
    counts = []
    for seed in range(3):
        f = random_map(m, hidden, seed)
        rng = np.random.default_rng(seed)
        # A point of the range, and one that may have no preimage.
        for z in (step(f, rng.normal(size=m)), 3 * rng.normal(size=m)):
            expected = brute_force(f, z)
            for method in ("table", "complementarity"):
                found = preimages(f, z, method=method)
                points, patterns = found
                assert found.complete
                assert points.shape == expected.shape
                np.testing.assert_allclose(step(f, np.asarray(points)), np.tile(z, (len(points), 1)), atol=1e-10)
                np.testing.assert_allclose(ordered(points), ordered(expected), atol=1e-8)
                np.testing.assert_array_equal(patterns, np.asarray(points) @ arrays(f)[2].T + arrays(f)[4] > 0)
                assert not found.on_border.any()
            one = preimages(f, z, method="paper")
            assert len(one.points) == min(1, len(expected))
            np.testing.assert_allclose(step(f, np.asarray(one.points)), np.tile(z, (len(one.points), 1)), atol=1e-10)
            assert not one.complete
            counts.append(len(expected))
    assert max(counts) > 1  # the maps were not all invertible


def test_an_invertible_map_is_inverted():
    rng = np.random.default_rng(1)
    f = models.ALRNN.from_parameters(
        jnp.asarray(rng.uniform(0.4, 0.9, 6)),
        jnp.asarray(0.1 * rng.normal(size=(6, 6))),
        jnp.asarray(rng.normal(size=6)),
        4,
    )
    form = f.canonical()
    assert is_homeomorphism(f).value
    regions = enumerate_regions(f)
    for x in rng.normal(size=(3, 6)):
        z = step(form, x)
        for options in ({}, {"regions": regions}, {"method": "paper"}):
            points, patterns = preimages(f, z, **options)
            np.testing.assert_allclose(points, [x], atol=1e-12)
            np.testing.assert_array_equal(patterns[0], form.pattern(jnp.asarray(x)))


def folds(n_folded, n_straight, seed):
    """In rotated coordinates one-dimensional maps side by side: tents, and lines with a kink."""
    n = n_folded + n_straight
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(n, n)))[0]
    turns = np.where(np.arange(n) < n_folded, -4.0, 1.0)
    return rotation, Map(2 * np.eye(n), rotation * turns, rotation.T, rotation @ np.ones(n), np.zeros(n))


def test_more_relus_than_a_table_holds():
    rotation, f = folds(3, 15, 0)
    rng = np.random.default_rng(0)
    heights = rng.uniform(-1, 0.5, 18)  # below the tips of the tents: two preimages each
    found = preimages(f, rotation @ heights)
    assert found.complete
    assert "linear programs" in found.certificate
    assert len(found.points) == 2**3
    np.testing.assert_allclose(step(f, np.asarray(found.points)), np.tile(rotation @ heights, (8, 1)), atol=1e-12)
    assert len(np.unique(np.asarray(found.patterns), axis=0)) == 8
    heights[0] = 1.5  # above a tip: none
    above = preimages(f, rotation @ heights)
    assert above.complete
    assert not len(above.points)
    cut = preimages(f, rotation @ heights, max_programs=3)
    assert not cut.complete
    assert cut.certificate.startswith("none")


def test_points_on_borders_count_once(random_map):
    _, tent = folds(1, 0, 0)
    tip = preimages(tent, np.ones(1))
    np.testing.assert_allclose(tip.points, [[0.0]], atol=1e-15)
    assert tip.on_border.tolist() == [True]
    assert tip.patterns.tolist() == [[False]]
    # Just below the tip there are two, however near.
    near = preimages(tent, np.array([1 - 1e-12]))
    assert len(near.points) == 2
    # Four regions of a plane meet in the origin; six lines in one of their crossings.
    f = random_map(2, 2, 3)
    crossing = np.linalg.solve(np.asarray(f.W2), -np.asarray(f.h2))
    for method in ("table", "complementarity"):
        found = preimages(f, step(f, crossing), method=method)
        at = np.flatnonzero(np.abs(np.asarray(found.points) - crossing).max(axis=1) < 1e-9)
        assert len(at) == 1
        assert bool(found.on_border[at[0]])
        assert not found.patterns[at[0]].any()


def test_a_continuum_is_named():
    # The first coordinate is lost where it is negative.
    f = Map(np.diag([0.0, 0.5]), [[1.0], [0.0]], [[1.0, 0.0]], np.zeros(2), [0.0])
    with pytest.raises(ConvergenceError, match="continuum"):
        preimages(f, np.array([0.0, 1.0]))
    for method in ("table", "complementarity"):
        found = preimages(f, np.array([0.0, 1.0]), method=method, throw=False)
        assert (found.result == RESULTS.singular).tolist() == [False, True]
        np.testing.assert_allclose(step(f, np.asarray(found.points)), [[0.0, 1.0]] * 2, atol=1e-12)
        np.testing.assert_allclose(preimages(f, np.array([2.0, 1.0]), method=method).points, [[2.0, 2.0]], atol=1e-12)
        assert not len(preimages(f, np.array([-1.0, 1.0]), method=method).points)


class Driven(eqx.Module):
    """A user's model: plain numbers as fields, an input that shifts the border."""

    slope: float = 2.0
    state_size: int = 1
    input_size: int = 1

    def canonical(self, input=None):
        shift = jnp.zeros(1) if input is None else input
        one = jnp.ones((1, 1))
        return models.PiecewiseLinearMap(self.slope * one, -4 * one, one, jnp.ones(1), -shift)


def test_inputs_are_constants_of_the_map():
    # x -> 2 x - 4 relu(x - s) + 1
    np.testing.assert_allclose(preimages(Driven(), jnp.array([0.5])).points, [[-0.25], [0.25]], atol=1e-15)
    points, patterns = preimages(Driven(), jnp.array([0.5]), input=jnp.array([1.0]))
    np.testing.assert_allclose(points, [[-0.25], [2.25]], atol=1e-15)
    assert patterns.tolist() == [[False], [True]]
    assert is_homeomorphism(Driven()).value is False
    assert is_homeomorphism(Driven(5.0), input=jnp.ones(1)).value is True


def test_preimage_errors(random_map):
    f = random_map(2, 3, 0)
    with pytest.raises(ShapeError, match="`z`"):
        preimages(f, jnp.zeros(3))
    with pytest.raises(NonFiniteError, match="`z`"):
        preimages(f, jnp.array([0.0, jnp.nan]))
    with pytest.raises(PrecisionError, match="float64"):
        preimages(f, jnp.zeros(2, jnp.float32))
    with pytest.raises(ArgumentError, match="`method`"):
        preimages(f, jnp.zeros(2), method="newton")
    with pytest.raises(ArgumentError, match="`max_programs`"):
        preimages(f, jnp.zeros(2), max_programs=0)
    with pytest.raises(ModelError, match="piecewise-linear"):
        preimages(object(), jnp.zeros(2))
    with pytest.raises(ShapeError, match=r"regions\.patterns"):
        preimages(f, jnp.zeros(2), regions=enumerate_regions(random_map(2, 2, 0)))


# ---- homeomorphisms


def test_published_maps_are_homeomorphisms():
    for name, negative in (("fig3a_left", 2), ("fig3a_right", 0), ("fig5", 0)):
        found = is_homeomorphism(BorderCollisionMap.preset(name))
        assert found.value is True
        assert found
        assert (found.n_positive, found.n_negative, found.n_zero) == (2 - negative, negative, 0)


@pytest.mark.parametrize(("m", "hidden"), [(2, 2), (2, 6), (3, 5)])
def test_the_verdict_agrees_with_counted_preimages(m, hidden, random_map):
    rng = np.random.default_rng(m)
    verdicts = set()
    for seed in range(8):
        f = random_map(m, hidden, seed, scale=0.15 if seed % 2 else 0.6)
        found = is_homeomorphism(f)
        counts = [len(brute_force(f, step(f, 2 * x))) for x in rng.normal(size=(30, m))]
        verdicts.add(found.value)
        if found.value:
            assert set(counts) == {1}
            assert found.degree == 1
            assert 0 in (found.n_positive, found.n_negative)
        else:
            _, dets = determinants(f)
            gated = np.asarray(found.counterexample)
            A, W1, W2, _, _ = arrays(f)
            signs = [np.sign(np.linalg.det(A + (W1 * g) @ W2)) for g in gated]
            assert sorted(signs) == [-1, 1]
        if m == hidden:
            _, dets = determinants(f)
            assert (found.n_positive, found.n_negative) == (np.sum(dets > 0), np.sum(dets < 0))
            assert found.value == (len(set(np.sign(dets))) == 1)
        assert found.complete
    assert verdicts == {True, False}


def test_equal_signs_are_not_enough():
    # Angles are doubled: (|x| - |y|, |x + y| - |x - y|). All determinants are 2, and every point but 0 is met twice.
    directions = np.array([[1.0, 0], [0, 1], [1, 1], [1, -1]])
    W1 = 2 * np.array([[1.0, -1, 0, 0], [0, 0, 1, -1]])
    f = Map(-0.5 * W1 @ directions, W1, directions, np.zeros(2), np.zeros(4))
    np.testing.assert_allclose(step(f, np.array([[1.0, 0], [0, 1], [-1, 0]])), [[1, 0], [-1, 0], [1, 0]], atol=1e-15)
    found = is_homeomorphism(f)
    assert found.value is False
    assert found.degree == 2
    assert (found.n_positive, found.n_negative, found.n_zero) == (8, 0, 0)
    assert len(preimages(f, np.array([0.3, 0.4])).points) == 2
    assert len(preimages(f, np.zeros(2)).points) == 1


def test_signs_that_rounding_hides_are_exact():
    lost = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]
    found = is_homeomorphism(Map(lost, np.zeros((3, 1)), np.eye(3)[:1], np.zeros(3), [0.0]))
    assert found.value is False
    assert found.n_zero == 2
    assert found.counterexample.shape == (1, 1)
    kept = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, np.nextafter(9.0, 0)]]  # -3 (9 - eps - 9) > 0
    assert is_homeomorphism(Map(kept, np.zeros((3, 1)), np.eye(3)[:1], np.zeros(3), [0.0])).n_positive == 2
    # Small is not singular.
    assert is_homeomorphism(Map(1e-30 * np.eye(12), np.zeros((12, 1)), np.eye(12)[:1], np.zeros(12), [0.0])).value


def ring(m, last):
    """1 + N with one cycle through all coordinates: only the minor of all indices differs from 1, by -/+ 3^m."""
    N = 3 * np.roll(np.eye(m), 1, axis=1)
    N[m - 1, 0] = last
    return Map(np.eye(m), N, np.eye(m), np.zeros(m), np.zeros(m))


def test_too_many_regions_to_look_at():
    rng = np.random.default_rng(0)
    contracting = Map(np.eye(40), 0.05 * rng.normal(size=(40, 40)), np.eye(40), np.zeros(40), np.ones(40))
    found = is_homeomorphism(contracting)
    assert found.value is True
    assert not found.complete
    assert "bound" in found.certificate
    # det(1 + N) = 1 - (-1)^m prod N: of 2^18 corners only the one with all ReLUs on tells these maps apart.
    assert is_homeomorphism(ring(18, -3.0)).value is True
    folding = is_homeomorphism(ring(18, 3.0))
    assert folding.value is False
    assert folding.counterexample.sum(axis=1).tolist() == [0, 18]
    undecided = is_homeomorphism(ring(24, -3.0))
    assert undecided.value is None
    assert not undecided
    assert undecided.certificate.startswith("none")
    assert is_homeomorphism(folds(9, 9, 0)[1]).value is False  # a sample of the regions shows it


def test_copies_of_borders_are_no_reason_to_be_sure():
    # relu(x) and relu(-x): of the four patterns two occur.
    f = Map([[1.0]], [[1.0, -0.5]], [[1.0], [-1.0]], [0.0], [0.0, 0.0])
    found = is_homeomorphism(f)
    assert found.value is True
    assert found.n_positive == 2
    assert is_homeomorphism(f, max_regions=1).value in (True, None)


@needs_data
@pytest.mark.parametrize(("name", "relus", "verdict"), [("m20_p2", 2, True), ("m30_p10", 10, False)])
def test_trained_networks(name, relus, verdict):
    data = np.load(DATA / f"alrnn_lorenz63_{name}.npz")
    f = models.ALRNN.from_parameters(*(jnp.asarray(data[k], float) for k in ("A", "W", "h")), relus).canonical()
    found = is_homeomorphism(f)
    _, dets = determinants(f)
    assert found.value is verdict
    assert (found.n_positive, found.n_negative) == (np.sum(dets > 0), np.sum(dets < 0))
    z = step(f, np.random.default_rng(0).normal(size=f.state_size))
    points, _ = preimages(f, z)
    assert (len(points) == 1) == verdict
    np.testing.assert_allclose(step(f, np.asarray(points)), np.tile(z, (len(points), 1)), atol=1e-12)
    assert len(brute_force(f, z)) == len(points)


def test_homeomorphism_errors(random_map):
    with pytest.raises(PrecisionError, match="float64"):
        is_homeomorphism(
            models.PiecewiseLinearMap(*(jnp.ones((1, 1), jnp.float32),) * 3, *(jnp.ones(1, jnp.float32),) * 2)
        )
    with pytest.raises(ArgumentError, match="`max_regions`"):
        is_homeomorphism(random_map(2, 2, 0), max_regions=0)
