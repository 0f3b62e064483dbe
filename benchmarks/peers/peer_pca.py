"""Peer: the published construction of manifolds, by PCA and kernel PCA on sampled points, in plain NumPy."""

import importlib.util
import pathlib

import numpy as np

VERSION = np.__version__

_spec = importlib.util.spec_from_file_location(
    "dynwarp_peer_pca_manifolds", pathlib.Path(__file__).parents[1] / "pca_manifolds.py"
)
_published = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_published)


def _delta_sigma(f, p, points, steps=500):
    """The least squared distance from the saddle along the orbit, as a share of that at its start (equation 6)."""
    start = np.sum((points - p) ** 2, axis=1)
    least, states = start.copy(), points
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(steps):
            states = states @ f.A.T + np.maximum(states @ f.W2.T + f.h2, 0) @ f.W1.T + f.h1
            least = np.fmin(least, np.sum((states - p) ** 2, axis=1))
    return least / start


def stable_manifold(size, inputs):
    f = _published.Map(*(inputs[name] for name in _published.Map._fields))
    p, (lower, upper) = inputs["saddle"], inputs["box"]
    quality = []

    def call():
        rng = np.random.default_rng(0)
        pieces = _published.pca_manifold(f, p, "stable", iterations=size["iterations"], rng=rng)
        if not quality:  # what is compared is not what is timed
            box = np.full(len(p), lower), np.full(len(p), upper)
            on, off = _published.sample(pieces, 200, box, rng), rng.uniform(*box, size=(200, len(p)))
            on, off = _delta_sigma(f, p, on), _delta_sigma(f, p, off)
            quality.append(np.mean(off > on.max()) - np.median(on))
        return np.array(quality[0])

    return call
