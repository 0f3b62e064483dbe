"""Powers carried with their rounding errors, and the parallel forms of slow modes that stand on them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpmath import mp, mpc

import dynwarp as dw
from dynwarp.models._powers import first_power, squared


@pytest.mark.parametrize("dtype", [jnp.complex64, jnp.complex128])
def test_power_is_right_to_rounding(dtype):
    multipliers = jnp.asarray(0.999 * np.exp(1j * np.linspace(0.1, 3.0, 7)), dtype)

    @jax.jit
    def power(x):
        x = first_power(x)
        for _ in range(10):
            x = squared(x)
        return x.value

    with mp.workdps(50):
        exact = [complex(mpc(complex(x)) ** 1024) for x in np.asarray(multipliers)]
    eps = jnp.finfo(dtype).eps
    error = np.abs(np.asarray(power(multipliers)) - exact) / np.abs(exact)
    assert error.max() < 2 * eps
    plain = multipliers
    for _ in range(10):
        plain = plain * plain
    # What plain squaring loses: about a digit in three doublings.
    assert (np.abs(np.asarray(plain) - exact) / np.abs(exact)).max() > 20 * eps


def test_power_has_the_derivative_of_the_square():
    def modulus(x, square):
        return jnp.abs(square(jax.lax.complex(x, 0.3 * x)))

    ours = [f(lambda x: modulus(x, lambda z: squared(first_power(z)).value))(0.8) for f in (jax.grad, jax.jacfwd)]
    np.testing.assert_allclose(ours, jax.grad(lambda x: modulus(x, lambda z: z * z))(0.8), rtol=1e-14)


@pytest.mark.parametrize("name", ["S4D", "S5", "LRU"])
def test_slow_modes_agree_in_float32(name):
    key = jax.random.key(0)
    model = {
        "S4D": lambda: dw.models.S4D(2, 16, dtype=jnp.float32, key=key),
        "S5": lambda: dw.models.S5(2, 4, 2, dtype=jnp.float32, key=key),
        "LRU": lambda: dw.models.LRU(2, 16, 2, r_min=0.99, r_max=0.9999, dtype=jnp.float32, key=key),
    }[name]()
    inputs = jax.random.normal(jax.random.key(1), (2048, 2), jnp.float32)
    state0 = jnp.zeros(model.state_size, jnp.float32)
    scan, parallel, fft = (dw.simulate(model, state0, inputs, mode=m) for m in ("scan", "associative", "fft"))
    largest = jnp.max(jnp.abs(scan))
    assert jnp.max(jnp.abs(parallel - scan)) <= 4e-6 * largest
    assert jnp.max(jnp.abs(fft - scan)) <= 3e-5 * largest
