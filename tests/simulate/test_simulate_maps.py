"""`simulate` over maps: conventions, remat, noise, keys, modes, derivatives, bad input."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp._simulate._scan import chunk_size

errors = dw.errors


class Cell(dw.models.AbstractMap):
    """A user's own map: sizes are plain whole numbers, a function and a tuple are fields."""

    state_size: int
    input_size: int
    W: jax.Array
    B: jax.Array
    scale: tuple
    activation: object

    def __call__(self, state, input=None, *, step=None):
        drive = self.W @ state
        if input is not None:
            drive = drive + self.B @ input
        return self.scale[0] * self.activation(drive)


class Clock(dw.models.AbstractMap):
    """Adds the step index, so that the index itself is seen."""

    state_size: int
    input_size: int

    def __call__(self, state, input=None, *, step=None):
        return state + step.astype(state.dtype)


def _cell(dtype=jnp.float64, n=3, d=2):
    rng = np.random.default_rng(0)
    W, B = rng.standard_normal((n, n)), rng.standard_normal((n, d))
    return Cell(n, d, jnp.asarray(W, dtype), jnp.asarray(B, dtype), (0.9, "a label"), jnp.tanh)


@pytest.fixture(scope="module")
def setting():
    k1, k2 = jax.random.split(jax.random.key(0))
    return _cell(), jax.random.normal(k1, (3,)), jax.random.normal(k2, (11, 2))


def _loop(cell, state, inputs):
    W, B, out = np.asarray(cell.W), np.asarray(cell.B), []
    h = np.asarray(state)
    for x in np.asarray(inputs):
        h = 0.9 * np.tanh(W @ h + B @ x)
        out.append(h)
    return np.stack(out)


# ---- Conventions.


def test_states_follow_their_inputs(setting):
    cell, state0, inputs = setting
    expected = _loop(cell, state0, inputs)
    np.testing.assert_allclose(dw.simulate(cell, state0, inputs), expected, atol=1e-14)
    np.testing.assert_allclose(dw.simulate(cell, state0, inputs, steps=11), expected, atol=1e-14)
    whole = dw.simulate(cell, state0, inputs, include_initial=True)
    np.testing.assert_array_equal(whole[0], state0)
    np.testing.assert_allclose(whole[1:], expected, atol=1e-14)
    np.testing.assert_allclose(jax.vmap(cell)(whole[:-1], inputs), whole[1:], atol=1e-14)


def test_without_inputs_the_model_is_given_none(setting):
    cell, state0, _ = setting
    states = dw.simulate(cell, state0, steps=4)
    np.testing.assert_allclose(states, _loop(cell, state0, np.zeros((4, 2))), atol=1e-14)


def test_the_step_index_counts_from_zero():
    assert dw.simulate(Clock(1, 0), jnp.zeros(1), steps=5)[:, 0].tolist() == [0.0, 1.0, 3.0, 6.0, 10.0]
    assert dw.simulate(Clock(1, 0), jnp.zeros(1), steps=5, remat=2)[:, 0].tolist() == [0.0, 1.0, 3.0, 6.0, 10.0]


def test_no_steps_are_no_states(setting):
    cell, state0, inputs = setting
    assert dw.simulate(cell, state0, steps=0).shape == (0, 3)
    assert dw.simulate(cell, state0, inputs[:0], remat="sqrt").shape == (0, 3)
    assert dw.simulate(cell, state0, steps=0, include_initial=True).shape == (1, 3)


def test_divergence_is_no_error():
    grow = dw.models.LinearRNN(1e200 * jnp.eye(1), jnp.ones((1, 1)), jnp.ones((1, 1)))
    states = dw.simulate(grow, jnp.ones(1), steps=3)
    assert not bool(jnp.isfinite(states).all())


def test_it_works_for_every_published_model():
    """Each kind of map on floor 1 is stepped as its own call says."""
    keys = iter(jax.random.split(jax.random.key(1), 8))
    models = [
        dw.models.LSTM(2, 3, key=next(keys)),
        dw.models.PLRNN(3, input_size=2, key=next(keys)),
        dw.models.LRU(2, 3, 1, key=next(keys)),
    ]
    inputs = jax.random.normal(next(keys), (4, 2))
    for model in models:
        state = 0.1 * jnp.arange(model.state_size, dtype=float)
        states = dw.simulate(model, state, inputs)
        for x, got in zip(inputs, states):
            state = model(state, x)
            np.testing.assert_allclose(got, state, atol=1e-13)


# ---- dtypes.


def test_float32_stays_float32_and_is_accurate(setting):
    cell, state0, inputs = setting
    single = _cell(jnp.float32)
    states = dw.simulate(single, state0.astype(jnp.float32), inputs.astype(jnp.float32))
    assert states.dtype == jnp.float32
    np.testing.assert_allclose(states, _loop(cell, state0, inputs), atol=2e-6)


def test_whole_numbers_and_lists_start_in_the_default_precision():
    assert dw.simulate(Clock(1, 0), np.array([3]), steps=2).dtype == jnp.float64


def test_the_state_takes_the_precision_of_the_model():
    with jax.numpy_dtype_promotion("standard"):
        states = dw.simulate(_cell(), jnp.zeros(3, jnp.float32), steps=2, include_initial=True)
    assert states.dtype == jnp.float64


def test_precisions_that_strict_promotion_keeps_apart_are_named():
    with pytest.raises(dw.errors.ArgumentError, match="`model` float64, `state0` float32"):
        dw.simulate(_cell(), jnp.zeros(3, jnp.float32), steps=2)


# ---- jit, vmap, derivatives.


def test_jit_and_vmap(setting):
    cell, state0, inputs = setting
    expected = dw.simulate(cell, state0, inputs)
    np.testing.assert_allclose(eqx.filter_jit(dw.simulate)(cell, state0, inputs), expected, atol=1e-15)
    batch = jax.vmap(lambda s: dw.simulate(cell, s, inputs))(jnp.stack([state0, -state0]))
    np.testing.assert_allclose(batch[0], expected, atol=1e-15)
    np.testing.assert_allclose(batch[1], dw.simulate(cell, -state0, inputs), atol=1e-15)


def test_a_second_call_does_not_compile(setting):
    cell, state0, inputs = setting
    traces = []

    class Counting(dw.models.AbstractMap):
        state_size: int
        input_size: int
        W: jax.Array

        def __call__(self, state, input=None, *, step=None):
            traces.append(1)
            return self.W @ state

    for factor in (1.0, 2.0, 3.0):
        dw.simulate(Counting(3, 2, factor * cell.W), state0, inputs)
        if factor == 1:
            first = len(traces)
    assert len(traces) == first


@pytest.mark.parametrize("remat", [None, 4])
def test_derivatives_both_ways(setting, remat):
    cell, state0, inputs = setting

    def loss(W, state0, inputs):
        model = eqx.tree_at(lambda c: c.W, cell, W)
        return jnp.sum(jnp.sin(dw.simulate(model, state0, inputs, remat=remat)))

    point = (cell.W, state0, inputs)
    direction = jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size, dtype=float)).reshape(x.shape), point)

    @jax.jit
    def along(h):
        return loss(*jax.tree.map(lambda x, d: x + h * d, point, direction))

    # Fourth-order central difference: 1e-3^4 and 1e-16 / 1e-3.
    h = 1e-3
    difference = (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h)
    forward = jax.jvp(along, (0.0,), (1.0,))[1]
    backward = sum(
        jnp.vdot(g, d) for g, d in zip(jax.tree.leaves(jax.grad(loss, (0, 1, 2))(*point)), jax.tree.leaves(direction))
    )
    assert float(forward) == pytest.approx(float(difference), rel=1e-9)
    assert float(backward) == pytest.approx(float(forward), rel=1e-12)


# ---- remat.


@pytest.mark.parametrize("remat", [1, 3, 11, 50, "sqrt"])
def test_remat_changes_neither_values_nor_gradients(setting, remat):
    cell, state0, inputs = setting

    def value_and_gradient(remat):
        return jax.value_and_grad(lambda x: jnp.sum(dw.simulate(cell, state0, x, remat=remat) ** 2))(inputs)

    for got, want in zip(value_and_gradient(remat), value_and_gradient(None)):
        np.testing.assert_allclose(got, want, rtol=1e-14, atol=1e-15)
    np.testing.assert_array_equal(dw.simulate(cell, state0, inputs, remat=remat), dw.simulate(cell, state0, inputs))


@pytest.mark.parametrize("remat", [None, 4])
def test_the_last_state_alone(setting, remat):
    cell, state0, inputs = setting
    np.testing.assert_array_equal(
        dw.simulate(cell, state0, inputs, remat=remat, last_only=True), dw.simulate(cell, state0, inputs)[-1]
    )
    np.testing.assert_array_equal(dw.simulate(cell, state0, steps=0, remat=remat, last_only=True), state0)
    linear = dw.models.LinearRNN(cell.W, cell.B, cell.W)
    last = dw.simulate(linear, state0, inputs, remat=remat, last_only=True)
    np.testing.assert_allclose(last, dw.simulate(linear, state0, inputs)[-1], rtol=1e-12)


def test_chunks_of_remat():
    assert [chunk_size("sqrt", n) for n in (0, 1, 2, 4, 5, 4096)] == [1, 1, 2, 2, 3, 64]
    assert chunk_size(7, 100) == 7
    assert chunk_size(None, 100) is None


def test_remat_needs_a_twentieth_of_the_memory():
    steps, batch, n = 4096, 8, 64
    model = dw.models.Elman(n, n, dtype=jnp.float32, key=jax.random.key(0))
    shapes = (
        eqx.filter(model, eqx.is_inexact_array),
        jax.ShapeDtypeStruct((batch, n), jnp.float32),
        jax.ShapeDtypeStruct((batch, steps, n), jnp.float32),
    )
    static = eqx.filter(model, eqx.is_inexact_array, inverse=True)

    def temporary_bytes(remat):
        def loss(arrays, state0, inputs):
            cell = eqx.combine(arrays, static)
            last = jax.vmap(lambda s, x: dw.simulate(cell, s, x, remat=remat, last_only=True))(state0, inputs)
            return jnp.sum(last**2)

        compiled = jax.jit(jax.grad(loss)).lower(*shapes).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert 20 * temporary_bytes("sqrt") <= temporary_bytes(None)


# ---- Noise and keys.


def test_noise_has_the_variance_asked_for():
    still = dw.models.LinearRNN(jnp.zeros((2, 2)), jnp.ones((2, 1)), jnp.ones((1, 2)))
    noise = jnp.array([0.5, 2.0])
    states = dw.simulate(still, jnp.zeros(2), steps=20_000, noise=noise, key=jax.random.key(0))
    # The relative standard error of a variance is sqrt(2 / T) = 0.01.
    np.testing.assert_allclose(jnp.var(states, axis=0), noise**2, rtol=0.04)
    assert float(jnp.abs(jnp.mean(states[1:, 0] * states[:-1, 0]))) < 0.25 * 4 / np.sqrt(20_000)
    assert float(jnp.abs(jnp.mean(states[:, 0] * states[:, 1]))) < 4 / np.sqrt(20_000)


def test_noise_is_fixed_by_its_key(setting):
    cell, state0, inputs = setting
    one, two = jax.random.split(jax.random.key(5))

    def run(key, **options):
        return dw.simulate(cell, state0, inputs, noise=0.1, key=key, **options)

    np.testing.assert_array_equal(run(one), run(one))
    assert not np.array_equal(run(one), run(two))
    np.testing.assert_allclose(run(one, remat=4), run(one), atol=1e-15)
    shorter = dw.simulate(cell, state0, inputs[:6], noise=0.1, key=one)
    np.testing.assert_allclose(run(one)[:6], shorter, atol=1e-15)
    np.testing.assert_allclose(
        dw.simulate(cell, state0, inputs, noise=0.0, key=one), dw.simulate(cell, state0, inputs), atol=1e-15
    )


def test_dropout_takes_a_key_a_step():
    keys = jax.random.split(jax.random.key(0), 2)
    cells = [dw.models.Elman(2, 4, key=keys[0]), dw.models.Elman(4, 3, key=keys[1])]
    net = dw.models.Stack(cells, dropout=0.5)
    inputs = jnp.ones((40, 2))
    quiet = dw.simulate(net, jnp.zeros(7), inputs)
    np.testing.assert_allclose(quiet, dw.simulate(dw.models.Stack(cells), jnp.zeros(7), inputs), atol=1e-15)
    noisy = dw.simulate(net, jnp.zeros(7), inputs, key=jax.random.key(1))
    # The lower layer is the same; the upper one is not, and still moves at the end: a new mask in every step.
    np.testing.assert_allclose(noisy[:, :4], quiet[:, :4], atol=1e-15)
    assert float(jnp.std(noisy[20:, 4:], axis=0).min()) > 1e-3
    assert float(jnp.std(quiet[30:, 4:], axis=0).max()) < 1e-3
    np.testing.assert_array_equal(noisy, dw.simulate(net, jnp.zeros(7), inputs, key=jax.random.key(1)))


# ---- Modes.


def test_auto_is_the_scan_on_a_cpu():
    if jax.default_backend() != "cpu":
        pytest.skip("the associative form is the choice of an accelerator")
    model = dw.models.LRU(2, 3, 1, key=jax.random.key(0))
    inputs = jax.random.normal(jax.random.key(1), (9, 2))
    auto, scan = (dw.simulate(model, jnp.zeros(6), inputs, mode=mode) for mode in ("auto", "scan"))
    np.testing.assert_array_equal(auto, scan)


def test_auto_is_the_associative_form_elsewhere(monkeypatch):
    model = dw.models.LRU(2, 3, 1, key=jax.random.key(0))
    inputs = jax.random.normal(jax.random.key(1), (9, 2))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    auto = dw.simulate(model, jnp.zeros(6), inputs)
    np.testing.assert_array_equal(auto, dw.simulate(model, jnp.zeros(6), inputs, mode="associative"))
    # With noise, or checkpoints, only the scan will do.
    noisy = dw.simulate(model, jnp.zeros(6), inputs, noise=0.0, key=jax.random.key(0))
    np.testing.assert_allclose(noisy, auto, atol=1e-13)


def test_a_linear_recurrence_of_the_user():
    """The base class asks for two parallel forms; the scan is made from the step."""

    class Decay(dw.models.AbstractLinearRecurrence):
        state_size: int
        input_size: int
        rate: float

        def __call__(self, state, input=None, *, step=None):
            return self.rate * state if input is None else self.rate * state + input

        def associative(self, state0, inputs):
            return jax.lax.associative_scan(
                lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]),
                (jnp.full_like(inputs, self.rate), inputs.at[0].add(self.rate * state0)),
            )[1]

        def convolution(self, state0, inputs):
            raise dw.errors.ModelError("Decay has no convolution.")

    inputs = jax.random.normal(jax.random.key(0), (6, 1))
    scan = dw.simulate(Decay(1, 1, 0.5), jnp.ones(1), inputs)
    np.testing.assert_allclose(dw.simulate(Decay(1, 1, 0.5), jnp.ones(1), inputs, mode="associative"), scan, atol=1e-15)


def test_bidirectional_networks():
    keys = jax.random.split(jax.random.key(0), 2)
    cells = [dw.models.Elman(2, 3, key=keys[0]), dw.models.Elman(2, 4, key=keys[1])]
    net = dw.models.Bidirectional(*cells)
    inputs = jax.random.normal(jax.random.key(1), (5, 2))
    state0 = jnp.linspace(-1, 1, 7)
    states = dw.simulate(net, state0, inputs)
    np.testing.assert_allclose(states[:, :3], dw.simulate(cells[0], state0[:3], inputs), atol=1e-14)
    np.testing.assert_allclose(states[::-1, 3:], dw.simulate(cells[1], state0[3:], inputs[::-1]), atol=1e-14)
    with pytest.raises(errors.ModelError, match="Bidirectional"):
        dw.simulate(net, state0, steps=3)
    with pytest.raises(errors.ArgumentError, match="`noise`"):
        dw.simulate(net, state0, inputs, noise=1.0, key=keys[0])


# ---- Bad input.


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (dict(state0=jnp.zeros(2), steps=1), errors.ShapeError, r"`state0` must have shape \(3,\); got \(2,\)"),
        (dict(state0=jnp.zeros((2, 3)), steps=1), errors.ShapeError, "`state0`"),
        (dict(state0=jnp.array([0.0, jnp.nan, 0.0]), steps=1), errors.NonFiniteError, "`state0`"),
        (dict(inputs=jnp.zeros((4, 3))), errors.ShapeError, r"`inputs` must have shape \(T, 2\)|`inputs`"),
        (dict(inputs=jnp.zeros(2)), errors.ShapeError, "`inputs`"),
        (dict(inputs=jnp.zeros((4, 2)).at[2, 1].set(jnp.inf)), errors.NonFiniteError, r"\(2, 1\)"),
        (dict(inputs=jnp.zeros((4, 2)), steps=5), errors.ArgumentError, "`steps` is 5, but `inputs` has 4 rows"),
        (dict(), errors.ArgumentError, "`inputs`, shape .* or `steps`"),
        (dict(steps=-1), errors.ArgumentError, "`steps`"),
        (dict(steps=2.5), errors.ArgumentError, "2.5"),
        (dict(steps=1, mode="parallel"), errors.ArgumentError, "'auto'"),
        (dict(steps=1, mode="associative"), errors.ModelError, "Cell"),
        (dict(steps=1, mode="fft"), errors.ModelError, "Cell"),
        (dict(steps=1, remat=0), errors.ArgumentError, "`remat`"),
        (dict(steps=1, remat="log"), errors.ArgumentError, "`remat`"),
        (dict(steps=1, noise=0.1), errors.ArgumentError, "`key`"),
        (dict(steps=1, noise=-0.1, key=0), errors.ArgumentError, "-0.1"),
        (dict(steps=1, noise=jnp.ones(2), key=0), errors.ShapeError, "`noise`"),
        (dict(steps=1, include_initial=True, last_only=True), errors.ArgumentError, "`last_only`"),
        (dict(steps=1, dt=0.1), errors.ArgumentError, "discrete time, without `dt`"),
        (dict(ts=jnp.arange(3.0)), errors.ArgumentError, "`ts`"),
    ],
)
def test_bad_arguments_are_named(options, error, words):
    if "key" in options:
        options = options | {"key": jax.random.key(0)}
    with pytest.raises(error, match=words):
        dw.simulate(_cell(), **({"state0": jnp.zeros(3)} | options))


def test_bad_models_are_named():
    with pytest.raises(errors.ModelError, match=r"function.*from_cell"):
        dw.simulate(lambda h: h, jnp.zeros(1), steps=1)

    class Wrong(dw.models.AbstractMap):
        state_size: int
        input_size: int

        def __call__(self, state, input=None, *, step=None):
            return state[:-1]

    with pytest.raises(errors.ModelError, match=r"Wrong must return a state, shape \(2,\); got \(1,\)"):
        dw.simulate(Wrong(2, 0), jnp.zeros(2), steps=1)
    linear = dw.models.LinearRNN(jnp.eye(1), jnp.ones((1, 1)), jnp.ones((1, 1)))
    for name, value in dict(remat=1, last_only=True).items():
        with pytest.raises(errors.ArgumentError, match=f"without `{name}`"):
            dw.simulate(linear, jnp.zeros(1), steps=1, mode="fft", **{name: value})
