"""dynwarp analyze --inputs: manifolds from TOML, the metric report, one line for every mistake."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.cli import main
from dynwarp.cli._analysis_inputs import _curvature
from dynwarp.cli._flow import FlowMap
from dynwarp.cli._input_manifold import read_inputs
from dynwarp.cli._present_inputs import inputs_headline

TORUS = """
points = [5, 4]
relevant = [1]
steps = 6
dt = 0.5

[manifold]
chart = "torus"
on = [[[0.0, 1.0]], [[1.0, 2.0]]]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    net = dw.models.LeakyRNN(2, 6, dt=0.5, key=jax.random.key(0))
    readout = dw.models.Readout(6, 2, key=jax.random.key(1))
    dw.io.save(folder / "net.dynwarp", dw.training.Reconstruction(net, 2, readout=readout, key=jax.random.key(2)))
    (folder / "torus.toml").write_text(TORUS)
    return folder


@pytest.fixture(scope="module")
def report(folder):
    out = folder / "report"
    words = ["analyze", str(folder / "net.dynwarp"), "--inputs", str(folder / "torus.toml"), "--out", str(out)]
    assert main([*words, "--steps", "100"]) == 0
    return out


def test_the_numbers_are_those_of_the_library(report, folder):
    facts = json.loads((report / "analysis.json").read_text())["inputs"]
    model = dw.io.load(folder / "net.dynwarp")
    torus = dw.tasks.Torus(jnp.array([[1.0, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0]]))
    grid = torus.grid((5, 4))
    # As the command asks for them, so that no program is compiled twice.
    options = dict(state0=jnp.zeros(6), method="forward", batch_size=256, throw=False)
    found = dw.geometry.representation_metric(model.map, torus, grid, **options)
    assert (facts["points"], facts["steps"], facts["time"][1]) == ([5, 4], 6, 1.0)
    # Singular values, which need no squares.
    values = np.linalg.svd(np.asarray(found.tangents), compute_uv=False).reshape(20, 6, 2)
    stretches = np.array(facts["states"]["principal_stretches"]["median"])
    np.testing.assert_allclose(stretches[2:], np.median(values, axis=0)[2:], rtol=1e-9)
    # Both inputs are circles shown for two steps: their metric is 2 everywhere.
    circles = 2 * jnp.eye(2) * jnp.ones((5, 4, 1, 1))
    warping = dw.geometry.warping(found.G, input_metric=circles, relevant=(1,))
    np.testing.assert_allclose(facts["states"]["index"][2:], warping.index[2:], rtol=1e-9)
    np.testing.assert_allclose(facts["states"]["scale"][2:], warping.scale[2:], rtol=1e-9)
    lengths = np.square(np.asarray(found.tangents)).sum(-2).mean((0, 1))
    np.testing.assert_allclose(facts["states"]["relevance_ratio"], lengths[:, 1] / lengths[:, 0], rtol=1e-9)
    seen = np.asarray(model.readout.weight) @ np.asarray(found.tangents)
    outputs = np.median(np.linalg.svd(seen, compute_uv=False).reshape(20, 6, 2), axis=0)
    np.testing.assert_allclose(facts["outputs"]["principal_stretches"]["median"][-1], outputs[-1], rtol=1e-9)
    options.pop("method")
    curvature = dw.geometry.curvature_history(model.map, torus, grid, **options).gaussian_curvature()
    np.testing.assert_allclose(facts["curvature"]["median"][-1], np.median(curvature[..., -1]), rtol=1e-9)


def test_what_does_not_exist_is_null(report):
    facts = json.loads((report / "analysis.json").read_text())["inputs"]
    assert facts["rank"]["least"] == [1, 1, 2, 2, 2, 2]
    assert facts["rank"]["first_full_step"] == 3
    assert (facts["rank"]["with_time"], facts["rank"]["bound"]) == (3, 3)
    assert facts["states"]["index"][:2] == [None, None]
    assert facts["curvature"]["median"][:2] == [None, None]
    assert facts["curvature"]["defined"] == [0, 0, 1, 1, 1, 1]


def test_the_page_shows_it_and_loads_nothing(report):
    page = (report / "report.html").read_text()
    assert "Warping of the inputs" in page
    for word in ("http:", "https:", "<script", "@import", "url("):
        assert word not in page


def test_the_terminal(report):
    lines = dict(inputs_headline(json.loads((report / "analysis.json").read_text())["inputs"]))
    assert lines["inputs"] == "torus, 2 coordinates, 5 x 4 points, 6 steps"
    assert lines["dimension of the states"] == "2 from step 3 on; with time 3, of at most 3"
    assert "relevant over others" in lines["metric of outputs, last step"]
    assert "gaussian curvature, last step" in lines


def test_a_network_with_kinks_has_no_curvature():
    map = dw.models.ALRNN(3, 1, input_size=1, key=jax.random.key(3))
    plane = dw.tasks.Product([dw.tasks.Line(np.ones(2), np.ones(1))] * 2, combine="sum")
    assert "kink" in _curvature(map, plane, plane.grid(2), jnp.zeros(3), {})["refused"]


CIRCLE = """
points = 5
steps = 4
dt = 0.2

[manifold]
chart = "circle"
on = [[0, 0.4]]
"""


def _held(t):
    return jnp.where(t < 0.4, 1.0, 0.0)


FIELD = dw.models.CTRNN(2, 3, key=jax.random.key(4))
TIMES = dict(ts=0.2 * np.arange(5), dt=0.1, breakpoints=np.array([0.4]))


def test_rows_are_held_for_a_continuous_model(folder):
    rows = _read(folder, CIRCLE).manifold(jnp.array([0.7]))
    states = dw.simulate(FlowMap(FIELD, 0.2, 2), jnp.zeros(3), rows)
    want = dw.simulate(FIELD, jnp.zeros(3), lambda t: _held(t) * rows[0], **TIMES)
    np.testing.assert_allclose(states, want[1:], rtol=1e-12)


@pytest.mark.slow
def test_a_continuous_model_from_its_file(folder):
    dw.io.save(folder / "field.dynwarp", FIELD)
    (folder / "circle.toml").write_text(CIRCLE)
    words = ["analyze", str(folder / "field.dynwarp"), "--inputs", str(folder / "circle.toml"), "--steps", "100"]
    assert main([*words, "--out", str(folder / "field")]) == 0
    facts = json.loads((folder / "field" / "analysis.json").read_text())
    assert (facts["model"]["class"], facts["model"]["time_step"]) == ("CTRNN", 0.2)
    assert facts["lyapunov"]["largest_per_unit_of_time"] == 5 * facts["lyapunov"]["exponents"][0]
    circle = dw.tasks.Circle(_held)
    found = dw.geometry.representation_metric(FIELD, circle, circle.grid(5), state0=jnp.zeros(3), **TIMES)
    np.testing.assert_allclose(
        facts["inputs"]["states"]["principal_stretches"]["median"],
        np.median(found.stretches(), axis=0)[1:],
        rtol=1e-12,
    )


def test_a_step_belongs_to_a_continuous_model(folder, capsys):
    words = ["analyze", str(folder / "net.dynwarp"), "--dt"]
    assert main([*words, "0.1"]) == 2
    assert "continuous models" in capsys.readouterr().err
    assert main([*words, "nan"]) == 2
    assert "must be positive" in capsys.readouterr().err


def _read(folder, text):
    path = folder / "one.toml"
    path.write_text(text)
    return read_inputs(path)


def test_charts(folder):
    line = _read(
        folder,
        'steps = 3\n[manifold]\nchart = "line"\ndirection = [1, 2]\norigin = [1, 0]\nbounds = [0, 2]\non = [[0, 2]]',
    )
    assert line.points == (12,)
    assert line.manifold(jnp.array([2.0])).tolist() == [[3, 4], [3, 4], [0, 0]]
    circle = _read(folder, 'steps = 2\n[manifold]\nchart = "circle"\naxes = [[2, 0], [0, 1]]\ncentre = [1, 1]')
    assert circle.manifold(jnp.zeros(1)).tolist() == [[3, 1], [3, 1]]
    task = _read(
        folder,
        'points = 4\n[manifold]\nchart = "task"\nname = "WorkingMemory"\nvary = [1]\nbase = [0.5, 0]\n'
        "[manifold.parameters]\ndelays = [0.5]\ndt = 0.25",
    )
    whole = dw.tasks.WorkingMemory(delays=(0.5,), dt=0.25)
    assert (task.dt, task.points, task.manifold.dim) == (0.25, (4,), 1)
    assert task.manifold.manifold == whole
    assert task.manifold.base.tolist() == [0.5, 0]
    angles = np.arange(6.0)
    np.savez(folder / "recorded.npz", knots_0=angles, inputs=np.sin(angles)[:, None, None] * np.ones((1, 3, 2)))
    spline = _read(folder, f'[manifold]\nchart = "spline"\nfile = "recorded.npz"\nperiods = [{2 * np.pi}]')
    assert (spline.manifold.values.shape, spline.manifold.periods) == ((6, 3, 2), (2 * np.pi,))
    product = _read(
        folder,
        'points = 3\nsteps = 4\n[manifold]\nchart = "product"\ncombine = "sum"\n'
        '[[manifold.factors]]\nchart = "line"\ndirection = [1.0]\n'
        '[[manifold.factors]]\nchart = "line"\ndirection = [0.5]\non = [[1, 3]]\n',
    )
    assert product.manifold(jnp.array([1.0, 2.0])).ravel().tolist() == [1, 2, 2, 1]


START = "steps = 4\n[manifold]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = ", "no TOML"),
        ("steps = 4", "`manifold` is missing"),
        (START + 'chart = "sphere"', "one of 'line'"),
        (START + 'chart = "circle"\nradius = 2', "`manifold.radius` is not known here"),
        ("colour = 1\n" + START + 'chart = "circle"', "`colour` is not known here"),
        ('[manifold]\nchart = "circle"', "`steps` is missing"),
        ('steps = 2.5\n[manifold]\nchart = "circle"', "`steps` must be a whole number"),
        ("dt = -1\n" + START + 'chart = "circle"', "`dt` must be a positive number"),
        ("points = 1\n" + START + 'chart = "circle"', "`points` must be a whole number of at least 2"),
        ("points = [3, 3]\n" + START + 'chart = "circle"', "`points` must be"),
        ("points = 30000\n" + START + 'chart = "circle"', "at most 20000"),
        ("relevant = [0]\n" + START + 'chart = "circle"', "`relevant` must be"),
        (START + 'chart = "circle"\non = [1, 2]', "`manifold.on` must be a list of windows"),
        (START + 'chart = "circle"\non = [[9, 12]]', "windows within the 4 steps"),
        (START + 'chart = "line"\ndirection = "up"', "`manifold.direction` must be numbers"),
        (START + 'chart = "line"\ndirection = [1]\nbounds = [1, 0]', "two numbers that increase"),
        (START + 'chart = "circle"\naxes = [[1, 0], [1]]', "lists of equal length"),
        (START + 'chart = "circle"\naxes = [[1, 0]]', "`axes`"),
        (START + 'chart = "torus"\non = [[[0, 1]], [[1, 2]]]\nshared = 1', "true or false"),
        (START + 'chart = "product"\nfactors = [{chart = "task"}]', "`manifold.factors[0].chart` must be"),
        (START + 'chart = "task"\nname = "Chess"', "`manifold.name` must be one of"),
        ('steps = 4\n[manifold]\nchart = "task"\nname = "WorkingMemory"', "`steps` is not known here"),
        ('[manifold]\nchart = "task"\nname = "WorkingMemory"\nparameters = {pulse = "long"}', "parameters.pulse"),
        ('[manifold]\nchart = "task"\nname = "WorkingMemory"\nparameters = {pause = 1}', "`manifold.parameters.pause`"),
        ('[manifold]\nchart = "task"\nname = "WorkingMemory"\nparameters = {dt = -1.0}', "`dt`"),
        ('[manifold]\nchart = "task"\nname = "WorkingMemory"\nvary = [7]', "indices below 2"),
        ('[manifold]\nchart = "spline"\nfile = "nowhere.npz"', "cannot be read as npz"),
        ('[manifold]\nchart = "spline"\nfile = "bad.toml"', "cannot be read as npz"),
        ('[manifold]\nchart = "spline"\nfile = "cut.npz"', "cannot be read as npz"),
        ('[manifold]\nchart = "spline"\nfile = "words.npz"', "`knots_0`"),
        ('[manifold]\nchart = "task"\nname = "RecordedTrials"', "`manifold.name` must be one of"),
        (START + 'chart = "line"\ndirection = [1, 2, 3]', "3 channels; the LeakyRNN takes 2"),
    ],
)
def test_a_mistake_is_one_line_and_no_file(text, message, folder, capsys):
    path = folder / "bad.toml"
    path.write_text(text)
    np.savez(folder / "words.npz", knots_0=["a", "b", "c"], inputs=np.ones((3, 2, 2)))
    (folder / "cut.npz").write_bytes((folder / "words.npz").read_bytes()[:100])
    words = ["analyze", str(folder / "net.dynwarp"), "--inputs", str(path), "--out", str(folder / "bad")]
    assert main([*words, "--json"]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert message in complaint
    assert not (folder / "bad").exists()


def test_a_missing_file_is_one_line(folder, capsys):
    words = ["analyze", str(folder / "net.dynwarp"), "--inputs", str(folder / "none.toml")]
    assert main(words) == 2
    assert "cannot be read" in capsys.readouterr().err
