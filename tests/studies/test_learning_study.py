"""The learning study in a tiny size: every part runs, says what is known, and is written."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynwarp import learning
from dynwarp.errors import ArgumentError, PrecisionError
from dynwarp.studies import STUDIES, Claim, Part, StudyResult
from dynwarp.studies._learning import PRESETS, LearningConfig, run
from dynwarp.studies._learning_networks import _largest_step, gaussian_network, random_teacher

TINY = LearningConfig(
    box=2_000,
    grid=21,
    starts=64,
    horizon=60,
    alignment_seeds=1,
    alignment_steps=240,
    alignment_rate=0.02,
    seeds=2,
    sigmas=(0.05, 0.2),
    scales=(1.0, 4.5),
    training_horizon=12,
    training_rate=0.02,
    training_steps=160,
    rank_steps=50,
    sample_steps=20,
    noise_sequences=200,
    noise_steps=20,
)


@pytest.fixture(scope="module")
def result():
    return run(TINY)


def _part(result, title):
    return next(part for part in result.parts if part.title.startswith(title))


def test_every_part_reports_claims(result):
    assert isinstance(result, StudyResult)
    assert len(result.parts) == 9
    assert all(part.claims for part in result.parts)
    assert result.config["box"] == 2_000
    assert len({claim.statement for claim in result.claims}) == len(result.claims)


def test_what_is_known_does_not_depend_on_size(result):
    stability = _part(result, "Optima")
    assert stability.values["closed_form_error"] < 1e-9
    assert stability.values["pocket_misplaced"] == 0
    assert abs(stability.values["rflo_wrong_sign"]["saddle"] - 0.293) < 0.05
    slowest = _part(result, "Speed").values
    assert abs(slowest["slowest"]["BPTT"] - 1) < 1e-3
    assert abs(slowest["slowest"]["TBPTT(1)"] - 0.794) < 1e-3
    np.testing.assert_allclose(slowest["crossings"]["0.5"], [0.91385972], rtol=1e-6)
    flows = _part(result, "Trajectories").values
    np.testing.assert_allclose(flows["detour_end"], [-0.62713, -1.59603, 0.8], atol=1e-3)
    assert abs(flows["detour_time"] - 5.50946) < 1e-3
    assert abs(flows["wall_time"] - 1.597524) < 1e-4
    assert flows["landing_mismatches"] == 0
    assert flows["converged"]["BPTT"] == 1.0
    assert "converges" in flows["pocket"][1]
    assert max(_part(result, "Losses").values["after_correction"].values()) < 1e-9
    ranks = _part(result, "Rank").values
    assert ranks["tails"]["RFLO"] < 1e-12 < 1e-6 < ranks["tails"]["RFLO, Adam"]
    assert ranks["tails"]["RFLO, tanh units"] > 1e-6
    assert ranks["eprop_spans"]["3"] == (6, 6)
    assert _part(result, "State-space").values["expected"]["RFLO"] == 2


def test_writes_report_numbers_and_figures(result, tmp_path):
    result.write(tmp_path)
    read = json.loads((tmp_path / "results.json").read_text())
    assert [claim["statement"] for claim in read["claims"]] == [claim.statement for claim in result.claims]
    assert set(read["values"]) == {part.title for part in result.parts}
    html = (tmp_path / "report.html").read_text()
    figures = [figure.name for part in result.parts for figure in part.figures]
    assert html.count("<img ") == len(figures)
    assert sorted(p.stem for p in (tmp_path / "figures").iterdir()) == sorted(figures)


def test_failing_claims_are_told(result):
    verdicts = {claim.statement: claim.verdict for claim in result.claims}
    assert verdicts["TBPTT(1) is slowest at s = sqrt|p| too"] == "fails"
    assert verdicts["RFLO's bound on the rank holds with Adam"] == "fails"
    assert verdicts["RFLO: the wrong sign, R s < 0, is unstable"] == "holds in part"
    assert "fails" in result.to_html()


def test_claims_check_their_verdict():
    with pytest.raises(ArgumentError, match="verdict"):
        Claim("a", "b", "c", "perhaps")
    assert Part("t", "", (Claim("a", "b", "c", "new"),), {}).figures == ()


def test_needs_double_precision():
    with jax.enable_x64(False), pytest.raises(PrecisionError, match="double precision"):
        run(TINY)


def test_is_registered():
    assert "learning" in STUDIES
    assert set(PRESETS) == {"quick", "paper"}
    assert PRESETS["paper"].seeds == 20


def test_largest_step_in_closed_form():
    """Without noise the limit is 2 / lambda; with one random number m it is 2 mean / (mean^2 + variance / batch)."""
    fixed = np.broadcast_to(np.diag([0.5, 2.0]), (10, 2, 2))
    assert abs(_largest_step(fixed, np.inf) - 1.0) < 1e-9
    values = np.array([1.0, 3.0])
    noisy = values[:, None, None] * np.eye(2)
    assert abs(_largest_step(noisy, 1) - 4.0 / 5.0) < 1e-9
    assert abs(_largest_step(noisy, 4) - 4.0 / (4.0 + 0.25)) < 1e-9


def test_random_networks(key):
    student, teacher = gaussian_network(key, 5, 2, 3, 0.1), random_teacher(key, modes=3, inputs=2, outputs=3)
    assert student.W.shape == (5, 5)
    assert float(jnp.min(jnp.diagonal(teacher.W))) >= 0.2
    update = learning.expected_update(learning.BPTT(), student, teacher, horizon=5)
    assert update.dW.shape == (5, 5)
