"""A decoder of spikes: attention over units, a recurrence, attention over its last outputs."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer, check_shape
from dynwarp._typing import PRNGKey
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.models._base import AbstractMap
from dynwarp.models._cell import check_step, computing_dtype, parameter_dtype
from dynwarp.models._stack import emit, emitted_shape, is_stochastic, step_cell


class SpikeDecoder(AbstractMap):
    """A decoder of binned spikes in the manner of POSSM: attention over units, a recurrence, attention over time.

    Each unit i has an embedding e_i of width d. The spikes of a bin are tokens: with x_i the count of unit i, a learned
    query attends to x_i equal tokens of unit i, and to one of silence, so that

    a_i = x_i exp(l_i) / (exp(l_0) + sum_j x_j exp(l_j)), l_i = q . K e_i / sqrt(d / heads), z = O sum_i a_i V e_i,

    in each head; x need not be whole, so that rates may stand for counts, and times within a bin are not seen. Then
    z <- z + FFN(z), the backbone steps h' = f(h, z) and emits y, and the last `memory` emissions are kept:

    state = [h, y_t, y_(t-1), ..., y_(t-memory+1)].

    `readout()` attends to them by another learned query, with an embedding of each place, and gives the outputs. The
    directions of the memory are nilpotent: `memory` times the width of y multipliers of every Jacobian are 0, with
    Lyapunov exponents of -infinity, and the others are the backbone's. In the metric of states y counts beside h;
    `StateReadout(0, backbone.state_size)` sees h alone.

    **Arguments:**

    - `n_units`: how many units, the length of an input.
    - `backbone`: a map whose `input_size` is the width d, such as `S4D(32, 4, key=...)`, `GRU(32, 64, key=...)`, a
      `SelectiveSSM` or a `Stack`; it emits its `readout()` where it owns one, else its state.
    - `output_size`: o, what `readout()` gives.
    - `heads`: of both attentions; it divides d.
    - `memory`: how many emissions the outputs are made of.
    - `dtype`: of the parameters, that of the backbone if None.
    - `key`: of the random draw.

    Parameters: `embedding` `(n_units + 1, d)`, that of silence last; `query` `(d,)`, head by head; `key_weight`,
    `value_weight`, `output_weight` K, V, O, each `(d, d)`; `widen`, `narrow`, the layers of FFN; `backbone`; `output`,
    an [`AttentionReadout`][dynwarp.models.AttentionReadout]. In training give it as the readout:
    `fit(decoder, task, readout=decoder.readout())`.

    **Raises:** `ArgumentError` for sizes that are none or do not divide, `ModelError` for a backbone that is no map; a
    step raises `ShapeError` unless it is given one state and one input.

    **Cost** of a step: n_units d + 5 d^2 multiplications and the backbone's.

    **Source:** Ryoo et al. (2025), arXiv:2506.05320; tokens of spikes: Azabou et al., NeurIPS (2023), arXiv:2310.16046.
    Theirs have times within a bin and normalisation of the layers, and many sessions.

    **Example:**

    >>> backbone = dw.models.GRU(8, 16, key=jax.random.key(0))
    >>> net = dw.models.SpikeDecoder(20, backbone, 2, key=jax.random.key(1))
    >>> counts = jax.random.poisson(jax.random.key(2), 0.5, (5, 20)).astype(float)
    >>> states = dw.simulate(net, jnp.zeros(net.state_size), counts)
    >>> states.shape, jax.vmap(net.readout())(states).shape
    ((5, 64), (5, 2))
    """

    embedding: Float[Array, "n_units+1 d"]
    attention: _Attention
    backbone: AbstractMap
    output: AttentionReadout
    memory: int = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(
        self,
        n_units: int,
        backbone: AbstractMap,
        output_size: int,
        *,
        heads: int = 4,
        memory: int = 3,
        dtype: Any = None,
        key: PRNGKey,
    ):
        caller = "SpikeDecoder"
        self.input_size = check_positive_integer(n_units, "n_units", caller=caller)
        if not isinstance(backbone, AbstractMap):
            raise ModelError(f"{caller}: `backbone` must be an AbstractMap; got {type(backbone).__name__}.")
        width = check_positive_integer(backbone.input_size, "backbone.input_size", caller=caller)
        heads = _check_heads(heads, width, caller)
        self.memory = memory = check_positive_integer(memory, "memory", caller=caller)
        self.backbone = backbone
        dtype = parameter_dtype(computing_dtype(backbone) if dtype is None else dtype, caller)
        shape = emitted_shape(backbone, dtype)
        if len(shape) != 1:
            raise ModelError(f"{caller}: `backbone` must emit vectors; it emits shape {shape}.")
        self.state_size = backbone.state_size + self.memory * shape[0]
        keys = jax.random.split(key, 8)
        self.embedding = jax.random.normal(keys[0], (n_units + 1, width), dtype)
        self.attention = _Attention(width, heads, dtype, keys[1:7])
        self.output = AttentionReadout(
            backbone.state_size,
            shape[0],
            output_size,
            width=width,
            heads=heads,
            memory=memory,
            dtype=dtype,
            key=keys[7],
        )

    @property
    def stochastic(self) -> bool:
        """Whether a call with a `key` draws random numbers: whether the backbone does."""
        return is_stochastic(self.backbone)

    def __call__(self, state, input=None, *, step=None, key: PRNGKey | None = None):
        """The next state; see [`AbstractMap`][dynwarp.models.AbstractMap]."""
        return _Prepared(self, *self._tokens())(state, input, step=step, key=key)

    def prepared(self) -> AbstractMap:
        """The same map with the keys and values of the units already there, for many steps with the same parameters."""
        return _Prepared(self, *self._tokens())

    def encode(self, counts: Float[Array, " n_units"]) -> Float[Array, " d"]:
        """z, what the backbone is given of a bin."""
        check_shape(counts, "counts", (self.input_size,), caller="SpikeDecoder.encode")
        return self._attend(jnp.asarray(counts, self.embedding.dtype), *self._tokens())

    def readout(self) -> AttentionReadout:
        """The output map, from the state to the outputs."""
        return self.output

    def _tokens(self):
        """exp(l - max l), (units + 1, heads), and V e, (units + 1, heads, d / heads)."""
        logits, values = self.attention.scores(self.embedding)
        return jnp.exp(logits - jax.lax.stop_gradient(jnp.max(logits, axis=0))), values

    def _attend(self, counts, weights, values):
        present = jnp.append(counts, jnp.ones(1, counts.dtype))
        return self.attention.mix(present[:, None] * weights, values)


class _Prepared(AbstractMap):
    """What `SpikeDecoder.prepared()` returns: the map with the tokens of its units."""

    decoder: SpikeDecoder
    weights: Float[Array, "n_units+1 heads"]
    values: Float[Array, "n_units+1 heads w"]
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(self, decoder: SpikeDecoder, weights: Array, values: Array):
        self.decoder, self.weights, self.values = decoder, weights, values
        self.state_size, self.input_size = decoder.state_size, decoder.input_size

    @property
    def stochastic(self) -> bool:
        return self.decoder.stochastic

    def __call__(self, state, input=None, *, step=None, key: PRNGKey | None = None):
        net = self.decoder
        check_step(net, state, input)
        counts = jnp.zeros(net.input_size, state.dtype) if input is None else input.astype(state.dtype)
        z = net._attend(counts, self.weights, self.values)
        size = net.backbone.state_size
        hidden = step_cell(net.backbone, state[:size], z, step, key)
        emitted = emit(net.backbone, hidden, z)
        return jnp.concatenate([hidden, emitted, state[size : net.state_size - emitted.size]])


class AttentionReadout(eqx.Module):
    """The output map of a memory: a learned query attends to the vectors y_1 ... y_k in a state [h, y_1, ..., y_k].

    The tokens are E y_j + p_j, of width d; with l_j = q . K token_j / sqrt(d / heads) and softmax weights a_j in each
    head, c = O sum_j a_j V token_j, c <- c + FFN(c), and the output is C c + b.

    **Arguments:**

    - `start`: the length of h, which is not seen.
    - `emitted_size`: of each y; `memory`: k.
    - `output_size`: o.
    - `width`: d; `heads` divides it.
    - `dtype`: of the parameters; JAX's default float if None.
    - `key`: of the random draw.

    Called as `readout(state, input=None)`, `(start + k emitted_size,)` -> `(o,)`; the input is ignored.

    **Raises:** `ArgumentError` for sizes that are none or do not divide; a call raises `ShapeError` unless it is given
    one state.

    **Example:**

    >>> readout = dw.models.AttentionReadout(3, 2, 1, width=8, heads=2, memory=4, key=jax.random.key(0))
    >>> readout(jnp.zeros(11)).shape
    (1,)
    """

    embed: Float[Array, "d e"]
    place: Float[Array, "k d"]
    attention: _Attention
    weight: Float[Array, "o d"]
    bias: Float[Array, " o"]
    start: int = eqx.field(static=True)

    def __init__(
        self,
        start: int,
        emitted_size: int,
        output_size: int,
        *,
        width: int,
        heads: int = 4,
        memory: int = 3,
        dtype: Any = None,
        key: PRNGKey,
    ):
        caller = "AttentionReadout"
        self.start = check_positive_integer(start, "start", minimum=0, caller=caller)
        e = check_positive_integer(emitted_size, "emitted_size", caller=caller)
        o = check_positive_integer(output_size, "output_size", caller=caller)
        width = check_positive_integer(width, "width", caller=caller)
        heads = _check_heads(heads, width, caller)
        memory = check_positive_integer(memory, "memory", caller=caller)
        dtype = parameter_dtype(dtype, caller)
        keys = jax.random.split(key, 9)
        self.embed = jax.random.normal(keys[0], (width, e), dtype) / math.sqrt(e)
        self.place = jax.random.normal(keys[1], (memory, width), dtype)
        self.attention = _Attention(width, heads, dtype, keys[2:8])
        self.weight = jax.random.normal(keys[8], (o, width), dtype) / math.sqrt(width)
        self.bias = jnp.zeros(o, dtype)

    def __call__(self, state: Float[Array, " n"], input: Float[Array, " d"] | None = None) -> Float[Array, " o"]:
        memory, e = len(self.place), self.embed.shape[1]
        check_shape(state, "state", (self.start + memory * e,), caller="AttentionReadout")
        logits, values = self.attention.scores(state[self.start :].reshape(memory, e) @ self.embed.T + self.place)
        # A softmax without a maximum, which the search for kinks would take for one.
        share = jnp.exp(logits - jnp.mean(logits, axis=0))
        return self.weight @ self.attention.mix(share, values) + self.bias


class _Attention(eqx.Module):
    """Cross-attention of one query that is learned, head by head, and a network of two layers beside the identity."""

    query: Float[Array, " d"]
    key_weight: Float[Array, "d d"]
    value_weight: Float[Array, "d d"]
    output_weight: Float[Array, "d d"]
    widen: eqx.nn.Linear
    narrow: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, width: int, heads: int, dtype: Any, keys: PRNGKey):
        self.query = jax.random.normal(keys[0], (width,), dtype)
        self.key_weight, self.value_weight, self.output_weight = (_square(k, width, dtype) for k in keys[1:4])
        self.widen = eqx.nn.Linear(width, 2 * width, dtype=dtype, key=keys[4])
        self.narrow = eqx.nn.Linear(2 * width, width, dtype=dtype, key=keys[5])
        self.heads = heads

    def scores(self, tokens: Float[Array, "i d"]) -> tuple[Float[Array, "i heads"], Float[Array, "i heads w"]]:
        """How well each token answers the query, before the softmax, and the values of the tokens."""
        shape = (-1, self.heads, self.query.shape[0] // self.heads)
        keys, values = ((tokens @ w.T).reshape(shape) for w in (self.key_weight, self.value_weight))
        return jnp.einsum("ihw,hw->ih", keys, self.query.reshape(shape[1:])) / math.sqrt(shape[2]), values

    def mix(self, share: Float[Array, "i heads"], values: Float[Array, "i heads w"]) -> Float[Array, " d"]:
        """What the tokens tell together, each by its share; the shares need not sum up to 1."""
        mixed = jnp.einsum("ih,ihw->hw", share / jnp.sum(share, axis=0), values)
        z = self.output_weight @ mixed.ravel()
        return z + self.narrow(jax.nn.gelu(self.widen(z)))


def _square(key, width, dtype):
    return jax.random.normal(key, (width, width), dtype) / math.sqrt(width)


def _check_heads(heads, width, caller):
    heads = check_positive_integer(heads, "heads", caller=caller)
    if width % heads:
        raise ArgumentError(f"{caller}: `heads` must divide the width {width}; got {heads}.")
    return heads
