"""Newton's method for geodesics between two points, as polynomials on panels."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._typing import Scalar
from dynwarp.geometry._legendre import collocation

_ITERATIONS = 8
# A step that does not help is tried again as long as this.
_SHORTER = 0.3
# The power of eps below which an error is squared by one more step.
_NEAR = 0.5
# The power of eps below which a coordinate does not move, relative to its size.
_STILL = 0.25
# Eigenvalues above this, of a Hessian with a unit diagonal, are not negative.
_ZERO = 1e-9


class Panels(NamedTuple):
    """A path in P panels between `knots`, `(P + 1,)`: the points at the knots, and at the n Gauss nodes of each panel
    the second derivative of the coordinates in the parameter of the panel, which runs from 0 to 1."""

    knots: Float[Array, " P+1"]
    joints: Float[Array, "P+1 m"]
    force: Float[Array, "P n m"]


class Solved(NamedTuple):
    """The path, whether it solves the equations, what was left of them, as a part of the way, and the number of
    directions in which it is no minimum."""

    path: Panels
    converged: Scalar
    left: Scalar
    index: Scalar


class Linear(NamedTuple):
    """The equations of each panel linearised: how they follow the force at its nodes, and the joints at its ends."""

    matrix: Float[Array, "P nm nm"]
    of_joints: Float[Array, "P n m 2m"]


def grid_of(path: Panels):
    """The matrices of the nodes, in the precision of the path."""
    return jax.tree.map(lambda a: jnp.asarray(a, path.joints.dtype), collocation(path.force.shape[1]))


def evaluate_panels(path: Panels):
    """Points and velocities in the parameter of the panel at the nodes, `(P, n, m)` each."""
    grid = grid_of(path)
    chords = jnp.diff(path.joints, axis=0)[:, None]
    points = path.joints[:-1, None] + grid.nodes[:, None] * chords
    points = points + jnp.einsum("ij,pja->pia", grid.position, path.force, precision="highest")
    return points, chords + jnp.einsum("ij,pja->pia", grid.velocity, path.force, precision="highest")


def end_velocities(path: Panels):
    """The velocities in the parameter of the whole at the first and the last point of each panel, `(P, m)` each."""
    grid, steps = grid_of(path), jnp.diff(path.knots)[:, None]
    chords = jnp.diff(path.joints, axis=0)
    start = chords + jnp.einsum("i,pia->pa", grid.start, path.force, precision="highest")
    return start / steps, (start + jnp.einsum("i,pia->pa", grid.weights, path.force, precision="highest")) / steps


def equations(chart, path: Panels):
    """What is to vanish: x'' + Gamma(x', x') at the nodes, and the jumps of the velocity at the inner knots."""
    bend = jax.vmap(jax.vmap(lambda p, v: chart._bend(p, v, v)))(*evaluate_panels(path))
    start, end = end_velocities(path)
    return path.force + bend, end[:-1] - start[1:]


def linearise(chart, path: Panels) -> tuple[tuple[Array, Array], Linear]:
    """The equations, and how they follow the path."""
    grid = grid_of(path)
    count, n, m = path.force.shape
    of_point, of_velocity, bend = jax.vmap(jax.vmap(chart._bend_derivatives))(*evaluate_panels(path))
    blocks = jnp.einsum("qiab,ij->qiajb", of_point, grid.position)
    blocks = blocks + jnp.einsum("qiab,ij->qiajb", of_velocity, grid.velocity)
    matrix = blocks.reshape(count, n * m, n * m) + jnp.eye(n * m, dtype=bend.dtype)
    t = grid.nodes[:, None, None]
    of_joints = jnp.concatenate([(1 - t) * of_point - of_velocity, t * of_point + of_velocity], axis=-1)
    start, end = end_velocities(path)
    return (path.force + bend, end[:-1] - start[1:]), Linear(matrix, of_joints)


def newton_step(path: Panels, value, linear: Linear):
    """The changes of the force and of the inner joints, and, with the force eliminated, how the jumps of the velocity
    follow the joints, in rows of three blocks: of the joint before, of itself, of the next one.

    All is solved at once: solves of a large batch that do not wait for each other can hold both threads of a machine of
    two cores for good.
    """
    residual, jump = value
    grid, steps = grid_of(path), jnp.diff(path.knots)[:, None, None]
    count, n, m = residual.shape
    right = jnp.concatenate([linear.of_joints, residual[..., None]], axis=-1).reshape(count, n * m, -1)
    solved = jnp.linalg.solve(linear.matrix, right).reshape(count, n, m, -1)

    # The velocities at the ends of each panel as functions of its joints, and their own change, in the last column.
    chord = jnp.eye(m, 2 * m + 1, m, dtype=residual.dtype) - jnp.eye(m, 2 * m + 1, dtype=residual.dtype)
    start = (chord - jnp.einsum("i,piab->pab", grid.start, solved)) / steps
    end = (chord - jnp.einsum("i,piab->pab", grid.start + grid.weights, solved)) / steps
    before, here, after = end[:-1, :, :m], end[:-1, :, m:-1] - start[1:, :, :m], -start[1:, :, m:-1]
    moved, _ = _eliminate(before, here, after, start[1:, :, -1] - end[:-1, :, -1] - jump)
    ends = jnp.pad(moved, ((1, 1), (0, 0)))
    ends = jnp.concatenate([ends[:-1], ends[1:], jnp.ones((count, 1), ends.dtype)], axis=1)
    return (-jnp.einsum("piab,pb->pia", solved, ends), moved), (before, here, after)


def advance(path: Panels, change, fraction: Any = 1.0) -> Panels:
    """The path after a step."""
    force, joints = change
    return path._replace(force=path.force + fraction * force, joints=path.joints.at[1:-1].add(fraction * joints))


def solve(chart, path: Panels) -> Solved:
    """The geodesic near a path that is close to one already, by Newton's method."""
    eps = jnp.finfo(path.force.dtype).eps

    def body(carry):
        path, change, least, farthest, fraction, index, count = carry
        tried = advance(path, change, fraction)
        value, linear = linearise(chart, tried)
        new, jumps = newton_step(tried, value, linear)
        size, far = _size(tried, value), _farthest(chart, tried, new)
        # Along a direction that hardly matters, as around a pole, the errors rise before they fall.
        better = (size < least) | (far < farthest)
        path, change = jax.tree.map(lambda a, b: jnp.where(better, a, b), (tried, new), (path, change))
        fraction = jnp.where(better, 1, fraction * _SHORTER)
        index = jnp.where(better, _index(chart, tried, jumps), index)
        least, farthest = jnp.where(better, size, least), jnp.where(better, far, farthest)
        return path, change, least, farthest, fraction, index, count + 1

    def going(carry):
        _, _, least, _, fraction, _, count = carry
        return (count < _ITERATIONS) & (fraction > _SHORTER**2.5) & ~(least <= eps**_NEAR)

    one = jnp.ones((), path.force.dtype)
    still = (0 * path.force, 0 * path.joints[1:-1])
    carry = (path, still, jnp.inf * one, jnp.inf * one, one, jnp.zeros((), int), 0)
    path, change, least, _, _, index, _ = jax.lax.while_loop(going, body, carry)
    converged = least <= eps**_NEAR
    # The last step is not looked at: its error is the square of what was left.
    path = jax.tree.map(lambda a, b: jnp.where(converged, a, b), advance(path, change), path)
    return Solved(path, converged, least, index)


def _size(path, value):
    """The largest error in units of the way that is gone: of second derivatives, and of velocities over a panel."""
    residual, jump = value
    scale = jnp.max(jnp.abs(path.joints - path.joints[0]), 0)
    # A coordinate that hardly moves is known to rounding of its own size alone.
    size = jnp.max(jnp.abs(path.joints), 0)
    scale = jnp.where(scale > jnp.finfo(scale.dtype).eps ** _STILL * size, scale, size)
    scale = jnp.where(scale > 0, scale, 1) + jnp.max(jnp.abs(path.force), (0, 1))
    steps = jnp.diff(path.knots)
    jumps = jnp.abs(jump) * jnp.minimum(steps[:-1], steps[1:])[:, None] / scale
    return jnp.maximum(jnp.max(jnp.abs(residual) / scale), jnp.max(jumps))


def _farthest(chart, path, change):
    """The square of the longest way that a joint is to go."""
    metrics = jax.vmap(chart._metric)(path.joints[1:-1])
    return jnp.max(jnp.einsum("ia,iab,ib->i", change[1], metrics, change[1]))


def _index(chart, path, jumps):
    """The number of negative eigenvalues of the Hessian of the energy in the inner joints: 0 at a minimum, and 1 for
    each conjugate point that has been passed, of a path whose panels are all minimal."""
    metrics = jax.vmap(chart._metric)(path.joints[1:-1])
    before, own, after = (jnp.einsum("iab,ibc->iac", metrics, block) for block in jumps)
    # Judged by the rounding of the direction that it is in.
    slack = _ZERO * jnp.abs(jnp.diagonal(own, axis1=1, axis2=2))
    own = own + slack[:, :, None] * jnp.eye(own.shape[1], dtype=own.dtype)
    _, pivots = _eliminate(before, own, after, jnp.zeros(own.shape[:2], own.dtype))
    return jnp.sum(pivots < 0)


def _eliminate(before, own, after, rhs):
    """The solution of a block tridiagonal system, (K, m), and its pivots, as many of which are negative as eigenvalues
    of the matrix where it is symmetric. Rows are not exchanged: at a minimum there is no need to."""

    def forward(carry, row):
        beyond, value = carry
        before, own, after, rhs = row
        table = jnp.concatenate([own - before @ beyond, after, (rhs - before @ value)[:, None]], 1)
        pivots = []
        for i in range(m):
            pivots.append(table[i, i])
            row = table[i] / table[i, i]
            table = (table - table[:, i : i + 1] * row).at[i].set(row)
        solved = table[:, m:]
        return (solved[:, :m], solved[:, m]), (solved, jnp.stack(pivots))

    def back(below, solved):
        value = solved[:, m] - solved[:, :m] @ below
        return value, value

    m = rhs.shape[1]
    zero = jnp.zeros((m, m), own.dtype)
    _, (solved, pivots) = jax.lax.scan(forward, (zero, zero[0]), (before, own, after, rhs))
    return jax.lax.scan(back, zero[0], solved, reverse=True)[1], pivots
