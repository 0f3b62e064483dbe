"""Which steps are taken, which states are kept, and what drives the model in between."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._simulate._fields import plan_steps
from dynwarp._simulate._runge_kutta import RUNGE_KUTTA, Tableau, explicit_tableau, node_time, runge_kutta_step
from dynwarp._simulate._scan import draw
from dynwarp.errors import ArgumentError
from dynwarp.models import AbstractField


class Clock(eqx.Module):
    """What the step of a field knows of time: its index, where the field is evaluated at its ends, and its length.

    The ends that are evaluated are those of the step but where the field jumps: there they are just inside.
    """

    index: jax.Array
    left: jax.Array
    right: jax.Array
    length: jax.Array


class Schedule(eqx.Module):
    """Fixed steps in an outer axis, one a state that is kept, and an inner axis of the steps between two of them.

    `clock` is what a step knows of time: its index for a map, a `Clock` for a field, each leaf `(outer, inner)`.
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
    index = jnp.arange(plan.length.size, dtype=jnp.int32).reshape(plan.length.shape)
    return Schedule(Clock(index, plan.left, plan.right, plan.length), plan.saved, first)


def explicit(solver: Any, caller: str) -> Tableau:
    """The coefficients of the steps `dt`."""
    tableau = explicit_tableau(solver)
    if tableau is None:
        raise ArgumentError(
            f"{caller}: with `dt`, `solver` must be an explicit Runge-Kutta method of diffrax, such as diffrax.Heun(); "
            f"got {type(solver).__name__}. Leave out `dt` for adaptive steps by any solver."
        )
    return tableau


def initial(state0: Any, theta: Any) -> Any:
    """The initial state at one point."""
    return state0(theta) if callable(state0) else state0


class Step(eqx.Module):
    """One step of a model, (state, drive, clock) -> state: a map's own, or a Runge-Kutta step of a field.

    With `noise`, normal numbers are added after it: those that `simulate` adds with the same key. `model_key` is what
    models with dropout draw from.
    """

    model: Any
    tableau: Tableau = eqx.field(default=RUNGE_KUTTA, static=True)
    noise: Any = None
    noise_key: Any = None
    model_key: Any = None

    def with_key(self, key: Any) -> Step:
        """The same with the keys that `simulate` makes of its own."""
        if key is None:
            return self
        noise_key, model_key = (key, None) if isinstance(self.model, AbstractField) else jax.random.split(key)
        if not getattr(self.model, "stochastic", False):
            model_key = None
        return Step(self.model, self.tableau, self.noise, noise_key, model_key)

    def drives(self, manifold: Any, theta: Any, schedule: Schedule) -> Any:
        """What drives each step at one point of the manifold: `(steps, d)` for a map; for a field the inputs at the
        nodes of each step, `(steps, nodes, d)`; None without inputs.

        Inputs at times are made for all steps at once, since a manifold of held rows builds every row to find one.
        """
        if manifold is None:
            return None
        clock = schedule.flat_clock()
        if not isinstance(clock, Clock):
            return manifold(theta)[: len(clock)]
        times = jnp.stack([node_time(clock.left, clock.right, clock.length, c) for c in self.tableau.nodes], axis=1)
        return jax.vmap(jax.vmap(lambda t: manifold(theta, t)))(times)

    def __call__(self, state, drive, clock):
        if isinstance(clock, Clock):
            return self._noisy(self._runge_kutta(state, drive, clock), clock.index, jnp.sqrt(clock.length))
        extra = {} if self.model_key is None else {"key": jax.random.fold_in(self.model_key, clock)}
        return self._noisy(self.model(state, drive, step=clock, **extra).astype(state.dtype), clock, 1.0)

    def _runge_kutta(self, state, drive, clock):
        def slope(node, at):
            t = node_time(clock.left, clock.right, clock.length, self.tableau.nodes[node])
            return self.model(t, at, None if drive is None else drive[node])

        return runge_kutta_step(self.tableau, slope, clock.length, state).astype(state.dtype)

    def _noisy(self, state, index, scale):
        return state if self.noise is None else state + self.noise * scale * draw(self.noise_key, index, state)
