"""Figures of metrics: what is drawn is what was given, and wrong shapes are named."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.errors import ArgumentError, NonFiniteError, ShapeError

TWO_PI = 2 * np.pi


@pytest.fixture
def ax():
    figure, ax = plt.subplots(figsize=(2, 2), dpi=40)
    yield ax
    figure.canvas.draw()
    plt.close(figure)


@pytest.fixture(scope="module")
def grid():
    """A grid of 4 by 3 points with distances 0.5 and 2, and a metric that differs from point to point."""
    thetas = np.stack(np.meshgrid(0.5 * np.arange(4), 2.0 * np.arange(3), indexing="ij"), axis=-1)
    root = np.random.default_rng(0).normal(size=(4, 3, 2, 2)) + 2 * np.eye(2)
    return thetas, np.swapaxes(root, -1, -2) @ root


@pytest.mark.parametrize("power", [0.5, -0.5])
def test_ellipses_are_images_and_unit_balls(ax, grid, power):
    """A point e of the rim: with power 1/2, e^T G^-1 e = scale^2; with -1/2, e^T G e = scale^2, per distances."""
    thetas, G = grid
    collection = dw.plot.tissot(G, thetas, power=power, scale=0.3, ax=ax)
    spacing = np.array([0.5, 2.0])
    relative = G * spacing[:, None] * spacing
    matrices = (np.linalg.inv(relative) if power > 0 else relative).reshape(-1, 2, 2)
    for path, centre, matrix in zip(collection.get_paths(), thetas.reshape(-1, 2), matrices, strict=True):
        e = (path.vertices - centre) / spacing
        np.testing.assert_allclose(np.einsum("ki,ij,kj->k", e, matrix, e), 0.09, rtol=1e-10)


def test_ellipses_fit_between_points_and_leave_out_what_is_degenerate(ax, grid):
    thetas, G = grid
    sizes = [
        np.abs((path.vertices - centre) / [0.5, 2.0])
        for path, centre in zip(dw.plot.tissot(G, thetas, ax=ax).get_paths(), thetas.reshape(-1, 2), strict=True)
    ]
    longest = max(np.linalg.norm(size, axis=1).max() for size in sizes)
    # The corners of the polygon need not meet the longest axis: cos(pi / 48).
    assert 0.45 * 0.997 < longest <= 0.45 + 1e-12
    G = G.copy()
    G[0, 0], G[0, 1] = np.nan, [[1.0, 0.0], [0.0, 0.0]]
    paths = dw.plot.tissot(G, thetas, power=-0.5, ax=ax).get_paths()
    assert [len(path.vertices) > 0 for path in paths] == [False, False, *[True] * 10]
    with pytest.raises(ShapeError, match="`G`"):
        dw.plot.tissot(G[0], thetas, ax=ax)
    with pytest.raises(ShapeError, match="at least 2 points"):
        dw.plot.tissot(G[:1], thetas[:1], ax=ax)


def test_warped_grid_is_the_integral_of_the_stretches(ax):
    """G = diag((1 + u)^2, e^(2 v)): lengths u + u^2 / 2 and e^v from the middle; the first is exact."""
    u, v = np.linspace(0.0, 2.0, 41), np.linspace(-1.0, 1.0, 81)
    thetas = np.stack(np.meshgrid(u, v, indexing="ij"), axis=-1)
    G = np.zeros((41, 81, 2, 2))
    G[..., 0, 0], G[..., 1, 1] = (1 + thetas[..., 0]) ** 2, np.exp(2 * thetas[..., 1])
    segments = dw.plot.warped_grid(G, thetas, ax=ax).get_segments()
    assert len(segments) == 41 + 81
    np.testing.assert_allclose(segments[5][:, 0], u + u**2 / 2 - 1.5, atol=1e-13)
    # The trapezoidal rule, h^2 / 12 times the difference of the slopes.
    np.testing.assert_allclose(segments[81 + 3][:, 1], np.exp(v) - 1, atol=0.025**2 / 12 * 2.4)
    np.testing.assert_array_equal(segments[5][3], segments[81 + 3][5])


def test_panels_hold_the_lower_triangle(grid):
    thetas, G = grid
    figure, axes = plt.subplots(2, 2, figsize=(3, 3), dpi=30)
    meshes = dw.plot.metric_panels(G, thetas, names=["a", "b"], ax=axes)
    for mesh, (i, j) in zip(meshes, [(0, 0), (1, 0), (1, 1)], strict=True):
        np.testing.assert_array_equal(np.asarray(mesh.get_array()).ravel(), G[..., i, j].ravel())
        assert axes[i, j].get_title() == f"G[{'ab'[i]}, {'ab'[j]}]"
    assert meshes[1].get_clim()[0] == -meshes[1].get_clim()[1]
    assert not axes[0, 1].get_visible()
    figure.canvas.draw()
    with pytest.raises(ShapeError, match=r"shape \(2, 2\)"):
        dw.plot.metric_panels(G, thetas, ax=axes[0])
    with pytest.raises(ArgumentError, match="names"):
        dw.plot.metric_panels(G, thetas, names=["a"], ax=axes)
    plt.close(figure)


def test_curvature_map_is_symmetric(ax, grid):
    thetas, _ = grid
    K = np.arange(12.0).reshape(4, 3) - 3
    K[0, 0] = np.nan
    mesh = dw.plot.curvature_map(K, thetas, quantile=0.5, ax=ax)
    end = np.quantile(np.abs(K[np.isfinite(K)]), 0.5)
    assert mesh.get_clim() == (-end, end)
    with pytest.raises(ArgumentError, match="quantile"):
        dw.plot.curvature_map(K, thetas, quantile=0.0, ax=ax)
    with pytest.raises(ShapeError, match="`K`"):
        dw.plot.curvature_map(K.T, thetas, ax=ax)


def test_torus_is_closed_and_coloured_by_the_corners():
    K = np.random.default_rng(1).normal(size=(5, 4))
    faces = dw.plot.curvature_torus(K, radii=(2.0, 0.5))
    assert faces.get_array().shape == (20,)
    last = [K[4, 3], K[0, 3], K[0, 0], K[4, 0]]
    np.testing.assert_allclose(faces.get_array()[-1], np.mean(last))
    faces.axes.figure.canvas.draw()
    with pytest.raises(ShapeError, match="`K`"):
        dw.plot.curvature_torus(K[0])
    with pytest.raises(ArgumentError, match="3d"):
        dw.plot.curvature_torus(K, ax=plt.figure().add_subplot())
    plt.close("all")


def test_geodesics_are_wrapped_at_the_seam(ax):
    curve = np.stack([np.linspace(5.0, 8.0, 31), np.linspace(0.0, 1.0, 31) ** 2], axis=-1)
    lost = np.full((4, 2), np.nan)
    drawn, straight = dw.plot.geodesics([curve, lost], periods=(TWO_PI, None), ax=ax)
    before, after = drawn.get_segments()
    np.testing.assert_allclose(np.concatenate([before, after + np.array([TWO_PI, 0.0])]), curve, atol=1e-14)
    assert before[:, 0].max() < TWO_PI
    assert after[:, 0].min() >= 0
    ends = np.concatenate(straight.get_segments())[[0, -1]]
    np.testing.assert_allclose(ends, [[5.0, 0.0], [8.0 - TWO_PI, 1.0]])
    with pytest.raises(ArgumentError, match="at least one"):
        dw.plot.geodesics([], ax=ax)
    with pytest.raises(ShapeError, match="curves"):
        dw.plot.geodesics([curve[:, 0]], ax=ax)


def test_timeline_has_medians_bands_and_epochs(ax):
    times, values = np.arange(3.0), np.random.default_rng(2).uniform(1, 2, (5, 4, 3))
    values[0, 0, 1] = np.nan
    one, many = dw.plot.timeline(
        times, {"one": times, "many": values}, epochs={"cue": (0.0, 1.0)}, quantiles=(0.1, 0.9), ax=ax
    )
    np.testing.assert_array_equal(one.get_ydata(), times)
    np.testing.assert_allclose(many.get_ydata(), np.nanmedian(values, axis=(0, 1)))
    (band,) = ax.collections
    corners = band.get_paths()[0].vertices
    np.testing.assert_allclose(corners[:, 1].max(), np.nanquantile(values, 0.9, axis=(0, 1)).max())
    assert [text.get_text() for text in ax.texts] == ["cue"]
    dw.plot.timeline(times, {"zero": [0.0, 1.0, 2.0]}, logarithmic=True, ax=ax)
    with pytest.raises(ShapeError, match="many"):
        dw.plot.timeline(times, {"many": values[..., :2]}, ax=ax)
    with pytest.raises(ArgumentError, match="quantiles"):
        dw.plot.timeline(times, {}, quantiles=(0.9, 0.1), ax=ax)


def test_stretches_are_drawn_from_the_largest(ax):
    values = np.sort(np.random.default_rng(3).uniform(1, 2, (6, 4, 2)), axis=-1)
    largest, smallest = dw.plot.stretches(values, ax=ax)
    np.testing.assert_allclose(largest.get_ydata(), np.median(values[..., 1], axis=0))
    np.testing.assert_allclose(smallest.get_ydata(), np.median(values[..., 0], axis=0))
    assert ax.get_yscale() == "log"
    with pytest.raises(ShapeError, match="metric"):
        dw.plot.stretches(np.ones(3), ax=ax)


def test_snapshots_keep_distances_and_colours(grid):
    """Three dimensions in a space of six: the components are a rotation of what was put there."""
    thetas, _ = grid
    rng = np.random.default_rng(4)
    flat, frame = rng.normal(size=(4, 3, 2, 3)), np.linalg.qr(rng.normal(size=(6, 3)))[0]
    ring = np.random.default_rng(5).normal(size=(5, 1, 4))
    found = dw.plot.snapshots(flat @ frame.T, thetas, steps=(0, -1), coordinate=1, times=[0.0, 0.5])
    for points, step in zip(found, (0, 1), strict=True):
        drawn, put = np.stack(points._offsets3d, axis=-1), flat[:, :, step].reshape(-1, 3)
        np.testing.assert_allclose(
            np.linalg.norm(drawn[1:] - drawn[0], axis=1), np.linalg.norm(put[1:] - put[0], axis=1), rtol=1e-10
        )
        np.testing.assert_array_equal(points.get_array(), thetas[..., 1].ravel())
    assert "t = 0.5 (100%" in found[1].axes.get_title()
    (points,) = dw.plot.snapshots(ring, np.arange(5.0)[:, None], periods=(5.0,))
    np.testing.assert_array_equal(points.axes.lines[0].get_data_3d()[0][[0, -1]], points._offsets3d[0][[0, 0]])
    with pytest.raises(ShapeError, match="states"):
        dw.plot.snapshots(ring, thetas)
    with pytest.raises(ShapeError, match="3 dimensions"):
        dw.plot.snapshots(ring[..., :2], np.arange(5.0)[:, None])
    with pytest.raises(ShapeError, match="thetas"):
        dw.plot.snapshots(ring, np.arange(5.0))
    with pytest.raises(ArgumentError, match="coordinate"):
        dw.plot.snapshots(ring, np.arange(5.0)[:, None], coordinate=1)
    with pytest.raises(ArgumentError, match="finite"):
        dw.plot.snapshots(ring * np.nan, np.arange(5.0)[:, None])
    plt.close("all")


def test_shape_of_distances(grid):
    """Distances of points in three dimensions give these points, but for a rotation."""
    thetas, _ = grid
    put = np.random.default_rng(6).normal(size=(12, 3))
    distances = np.linalg.norm(put[:, None] - put, axis=-1)
    found = dw.plot.own_shape(distances, thetas, coordinate=1)
    drawn = np.stack(found._offsets3d, axis=-1)
    np.testing.assert_allclose(np.linalg.norm(drawn[:, None] - drawn, axis=-1), distances, atol=1e-10)
    np.testing.assert_array_equal(found.get_array(), thetas[..., 1].ravel())
    assert found.axes.get_title() == "distances to 0%"
    with pytest.raises(ShapeError, match="distances"):
        dw.plot.own_shape(distances[:-1], thetas)
    with pytest.raises(ArgumentError, match="symmetric"):
        dw.plot.own_shape(distances + np.arange(12), thetas)
    with pytest.raises(NonFiniteError, match="distances"):
        dw.plot.own_shape(np.where(distances > 2, np.nan, distances), thetas)
    with pytest.raises(ArgumentError, match="coordinate"):
        dw.plot.own_shape(distances, thetas, coordinate=2)
    plt.close("all")


@pytest.mark.parametrize(("kind", "rescale"), [("tissot", False), ("grid", True)])
def test_animations_draw_each_time(ax, grid, tmp_path, kind, rescale):
    thetas, G = grid
    together = np.stack([G, 4 * G], axis=2)
    shown = dw.plot.animation(together, thetas, kind=kind, times=[0.5, 1.0], rescale=rescale, ax=ax)
    shown.save(tmp_path / "warp.gif", writer="pillow")
    assert (tmp_path / "warp.gif").read_bytes()[:3] == b"GIF"
    assert ax.get_title() == "t = 1"
    (collection,) = ax.collections
    last = np.concatenate([path.vertices for path in collection.get_paths()])
    if kind == "tissot":
        expected = dw.plot.tissot(4 * G, thetas, ax=ax)
        np.testing.assert_allclose(last, np.concatenate([path.vertices for path in expected.get_paths()]), atol=1e-12)
    else:
        lines = np.concatenate(dw.plot.warped_grid(G, thetas, ax=ax).get_segments())
        np.testing.assert_allclose(last, lines / np.abs(lines).max(), atol=1e-12)
    with pytest.raises(ArgumentError, match="kind"):
        dw.plot.animation(together, thetas, kind="other", ax=ax)
    with pytest.raises(ShapeError, match="`G`"):
        dw.plot.animation(G, thetas, ax=ax)


def test_messages_of_epochs_and_powers(ax, grid):
    thetas, G = grid
    times, curves = np.arange(3.0), {"a": np.ones(3)}
    with pytest.raises(ArgumentError, match="`epochs` must map names"):
        dw.plot.timeline(times, curves, epochs=[1], ax=ax)
    with pytest.raises(ShapeError, match=r"`epochs\['a'\]` must have shape \(2,\); got \(\)"):
        dw.plot.stretches(np.ones((3, 2)), epochs={"a": 3}, ax=ax)
    with pytest.raises(ArgumentError, match=r"`epochs\['a'\]` must hold real numbers"):
        dw.plot.timeline(times, curves, epochs={"a": ("x", "y")}, ax=ax)
    with pytest.raises(ArgumentError, match="`power` must hold real numbers"):
        dw.plot.tissot(G, thetas, power="a", ax=ax)
    with pytest.raises(ArgumentError, match="`power` must hold real numbers"):
        dw.plot.animation(G[:, :, None], thetas, power="a", ax=ax)
