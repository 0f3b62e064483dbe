"""Connection and curvature against the surfaces of the textbooks, in straight and in skewed charts; kinks."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.geometry._kinks import find_crease

g = dw.geometry
KEY = jax.random.key(0)
R, TUBE, RING = 1.7, 0.6, 2.0
AXES = (1.5, 1.1, 0.7)
SKEW = np.array([[1.0, 0.7], [-0.2, 1.0]])
POINTS = jax.random.uniform(KEY, (8, 2), minval=0.3, maxval=1.2)


def _sphere(x):
    s, c = jnp.sin(x), jnp.cos(x)
    return R * jnp.stack([s[0] * c[1], s[0] * s[1], c[0]])


def _ellipsoid(x):
    return _sphere(x) / R * np.asarray(AXES)


def _ellipsoid_curvature(x):
    a, b, c = AXES
    p, q, r = _ellipsoid(x) ** 2
    return 1 / (a * b * c * (p / a**4 + q / b**4 + r / c**4)) ** 2


def _torus(x):
    radius = RING + TUBE * jnp.cos(x[1])
    return jnp.stack([radius * jnp.cos(x[0]), radius * jnp.sin(x[0]), TUBE * jnp.sin(x[1])])


def _flat_torus(x):
    return jnp.concatenate([jnp.cos(x), jnp.sin(x)])


def _helicoid(x):
    return jnp.stack([x[0] * jnp.cos(x[1]), x[0] * jnp.sin(x[1]), 0.8 * x[1]])


def _pseudosphere(x):
    s = 1 / jnp.cosh(x[0])
    return jnp.stack([s * jnp.cos(x[1]), s * jnp.sin(x[1]), x[0] - jnp.tanh(x[0])])


def _saddle(x):
    return jnp.stack([x[0], x[1], x[0] ** 2 - x[1] ** 2])


SURFACES = {
    "sphere": (_sphere, lambda x: R**-2 + 0 * x[0]),
    "ellipsoid": (_ellipsoid, _ellipsoid_curvature),
    "torus": (_torus, lambda x: jnp.cos(x[1]) / (TUBE * (RING + TUBE * jnp.cos(x[1])))),
    "flat torus": (_flat_torus, lambda x: 0 * x[0]),
    "pseudosphere": (_pseudosphere, lambda x: -1 + 0 * x[0]),
    "helicoid": (_helicoid, lambda x: -(0.8**2) / (x[0] ** 2 + 0.8**2) ** 2),
}


@pytest.fixture(scope="module")
def measured():
    """All surfaces in one program, in a skewed chart: by the equation of Gauss, and from the metric alone."""

    def one(fn, curvature):
        def skewed(x):
            return fn(SKEW @ x)

        surface = g.Immersion(skewed, dim=2)
        metric = g.Metric(lambda x: jax.jacfwd(skewed)(x).T @ jax.jacfwd(skewed)(x), dim=2)

        def at(x):
            return {
                "curvature": (surface.gaussian_curvature(x), metric.gaussian_curvature(x), curvature(SKEW @ x)),
                "christoffel": (surface.christoffel(x), metric.christoffel(x)),
                "riemann": (surface.riemann(x), metric.riemann(x)),
                "ricci": (surface.ricci(x), metric.ricci(x)),
                "volume": (surface.volume(x), metric.volume(x)),
                "metric": surface.metric(x),
                "mean": surface.mean_curvature(x),
                "second": surface.second_fundamental_form(x),
                "jacobian": jax.jacfwd(skewed)(x),
            }

        return jax.vmap(at)

    run = jax.jit(lambda x: {name: one(*pair)(x) for name, pair in SURFACES.items()})
    return jax.tree.map(np.asarray, run(POINTS))


@pytest.mark.parametrize("name", SURFACES)
def test_surfaces_in_a_skewed_chart(measured, name):
    found = measured[name]
    gauss, intrinsic, want = found["curvature"]
    assert abs(found["metric"][:, 0, 1]).min() > 1e-3
    np.testing.assert_allclose(gauss, want, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(intrinsic, want, rtol=1e-12, atol=1e-12)
    for kind in ("christoffel", "riemann", "ricci", "volume"):
        np.testing.assert_allclose(*found[kind], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SURFACES)
def test_tensors_fit_together(measured, name):
    found = measured[name]
    riemann, G, K = found["riemann"][0], found["metric"], found["curvature"][0]
    determinant = np.linalg.det(G)
    np.testing.assert_allclose(riemann[:, 0, 1, 0, 1], K * determinant, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(riemann, -np.swapaxes(riemann, 1, 2), atol=1e-13)
    np.testing.assert_allclose(found["ricci"][0], K[:, None, None] * G, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(found["volume"][0], np.sqrt(determinant), rtol=1e-13)
    tangential = np.einsum("pijN,pNk->pijk", found["second"], found["jacobian"])
    np.testing.assert_allclose(tangential, 0 * tangential, atol=1e-13)


def test_mean_curvature(measured):
    length = {name: np.linalg.norm(measured[name]["mean"], axis=-1) for name in SURFACES}
    np.testing.assert_allclose(length["sphere"], 1 / R, rtol=1e-13)
    np.testing.assert_allclose(length["helicoid"], 0, atol=1e-14)
    np.testing.assert_allclose(length["flat torus"], np.sqrt(0.5), rtol=1e-13)
    v = np.cos((POINTS @ SKEW.T)[:, 1])
    np.testing.assert_allclose(length["torus"], (RING + 2 * TUBE * v) / (2 * TUBE * (RING + TUBE * v)), rtol=1e-12)


def test_the_divergence_formula_fails_in_skewed_charts():
    """-[d_u((G_u - 2 F_v) / W) + d_v((E_v - 2 F_u) / W)] / 2W, which circulates, is right in orthogonal charts only."""

    def divergence(metric):
        def entry(i, j):
            return lambda x: metric(x)[i, j]

        E, F, G = entry(0, 0), entry(0, 1), entry(1, 1)

        def volume(x):
            return jnp.sqrt(E(x) * G(x) - F(x) ** 2)

        def flux(x):
            dE, dF, dG = (jax.grad(f)(x) for f in (E, F, G))
            return jnp.stack([dG[0] - 2 * dF[1], dE[1] - 2 * dF[0]]) / volume(x)

        return lambda x: -jnp.trace(jax.jacfwd(flux)(x)) / (2 * volume(x))

    saddle = g.Immersion(_saddle, dim=2)
    grid = jnp.stack(jnp.meshgrid(jnp.linspace(-1, 1, 21), jnp.linspace(-1, 1, 21)), -1).reshape(-1, 2)
    both = jax.jit(jax.vmap(lambda x: (divergence(saddle.metric)(x), saddle.gaussian_curvature(x))))
    wrong, right = both(grid)
    np.testing.assert_allclose(right, -4 / (1 + 4 * np.sum(grid**2, axis=1)) ** 2, rtol=1e-12)
    assert jnp.max(jnp.abs(wrong - right)) > 1
    sphere = g.Immersion(_sphere, dim=2)
    np.testing.assert_allclose(jax.jit(divergence(sphere.metric))(POINTS[0]), R**-2, rtol=1e-12)


def test_hyperbolic_plane():
    plane = g.Metric(lambda x: jnp.eye(2) / x[1] ** 2, dim=2)
    x = jnp.array([0.4, 1.3])
    want = np.zeros((2, 2, 2))
    want[0, 0, 1] = want[0, 1, 0] = want[1, 1, 1] = -1 / 1.3
    want[1, 0, 0] = 1 / 1.3
    np.testing.assert_allclose(plane.christoffel(x), want, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(plane.gaussian_curvature(x), -1, rtol=1e-13)


@pytest.mark.parametrize("m", [1, 3, 4])
def test_spheres_of_other_dimensions(m):
    def sphere(y):
        return jnp.concatenate([y, jnp.sqrt(1 - jnp.sum(y**2))[None]])

    surface = g.Immersion(sphere, dim=m)
    x = jnp.linspace(0.1, 0.3, m)
    both = jax.jit(
        lambda x: (surface.scalar_curvature(x), g.Metric(surface.metric, dim=m).scalar_curvature(x), surface.riemann(x))
    )
    gauss, intrinsic, riemann = both(x)
    np.testing.assert_allclose([gauss, intrinsic], m * (m - 1), rtol=1e-12, atol=1e-14)
    G = np.asarray(surface.metric(x))
    constant = np.einsum("ik,jl->ijkl", G, G) - np.einsum("il,jk->ijkl", G, G)
    np.testing.assert_allclose(riemann, constant, rtol=1e-11, atol=1e-13)


def test_rank_deficiency_is_nan():
    collapsed = g.Immersion(lambda x: jnp.stack([x[0] + x[1], (x[0] + x[1]) ** 2, jnp.ones_like(x[0])]), dim=2)
    x = jnp.array([0.3, 0.2])
    assert jnp.isnan(collapsed.gaussian_curvature(x))
    assert jnp.isnan(collapsed.christoffel(x)).all()
    assert abs(collapsed.volume(x)) < 1e-15
    pole = g.Immersion(_sphere, dim=2)
    assert jnp.isnan(pole.gaussian_curvature(jnp.array([0.0, 1.0])))
    np.testing.assert_allclose(pole.gaussian_curvature(jnp.array([1e-7, 1.0])), R**-2, rtol=1e-7)
    assert jnp.isnan(g.Metric(lambda x: jnp.diag(jnp.stack([x[0], -x[1]])), dim=2).volume(x))


def test_degenerate_metrics():
    """Semidefinite ones, the last up to rounding, which have a volume and stretches; NaN below zero."""
    tilted = jnp.array([0.1, 0.7, -0.3])
    charts = {
        "first": g.Metric(lambda x: jnp.diag(jnp.stack([0 * x[0], x[1]])), dim=2),
        "nothing": g.Metric(lambda x: jnp.zeros((4, 4)) * x[0], dim=4),
        "collapsed": g.Immersion(lambda x: 0 * x[0] * jnp.ones(3), dim=2),
        "rounded": g.Metric(lambda x: jnp.outer(tilted, tilted) * x[0], dim=3),
    }
    for chart in charts.values():
        x = jnp.full(chart.dim, 1.1)
        assert chart.status(x) == dw.RESULTS.singular
        assert chart.volume(x) == chart.isotropy(x) == 0
        assert jnp.isnan(chart.scalar_curvature(x))
        assert jnp.isinf(chart.distortion(x))
    largest = charts["rounded"].principal_stretches(jnp.ones(3))[-1]
    np.testing.assert_allclose(largest, np.linalg.norm(tilted), rtol=1e-12)
    assert jnp.isnan(g.Metric(lambda x: jnp.array([[0.0, 1.0], [1.0, 1.0]]), dim=2).volume(jnp.ones(2)))


def test_points_without_curvature_leave_gradients_alone():
    """At the pole; between the poles the curvature is constant, and the volume grows with the sine."""
    sphere = g.Immersion(_sphere, dim=2)

    @jax.jit
    @jax.grad
    def slope(latitudes):
        points = jnp.stack([latitudes, jnp.ones_like(latitudes)], 1)
        return jnp.nansum(jax.vmap(lambda x: sphere.ricci(x)[1, 1])(points))

    latitudes = jnp.array([0.0, 0.5])
    np.testing.assert_allclose(slope(latitudes), jnp.sin(2 * latitudes), atol=1e-13)


def test_float32_and_gradient():
    surface = g.Immersion(_torus, dim=2)
    x = POINTS[0]
    low = surface.gaussian_curvature(x.astype(jnp.float32))
    assert low.dtype == jnp.float32
    np.testing.assert_allclose(low, surface.gaussian_curvature(x), rtol=1e-5)
    np.testing.assert_allclose(
        jax.grad(surface.gaussian_curvature)(x), jax.grad(SURFACES["torus"][1])(x), rtol=1e-11, atol=1e-14
    )


TORUS = dw.tasks.Torus(jnp.array([[1.0, 0.5, 0.0, 0.2], [0.0, 1.0, 0.7, 0.1]]))


def test_states_as_a_surface():
    net = dw.models.Elman(2, 6, key=KEY)
    theta = jnp.array([0.4, 2.0])
    surface = g.state_manifold(net, TORUS, state0=jnp.zeros(6), step=2)
    G = g.representation_metric(net, TORUS, theta, state0=jnp.zeros(6)).G
    np.testing.assert_allclose(surface.metric(theta), G[2], rtol=1e-12)
    assert surface.periods == TORUS.periods
    intrinsic = g.Metric(surface.metric, dim=2)
    values = eqx.filter_jit(lambda s, i, x: (s.gaussian_curvature(x), i.gaussian_curvature(x)))
    np.testing.assert_allclose(*values(surface, intrinsic, theta), rtol=1e-9)


def test_states_in_single_precision():
    """With everything in float32, and JAX's default float64: no dtype may be promoted on the way."""
    net, torus, start = jax.tree.map(
        lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x,
        (dw.models.Elman(2, 6, key=KEY), TORUS, jnp.zeros(6)),
    )
    surface = g.state_manifold(net, torus, state0=start, step=2)
    theta = jnp.array([0.4, 2.0], jnp.float32)
    G = g.representation_metric(net, torus, theta, state0=start).G[2]
    assert surface.metric(theta).dtype == G.dtype == jnp.float32
    np.testing.assert_allclose(surface.metric(theta), G, rtol=1e-5)


def test_states_of_a_field_as_a_surface():
    net = dw.models.CTRNN(2, 4, key=KEY)
    circle = dw.tasks.Circle(lambda t: jnp.exp(-t))
    surface = g.state_manifold(net, circle, state0=jnp.zeros(4), t=1.0, dt=0.25)
    found = g.representation_metric(net, circle, jnp.ones(1), state0=jnp.zeros(4), ts=[0.0, 1.0], dt=0.25)
    np.testing.assert_allclose(surface.metric(jnp.ones(1)), found.G[1], rtol=1e-12)


def test_kinks_are_refused():
    def surface(activation, **options):
        net = dw.models.Elman(2, 3, activation=activation, key=KEY)
        return g.state_manifold(net, TORUS, state0=jnp.zeros(3), **options)

    for activation in (jax.nn.relu, jax.nn.leaky_relu, jax.nn.elu, jnp.abs, lambda x: jnp.clip(x, -1, 1)):
        with pytest.raises(dw.errors.ModelError, match="kink"):
            surface(activation)
        assert isinstance(surface(activation, smooth=False), g.Immersion)
    for activation in (jnp.tanh, jax.nn.softplus, jax.nn.gelu, jax.nn.silu):
        assert isinstance(surface(activation), g.Immersion)
    with pytest.raises(dw.errors.ModelError, match="PLRNN"):
        g.state_manifold(dw.models.PLRNN(3, input_size=2, key=KEY), TORUS, state0=jnp.zeros(3))
    with pytest.raises(dw.errors.ModelError, match="the readout"):
        surface(jnp.tanh, readout=lambda z: jnp.maximum(z, 0.0))
    for model in (dw.models.GRU(2, 4, key=KEY), dw.models.LRU(2, 2, 1, key=KEY)):
        assert isinstance(g.state_manifold(model, TORUS, state0=jnp.zeros(4)), g.Immersion)


def test_kinks_of_a_users_function_are_refused():
    weights = jnp.array([[1.0, 0.3], [-0.5, 0.8], [0.2, -1.0]])
    x = jnp.array([0.4, 0.7])

    def graph(height, **options):
        return g.Immersion(lambda x: jnp.append(x, height(x)), dim=2, **options)

    def recurrent(x):
        return jax.lax.scan(lambda h, _: (jax.nn.relu(0.5 * h + weights @ x), None), jnp.zeros(3), length=2)[0][0]

    kinked = {
        "max": lambda x: jnp.sum(jax.nn.relu(weights @ x)),
        "min": lambda x: jnp.tanh(jnp.clip(x[0], -1, 1)),
        "abs": lambda x: jnp.abs(x[0]) * x[1],
        "leaky_relu": lambda x: jnp.sum(jax.nn.leaky_relu(weights @ x)),
        "reduce_max": lambda x: 1 + jnp.max(weights @ x),
    }
    for operation, height in (*kinked.items(), ("max", recurrent)):
        with pytest.raises(dw.errors.ModelError, match=f"`fn` has a kink \\(the operation '{operation}'"):
            graph(height).gaussian_curvature(x)
    surface = graph(kinked["abs"])
    for curvature in (surface.mean_curvature, surface.second_fundamental_form, jax.jit(surface.riemann)):
        with pytest.raises(dw.errors.ModelError, match="smooth=False"):
            curvature(x)
    # Between the creases it is x y, and the metric is there without a word.
    between = graph(kinked["abs"], smooth=False).gaussian_curvature(x)
    np.testing.assert_allclose(between, -1 / (1 + x @ x) ** 2, rtol=1e-13)
    np.testing.assert_allclose(surface.metric(x), jnp.eye(2) + jnp.outer(x[::-1], x[::-1]), rtol=1e-14)

    def guarded(x):
        safe = jnp.where(x[0] == 0, 1.0, x[0])
        return jnp.where(x[0] == 0, jnp.pi / 2, jnp.arctan2(x[1], safe)) + jnp.sin(jnp.mod(x[0], 2 * jnp.pi))

    smooth = (
        guarded,
        lambda x: jnp.sqrt(jnp.maximum(4 - x @ x, 0)),
        lambda x: x[0] / jnp.maximum(jnp.linalg.norm(x), 1e-9) + jnp.arccos(jnp.clip(x[1], -1, 1)),
        lambda x: jax.nn.logsumexp(weights @ x) + jax.nn.softmax(x)[0] + jnp.logaddexp(x[0], x[1]) + jnp.hypot(*x),
        lambda x: jnp.sum(jax.nn.softplus(weights @ x) + jax.nn.gelu(weights @ x)),
        lambda x: jnp.linalg.slogdet(jnp.eye(2) + jnp.outer(x, x))[1] + jax.scipy.linalg.expm(jnp.outer(x, x))[0, 1],
    )
    for height in smooth:
        assert find_crease(height, x) is None
    adaptive = functools.partial(dw.simulate, dw.models.CTRNN(0, 2, key=KEY), ts=np.array([0.0, 1.0]), last_only=True)
    assert find_crease(adaptive, x) is None


def test_bad_arguments():
    net = dw.models.Elman(2, 3, key=KEY)
    with pytest.raises(dw.errors.ArgumentError, match="2 dimensions"):
        g.Immersion(lambda x: jnp.ones(4), dim=3).gaussian_curvature(jnp.zeros(3))
    with pytest.raises(dw.errors.ShapeError, match="`x`"):
        g.Immersion(_sphere, dim=2).metric(jnp.zeros(3))
    with pytest.raises(dw.errors.ArgumentError, match="at least 2"):
        g.Immersion(lambda x: x[:1], dim=2).metric(jnp.zeros(2))
    with pytest.raises(dw.errors.ShapeError, match="fn"):
        g.Metric(lambda x: jnp.eye(3), dim=2).metric(jnp.zeros(2))
    with pytest.raises(dw.errors.ArgumentError, match="fn"):
        g.Metric(jnp.eye(2), dim=2)  # pyright: ignore[reportArgumentType]
    with pytest.raises(dw.errors.ArgumentError, match="periods"):
        g.Metric(_sphere, dim=2, periods=(None,))
    for axes in (dict(periods=1.0), dict(periods=(-1.0, None)), dict(bounds=((1.0, 0.0), None)), dict(bounds=(0, 1))):
        with pytest.raises(dw.errors.ArgumentError, match=f"Metric: .*`{next(iter(axes))}`"):
            g.Metric(_sphere, dim=2, **axes)  # pyright: ignore[reportArgumentType]
    with pytest.raises(dw.errors.ArgumentError, match="`step`"):
        g.state_manifold(net, TORUS, state0=jnp.zeros(3), step=4)
    with pytest.raises(dw.errors.ArgumentError, match="a map"):
        g.state_manifold(net, TORUS, state0=jnp.zeros(3), t=1.0)
    with pytest.raises(dw.errors.ArgumentError, match="`t`"):
        g.state_manifold(dw.models.CTRNN(2, 3, key=KEY), TORUS, state0=jnp.zeros(3))
