"""SpikeDecoder: its attention against a loop over single spikes, its memory, what analyses see of it, and training."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

import dynwarp as dw
from dynwarp.errors import ArgumentError, ModelError, ShapeError

m = dw.models
UNITS, WIDTH, HEADS, MEMORY = 5, 4, 2, 3
KEYS = jax.random.split(jax.random.key(3), 4)
BACKBONES = {
    "GRU": lambda dtype: m.GRU(WIDTH, 6, dtype=dtype, key=KEYS[0]),
    "S4D": lambda dtype: m.S4D(WIDTH, 2, dt_min=0.1, dt_max=1.0, dtype=dtype, key=KEYS[0]),
}


def filled(make):
    """The module with other random numbers, without the programs that draw its own."""
    rng = np.random.default_rng(0)

    def fill(x):
        if not isinstance(x, jax.ShapeDtypeStruct):
            return x
        return jnp.asarray(rng.standard_normal(x.shape) / max(1, x.shape[-1]) ** 0.5, x.dtype)

    return jax.tree.map(fill, eqx.filter_eval_shape(make))


def decoder(name, dtype=None):
    return filled(lambda: m.SpikeDecoder(UNITS, BACKBONES[name](dtype), 2, heads=HEADS, memory=MEMORY, key=KEYS[1]))


@pytest.fixture(scope="module")
def nets():
    return {name: decoder(name) for name in BACKBONES}


@pytest.fixture(scope="module", params=list(BACKBONES))
def net(request, nets):
    return nets[request.param]


@eqx.filter_jit
def stepped(net, state, counts=None):
    """One step, and the outputs after it."""
    state = net(state, counts)
    return state, net.readout()(state)


@eqx.filter_jit
def encoded(net, counts):
    return jax.vmap(net.encode)(counts)


def attention(tokens, query, K, V, O, heads):  # noqa: E741
    """Cross-attention of one query to tokens (n, d), head by head."""
    width, found = len(query) // heads, []
    for h in range(heads):
        part = slice(h * width, (h + 1) * width)
        weights = softmax((tokens @ K.T)[:, part] @ query[part] / np.sqrt(width))
        found.append(weights @ (tokens @ V.T)[:, part])
    return O @ np.concatenate(found)


def block(module, tokens, heads):
    query, *matrices = (
        np.asarray(x) for x in (module.query, module.key_weight, module.value_weight, module.output_weight)
    )
    x = attention(np.asarray(tokens), query, *matrices, heads)
    hidden = module.widen.weight @ x + module.widen.bias
    gelu = 0.5 * hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
    return x + module.narrow.weight @ gelu + module.narrow.bias


@pytest.mark.parametrize("counts", [[0, 2, 1, 0, 3], [0, 0, 0, 0, 0]])
def test_input_attention_is_over_single_spikes(net, counts):
    """Every spike a token of its own, and one of silence."""
    tokens = [net.embedding[i] for i, count in enumerate(counts) for _ in range(count)]
    tokens = np.stack([*tokens, net.embedding[UNITS]])
    found = encoded(net, jnp.array([counts] * 7, float))[0]
    np.testing.assert_allclose(found, block(net.attention, tokens, HEADS), rtol=1e-12)


@pytest.fixture(scope="module")
def run(net):
    counts = jnp.asarray(np.random.default_rng(4).poisson(1.0, (7, UNITS)).astype(float))
    return counts, dw.simulate(net, jnp.zeros(net.state_size), counts)


def test_the_state_is_the_backbones_and_its_last_emissions(net, run):
    counts, states = run
    backbone = net.backbone
    z = encoded(net, counts)
    hidden = dw.simulate(backbone, jnp.zeros(backbone.state_size), z)
    emitted = hidden
    if isinstance(backbone, m.S4D):
        modes = np.asarray(hidden).reshape(7, 2, WIDTH, 2)
        C = np.stack([2 * backbone.C_real, -2 * backbone.C_imag])
        emitted = np.einsum("tpcm,pcm->tc", modes, C) + np.asarray(backbone.D * z)
    size = backbone.state_size
    np.testing.assert_allclose(states[:, :size], hidden, rtol=1e-11, atol=1e-13)
    padded = np.concatenate([np.zeros((MEMORY - 1, emitted.shape[1])), emitted])
    for i in range(len(counts)):
        kept = padded[i : i + MEMORY][::-1]
        np.testing.assert_allclose(states[i, size:], kept.ravel(), rtol=1e-11, atol=1e-13)


def test_outputs_are_attention_to_the_memory(net, run):
    """And a step by itself is that of the run, in which the tokens are made once."""
    counts, states = run
    state, output = stepped(net, states[2], counts[3])
    np.testing.assert_allclose(state, states[3], rtol=1e-12, atol=1e-14)
    readout = net.readout()
    memory = np.asarray(state)[net.backbone.state_size :].reshape(MEMORY, -1)
    tokens = memory @ np.asarray(readout.embed).T + np.asarray(readout.place)
    expected = readout.weight @ block(readout.attention, tokens, HEADS) + readout.bias
    np.testing.assert_allclose(output, expected, rtol=1e-11)


def test_memory_is_nilpotent(net, run):
    """The multipliers are those of the backbone, and zeros."""
    counts, states = run
    size = net.backbone.state_size
    jacobian = np.asarray(dw.dynamics.jacobian(net, states[1], counts[2]))
    np.testing.assert_array_equal(jacobian[:size, size:], 0.0)
    memory = jacobian[size:, size:]
    np.testing.assert_array_equal(np.linalg.matrix_power(memory, MEMORY), 0.0)
    if isinstance(net.backbone, m.S4D):
        found = np.linalg.eigvals(jacobian[:size, :size])
        multipliers = np.asarray(net.backbone.multipliers())
        expected = np.concatenate([multipliers, multipliers.conj()])
        np.testing.assert_allclose(np.sort_complex(found), np.sort_complex(expected), rtol=1e-10)


def test_metric_of_its_states(nets):
    """No kink is found in it; the metric by its steps and by autodiff of the whole."""
    net, task = nets["GRU"], dw.tasks.CentreOut(n_neurons=UNITS, delays=(0.2,), dt=0.2)
    theta, start = jnp.array([2.0, 1.5]), jnp.zeros(net.state_size)
    surface = dw.geometry.state_manifold(net, task, state0=start, step=4)
    metric = dw.geometry.representation_metric(net, task, theta, state0=start, keep="metric")
    np.testing.assert_allclose(metric.G[4], surface.metric(theta), rtol=1e-9, atol=1e-14)


def test_float32_stays_float32():
    net = decoder("GRU", jnp.float32)
    leaves = jax.tree.leaves(eqx.filter(net, eqx.is_inexact_array))
    assert {str(x.dtype) for x in leaves} == {"float32"}
    start = jnp.zeros(net.state_size, jnp.float32)
    state, output = stepped(net, start)
    assert state.dtype == output.dtype == jnp.float32
    assert net.encode(jnp.zeros(UNITS, jnp.int32)).dtype == jnp.float32
    # Whole numbers are counts too, and no input is silence.
    np.testing.assert_array_equal(state, stepped(net, start, jnp.zeros(UNITS, jnp.int32))[0])


def test_dropout_of_the_backbone_is_drawn():
    cells = [m.Elman(WIDTH, 4, key=KEYS[0]), m.Elman(4, 3, key=KEYS[2])]
    net = filled(lambda: m.SpikeDecoder(UNITS, m.Stack(cells, dropout=0.5), 1, heads=1, memory=1, key=KEYS[1]))
    state, keys = jnp.ones(net.state_size), jax.random.split(jax.random.key(0), 8)
    dropped = jax.jit(jax.vmap(lambda key: net(state, jnp.ones(UNITS), key=key)))(keys)
    assert net.stochastic
    assert net.state_size == 10
    assert len({tuple(x.tolist()) for x in dropped}) > 1


FOUR = m.from_cell(lambda x, state: state, 2, WIDTH)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda net: stepped(net, jnp.zeros(3)), ShapeError, "SpikeDecoder: `state`"),
        (lambda net: stepped(net, jnp.zeros(24), jnp.zeros(4)), ShapeError, "SpikeDecoder: `input`"),
        (lambda net: net.encode(jnp.zeros(4)), ShapeError, "counts"),
        (lambda net: net.readout()(jnp.zeros(4)), ShapeError, "AttentionReadout: `state`"),
        (lambda _: m.SpikeDecoder(5, FOUR, 2, heads=3, key=KEYS[0]), ArgumentError, "`heads` must div"),
        (lambda _: m.SpikeDecoder(5, m.CTRNN(4, 3, key=KEYS[0]), 2, key=KEYS[0]), ModelError, "`backbone`"),
        (lambda _: m.SpikeDecoder(5, m.Elman(0, 3, key=KEYS[0]), 2, key=KEYS[0]), ArgumentError, "backbone.input_size"),
        (lambda _: m.SpikeDecoder(0, FOUR, 2, key=KEYS[0]), ArgumentError, "n_units"),
        (lambda _: m.SpikeDecoder(5, FOUR, 2, memory=0, key=KEYS[0]), ArgumentError, "memory"),
        (lambda _: m.AttentionReadout(0, 2, 1, width=5, heads=2, key=KEYS[0]), ArgumentError, "heads"),
    ],
)
def test_messages(nets, make, error, message):
    with pytest.raises(error, match=message):
        make(nets["GRU"])
