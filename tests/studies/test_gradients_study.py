"""The gradients study: its own computations on cases that are known, and, where time is no matter, all of it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynwarp.errors import ArgumentError, PrecisionError
from dynwarp.studies import STUDIES
from dynwarp.studies._gradients import PRESETS, reproduce, run
from dynwarp.studies._gradients_alignment import _decay
from dynwarp.studies._gradients_bounds import (
    Alternating,
    _exponents,
    _recursion,
    _scalar_growth,
    _slope,
    chaotic_lstm,
)
from dynwarp.studies._gradients_learnability import _regimes, stable_samples
from dynwarp.studies._gradients_memory import _diagonal_network, _output, _simulated_moments
from dynwarp.studies._gradients_spectra import _real_radius
from dynwarp.studies._gradients_variants import _of_all, _order


def test_nilpotent_steps_in_turn_explode():
    """Each step has the spectral radius 0, two of them have 4."""
    net, state = Alternating(), jnp.array([0.0, 1.0])
    for step in range(10):
        state = net(state, step=step)
    np.testing.assert_allclose(jnp.abs(state).max(), 2.0**10)
    one = jax.jacfwd(lambda z: net(z, step=0))(state)
    np.testing.assert_array_equal(one @ one, 0)


def test_orders_of_products():
    found = _recursion(2)
    assert found["right"] < 1e-12
    assert found["manual"] < 1e-12
    assert found["unrolled_linear"] < 1e-12
    assert min(found[k] for k in ("ascending", "adjoint", "unrolled_tanh")) > 0.05


def test_growth_of_a_scalar_cost():
    """|V'| and |V''| of x' = a x + u grow as a^(2 N), as N^3 and N^4 at a = 1, and not at all below."""
    lengths = np.array([50, 100, 200, 300, 400])
    for a, log, expected in ((1.1, False, (2 * np.log(1.1),) * 2), (1.0, True, (3, 4)), (0.8, False, (0, 0))):
        first, second = _scalar_growth(a, lengths, 0)
        np.testing.assert_allclose(_slope(lengths, first, log=log), expected[0], atol=0.2 if log else 0.01)
        np.testing.assert_allclose(_slope(lengths, second, log=log), expected[1], atol=0.2 if log else 0.01)


def test_two_unit_lstm_is_chaotic():
    """The published example, whose leading exponent is 0.168 at scale 1 and -0.557 at 0.5."""
    found = np.asarray(_exponents(jnp.array([0.5, 1.0]), 100, 8_000))
    np.testing.assert_allclose(found[0, 0], -0.557, atol=2e-3)
    np.testing.assert_allclose(found[1, :2], [0.168, -0.385], atol=0.01)
    assert chaotic_lstm(2.0).recurrent_weight[0, 1] == -8


def test_simulated_moments_of_a_white_signal():
    """E h^2 = 1 / (1 - lam^2) and E (dh/dlam)^2 = (1 + lam^2) / (1 - lam^2)^3."""
    (second, sensitivity), errors = _simulated_moments(0.8, 0.0, 400_000, 0)
    assert abs(second - 1 / 0.36) < 4 * errors[0]
    assert abs(sensitivity - 1.64 / 0.36**3) < 4 * errors[1]
    assert errors[1] < 0.05 * sensitivity


def test_regimes_of_the_window():
    growth, mismatch = _regimes(np.array([1e3, 1e4]))
    kappa = 3.0
    np.testing.assert_allclose(np.diff(growth["exponential"]), 50 / kappa * np.log(10), rtol=1e-6)
    np.testing.assert_allclose(growth["power"][1] / growth["power"][0], 10 ** (1 / kappa), rtol=1e-6)
    assert mismatch <= 1


def test_stable_samples_have_the_known_quartiles():
    """Interquartile ranges at unit scale: 2 for Cauchy, 1.90775 for alpha = 2, 1.93787 for 1.5."""
    for alpha, width in ((1.0, 2.0), (1.5, 1.93787), (2.0, 1.90775)):
        x = stable_samples(alpha, 200_000, 0)
        np.testing.assert_allclose(np.subtract(*np.quantile(x, [0.75, 0.25])), width, rtol=0.02)


def test_paired_units_cancel():
    net, signs = _diagonal_network(16, 2, jnp.asarray(0.9), jnp.tanh, jax.random.key(0))
    assert _output(net, signs, jnp.ones((5, 2))) == 0
    np.testing.assert_array_equal(jnp.abs(net.recurrent_weight), 0.9)


def test_real_parts_are_not_the_radius():
    radii = [_real_radius(60, 0.9, seed) for seed in range(10)]
    assert min(radii) >= 0.9 - 1e-12
    assert max(radii) > 0.92


def test_decay_is_read_above_rounding_errors():
    signals = np.exp(-0.7 * np.arange(60.0))
    signals[45:] = 1e-16
    assert _decay(signals) == pytest.approx(-0.7, rel=1e-12)


def test_verdicts_on_two_losses():
    assert _order(0.1, 1.0) == "holds"
    assert _order(1.0, 0.1) == "fails"
    assert _order(0.95, 1.0) == "not reached"
    assert _order(0.5, 0.5) == "holds in part"
    assert _of_all("holds", "holds") == "holds"
    assert _of_all("holds", "not reached") == "holds in part"


def test_is_registered(tmp_path):
    assert "gradients" in STUDIES
    assert set(PRESETS) == {"quick", "paper"}
    assert all(preset.variant_steps % 50 == 0 for preset in PRESETS.values())
    with pytest.raises(ArgumentError, match="preset"):
        reproduce("slow", tmp_path)
    with jax.enable_x64(False), pytest.raises(PrecisionError, match="double precision"):
        run()


@pytest.mark.slow
def test_quick_preset(tmp_path):
    result = run()
    assert len(result.parts) == 9
    assert all(part.claims and part.figures for part in result.parts)
    verdicts = {claim.statement: claim.verdict for claim in result.claims}
    assert len(verdicts) == len(result.claims)
    for statement in (
        "gamma sigma_max(W) > 1 makes gradients explode",
        "the released program is the published algorithm",
        "the spectral radius of the recurrent matrix decides between vanishing and exploding",
        "the norm of dh_t/dh_k is the product of the largest singular values",
        "iterations fall as T^2 / (eps^2 m^2) with the width m",
        "a spectral radius below one is what makes a reservoir forget its start",
    ):
        assert verdicts[statement] == "fails"
    for statement in (
        "gamma sigma_max(W) < 1 is sufficient for gradients to vanish",
        "with no gradient vanishing or exploding, sensitivity still diverges as memory grows",
        "paired units with opposite output weights start at exactly zero",
        "a cycle's capacity is N - 1 + r^(2N)",
        "flossing lets gradients travel further",
        "targets and local losses do not save early steps: their signals vanish as well",
    ):
        assert verdicts[statement] == "holds"
    ratio = next(p for p in result.parts if p.title == "Learnability").values["slope_ratio"]
    assert 1 < ratio["least"] < 2 < ratio["mean"] < 4
    folder = result.write(tmp_path)
    assert "fails" in (folder / "report.html").read_text()
    assert len(json.loads((folder / "results.json").read_text())["claims"]) == len(result.claims)
    assert len(list((folder / "figures").iterdir())) == 9
