"""Ranks and crossings against constructions with known answers; holes and dimensions by the optional packages."""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw

g = dw.geometry
KEY = jax.random.key(0)


def test_rank_of_constructed_tangents():
    rng = np.random.default_rng(0)
    tangents, velocities = rng.normal(size=(3, 5, 6, 2)), rng.normal(size=(3, 5, 6))
    tangents[:, 0] = 0  # before any input
    tangents[:, 1, :, 1] = 0  # before the second one
    velocities[:, 2] = 0  # at rest
    velocities[:, 3] = tangents[:, 3] @ np.array([1.0, -2.0])  # the flow runs along the inputs
    found = jax.jit(g.immersion_rank)(jnp.asarray(tangents), jnp.asarray(velocities))
    assert found.rank.tolist() == [[1, 2, 2, 2, 3]] * 3
    assert int(found.dimension()) == 3
    assert found.immersed().tolist() == [0, 0, 0, 0, 1]
    assert float(jnp.max(found.independence[:, :4])) < 1e-15
    full = np.concatenate([velocities[:, 4, :, None], tangents[:, 4]], axis=-1)
    np.testing.assert_allclose(found.singular_values[:, 4], np.linalg.svd(full, compute_uv=False), rtol=1e-12)
    unit = full / np.linalg.norm(full, axis=-2, keepdims=True)
    np.testing.assert_allclose(found.independence[:, 4], np.linalg.svd(unit, compute_uv=False)[:, -1], rtol=1e-11)
    scaled = g.immersion_rank(jnp.asarray(tangents) * jnp.array([1e3, 1e-3]))
    np.testing.assert_allclose(scaled.independence, g.immersion_rank(jnp.asarray(tangents)).independence, atol=1e-9)


def test_rank_where_tangents_are_not_finite():
    tangents = jnp.ones((1, 2, 3, 1)).at[0, 1, 0, 0].set(jnp.nan)
    found = g.immersion_rank(tangents)
    assert found.rank.tolist() == [[1, -1]]
    assert np.isnan(found.independence).tolist() == [[False, True]]


def test_no_more_than_m_plus_one_dimensions():
    """A field driven by one angle: its states fill two dimensions, although the network has six."""
    net = dw.models.CTRNN(2, 6, key=KEY)
    ring = dw.tasks.Circle(lambda t: jnp.exp(-t))
    thetas, ts = ring.grid(5), np.linspace(0, 2, 3)
    found = g.representation_metric(net, ring, thetas, state0=jnp.zeros(6), ts=ts, dt=0.1)
    drive = jax.vmap(lambda q: jax.vmap(lambda t: ring(q, t))(jnp.asarray(ts)))(thetas)
    velocities = jax.vmap(jax.vmap(net))(jnp.broadcast_to(ts, (5, 3)), found.states, drive)
    rank = g.immersion_rank(found.tangents, velocities)
    assert int(rank.dimension()) == 2
    assert (rank.rank[:, 0] == 1).all()  # all start from one state: the tip of a cone
    assert (rank.rank[:, 1:] == 2).all()


def test_crossings():
    angles = jnp.arange(64.0)[:, None] * (2 * np.pi / 64)
    x = np.asarray(angles)
    eight = np.concatenate([np.cos(x + 0.1), np.sin(2 * (x + 0.1)), 0 * x], axis=1)
    lifted = eight + 2 * np.cos(x - 0.6) * np.array([0, 0, 1])
    states = jnp.asarray(np.stack([eight, lifted, 0 * eight], axis=1))
    found = g.self_intersection(states, angles, periods=(2 * np.pi,))
    coarse = g.self_intersection(states[::4], angles[::4], periods=(2 * np.pi,))
    assert found.ratio[0] < 0.1
    assert coarse.ratio[0] > 3 * found.ratio[0]
    p, q = found.pair[0]
    assert np.linalg.norm(eight[p] - eight[q]) < 0.2
    assert found.ratio[1] > 0.2
    # Nothing can be told of states that all agree.
    assert np.isnan(found.ratio[2])
    apart = np.abs(x - x.T)
    table = np.minimum(apart, 2 * np.pi - apart)
    np.testing.assert_allclose(g.self_intersection(states, distances=table).ratio, found.ratio, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: g.immersion_rank(jnp.ones((2, 2))), "`tangents`"),
        (lambda: g.immersion_rank(jnp.ones((1, 2, 3))), "depend on each other"),
        (lambda: g.immersion_rank(jnp.ones((1, 3, 2)), jnp.ones((1, 4))), "`velocities`"),
        (lambda: g.self_intersection(jnp.ones((4, 1, 2))), "either `thetas` or"),
        (lambda: g.self_intersection(jnp.ones((4, 1, 2)), jnp.ones((3, 1))), "`thetas`"),
        (lambda: g.self_intersection(jnp.ones((4, 1, 2)), jnp.ones((4, 1)), separation=1), "`separation`"),
        (lambda: g.self_intersection(jnp.ones((4, 1, 2)), jnp.ones((4, 1)), periods=(0.0,)), "`periods`"),
        (lambda: g.persistent_homology(), "either `states` or"),
        (lambda: g.persistent_homology(np.ones((3, 2))), "4 points"),
        (lambda: g.persistent_homology(distances=np.triu(np.ones((4, 4)))), "symmetric"),
        (lambda: g.persistent_homology(np.ones((5, 2)), max_dimension=3), "`max_dimension`"),
        (lambda: g.intrinsic_dimension(np.ones((5, 2)), method="pca"), "`method`"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("module", ["ripser", "skdim"])
def test_missing_packages_name_their_extra(module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    verb = g.persistent_homology if module == "ripser" else g.intrinsic_dimension
    with pytest.raises(dw.errors.MissingDependencyError, match=r"dynwarp\[topology\]"):
        verb(np.random.default_rng(0).normal(size=(9, 2)))


@pytest.fixture(scope="module")
def torus_states():
    """Two angles in the state of a network, 196 of them."""
    net = dw.models.CTRNN(4, 100, key=KEY)
    torus = dw.tasks.Torus(jnp.ones((2, 1)), shared=False)

    def state(q):
        return dw.simulate(net, jnp.zeros(100), lambda t: torus(q)[0], steps=10, dt=0.2, last_only=True)

    return np.asarray(jax.jit(jax.vmap(state))(torus.grid(14).reshape(-1, 2)))


def test_torus_has_the_holes_of_one(torus_states):
    pytest.importorskip("ripser", reason="needs the extra `topology`")
    began = time.process_time()
    found = g.persistent_homology(torus_states)
    spent = time.process_time() - began
    print(f"{len(torus_states)} states: {found.gap} in {spent:.1f} s")  # noqa: T201
    assert found.betti == (1, 2, 1)
    assert min(found.gap[1:]) >= 2.5


def test_circle_and_nothing():
    pytest.importorskip("ripser", reason="needs the extra `topology`")
    angles = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = g.persistent_homology(circle)
    assert found.betti == (1, 1, 0)
    # Of a regular polygon the hole is born at its side and dies with its inscribed triangle.
    np.testing.assert_allclose(found.bars[1][0], [2 * np.sin(np.pi / 40), 2 * np.sin(14 * np.pi / 40)], rtol=1e-6)
    np.testing.assert_allclose(found.scale, 2 * np.sin(np.pi / 40), rtol=1e-6)
    few = g.persistent_homology(circle, landmarks=10, max_dimension=1)
    assert few.landmarks.shape == (10,)
    assert few.betti == (1, 1)
    assert g.persistent_homology(np.random.default_rng(0).normal(size=(60, 3)), max_dimension=1).betti == (1, 0)


def test_dimension_of_a_plane():
    pytest.importorskip("skdim", reason="needs the extra `topology`")
    points = np.random.default_rng(0).normal(size=(500, 2)) @ np.random.default_rng(1).normal(size=(2, 6))
    for method in ("two_nn", "mle", "correlation", "local_pca"):
        assert abs(g.intrinsic_dimension(points, method=method) - 2) < 0.35
