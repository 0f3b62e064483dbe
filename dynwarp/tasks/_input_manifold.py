"""The set of inputs that a task, or a picture of a network, varies: a chart of few coordinates."""

import abc
import functools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import as_real, check_positive_integer, check_shape
from dynwarp._typing import Input, Inputs, PRNGKey, Scalar
from dynwarp.errors import ArgumentError
from dynwarp.tasks._parameters import check_axes


class InputManifold(eqx.Module):
    """A family of inputs with coordinates theta, such as the angle of a stimulus and its strength.

    A subclass sets three attributes and implements `__call__` for one point; batches are made with `jax.vmap`.

    **Attributes a subclass sets:**

    - `dim`: m, the number of coordinates.
    - `periods`: a tuple of m, each the period of a coordinate, or None where it is not periodic.
    - `bounds`: a tuple of m, each (lower, upper), or None where a coordinate is free. A periodic one ranges over
      [lower, lower + period), with lower = 0 where its bounds are None.

    Either tuple may be None as a whole.

    **Example:** a stimulus on a circle, shown for `T` steps and then withheld.

    >>> import math, jax.numpy as jnp, dynwarp as dw
    >>> class Ring(dw.tasks.InputManifold):
    ...     T: int = 4
    ...     dim: int = 1
    ...     periods: tuple = (2 * math.pi,)
    ...     bounds: tuple = (None,)
    ...     def __call__(self, theta, t=None):
    ...         shown = jnp.where(jnp.arange(self.T) < self.T // 2, 1.0, 0.0)
    ...         return shown[:, None] * jnp.stack([jnp.cos(theta[0]), jnp.sin(theta[0])])
    >>> ring = Ring()
    >>> ring.grid(8).shape, ring(ring.grid(8)[0]).shape
    ((8, 1), (4, 2))
    """

    dim: eqx.AbstractVar[int]
    periods: eqx.AbstractVar[tuple[float | None, ...] | None]
    bounds: eqx.AbstractVar[tuple[tuple[float, float] | None, ...] | None]

    @abc.abstractmethod
    def __call__(self, theta: Float[Array, " m"], t: Scalar | None = None) -> Inputs | Input:
        """The input at one point of the chart.

        **Arguments:**

        - `theta`: coordinates, shape `(dim,)`.
        - `t`: None for a manifold of sequences, which returns the inputs of all steps, `(T, d)`; a scalar for one of
          signals in continuous time, which returns the input at that time, `(d,)`.
        """

    def wrap(self, theta: Float[Array, "... m"]) -> Float[Array, "... m"]:
        """The same points with every periodic coordinate moved into its range; the others are left alone.

        **Arguments:** `theta`, shape `(..., dim)`.

        **Raises:** `ShapeError` where the last axis is not `dim`.
        """
        theta = as_real(theta, "theta", caller="InputManifold.wrap")
        check_shape(theta, "theta", (*theta.shape[:-1], self.dim), caller="InputManifold.wrap")
        columns = []
        for i, (period, bound) in enumerate(self._axes()):
            column = theta[..., i]
            if period is not None:
                lower = 0.0 if bound is None else bound[0]
                column = lower + jnp.mod(column - lower, period)
            columns.append(column)
        return jnp.stack(columns, axis=-1)

    def grid(self, n: int | Sequence[int]) -> Float[Array, "... m"]:
        """A regular grid of points, shape `(n_1, ..., n_m, dim)`.

        Bounds are met at both ends; a periodic coordinate leaves its upper end out, as it is the lower one again.

        **Arguments:**

        - `n`: how many points along each coordinate, one number for all or one each.

        **Raises:** `ArgumentError` where a coordinate has neither period nor finite bounds, or a count is no whole
        number.
        """
        axes = []
        for count, (lower, upper), (period, _) in zip(self._counts(n, "grid"), self._ranges("grid"), self._axes()):
            axes.append(jnp.linspace(lower, upper, count, endpoint=period is None))
        return jnp.stack(jnp.meshgrid(*axes, indexing="ij"), axis=-1)

    def sample(self, key: PRNGKey, n: int) -> Float[Array, "n m"]:
        """Points drawn uniformly over the ranges, shape `(n, dim)`.

        **Raises:** `ArgumentError` where a coordinate has neither period nor finite bounds, or `n` is no whole number.
        """
        n = check_positive_integer(n, "n", caller="InputManifold.sample")
        lower, upper = jnp.asarray(self._ranges("sample"), float).T
        return jax.random.uniform(key, (n, self.dim), lower.dtype, lower, upper)

    def quadrature(self, n: int | Sequence[int]) -> tuple[Float[Array, "N m"], Float[Array, " N"]]:
        """Points and weights for integrals over the chart: sum(weights * f(points)), and sum(weights) its volume.

        Equally spaced points along a periodic coordinate and Gauss-Legendre nodes along the others: both converge
        faster than any power of n for smooth functions.

        **Arguments:**

        - `n`: how many points along each coordinate, one number for all or one each; N is their product.

        **Raises:** as `grid`.
        """
        axes = []
        for count, (lower, upper), (period, _) in zip(
            self._counts(n, "quadrature"), self._ranges("quadrature"), self._axes()
        ):
            if period is None:
                nodes, weights = np.polynomial.legendre.leggauss(count)
                axes.append((lower + (upper - lower) * (nodes + 1) / 2, weights * (upper - lower) / 2))
            else:
                axes.append((lower + period * np.arange(count) / count, np.full(count, period / count)))
        points = np.stack(np.meshgrid(*(x for x, _ in axes), indexing="ij"), axis=-1)
        weights = functools.reduce(np.multiply.outer, (w for _, w in axes))
        return jnp.asarray(points.reshape(-1, self.dim), float), jnp.asarray(weights.reshape(-1), float)

    def _counts(self, n, caller):
        """How many points along each coordinate."""
        counts = tuple(n) if isinstance(n, Sequence) else (n,) * self.dim
        if len(counts) != self.dim:
            raise ArgumentError(f"InputManifold.{caller}: `n` must be one number or {self.dim} of them; got {n!r}.")
        return [check_positive_integer(count, "n", caller=f"InputManifold.{caller}") for count in counts]

    def _axes(self):
        """(period, bounds) of each coordinate."""
        return tuple(zip(*check_axes(self.dim, self.periods, self.bounds, caller=type(self).__name__)))

    def _ranges(self, caller):
        """(lower, upper) of each coordinate."""
        ranges = []
        for i, (period, bound) in enumerate(self._axes()):
            if period is not None:
                lower = 0.0 if bound is None else bound[0]
                ranges.append((lower, lower + period))
            elif bound is not None and np.isfinite(bound).all():
                ranges.append((bound[0], bound[1]))
            else:
                raise ArgumentError(
                    f"InputManifold.{caller}: coordinate {i} of {type(self).__name__} has neither a period nor bounds "
                    "that are finite."
                )
        return ranges
