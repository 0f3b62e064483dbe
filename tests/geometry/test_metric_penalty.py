"""Penalties on the metric against NumPy and SciPy, their gradients against differences, and in training."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg

import dynwarp as dw

Penalty = dw.geometry.MetricPenalty
KEY = jax.random.key(0)
N, T = 5, 4
PLANE = dw.tasks.Product([dw.tasks.Line(jnp.ones(T), jnp.ones(1)), dw.tasks.Line(jnp.ones(T), jnp.ones(1))])
POINTS = PLANE.grid(2) * 0.7
NET = dw.models.LeakyRNN(2, N, dt=0.5, key=KEY)
READOUT = dw.models.Readout(N, 3, activation=jnp.tanh, key=jax.random.key(1))
MODEL = dw.training.Reconstruction(NET, 3, readout=READOUT, key=jax.random.key(2))
AT = (1, 3)
REFERENCE = jnp.array([[2.0, 0.5], [0.5, 1.0]])
RATIO = jnp.array([3.0, 0.5])
COMMON = dict(relevant=[1], ratio=RATIO, at=AT)


@functools.cache
def _found():
    return dw.geometry.representation_metric(NET, PLANE, POINTS.reshape(-1, 2), state0=jnp.zeros(N), at=AT)


def _metric():
    return _found().G


def _by_hand(G, target, full, reference):
    """The penalty, point by point."""
    G, reference = np.asarray(G), np.asarray(reference)
    ell = np.empty_like(G)
    for p in range(len(G)):
        for t in range(len(AT)):
            C = np.diag([1.0, float(RATIO[t]) ** 0.5])
            R, g = C @ reference @ C, G[p, t]
            if not full:
                R, g = np.diag(np.diag(R)), np.diag(np.diag(g))
            # |log(R^-1/2 G R^-1/2)| is that of the generalised eigenvalues; the matrix itself needs the root.
            root = np.linalg.inv(scipy.linalg.sqrtm(R))
            ell[p, t] = scipy.linalg.logm(root @ g @ root)
    s = np.trace(ell, axis1=-2, axis2=-1)[..., None, None] / 2 * np.eye(2)
    free = {"ratio": s, "uniform": ell.mean(0), "rigid": s.mean(0), "isometry": 0}[target]
    return ((ell - free) ** 2).sum((-2, -1)).mean()


@pytest.mark.parametrize(
    ("target", "full"), [("ratio", True), ("uniform", True), ("rigid", False), ("isometry", False)]
)
def test_definitions(target, full):
    penalty = Penalty(PLANE, POINTS, target=target, full=full, reference=REFERENCE, strength=2.0, **COMMON)
    want = 2 * _by_hand(_metric(), target, full, REFERENCE)
    assert want > 1e-4
    np.testing.assert_allclose(penalty(NET), want, rtol=1e-11)


def test_average_ratio_is_that_of_warping():
    found = dw.geometry.warping(_metric(), relevant=[1])
    want = np.mean((np.log(found.relevance_ratio) - np.log(RATIO)) ** 2)
    np.testing.assert_allclose(Penalty(PLANE, POINTS, target="average_ratio", **COMMON)(NET), want, rtol=1e-12)


def test_spaces():
    def penalty(space):
        return float(Penalty(PLANE, POINTS, target="isometry", space=space, reference=REFERENCE, **COMMON)(MODEL))

    states, tangents = (np.asarray(x) for x in (_found().states, _found().tangents))

    def want(jacobian):
        seen = jacobian @ tangents
        return _by_hand(np.swapaxes(seen, -1, -2) @ seen, "isometry", True, REFERENCE)

    slope = (1 - np.tanh(states) ** 2)[..., None, :] * np.eye(N)
    np.testing.assert_allclose(penalty("readout"), want(np.asarray(READOUT.weight) @ slope), rtol=1e-11)
    np.testing.assert_allclose(penalty("rate"), want(slope), rtol=1e-11)


def test_gradient_is_the_difference_quotient():
    penalty = Penalty(PLANE, POINTS, target="rigid", space="readout", **COMMON)
    arrays, static = eqx.partition(MODEL, eqx.is_inexact_array)

    @jax.jit
    def value(arrays):
        return penalty(eqx.combine(arrays, static))

    keys = iter(jax.random.split(jax.random.key(3), 20))
    direction = jax.tree.map(lambda x: jax.random.normal(next(keys), x.shape), arrays)
    slope = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, jax.jit(jax.grad(value))(arrays), direction)))
    h = 1e-3
    f = [value(jax.tree.map(lambda x, d, k=k: x + k * h * d, arrays, direction)) for k in (-2, -1, 1, 2)]
    difference = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h)
    assert abs(slope) > 0.1
    np.testing.assert_allclose(slope, difference, rtol=1e-7)


def test_continuous_time():
    """dx/dt = -x + B theta: x = (1 - e^-t) B theta, and rates tanh(x)."""
    field = dw.models.CTRNN(2, N, recurrent_init=jax.nn.initializers.zeros, key=KEY)
    signal = dw.tasks.FunctionManifold(_constant, dim=2)
    ts = (0.0, 0.5, 1.0)
    penalty = Penalty(signal, POINTS, target="isometry", space="rate", relevant=[1], ratio=RATIO, ts=ts, dt=0.25)
    gain = (1 - np.exp(-np.array(ts[1:])))[:, None, None]
    B = np.asarray(field.input_weight)
    states = (gain * (B @ np.asarray(POINTS).reshape(-1, 2, 1))[:, None])[..., 0]
    tangents = (1 - np.tanh(states) ** 2)[..., None] * gain * B
    G = np.swapaxes(tangents, -1, -2) @ tangents
    np.testing.assert_allclose(penalty(field), _by_hand(G, "isometry", True, np.eye(2)), rtol=1e-4)
    assert penalty.metric(field).G.shape == (4, 3, 2, 2)


def _constant(q, t):
    return q * jnp.ones_like(t)


def test_degenerate_metrics_need_a_floor():
    with pytest.raises(dw.errors.ArgumentError, match="1 observed dimensions is degenerate"):
        Penalty(PLANE, POINTS, space=_first)(NET)
    assert np.isfinite(Penalty(PLANE, POINTS, space=_first, at=AT, floor=1e-3)(NET))
    assert np.isfinite(Penalty(PLANE, POINTS, space=_first, at=AT, full=False)(NET))


def _first(state):
    return state[:1]


def test_training_obeys():
    """A float32 network; the metric of what comes out is looked at between the points too."""
    task = dw.tasks.ContextualIntegration(duration=2.0, dt=0.5)
    penalty = Penalty(task, task.grid(3), target="rigid", at=(1, 3), strength=3.0)
    net = dw.models.LeakyRNN(4, 8, dt=0.5, dtype=jnp.float32, key=KEY)
    readout = dw.models.Readout(8, 1, dtype=jnp.float32, key=KEY)
    fitted = dw.training.fit(
        net, task, key=KEY, readout=readout, penalty=penalty, steps=150, batch_size=8, optimizer=optax.adam(2e-2)
    )

    def index(model):
        return float(jnp.max(dw.geometry.warping(penalty.metric(model, task.grid(5)).G).index))

    assert index(fitted.reconstruction) < 0.12
    assert index(net) > 0.3
    assert penalty(net).dtype == jnp.float32


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (dict(manifold=3), dw.errors.ArgumentError, "`manifold`"),
        (dict(thetas=jnp.zeros(3)), dw.errors.ShapeError, "`thetas`"),
        (dict(thetas=jnp.full(2, jnp.nan)), dw.errors.NonFiniteError, "`thetas`"),
        (dict(target="flat"), dw.errors.ArgumentError, "`target`"),
        (dict(target="average_ratio"), dw.errors.ArgumentError, "`relevant`"),
        (dict(target="average_ratio", relevant=[0], reference=jnp.eye(2)), dw.errors.ArgumentError, "`reference`"),
        (dict(ratio=2.0), dw.errors.ArgumentError, "`relevant`"),
        (dict(ratio=-1.0), dw.errors.ArgumentError, "`ratio`"),
        (dict(ratio=jnp.ones(3), relevant=[0]), dw.errors.ShapeError, "`ratio`"),
        (dict(relevant=0), dw.errors.ArgumentError, "`relevant`"),
        (dict(at=3), dw.errors.ArgumentError, "`at`"),
        (dict(at=(1.5,)), dw.errors.ArgumentError, "`at`"),
        (dict(relevant=[0, 1]), dw.errors.ArgumentError, "`relevant`"),
        (dict(strength=-1.0), dw.errors.ArgumentError, "`strength`"),
        (dict(floor=np.inf), dw.errors.ArgumentError, "`floor`"),
        (dict(reference=jnp.eye(3)), dw.errors.ShapeError, "`reference`"),
        (dict(reference=-jnp.eye(2)), dw.errors.ArgumentError, "positive definite"),
        (dict(reference=jnp.stack([jnp.eye(2)] * 3)), dw.errors.ShapeError, "`reference`"),
        (dict(space="output"), dw.errors.ArgumentError, "`space`"),
        (dict(space="readout"), dw.errors.ModelError, "Reconstruction"),
        (dict(space="rate"), dw.errors.ModelError, "rate"),
        (dict(model=3), dw.errors.ModelError, "Reconstruction"),
    ],
)
def test_bad_arguments(changes, error, message):
    arguments = dict(manifold=PLANE, thetas=POINTS, at=AT, model=NET) | changes
    model, manifold, thetas = (arguments.pop(name) for name in ("model", "manifold", "thetas"))
    with pytest.raises(error, match=message):
        Penalty(manifold, thetas, **arguments)(model)
