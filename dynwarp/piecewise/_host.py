"""A piecewise-linear map as numpy arrays, for the verbs that run on the host."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dynwarp.errors import ArgumentError
from dynwarp.models import PiecewiseLinearMap

# Preactivations below this share of the sum of their terms are zero.
ZERO = 64 * np.finfo(np.float64).eps


class HostMap(NamedTuple):
    """F(z) = A z + W1 relu(W2 z + h2) + h1 in numpy, on batches `(..., M)`."""

    A: np.ndarray
    W1: np.ndarray
    W2: np.ndarray
    h1: np.ndarray
    h2: np.ndarray

    @classmethod
    def of(cls, form: PiecewiseLinearMap) -> HostMap:
        return cls(*(np.asarray(getattr(form, name), np.float64) for name in cls._fields))

    @property
    def size(self) -> int:
        return self.A.shape[0]

    def values(self, z: np.ndarray) -> np.ndarray:
        """W2 z + h2, `(..., H)`; exactly zero where it is zero to rounding."""
        raw = z @ self.W2.T + self.h2
        return np.where(np.abs(raw) <= ZERO * (np.abs(z) @ np.abs(self.W2).T + np.abs(self.h2)), 0.0, raw)

    def step(self, z: np.ndarray) -> np.ndarray:
        return z @ self.A.T + np.maximum(z @ self.W2.T + self.h2, 0) @ self.W1.T + self.h1

    def affine(self, pattern: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(J, b) of patterns `(..., H)`: `(..., M, M)` and `(..., M)`."""
        gated = self.W1 * np.asarray(pattern, np.float64)[..., None, :]
        return self.A + gated @ self.W2, gated @ self.h2 + self.h1

    def region(self, pattern: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The closed region as G z <= g, `(H, M)` and `(H,)`."""
        sign = np.where(pattern, 1.0, -1.0)
        return -sign[:, None] * self.W2, sign * self.h2


class Box(NamedTuple):
    """lower <= z <= upper; `given` tells a user's box from the large one that bounds what is unbounded."""

    lower: np.ndarray
    upper: np.ndarray
    given: bool

    @classmethod
    def of(cls, box, f: HostMap, points: np.ndarray, *, caller: str) -> Box:
        if box is None:
            norms = np.linalg.norm(f.W2, axis=1)
            borders = np.abs(f.h2[norms > 0]) / norms[norms > 0]
            reach = 1e3 * max(1.0, np.abs(points).max(), borders.max(initial=0.0))
            return cls(np.full(f.size, -reach), np.full(f.size, reach), False)
        try:
            lower, upper = (np.broadcast_to(np.asarray(side, np.float64), (f.size,)) for side in box)
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"{caller}: `box` must be (lower, upper), each a number or ({f.size},); got {box!r}."
            ) from error
        if not (np.isfinite(lower).all() and np.isfinite(upper).all() and (lower < upper).all()):
            raise ArgumentError(f"{caller}: `box` must be finite with lower < upper; got {lower} and {upper}.")
        return cls(lower, upper, True)

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The box as G z <= g."""
        eye = np.eye(len(self.lower))
        return np.concatenate([-eye, eye]), np.concatenate([-self.lower, self.upper])

    def contains(self, z: np.ndarray) -> np.ndarray:
        return np.all((z >= self.lower) & (z <= self.upper), axis=-1)


def borders(f: HostMap, box: Box) -> tuple[np.ndarray, np.ndarray]:
    """The borders of the regions and then the faces of the box as one list W z + h, positive inside the box."""
    G, g = box.rows()
    return np.concatenate([f.W2, -G]), np.concatenate([f.h2, g])
