"""Alignment, coordinates, kernels, comparisons and integrals of curvature against NumPy and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import dynwarp as dw

g = dw.geometry
KEY = jax.random.key(0)
N, T, P = 4, 5, 6
NET = dw.models.LeakyRNN(2, N, dt=0.5, key=KEY)
INPUTS = jax.random.normal(jax.random.key(1), (T, 2))
STATE0 = jnp.array([0.1, -0.2, 0.3, 0.0])
FIELD = dw.models.CTRNN(2, 3, key=KEY)
READOUT = dw.models.Readout(N, 2, activation=jnp.tanh, key=jax.random.key(2))


def _metrics(key, shape):
    factors = jax.random.normal(key, (*shape, 2, 2))
    return factors @ jnp.swapaxes(factors, -1, -2) + 0.3 * jnp.eye(2)


def test_geodesic_coordinates_of_a_warped_circle():
    """theta -> f(theta) with f' = 1 + a cos theta known: the coordinate is f, on the open line and around the seam."""
    circle = dw.tasks.Circle(jnp.ones(1))
    for n, periods, total, tolerance in ((400, circle.periods, 2 * np.pi, 1e-12), (400, None, None, 1e-4)):
        thetas = circle.grid(n)
        G = ((1 + 0.5 * jnp.cos(thetas)) ** 2)[..., None, :, None] * jnp.ones((1, 2, 1, 1))
        found = g.geodesic_coordinates(G, thetas, periods=periods)
        x = np.asarray(thetas[:, 0])
        want = x + 0.5 * np.sin(x)
        np.testing.assert_allclose(found.coordinates[:, 1, 0], want, atol=2e-4)
        total = want[-1] if total is None else total
        np.testing.assert_allclose(found.lengths[:, 0, 0], total, rtol=tolerance)
        np.testing.assert_allclose(found.normalised()[:, 0, 0], want / total, atol=1e-4)


def test_geodesic_coordinates_of_a_plane():
    plane = dw.tasks.FunctionManifold(lambda q: q[None], dim=2, bounds=((0.0, 1.0), (-1.0, 2.0)))
    thetas = plane.grid((3, 4))
    G = jnp.array([[4.0, 1.0], [1.0, 9.0]]) * jnp.ones((3, 4, 2, 1, 1))
    found = jax.jit(g.geodesic_coordinates)(G, thetas)
    np.testing.assert_allclose(found.coordinates[:, :, 0, 0], 2 * thetas[..., 0], rtol=1e-13)
    np.testing.assert_allclose(found.coordinates[:, :, 1, 1], 3 * (thetas[..., 1] + 1), rtol=1e-13)
    np.testing.assert_allclose(found.lengths[..., 1], 9, rtol=1e-13)


def test_decoder_alignment():
    states, S = (
        np.array(jax.random.normal(k, shape)) for k, shape in zip(jax.random.split(KEY), ((2, T, N), (2, T, N, 2)))
    )
    S[:, :2, :, 1] = 0  # the second coordinate has not come before the third step
    found = g.decoder_alignment(states, S, READOUT)
    slope = np.asarray(READOUT.weight) * (1 - np.tanh(states) ** 2)[..., None, :]
    with np.errstate(invalid="ignore"):
        lengths = np.linalg.norm(slope, axis=-1)[..., None] * np.linalg.norm(S, axis=-2)[..., None, :]
        want = slope @ S / lengths
    assert np.isnan(want[:, :2, :, 1]).all()
    np.testing.assert_allclose(found.cosines, want, rtol=1e-11)
    np.testing.assert_allclose(found.norm[:, 2:], np.sqrt((want[:, 2:] ** 2).sum(-2)), rtol=1e-11)


def test_subspaces_are_those_of_scipy():
    states = jax.random.normal(jax.random.key(3), (8, 3, 5)).at[:, 2].set(1.0)
    found = g.subspace_similarity(states, rank=2)
    x = np.asarray(states) - np.asarray(states).mean(0)
    bases = [np.linalg.svd(x[:, t])[2][:2].T for t in range(2)]
    cosines = np.cos(np.sort(scipy.linalg.subspace_angles(*bases)))
    np.testing.assert_allclose(found.cosines[0, 1], cosines, rtol=1e-12)
    np.testing.assert_allclose(found.nuclear()[1, 0], cosines.mean(), rtol=1e-12)
    np.testing.assert_allclose(found.spectral()[0, 0], 1, rtol=1e-12)
    assert np.isnan(found.cosines[2]).all()
    # What the mean leaves of states that are the same is a rounding error, and has no direction.
    same = states.at[:3, 2].set(jnp.array([0.1, 0.2, 0.3, 0.7, 0.0]))[:3]
    assert np.any(same[:, 2] != same[:, 2].mean(0))
    assert np.isnan(g.subspace_similarity(same, rank=1).cosines[2]).all()


@pytest.fixture(scope="module")
def kernel():
    return g.adjoint_kernel(NET, STATE0, INPUTS)


def _response():
    """d x_T / d u_s by the equations of the network."""
    W, B, b = (np.asarray(x) for x in (NET.recurrent_weight, NET.input_weight, NET.bias))
    x, jacobians, drives = np.asarray(STATE0), [], []
    for u in np.asarray(INPUTS):
        slope = 0.5 * (1 - np.tanh(W @ x + B @ u + b) ** 2)
        jacobians.append(0.5 * np.eye(N) + slope[:, None] * W)
        drives.append(slope[:, None] * B)
        x = 0.5 * x + 0.5 * np.tanh(W @ x + B @ u + b)
    out = []
    for s in range(T):
        L = np.eye(N)
        for A in jacobians[s + 1 :]:
            L = A @ L
        out.append(L @ drives[s])
    return np.stack(out, axis=1)


def test_kernel_and_gramian_agree(kernel):
    want = _response()
    np.testing.assert_allclose(kernel.response, want, rtol=1e-12, atol=1e-14)
    gramian = g.controllability_gramian(NET, STATE0, INPUTS)
    np.testing.assert_allclose(gramian.gramians[-1], np.einsum("asi,bsi->ab", want, want), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(gramian.gramians[-1], kernel.gramian(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(gramian.states[-1], kernel.state, rtol=1e-13)
    flat = kernel.kernel().reshape(2 * T, 2 * T)
    top = np.linalg.eigvalsh(flat)[::-1][:N]
    np.testing.assert_allclose(gramian.modes(N)[0][-1], top, rtol=1e-10)
    values, inputs, outputs = kernel.modes(2)
    np.testing.assert_allclose(values**2, top[:2], rtol=1e-10)
    pushed = np.einsum("asi,ksi->ka", want, inputs)
    np.testing.assert_allclose(pushed, values[:, None] * outputs, rtol=1e-10, atol=1e-12)


def test_kernel_of_a_field():
    """Of a linear field by the matrix exponential; of a network by differences of simulations, and the Gramian."""
    W, B = np.asarray(FIELD.recurrent_weight), np.asarray(FIELD.input_weight)
    linear = dw.models.CTRNN(2, 3, activation=lambda x: x, key=KEY)
    ts = np.array([0.0, 0.3, 0.7, 1.2])
    found = g.adjoint_kernel(linear, jnp.zeros(3), lambda t: jnp.stack([jnp.sin(t), t]), ts=ts, dt=0.02, at=1)
    A = W - np.eye(3)

    def integral(t):  # of exp(A s) B from 0 to t
        return np.linalg.solve(A, (scipy.linalg.expm(A * t) - np.eye(3)) @ B)

    want = [integral(ts[2] - ts[k]) - integral(ts[2] - ts[k + 1]) for k in range(2)]
    np.testing.assert_allclose(found.response[:, :2], np.stack(want, 1), rtol=1e-6, atol=1e-9)
    assert (found.response[:, 2] == 0).all()

    def signal(t):
        return jnp.stack([jnp.sin(3 * t), jnp.cos(t)])

    ts = np.linspace(0, 1, 41)
    start = jnp.array([0.2, -0.4, 0.3])
    fixed = g.adjoint_kernel(FIELD, start, signal, ts=ts, dt=0.05)
    adaptive = g.adjoint_kernel(FIELD, start, signal, ts=ts)
    np.testing.assert_allclose(fixed.response, adaptive.response, rtol=1e-4, atol=1e-7)
    whole = g.controllability_gramian(FIELD, start, signal, ts=[0.0, 1.0], dt=0.025).gramians[-1]
    np.testing.assert_allclose(fixed.gramian() / ts[1], whole, rtol=2e-3, atol=1e-4)
    ends = [
        dw.simulate(FIELD, start, lambda t, h=h: signal(t) + h, ts=ts[[0, -1]], dt=0.025)[-1] for h in (-1e-5, 1e-5)
    ]
    np.testing.assert_allclose(fixed.response.sum((1, 2)), (ends[1] - ends[0]) / 2e-5, rtol=1e-8)


def test_noise_moves_the_state_and_not_the_gramian():
    noise = jnp.array([0.5, 0.0, 0.2, 0.1])
    found = g.controllability_gramian(NET, STATE0, INPUTS, noise=noise, key=KEY)
    start, W = STATE0, jnp.zeros((N, N))
    for u, state, gramian in zip(INPUTS, found.states, found.gramians):
        A, B = jax.jacfwd(NET, argnums=(0, 1))(start, u)
        W = A @ W @ A.T + B @ B.T
        np.testing.assert_allclose(gramian, W, rtol=1e-12, atol=1e-14)
        assert (np.abs(state - NET(start, u)) > 1e-9).tolist() == (noise > 0).tolist()
        start = state


def test_gramian_of_a_network_with_dropout_is_that_of_what_is_left():
    halves = dw.models.Stack([NET, dw.models.LeakyRNN(N, N, dt=0.5, key=KEY)], dropout=0.5)
    start = jnp.concatenate([STATE0, STATE0])
    found = g.controllability_gramian(halves, start, INPUTS, key=KEY)
    states = dw.simulate(halves, start, INPUTS, key=KEY)
    np.testing.assert_allclose(found.states, states, rtol=1e-13)
    h = 1e-6
    responses = []
    for s, i in np.ndindex(T, 2):
        low, high = (dw.simulate(halves, start, INPUTS.at[s, i].add(d), key=KEY)[-1] for d in (-h, h))
        responses.append((high - low) / (2 * h))
    responses = np.array(responses)
    np.testing.assert_allclose(found.gramians[-1], responses.T @ responses, rtol=1e-7, atol=1e-9)
    assert np.max(np.abs(states - dw.simulate(halves, start, INPUTS))) > 1e-2


def test_kernel_serves_every_manifold(kernel):
    tangents = np.random.default_rng(0).normal(size=(T, 2, 3))
    seen = np.einsum("asi,sim->am", _response(), tangents)
    np.testing.assert_allclose(kernel.metric(tangents), seen.T @ seen, rtol=1e-11)


def test_gramian_in_continuous_time():
    """Of dx/dt = A x + B u: the solution of the Lyapunov equation, by scipy, at late times."""
    A = np.array([[-1.0, 2.0], [0.0, -0.5]])
    field = dw.models.CTRNN(1, 2, activation=_identity, recurrent_init=lambda *_: jnp.asarray(A + np.eye(2)), key=KEY)
    B = np.asarray(field.input_weight)
    found = g.controllability_gramian(field, jnp.zeros(2), None, ts=np.array([0.0, 40.0]), dt=0.02)
    want = scipy.linalg.solve_continuous_lyapunov(A, -B @ B.T)
    np.testing.assert_allclose(found.gramians[-1], want, rtol=1e-6)


def _identity(x):
    return x


def test_comparison_of_metrics():
    G, other, metric = _metrics(KEY, (P, 2)), _metrics(jax.random.key(4), (P, 2)), _metrics(jax.random.key(5), (P,))
    found = g.compare_metrics(G, other, input_metric=metric)
    logs = np.log([[scipy.linalg.eigvalsh(other[p, t], G[p, t]) for t in range(2)] for p in range(P)])
    np.testing.assert_allclose(found.distance, np.sqrt((logs**2).sum(-1).mean(0)), rtol=1e-11)
    shifted = logs - logs.mean((0, 2))[None, :, None]
    np.testing.assert_allclose(found.shape_distance, np.sqrt((shifted**2).sum(-1).mean(0)), rtol=1e-11)

    def warped(G):
        root = np.array([np.linalg.inv(scipy.linalg.sqrtm(x)) for x in np.asarray(metric)])
        ell = np.array([[scipy.linalg.logm(r @ x @ r) for x in row] for r, row in zip(root, np.asarray(G))])
        return ell - np.trace(ell, axis1=-2, axis2=-1).mean(0)[:, None, None] / 2 * np.eye(2)

    a, b = warped(G), warped(other)
    for t in range(2):
        want = np.sum(a[:, t] * b[:, t]) / np.sqrt(np.sum(a[:, t] ** 2) * np.sum(b[:, t] ** 2))
        np.testing.assert_allclose(found.correlation[t], want, rtol=1e-10)
    jacobian = jax.random.normal(jax.random.key(6), (P, 2, 2))
    moved = [jnp.swapaxes(jacobian, -1, -2)[:, None] @ x @ jacobian[:, None] for x in (G, other, metric[:, None])]
    covariant = g.compare_metrics(*moved[:2], input_metric=moved[2][:, 0])
    for name in ("distance", "shape_distance", "correlation"):
        np.testing.assert_allclose(getattr(covariant, name), getattr(found, name), rtol=1e-9)


def test_comparison_of_distances():
    rng = np.random.default_rng(0)
    a, b = (np.abs(x + x.T) for x in rng.normal(size=(2, 5, 5)))
    a[0, 1] = a[1, 0] = np.nan
    found = g.compare_distances(a, b)
    rows, columns = np.triu_indices(5, 1)
    u, v = a[rows, columns][1:], b[rows, columns][1:]
    u, v = u / u.mean(), v / v.mean()
    np.testing.assert_allclose(found.difference, np.abs(u - v).mean(), rtol=1e-12)
    np.testing.assert_allclose(found.largest, np.abs(u - v).max(), rtol=1e-12)
    np.testing.assert_allclose(found.correlation, np.corrcoef(u, v)[0, 1], rtol=1e-12)
    assert int(found.pairs) == 9
    assert np.isnan(g.compare_distances(a * np.nan, b).largest)


def test_curvature_energy_of_a_torus():
    a, b = 2.0, 1.0

    def torus(x):
        (u, v), r = x, a + b * jnp.cos(x[1])
        return jnp.stack([r * jnp.cos(u), r * jnp.sin(u), b * jnp.sin(v)])

    surface = g.Immersion(torus, dim=2, periods=(2 * np.pi, 2 * np.pi))
    found = g.curvature_energy(surface, (3, 60))
    np.testing.assert_allclose(found.volume, 4 * np.pi**2 * a * b, rtol=1e-12)
    np.testing.assert_allclose(found.total, 0, atol=1e-12)
    v = 2 * np.pi * np.arange(60) / 60
    energy = 2 * np.pi * np.mean(np.cos(v) ** 2 / (b * (a + b * np.cos(v)))) * 2 * np.pi
    np.testing.assert_allclose(found.energy, energy, rtol=1e-12)
    assert float(found.defined) == 1
    np.testing.assert_allclose(found.absolute, 8 * np.pi, rtol=1e-2)


class _Masked(dw.models.AbstractMap):
    """Its dimension depends on the state."""

    state_size: int = N
    input_size: int = 2

    def __call__(self, state, input=None, *, step=None):
        return state[state > 0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: g.geodesic_coordinates(jnp.ones((3, 1, 1, 1)), jnp.zeros((3, 1))), ValueError, "increase"),
        (lambda: g.geodesic_coordinates(jnp.ones((3, 1, 1)), jnp.zeros(3)), ValueError, "grid"),
        (lambda: g.decoder_alignment(jnp.zeros(3), jnp.zeros((3, 1)), jnp.sin), ValueError, "`states`"),
        (lambda: g.decoder_alignment(jnp.zeros((1, 3)), jnp.zeros((1, 4, 1)), jnp.sin), ValueError, "`tangents`"),
        (lambda: g.decoder_alignment(jnp.zeros((1, 3)), jnp.zeros((1, 3, 1)), jnp.eye(3)), ValueError, "a function"),
        (lambda: g.controllability_gramian(NET, STATE0, INPUTS, noise=jnp.ones(2), key=KEY), ValueError, "`noise`"),
        (lambda: g.subspace_similarity(jnp.zeros((2, 1, 3))), dw.errors.ArgumentError, "span no subspace"),
        (lambda: g.adjoint_kernel(NET, STATE0, jnp.zeros((T, 3))), dw.errors.ShapeError, "`inputs`"),
        (lambda: g.adjoint_kernel(NET, STATE0, INPUTS, ts=[0.0, 1.0]), ValueError, "`ts`"),
        (lambda: g.adjoint_kernel(FIELD, jnp.zeros(3), INPUTS, ts=[0.0, 1.0]), ValueError, "a function of time"),
        (lambda: g.adjoint_kernel(FIELD, jnp.zeros(3), None), ValueError, "`ts`"),
        (lambda: g.adjoint_kernel(FIELD, jnp.zeros(3), None, ts=[0.0, 1.0], at=1), ValueError, "`at`"),
        (lambda: g.controllability_gramian(_Masked(), STATE0, INPUTS), dw.errors.ModelError, "cannot be traced"),
        (lambda: g.controllability_gramian(NET, jnp.zeros(2), INPUTS), dw.errors.ShapeError, "state0"),
        (lambda: g.compare_metrics(jnp.ones((1, 2, 2)), jnp.ones((1, 3, 3))), dw.errors.ShapeError, "`other`"),
        (lambda: g.compare_distances(jnp.ones((2, 2)), jnp.ones((2, 2))), dw.errors.ShapeError, "distances"),
        (lambda: g.curvature_energy(3, 4), dw.errors.ArgumentError, "Immersion"),
    ],
)  # fmt: skip
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
