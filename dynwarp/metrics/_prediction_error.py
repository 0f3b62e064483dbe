"""How well a model predicts an observed series a few steps ahead."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_finite, check_positive, check_positive_integer, check_shape
from dynwarp._typing import Inputs, Scalar
from dynwarp.dynamics._stepping import Model, Step, as_floating, is_field
from dynwarp.errors import ArgumentError, SeriesError, ShapeError


def prediction_error(
    model: Model,
    series: Float[Array, "T N"],
    n: int,
    *,
    inputs: Inputs | None = None,
    dt: float | Scalar | None = None,
    readout: Callable[[Array], Array] | None = None,
    initial_state: Callable[[Array], Array] | None = None,
    warm_up: int = 0,
) -> Scalar:
    """The mean square error of predictions n steps ahead, PE(n), over all times and columns of a series.

    From the state at each time t the model runs freely for n steps, and its observables are compared with the series at
    t + n. What the state at t is depends on the model:

    - state as wide as the series: the observation itself;
    - wider, with observables in the first N coordinates: the model runs along the series from zeros with these
      coordinates overwritten by the data before each step, which is how such models are trained;
    - any other: `initial_state(series[t])`.

    **Arguments:**

    - `model`: an `AbstractMap`, or an `AbstractField` stepped by RK4 (not driven).
    - `series`: shape `(T, N)`, T > n.
    - `n`: steps ahead.
    - `inputs`: of a map, `(T, d)`; `inputs[t]` drives the step that ends at `series[t]`.
    - `dt`: of a field: the time between samples, taken in one step.
    - `readout`: from a state to its observables, `(state_size,) -> (N,)`; default: the first N coordinates.
    - `initial_state`: from an observation to a state, `(N,) -> (state_size,)`.
    - `warm_up`: times left out at the start, while the coordinates that are not observed settle.

    **Returns:** a scalar, in squared units of the series. Differentiable. Cost n T steps, run side by side.

    **Raises:** `ShapeError`, `ArgumentError`, `NonFiniteError`; `SeriesError` for T <= n + warm_up.

    **Source:** Brenner et al., ICML 2022, PE(n).

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> henon = dw.systems.Henon()
    >>> orbit = dw.simulate(henon, jnp.array([0.1, 0.1]), steps=50)
    >>> float(dw.metrics.prediction_error(henon, orbit, 5))
    0.0
    """
    caller = "prediction_error"
    field = is_field(model, caller)
    series = _check_series(series, n, warm_up, caller)
    width, size = series.shape[1], model.state_size
    if width > size and (readout is None or initial_state is None):
        raise ShapeError(
            f"{caller}: `series` has {width} columns, the model {size} coordinates; give `readout` and `initial_state`."
        )
    if readout is not None and initial_state is None:
        raise ArgumentError(
            f"{caller}: with a `readout`, `initial_state` must say what state an observation stands for."
        )
    if field:
        if dt is None:
            raise ArgumentError(f"{caller}: `dt`, the time between samples, is required for a field.")
        check_positive(dt, "dt", caller=caller)
        if inputs is not None:
            raise ArgumentError(f"{caller}: `inputs` drive maps only; {type(model).__name__} is a field.")
    elif dt is not None:
        raise ArgumentError(f"{caller}: `dt` is for fields; {type(model).__name__} is a map.")
    if inputs is not None:
        check_shape(inputs, "inputs", (series.shape[0], model.input_size), caller=caller)
    step = Step(model, None, 0.0, dt) if field else Step(model)
    return _prediction_error(step, series, n, inputs, readout, initial_state, warm_up, size)


def persistence_error(series: Float[Array, "T N"], n: int) -> Scalar:
    """The error of predicting that nothing changes: the mean square of series[t + n] - series[t].

    **Arguments:** as in [`prediction_error`][dynwarp.metrics.prediction_error], whose yardstick this is.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> float(dw.metrics.persistence_error(jnp.arange(10.0)[:, None], 3))
    9.0
    """
    series = _check_series(series, n, 0, "persistence_error")
    return jnp.mean((series[n:] - series[:-n]) ** 2)


def _check_series(series, n, warm_up, caller: str) -> jax.Array:
    check_shape(series, "series", ("T", "N"), caller=caller)
    check_positive_integer(n, "n", caller=caller)
    check_positive_integer(warm_up, "warm_up", minimum=0, caller=caller)
    if series.shape[0] <= n + warm_up:
        raise SeriesError(
            f"{caller}: `series` must be longer than n + warm_up = {n + warm_up} time steps; got {series.shape[0]}."
        )
    check_finite(series, "series", caller=caller)
    return as_floating(series)


@eqx.filter_jit
def _prediction_error(step, series, n, inputs, readout, initial_state, warm_up, size):
    length, width = series.shape
    times = jnp.arange(length, dtype=jnp.int32)
    if initial_state is not None:
        states = jax.vmap(initial_state)(series).astype(series.dtype)
    elif size == width:
        states = series
    else:

        def forced(state, x):
            t, seen, following = x
            state = state.at[:width].set(seen)
            # The step from t to t + 1 is driven by the input at t + 1.
            return step(t + 1, state, following), state

        following = None if inputs is None else jnp.concatenate([inputs[1:], inputs[-1:]])
        states = jax.lax.scan(forced, jnp.zeros(size, series.dtype), (times, series, following))[1]

    starts = times[warm_up : length - n]
    states = states[warm_up : length - n]

    def ahead(states, i):
        index = starts + 1 + i
        if inputs is None:
            return jax.vmap(lambda t, z: step(t, z))(index, states), None
        return jax.vmap(step)(index, states, inputs[index]), None

    final = jax.lax.scan(ahead, states, jnp.arange(n, dtype=jnp.int32))[0]
    predicted = final[:, :width] if readout is None else jax.vmap(readout)(final)
    return jnp.mean((predicted - series[warm_up + n :]) ** 2)
