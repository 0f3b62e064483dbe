"""Which steps are taken, which states are kept, and what drives the model in between."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._simulate._fields import plan_steps


class Schedule(eqx.Module):
    """Fixed steps in an outer axis, one a state that is kept, and an inner axis of the steps between two of them.

    `clock` is what a step knows of time: its index for a map, (left, right, length) for a field, each `(outer, inner)`.
    Where the states that are kept are not evenly spaced, the inner axis is 1 and `saved` names the rows of the outer
    one. With `first`, the initial state is kept too.
    """

    clock: Any
    saved: tuple[int, ...] | None = eqx.field(static=True)
    first: bool = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, int]:
        """(outer, inner)."""
        return jax.tree.leaves(self.clock)[0].shape

    @property
    def kept(self) -> int:
        """The number of states that are kept."""
        return (self.shape[0] if self.saved is None else len(self.saved)) + self.first

    def ends(self) -> np.ndarray:
        """The steps after which a state is kept, counted through both axes."""
        outer, inner = self.shape
        rows = np.arange(outer) if self.saved is None else np.asarray(self.saved)
        return (rows + 1) * inner - 1

    def flat_clock(self) -> Any:
        """The clock with both axes in one."""
        return jax.tree.map(lambda x: x.reshape(-1), self.clock)

    def fold(self, drives: Any) -> Any:
        """Drives of all steps in the two axes."""
        return jax.tree.map(lambda x: x.reshape(*self.shape, *x.shape[1:]), drives)


def schedule_map(steps: int, at: tuple[int, ...] | None) -> Schedule:
    """All steps of a map, or as many as the states `at` (increasing indices) need."""
    if at is None:
        return Schedule(jnp.arange(steps, dtype=jnp.int32)[:, None], None, False)
    last, gaps = at[-1] + 1, np.diff(at, prepend=-1)
    index = jnp.arange(last, dtype=jnp.int32)
    if (gaps == gaps[0]).all():
        return Schedule(index.reshape(len(at), -1), None, False)
    return Schedule(index[:, None], at, False)


def schedule_field(ts: np.ndarray, dt: float, breakpoints: np.ndarray, dtype: Any, *, first: bool) -> Schedule:
    """Fixed Runge-Kutta steps of a field through the times `ts`."""
    plan = plan_steps(ts, dt, breakpoints, dtype)
    return Schedule((plan.left, plan.right, plan.length), plan.saved, first)


def drives(manifold: Any, theta: Any, schedule: Schedule) -> Any:
    """What drives each step at one point of the manifold: `(steps, d)` for a map; for a field the inputs at the ends
    and in the middle of each step, `(steps, 3, d)`; None without inputs.

    Inputs at times are made for all steps at once, since a manifold of held rows builds every row to find one.
    """
    if manifold is None:
        return None
    clock = schedule.flat_clock()
    if not isinstance(clock, tuple):
        return manifold(theta)[: len(clock)]
    left, right, length = clock
    nodes = jnp.stack([left, left + length / 2, right], axis=1)
    return jax.vmap(jax.vmap(lambda t: manifold(theta, t)))(nodes)


def initial(state0: Any, theta: Any) -> Any:
    """The initial state at one point."""
    return state0(theta) if callable(state0) else state0


class Step(eqx.Module):
    """One step of a model, (state, drive, clock) -> state: a map's own, or a Runge-Kutta step of a field."""

    model: Any

    def __call__(self, state, drive, clock):
        if not isinstance(clock, tuple):
            return self.model(state, drive, step=clock).astype(state.dtype)
        left, right, length = clock
        begin, middle, end = (None,) * 3 if drive is None else drive
        half = left + length / 2
        k1 = self.model(left, state, begin)
        k2 = self.model(half, state + length / 2 * k1, middle)
        k3 = self.model(half, state + length / 2 * k2, middle)
        k4 = self.model(right, state + length * k3, end)
        return (state + length / 6 * (k1 + 2 * (k2 + k3) + k4)).astype(state.dtype)
