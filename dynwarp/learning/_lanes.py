"""Batches of mode flows, integrated by the Rosenbrock kernel, with derivatives in both directions."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._checks import check_shape
from dynwarp._compat import concrete
from dynwarp.errors import ArgumentError, ShapeError
from dynwarp.learning._mode_flow import loss_of, mode_update
from dynwarp.learning._propagators import Custom
from dynwarp.learning._rosenbrock import Problem, Settings, integrate
from dynwarp.learning._rules import AbstractRule
from dynwarp.learning._teacher import Teacher


def split_lanes(rule: AbstractRule, teacher: Teacher, n: int, caller: str):
    """Parameters that differ between lanes, `(n,)`, and those they share, as two pytrees that combine to both.

    Leaves must have shape (), (1,) or (n,); the leaves of a user's own propagator are shared whatever their shape.
    """

    def sort(leaf):
        if isinstance(leaf, Custom):
            return jax.tree.map(lambda _: False, leaf), leaf
        if not eqx.is_array(leaf):
            return False, leaf
        if leaf.shape == (n,):
            return True, leaf
        if leaf.size != 1:
            raise ShapeError(
                f"{caller}: every leaf of `rule` and `teacher` must have shape (), (1,) or ({n},), one a lane; "
                f"got {leaf.shape}."
            )
        return False, leaf.reshape(())

    leaves, structure = jax.tree.flatten((rule, teacher), is_leaf=lambda x: isinstance(x, Custom))
    sorted_leaves = [sort(leaf) for leaf in leaves]
    spec = jax.tree.unflatten(structure, [own for own, _ in sorted_leaves])
    return eqx.partition(jax.tree.unflatten(structure, [leaf for _, leaf in sorted_leaves]), spec)


def check_lanes(rule: AbstractRule, teacher: Teacher, initial, horizon: int | None, caller: str):
    """Shapes, and where everything is known, that the infinite horizon exists for the teacher."""
    check_shape(initial, "initial", ("N", 3), caller=caller)
    if initial.shape[0] == 0:
        raise ShapeError(f"{caller}: `initial` must hold at least one lane; got shape {initial.shape}.")
    if not jnp.issubdtype(initial.dtype, jnp.floating):
        raise ArgumentError(f"{caller}: `initial` must be real; got {initial.dtype}.")
    if horizon is None and rule.horizon is None:
        decay = getattr(rule.propagator, "decay", None)
        product = None if decay is None else concrete(decay * teacher.w)
        if product is not None and (np.abs(product) >= 1).any():
            raise ArgumentError(
                f"{caller}: an infinite horizon needs |decay * w| < 1 for the teacher; "
                f"got {np.abs(product).max():g}. A finite `horizon` takes any decay."
            )


@eqx.filter_custom_jvp
def solve_lanes(lanes, shared, initial, ts, settings: Settings, horizon: int | None):
    """`integrate` for mode flows, from the three components of `initial`.

    Its derivative is the Jacobian of every lane with respect to its own few parameters, found forwards along the same
    steps and multiplied by the tangents: linear in them, so that reverse mode works too.
    """
    return _solve(lanes, shared, initial, ts, settings, horizon)


@eqx.filter_jit
def _solve(lanes, shared, initial, ts, settings, horizon):
    def both(lane):
        return eqx.combine(lane, shared)

    def velocity(lane, state):
        rule, teacher = both(lane)
        a, b, w = mode_update(rule, teacher, state, horizon)
        return -a, -b, -w

    def progress(lane, state):
        return loss_of(both(lane)[1], state, horizon)

    def edge(lane, state):
        rule, _ = both(lane)
        if horizon is not None:
            return jnp.where(jnp.isfinite(state[2]), jnp.full_like(state[2], -jnp.inf), jnp.nan)
        size = jnp.abs(state[2])
        # Without a horizon of its own a rule also ends where its propagator times w reaches the circle.
        return jnp.maximum(size, jnp.abs(rule.propagator.mode(state[2]) * state[2])) if rule.horizon is None else size

    saved, ends, status, steps = integrate(Problem(velocity, progress, edge), lanes, initial, ts, settings)
    return (saved, ends), (status, steps)


@solve_lanes.def_jvp
def _solve_lanes_jvp(primals, tangents):
    _, _, _, ts, settings, horizon = primals
    dynamic, static = eqx.partition(primals[:3], eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(dynamic)
    changes = _leaves_like(tangents[:3], dynamic)
    n = primals[2][0].shape[0]

    # One direction moves a parameter in every lane at once, for lanes do not see each other; a leaf that lanes share
    # needs one for each of its entries.
    directions, weights = [], []
    for i, (leaf, change) in enumerate(zip(leaves, changes)):
        if change is None:
            continue
        if leaf.shape == (n,) and i not in _shared_indices(dynamic):
            directions.append((i, jnp.ones_like(leaf)))
            weights.append(change)
        else:
            units = jnp.eye(leaf.size, dtype=leaf.dtype).reshape(leaf.size, *leaf.shape)
            directions += [(i, unit) for unit in units]
            weights += [jnp.broadcast_to(entry, (n,)) for entry in change.ravel()]
    if not directions:
        return solve_lanes(*primals), ((None, None), (None, None))
    batch = [
        jnp.stack([unit if j == i else jnp.zeros_like(leaf) for j, unit in directions]) for i, leaf in enumerate(leaves)
    ]

    def solve(*leaves):
        lanes, shared, initial = eqx.combine(jax.tree.unflatten(structure, leaves), static)
        return _solve(lanes, shared, initial, ts, settings, horizon)

    def along(*unit):
        return jax.jvp(solve, tuple(leaves), unit, has_aux=True)

    ends, columns, codes = jax.vmap(along, out_axes=(None, 0, None))(*batch)

    def contract(column):
        # What is NaN by convention, beyond a lane's end, has no derivative and must not poison sums over lanes.
        column = jnp.where(jnp.isfinite(column), column, 0)
        return sum(c * w.reshape(n, *(1,) * (c.ndim - 1)) for c, w in zip(column, weights))

    return (ends, codes), (jax.tree.map(contract, columns), (None, None))


def _leaves_like(tree, dynamic):
    """The leaves of `tree` where `dynamic` has leaves; None where a tangent is zero."""
    flat = jax.tree.leaves(tree, is_leaf=lambda x: x is None)
    mask = jax.tree.leaves(dynamic, is_leaf=lambda x: x is None)
    return [change for change, leaf in zip(flat, mask, strict=True) if leaf is not None]


def _shared_indices(dynamic):
    before, shared = (len(jax.tree.leaves(part)) for part in dynamic[:2])
    return range(before, before + shared)
