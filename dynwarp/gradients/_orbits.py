"""What a network does when it is left to itself, and how that changes while it learns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynwarp._checks import check_finite, check_positive, check_positive_integer, check_shape
from dynwarp._results import RESULTS
from dynwarp._typing import Input
from dynwarp.dynamics import FixedPoints, PeriodicOrbits, find_fixed_points, find_periodic_orbits
from dynwarp.dynamics._stepping import as_floating, is_field
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.gradients._stretches import batch_error, leading_stretches
from dynwarp.models import AbstractMap
from dynwarp.models._cell import prepared


class OrbitDiagram(eqx.Module):
    """What [`orbit_diagram`][dynwarp.gradients.orbit_diagram] returns. N starts, S steps.

    **Attributes:**

    - `states`: after the transient, `(N, S, n)`.
    - `period`: the least number of steps after which the orbit repeats itself, 1 at a fixed point, `(N,)`; 0 where
      there is none up to the longest that was looked for.
    - `closure`: how far the orbit is from repeating itself with that period (or, where there is none, with the best
      one), relative to 1 + the largest state, `(N,)`.
    - `exponent`: the largest Lyapunov exponent of the tail, nats per step, `(N,)`: positive where it is chaotic.
    - `standard_error`: of the exponent, `(N,)`.
    - `result`: `diverged` where a state is not finite, `(N,)`.
    """

    states: Float[Array, "N S n"]
    period: Int[Array, " N"]
    closure: Float[Array, " N"]
    exponent: Float[Array, " N"]
    standard_error: Float[Array, " N"]
    result: RESULTS


def orbit_diagram(
    model: AbstractMap,
    states0: Float[Array, "N n"],
    *,
    input: Input | None = None,
    transient: int = 1000,
    steps: int = 200,
    max_period: int = 32,
    tolerance: float | None = None,
) -> OrbitDiagram:
    """The tails of the orbits of many starts under a constant input: one column of a bifurcation diagram.

    **Arguments:**

    - `model`: a map; map over models with `equinox.filter_vmap` for a whole diagram.
    - `states0`: `(N, n)`; draw them wide, far attractors show only then.
    - `input`: `(d,)`, constant; zeros if None.
    - `transient`, `steps`: steps left out, and kept.
    - `max_period`: the longest period that is looked for, at most half of `steps`.
    - `tolerance`: relative to 1 + the largest state; None: eps^(1/2).

    **Returns:** an [`OrbitDiagram`][dynwarp.gradients.OrbitDiagram]. Cost: N (transient + 2 steps) steps.

    **Raises:** `ShapeError`, `ArgumentError`, `NonFiniteError`, `ModelError`.

    **Source:** Ribeiro, Tiels, Aguirre and Schoen, AISTATS 2020, arXiv:1906.08482, section 5.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> tail = dw.gradients.orbit_diagram(dw.systems.LogisticMap(3.2), jnp.array([[0.3]]), steps=20, max_period=4)
    >>> tail.period.tolist(), bool(tail.exponent[0] < 0)
    ([2], True)
    """
    caller = "orbit_diagram"
    if is_field(model, caller):
        raise ModelError(f"{caller} needs a map; {type(model).__name__} is a field.")
    check_shape(states0, "states0", ("N", model.state_size), caller=caller)
    check_finite(states0, "states0", caller=caller)
    if input is not None:
        check_shape(input, "input", (model.input_size,), caller=caller)
        check_finite(input, "input", caller=caller)
        input = as_floating(input)
    check_positive_integer(transient, "transient", minimum=0, caller=caller)
    check_positive_integer(steps, "steps", minimum=2, caller=caller)
    check_positive_integer(max_period, "max_period", caller=caller)
    if 2 * max_period > steps:
        raise ArgumentError(f"{caller}: `max_period` must be at most half of the {steps} `steps`; got {max_period}.")
    states0 = as_floating(states0)
    if tolerance is None:
        tolerance = float(jnp.finfo(states0.dtype).eps) ** 0.5
    check_positive(tolerance, "tolerance", caller=caller)
    return _diagram(model, states0, input, transient, steps, max_period, tolerance)


@eqx.filter_jit
def _diagram(model, states0, input, transient, steps, max_period, tolerance):
    model = prepared(model)
    periods = jnp.arange(1, max_period + 1, dtype=jnp.int32)

    def one(state):
        def step(state, index):
            state = model(state, input, step=index).astype(state.dtype)
            return state, state

        indices = jnp.arange(transient + steps, dtype=jnp.int32)
        state, _ = jax.lax.scan(lambda z, i: (step(z, i)[0], None), state, indices[:transient])
        _, states = jax.lax.scan(step, state, indices[transient:])
        scale = 1 + jnp.max(jnp.abs(states))

        def gap(period):
            later = jnp.arange(steps, dtype=jnp.int32) >= period
            moved = jnp.abs(states - jnp.roll(states, period, axis=0))
            return jnp.max(jnp.where(later[:, None], moved, 0)) / scale

        gaps = jax.lax.map(gap, periods)
        closed = gaps <= tolerance
        first = jnp.argmax(closed)
        found = jnp.any(closed)
        constant = None if input is None else jnp.broadcast_to(input, (steps, *input.shape))
        stretches = leading_stretches(_Late(model, transient), state, constant, steps, 1)[:, 0]
        return OrbitDiagram(
            states=states,
            period=jnp.where(found, periods[first], 0),
            closure=jnp.where(found, gaps[first], jnp.min(gaps)),
            exponent=jnp.mean(stretches),
            standard_error=batch_error(stretches),
            result=RESULTS.where(jnp.all(jnp.isfinite(states)), RESULTS.successful, RESULTS.diverged),
        )

    return jax.vmap(one)(states0)


class _Late(eqx.Module):
    """A map whose clock is ahead."""

    map: Any
    start: int = eqx.field(static=True)

    def __call__(self, state, input=None, *, step):
        return self.map(state, input, step=self.start + step)


class AttractorHistory(eqx.Module):
    """What [`attractor_history`][dynwarp.gradients.attractor_history] returns. E models, N starts.

    **Attributes:**

    - `orbits`: an [`OrbitDiagram`][dynwarp.gradients.OrbitDiagram] with a leading axis `(E,)`.
    - `fixed_points`: [`FixedPoints`][dynwarp.dynamics.FixedPoints] with leading axes `(E, 2 N)`. Lane i below N was
      sought from the end of orbit i; lane N + i follows a branch: it was sought from its own point in the model before,
      stable or not, or after a failure from the end of orbit i.
    - `cycles`: of each of the `periods`, [`PeriodicOrbits`][dynwarp.dynamics.PeriodicOrbits] with the same lanes. A
      lane whose `minimal_period` is a divisor found another orbit, and its branch begins anew.
    """

    orbits: OrbitDiagram
    fixed_points: FixedPoints
    cycles: dict[int, PeriodicOrbits]


def attractor_history(
    models: Sequence[AbstractMap],
    states0: Float[Array, "N n"],
    *,
    input: Input | None = None,
    periods: Sequence[int] = (),
    **options: Any,
) -> AttractorHistory:
    """Orbits, their periods and exponents, fixed points and cycles of the same network at many times of its training.

    Host function; one compiled program for all models.

    **Arguments:**

    - `models`: snapshots of one map, alike but for their numbers; one an epoch for instance.
    - `states0`, `input`, `options`: as for [`orbit_diagram`][dynwarp.gradients.orbit_diagram], the same for all models.
    - `periods`: at least 2 each, of the cycles that are sought and followed, stable or not, as fixed points are. For a
      piecewise-linear map `dynwarp.piecewise` finds all of them.

    **Returns:** an [`AttractorHistory`][dynwarp.gradients.AttractorHistory].

    **Raises:** `ArgumentError` for no models and for periods that are none; as
    [`orbit_diagram`][dynwarp.gradients.orbit_diagram] and
    [`find_fixed_points`][dynwarp.dynamics.find_fixed_points].

    **Source:** Ribeiro, Tiels, Aguirre and Schoen, AISTATS 2020, arXiv:1906.08482.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> models = [dw.systems.LogisticMap(r) for r in (2.5, 3.2)]
    >>> history = dw.gradients.attractor_history(models, jnp.array([[0.4]]), steps=20, max_period=4)
    >>> history.orbits.period.tolist(), history.fixed_points.points[:, 1, 0].round(4).tolist()
    ([[1], [2]], [0.6, 0.6875])
    """
    models = list(models)
    if not models:
        raise ArgumentError("attractor_history: `models` must hold at least one model.")
    if isinstance(periods, int):
        raise ArgumentError(f"attractor_history: `periods` must be a list of whole numbers; got {periods!r}.")
    for period in periods:
        check_positive_integer(period, "periods", minimum=2, caller="attractor_history")
    states0 = as_floating(states0)
    orbits, found = [], {period: [] for period in (1, *periods)}
    branches = dict.fromkeys(found, states0)
    for model in models:
        tail = orbit_diagram(model, states0, input=input, **options)
        ends = jnp.where(jnp.isfinite(tail.states[:, -1]), tail.states[:, -1], states0)
        for period, lanes in found.items():
            lanes.append(_find(model, jnp.concatenate([ends, branches[period]]), input, period))
            branches[period] = _continue(lanes[-1], ends)
        orbits.append(tail)
    whole = {period: _stack(lanes) for period, lanes in found.items()}
    return AttractorHistory(_stack(orbits), whole.pop(1), whole)


def _find(model, candidates, input, period: int):
    if period == 1:
        return find_fixed_points(model, candidates, input=input, throw=False)
    return find_periodic_orbits(model, candidates, period=period, input=input, throw=False)


def _continue(lanes, ends):
    """Where the branches are sought in the next model: at a point of their own, or after a failure anew."""
    points, good = lanes.points, lanes.result == RESULTS.successful
    if isinstance(lanes, PeriodicOrbits):
        good, points = good & (lanes.minimal_period == points.shape[1]), points[:, 0]
    return jnp.where(good[len(ends) :, None], points[len(ends) :], ends)


def _stack(trees):
    return jax.tree.map(lambda *x: jnp.stack(x), *trees)
