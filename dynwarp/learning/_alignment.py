"""Aligned networks, whose learning splits into modes, and how far from aligned a network is."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer, check_shape
from dynwarp._typing import PRNGKey
from dynwarp.errors import ArgumentError
from dynwarp.models import LinearRNN


class AlignedNetworks(eqx.Module):
    """What [`aligned_networks`][dynwarp.learning.aligned_networks] returns.

    **Attributes:**

    - `student`, `teacher`: networks A = U a P^T, W = P w P^T, B = P b V^T; the teacher has its own P.
    - `feedback`: R = U r P^T, shape `(outputs, n)`.
    - `U`, `V`, `P`: the output, input and hidden directions of the modes, orthonormal columns.
    """

    student: LinearRNN
    teacher: LinearRNN
    feedback: Float[Array, "o n"]
    U: Float[Array, "o k"]
    V: Float[Array, "i k"]
    P: Float[Array, "n k"]


class Alignment(eqx.Module):
    """What [`measure_alignment`][dynwarp.learning.measure_alignment] returns: shares of energy, 1 if aligned."""

    recurrent: Float[Array, ""]
    input: Float[Array, ""]
    output: Float[Array, ""]
    feedback: Float[Array, ""] | None


def aligned_networks(
    student: Float[Array, "k 3"],
    teacher: Float[Array, "k 3"],
    feedback: Float[Array, " k"],
    *,
    inputs: int,
    units: int,
    outputs: int,
    teacher_units: int | None = None,
    key: PRNGKey,
) -> AlignedNetworks:
    """A student, a teacher and a feedback whose learning is that of k separate modes, in random directions.

    BPTT, truncated BPTT, RFLO and feedback alignment keep the alignment for any directions; e-prop only for those
    along units.

    **Arguments:**

    - `student`, `teacher`: (a, b, w) of each mode, shape `(k, 3)`; `feedback`: `(k,)`.
    - `inputs`, `units`, `outputs`, `teacher_units`: sizes, each at least k.
    - `key`: draws the directions.

    **Returns:** [`AlignedNetworks`][dynwarp.learning.AlignedNetworks]; differentiable in the modes.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> modes = jnp.array([[0.7, 1.3, 0.55]])
    >>> sizes = {"inputs": 2, "units": 5, "outputs": 3}
    >>> made = dw.learning.aligned_networks(modes, modes, jnp.ones(1), **sizes, key=jax.random.key(0))
    >>> made.student.W.shape, made.feedback.shape
    ((5, 5), (3, 5))
    """
    caller = "aligned_networks"
    check_shape(student, "student", ("k", 3), caller=caller)
    k = student.shape[0]
    check_shape(teacher, "teacher", (k, 3), caller=caller)
    check_shape(feedback, "feedback", (k,), caller=caller)
    teacher_units = units if teacher_units is None else teacher_units
    sizes = {"inputs": inputs, "units": units, "outputs": outputs, "teacher_units": teacher_units}
    for name, size in sizes.items():
        if k == 0 or check_positive_integer(size, name, caller=caller) < k:
            raise ArgumentError(f"{caller}: there must be modes, and `{name}` at least as many; got {k} modes, {size}.")
    keys = jax.random.split(key, 4)
    shapes = ((outputs, k), (inputs, k), (units, k), (teacher_units, k))
    U, V, P, Q = (jnp.linalg.qr(jax.random.normal(key, shape, student.dtype))[0] for key, shape in zip(keys, shapes))

    def build(modes, hidden):
        a, b, w = modes.T
        return LinearRNN(hidden @ (w[:, None] * hidden.T), hidden @ (b[:, None] * V.T), U @ (a[:, None] * hidden.T))

    return AlignedNetworks(build(student, P), build(teacher, Q), U @ (feedback[:, None] * P.T), U, V, P)


def measure_alignment(student: Any, U: Float[Array, "o k"], V: Float[Array, "i k"], feedback=None) -> Alignment:
    """How much of a network is diagonal in the modes of its teacher.

    The hidden directions P are the orthonormal columns closest to B V, those the inputs of the modes drive. Then
    P^T W P, P^T B V, U^T A P and U^T R P are diagonal for an aligned network; each number is the share of the squared
    entries of the whole matrix that lie on that diagonal.

    **Arguments:**

    - `student`: a [`LinearRNN`][dynwarp.models.LinearRNN], or any object with W, B and A.
    - `U`, `V`: the teacher's output and input directions, orthonormal columns: singular vectors of A* and of B*.
    - `feedback`: R `(outputs, n)`, if any.

    **Returns:** [`Alignment`][dynwarp.learning.Alignment], numbers in [0, 1], NaN for a matrix of zeros. Map it over
    a training run.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> modes = jnp.array([[0.7, 1.3, 0.55], [0.5, 0.4, 0.1]])
    >>> sizes = {"inputs": 2, "units": 5, "outputs": 3}
    >>> made = dw.learning.aligned_networks(modes, modes, jnp.ones(2), **sizes, key=jax.random.key(0))
    >>> print(dw.learning.measure_alignment(made.student, made.U, made.V).recurrent.round(6))
    1.0
    """
    W, B, A = (jnp.asarray(getattr(student, name)) for name in "WBA")
    check_shape(U, "U", (A.shape[0], None), caller="measure_alignment")
    check_shape(V, "V", (B.shape[1], U.shape[1]), caller="measure_alignment")
    left, _, right = jnp.linalg.svd(B @ V, full_matrices=False)
    P = left @ right

    def share(modes, whole):
        return jnp.sum(jnp.diagonal(modes) ** 2) / jnp.sum(whole**2)

    if feedback is not None:
        check_shape(feedback, "feedback", A.shape, caller="measure_alignment")
        feedback = share(U.T @ feedback @ P, feedback)
    return Alignment(share(P.T @ W @ P, W), share(P.T @ B @ V, B), share(U.T @ A @ P, A), feedback)
