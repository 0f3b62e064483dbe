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
    # What chooses a lag sees the longest stretch without gaps, here all rows from the 13th on.
    assert dw.io.make_series(x, missing="keep", embed=3).lag == dw.io.choose_lag(x[13:])
    holes = np.where(np.arange(len(x)) % 10 == 0, np.nan, x[:, 1])
    with pytest.raises(SeriesError, match="9 time steps without a gap are too few"):
        dw.io.make_series(holes, missing="keep", embed=3)
    assert np.isnan(dw.io.make_series(x, missing="keep", embed=2, lag=3).values).sum() == 12
    for missing in ("refuse", "keep"):
        with pytest.raises(SeriesError, match="every value is missing in column 'b'"):
            dw.io.make_series(x * [1, np.nan], columns=["a", "b"], missing=missing)
    with pytest.raises(ArgumentError, match="`missing`"):
        dw.io.make_series(x, missing="fill")


def test_gaps_are_filled_by_straight_lines():
    x = np.stack([2.0 * TIMES[:30] + 1, -3.0 * TIMES[:30]], axis=1)
    gaps = x.copy()
    gaps[4:9, 0] = np.nan
    gaps[20, 1], gaps[:2, 1] = np.inf, np.nan
    filled = dw.io.fill_gaps(gaps)
    np.testing.assert_allclose(filled[2:], x[2:], rtol=1e-14)
    assert filled[:2, 1].tolist() == [x[2, 1]] * 2
    np.testing.assert_array_equal(dw.io.fill_gaps(gaps[:, 0]), filled[:, 0])
    with pytest.raises(SeriesError, match="no values"):
        dw.io.fill_gaps(np.full((4, 1), np.nan))


@pytest.fixture(scope="module")
def lorenz():
    system = dw.systems.Lorenz63()
    return np.asarray(dw.simulate(system, system.initial_state(), dt=0.01, steps=4000))[500:]


def test_delays_are_chosen_one_by_one(lorenz, henon):
    period = 2 * np.pi / 0.156
    (quarter,) = dw.io.choose_delays(np.sin(0.156 * TIMES))
    assert abs(quarter - period / 4) <= 1.5
    assert dw.io.choose_delays(henon) == (1,)
    # Lorenz from its first coordinate alone: three dimensions, the first delay the one that mutual information has.
    x = lorenz[:, 0]
    delays = dw.io.choose_delays(x)
    assert len(delays) == 2
    assert abs(delays[0] - dw.io.choose_lag(x)) <= 4
    series = dw.io.make_series(x, columns=["x"], embed="continuity")
    assert (series.dimension, series.lag, series.span) == (3, delays, max(delays))
    assert series.columns == ("x", f"x[-{delays[0]}]", f"x[-{delays[1]}]")
    # Neighbours in it are neighbours of the whole state; of one delay alone many are not.
    far = {}
    for count in (1, 2):
        rows, states = dw.io.embed(x, count + 1, delays[:count]), lorenz[max(delays[:count]) :]
        apart = np.linalg.norm(rows[::50, None] - rows[None], axis=2)
        index = np.arange(len(rows))
        apart[np.abs(index[::50, None] - index[None]) < 20] = np.inf
        far[count] = np.linalg.norm(states[::50] - states[np.argmin(apart, axis=1)], axis=1).mean()
    assert far[2] < 0.7 * far[1]
    # The whole state wants no delay.
    assert dw.io.choose_delays(lorenz[::2]) == ()
    first, second = series.split(0.5)
    assert len(first.values) + len(second.values) + max(delays) == len(series.values)


def test_the_continuity_statistic_is_that_of_a_loop(henon):
    from math import comb

    from dynwarp.io import _delays

    x = henon[:200, None]
    times, window = np.arange(5, 190), 3
    asked = np.arange(0, len(times), 20)
    rows = np.concatenate([x[times], x[times - 2]], axis=1)
    found = _delays._continuity(x, times, asked, rows, window, 5)
    expected = np.zeros(6)
    for i in asked:
        order = sorted(
            (j for j in range(len(rows)) if abs(i - j) > window), key=lambda j: np.sum((rows[i] - rows[j]) ** 2)
        )
        for delay in range(6):
            image = [abs(x[times[j] - delay, 0] - x[times[i] - delay, 0]) for j in order]
            radii = []
            for n in range(8, 14):
                needed = next(k for k in range(1, n + 1) if sum(comb(n, q) for q in range(k, n + 1)) / 2**n <= 0.05)
                radii.append(sorted(image[:n])[needed - 1])
            expected[delay] += min(radii) / len(asked)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_delays_that_do_not_fit(henon):
    for call, message in (
        (lambda: dw.io.choose_delays(np.ones(200)), "constant"),
        (lambda: dw.io.choose_delays(henon[:50]), "50 time steps are too few"),
        (lambda: dw.io.choose_delays(henon[:200], max_delay=60), "delays up to 60"),
        (lambda: dw.io.choose_delays(henon, tolerance=0.0), "`tolerance`"),
        (lambda: dw.io.make_series(henon, embed="continuity", lag=3), "`lag` is chosen too"),
        (lambda: dw.io.make_series(henon, embed=3, lag=(4,)), "2 different ones"),
        (lambda: dw.io.make_series(henon, embed="false_neighbours", lag=(4, 9)), "whole number where"),
        (lambda: dw.io.embed(henon, 3, (4, 4)), "2 different ones"),
        (lambda: dw.io.embed(henon[:9], 3, (4, 8)), "delays 4, 8"),
    ):
        with pytest.raises((SeriesError, ArgumentError), match=message):
            call()


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
