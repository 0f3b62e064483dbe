"""A field driven by its input signal, and one step of the classical Runge-Kutta method."""

from __future__ import annotations

from typing import Any

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


def rk4_step(field, left, right, length, state):
    """The state after one classical Runge-Kutta step.

    `left` and `right` are where the field is evaluated at the ends; they differ from the ends themselves where the
    field jumps there.
    """
    middle = left + length / 2
    k1 = field(left, state)
    k2 = field(middle, state + length / 2 * k1)
    k3 = field(middle, state + length / 2 * k2)
    k4 = field(right, state + length * k3)
    return state + length / 6 * (k1 + 2 * (k2 + k3) + k4)
