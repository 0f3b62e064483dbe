"""Figures of manifolds: what is drawn is what was computed, and wrong arguments are named."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.errors import ArgumentError, ShapeError

pw = dw.piecewise


@pytest.fixture(scope="module")
def saddle_in_space():
    """A saddle in three dimensions with a stable plane x = 0, flat by construction, and borders x = +-1."""
    A = jnp.array([[1.5, 0.0, 0.0], [0.0, 0.5, 0.2], [0.0, -0.2, 0.5]])
    W1, W2 = jnp.zeros((3, 2)).at[0].set(jnp.array([-1.0, 1.0])), jnp.zeros((2, 3)).at[:, 0].set(jnp.array([1.0, -1.0]))
    f = dw.models.PiecewiseLinearMap(A, W1, W2, jnp.zeros(3), -jnp.ones(2))
    saddle = pw.cycle_at(f, jnp.array([[False, False]]))
    kinds = ("stable", "unstable")
    return f, saddle, [pw.trace_manifold(f, saddle, kind=kind, iterations=2, box=(-3.0, 3.0)) for kind in kinds]


@pytest.fixture
def ax():
    figure, ax = plt.subplots()
    yield ax
    figure.canvas.draw()
    plt.close(figure)


def test_lines_are_the_vertices(ax, saddle_in_space):
    _, saddle, (_, unstable) = saddle_in_space
    drawn = dw.plot.manifold(unstable, coordinates=(0, 2), ax=ax)
    np.testing.assert_array_equal(drawn.get_segments()[0], unstable.vertices[0][:, [0, 2]])
    (marker,) = dw.plot.cycles([saddle], ax=ax)
    assert marker.get_label() == "saddle"
    with pytest.raises(ArgumentError, match="coordinates"):
        dw.plot.manifold(unstable, coordinates=(0, 3), ax=ax)


def test_polygons_in_the_plane_and_in_space(ax, saddle_in_space):
    _, saddle, (stable, unstable) = saddle_in_space
    drawn = dw.plot.manifold(stable, coordinates=(1, 2), ax=ax)
    assert len(drawn.get_paths()) == stable.number_of_pieces
    figure = plt.figure()
    space = figure.add_subplot(projection="3d")
    for found in (stable, unstable):
        dw.plot.manifold(found, coordinates=(0, 1, 2), ax=space)
    dw.plot.cycles([saddle], coordinates=(0, 1, 2), ax=space)
    assert len(space.collections) == 3
    figure.canvas.draw()
    plt.close(figure)


def test_slice_of_a_known_plane(ax, saddle_in_space):
    """The plane x = 0 meets x = u, y = v + 1/2 in u = 0; in the plane's own directions it is left out."""
    _, _, (stable, unstable) = saddle_in_space
    origin, directions = jnp.array([0.5, 0.5, 0.0]), jnp.eye(3)[:2]
    segments = dw.plot.slice_segments(stable, origin, directions)
    np.testing.assert_allclose(segments[..., 0], -0.5, atol=1e-12)
    np.testing.assert_allclose([segments[..., 1].min(), segments[..., 1].max()], [-3.5, 2.5], atol=1e-9)
    assert len(dw.plot.slice_segments(stable, jnp.zeros(3), jnp.eye(3)[1:])) == 0
    assert len(dw.plot.manifold_slice(stable, origin, directions, ax=ax).get_segments()) == len(segments)
    with pytest.raises(ArgumentError, match="dimension 2"):
        dw.plot.slice_segments(unstable, origin, directions)
    with pytest.raises(ShapeError, match="directions"):
        dw.plot.slice_segments(stable, origin, jnp.eye(3))


def test_state_space_holds_every_thing(saddle_in_space):
    _, saddle, manifolds = saddle_in_space
    figure = dw.plot.state_space(manifolds, cycles=[saddle], trajectory=np.zeros((4, 3)))
    assert [trace.type for trace in figure.data] == ["scatter3d", "mesh3d", "scatter3d", "scatter3d"]
    corners = sum(len(polygon) for polygon in manifolds[0].vertices)
    assert len(figure.data[1].x) == corners
    assert len(figure.data[1].i) == corners - 2 * manifolds[0].number_of_pieces
    with pytest.raises(ArgumentError, match="three"):
        dw.plot.state_space(coordinates=(0, 1))
    with pytest.raises(ArgumentError, match="2 coordinates"):
        dw.plot.state_space(trajectory=np.zeros((4, 2)))


def test_many_dimensions_are_sampled(ax):
    f = dw.models.PiecewiseLinearMap(
        jnp.diag(jnp.array([1.5, 0.5, 0.4, 0.3])), jnp.zeros((4, 1)), jnp.eye(4)[:1], jnp.zeros(4), -jnp.ones(1)
    )
    found = pw.trace_manifold(f, pw.cycle_at(f, jnp.array([[False]])), iterations=0, box=(-1.0, 1.0))
    points = np.asarray(dw.plot.manifold(found, coordinates=(0, 1), ax=ax).get_offsets())
    np.testing.assert_allclose(points[:, 0], 0.0, atol=1e-9)
    assert np.ptp(points[:, 1]) > 1.5


def test_basins_and_bifurcation_diagram(ax):
    labels = np.array([[0, 1, -1], [0, 0, -1]])
    mesh = dw.plot.basins(labels, [0.0, 1.0, 2.0], [0.0, 1.0], names={0: "a", -1: "infinity", 5: "absent"}, ax=ax)
    np.testing.assert_array_equal(np.asarray(mesh.get_array()).reshape(2, 3), [[1, 2, 0], [1, 1, 0]])
    with pytest.raises(ShapeError, match="labels"):
        dw.plot.basins(labels, [0.0, 1.0], [0.0, 1.0], ax=ax)
    figure, other = plt.subplots()
    states = jax.random.normal(jax.random.key(0), (3, 4))
    artists = dw.plot.bifurcation_diagram([0.0, 1.0, 2.0], states, exponents=np.ones((3, 2)), parameter="h1", ax=other)
    np.testing.assert_array_equal(artists[0].get_ydata(), np.asarray(states).ravel())
    assert len(artists) == 4
    assert other.get_xlabel() == "h1"
    with pytest.raises(ShapeError, match="states"):
        dw.plot.bifurcation_diagram([0.0, 1.0], states, ax=other)
    plt.close(figure)
