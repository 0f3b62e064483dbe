"""A manifold that is known by its metric alone."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from dynwarp._checks import check_shape
from dynwarp.geometry._chart import AbstractChart, check_chart, evaluate
from dynwarp.geometry._frames import semidefinite_factor, solve_transposed, solve_upper, upper_factor
from dynwarp.geometry._interpolant import Interpolant
from dynwarp.geometry._jets import push_jet
from dynwarp.geometry._pointwise import sound


class Metric(AbstractChart):
    """The geometry of a metric that is given as a function of the coordinates: hyperbolic planes, Fisher information,
    an interpolated metric. Curvature takes two derivatives of `fn`.

    **Arguments:**

    - `fn`: `(m,) -> (m, m)`, symmetric and positive definite. A function that holds arrays should be an `eqx.Module`.
    - `dim`: m.
    - `periods`, `bounds`: of the coordinates, as in [`InputManifold`][dynwarp.geometry.InputManifold].
    - `tolerance`: the least sine between coordinate directions at which there is a curvature; None: eps^(1/4), 1.2e-4
      in float64, which leaves about 8 digits.

    **Methods:** `metric`, `volume`, `christoffel`, `riemann`, `ricci`, `scalar_curvature`, `gaussian_curvature`; `exp`,
    `log`, `distance`, `geodesic`, `connect`, `parallel_transport`; `surrogate`. NaN where the metric has a
    negative eigenvalue.

    **Raises:** `ArgumentError`, `ShapeError` for what does not fit.

    **Example:** the hyperbolic plane.

    >>> plane = dw.geometry.Metric(lambda x: jnp.eye(2) / x[1] ** 2, dim=2)
    >>> round(float(plane.gaussian_curvature(jnp.array([0.3, 2.0]))), 12)
    -1.0
    """

    fn: Callable[[Array], Array]
    dim: int = eqx.field(static=True)
    periods: tuple[float | None, ...] = eqx.field(static=True)
    bounds: tuple[tuple[float, float] | None, ...] = eqx.field(static=True)
    tolerance: float | None = eqx.field(static=True)

    def __init__(
        self,
        fn: Callable[[Array], Array],
        *,
        dim: int,
        periods: Any = None,
        bounds: Any = None,
        tolerance: float | None = None,
    ):
        self.fn = fn
        self.dim, self.periods, self.bounds = check_chart(fn, dim, periods, bounds, "Metric")
        self.tolerance = tolerance

    def _value(self, x):
        return self._metric(x)

    def _metric(self, x):
        metric = evaluate(self, x)
        check_shape(metric, "fn(x)", (self.dim, self.dim), caller="Metric")
        return metric

    def _factor(self, x):
        return semidefinite_factor(self._metric(x))

    def _connection(self, x):
        valid, factor = sound(self, self._factor(x))
        lower = _lower_christoffel(jax.jacfwd(self._metric)(x))
        return valid, _solve_square(factor, lower)

    def _bend(self, x, v, w):
        def kept(x):
            metric = self._metric(x)
            return metric, metric

        gradient, metric = jax.jacfwd(kept, has_aux=True)(x)
        lower = _sum("kij,i,j->k", _lower_christoffel(gradient), v, w)
        return _solve_square(upper_factor(metric), lower)

    def _bend_derivatives(self, x, v):
        metric, first, second = self._jet(x)
        factor = upper_factor(metric)
        # Gamma_c,jb v_b; first[k, a, b] = d_k G_ab.
        lower = _sum("cjb,b->cj", _lower_christoffel(jnp.moveaxis(first, 0, -1)), v)
        bend = _solve_square(factor, _sum("cj,j->c", lower, v))
        change = _sum("kicb,i,b->ck", second, v, v) - _sum("kcab,a,b->ck", second, v, v) / 2
        of_point = _solve_square(factor, change - _sum("kcb,b->ck", first, bend))
        return of_point, _solve_square(factor, 2 * lower), bend

    def _polyline(self, points, steps):
        # Straight in the chart, each segment with the metric of its middle.
        def segment(start, end, step):
            chord = end - start
            metric, first, second = self._jet((start + end) / 2)
            # Of chord . G . chord / 2: how it follows the chord, the middle, and both.
            pull, push = _sum("kl,l->k", metric, chord), _sum("kab,a,b->k", first, chord, chord) / 4
            both = _sum("lkb,b->kl", first, chord) / 2
            even = metric + _sum("klab,a,b->kl", second, chord, chord) / 8
            odd = both + both.T
            upper = even - 2 * metric - both + both.T
            blocks = (even - odd, even + odd, upper)
            return jax.tree.map(lambda a: a / step, (chord @ pull / 2, push - pull, push + pull, blocks))

        energies, of_start, of_end, (start, end, upper) = jax.vmap(segment)(points[:-1], points[1:], steps)
        metrics = jax.vmap(self._metric)(points[1:-1]) * (1 / steps[1:] + 1 / steps[:-1])[:, None, None]
        return jnp.sum(energies), of_end[:-1] + of_start[1:], end[:-1] + start[1:], upper[1:-1], metrics

    def _segments(self, points):
        metrics = jax.vmap(self._metric)((points[1:] + points[:-1]) / 2)
        chords = jnp.diff(points, axis=0)
        return _sum("ia,iab,ib->i", chords, metrics, chords)

    def _jet(self, x):
        """The metric, its first and its second derivatives, the axes of which come first."""
        if isinstance(self.fn, Interpolant):
            return self.fn.jet(x)
        m = self.dim
        return push_jet(self._metric, (x, jnp.eye(m, dtype=x.dtype), jnp.zeros((m, m, m), x.dtype)))

    def _curvature(self, x):
        valid, factor = sound(self, self._factor(x))
        _, gradient, hessian = self._jet(x)
        # Components of Gamma_p,ij along an orthonormal frame, so that no inverse metric is formed.
        framed = solve_transposed(factor, _lower_christoffel(jnp.moveaxis(gradient, 0, -1)))
        products = _sum("ajk,ail->ijkl", framed, framed)
        # hessian[i, j, k, l] = d_i d_j G_kl
        second = jnp.einsum("jkil->ijkl", hessian) + jnp.einsum("iljk->ijkl", hessian)
        bend = (second - jnp.swapaxes(second, 2, 3)) / 2
        return valid, factor, bend + products - jnp.swapaxes(products, 2, 3)


_sum = functools.partial(jnp.einsum, precision="highest")


def _solve_square(factor, rhs):
    """G^{-1} b along the first axis of b, from R^T R = G."""
    return solve_upper(factor, solve_transposed(factor, rhs))


def _lower_christoffel(gradient):
    """Gamma_k,ij = (d_i G_jk + d_j G_ik - d_k G_ij) / 2 from `gradient[i, j, k]` = d_k G_ij."""
    first = jnp.einsum("jki->kij", gradient)
    return (first + jnp.swapaxes(first, 1, 2) - jnp.einsum("ijk->kij", gradient)) / 2
