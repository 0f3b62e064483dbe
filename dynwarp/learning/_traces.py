"""Forward traces: the same rules run forwards in time, with the cheapest influence that is exact for the rule.

With M[t] = Z^T M[t-1] + dF/dtheta, the influence of the parameters on the state as the rule sees it, the update at each
step is M[t]^T F e[t]: it is known when the error is, and the sequence need not be kept. M is `(n, parameters)` in
general; it shrinks to one number a synapse where Z never leaves a unit, and to one number a source where besides the
network is linear and all units forget alike.
"""

from __future__ import annotations

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._typing import PRNGKey
from dynwarp.errors import ArgumentError
from dynwarp.learning._propagators import AbstractPropagator, CellLeak, Interpolated, Leak, Reach, Zero
from dynwarp.learning._transport import (
    Moment,
    advance,
    is_unitwise,
    propagator_matrix,
    reach_mask,
    step_jacobian,
    unit_blocks,
)
from dynwarp.learning._units import parameter_kinds, unit_count
from dynwarp.models import LinearRNN
from dynwarp.models._cell import computing_dtype

DEFAULT_MEMORY = 2**30


class AbstractTrace(eqx.Module):
    """What a rule remembers of the past of a sequence."""

    @abc.abstractmethod
    def advance(self, propagator: AbstractPropagator, model: Any, moment: Moment, key: PRNGKey | None) -> AbstractTrace:
        """The trace after one more step of the model."""

    @abc.abstractmethod
    def gradient(self, model: Any, signal: Float[Array, " n"]) -> Any:
        """What an error F e at the present state makes of the parameters, M^T F e."""


class SourceTrace(AbstractTrace):
    """One number a source, for a linear network whose units forget alike: dW = (F e) times the filtered states."""

    state: Float[Array, " n"]
    input: Float[Array, " d"]

    def advance(self, propagator, model, moment, key):
        decay = _scalar(propagator)
        drive = jnp.zeros_like(self.input) if moment.input is None else moment.input
        return SourceTrace(decay * self.state + moment.state, decay * self.input + drive)

    def gradient(self, model, signal):
        zero = jax.tree.map(jnp.zeros_like, eqx.filter(model, eqx.is_inexact_array))
        outer = (jnp.outer(signal, self.state), jnp.outer(signal, self.input))
        return eqx.tree_at(lambda m: (m.W, m.B), zero, outer)


class UnitTrace(AbstractTrace):
    """One number a synapse and coordinate of its unit, for propagators that never leave a unit.

    `local` leaves are `(k, *leaf.shape)` with k coordinates a unit; parameters that act on all units at once, such as
    one time constant for all, are in `shared`, `(k, U, *leaf.shape)`.
    """

    local: Any
    shared: Any

    def advance(self, propagator, model, moment, key):
        blocks = unit_blocks(propagator, model, moment)
        local, shared = _immediate_local(model, moment), _immediate_shared(model, moment)

        def forget(trace, new):
            carried = _expand(blocks, trace.shape[1], trace.ndim - 2) * trace[:, None]
            return jnp.sum(carried, axis=0) + new

        return UnitTrace(jax.tree.map(forget, self.local, local), jax.tree.map(forget, self.shared, shared))

    def gradient(self, model, signal):
        weights = signal.reshape(-1, unit_count(model))

        def own(trace):
            return jnp.sum(_expand(weights, trace.shape[1], trace.ndim - 2) * trace, axis=0)

        return _assemble(
            model, jax.tree.map(own, self.local), jax.tree.map(lambda t: jnp.tensordot(weights, t, 2), self.shared)
        )


class InfluenceTrace(AbstractTrace):
    """The whole influence, `(n, *leaf.shape)` for every leaf: real-time recurrent learning and any other Z."""

    influence: Any

    def advance(self, propagator, model, moment, key):
        Z = propagator_matrix(propagator, model, moment)
        new = _immediate(model, moment, ("local", "shared"))
        return InfluenceTrace(jax.tree.map(lambda m, d: jnp.tensordot(Z, m, axes=(0, 0)) + d, self.influence, new))

    def gradient(self, model, signal):
        return _assemble(model, jax.tree.map(lambda m: jnp.tensordot(signal, m, axes=1), self.influence))


class ReachTrace(AbstractTrace):
    """The influence on what a parameter's unit reaches within the order of SnAp; the rest of it is zero.

    `local` leaves are `(n, *leaf.shape)`; `shared` ones are kept apart by the unit they act through,
    `(U, n, *leaf.shape)`.
    """

    local: Any
    shared: Any

    def advance(self, propagator, model, moment, key):
        assert isinstance(propagator, Reach)
        dtype, units = moment.state.dtype, unit_count(model)
        mask = reach_mask(propagator, model).astype(dtype)
        own = jnp.tile(jnp.eye(units, dtype=dtype), (1, model.state_size // units))
        jacobian = step_jacobian(model, moment)

        def forget_local(trace, new):
            rows = trace.shape[1]
            seen, mine = (_expand(m.T, rows, trace.ndim - 2) for m in (mask, own))
            return seen * jnp.tensordot(jacobian, trace, axes=1) + mine * jnp.repeat(new, units, axis=0)

        def forget_shared(trace, new):
            trailing = (...,) + (None,) * (trace.ndim - 2)
            carried = jnp.moveaxis(jnp.tensordot(jacobian, trace, axes=(1, 1)), 0, 1)
            return mask[trailing] * carried + own[trailing] * new.reshape(1, *trace.shape[1:])

        return ReachTrace(
            jax.tree.map(forget_local, self.local, _immediate_local(model, moment)),
            jax.tree.map(forget_shared, self.shared, _immediate_shared(model, moment)),
        )

    def gradient(self, model, signal):
        return _assemble(
            model,
            jax.tree.map(lambda t: jnp.tensordot(signal, t, axes=1), self.local),
            jax.tree.map(lambda t: jnp.tensordot(signal, jnp.sum(t, axis=0), axes=1), self.shared),
        )


class RankOneTrace(AbstractTrace):
    """UORO's estimate of the influence by one product of a state and a parameter vector, right on average.

    **Source:** Tallec & Ollivier, ICLR 2018 (arXiv 1702.05043), with its variance-reducing scales.
    """

    state: Float[Array, " n"]
    parameters: Any

    def advance(self, propagator, model, moment, key):
        if key is None:
            raise ArgumentError("UORO: the random signs need a `key`; got None.")
        signs = jax.random.rademacher(key, moment.state.shape, moment.state.dtype)
        return self.mix(model, moment, signs)

    def mix(self, model: Any, moment: Moment, signs: Float[Array, " n"]) -> RankOneTrace:
        """The trace after one more step, with these signs for its random direction."""
        _, carried = jax.jvp(lambda z: advance(model, z, moment), (moment.state,), (self.state,))
        new = _pullback(model, moment, ("local", "shared"))(signs)
        old_scale = _scale(_norm(self.parameters), _norm(carried))
        new_scale = _scale(_norm(new), _norm(signs))
        return RankOneTrace(
            old_scale * carried + new_scale * signs,
            jax.tree.map(lambda old, d: old / old_scale + d / new_scale, self.parameters, new),
        )

    def gradient(self, model, signal):
        along = jnp.dot(signal, self.state)
        return _assemble(model, jax.tree.map(lambda p: along * p, self.parameters))


def start_trace(rule: Any, model: Any, *, dtype: Any = None, memory_limit: int = DEFAULT_MEMORY) -> AbstractTrace:
    """The empty trace of a rule in a model, the smallest that is exact for both.

    | propagator | network | numbers kept |
    |---|---|---|
    | scalar decay | linear | n + d |
    | leak, diagonal, or any in a diagonal recurrence | any | one a synapse and coordinate of its unit |
    | any other | any | n a parameter |
    | UORO | any | n, and one a parameter |

    **Arguments:**

    - `rule`: a learning rule.
    - `model`: a map.
    - `dtype`: of the trace; None is that of the parameters.
    - `memory_limit`: bytes.

    **Returns:** a trace: `advance_trace` moves it on, `trace.gradient(model, signal)` turns an error into a gradient.

    **Raises:** `ArgumentError` where the trace would exceed `memory_limit`, with its size, and for a sliding horizon,
    which no trace has.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.Elman(2, 5, key=jax.random.key(0))
    >>> trace = dw.learning.start_trace(dw.learning.EProp(), net)
    >>> trace.local.recurrent_weight.shape
    (1, 5, 5)
    """
    name = type(rule).__name__
    if rule.horizon is not None and not rule.chunked:
        raise ArgumentError(
            f"{name}: a sliding horizon of {rule.horizon} has no forward trace; use the reverse recursion, "
            'engine="reverse", or ChunkedTBPTT.'
        )
    parameters = eqx.filter(model, eqx.is_inexact_array)
    dtype = computing_dtype(model) if dtype is None else dtype
    units = unit_count(model)
    coordinates = model.state_size // units
    local, shared = (select(parameters, parameter_kinds(model), kinds) for kinds in (("local",), ("shared",)))

    def zeros(tree, *leading):
        return jax.tree.map(lambda leaf: jnp.zeros((*leading, *leaf.shape), _kind(leaf, dtype)), tree)

    def build() -> AbstractTrace:
        if rule.estimator == "rank_one":
            return RankOneTrace(jnp.zeros(model.state_size, dtype), zeros(eqx.combine(local, shared)))
        if type(model) is LinearRNN and _is_scalar(rule.propagator):
            return SourceTrace(jnp.zeros(model.state_size, dtype), jnp.zeros(model.input_size, dtype))
        if is_unitwise(rule.propagator, model):
            return UnitTrace(zeros(local, coordinates), zeros(shared, coordinates, units))
        if isinstance(rule.propagator, Reach):
            return ReachTrace(zeros(local, model.state_size), zeros(shared, units, model.state_size))
        return InfluenceTrace(zeros(eqx.combine(local, shared), model.state_size))

    leaves = jax.tree.leaves(jax.eval_shape(build))
    size = sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
    if size > memory_limit:
        raise ArgumentError(
            f"{name}: the trace of {type(model).__name__} with {model.state_size} states takes {size} bytes "
            f"({size / 2**30:.3g} GiB); `memory_limit` is {memory_limit} bytes ({memory_limit / 2**30:.3g} GiB). "
            "Raise it, or take BPTT, the same gradient in reverse, or a rule with a smaller trace (EProp, RFLO, UORO)."
        )
    return build()


def advance_trace(
    rule: Any,
    trace: AbstractTrace,
    model: Any,
    state: Float[Array, " n"],
    input: Float[Array, " d"] | None = None,
    *,
    step: Any = 0,
    key: PRNGKey | None = None,
) -> AbstractTrace:
    """The trace after the step of the model that starts from this state.

    **Arguments:**

    - `rule`, `trace`, `model`: as given to and returned by [`start_trace`][dynwarp.learning.start_trace]; the
      parameters of the model may have changed since the last step.
    - `state`, `input`: before the step, `(n,)` and `(d,)`.
    - `step`: its index, for clocked cells and for chunks.
    - `key`: of UORO's random signs.

    **Returns:** a trace.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net, rule = dw.models.Elman(2, 5, key=jax.random.key(0)), dw.learning.EProp()
    >>> trace = dw.learning.start_trace(rule, net)
    >>> trace = dw.learning.advance_trace(rule, trace, net, jnp.ones(5), jnp.ones(2))
    >>> trace.gradient(net, jnp.ones(5)).recurrent_weight.shape
    (5, 5)
    """
    moment = Moment(state, input, jnp.asarray(step, jnp.int32))
    if rule.chunked:
        forget = moment.index % rule.horizon == 0
        trace = jax.tree.map(lambda leaf: jnp.where(forget, jnp.zeros_like(leaf), leaf), trace)
    return trace.advance(rule.propagator, model, moment, key)


def select(tree: Any, kinds: Any, wanted: tuple[str, ...]) -> Any:
    """The leaves of these kinds; None elsewhere."""
    return jax.tree.map(lambda leaf, kind: leaf if kind in wanted else None, tree, kinds)


def _pullback(model, moment, wanted):
    """Errors of the next state to gradients of the parameters of these kinds."""
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    kinds = parameter_kinds(model)
    chosen = select(parameters, kinds, wanted)
    others = select(parameters, kinds, tuple({"local", "shared", "idle"} - set(wanted)))
    _, pull = jax.vjp(lambda p: advance(eqx.combine(p, others, rest), moment.state, moment), chosen)
    return lambda error: pull(error)[0]


def _immediate(model, moment, wanted):
    """dF/dtheta, `(n, *leaf.shape)`."""
    return jax.vmap(_pullback(model, moment, wanted))(jnp.eye(model.state_size, dtype=moment.state.dtype))


def _immediate_local(model, moment):
    """dF/dtheta of parameters that act on one unit, `(k, *leaf.shape)`: the sum over units has one term."""
    units = unit_count(model)
    classes = jnp.repeat(jnp.eye(model.state_size // units, dtype=moment.state.dtype), units, axis=1)
    return jax.vmap(_pullback(model, moment, ("local",)))(classes)


def _immediate_shared(model, moment):
    """dF/dtheta of parameters that act on all units, `(k, U, *leaf.shape)`."""
    if not jax.tree.leaves(select(eqx.filter(model, eqx.is_inexact_array), parameter_kinds(model), ("shared",))):
        return select(eqx.filter(model, eqx.is_inexact_array), parameter_kinds(model), ("shared",))
    units = unit_count(model)
    return jax.tree.map(lambda d: d.reshape(-1, units, *d.shape[1:]), _immediate(model, moment, ("shared",)))


def _assemble(model, *parts):
    """One gradient, with zeros for the parameters that no state depends on."""
    zeros = jax.tree.map(jnp.zeros_like, eqx.filter(model, eqx.is_inexact_array))
    return eqx.combine(*parts, zeros)


def _expand(weights, rows: int, trailing: int):
    """(..., U) weights of units as weights of the rows of a parameter, with `trailing` axes to broadcast over."""
    tiled = jnp.tile(weights, (1,) * (weights.ndim - 1) + (rows // weights.shape[-1],))
    return tiled[(...,) + (None,) * trailing]


def _is_scalar(propagator) -> bool:
    """Whether Z is one number in a network h' = W h + B x."""
    if isinstance(propagator, Interpolated):
        return _is_scalar(propagator.first) and _is_scalar(propagator.second)
    return isinstance(propagator, Leak | Zero | CellLeak)


def _scalar(propagator):
    if isinstance(propagator, Interpolated):
        return (1 - propagator.theta) * _scalar(propagator.first) + propagator.theta * _scalar(propagator.second)
    return propagator.decay if isinstance(propagator, Leak) else 0


def _kind(leaf, dtype):
    return jnp.result_type(dtype, jnp.complex64) if jnp.issubdtype(leaf.dtype, jnp.complexfloating) else dtype


def _norm(tree):
    return jnp.sqrt(sum(jnp.sum(jnp.abs(leaf) ** 2) for leaf in jax.tree.leaves(tree)))


def _scale(above, below):
    """sqrt(above / below), or 1 where one of them vanishes and the scale does not matter."""
    usable = (above > 0) & (below > 0)
    ratio = jnp.where(usable, above, 1) / jnp.where(usable, below, 1)
    return jnp.sqrt(ratio)
