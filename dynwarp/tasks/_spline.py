"""A manifold fitted to recorded inputs by splines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import as_real, check_finite, check_positive, check_real, check_shape
from dynwarp.errors import ArgumentError
from dynwarp.tasks._input_manifold import InputManifold


class SplineManifold(InputManifold):
    """Recorded inputs with a cubic spline between them along every coordinate.

    **Arguments:**

    - `knots`: for each coordinate the increasing values at which there are inputs, at least 3; for one coordinate the
      array alone. Those of a periodic one leave out its upper end, where the first input comes again.
    - `inputs`: at all combinations of the knots, shape `(n_1, ..., n_m, T, d)`.
    - `periods`: as in [`InputManifold`][dynwarp.tasks.InputManifold]; None: no coordinate is periodic.
    - `ts`: the T times of the rows, at least 3; with it the manifold is one of signals as well, with a cubic spline
      along time. None: of sequences only.

    The splines are twice continuously differentiable, periodic where the coordinate is and not-a-knot elsewhere, and
    pass through the inputs. The error is O(h^4) in the distance h of the knots. Beyond the first and the last knot the
    outermost cubic goes on. `SplineManifold.from_trials` is for trials with scattered coordinates and noise.

    **Raises:** `ShapeError`, `NonFiniteError`, `ArgumentError` for what does not fit.

    **Cost:** of one point, O(n_1 ... n_m T d).

    **Example:** a circle recorded at eight angles.

    >>> angles = jnp.arange(8.0) * (jnp.pi / 4)
    >>> recorded = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)[:, None, :]
    >>> manifold = dw.tasks.SplineManifold(angles, recorded, periods=(2 * jnp.pi,))
    >>> manifold(jnp.array([0.5])).round(2).tolist()
    [[0.88, 0.48]]
    """

    values: Float[Array, "..."]
    knots: tuple[Float[Array, " n"], ...]
    cubics: tuple[Float[Array, "4 intervals n"], ...]
    dim: int = eqx.field(static=True)
    periods: tuple[float | None, ...] = eqx.field(static=True)
    bounds: tuple[tuple[float, float], ...] = eqx.field(static=True)

    def __init__(self, knots: Any, inputs: Any, *, periods: Any = None, ts: Any = None):
        caller = "SplineManifold"
        knots = _as_knots(knots)
        self.values = as_real(inputs, "inputs", caller=caller)
        check_shape(self.values, "inputs", (*(len(k) for k in knots), "T", "d"), caller=caller)
        check_finite(self.values, "inputs", caller=caller)
        self.dim = len(knots)
        self.periods, self.bounds = _ranges(knots, periods)
        axes = list(zip(knots, self.periods, ["knots"] * len(knots)))
        if ts is not None:
            check_real(ts, "ts", caller=caller)
            times = np.asarray(ts, float)
            check_shape(times, "ts", (self.values.shape[-2],), caller=caller)
            axes.append((times, None, "ts"))
        dtype = self.values.dtype
        self.knots = tuple(jnp.asarray(k, dtype) for k, _, _ in axes)
        self.cubics = tuple(jnp.asarray(_cardinal_cubics(*axis), dtype) for axis in axes)

    @classmethod
    def from_trials(
        cls, thetas: Any, inputs: Any, knots: Any, *, periods: Any = None, ts: Any = None
    ) -> SplineManifold:
        """The spline with these knots that is nearest, in the mean square, to the inputs of many trials (host).

        **Arguments:** `thetas`, the coordinates of each trial, `(n, m)`; `inputs`, `(n, T, d)`; the others as above.

        **Raises:** `ArgumentError` where the trials do not determine the spline.

        **Example:**

        >>> thetas = jax.random.uniform(jax.random.key(0), (50, 1))
        >>> manifold = dw.tasks.SplineManifold.from_trials(thetas, thetas[:, :, None] ** 3, jnp.linspace(0, 1, 4))
        >>> manifold(jnp.array([0.5])).round(6).tolist()
        [[0.125]]
        """
        knots = _as_knots(knots)
        caller = "SplineManifold.from_trials"
        check_real(thetas, "thetas", caller=caller)
        dtype = as_real(inputs, "inputs", caller=caller).dtype
        thetas, inputs = np.asarray(thetas), np.asarray(inputs)
        check_shape(thetas, "thetas", ("n", len(knots)), caller=caller)
        check_shape(inputs, "inputs", (len(thetas), "T", "d"), caller=caller)
        check_finite(thetas, "thetas", caller=caller)
        check_finite(inputs, "inputs", caller=caller)
        shape = tuple(len(k) for k in knots)
        basis = cls(knots, np.zeros((*shape, 1, 1)), periods=periods)
        weights = _design(basis, jnp.asarray(thetas, basis.values.dtype))
        flat = inputs.reshape(len(inputs), -1)
        values, _, rank, _ = np.linalg.lstsq(np.asarray(weights), flat, rcond=None)
        if rank < math.prod(shape):
            raise ArgumentError(
                f"SplineManifold.from_trials: {len(thetas)} trials determine {rank} of the {math.prod(shape)} inputs "
                "at the knots; take fewer knots, or trials nearer to all of them."
            )
        values = values.astype(dtype)
        return cls(knots, values.reshape(*shape, *inputs.shape[1:]), periods=periods, ts=ts)

    def __call__(self, theta, t=None):
        theta = as_real(theta, "theta", caller="SplineManifold")
        check_shape(theta, "theta", (self.dim,), caller="SplineManifold")
        value = self.values
        for weights in self._weights(theta):
            value = jnp.tensordot(weights.astype(value.dtype), value, axes=1)
        if t is None:
            return value
        if len(self.cubics) == self.dim:
            raise ArgumentError("SplineManifold: inputs at a time `t` need the times `ts` of the rows.")
        return _evaluate(self.knots[-1], self.cubics[-1], jnp.asarray(t, value.dtype)) @ value

    def _weights(self, theta):
        """The weight of each knot, one vector a coordinate."""
        theta = self.wrap(theta)
        return [
            _evaluate(k, c, theta[i].astype(k.dtype))
            for i, (k, c) in enumerate(zip(self.knots[: self.dim], self.cubics))
        ]


def _as_knots(knots: Any) -> list[np.ndarray]:
    if isinstance(knots, int | float | str):
        raise ArgumentError(f"SplineManifold: `knots` must be an array, or one for each coordinate; got {knots!r}.")
    several = isinstance(knots, Sequence) and len(knots) > 0 and np.ndim(knots[0]) > 0
    knots = knots if several else [knots]
    for k in knots:
        check_real(k, "knots", caller="SplineManifold")
    return [np.asarray(k, float) for k in knots]


def _ranges(knots, periods):
    """Periods and bounds of the coordinates."""
    periods = (None,) * len(knots) if periods is None else periods
    if not isinstance(periods, tuple | list) or len(periods) != len(knots):
        raise ArgumentError(
            f"SplineManifold: `periods` must have one entry for each of the {len(knots)} coordinates; got {periods!r}."
        )
    for p in periods:
        if p is not None:
            check_positive(p, "periods", caller="SplineManifold")
    periods = tuple(None if p is None else float(p) for p in periods)
    ends = [k[-1] if p is None else k[0] + p for k, p in zip(knots, periods)]
    return periods, tuple((float(k[0]), float(end)) for k, end in zip(knots, ends))


def _cardinal_cubics(knots: np.ndarray, period: float | None, name: str) -> np.ndarray:
    """The cubics, (4, intervals, n), of the n splines that are 1 at one knot and 0 at the others."""
    from scipy.interpolate import CubicSpline

    if knots.ndim != 1 or len(knots) < 3 or not np.isfinite(knots).all() or (np.diff(knots) <= 0).any():
        raise ArgumentError(f"SplineManifold: `{name}` must be at least 3 finite numbers that increase; got {knots}.")
    ones = np.eye(len(knots))
    if period is None:
        return CubicSpline(knots, ones).c
    if knots[-1] - knots[0] >= period:
        raise ArgumentError(
            f"SplineManifold: the `knots` of a coordinate of period {period} must leave its upper end out; they range "
            f"from {knots[0]} to {knots[-1]}."
        )
    return CubicSpline(np.append(knots, knots[0] + period), np.append(ones, ones[:1], axis=0), bc_type="periodic").c


def _evaluate(knots, cubics, x):
    """The n splines at x."""
    i = jnp.clip(jnp.searchsorted(knots, x, side="right") - 1, 0, cubics.shape[1] - 1)
    h = x - knots[i]
    a, b, c, d = cubics[:, i]
    return ((a * h + b) * h + c) * h + d


@eqx.filter_jit
def _design(spline, thetas):
    """The weight at each point of each combination of knots, in C order: (n, n_1 ... n_m)."""

    def row(theta):
        first, *others = spline._weights(theta)
        for weights in others:
            first = jnp.outer(first, weights).reshape(-1)
        return first

    return jax.vmap(row)(thetas)
