"""Maps, and a check of compiled programs, that several files of tests share."""

import itertools
import re

import jax
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


@pytest.fixture(scope="session")
def check_waits():
    """Fails where a compiled program holds two calls of LAPACK that do not wait for each other: for a large batch such
    calls can hold both threads of a machine of two cores for good."""

    def check(function, f):
        batch = jax.tree.map(lambda x: jnp.stack([x, x]), f)
        text = jax.jit(jax.vmap(function)).lower(batch).compile().as_text() or ""
        assert "lapack" in text
        for computation in text.split("\n}"):
            behind, calls = {}, []
            for name, what in re.findall(r"%([\w.-]+) = (.*)", computation):
                used = [other for other in re.findall(r"%([\w.-]+)", what) if other in behind]
                behind[name] = set(used).union(*(behind[other] for other in used))
                calls += [name] if 'custom_call_target="lapack' in what else []
            assert all(first in behind[second] for first, second in itertools.pairwise(calls)), calls

    return check
