"""Input manifolds: shapes, products, sections, splines, quadrature, a user's function."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import CubicSpline

import dynwarp as dw
from dynwarp.errors import ArgumentError, NonFiniteError, ShapeError

t = dw.tasks
SHOWN = jnp.array([1.0, 0.5, 0.0])


class Wave(eqx.Module):
    """A user's function that holds an array."""

    gain: jax.Array

    def __call__(self, theta, time=None):
        if time is None:
            return self.gain * jnp.outer(jnp.arange(4.0), jnp.stack([theta[0], theta[0] * theta[1]]))
        return self.gain * jnp.stack([jnp.sin(theta[0] * time), theta[1]])


MANIFOLDS = {
    "line": t.Line(SHOWN, jnp.array([1.0, 2.0]), origin=jnp.array([0.5, 0.0]), bounds=(0.0, 2.0)),
    "circle": t.Circle(SHOWN, axes=jnp.array([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), centre=jnp.ones(3)),
    "torus": t.Torus(jnp.stack([SHOWN, SHOWN[::-1]])),
    "own channels": t.Torus(jnp.stack([SHOWN, SHOWN[::-1]]), shared=False),
    "product": t.Product([t.Circle(SHOWN), t.Line(SHOWN, jnp.ones(1))]),
    "sum": t.Product([t.Circle(SHOWN), t.Line(SHOWN[::-1], jnp.ones(2))], combine="sum"),
    "function": t.FunctionManifold(Wave(jnp.asarray(2.0)), dim=2, bounds=((0.0, 1.0), None)),
    "section": t.Section(t.Torus(jnp.stack([SHOWN, SHOWN[::-1]])), [1], jnp.array([0.7, 0.0])),
}


def unit(angle):
    return np.array([np.cos(angle), np.sin(angle)])


def expected(name, a, b):
    """The inputs at (a, b) in NumPy."""
    e, back = np.array(SHOWN)[:, None], np.array(SHOWN)[::-1, None]
    return {
        "line": e * np.array([0.5 + a, 2 * a]),
        "circle": e * np.array([1 + 2 * np.cos(a), 1 + np.sin(a), 1 + np.cos(a)]),
        "torus": e * unit(a) + back * unit(b),
        "own channels": np.hstack([e * unit(a), back * unit(b)]),
        "product": np.hstack([e * unit(a), e * b]),
        "sum": e * unit(a) + back * b,
        "function": 2 * np.outer(np.arange(4), [a, a * b]),
        "section": e * unit(0.7) + back * unit(a),
    }[name]


@eqx.filter_jit
def values_and_tangents(manifold, thetas):
    return jax.vmap(lambda x: (manifold(x), jax.jacfwd(manifold)(x)))(thetas)


@pytest.mark.parametrize("name", list(MANIFOLDS))
def test_inputs_and_tangents(name):
    manifold = MANIFOLDS[name]
    assert isinstance(manifold, t.InputManifold)
    points = np.array([[0.3, 1.1], [2.0, 0.4]])[:, : manifold.dim]
    values, tangents = values_and_tangents(manifold, jnp.asarray(points))
    for point, value, tangent in zip(points, values, tangents):
        a, b = (*point, 0.0)[:2]
        np.testing.assert_allclose(value, expected(name, a, b), atol=1e-14)
        h = 1e-6
        steps = [(h, 0), (0, h)][: manifold.dim]
        slopes = [(expected(name, a + p, b + q) - expected(name, a - p, b - q)) / (2 * h) for p, q in steps]
        np.testing.assert_allclose(tangent, np.stack(slopes, axis=-1), atol=1e-8)


def test_charts():
    assert MANIFOLDS["product"].periods == (2 * math.pi, None)
    assert MANIFOLDS["product"].bounds == (None, (-1.0, 1.0))
    assert MANIFOLDS["section"].periods == (2 * math.pi,)
    assert MANIFOLDS["line"].bounds == ((0.0, 2.0),)
    assert MANIFOLDS["torus"].grid(3).shape == (3, 3, 2)
    nested = t.Product([MANIFOLDS["product"], MANIFOLDS["section"]])
    assert nested.dim == 3
    assert nested.periods == (2 * math.pi, None, 2 * math.pi)


def test_signals_in_continuous_time():
    ramp = lambda s: jnp.exp(-s)  # noqa: E731
    line, circle = t.Line(ramp, jnp.ones(2)), t.Circle(ramp)
    torus = t.Torus(lambda s: jnp.stack([s, 1 - s]), m=2)
    np.testing.assert_allclose(line(jnp.array([3.0]), 0.5), 3 * math.exp(-0.5) * np.ones(2))
    np.testing.assert_allclose(circle(jnp.array([0.2]), 0.5), math.exp(-0.5) * unit(0.2))
    np.testing.assert_allclose(torus(jnp.array([0.2, 0.9]), 0.25), 0.25 * unit(0.2) + 0.75 * unit(0.9))
    both = t.Product([line, circle])
    np.testing.assert_allclose(both(jnp.array([3.0, 0.2]), 0.5), math.exp(-0.5) * np.array([3, 3, *unit(0.2)]))
    np.testing.assert_allclose(MANIFOLDS["function"](jnp.array([2.0, 3.0]), 0.5), [2 * math.sin(1.0), 6.0])


@pytest.fixture(scope="module")
def recorded():
    """A smooth family over an angle and a strength, on a grid of 12 by 5 knots, and its spline."""
    angles, strengths = np.arange(12) * (2 * np.pi / 12), np.array([0.0, 0.2, 0.5, 0.8, 1.0])
    times = np.array([0.0, 0.5, 1.5, 2.0])

    def family(angle, strength):
        return np.stack([np.exp(np.cos(angle - s)) * (1 + strength**3) for s in times])[:, None]

    values = np.array([[family(a, s) for s in strengths] for a in angles])
    spline = t.SplineManifold([angles, strengths], values, periods=(2 * np.pi, None), ts=times)
    return spline, angles, strengths, times, values, family


def test_spline_passes_through_the_data_and_agrees_with_scipy(recorded):
    spline, angles, strengths, _, values, family = recorded
    assert spline.periods == (2 * math.pi, None)
    assert spline.bounds == ((0.0, 2 * math.pi), (0.0, 1.0))
    knots = np.stack(np.meshgrid(angles, strengths, indexing="ij"), axis=-1).reshape(-1, 2)
    points = np.concatenate([knots, [[0.3, 0.4], [6.1, 0.9], [6.1 + 2 * np.pi, 0.9], [-0.4, 0.1]]])
    got, slopes = values_and_tangents(spline, jnp.asarray(points))
    np.testing.assert_allclose(got[: len(knots)], values.reshape(-1, 4, 1), atol=1e-12)
    closed = CubicSpline(np.append(angles, 2 * np.pi), np.append(values, values[:1], axis=0), bc_type="periodic")
    for (a, s), value, slope in zip(points[-4:], got[-4:], slopes[-4:]):
        np.testing.assert_allclose(value, CubicSpline(strengths, closed(a % (2 * np.pi)))(s), atol=1e-12)
        along = CubicSpline(strengths, closed(a % (2 * np.pi), 1))(s)
        np.testing.assert_allclose(slope[..., 0], along, atol=1e-11)
        # h^4 max |f''''| / 384 of the 12 knots, with room for the second axis, which is a cubic already.
        np.testing.assert_allclose(value, family(a, s), atol=0.02)
    np.testing.assert_allclose(got[-3], got[-2], atol=1e-12)


def test_spline_along_time(recorded):
    spline, _, _, times, _, _ = recorded
    theta = jnp.array([0.3, 0.4])
    signal = jax.jit(jax.vmap(lambda s: spline(theta, s)))(jnp.array([0.0, 0.7, 1.5, 2.0]))
    np.testing.assert_allclose(signal, CubicSpline(times, spline(theta))([0.0, 0.7, 1.5, 2.0]), atol=1e-12)


def test_spline_of_scattered_noisy_trials():
    rng = np.random.default_rng(0)
    thetas = rng.uniform(0, 2 * np.pi, (400, 1))
    clean = np.cos(thetas)[:, :, None]
    knots = np.arange(12) * (2 * np.pi / 12)
    fitted = t.SplineManifold.from_trials(
        thetas, clean + 0.1 * rng.normal(size=clean.shape), knots, periods=(2 * np.pi,)
    )
    points = np.linspace(0, 2 * np.pi, 50)[:, None]
    error = np.asarray(jax.vmap(fitted)(jnp.asarray(points)))[:, 0, 0] - np.cos(points[:, 0])
    # Twelve parameters from 400 trials: a root mean square of 0.1 sqrt(12 / 400).
    assert np.sqrt(np.mean(error**2)) < 2 * 0.1 * math.sqrt(12 / 400)


def test_quadrature():
    manifold = t.Product([t.Circle(SHOWN), t.Line(SHOWN, jnp.ones(1), bounds=(0.0, 2.0))])
    points, weights = manifold.quadrature((9, 6))
    assert points.shape == (54, 2)
    assert float(weights.sum()) == pytest.approx(4 * math.pi)
    # The integral of exp(cos a) over the circle is 2 pi I_0(1), that of s^5 from 0 to 2 is 2^6 / 6.
    integral = np.sum(np.asarray(weights) * np.exp(np.cos(points[:, 0])) * np.asarray(points[:, 1]) ** 5)
    # Nine points leave 2 I_9(1) / I_0(1) of it.
    assert integral == pytest.approx(2 * math.pi * 1.2660658777520084 * 64 / 6, rel=1e-8)
    assert t.FlipFlop().quadrature(1)[1].tolist() == [8.0]


def test_single_precision():
    manifold = t.SplineManifold(np.arange(4.0), np.ones((4, 2, 1), np.float32))
    assert manifold(jnp.array([0.5], jnp.float32)).dtype == jnp.float32
    assert t.Circle(SHOWN.astype(jnp.float32), axes=np.eye(2, dtype=np.float32))(
        jnp.zeros(1, jnp.float32)
    ).dtype == jnp.float32  # fmt: skip


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: t.Line(jnp.ones((2, 2)), jnp.ones(2)), ShapeError, r"Line: `envelope` must have shape \(T,\)"),
        (lambda: t.Line(SHOWN, jnp.ones(2), origin=jnp.ones(3)), ShapeError, "`origin` must have shape"),
        (lambda: t.Line(SHOWN, jnp.ones(2), bounds=(1.0, 1.0)), ArgumentError, "`bounds` must be two finite numbers"),
        (lambda: t.Circle(SHOWN, axes=jnp.eye(3)), ShapeError, r"Circle: `axes` must have shape \(2, d\)"),
        (lambda: t.Torus(lambda s: s), ArgumentError, "`m`, the number of angles, is needed"),
        (lambda: t.Circle(SHOWN)(jnp.zeros(1), 0.5), ArgumentError, "Circle: the envelope is an array of steps"),
        (lambda: t.Circle(jnp.cos)(jnp.zeros(1)), ArgumentError, "Circle: the envelope is a function of time"),
        (lambda: t.Circle(SHOWN)(jnp.zeros(2)), ShapeError, r"Circle: `theta` must have shape \(1,\)"),
        (lambda: t.Product([]), ArgumentError, "`factors` must be a list of InputManifolds"),
        (
            lambda: t.Product([t.Circle(SHOWN), t.Circle(SHOWN[:2])])(jnp.zeros(2)),
            ArgumentError,
            r"do not fit together for 'concatenate'; they have the shapes \(3, 2\), \(2, 2\)",
        ),
        (lambda: t.FunctionManifold(3, dim=1), ArgumentError, "`fn` must be a function of theta; got int"),
        (lambda: t.FunctionManifold(jnp.sin, dim=2, periods=(1.0,)), ArgumentError, "one entry for each of the 2"),
        (lambda: t.FunctionManifold(jnp.sin, dim=1, periods=2.0), ArgumentError, "`periods` must be a tuple of 1"),
        (lambda: t.FunctionManifold(jnp.sin, dim=1, bounds=((1, 0),)), ArgumentError, "numbers that increase"),
        (lambda: t.FunctionManifold(jnp.sin, dim=1, bounds=((0, np.inf),)).grid(2), ArgumentError, "finite"),
        (lambda: t.Product(t.Circle(SHOWN)), ArgumentError, "`factors` must be a list"),
        (lambda: t.Circle(SHOWN, axes=[[1.0, 1.0], [2.0, 2.0]]), ArgumentError, "must not be parallel"),
        (lambda: t.Circle(SHOWN, centre=[0.0, np.nan]), NonFiniteError, "`centre` must be finite"),
        (lambda: t.Circle([1.0, 1.0j]), ArgumentError, "`envelope` must hold real numbers"),
        (lambda: t.Line(SHOWN, jnp.zeros(2)), ArgumentError, "`direction` must not be 0"),
        (lambda: t.Line("always", jnp.ones(2)), ArgumentError, "`envelope` must hold real numbers"),
        (lambda: t.Line(SHOWN, jnp.ones(2), bounds=("0", "1")), ArgumentError, "two finite numbers"),
        (lambda: t.Section(3, [0], jnp.zeros(1)), ArgumentError, "must be an InputManifold; got int"),
        (lambda: t.Section(t.Circle(SHOWN), "a", jnp.zeros(1)), ArgumentError, "different indices below 1"),
        (lambda: t.SplineManifold(np.arange(3.0), 1j * np.ones((3, 1, 1))), ArgumentError, "`inputs` must hold real"),
        (lambda: t.SplineManifold("abc", np.ones((3, 1, 1))), ArgumentError, "`knots` must be an array"),
        (lambda: t.SplineManifold(np.arange(3.0), np.ones((3, 1, 1)), periods=3.0), ArgumentError, "one entry for"),
        (
            lambda: t.SplineManifold.from_trials(np.ones((2, 1)), 1j * np.ones((2, 1, 1)), np.arange(3.0)),
            ArgumentError,
            "`inputs` must hold real numbers",
        ),
        (lambda: t.Section(t.Circle(SHOWN), [1], jnp.zeros(1)), ArgumentError, r"different indices below 1.*\[1\]"),
        (lambda: t.SplineManifold(np.arange(2.0), np.ones((2, 1, 1))), ArgumentError, "`knots` must be at least 3"),
        (lambda: t.SplineManifold(np.arange(3.0), np.ones((4, 1, 1))), ShapeError, r"shape \(3, T, d\)"),
        (lambda: t.SplineManifold(np.arange(3.0), np.full((3, 1, 1), np.nan)), NonFiniteError, "`inputs` must be"),
        (
            lambda: t.SplineManifold(np.arange(3.0), np.ones((3, 1, 1)), periods=(2.0,)),
            ArgumentError,
            "of period 2.0 must leave its upper end out",
        ),
        (
            lambda: t.SplineManifold(np.arange(3.0), np.ones((3, 1, 1)))(jnp.zeros(1), 0.5),
            ArgumentError,
            "need the times `ts` of the rows",
        ),
        (
            lambda: t.SplineManifold.from_trials(np.ones((2, 1)), np.ones((2, 1, 1)), np.arange(3.0)),
            ArgumentError,
            "2 trials determine 1 of the 3 inputs at the knots",
        ),
    ],
)  # fmt: skip
def test_messages(make, error, message):
    with pytest.raises(error, match=message):
        make()
