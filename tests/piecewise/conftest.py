"""Maps that several files of tests share."""

import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.piecewise import cycle_at


@pytest.fixture(scope="module")
def solid():
    """A saddle in three dimensions with a two-dimensional stable manifold, five ReLUs."""
    rng = np.random.default_rng(1)
    J = np.array([[1.5, 0.2, 0.0], [0.0, 0.6, -0.5], [0.1, 0.5, 0.6]])
    W2, W1 = rng.normal(size=(5, 3)), 0.3 * rng.normal(size=(3, 5))
    h2 = rng.uniform(0.3, 1.0, 5) * np.array([1, -1, 1, -1, 1])
    on = h2 > 0
    f = dw.models.PiecewiseLinearMap(*map(jnp.asarray, (J - (W1 * on) @ W2, W1, W2, -(W1 * on) @ h2, h2)))
    return f, cycle_at(f, (f.h2 > 0)[None])


@pytest.fixture(scope="session")
def random_map():
    """Makes a map of `m` dimensions and `hidden` ReLUs with Gaussian entries, the same for the same seed."""

    def make(m, hidden, seed, scale=1.0):
        rng = np.random.default_rng(seed)
        parts = (
            0.5 * rng.normal(size=(m, m)),
            scale * rng.normal(size=(m, hidden)),
            rng.normal(size=(hidden, m)),
            rng.normal(size=m),
            rng.normal(size=hidden),
        )
        return dw.models.PiecewiseLinearMap(*map(jnp.asarray, parts))

    return make
