"""The penalty on folds: its formula, its derivatives, determinants that underflow, and that it unfolds maps."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynwarp.errors import ArgumentError, ModelError, ShapeError
from dynwarp.models import PiecewiseLinearMap
from dynwarp.piecewise import is_homeomorphism
from dynwarp.training import invertibility_penalty

PATTERNS = np.array([[r >> i & 1 == 1 for i in range(3)] for r in range(8)])


def Map(A, W1, W2):  # noqa: N802
    return PiecewiseLinearMap(*(jnp.asarray(x, float) for x in (A, W1, W2)), jnp.zeros(len(A)), jnp.zeros(len(W2)))


def random_map(seed, size=3, hidden=3, scale=1.0):
    rng = np.random.default_rng(seed)
    return Map(
        0.5 * rng.normal(size=(size, size)), scale * rng.normal(size=(size, hidden)), rng.normal(size=(hidden, size))
    )


@pytest.fixture(scope="module")
def program():
    return eqx.filter_jit(lambda f, **options: invertibility_penalty(f, jnp.asarray(PATTERNS), **options))


def determinants(f):
    A, W1, W2 = (np.asarray(x) for x in (f.A, f.W1, f.W2))
    return np.linalg.det(A + (W1 * PATTERNS[:, None]) @ W2)


def expected(dets, margin=1e-3):
    majority = -1 if np.sum(np.sign(dets)) < 0 else 1
    return np.mean(np.maximum(margin - majority * np.sign(dets) * np.abs(dets) ** (1 / 3), 0))


def test_the_formula(program):
    signs = set()
    for seed in range(6):
        f = random_map(seed)
        dets = determinants(f)
        signs.add(len(set(np.sign(dets))))
        np.testing.assert_allclose(program(f), expected(dets), rtol=1e-10)
        np.testing.assert_allclose(program(f, compat="paper"), np.mean(np.maximum(-dets, 0)), rtol=1e-10)
        np.testing.assert_allclose(program(f, margin=jnp.array(0.5)), expected(dets, 0.5), rtol=1e-10)
    assert 2 in signs


def test_equal_signs_cost_nothing(program):
    rng = np.random.default_rng(0)
    f = Map(np.diag([-0.9, 0.8, 0.7]), 0.1 * rng.normal(size=(3, 3)), np.eye(3))
    assert (determinants(f) < 0).all()
    assert is_homeomorphism(f).value
    assert program(f) == 0
    assert program(f, compat="paper") > 0  # which asks for positive ones


def test_jit_vmap_and_batches(program):
    many = [random_map(seed) for seed in range(4)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *many)
    values = jax.jit(jax.vmap(lambda f: invertibility_penalty(f, jnp.asarray(PATTERNS))))(stacked)
    np.testing.assert_allclose(values, [program(f) for f in many], rtol=1e-12)


@pytest.mark.parametrize("compat", [None, "paper"])
def test_derivatives(compat):
    f, direction = random_map(0), random_map(99)
    assert len(set(np.sign(determinants(f)))) == 2

    def loss(f):
        return invertibility_penalty(f, jnp.asarray(PATTERNS), margin=0.1, compat=compat)

    value, forward = jax.jit(lambda: jax.jvp(loss, (f,), (direction,)))()
    gradient = jax.jit(jax.grad(loss))(f)
    pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
    backward = sum(float(jnp.vdot(g, d)) for g, d in pairs)

    def along(t):
        dets = determinants(jax.tree.map(lambda x, d: x + t * d, f, direction))
        return np.mean(np.maximum(-dets, 0)) if compat == "paper" else expected(dets, 0.1)

    np.testing.assert_allclose(value, along(0.0), rtol=1e-10)
    difference = (along(1e-6) - along(-1e-6)) / 2e-6
    assert abs(difference) > 1e-3
    np.testing.assert_allclose(forward, difference, rtol=1e-6)
    np.testing.assert_allclose(backward, difference, rtol=1e-6)


def test_determinants_that_underflow():
    # In float32 all 8 determinants, of size 1e-93, are zero; the penalty is not.
    rng = np.random.default_rng(1)
    A, W1 = np.eye(30) + 0.02 * rng.normal(size=(30, 30)), -1.3 * np.eye(30)[:, :3]
    double = Map(8e-4 * A, 8e-4 * W1, np.eye(30)[:3])
    single = jax.tree.map(lambda x: x.astype(jnp.float32), double)
    assert not np.linalg.det(np.asarray(single.A)).any()
    program = eqx.filter_jit(eqx.filter_value_and_grad(lambda f: invertibility_penalty(f, jnp.asarray(PATTERNS))))
    (value, gradient), (exact, direction) = program(single), program(double)
    assert value.dtype == jnp.float32
    assert exact > 1e-5
    np.testing.assert_allclose(value, exact, rtol=1e-4)
    np.testing.assert_allclose(gradient.W1, direction.W1, rtol=1e-2, atol=1e-4 * np.abs(direction.W1).max())


def test_singular_regions_do_no_harm(program):
    f = Map(np.diag([0.0, 0.5, 0.5]), np.eye(3), np.eye(3))  # four of the regions lose the first coordinate
    value, gradient = eqx.filter_jit(jax.value_and_grad(lambda f: invertibility_penalty(f, jnp.asarray(PATTERNS))))(f)
    np.testing.assert_allclose(value, 0.5e-3, rtol=1e-12)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_descent_unfolds_a_map():
    f = random_map(0)
    assert is_homeomorphism(f).value is False

    @jax.jit
    def step(f):
        gradient = jax.grad(lambda f: invertibility_penalty(f, jnp.asarray(PATTERNS), margin=0.05))(f)
        return jax.tree.map(lambda x, g: x - 0.05 * g, f, gradient)

    for _ in range(300):
        f = step(f)
    assert is_homeomorphism(f).value is True


class Folding(eqx.Module):
    """A user's model, with a plain number as a field."""

    turn: float
    state_size: int = 1
    input_size: int = 0

    def canonical(self, input=None):
        one = jnp.ones((1, 1))
        return PiecewiseLinearMap(2 * one, self.turn * one, one, jnp.ones(1), jnp.zeros(1))


def test_users_models():
    patterns = jnp.array([[False], [True]])
    np.testing.assert_allclose(invertibility_penalty(Folding(-4.0), patterns, margin=0), 1.0, rtol=1e-12)
    assert invertibility_penalty(Folding(1.0), patterns, margin=0) == 0


def test_errors():
    f = random_map(0)
    with pytest.raises(ModelError, match="piecewise-linear"):
        invertibility_penalty(object(), jnp.asarray(PATTERNS))
    with pytest.raises(ShapeError, match="`patterns`"):
        invertibility_penalty(f, jnp.zeros((2, 4), bool))
    with pytest.raises(ArgumentError, match="boolean"):
        invertibility_penalty(f, jnp.zeros((2, 3)))
    with pytest.raises(ArgumentError, match="at least one row"):
        invertibility_penalty(f, jnp.zeros((0, 3), bool))
    with pytest.raises(ArgumentError, match="`margin`"):
        invertibility_penalty(f, jnp.asarray(PATTERNS), margin=-1.0)
    with pytest.raises(ArgumentError, match="`compat`"):
        invertibility_penalty(f, jnp.asarray(PATTERNS), compat="julia")
