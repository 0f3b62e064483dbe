"""Two penalties that keep gradients alive: on what each step does to the gradient that passes it, and on exponents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from dynwarp._checks import check_positive, check_positive_integer
from dynwarp._typing import Inputs, Scalar, State
from dynwarp.errors import ArgumentError
from dynwarp.gradients._backpropagate import backpropagate, check_sequence, half_squared_error
from dynwarp.gradients._envelope import check_start
from dynwarp.gradients._stretches import leading_stretches
from dynwarp.models import AbstractMap


def propagation_penalty(
    model: AbstractMap,
    readout: Any,
    inputs: Inputs | None,
    targets: Any,
    *,
    state0: State | None = None,
    loss: Callable[[Any, Any], Any] = half_squared_error,
    mask: Bool[Array, " T"] | None = None,
    floor: float = 1e-10,
) -> Scalar:
    """Omega = mean over steps of (|J_{k+1}^T g_{k+1}| / |g_{k+1}| - 1)^2: each step shall keep the norm of the gradient
    g that passes through it, in the direction of g alone.

    Its derivative is the *immediate* one: g and the orbit count as constants, and only the parameters inside J_{k+1}
    move. Written for `Elman(..., form="pre")` it is the published regulariser of the recurrent weights.

    **Arguments:** as for [`backpropagate`][dynwarp.gradients.backpropagate], and

    - `floor`: steps where |g| is smaller, relative to the largest, do not count.

    **Returns:** a scalar, 0 for an orthogonal linear recurrence; add a multiple to the loss. Differentiable in the
    parameters of the model, and constant in all else. Cost: one backpropagation, and one backward step for each step.

    **Raises:** as [`backpropagate`][dynwarp.gradients.backpropagate].

    **Source:** Pascanu, Mikolov and Bengio, ICML 2013, arXiv:1211.5063, equations 9 and 10.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.LinearRNN(0.5 * jnp.eye(2), jnp.ones((2, 1)), jnp.eye(2))
    >>> float(dw.gradients.propagation_penalty(net, net.readout(), jnp.ones((5, 1)), jnp.zeros((5, 2))))
    0.25
    """
    caller = "propagation_penalty"
    state0, mask = check_sequence(model, inputs, targets, state0, mask, caller)
    check_positive(floor, "floor", caller=caller)
    return _penalty(model, readout, inputs, targets, state0, loss, mask, floor)


@eqx.filter_jit
def _penalty(model, readout, inputs, targets, state0, loss, mask, floor):
    frozen = jax.lax.stop_gradient(eqx.filter((model, readout), eqx.is_inexact_array))
    frozen_model, frozen_readout = eqx.combine(frozen, (model, readout))
    found = backpropagate(frozen_model, frozen_readout, inputs, targets, state0=state0, loss=loss, mask=mask)
    adjoints, states = jax.lax.stop_gradient((found.adjoints, found.states))
    size = jnp.max(jnp.abs(adjoints))
    adjoints = adjoints / jnp.where(size > 0, size, 1)
    norms = jnp.linalg.norm(adjoints, axis=1)
    counted = norms > floor * jnp.max(norms)
    directions = adjoints / jnp.where(counted, norms, 1)[:, None]
    previous = jnp.concatenate([jax.lax.stop_gradient(state0).astype(states.dtype)[None], states[:-1]])
    indices = jnp.arange(len(states), dtype=jnp.int32)

    def ratio(direction, state, input, index):
        pulled = jax.vjp(lambda z: model(z, input, step=index).astype(z.dtype), state)[1](direction)[0]
        square = jnp.sum(pulled**2)
        return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)

    ratios = jax.vmap(ratio)(directions, previous, inputs, indices)
    number = jnp.maximum(jnp.sum(counted), 1).astype(ratios.dtype)
    return jnp.sum(jnp.where(counted, (ratios - 1) ** 2, 0)) / number


def flossing_loss(
    model: AbstractMap,
    inputs: Inputs | None = None,
    *,
    k: int,
    state0: State | None = None,
    steps: int | None = None,
    target: float = 0.0,
) -> Scalar:
    """The sum over the k largest finite-time exponents of (exponent - target)^2.

    Descending it, gradient flossing, makes k directions along which nothing vanishes or explodes.

    **Arguments:**

    - `model`: a map, in any precision.
    - `inputs`: `(T, d)`; None with `steps`.
    - `k`: how many exponents, nats per step.
    - `state0`: `(n,)`; zeros if None, which a network without input and bias never leaves.
    - `steps`: T, where there are no inputs.
    - `target`: where the exponents shall be.

    **Returns:** a scalar, differentiable both ways through the orthonormalisation. A direction that vanishes altogether
    counts nothing and has no derivative. On chaotic orbits keep T small: the derivative grows as the orbit diverges.
    Cost: k tangents a step.

    **Raises:** `ArgumentError` for more exponents than states; `ShapeError`, `NonFiniteError`, `ModelError`.

    **Source:** Engelken, NeurIPS 2023, arXiv:2312.17306.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.LinearRNN(jnp.exp(0.5) * jnp.eye(2), jnp.zeros((2, 0)), jnp.eye(2))
    >>> round(float(dw.gradients.flossing_loss(net, steps=10, k=2)), 6)
    0.5
    """
    caller = "flossing_loss"
    state0, steps = check_start(model, inputs, state0, steps, caller)
    if check_positive_integer(k, "k", caller=caller) > len(state0):
        raise ArgumentError(f"{caller}: `k` must be at most the state size {len(state0)}; got {k}.")
    return _flossing(model, inputs, state0, steps, k, target)


@eqx.filter_jit
def _flossing(model, inputs, state0, steps, k, target):
    logs = leading_stretches(model, state0, inputs, steps, k)
    alive = jnp.all(jnp.isfinite(logs), axis=0)
    exponents = jnp.mean(jnp.where(alive, logs, 0), axis=0)
    return jnp.sum(jnp.where(alive, (exponents - jnp.asarray(target, logs.dtype)) ** 2, 0))
