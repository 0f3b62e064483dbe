"""Figures of learning: what is drawn is what was given, and wrong shapes are named."""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.errors import ArgumentError, ShapeError

learning = dw.learning


@pytest.fixture
def ax():
    figure, ax = plt.subplots()
    yield ax
    figure.canvas.draw()
    plt.close(figure)


def test_stability_map_colours_kinds(ax):
    s, r = jnp.linspace(-3.0, -1.0, 9), jnp.linspace(0.01, 0.1, 7)
    found = learning.stability_map(lambda r: learning.RFLO(r, 0.0), learning.Teacher(0.5, 1.0, 0.9), s, r)
    mesh = dw.plot.stability_map(found, s, r, ax=ax)
    np.testing.assert_array_equal(np.asarray(mesh.get_array()).reshape(7, 9), np.asarray(found.code))
    shown = [text.get_text() for text in ax.get_legend().get_texts()]
    assert "saddle" in shown
    assert "oscillates" in shown
    with pytest.raises(ShapeError, match="stability"):
        dw.plot.stability_map(found, r, s, ax=ax)


def test_curves(ax):
    t = np.linspace(0.0, 1.0, 5)
    lines = dw.plot.learning_curves(t, {"a": np.exp(-t)}, {"a": np.exp(-2 * t)}, ax=ax)
    assert lines[0].get_color() == lines[1].get_color()
    np.testing.assert_array_equal(lines[1].get_ydata(), np.exp(-2 * t))
    with pytest.raises(ArgumentError, match="'b'"):
        dw.plot.learning_curves(t, {"a": t}, {"b": t}, ax=ax)
    with pytest.raises(ShapeError, match="rule"):
        dw.plot.convergence_rates(t, {"rule": t[:3]}, ax=ax)
    assert ax.get_yscale() == "log"


def test_mode_paths_ends_where_lanes_end(ax):
    path = np.array([[1.0, 1.0, 0.5], [0.9, 1.1, 0.6], [np.nan] * 3])
    (line,) = dw.plot.mode_paths({"x": path}, learning.Teacher(1.0, 1.0, 0.6), ax=ax)
    np.testing.assert_array_equal(line.get_xdata()[:2], [1.0, 0.9])
    np.testing.assert_array_equal(ax.lines[-1].get_xdata(), [1.0, 0.9])
    with pytest.raises(ShapeError, match="short"):
        dw.plot.mode_paths({"short": path[:, :2]}, learning.Teacher(1.0, 1.0, 0.6), ax=ax)


def test_singular_values_are_relative(ax):
    (line,) = dw.plot.singular_values({"x": [4.0, 1.0, 0.0]}, floor=1e-9, ax=ax)
    np.testing.assert_allclose(line.get_ydata(), [1.0, 0.25, 1e-9])


def test_convergence_map_numbers(ax):
    image = dw.plot.convergence_map([[0.25, 1.0]], [0.1], [1.0, 4.5], labels=("scale", "feedback"), ax=ax)
    assert [text.get_text() for text in ax.texts] == ["0.25", "1.00"]
    assert image.get_array().shape == (1, 2)
    assert ax.get_ylabel() == "scale"
    with pytest.raises(ShapeError, match="converged"):
        dw.plot.convergence_map(np.eye(2), [0.1], [1.0, 4.5], ax=ax)
