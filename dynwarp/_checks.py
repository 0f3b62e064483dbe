"""Checks at public boundaries: every message names the argument, what was expected and what came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._compat import concrete
from dynwarp.errors import ArgumentError, NonFiniteError, PrecisionError, ShapeError

_SWITCH = ' First set jax.config.update("jax_enable_x64", True).'


def check_shape(x: Any, name: str, shape: tuple[int | str | None, ...], *, caller: str = "") -> None:
    """Raises [`ShapeError`][dynwarp.errors.ShapeError] unless `x` has this shape.

    Integers must match; strings and None match any size, equal strings equal sizes.
    """
    got = jnp.shape(x)
    sizes: dict[str, int] = {}
    fits = len(got) == len(shape)
    for have, want in zip(got, shape):
        if isinstance(want, str):
            want = sizes.setdefault(want, have)
        fits = fits and (want is None or have == want)
    if not fits:
        expected = "(" + ", ".join("?" if s is None else str(s) for s in shape) + ("," if len(shape) == 1 else "") + ")"
        raise ShapeError(f"{caller + ': ' if caller else ''}`{name}` must have shape {expected}; got {tuple(got)}.")


def check_state(model: Any, state: Any, *, name: str = "state0", caller: str = "") -> None:
    """Raises unless `state` is one state of `model`."""
    check_shape(state, name, (model.state_size,), caller=caller)


def check_inputs(model: Any, inputs: Any, *, caller: str = "") -> None:
    """Raises unless `inputs` is one sequence of inputs, (T, d), for `model`."""
    check_shape(inputs, "inputs", ("T", model.input_size), caller=caller)


def check_positive_integer(value: Any, name: str, *, minimum: int = 1, caller: str = "") -> int:
    """Returns `value` as an int; raises unless it is a whole number of at least `minimum`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < minimum:
        prefix = f"{caller}: " if caller else ""
        raise ArgumentError(f"{prefix}`{name}` must be a whole number of at least {minimum}; got {value!r}.")
    return int(value)


def check_choice(value: Any, name: str, choices: Sequence[str], *, caller: str = "") -> None:
    """Raises unless `value` is one of the named choices."""
    if value not in choices:
        prefix = f"{caller}: " if caller else ""
        raise ArgumentError(f"{prefix}`{name}` must be one of {', '.join(map(repr, choices))}; got {value!r}.")


def check_positive(value: Any, name: str, *, caller: str = "") -> None:
    """Raises unless a concrete `value` is positive and finite; traced values pass."""
    known = concrete(value)
    if known is not None and not (_is_real(known.dtype) and np.isfinite(known).all() and (known > 0).all()):
        prefix = f"{caller}: " if caller else ""
        raise ArgumentError(f"{prefix}`{name}` must be positive and finite; got {value!r}.")


def check_finite(x: Any, name: str, *, caller: str = "") -> None:
    """Raises [`NonFiniteError`][dynwarp.errors.NonFiniteError] if a concrete array holds NaN or infinity."""
    known = concrete(x)
    if known is None:
        return
    bad = np.argwhere(~np.isfinite(known))
    if len(bad):
        prefix = f"{caller}: " if caller else ""
        position = tuple(int(i) for i in bad[0])
        raise NonFiniteError(
            f"{prefix}`{name}` must be finite; it has {len(bad)} NaN or infinite entries, the first at {position}."
        )


def check_real(x: Any, name: str, *, caller: str = "") -> None:
    """Raises unless `x` holds real numbers, traced or not: no words, no objects, no complex numbers."""
    try:
        known = x if hasattr(x, "dtype") else concrete(x)
        real = _is_real((jnp.asarray(x) if known is None else known).dtype)
    except ValueError:  # lists of unequal length
        real = False
    if not real:
        prefix = f"{caller}: " if caller else ""
        raise ArgumentError(f"{prefix}`{name}` must hold real numbers; got {x!r}.")


def as_real(x: Any, name: str, *, caller: str = "") -> jax.Array:
    """`x` as an array of floats: whole numbers become JAX's default float, floats keep their precision.

    Raises [`ArgumentError`][dynwarp.errors.ArgumentError] for what holds no real numbers.
    """
    check_real(x, name, caller=caller)
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(default_float())


def _is_real(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.bool_) or (
        jnp.issubdtype(dtype, jnp.number) and not jnp.issubdtype(dtype, jnp.complexfloating)
    )


def check_float64(tree: Any, name: str, *, caller: str) -> None:
    """Raises [`PrecisionError`][dynwarp.errors.PrecisionError] if an inexact leaf is not in double precision."""
    for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array)):
        if leaf.dtype not in (jnp.float64, jnp.complex128):
            switch = "" if jnp.zeros(()).dtype == jnp.float64 else _SWITCH
            raise PrecisionError(f"{caller} needs float64: `{name}` holds {leaf.dtype}, shape {leaf.shape}.{switch}")


def default_float(dtype: Any = None) -> Any:
    """The floating dtype of new arrays: `dtype` if given, else JAX's default (float64 once x64 is on)."""
    return jnp.zeros((), float if dtype is None else dtype).dtype
