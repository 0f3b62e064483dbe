"""The manifolds study: parts in a tiny size, what is told of a failure, and, apart, the whole quick preset."""

import importlib
import json

import jax
import numpy as np
import pytest

from dynwarp import piecewise
from dynwarp.errors import ArgumentError, PrecisionError
from dynwarp.models import PiecewiseLinearMap
from dynwarp.studies import RECORDINGS, STUDIES, StudyResult
from dynwarp.studies import _manifolds_lorenz as on_lorenz
from dynwarp.studies import _manifolds_maps as on_maps
from dynwarp.studies import _manifolds_networks as networks
from dynwarp.studies import _manifolds_trained as on_trained
from dynwarp.systems import BorderCollisionMap

study = importlib.import_module("dynwarp.studies._manifolds")
TINY = study.ManifoldsConfig(
    samples=50,
    pairs=60,
    grid=8,
    toy_period=3,
    chaos_period=3,
    lyapunov_steps=2_000,
    bifurcation_points=5,
    bifurcation_steps=200,
    tries=1,
    duffing_steps=2,
)


@pytest.fixture(scope="module")
def result():
    parts = (on_maps.chaos(TINY), on_trained.duffing(TINY))
    return StudyResult("manifolds", study.TITLE, study.SOURCE, {}, parts)


def test_what_is_known_does_not_depend_on_size(result):
    values = result.parts[0].values
    assert values["cycles"] == [1, 1, 2]
    assert values["complete"]
    assert values["homoclinic_counts"] == [0, 1, 2, 4]
    assert values["homoclinic_error"] < 1e-14
    assert values["vertices"] == 15_708
    assert abs(values["length"] - 17_209.217) < 1e-3
    assert abs(values["growth"] - 0.508) < 0.01


def test_a_network_that_failed_is_told(result):
    (claim,) = result.parts[1].claims
    assert claim.verdict == "not reached"
    assert "no network of 1 has" in claim.ours
    assert "1 not reached" in result.to_html()


def test_writes_report_numbers_and_figures(result, tmp_path):
    result.write(tmp_path)
    read = json.loads((tmp_path / "results.json").read_text())
    assert [claim["verdict"] for claim in read["claims"]][-1] == "not reached"
    assert (tmp_path / "figures" / "chaos.svg").exists()


def test_visited_regions_by_hand():
    """An orbit of the chaotic map is in both regions after a few steps; a fixed point in one for ever."""
    f = BorderCollisionMap.preset("fig5")
    assert on_lorenz.visited_regions(f, np.array([-0.3, 0.1]), 200)[-1] == (200, 2)
    still = PiecewiseLinearMap(np.zeros((1, 1)), np.zeros((1, 2)), np.ones((2, 1)), np.ones(1), np.zeros(2))
    assert [n for _, n in on_lorenz.visited_regions(still, np.array([1.0]), 200)] == [1, 1, 1]


def test_thresholds_are_saddles_with_one_way_out():
    f = BorderCollisionMap.preset("fig3a_right")
    cycles = piecewise.find_cycles(f, 1, key=jax.random.key(0))
    recording = networks.standardised([np.array([[-1.0, -1.0], [1.0, 1.0]])], 1.0)
    (saddle,) = networks.thresholds(cycles, recording)
    assert networks.unstable_directions(saddle) == 1
    assert networks.bistable(cycles, recording) is None
    far = networks.standardised([np.array([[-1e-3, -1.0], [1e-3, 1.0]])], 1.0)
    assert networks.within(saddle, far, room=0.0)


def test_registered_and_checked():
    assert "manifolds" in STUDIES
    assert RECORDINGS["manifolds"] == ("neuron", "electrocardiogram")
    assert set(study.PRESETS) == {"quick", "paper"}
    with pytest.raises(ArgumentError, match="data"):
        study.reproduce("quick", None, data={"fish": "x.csv"})
    with jax.enable_x64(False), pytest.raises(PrecisionError, match="double precision"):
        study.run(TINY)


@pytest.mark.slow
def test_quick_preset(tmp_path):
    result = study.reproduce("quick", tmp_path)
    values = {part.title: part.values for part in result.parts}
    assert {claim.verdict for claim in result.claims} <= {"holds", "holds in part", "new", "fails", "not reached"}
    for found in values["Toy maps: basins and their boundaries"].values():
        assert found["delta"] >= 0.9999
        assert found["residual"] <= 1e-10
        assert found.get("parity", 1.0) == 1.0
    assert values["Duffing oscillator"]["delta"] >= 0.9999
    for title in ("Two-choice decision", "Lorenz-63", "Spiking neuron"):
        assert values[title]["delta"] >= 0.99
        assert values[title]["residual"] <= 1e-10
