"""How gradients travel: profiles and products of Jacobians."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import dynwarp as dw
from dynwarp.bench._case import Kernel, case
from dynwarp.bench.cases._tools import float64, itemsize, normal


def _network(state_size, input_size, steps, seed):
    net = dw.models.Elman(input_size, state_size, key=jax.random.key(seed))
    weight = normal(seed, (state_size, state_size), "float64", scale=1.2 / state_size**0.5)
    return (
        eqx.tree_at(lambda m: m.recurrent_weight, net, weight),
        normal(seed + 1, (steps, input_size), "float64", scale=0.3),
    )


def _numpy_orbit(net, inputs):
    W, U, b = (float64(x) for x in (net.recurrent_weight, net.input_weight, net.bias))
    states = [np.zeros(len(W))]
    for x in float64(inputs):
        states.append(np.tanh(W @ states[-1] + U @ x + b))
    return W, np.stack(states)


def _profile(net, readout, inputs, targets, lags):
    return dw.gradients.gradient_profile(net, readout, inputs, targets, lags=lags, throw=False)


@case(
    group="gradient",
    check={"state_size": 4, "steps": 20, "lags": 5},
    quick=[{"state_size": 64, "steps": 500, "lags": 100}],
    gpu=[{"state_size": 256, "steps": 1000, "lags": 100}],
)
def gradient_profile(*, state_size: int, steps: int, lags: int, seed: int) -> Kernel:
    """Norms of the gradient by step, loss term and lag."""
    n = state_size
    net, inputs = _network(n, 2, steps, seed)
    readout = dw.models.Readout(n, 3, key=jax.random.key(seed + 2))
    targets = normal(seed + 3, (steps, 3), "float64")

    def reference():
        W, states = _numpy_orbit(net, inputs)
        V, c = float64(readout.weight), float64(readout.bias)
        terms = (states[1:] @ V.T + c - float64(targets)) @ V / steps
        slopes = 1 - states[1:] ** 2
        total, carried = np.zeros((steps, n)), np.zeros(n)
        for t in reversed(range(steps)):
            total[t] = terms[t] + carried
            carried = W.T @ (slopes[t] * total[t])
        squares = [np.mean(np.sum(terms**2, axis=1))]
        for lag in range(lags):
            # Row s - lag - 1 holds what the term of step s sends to that step.
            terms = (terms[1:] * slopes[1 : steps - lag]) @ W
            squares.append(np.mean(np.sum(terms**2, axis=1)))
        return np.linalg.norm(total, axis=1), np.sqrt(squares)

    return Kernel(
        function=_profile,
        arguments=(net, readout, inputs, targets, lags),
        digest=lambda profile: (profile.norms, profile.lag_norms),
        reference=reference,
        tolerance=1e-9,
        flops=steps * 2 * n**2 * (4 + lags),
        bytes=steps * (2 + 3 + n) * itemsize("float64"),
        depth=2 * steps + lags,
        work=steps * lags,
        unit="terms",
    )


def _singular_values(net, states, inputs, lag):
    return dw.gradients.jacobian_product(net, states, inputs, lag=lag, throw=False).log_singular_values


@case(
    group="gradient",
    check={"state_size": 4, "lag": 20},
    quick=[{"state_size": 32, "lag": 200}],
    full=[{"state_size": 100, "lag": 200}],
    gpu=[{"state_size": 100, "lag": 200}],
)
def jacobian_product(*, state_size: int, lag: int, seed: int) -> Kernel:
    """All singular values of a product of Jacobians as logarithms; their sum is compared, and the largest."""
    n = state_size
    net, inputs = _network(n, 2, lag, seed)
    states = dw.simulate(net, jnp.zeros(n), inputs, include_initial=True)[:-1]

    def reference():
        W, orbit = _numpy_orbit(net, inputs)
        slopes = 1 - orbit[1:] ** 2
        # The determinant from the factors alone, the norm from the product, scaled as it grows.
        determinant = lag * np.linalg.slogdet(W)[1] + np.sum(np.log(slopes))
        product, scale = np.eye(n), 0.0
        for slope in slopes:
            product = (slope[:, None] * W) @ product
            size = np.linalg.norm(product)
            product, scale = product / size, scale + np.log(size)
        return np.array([determinant, np.log(np.linalg.norm(product, 2)) + scale])

    return Kernel(
        function=_singular_values,
        arguments=(net, states, inputs, lag),
        digest=lambda values: jnp.stack([jnp.sum(values), values[0]]),
        reference=reference,
        tolerance=1e-9,
        # Jacobians, two passes of products and orthonormalisations, and the triangular factors.
        flops=lag * n**3 * (2 + 2 * (2 + 2) + 2) + 40 * n**3,
        bytes=lag * n**2 * itemsize("float64"),
        depth=2 * lag,
        work=lag,
        unit="steps",
    )
