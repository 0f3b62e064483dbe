"""The mean-field theory of a large random network of tanh units."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_finite
from dynwarp._compat import concrete
from dynwarp._typing import Scalar
from dynwarp.dynamics._stepping import as_floating
from dynwarp.errors import ArgumentError

_NEWTON = 100
# The trapezoidal rule on a line is exact to rounding for functions this smooth, and unlike Gauss-Hermite's it does not
# mind that the poles of tanh(sqrt(q) z) come near for large q.
_NODES = np.linspace(-10.0, 10.0, 2001)
_WEIGHTS = np.exp(-(_NODES**2) / 2) / np.exp(-(_NODES**2) / 2).sum()


class MeanField(eqx.Module):
    """What [`mean_field_tanh`][dynwarp.dynamics.mean_field_tanh] returns.

    **Attributes:**

    - `variance`: q, of the states; 0 where the network is silent.
    - `amplification`: chi = g^2 <sech^4>, the mean square factor of a small perturbation in one step.
    - `exponent`: the largest Lyapunov exponent, log(chi) / 2, nats per step.
    """

    variance: Float[Array, "..."]
    amplification: Float[Array, "..."]
    exponent: Float[Array, "..."]


def mean_field_tanh(gain: Float[Array, "..."] | float, *, noise: Float[Array, "..."] | float = 0.0) -> MeanField:
    """The stationary state of x' = J tanh(x) + noise, J Gaussian of variance gain^2 / N, in the limit N -> infinity.

    q = g^2 <tanh^2(sqrt(q) z)> + noise^2 with z standard normal, and lambda = log(g^2 <sech^4(sqrt(q) z)>) / 2. Without
    noise the silent state is stable below the critical gain 1, where lambda = log g, and chaos begins above it; noise
    puts chaos off.

    **Arguments:**

    - `gain`: g, positive, any shape.
    - `noise`: the standard deviation of what each unit gets in each step, independent in time; broadcasts.

    **Returns:** a [`MeanField`][dynwarp.dynamics.MeanField]. Differentiable both ways, except at gain 1 without noise.
    Accurate to rounding for gains up to about 50.

    **Raises:** `ArgumentError` for a gain that is not positive, or negative noise; `NonFiniteError`.

    **Source:** Sompolinsky, Crisanti and Sommers, Phys. Rev. Lett. 61 (1988) 259; in discrete time, Molgedey,
    Schuchhardt and Schuster, Phys. Rev. Lett. 69 (1992) 3717.

    **Example:**

    >>> import dynwarp as dw
    >>> theory = dw.dynamics.mean_field_tanh(2.0)
    >>> round(float(theory.variance), 4), round(float(theory.exponent), 4)
    (2.1215, 0.1547)
    """
    caller = "mean_field_tanh"
    for value, name in ((gain, "gain"), (noise, "noise")):
        check_finite(value, name, caller=caller)
    known, other = concrete(gain), concrete(noise)
    if known is not None and not (known > 0).all():
        raise ArgumentError(f"{caller}: `gain` must be positive; got {gain!r}.")
    if other is not None and not (other >= 0).all():
        raise ArgumentError(f"{caller}: `noise` must not be negative; got {noise!r}.")
    gain = as_floating(gain)
    noise = jnp.asarray(noise, gain.dtype)
    return _mean_field(*jnp.broadcast_arrays(gain, noise))


@eqx.filter_jit
def _mean_field(gain, noise):
    def newton(q, gain, noise):
        # d/dq <f(sqrt(q) z)> = <f''> / 2 has no square root that would spoil q = 0.
        excess = gain**2 * _average(_square, q) + noise**2 - q
        slope = gain**2 * _average(_square_bend, q) - 1
        return jnp.maximum(q - excess / slope, 0)

    # The right side is concave in q: from above, Newton's method falls to the largest root and never beyond.
    constants = jax.lax.stop_gradient((gain, noise))
    start = constants[0] ** 2 + constants[1] ** 2
    q = jax.lax.fori_loop(0, _NEWTON, lambda _, q: newton(q, *constants), start)
    silent = (constants[0] <= 1) & (constants[1] == 0)
    q = jax.lax.stop_gradient(jnp.where(silent, 0, q))
    # Two more steps carry the derivatives, up to the third.
    q = newton(newton(q, gain, noise), gain, noise)
    q = jnp.where(silent, 0, q)
    amplification = gain**2 * _average(_fourth, q)
    return MeanField(q, amplification, 0.5 * jnp.log(amplification))


def _square(x):
    return jnp.tanh(x) ** 2


def _square_bend(x):
    """Half the second derivative of tanh^2."""
    square = jnp.tanh(x) ** 2
    return (1 - square) * (1 - 3 * square)


def _fourth(x):
    return (1 - jnp.tanh(x) ** 2) ** 2


@eqx.filter_custom_jvp
def _averaged(q, *, function):
    nodes, weights = (jnp.asarray(x, q.dtype) for x in (_NODES, _WEIGHTS))
    return jnp.sum(weights * function(jnp.sqrt(q)[..., None] * nodes), axis=-1)


@_averaged.def_jvp
def _averaged_jvp(primals, tangents, *, function):
    (q,), (dq,) = primals, tangents

    def bend(x):
        return 0.5 * jnp.vectorize(jax.grad(jax.grad(function)))(x)

    value = _averaged(q, function=function)
    return value, jnp.zeros_like(value) if dq is None else _averaged(q, function=bend) * dq


def _average(function, q: Scalar) -> Scalar:
    """<f(sqrt(q) z)>, z standard normal; its derivative in q is <f''> / 2, also at q = 0."""
    return _averaged(q, function=function)
