"""dynwarp fit: seeds, forcings, several files, presets, the report."""

import numpy as np
import pytest

import dynwarp as dw
from dynwarp.cli import _recording, main

SIZES = {"--steps": 6, "--state-size": 6, "--relu-size": 2, "--sequence-length": 8, "--batch-size": 2}
TINY = ["--quiet", *(str(word) for pair in SIZES.items() for word in pair)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    t = np.arange(160.0)
    for name, shift, scale in (("one", 0.0, 1.0), ("two", 1.0, 3.0)):
        np.save(folder / f"{name}.npy", shift + scale * np.stack([np.sin(t / 4), np.cos(t / 4)], axis=1))
    np.save(folder / "wide.npy", np.random.default_rng(0).normal(size=(60, 3)))
    return folder


@pytest.fixture(scope="module")
def several(folder):
    path = folder / "seeds.dynwarp"
    words = ["fit", str(folder / "one.npy"), str(folder / "two.npy"), "--out", str(path), "--seeds", "3"]
    assert main([*words, "--forcing", "adaptive", *TINY]) == 0
    return path


def test_several_seeds_on_several_files(several, folder, capsys):
    model, facts = dw.io.load(several), dw.io.load_metadata(several)["dynwarp fit"]
    both = np.concatenate([np.load(folder / f"{name}.npy") for name in ("one", "two")])
    np.testing.assert_allclose(model.mean, both.mean(0), rtol=1e-6)
    np.testing.assert_allclose(model.scale, both.std(0), rtol=1e-6)
    assert model.map.W.shape == (6, 6)
    metrics = facts["metrics"]
    assert len(metrics["prediction_error"]["values"]) == 3
    assert 0 <= metrics["best_seed"] < 3
    assert metrics["power_spectrum_distance"]["chance"] > metrics["power_spectrum_distance"]["best_possible"]
    # The number that is kept is that of the model that is kept, on the tail of the first file.
    x = (np.load(folder / "one.npy") - both.mean(0)) / both.std(0)
    tail = x[112:]
    z = np.concatenate([tail, tail @ np.asarray(model.initial_weight, float).T], axis=1)
    A, W, h = (np.asarray(p, float) for p in (model.map.A, model.map.W, model.map.h))
    for _ in range(20):
        z = z * A + np.concatenate([z[:, :4], np.maximum(z[:, 4:], 0)], axis=1) @ W.T + h
    error = metrics["prediction_error"]["values"][metrics["best_seed"]]
    np.testing.assert_allclose(error, np.mean((z[:-20, :2] - tail[20:]) ** 2), rtol=1e-6)
    np.testing.assert_allclose(metrics["prediction_error"]["chance"], np.mean((tail[20:] - tail[:-20]) ** 2), rtol=1e-9)
    # And analyze finds the same numbers in the same units.
    assert main(["analyze", str(several), "--out", str(folder / "seeds"), "--steps", "100", "--json"]) == 0
    assert f"{error:.4g}" in capsys.readouterr().out


def test_the_report_shows_what_was_asked_for_and_loads_nothing(several):
    page = several.with_name("seeds-fit.html").read_text()
    for title in ("Metrics", "Generated and true trajectories", "Power spectra", "State space", "Losses of the seeds"):
        assert title in page
    for word in ("http:", "https:", "<script", "@import", "url("):
        assert word not in page
    assert page.count("data:image/svg+xml;base64,") == 5


def test_no_report_other_forcings_and_presets(folder):
    path = folder / "plain.dynwarp"
    words = ["fit", str(folder / "one.npy"), "--out", str(path), "--no-report", "--preset", "paper"]
    assert main([*words, "--forcing", "generalized", "--alpha", "0.3", *TINY]) == 0
    assert not path.with_name("plain-fit.html").exists()
    options = dw.io.load_metadata(path)["dynwarp fit"]["options"]
    assert (options["noise"], options["lr"], options["steps"], options["alpha"]) == (0.05, 1e-3, 6, 0.3)
    assert options["interval"] == 8


def test_a_recording_with_gaps_goes_through_by_masks(folder, capsys):
    x = np.load(folder / "one.npy")
    x[30:33], x[50, 0], x[140, 1] = np.nan, np.nan, np.inf
    np.save(folder / "gaps.npy", x)
    path, words = folder / "gaps.dynwarp", ["fit", str(folder / "gaps.npy"), *TINY]
    assert main([*words, "--out", str(path)]) == 2
    assert "8 values are missing" in capsys.readouterr().err
    assert not path.exists()
    assert main([*words, "--out", str(path), "--missing", "keep"]) == 0
    assert "missing: 8 of 320 values, left out of the training" in capsys.readouterr().out
    facts = dw.io.load_metadata(path)["dynwarp fit"]
    assert (facts["series"]["missing"], facts["stats"]["skipped"]) == (8, 0)
    assert "8 values of the recording are missing" in path.with_name("gaps-fit.html").read_text()
    model = dw.io.load(path)
    np.testing.assert_allclose(model.mean, np.nanmean(np.where(np.isfinite(x), x, np.nan), 0), rtol=1e-6)
    # What analyze reads has lines over the gaps.
    seen = _recording.recorded(facts, None)
    np.testing.assert_allclose(seen.to_original(seen.values), dw.io.fill_gaps(x), rtol=1e-9, atol=1e-9)
    x[:, 1] = np.nan
    np.save(folder / "gaps.npy", x)
    assert main([*words, "--out", str(folder / "none.dynwarp"), "--missing", "keep"]) == 2
    assert "every value is missing in column 'column 1'" in capsys.readouterr().err


def test_delays_that_are_not_even_and_patience(folder):
    wave = np.sin(0.156 * np.arange(600))
    np.save(folder / "wave.npy", wave)
    path = folder / "wave.dynwarp"
    words = ["--embed", "continuity", "--patience", "1", "--no-report"]
    assert main(["fit", str(folder / "wave.npy"), "--out", str(path), *TINY, *words]) == 0
    series = dw.io.load_metadata(path)["dynwarp fit"]["series"]
    assert (series["dimension"], series["lag"]) == (2, list(dw.io.choose_delays(wave)))
    assert dw.io.load(path).observation_size == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["one.npy", "wide.npy"], "3 columns"),
        (["one.npy", "--sequence-length", "500"], "--sequence-length"),
        (["one.npy", "--interval", "9", "--sequence-length", "8"], "longer than the sequences"),
        (["one.npy", "--seeds", "0"], "--seeds"),
        (["one.npy", "--forcing", "generalized", "--alpha", "2"], "alpha"),
        (["one.npy", "--detrend", "-1"], "detrend"),
        (["one.npy", "--lr", "1e300", "--steps", "3", "--seeds", "2"], "2 of 2 lanes failed"),
    ],
)
def test_a_bad_option_is_one_line_and_no_file(words, message, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    # Of an option that is given twice the last counts.
    assert main(["fit", *TINY, "--out", "bad.dynwarp", *words]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert message in complaint
    assert not (folder / "bad.dynwarp").exists()
    assert not (folder / "bad-fit.html").exists()
