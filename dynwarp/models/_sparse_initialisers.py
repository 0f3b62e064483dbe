"""How recurrent weights of few connections are drawn: sparse, in blocks, in a cycle, in a line."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dynwarp._checks import check_finite, check_positive, check_positive_integer, check_shape, default_float
from dynwarp._linalg import eigenvalues
from dynwarp.errors import ArgumentError
from dynwarp.models._initialisers import AbstractInitialiser


class SmartTanhInit(AbstractInitialiser):
    """Normal weights on `nonzeros` connections a unit, scaled to the spectral radius `radius`.

    A row of fewer columns is full. Cost: the eigenvalues of one matrix.

    **Raises:** `ShapeError` unless the matrix is square, `ArgumentError` unless both numbers are positive.

    **Source:** Pascanu, Mikolov & Bengio, ICML 2013 (arXiv 1211.5063), the start `smart_tanh` of their code: 15
    connections and 0.95; after Sutskever, Martens, Dahl & Hinton, ICML 2013.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> W = dw.models.SmartTanhInit(nonzeros=3)(jax.random.key(0), (8, 8))
    >>> (W != 0).sum(1).tolist(), round(float(abs(jnp.linalg.eigvals(W)).max()), 10)
    ([3, 3, 3, 3, 3, 3, 3, 3], 0.95)
    """

    nonzeros: int = 15
    radius: float = 0.95

    def __check_init__(self):
        check_positive_integer(self.nonzeros, "nonzeros", caller="SmartTanhInit")
        check_positive(self.radius, "radius", caller="SmartTanhInit")

    def __call__(self, key, shape, dtype=None):
        n = _square(shape, "SmartTanhInit")
        dtype = default_float(dtype)
        value_key, place_key = jax.random.split(key)
        matrix = jax.random.normal(value_key, (n, n), dtype) * _chosen(place_key, n, n, min(self.nonzeros, n), dtype)
        return self.radius / jnp.abs(eigenvalues(matrix)[0]) * matrix


class BlockSparseInit(AbstractInitialiser):
    """Normal weights in blocks of `block_size` units: every block row has round(`density` * block columns) of them.

    The standard deviation is `gain` over the square root of the number of connections a unit, so that the spectral
    radius is near `gain` for many units, as of a full Gaussian matrix.

    **Raises:** `ArgumentError` for a density outside (0, 1], or sizes that are none.

    **Source:** Gray, Radford & Kingma, GPU kernels for block-sparse weights, 2017.

    **Example:**

    >>> import jax, dynwarp as dw
    >>> W = dw.models.BlockSparseInit(density=0.5, block_size=2)(jax.random.key(0), (8, 8))
    >>> (W != 0).sum(1).tolist()
    [4, 4, 4, 4, 4, 4, 4, 4]
    """

    density: float = 0.1
    block_size: int = 20
    gain: float = 1.0

    def __check_init__(self):
        check_positive_integer(self.block_size, "block_size", caller="BlockSparseInit")
        if not 0 < self.density <= 1:
            raise ArgumentError(f"BlockSparseInit: `density` must lie in (0, 1]; got {self.density!r}.")

    def __call__(self, key, shape, dtype=None):
        dtype = default_float(dtype)
        rows, columns = (-(-size // self.block_size) for size in shape)
        count = max(1, round(self.density * columns))
        value_key, place_key = jax.random.split(key)
        mask = jnp.kron(
            _chosen(place_key, rows, columns, count, dtype), jnp.ones((self.block_size, self.block_size), dtype)
        )[: shape[0], : shape[1]]
        scale = self.gain / min(count * self.block_size, max(shape[1], 1)) ** 0.5
        return scale * mask * jax.random.normal(value_key, shape, dtype)


class CycleInit(AbstractInitialiser):
    """Each unit hears the one before it, the first one the last, all with the same `weight`; the key is not used.

    The spectral radius is |`weight`|, and so is every eigenvalue's modulus.

    **Raises:** `ShapeError` unless the matrix is square; `NonFiniteError`.

    **Source:** Rodan & Tiňo, IEEE Trans. Neural Netw. 22 (2011) 131.

    **Example:**

    >>> import jax, dynwarp as dw
    >>> dw.models.CycleInit(0.5)(jax.random.key(0), (3, 3)).tolist()
    [[0.0, 0.0, 0.5], [0.5, 0.0, 0.0], [0.0, 0.5, 0.0]]
    """

    weight: float = 0.9

    def __check_init__(self):
        check_finite(self.weight, "weight", caller="CycleInit")

    def __call__(self, key, shape, dtype=None):
        n = _square(shape, "CycleInit")
        return self.weight * jnp.roll(jnp.eye(n, dtype=default_float(dtype)), 1, axis=0)


class DelayLineInit(AbstractInitialiser):
    """Each unit hears the one before it, the first one none, all with the same `weight`; the key is not used.

    The matrix is nilpotent: after n steps nothing is left.

    **Raises:** `ShapeError` unless the matrix is square; `NonFiniteError`.

    **Source:** Rodan & Tiňo, IEEE Trans. Neural Netw. 22 (2011) 131.

    **Example:**

    >>> import jax, dynwarp as dw
    >>> dw.models.DelayLineInit(0.5)(jax.random.key(0), (3, 3)).tolist()
    [[0.0, 0.0, 0.0], [0.5, 0.0, 0.0], [0.0, 0.5, 0.0]]
    """

    weight: float = 0.9

    def __check_init__(self):
        check_finite(self.weight, "weight", caller="DelayLineInit")

    def __call__(self, key, shape, dtype=None):
        n = _square(shape, "DelayLineInit")
        return self.weight * jnp.eye(n, k=-1, dtype=default_float(dtype))


def _square(shape, caller: str) -> int:
    check_shape(jax.ShapeDtypeStruct(shape, float), "shape", ("n", "n"), caller=caller)
    return shape[0]


def _chosen(key, rows: int, columns: int, count: int, dtype):
    """A 0-1 matrix with `count` ones in each row, at random."""
    noise = jax.random.uniform(key, (rows, columns))
    # Ranks, not a threshold: ties would change the count.
    ranks = jnp.argsort(jnp.argsort(noise, axis=1), axis=1)
    return (ranks < count).astype(dtype)
