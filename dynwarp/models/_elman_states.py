"""A whole sequence of an Elman network, with the derivative of the sequence and not of its steps.

Differentiated step by step, the gradient of W is added up in every step of the reverse scan, and each step keeps what
it needs for that. Here the derivative is one linear solve, (I - W D shift) da = dW h + dd, by a scan that keeps nothing
but the states, and the gradient of W is one matrix product over all steps, and all sequences of a batch, at its end.
"""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_inputs, check_shape, check_state
from dynwarp.errors import ModelError
from dynwarp.models._elman import Elman


def elman_states(model: Elman, state0: Float[Array, "*B n"], inputs: Float[Array, "*B T d"]) -> Float[Array, "*B T n"]:
    """The states of an Elman network after each input, with a gradient that costs less.

    The same as [`simulate`][dynwarp.simulate] to rounding errors, with the same derivatives, forwards, backwards and of
    higher order. Backwards takes about two thirds of the time for a batch, as the gradient of the weights is one
    product over all steps of all sequences. One sequence gains nothing.

    **Arguments:**

    - `model`: an [`Elman`][dynwarp.models.Elman] network of either form.
    - `state0`: `(n,)`, or `(B, n)` for a batch.
    - `inputs`: `(T, d)`, or `(B, T, d)`. A batch is faster given so than by `jax.vmap`, which works as well.

    **Returns:** `(T, n)` or `(B, T, n)`.

    **Raises:** `ShapeError`; `ModelError` for another model.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.Elman(2, 3, key=jax.random.key(0))
    >>> states = dw.models.elman_states(net, jnp.zeros((4, 3)), jnp.ones((4, 5, 2)))
    >>> bool(jnp.allclose(states[0], dw.simulate(net, jnp.zeros(3), jnp.ones((5, 2))), atol=1e-6))
    True
    """
    if not isinstance(model, Elman):
        raise ModelError(f"elman_states: `model` must be an Elman network; got {type(model).__name__}.")
    if jnp.ndim(state0) == 2:
        batch = len(state0)
        check_shape(state0, "state0", (batch, model.state_size), caller="elman_states")
        check_shape(inputs, "inputs", (batch, "T", model.input_size), caller="elman_states")
        return _states(model, jnp.asarray(state0), jnp.asarray(inputs))
    check_state(model, state0, caller="elman_states")
    check_inputs(model, inputs, caller="elman_states")
    return _states(model, jnp.asarray(state0)[None], jnp.asarray(inputs)[None])[0]


@eqx.filter_jit
def _states(model, state0, inputs):
    W = model.recurrent_weight
    dtype = jnp.result_type(W.dtype, state0.dtype, inputs.dtype)
    # Time first and one long matrix: other layouts are copied before and after each product.
    batch, steps, size = inputs.shape
    rows = jnp.swapaxes(inputs.astype(dtype), 0, 1).reshape(steps * batch, size)
    drives = (rows @ model.input_weight.astype(dtype).T).reshape(steps, batch, -1)
    if model.bias is not None:
        drives = drives + model.bias.astype(dtype)
    state0, post = state0.astype(dtype), model.form == "post"
    before = state0 if post else model.activation(state0)
    rates, sums = _run(model.activation, not post, W.astype(dtype), drives, before)
    return jnp.swapaxes(rates if post else sums, 0, 1)


# The slopes of these follow from their values, so that what they are given need not be kept.
_SLOPES = {
    jnp.tanh: lambda h: 1 - h**2,
    jax.nn.relu: lambda h: (h > 0).astype(h.dtype),
    jax.nn.sigmoid: lambda h: h * (1 - h),
}


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _run(activation, keep, W, drives, before):
    """phi(a_t) and, if needed, a_t, with a_t = W phi(a_{t-1}) + drives_t and phi(a_0) = before."""
    keep = keep or activation not in _SLOPES

    def step(rates, drive):
        sums = rates @ W.T + drive
        rates = activation(sums)
        return rates, (rates, sums if keep else None)

    return jax.lax.scan(step, before, drives)[1]


@_run.defjvp
def _run_jvp(activation, keep, primals, tangents):
    W, drives, before = primals
    dW, d_drives, d_before = tangents
    # By the rule again, so that derivatives of this one are right as well.
    rates, sums = out = _run(activation, keep, W, drives, before)
    slope = _slope(activation)
    known = rates if activation in _SLOPES else sums
    steps, batch, n = rates.shape
    previous = jnp.concatenate([before[None], rates[:-1]]).reshape(steps * batch, n)
    moved = (d_drives + (previous @ dW.T).reshape(steps, batch, n)).at[0].add(d_before @ W.T)
    d_sums = _solve(slope, W, known, moved)
    return out, (slope(known) * d_sums, None if sums is None else d_sums)


def _slope(activation):
    """phi' as a function of phi, or of what phi is given."""
    if activation in _SLOPES:
        return _SLOPES[activation]
    return lambda sums: jax.jvp(activation, (sums,), (jnp.ones_like(sums),))[1]


def _solve(slope, W, known, moved):
    """da with da_t - W (slope(known_{t-1}) da_{t-1}) = moved_t. The slopes are made where they are needed."""

    def apply(da):
        return da.at[1:].add(-(slope(known) * da)[:-1] @ W.T)

    def forward(_, b):
        def step(carry, x):
            da = x[1] + carry @ W.T
            return slope(x[0]) * da, da

        return jax.lax.scan(step, jnp.zeros_like(b[0]), (known, b))[1]

    def backward(_, b):
        def step(carry, x):
            g = x[1] + slope(x[0]) * carry
            return g @ W, g

        return jax.lax.scan(step, jnp.zeros_like(b[0]), (known, b), reverse=True)[1]

    return jax.lax.custom_linear_solve(apply, moved, forward, backward)
