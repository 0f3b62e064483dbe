"""Regions: counts of theory, brute force over points, degenerate arrangements, samples, errors."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynwarp import models
from dynwarp.errors import ArgumentError, ModelError, PrecisionError, ShapeError
from dynwarp.piecewise import enumerate_regions
from dynwarp.piecewise._arrangement import arrangement, interior_points


def _map(W2, h2):
    hidden, m = np.shape(W2)
    return models.PiecewiseLinearMap(np.zeros((m, m)), np.zeros((m, hidden)), W2, np.zeros(m), h2)


def _generic(m, hidden, seed=0):
    rng = np.random.default_rng(seed)
    return _map(rng.normal(size=(hidden, m)), rng.normal(size=hidden))


def _check(regions, f):
    """Distinct patterns, each that of its own point, none of whose preactivations is zero."""
    patterns, points = np.asarray(regions.patterns), np.asarray(regions.points)
    values = points @ np.asarray(f.W2).T + np.asarray(f.h2)
    seen = np.asarray(f.W2).any(axis=1)
    assert len(np.unique(patterns, axis=0)) == len(regions)
    np.testing.assert_array_equal(values > 0, patterns)
    assert np.all(np.abs(values[:, seen]) > 0)


@pytest.mark.parametrize(("m", "hidden", "count"), [(2, 10, 56), (3, 20, 1351), (1, 7, 8), (4, 9, 256)])
def test_generic_arrangements_have_the_count_of_zaslavsky(m, hidden, count):
    f = _generic(m, hidden)
    regions = enumerate_regions(f)
    assert regions.complete
    assert regions.coverage == 1.0
    assert len(regions) == count == sum(math.comb(hidden, i) for i in range(m + 1))
    _check(regions, f)


def test_many_borders():
    assert len(enumerate_regions(_generic(3, 50))) == 20_876


def test_agrees_with_a_dense_sample_of_the_plane():
    f = _generic(2, 6, seed=3)
    regions = enumerate_regions(f)
    # Points at all scales around all corners of the arrangement.
    W, h = np.asarray(f.W2), np.asarray(f.h2)
    corners = np.array([np.linalg.solve(W[list(p)], -h[list(p)]) for p in itertools.combinations(range(6), 2)])
    rng = np.random.default_rng(0)
    cloud = corners[:, None] + 10.0 ** rng.uniform(-4, 4, (1, 4000, 1)) * rng.normal(size=(1, 4000, 2))
    seen = {tuple(p) for p in cloud.reshape(-1, 2) @ W.T + h > 0}
    assert seen == {tuple(p) for p in np.asarray(regions.patterns)}


def test_coordinate_relus_have_all_patterns():
    f = models.ALRNN(7, 4, key=jax.random.key(0)).canonical()
    regions = enumerate_regions(f)
    assert len(regions) == 16
    assert "linearly independent" in regions.certificate
    _check(regions, f)


@pytest.mark.parametrize(
    ("W2", "h2", "count"),
    [
        ([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [0.0, -1.0, 0.0], 6),  # two parallel, one across
        ([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]], [1.0, 2.0, -1.0], 2),  # one border three times
        ([[1.0, 2.0], [1.0, 0.5], [0.3, 1.0], [1.0, -1.0]], [0.0] * 4, 8),  # concurrent
        ([[0.0, 0.0], [1.0, 1.0]], [1.0, 0.0], 2),  # a ReLU that does not look
        ([[0.0, 0.0]], [-1.0], 1),
        ([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [0.0, 1.0], 3),  # fewer normals than dimensions
        ([[1.0, 0, 0], [0, 1.0, 0], [1.0, 1.0, 0], [1.0, -1.0, 0]], [0.0, 0, -1.0, 0.0], 10),  # rank 2, a triple point
    ],
)
def test_degenerate_arrangements(W2, h2, count):
    f = _map(np.array(W2), np.array(h2))
    for method in ("arrangement", "search"):
        regions = enumerate_regions(f, method=method)
        assert len(regions) == count
        assert regions.complete
        _check(regions, f)


def test_central_arrangement_in_space():
    # n hyperplanes through 0 in general position: 2 (C(n-1, 0) + C(n-1, 1) + C(n-1, 2)).
    W2 = np.random.default_rng(1).normal(size=(6, 3))
    assert len(enumerate_regions(_map(W2, np.zeros(6)))) == 32


def test_mean_centred_and_clipped_models():
    centred = models.MeanCentredPLRNN(4, key=jax.random.key(0)).canonical()
    assert len(enumerate_regions(centred)) == 14  # neither all above the mean nor all below
    shallow = _generic(2, 4, seed=2)
    clipped = models.ShallowPLRNN.from_parameters(
        jnp.zeros(2), jnp.zeros((2, 4)), shallow.W2, jnp.zeros(2), shallow.h2, clipped=True
    ).canonical()
    found, searched = enumerate_regions(clipped), enumerate_regions(clipped, method="search")
    np.testing.assert_array_equal(found.patterns, searched.patterns)
    _check(found, clipped)


def test_interior_points_keep_off_every_border():
    planes = arrangement(np.random.default_rng(5).normal(size=(12, 3)), np.random.default_rng(6).normal(size=12))
    points = interior_points(planes.normals, planes.offsets)
    assert np.min(np.abs(points @ planes.normals.T + planes.offsets)) > 1e-9


def test_no_relus():
    regions = enumerate_regions(
        models.PiecewiseLinearMap(jnp.eye(2), jnp.zeros((2, 0)), jnp.zeros((0, 2)), jnp.ones(2), [])
    )
    assert regions.patterns.shape == (1, 0)
    assert regions.complete


def test_box_takes_the_regions_that_meet_it():
    f = _map(np.eye(2), np.array([0.0, -3.0]))  # borders x = 0 and y = 3
    regions = enumerate_regions(f, box=([-1.0, -1.0], [1.0, 1.0]))
    assert regions.patterns.tolist() == [[False, False], [True, False]]
    assert regions.complete


def test_samples_report_their_coverage():
    key = jax.random.key(0)
    wide = models.PLRNN(20, key=key)
    regions = enumerate_regions(wide, key=key, n_samples=500)
    assert not regions.complete
    assert regions.coverage == len(regions) / 2**20
    # Where everything is found, Chao's estimate says so; where one draw finds one region each, it says that little was.
    f = _generic(2, 8)
    full = enumerate_regions(f, method="sample", key=key)
    assert len(full) == 37
    assert full.coverage == 1.0
    few = enumerate_regions(f, method="sample", key=key, n_samples=12)
    assert few.coverage < 0.8
    np.testing.assert_array_equal(full.patterns, enumerate_regions(f).patterns)
    inside = enumerate_regions(f, method="sample", key=key, box=(-jnp.ones(2), jnp.ones(2)))
    exact = enumerate_regions(f, box=(-jnp.ones(2), jnp.ones(2)))
    assert {tuple(p) for p in np.asarray(inside.patterns)} <= {tuple(p) for p in np.asarray(exact.patterns)}


def test_a_cap_is_reported():
    f = _generic(2, 8)
    capped = enumerate_regions(f, method="search", max_regions=10)
    assert len(capped) == 10
    assert not capped.complete
    capped = enumerate_regions(f, method="arrangement", max_regions=10)
    assert (len(capped), capped.complete) == (10, False)
    assert capped.coverage == pytest.approx(10 / 37)


def test_errors():
    f = _generic(2, 5)
    with pytest.raises(ModelError, match="piecewise-linear model"):
        enumerate_regions(models.GRU(1, 2, key=jax.random.key(0)))
    with pytest.raises(PrecisionError, match="float64"):
        enumerate_regions(jax.tree.map(lambda x: x.astype(jnp.float32), f))
    with pytest.raises(ArgumentError, match="`method` must be one of"):
        enumerate_regions(f, method="vertices")
    with pytest.raises(ArgumentError, match="give a `key`"):
        enumerate_regions(f, method="sample")
    with pytest.raises(ArgumentError, match="linearly independent"):
        enumerate_regions(f, method="independent")
    with pytest.raises(ArgumentError, match="takes no `box`"):
        enumerate_regions(f, method="arrangement", box=([0, 0], [1, 1]))
    with pytest.raises(ArgumentError, match="lower below"):
        enumerate_regions(f, box=([0, 0], [1, 0]))
    with pytest.raises(ShapeError, match=r"box\[0\]"):
        enumerate_regions(f, box=([0.0], [1.0]))
