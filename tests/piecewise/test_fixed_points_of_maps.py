"""Many maps of different sizes in one program: a plain loop over maps and regions, capacities, errors."""

import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynwarp.errors import ArgumentError, ModelError, PrecisionError, ShapeError
from dynwarp.models import PiecewiseLinearMap
from dynwarp.piecewise import fixed_points_of_maps


@pytest.fixture(scope="module")
def loop():
    path = pathlib.Path(__file__).parents[2] / "benchmarks" / "numpy_cycle_search.py"
    spec = importlib.util.spec_from_file_location("numpy_cycle_search", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def many(loop):
    maps, padded, patterns, owner = loop.random_maps(40, np.random.default_rng(1))
    return (
        maps,
        jax.vmap(PiecewiseLinearMap)(*(jnp.asarray(x) for x in padded)),
        jnp.asarray(patterns),
        jnp.asarray(owner),
    )


def test_all_maps_agree_with_a_loop(loop, many):
    maps, stacked, patterns, owner = many
    found = fixed_points_of_maps(stacked, patterns, owner, capacity=32)
    # There are more than 32: the rest is counted but left out.
    assert found.valid.all()
    assert found.count.sum() > 32
    points, owners, unstable = (
        np.asarray(x)[np.asarray(found.valid)] for x in (found.points, found.owner, found.n_unstable)
    )
    for i, f in enumerate(maps):
        expected, coherent = loop.fixed_points(*f)
        assert found.count[i] == len(expected)
        assert bool(found.is_coherent[i]) == coherent
        own = owners == i
        if i >= owners[-1]:
            continue
        assert own.sum() == len(expected)
        for x, count in expected:
            nearest = int(np.argmin(np.abs(points[own][:, : len(x)] - x).max(axis=1)))
            np.testing.assert_allclose(points[own][nearest], np.pad(x, (0, 5 - len(x))), atol=1e-10)
            assert unstable[own][nearest] == count
    assert found.is_hyperbolic.all()
    dets = [
        np.linalg.det(A + (W1 * gate) @ W2)
        for A, W1, W2, gate in (
            (*(np.asarray(x[i]) for x in (stacked.A, stacked.W1, stacked.W2)), np.asarray(gate))
            for i, gate in zip(owner.tolist(), patterns, strict=True)
        )
    ]
    np.testing.assert_array_equal(found.determinant_sign, np.sign(dets))
    assert not found.is_singular.any()


def test_errors(many):
    _, stacked, patterns, owner = many
    one = jax.tree.map(lambda x: x[0], stacked)
    with pytest.raises(ModelError, match="stacked"):
        fixed_points_of_maps(one, patterns, owner, capacity=4)
    with pytest.raises(PrecisionError, match="float64"):
        fixed_points_of_maps(jax.tree.map(lambda x: x.astype(jnp.float32), stacked), patterns, owner, capacity=4)
    with pytest.raises(ShapeError, match="`patterns`"):
        fixed_points_of_maps(stacked, patterns[:, :3], owner, capacity=4)
    with pytest.raises(ShapeError, match="`owner`"):
        fixed_points_of_maps(stacked, patterns, owner[:3], capacity=4)
    with pytest.raises(ArgumentError, match="`capacity`"):
        fixed_points_of_maps(stacked, patterns, owner, capacity=0)
    with pytest.raises(ArgumentError, match="at least one row"):
        fixed_points_of_maps(stacked, patterns[:0], owner[:0], capacity=1)
