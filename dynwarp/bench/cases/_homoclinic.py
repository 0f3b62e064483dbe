"""Exact manifolds and homoclinic points of the chaotic piecewise-linear map of the plane."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import dynwarp as dw
from dynwarp.bench._case import Kernel, case


def _saddle():
    f = dw.systems.BorderCollisionMap.preset("fig5")
    return f, dw.piecewise.cycle_at(f, jnp.array([[False]]))


def _trace(f, saddle, iterations):
    return dw.piecewise.trace_manifold(f, saddle, kind="unstable", iterations=iterations, max_pieces=2**20)


def _search(f, saddle, iterations):
    return dw.piecewise.homoclinic_points(f, saddle, iterations=iterations, max_pieces=2**20, max_points=2**20)


def _by_hand(f, saddle, iterations):
    """W^u after each number of images, and the distance of W^s_loc's ends from the saddle along its direction."""
    left = np.array([[f.tau_l, f.c], [-f.delta_l, f.d]])
    right = np.array([[f.tau_r, f.c], [-f.delta_r, f.d]])
    shift, p = np.array([f.h1, f.h2]), np.asarray(saddle.points[0])
    values, vectors = np.linalg.eig(left)
    u, s = np.argmax(np.abs(values)), np.argmin(np.abs(values))
    # To the border on one side; a negative multiplier carries that to the other side.
    border_u, border_s = -p[0] / vectors[0, u], -p[0] / vectors[0, s]
    line = p + np.array([[border_u], [0.0], [border_u * values[u]]]) * vectors[:, u]
    lines = [line]
    for _ in range(iterations):
        x = line[:, 0]
        cross = np.flatnonzero((x[:-1] * x[1:] < 0) & (np.minimum(abs(x[:-1]), abs(x[1:])) > 1e-13))
        t = x[cross] / (x[cross] - x[cross + 1])
        new = line[cross] + t[:, None] * (line[cross + 1] - line[cross])
        new[:, 0] = 0.0
        line = np.insert(line, cross + 1, new, axis=0)
        line = np.where(line[:, :1] > 0, line @ right.T, line @ left.T) + shift
        lines.append(line)
    return lines, p, vectors[:, s], sorted((border_s, border_s / values[s]), key=abs)


@case(
    group="piecewise",
    check={"iterations": 10},
    quick=[{"iterations": 25}],
    full=[{"iterations": 20}],
)
def unstable_polyline(*, iterations: int, seed: int) -> Kernel:
    """W^u of the saddle as an exact polyline: 2 10^5 vertices after 25 images."""
    f, saddle = _saddle()

    def measures(vertices):
        return np.array([len(vertices), np.linalg.norm(np.diff(vertices, axis=0), axis=1).sum()])

    lines, *_ = _by_hand(f, saddle, iterations)
    return Kernel(
        function=_trace,
        arguments=(f, saddle, iterations),
        digest=lambda manifold: measures(manifold.vertices[0]),
        reference=lambda: measures(lines[-1]),
        tolerance=1e-9,
        work=len(lines[-1]),
        unit="vertices",
        compiled=False,
    )


@case(
    group="piecewise",
    check={"iterations": 8},
    quick=[{"iterations": 20}],
    full=[{"iterations": 14}],
)
def homoclinic_search(*, iterations: int, seed: int) -> Kernel:
    """All homoclinic points of the saddle, each solved from its itinerary; judged by crossings of a polyline."""
    f, saddle = _saddle()
    lines, p, direction, (near, far) = _by_hand(f, saddle, iterations)
    normal = np.array([-direction[1], direction[0]])

    def count():
        counts = []
        for line in lines:
            value = (line - p) @ normal
            cross = np.flatnonzero(
                (value[:-1] * value[1:] < 0) & (np.minimum(*np.abs([value[:-1], value[1:]])) > 1e-12)
            )
            t = value[cross] / (value[cross] - value[cross + 1])
            along = (line[cross] + t[:, None] * (line[cross + 1] - line[cross]) - p) @ direction
            # W^s_loc ends at the border on one side, and where it is carried to the border on the other.
            counts.append(np.sum((along * np.sign(near) <= abs(near)) & (along * np.sign(far) <= abs(far))))
        return np.array(counts, np.float64)

    return Kernel(
        function=_search,
        arguments=(f, saddle, iterations),
        digest=lambda found: np.cumsum(np.bincount(found.iterations, minlength=iterations + 1)).astype(np.float64),
        reference=count,
        tolerance=0.0,
        work=float(count()[-1]),
        unit="points",
        compiled=False,
    )
