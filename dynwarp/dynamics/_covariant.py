"""Covariant Lyapunov vectors: the directions that the tangent dynamics maps to each other, each with its exponent."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer
from dynwarp._results import RESULTS, raise_failed
from dynwarp._typing import Inputs, Scalar, State
from dynwarp.dynamics._orthonormalise import gram_schmidt
from dynwarp.dynamics._stepping import Model, Signal, check_leading, prepare_step


class CovariantVectors(eqx.Module):
    """What [`covariant_lyapunov_vectors`][dynwarp.dynamics.covariant_lyapunov_vectors] returns.

    **Attributes:**

    - `states`: of the window, `(steps, n)`.
    - `vectors`: unit vectors at each of them, `(steps, n, k)`, column i with exponent i. A step maps column i at
      `states[t]` to a multiple of column i at `states[t + 1]`.
    - `exponents`: the mean of `local_exponents`, largest first as in the spectrum, `(k,)`.
    - `local_exponents`: log of the factor by which the step from `states[t]` stretches each vector, per step or, with
      a `dt`, per unit time, `(steps, k)`.
    - `result`: `singular` where a step has no inverse on the k directions, `diverged` where the state did.
    """

    states: Float[Array, "T n"]
    vectors: Float[Array, "T n k"]
    exponents: Float[Array, " k"]
    local_exponents: Float[Array, "T k"]
    result: RESULTS

    def angle(self, i: int, j: int) -> Float[Array, " T"]:
        """The angle between two of the vectors along the orbit, in [0, pi/2]; near 0 the orbit is hardly hyperbolic."""
        a, b = self.vectors[:, :, i], self.vectors[:, :, j]
        cosine = jnp.sum(a * b, axis=1)
        # The sine from the rest: near 0 the cosine says nothing.
        rest = jnp.linalg.norm(b - cosine[:, None] * a, axis=1)
        return jnp.arctan2(rest, jnp.abs(cosine))


def covariant_lyapunov_vectors(
    model: Model,
    state0: State,
    *,
    steps: int,
    k: int | None = None,
    inputs: Inputs | Signal | None = None,
    transient: int = 256,
    settle: int = 256,
    dt: float | Scalar | None = None,
    t0: float | Scalar = 0.0,
    throw: bool = True,
) -> CovariantVectors:
    """The k leading covariant Lyapunov vectors along the orbit of `state0`, by Ginelli's method.

    Forwards, orthonormal tangents turn towards the flag of the fastest directions; backwards, generic vectors inside
    the flags turn towards the covariant ones. Unlike the orthonormal vectors of a spectrum they do not depend on a
    scalar product, and the angles between them say how hyperbolic the orbit is.

    **Arguments:**

    - `model`: an `AbstractMap`, or an `AbstractField`, stepped by RK4.
    - `state0`: `(n,)`, float64.
    - `steps`: length of the window for which vectors are returned.
    - `k`: how many; all n by default.
    - `inputs`: of a map, `(transient + steps + settle, d)`; of a field, a function of time or a diffrax path.
    - `transient`, `settle`: steps before and after the window in which the tangents turn into place, forwards and
      backwards; errors fall as exp(-gap * steps), with the gap between neighbouring exponents. Vectors of equal
      exponents are some basis of their common space.
    - `dt`, `t0`: as for [`lyapunov_spectrum`][dynwarp.dynamics.lyapunov_spectrum].
    - `throw`: raise where `result` is not successful.

    **Returns:** a [`CovariantVectors`][dynwarp.dynamics.CovariantVectors]. Works under jit and vmap. Cost per step k
    forward derivatives and 3 n k^2 flops; memory for (steps + settle) (n k + k^2) numbers.

    **Raises:** `PrecisionError`, `ShapeError`, `ArgumentError`, `NonFiniteError`, `ModelError`; `ConvergenceError` with
    `throw`, as for maps that forget a direction in one step, which have no such vectors.

    **Source:** Ginelli et al., Phys. Rev. Lett. 99 (2007) 130601; Kuptsov and Parlitz, J. Nonlinear Sci. 22 (2012) 727.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> shear = dw.models.LinearRNN(jnp.array([[2.0, 1.0], [0.0, 0.5]]), jnp.zeros((2, 1)), jnp.eye(2))
    >>> found = dw.dynamics.covariant_lyapunov_vectors(shear, jnp.zeros(2), steps=1)
    >>> slope = found.vectors[0, 1] / found.vectors[0, 0]
    >>> round(float(jnp.abs(slope[0])), 6), round(float(slope[1]), 6)
    (0.0, -1.5)
    """
    caller = "covariant_lyapunov_vectors"
    check_positive_integer(steps, "steps", caller=caller)
    for name, value in (("transient", transient), ("settle", settle)):
        check_positive_integer(value, name, minimum=0, caller=caller)
    step, state, inputs = prepare_step(model, state0, inputs, transient + steps + settle, t0, dt, caller)
    k = check_leading(k, len(state), caller)
    found = _vectors(step, state, inputs, transient, steps, settle, k, dt)
    if throw:
        raise_failed(found.result, caller, "Fewer vectors, k, leave out the directions that vanish.")
    return found


@eqx.filter_jit
def _vectors(step, state, inputs, transient, steps, settle, k, dt):
    size = len(state)
    generator = np.random.default_rng(0)
    frame = jnp.asarray(np.linalg.qr(generator.standard_normal((size, k)))[0].T, state.dtype)

    def forward(carry, x):
        state, q = carry
        index, input = x
        new, push = jax.linearize(lambda z: step(index, z, input), state)
        moved = jax.vmap(push)(q)
        new_q, stretch = gram_schmidt(moved)
        # Row i of the old frame becomes the sum over j <= i of r[j, i] times row j of the new one.
        r = jnp.triu(new_q @ moved.T, 1) + jnp.diag(stretch)
        return (new, new_q), (state, q, r)

    def settled(carry, x):
        return forward(carry, x)[0], None

    indices = jnp.arange(transient + steps + settle, dtype=jnp.int32)
    begin, end = transient, transient + steps
    before, window, after = (
        jax.tree.map(lambda x, piece=piece: x[piece], (indices, inputs))
        for piece in (slice(begin), slice(begin, end), slice(end, None))
    )
    carry, _ = jax.lax.scan(settled, (state, frame), before)
    carry, (states, frames, factors) = jax.lax.scan(forward, carry, window)
    (last, _), (_, _, later) = jax.lax.scan(forward, carry, after)

    singular = jnp.any(_diagonals(factors) == 0) | jnp.any(_diagonals(later) == 0)
    start = jnp.eye(k, dtype=state.dtype) + jnp.asarray(np.triu(generator.standard_normal((k, k)), 1), state.dtype)

    def back(c, r):
        vanished = jnp.diag(r) == 0
        r = r + jnp.diag(jnp.where(vanished, jnp.ones((), r.dtype), 0))
        c = jax.scipy.linalg.solve_triangular(r, c)
        # The step from here to where c came from stretches by one over this.
        length = jnp.linalg.norm(c, axis=0)
        return c / length, (c / length, -jnp.log(length))

    start = start / jnp.linalg.norm(start, axis=0)
    settled_c, _ = jax.lax.scan(back, start, later, reverse=True)
    _, (coefficients, local) = jax.lax.scan(back, settled_c, factors, reverse=True)
    vectors = jnp.einsum("tin,tij->tnj", frames, coefficients)
    local = local if dt is None else local / jnp.asarray(dt, local.dtype)

    result = RESULTS.where(singular, RESULTS.singular, RESULTS.successful)
    result = RESULTS.where(jnp.all(jnp.isfinite(vectors)), result, RESULTS.non_finite)
    result = RESULTS.where(jnp.all(jnp.isfinite(last)), result, RESULTS.diverged)
    return CovariantVectors(states, vectors, jnp.mean(local, axis=0), local, result)


def _diagonals(matrices):
    return jnp.diagonal(matrices, axis1=1, axis2=2)
