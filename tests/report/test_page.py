"""The HTML page and the figures."""

import base64
import re
from html.parser import HTMLParser

import matplotlib
import numpy as np
import pytest

from dynwarp import plot, report
from dynwarp.errors import ArgumentError, ShapeError

matplotlib.use("Agg")


class Balanced(HTMLParser):
    """Raises where tags do not nest."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def figure():
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(3, 2))
    plot.series(np.sin(np.arange(30.0)), ax=canvas.subplots())
    return canvas


def test_page_nests_escapes_and_loads_nothing():
    nasty = '<script>alert("x")</script> & `a<b` **bold**'
    sections = [
        report.Section(nasty, [report.Text(nasty + "\n\nsecond"), report.Table([nasty], [[nasty]], nasty)]),
        report.Section("two", [report.Figure(figure(), nasty, nasty)]),
    ]
    html = report.page(nasty, sections, summary=nasty)
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert "<script" not in html
    assert "<code>a&lt;b</code> <strong>bold</strong>" in html
    assert not re.search(r"(src|href)=\"(?!data:image|#s\d)", html)
    assert html.count("<h2") == 2
    assert 'lang="en"' in html
    svg = base64.b64decode(re.search(r"base64,([^\"]+)", html).group(1))
    assert svg.startswith(b"<?xml")
    assert html == report.page(
        nasty, [sections[0], report.Section("two", [report.Figure(figure(), nasty, nasty)])], summary=nasty
    )


def test_table_formats_numbers_and_checks_rows():
    html = report.Table(["n", "x", "ok"], [[3, 1.23456789, True], [4, np.float64(1e-9), False]]).to_html()
    assert ">1.235<" in html
    assert ">1e-09<" in html
    assert ">yes<" in html
    assert html.count('class="number"') == 6
    with pytest.raises(ArgumentError, match="2 cells"):
        report.Table(["a"], [[1, 2]])


@pytest.fixture
def ax():
    from matplotlib.figure import Figure

    return Figure().subplots()


def test_series_and_its_units(ax):
    recorded, generated = plot.series(np.arange(5.0), np.arange(8.0), sampling_interval=0.5, ax=ax)
    np.testing.assert_allclose(generated.get_xdata(), np.arange(8) / 2)
    np.testing.assert_allclose(recorded.get_ydata(), np.arange(5))
    assert ax.get_xlabel() == "time / s"
    with pytest.raises(ShapeError, match="recording"):
        plot.series(np.zeros((3, 2)), ax=ax)


def test_power_spectrum_has_its_peak_at_the_frequency(ax):
    (line,) = plot.power_spectrum(np.sin(2 * np.pi * 0.1 * np.arange(400)), sampling_interval=1.0, ax=ax)
    assert line.get_xdata()[np.argmax(line.get_ydata())] == pytest.approx(0.1)
    assert line.get_ydata().sum() == pytest.approx(1.0)
    (flat,) = plot.power_spectrum(np.ones(50), ax=ax)
    assert np.isnan(flat.get_ydata()).all()


def test_eigenvalues_are_sorted_by_stability(ax):
    _, stable, unstable = plot.eigenvalues(np.array([0.5, 2.0, -0.1j]), ax=ax)
    assert (len(stable.get_offsets()), len(unstable.get_offsets())) == (2, 1)
    _, stable, unstable = plot.eigenvalues(np.array([-3.0, 0.1]), kind="rate", ax=ax)
    assert (len(stable.get_offsets()), len(unstable.get_offsets())) == (1, 1)


def test_fixed_points_exponents_history_and_errors(ax):
    line, stable, unstable = plot.fixed_points(
        np.arange(6.0).reshape(2, 3), [True, False], trajectory=np.zeros((4, 3)), coordinates=(1, 2), ax=ax
    )
    np.testing.assert_array_equal(stable.get_offsets(), [[1.0, 2.0]])
    np.testing.assert_array_equal(unstable.get_offsets(), [[4.0, 5.0]])
    assert len(line.get_xdata()) == 4
    with pytest.raises(ShapeError, match="points"):
        plot.fixed_points(np.zeros(3), [True], ax=ax)
    assert len(plot.lyapunov_spectrum(np.array([0.1, -0.2]), standard_error=np.array([0.01, 0.01]), ax=ax)) == 2

    class History:
        loss = np.array([1.0, np.nan, 3.0, 5.0])
        validation_step = np.array([4])
        validation = np.array([0.5])

    loss, score = plot.training_history(History, smoothing=2, ax=ax)
    np.testing.assert_allclose(loss.get_ydata(), [1.0, 4.0])
    np.testing.assert_allclose(loss.get_xdata(), [2, 4])
    assert score.get_ydata() == [0.5]
    model, persistence = plot.prediction_error([1, 2], {"model": [1.0, 2.0], "persistence": [3.0, 4.0]}, ax=ax)
    assert model.get_color() != persistence.get_color()
