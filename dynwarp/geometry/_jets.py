"""First and second derivatives in a few coordinates, carried through a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def push_jet(fn: Callable[[Any], Any], jet: Any) -> Any:
    """`(value, first, second)` of a pytree in m coordinates, each leaf of `first` with an axis m before its own and of
    `second` with two, through `fn`: the same of what it returns.

    Second derivatives are D^2 fn [first_i, first_j] + D fn [second_ij]. Of the products with a matrix that this
    takes, those of the value and of `first` are equal for all j, and the compiler takes them once: 1 + m + m^2 remain.
    """
    value, first, second = jet

    def tangents(value, first):
        return jax.vmap(lambda tangent: jax.jvp(fn, (value,), (tangent,)), out_axes=(None, 0))(first)

    def along(tangent, second):
        return jax.jvp(tangents, (value, first), (tangent, second))

    (value, first), (_, second) = jax.vmap(along, in_axes=(0, 1), out_axes=((None, None), (0, 1)))(first, second)
    return value, first, second
