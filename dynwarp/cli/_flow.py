"""A continuous model as the map that `dynwarp analyze` looks at: its states at even times."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp._simulate._runge_kutta import RUNGE_KUTTA, field_step
from dynwarp.models import AbstractField, AbstractMap


class FlowMap(AbstractMap):
    """The state of a field a time `dt` later, the input being held: `substeps` steps of the classical Runge-Kutta
    method, so that inputs jump between steps and never within one."""

    field: AbstractField
    dt: float = eqx.field(static=True)
    substeps: int = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(self, field: AbstractField, dt: float, substeps: int):
        self.field, self.dt, self.substeps = field, dt, substeps
        self.state_size, self.input_size = field.state_size, field.input_size

    def __call__(self, state, input=None, *, step=None):
        h = jnp.asarray(self.dt / self.substeps, state.dtype)
        begin = self.substeps * (0 if step is None else step)

        def advance(x, i):
            t = h * (begin + i).astype(x.dtype)
            return field_step(RUNGE_KUTTA, lambda t, x: self.field(t, x, input), t, t + h, h, x), None

        return jax.lax.scan(advance, state, jnp.arange(self.substeps, dtype=jnp.int32))[0]
