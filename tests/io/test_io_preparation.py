"""Before training: the dimension of an embedding, trends, gaps, parts."""

import numpy as np
import pytest

import dynwarp as dw
from dynwarp.errors import ArgumentError, SeriesError

RNG = np.random.default_rng(0)
TIMES = np.arange(1500)


@pytest.fixture(scope="module")
def henon():
    x = np.zeros((1500, 2))
    x[0] = 0.1, 0.1
    for t in range(1, len(x)):
        x[t] = 1 - 1.4 * x[t - 1, 0] ** 2 + x[t - 1, 1], 0.3 * x[t - 1, 0]
    return x[100:, 0]


def test_false_neighbours_are_those_of_a_search_through_all_pairs(henon):
    x = henon[:300]
    z = (x - x.mean()) / x.std()
    for dimension in (1, 2):
        rows = np.stack([z[dimension - k : len(z) - k] for k in range(dimension + 1)], axis=1)
        points, following = rows[:, :-1], rows[:, -1]
        false = 0
        for i in range(len(rows)):
            distance = np.linalg.norm(points - points[i], axis=1)
            distance[i] = np.inf
            j = np.argmin(distance)
            moved = abs(following[i] - following[j])
            false += (moved > 15 * distance[j]) or np.hypot(moved, distance[j]) > 2
        np.testing.assert_allclose(dw.io.false_neighbours(x, dimension, 1), false / len(rows), atol=1e-12)


def test_the_dimension_of_known_systems(henon):
    assert dw.io.choose_dimension(henon, 1) == 2
    # A torus of two frequencies unfolds in three delays; noise in none.
    torus = np.sin(0.31 * TIMES) + np.sin(0.113 * TIMES * np.sqrt(2))
    assert dw.io.choose_dimension(torus, 7, tolerance=0.02) in (3, 4)
    noise = RNG.normal(size=800)
    assert dw.io.false_neighbours(noise, 2, 1) > 0.2
    series = dw.io.make_series(henon, embed="false_neighbours", lag=1)
    assert (series.dimension, series.values.shape[1]) == (2, 2)
    for call, message in (
        (lambda: dw.io.false_neighbours(np.ones(50), 1, 1), "constant"),
        (lambda: dw.io.choose_dimension(henon[:20], 10), "too few"),
        (lambda: dw.io.make_series(henon, embed="best"), "false_neighbours"),
        (lambda: dw.io.choose_dimension(henon, 1, tolerance=-1.0), "`tolerance`"),
    ):
        with pytest.raises((SeriesError, ArgumentError), match=message):
            call()


def test_a_trend_is_taken_off_and_kept():
    wave = np.sin(TIMES / 9)
    x = np.stack([wave + 3 + 0.01 * TIMES + 1e-5 * TIMES**2, 2 * wave], axis=1)
    series = dw.io.make_series(x, detrend=2)
    np.testing.assert_allclose(series.to_original(series.values) + series.trend, x, atol=1e-9)
    # What is left is orthogonal to the polynomials that were taken off.
    for power in range(3):
        assert abs(np.mean(series.values[:, 0] * (TIMES / 1500) ** power)) < 1e-10
    embedded = dw.io.make_series(x, detrend=2, embed=2, lag=4)
    whole = embedded.to_original(embedded.values) + embedded.trend
    np.testing.assert_allclose(whole[:, :2], x[4:], atol=1e-9)
    np.testing.assert_allclose(whole[:, 2:], x[:-4], atol=1e-9)
    first, second = embedded.split(0.5)
    np.testing.assert_array_equal(
        np.concatenate([first.trend, second.trend]), np.delete(embedded.trend, slice(748, 752), 0)
    )
    with pytest.raises(SeriesError, match="no dynamics"):
        dw.io.make_series(TIMES**2, detrend=2)
    with pytest.raises(ArgumentError, match="`detrend`"):
        dw.io.make_series(x, detrend=-1)


def test_gaps_are_refused_or_kept(tmp_path):
    x = np.stack([np.sin(TIMES / 9), np.cos(TIMES / 9)], axis=1)
    x[5, 0] = x[9:11] = np.nan
    x[12, 1] = np.inf
    with pytest.raises(SeriesError, match="6 values are missing"):
        dw.io.make_series(x)
    series = dw.io.make_series(x, missing="keep", detrend=1)
    assert np.isnan(series.values).sum() == 6
    np.testing.assert_allclose(np.nanmean(series.values, 0), 0, atol=1e-12)
    np.testing.assert_allclose(np.nanstd(series.values, 0), 1, rtol=1e-12)
    np.save(tmp_path / "gaps.npy", x)
    read = dw.io.read_series(tmp_path / "gaps.npy", missing="keep", detrend=1)
    np.testing.assert_array_equal(read.values, series.values)
    with pytest.raises(SeriesError, match="give `lag`"):
        dw.io.make_series(x, missing="keep", embed=3)
    assert np.isnan(dw.io.make_series(x, missing="keep", embed=2, lag=3).values).sum() == 12
    for missing in ("refuse", "keep"):
        with pytest.raises(SeriesError, match="every value is missing in column 'b'"):
            dw.io.make_series(x * [1, np.nan], columns=["a", "b"], missing=missing)
    with pytest.raises(ArgumentError, match="`missing`"):
        dw.io.make_series(x, missing="fill")


def test_parts_follow_each_other_without_shared_samples():
    series = dw.io.make_series(np.sin(TIMES / 9), embed=3, lag=5)
    train, validation, test = series.parts(0.6, 0.2, 0.2)
    rows = series.values
    n = len(rows)
    ends = [round(0.6 * n), round(0.8 * n), n]
    np.testing.assert_array_equal(train.values, rows[: ends[0]])
    np.testing.assert_array_equal(validation.values, rows[ends[0] + 10 : ends[1]])
    np.testing.assert_array_equal(test.values, rows[ends[1] + 10 :])
    assert [p.values.shape for p in series.parts(0.5, 0.25, gap=0)] == [(n // 2, 3), (round(0.75 * n) - n // 2, 3)]
    for fractions, error in (((0.5,), ArgumentError), ((0.9, 0.2), ArgumentError), ((0.99, 0.005), SeriesError)):
        with pytest.raises(error):
            series.parts(*fractions)
