"""Explicit Runge-Kutta methods with fixed steps, as coefficients that a program is written out from."""

from __future__ import annotations

from typing import Any, NamedTuple

import diffrax

from dynwarp.errors import ArgumentError


class Tableau(NamedTuple):
    """The slopes k_i = f(t + h c_i, x + h sum_j a_ij k_j), and the state after a step, x + h sum_i b_i k_i.

    `nodes` are the different c, `stages` says which of them each slope is at, `rows` are those of a, `weights` b.
    """

    nodes: tuple[float, ...]
    stages: tuple[int, ...]
    rows: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]


RUNGE_KUTTA = Tableau(
    (0.0, 0.5, 1.0), (0, 1, 1, 2), ((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), (1 / 6, 1 / 3, 1 / 3, 1 / 6)
)
_EULER = Tableau((0.0,), (0,), ((),), (1.0,))


def tableau_of(solver: Any, caller: str) -> Tableau:
    """The coefficients of a diffrax solver, or of the classical method for None."""
    if solver is None:
        return RUNGE_KUTTA
    if isinstance(solver, diffrax.Euler):
        return _EULER
    tableau = getattr(solver, "tableau", None)
    if not isinstance(solver, diffrax.AbstractERK) or not isinstance(tableau, diffrax.ButcherTableau):
        raise ArgumentError(
            f"{caller}: with `dt`, `solver` must be an explicit Runge-Kutta method of diffrax, such as diffrax.Heun(); "
            f"got {type(solver).__name__}. Leave out `dt` for adaptive steps by any solver."
        )
    times = (0.0, *(float(c) for c in tableau.c))
    rows = ((), *(tuple(float(a) for a in row) for row in tableau.a_lower))
    weights = [float(b) for b in tableau.b_sol]
    while weights[-1] == 0.0:  # a slope that only estimates the error
        weights.pop()
    times, rows = times[: len(weights)], rows[: len(weights)]
    nodes = tuple(sorted(set(times)))
    return Tableau(nodes, tuple(nodes.index(c) for c in times), rows, tuple(weights))
