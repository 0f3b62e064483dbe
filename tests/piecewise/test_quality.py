"""delta_sigma, Delta_sigma and the invariance residual."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.errors import ArgumentError, PrecisionError, ShapeError
from dynwarp.piecewise import cycle_at, delta_sigma, invariance_residual, manifold_quality, trace_manifold

DATA = Path(__file__).parents[3] / "shared" / "data"
L, R = [False], [True]


def toy(name, word):
    f = dw.systems.BorderCollisionMap.preset(name).canonical()
    return f, cycle_at(f, jnp.array(word))


@pytest.fixture(scope="module")
def chaos():
    return toy("fig5", [L])


def test_forward_as_published(chaos):
    f, saddle = chaos
    points = np.random.default_rng(0).uniform(-2, 2, (30, 2))
    p = np.asarray(saddle.points[0])
    A, W1, W2, h1, h2 = (np.asarray(x) for x in (f.A, f.W1, f.W2, f.h1, f.h2))
    expected = []
    for x in points:
        start, least = np.sum((x - p) ** 2), np.inf
        for _ in range(41):
            least = min(least, np.sum((x - p) ** 2))
            with np.errstate(over="ignore", invalid="ignore"):
                x = A @ x + W1 @ np.maximum(W2 @ x + h2, 0) + h1
        expected.append(least / start)
    got = delta_sigma(f, saddle, jnp.asarray(points), kind="stable", steps=40)
    # Chaotic orbits: 40 steps multiply rounding errors by 10^8.
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)
    assert ((got > 0) & (got <= 1)).all()


def test_backward_as_published(chaos):
    f, saddle = chaos
    points = np.random.default_rng(1).uniform(-1, 1, (20, 2))
    p = np.asarray(saddle.points[0])
    left = np.asarray(f.A), np.asarray(f.h1)
    right = np.asarray(f.A + f.W1 @ f.W2), np.asarray(f.h1)
    expected = []
    for x in points:
        start, least = np.sum((x - p) ** 2), np.inf
        for _ in range(9):
            least = min(least, np.sum((x - p) ** 2))
            # The map is a homeomorphism: exactly one branch fits.
            (x,) = [y for (J, b), s in ((left, False), (right, True)) if ((y := np.linalg.solve(J, x - b))[0] > 0) == s]
        expected.append(least / start)
    got = delta_sigma(f, saddle, jnp.asarray(points), kind="unstable", steps=8)
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_backward_follows_branches():
    # A tent: z has two preimages or none, and the orbit that leads to the fixed point 2/3 is not always the nearest.
    f = dw.models.PiecewiseLinearMap(
        jnp.array([[2.0]]), jnp.array([[-4.0]]), jnp.array([[1.0]]), jnp.array([0.0]), jnp.array([-0.5])
    )
    cycle = cycle_at(f, jnp.array([[True]]))
    z = jnp.array([[0.3], [0.9], [1.5]])
    got = np.asarray(delta_sigma(f, cycle, z, kind="unstable", steps=6))
    for x, value in zip(np.asarray(z)[:, 0], got):
        orbit, least = [x], np.inf
        for _ in range(7):
            least = min([least, *((y - 2 / 3) ** 2 for y in orbit)])
            orbit = [y for w in orbit if w <= 1 for y in (w / 2, 1 - w / 2)]
        np.testing.assert_allclose(value, least / (x - 2 / 3) ** 2, rtol=1e-9)
    assert got[2] == 1.0


@pytest.mark.parametrize(
    ("name", "word", "kind", "box"),
    [
        ("fig3a_left", [L], "stable", 0.5),
        ("fig3a_left", [L], "unstable", 3.0),
        ("fig3a_right", [R], "stable", 5.0),
        ("fig3b_left", [L, L, R], "stable", 5.0),
        ("fig3b_right", [L, L, L, R], "stable", 15.0),
        ("fig5", [L], "stable", 3.0),
        ("fig5", [L], "unstable", 3.0),
    ],
)
def test_toy_quality(name, word, kind, box):
    f, cycle = toy(name, word)
    manifold = trace_manifold(f, cycle, kind=kind, iterations=8, box=(-40, 40))
    assert invariance_residual(f, manifold, key=jax.random.key(0)) <= 1e-10
    # The least multiplier of these is -.98: 500 steps contract squares by 10^-8.
    assert manifold_quality(f, manifold, box=(-box, box), key=jax.random.key(1), n=200) >= 0.9999


@pytest.mark.skipif(not DATA.exists(), reason="the trained network is not beside the repository")
def test_duffing_quality():
    data = np.load(DATA / "shplrnn_duffing_m2_h10.npz")
    f = dw.models.ShallowPLRNN.from_parameters(
        *(jnp.asarray(data[k]) for k in ("A", "W1", "W2", "h1", "h2"))
    ).canonical()
    saddle = cycle_at(f, f.pattern(jnp.array([0.00822821, -0.06430968]))[None])
    assert saddle.kind == "saddle"
    for kind, n in (("stable", 50), ("unstable", 30)):
        manifold = trace_manifold(f, saddle, kind=kind, iterations=n, box=(-8, 8))
        assert invariance_residual(f, manifold, key=jax.random.key(0)) <= 1e-10
        assert (
            manifold_quality(f, manifold, box=(-6, 6), key=jax.random.key(1), n=40 if kind == "unstable" else 400)
            >= 0.9999
        )


def test_a_wrong_manifold_scores_low(chaos):
    f, saddle = chaos
    manifold = trace_manifold(f, saddle, kind="unstable", iterations=6)
    other = dw.systems.BorderCollisionMap.preset("fig5")
    moved = type(other)(h1=other.h1 + 0.05).canonical()
    assert (
        invariance_residual(
            moved,
            trace_manifold(moved, cycle_at(moved, jnp.array([L])), kind="unstable", iterations=6),
            key=jax.random.key(0),
        )
        < 1e-12
    )
    images = jax.vmap(moved)(manifold.sample(jax.random.key(0), 50))
    assert np.max(manifold.distance(images)) > 1e-2


def test_snapping_outlives_rounding(chaos):
    f, saddle = chaos
    manifold = trace_manifold(f, saddle, iterations=6)
    on = manifold.sample(jax.random.key(0), 20, box=(-3, 3))
    plain = delta_sigma(f, saddle, on, kind="stable")
    snapped = delta_sigma(f, saddle, on, kind="stable", snap=1e-9)
    assert jnp.max(plain) < 1e-15
    assert jnp.max(snapped) < 1e-28
    off = on + jnp.array([1e-2, 0.0])
    np.testing.assert_allclose(
        delta_sigma(f, saddle, off, kind="stable", steps=6),
        delta_sigma(f, saddle, off, kind="stable", steps=6, snap=1e-9),
    )


def test_refusals(chaos):
    f, saddle = chaos
    with pytest.raises(ArgumentError, match="`kind`"):
        delta_sigma(f, saddle, jnp.zeros((1, 2)), kind="centre")
    with pytest.raises(ShapeError, match="`points`"):
        delta_sigma(f, saddle, jnp.zeros(2), kind="stable")
    with pytest.raises(PrecisionError):
        delta_sigma(f, saddle, jnp.zeros((1, 2), jnp.float32), kind="stable")
    singular = dw.models.PiecewiseLinearMap(
        jnp.diag(jnp.array([2.0, 0.0])), jnp.zeros((2, 1)), jnp.array([[1.0, 0.0]]), jnp.zeros(2), jnp.ones(1)
    )
    with pytest.raises(ArgumentError, match="singular Jacobian"):
        delta_sigma(singular, cycle_at(singular, jnp.array([[True]])), jnp.ones((1, 2)), kind="unstable")
    with pytest.raises(ArgumentError, match="at least one iteration"):
        invariance_residual(f, trace_manifold(f, saddle, kind="unstable", iterations=0), key=jax.random.key(0))
