"""A field driven by its input signal, and fixed steps of explicit Runge-Kutta methods, written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx

from dynwarp._checks import check_shape


class VectorField(eqx.Module):
    """A field with its input signal, in the form diffrax calls."""

    model: Any
    inputs: Any

    def __call__(self, t, state, args=None):
        if self.inputs is None:
            return self.model(t, state)
        signal = getattr(self.inputs, "evaluate", self.inputs)(t)
        check_shape(signal, "inputs(t)", (self.model.input_size,), caller=type(self.model).__name__)
        return self.model(t, state, signal)


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


def explicit_tableau(solver: Any) -> Tableau | None:
    """The coefficients of a diffrax solver, of the classical method for None; None for what is not explicit."""
    if solver is None:
        return RUNGE_KUTTA
    if isinstance(solver, diffrax.Euler):
        return _EULER
    tableau = getattr(solver, "tableau", None)
    if not isinstance(solver, diffrax.AbstractERK) or not isinstance(tableau, diffrax.ButcherTableau):
        return None
    times = (0.0, *(float(c) for c in tableau.c))
    rows = ((), *(tuple(float(a) for a in row) for row in tableau.a_lower))
    weights = [float(b) for b in tableau.b_sol]
    while weights[-1] == 0.0:  # a slope that only estimates the error
        weights.pop()
    times, rows = times[: len(weights)], rows[: len(weights)]
    nodes = tuple(sorted(set(times)))
    return Tableau(nodes, tuple(nodes.index(c) for c in times), rows, tuple(weights))


def node_time(left, right, length, node: float):
    """The time at a node.

    `left` and `right` are where the field is evaluated at the ends; they differ from the ends themselves where the
    field jumps there.
    """
    return (right if node else left) if node in (0.0, 1.0) else left + node * length


def runge_kutta_step(tableau: Tableau, slope: Callable[[int, Any], Any], length, state):
    """The state after one step; `slope(i, x)` is the field at the i-th node and the state x."""
    slopes = []
    for stage, row in zip(tableau.stages, tableau.rows):
        slopes.append(slope(stage, _advance(state, length, row, slopes)))
    return _advance(state, length, tableau.weights, slopes)


def field_step(tableau: Tableau, field: Callable[[Any, Any], Any], left, right, length, state):
    """The state after one step of a field of (time, state)."""
    times = [node_time(left, right, length, node) for node in tableau.nodes]
    return runge_kutta_step(tableau, lambda i, x: field(times[i], x), length, state)


def _advance(state, length, coefficients, slopes):
    """The state, and its length times the sum of the slopes."""
    terms = [c * k for c, k in zip(coefficients, slopes) if c]
    return state + length * sum(terms[1:], terms[0]) if terms else state
