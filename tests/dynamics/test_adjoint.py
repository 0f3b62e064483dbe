"""The reverse recursion against autodiff of the simulation, and against products of explicit Jacobians."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw


@pytest.fixture(scope="module")
def problem(tanh_rnn):
    keys = jax.random.split(jax.random.key(3), 3)
    return tanh_rnn, jax.random.normal(keys[0], (4,)), jax.random.normal(keys[1], (12, 2)), keys[2]


def _loss(model, state0, inputs, weights):
    states = dw.simulate(model, state0, inputs)
    return jnp.sum(weights * states**2), states


def test_equals_autodiff(problem):
    model, state0, inputs, key = problem
    weights = jax.random.normal(key, (12, 4))
    states = _loss(model, state0, inputs, weights)[1]
    found = dw.dynamics.adjoint_recursion(model, state0, inputs, 2 * weights * states)
    np.testing.assert_allclose(found.states, states, rtol=1e-14)
    gradients = jax.grad(lambda *x: _loss(*x, weights)[0], argnums=(0, 1, 2))(model, state0, inputs)
    for a, b in zip(jax.tree.leaves((found.model, found.state0, found.inputs)), jax.tree.leaves(gradients)):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def test_adjoints_are_products_of_transposed_jacobians_in_descending_order(problem):
    model, state0, inputs, key = problem
    last = jax.random.normal(key, (4,))
    cotangents = jnp.zeros((12, 4)).at[-1].set(last)
    found = dw.dynamics.adjoint_recursion(model, state0, inputs, cotangents)
    expected = np.asarray(last)
    for t in range(11, 0, -1):
        np.testing.assert_allclose(found.adjoints[t], expected, rtol=1e-12, atol=1e-15)
        expected = np.asarray(dw.dynamics.jacobian(model, found.states[t - 1], inputs[t])).T @ expected
    first = np.asarray(dw.dynamics.jacobian(model, state0, inputs[0])).T @ found.adjoints[0]
    np.testing.assert_allclose(found.state0, first, rtol=1e-12)


def test_autonomous_and_gated_and_clocked_models(key):
    class Clocked(dw.models.AbstractMap):
        rate: jax.Array
        every: int = 3
        state_size: int = 1
        input_size: int = 0

        def __call__(self, state, input=None, *, step=None):
            return jnp.where(step % self.every == 0, self.rate, 1.0) * state

    found = dw.dynamics.adjoint_recursion(Clocked(jnp.array(0.5)), jnp.ones(1), None, jnp.zeros((7, 1)).at[-1].set(1.0))
    # Steps 0, 3 and 6 multiply by the rate: z_7 = rate^3.
    np.testing.assert_allclose(found.model.rate, 3 * 0.5**2)
    assert found.inputs is None
    assert found.model.every is None

    cell = dw.models.GRU(2, 3, key=key)
    inputs = jax.random.normal(key, (9, 2))
    found = dw.dynamics.adjoint_recursion(cell, jnp.zeros(3), inputs, jnp.ones((9, 3)))
    expected = eqx.filter_grad(lambda m: jnp.sum(dw.simulate(m, jnp.zeros(3), inputs)))(cell)
    for a, b in zip(jax.tree.leaves(found.model), jax.tree.leaves(expected)):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


def test_transformations_and_float32(problem):
    model, state0, inputs, _ = problem
    cotangents = jnp.ones((12, 4))
    batch = jnp.stack([state0, 2 * state0])
    many = jax.jit(jax.vmap(lambda z: dw.dynamics.adjoint_recursion(model, z, inputs, cotangents).state0))(batch)
    np.testing.assert_allclose(
        many[1], dw.dynamics.adjoint_recursion(model, batch[1], inputs, cotangents).state0, rtol=1e-12
    )
    single = jax.tree.map(lambda x: x.astype(jnp.float32), (model, state0, inputs, cotangents))
    found = dw.dynamics.adjoint_recursion(*single)
    assert found.adjoints.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(found.state0), np.asarray(many[0]), rtol=2e-5, atol=2e-5)

    def f(x):
        return jnp.sum(dw.dynamics.adjoint_recursion(model, x * state0, inputs, cotangents).state0)

    h = 1e-6
    np.testing.assert_allclose(jax.grad(f)(1.0), (f(1 + h) - f(1 - h)) / (2 * h), rtol=1e-6)


def test_errors(problem, models):
    model, state0, inputs, _ = problem
    with pytest.raises(dw.errors.ShapeError, match=r"`cotangents` must have shape \(12, 4\); got \(11, 4\)"):
        dw.dynamics.adjoint_recursion(model, state0, inputs, jnp.ones((11, 4)))
    with pytest.raises(dw.errors.ShapeError, match=r"`inputs` must have shape \(T, 2\)"):
        dw.dynamics.adjoint_recursion(model, state0, inputs[:, :1], jnp.ones((12, 4)))
    with pytest.raises(dw.errors.ModelError, match="LinearField is a field"):
        dw.dynamics.adjoint_recursion(models.field(jnp.eye(2)), jnp.ones(2), None, jnp.ones((3, 2)))
