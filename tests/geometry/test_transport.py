"""Derivatives of what is integrated along curves, and curves that do not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dynwarp as dw

g = dw.geometry


def _sphere(x):
    s, c = jnp.sin(x), jnp.cos(x)
    return jnp.stack([s[0] * c[1], s[0] * s[1], c[0]])


SPHERE = g.Immersion(_sphere, dim=2, periods=(None, 2 * np.pi))


def test_derivative_of_transport_over_many_steps():
    """Around a circle of latitude tangents turn by 2 pi cos(colatitude); backwards, steps are gone through twice."""

    def turned(colatitude):
        def circle(s):
            return jnp.stack([colatitude, 2 * jnp.pi * s])

        return SPHERE.parallel_transport(circle, jnp.array([1.0, 0.0]))[0]

    value, slope = jax.jit(jax.value_and_grad(turned))(0.8)
    want = jax.value_and_grad(lambda colatitude: jnp.cos(2 * jnp.pi * jnp.cos(colatitude)))(0.8)
    np.testing.assert_allclose([value, slope], want, rtol=0, atol=1e-11)


def test_curves_that_do_not_fit():
    v = jnp.ones(2)
    with pytest.raises(dw.errors.ShapeError, match=r"parallel_transport: `curve\(s\)`"):
        SPHERE.parallel_transport(lambda s: jnp.stack([s, s, s]), v)
    with pytest.raises(dw.errors.ShapeError, match=r"holonomy: `loop\(s\)`"):
        SPHERE.holonomy(lambda s: s)
    with pytest.raises(dw.errors.ArgumentError, match="`loop` must hold at least 4 points"):
        SPHERE.holonomy(jnp.ones((3, 2)))
    with pytest.raises(dw.errors.ArgumentError, match="`v`"):
        SPHERE.exp(v, v.astype(complex))


def test_points_in_single_precision():
    s = jnp.linspace(0, 1, 24)
    circle = jnp.stack([jnp.full_like(s, 0.8), 2 * jnp.pi * s], 1).astype(jnp.float32)
    turn = SPHERE.holonomy(circle)
    assert turn.dtype == jnp.float32
    np.testing.assert_allclose(turn[0, 0], np.cos(2 * np.pi * np.cos(0.8)), atol=1e-5)
