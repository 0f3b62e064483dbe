"""The simple manifolds: a line, a circle, a torus."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import as_real, check_finite, check_positive_integer, check_shape
from dynwarp._compat import concrete
from dynwarp.errors import ArgumentError
from dynwarp.tasks._input_manifold import InputManifold
from dynwarp.tasks._parameters import check_bounds
from dynwarp.tasks._timeline import on_circle


class Line(InputManifold):
    """A strength along a direction, a(t) (origin + theta direction).

    **Arguments:**

    - `envelope`: a, when the input is there: an array `(T,)`, for sequences of inputs, or a function t -> scalar, for
      signals in continuous time.
    - `direction`, `origin`: shape `(d,)`; the origin is 0 if None.
    - `bounds`: the least and the greatest theta.

    **Raises:** `ShapeError`, `NonFiniteError`, `ArgumentError` for what does not fit.

    **Example:** a stimulus of two channels that is shown for two of three steps.

    >>> line = dw.tasks.Line(jnp.array([1.0, 1.0, 0.0]), jnp.array([1.0, 2.0]))
    >>> line(jnp.array([0.5])).tolist()
    [[0.5, 1.0], [0.5, 1.0], [0.0, 0.0]]
    """

    envelope: Any
    direction: Float[Array, " d"]
    origin: Float[Array, " d"]
    dim: int = eqx.field(static=True)
    periods: tuple[None] = eqx.field(static=True)
    bounds: tuple[tuple[float, float]] = eqx.field(static=True)

    def __init__(self, envelope: Any, direction: Any, *, origin: Any = None, bounds: tuple[float, float] = (-1.0, 1.0)):
        self.envelope = _as_envelope(envelope, 1, "Line")
        self.direction = _numbers(direction, "direction", ("d",), "Line")
        known = concrete(self.direction)
        if known is not None and not known.any():
            raise ArgumentError("Line: `direction` must not be 0: the coordinate would move nothing.")
        if origin is None:
            origin = jnp.zeros_like(self.direction)
        self.origin = _numbers(origin, "origin", self.direction.shape, "Line")
        self.dim, self.periods = 1, (None,)
        self.bounds = (check_bounds(bounds, "bounds", caller="Line"),)

    def __call__(self, theta, t=None):
        check_shape(theta, "theta", (1,), caller="Line")
        return _amplitude(self.envelope, t, "Line")[..., None] * (self.origin + theta * self.direction)


class Circle(InputManifold):
    """An angle, a(t) (centre + cos theta axes[0] + sin theta axes[1]).

    **Arguments:**

    - `envelope`: a, when the input is there: an array `(T,)`, for sequences of inputs, or a function t -> scalar, for
      signals in continuous time.
    - `axes`: shape `(2, d)`; the two unit vectors of two channels if None. Others make an ellipse.
    - `centre`: shape `(d,)`; 0 if None.

    **Raises:** `ShapeError`, `NonFiniteError`, `ArgumentError` for what does not fit.

    **Example:**

    >>> circle = dw.tasks.Circle(jnp.array([1.0, 0.0]))
    >>> circle(jnp.array([0.0])).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """

    envelope: Any
    axes: Float[Array, "2 d"]
    centre: Float[Array, " d"]
    dim: int = eqx.field(static=True)
    periods: tuple[float] = eqx.field(static=True)
    bounds: tuple[None] = eqx.field(static=True)

    def __init__(self, envelope: Any, *, axes: Any = None, centre: Any = None):
        self.envelope = _as_envelope(envelope, 1, "Circle")
        self.axes = _numbers(jnp.eye(2) if axes is None else axes, "axes", (2, "d"), "Circle")
        known = concrete(self.axes)
        if known is not None and np.linalg.matrix_rank(known) < 2:
            raise ArgumentError(
                "Circle: `axes` must not be parallel: the inputs would go to and fro on a line, which `Line` makes."
            )
        if centre is None:
            centre = jnp.zeros_like(self.axes[0])
        self.centre = _numbers(centre, "centre", self.axes.shape[1:], "Circle")
        self.dim, self.periods, self.bounds = 1, (2 * math.pi,), (None,)

    def __call__(self, theta, t=None):
        check_shape(theta, "theta", (1,), caller="Circle")
        return _amplitude(self.envelope, t, "Circle")[..., None] * (self.centre + on_circle(theta[0]) @ self.axes)


class Torus(InputManifold):
    """Several angles, each shown as (cos, sin) in two channels of its own or, at its own times, in the same two.

    **Arguments:**

    - `envelopes`: when each is there: an array `(m, T)`, or a function t -> (m,) for signals in continuous time.
    - `m`: how many angles; needed where `envelopes` is a function.
    - `shared`: True sums the items in two channels; False gives each its own, 2 m in all.

    **Raises:** `ShapeError`, `NonFiniteError`, `ArgumentError` for what does not fit.

    **Example:** two items, one after the other.

    >>> torus = dw.tasks.Torus(jnp.array([[1.0, 0.0], [0.0, 1.0]]))
    >>> torus(jnp.array([0.0, jnp.pi])).round(6).tolist()
    [[1.0, 0.0], [-1.0, 0.0]]
    """

    envelopes: Any
    shared: bool = eqx.field(static=True)
    dim: int = eqx.field(static=True)
    periods: tuple[float, ...] = eqx.field(static=True)
    bounds: tuple[None, ...] = eqx.field(static=True)

    def __init__(self, envelopes: Any, *, m: int | None = None, shared: bool = True):
        self.envelopes = _as_envelope(envelopes, 2, "Torus")
        if m is None:
            if callable(envelopes):
                raise ArgumentError("Torus: `m`, the number of angles, is needed where `envelopes` is a function.")
            m = len(self.envelopes)
        elif not callable(envelopes):
            check_shape(self.envelopes, "envelopes", (m, "T"), caller="Torus")
        self.dim = check_positive_integer(m, "m", caller="Torus")
        self.periods, self.bounds, self.shared = (2 * math.pi,) * self.dim, (None,) * self.dim, bool(shared)

    def __call__(self, theta, t=None):
        check_shape(theta, "theta", (self.dim,), caller="Torus")
        amplitude = _amplitude(self.envelopes, t, "Torus").T
        if self.shared:
            return amplitude @ on_circle(theta)
        items = amplitude[..., None] * on_circle(theta)
        return items.reshape(*items.shape[:-2], 2 * self.dim)


def _as_envelope(envelope: Any, ndim: int, caller: str) -> Any:
    if callable(envelope):
        return envelope
    return _numbers(envelope, "envelope" if ndim == 1 else "envelopes", ("m", "T")[-ndim:], caller)


def _numbers(x: Any, name: str, shape: tuple[int | str, ...], caller: str) -> Array:
    """An array of finite floats of this shape."""
    x = as_real(x, name, caller=caller)
    check_shape(x, name, shape, caller=caller)
    check_finite(x, name, caller=caller)
    return x


def _amplitude(envelope: Any, t: Any, caller: str) -> Array:
    if t is None:
        if callable(envelope):
            raise ArgumentError(f"{caller}: the envelope is a function of time; the inputs need a time `t`.")
        return envelope
    if not callable(envelope):
        raise ArgumentError(
            f"{caller}: the envelope is an array of steps; inputs at a time `t` need a function of time."
        )
    return jnp.asarray(envelope(t))
