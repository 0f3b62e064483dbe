"""The warping study: its own computations on cases that are known, one experiment in a tiny size, and, apart, all."""

import dataclasses
import importlib
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from dynwarp import models, tasks
from dynwarp.errors import ArgumentError, PrecisionError
from dynwarp.studies import STUDIES
from dynwarp.studies import _warping_causal as causal
from dynwarp.studies import _warping_evidence as on_evidence
from dynwarp.studies import _warping_memory as on_memory
from dynwarp.studies import _warping_networks as networks
from dynwarp.studies._study import Part, StudyResult

study = importlib.import_module("dynwarp.studies._warping")
TINY = study.WarpingConfig(
    units=8,
    evidence_dt=1.0,
    evidence_steps=4,
    memory_dt=0.5,
    decoding_steps=2,
    delays=(0.5,),
    causal_evidence=("task", "whole"),
    causal_memory=(),
    causal_decoding=("whole",),
    causal_noisy=(),
    penalty_points=6,
    penalty_times=2,
    check_points=9,
)


@pytest.fixture(scope="module")
def network():
    field = models.CTRNN(4, 8, recurrent_init=models.GaussianInit(1.2), key=jax.random.key(0))
    return networks.RateNetwork(field, 0.2)


def test_step_is_that_of_heun(network):
    x, u = np.linspace(-1, 1, 8), np.array([0.3, -0.2, 1.0, 0.0])
    W, B = np.asarray(network.field.recurrent_weight), np.asarray(network.field.input_weight)

    def velocity(x):
        return -x + W @ np.tanh(x) + B @ u

    first = velocity(x)
    want = x + 0.1 * (first + velocity(x + 0.2 * first))
    np.testing.assert_allclose(network(jnp.asarray(x), jnp.asarray(u)), want, rtol=1e-14)


def test_both_contexts_share_one_chart():
    task = tasks.ContextualIntegration(dt=1.0)
    chart = networks.BothContexts(task)
    grid = chart.grid(5, 3)
    assert grid.shape == (2, 5, 3, 2)
    first, second = chart(jnp.array([0.1, -0.2])), chart(jnp.array([0.1, 0.8]))
    np.testing.assert_allclose(first, task.inputs(jnp.array([0.1, -0.2]), 0), atol=1e-15)
    np.testing.assert_allclose(second, task.inputs(jnp.array([-0.2, 0.1]), 1), atol=1e-15)
    slope = jax.jacfwd(chart)(jnp.array([0.1, 0.8]))[0]
    np.testing.assert_array_equal(slope, [[0, 1], [1, 0], [0, 0], [0, 0]])


@pytest.mark.parametrize("name", [networks.EVIDENCE, networks.MEMORY, networks.SEQUENCE, networks.DECODING])
def test_points_that_are_held_leave_no_gaps(name):
    here = networks.problem(TINY, name)
    points = np.asarray(networks.held_points(here, 64))
    if name == networks.EVIDENCE:
        assert np.sum(points[:, 1] > 0.5) == 32
        points = (np.where([False, True] & (points > 0.5), points - 1, points) + 0.2) / 0.4
    elif name == networks.DECODING:
        points = (points - [0, 0.5]) / [2 * math.pi, 1.5]
    else:
        points = points / (2 * math.pi)
    assert points.min() >= 0
    assert points.max() < 1
    gaps = np.diff(np.sort(points, axis=0), axis=0)
    assert gaps.max() < 5 / 64
    assert gaps.min() > 0


def test_times_of_the_tasks():
    here = networks.problem(TINY, networks.MEMORY)
    # Items at 0 to 0.5 and 1 to 1.5, the cue at 2.5, answers at 3.5 to 4 and 4.5 to 5.
    assert here.times[here.first] == 1.5
    assert [here.times[step] for step, _ in here.probes] == [4.0, 5.0]
    assert here.times[list(here.answers)].tolist() == [4.0, 5.0]
    assert here.held(3) == (here.first, 6, here.probes[-1][0])
    # Of reaches the delay ends at 0.45 s, the speed is largest at 0.95 s, the movement ends a second after the delay.
    here = networks.problem(TINY, networks.DECODING)
    found = here.times[[here.first, here.probes[0][0], here.last]]
    np.testing.assert_allclose(found, [0.45, 0.95, 1.45], atol=1e-9)
    for name in (networks.EVIDENCE, networks.SUBTRACTION, networks.SEQUENCE, networks.DECODING):
        for _, direction in networks.problem(TINY, name).probes:
            np.testing.assert_allclose(np.linalg.norm(direction), 1)


def test_noise_and_tasks_that_ask_for_nothing():
    task = tasks.ContextualIntegration(dt=0.5)
    noise = networks.Noise(0.1, 0.2)
    batch = networks.Trials(task, noise, scored=False, units=3).batch(jax.random.key(0), 200)
    assert batch.inputs.shape == (200, task.steps, task.input_size + 3)
    shaken = batch.inputs.at[..., : task.input_size].add(-jax.vmap(task.inputs)(batch.thetas, batch.conditions))
    for part, size in ((shaken[..., :-3], 0.1 / math.sqrt(0.5)), (shaken[..., -3:], 0.2 * math.sqrt(0.5))):
        np.testing.assert_allclose(jnp.std(part), size, rtol=0.03)
    assert noise.told() == "noise of 0.1 in the inputs and 0.2 in the units"
    assert networks.Trials(task, scored=False).loss(batch.targets + 1, batch.targets, batch.mask) == 0
    assert networks.Trials(task).loss(batch.targets + 1, batch.targets, batch.mask) == 1


def test_units_that_are_shaken(network):
    x, u, noise = (jax.random.normal(jax.random.key(i), (n,)) for i, n in enumerate((8, 4, 8)))
    shaken = networks.Shaken(network)
    assert (shaken.state_size, shaken.input_size) == (8, 12)
    np.testing.assert_array_equal(shaken(x, jnp.concatenate([u, noise])), network(x, u) + noise)
    np.testing.assert_array_equal(shaken(x), network(x))


def test_recurrence_of_a_decoder():
    task = networks.reaches()
    decoder = networks.as_double(networks.spike_decoder(TINY, task, jax.random.key(0)))
    recurrence = networks.Recurrence(decoder, TINY.units)
    assert (recurrence.state_size, recurrence.input_size) == (8, task.n_neurons)
    past, counts = jnp.linspace(-1, 1, decoder.state_size), task(jnp.array([1.0, 0.7]))[8]
    want = decoder(past, counts)[:8]
    for same in (recurrence, recurrence.prepared()):
        np.testing.assert_allclose(same(past[:8], counts), want, rtol=1e-13)


def test_index_and_ratio():
    G = np.broadcast_to(3 * np.eye(2), (5, 4, 2, 2))
    np.testing.assert_allclose(causal.index(G), 0, atol=1e-12)
    G = np.broadcast_to(np.diag([4.0, 1.0]), (5, 4, 2, 2))
    half = np.log((4 + 0.0125 * 2) / (1 + 0.0125 * 2)) / 2
    np.testing.assert_allclose(causal.index(G), math.sqrt(2) * half, rtol=1e-12)
    np.testing.assert_allclose(causal.relevance(G, (1.0, 0.0)), 4)
    root = math.sqrt(0.5)
    np.testing.assert_allclose(causal.relevance(G, (root, -root)), 1)
    np.testing.assert_allclose(on_evidence._distance(np.eye(2), np.diag([math.e, 1.0])), 1)


def test_curvature_of_a_skewed_torus():
    """The torus of radii 2 and 1 over two angles, and over others of which these are u + v and u + 2 v."""
    n = 32
    u, v = np.meshgrid(*[2 * math.pi * np.arange(n) / n] * 2, indexing="ij")
    for around, tube in (((1, 0), (0, 1)), ((1, 1), (1, 2))):
        angle = tube[0] * u + tube[1] * v
        ring = 2 + np.cos(angle)
        G = ring[..., None, None] ** 2 * np.outer(around, around) + np.outer(tube, tube)
        right, circulating = on_memory.curvatures(G)
        np.testing.assert_allclose(right, np.cos(angle) / ring, atol=1e-8)
        wrong = np.max(abs(circulating - right))
        assert wrong > 0.3 if around == (1, 1) else wrong < 1e-8


def test_when_a_ratio_begins():
    times = np.arange(1.0, 6)
    assert on_evidence._begins(times, np.array([1.0, 1.0, 1.2, 3.0, 10.0])) == 4.0
    assert on_evidence._begins(times, np.ones(5)) == 5.0
    assert on_evidence._told(False, "holds") == "not reached"


@pytest.mark.parametrize("count", [2, 3])
def test_dimension_of_clouds(network, count):
    if count == 2:
        here = networks.problem(dataclasses.replace(TINY, evidence_dt=0.2), networks.EVIDENCE)
        assert on_evidence._cloud_dimension(network, here, 0) == 3
    else:
        net = models.Elman(5, 12, form="pre", key=jax.random.key(0))
        assert on_evidence._cloud_dimension(net, networks.problem(TINY, networks.SEQUENCE), 0) == 4


def _lane(condition, loss, index, task="evidence", noise=networks.SILENCE, ratio=1e3, outputs=math.nan):
    return causal.Lane(task, condition, noise, 0, loss, loss, 0.0, index, index, index, index, 0.0, 1.0, ratio, outputs)


@pytest.mark.parametrize(
    ("held", "verdict"),
    [
        ((0.01, 0.1), "fails"),
        ((0.01, 0.9), "not reached"),
        ((0.9, 0.1), "holds"),
        ((0.2, 0.1), "not reached"),
    ],
)
def test_verdict_on_networks_that_are_held(held, verdict):
    lanes = [_lane("task", 0.001, 2.0), _lane("whole", *held)]
    assert causal.claims_of(lanes)[0].verdict == verdict
    # What nobody learns says nothing of those that are held.
    lanes[0] = _lane("task", 1.0, 2.0)
    assert causal.claims_of(lanes)[0].verdict == ("fails" if verdict == "fails" else "not reached")


def test_other_claims():
    shaken = networks.Noise(0.0, 0.1)
    lanes = [
        _lane("task", 0.001, 2.0), _lane("readout", 1.0, 0.2, ratio=1.0), _lane("warp copy", 1e-3, 2.0),
        _lane("ratio", 0.01, 1.5),
        _lane("warp ratio", 0.2, 2.0), _lane("task", 0.01, 2.0, noise=shaken), _lane("whole", 0.02, 0.1, noise=shaken),
    ]  # fmt: skip
    verdicts = {claim.statement: claim.verdict for claim in causal.claims_of(lanes)}
    assert verdicts["evidence: with the ratio of the diagonal held at 1 training does not converge"] == "fails"
    assert verdicts["evidence: a network whose outputs are forbidden to warp does not learn"] == "new"
    assert verdicts["the metric of the outputs warps in every network that has learned"] == "new"
    only = "evidence: a network that was trained to warp alone solves the task with a fitted readout"
    noisy = (
        "evidence: with noise of 0.1 in the units in training, a network whose states are forbidden to warp does not "
        "learn"
    )
    assert verdicts[only] == "holds in part"
    assert verdicts[noisy] == "fails"


@pytest.mark.parametrize(
    ("loss", "index", "verdict"), [(0.01, 0.8, "not reached"), (0.01, 0.2, "fails"), (0.9, 0.2, "new")]
)
def test_verdict_on_outputs_that_are_held(loss, index, verdict):
    """One that learns, its outputs not having been held after all, refutes nothing; no direction is to be preferred."""
    task = networks.DECODING
    lanes = [_lane("task", 0.01, 2.0, task, outputs=0.9), _lane("readout", loss, 2.0, task, ratio=2.0, outputs=index)]
    verdicts = {claim.statement: claim.verdict for claim in causal.claims_of(lanes)}
    assert verdicts["decoding: a network whose outputs are forbidden to warp does not learn"] == verdict
    warped = verdicts["decoding: the metric of the outputs warps in every network that has learned"]
    assert warped == ("fails" if verdict == "fails" else "new")
    assert "the metric of the outputs warps in every network that has learned" not in verdicts


def test_verdict_on_a_collapse():
    def verdict(flat, loss=0.01):
        return on_memory._Collapse(np.array(flat), None, None, None, 1, loss).verdict

    assert verdict([0.6, 0.1, 0.1]) == "holds"
    assert verdict([0.6, 0.25, 0.25]) == verdict([0.6, 0.4, 0.1]) == "holds in part"
    assert verdict([0.6, 0.4, 0.4]) == "fails"
    assert verdict([0.6, 0.1, 0.1], loss=0.2) == "not reached"


def test_films(tmp_path):
    grid = np.stack(np.meshgrid(np.arange(2.0), np.arange(3.0), indexing="ij"), -1)
    times = np.arange(1.0, 5)
    G = times[:, None, None] * np.eye(2) * np.ones((2, 3, 1, 1, 1))
    films = on_evidence.films_of("evidence", G, grid, times, ("a", "b"), first=1)
    part = Part("Films", "", (), {}, films)
    folder = StudyResult("films", "Films", "nowhere", {}, (part,)).write(tmp_path)
    written = sorted((folder / "figures").iterdir())
    assert [path.name for path in written] == ["evidence-film-grid.gif", "evidence-film-tissot.gif"]
    with Image.open(written[0]) as picture:
        assert picture.n_frames == 3
    assert (folder / "report.html").read_text().count("data:image/gif") == 2


def test_experiment_in_a_tiny_size():
    part = causal.causal(TINY)
    lanes = part.values["lanes"]
    assert [lane["condition"] for lane in lanes] == ["task", "whole", "whole"]
    assert lanes[2]["task"] == networks.DECODING
    assert all(math.isfinite(lane["state_index"]) and lane["loss"] > 0 for lane in lanes)
    assert lanes[0]["penalty"] == 0 < lanes[1]["penalty"]
    # So few steps teach nothing, and that is what is told.
    assert {claim.verdict for claim in part.claims} == {"not reached"}
    assert networks.train(TINY, networks.EVIDENCE) is networks.train(TINY, networks.EVIDENCE, delays=TINY.delays)


def test_is_registered(tmp_path):
    assert "warping" in STUDIES
    assert set(study.PRESETS) == {"quick", "paper"}
    for preset in study.PRESETS.values():
        names = (*preset.causal_evidence, *preset.causal_memory, *preset.causal_decoding, *preset.causal_noisy)
        assert set(names) <= set(networks.CONDITIONS)
    with pytest.raises(ArgumentError, match="preset"):
        study.reproduce("slow", tmp_path)
    with jax.enable_x64(False), pytest.raises(PrecisionError, match="double precision"):
        study.run()


@pytest.mark.slow
def test_quick_preset(tmp_path):
    result = study.run()
    assert len(result.parts) == 9
    assert all(part.claims and part.figures for part in result.parts)
    verdicts = {claim.statement: claim.verdict for claim in result.claims}
    assert len(verdicts) == len(result.claims)
    for statement in (
        "evidence: mean squared error of the network",
        "the relevant variable is stretched more than the irrelevant one",
        "inputs on a manifold of m dimensions lead to states on one of at most m + 1",
        "the integral of the curvature of a torus is 0 (Gauss and Bonnet)",
        "the torus of two remembered items is curved, so that their codes are not orthogonal",
    ):
        assert verdicts[statement] == "holds"
    for statement in (
        "evidence: a network whose states are forbidden to warp does not learn",
        "the formula for the curvature in the public copy of the authors' code",
    ):
        assert verdicts[statement] == "fails"
    folder = result.write(tmp_path)
    assert "fails" in (folder / "report.html").read_text()
    assert len(json.loads((folder / "results.json").read_text())["claims"]) == len(result.claims)
