"""How rough a loss is: empirical Lipschitz constants of it and of its gradient, and slices through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive, check_positive_integer
from dynwarp._results import RESULTS, raise_failed
from dynwarp._typing import PRNGKey, Scalar
from dynwarp.errors import ArgumentError


class Smoothness(eqx.Module):
    """What [`smoothness`][dynwarp.gradients.smoothness] returns. S points, the first at the parameters themselves.

    **Attributes:**

    - `lipschitz`: the largest gradient norm among the points: no Lipschitz constant on the ball is smaller.
    - `gradient_lipschitz`: the largest |eigenvalue| of a Hessian among the points, likewise for the gradient.
    - `values`, `gradient_norms`, `curvatures`: of each point, `(S,)`.
    - `curvature_error`: how much each curvature grew in the last iteration, `(S,)`; they are approached from below.
    - `result`: `non_finite`.
    """

    lipschitz: Scalar
    gradient_lipschitz: Scalar
    values: Float[Array, " S"]
    gradient_norms: Float[Array, " S"]
    curvatures: Float[Array, " S"]
    curvature_error: Float[Array, " S"]
    result: RESULTS


def smoothness(
    loss: Callable[..., Scalar],
    parameters: Any,
    *arguments: Any,
    key: PRNGKey,
    radius: float | Scalar = 0.0,
    samples: int = 1,
    iterations: int = 30,
    throw: bool = True,
) -> Smoothness:
    """Lower bounds of the Lipschitz constants of a loss and of its gradient on a ball of parameters.

    Where a recurrence does not contract these constants grow exponentially with the length of the sequence, as L^(2T)
    and L^(3T) for models whose steps expand by L; at L = 1 as powers, below not at all. Gradients that explode are the
    same fact.

    **Arguments:**

    - `loss`: `loss(parameters, *arguments) -> scalar`, twice differentiable.
    - `parameters`: a pytree; its floating arrays are the parameters.
    - `arguments`: whatever else the loss needs.
    - `key`: of the points, uniform in the ball, and of the first vectors of the iteration.
    - `radius`: of the ball, in Euclidean norm over all parameters.
    - `samples`: S; one is at the centre.
    - `iterations`: of the power method with products of the Hessian and a vector.
    - `throw`: raise where `result` is not successful.

    **Returns:** a [`Smoothness`][dynwarp.gradients.Smoothness]. Cost: S (2 iterations + 2) gradients.

    **Raises:** `ArgumentError`; `ConvergenceError` with `throw`.

    **Source:** Ribeiro, Tiels, Aguirre and Schoen, AISTATS 2020, arXiv:1906.08482, for what it measures.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> found = dw.gradients.smoothness(lambda p: 2 * p[0] ** 2 - 5 * p[1] ** 2, jnp.ones(2), key=jax.random.key(0))
    >>> round(float(found.gradient_lipschitz), 6), round(float(found.lipschitz), 3)
    (10.0, 10.77)
    """
    caller = "smoothness"
    check_positive_integer(samples, "samples", caller=caller)
    check_positive_integer(iterations, "iterations", minimum=2, caller=caller)
    _check_parameters(parameters, caller)
    found = _smoothness(loss, parameters, arguments, key, radius, samples, iterations)
    if throw:
        raise_failed(found.result, caller, "Shrink `radius`, or shorten the sequence.")
    return found


def _check_parameters(parameters, caller: str) -> int:
    count = sum(x.size for x in jax.tree.leaves(eqx.filter(parameters, eqx.is_inexact_array)))
    if not count:
        raise ArgumentError(f"{caller}: `parameters` must hold floating arrays; got {parameters!r}.")
    return count


@eqx.filter_jit
def _smoothness(loss, parameters, arguments, key, radius, samples, iterations):
    dynamic, static = eqx.partition(parameters, eqx.is_inexact_array)
    flat, unravel = jax.flatten_util.ravel_pytree(dynamic)
    size, dtype = len(flat), flat.dtype

    def at(point):
        return loss(eqx.combine(unravel(point), static), *arguments)

    def unit(v):
        length = jnp.linalg.norm(v)
        return v / jnp.where(length > 0, length, 1), length

    def one(x):
        index, key = x
        first, second, third = jax.random.split(key, 3)
        direction, _ = unit(jax.random.normal(first, (size,), dtype))
        distance = radius * jax.random.uniform(second, (), dtype) ** (1 / size)
        point = flat + jnp.where(index > 0, distance, 0).astype(dtype) * direction
        value, gradient = jax.value_and_grad(at)(point)
        push = jax.linearize(jax.grad(at), point)[1]

        def iterate(v, _):
            # Twice: a pair of eigenvalues of opposite sign turns H v back and forth, but not H (H v).
            v, length = unit(push(v))
            v, longer = unit(push(v))
            return v, jnp.maximum(length, longer)

        start, _ = unit(jax.random.normal(third, (size,), dtype))
        _, lengths = jax.lax.scan(iterate, start, length=iterations)
        return value, jnp.linalg.norm(gradient), jnp.max(lengths), jnp.abs(lengths[-1] - lengths[-2])

    indices = jnp.arange(samples, dtype=jnp.int32)
    values, norms, curvatures, errors = jax.lax.map(one, (indices, jax.random.split(key, samples)))
    finite = jnp.all(jnp.isfinite(values) & jnp.isfinite(norms) & jnp.isfinite(curvatures))
    result = RESULTS.where(finite, RESULTS.successful, RESULTS.non_finite)
    return Smoothness(jnp.max(norms), jnp.max(curvatures), values, norms, curvatures, errors, result)


class LossSlice(eqx.Module):
    """What [`loss_slice`][dynwarp.gradients.loss_slice] returns. P points along each direction.

    **Attributes:**

    - `offsets`: along each direction, `(P,)`, 0 in the middle.
    - `values`: the loss, `(P,)` or `(P, P)`, first axis the first direction.
    - `directions`: one or two, each shaped like the floating arrays of the parameters.
    """

    offsets: Float[Array, " P"]
    values: Float[Array, "..."]
    directions: tuple[Any, ...]


def loss_slice(
    loss: Callable[..., Scalar],
    parameters: Any,
    *arguments: Any,
    key: PRNGKey | None = None,
    directions: tuple[Any, ...] | None = None,
    dimensions: int = 1,
    span: float = 1.0,
    points: int = 21,
) -> LossSlice:
    """The loss on a line or a plane through the parameters.

    **Arguments:**

    - `loss`, `parameters`, `arguments`: as for [`smoothness`][dynwarp.gradients.smoothness].
    - `key`: of random directions, each leaf scaled to the norm of the parameters in it, so that slices of networks of
      different scales compare; leaves of zeros stay.
    - `directions`: in their place one or two trees shaped like `parameters`; others than floating arrays are ignored.
    - `dimensions`: 1 or 2, of random directions.
    - `span`: offsets reach from -span to span.
    - `points`: P; odd, to hold the parameters themselves.

    **Returns:** a [`LossSlice`][dynwarp.gradients.LossSlice]. Values need not be finite. Cost: P or P^2 losses.

    **Raises:** `ArgumentError`.

    **Source:** Li, Xu, Taylor, Studer and Goldstein, NeurIPS 2018, for the scale of the directions.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> line = dw.gradients.loss_slice(lambda p: jnp.sum(p**2), jnp.zeros(2), directions=(jnp.ones(2),), points=3)
    >>> line.values.tolist()
    [2.0, 0.0, 2.0]
    """
    caller = "loss_slice"
    _check_parameters(parameters, caller)
    check_positive_integer(points, "points", minimum=2, caller=caller)
    check_positive(span, "span", caller=caller)
    base = eqx.filter(parameters, eqx.is_inexact_array)
    if directions is None:
        if key is None:
            raise ArgumentError(f"{caller}: give `directions`, or the `key` of random ones.")
        if dimensions not in (1, 2):
            raise ArgumentError(f"{caller}: `dimensions` must be 1 or 2; got {dimensions!r}.")
        directions = tuple(_random_direction(base, k) for k in jax.random.split(key, dimensions))
    else:
        directions = tuple(eqx.filter(d, eqx.is_inexact_array) for d in directions)
        shapes = jax.tree.map(jnp.shape, base)
        if len(directions) not in (1, 2) or any(jax.tree.map(jnp.shape, d) != shapes for d in directions):
            raise ArgumentError(f"{caller}: `directions` must be one or two trees shaped like `parameters`.")
    return _slice(loss, parameters, arguments, directions, span, points)


def _random_direction(base, key):
    leaves, structure = jax.tree.flatten(base)
    drawn = []
    for leaf, k in zip(leaves, jax.random.split(key, len(leaves))):
        draw = jax.random.normal(k, leaf.shape, leaf.dtype)
        drawn.append(draw * (jnp.linalg.norm(leaf.ravel()) / jnp.linalg.norm(draw.ravel())))
    return jax.tree.unflatten(structure, drawn)


@eqx.filter_jit
def _slice(loss, parameters, arguments, directions, span, points):
    base, rest = eqx.partition(parameters, eqx.is_inexact_array)
    dtype = jnp.finfo(jax.tree.leaves(base)[0].dtype).dtype
    offsets = jnp.linspace(-span, span, points, dtype=dtype)
    grid = jnp.stack(jnp.meshgrid(*[offsets] * len(directions), indexing="ij"), axis=-1)

    def value(steps):
        moved = base
        for step, direction in zip(steps, directions):
            moved = jax.tree.map(lambda x, d, step=step: x + step.astype(x.dtype) * d.astype(x.dtype), moved, direction)
        return loss(eqx.combine(moved, rest), *arguments)

    values = jax.lax.map(value, grid.reshape(-1, len(directions)))
    return LossSlice(offsets, values.reshape(grid.shape[:-1]), directions)
