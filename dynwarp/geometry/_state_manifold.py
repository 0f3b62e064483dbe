"""The states at one time as a surface over the inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_finite, check_shape, check_state
from dynwarp._simulate import simulate
from dynwarp._typing import State
from dynwarp.dynamics._stepping import as_floating, is_field
from dynwarp.errors import ArgumentError
from dynwarp.geometry._adaptive import Signal
from dynwarp.geometry._immersion import Immersion
from dynwarp.geometry._kinks import refuse_kinks
from dynwarp.geometry._observation import as_readout
from dynwarp.geometry._schedule import initial
from dynwarp.models import AbstractField, AbstractMap
from dynwarp.tasks import InputManifold

_CALLER = "state_manifold"


def state_manifold(
    model: AbstractMap | AbstractField,
    manifold: InputManifold,
    *,
    state0: State | Callable[[Array], State],
    step: int | None = None,
    t: float | None = None,
    readout: Callable[[Array], Array] | Float[Array, "o n"] | Literal["rate"] | None = None,
    t0: float = 0.0,
    dt: float | None = None,
    solver: diffrax.AbstractSolver | None = None,
    breakpoints: Any = None,
    smooth: bool | None = None,
    tolerance: float | None = None,
) -> Immersion:
    """The states of a model at one time, or the outputs, as a surface over a manifold of inputs, with its geometry.

    **Arguments:**

    - `model`: a map or a field.
    - `manifold`: an [`InputManifold`][dynwarp.geometry.InputManifold].
    - `state0`: the initial state `(n,)`, or a function `(m,) -> (n,)`.
    - `step`: of a map, the index of the state: that after row `step` of the inputs; negative counts from the end, and
      None is the last.
    - `t`: of a field, the time of the state; `t0` is that of `state0`.
    - `readout`: a function `(n,) -> (o,)`, o >= m, a matrix `(o, n)` or `"rate"`, as in
      [`representation_metric`][dynwarp.geometry.representation_metric]; the surface is then that of the outputs.
    - `dt`: of a field, fixed Runge-Kutta steps, whose derivatives are exact. Without it steps are adaptive, and the
      error of second derivatives is not controlled: it is larger than the tolerance of the state.
    - `solver`: of a field, a diffrax solver in the place of the classical Runge-Kutta method, or of Tsit5 without `dt`.
    - `breakpoints`: of a field, times at which the input jumps; by default those that a task names itself.
    - `smooth`: curvature needs two derivatives. None looks for kinks in the step of the model and in the readout,
      and refuses those that have one: ReLU networks are flat in pieces, and all their curvature sits in the creases,
      where no derivative sees it. True skips the search, for a smooth function made of pieces. False allows kinks: the
      metric is then right almost everywhere, and curvature is that between the creases.
    - `tolerance`: of the [`Immersion`][dynwarp.geometry.Immersion].

    **Returns:** an [`Immersion`][dynwarp.geometry.Immersion] of dimension `manifold.dim` with its periods and bounds.

    **Raises:** `ModelError` for kinks, naming the operation; `ArgumentError`, `ShapeError`, `NonFiniteError`.

    **Cost:** of its metric 1 + m simulations up to the time, of its curvature 1 + m + m^2.

    **Example:**

    >>> net = dw.models.Elman(2, 8, key=jax.random.key(0))
    >>> torus = dw.tasks.Torus(jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    >>> surface = dw.geometry.state_manifold(net, torus, state0=jnp.zeros(8))
    >>> jax.vmap(surface.gaussian_curvature)(torus.sample(jax.random.key(1), 5)).shape
    (5,)
    """
    of_field = is_field(model, _CALLER)
    if not isinstance(manifold, InputManifold):
        raise ArgumentError(f"{_CALLER}: `manifold` must be an InputManifold; got {type(manifold).__name__}.")
    if not callable(state0):
        state0 = as_floating(state0)
        check_state(model, state0, caller=_CALLER)
        check_finite(state0, "state0", caller=_CALLER)
    theta = jax.ShapeDtypeStruct((manifold.dim,), jnp.zeros(()).dtype)
    readout = as_readout(model, readout, eqx.filter_eval_shape(initial, state0, theta).dtype, _CALLER)
    if smooth is None:
        refuse_kinks(model, readout, _CALLER)
    if of_field:
        if t is None or step is not None:
            raise ArgumentError(f"{_CALLER}: a field needs `t`, the time of the states, and takes no `step`.")
        if not float(t) > float(t0):
            raise ArgumentError(f"{_CALLER}: `t` must be after `t0`, {t0}; got {t}.")
        if breakpoints is None and hasattr(manifold, "breakpoints"):
            with jax.ensure_compile_time_eval():
                breakpoints = manifold.breakpoints()  # pyright: ignore[reportAttributeAccessIssue]
        if breakpoints is not None and len(breakpoints) == 0:
            breakpoints = None
        fn = _FieldStates(model, manifold, state0, readout, (float(t0), float(t)), dt, solver, breakpoints)
    else:
        if any(option is not None for option in (t, dt, solver, breakpoints)):
            raise ArgumentError(f"{_CALLER}: a map takes `step`, without `t`, `dt`, `solver` and `breakpoints`.")
        inputs = eqx.filter_eval_shape(manifold, theta)
        check_shape(inputs, "manifold(theta)", ("T", model.input_size), caller=_CALLER)
        steps = inputs.shape[0]
        step = steps - 1 if step is None else step
        if not isinstance(step, int | np.integer) or not -steps <= step < steps:
            raise ArgumentError(f"{_CALLER}: `step` must be the index of one of the {steps} states; got {step!r}.")
        fn = _MapStates(model, manifold, state0, readout, int(step) % steps + 1)
    return Immersion(fn, dim=manifold.dim, periods=manifold.periods, bounds=manifold.bounds, tolerance=tolerance)


class _MapStates(eqx.Module):
    """theta -> what is seen of the state of a map after a number of steps."""

    model: Any
    manifold: Any
    state0: Any
    readout: Any
    steps: int = eqx.field(static=True)

    def __call__(self, theta):
        state = simulate(self.model, initial(self.state0, theta), self.manifold(theta)[: self.steps], last_only=True)
        return state if self.readout is None else self.readout(state)


class _FieldStates(eqx.Module):
    """theta -> what is seen of the state of a field at the second of two times."""

    model: Any
    manifold: Any
    state0: Any
    readout: Any
    times: tuple[float, float] = eqx.field(static=True)
    dt: Any = eqx.field(static=True)
    solver: Any
    breakpoints: Any

    def __call__(self, theta):
        state = simulate(
            self.model,
            initial(self.state0, theta),
            Signal(self.manifold, theta),
            ts=np.asarray(self.times),
            dt=self.dt,
            solver=self.solver,
            breakpoints=self.breakpoints,
            adjoint=diffrax.DirectAdjoint() if self.dt is None else None,
            last_only=True,
        )
        return state if self.readout is None else self.readout(state)
