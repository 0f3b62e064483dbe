"""Figures of gradients: what is drawn is what is given."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from dynwarp import plot
from dynwarp.errors import ShapeError


class _Report:
    log_norms = np.array([0.0, -np.inf])
    log_bounds = np.array([0.0, np.log(10)])
    log_uniform_bounds = np.array([0.0, np.log(100)])
    log_floors = np.array([-np.inf, -np.inf])


@pytest.fixture
def ax():
    figure, ax = plt.subplots()
    yield ax
    plt.close(figure)


def test_gradient_bounds(ax):
    norm, bound, uniform, floor = plot.gradient_bounds(_Report(), ax=ax)
    np.testing.assert_array_equal(norm.get_ydata(), [0, np.nan])
    np.testing.assert_allclose(bound.get_ydata(), [0, 1])
    np.testing.assert_allclose(uniform.get_ydata(), [0, 2])
    assert np.isnan(floor.get_ydata()).all()
    np.testing.assert_array_equal(norm.get_xdata(), [1, 2])


@pytest.mark.parametrize("draw", [plot.gradient_profile, plot.memory_capacities])
def test_curves_from_lag_zero(draw, ax):
    lines = draw({"a": np.array([1.0, 0.5, 0.25]), "b": np.array([1.0, 0.1])}, ax=ax)
    assert [line.get_label() for line in lines] == ["a", "b"]
    np.testing.assert_array_equal(lines[0].get_xdata(), [0, 1, 2])
    np.testing.assert_array_equal(lines[0].get_ydata(), [1.0, 0.5, 0.25])
    with pytest.raises(ShapeError, match="c"):
        draw({"c": np.ones((2, 2))}, ax=ax)


def test_sensitivities_pair_colours(ax):
    memory = np.array([10.0, 100.0])
    curve, dots = plot.sensitivities(memory, {"x": memory**3}, {"x": memory}, label="y", ax=ax)
    assert curve.get_color() == dots.get_color()
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert ax.get_ylabel() == "y"
    with pytest.raises(ShapeError, match="x"):
        plot.sensitivities(memory, {"x": np.ones(3)}, ax=ax)


def test_envelopes_leave_out_what_is_gone(ax):
    (line,) = plot.envelopes([1, 2, 3], {"exact": [0.5, 0.0, 0.1]}, ax=ax)
    np.testing.assert_array_equal(line.get_ydata(), [0.5, np.nan, 0.1])
