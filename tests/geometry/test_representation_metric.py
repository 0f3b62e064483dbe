"""The metric of representations against complex steps, closed forms and other methods; its derivatives, its errors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw

metric = dw.geometry.representation_metric
T, N = 6, 4
KEY = jax.random.key(0)
TORUS = dw.tasks.Torus(jax.random.normal(KEY, (2, T)))
SIGNAL = dw.tasks.FunctionManifold(
    lambda q, t: jnp.stack([jnp.cos(q[0]) * jnp.exp(-t), jnp.sin(q[1] * t)]), dim=2, periods=(2 * jnp.pi, None)
)
POINTS = jnp.array([[0.3, 1.9], [2.2, -0.7], [-1.0, 0.4]])
TIMES = dict(steps=5, dt=0.2)
MODELS = {
    "ctrnn": dw.models.CTRNN(2, N, recurrent_init=dw.models.GaussianInit(1.5), key=KEY),
    "leaky": dw.models.LeakyRNN(2, N, dt=0.3, key=KEY),
    "elman": dw.models.Elman(2, N, key=KEY),
    "gru": dw.models.GRU(2, N, key=KEY),
    "lru": dw.models.LRU(2, N // 2, 1, r_min=0.5, r_max=0.9, key=KEY),
    "plrnn": dw.models.PLRNN(N, input_size=2, key=KEY),
}
STATE0 = jnp.array([0.1, -0.2, 0.3, 0.05])


def _options(name):
    return (SIGNAL, TIMES) if name == "ctrnn" else (TORUS, {})


@pytest.fixture(scope="module")
def found():
    """By model: forward and adjoint."""
    out = {}
    for name, model in MODELS.items():
        manifold, times = _options(name)
        out[name] = [
            metric(model, manifold, POINTS, state0=STATE0, method=way, **times) for way in ("forward", "adjoint")
        ]
    return out


@pytest.mark.parametrize("name", MODELS)
def test_forward_and_adjoint_agree(found, name):
    forward, adjoint = found[name]
    steps = forward.G.shape[1]
    assert forward.G.shape == (3, steps, 2, 2)
    assert forward.states.shape == (3, steps, N)
    assert forward.tangents.shape == (3, steps, N, 2)
    scale = float(jnp.max(jnp.abs(forward.tangents)))
    assert scale > 1e-2
    for a, b in ((forward.G, adjoint.G), (forward.tangents, adjoint.tangents), (forward.states, adjoint.states)):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13 * scale)
    np.testing.assert_allclose(forward.G, jnp.einsum("ptai,ptaj->ptij", forward.tangents, forward.tangents), rtol=1e-12)
    assert not np.any(np.asarray(forward.log_scale))


@pytest.mark.parametrize("name", ["gru", "lru", "plrnn"])
def test_agrees_with_automatic_differentiation(found, name):
    reference = metric(MODELS[name], TORUS, POINTS, state0=STATE0, method="jacfwd")
    np.testing.assert_allclose(found[name][0].tangents, reference.tangents, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found[name][0].states, reference.states, rtol=1e-13)


def _at(q):
    """The inputs of maps and of fields at a complex point."""
    rows = np.asarray(TORUS.envelopes).T @ np.stack([np.cos(q), np.sin(q)], axis=1)
    return rows, lambda t: np.array([np.cos(q[0]) * np.exp(-t), np.sin(q[1] * t)])


def _numpy_states(name, rows, signal):
    """The states under complex inputs, by the equations of the model."""
    model = MODELS[name]
    W, B = np.asarray(model.recurrent_weight), np.asarray(model.input_weight)
    x, states = np.asarray(STATE0).astype(complex), []
    if name == "ctrnn":
        h = TIMES["dt"]

        def velocity(t, x):
            return W @ np.tanh(x) + B @ signal(t) - x

        for t in h * np.arange(TIMES["steps"]):
            a = velocity(t, x)
            b = velocity(t + h / 2, x + h / 2 * a)
            c = velocity(t + h / 2, x + h / 2 * b)
            x = x + h / 6 * (a + 2 * b + 2 * c + velocity(t + h, x + h * c))
            states.append(x)
        return np.stack(states)
    leak = 0.3 if name == "leaky" else 1.0
    for u in rows:
        x = (1 - leak) * x + leak * np.tanh(W @ x + B @ u + np.asarray(model.bias))
        states.append(x)
    return np.stack(states)


@pytest.mark.parametrize("name", ["ctrnn", "leaky", "elman"])
def test_tangents_are_complex_steps(found, name):
    for p, point in enumerate(np.asarray(POINTS)):
        steps = [_numpy_states(name, *_at(point + 1e-30j * e)).imag / 1e-30 for e in np.eye(2)]
        np.testing.assert_allclose(found[name][0].tangents[p], np.stack(steps, axis=-1), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(found[name][0].states[p], _numpy_states(name, *_at(point)).real, rtol=1e-12)


@pytest.mark.parametrize("m", [1, 3, 4])
def test_any_number_of_coordinates(m):
    """A field and a map, forwards and backwards in one program, beside complex steps."""
    A = np.random.default_rng(m).normal(size=(T, 2, m))
    rows = dw.tasks.FunctionManifold(lambda q: jnp.sin(jnp.asarray(A) @ q), dim=m)
    signal = dw.tasks.FunctionManifold(lambda q, t: jnp.sin(jnp.asarray(A[0]) @ q + t), dim=m)
    point = np.linspace(-0.7, 0.9, m)

    @jax.jit
    def tangents(q):
        return {
            name: [
                metric(MODELS[name], manifold, q, state0=STATE0, method=way, **times).tangents
                for way in ("forward", "adjoint")
            ]
            for name, manifold, times in (("ctrnn", signal, TIMES), ("elman", rows, {}))
        }

    for name, (forward, adjoint) in tangents(point).items():
        steps = []
        for q in point + 1e-30j * np.eye(m):
            moved = np.sin(A @ q)
            steps.append(_numpy_states(name, moved, lambda t, q=q: np.sin(A[0] @ q + t)).imag / 1e-30)
        np.testing.assert_allclose(forward, np.stack(steps, axis=-1), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(adjoint, forward, rtol=1e-12, atol=1e-14)


def test_linear_network_closed_form():
    keys = jax.random.split(KEY, 3)
    W, B = 0.6 * jax.random.normal(keys[0], (3, 3)), jax.random.normal(keys[1], (3, 2))
    envelope, direction = jax.random.normal(keys[2], (T,)), jnp.array([0.5, -1.0])
    line = dw.tasks.Line(envelope, direction)
    net = dw.models.LinearRNN(W, B, jnp.ones((1, 3)))
    found = metric(net, line, jnp.array([[-0.5], [0.5]]), state0=jnp.zeros(3))
    w, drive = np.asarray(W), np.asarray(B @ direction)
    tangent = [
        sum(np.linalg.matrix_power(w, t - k) @ drive * float(envelope[k]) for k in range(t + 1)) for t in range(T)
    ]
    want = np.array([v @ v for v in tangent])
    for G in found.G:
        np.testing.assert_allclose(G[:, 0, 0], want, rtol=1e-12)
    np.testing.assert_allclose(found.volume()[0], np.sqrt(want), rtol=1e-12)


def _until_one(q, t):
    return jnp.where(t < 1, q, 0 * q)


def test_leaky_integrator_in_continuous_time():
    leaky = dw.models.CTRNN(
        1, 1, recurrent_init=jax.nn.initializers.zeros, input_init=jax.nn.initializers.ones, key=KEY
    )
    pulse = dw.tasks.FunctionManifold(_until_one, dim=1, bounds=((-1.0, 1.0),))
    ts = np.array([0.0, 0.3, 1.0, 2.5])
    grown = 1 - np.exp(-np.minimum(ts, 1))
    want = grown * np.exp(-np.maximum(ts - 1, 0))
    # The velocity at 1 is that before the input jumps.
    velocity = np.where(ts <= 1, np.exp(-ts), -want)
    options = dict(state0=jnp.zeros(1), ts=ts, breakpoints=np.array([1.0]), time_coordinate=True)
    for dt, tolerance in ((0.02, 1e-8), (None, 1e-6)):
        found = metric(leaky, pulse, jnp.array([[0.4]]), dt=dt, **options)
        np.testing.assert_allclose(found.G[0, :, 1, 1], want**2, rtol=tolerance)
        np.testing.assert_allclose(found.states[0, :, 0], 0.4 * want, rtol=tolerance)
        np.testing.assert_allclose(found.tangents[0, :, 0, 0], 0.4 * velocity, rtol=tolerance)


def test_breakpoints_are_met():
    leaky = dw.models.CTRNN(
        1, 1, recurrent_init=jax.nn.initializers.zeros, input_init=jax.nn.initializers.ones, key=KEY
    )
    pulse = dw.tasks.FunctionManifold(lambda q, t: jnp.where(t < 0.55, q, 0 * q), dim=1)
    ts, want = np.array([0.0, 1.0]), ((np.exp(0.55) - 1) * np.exp(-1.0)) ** 2
    options = dict(state0=jnp.zeros(1), ts=ts, dt=0.1)
    met = metric(leaky, pulse, jnp.array([0.4]), breakpoints=np.array([0.55]), **options).G[1, 0, 0]
    missed = metric(leaky, pulse, jnp.array([0.4]), **options).G[1, 0, 0]
    assert abs(met / want - 1) < 1e-6
    assert abs(missed / want - 1) > 1e-3


def test_options_change_nothing_but_what_is_kept(found):
    full = found["elman"][0]
    part = metric(MODELS["elman"], TORUS, POINTS, state0=STATE0, at=(1, -1), keep="metric", batch_size=2)
    np.testing.assert_allclose(part.G, full.G[:, jnp.array([1, T - 1])], rtol=1e-13)
    assert part.states is None
    assert part.tangents is None
    uneven = metric(MODELS["elman"], TORUS, POINTS, state0=STATE0, at=(0, 3), method="adjoint")
    np.testing.assert_allclose(uneven.G, full.G[:, jnp.array([0, 3])], rtol=1e-12, atol=1e-15)


def test_readout_and_weight(found):
    readout = dw.models.Readout(N, 2, key=jax.random.key(5))
    weight = np.array([[2.0, 0.5], [0.5, 1.0]])
    seen = metric(MODELS["elman"], TORUS, POINTS, state0=STATE0, readout=readout, weight=weight)
    tangents = np.einsum("oa,ptai->ptoi", readout.weight, found["elman"][0].tangents)
    np.testing.assert_allclose(seen.tangents, tangents, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(seen.G, np.einsum("ptoi,oq,ptqj->ptij", tangents, weight, tangents), rtol=1e-12)
    stretches = np.linalg.svd(np.linalg.cholesky(weight).T @ tangents, compute_uv=False)[..., ::-1]
    np.testing.assert_allclose(seen.stretches(), stretches, rtol=1e-6, atol=1e-7)


def test_covariant_under_reparametrisation(found):
    def chart(p):
        return jnp.stack([p[0] + 0.3 * jnp.sin(p[1]), p[1] * (1 + 0.1 * p[0])])

    moved = dw.tasks.FunctionManifold(lambda p: TORUS(chart(p)), dim=2)
    p = jnp.array([0.2, 0.9])
    at_p = metric(MODELS["elman"], moved, p, state0=STATE0)
    at_q = metric(MODELS["elman"], TORUS, chart(p), state0=STATE0)
    jacobian = jax.jacfwd(chart)(p)
    np.testing.assert_allclose(at_p.G, jacobian.T @ at_q.G @ jacobian, rtol=1e-12, atol=1e-14)


def test_gradient_of_a_loss_of_the_metric():
    model, readout = MODELS["elman"], dw.models.Readout(N, 2, key=jax.random.key(5))

    @jax.jit
    @jax.value_and_grad
    def loss(W):
        changed = eqx.tree_at(lambda m: m.recurrent_weight, model, W)
        found = metric(changed, TORUS, POINTS, state0=STATE0, readout=readout, keep="metric", remat=4)
        return jnp.mean(jnp.log(found.G[:, 2:, 0, 0] / found.G[:, 2:, 1, 1]) ** 2)

    W, direction = model.recurrent_weight, jax.random.normal(jax.random.key(9), (N, N))
    slope = float(jnp.vdot(loss(W)[1], direction))
    h = 1e-3
    f = [float(loss(W + k * h * direction)[0]) for k in (-2, -1, 1, 2)]
    difference = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h)
    assert abs(slope) > 0.1
    np.testing.assert_allclose(slope, difference, rtol=1e-7)


def test_initial_states_without_inputs():
    net = dw.models.LinearRNN(jnp.diag(jnp.array([0.5, 2.0])), jnp.zeros((2, 0)), jnp.ones((1, 2)))
    found = metric(net, None, jnp.array([[0.3]]), state0=lambda q: jnp.stack([q[0], q[0] ** 2]), steps=2)
    np.testing.assert_allclose(found.G[0, :, 0, 0], [0.25 + 1.44, 0.0625 + 2.4**2], rtol=1e-13)


def test_many_coordinates_take_the_adjoint():
    wide = dw.tasks.FunctionManifold(lambda q: jnp.tanh(q).reshape(T, 2), dim=2 * T)
    theta = jnp.linspace(-1, 1, 2 * T)
    found = metric(MODELS["elman"], wide, theta, state0=STATE0, at=(-1,))
    assert found.method == "adjoint"
    forward = metric(MODELS["elman"], wide, theta, state0=STATE0, at=(-1,), method="forward")
    np.testing.assert_allclose(found.G, forward.G, rtol=1e-12, atol=1e-15)
    assert metric(MODELS["elman"], TORUS, POINTS, state0=STATE0).method == "forward"


class _Power(dw.models.AbstractMap):
    """A user's model with plain fields: blows up from states above 1."""

    exponent: int = 2
    state_size: int = 1
    input_size: int = 1
    sizes: tuple = (1, 2)

    def __call__(self, state, input=None, *, step=None):
        return state**self.exponent + (0.0 if input is None else 1.0) * input


def test_a_code_for_each_point():
    line = dw.tasks.Line(jnp.eye(12)[0], jnp.ones(1), bounds=(-2.0, 2.0))
    found = metric(_Power(), line, jnp.array([[0.1], [1.9]]), state0=jnp.zeros(1), throw=False)
    assert (found.result == dw.RESULTS.successful).tolist() == [True, False]
    assert (found.result == dw.RESULTS.non_finite).tolist() == [False, True]
    with pytest.raises(dw.errors.ConvergenceError, match="1 of 2 lanes"):
        metric(_Power(), line, jnp.array([[0.1], [1.9]]), state0=jnp.zeros(1))


@pytest.mark.parametrize("way", ["forward", "adjoint", "jacfwd"])
def test_exploding_tangents_have_a_scale(way):
    net = dw.models.LinearRNN(jnp.array([[1e30]]), jnp.ones((1, 1)), jnp.ones((1, 1)))
    line, run = dw.tasks.Line(jnp.eye(12)[0], jnp.ones(1)), dict(state0=jnp.zeros(1), method=way, throw=False)
    steps = 10 if way == "jacfwd" else 12
    found = metric(net, line, jnp.zeros((1, 1)), steps=steps, **run)
    assert (found.result == dw.RESULTS.diverged).all()
    logs = jnp.log(found.G[0, :, 0, 0]) / 2 + found.log_scale[0]
    np.testing.assert_allclose(logs, np.arange(steps) * 30 * np.log(10), rtol=1e-12)
    if way == "jacfwd":  # It differentiates all at once, and meets the tangents only where they have overflowed.
        assert (metric(net, line, jnp.zeros((1, 1)), **run).result == dw.RESULTS.non_finite).all()
    late = dw.tasks.Line(jnp.eye(12)[-1], jnp.ones(1))
    found = metric(net, late, jnp.zeros((1, 1)), **run)
    # Forwards nothing has exploded; backwards that is not to be seen, and said.
    if way == "adjoint":
        assert (found.result == dw.RESULTS.non_finite).all()
    else:
        assert found.G[0, -1, 0, 0] == 1


class _Growth(dw.models.AbstractField):
    rate: float = 400.0
    state_size: int = 1
    input_size: int = 0

    def __call__(self, t, state, input=None):
        return self.rate * state


def test_exploding_tangents_have_a_scale_in_adaptive_solves():
    found = metric(_Growth(), None, jnp.zeros(1), state0=lambda theta: theta, ts=[0.0, 0.5, 1.0], throw=False)
    assert found.result == dw.RESULTS.diverged
    np.testing.assert_allclose(jnp.log(found.G[:, 0, 0]) / 2 + found.log_scale, [0, 200, 400], rtol=1e-5)


def test_float32_under_jit_and_vmap():
    def cast(tree):
        return jax.tree.map(lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, tree)

    model, torus = cast(MODELS["elman"]), cast(TORUS)
    want = metric(MODELS["elman"], TORUS, POINTS, state0=STATE0).G

    @eqx.filter_jit
    def run(model, torus, points, state0):
        return jax.vmap(lambda q: metric(model, torus, q, state0=state0).G)(points)

    G = run(model, torus, POINTS.astype(jnp.float32), STATE0.astype(jnp.float32))
    assert G.dtype == jnp.float32
    np.testing.assert_allclose(G, want, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (dict(model=3), dw.errors.ModelError, "AbstractMap"),
        (dict(manifold=lambda q: q), dw.errors.ArgumentError, "FunctionManifold"),
        (dict(thetas=jnp.zeros(3)), dw.errors.ShapeError, "thetas"),
        (dict(thetas=jnp.array([0.0, jnp.nan])), dw.errors.NonFiniteError, "thetas"),
        (dict(thetas=jnp.zeros((0, 2))), dw.errors.ArgumentError, "at least one point"),
        (dict(state0=jnp.zeros(3)), dw.errors.ShapeError, "state0"),
        (dict(state0=lambda q: q), dw.errors.ShapeError, "state0"),
        (dict(method="backward"), dw.errors.ArgumentError, "method"),
        (dict(keep="none"), dw.errors.ArgumentError, "keep"),
        (dict(at=(3, 1)), dw.errors.ArgumentError, "at"),
        (dict(at=(T,)), dw.errors.ArgumentError, "at"),
        (dict(steps=T + 1), dw.errors.ArgumentError, "rows"),
        (dict(ts=[0.0, 1.0]), dw.errors.ArgumentError, "`ts`"),
        (dict(weight=jnp.ones(3)), dw.errors.ShapeError, "weight"),
        (dict(weight=np.eye(4) + np.eye(4, k=1)), dw.errors.ArgumentError, "symmetric"),
        (dict(readout=2), dw.errors.ArgumentError, "readout"),
        (dict(manifold=None), dw.errors.ArgumentError, "steps"),
        (dict(manifold=SIGNAL, model=MODELS["ctrnn"]), dw.errors.ArgumentError, "`ts`"),
        (dict(manifold=SIGNAL, model=MODELS["ctrnn"], dt=0.1), dw.errors.ArgumentError, "either `ts` or `steps`"),
        (dict(manifold=SIGNAL, model=MODELS["ctrnn"], ts=[1.0, 0.0]), dw.errors.ArgumentError, "increase"),
        (dict(manifold=SIGNAL, model=MODELS["ctrnn"], ts=[0.0, 1.0], at=(1,)), dw.errors.ArgumentError, "`at`"),
        (dict(manifold=dw.tasks.Line(jnp.ones(T), jnp.ones(2)), thetas=jnp.full(1, 1.5)), ValueError, "must lie in"),
    ],
)
def test_bad_arguments(changes, error, message):
    arguments = dict(model=MODELS["elman"], manifold=TORUS, thetas=jnp.zeros(2), state0=STATE0) | changes
    model, manifold, thetas = (arguments.pop(name) for name in ("model", "manifold", "thetas"))
    with pytest.raises(error, match=message):
        metric(model, manifold, thetas, **arguments)
