"""Readouts by regression: the closed form, with nothing else of the model trained."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_finite, check_positive_integer, check_shape, check_state
from dynwarp._linalg._ridge import check_ridge
from dynwarp._results import RESULTS, raise_failed
from dynwarp._simulate import simulate
from dynwarp._typing import Scalar, State
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.models import AbstractMap, AffineReadout
from dynwarp.training._least_squares import NormalEquations, RidgePath


class ReadoutFit(eqx.Module):
    """What [`fit_readout`][dynwarp.training.fit_readout] returns.

    **Attributes:**

    - `readout`: the fitted [`AffineReadout`][dynwarp.models.AffineReadout].
    - `mean_squared_error`: on the rows of the fit, for each output, `(o,)`.
    - `ridge`: the ridge used, relative to the mean diagonal of the Gram matrix.
    - `path`: what cross-validation chose from, or None.
    - `states`: the states of the run, `(T, n)` or `(B, T, n)`, washout included: their last ones continue it.
    - `result`: `non_finite` where the states were, as those of an unstable reservoir are; `singular` where the
      equations could not be factored.
    """

    readout: AffineReadout
    mean_squared_error: Float[Array, " o"]
    ridge: Scalar
    path: RidgePath | None
    states: Float[Array, "*B T n"]
    result: RESULTS


def readout_features(
    states: Float[Array, "T n"],
    inputs: Float[Array, "T d"] | None = None,
    *,
    use_bias: bool = True,
    use_input: bool = True,
) -> Float[Array, "T m"]:
    """What a readout is fitted to: [state, input, 1], one row a time.

    **Arguments:** `states`, `(T, n)`; `inputs`, `(T, d)` or None; `use_bias`, `use_input`: what to leave out.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.training.readout_features(jnp.zeros((2, 1)), 3 * jnp.ones((2, 1))).tolist()
    [[0.0, 3.0, 1.0], [0.0, 3.0, 1.0]]
    """
    parts = [states]
    if use_input and inputs is not None:
        check_shape(inputs, "inputs", (states.shape[0], "d"), caller="readout_features")
        parts.append(inputs.astype(states.dtype))
    if use_bias:
        parts.append(jnp.ones((len(states), 1), states.dtype))
    return jnp.concatenate(parts, axis=1)


def fit_readout(
    model: AbstractMap,
    inputs: Float[Array, "*B T d"],
    targets: Float[Array, "*B T o"],
    *,
    ridge: float | Scalar | Float[Array, " R"] = 1e-8,
    washout: int = 0,
    state0: State | None = None,
    use_bias: bool = True,
    use_input: bool = True,
    throw: bool = True,
) -> ReadoutFit:
    """Runs a network, such as an echo state network, and fits its readout by ridge regression.

    **Arguments:**

    - `model`: an `AbstractMap`; nothing of it changes.
    - `inputs`, `targets`: `(T, d)` and `(T, o)`, targets[t] belonging to the state after inputs[t]; or batches of
      sequences, `(B, T, d)` and `(B, T, o)`, which are fitted together.
    - `ridge`: r relative to the mean diagonal of the Gram matrix of the features. An array `(R,)` holds candidates, of
      which the one with the best generalized cross-validation score is taken.
    - `washout`: the first steps of every sequence, which are run and not fitted.
    - `state0`: where every sequence starts; zeros by default.
    - `use_bias`, `use_input`: whether the readout has a constant, and sees the input beside the state.
    - `throw`: raise where `result` is not successful.

    **Returns:** a [`ReadoutFit`][dynwarp.training.ReadoutFit]; `model.with_readout(fit.readout)` keeps it in an echo
    state network. Pure but for the checks: works under `jit` and under `vmap` over hyperparameters, and is
    differentiable both ways. Cost: the run, T m^2 and m^3 for m = n + d + 1 features. For recordings that do not fit in
    memory, [`NormalEquations`][dynwarp.training.NormalEquations] takes them in pieces.

    **Raises:** `ShapeError`, `NonFiniteError`, `ArgumentError`, `ModelError`; `PrecisionError` where float64 is off and
    a ridge is below what float32 can resolve; `ConvergenceError` with `throw`.

    **Source:** Lukoševičius, A practical guide to applying echo state networks, 2012.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> net = dw.models.EchoStateNetwork(1, 20, density=0.2, key=jax.random.key(0))
    >>> wave = jnp.sin(0.3 * jnp.arange(200.0))[:, None]
    >>> fit = dw.training.fit_readout(net, wave[:-1], wave[1:], washout=50)
    >>> bool(fit.mean_squared_error[0] < 1e-6)
    True
    """
    caller = "fit_readout"
    if not isinstance(model, AbstractMap):
        raise ModelError(f"{caller}: `model` must be an AbstractMap; got {type(model).__name__}.")
    inputs, targets = jnp.asarray(inputs), jnp.asarray(targets)
    if inputs.ndim not in (2, 3):
        raise ArgumentError(f"{caller}: `inputs` must be (T, d) or (B, T, d); got the shape {inputs.shape}.")
    check_shape(inputs, "inputs", (*["B", "T"][3 - inputs.ndim :], model.input_size), caller=caller)
    check_shape(targets, "targets", (*inputs.shape[:-1], "o"), caller=caller)
    check_finite(inputs, "inputs", caller=caller)
    check_finite(targets, "targets", caller=caller)
    washout = check_positive_integer(washout, "washout", minimum=0, caller=caller)
    if washout >= inputs.shape[-2]:
        raise ArgumentError(f"{caller}: a washout of {washout} leaves nothing of {inputs.shape[-2]} steps.")
    if state0 is None:
        state0 = jnp.zeros(model.state_size, inputs.dtype)
    check_state(model, state0, caller=caller)
    size = model.state_size + use_input * model.input_size + use_bias
    if jnp.ndim(ridge) > 1 or jnp.size(ridge) == 0:
        raise ArgumentError(f"{caller}: `ridge` must be a number or candidates (R,); got the shape {jnp.shape(ridge)}.")
    check_ridge(ridge, size, caller)
    fit = _fit(model, inputs, targets, jnp.asarray(ridge), washout, jnp.asarray(state0), use_bias, use_input)
    if throw:
        raise_failed(
            fit.result, caller, "Check the stability of the model, give a larger `ridge`, or more rows than features."
        )
    return fit


@eqx.filter_jit
def _fit(model, inputs, targets, ridge, washout, state0, use_bias, use_input):
    one = inputs.ndim == 2
    if one:
        inputs, targets = inputs[None], targets[None]
    states = jax.vmap(lambda xs: simulate(model, state0, xs))(inputs)

    def rows(x):
        return x[:, washout:].reshape(-1, x.shape[-1])

    features = readout_features(rows(states), rows(inputs), use_bias=use_bias, use_input=use_input)
    y = rows(targets)
    equations = NormalEquations(features.shape[1], y.shape[1]).update(features, y)
    # Of states that ran away nothing can be learned, and LAPACK should not see them; their sums tell.
    finite = jnp.all(jnp.isfinite(equations.gram)) & jnp.all(jnp.isfinite(equations.cross))
    equations = jax.tree.map(lambda x: jnp.where(finite, x, jnp.ones_like(x)), equations)
    ridge = ridge.astype(equations.gram.dtype)
    path = None
    if ridge.ndim:
        path = equations.path(ridge)
        ridge = ridge[path.best]
    solution = equations.solve(ridge)
    dtype = jnp.result_type(features.dtype)
    weights = solution.weights.astype(dtype)
    n, d = model.state_size, model.input_size if use_input else 0
    readout = AffineReadout(
        weights[:, :n], weights[:, n : n + d] if d else None, weights[:, n + d] if use_bias else None
    )
    error = jnp.mean((y.astype(dtype) - features @ weights.T) ** 2, axis=0)
    result = RESULTS.where(finite, solution.result, RESULTS.non_finite)
    return ReadoutFit(readout, error, ridge, path, states[0] if one else states, result)
