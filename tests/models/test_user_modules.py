"""A user's own module, with plain numbers, tuples and functions as fields, goes through every analysis."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw
from dynwarp import RESULTS


class UserMap(dw.models.AbstractMap):
    weight: jax.Array
    gain: float = 0.9
    shifts: tuple = (0.1, 0.2)
    nonlinearity: Callable = jnp.tanh
    state_size: int = 2
    input_size: int = 1

    def __call__(self, state, input=None, *, step=None):
        drive = 0.0 if input is None else input[0]
        return self.nonlinearity(self.gain * self.weight @ state + self.shifts[0]) + drive


class UserField(dw.models.AbstractField):
    weight: jax.Array
    rate: float = 2.0
    state_size: int = 2
    input_size: int = 1

    def __call__(self, t, state, input=None):
        drive = 0.0 if input is None else input[0]
        return -self.rate * state + jnp.tanh(self.weight @ state) + drive


WEIGHT = jnp.array([[0.6, -0.4], [0.3, 0.5]])


def test_fields_keep_the_users_order():
    assert [f for f in UserMap.__dataclass_fields__] == [
        "weight", "gain", "shifts", "nonlinearity", "state_size", "input_size",
    ]  # fmt: skip


@pytest.mark.parametrize("model", [UserMap(WEIGHT), UserField(WEIGHT)], ids=["map", "field"])
def test_every_analysis(model):
    is_map = isinstance(model, dw.models.AbstractMap)
    state0 = jnp.array([0.2, -0.1])
    if is_map:
        states = dw.simulate(model, state0, jnp.zeros((30, 1)))
        assert states.shape == (30, 2)
        gradient = dw.dynamics.adjoint_recursion(model, state0, jnp.zeros((30, 1)), jnp.ones((30, 2)))
        by_autodiff = eqx.filter_grad(lambda m: dw.simulate(m, state0, jnp.zeros((30, 1))).sum())(model)
        np.testing.assert_allclose(gradient.model.weight, by_autodiff.weight, rtol=1e-12)
    else:
        states = dw.simulate(model, state0, lambda t: jnp.zeros(1), ts=jnp.linspace(0.0, 1.0, 6))
        assert states.shape == (6, 2)
    jacobian = dw.dynamics.jacobian(model, state0, jnp.zeros(1))
    assert jacobian.shape == (2, 2)
    found = dw.dynamics.find_fixed_points(model, states[-3:]).distinct()
    assert found.points.shape == (1, 2)
    assert bool(found.is_stable[0])
    spectrum = dw.dynamics.lyapunov_spectrum(model, state0, steps=400, dt=None if is_map else 0.05)
    assert spectrum.result == RESULTS.successful
    # At a stable fixed point the exponents are those of its linearisation.
    rates = np.sort(np.real(found.eigenvalues[0] if not is_map else np.log(np.abs(found.eigenvalues[0]))))[::-1]
    np.testing.assert_allclose(spectrum.exponents, rates, atol=0.05)


def test_user_module_is_saved_and_loaded(tmp_path):
    class Saved(dw.models.AbstractMap):
        weight: jax.Array
        gain: float = 0.5
        state_size: int = 2
        input_size: int = 0

        def __call__(self, state, input=None, *, step=None):
            return self.gain * self.weight @ state

    dw.io.register(Saved, "tests.Saved")
    dw.io.save(tmp_path / "m.dynwarp", Saved(WEIGHT, gain=0.25))
    again = dw.io.load(tmp_path / "m.dynwarp")
    np.testing.assert_array_equal(again(jnp.ones(2)), 0.25 * WEIGHT @ jnp.ones(2))
