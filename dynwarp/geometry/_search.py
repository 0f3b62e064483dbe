"""The shortest geodesic between two points: candidates, ranked by coarse lengths and refined where they may be it."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._typing import Scalar
from dynwarp.geometry._collocation import Panels, evaluate_panels, grid_of, solve
from dynwarp.geometry._legendre import collocation
from dynwarp.geometry._polyline import Polyline, equidistribute, resample, resample_monotone, shorten, turning

# The least number of segments of a polyline.
_SEGMENTS = 32
_ROUNDS, _TIES = 12, 1
# Steps that shorten a polyline; fewer at first, which show most of those that go a long way around.
_ITERATIONS, _FIRST = 30, 8
# How many lanes are shortened, and refined, at once.
_SHORTENED, _REFINED = 32, 8
# The part of the knots that stay where nothing turns, in the first round with new ones, and how it falls.
_EVEN, _FALL = 0.5, 0.6
# Errors of the equations, as parts of the way, from which Newton's method may go on with other panels.
_NEAR = 0.01
# Candidates whose coarse length is within this factor of the shortest are refined; the second while it still falls.
_MARGIN, _LOOSE = 1.03, 1.5
# The speed may vary by these powers of eps; of the length only the square of the variation is lost.
CURVE, LENGTH = 0.5, 0.4


class Effort(NamedTuple):
    """What a search may take: nodes in each panel, panels, and turns more around each period, either way."""

    nodes: int
    panels: int
    turns: int

    @property
    def segments(self) -> int:
        """Those of a polyline, a multiple of the panels."""
        return self.panels * -(-_SEGMENTS // self.panels)


class Solution(NamedTuple):
    """Panels, their length, the variation of the speed, infinite where they are no geodesic that is minimal nearby,
    in how many directions not, and whether they are worth to go on from, being near one."""

    path: Panels
    length: Scalar
    spread: Scalar
    index: Scalar
    near: Scalar


class Found(NamedTuple):
    """Of each of W candidates the length, infinite where it is not known or none; the path, index and state of the
    best one, and which it is."""

    path: Panels
    which: Array
    lengths: Float[Array, " W"]
    coarse: Float[Array, " W"]
    spread: Array
    index: Array


def speeds(chart, path: Panels):
    """The speed in the parameter of the whole at all nodes, `(P, n)`."""
    points, velocities = evaluate_panels(path)
    velocities = velocities / jnp.diff(path.knots)[:, None, None]

    def speed(x, v):
        square = v @ chart._metric(x) @ v
        positive = square > 0
        return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), square * 0)

    return jax.vmap(jax.vmap(speed))(points, velocities)


def length_of(chart, path: Panels):
    """The length, and the variation of the speed relative to it."""
    along = speeds(chart, path)
    length = jnp.diff(path.knots) @ (along @ grid_of(path).weights)
    spread = (jnp.max(along) - jnp.min(along)) / jnp.where(length > 0, length, 1)
    return length, spread


def search(chart, starts: Float[Array, "W L+1 m"], effort: Effort) -> Found:
    """One pair; under `vmap` all lanes are worked off together."""
    arrays, static = eqx.partition(chart, eqx.is_array)
    found = _lanes(static, effort)(arrays, starts[None])
    return jax.tree.map(lambda a: a[0], found)


def _lanes(static, effort):
    """The search over lanes, (B, W, L + 1, m), which under `vmap` becomes one over more lanes."""

    @jax.custom_batching.custom_vmap
    def run(arrays, starts):
        return _search(eqx.combine(arrays, static), starts, effort)

    @run.def_vmap
    def rule(size, batched, arrays, starts):
        of_arrays, of_starts = batched
        if any(jax.tree.leaves(of_arrays)):
            arrays = jax.tree.map(lambda b, a: a if b else jnp.broadcast_to(a, (size, *a.shape)), of_arrays, arrays)
            starts = starts if of_starts else jnp.broadcast_to(starts, (size, *starts.shape))
            out = jax.lax.map(lambda each: run(*each), (arrays, starts))
        else:
            out = run(arrays, starts.reshape(-1, *starts.shape[2:]))
            out = jax.tree.map(lambda a: a.reshape(size, -1, *a.shape[1:]), out)
        return out, jax.tree.map(lambda _: True, out)

    return run


def _search(chart, starts, effort) -> Found:
    """Rounds: polylines are shortened, those that may be the shortest refined, and what is not resolved begins again
    with its knots where the coordinates turn."""
    lanes, ways, vertices, m = starts.shape
    total, dtype = lanes * ways, starts.dtype
    knots = jnp.broadcast_to(jnp.linspace(0, 1, vertices, dtype=dtype), (total, vertices))
    lines = Polyline(starts.reshape(total, vertices, m), knots, jnp.full(total, jnp.inf, dtype), jnp.zeros(total, bool))
    solved = Solution(
        Panels(
            knots[:, :: vertices // effort.panels],
            lines.points[:, :: vertices // effort.panels],
            jnp.zeros((total, effort.panels, effort.nodes, m), dtype),
        ),
        jnp.full(total, jnp.inf, dtype),
        jnp.full(total, jnp.inf, dtype),
        jnp.zeros(total, int),
        jnp.zeros(total, bool),
    )
    eps = jnp.finfo(dtype).eps

    def shortened(state):
        line, count = state
        # What the first round left halfway goes on as it is.
        moved = (count > 1) | ((count == 1) & line.converged)
        knots = equidistribute(line.knots, _turning(line, _EVEN * _FALL ** (count - 1)), effort.segments)
        points = resample_monotone(line.points, line.knots, knots)
        remeshed = points, _parameters(chart, points)
        points, knots = jax.tree.map(lambda a, b: jnp.where(moved, a, b), remeshed, (line.points, line.knots))
        iterations = jnp.where(count > 0, _ITERATIONS, _FIRST)
        line = shorten(chart, points, knots, iterations=iterations, accuracy=1e-5)
        return line._replace(knots=jnp.where(line.converged | (count > 0), _by_length(chart, line), line.knots))

    def refined(state):
        line, (best, last) = state
        samples = jax.tree.map(lambda a, b: jnp.where(last.near, a, b), _again(chart, last.path), _follow(line, effort))
        last = _judged(chart, solve(chart, _panels(chart, *samples)), line)
        better = (last.spread < best.spread) | jnp.isinf(best.spread)
        return jax.tree.map(lambda a, b: jnp.where(better, a, b), last, best), last

    def body(carry):
        count, lines, solved, wanted = carry
        best, last = solved
        lines = _some(shortened, (lines, jnp.full(total, count, dtype)), wanted & ~last.near, lines, _SHORTENED)
        lengths = jnp.where(jnp.isfinite(lines.length), lines.length, jnp.inf).reshape(lanes, ways)
        # What is no minimum yet does not stand in the way of what is.
        minima = jnp.where(lines.converged.reshape(lanes, ways), lengths, jnp.inf)
        margin = jnp.where(lines.converged.reshape(lanes, ways), _MARGIN, _LOOSE)
        wanted = lengths <= margin * jnp.min(minima, 1, keepdims=True)
        wanted = wanted.reshape(-1) & (best.spread > eps**CURVE)
        # A line that is halfway may be near another minimum than it goes to.
        settled = lines.converged | (count > 0)
        solved = _some(refined, (lines, solved), wanted & settled, solved, _REFINED)
        good = solved[0].spread <= eps**CURVE
        # A tie that does not come out does not hold up what did.
        found = jnp.any(good.reshape(lanes, ways), 1, keepdims=True) & (count >= _TIES)
        return count + 1, lines, solved, wanted & ~good & ~jnp.repeat(found, ways, 1).reshape(-1)

    def going(carry):
        count, _, _, wanted = carry
        return (count < _ROUNDS) & jnp.any(wanted)

    carry = (0, lines, (solved, solved), jnp.ones(total, bool))
    _, lines, (solved, _), _ = jax.lax.while_loop(going, body, carry)
    coarse = jnp.where(jnp.isfinite(lines.length), lines.length, jnp.inf).reshape(lanes, ways)
    known = jnp.where(solved.spread <= eps**LENGTH, solved.length, jnp.inf).reshape(lanes, ways)
    best = jnp.where(jnp.any(jnp.isfinite(known), 1), jnp.argmin(known, 1), jnp.argmin(coarse, 1))
    at = jnp.arange(lanes) * ways + best
    solved = jax.tree.map(lambda a: a[at], solved)
    return Found(solved.path, best, known, coarse, solved.spread, solved.index)


def _some(fn, arguments, wanted, state, chunk):
    """`fn` of the wanted lanes, some at a time, so that a batch takes the time of those alone; the state of the others
    stays."""
    total = len(wanted)
    chunk = min(chunk, total)
    order = jnp.argsort(~wanted, stable=True)
    order = jnp.concatenate([order, jnp.full(chunk, total)])
    count = jnp.sum(wanted)

    def body(carry):
        first, state = carry
        lane = jax.lax.dynamic_slice(order, (first,), (chunk,))
        lane = jnp.where(first + jnp.arange(chunk) < count, lane, total)
        # Beyond the last one it is done once more.
        clipped = jnp.minimum(jnp.where(lane == total, order[first], lane), total - 1)
        new = jax.vmap(fn)(jax.tree.map(lambda a: a[clipped], arguments))
        return first + chunk, jax.tree.map(lambda a, b: a.at[lane].set(b, mode="drop"), state, new)

    return jax.lax.while_loop(lambda carry: carry[0] < count, body, (0, state))[1]


def _turning(line, even):
    """How many knots a line is to have in each interval: where it turns, and some everywhere."""
    turns = turning(line.points, line.knots)
    return turns + even * jnp.sum(turns * jnp.diff(line.knots)) + 1


def _parameters(chart, points):
    """Knots by the lengths of the segments, so that none of the vertices is drawn along the line."""
    n = len(points) - 1
    lengths = jnp.sqrt(chart._segments(points))
    total = jnp.sum(lengths)
    shares = jnp.where(total > 0, lengths / jnp.where(total > 0, total, 1), 1 / n)
    shares = (shares + 1e-6 / n) / (1 + 1e-6)
    return jnp.concatenate([jnp.zeros(1, shares.dtype), jnp.cumsum(shares)])


def _by_length(chart, line):
    """Knots by the length of the curve that is laid through the vertices, which is not that of its chords."""
    knots = line.knots
    for _ in range(2):
        steps = jnp.diff(knots)
        at = knots[:-1, None] + steps[:, None] * jnp.asarray(collocation(4).nodes, knots.dtype)
        points, velocities = resample(line.points, knots, at.reshape(-1))
        squares = jax.vmap(lambda x, v: v @ chart._metric(x) @ v)(points, velocities).reshape(at.shape)
        lengths = steps * (jnp.sqrt(squares) @ jnp.asarray(collocation(4).weights, knots.dtype))
        total = jnp.concatenate([jnp.zeros(1, knots.dtype), jnp.cumsum(lengths)])
        knots = jnp.where(total[-1] > 0, total / total[-1], knots)
    return knots


def _judged(chart, solved, line):
    length, spread = length_of(chart, solved.path)
    eps = jnp.finfo(length.dtype).eps
    near = jnp.abs(length - line.length) <= 0.05 * line.length + 100 * eps
    good = solved.converged & near & (solved.index == 0)
    near = near & (solved.left <= _NEAR) & (good | ~solved.converged)
    return Solution(solved.path, length, jnp.where(good, spread, jnp.inf), solved.index, near)


def _follow(line, effort):
    """Where panels along a polyline have their ends and their nodes."""
    each = effort.segments // effort.panels
    return _samples(line.points, line.knots, line.knots[::each], effort.nodes)


def _again(chart, path):
    """The same along other panels, more of them where those are not exact, by how their polynomials end."""
    grid, nodes, steps = grid_of(path), path.force.shape[1], jnp.diff(path.knots)
    metrics = jax.vmap(chart._metric)(path.joints[:-1])

    def square(v):
        return jnp.max(jnp.einsum("pka,pab,pkb->pk", v, metrics, v), 1)

    ends = jnp.einsum("ki,pia->pka", grid.transform[-2:], path.force)
    error = jnp.sqrt(square(ends) / square(jnp.diff(path.joints, axis=0)[:, None]))
    density = jnp.clip(error, jnp.finfo(error.dtype).eps, 1) ** (1 / nodes) / steps
    joints = equidistribute(path.knots, density, len(steps))
    inner = evaluate_panels(path)[0].reshape(-1, path.joints.shape[1])
    at = (path.knots[:-1, None] + steps[:, None] * grid.nodes).reshape(-1)
    points = jnp.concatenate([path.joints[:1], inner, path.joints[-1:]])
    return _samples(points, jnp.concatenate([path.knots[:1], at, path.knots[-1:]]), joints, nodes)


def _samples(points, knots, joints, nodes):
    """Of a line cut at the parameters `joints`: these, the points there, and points and velocities at the nodes."""
    steps = jnp.diff(joints)
    at = joints[:-1, None] + steps[:, None] * jnp.asarray(collocation(nodes).nodes, steps.dtype)
    x, v = (a.reshape(len(steps), nodes, -1) for a in resample(points, knots, at.reshape(-1)))
    return joints, resample(points, knots, joints)[0], x, v * steps[:, None, None]


def _panels(chart, joints, ends, points, velocities):
    """Panels with the forces that keep these velocities."""
    force = -jax.vmap(jax.vmap(lambda x, v: chart._bend(x, v, v)))(points, velocities)
    return Panels(joints, ends, jnp.where(jnp.isfinite(force), force, 0))
