"""The diagnosis of networks whose gradients are known; two penalties against their definitions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.models import AbstractMap

gr = dw.gradients
T = 40
INPUTS = jax.random.normal(jax.random.key(2), (T, 1))
TARGETS = jnp.roll(INPUTS, 3)


class Users(AbstractMap):
    """A user's own module: plain numbers, tuples and functions as fields."""

    W: jax.Array
    state_size: int
    input_size: int
    sizes: tuple
    activation: object

    def __call__(self, state, input=None, *, step=None):
        drive = 0.0 if input is None else input[0]
        return self.activation(self.W @ state + drive)


def _linear(W):
    n = len(W)
    return Users(jnp.asarray(W), n, 1, (n, 2), lambda x: x)


ORTHOGONAL = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
NILPOTENT = np.array([[0, 5, 0], [0, 0, 5], [0, 0, 0.0]])
KNOWN = {
    "shrinks": (
        0.5 * ORTHOGONAL,
        {"gradients vanish", "vanishing is certain in the long run", "forgets its initial state"},
    ),
    "grows": (1.3 * ORTHOGONAL, {"gradients explode", "explosion is possible", "chaotic under its input"}),
    "nilpotent": (NILPOTENT, {"gradients vanish", "explosion is possible", "forgets its initial state"}),
}


@pytest.fixture(scope="module")
def diagnoses():
    """All three in one program, that of vmap under jit."""
    readout = dw.models.Readout(3, 1, key=jax.random.key(1))
    model = _linear(ORTHOGONAL)
    weights = jnp.stack([jnp.asarray(W) for W, _ in KNOWN.values()])

    @jax.jit
    def run(weights):
        def one(W):
            return gr.diagnose(eqx.tree_at(lambda m: m.W, model, W), readout, INPUTS, TARGETS, clip=1e-3)

        return jax.vmap(one)(weights)

    found = run(weights)
    return {name: jax.tree.map(lambda x, i=i: x[i], found) for i, name in enumerate(KNOWN)}, readout


@pytest.mark.parametrize("name", KNOWN)
def test_verdicts_on_linear_networks(diagnoses, name):
    found = diagnoses[0][name]
    about = {"gradients vanish", "gradients explode", "vanishing is certain in the long run", "explosion is possible"}
    about |= {"forgets its initial state", "chaotic under its input"}
    assert {v.name for v in found.verdicts if v.name in about and bool(v.holds)} == KNOWN[name][1]
    for verdict in found.verdicts:
        sides = float(verdict.left), float(verdict.right)
        if not np.isnan(sides).any():
            assert bool(verdict.holds) == (sides[0] < sides[1] if "<" in verdict.inequality else sides[0] > sides[1])
    text = found.to_markdown()
    for verdict in found.verdicts:
        assert verdict.name in text
    assert "gradient norm of `model.W`" in text
    assert ("nothing is left" in text) == (name == "nilpotent")


def test_numbers_of_linear_networks(diagnoses):
    found, readout = diagnoses
    grows, shrinks = found["grows"], found["shrinks"]
    np.testing.assert_allclose(grows.exponents, np.log(1.3), atol=1e-9)
    np.testing.assert_allclose(shrinks.exponents, np.log(0.5), atol=1e-9)
    np.testing.assert_allclose(grows.sigma_max, 1.3, atol=1e-9)
    np.testing.assert_allclose(found["nilpotent"].spectral_radius, 0, atol=1e-4)
    # Rows of c Q^l have norm c^l; there are three.
    lags = np.asarray(grows.envelope.lags)
    np.testing.assert_allclose(grows.envelope.log_values, np.log(3) + lags * np.log(1.3), atol=1e-9)
    assert shrinks.regime.names[int(shrinks.regime.best)] == "exponential"
    assert float(shrinks.regime.time_constant) == pytest.approx(1 / np.log(2))

    # N(l) grows as (2^kappa)^l where half is left at every step.
    kappa = float(shrinks.tail_alpha) / (float(shrinks.tail_alpha) - 1)
    needed = np.diff(np.log(np.asarray(shrinks.window.sample_complexity)))
    np.testing.assert_allclose(needed, kappa * np.log(2) * np.diff(lags), rtol=1e-6)

    def loss(model, readout):
        states = dw.simulate(model, jnp.zeros(3), INPUTS)
        return jnp.mean(jax.vmap(lambda z, x, y: 0.5 * jnp.sum((readout(z, x) - y) ** 2))(states, INPUTS, TARGETS))

    model = _linear(0.5 * ORTHOGONAL)
    parameters, rest = eqx.partition((model, readout), eqx.is_inexact_array)
    value, gradient = jax.value_and_grad(lambda p: loss(*eqx.combine(p, rest)))(parameters)
    assert float(shrinks.loss) == pytest.approx(float(value), rel=1e-12)
    assert float(jnp.mean(shrinks.losses)) == pytest.approx(float(value), rel=1e-12)
    norms = [float(jnp.linalg.norm(x)) for x in jax.tree.leaves(gradient)]
    np.testing.assert_allclose(jax.tree.leaves(shrinks.parameter_norms), norms, rtol=1e-10)
    assert float(shrinks.gradient_norm) == pytest.approx(np.linalg.norm(norms), rel=1e-10)
    # The jackknife of a mean of eight equal blocks is the standard error of the mean.
    blocks = np.asarray(shrinks.losses).reshape(8, -1).mean(1)
    assert float(shrinks.loss_error) == pytest.approx(np.std(blocks, ddof=1) / 8**0.5, rel=1e-9)
    assert float(shrinks.clip_rate) == 1
    assert bool(shrinks.verdict("gradients are clipped").holds)


def test_masks_hide_what_must_not_be_seen(diagnoses):
    """NaN where nothing counts; float32 throughout; an LSTM, whose state is more than its output."""
    model = dw.models.LSTM(1, 3, dtype=jnp.float32, key=jax.random.key(5))
    readout = dw.models.Readout(6, 1, dtype=jnp.float32, key=jax.random.key(6))
    mask = jnp.arange(T) < 30
    inputs = INPUTS.astype(jnp.float32)
    targets = jnp.where(mask[:, None], TARGETS, jnp.nan).astype(jnp.float32)
    found = gr.diagnose(model, readout, inputs, targets, mask=mask)
    dtypes = {x.dtype for x in jax.tree.leaves(eqx.filter(found, eqx.is_inexact_array))}
    assert dtypes == {jnp.dtype(jnp.float32)}
    assert all(bool(jnp.isfinite(x)) for x in jax.tree.leaves((found.loss, found.gradient_norm, found.parameter_norms)))
    assert float(found.saturation) == 0
    assert found.to_markdown().count("|") > 30
    # The same program: no output and no error, so no gradient at all.
    dead = eqx.combine(jax.tree.map(jnp.zeros_like, eqx.filter(readout, eqx.is_array)), readout)
    with pytest.raises(dw.errors.ConvergenceError, match="diagnose"):
        gr.diagnose(model, dead, inputs, jnp.zeros((T, 1), jnp.float32), mask=mask)


def test_diagnosis_says_what_is_wrong(diagnoses):
    model, readout = _linear(ORTHOGONAL), diagnoses[1]
    with pytest.raises(dw.errors.ShapeError, match="at least 17"):
        gr.diagnose(model, readout, INPUTS[:10], TARGETS[:10])
    with pytest.raises(dw.errors.ArgumentError, match="at least 4"):
        gr.diagnose(model, readout, INPUTS, TARGETS, lags=[1, 2])
    with pytest.raises(dw.errors.ArgumentError, match="tolerance"):
        gr.diagnose(model, readout, INPUTS, TARGETS, tolerance=2.0)
    with pytest.raises(dw.errors.NonFiniteError, match="inputs"):
        gr.diagnose(model, readout, INPUTS.at[0].set(jnp.nan), TARGETS)


def test_the_figure(diagnoses):
    figure = dw.plot.diagnosis(diagnoses[0]["shrinks"])
    assert len(figure.axes) == 4
    import matplotlib.pyplot as plt

    plt.close(figure)


# ---- penalties


def test_propagation_penalty_is_immediate(diagnoses):
    readout = diagnoses[1]
    model = dw.models.Elman(1, 3, form="pre", key=jax.random.key(3))
    inputs, targets = INPUTS[:6], TARGETS[:6]
    value, gradient = jax.jit(jax.value_and_grad(lambda m: gr.propagation_penalty(m, readout, inputs, targets)))(model)

    # The published formula, with the orbit and the adjoints as constants, and its derivative in W.
    found = gr.backpropagate(model, readout, inputs, targets)
    g, W = np.asarray(found.adjoints), np.asarray(model.recurrent_weight)
    before = np.concatenate([np.zeros((1, 3)), np.asarray(found.states)[:-1]])
    slopes = 1 - np.tanh(before) ** 2
    expected, derivative = 0.0, np.zeros_like(W)
    for k in range(6):
        pulled = slopes[k] * (W.T @ g[k])
        ratio = np.linalg.norm(pulled) / np.linalg.norm(g[k])
        expected += (ratio - 1) ** 2 / 6
        outer = np.outer(g[k], slopes[k] * pulled)
        derivative += 2 * (ratio - 1) / 6 * outer / (np.linalg.norm(pulled) * np.linalg.norm(g[k]))
    assert float(value) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient.recurrent_weight, derivative, rtol=1e-10)
    np.testing.assert_allclose(gradient.input_weight, 0)
    # Zero for an orthogonal linear recurrence, with a derivative that is zero too.
    orthogonal = _linear(ORTHOGONAL)
    assert float(gr.propagation_penalty(orthogonal, readout, inputs, targets)) < 1e-28
    # No gradient, no penalty, no NaN.
    nothing = gr.propagation_penalty(orthogonal, readout, inputs, targets, mask=jnp.zeros(6, bool))
    assert float(nothing) == 0


def test_flossing():
    base = dw.models.LinearRNN(jnp.diag(jnp.array([1.5, 0.2, 0.0])), jnp.zeros((3, 0)), jnp.eye(3))

    @jax.jit
    def both(scale):
        model = eqx.tree_at(lambda m: m.W, base, scale * base.W)
        return gr.flossing_loss(model, steps=200, k=2, target=0.1)

    value, slope = jax.jit(jax.value_and_grad(both))(1.0)
    # The frame turns into place within some steps of the two hundred.
    expected = (np.log(1.5) - 0.1) ** 2 + (np.log(0.2) - 0.1) ** 2
    assert float(value) == pytest.approx(expected, rel=0.02)
    assert float(slope) == pytest.approx(float(both(1 + 1e-6) - both(1 - 1e-6)) / 2e-6, rel=1e-6)
    single = jax.tree.map(lambda x: x.astype(jnp.float32), base)
    assert gr.flossing_loss(single, steps=200, k=2, target=0.1).dtype == jnp.float32
    assert float(gr.flossing_loss(single, steps=200, k=2, target=0.1)) == pytest.approx(float(value), rel=1e-4)
    with pytest.raises(dw.errors.ArgumentError, match="state size 3"):
        gr.flossing_loss(base, steps=5, k=4)
