"""Local manifolds against brute force: the largest sets that the local maps keep inside their regions."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.errors import ArgumentError, ModelError, PrecisionError
from dynwarp.piecewise import cycle_at, trace_manifold
from dynwarp.piecewise._local import invariant_subspaces

DATA = Path(__file__).parents[3] / "shared" / "data"


def with_fixed_point(J, seed=0, H=4, spread=1.0):
    """A map whose region around the origin has this Jacobian and holds the origin, a fixed point."""
    m = len(J)
    rng = np.random.default_rng(seed)
    W2, h2 = rng.normal(size=(H, m)), rng.uniform(0.3, 1.0, H) * spread * np.where(np.arange(H) % 2, 1, -1)
    W1 = 0.3 * rng.normal(size=(m, H))
    on = h2 > 0
    A = J - (W1 * on) @ W2
    return dw.models.PiecewiseLinearMap(*map(jnp.asarray, (A, W1, W2, -(W1 * on) @ h2, h2)))


def inside(form, pattern, z):
    sign = np.where(np.asarray(pattern), 1.0, -1.0)
    return np.all(sign * (z @ np.asarray(form.W2).T + np.asarray(form.h2)) >= -1e-9, axis=-1)


def contains(piece, z):
    s, *_ = np.linalg.lstsq(piece.basis, (z - piece.center).T, rcond=None)
    return np.all(piece.G @ s <= piece.g[:, None] + 1e-9, axis=0)


def fixed_point(form):
    cycle = cycle_at(form, (form.h2 > 0)[None])
    assert np.allclose(cycle.points, 0, atol=1e-12)
    return cycle


rotation = np.array([[np.cos(0.7), -np.sin(0.7)], [np.sin(0.7), np.cos(0.7)]])
JACOBIANS = {
    "positive": np.diag([1.5, 0.6]),
    "negative": np.diag([-1.4, -0.5]),
    "oblique": np.array([[1.3, 2.0], [0.0, -0.8]]),
    "complex stable": np.block([[1.6 * np.eye(1), np.zeros((1, 2))], [np.ones((2, 1)), 0.9 * rotation]]),
    "complex unstable": np.block([[0.4 * np.eye(1), np.ones((1, 2))], [np.zeros((2, 1)), 1.2 * rotation]]),
    "defective": np.array([[0.7, 3.0, 0.0], [0.0, 0.7, 1.0], [0.0, 0.0, 1.8]]),
    "zero": np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 2.0]]),
}


@pytest.mark.parametrize("name", JACOBIANS)
@pytest.mark.parametrize("kind", ["stable", "unstable"])
def test_maximal_invariant_set(name, kind):
    J = JACOBIANS[name]
    form = with_fixed_point(J, seed=len(name))
    manifold = trace_manifold(form, fixed_point(form), kind=kind, iterations=0)
    (piece,) = manifold.pieces
    d = piece.basis.shape[1]
    moduli = np.abs(np.linalg.eigvals(J))
    assert d == manifold.dimension == np.sum(moduli < 1 if kind == "stable" else moduli > 1)
    # The subspace is invariant.
    np.testing.assert_allclose(J @ piece.basis, piece.basis @ (piece.basis.T @ J @ piece.basis), atol=1e-12)
    # In or out by simulating the local map, point by point.
    rng = np.random.default_rng(1)
    s = rng.normal(size=(4000, d)) * 10 ** rng.uniform(-1.5, 1.5, (4000, 1))
    step = piece.basis.T @ J @ piece.basis
    step = step if kind == "stable" else np.linalg.inv(step)
    stays, x = np.ones(len(s), bool), s
    for _ in range(200):
        stays &= inside(form, form.h2 > 0, x @ piece.basis.T)
        x = x @ step.T
    limit = float(np.max(np.abs(manifold.box)))
    z = s @ piece.basis.T
    stays &= np.abs(z).max(axis=1) <= limit
    margin = np.abs(piece.G @ (s - piece.basis.T @ piece.center).T - piece.g[:, None]).min(axis=0) > 1e-6
    np.testing.assert_array_equal(contains(piece, z)[margin], stays[margin])
    assert 20 < stays.sum() < len(s) - 20 or manifold.truncated


def test_negative_multiplier_in_closed_form():
    # The published chaotic map: lambda_u = -1.4277..., the border x = 0 on one side only.
    f = dw.systems.BorderCollisionMap.preset("fig5")
    saddle = cycle_at(f, jnp.array([[False]]))
    lam, p = -1.427737808459220, saddle.points[0]
    (line,) = trace_manifold(f, saddle, kind="unstable", iterations=0).vertices
    lengths = np.linalg.norm(line - np.asarray(p), axis=1)[[0, 2]]
    # The end on the border, and its image, which lies |lambda| times as far on the other side.
    on_border = int(np.argmin(np.abs(line[[0, 2], 0])))
    assert abs(line[2 * on_border, 0]) < 1e-15
    np.testing.assert_allclose(lengths[1 - on_border] / lengths[on_border], -lam, rtol=1e-13)
    np.testing.assert_allclose(f(jnp.asarray(line[2 * on_border])), line[2 - 2 * on_border], atol=1e-14)


def test_a_cycle_has_a_piece_at_each_point():
    f = dw.systems.BorderCollisionMap.preset("fig3b_left")
    cycle = cycle_at(f, jnp.array([[False], [False], [True]]))
    form = f.canonical()
    for kind in ("stable", "unstable"):
        manifold = trace_manifold(f, cycle, kind=kind, iterations=0, box=(-1e4, 1e4))
        assert [piece.origin for piece in manifold.local.pieces] == [0, 1, 2]
        for i, line in enumerate(manifold.vertices):
            np.testing.assert_allclose(line[1], cycle.points[i], atol=1e-13)
            z = jnp.asarray(line[0] + np.linspace(0.01, 0.99, 20)[:, None] * (line[-1] - line[0]))
            if kind == "stable":
                for hop in range(30):
                    assert inside(form, cycle.itinerary[(i + hop) % 3], np.asarray(z)).all()
                    z = jax.vmap(f)(z)
                assert np.abs(z - cycle.points[(i + 30) % 3]).max() < 1e-3 * np.abs(line).max()


def test_long_cycle_subspaces():
    # 40 saddles in a row: the product of Jacobians spans 10^20 and keeps no digit of its small multiplier.
    rng = np.random.default_rng(0)
    jacobians = np.stack([np.linalg.qr(rng.normal(size=(3, 3)))[0] @ np.diag([3.0, 0.5, 0.4]) for _ in range(40)])
    frames = {
        kind: invariant_subspaces(jacobians, np.array([1e20, 1e-10, 1e-12]), kind) for kind in ("stable", "unstable")
    }
    for kind, d in (("stable", 2), ("unstable", 1)):
        bases = frames[kind]
        assert bases.shape == (40, 3, d)
        for i in range(40):
            image = jacobians[i] @ bases[i]
            after = bases[(i + 1) % 40]
            assert np.abs(image - after @ (after.T @ image)).max() < 1e-13 * 3


def test_two_dimensional_unbounded_set_is_cut_and_says_so():
    form = dw.models.PiecewiseLinearMap(
        jnp.diag(jnp.array([2.0, 0.5, 0.25])),
        jnp.zeros((3, 1)),
        jnp.array([[0.0, 1.0, 0.0]]),
        jnp.zeros(3),
        jnp.ones(1),
    )
    manifold = trace_manifold(form, cycle_at(form, jnp.array([[True]])), iterations=0)
    assert manifold.limits == ("unbounded",)
    corners = manifold.vertices[0]
    # y >= -1, and the box.
    np.testing.assert_allclose([corners[:, 1].min(), corners[:, 1].max()], [-1.0, 1000.0])
    np.testing.assert_allclose(np.abs(corners[:, 2]), 1000.0)


def test_refusals():
    f = dw.systems.BorderCollisionMap.preset("fig5")
    saddle = cycle_at(f, jnp.array([[False]]))
    with pytest.raises(ArgumentError, match="`iterations`"):
        trace_manifold(f, saddle, iterations=-1)
    with pytest.raises(ArgumentError, match="`kind` must be one of"):
        trace_manifold(f, saddle, kind="centre", iterations=1)
    with pytest.raises(ArgumentError, match="`box` must hold every point"):
        trace_manifold(f, saddle, iterations=1, box=(0, 1))
    with pytest.raises(ArgumentError, match="`box` must be"):
        trace_manifold(f, saddle, iterations=1, box=3.0)
    with pytest.raises(ArgumentError, match="lower < upper"):
        trace_manifold(f, saddle, iterations=1, box=(1, -1))
    with pytest.raises(ArgumentError, match="`cycle` must be a Cycle"):
        trace_manifold(f, saddle.points, iterations=1)
    with pytest.raises(ArgumentError, match="no cycle of this map"):
        trace_manifold(dw.systems.BorderCollisionMap.preset("fig3a_left"), saddle, iterations=1)
    focus = dw.systems.BorderCollisionMap.preset("fig3b_right")
    with pytest.raises(ArgumentError, match="is stable: it has no unstable direction"):
        trace_manifold(focus, cycle_at(focus, jnp.array([[False]])), kind="unstable", iterations=1)
    neutral = with_fixed_point(np.diag([1.0, 0.5]))
    with pytest.raises(ArgumentError, match="must be hyperbolic"):
        trace_manifold(neutral, cycle_at(neutral, (neutral.h2 > 0)[None]), iterations=1)
    border = dw.models.PiecewiseLinearMap(
        jnp.diag(jnp.array([2.0, 0.5])), jnp.zeros((2, 1)), jnp.array([[1.0, 0.0]]), jnp.zeros(2), jnp.zeros(1)
    )
    with pytest.raises(ArgumentError, match="lies on a border"):
        trace_manifold(border, cycle_at(border, jnp.array([[False]])), iterations=1)
    with pytest.raises(ModelError):
        trace_manifold(dw.models.Elman(1, 2, activation=jnp.tanh, key=jax.random.key(0)), saddle, iterations=1)
    single = jax.tree.map(lambda x: x.astype(jnp.float32), f)
    with pytest.raises(PrecisionError):
        trace_manifold(single, saddle, iterations=1)


def test_cap_gives_an_inner_bound(monkeypatch):
    from dynwarp.piecewise import _local

    form = with_fixed_point(JACOBIANS["complex stable"], seed=2)
    whole = trace_manifold(form, fixed_point(form), iterations=0)
    monkeypatch.setattr(_local, "_MAX_ROUNDS", 2)
    inner = trace_manifold(form, fixed_point(form), iterations=0)
    assert whole.result == dw.RESULTS.successful
    assert inner.result == dw.RESULTS.max_steps_reached
    x = np.asarray(inner.sample(jax.random.key(0), 200))
    assert contains(whole.pieces[0], x).all()
    assert np.linalg.norm(x, axis=1).max() > 1e-3


@pytest.mark.skipif(not DATA.exists(), reason="the ground truth of cycles is not beside the repository")
def test_cycle_of_a_map_without_inverse():
    cases = json.loads((DATA / "cycles_shplrnn_ground_truth.json").read_text())
    case = next(c for c in cases if c["test"].startswith("test_finding_2_cycle") and int(c["k"]) == 2)
    form = dw.models.ShallowPLRNN.from_parameters(
        *(jnp.array(case["params"][k]) for k in ("A", "W1", "W2", "h1", "h2"))
    ).canonical()
    points = jnp.array(case["cycles"][0]["points"])
    cycle = cycle_at(form, jax.vmap(form.pattern)(points))
    lines = trace_manifold(form, cycle, iterations=0, box=(-60, 60)).vertices
    for i, line in enumerate(lines):
        direction = line[-1] - line[0]
        for t, expected in ((0.0, True), (1.0, True), (-0.002, False), (1.002, False)):
            z, stays = jnp.asarray(line[0] + t * direction), True
            for hop in range(60):
                stays &= bool(inside(form, cycle.itinerary[(i + hop) % 2], np.asarray(z)))
                # The local map on the local subspace, so that rounding does not grow along the unstable direction.
                J, b = form.affine(cycle.itinerary[(i + hop) % 2])
                z = J @ z + b
                p, v = cycle.points[(i + hop + 1) % 2], lines[(i + hop + 1) % 2]
                unit = jnp.asarray(v[-1] - v[0]) / np.linalg.norm(v[-1] - v[0])
                z = p + unit * (unit @ (z - p))
            assert stays == expected, (i, t)
