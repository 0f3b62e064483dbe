"""Curvature at every time against that of one time, closed forms and the metric alone; codes, derivatives, errors."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw

g = dw.geometry
KEY = jax.random.key(0)
N = 4
STATE0 = jnp.array([0.1, -0.2, 0.3, 0.05])
# The second item comes at step 2: until then the states form a line.
TORUS = dw.tasks.Torus(jnp.array([[1.0, 0.3, 0.0, 0.2], [0.0, 0.0, 0.8, 0.5]]))
ELMAN = dw.models.Elman(3, N, key=KEY)
POINTS = jnp.array([[0.3, 1.9], [2.2, -0.7]])
FIELD = dw.models.CTRNN(2, N, recurrent_init=dw.models.GaussianInit(1.5), key=KEY)


class Signal(dw.tasks.InputManifold):
    dim: int = 2
    periods: tuple = (None, None)
    bounds: tuple = (None, None)

    def __call__(self, theta, t=None):
        return jnp.stack([jnp.cos(theta[0] + t), theta[0] * jnp.sin(theta[1] * t)])


class Both(dw.tasks.InputManifold):
    """Two items, each on its own channels."""

    torus: dw.tasks.Torus
    dim: int = 2
    periods: tuple = (2 * np.pi, 2 * np.pi)
    bounds: tuple = (None, None)

    def __call__(self, theta, t=None):
        a = self.torus.envelopes
        return jnp.stack([a[0] * jnp.cos(theta[0]), a[0] * jnp.sin(theta[0]) + a[1] * jnp.sin(theta[1]), a[1]], -1)


ITEMS = Both(TORUS)


@pytest.fixture(scope="module")
def history():
    return g.curvature_history(ELMAN, ITEMS, POINTS, state0=STATE0)


def test_each_time_is_that_of_the_surface(history):
    assert history.riemann.shape == (2, 4, 2, 2, 2, 2)
    surface = g.state_manifold(ELMAN, ITEMS, state0=STATE0, step=2)

    @eqx.filter_jit
    @jax.vmap
    def at(x):
        mean = jnp.linalg.norm(surface.mean_curvature(x))
        return surface.riemann(x), surface.ricci(x), surface.scalar_curvature(x), mean

    found = (history.riemann, history.ricci, history.scalar_curvature, history.mean_curvature)
    for ours, want in zip(found, at(POINTS)):
        np.testing.assert_allclose(ours[:, 2], want, rtol=1e-10, atol=1e-13)
    # The last time from the metric alone, by three derivatives.
    last = g.state_manifold(ELMAN, ITEMS, state0=STATE0, step=3)
    K = jax.vmap(g.Metric(last.metric, dim=2).gaussian_curvature)(POINTS)
    np.testing.assert_allclose(history.gaussian_curvature()[:, 3], K, rtol=1e-8)
    np.testing.assert_allclose(history.gaussian_curvature(), history.scalar_curvature / 2)
    G = g.representation_metric(ELMAN, ITEMS, POINTS, state0=STATE0, keep="metric").G
    np.testing.assert_allclose(history.G, G, rtol=1e-12, atol=1e-15)


def test_degenerate_times_have_a_code(history):
    singular = np.asarray(history.result == dw.RESULTS.singular)
    assert singular.tolist() == [[True, True, False, False]] * 2
    assert np.isnan(history.scalar_curvature[:, :2]).all()
    assert np.isfinite(history.scalar_curvature[:, 2:]).all()
    assert not np.any(history.independence[:, :2])


def test_a_field_with_a_readout():
    readout = dw.models.Readout(N, 3, key=KEY)
    times = dict(dt=0.1, solver=diffrax.Heun())
    history = g.curvature_history(
        FIELD, Signal(), POINTS, state0=STATE0, readout=readout, ts=np.array([0.0, 0.3, 0.9]), **times
    )
    assert np.asarray(history.result == dw.RESULTS.successful).tolist() == [[False, True, True]] * 2
    surface = g.state_manifold(FIELD, Signal(), state0=STATE0, readout=readout, t=0.9, **times)
    want = jax.vmap(surface.gaussian_curvature)(POINTS)
    np.testing.assert_allclose(history.gaussian_curvature()[:, -1], want, rtol=1e-10)


def _sphere(x):
    """A 3-sphere of radius 2 in R^4 as a function of three coordinates."""
    s, c = jnp.sin(x), jnp.cos(x)
    return 2 * jnp.stack([c[0], s[0] * c[1], s[0] * s[1] * c[2], s[0] * s[1] * s[2]])


def test_a_sphere_that_is_seen_of_a_leaky_integrator():
    leaky = dw.models.LinearRNN(0.5 * jnp.eye(3), 0.5 * jnp.eye(3), jnp.eye(3))
    solid = dw.tasks.FunctionManifold(lambda q: jnp.ones((2, 1)) * q, dim=3)
    found = g.curvature_history(
        leaky, solid, jnp.array([1.8, 2.4, 1.2]), state0=jnp.zeros(3), readout=_sphere, at=(1,), batch_size=1
    )
    np.testing.assert_allclose(found.scalar_curvature, [6 / 4], rtol=1e-12)
    np.testing.assert_allclose(found.ricci, found.G * 2 / 4, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(found.mean_curvature, [1 / 2], rtol=1e-12)
    with pytest.raises(dw.errors.ArgumentError, match="surface, of 2 dimensions"):
        found.gaussian_curvature()


def test_gradient_past_degenerate_times():
    @jax.jit
    @jax.value_and_grad
    def loss(W):
        net = eqx.tree_at(lambda m: m.recurrent_weight, ELMAN, W)
        K = g.curvature_history(net, ITEMS, POINTS, state0=STATE0).gaussian_curvature()
        return jnp.nansum(jnp.tanh(K))

    direction, h = jax.random.normal(KEY, (N, N)), 1e-4
    f = [float(loss(ELMAN.recurrent_weight + k * h * direction)[0]) for k in (-2, -1, 1, 2)]
    slope = float(jnp.vdot(loss(ELMAN.recurrent_weight)[1], direction))
    assert abs(slope) > 1e-2
    np.testing.assert_allclose(slope, (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h), rtol=1e-7)


def test_codes_where_something_is_not_finite_and_float32():
    # The initial state decides about the precision: inputs and points are cast to it.
    small = jax.tree.map(lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, ELMAN), ITEMS, POINTS
    start = jnp.array([1.0, 1.0], jnp.float32)

    def state0(theta):
        # The second point begins at infinity.
        return jnp.where(theta[1] > 0, 1.0, jnp.inf) * jnp.concatenate([start, start]) * 0.1

    found = g.curvature_history(*small, state0=state0, throw=False)
    assert found.scalar_curvature.dtype == jnp.float32
    assert np.asarray(found.result == dw.RESULTS.non_finite).tolist() == [[False] * 4, [True] * 4]
    with pytest.raises(dw.errors.ConvergenceError, match="1 of 2 lanes"):
        g.curvature_history(*small, state0=state0)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (dict(model=dw.models.Elman(3, N, activation=jax.nn.relu, key=KEY)), dw.errors.ModelError, "kink"),
        (dict(readout=jnp.abs), dw.errors.ModelError, "the readout has a kink"),
        (dict(readout=jnp.ones((1, N))), dw.errors.ArgumentError, "2 coordinates"),
        (dict(thetas=jnp.zeros(3)), dw.errors.ShapeError, "thetas"),
        (dict(state0=jnp.zeros(3)), dw.errors.ShapeError, "state0"),
        (dict(ts=[0.0, 1.0]), dw.errors.ArgumentError, "`ts`"),
        (dict(model=FIELD, manifold=Signal(), ts=[0.0, 1.0]), dw.errors.ArgumentError, "needs `dt`"),
        (dict(batch_size=0), dw.errors.ArgumentError, "batch_size"),
    ],
)
def test_bad_arguments(changes, error, message):
    arguments = dict(model=ELMAN, manifold=ITEMS, thetas=jnp.zeros(2), state0=STATE0) | changes
    model, manifold, thetas = (arguments.pop(name) for name in ("model", "manifold", "thetas"))
    with pytest.raises(error, match=message):
        g.curvature_history(model, manifold, thetas, **arguments)
