"""States of whole sequences: equal to the scan in value and in derivatives of all kinds and orders."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp.models import elman_states
from dynwarp.models._elman_states import SLOPES

WEIGHTS = jnp.arange(15.0).reshape(5, 3)


def mixing(h):
    return jax.nn.softplus(h) / (1 + jnp.sum(h**2))


@pytest.fixture(scope="module", params=[("post", jnp.tanh), ("pre", mixing)])
def setting(request):
    form, activation = request.param
    model = dw.models.Elman(2, 3, form=form, activation=activation, key=jax.random.key(0))
    return model, jnp.array([0.1, 0.2, -0.3]), jax.random.normal(jax.random.key(1), (5, 2))


def _loss(states):
    return lambda arguments: jnp.sum(jnp.sin(states(*arguments)) * WEIGHTS)


def test_equal_to_the_scan_with_first_and_second_derivatives(setting):
    np.testing.assert_allclose(elman_states(*setting), dw.simulate(*setting), atol=1e-14)
    gradients = [eqx.filter_jit(eqx.filter_grad(_loss(states)))(setting) for states in (elman_states, dw.simulate)]
    assert len(jax.tree.leaves(gradients[0])) == 5
    for a, b in zip(*map(jax.tree.leaves, gradients)):
        np.testing.assert_allclose(a, b, atol=1e-12)

    def of_weight(states):
        def f(W):
            model = eqx.tree_at(lambda m: m.recurrent_weight, setting[0], W)
            return _loss(states)((model, *setting[1:]))

        return f

    W = setting[0].recurrent_weight
    expected = jax.jit(jax.jacfwd(jax.jacfwd(of_weight(dw.simulate))))(W)
    for outer in (jax.jacrev, jax.jacfwd):
        np.testing.assert_allclose(jax.jit(outer(jax.jacrev(of_weight(elman_states))))(W), expected, atol=1e-11)


def test_batches_either_way_around():
    model = dw.models.Elman(2, 3, activation=mixing, use_bias=False, key=jax.random.key(0))
    states0 = jax.random.normal(jax.random.key(2), (4, 3))
    inputs = jax.random.normal(jax.random.key(3), (4, 5, 2))

    def one(model, state0, inputs):
        return _loss(elman_states)((model, state0, inputs))

    def plain(model, state0, inputs):
        return _loss(dw.simulate)((model, state0, inputs))

    def mean(f):
        return lambda model: jnp.mean(jax.vmap(lambda z, x: f(model, z, x))(states0, inputs))

    def whole(model):
        return jnp.mean(jnp.sum(jnp.sin(elman_states(model, states0, inputs)) * WEIGHTS, axis=(1, 2)))

    expected = eqx.filter_grad(mean(plain))(model)
    np.testing.assert_allclose(eqx.filter_grad(whole)(model).recurrent_weight, expected.recurrent_weight, atol=1e-13)
    inside = eqx.filter_grad(mean(one))(model)
    outside = eqx.filter_vmap(eqx.filter_grad(one), in_axes=(None, 0, 0))(model, states0, inputs)
    np.testing.assert_allclose(inside.recurrent_weight, expected.recurrent_weight, atol=1e-13)
    np.testing.assert_allclose(jnp.mean(outside.recurrent_weight, 0), expected.recurrent_weight, atol=1e-13)
    assert elman_states(model, states0, inputs[:, :0]).shape == (4, 0, 3)
    single = jax.tree.map(lambda x: x.astype(jnp.float32), (model, states0[0], inputs[0]))
    assert elman_states(*single).dtype == jnp.float32


def test_known_slopes():
    sums = jnp.array([-1.5, 0.0, 0.3, 2.0])
    assert jnp.tanh in SLOPES
    for activation, slope in SLOPES.items():
        np.testing.assert_allclose(slope(activation(sums)), jax.vmap(jax.grad(activation))(sums), atol=1e-15)


def test_the_gradient_of_the_weights_is_one_product():
    model = dw.models.Elman(2, 3, key=jax.random.key(0))
    inputs = jnp.ones((4, 7, 2))

    def loss(model):
        return jnp.sum(elman_states(model, jnp.zeros((4, 3)), inputs) ** 2)

    text = str(jax.make_jaxpr(eqx.filter_grad(loss))(model))
    # Of W and U together, over the seven steps and the batch at once; a scan would have added up matrices.
    assert "f64[28,5]" in text
    assert text.count("f64[3,5] = dot_general") == 1
    assert "f64[3,3] = dot_general" not in text
    assert "f64[3,2] = dot_general" not in text


def test_errors():
    model = dw.models.Elman(2, 3, key=jax.random.key(0))
    with pytest.raises(dw.errors.ModelError, match="must be an Elman network; got GRU"):
        elman_states(dw.models.GRU(2, 3, key=jax.random.key(0)), jnp.zeros(3), jnp.zeros((5, 2)))
    with pytest.raises(dw.errors.ShapeError, match=r"`state0` must have shape \(3,\); got \(4,\)"):
        elman_states(model, jnp.zeros(4), jnp.zeros((5, 2)))
    with pytest.raises(dw.errors.ShapeError, match=r"`inputs` must have shape \(4, T, 2\); got"):
        elman_states(model, jnp.zeros((4, 3)), jnp.zeros((5, 7, 2)))
    with pytest.raises(dw.errors.ShapeError, match="`inputs` must have shape"):
        elman_states(model, jnp.zeros(3), jnp.zeros((5, 3)))
