"""The gate of a unit and the rest of its own derivative, dh_q/dh_q before = leak + recurrent: what the diagonal
expansion of a transport is made of."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp.errors import ModelError
from dynwarp.models import GRU, LSTM, GatedLeak
from dynwarp.models._cell import drive


class DiagonalTerms(NamedTuple):
    """Of one step, `(q,)` each.

    `leak`: what a unit keeps of itself through its gate. `recurrent`: everything else of its own derivative. `entry`,
    `exit`: from what is kept to what the recurrent weights see, and to what is read; 1 but in an LSTM. `others`: gates
    whose products the released program adds to that of the leak.
    """

    leak: Float[Array, " q"]
    recurrent: Float[Array, " q"]
    entry: Float[Array, " q"]
    exit: Float[Array, " q"]
    others: tuple[Float[Array, " q"], ...] = ()


def diagonal_terms(model: Any, state: Any, input: Any, *, released: bool = False) -> DiagonalTerms:
    """The terms of one step of a gated cell; raises `ModelError` for others. `released`: as the authors' program has
    them, which is otherwise in a GRU alone."""
    if isinstance(model, LSTM):
        return _lstm(model, state, input)
    others = ()
    if isinstance(model, GRU):
        leak, recurrent, reset = _gru(model, state, input, released)
        if released:
            others = (reset, leak * reset)
    elif isinstance(model, GatedLeak):
        leak, recurrent = _gated_leak(model, state, input)
    else:
        kind = "released" if released else "diagonal"
        raise ModelError(
            f'envelope: kind="{kind}" expands about the gate of a unit and needs a GatedLeak, a GRU or an LSTM; got '
            f'{type(model).__name__}. kind="exact" takes every map.'
        )
    one = jnp.ones_like(leak)
    return DiagonalTerms(leak, recurrent, one, one, others)


def _gated_leak(model, state, input):
    gate = jnp.broadcast_to(model.leak(state, input), state.shape)
    candidate = jnp.tanh(model.recurrent_weight @ state + drive(model, input))
    recurrent = gate * (1 - candidate**2) * jnp.diag(model.recurrent_weight)
    weight = model.gate_recurrent_weight
    if weight is not None:
        # A gate that is shared listens to unit q with weight V_0q.
        own = jnp.diag(weight) if model.gate == "diagonal" else weight[0]
        recurrent = recurrent + (candidate - state) * gate * (1 - gate) * own
    return 1 - gate, recurrent


def _gru(model, state, input, released):
    outer_r, outer_z, outer_n = jnp.split(drive(model, input), 3)
    inner_r, inner_z, inner_n = jnp.split(model.recurrent_weight @ state, 3)
    if model.bias_n is not None:
        inner_n = inner_n + model.bias_n
    own_r, own_z, own_n = (jnp.diag(w) for w in jnp.split(model.recurrent_weight, 3))
    reset, keep = jax.nn.sigmoid(outer_r + inner_r), jax.nn.sigmoid(outer_z + inner_z)
    candidate = jnp.tanh(outer_n + reset * inner_n)
    # Released: of what the gate lets through, a unit's own share alone.
    through = reset * own_n + reset * (1 - reset) * own_r * (own_n * state if released else inner_n)
    recurrent = (1 - keep) * (1 - candidate**2) * through + (state - candidate) * keep * (1 - keep) * own_z
    return keep, recurrent, reset


def _lstm(model, state, input):
    hidden, before = jnp.split(state, 2)
    i, f, g, o = jnp.split(model.recurrent_weight @ hidden + drive(model, input), 4)
    own_i, own_f, own_g, _ = (jnp.diag(w) for w in jnp.split(model.recurrent_weight, 4))
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    exit = o * (1 - jnp.tanh(f * before + i * g) ** 2)
    recurrent = before * f * (1 - f) * own_f + i * (1 - g**2) * own_g + g * i * (1 - i) * own_i
    return DiagonalTerms(f, recurrent, exit, exit)
