"""The flow of a whole linear network: against gradient descent, invariants and the gradient of the loss."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dynwarp as dw
from dynwarp import errors

RULES = {
    "BPTT": lambda R: dw.learning.BPTT(),
    "TBPTT": lambda R: dw.learning.TBPTT(2),
    "RFLO": lambda R: dw.learning.RFLO(feedback=R, decay=0.4),
    "EProp": lambda R: dw.learning.EProp(feedback=R),
}


def network(seed, n, radius, inputs=2, outputs=2):
    keys = jax.random.split(jax.random.key(seed), 3)
    W = jax.random.normal(keys[0], (n, n))
    W = radius * W / jnp.max(jnp.abs(jnp.linalg.eigvals(W)))
    B, A = jax.random.normal(keys[1], (n, inputs)), jax.random.normal(keys[2], (outputs, n))
    return dw.models.LinearRNN(W, 0.5 * B, 0.5 * A)


STUDENT, TEACHER = network(0, 4, 0.3), network(1, 3, 0.6)
R = jax.random.normal(jax.random.key(2), (2, 4))


@pytest.mark.parametrize("name", list(RULES))
@pytest.mark.parametrize("horizon", [None, 6])
def test_velocity_is_the_expected_update(name, horizon):
    rule = RULES[name](R)
    flow = dw.learning.network_flow(rule, STUDENT, TEACHER, horizon=horizon)
    state = flow.ravel(STUDENT)
    update = dw.learning.expected_update(rule, STUDENT, TEACHER, horizon=horizon)
    by_hand = -np.concatenate([np.ravel(x) for x in update])
    np.testing.assert_allclose(jax.jit(lambda s: flow(0.0, s))(state), by_hand, rtol=1e-12, atol=1e-14)
    batch = jax.vmap(lambda s: flow(0.0, s))(jnp.stack([state, state]))
    np.testing.assert_allclose(batch[1], by_hand, rtol=1e-12, atol=1e-14)


def test_backpropagation_descends_the_loss():
    flow = dw.learning.network_flow(dw.learning.BPTT(), STUDENT, TEACHER)
    state = flow.ravel(STUDENT)
    slope = jax.grad(lambda s: dw.learning.expected_loss(flow.unravel(s), TEACHER))(state)
    # The loss and the update come from different Stein equations, each to a residual near 1e-13.
    np.testing.assert_allclose(flow(0.0, state), -slope, rtol=1e-10, atol=1e-11)


def test_invariants_stay_along_the_flow():
    flow = dw.learning.network_flow(dw.learning.BPTT(), STUDENT, TEACHER)
    path = dw.simulate(flow, flow.ravel(STUDENT), ts=jnp.array([0.0, 1.0]))
    end = flow.unravel(path[-1])
    assert jnp.linalg.norm(end.W - STUDENT.W) > 0.05
    noether = [n.A.T @ n.A - n.B @ n.B.T + n.W.T @ n.W - n.W @ n.W.T for n in (STUDENT, end)]
    # The default tolerances of the adaptive solver are 1e-7.
    np.testing.assert_allclose(noether[1], noether[0], atol=1e-6)


def test_gradient_descent_follows_the_flow_at_first_order():
    rule = dw.learning.RFLO(feedback=R, decay=0.4)
    flow = dw.learning.network_flow(rule, STUDENT, TEACHER, horizon=5)
    end = dw.simulate(flow, flow.ravel(STUDENT), dt=0.02, steps=25)[-1]

    def error(rate):
        trained = dw.learning.train_on_expectation(
            rule, STUDENT, TEACHER, steps=round(0.5 / rate), optimizer=optax.sgd(rate), horizon=5
        )
        return float(jnp.linalg.norm(flow.ravel(trained.student) - end))

    slope = np.log2(error(0.02) / error(0.01))
    assert 0.9 < slope < 1.1


def test_round_trip_and_bad_input():
    flow = dw.learning.network_flow(dw.learning.BPTT(), STUDENT, TEACHER)
    again = flow.unravel(flow.ravel(STUDENT))
    assert all(jnp.array_equal(getattr(again, x), getattr(STUDENT, x)) for x in "WBA")
    with pytest.raises(errors.ShapeError, match=r"`state` must have shape \(32,\); got \(3,\)"):
        flow.unravel(jnp.zeros(3))
    with pytest.raises(errors.ShapeError, match=r"teacher\.B"):
        dw.learning.network_flow(dw.learning.BPTT(), STUDENT, network(0, 3, 0.5, inputs=1))
    with pytest.raises(errors.ArgumentError, match="`horizon` must be a whole number"):
        dw.learning.network_flow(dw.learning.BPTT(), STUDENT, TEACHER, horizon=0)
