"""Riemannian geometry in one chart: what a metric alone and an immersion have in common."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import as_real, check_positive_integer, check_shape
from dynwarp._compat import concrete
from dynwarp._results import RESULTS
from dynwarp._typing import Scalar
from dynwarp.dynamics._stepping import as_floating
from dynwarp.errors import ArgumentError
from dynwarp.geometry import _pointwise as pointwise
from dynwarp.geometry._gauss_bonnet import GaussBonnet, gauss_bonnet
from dynwarp.geometry._geodesics import (
    Geodesic,
    connect,
    distance,
    exponential,
    holonomy,
    pairwise,
    spline,
    transport,
    within,
)
from dynwarp.geometry._interpolant import Interpolant, dtype_of, interpolate, tensor_axes
from dynwarp.geometry._karcher import KarcherMean, karcher_mean
from dynwarp.geometry._search import Effort
from dynwarp.tasks._parameters import check_axes

# None: as many as suit the chart.
Count = int | None


class AbstractChart(eqx.Module):
    """A Riemannian manifold of few dimensions in one chart: a [`Metric`][dynwarp.geometry.Metric] or an
    [`Immersion`][dynwarp.geometry.Immersion].

    All methods take one point `x`, shape `(dim,)`, and are pure: batches are made with `jax.vmap`, derivatives with
    `jax.grad`. Indices: `christoffel[k, i, j]` = Gamma^k_ij; R_ijkl is positive for a sphere, R_1212 = K det G.

    Where the coordinate directions are not independent there is no connection and no curvature: these are NaN where
    the sine of the angle between a direction and the span of those before it is below `tolerance`. `metric` and
    `volume` are there everywhere.
    """

    fn: eqx.AbstractVar[Callable[[Array], Array]]
    dim: eqx.AbstractVar[int]
    periods: eqx.AbstractVar[tuple[float | None, ...]]
    bounds: eqx.AbstractVar[tuple[tuple[float, float] | None, ...]]
    tolerance: eqx.AbstractVar[float | None]

    @abc.abstractmethod
    def _metric(self, x):
        """G, (m, m)."""

    @abc.abstractmethod
    def _factor(self, x):
        """R upper triangular with R^T R = G."""

    @abc.abstractmethod
    def _connection(self, x):
        """Whether the directions are independent, and the Christoffel symbols of the second kind."""

    @abc.abstractmethod
    def _curvature(self, x):
        """The same, R, and the Riemann tensor with all indices down; finite where it is not valid, too."""

    @abc.abstractmethod
    def _bend(self, x, v, w):
        """Gamma(v, w), (m,), unchecked."""

    @abc.abstractmethod
    def _bend_derivatives(self, x, v):
        """The derivatives of Gamma(v, v) in x and in v, (m, m) each, and itself, unchecked."""

    @abc.abstractmethod
    def _polyline(self, points, steps):
        """Of a polyline with vertices (L + 1, m) at parameters with these steps (L,): its energy, and in the inner
        vertices the gradient (L - 1, m), the diagonal blocks (L - 1, m, m) and those to the right of them (L - 2, m, m)
        of the Hessian, and the part of the diagonal that is the metric."""

    @abc.abstractmethod
    def _segments(self, points):
        """The squares of the lengths of its segments, (L,)."""

    @abc.abstractmethod
    def _value(self, x):
        """What `fn` returns, checked."""

    def metric(self, x: Float[Array, " m"]) -> Float[Array, "m m"]:
        """G_ij, shape `(m, m)`."""
        return pointwise.metric(self, self._point(x, "metric"))

    def volume(self, x: Float[Array, " m"]) -> Scalar:
        """sqrt(det G), the volume per volume of coordinates; 0 where the metric is degenerate."""
        return pointwise.volume(self, self._point(x, "volume"))

    def christoffel(self, x: Float[Array, " m"]) -> Float[Array, "m m m"]:
        """Gamma^k_ij = `[k, i, j]`, symmetric in i and j."""
        return pointwise.christoffel(self, self._point(x, "christoffel"))

    def riemann(self, x: Float[Array, " m"]) -> Float[Array, "m m m m"]:
        """R_ijkl, all indices down."""
        return pointwise.riemann(self, self._point(x, "riemann"))

    def ricci(self, x: Float[Array, " m"]) -> Float[Array, "m m"]:
        """Ric_jl = G^ik R_ijkl, both indices down."""
        return pointwise.ricci(self, self._point(x, "ricci"))

    def scalar_curvature(self, x: Float[Array, " m"]) -> Scalar:
        """S = G^jl Ric_jl: 2 K of a surface, m (m - 1) / r^2 of a sphere."""
        return pointwise.scalar_curvature(self, self._point(x, "scalar_curvature"))

    def gaussian_curvature(self, x: Float[Array, " m"]) -> Scalar:
        """K = R_1212 / det G of a surface.

        **Raises:** `ArgumentError` unless the dimension is 2.
        """
        if self.dim != 2:
            raise ArgumentError(
                f"gaussian_curvature is that of a surface, of 2 dimensions; this has {self.dim}: see `riemann` and "
                "`scalar_curvature`."
            )
        return pointwise.scalar_curvature(self, self._point(x, "gaussian_curvature")) / 2

    def sectional_curvature(self, x: Float[Array, " m"], v: Float[Array, " m"], w: Float[Array, " m"]) -> Scalar:
        """R(v, w, v, w) / (|v|^2 |w|^2 - <v, w>^2), the Gaussian curvature of the surface of geodesics in the plane of
        two tangents.

        NaN where they do not span a plane: where the sine of the angle between them is below `tolerance`.

        **Example:** in the hyperbolic plane.

        >>> plane = dw.geometry.Metric(lambda x: jnp.eye(2) / x[1] ** 2, dim=2)
        >>> x, v, w = jnp.array([0.3, 2.0]), jnp.array([1.0, 0.0]), jnp.array([1.0, 2.0])
        >>> round(float(plane.sectional_curvature(x, v, w)), 12)
        -1.0
        """
        caller = "sectional_curvature"
        return pointwise.sectional(
            self, self._point(x, caller), self._point(v, caller, "v"), self._point(w, caller, "w")
        )

    def principal_stretches(self, x: Float[Array, " m"], *, reference: Any = None) -> Float[Array, " m"]:
        """The factors by which lengths in a reference are stretched, least first, `(m,)`: the square roots of the
        eigenvalues of G_ref^-1 G.

        **Arguments:** `reference`, another chart of the same coordinates or its metric at x, `(m, m)`; None is that of
        the coordinates.

        **Example:** with the measures that follow from them.

        >>> x = jnp.array([0.3, 1.0])
        >>> chart = dw.geometry.Metric(lambda x: jnp.diag(jnp.array([4.0, 9.0])) * x[1], dim=2)
        >>> [round(float(value), 12) for value in chart.principal_stretches(x)]
        [2.0, 3.0]
        >>> round(float(chart.isotropy(x)), 6)
        0.666667
        >>> similarity = chart.distortion(x, reference=4 * chart.metric(x))
        >>> round(float(similarity / (2 * jnp.log(2) * 2**0.5)), 12)
        1.0
        """
        x = self._point(x, "principal_stretches")
        if reference is not None and not isinstance(reference, AbstractChart):
            reference = as_floating(reference)
            check_shape(reference, "reference", (self.dim,) * 2, caller=f"{type(self).__name__}.principal_stretches")
        return pointwise.stretches(self, x, reference)

    def isotropy(self, x: Float[Array, " m"], *, reference: Any = None) -> Scalar:
        """The least principal stretch over the largest: 1 where angles are kept, 0 where the metric is degenerate."""
        found = self.principal_stretches(x, reference=reference)
        return found[0] / jnp.where(found[-1] > 0, found[-1], 1)

    def distortion(self, x: Float[Array, " m"], *, reference: Any = None) -> Scalar:
        """|log(G_ref^-1/2 G G_ref^-1/2)|, the affine-invariant distance of the metrics: 0 of an isometry,
        2 log(s) sqrt(m) of a similarity by s, infinite where G is degenerate."""
        return 2 * jnp.linalg.norm(jnp.log(self.principal_stretches(x, reference=reference)))

    def status(self, x: Float[Array, " m"]) -> RESULTS:
        """Why there is no connection and no curvature at x: `singular` where the coordinate directions are not
        independent, `non_finite`, `outside` of the bounds; `successful` where there is.

        **Example:** the half-plane without its edge.

        >>> plane = dw.geometry.Metric(lambda x: jnp.eye(2) / x[1] ** 2, dim=2, bounds=(None, (0.0, jnp.inf)))
        >>> bool(plane.status(jnp.array([0.3, 2.0])) == dw.RESULTS.successful)
        True
        >>> bool(plane.status(jnp.array([0.3, -2.0])) == dw.RESULTS.outside)
        True
        """
        x = self._point(x, "status")
        return pointwise.status(self, x, within(self, x))

    def exp(self, x: Float[Array, " m"], v: Float[Array, " m"]) -> Float[Array, " m"]:
        """The exponential map: the end of the geodesic of unit time that leaves x with the velocity v, `(m,)`.

        Integrated by diffrax (Dopri8, rtol 1e-12; 1e-6 in float32), differentiable in both modes. Coordinates are not
        wrapped into their periods, and a geodesic may leave the `bounds`, where `fn` goes on: `status` tells. NaN where
        the metric degenerates on the way.
        """
        return exponential(self, self._point(x, "exp"), self._point(v, "exp", "v"))

    def connect(
        self, x: Float[Array, " m"], y: Float[Array, " m"], *, nodes: Count = None, panels: Count = None, turns: int = 1
    ) -> Geodesic:
        """The shortest geodesic found from x to y, as a curve, with a code and with the runner-up.

        From the straight line in the chart, the nearer way around each period and up to `turns` more either way around,
        a polyline of at least 32 segments, or one a panel, is shortened until it is a minimum; the shortest and those
        within 3 % of it are refined by Newton's method on Legendre collocation, in panels of `nodes` nodes each whose
        ends move to where the coordinates turn. Where the code is successful it is a geodesic that no other one nearby
        undercuts, to about 1e-8; that no shorter one exists is certain only within the injectivity radius. Under
        `jax.vmap` the lanes that are hard take the time, not all of them. Differentiable once in the points and the
        chart, by the implicit function theorem.

        **Arguments:** `panels`: by default 24, which do where the metric is smooth, and 64 on a `surrogate`, which may
        be rough: where lanes are `inaccurate` or not found, take more. `nodes`: by default 10, or 8 from 32 panels on.

        **Raises:** `ArgumentError` for an end outside of the `bounds`; under `jax.jit` that is the code `outside`.

        **Cost:** (2 turns + 1)^p polylines, p being the number of periodic coordinates, and for the best of them about
        4 iterations of `panels` systems of size `nodes` m.

        **Example:** a way in the hyperbolic plane, its logarithm and points at equal distances.

        >>> plane = dw.geometry.Metric(lambda x: jnp.eye(2) / x[1] ** 2, dim=2)
        >>> x, y = jnp.array([0.0, 1.0]), jnp.array([0.0, 4.0])
        >>> way = plane.connect(x, y, nodes=4, turns=0)
        >>> round(float(way.length / jnp.log(2)), 9), bool(way.result == dw.RESULTS.successful)
        (2.0, True)
        >>> [round(float(value / jnp.log(2)), 6) for value in plane.log(x, y, nodes=4, turns=0)]
        [0.0, 2.0]
        >>> [round(float(value), 6) for value in plane.geodesic(x, y, 3, nodes=4, turns=0)[:, 1]]
        [1.0, 2.0, 4.0]
        >>> [round(float(value), 6) for value in plane.exp(x, way.velocity)]
        [0.0, 4.0]
        """
        return connect(self, *self._ends(x, y, nodes, panels, turns, "connect"))

    def log(
        self, x: Float[Array, " m"], y: Float[Array, " m"], *, nodes: Count = None, panels: Count = None, turns: int = 1
    ) -> Float[Array, " m"]:
        """The logarithm: the velocity at x of the shortest geodesic found that is at y at time 1, `(m,)`.

        NaN where none was found; `connect` tells why.
        """
        found = self.connect(x, y, nodes=nodes, panels=panels, turns=turns)
        return _where_found(found, found.velocity)

    def distance(
        self, x: Float[Array, " m"], y: Float[Array, " m"], *, nodes: Count = None, panels: Count = None, turns: int = 1
    ) -> Scalar:
        """The length of the shortest geodesic found from x to y; NaN where none was. Pairs: `jax.vmap`.

        Being least, lengths have the square of the error of the curve: they are given where the speed varies by less
        than eps^0.4 (5e-7 in float64), with an error near 1e-13. Differentiable once, by the envelope theorem.

        **Example:** log 4 in the hyperbolic plane.

        >>> plane = dw.geometry.Metric(lambda x: jnp.eye(2) / x[1] ** 2, dim=2)
        >>> length = plane.distance(jnp.array([0.0, 1.0]), jnp.array([0.0, 4.0]), nodes=4, turns=0)
        >>> round(float(length / jnp.log(2)), 9)
        2.0
        """
        return distance(self, *self._ends(x, y, nodes, panels, turns, "distance"))

    def distances(
        self, points: Float[Array, "n m"], *, nodes: Count = None, panels: Count = None, turns: int = 1
    ) -> Float[Array, "n n"]:
        """The distances between all pairs of n points, `(n, n)`, symmetric; each pair is solved once.

        NaN where no geodesic was found; `distance` and `connect` tell more of one pair. Differentiable like `distance`.

        **Cost:** n (n - 1) / 2 times that of `distance`, in one batch.

        **Example:**

        >>> plane = dw.geometry.Metric(lambda x: jnp.eye(2) / x[1] ** 2, dim=2)
        >>> found = plane.distances(jnp.array([[0.0, 1.0], [0.0, 2.0], [0.0, 8.0]]), nodes=4, turns=0)
        >>> [round(float(value), 9) for value in found[0] / jnp.log(2)]
        [0.0, 1.0, 3.0]
        """
        effort = self._effort(nodes, panels, turns, "distances")
        points = as_floating(points)
        check_shape(points, "points", ("n", self.dim), caller=f"{type(self).__name__}.distances")
        self._check_inside(points, "points", "distances")
        return pairwise(self, points, effort)

    def geodesic(
        self,
        x: Float[Array, " m"],
        y: Float[Array, " m"],
        n: int,
        *,
        nodes: Count = None,
        panels: Count = None,
        turns: int = 1,
    ) -> Float[Array, "n m"]:
        """n points of it at equal distances, both ends among them, `(n, m)`; NaN where none was found."""
        n = check_positive_integer(n, "n", minimum=2, caller=f"{type(self).__name__}.geodesic")
        found = self.connect(x, y, nodes=nodes, panels=panels, turns=turns)
        return _where_found(found, jax.vmap(found)(jnp.linspace(0, 1, n, dtype=found.start.dtype)))

    def karcher_mean(
        self,
        points: Float[Array, "n m"],
        *,
        weights: Any = None,
        nodes: Count = None,
        panels: Count = None,
        turns: int = 1,
    ) -> KarcherMean:
        """The point of which the squares of the distances to n points, `(n, m)`, are least on average, certified.

        By steps to the mean of the logarithms, from the point nearest to the others. Differentiable once in the points,
        the weights and the chart.

        **Arguments:** `weights`, `(n,)`, positive; they are divided by their sum.

        **Cost:** about 10 logarithms of each point.

        **Limits:** it needs a logarithm of every point: one that is missing makes all of it `singular`, as on rough
        surfaces, where more `panels` help. The mean may be one of several unless the `radius` is small. Example: see
        [`KarcherMean`][dynwarp.geometry.KarcherMean].
        """
        caller = f"{type(self).__name__}.karcher_mean"
        effort = self._effort(nodes, panels, turns, "karcher_mean")
        points = as_floating(points)
        check_shape(points, "points", ("n", self.dim), caller=caller)
        self._check_inside(points, "points", "karcher_mean")
        weights = jnp.ones(len(points), points.dtype) if weights is None else as_floating(weights).astype(points.dtype)
        check_shape(weights, "weights", (len(points),), caller=caller)
        known = concrete(weights)
        if known is not None and not (known > 0).all():
            raise ArgumentError(f"{caller}: `weights` must be positive; got {known.min()}.")
        return karcher_mean(self, points, weights / jnp.sum(weights), effort)

    def holonomy(self, loop: Any) -> Float[Array, "m m"]:
        """How tangents turn that are carried parallel around a loop, `(m, m)`, orthogonal, in an orthonormal frame.

        Of a surface it is a rotation by the integral of K dA enclosed, modulo 2 pi, in the sense of the loop:
        `arctan2(H[1, 0], H[0, 0])`.

        **Arguments:** `loop`, as `curve` of `parallel_transport`; its ends must be the same point, up to periods.

        **Raises:** `ArgumentError` where they are not.

        **Example:** around a circle about (0, 3) in the hyperbolic plane, of curvature -1 and area 2 pi (cosh r - 1).

        >>> plane = dw.geometry.Metric(lambda x: jnp.eye(2) / x[1] ** 2, dim=2)
        >>> def circle(s):
        ...     return jnp.stack([jnp.cos(2 * jnp.pi * s), 3 + jnp.sin(2 * jnp.pi * s)])
        >>> H = plane.holonomy(circle)
        >>> area = 2 * jnp.pi * (3 / 8**0.5 - 1)
        >>> round(float(jnp.arctan2(H[1, 0], H[0, 0]) / area), 9)
        -1.0
        """
        loop = self._curve(loop, "loop", "holonomy")
        first, last = (loop(jnp.asarray(s)) for s in (0.0, 1.0))
        gap = [d if p is None else d - p * jnp.round(d / p) for d, p in zip(last - first, self.periods)]
        known = concrete(jnp.max(jnp.abs(jnp.stack(gap))))
        if known is not None and not known <= 1e-6 * (1 + np.max(np.abs(first))):
            raise ArgumentError(
                f"{type(self).__name__}.holonomy: `loop` must end where it begins, up to periods; off by {known:.3g}."
            )
        return holonomy(self, loop)

    def gauss_bonnet(self, n: int | Sequence[int]) -> GaussBonnet:
        """The integral of the curvature of a surface over its chart, and the Euler characteristic that follows.

        Equally spaced points along periodic coordinates, Gauss-Legendre nodes along bounded ones.

        **Arguments:** `n`, the number of points, at least 4, or a sequence of one for each coordinate.

        **Raises:** `ArgumentError` unless the dimension is 2 and each coordinate has a period or finite bounds.

        **Limits:** of smooth surfaces the error falls faster than any power of `n`. Where the chart is nearly singular,
        at kinks and on rough states of networks (gain 1.3), many points are needed: raise `n` until the characteristic
        is a whole number. NaN where a point has no curvature. Example: see
        [`GaussBonnet`][dynwarp.geometry.GaussBonnet].
        """
        if self.dim != 2:
            raise ArgumentError(f"{type(self).__name__}.gauss_bonnet: of surfaces, of 2 dimensions; got {self.dim}.")
        axes = tensor_axes(self, n, f"{type(self).__name__}.gauss_bonnet")
        return gauss_bonnet(self, axes, dtype_of(self))

    def regularised(self, scale: float, *, reference: Any = None) -> Any:
        """The [`Metric`][dynwarp.geometry.Metric] G + scale^2 G_ref, which has curvature and geodesics where G is
        degenerate; they are its own, not those of G, and near there they depend on `scale`.

        **Arguments:** `scale`, positive, in lengths of the manifold per length of the reference; `reference`, another
        chart of the same coordinates, or None for that of the coordinates.

        **Example:** where a metric vanishes.

        >>> point = dw.geometry.Metric(lambda x: x[0] ** 2 * jnp.eye(2), dim=2)
        >>> float(point.regularised(0.5).volume(jnp.zeros(2)))
        0.25
        """
        from dynwarp.geometry._metric import Metric

        if not scale > 0:
            raise ArgumentError(f"{type(self).__name__}.regularised: `scale` must be positive; got {scale}.")
        fn = _Regularised(self, reference, float(scale))
        return Metric(fn, dim=self.dim, periods=self.periods, bounds=self.bounds, tolerance=self.tolerance)

    def parallel_transport(self, curve: Any, v: Float[Array, " m"]) -> Float[Array, " m"]:
        """The tangent v at the start of a curve carried parallel to its end, `(m,)`.

        **Arguments:** `curve`, a function of s in [0, 1], such as a [`Geodesic`][dynwarp.geometry.Geodesic], or at
        least 4 points `(n, m)` at equal steps of it, through which a cubic spline is laid (error n^-4); `v`, `(m,)`.

        **Example:** along a line of the hyperbolic plane that is no geodesic, so that tangents turn by 1 a unit of it.

        >>> plane = dw.geometry.Metric(lambda x: jnp.eye(2) / x[1] ** 2, dim=2)
        >>> carried = plane.parallel_transport(lambda s: jnp.stack([s, jnp.ones_like(s)]), jnp.array([0.0, 1.0]))
        >>> round(float(jnp.arctan2(carried[0], carried[1])), 9)
        1.0
        """
        v = self._point(v, "parallel_transport", "v")
        return transport(self, self._curve(curve, "curve", "parallel_transport", v.dtype), v)

    def _curve(self, curve, name, caller, dtype=None):
        """The curve as a function; points, in `dtype` if it is given, become a spline."""
        caller = f"{type(self).__name__}.{caller}"
        if callable(curve):
            # What a closure holds may be traced, so that the shape is asked of a value.
            check_shape(curve(jnp.zeros((), dtype)), f"{name}(s)", (self.dim,), caller=caller)
            return curve
        curve = as_floating(curve)
        check_shape(curve, name, ("n", self.dim), caller=caller)
        if len(curve) < 4:
            raise ArgumentError(f"{caller}: `{name}` must hold at least 4 points; got {len(curve)}.")
        return spline(curve if dtype is None else curve.astype(dtype))

    def surrogate(self, grid: int | Sequence[int]) -> Self:
        """The same with `fn` replaced by its interpolant on a tensor grid, for geodesics, distance matrices and maps of
        expensive surfaces.

        Fourier series along periodic coordinates, Chebyshev series along those with `bounds`: for a smooth `fn` the
        error falls faster than any power of the number of nodes, for one with kinks it falls slowly. `.fn` is an
        [`Interpolant`][dynwarp.geometry.Interpolant], whose `error` is an estimate of it. Of an immersion it is the
        points that are interpolated; where N is large and lengths are all that is wanted, the surrogate of
        `Metric(immersion.metric, ...)` is cheaper. Differentiable in the arrays of `fn`.

        **Arguments:** `grid`, the number of nodes, at least 4, or a sequence of one for each coordinate.

        **Raises:** `ArgumentError` for a coordinate with neither a period nor finite bounds, and for a grid that does
        not fit; `NonFiniteError` where `fn` is not finite on the grid (under `jax.jit` all is NaN instead).

        **Cost:** one evaluation of `fn` for each of the nodes, all side by side.
        """
        fn = interpolate(self, type(self)._value, grid)
        return eqx.tree_at(lambda chart: chart.fn, self, fn)

    def _ends(self, x, y, nodes, panels, turns, caller):
        x, y = self._point(x, caller), self._point(y, caller, "y")
        self._check_inside(x, "x", caller)
        self._check_inside(y, "y", caller)
        return x, y, self._effort(nodes, panels, turns, caller)

    def _effort(self, nodes, panels, turns, caller):
        caller = f"{type(self).__name__}.{caller}"
        if panels is None:
            panels = 64 if isinstance(self.fn, Interpolant) else 24
        panels = check_positive_integer(panels, "panels", minimum=2, caller=caller)
        nodes = (10 if panels < 32 else 8) if nodes is None else nodes
        nodes = check_positive_integer(nodes, "nodes", minimum=4, caller=caller)
        return Effort(nodes, panels, check_positive_integer(turns, "turns", minimum=0, caller=caller))

    def _check_inside(self, x, name, caller):
        """Raises for points outside of the bounds, where they are known."""
        known = concrete(jax.vmap(lambda x: within(self, x))(x.reshape(-1, self.dim)))
        if known is not None and not known.all():
            point = np.asarray(x).reshape(-1, self.dim)[np.argmin(known)]
            raise ArgumentError(
                f"{type(self).__name__}.{caller}: `{name}` must be within the bounds of the chart, {self.bounds}; got "
                f"{point.tolist()}."
            )

    def _point(self, x, caller, name="x"):
        caller = f"{type(self).__name__}.{caller}"
        x = as_real(x, name, caller=caller)
        check_shape(x, name, (self.dim,), caller=caller)
        return x


class _Regularised(eqx.Module):
    """G + scale^2 G_ref as a function of the point."""

    chart: Any
    reference: Any
    scale: float = eqx.field(static=True)

    def __call__(self, x):
        added = jnp.eye(self.chart.dim, dtype=x.dtype) if self.reference is None else self.reference._metric(x)
        return self.chart._metric(x) + self.scale**2 * added


def _where_found(geodesic, value):
    return jnp.where(geodesic.result == RESULTS.successful, value, jnp.nan)


def check_chart(fn: Any, dim: Any, periods: Any, bounds: Any, caller: str) -> tuple[int, tuple, tuple]:
    """`dim`, `periods` and `bounds` in full; raises for what does not fit."""
    if not callable(fn):
        raise ArgumentError(f"{caller}: `fn` must be a function of one point (dim,); got {type(fn).__name__}.")
    dim = check_positive_integer(dim, "dim", caller=caller)
    periods, bounds = check_axes(dim, periods, bounds, caller=caller)
    periods = tuple(None if p is None else float(p) for p in periods)
    return dim, periods, tuple(None if b is None else (float(b[0]), float(b[1])) for b in bounds)


def evaluate(chart: AbstractChart, x: jax.Array) -> jax.Array:
    """`fn` at a point, in an inexact dtype."""
    return as_floating(chart.fn(x))
