"""Teacher forcing against loops written out by hand, missing observations, readouts, and adaptive forcing."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynwarp as dw
from dynwarp import training
from dynwarp.errors import ArgumentError, ModelError, NonFiniteError, SeriesError, ShapeError
from dynwarp.training._objective import Objective

B, T, M = 2, 7, 4


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.fixture(scope="module")
def map():
    parts = [0.4 * normal(i, *shape) for i, shape in enumerate([(M,), (M, M), (M,), (M, 1)])]
    A, W, h, C = (jnp.asarray(p) for p in parts)
    return dw.models.ALRNN.from_parameters(A, W, h, 2, input_weight=C)


@pytest.fixture(scope="module")
def inputs():
    return jnp.asarray(normal(9, B, T, 1))


@eqx.filter_jit
def gradient(objective, model, windows, inputs):
    return objective.gradient(model, windows, inputs, None)


def by_hand(model, windows, inputs, interval=None, alpha=0.0):
    """The loss and its gradient by the recursion of the adjoint, in numpy, for a readout B z + c or the first N."""
    A, W, h, C = (np.asarray(x) for x in (model.map.A, model.map.W, model.map.h, model.map.input_weight))
    L = np.asarray(model.initial_weight)
    N = windows.shape[-1]
    observing = model.observes_state
    R = np.eye(N, M) if observing else np.asarray(model.readout.weight)
    c = np.zeros(N) if observing else np.asarray(model.readout.bias)
    P = np.linalg.pinv(R)
    seen = ~np.isnan(windows)
    total = seen[:, 1:].sum()
    sums = [np.zeros_like(x) for x in (A, W, h, C, L)]
    loss = 0.0
    relu = np.arange(M) >= 2
    for x, mask, s in zip(windows, seen, inputs):
        before = [np.concatenate([x[0], L @ x[0]]) if observing else L @ x[0]]
        errors, strengths = [], []
        for t in range(T):
            z = before[-1]
            z = A * z + W @ np.where(relu, np.maximum(z, 0), z) + h + C @ s[t]
            gap = np.where(mask[t + 1], x[t + 1] - R @ z - c, 0)
            errors.append(-gap)
            loss += np.sum(gap**2) / total
            strength = alpha if interval is None else float(t % interval == 0)
            strengths.append(strength)
            before.append(z + strength * P @ gap)
        delta = np.zeros(M)
        for t in reversed(range(T)):
            # What is forced passes only what its correction leaves: I - a P S R, S the observed channels.
            delta = delta - strengths[t] * R.T @ (mask[t + 1] * (P.T @ delta))
            delta = delta + 2 * R.T @ errors[t] / total
            z = before[t]
            sums[0] += delta * z
            sums[1] += np.outer(delta, np.where(relu, np.maximum(z, 0), z))
            sums[2] += delta
            sums[3] += np.outer(delta, s[t])
            delta = A * delta + np.where(relu, z > 0, 1.0) * (W.T @ delta)
        sums[4] += np.outer(delta[N:] if observing else delta, x[0])
    return loss, sums


def compare(model, windows, inputs, forcing, missing=False, **options):
    objective = Objective(training.mean_squared_error, forcing, jnp.zeros(()), None, (), missing)
    loss, found = gradient(objective, model, jnp.asarray(windows), inputs)
    expected, sums = by_hand(model, windows, inputs, **options)
    np.testing.assert_allclose(loss, expected, rtol=1e-12)
    parameters = (found.map.A, found.map.W, found.map.h, found.map.input_weight, found.initial_weight)
    for got, want in zip(parameters, sums):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("forcing", "options", "gaps"),
    [
        (training.SparseTeacherForcing(3), {"interval": 3}, False),
        (training.SparseTeacherForcing(3), {"interval": 3}, True),
        (training.GeneralizedTeacherForcing(0.3), {"alpha": 0.3}, True),
        (training.AdaptiveTeacherForcing(0.6), {"alpha": 0.6}, False),
    ],
)
def test_forced_gradients_equal_a_loop_by_hand(map, inputs, forcing, options, gaps):
    windows = normal(3, B, T + 1, 2)
    if gaps:
        windows[0, 2, 1] = windows[1, 4] = np.nan
    compare(training.Reconstruction(map, 2, key=jax.random.key(0)), windows, inputs, forcing, gaps, **options)


@pytest.mark.parametrize("channels", [3, 6])
def test_a_linear_readout_forces_by_its_pseudo_inverse(map, inputs, channels):
    """More channels than states, and fewer; the readout itself is held fixed by the comparison."""
    readout = dw.models.Readout(M, channels, key=jax.random.key(1))
    readout = eqx.tree_at(lambda r: r.bias, readout, jnp.asarray(normal(5, channels)))
    model = training.Reconstruction(map, channels, readout=readout, key=jax.random.key(0))
    np.testing.assert_allclose(model.initial_weight, np.linalg.pinv(readout.weight), atol=1e-12)
    x = normal(6, channels)
    np.testing.assert_allclose(
        model.explain(jnp.asarray(x)), np.linalg.lstsq(readout.weight, x - readout.bias)[0], atol=1e-12
    )
    windows = normal(7, B, T + 1, channels)
    windows[0, 3, 1] = np.nan
    if channels > M:
        compare(model, windows, inputs, training.SparseTeacherForcing(3), True, interval=3)
    compare(model, windows, inputs, training.GeneralizedTeacherForcing(0.3), True, alpha=0.3)

    # The readout has a gradient too, through the pseudo-inverse: against central differences.
    objective = Objective(
        training.mean_squared_error, training.GeneralizedTeacherForcing(0.3), jnp.zeros(()), None, (), True
    )
    direction = jnp.asarray(normal(8, channels, M))

    def at(step):
        moved = eqx.tree_at(lambda m: m.readout.weight, model, readout.weight + step * direction)
        return gradient(objective, moved, jnp.asarray(windows), inputs)

    slope = (at(1e-6)[0] - at(-1e-6)[0]) / 2e-6
    np.testing.assert_allclose(jnp.sum(at(0.0)[1].readout.weight * direction), slope, rtol=1e-7)


def test_a_readout_that_has_no_inverse(map):
    readout = dw.models.Readout(M, 2, activation=jnp.tanh, key=jax.random.key(1))
    options = {"steps": 1, "key": jax.random.key(0), "sequence_length": 5, "readout": readout}
    with pytest.raises(ArgumentError, match="readout must be linear"):
        training.fit(map, normal(0, 20, 2), forcing=training.SparseTeacherForcing(2), **options)


# --- adaptive


@pytest.fixture(scope="module")
def expanding(map):
    return eqx.tree_at(lambda m: m.W, map, 4 * map.W)


def test_estimates_are_those_of_the_definitions(expanding, inputs):
    map = expanding
    model = training.Reconstruction(map, 2, key=jax.random.key(0))
    x = normal(8, B, T, 2)
    x[1, 3, 0] = np.nan
    A, W, L = (np.asarray(p) for p in (map.A, map.W, model.initial_weight))
    jacobians = []
    for sequence in x:
        rows = [np.concatenate([v, L @ v]) for v in sequence if np.isfinite(v).all()]
        jacobians.append([np.diag(A) + W * np.where(np.arange(M) >= 2, z > 0, 1.0) for z in rows])
    norms = [np.array([np.linalg.norm(J, 2) for J in js]) for js in jacobians]
    canonical = map.canonical()
    expected = {
        "product_upper_bound": max(np.prod(n) ** (1 / len(n)) for n in norms),
        "batch_maximum": max(n.max() for n in norms),
        "geometric_mean": np.exp(np.mean(np.log(np.concatenate(norms)))),
        "arithmetic_mean": max(np.linalg.norm(np.mean(js, axis=0), 2) for js in jacobians),
        "jacobian_upper_bound": np.linalg.norm(canonical.A, 2)
        + np.linalg.norm(canonical.W1, 2) * np.linalg.norm(canonical.W2, 2),
    }
    assert len({round(n, 6) for n in expected.values() if n > 1}) == 5
    for estimator, n in expected.items():
        forcing = training.AdaptiveTeacherForcing(estimator=estimator)
        np.testing.assert_allclose(forcing.estimate(model, jnp.asarray(x), inputs), max(0, 1 - 1 / n), rtol=1e-10)
    explog = training.AdaptiveTeacherForcing(estimator="explog").estimate(model, jnp.asarray(x), inputs)
    np.testing.assert_allclose(explog, max(0, 1 - 1 / expected["geometric_mean"]), rtol=1e-10)


def test_alpha_jumps_up_is_annealed_down_and_waits(expanding, inputs):
    map = expanding
    model = training.Reconstruction(map, 2, key=jax.random.key(0))
    x = jnp.asarray(normal(8, B, T, 2))
    update = eqx.filter_jit(lambda forcing, model, step: forcing.updated(model, x, inputs, step).alpha)
    estimate = float(training.AdaptiveTeacherForcing().estimate(model, x, inputs))
    assert 0 < estimate < 1
    low = training.AdaptiveTeacherForcing(0.5 * estimate, every=5, decay=0.9)
    high = training.AdaptiveTeacherForcing(1.0, every=5, decay=0.9)
    np.testing.assert_allclose(update(low, model, 10), estimate, rtol=1e-12)
    np.testing.assert_allclose(update(high, model, 10), 0.9 + 0.1 * estimate, rtol=1e-12)
    assert update(high, model, 11) == 1.0
    # A contraction needs no forcing; a model of NaNs leaves alpha alone.
    tame = eqx.tree_at(lambda m: m.map, model, jax.tree.map(lambda p: 0.01 * p, map))
    np.testing.assert_allclose(update(high, tame, 0), 0.9, rtol=1e-12)
    broken = eqx.tree_at(lambda m: m.map.W, model, jnp.full((M, M), jnp.nan))
    assert update(high, broken, 0) == 1.0


def test_adaptive_forcing_is_annealed_in_a_training():
    t = 0.3 * np.arange(80.0)
    start = dw.models.ShallowPLRNN(2, 4, dtype=jnp.float32, key=jax.random.key(0))
    fitted = training.fit(
        start, np.stack([np.cos(t), np.sin(t)], axis=1), steps=21, key=jax.random.key(1), sequence_length=8,
        forcing=training.AdaptiveTeacherForcing(decay=0.5), optimizer=optax.adam(1e-3),
    )  # fmt: skip
    # Five updates halve the way from 1 to the estimate, which stays below 1/2 for a map of small weights.
    assert fitted.forcing.alpha.dtype == jnp.float32
    assert 0 <= float(fitted.forcing.alpha) < 0.6
    assert np.isfinite(fitted.history.loss).all()


# --- what is missing


def test_a_gap_and_a_mask_are_the_same_and_leave_the_rest_alone():
    t = 0.3 * np.arange(60.0)
    circle = np.stack([np.cos(t), np.sin(t)], axis=1)
    mask = np.ones_like(circle, bool)
    mask[7], mask[20:23, 1] = False, False
    holes = np.where(mask, circle, np.nan)
    model = dw.models.ALRNN(4, 2, key=jax.random.key(0))
    options = {"steps": 6, "key": jax.random.key(1), "sequence_length": 8, "noise": 0.1}
    with_mask = training.fit(model, np.where(mask, circle, 17.0), observed=mask, **options)
    with_nan = training.fit(model, [holes], observed="finite", validation=holes, **options)
    np.testing.assert_array_equal(with_mask.history.loss, with_nan.history.loss)
    assert np.isfinite(with_nan.history.loss).all()
    assert np.isfinite(with_nan.history.validation).all()
    assert np.isfinite(with_nan.model.W).all()
    with pytest.raises(NonFiniteError, match="data"):
        training.fit(model, holes, **options)
    with pytest.raises(ShapeError, match="mask"):
        training.fit(model, circle, observed=mask[:, :1], **options)
    with pytest.raises(ArgumentError, match="as many masks"):
        training.fit(model, circle, observed=[mask, mask], **options)
    with pytest.raises(ArgumentError, match="observed"):
        training.fit(model, circle, observed="some", **options)
    with pytest.raises(SeriesError, match="channel 1"):
        training.fit(model, circle * [1, np.nan], observed="finite", **options)
    with pytest.raises(SeriesError, match="no window"):
        training.fit(
            model, np.where(np.arange(60)[:, None] % 2 == [0, 1], circle, np.nan), observed="finite", **options
        )
    with pytest.raises(SeriesError, match=r"channel 0 .* constant"):
        training.fit(model, circle * [0, 1], **options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: training.AdaptiveTeacherForcing(2.0), ArgumentError, "`alpha`"),
        (lambda: training.AdaptiveTeacherForcing(decay=-0.1), ArgumentError, "`decay`"),
        (lambda: training.AdaptiveTeacherForcing(estimator="best"), ArgumentError, "product_upper_bound"),
        (lambda: training.AdaptiveTeacherForcing(every=0), ArgumentError, "`every`"),
        (lambda: training.SparseTeacherForcing(9).check(None, 8), ArgumentError, "`interval` 9 is longer .* 8 steps"),
        (
            lambda: training.AdaptiveTeacherForcing(estimator="jacobian_upper_bound").check(
                training.Reconstruction(dw.models.Elman(0, 3, key=jax.random.key(0)), 2, key=jax.random.key(1)), 8
            ),
            ModelError,
            "piecewise-linear",
        ),
        (
            lambda: training.fit(
                dw.models.ALRNN(3, 1, key=jax.random.key(0)), normal(0, 30, 2), steps=2, sequence_length=5,
                key=jax.random.key(0), forcing=training.SparseTeacherForcing(6),
            ),
            ArgumentError,
            "longer than the sequences",
        ),
    ],
)  # fmt: skip
def test_messages_of_forcing(call, error, message):
    with pytest.raises(error, match=message):
        call()
