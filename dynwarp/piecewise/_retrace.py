"""The vertices of a traced manifold as a function of the map: the same steps once more, in JAX."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._typing import Input
from dynwarp.errors import ArgumentError
from dynwarp.piecewise._as_map import as_map
from dynwarp.piecewise._cycle import cycle_at
from dynwarp.piecewise._manifold import Manifold
from dynwarp.piecewise._trace_lines import Level

# Newton steps for the direction of a local manifold: quadratic, from the direction of the map that was traced.
_NEWTON = 5
# left, right, border, region of vertices that are none.
_PADDING = (0, 0, -1, -1)


def retrace(map: Any, manifold: Manifold, *, input: Input | None = None) -> list[Float[Array, "n M"]]:
    """The vertices of a one-dimensional manifold, as a pure and differentiable function of the map.

    The itinerary of every vertex is kept: which border it crossed at which step, by which branch of the inverse. A
    change of the map moves cycle, directions, ends and crossings, each a smooth function of the ones before.

    **Arguments:**

    - `map`: the map that was traced, or one near it, in float64.
    - `manifold`: from [`trace_manifold`][dynwarp.piecewise.trace_manifold], of polylines.
    - `input`: a constant input, `(d,)`.

    **Returns:** the polylines of `manifold.vertices`, `(n_i, M)` each: equal to them to rounding for the map that was
    traced; for another, its manifold as long as no vertex gains or loses a border. The large box that cuts unbounded
    manifolds is held. Works under jit, vmap over maps, grad in both modes. Cost: that of tracing.

    **Raises:** `ArgumentError` for a manifold of polyhedra; `ModelError`, `PrecisionError`, `NonFiniteError`.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> f = dw.systems.BorderCollisionMap.preset("fig5")
    >>> saddle = dw.piecewise.cycle_at(f, jnp.array([[False]]))
    >>> manifold = dw.piecewise.trace_manifold(f, saddle, kind="unstable", iterations=4)
    >>> slope = jax.grad(lambda f: dw.piecewise.retrace(f, manifold)[0][0, 1])(f)
    >>> bool(slope.h1 != 0)
    True
    """
    if manifold.history is None:
        raise ArgumentError(
            f"retrace: `manifold` must be of polylines; this one has polyhedra of dimension {manifold.dimension}: its "
            "pieces carry their itineraries."
        )
    form = as_map(map, input, caller="retrace")
    if not manifold.line_sizes:
        return []
    vertices = _replay(form, manifold)
    cuts = [sum(manifold.line_sizes[: i + 1]) for i in range(len(manifold.line_sizes) - 1)]
    return jnp.split(vertices, cuts)


@eqx.filter_jit
def _replay(form, manifold: Manifold):
    vertices = _local(form, manifold)
    history = manifold.history
    assert history is not None, "checked by the caller"
    if not history.levels:
        return vertices
    # Padded to one length, so that the steps are one loop: compiled once, whatever their number.
    size = max(len(vertices), *(len(level.left) for level in history.levels))
    padded = [
        [jnp.pad(jnp.asarray(x), (0, size - len(x)), constant_values=fill) for x, fill in zip(_fields(level), _PADDING)]
        for level in history.levels
    ]
    levels = Level(*(jnp.stack(x) for x in zip(*padded)))
    vertices = jnp.pad(vertices, ((0, size - len(vertices)), (0, 0)))
    if manifold.kind == "unstable":
        vertices, _ = jax.lax.scan(lambda x, level: (_push(form, level, x), None), vertices, levels)
    else:
        jacobians, offsets = jax.vmap(form.affine)(jnp.asarray(history.patterns))
        frame = (*_borders(form, manifold), jacobians, offsets)
        vertices, _ = jax.lax.scan(lambda x, level: (_pull(frame, level, x), None), vertices, levels)
    return vertices[: sum(manifold.line_sizes)]


def _fields(level: Level):
    return level.left, level.right, level.border, level.region


def _borders(form, manifold):
    """The borders, then the faces of the box: constants of the map."""
    lower, upper = (jnp.asarray(side) for side in manifold.box)
    eye = jnp.eye(form.state_size, dtype=form.A.dtype)
    return jnp.concatenate([form.W2, eye, -eye]), jnp.concatenate([form.h2, -lower, upper])


def _directions(jacobians, start, factors):
    """Vectors v[i] with J[i] v[i] = factor[i] v[i + 1] and start[i] v[i] = 1, by Newton on all of them at once."""
    k, m = start.shape

    def residual(x):
        v, factor = x[: k * m].reshape(k, m), x[k * m :]
        along = jnp.einsum("kij,kj->ki", jacobians, v) - factor[:, None] * jnp.roll(v, -1, axis=0)
        return jnp.concatenate([along.ravel(), jnp.sum(start * v, axis=1) - 1])

    x = jnp.concatenate([start.ravel(), factors])
    for _ in range(_NEWTON):
        x = x - jnp.linalg.solve(jax.jacfwd(residual)(x), residual(x))
    return x[: k * m].reshape(k, m), x[k * m :]


def _local(form, manifold):
    """End, point, end of every local manifold."""
    history = manifold.history
    cycle = cycle_at(form, manifold.cycle.itinerary)
    k = cycle.points.shape[0]
    jacobians, _ = jax.vmap(form.affine)(cycle.itinerary)
    v, factor = _directions(jacobians, jnp.asarray(history.directions), jnp.asarray(history.factors))
    W, h = _borders(form, manifold)
    rows = []
    for i in range(k):
        ends = []
        for border, source, hops in history.ends[2 * i : 2 * i + 2]:
            if border < 0:
                ends.append(cycle.points[i])
                continue
            at = -(W[border] @ cycle.points[source] + h[border]) / (W[border] @ v[source])
            for hop in range(hops):
                at = at / factor[(i + hop) % k] if manifold.kind == "stable" else at * factor[(i - 1 - hop) % k]
            ends.append(cycle.points[i] + at * v[i])
        rows += [ends[0], cycle.points[i], ends[1]]
    return jnp.stack(rows)


def _push(form, level, vertices):
    a, b = vertices[level.left], vertices[level.right]
    crosses = (level.border >= 0) & (level.border < form.h2.shape[0])
    border = jnp.where(crosses, level.border, 0)
    row, offset = form.W2[border], form.h2[border]
    first, last = jnp.sum(row * a, axis=1) + offset, jnp.sum(row * b, axis=1) + offset
    inserted = crosses & (level.left != level.right)
    t = jnp.where(inserted, first, 0.0) / jnp.where(inserted, first - last, 1.0)
    s = jnp.where(inserted, last, 1.0) / jnp.where(inserted, last - first, 1.0)
    x = s[:, None] * a + t[:, None] * b
    values = x @ form.W2.T + form.h2
    # On its border a vertex has no side: the value is exactly zero, and stays so when the map changes.
    on = jnp.arange(form.h2.shape[0]) == jnp.where(crosses, border, -1)[:, None]
    return x @ form.A.T + jax.nn.relu(jnp.where(on, 0.0, values)) @ form.W1.T + form.h1


def _pull(frame, level, vertices):
    W, h, jacobians, offsets = frame
    a, b = vertices[level.left], vertices[level.right]
    border, region = level.border, jnp.clip(level.region, 0)
    crosses = border >= 0
    row, offset = W[jnp.clip(border, 0)], h[jnp.clip(border, 0)]
    m = a.shape[1]
    # J z = a + t (b - a) - offset with z on the border, or with t = 0; padding is the identity.
    padding = (level.region < 0)[:, None, None]
    square = jnp.where(padding, jnp.eye(m, dtype=a.dtype), jacobians[region])
    along = jnp.where(crosses[:, None], a - b, 0.0)
    below = jnp.concatenate([jnp.where(crosses[:, None], row, 0.0), jnp.where(crosses, 0.0, 1.0)[:, None]], axis=1)
    matrix = jnp.concatenate([jnp.concatenate([square, along[:, :, None]], axis=2), below[:, None]], axis=1)
    right = jnp.concatenate([a - offsets[region], jnp.where(crosses, -offset, 0.0)[:, None]], axis=1)
    return jnp.linalg.solve(matrix, right[:, :, None])[:, :m, 0]
