"""Initial-value problems over the unit interval, differentiable forwards and backwards."""

from __future__ import annotations

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_MAX_STEPS = 4096


def integrate(field: Any, state: Any) -> Any:
    """The state at time 1 of y' = field(t, y, None); NaN where the solver gave up.

    Steps are found with error control, and what is returned, and differentiated, is the solution with these steps held.
    Reverse mode goes through parts of the way a second time: with errors close to rounding the controller would choose
    other steps there, and derivatives were off by 1e-4 to 1e-2.
    """
    dtype = jax.tree.leaves(state)[0].dtype
    rtol, atol = (1e-12, 1e-13) if dtype == jnp.float64 else (1e-6, 1e-7)
    smallest = float(jnp.finfo(dtype).eps) * 1e-2
    controlled = _solve(
        lambda t, y, args: jax.lax.stop_gradient(field(t, y, args)),
        jax.lax.stop_gradient(state),
        diffrax.PIDController(rtol=rtol, atol=atol, dtmin=smallest, force_dtmin=False),
        diffrax.SaveAt(subs=diffrax.SubSaveAt(steps=True, fn=lambda t, y, args: None)),
        diffrax.ForwardMode(),
    )
    succeeded = controlled.result == diffrax.RESULTS.successful
    ends: Any = jax.lax.stop_gradient(controlled.ts)
    held = _solve(field, state, _HeldSteps(ends), diffrax.SaveAt(t1=True), diffrax.DirectAdjoint())
    return jax.tree.map(lambda y: jnp.where(succeeded, y[-1], jnp.nan), held.ys)


def _solve(field, state, controller, saveat, adjoint):
    dtype = jax.tree.leaves(state)[0].dtype
    return diffrax.diffeqsolve(
        diffrax.ODETerm(field),  # pyright: ignore[reportArgumentType]
        diffrax.Dopri8(),
        t0=jnp.zeros((), dtype),
        t1=jnp.ones((), dtype),
        dt0=None,
        y0=state,
        saveat=saveat,
        stepsize_controller=controller,
        adjoint=adjoint,
        max_steps=_MAX_STEPS,
        throw=False,
    )


class _HeldSteps(diffrax.AbstractStepSizeController):
    """Steps that end at given times, infinite after the last one."""

    ends: Float[Array, " steps"]

    def wrap(self, direction):
        return self

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        return self.ends[0], jnp.zeros((), jnp.int32)

    def adapt_step_size(self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state):
        taken = controller_state + 1
        return True, t1, self.ends[taken], False, taken, diffrax.RESULTS.successful
