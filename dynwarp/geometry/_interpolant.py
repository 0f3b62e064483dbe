"""Functions of a chart as series on a tensor grid: Fourier along periodic coordinates, Chebyshev along bounded ones."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer, check_shape, default_float
from dynwarp._compat import concrete
from dynwarp.dynamics._stepping import as_floating
from dynwarp.errors import ArgumentError, NonFiniteError

_CALLER = "surrogate"
# The greatest ratio that is taken for the decay of coefficients from block to block.
_SLOWEST = 0.8
# Coefficients beyond the last count twice, being left out and aliased; twice again, as their signs hide the decay.
_SAFETY = 4


class _Axis(NamedTuple):
    """A coordinate: the number of nodes, the lower end, the length, and whether it is periodic."""

    nodes: int
    lower: float
    length: float
    periodic: bool


class Interpolant(eqx.Module):
    """The interpolant of a function in as many nodes per coordinate as `surrogate` of a
    [`Metric`][dynwarp.geometry.Metric] or an [`Immersion`][dynwarp.geometry.Immersion] was given; it is the `fn` of
    what that returns, and as smooth as a polynomial.

    Called with a point `(m,)`, in whose precision it is evaluated. Periodic coordinates run on through their periods;
    NaN outside of `bounds`, where a polynomial says nothing.

    **Attributes:**

    - `error`: `(m,)`, an estimate of the error of the function for want of nodes along each coordinate, relative to its
      largest value; their sum is that of the whole. Read off the decay of the coefficients: the last third of them,
      the third before it, and what these lead to beyond the last, with a factor of two for safety: right for smooth
      functions, up to ten times too small for kinks, and blind to what no sample sees. It is of the function itself:
      each derivative loses about a factor of the number of nodes, at the ends of a bounded coordinate up to its square.
      NaN where a sample was not finite.
    - `coefficients`: `(n_1, ..., n_m, *values)`: of cos(k t), then of sin(k t), t = 2 pi (x - lower) / period; or of
      the Chebyshev polynomials.

    **Cost:** of one value, its n_1 ... n_m coefficients times its size.

    **Example:**

    >>> curve = dw.geometry.Metric(lambda x: (2 + jnp.cos(x[0])) * jnp.eye(1), dim=1, periods=(2 * jnp.pi,))
    >>> bool(curve.surrogate(8).fn.error.sum() < 1e-13)
    True
    """

    coefficients: Float[Array, "..."]
    error: Float[Array, " m"]
    axes: tuple[_Axis, ...] = eqx.field(static=True)

    def __call__(self, x: Float[Array, " m"]) -> Float[Array, "..."]:
        """The value at a point."""
        x = as_floating(x)
        check_shape(x, "x", (len(self.axes),), caller="Interpolant")
        value = self.coefficients.astype(x.dtype)
        for axis, coordinate in zip(self.axes, x):
            value = jnp.tensordot(_basis(axis, coordinate), value, 1, precision="highest")
        return value

    def jet(self, x: Float[Array, " m"]) -> tuple[Float[Array, "..."], Float[Array, "m ..."], Float[Array, "m m ..."]]:
        """The value at a point, `(*values)`, its first, `(m, *values)`, and its second derivatives, `(m, m, *values)`.

        **Cost:** about three values; by nested derivatives it would be 1 + m + m^2 of them.
        """
        x = as_floating(x)
        check_shape(x, "x", (len(self.axes),), caller="Interpolant.jet")
        # Sums along the axes done, by the orders of the derivatives along them.
        sums: dict[tuple[int, ...], Array] = {(): self.coefficients.astype(x.dtype)}
        for axis, coordinate in zip(self.axes, x):
            basis = functools.partial(_basis, axis)
            rows = jnp.stack([basis(coordinate), *_two_derivatives(basis, coordinate)])
            along = {}
            for orders, value in sums.items():
                every = jnp.tensordot(rows[: 3 - sum(orders)], value, 1, precision="highest")
                along |= {(*orders, order): each for order, each in enumerate(every)}
            sums = along
        m = len(self.axes)
        unit = np.eye(m, dtype=int)
        first = jnp.stack([sums[tuple(unit[i])] for i in range(m)])
        second = jnp.stack([jnp.stack([sums[tuple(unit[i] + unit[j])] for j in range(m)]) for i in range(m)])
        return sums[(0,) * m], first, second


def _two_derivatives(fn, x):
    """The first and the second derivative of a function of one number."""
    one = jnp.ones_like(x)
    return jax.jvp(lambda x: jax.jvp(fn, (x,), (one,))[1], (x,), (one,))


def interpolate(chart: Any, fn: Any, grid: int | Sequence[int]) -> Interpolant:
    """`fn`, a method of the chart as a function of (chart, point), by its values on the grid."""
    axes = tensor_axes(chart, grid, f"{type(chart).__name__}.{_CALLER}")
    coefficients, error, finite = _fit(chart, fn, axes)
    known = concrete(finite)
    if known is not None and not known.all():
        first = tuple(np.argwhere(~known)[0])
        point = [float(_nodes(axis)[i]) for axis, i in zip(axes, first)]
        raise NonFiniteError(
            f"{type(chart).__name__}.{_CALLER}: `fn` must be finite on the grid; it is not at {np.sum(~known)} of its "
            f"{known.size} points, the first {point}."
        )
    return Interpolant(coefficients, error, axes)


@eqx.filter_jit
def _fit(chart, fn, axes):
    dtype = dtype_of(chart)
    points = jnp.stack(jnp.meshgrid(*[jnp.asarray(_nodes(a), dtype) for a in axes], indexing="ij"), -1)
    counts = points.shape[:-1]
    values = jax.vmap(lambda x: fn(chart, x))(points.reshape(-1, len(axes)))
    values = values.reshape(*counts, *values.shape[1:])
    finite = jnp.all(jnp.isfinite(values).reshape(*counts, -1), -1)
    coefficients = values
    for i, axis in enumerate(axes):
        along = jnp.tensordot(jnp.asarray(_transform(axis), values.dtype), coefficients, (1, i), precision="highest")
        coefficients = jnp.moveaxis(along, 0, i)
    sizes = jnp.abs(coefficients).reshape(*counts, -1)
    rounding = jnp.finfo(sizes.dtype).eps * jnp.sum(sizes, tuple(range(len(axes))))
    largest = jnp.max(jnp.abs(values))
    errors = []
    for i, axis in enumerate(axes):
        others = tuple(j for j in range(len(axes)) if j != i)
        errors.append(jnp.max(_beyond(axis, jnp.sum(sizes, others)) + rounding))
    return coefficients, jnp.stack(errors) / jnp.where(largest == 0, 1, largest), finite


def _beyond(axis, sizes):
    """What comes after the last of the coefficients, `(n, values)`, if they decay by one ratio a block."""
    # Of the last wavenumber an even number of nodes sees the cosine alone. Even widths: as many even as odd degrees.
    top = (axis.nodes - 1) // 2 if axis.periodic else axis.nodes - 1
    width = 2 * max(1, (top + 1) // 6)
    block = (top - _degrees(axis)) // width
    last, previous = (jnp.sum(sizes[block == i], 0) for i in (0, 1))
    ratio = jnp.where(last < _SLOWEST * previous, last / jnp.where(previous > 0, previous, 1), _SLOWEST)
    return _SAFETY * last * ratio / (1 - ratio)


def _degrees(axis):
    """The wavenumber or the degree of each element of the basis."""
    n = axis.nodes
    return np.concatenate([np.arange(n // 2 + 1), np.arange(1, (n + 1) // 2)]) if axis.periodic else np.arange(n)


def _basis(axis, x):
    """The n elements of the basis at a coordinate."""
    n, lower, length, periodic = axis
    if periodic:
        angles = 2 * np.pi / length * (x - lower) * jnp.arange(n // 2 + 1, dtype=x.dtype)
        return jnp.concatenate([jnp.cos(angles), jnp.sin(angles[1 : (n + 1) // 2])])
    s = (2 * (x - lower) - length) / length
    # Coordinates at the ends are rounded.
    inside = jnp.abs(s) <= 1 + 16 * jnp.finfo(x.dtype).eps
    return _polynomials(n, jnp.where(inside, jnp.clip(s, -1, 1), jnp.nan))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _polynomials(n, s):
    """The first n Chebyshev polynomials at s in [-1, 1]."""
    return jnp.cos(jnp.arange(n, dtype=s.dtype) * jnp.arccos(s))


@_polynomials.defjvp
def _polynomials_jvp(n, primals, tangents):
    # Derivatives are sums of polynomials again: of any order, in small programs, without the singular one of arccos.
    values = _polynomials(n, *primals)
    derivative = jnp.asarray(np.polynomial.chebyshev.chebder(np.eye(n)), values.dtype)
    return values, jnp.matmul(derivative.T, values[:-1], precision="highest") * tangents[0]


def _nodes(axis):
    n, lower, length, periodic = axis
    if periodic:
        return lower + length * np.arange(n) / n
    # Of the first kind, without the ends, where charts such as that of the sphere are singular.
    return lower + length * (1 - np.cos(np.pi * (np.arange(n) + 0.5) / n)) / 2


def _transform(axis):
    """The coefficients from the values at the nodes, (n, n)."""
    n, degrees = axis.nodes, _degrees(axis)
    if not axis.periodic:
        angles = np.pi * ((degrees[:, None] * (2 * np.arange(n) + 1)) % (4 * n)) / (2 * n)
        return np.where(degrees % 2, -1, 1)[:, None] * np.where(degrees, 2, 1)[:, None] * np.cos(angles) / n
    angles = 2 * np.pi * ((degrees[:, None] * np.arange(n)) % n) / n
    cosines = n // 2 + 1
    waves = np.concatenate([np.cos(angles[:cosines]), np.sin(angles[cosines:])])
    return np.where((degrees == 0) | (2 * degrees == n), 1, 2)[:, None] * waves / n


def tensor_axes(chart, grid, caller):
    """The coordinates of a chart with numbers of nodes, checked."""
    if isinstance(grid, int | np.integer):
        counts = (grid,) * chart.dim
    elif isinstance(grid, Sequence) and not isinstance(grid, str) and len(grid) == chart.dim:
        counts = tuple(grid)
    else:
        raise ArgumentError(
            f"{caller}: `grid` must be a number of nodes, or one for each of the {chart.dim} coordinates; got {grid!r}."
        )
    axes = []
    for i, count, period, bound in zip(itertools.count(), counts, chart.periods, chart.bounds):
        count = check_positive_integer(count, "grid", minimum=4, caller=caller)
        lower, upper = (0.0, np.nan) if bound is None else map(float, bound)
        length = upper - lower if period is None else float(period)
        if not (np.isfinite(lower) and 0 < length < np.inf):
            raise ArgumentError(
                f"{caller}: coordinate {i} has neither a period nor finite bounds, lower below upper, so there is no "
                f"grid along it; its bounds are {bound}. Give `periods` or `bounds` to {type(chart).__name__}."
            )
        axes.append(_Axis(count, lower, length, period is not None))
    return tuple(axes)


def dtype_of(chart):
    """That of the arrays in `fn`, if it holds any."""
    leaves = jax.tree.leaves(eqx.filter(chart.fn, eqx.is_inexact_array))
    return leaves[0].real.dtype if leaves else default_float()
