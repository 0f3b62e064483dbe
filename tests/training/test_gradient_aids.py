"""Clipping against optax and its rules, projections against their definitions, multiple shooting against one run."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynwarp as dw

tr = dw.training
PARAMETERS = {"recurrent": jnp.array([[1.0, 2.0], [3.0, 4.0]]), "bias": jnp.array([1.0, -1.0], jnp.float32)}


def _gradient(scale):
    return jax.tree.map(lambda p: (scale * p).astype(p.dtype), PARAMETERS)


@pytest.fixture(scope="module")
def clips():
    """Both kinds as jitted functions of (gradient, state)."""
    fixed = tr.clip_gradient(1.0, non_finite="shrink", where=lambda p: p["recurrent"])
    adaptive = tr.clip_gradient_adaptively(2.0, decay=0.9)
    return fixed, adaptive, jax.jit(lambda g, s: fixed.update(g, s, PARAMETERS)), jax.jit(adaptive.update)


def test_clipping_is_that_of_optax(clips):
    fixed, _, update, _ = clips
    theirs = optax.clip_by_global_norm(1.0)
    state = fixed.init(PARAMETERS)
    for scale in (0.01, 0.1, 3.0):
        found, state = update(_gradient(scale), state)
        with jax.numpy_dtype_promotion("standard"):
            expected, _ = theirs.update(_gradient(scale), theirs.init(PARAMETERS))
        for ours, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
            assert ours.dtype == other.dtype
            np.testing.assert_allclose(ours, other, rtol=1e-6)
    assert (int(state.steps), int(state.clipped), int(state.rejected)) == (3, 1, 0)
    # What optax makes of norms whose squares overflow.
    huge, _ = tr.clip_gradient(1.0).update({"w": jnp.full(2, 1e8, jnp.float32)}, fixed.init({"w": jnp.ones(2)}))
    np.testing.assert_allclose(huge["w"], 0.5**0.5, rtol=1e-6)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, 1e12])
def test_rule_for_what_is_no_gradient(clips, bad):
    fixed, adaptive, update, adapt = clips
    gradient = _gradient(1.0) | {"bias": jnp.array([bad, 0.0], jnp.float32)}
    found, state = update(gradient, fixed.init(PARAMETERS))
    np.testing.assert_allclose(found["recurrent"], 0.02 * PARAMETERS["recurrent"])
    assert found["bias"].tolist() == [0, 0]
    assert (int(state.steps), int(state.rejected), float(state.average)) == (1, 1, 0)
    found, state = adapt(gradient, adaptive.init(PARAMETERS))
    assert all(bool(jnp.all(x == 0)) for x in jax.tree.leaves(found))
    kept, _ = tr.clip_gradient(1.0, non_finite="keep").update(gradient, fixed.init(PARAMETERS))
    np.testing.assert_array_equal(kept["bias"], gradient["bias"])


def test_adaptive_threshold_is_a_multiple_of_the_running_mean(clips):
    _, adaptive, _, adapt = clips
    state, unit = adaptive.init(PARAMETERS), float(optax.tree.norm(jax.tree.map(lambda x: x.astype(float), PARAMETERS)))
    weights, total, average = 0.0, 0.0, None
    for scale in (1.0, 1.5, 1000.0, 1.0, 20.0):
        found, state = adapt(_gradient(scale), state)
        limit = np.inf if average is None else 2 * average
        expected = min(scale * unit, limit)
        assert float(optax.tree.norm(jax.tree.map(lambda x: x.astype(float), found))) == pytest.approx(
            expected, rel=1e-6
        )
        total, weights = 0.9 * total + 0.1 * expected, 0.9 * weights + 0.1
        average = total / weights
        assert float(state.average) == pytest.approx(average, rel=1e-6)
    assert int(state.clipped) == 2


def test_clipping_in_fit():
    t = jnp.arange(60.0)
    circle = jnp.stack([jnp.sin(t / 5), jnp.cos(t / 5)], axis=1)
    optimizer = optax.chain(tr.clip_gradient_adaptively(5.0), optax.sgd(1e-2))
    model = dw.models.ALRNN(3, 1, key=jax.random.key(0))
    fitted = tr.fit(model, circle, steps=5, sequence_length=10, key=jax.random.key(1), clip=None, optimizer=optimizer)
    assert np.isfinite(fitted.history.loss).all()


def test_aids_say_what_is_wrong():
    with pytest.raises(dw.errors.ArgumentError, match="max_norm"):
        tr.clip_gradient(0.0)
    with pytest.raises(dw.errors.ArgumentError, match="where"):
        tr.clip_gradient(1.0, non_finite="shrink")
    with pytest.raises(dw.errors.ArgumentError, match="decay"):
        tr.clip_gradient_adaptively(decay=1.0)
    shrink = tr.clip_gradient(1.0, non_finite="shrink", where=lambda p: p)
    with pytest.raises(dw.errors.ArgumentError, match="parameters"):
        shrink.update(jnp.ones(1), shrink.init(jnp.ones(1)))
    with pytest.raises(dw.errors.ArgumentError, match="function of the parameters"):
        tr.project_parameters(3)
    with pytest.raises(dw.errors.ArgumentError, match="parameters"):
        tr.project_parameters(tr.project_modulus).update(jnp.ones(1), optax.EmptyState())


def test_projections():
    weight = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)))
    found = tr.project_spectral_norm(weight, 0.9)
    u, s, vt = np.linalg.svd(np.asarray(weight), full_matrices=False)
    np.testing.assert_allclose(found, (u * np.minimum(s, 0.9)) @ vt, atol=1e-12)
    np.testing.assert_array_equal(tr.project_spectral_norm(weight, 10.0), weight)
    # The nearest: no other matrix of such norm is nearer.
    other = tr.project_spectral_norm(weight + 0.3 * jnp.flip(weight), 0.9)
    assert jnp.linalg.norm(found - weight) < jnp.linalg.norm(other - weight)
    values = jnp.array([2j, 0.5 + 0.5j, -3.0, 0.0])
    np.testing.assert_allclose(tr.project_modulus(values, 0.8), [0.8j, 0.5 + 0.5j, -0.8, 0.0])
    # An IndRNN that may amplify by 2 in 784 steps.
    limit = 2 ** (1 / 784)
    assert float(tr.project_modulus(jnp.array([1.5]), limit)[0]) == pytest.approx(1.000884, abs=1e-6)

    model = dw.models.Elman(1, 3, key=jax.random.key(0))

    def stable(m):
        return eqx.tree_at(lambda m: m.recurrent_weight, m, tr.project_spectral_norm(m.recurrent_weight, 0.5))

    parameters = eqx.filter(model, eqx.is_inexact_array)
    optimizer = optax.chain(optax.sgd(0.1), tr.project_parameters(stable))
    update, _ = optimizer.update(jax.tree.map(jnp.ones_like, parameters), optimizer.init(parameters), parameters)
    moved = eqx.apply_updates(model, update)
    assert float(jnp.linalg.norm(moved.recurrent_weight, 2)) == pytest.approx(0.5)
    np.testing.assert_allclose(moved.bias, model.bias - 0.1)


def test_rows_are_projected_onto_their_balls():
    """The nearest point by its optimality: the residual is a multiple of the signs, where the entry is not zero, and no
    larger elsewhere."""
    weight = jnp.asarray(np.random.default_rng(1).normal(size=(5, 4)))
    found = jax.jit(tr.project_row_sums)(weight, 1.2)
    short = np.abs(weight).sum(1) <= 1.2
    assert not short.all()
    np.testing.assert_array_equal(found[short], weight[short])
    np.testing.assert_allclose(np.abs(found[~short]).sum(1), 1.2, rtol=1e-12)
    for row, before in zip(np.asarray(found)[~short], np.asarray(weight)[~short]):
        rest, kept = before - row, row != 0
        cut = np.abs(rest[kept][0])
        np.testing.assert_allclose(rest[kept], cut * np.sign(row[kept]), rtol=1e-9)
        assert np.all(np.abs(rest) <= cut + 1e-12)


def test_a_projected_lstm_forgets_its_state():
    """Whatever its weights and its inputs in [-1, 1]; as it was, it kept two states apart."""
    net = dw.models.LSTM(2, 6, key=jax.random.key(0))
    net = jax.tree.map(lambda w: 4 * w if eqx.is_inexact_array(w) else w, net)
    inputs = jnp.sign(jax.random.normal(jax.random.key(1), (300, 2)))
    starts = jax.random.normal(jax.random.key(2), (2, 12))

    @eqx.filter_jit
    def gap(net):
        ends = jax.vmap(lambda z: dw.simulate(net, z, inputs)[-1])(starts)
        return jnp.max(jnp.abs(ends[0] - ends[1]))

    assert gap(net) > 1e-3
    stable = tr.project_stable_lstm(net)
    assert gap(stable) < 1e-12
    again = tr.project_stable_lstm(stable)
    for a, b in zip(jax.tree.leaves(stable), jax.tree.leaves(again)):
        np.testing.assert_allclose(a, b, atol=1e-15)
    assert tr.project_stable_lstm(dw.models.LSTM(0, 2, use_bias=False, key=jax.random.key(0))).bias is None
    with pytest.raises(dw.errors.ModelError, match="must be an LSTM; got GRU"):
        tr.project_stable_lstm(dw.models.GRU(1, 2, key=jax.random.key(0)))


def test_multiple_shooting_of_one_run_is_one_run():
    model = dw.models.ClockworkRNN(1, 4, periods=(1, 2), key=jax.random.key(0))
    readout = dw.models.Readout(model.state_size, 2, key=jax.random.key(1))
    inputs, targets = jax.random.normal(jax.random.key(2), (12, 1)), jax.random.normal(jax.random.key(3), (12, 2))
    starts = tr.shooting_starts(model, inputs, 3)
    states = dw.simulate(model, jnp.zeros(model.state_size), inputs, include_initial=True)
    np.testing.assert_allclose(starts, states[:12:4], atol=1e-14)

    @jax.jit
    def both(starts, weight):
        def loss(starts, model):
            return tr.multiple_shooting_loss(model, readout, inputs, targets, starts, continuity=weight)

        return loss(starts, model), jax.grad(loss, argnums=(0, 1))(starts, model)

    value, _ = both(starts, 5.0)
    outputs = jax.vmap(readout)(states[1:], inputs)
    assert float(value) == pytest.approx(float(jnp.mean((outputs - targets) ** 2)), rel=1e-12)
    # A gap costs its mean square, and what the piece after it makes of it.
    moved = starts.at[1].add(0.5)
    without, (slope, of_model) = both(moved, 0.0)
    priced, (steeper, _) = both(moved, 4.0)
    end = moved[1]
    for t in range(4, 8):
        end = model(end, inputs[t], step=t)
    gaps = np.mean([np.full(model.state_size, 0.25), np.asarray(end - starts[2]) ** 2])
    assert float(priced - without) == pytest.approx(4 * gaps, rel=1e-10)
    step = 1e-6 * jnp.eye(model.state_size)[0]
    high, low = (both(moved.at[1].add(sign * step), 4.0)[0] for sign in (1, -1))
    assert float(steeper[1, 0]) == pytest.approx(float(high - low) / 2e-6, rel=1e-5)
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves((slope, of_model)))
    with pytest.raises(dw.errors.ArgumentError, match="divide the 12 steps"):
        tr.multiple_shooting_loss(model, readout, inputs, targets, jnp.zeros((5, model.state_size)))
    with pytest.raises(dw.errors.ArgumentError, match="divide"):
        tr.shooting_starts(model, inputs, 5)
