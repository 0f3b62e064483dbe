"""The Jacobian of one step of a map, in closed form where that is faster than derivatives in all directions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp.models._cell import drive
from dynwarp.models._elman import Elman, LeakyRNN
from dynwarp.models._elman_states import SLOPES
from dynwarp.models._gated import GRU


def state_jacobian(model: Any, state: Array, input: Array | None, step: Any = None) -> Float[Array, "n n"]:
    """`[i, j]` = d h'_i / d h_j, differentiable.

    Closed forms scale the rows of the weights, n^2 multiplications; n directions through the step are n^3. Of exactly
    these cells: a subclass may step otherwise.
    """
    closed = _CLOSED.get(type(model))
    # Slopes are known of some activations; others may mix units.
    if closed is None or getattr(model, "activation", jnp.tanh) not in SLOPES:
        return jax.jacfwd(lambda z: model(z, input, step=step).astype(z.dtype))(state)
    return closed(model, state, input).astype(state.dtype)


def _elman(model: Elman, state, input):
    slope = SLOPES[model.activation]
    if model.form == "pre":
        return model.recurrent_weight * slope(model.activation(state))
    return slope(model(state, input))[:, None] * model.recurrent_weight


def _leaky(model: LeakyRNN, state, input):
    alpha = jnp.asarray(model.dt / model.tau, state.dtype)
    rates = model.activation(model.recurrent_weight @ state + drive(model, input))
    rows = (alpha * SLOPES[model.activation](rates))[:, None] * model.recurrent_weight
    return rows + jnp.diag(jnp.broadcast_to(1 - alpha, state.shape))


def _gru(model: GRU, state, input):
    W_r, W_z, W_n = jnp.split(model.recurrent_weight, 3)
    outer_r, outer_z, outer_n = jnp.split(drive(model, input), 3)
    inner = W_n @ state if model.bias_n is None else W_n @ state + model.bias_n
    reset = jax.nn.sigmoid(outer_r + W_r @ state)
    keep = jax.nn.sigmoid(outer_z + W_z @ state)
    candidate = jnp.tanh(outer_n + reset * inner)
    slope = (1 - keep) * (1 - candidate**2) * reset
    by_reset = slope * inner * (1 - reset)
    by_keep = (state - candidate) * keep * (1 - keep)
    return slope[:, None] * W_n + by_reset[:, None] * W_r + by_keep[:, None] * W_z + jnp.diag(keep)


_CLOSED = {Elman: _elman, LeakyRNN: _leaky, GRU: _gru}
