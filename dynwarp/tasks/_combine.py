"""Manifolds made of functions and of other manifolds: user-defined, products, sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import as_real, check_choice, check_finite, check_positive_integer, check_shape
from dynwarp.errors import ArgumentError
from dynwarp.tasks._input_manifold import InputManifold
from dynwarp.tasks._parameters import increasing


class FunctionManifold(InputManifold):
    """The inputs that a function of the coordinates returns.

    **Arguments:**

    - `fn`: `fn(theta (dim,)) -> (T, d)`, or for signals in continuous time `fn(theta, t) -> (d,)`. A function that
      holds arrays should be an `eqx.Module`.
    - `dim`: m, the number of coordinates.
    - `periods`, `bounds`: as in [`InputManifold`][dynwarp.tasks.InputManifold].

    **Raises:** `ArgumentError` for what does not fit.

    **Example:**

    >>> ramp = dw.tasks.FunctionManifold(lambda theta: jnp.arange(3.0)[:, None] * theta, dim=1, bounds=((0.0, 1.0),))
    >>> ramp(jnp.array([0.5])).tolist()
    [[0.0], [0.5], [1.0]]
    """

    fn: Callable[..., Array]
    dim: int = eqx.field(static=True)
    periods: tuple[float | None, ...] | None = eqx.field(static=True)
    bounds: tuple[tuple[float, float] | None, ...] | None = eqx.field(static=True)

    def __init__(self, fn: Callable[..., Array], *, dim: int, periods: Any = None, bounds: Any = None):
        if not callable(fn):
            raise ArgumentError(f"FunctionManifold: `fn` must be a function of theta; got {type(fn).__name__}.")
        self.fn = fn
        self.dim = check_positive_integer(dim, "dim", caller="FunctionManifold")
        for name, given in (("periods", periods), ("bounds", bounds)):
            if given is not None and not isinstance(given, Iterable):
                raise ArgumentError(
                    f"FunctionManifold: `{name}` must be a tuple of {self.dim}, or None; got {given!r}."
                )
        self.periods = None if periods is None else tuple(periods)
        self.bounds = None if bounds is None else tuple(increasing(b) or b for b in bounds)
        self._axes()

    def __call__(self, theta, t=None):
        check_shape(theta, "theta", (self.dim,), caller="FunctionManifold")
        return self.fn(theta) if t is None else self.fn(theta, t)


class Product(InputManifold):
    """Several manifolds varied independently; the coordinates are those of the factors, one after another.

    **Arguments:**

    - `factors`: manifolds, all of sequences of the same length or all of signals.
    - `combine`: `"concatenate"` gives each its own channels; `"sum"` adds the inputs, which need as many channels.

    **Raises:** `ArgumentError` for what does not fit.

    **Example:** an angle and a strength.

    >>> shown = jnp.ones(4)
    >>> manifold = dw.tasks.Product([dw.tasks.Circle(shown), dw.tasks.Line(shown, jnp.ones(1))])
    >>> manifold.dim, manifold(jnp.array([0.0, 0.5]))[0].tolist()
    (2, [1.0, 0.0, 0.5])
    """

    factors: tuple[InputManifold, ...]
    combine: Literal["concatenate", "sum"] = eqx.field(static=True)

    def __init__(self, factors: Sequence[InputManifold], *, combine: Literal["concatenate", "sum"] = "concatenate"):
        self.factors = tuple(factors) if isinstance(factors, Sequence) else ()
        if not self.factors or not all(isinstance(f, InputManifold) for f in self.factors):
            raise ArgumentError("Product: `factors` must be a list of InputManifolds, at least one.")
        check_choice(combine, "combine", ("concatenate", "sum"), caller="Product")
        self.combine = combine

    @property
    def dim(self):
        return sum(f.dim for f in self.factors)

    @property
    def periods(self):
        return tuple(period for f in self.factors for period, _ in f._axes())

    @property
    def bounds(self):
        return tuple(bound for f in self.factors for _, bound in f._axes())

    def __call__(self, theta, t=None):
        check_shape(theta, "theta", (self.dim,), caller="Product")
        ends = np.cumsum([f.dim for f in self.factors])
        parts = [f(theta[end - f.dim : end], t) for f, end in zip(self.factors, ends)]
        if len({p.shape[:-1] if self.combine == "concatenate" else p.shape for p in parts}) > 1:
            raise ArgumentError(
                f"Product: the inputs of the factors do not fit together for {self.combine!r}; they have the shapes "
                f"{', '.join(str(p.shape) for p in parts)}."
            )
        return jnp.concatenate(parts, axis=-1) if self.combine == "concatenate" else sum(parts[1:], parts[0])


class Section(InputManifold):
    """Some coordinates of a manifold, the others being held.

    **Arguments:**

    - `manifold`: what is cut.
    - `coordinates`: the indices of those that vary, in the order wanted.
    - `base`: a point `(manifold.dim,)` that gives the others.

    **Raises:** `ShapeError`, `ArgumentError` for what does not fit.

    **Example:** the first of ten symbols to be copied, changed from one into another.

    >>> task = dw.tasks.Copy(delay=5)
    >>> section = dw.tasks.Section(task, [0], jnp.zeros(task.dim))
    >>> section.dim, section(jnp.array([0.25]))[0, [0, 7]].tolist()
    (1, [0.25, 0.75])
    """

    manifold: InputManifold
    base: Float[Array, " M"]
    coordinates: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, manifold: InputManifold, coordinates: Sequence[int], base: Float[Array, " M"]):
        if not isinstance(manifold, InputManifold):
            raise ArgumentError(f"Section: `manifold` must be an InputManifold; got {type(manifold).__name__}.")
        self.manifold = manifold
        self.base = as_real(base, "base", caller="Section")
        check_shape(self.base, "base", (manifold.dim,), caller="Section")
        check_finite(self.base, "base", caller="Section")
        chosen = np.asarray(coordinates)
        whole = chosen.ndim == 1 and np.issubdtype(chosen.dtype, np.integer)
        self.coordinates = tuple(int(i) for i in chosen) if whole else ()
        inside = all(0 <= i < manifold.dim for i in self.coordinates)
        if not self.coordinates or not inside or len(set(self.coordinates)) < len(self.coordinates):
            raise ArgumentError(
                f"Section: `coordinates` must be different indices below {manifold.dim}, at least one; got "
                f"{coordinates!r}."
            )

    @property
    def dim(self):
        return len(self.coordinates)

    @property
    def periods(self):
        return tuple(self.manifold._axes()[i][0] for i in self.coordinates)

    @property
    def bounds(self):
        return tuple(self.manifold._axes()[i][1] for i in self.coordinates)

    def __call__(self, theta, t=None):
        theta = as_real(theta, "theta", caller="Section")
        check_shape(theta, "theta", (self.dim,), caller="Section")
        return self.manifold(self.base.astype(theta.dtype).at[np.array(self.coordinates)].set(theta), t)
