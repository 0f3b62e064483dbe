"""The virtual-region-jump search for cycles, thousands of itineraries at once.

Arrays carry the itineraries in their last axis: a step of all of them is one product of small matrices with a wide one.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dynwarp.models import PiecewiseLinearMap
from dynwarp.piecewise._lanes import solve_lanes

# Condensed solutions lose digits: signs of preactivations smaller than this are left to the exact solve that follows.
_LOOSE = 1e-7


class Evaluation(eqx.Module):
    """The cycles that N itineraries would have: `points` z_0 `(M, N)`, whether each is one (to be confirmed by an exact
    solve), whether its linear system was singular, and the itineraries of the orbits from z_0, `(K, H, N)`.
    """

    points: Float[Array, "M N"]
    is_cycle: Bool[Array, " N"]
    is_singular: Bool[Array, " N"]
    visited: Bool[Array, "K H N"]


@eqx.filter_jit
def evaluate(form: PiecewiseLinearMap, itineraries: Bool[Array, "K H N"], order: Int[Array, ""]) -> Evaluation:
    """Solves for the cycles of N itineraries of one period `order` <= K: the entries from `order` on are not read."""
    return _evaluate(form, itineraries, order)


@eqx.filter_jit
def jump(
    form: PiecewiseLinearMap,
    itineraries: Bool[Array, "K H N"],
    age: Int[Array, " N"],
    fresh: Bool[Array, "T K H N"],
    order: Int[Array, ""],
    patience: Int[Array, ""],
):
    """T jumps of N searches: the itinerary of the orbit from a virtual cycle's point is the next itinerary.

    A search that found a cycle, went to infinity or made `patience` jumps goes on from `fresh`. Returns the state of
    the searches, `(itineraries, age)`, and of every jump the itineraries, `(T, K, H, N)`, and which are cycles.

    **Source:** Eisenmann et al., NeurIPS (2023), arXiv:2310.17561, the mathematics of algorithm 1.
    """

    def step(carry, new):
        itineraries, age = carry
        found = _evaluate(form, itineraries, order)
        over = found.is_cycle | ~jnp.all(jnp.isfinite(found.points), axis=0) | (age >= patience)
        following = jnp.where(over, new, found.visited)
        return (following, jnp.where(over, 0, age + 1)), (itineraries, found.is_cycle)

    return jax.lax.scan(step, (itineraries, age), fresh)


def _evaluate(form: PiecewiseLinearMap, itineraries, order) -> Evaluation:
    m, dtype = form.state_size, form.A.dtype
    lanes = itineraries.shape[-1]
    mixing = jnp.concatenate([form.A, form.W1], axis=1)
    # Column m of the chain is the constant term.
    constant = (jnp.arange(m + 1) == m).astype(dtype)[:, None]

    def compose(j, chain):
        gate = jax.lax.dynamic_index_in_dim(itineraries, j, keepdims=False)[:, None, :]
        inner = _multiply(form.W2, chain) + form.h2[:, None, None] * constant
        inner = jnp.where(gate, inner, 0)
        return _multiply(mixing, jnp.concatenate([chain, inner])) + form.h1[:, None, None] * constant

    identity = jnp.broadcast_to(jnp.eye(m, m + 1, dtype=dtype)[..., None], (m, m + 1, lanes))
    chain = jax.lax.fori_loop(0, order, compose, identity)
    system = jnp.concatenate([identity[:, :m] - chain[:, :m], chain[:, m:]], axis=1)
    start, singular = solve_lanes(system)

    def follow(j, carry):
        z, visited, agrees = carry
        values = form.W2 @ z + form.h2[:, None]
        size = jnp.sum(jnp.abs(form.W2), axis=1)[:, None] * jnp.max(jnp.abs(z), axis=0) + jnp.abs(form.h2)[:, None]
        pattern = values > 0
        wanted = jax.lax.dynamic_index_in_dim(itineraries, j, keepdims=False)
        agrees &= jnp.all((pattern == wanted) | (jnp.abs(values) <= _LOOSE * size), axis=0)
        visited = jax.lax.dynamic_update_index_in_dim(visited, pattern, j, 0)
        following = form.A @ z + form.W1 @ jax.nn.relu(values) + form.h1[:, None]
        return following, visited, agrees

    first = (start, itineraries, jnp.all(jnp.isfinite(start), axis=0))
    end, visited, agrees = jax.lax.fori_loop(0, order, follow, first)
    # A singular system has a solution only where it is consistent.
    closed = jnp.max(jnp.abs(end - start), axis=0) <= 1e-5 * (1 + jnp.max(jnp.abs(start), axis=0))
    return Evaluation(start, agrees & (closed | ~singular), singular, visited)


def _multiply(matrix, stack):
    """matrix `(a, b)` times every lane of stack `(b, c, N)`, as one product."""
    b, c, lanes = stack.shape
    return (matrix @ stack.reshape(b, c * lanes)).reshape(matrix.shape[0], c, lanes)
