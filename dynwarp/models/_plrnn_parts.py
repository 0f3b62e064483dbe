"""What the members of the piecewise-linear family share: initial values, parameter checks, the diagonal convention."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_shape, default_float
from dynwarp._compat import concrete
from dynwarp.errors import ArgumentError, ShapeError


def normalised_positive_definite(key, size, dtype):
    """The matrix K = (R^T R / M + I) / lambda_max, R standard normal: its eigenvalues lie in (0, 1], the largest is 1.

    Source: Talathi & Vartak, arXiv:1511.03771 (2015), eq. 4 and following.
    """
    r = jax.random.normal(key, (size, size), dtype)
    k = r.T @ r / size + jnp.eye(size, dtype=dtype)
    return k / jnp.linalg.eigvalsh(k)[-1]


def uniform(key, shape, fan_in, dtype):
    """U(-1/sqrt(fan_in), 1/sqrt(fan_in))."""
    bound = 1.0 / max(fan_in, 1) ** 0.5
    return jax.random.uniform(key, shape, dtype, -bound, bound)


def without_diagonal(matrix: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """The matrix with a zero diagonal, which then gets no gradient either."""
    return jnp.where(jnp.eye(matrix.shape[0], dtype=bool), 0.0, matrix)


def linear_part(A: Array, state: Array) -> Array:
    """A z, for A stored as its diagonal (M,) or in full (M, M)."""
    return A * state if A.ndim == 1 else A @ state


def full_matrix(A: Array) -> Array:
    """A as an (M, M) matrix."""
    return jnp.diag(A) if A.ndim == 1 else A


def driven(bias: Array, input_weight: Array, input: Array | None) -> Array:
    """h + C s; a missing input is a zero one."""
    return bias if input is None else bias + input_weight @ input


def as_parameters(caller: str, A, h, **others) -> dict[str, Array]:
    """The given parameters as arrays of one floating dtype, `A` and `h` checked against each other.

    Values that are None stay out of the result.
    """
    arrays = {name: jnp.asarray(x) for name, x in {"A": A, "h": h, **others}.items() if x is not None}
    inexact = [x.dtype for x in arrays.values() if jnp.issubdtype(x.dtype, jnp.floating)]
    dtype = functools.reduce(np.promote_types, inexact) if inexact else default_float()
    arrays = {name: x.astype(dtype) for name, x in arrays.items()}
    check_shape(arrays["h"], "h", ("M",), caller=caller)
    size = arrays["h"].shape[0]
    if arrays["A"].shape not in ((size,), (size, size)):
        raise ShapeError(
            f"{caller}: `A` must have shape ({size},) or ({size}, {size}); got {arrays['A'].shape} with `h` of {size}."
        )
    return arrays


def input_columns(caller: str, input_weight: Array | None, like: Array) -> Array:
    """The given input weight, checked, or one of no columns."""
    if input_weight is None:
        return jnp.zeros((like.shape[0], 0), like.dtype)
    check_shape(input_weight, "input_weight", (like.shape[0], "d"), caller=caller)
    return input_weight


def check_zero_diagonal(caller: str, W: Array) -> None:
    """Raises where `off_diagonal=True` is asked for a concrete matrix whose diagonal is not zero."""
    known = concrete(W)
    if known is not None and np.diag(known).any():
        raise ArgumentError(
            f"{caller}: `off_diagonal=True` needs a `W` with a zero diagonal; got {np.diag(known)}. "
            "Leave it False to keep the diagonal as a parameter."
        )


def fill(skeleton, values: dict[str, Array]):
    """A model of this structure with these arrays in its fields: how `from_parameters` avoids drawing any."""
    names = list(values)
    return eqx.tree_at(lambda model: [getattr(model, name) for name in names], skeleton, [values[n] for n in names])
