"""A whole sequence of an Elman network, with the derivative of the sequence and not of its steps.

Differentiated step by step, the gradient of W is added up in every step of the reverse scan, and each step keeps what
it needs for that. Here the derivative is one linear solve, (I - W D shift) da = d(W, U) (h, x) + dd, by a loop that
keeps nothing but the states, and the gradient of both weights is one matrix product over all steps, and all sequences
of a batch, at its end. Loops write over what they read: for long arrays memory costs as much as arithmetic.
"""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from dynwarp._checks import check_inputs, check_shape, check_state
from dynwarp.errors import ModelError
from dynwarp.models._elman import Elman


def elman_states(model: Elman, state0: Float[Array, "*B n"], inputs: Float[Array, "*B T d"]) -> Float[Array, "*B T n"]:
    """The states of an Elman network after each input, with a gradient that costs less.

    The same as [`simulate`][dynwarp.simulate] to rounding errors, with the same derivatives, forwards, backwards and of
    higher order. A gradient takes half to three quarters of the time for a batch, as that of the weights is one product
    over all steps of all sequences. One sequence gains nothing.

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
    dtype = jnp.result_type(model.recurrent_weight.dtype, state0.dtype, inputs.dtype)
    weights = (model.recurrent_weight, model.input_weight, model.bias)
    weights, state0, inputs = jax.tree.map(lambda x: x.astype(dtype), (weights, state0, inputs))
    if inputs.shape[1] == 0:
        return jnp.zeros((len(state0), 0, model.state_size), dtype)
    activation, post = model.activation, model.form == "post"
    as_rates = post and activation in SLOPES
    before = state0 if post else jax.vmap(activation)(state0)
    # Time first: other layouts are copied before and after each product.
    kept = _run(activation, as_rates, weights, jnp.swapaxes(inputs, 0, 1), before)
    states = jax.vmap(jax.vmap(activation))(kept) if post and not as_rates else kept
    return jnp.swapaxes(states, 0, 1)


# The slopes of these follow from their values: what they are given need not be kept.
SLOPES = {
    jnp.tanh: lambda h: 1 - h**2,
    jax.nn.relu: lambda h: (h > 0).astype(h.dtype),
    jax.nn.sigmoid: lambda h: h * (1 - h),
}


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _run(activation, as_rates, weights, xs, before):
    """a_t = W phi(a_{t-1}) + U x_t + b with phi(a_0) = before; phi(a_t) if `as_rates`. Time first, `(T, B, n)`."""
    W, U, bias = weights
    drives = _product(xs, U) if bias is None else _product(xs, U) + bias
    # Made once, or it would be copied in every step.
    transposed = W.T

    def step(t, carry):
        # Written over what it is made of: a second long array costs more than the sums.
        kept, rates = carry
        sums = _row(kept, t) + rates @ transposed
        rates = jax.vmap(activation)(sums)
        return _with_row(kept, rates if as_rates else sums, t), rates

    return jax.lax.fori_loop(0, len(xs), step, (drives, before))[0]


def _run_jvp(activation, as_rates, primals, tangents):
    (W, U, _), xs, before = primals
    (dW, dU, d_bias), d_xs, d_before = tangents
    # By the rule again, so that derivatives of this one are right as well.
    kept = _run(activation, as_rates, *primals)
    rates = kept if as_rates else jax.vmap(jax.vmap(activation))(kept)
    moved = jnp.zeros_like(kept)
    # One product for both weights, so that backwards it is one as well.
    parts = [
        (source, change)
        for source, change in ((jnp.concatenate([before[None], rates[:-1]]), dW), (xs, dU))
        if not _is_zero(change)
    ]
    if parts:
        sources, changes = zip(*parts)
        moved = _product(jnp.concatenate(sources, axis=-1), jnp.concatenate(changes, axis=-1))
    if d_bias is not None and not _is_zero(d_bias):
        moved = moved + d_bias
    if not _is_zero(d_xs):
        moved = moved + _product(d_xs, U)
    if not _is_zero(d_before):
        moved = moved.at[0].add(d_before @ W.T)
    d_sums = _solve(activation, as_rates, W, kept, moved)
    return kept, _push(activation, as_rates, kept, d_sums) if as_rates else d_sums


_run.defjvp(_run_jvp, symbolic_zeros=True)


def _product(rows, weight):
    """Over all steps and sequences at once: as one long matrix it is the fastest."""
    steps, batch, size = rows.shape
    return (rows.reshape(steps * batch, size) @ weight.T).reshape(steps, batch, len(weight))


def _is_zero(tangent):
    return isinstance(tangent, SymbolicZero)


def _push(activation, as_rates, kept, change):
    """The change of phi(a) with that of a."""
    if as_rates:
        return SLOPES[activation](kept) * change
    # phi takes one state, and may mix its units.
    return jax.vmap(lambda a, da: jax.jvp(activation, (a,), (da,))[1])(kept, change)


def _pull(activation, as_rates, kept, signal):
    """The other way around."""
    if as_rates:
        return SLOPES[activation](kept) * signal
    return jax.vmap(lambda a, g: jax.vjp(activation, a)[1](g)[0])(kept, signal)


def _solve(activation, as_rates, W, kept, moved):
    """da with da_t - W dphi(a_{t-1}) = moved_t."""
    push, pull = partial(_push, activation, as_rates), partial(_pull, activation, as_rates)
    steps, transposed = len(kept), W.T

    def apply(da):
        return da.at[1:].add(-jax.vmap(push)(kept[:-1], da[:-1]) @ transposed)

    def forward(_, b):
        def step(t, carry):
            out, rates = carry
            da = _row(out, t) + rates @ transposed
            return _with_row(out, da, t), push(_row(kept, t), da)

        return jax.lax.fori_loop(0, steps, step, (b, jnp.zeros_like(b[0])))[0]

    def backward(_, b):
        def step(i, carry):
            out, signal = carry
            t = steps - 1 - i
            g = _row(out, t) + pull(_row(kept, t), signal)
            return _with_row(out, g, t), g @ W

        return jax.lax.fori_loop(0, steps, step, (b, jnp.zeros_like(b[0])))[0]

    return jax.lax.custom_linear_solve(apply, moved, forward, backward)


def _row(rows, t):
    return jax.lax.dynamic_index_in_dim(rows, t, 0, keepdims=False)


def _with_row(rows, row, t):
    return jax.lax.dynamic_update_index_in_dim(rows, row, t, 0)
