"""The published manifold construction, which stands beside the exact one in the benchmarks."""

import importlib.util
import pathlib

import numpy as np
import pytest

import dynwarp as dw


@pytest.fixture(scope="module")
def published():
    path = pathlib.Path(__file__).parents[2] / "benchmarks" / "pca_manifolds.py"
    spec = importlib.util.spec_from_file_location("pca_manifolds", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_finds_the_manifold_of_a_toy_map(published):
    toy = dw.systems.BorderCollisionMap.preset("fig3a_right")
    box = (np.full(2, -3.0), np.full(2, 3.0))
    found = published.compare(toy, [[True]], box, iterations=5, n=60)
    assert 0.9 < found["published"] <= 1
    assert found["exact"] > 0.9999
    assert found["pieces"] == 2


def test_the_published_inverse(published):
    rng = np.random.default_rng(0)
    f = published.Map(
        np.diag([0.9, 0.8, 0.7]), 0.2 * rng.normal(size=(3, 3)), np.eye(3), rng.normal(size=3), np.zeros(3)
    )
    for z in rng.normal(size=(20, 3)):
        np.testing.assert_allclose(f.back(f.step(z), []), z, atol=1e-12)


def test_kernel_pca_follows_a_curve(published):
    angles = np.linspace(0, np.pi / 2, 40)
    arc = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    rng = np.random.default_rng(0)
    bent, flat = published.Curved.fit(arc, 1), published.Flat.fit(arc, 1)
    off = [np.mean([abs(np.linalg.norm(piece.sample(rng)) - 1) for _ in range(50)]) for piece in (bent, flat)]
    assert off[0] < 0.5 * off[1]
    # A line is itself.
    line = np.outer(np.linspace(-1, 1, 9), [0.6, 0.8])
    assert abs(published.Flat.fit(line, 1).sample(rng) @ [0.8, -0.6]) < 1e-12
