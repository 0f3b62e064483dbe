"""Delay embedding and its lag: against closed forms of Gaussian processes, and against loops."""

import numpy as np
import pytest

import dynwarp as dw
from dynwarp.errors import ArgumentError, SeriesError


def autoregression(coefficients, steps, seed=0):
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(steps + 500)
    x = np.zeros_like(noise)
    for t in range(len(coefficients), x.size):
        x[t] = sum(c * x[t - 1 - k] for k, c in enumerate(coefficients)) + noise[t]
    return x[500:]


@pytest.mark.parametrize(("dimension", "lag", "width"), [(1, 5, 1), (3, 2, 1), (4, 3, 2), (2, 1, 3)])
def test_embedding_is_what_a_loop_writes(dimension, lag, width):
    x = np.random.default_rng(0).standard_normal((20, width))
    rows = [
        np.concatenate([x[t - k * lag] for k in range(dimension)]) for t in range((dimension - 1) * lag, x.shape[0])
    ]
    np.testing.assert_array_equal(dw.io.embed(x, dimension, lag), np.array(rows))


def test_embedding_of_a_vector_keeps_its_dtype():
    embedded = dw.io.embed(np.arange(6, dtype=np.float32), 2, 3)
    assert embedded.dtype == np.float32
    np.testing.assert_array_equal(embedded, [[3, 0], [4, 1], [5, 2]])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dw.io.embed(np.zeros(9), 3, 4), SeriesError, "9 time steps are too few .* at least 10"),
        (lambda: dw.io.embed(np.zeros((3, 3, 3)), 2, 1), SeriesError, r"shape \(T,\) or \(T, N\); got \(3, 3, 3\)"),
        (lambda: dw.io.embed(np.zeros(9), 0, 1), ArgumentError, "`dimension` must be a whole number"),
        (lambda: dw.io.embed(np.zeros(9), 2, 1.5), ArgumentError, "`lag` must be a whole number"),
        (lambda: dw.io.mutual_information(np.zeros(50), 2), SeriesError, "constant"),
        (lambda: dw.io.mutual_information(np.full(50, np.nan), 2), SeriesError, "not finite"),
        (lambda: dw.io.mutual_information(np.arange(9.0), 2), SeriesError, "at least 10 are needed"),
        (lambda: dw.io.mutual_information(np.zeros((9, 2)), 2), SeriesError, r"got \(9, 2\)"),
        (lambda: dw.io.choose_lag(np.arange(9.0), max_lag=5), SeriesError, "at least 13 are needed"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("correlation", [0.3, 0.6, 0.9])
def test_information_of_a_gaussian_process(correlation):
    # Its kernel makes the estimate that of the process seen through noise of variance h^2, with a closed form.
    steps = 40_000
    x = autoregression([correlation], steps)
    for lag in (1, 2, 3):
        seen = correlation**lag / (1 + steps ** (-1 / 3))
        # Four standard errors of the plug-in estimate, and the bias of about 1 / (h^2 T).
        tolerance = 4 * seen / np.sqrt(steps * (1 - correlation**2)) + 2 * steps ** (-2 / 3)
        assert abs(dw.io.mutual_information(x, lag) + 0.5 * np.log(1 - seen**2)) < tolerance


def test_information_does_not_depend_on_units_or_direction():
    x = autoregression([0.8], 2000)
    reference = dw.io.mutual_information(x, 3)
    assert dw.io.mutual_information(1e6 * x - 40, 3) == pytest.approx(reference, rel=1e-3)
    assert dw.io.mutual_information(x[::-1], 3) == pytest.approx(reference, rel=1e-10)


@pytest.mark.parametrize("period", [20, 40, 100])
def test_lag_of_a_sine_is_a_quarter_of_its_period(period):
    signal = np.sin(2 * np.pi * np.arange(4000) / period + 0.3)
    assert abs(dw.io.choose_lag(signal) - period / 4) <= 1
    noisy = signal + 0.1 * np.random.default_rng(0).standard_normal(4000)
    assert abs(dw.io.choose_lag(noisy) - period / 4) <= 0.1 * period


@pytest.mark.parametrize("period", [20, 60])
def test_lag_of_a_noisy_oscillator_is_where_its_autocorrelation_vanishes(period):
    radius, frequency = 0.98, 2 * np.pi / period
    first, second = 2 * radius * np.cos(frequency), -(radius**2)
    correlation = [1.0, first / (1 - second)]
    while correlation[-1] > 0:
        correlation.append(first * correlation[-1] + second * correlation[-2])
    zero = int(np.argmin(np.abs(correlation)))
    assert abs(dw.io.choose_lag(autoregression([first, second], 20_000)) - zero) <= 1


def test_lag_without_a_minimum_is_where_the_information_has_fallen():
    # A process that only forgets: every lag of these tells less than the one before.
    x = autoregression([0.9], 40_000)
    curve = np.array([dw.io.mutual_information(x, lag) for lag in range(1, 9)])
    assert (np.diff(curve) < 0).all()
    fallen = int(np.argmax(curve <= curve[0] / np.e)) + 1
    assert 1 < fallen < 8
    assert dw.io.choose_lag(x, max_lag=8) == fallen
    assert dw.io.choose_lag(x, max_lag=fallen - 1) == fallen - 1


def test_lag_of_several_columns_lies_between_theirs():
    time = np.arange(2000)
    slow, fast = np.sin(2 * np.pi * time / 80), np.sin(2 * np.pi * time / 20)
    assert dw.io.choose_lag(np.stack([slow, slow], axis=1)) == dw.io.choose_lag(slow)
    assert 5 <= dw.io.choose_lag(np.stack([slow, fast], axis=1)) <= 20
