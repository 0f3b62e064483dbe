"""The mean of points on a manifold: where the squares of the distances to them are least."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._results import RESULTS
from dynwarp._typing import Scalar
from dynwarp.geometry._geodesics import connect
from dynwarp.geometry._search import Effort

_ITERATIONS = 60
# The power of eps to which the gradient is to vanish, relative to the radius.
_ACCURACY = 0.5


class KarcherMean(eqx.Module):
    """What `karcher_mean` of a [`Metric`][dynwarp.geometry.Metric] or an [`Immersion`][dynwarp.geometry.Immersion]
    returns.

    **Attributes:**

    - `point`: the mean, `(m,)`.
    - `gradient_norm`: the length of the mean of the logarithms there, which is to vanish.
    - `variance`: the mean of the squares of the distances.
    - `radius`: the largest distance from the mean to a point. With a radius below half of the injectivity radius, and
      below pi / (4 sqrt(K)) where curvature is at most K > 0, there is one mean alone, and this is it (Karcher 1977).
    - `distances`: from the mean to the points, `(n,)`.
    - `result`: `max_steps_reached` where the gradient did not vanish to eps^0.5 of the radius (1.5e-8 in float64), from
      where a step of Newton's method was to follow; `singular` where a logarithm was not found.

    **Example:** the middle of two points of the hyperbolic plane.

    >>> plane = dw.geometry.Metric(lambda x: jnp.eye(2) / x[1] ** 2, dim=2)
    >>> found = plane.karcher_mean(jnp.array([[0.0, 1.0], [0.0, 4.0]]))
    >>> [round(float(x), 8) for x in (*found.point, found.radius / jnp.log(2))]
    [0.0, 2.0, 1.0]
    """

    point: Float[Array, " m"]
    gradient_norm: Scalar
    variance: Scalar
    radius: Scalar
    distances: Float[Array, " n"]
    result: RESULTS


@eqx.filter_jit
def karcher_mean(chart, points, weights, effort: Effort) -> KarcherMean:
    """By steps to the mean of the logarithms; the derivative is that of the implicit function theorem."""
    arrays, static = eqx.partition((chart, points, weights), eqx.is_array)
    frozen, fixed, shares = eqx.combine(jax.lax.stop_gradient(arrays), static)
    eps = jnp.finfo(points.dtype).eps

    def logarithms(chart, points, p):
        found = jax.vmap(lambda x: connect(chart, p, x, effort))(points)
        good = (found.result == RESULTS.successful) | (found.result == RESULTS.inaccurate)
        return found.velocity, found.length, jnp.all(good)

    def size(p, v):
        return jnp.sqrt(jnp.maximum(v @ frozen._metric(p) @ v, 0))

    def body(carry):
        p, step, _, _, count = carry
        p = p + step
        velocities, lengths, found = logarithms(frozen, fixed, p)
        step = shares @ velocities
        return p, step, size(p, step) / jnp.maximum(jnp.max(lengths), jnp.finfo(p.dtype).tiny), found, count + 1

    def going(carry):
        _, _, left, found, count = carry
        return found & (left > eps**_ACCURACY) & (count < _ITERATIONS)

    # From the point that is nearest to all of them, by the metric there.
    difference = fixed[None] - fixed[:, None]
    periods = jnp.asarray([0.0 if p is None else p for p in chart.periods], points.dtype)
    turns_away = jnp.round(difference / jnp.where(periods > 0, periods, jnp.inf)) * periods
    difference = difference - turns_away
    metrics = jax.vmap(frozen._metric)(fixed)
    first = jnp.argmin(jnp.einsum("ija,iab,ijb,j->i", difference, metrics, difference, shares))
    one = jnp.ones((), points.dtype)
    start = (fixed[first], 0 * fixed[first], jnp.inf * one, jnp.asarray(True), 0)
    p, step, left, found, _ = jax.lax.while_loop(going, body, start)

    def residual(p):
        velocities, lengths, _ = logarithms(chart, points, p)
        mean = weights @ velocities
        return mean, (mean, lengths)

    # Value and slope in one: the search for the geodesics is the longest part of the program.
    slope, (mean, lengths) = jax.jacfwd(residual, has_aux=True)(p)
    p = p - jnp.linalg.solve(jax.lax.stop_gradient(slope), mean)
    result = RESULTS.where(left <= eps**_ACCURACY, RESULTS.successful, RESULTS.max_steps_reached)
    result = RESULTS.where(found, result, RESULTS.singular)
    return KarcherMean(
        point=p,
        gradient_norm=size(p, step),
        variance=weights @ lengths**2,
        radius=jnp.max(lengths),
        distances=lengths,
        result=result,
    )
