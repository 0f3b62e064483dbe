"""Options of the metric of representations: fixed steps, time, noise, readouts, delays; bad inputs."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw

metric = dw.geometry.representation_metric
KEY = jax.random.key(0)
N = 4
STATE0 = jnp.array([0.1, -0.2, 0.3, 0.05])
NET = dw.models.CTRNN(2, N, recurrent_init=dw.models.GaussianInit(1.5), key=KEY)
ELMAN = dw.models.Elman(2, N, key=KEY)
POINTS = jnp.array([[0.3, 1.9], [2.2, -0.7]])
SHOWN = dw.tasks.Torus(jax.random.normal(KEY, (2, 6)))


class Pulse(dw.tasks.InputManifold):
    """Two signals, the second of which is switched on at 0.25."""

    dim: int = 2
    periods: tuple = (None, None)
    bounds: tuple = (None, None)

    def __call__(self, theta, t=None):
        return jnp.stack([jnp.cos(theta[0] + t), jnp.where(t < 0.25, 0.0, jnp.sin(theta[1]))])

    def breakpoints(self):
        return np.array([0.25])


def _closed(theta):
    """The inputs at one point as a function of time."""
    return lambda t: Pulse()(theta, t)


ONSET = np.array([0.25])


TIMED = dict(ts=np.array([0.0, 0.25, 0.7]), readout="rate", state0=STATE0, time_coordinate=True)
STEPPED = dict(at=(1, 3, 5), state0=STATE0)


@pytest.fixture(scope="module")
def with_time():
    """By method: a field by fixed steps through an onset, and a map."""
    out = {}
    for way in ("forward", "adjoint"):
        field = metric(NET, Pulse(), POINTS, dt=0.05, solver=diffrax.Heun(), method=way, **TIMED)
        out[way] = (field, metric(ELMAN, SHOWN, POINTS, method=way, time_coordinate=True, **STEPPED))
    out["jacfwd"] = (None, metric(ELMAN, SHOWN, POINTS, method="jacfwd", time_coordinate=True, **STEPPED))
    return out


def test_time_is_coordinate_0(with_time):
    field, steps = with_time["forward"]
    assert field.G.shape == (2, 3, 3, 3)
    assert field.tangents.shape == (2, 3, N, 3)
    W, B = np.asarray(NET.recurrent_weight), np.asarray(NET.input_weight)
    for p, theta in enumerate(np.asarray(POINTS)):
        # At the onset, 0.25, the velocity is that before it.
        for k, (t, signal) in enumerate([(0.0, 0.0), (0.25, 0.0), (0.7, 1.0)]):
            x = np.asarray(field.states)[p, k]
            velocity = W @ np.tanh(x) + B @ [np.cos(theta[0] + t), signal * np.sin(theta[1])] - x
            np.testing.assert_allclose(field.tangents[p, k, :, 0], (1 - np.tanh(x) ** 2) * velocity, rtol=1e-12)
    states = np.asarray(jax.vmap(lambda q: dw.simulate(ELMAN, STATE0, SHOWN(q), include_initial=True))(POINTS))
    np.testing.assert_allclose(steps.tangents[..., 0], np.diff(states, axis=1)[:, [1, 3, 5]], rtol=1e-12)
    for found in (field, steps):
        S = np.asarray(found.tangents)
        np.testing.assert_allclose(found.G, np.einsum("ptai,ptaj->ptij", S, S), rtol=1e-12, atol=1e-15)


def test_methods_agree_with_time(with_time):
    field, steps = with_time["forward"]
    np.testing.assert_allclose(with_time["adjoint"][0].G, field.G, rtol=1e-11, atol=1e-14)
    for way in ("adjoint", "jacfwd"):
        np.testing.assert_allclose(with_time[way][1].G, steps.G, rtol=1e-11, atol=1e-14)


@pytest.fixture(scope="module")
def noisy():
    keys = jax.random.split(jax.random.key(7), 3)
    options = dict(state0=STATE0, noise=0.3)
    paths = [metric(ELMAN, SHOWN, POINTS, key=key, **options) for key in keys]
    return keys, paths, metric(ELMAN, SHOWN, POINTS, key=keys, **options)


def test_noise_is_that_of_simulate(noisy):
    keys, paths, _ = noisy
    states = dw.simulate(ELMAN, STATE0, SHOWN(POINTS[1]), noise=0.3, key=keys[0])
    np.testing.assert_allclose(paths[0].states[1], states, rtol=1e-13)
    h = 1e-5
    lower, upper = (
        dw.simulate(ELMAN, STATE0, SHOWN(POINTS[1].at[0].add(s * h)), noise=0.3, key=keys[0]) for s in (-1, 1)
    )
    np.testing.assert_allclose(paths[0].tangents[1, :, :, 0], (upper - lower) / (2 * h), atol=1e-9)
    options = dict(ts=np.array([0.0, 0.2, 0.5, 0.6]), dt=0.1, solver=diffrax.Heun(), noise=0.3, key=keys[1])
    field = metric(NET, Pulse(), POINTS[0], state0=STATE0, **options)
    moved = jnp.concatenate([POINTS[:1], POINTS[0] + h * jnp.eye(2), POINTS[0] - h * jnp.eye(2)])
    states = jax.vmap(lambda q: dw.simulate(NET, STATE0, _closed(q), breakpoints=ONSET, **options))(moved)
    np.testing.assert_allclose(field.states, states[0], rtol=1e-13)
    np.testing.assert_allclose(field.tangents, jnp.moveaxis(states[1:3] - states[3:], 0, -1) / (2 * h), atol=1e-9)


def test_mean_over_realisations(noisy):
    _, paths, mean = noisy
    G = np.stack([path.G for path in paths])
    np.testing.assert_allclose(mean.G, G.mean(0), rtol=1e-12)
    np.testing.assert_allclose(mean.standard_error, G.std(0, ddof=1) / np.sqrt(3), rtol=1e-9, atol=1e-15)
    tangents = np.stack([path.tangents for path in paths])
    np.testing.assert_allclose(mean.tangents, tangents.mean(0), rtol=1e-12, atol=1e-15)
    # E[G] is longer than the metric of the mean state, by the covariance of the tangents.
    excess = mean.G - jnp.einsum("ptai,ptaj->ptij", mean.tangents, mean.tangents)
    deviation = tangents - tangents.mean(0)
    np.testing.assert_allclose(excess, np.einsum("rptai,rptaj->ptij", deviation, deviation) / 3, atol=1e-13)
    assert float(jnp.max(excess[:, -1, 0, 0])) > 1e-3
    assert paths[0].standard_error is None


def test_realisations_with_exploding_tangents_share_a_scale():
    class Multiplied(dw.models.AbstractMap):
        state_size: int = 1
        input_size: int = 1
        stochastic: bool = True

        def __call__(self, state, input=None, *, step=None, key=None):
            large = False if key is None else jax.random.bernoulli(key)
            return jnp.where(large, 1e60, 1e30) * (state + input)

    line = dw.tasks.Line(jnp.ones(4), jnp.ones(1), bounds=(-1.0, 1.0))
    keys = jax.random.split(jax.random.key(1), 4)
    each = [metric(Multiplied(), line, jnp.zeros(1), state0=jnp.zeros(1), key=k, throw=False) for k in keys]
    mean = metric(Multiplied(), line, jnp.zeros(1), state0=jnp.zeros(1), key=keys, throw=False)
    logs = np.stack([jnp.log(e.G[:, 0, 0]) + 2 * e.log_scale for e in each])
    assert np.ptp(logs[:, -1]) > 100
    want = np.logaddexp.reduce(logs, axis=0) - np.log(4)
    np.testing.assert_allclose(jnp.log(mean.G[:, 0, 0]) + 2 * mean.log_scale, want, rtol=1e-12)
    assert bool(mean.result == dw.RESULTS.diverged)


def test_readout_is_a_function_a_matrix_or_the_rate(with_time):
    matrix = jax.random.normal(KEY, (3, N))
    found = metric(ELMAN, SHOWN, POINTS, readout=matrix, **STEPPED)
    states = with_time["forward"][1].tangents[..., 1:]
    np.testing.assert_allclose(found.tangents, jnp.einsum("oa,ptai->ptoi", matrix, states), rtol=1e-12, atol=1e-15)
    # Rates are those of networks whose state is what the activation is given: `with_time`.
    with pytest.raises(dw.errors.ModelError, match="as a function of the state"):
        metric(ELMAN, SHOWN, POINTS, state0=STATE0, readout="rate")


class Delayed(dw.models.AbstractMap):
    """x_t+1 = tanh(0.9 x_t - 0.7 x_t-2 + u_t), with what it remembers in its state."""

    state_size: int = 3
    input_size: int = 1
    lags: tuple = (0, 2)

    def __call__(self, state, input=None, *, step=None):
        now = jnp.tanh(0.9 * state[0] - 0.7 * state[2] + input[0])
        return jnp.concatenate([now[None], state[:-1]])


def test_delays_in_the_state_and_in_the_inputs():
    def late(theta):
        # The echo of a pulse comes theta[0] steps later, and theta[1] is how strong it is.
        k = jnp.arange(7.0)
        return (jnp.exp(-((k - 1) ** 2)) + theta[1] * jnp.exp(-((k - 1 - theta[0]) ** 2)))[:, None]

    manifold = dw.tasks.FunctionManifold(late, dim=2)
    theta = np.array([2.3, 0.6])
    found = metric(Delayed(), manifold, jnp.asarray(theta), state0=jnp.zeros(3), readout=lambda x: x[:1])

    def run(theta):
        k = np.arange(7.0)
        inputs = np.exp(-((k - 1) ** 2)) + theta[1] * np.exp(-((k - 1 - theta[0]) ** 2))
        x = [0.0, 0.0, 0.0]
        for u in inputs:
            x.append(np.tanh(0.9 * x[-1] - 0.7 * x[-3] + u))
        return np.array(x[3:])

    tangents = np.stack([run(theta + 1e-30j * e).imag / 1e-30 for e in np.eye(2)], -1)
    np.testing.assert_allclose(found.G, np.einsum("ti,tj->tij", tangents, tangents), rtol=1e-12, atol=1e-25)


def test_isometries_change_nothing():
    rotation, _ = jnp.linalg.qr(jax.random.normal(KEY, (N, N)))
    linear = dw.models.LinearRNN(0.4 * jax.random.normal(KEY, (N, N)), jnp.ones((N, 2)), jnp.ones((1, N)))
    turned = dw.models.LinearRNN(rotation @ linear.W @ rotation.T, rotation @ linear.B, jnp.ones((1, N)))
    plain = metric(linear, SHOWN, POINTS, state0=STATE0).G
    np.testing.assert_allclose(metric(turned, SHOWN, POINTS, state0=rotation @ STATE0).G, plain, rtol=1e-12, atol=1e-15)


def test_float32(with_time):
    net, points, state0 = jax.tree.map(
        lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, (NET, POINTS, STATE0)
    )
    small = metric(net, Pulse(), points, dt=0.05, solver=diffrax.Heun(), **(TIMED | dict(state0=state0)))
    assert small.G.dtype == small.log_scale.dtype == jnp.float32
    np.testing.assert_allclose(small.G, with_time["forward"][0].G, rtol=1e-4, atol=1e-6)
    # The initial state says what the precision is.
    options = TIMED | dict(state0=state0)
    mixed = metric(net, Pulse(), POINTS, dt=0.05, solver=diffrax.Heun(), **options)
    np.testing.assert_array_equal(mixed.G, small.G)
    wide = metric(net, Pulse(), points, dt=0.05, solver=diffrax.Heun(), **TIMED)
    np.testing.assert_allclose(wide.G, with_time["forward"][0].G, rtol=1e-5, atol=1e-7)
    assert wide.G.dtype == jnp.float64


def test_linear_field_by_the_matrix_exponential():
    scipy_linalg = pytest.importorskip("scipy.linalg")
    W, B = 0.8 * np.random.default_rng(0).normal(size=(3, 3)), np.array([[1.0], [0.5], [-0.2]])
    net = dw.models.CTRNN(1, 3, activation=_identity, key=KEY)
    net = eqx.tree_at(lambda m: (m.recurrent_weight, m.input_weight), net, (jnp.asarray(W), jnp.asarray(B)))
    line = dw.tasks.FunctionManifold(lambda q, t: q + 0 * t, dim=1)
    found = metric(
        net, line, jnp.zeros(1), state0=jnp.zeros(3), ts=np.array([0.0, 0.5, 1.0]), dt=1 / 128, solver=diffrax.Tsit5()
    )
    A = W - np.eye(3)
    for k, t in enumerate((0.0, 0.5, 1.0)):
        tangent = np.linalg.solve(A, (scipy_linalg.expm(A * t) - np.eye(3)) @ B)
        np.testing.assert_allclose(found.G[k], tangent.T @ tangent, rtol=1e-12, atol=1e-30)
    euler = metric(net, line, jnp.zeros(1), state0=jnp.zeros(3), steps=3, dt=0.1, solver=diffrax.Euler())
    step = np.eye(3) + 0.1 * A
    np.testing.assert_allclose(euler.tangents[2], 0.1 * (B + step @ B + step @ step @ B), rtol=1e-13)


def _identity(x):
    return x


class Grows(dw.models.AbstractMap):
    """As many states as there are positive ones."""

    state_size: int = N
    input_size: int = 2

    def __call__(self, state, input=None, *, step=None):
        return state[state > 0]


class Short(Grows):
    def __call__(self, state, input=None, *, step=None):
        return state[:2]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (dict(model=Grows()), dw.errors.ModelError, "depend on values of the state"),
        (dict(model=Short()), dw.errors.ModelError, r"must return a state, shape \(4,\); got \(2,\)"),
        (
            dict(manifold=dw.tasks.Circle(jnp.ones(3)), model=dw.models.Elman(3, N, key=KEY), thetas=jnp.zeros(1)),
            dw.errors.ShapeError,
            r"manifold\(theta\)",
        ),
        (
            dict(
                model=NET,
                manifold=dw.tasks.FunctionManifold(lambda q, t: q, dim=3),
                thetas=jnp.zeros(3),
                steps=2,
                dt=0.1,
            ),
            dw.errors.ShapeError,
            "theta, t",
        ),
        (
            dict(model=NET, manifold=Pulse(), steps=2, dt=0.1, solver=diffrax.Kvaerno3()),
            dw.errors.ArgumentError,
            "explicit Runge-Kutta",
        ),
        (dict(model=NET, manifold=Pulse(), ts=[0.0, 1.0], noise=0.1, key=KEY), dw.errors.ArgumentError, "Give `dt`"),
        (dict(noise=0.1), dw.errors.ArgumentError, "needs a `key`"),
        (dict(noise=-0.1, key=KEY), dw.errors.ArgumentError, "standard deviation"),
        (dict(noise=jnp.ones(3), key=KEY), dw.errors.ShapeError, "noise"),
        (dict(key=3), dw.errors.ArgumentError, "at least two"),
        (dict(key=jax.random.split(KEY, 1)), dw.errors.ArgumentError, "at least two"),
        (dict(readout="rates"), dw.errors.ArgumentError, "'rate'"),
        (dict(readout=jnp.ones((2, 3))), dw.errors.ShapeError, "readout"),
        (dict(remat=0), dw.errors.ArgumentError, "remat"),
        (dict(state0="rest"), dw.errors.ArgumentError, "`state0` must hold real numbers"),
        (dict(thetas=[1.0, "a"]), dw.errors.ArgumentError, "`thetas` must hold real numbers"),
        (dict(noise="some", key=KEY), dw.errors.ArgumentError, "`noise` must hold real numbers"),
        (dict(weight=1j * np.ones(N)), dw.errors.ArgumentError, "`weight` must hold real numbers"),
        (dict(readout=1j * np.ones((2, N))), dw.errors.ArgumentError, "`readout` must hold real numbers"),
        (dict(model=NET, manifold=Pulse(), steps=2, dt="0.1"), dw.errors.ArgumentError, "`dt` must be positive"),
        (dict(model=NET, manifold=Pulse(), steps=2, dt=[0.1]), dw.errors.ShapeError, "`dt`"),
        (dict(model=NET, manifold=Pulse(), ts=["a", "b"]), dw.errors.ArgumentError, "`ts` must hold real numbers"),
        (
            dict(model=NET, manifold=Pulse(), ts=[0.0, 1.0], breakpoints=[0.5j]),
            dw.errors.ArgumentError,
            "`breakpoints` must hold real numbers",
        ),
        (dict(model=NET, manifold=Pulse(), ts=[0.0, 1.0], solver="Heun"), dw.errors.ArgumentError, "AbstractSolver"),
        (dict(model=NET, manifold=Pulse(), ts=[0.0, 1.0], adjoint=3), dw.errors.ArgumentError, "AbstractAdjoint"),
    ],
)
def test_bad_arguments(changes, error, message):
    arguments = dict(model=ELMAN, manifold=SHOWN, thetas=jnp.zeros(2), state0=STATE0) | changes
    model, manifold, thetas = (arguments.pop(name) for name in ("model", "manifold", "thetas"))
    with pytest.raises(error, match=message):
        metric(model, manifold, thetas, **arguments)
