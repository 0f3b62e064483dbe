"""The states at one time as a surface over the inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dynwarp._checks import check_finite, check_shape, check_state
from dynwarp._simulate import simulate
from dynwarp._typing import State
from dynwarp.dynamics._stepping import as_floating, is_field
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.geometry._adaptive import Signal
from dynwarp.geometry._immersion import Immersion
from dynwarp.geometry._kinks import find_kink
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
    readout: Callable[[Array], Array] | None = None,
    t0: float = 0.0,
    dt: float | None = None,
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
    - `readout`: a function `(n,) -> (o,)`, o >= m; the surface is then that of the outputs.
    - `dt`: of a field, fixed Runge-Kutta steps, whose derivatives are exact. Without it steps are adaptive, and the
      error of second derivatives is not controlled: it is larger than the tolerance of the state.
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
    if smooth is None:
        _refuse_kinks(model, readout, of_field)
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
        fn = _FieldStates(model, manifold, state0, readout, (float(t0), float(t)), dt, breakpoints)
    else:
        if t is not None or dt is not None or breakpoints is not None:
            raise ArgumentError(f"{_CALLER}: a map takes `step`, without `t`, `dt` and `breakpoints`.")
        inputs = eqx.filter_eval_shape(manifold, jax.ShapeDtypeStruct((manifold.dim,), jnp.zeros(()).dtype))
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
    breakpoints: Any

    def __call__(self, theta):
        state = simulate(
            self.model,
            initial(self.state0, theta),
            Signal(self.manifold, theta),
            ts=np.asarray(self.times),
            dt=self.dt,
            breakpoints=self.breakpoints,
            adjoint=diffrax.DirectAdjoint() if self.dt is None else None,
            last_only=True,
        )
        return state if self.readout is None else self.readout(state)


def _refuse_kinks(model, readout, of_field):
    like = jax.ShapeDtypeStruct((model.state_size,), _dtype(model))
    input = jnp.zeros(model.input_size, like.dtype)
    t = jnp.zeros((), like.dtype)

    def step(x):
        return model(t, x[0], x[1]) if of_field else model(x[0], x[1], step=jnp.zeros((), jnp.int32))

    kink, where = find_kink(step, (like, input)), f"the step of {type(model).__name__}"
    if kink is None and readout is not None:
        kink, where = find_kink(readout, like), "the readout"
    if kink is not None:
        raise ModelError(
            f"{_CALLER}: {where} has a kink (the operation {kink!r}), as ReLU has: the surface is then flat in pieces, "
            "and its curvature sits in the creases, where derivatives do not see it. Use a smooth activation such as "
            "jax.nn.softplus or jax.nn.gelu; `smooth=False` allows kinks, for the metric alone, and `smooth=True` "
            "vouches for a smooth function made of pieces."
        )


def _dtype(model):
    leaves = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
    return leaves[0].real.dtype if leaves else jnp.zeros(()).dtype
