"""Clipping of gradients: at a norm or at a multiple of the usual one, with a rule for those that are no numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dynwarp._checks import check_choice, check_positive
from dynwarp.errors import ArgumentError

_HUGE, _SHRINK = 1e10, 0.02


class ClipState(NamedTuple):
    """What a clipping transformation remembers; `clipped / steps` is the clip rate.

    - `steps`, `clipped`, `rejected`: how many gradients came, were shortened, and were not finite (or above 1e10).
    - `norm`: of the last.
    - `average`: the running mean of the norms after clipping, with its bias corrected; 0 before the first.
    """

    steps: Any
    clipped: Any
    rejected: Any
    norm: Any
    average: Any


def clip_gradient(
    max_norm: float,
    *,
    non_finite: Literal["zero", "shrink", "keep"] = "zero",
    where: Callable[[Any], Any] | None = None,
) -> optax.GradientTransformation:
    """An optax transformation that shortens gradients whose global norm is above `max_norm` to that norm.

    **Arguments:**

    - `max_norm`: positive.
    - `non_finite`: what becomes of a gradient whose norm is not finite or above 1e10. `"zero"`: no step.
      `"shrink"`: the gradient of the leaves that `where` selects is set to 0.02 times the parameters, that of all
      others to zero, which leads back from an explosion. `"keep"`: passed on as it is, for a loop that deals with it.
    - `where`: from the parameters to the leaf or leaves that shrink, such as `lambda p: p.recurrent_weight`.

    **Returns:** an `optax.GradientTransformation` whose state is a [`ClipState`][dynwarp.training.ClipState]. For
    [`fit`][dynwarp.training.fit] chain it before the optimiser and pass `clip=None`.

    **Raises:** `ArgumentError`; `"shrink"` needs `where`, and parameters in `update`.

    **Source:** Pascanu, Mikolov and Bengio, ICML 2013, arXiv:1211.5063, algorithm 1; the rule: the authors' code.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> clip = dw.training.clip_gradient(1.0)
    >>> state = clip.init(jnp.zeros(2))
    >>> update, state = clip.update(jnp.array([3.0, 4.0]), state)
    >>> update.round(2).tolist(), clip.update(jnp.array([jnp.nan, 1.0]), state)[0].tolist()
    ([0.6, 0.8], [0.0, 0.0])
    """
    check_positive(max_norm, "max_norm", caller="clip_gradient")
    return _clip(lambda state: jnp.asarray(max_norm, state.average.dtype), non_finite, where, 0.9, "clip_gradient")


def clip_gradient_adaptively(
    multiple: float = 5.0,
    *,
    decay: float = 0.99,
    non_finite: Literal["zero", "shrink", "keep"] = "zero",
    where: Callable[[Any], Any] | None = None,
) -> optax.GradientTransformation:
    """An optax transformation that shortens gradients whose norm is above `multiple` times the running mean of the
    norms after clipping: an explosion does not raise the threshold more than it may.

    **Arguments:**

    - `multiple`: positive; 0.5 to 10 are usual.
    - `decay`: of the running mean, in [0, 1).
    - `non_finite`, `where`: as for [`clip_gradient`][dynwarp.training.clip_gradient]; such gradients do not enter the
      mean.

    **Returns:** an `optax.GradientTransformation`; the first gradient is never clipped.

    **Raises:** `ArgumentError`.

    **Source:** the heuristic of Pascanu, Mikolov and Bengio, ICML 2013, arXiv:1211.5063, section 3.2.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> clip = dw.training.clip_gradient_adaptively(2.0)
    >>> _, state = clip.update(jnp.ones(1), clip.init(jnp.zeros(1)))
    >>> clip.update(jnp.array([10.0]), state)[0].tolist()
    [2.0]
    """
    caller = "clip_gradient_adaptively"
    check_positive(multiple, "multiple", caller=caller)
    if not 0 <= decay < 1:
        raise ArgumentError(f"{caller}: `decay` must lie in [0, 1); got {decay!r}.")

    def threshold(state):
        return jnp.where(state.average > 0, multiple * state.average, jnp.inf)

    return _clip(threshold, non_finite, where, decay, caller)


def _clip(threshold, non_finite, where, decay, caller) -> optax.GradientTransformation:
    check_choice(non_finite, "non_finite", ("zero", "shrink", "keep"), caller=caller)
    if (where is not None) != (non_finite == "shrink"):
        raise ArgumentError(f'{caller}: `where` selects what shrinks; give it with non_finite="shrink", and only then.')

    def init(params):
        leaves = jax.tree.leaves(params)
        # The widest there is; parameters of several precisions are allowed.
        real = [jnp.finfo(x.dtype).dtype for x in leaves] or [jnp.zeros(()).dtype]
        dtype = max(real, key=lambda d: d.itemsize)
        count, zero = jnp.zeros((), jnp.int32), jnp.zeros((), dtype)
        return ClipState(count, count, count, zero, zero)

    def update(updates, state, params=None):
        norm = _global_norm(updates, state.norm.dtype)
        good = jnp.isfinite(norm) & (norm <= _HUGE)
        limit = threshold(state)
        clipped = good & (norm > limit)
        scale = jnp.where(clipped, limit / jnp.where(norm > 0, norm, 1), 1)
        if non_finite == "shrink":
            if params is None:
                raise ArgumentError(
                    f'{caller}: non_finite="shrink" needs the parameters: update(updates, state, params).'
                )
            instead = _shrunk(params, where)
        else:
            instead = updates if non_finite == "keep" else jax.tree.map(jnp.zeros_like, updates)
        updates = jax.tree.map(lambda u, v: jnp.where(good, u * scale.astype(u.dtype), v), updates, instead)
        # The weight that the mean so far has, before and with this one: what corrects its bias.
        seen = state.steps - state.rejected
        weight, more = (1 - decay ** n.astype(norm.dtype) for n in (seen, seen + 1))
        average = (decay * weight * state.average + (1 - decay) * jnp.minimum(norm, limit)) / more
        state = ClipState(
            state.steps + 1,
            state.clipped + clipped.astype(jnp.int32),
            state.rejected + (~good).astype(jnp.int32),
            norm,
            jnp.where(good, average, state.average),
        )
        return updates, state

    return optax.GradientTransformation(init, update)


def _shrunk(params, where):
    chosen = {id(leaf) for leaf in jax.tree.leaves(where(params))}
    return jax.tree.map(lambda p: _SHRINK * p if id(p) in chosen else jnp.zeros_like(p), params)


def _global_norm(tree, dtype):
    # The largest entry first: squares of large numbers overflow where their norm does not.
    leaves = jax.tree.leaves(tree)
    top = jnp.max(jnp.stack([jnp.max(jnp.abs(x), initial=0).astype(dtype) for x in leaves])) if leaves else 0
    safe = jnp.where((top > 0) & jnp.isfinite(top), top, 1)
    squares = [jnp.sum((jnp.abs(x).astype(dtype) / safe) ** 2) for x in leaves]
    return safe * jnp.sqrt(sum(squares, jnp.zeros((), dtype)))
