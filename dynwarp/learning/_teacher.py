"""The teacher of a mode, and where its closed forms hold."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_finite
from dynwarp._compat import concrete
from dynwarp.errors import ArgumentError, ShapeError
from dynwarp.learning._feedback import as_strength
from dynwarp.learning._propagators import Custom


class Teacher(eqx.Module):
    """One mode of a teacher network, or one a lane: output strength `a`, input strength `b`, multiplier `w`.

    **Arguments:**

    - `a`, `b`, `w`: numbers or arrays; `()` or `(1,)` for one mode, `(N,)` for a teacher a lane. They broadcast.

    **Raises:** `ShapeError` where the shapes do not broadcast; `NonFiniteError` for NaN or infinity.

    **Example:**

    >>> import dynwarp as dw
    >>> float(dw.learning.Teacher(1.0, 0.5, 0.6).product)
    0.5
    """

    a: Float[Array, "..."]
    b: Float[Array, "..."]
    w: Float[Array, "..."]

    def __init__(self, a, b, w):
        self.a, self.b, self.w = as_strength(a, "a"), as_strength(b, "b"), as_strength(w, "w")
        for value, name in ((self.a, "a"), (self.b, "b"), (self.w, "w")):
            check_finite(jnp.atleast_1d(value), name, caller="Teacher")
        try:
            np.broadcast_shapes(self.a.shape, self.b.shape, self.w.shape)
        except ValueError:
            raise ShapeError(
                f"Teacher: `a`, `b` and `w` must broadcast; got {self.a.shape}, {self.b.shape} and {self.w.shape}."
            ) from None

    @property
    def product(self) -> Array:
        """p = a b, all that a student can learn of the two."""
        return self.a * self.b

    @property
    def state(self) -> Float[Array, "... 3"]:
        """(a, b, w) along a last axis."""
        return jnp.stack(jnp.broadcast_arrays(self.a, self.b, self.w), axis=-1)


def check_stable_teacher(teacher: Teacher, caller: str) -> None:
    """Raises unless |w| < 1, which an infinite horizon needs."""
    w = concrete(teacher.w)
    if w is not None and not (np.abs(w) < 1).all():
        raise ArgumentError(
            f"{caller}: an infinite horizon needs a teacher with |w| < 1; got w up to {np.abs(w).max():g}. "
            "A finite `horizon` takes any w."
        )


def check_learnable(teacher: Teacher, caller: str) -> None:
    """Raises where a mode has nothing to learn: a b = 0."""
    p = concrete(teacher.product)
    if p is not None and (p == 0).any():
        raise ArgumentError(
            f"{caller}: the teacher's product a * b must not be zero: such a mode has nothing to learn."
        )


def cast(tree, dtype):
    """Every real floating leaf in this dtype: the state decides the precision of a flow."""

    def convert(leaf):
        real = eqx.is_inexact_array(leaf) and not jnp.issubdtype(leaf.dtype, jnp.complexfloating)
        return leaf.astype(dtype) if real else leaf

    return jax.tree.map(convert, tree)


def one_mode(tree, name: str, caller: str):
    """Leaves of shape () or (1,) as scalars; a user's own function is left as it is."""

    def squeeze(leaf):
        if isinstance(leaf, Custom) or not eqx.is_array(leaf):
            return leaf
        if leaf.size != 1:
            raise ShapeError(
                f"{caller} is for one mode: `{name}` must have leaves of shape () or (1,); got {leaf.shape}. "
                "Map over modes with eqx.filter_vmap, or use integrate_modes, which takes a mode a lane."
            )
        return leaf.reshape(())

    return jax.tree.map(squeeze, tree, is_leaf=lambda x: isinstance(x, Custom))
