"""Every function of this package works on one form of a map; this is how a model becomes it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from dynwarp._checks import check_finite, check_float64, check_shape
from dynwarp._typing import Input
from dynwarp.errors import ModelError
from dynwarp.models import PiecewiseLinearMap

_FIELDS = ("A", "W1", "W2", "h1", "h2")


def as_map(model: Any, input: Input | None = None, *, caller: str = "as_map") -> PiecewiseLinearMap:
    """The canonical form F(z) = A z + W1 relu(W2 z + h2) + h1 of a piecewise-linear model, checked.

    **Arguments:**

    - `model`: a `PiecewiseLinearMap`, or anything with a `.canonical(input)` that returns one.
    - `input`: a constant input, `(d,)`; None means zeros.
    - `caller`: the public function that messages name.

    **Raises:** `ModelError` for what is not piecewise linear, `PrecisionError` for float32, `NonFiniteError` for NaN or
    infinity, `ShapeError` for an input that does not fit.
    """
    canonical = getattr(model, "canonical", None)
    if not callable(canonical):
        raise ModelError(
            f"{caller} needs a piecewise-linear model, one with `.canonical(input)`; got {type(model).__name__}. "
            "`dynwarp.dynamics` analyses smooth models."
        )
    if input is not None:
        input = jnp.asarray(input)
        check_shape(input, "input", (model.input_size,), caller=caller)
        check_finite(input, "input", caller=caller)
        check_float64(input, "input", caller=caller)
    form = canonical(input)
    if not isinstance(form, PiecewiseLinearMap):
        raise ModelError(
            f"{caller}: `canonical` of {type(model).__name__} must return a PiecewiseLinearMap; "
            f"got {type(form).__name__}."
        )
    check_float64(form, type(model).__name__, caller=caller)
    for name in _FIELDS:
        check_finite(getattr(form, name), name, caller=caller)
    if all(jnp.issubdtype(getattr(form, name).dtype, jnp.inexact) for name in _FIELDS):
        return form
    return PiecewiseLinearMap(*(getattr(form, name).astype(jnp.float64) for name in _FIELDS))
