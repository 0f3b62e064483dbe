"""Jacobians against finite differences and closed forms, and the convention [i, j] = d out_i / d in_j."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw


def _differences(f, x, h=1e-6):
    return np.stack([(f(x.at[j].add(h)) - f(x.at[j].add(-h))) / (2 * h) for j in range(len(x))], axis=1)


def test_map(tanh_rnn):
    state, input = jnp.array([0.1, -0.4, 0.2, 0.7]), jnp.array([0.3, -1.0])
    J = dw.dynamics.jacobian(tanh_rnn, state, input)
    np.testing.assert_allclose(J, _differences(lambda z: tanh_rnn(z, input), state), atol=1e-9)
    slope = 1 - tanh_rnn(state, input) ** 2
    # Row i is scaled: diag(slope) W, not its transpose.
    np.testing.assert_allclose(J, slope[:, None] * tanh_rnn.W, rtol=1e-14)
    B = dw.dynamics.input_jacobian(tanh_rnn, state, input)
    np.testing.assert_allclose(B, slope[:, None] * tanh_rnn.B, rtol=1e-14)


def test_field_at_a_time():
    class Forced(dw.models.AbstractField):
        state_size: int = 2
        input_size: int = 1

        def __call__(self, t, state, input=None):
            return jnp.stack([t * state[0] * state[1], input[0] * state[1] ** 2])

    J = dw.dynamics.jacobian(Forced(), jnp.array([2.0, 3.0]), jnp.array([5.0]), t=0.5)
    np.testing.assert_allclose(J, [[1.5, 1.0], [0.0, 30.0]])
    np.testing.assert_allclose(
        dw.dynamics.input_jacobian(Forced(), jnp.array([2.0, 3.0]), jnp.array([5.0])), [[0], [9]]
    )


def test_users_plain_module_with_a_clock():
    class Clocked(dw.models.AbstractMap):
        period: int
        names: tuple = ("a",)
        state_size: int = 1
        input_size: int = 0

        def __call__(self, state, input=None, *, step=None):
            return jnp.where(step % self.period == 0, 2.0, 3.0) * state

    model = Clocked(2)
    assert dw.dynamics.jacobian(model, jnp.ones(1), step=0)[0, 0] == 2
    assert dw.dynamics.jacobian(model, jnp.ones(1), step=1)[0, 0] == 3


def test_relu_slope_at_zero_is_zero():
    f = dw.models.PiecewiseLinearMap(jnp.zeros((1, 1)), jnp.ones((1, 1)), jnp.ones((1, 1)), jnp.zeros(1), jnp.zeros(1))
    assert dw.dynamics.jacobian(f, jnp.zeros(1))[0, 0] == 0
    assert dw.dynamics.jacobian(f, jnp.array([1])) == 1


def test_transformations(tanh_rnn):
    states = jax.random.normal(jax.random.key(0), (3, 4))
    many = jax.jit(jax.vmap(lambda z: dw.dynamics.jacobian(tanh_rnn, z)))(states)
    for state, J in zip(states, many):
        np.testing.assert_allclose(J, dw.dynamics.jacobian(tanh_rnn, state), rtol=1e-14)

    def f(x):
        return jnp.sum(dw.dynamics.jacobian(eqx.tree_at(lambda m: m.W, tanh_rnn, x * tanh_rnn.W), states[0]) ** 2)

    h = 1e-6
    np.testing.assert_allclose(jax.grad(f)(1.0), (f(1 + h) - f(1 - h)) / (2 * h), rtol=1e-8)
    np.testing.assert_allclose(jax.jvp(f, (1.0,), (1.0,))[1], jax.grad(f)(1.0), rtol=1e-13)


def test_float32_and_errors(tanh_rnn):
    small = jax.tree.map(lambda x: x.astype(jnp.float32), tanh_rnn)
    assert dw.dynamics.jacobian(small, jnp.zeros(4, jnp.float32)).dtype == jnp.float32
    with pytest.raises(dw.errors.ShapeError, match=r"jacobian: `state` must have shape \(4,\); got \(2, 4\)"):
        dw.dynamics.jacobian(tanh_rnn, jnp.zeros((2, 4)))
    with pytest.raises(dw.errors.ShapeError, match=r"`input` must have shape \(2,\)"):
        dw.dynamics.input_jacobian(tanh_rnn, jnp.zeros(4), jnp.zeros(3))
    with pytest.raises(dw.errors.ModelError, match=r"needs a model.*got function"):
        dw.dynamics.jacobian(lambda z: z, jnp.zeros(4))  # pyright: ignore[reportArgumentType]


def _mixing(h):
    return jnp.tanh(h) / (1 + jnp.sum(h**2))


def _written_out():
    elman, leaky, gru = dw.models.Elman, dw.models.LeakyRNN, dw.models.GRU
    key = jax.random.key(3)
    yield elman(2, 4, key=key)
    yield elman(2, 4, form="pre", activation=jax.nn.sigmoid, use_bias=False, key=key)
    yield elman(2, 4, activation=jax.nn.relu, key=key)
    yield elman(2, 4, activation=_mixing, key=key)
    yield leaky(2, 4, tau=jnp.array([0.5, 1.0, 2.0, 4.0]), key=key)
    yield leaky(2, 4, dt=0.3, activation=jax.nn.relu, use_bias=False, key=key)
    yield gru(2, 4, use_bias=False, key=key)
    yield eqx.tree_at(lambda m: (m.bias, m.bias_n), gru(2, 4, key=key), (0.3 * jnp.arange(12.0), jnp.arange(4.0)))


@pytest.mark.parametrize("model", list(_written_out()), ids=lambda m: type(m).__name__)
def test_jacobians_written_out(model):
    """Values and, for what has parameters, the derivative of a functional of them in these."""
    state, input = jnp.array([0.1, -0.4, 0.2, 0.7]), jnp.array([0.3, -1.0])
    weights = jnp.arange(16.0).reshape(4, 4)

    def both(jacobian):
        return lambda model: jnp.sum(weights * jacobian(model))

    @eqx.filter_jit
    def run(model):
        ours = lambda m: dw.dynamics.jacobian(m, state, input)  # noqa: E731
        expected = lambda m: jax.jacfwd(lambda z: m(z, input))(state)  # noqa: E731
        return [(f(model), eqx.filter_grad(both(f))(model)) for f in (ours, expected)]

    ours, expected = run(model)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-13)
    single = jax.tree.map(lambda a: a.astype(jnp.float32) if eqx.is_array(a) else a, (model, state, input))
    assert dw.dynamics.jacobian(*single).dtype == jnp.float32


def test_a_subclass_steps_as_it_likes():
    class Doubled(dw.models.Elman):
        def __call__(self, state, input=None, *, step=None):
            return 2 * super().__call__(state, input)

    J = [dw.dynamics.jacobian(c(0, 3, key=jax.random.key(0)), jnp.ones(3)) for c in (Doubled, dw.models.Elman)]
    np.testing.assert_allclose(J[0], 2 * J[1], rtol=1e-14)
