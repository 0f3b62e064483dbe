"""A manifold in a space of many dimensions: states over inputs, surfaces."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_shape
from dynwarp.errors import ArgumentError
from dynwarp.geometry._chart import AbstractChart, check_chart, evaluate
from dynwarp.geometry._frames import invert_upper, orthonormal_frame, solve_upper
from dynwarp.geometry._kinks import refuse_creases
from dynwarp.geometry._pointwise import masked, sound


class Immersion(AbstractChart):
    """The geometry of a manifold that lies in R^N, `fn(x)` being the point with the coordinates x.

    Connection and curvature come from the first and second derivatives of `fn` by the equation of Gauss,
    R_ijkl = <II_ik, II_jl> - <II_il, II_jk>, where the metric alone would need third ones.

    **Arguments:**

    - `fn`: `(m,) -> (N,)`, N >= m, twice continuously differentiable. A function that holds arrays should be an
      `eqx.Module`.
    - `dim`, `periods`, `bounds`, `tolerance`: as for [`Metric`][dynwarp.geometry.Metric].
    - `smooth`: where `fn` has kinks, as a network of ReLUs has, its curvature sits in the kinks. None looks for them in
      the program of `fn` when a curvature is asked for, and refuses maxima, minima, absolute values, ReLU and its kin,
      but where they guard a root, a logarithm or a division. Choices by `jnp.where` and adaptive loops are not judged.
      True vouches for a smooth function whose kinks are never met; False takes the curvature between them.

    **Methods:** those of [`Metric`][dynwarp.geometry.Metric], `second_fundamental_form` and `mean_curvature`.

    **Cost:** of a curvature, 1 + m + m^2 evaluations of `fn`.

    **Raises:** `ArgumentError`, `ShapeError` for what does not fit; `ModelError` for the curvature of what has kinks.

    **Example:** a sphere of radius 2.

    >>> def sphere(x):
    ...     s, c = jnp.sin(x), jnp.cos(x)
    ...     return 2 * jnp.stack([s[0] * c[1], s[0] * s[1], c[0]])
    >>> surface = dw.geometry.Immersion(sphere, dim=2)
    >>> round(float(surface.gaussian_curvature(jnp.array([1.0, 0.5]))), 12)
    0.25
    """

    fn: Callable[[Array], Array]
    dim: int = eqx.field(static=True)
    periods: tuple[float | None, ...] = eqx.field(static=True)
    bounds: tuple[tuple[float, float] | None, ...] = eqx.field(static=True)
    tolerance: float | None = eqx.field(static=True)
    smooth: bool | None = eqx.field(static=True)

    def __init__(
        self,
        fn: Callable[[Array], Array],
        *,
        dim: int,
        periods: Any = None,
        bounds: Any = None,
        tolerance: float | None = None,
        smooth: bool | None = None,
    ):
        self.fn = fn
        self.dim, self.periods, self.bounds = check_chart(fn, dim, periods, bounds, "Immersion")
        self.tolerance = tolerance
        self.smooth = smooth

    def second_fundamental_form(self, x: Float[Array, " m"]) -> Float[Array, "m m N"]:
        """II_ij = d_i d_j fn - Gamma^k_ij d_k fn, the part of the second derivatives that is normal to the manifold."""
        return _second_fundamental_form(self, self._point(x, "second_fundamental_form"))

    def mean_curvature(self, x: Float[Array, " m"]) -> Float[Array, " N"]:
        """The mean curvature vector G^ij II_ij / m; its length is 1 / r for a sphere."""
        return _mean_curvature(self, self._point(x, "mean_curvature"))

    def _value(self, x):
        return self._embed(x)

    def _embed(self, x):
        point = evaluate(self, x)
        check_shape(point, "fn(x)", ("N",), caller="Immersion")
        if point.shape[0] < self.dim:
            raise ArgumentError(
                f"Immersion: `fn` must map into at least {self.dim} dimensions; it returns {point.shape[0]} numbers."
            )
        return point

    def _metric(self, x):
        jacobian = jax.jacfwd(self._embed)(x)
        return jnp.matmul(jacobian.T, jacobian, precision="highest")

    def _factor(self, x):
        return orthonormal_frame(jax.jacfwd(self._embed)(x))[1]

    def _derivatives(self, x):
        """The first and the second derivatives, `(N, m)` and `(N, m, m)`."""

        def first(x):
            jacobian = jax.jacfwd(self._embed)(x)
            return jacobian, jacobian

        hessian, jacobian = jax.jacfwd(first, has_aux=True)(x)
        return jacobian, hessian

    def _split(self, x):
        """Whether the directions are independent, R, and the second derivatives in the tangent frame, `(m, m, m)`, and
        normal to it, `(m, m, N)`."""
        jacobian, hessian = self._derivatives(x)
        frame, factor = orthonormal_frame(jacobian)
        second = jnp.moveaxis(hessian, 0, -1)
        tangent = jnp.einsum("Na,ijN->aij", frame, second, precision="highest")
        normal = second - jnp.einsum("Na,aij->ijN", frame, tangent, precision="highest")
        return *sound(self, factor), tangent, normal

    def _bent(self, x):
        """The same, where the normal part is what is asked for: refused where `fn` has kinks."""
        if self.smooth is None:
            refuse_creases(self._embed, x)
        return self._split(x)

    def _connection(self, x):
        valid, factor, tangent, _ = self._split(x)
        return valid, solve_upper(factor, tangent)

    def _bend(self, x, v, w):
        # One second derivative along the two directions, whatever m; QR halves the digits that G^-1 would lose.
        second = jax.jvp(lambda x: jax.jvp(self._embed, (x,), (v,))[1], (x,), (w,))[1]
        frame, factor = orthonormal_frame(jax.jacfwd(self._embed)(x))
        return solve_upper(factor, jnp.matmul(frame.T, second, precision="highest"))

    def _bend_derivatives(self, x, v):
        def bend(x, v):
            value = self._bend(x, v, v)
            return value, value

        (of_point, of_velocity), value = jax.jacfwd(bend, (0, 1), has_aux=True)(x, v)
        return of_point, of_velocity, value

    def _polyline(self, points, steps):
        # Chords in R^N, so that neither the chart nor a coarse step distorts them.
        jacobians, hessians = jax.vmap(self._derivatives)(points[1:-1])
        chords = jnp.diff(jax.vmap(self._embed)(points), axis=0) / steps[:, None]
        pull = -jnp.diff(chords, axis=0)
        gradient = jnp.einsum("iNa,iN->ia", jacobians, pull, precision="highest")
        stiffness = (1 / steps[1:] + 1 / steps[:-1])[:, None, None]
        size = jnp.einsum("iNa,iNb->iab", jacobians, jacobians, precision="highest") * stiffness
        diagonal = size + jnp.einsum("iNab,iN->iab", hessians, pull, precision="highest")
        upper = -jnp.einsum("iNa,iNb->iab", jacobians[:-1], jacobians[1:], precision="highest")
        energy = jnp.sum(chords**2 * steps[:, None]) / 2
        return energy, gradient, diagonal, upper / steps[1:-1, None, None], size

    def _segments(self, points):
        return jnp.sum(jnp.diff(jax.vmap(self._embed)(points), axis=0) ** 2, 1)

    def _curvature(self, x):
        valid, factor, _, normal = self._bent(x)
        products = jnp.einsum("ikN,jlN->ijkl", normal, normal, precision="highest")
        return valid, factor, products - jnp.swapaxes(products, 2, 3)


@eqx.filter_jit
def _second_fundamental_form(chart, x):
    valid, _, _, normal = chart._bent(x)
    return masked(valid, normal)


@eqx.filter_jit
def _mean_curvature(chart, x):
    valid, factor, _, normal = chart._bent(x)
    inverse = invert_upper(factor)
    trace = jnp.einsum("ia,ja,ijN->N", inverse, inverse, normal, precision="highest")
    return masked(valid, trace / chart.dim)
