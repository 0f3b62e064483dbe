"""The command line in one process: fit, analyze, reproduce, info, and one line for every error."""

import json
import subprocess
import sys

import numpy as np
import pytest

import dynwarp as dw
from dynwarp.cli import main

TINY = [
    "--steps",
    "6",
    "--state-size",
    "6",
    "--relu-size",
    "2",
    "--sequence-length",
    "8",
    "--batch-size",
    "2",
    "--quiet",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def recording(folder):
    t = np.arange(160.0)
    path = folder / "wave.csv"
    rows = "\n".join(f"{a},{b}" for a, b in zip(np.sin(t / 4), np.cos(t / 4)))
    path.write_text("sine,cosine\n" + rows + "\n")
    return path


@pytest.fixture(scope="module")
def model_file(folder, recording):
    path = folder / "wave.dynwarp"
    assert main(["fit", str(recording), "--out", str(path), *TINY]) == 0
    return path


def test_fit_writes_a_model_that_remembers_its_recording(model_file, recording):
    model, metadata = dw.io.load(model_file), dw.io.load_metadata(model_file)["dynwarp fit"]
    assert isinstance(model, dw.training.Reconstruction)
    assert model.map.W.dtype == np.float32
    assert metadata["reading"]["path"] == str(recording)
    assert metadata["series"]["columns"] == ["sine", "cosine"]
    assert metadata["stats"]["steps"] == 6
    assert not model_file.with_name(model_file.name + ".training").exists()


def test_analyze_writes_json_and_a_page_that_loads_nothing(model_file, folder, capsys):
    out = folder / "report"
    assert main(["analyze", str(model_file), "--out", str(out), "--steps", "400"]) == 0
    printed = capsys.readouterr().out
    assert "PE(20)" in printed
    facts = json.loads((out / "analysis.json").read_text())
    assert facts["prediction"]["training"]["rows"] == 112
    assert facts["prediction"]["held_out"]["rows"] == 48
    assert facts["generation"]["steps"] == 400
    assert facts["fixed_points"]["complete"] is True
    assert len(facts["lyapunov"]["exponents"]) == 6
    page = (out / "report.html").read_text()
    for word in ("http:", "https:", "<script", "@import", "url("):
        assert word not in page
    # One of them shows manifolds, where the network has a saddle.
    assert page.count("data:image/svg+xml;base64,") == 6 + bool(facts["piecewise"]["manifolds"])
    assert facts["piecewise"]["regions"]["complete"] is True


def test_the_numbers_are_those_of_a_plain_loop(model_file, folder, recording):
    out = folder / "again"
    assert main(["analyze", str(model_file), "--out", str(out), "--steps", "400", "--json"]) == 0
    assert [p.name for p in out.iterdir()] == ["analysis.json"]
    facts = json.loads((out / "analysis.json").read_text())
    model = dw.io.load(model_file)
    x = np.loadtxt(recording, delimiter=",", skiprows=1)
    z = ((x - x.mean(0)) / x.std(0))[:112]
    states = np.concatenate([z, z @ np.asarray(model.initial_weight, float).T], axis=1)
    A, W, h = (np.asarray(p, float) for p in (model.map.A, model.map.W, model.map.h))
    for _ in range(20):
        states = states * A + np.concatenate([states[:, :4], np.maximum(states[:, 4:], 0)], axis=1) @ W.T + h
    p = facts["prediction"]["training"]
    np.testing.assert_allclose(p["prediction_error"], np.mean((states[:-20, :2] - z[20:]) ** 2), rtol=1e-9)
    np.testing.assert_allclose(p["persistence_error"], np.mean((z[:-20] - z[20:]) ** 2), rtol=1e-9)
    for point in facts["fixed_points"]["points"]:
        state = np.array(point["point"])
        image = A * state + W @ np.concatenate([state[:4], np.maximum(state[4:], 0)]) + h
        np.testing.assert_allclose(image, state, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("alrnn", "ALRNN"),
        ("plrnn", "PLRNN"),
        ("mean-centred-plrnn", "MeanCentredPLRNN"),
        ("shallow-plrnn", "ShallowPLRNN"),
        ("clipped-shallow-plrnn", "ShallowPLRNN"),
        ("dendritic-plrnn", "DendriticPLRNN"),
    ],
)
def test_every_model_is_made(name, cls):
    import jax
    import jax.numpy as jnp

    from dynwarp.cli._fit import _make_model
    from dynwarp.cli._main import make_parser

    words = ["fit", "--model", name, "--state-size", "7", "--hidden-size", "4", "--bases", "2", "--relu-size", "3"]
    model = _make_model(make_parser().parse_args(words), jnp.float32, jax.random.key(0))
    assert type(model).__name__ == cls
    assert model.state_size == 7
    assert getattr(model, "clipped", False) == name.startswith("clipped")
    assert {x.dtype for x in jax.tree.leaves(model)} == {np.dtype("float32")}


def test_double_precision_and_another_model(recording, folder):
    path = folder / "plrnn.dynwarp"
    assert main(["fit", str(recording), "--model", "plrnn", "--out", str(path), *TINY, "--float64"]) == 0
    assert type(dw.io.load(path).map).__name__ == "PLRNN"
    assert dw.io.load(path).map.W.dtype == np.float64


def test_the_default_recording_is_the_electrocardiogram(folder):
    path = folder / "ecg.dynwarp"
    assert main(["fit", "--out", str(path), *TINY]) == 0
    series = dw.io.load_metadata(path)["dynwarp fit"]["series"]
    assert (series["source"], series["dimension"], series["lag"]) == ("pywt.data.ecg", 6, 14)


def test_a_map_alone_is_analyzed_too(folder):
    import jax.numpy as jnp

    path = folder / "map.dynwarp"
    dw.io.save(path, dw.models.ALRNN.from_parameters(jnp.full(3, 0.5), jnp.zeros((3, 3)), jnp.ones(3), 2))
    assert main(["analyze", str(path), "--out", str(folder / "map"), "--steps", "200"]) == 0
    facts = json.loads((folder / "map" / "analysis.json").read_text())
    np.testing.assert_allclose([p["point"] for p in facts["fixed_points"]["points"]], [[2.0, 2.0, 2.0]])
    np.testing.assert_allclose(facts["lyapunov"]["exponents"], np.log(0.5), rtol=1e-10)


def test_cycles_manifolds_chaos_and_basins_of_a_known_map(folder, capsys):
    """The chaotic map of the plane, and one with a saddle 3-cycle around a stable point: all of it is known."""
    maps = {name: dw.systems.BorderCollisionMap.preset(name).canonical() for name in ("fig5", "fig3b_left")}
    facts = {}
    for name, model in maps.items():
        path, out = folder / f"{name}.dynwarp", folder / name
        dw.io.save(path, model)
        words = ["--steps", "200", "--max-period", "3", "--iterations", "4", "--saddles", "1"]
        assert main(["analyze", str(path), "--out", str(out), *words]) == 0
        facts[name] = json.loads((out / "analysis.json").read_text())["piecewise"]
        assert "Manifolds and homoclinic points" in (out / "report.html").read_text()
        # The plane needs no page that can be turned.
        assert sorted(p.name for p in out.iterdir()) == ["analysis.json", "report.html"]
    assert [c["period"] for c in facts["fig5"]["cycles"]] == [1, 2, 3, 3]
    assert {c["kind"] for c in facts["fig5"]["cycles"]} == {"saddle"}
    assert facts["fig5"]["homoclinic"][0]["chaos"] is True
    assert facts["fig5"]["homeomorphism"]["value"] is True
    assert "chaos is proved" in capsys.readouterr().out
    other = facts["fig3b_left"]
    assert other["complete"] == {"1": True, "2": True, "3": True}
    assert [(m["kind"], m["dimension"], m["period"]) for m in other["manifolds"]] == [
        ("stable", 1, 3), ("unstable", 1, 3),
    ]  # fmt: skip
    basins = other["basins"]
    np.testing.assert_allclose(basins["shares"][0]["share"] + basins["diverge"] + basins["undecided"], 1.0)
    assert basins["undecided"] == 0.0
    assert 0.05 < basins["diverge"] < 0.95


def test_three_states_can_be_turned_and_the_analysis_left_out(folder):
    import jax.numpy as jnp

    path, out = folder / "space.dynwarp", folder / "space"
    model = dw.models.PiecewiseLinearMap(
        jnp.diag(jnp.array([1.5, 0.5, 0.25])), jnp.array([[-1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]),
        jnp.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]), jnp.zeros(3), -jnp.ones(2),
    )  # fmt: skip
    dw.io.save(path, model)
    words = ["--steps", "200", "--max-period", "1", "--iterations", "2"]
    assert main(["analyze", str(path), "--out", str(out), *words]) == 0
    assert "state_space.html" in (out / "report.html").read_text()
    page = (out / "state_space.html").read_text()
    assert "mesh3d" in page
    assert '<script src="http' not in page
    assert main(["analyze", str(path), "--out", str(folder / "without"), *words, "--saddles", "0", "--json"]) == 0
    assert "piecewise" not in json.loads((folder / "without" / "analysis.json").read_text())


def test_reproduce_hands_recordings_to_the_study_that_takes_them(folder, recording, monkeypatch):
    seen = {}
    studies = {"learning": lambda preset, out: seen.update(learning=preset)}
    studies["manifolds"] = lambda preset, out, data=None: seen.update(manifolds=data)
    monkeypatch.setattr("dynwarp.studies.STUDIES", studies)
    given = ["--data", str(recording), "--data", f"electrocardiogram={recording}"]
    assert main(["reproduce", "--out", str(folder / "studies"), *given]) == 0
    assert seen == {"learning": "quick", "manifolds": {"neuron": str(recording), "electrocardiogram": str(recording)}}


def test_interrupt_keeps_the_model_and_resume_completes_it(folder, recording, monkeypatch, capsys):
    from dynwarp.training import _progress

    whole, path = folder / "whole.dynwarp", folder / "broken.dynwarp"
    options = [*TINY[:-1], "--steps", "40"]
    assert main(["fit", str(recording), "--out", str(whole), *options]) == 0

    def report(step, steps, figures):
        if step > 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_progress, "_bar", lambda: __import__("contextlib").nullcontext(report))
        assert main(["fit", str(recording), "--out", str(path), *options]) == 130
    assert dw.io.load_metadata(path)["dynwarp fit"]["stats"]["interrupted"] is True
    assert "--resume" in capsys.readouterr().out
    for other, name in ((["--noise", "0.3"], "noise"), (["--relu-size", "3"], "model")):
        assert main(["fit", str(recording), "--out", str(path), "--resume", *options, *other]) == 2
        complaint = capsys.readouterr().err
        assert f"another `{name}`" in complaint
        assert complaint.count("\n") == 1
    assert main(["fit", str(recording), "--out", str(path), "--resume", *options]) == 0
    np.testing.assert_array_equal(dw.io.load(path).map.W, dw.io.load(whole).map.W)


def bad_files(folder):
    nan = folder / "nan.csv"
    nan.write_text("a,b\n" + "1,2\n3,\n5,6\n" * 5)
    constant = folder / "constant.csv"
    constant.write_text("a,b\n" + "1,2\n1,3\n" * 20)
    empty = folder / "empty.csv"
    empty.write_text("")
    short = folder / "short.csv"
    short.write_text("a,b\n1,2\n")
    kind = folder / "picture.png"
    kind.write_bytes(b"\x89PNG")
    cut = folder / "cut.npy"
    np.save(cut, np.random.default_rng(0).normal(size=(50, 2)))
    cut.write_bytes(cut.read_bytes()[:200])
    return {"nan": nan, "constant": constant, "empty": empty, "short": short, "kind": kind, "cut": cut}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nan", "missing"),
        ("constant", "constant"),
        ("empty", "empty"),
        ("short", "one time step"),
        ("kind", "unknown extension"),
        ("cut", "truncated"),
        ("absent", "no file"),
    ],
)
def test_a_bad_recording_is_one_line_and_no_file(name, message, folder, capsys):
    path = bad_files(folder).get(name, folder / "absent.csv")
    out = folder / f"bad-{name}.dynwarp"
    assert main(["fit", str(path), "--out", str(out), *TINY]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("dynwarp: ")
    assert complaint.count("\n") == 1
    assert message in complaint
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "--out", "/no/such/folder/m.dynwarp"], "--out"),
        (["fit", "--steps", "0"], "--steps"),
        (["fit", "--lr", "-1"], "--lr"),
        (["fit", "--lr", "inf"], "--lr"),
        (["fit", "--seed", str(10**20)], "--seed"),
        (["fit", "--out", "/dev/null"], "--out"),
        (["fit", "--quiet", "--steps", "1", "--batch-size", str(10**11)], "Out of memory"),
        (["fit", "--validation-fraction", "2"], "--validation-fraction"),
        (["fit", "--state-size", "3", "--relu-size", "2"], "6 observed channels"),
        (["fit", "--noise", "-1"], "noise"),
        (["fit", "--columns", "a"], "--columns"),
        (["fit", "--device", "gpu"], "gpu"),
        (["analyze", "absent.dynwarp"], "does not exist"),
        (["analyze", "."], "folder"),
        (["analyze", "absent.dynwarp", "--steps", "1"], "--steps"),
        (["analyze", "absent.dynwarp", "--max-period", "0"], "--max-period"),
        (["reproduce", "no-such-study"], "no-such-study"),
        (["reproduce", "learning", "--data", "x.csv"], "--data"),
        (["reproduce", "manifolds", "--data", "fish=x.csv"], "fish"),
        (["reproduce", "manifolds", "--data", "absent.csv"], "does not exist"),
    ],
)
def test_a_bad_option_is_one_line(words, message, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(words) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert message in complaint
    assert not (folder / "model.dynwarp").exists()


def test_an_error_that_nobody_foresaw_is_one_line_too(monkeypatch, capsys):
    def fail(device):
        raise RuntimeError("no such luck")

    monkeypatch.setattr("dynwarp.cli._info.computing", fail)
    assert main(["info"]) == 1
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert "no such luck" in complaint
    with pytest.raises(RuntimeError, match="no such luck"):
        main(["info", "--debug"])


def test_a_recording_that_stands_still_in_one_part(folder, capsys):
    t = np.arange(160.0)
    moving, out = np.stack([np.sin(t / 4), np.cos(t / 4)], axis=1), folder / "still"
    np.save(folder / "late.npy", np.where(t[:, None] < 120, 0.5, moving))
    assert main(["fit", str(folder / "late.npy"), "--out", str(folder / "late.dynwarp"), *TINY]) == 2
    assert "to train on" in capsys.readouterr().err
    np.save(folder / "early.npy", np.where(t[:, None] < 100, moving, 0.5))
    path = folder / "early.dynwarp"
    assert main(["fit", str(folder / "early.npy"), "--out", str(path), *TINY]) == 0
    assert main(["analyze", str(path), "--out", str(out), "--steps", "100"]) == 0
    held_out = json.loads((out / "analysis.json").read_text())["prediction"]["held_out"]
    assert held_out["persistence_error"] == 0
    assert held_out["times_better"] is None


@pytest.mark.parametrize("value", [1e30, np.nan])
def test_a_model_that_runs_away_is_analyzed(value, model_file, folder):
    import equinox as eqx

    path, out = folder / f"{value}.dynwarp", folder / f"{value}"
    model = eqx.tree_at(lambda m: m.map.W, dw.io.load(model_file), replace_fn=lambda W: W * value)
    dw.io.save(path, model, metadata=dw.io.load_metadata(model_file))
    assert main(["analyze", str(path), "--out", str(out), "--steps", "100"]) == 0
    facts = json.loads((out / "analysis.json").read_text())
    assert facts["generation"]["bounded"] is False
    assert "lyapunov" not in facts


def test_metadata_of_the_users_own(folder):
    import jax

    path = folder / "own.dynwarp"
    model = dw.training.Reconstruction(dw.models.ALRNN(3, 1, key=jax.random.key(0)), 2, key=jax.random.key(1))
    dw.io.save(path, model, metadata={"history": [1, 2], "reading": {}, "loss": float("nan")})
    assert main(["analyze", str(path), "--out", str(folder / "own"), "--steps", "100"]) == 0


def test_a_damaged_model_and_a_lost_recording(model_file, recording, folder, capsys):
    broken = folder / "damaged.dynwarp"
    broken.write_bytes(model_file.read_bytes()[:-30])
    assert main(["analyze", str(broken), "--out", str(folder / "none")]) == 2
    moved = recording.with_name("moved.csv")
    recording.rename(moved)
    try:
        assert main(["analyze", str(model_file), "--out", str(folder / "none")]) == 2
        assert "--series" in capsys.readouterr().err
        assert main(["analyze", str(model_file), "--series", str(moved), "--out", str(folder / "found"), "--json"]) == 0
    finally:
        moved.rename(recording)
    assert not (folder / "none").exists()


def test_info_and_reproduce(capsys, monkeypatch):
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    for word in ("dynwarp", "jaxlib", "backend", "compile cache", "float64"):
        assert word in printed
    monkeypatch.setattr("dynwarp.studies.STUDIES", {})
    assert main(["reproduce"]) == 0


def test_help_imports_no_jax():
    code = """
import sys
from dynwarp.cli import main
try:
    main(["fit", "--help"])
except SystemExit as end:
    assert end.code == 0
heavy = {"jax", "numpy", "matplotlib", "rich", "equinox"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "SERIES" in done.stdout


def test_the_process_ends_without_a_traceback(folder):
    done = subprocess.run(
        [sys.executable, "-m", "dynwarp", "analyze", str(folder / "absent.dynwarp")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    wrong = subprocess.run(
        [sys.executable, "-m", "dynwarp", "fit", "--model", "lstm"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "alrnn" in wrong.stderr
