"""Echo state networks: their weights and steps in numpy, readouts by regression, loops, capacities, the echo state."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp._linalg import ridge_regression
from dynwarp._linalg._ridge import gram_matrix
from dynwarp.errors import ArgumentError, ConvergenceError, ModelError, NonFiniteError, PrecisionError, ShapeError
from dynwarp.models import _topologies
from dynwarp.models._topologies import draw_topology, matrix_radius

m, g, tr = dw.models, dw.gradients, dw.training
KEY = jax.random.key(0)
N, D, T = 21, 2, 120
TOPOLOGIES = ("sparse", "dense", "block_sparse", "k_regular", "cycle")


def _net(topology="block_sparse", **options):
    options = {"spectral_radius": 0.8, "leak": 0.7, "density": 0.3, "block_size": 4} | options
    return m.EchoStateNetwork(D, N, topology=topology, key=KEY, **options)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(T, D))
    targets = np.stack([np.roll(inputs[:, 0], 1) * inputs[:, 1], inputs[:, 0] ** 2, np.roll(inputs[:, 1], 2)], 1)
    return jnp.asarray(inputs), jnp.asarray(targets)


# ---- weights and steps


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_reservoir_is_its_formula(topology, data, tmp_path):
    net = _net(topology)
    W = np.asarray(net.recurrent_matrix())
    assert abs(np.abs(np.linalg.eigvals(W)).max() - 0.8) < 1e-12  # the true radius, complex eigenvalues included
    V, b, h = np.asarray(net.input_weight), np.asarray(net.bias), np.zeros(N)
    move = eqx.filter_jit(net)
    for x in np.asarray(data[0][:6]):
        new = 0.3 * h + 0.7 * np.tanh(W @ h + V @ x + 0.1 * b)
        np.testing.assert_allclose(move(jnp.asarray(h), jnp.asarray(x)), new, rtol=1e-12, atol=1e-14)
        h = new
    if topology == "dense":
        again = dw.io.load(dw.io.save(tmp_path / "net.dyn", net))
        np.testing.assert_array_equal(again.recurrent_matrix(), W)
        slopes = 1 - np.tanh(W @ h + V @ np.ones(D) + 0.1 * b) ** 2
        expected = 0.3 * np.eye(N) + 0.7 * slopes[:, None] * W
        np.testing.assert_allclose(dw.dynamics.jacobian(net, jnp.asarray(h), jnp.ones(D)), expected, atol=1e-13)


def test_connections_are_those_of_the_topology():
    sparse, regular, cycle = (np.asarray(_net(t).recurrent_matrix()) != 0 for t in ("sparse", "k_regular", "cycle"))
    np.testing.assert_array_equal(sparse.sum(1), 6)
    np.testing.assert_array_equal([regular.sum(0), regular.sum(1)], 6)
    np.testing.assert_array_equal(cycle, np.roll(np.eye(N), 1, 0) != 0)
    blocks = np.pad(np.asarray(_net("block_sparse").recurrent_matrix()) != 0, ((0, 3), (0, 3))).reshape(6, 4, 6, 4)
    np.testing.assert_array_equal(blocks.any((1, 3)).sum(1), 2)
    assert blocks[0, :, :5].all((0, 2)).sum() == blocks[0, :, :5].any((0, 2)).sum()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_large_radius_by_arnoldi(topology, monkeypatch):
    """What finds the radius of thousands of units, on few: against all eigenvalues."""
    values, columns = draw_topology(topology, 150, 0.1, 7, np.random.default_rng(1))
    expected = matrix_radius(values, columns, 150)
    monkeypatch.setattr(_topologies, "_DENSE_LIMIT", 100)
    assert abs(matrix_radius(values, columns, 150) / expected - 1) < 1e-12


def test_given_weights(data):
    line = m.DelayLineInit(0.5)(KEY, (4, 4))
    net = m.EchoStateNetwork.from_parameters(line, jnp.eye(4)[:, :1], activation=jax.nn.identity)
    np.testing.assert_array_equal(net.recurrent_matrix(), line)
    np.testing.assert_allclose(dw.simulate(net, jnp.zeros(4), jnp.eye(4)[:, :1])[-1], [0, 0, 0, 0.125], atol=1e-15)
    W = np.random.default_rng(0).normal(size=(5, 5))
    net = m.EchoStateNetwork.from_parameters(W, jnp.ones((5, 1)), bias=jnp.ones(5), leak=0.5)
    np.testing.assert_allclose(net.spectral_radius, np.abs(np.linalg.eigvals(W)).max(), rtol=1e-12)
    np.testing.assert_allclose(net(jnp.zeros(5)), 0.5 * np.tanh(np.ones(5)), rtol=1e-14)
    with pytest.raises(ShapeError, match="`recurrent_matrix`"):
        m.EchoStateNetwork.from_parameters(jnp.ones((2, 3)), jnp.ones((2, 1)))
    with pytest.raises(NonFiniteError, match="`recurrent_matrix`"):
        m.EchoStateNetwork.from_parameters(jnp.full((2, 2), jnp.nan), jnp.ones((2, 1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spectral_radius": -1.0}, "`spectral_radius`"),
        ({"spectral_radius": jnp.nan}, "`spectral_radius`"),
        ({"leak": 0.0}, "`leak`"),
        ({"leak": 1.5}, "`leak`"),
        ({"density": 0.0}, "`density`"),
        ({"topology": "ring"}, "`topology`"),
        ({"block_size": 0}, "`block_size`"),
    ],
)
def test_bad_reservoirs(options, message):
    with pytest.raises(ArgumentError, match=message):
        m.EchoStateNetwork(1, 5, key=KEY, **options)


def test_traced_keys_are_refused():
    with pytest.raises(ArgumentError, match="`key` is traced"):
        jax.vmap(lambda k: m.EchoStateNetwork(1, 5, key=k).bias)(jax.random.split(KEY, 2))


# ---- readouts


@pytest.fixture(scope="module")
def fit(data):
    return tr.fit_readout(_net(), *data, ridge=1e-6, washout=10)


def test_fit_is_the_normal_equations(fit, data):
    inputs, targets = map(np.asarray, data)
    X = np.concatenate([fit.states, inputs, np.ones((T, 1))], 1)[10:]
    Y = targets[10:]
    r = 1e-6 * np.trace(X.T @ X) / X.shape[1]
    W = np.linalg.lstsq(np.vstack([X, np.sqrt(r) * np.eye(X.shape[1])]), np.vstack([Y, np.zeros((X.shape[1], 3))]))[0].T
    got = np.concatenate([fit.readout.C, fit.readout.D, fit.readout.bias[:, None]], 1)
    np.testing.assert_allclose(got, W, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(fit.mean_squared_error, np.mean((Y - X @ W.T) ** 2, 0), rtol=1e-8)
    outputs = jax.vmap(_net().with_readout(fit.readout).readout())(fit.states, data[0])
    np.testing.assert_allclose(outputs[10:], X @ W.T, atol=1e-8)


def test_streaming_is_batch(fit, data):
    features = tr.readout_features(fit.states, data[0])[10:]
    targets = data[1][10:]
    equations = tr.NormalEquations(features.shape[1], 3)
    for a in (0, 55):
        equations = equations.update(features[a : a + 55], targets[a : a + 55])
    streamed = equations.solve(1e-6).weights
    np.testing.assert_allclose(streamed[:, :N], fit.readout.C, atol=1e-9)
    np.testing.assert_allclose(streamed, ridge_regression(features, targets, 1e-6).weights, atol=1e-9)

    r = 1e-3
    recursive, errors = tr.RecursiveLeastSquares(features.shape[1], 3, ridge=r).update_many(features, targets)
    np.testing.assert_allclose(recursive.weights, equations.solve(r, relative=False).weights, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(errors[0], targets[0], atol=1e-14)


def test_forgetting_weighs_rows():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(30, 3)), rng.normal(size=(30, 2))
    found, _ = tr.RecursiveLeastSquares(3, 2, ridge=0.1, forgetting=0.9).update_many(jnp.asarray(X), jnp.asarray(Y))
    weights = 0.9 ** np.arange(29, -1, -1)
    W = np.linalg.solve(X.T @ (weights[:, None] * X) + 0.1 * 0.9**30 * np.eye(3), X.T @ (weights[:, None] * Y)).T
    np.testing.assert_allclose(found.weights, W, rtol=1e-10)


def test_path_and_cross_validation():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 12))
    Y = X[:, :1] + 0.8 * rng.normal(size=(40, 1))
    ridges = np.array([1e-6, 1e-2, 0.3, 3.0, 30.0])
    path = tr.NormalEquations(12, 1).update(jnp.asarray(X), jnp.asarray(Y)).path(ridges, relative=False)
    for i, r in enumerate(ridges):
        hat = X @ np.linalg.solve(X.T @ X + r * np.eye(12), X.T)
        error = np.mean((Y - hat @ Y) ** 2)
        np.testing.assert_allclose(path.degrees_of_freedom[i], np.trace(hat), rtol=1e-9)
        np.testing.assert_allclose(path.mean_squared_error[i], error, rtol=1e-9)
        np.testing.assert_allclose(path.score[i], error / (1 - np.trace(hat) / 40) ** 2, rtol=1e-9)
        np.testing.assert_allclose(X @ path.weights[i].T, hat @ Y, atol=1e-10)
    assert int(path.best) == int(np.argmin(path.score)) not in (0, 4)


def test_candidates_batches_and_input_free_readouts(data):
    net = _net()
    inputs, targets = (x.reshape(2, T // 2, -1) for x in data)
    found = tr.fit_readout(net, inputs, targets, ridge=jnp.array([1e-8, 1e-3, 1.0]), washout=5, use_input=False)
    assert found.path is not None
    assert float(found.ridge) == float(found.path.ridges[int(found.path.best)])
    assert found.readout.D is None
    assert found.states.shape == (2, T // 2, N)
    np.testing.assert_allclose(found.states[1], dw.simulate(net, jnp.zeros(N), inputs[1]), atol=1e-14)


def test_search_over_hyperparameters_is_one_program(data):
    """vmap over radius and leak, and a derivative in them against a difference quotient."""
    net = _net()

    @eqx.filter_jit
    def error(radius, leak):
        moved = eqx.tree_at(lambda n: (n.spectral_radius, n.leak), net, (radius, leak))
        return jnp.sum(tr.fit_readout(moved, *data, ridge=1e-4, washout=10).mean_squared_error)

    radii, leaks = jnp.array([0.3, 0.6, 0.9]), jnp.array([0.5, 0.7, 1.0])
    errors = jax.vmap(error)(radii, leaks)
    np.testing.assert_allclose(errors[1], error(radii[1], leaks[1]), rtol=1e-9)
    slope = jax.grad(error)(radii[1], leaks[1])
    eps = 1e-5
    np.testing.assert_allclose(
        slope, (error(radii[1] + eps, leaks[1]) - error(radii[1] - eps, leaks[1])) / (2 * eps), rtol=1e-5
    )


def test_an_unstable_reservoir_is_told(data):
    wild = _net(activation=jax.nn.identity, spectral_radius=1e9, leak=1.0)
    with pytest.raises(ConvergenceError, match="fit_readout"):
        tr.fit_readout(wild, *data)
    assert int(jnp.sum(tr.fit_readout(wild, *data, throw=False).result == dw.RESULTS.non_finite)) == 1


def test_float32_states_are_fitted_in_float64(data):
    """Gram matrices of float32 with a small ridge are not positive definite; nothing comes out as NaN."""
    cast = jax.tree.map(lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, _net())
    found = tr.fit_readout(cast, *(x.astype(jnp.float32) for x in data), ridge=1e-10, washout=10)
    assert found.readout.C.dtype == jnp.float32
    assert bool(jnp.all(jnp.isfinite(found.readout.C)))
    with jax.enable_x64(False), pytest.raises(PrecisionError, match="float32 normal"):
        tr.fit_readout(cast, *(x.astype(jnp.float32) for x in data), ridge=1e-10)


def test_bad_fits(data):
    inputs, targets = data
    with pytest.raises(ShapeError, match="`targets`"):
        tr.fit_readout(_net(), inputs, targets[:-1])
    with pytest.raises(ShapeError, match="`inputs`"):
        tr.fit_readout(_net(), inputs[:, :1], targets)
    with pytest.raises(ArgumentError, match="washout"):
        tr.fit_readout(_net(), inputs, targets, washout=T)
    with pytest.raises(ArgumentError, match="`ridge`"):
        tr.fit_readout(_net(), inputs, targets, ridge=-1.0)
    with pytest.raises(NonFiniteError, match="`targets`"):
        tr.fit_readout(_net(), inputs, targets.at[3].set(jnp.nan))
    with pytest.raises(ModelError, match="AbstractMap"):
        tr.fit_readout(dw.systems.Lorenz63(), inputs, targets)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ModelError, match="no readout yet"):
        _net().readout()


def test_gram_in_panels():
    x = np.random.default_rng(0).normal(size=(30, 301))
    np.testing.assert_allclose(gram_matrix(jnp.asarray(x)), x.T @ x, atol=1e-12)


# ---- loops


def test_closed_loop_generates_what_it_was_fitted_to(tmp_path):
    """A sine wave goes on by itself; the loop is the driven network with its own outputs put in by hand."""
    wave = jnp.sin(0.3 * jnp.arange(400.0))[:, None]
    net = m.EchoStateNetwork(1, 30, density=0.2, key=KEY)
    fitted = tr.fit_readout(net, wave[:-1], wave[1:], washout=100, ridge=1e-10)
    loop = m.ClosedLoop(net, fitted.readout)
    assert (loop.state_size, loop.input_size, loop.output_size) == (31, 0, 1)
    start = loop.start(fitted.states[-1], wave[-1])
    orbit = dw.simulate(loop, start, steps=60)
    np.testing.assert_allclose(orbit[:, -1], np.sin(0.3 * np.arange(400, 460)), atol=2e-3)
    h, y = fitted.states[-1], wave[-1]
    for state in orbit[:3]:
        h = net(h, y)
        y = fitted.readout(h, y)
        np.testing.assert_allclose(state, jnp.concatenate([h, y]), atol=1e-12)
    np.testing.assert_array_equal(loop.readout()(orbit[0]), orbit[0, -1:])
    again = dw.io.load(dw.io.save(tmp_path / "loop.dyn", loop))
    np.testing.assert_array_equal(again(start), loop(start))


def test_closed_loop_keeps_external_inputs():
    net = m.Elman(3, 4, key=KEY)
    readout = m.Readout(4, 2, key=KEY)
    loop = m.ClosedLoop(net, readout)
    z, x, y = jnp.arange(4.0) / 4, jnp.array([0.3]), jnp.array([-0.1, 0.2])
    inner = net(z, jnp.concatenate([x, y]))
    np.testing.assert_allclose(loop(loop.start(z, y), x), jnp.concatenate([inner, readout(inner)]), atol=1e-15)
    with pytest.raises(ModelError, match="at most the 1 inputs"):
        m.ClosedLoop(m.Elman(1, 4, key=KEY), readout)


# ---- capacities


def _ring(n, r, **options):
    return m.EchoStateNetwork(1, n, spectral_radius=r, topology="cycle", activation=jax.nn.identity, key=KEY, **options)


@pytest.mark.parametrize(("n", "r", "total"), [(20, 0.9, 19.014781), (50, 0.95, 49.005921), (50, 0.99, 49.366032)])
def test_memory_of_a_ring_is_exact(n, r, total):
    """Rodan and Tiňo: N - 1 + r^2N; each delay below N has 1 - r^2N."""
    found = g.memory_capacity(_ring(n, r), 3000)
    assert abs(float(found.total) - total) < 1e-6
    np.testing.assert_allclose(found.capacities[:n], 1 - r ** (2 * n), atol=1e-9)
    np.testing.assert_allclose(jnp.sum(found.capacities), n, atol=1e-9)
    assert found.exact


def test_memory_of_any_linear_reservoir():
    """m(0) = 1 - det(A)^2, and all capacities sum to the size; against the covariance of the states."""
    net = m.EchoStateNetwork(1, 6, spectral_radius=0.9, leak=0.8, density=0.9, activation=jax.nn.identity, key=KEY)
    A = 0.2 * np.eye(6) + 0.8 * np.asarray(net.recurrent_matrix())
    b = 0.8 * np.asarray(net.input_weight)[:, 0]
    found = g.memory_capacity(net, 400)
    np.testing.assert_allclose(found.capacities[0], 1 - np.linalg.det(A) ** 2, atol=1e-8)
    np.testing.assert_allclose(jnp.sum(found.capacities), 6, atol=1e-8)
    assert int(found.rank) == 6
    columns = [b]
    for _ in range(600):
        columns.append(A @ columns[-1])
    C = sum(np.outer(c, c) for c in columns)
    expected = [c @ np.linalg.solve(C, c) for c in columns[:8]]
    np.testing.assert_allclose(found.capacities[:8], expected, rtol=1e-4)


def test_sampled_memory_agrees_with_the_exact_one():
    net = _ring(6, 0.8)
    exact = g.memory_capacity(net, 20)
    sampled = g.memory_capacity(net, 20, method="sampled", steps=4000, washout=100)
    assert not sampled.exact
    np.testing.assert_allclose(sampled.capacities, exact.capacities, atol=0.05)
    np.testing.assert_allclose(sampled.total, exact.total, atol=0.15)


def test_information_capacity_of_a_squaring_delay_line():
    """The line holds u(t), u(t-1); squares of it hold P_2 of the same delays, and nothing else."""

    class Squares(m.AbstractMap):
        state_size: int = 4
        input_size: int = 1

        def __call__(self, state, input=None, *, step=None):
            return jnp.array([input[0], state[0], input[0] ** 2, state[0] * state[1]])

    found = g.information_processing_capacity(Squares(), max_degree=2, max_delay=3, steps=2000, washout=20)
    named = {term: float(c) for term, c in zip(found.terms, found.capacities) if c > 0.5}
    # state[0] state[1] is, after the step, the product of the inputs one and two steps ago.
    assert set(named) == {((0, 0, 1),), ((1, 0, 1),), ((0, 0, 2),), ((1, 0, 1), (2, 0, 1))}
    np.testing.assert_allclose(list(named.values()), 1, atol=0.01)
    np.testing.assert_allclose(found.by_degree, [2, 2], atol=0.05)
    assert int(found.rank) == 4
    assert len(found.terms) == 4 + 10


def test_nonlinearity_costs_memory():
    """tanh units lose linear memory as the input grows, and gain it nowhere."""
    net = m.EchoStateNetwork(1, 20, bias_scaling=0.0, density=0.3, key=KEY)

    def total(scale):
        moved = eqx.tree_at(lambda n: n.input_scaling, net, jnp.asarray(scale))
        return float(g.memory_capacity(moved, 60, steps=2000, washout=100).total)

    small, large = total(0.01), total(1.0)
    assert large + 2 < small < 20


def test_bad_capacities():
    with pytest.raises(ArgumentError, match="must be stable"):
        g.memory_capacity(_ring(4, 1.0), 5)
    with pytest.raises(ModelError, match="with inputs"):
        g.memory_capacity(m.Elman(0, 2, key=KEY), 5)
    with pytest.raises(ArgumentError, match="`washout`"):
        g.memory_capacity(_ring(4, 0.9), 60, washout=50)
    with pytest.raises(ArgumentError, match="max_terms"):
        g.information_processing_capacity(_ring(4, 0.9), max_degree=6, max_delay=30)
    with pytest.raises(PrecisionError):
        g.memory_capacity(_ring(4, 0.9, dtype=jnp.float32), 5)


# ---- the echo state property


def test_echo_state_of_a_contraction_and_of_chaos(data):
    """Below the bound the start is forgotten; a radius above one can be forgotten too, if the input drives it hard."""
    calm = g.echo_state_report(_net(spectral_radius=0.2, leak=1.0), data[0])
    assert bool(calm.holds & calm.guaranteed)
    assert not bool(calm.excluded_at_zero)
    W = np.asarray(_net(spectral_radius=0.2).recurrent_matrix())
    norm = min(np.linalg.norm(W, 2), np.abs(np.linalg.eigvals(np.abs(W))).max())
    np.testing.assert_allclose(calm.sufficient_bound, norm, rtol=1e-10)

    net = _net(spectral_radius=1.5, leak=1.0, bias_scaling=0.0)
    weak, strong = (g.echo_state_report(net, scale * data[0]) for scale in (1e-3, 3.0))
    assert bool(weak.excluded_at_zero)
    assert not bool(weak.holds)
    assert bool(strong.holds)
    assert not bool(strong.guaranteed)
    np.testing.assert_allclose(strong.necessary_radius, 1.5, rtol=1e-10)


def test_the_norm_of_the_leaky_step_proves_nothing():
    """sigma_max((1 - a) I + a W) < 1, often quoted as sufficient, and yet a step with other slopes expands."""
    M = np.array([[0.6, 0.6], [0.6, -0.6]])
    W = (M - 0.9 * np.eye(2)) / 0.1
    assert np.linalg.norm(M, 2) < 1
    net = m.EchoStateNetwork.from_parameters(W, jnp.zeros((2, 1)), bias=jnp.array([0.0, 30.0]), leak=0.1)
    J = dw.dynamics.jacobian(net, jnp.zeros(2))
    np.testing.assert_allclose(J, [[0.6, 0.6], [0, 0.9]], atol=1e-12)
    assert np.linalg.norm(J, 2) > 1.1


def test_bad_reports(data):
    with pytest.raises(ModelError, match="EchoStateNetwork"):
        g.echo_state_report(m.Elman(D, 3, key=KEY), data[0])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="washout"):
        g.echo_state_report(_net(), data[0], washout=T)


# ---- initialisers


def test_sparse_initialisers():
    W = np.asarray(m.SmartTanhInit()(KEY, (40, 40)))
    np.testing.assert_array_equal((W != 0).sum(1), 15)
    np.testing.assert_allclose(np.abs(np.linalg.eigvals(W)).max(), 0.95, rtol=1e-12)
    cycle = np.asarray(m.CycleInit(0.7)(KEY, (6, 6)))
    np.testing.assert_allclose(np.abs(np.linalg.eigvals(cycle)), 0.7, rtol=1e-12)
    line = np.asarray(m.DelayLineInit(0.7)(KEY, (6, 6)))
    assert not np.linalg.matrix_power(line, 6).any()
    assert np.linalg.matrix_power(line, 5).any()
    block = np.asarray(m.BlockSparseInit(density=0.5, block_size=3)(KEY, (10, 10), jnp.float32))
    assert block.dtype == np.float32
    masks = np.pad(block != 0, ((0, 2), (0, 2))).reshape(4, 3, 4, 3).any((1, 3))
    np.testing.assert_array_equal(masks.sum(1), 2)
    for bad in (lambda: m.SmartTanhInit(0), lambda: m.BlockSparseInit(density=2.0), lambda: m.SmartTanhInit(3, -1.0)):
        with pytest.raises(ArgumentError):
            bad()
    with pytest.raises(ShapeError):
        m.CycleInit()(KEY, (2, 3))
