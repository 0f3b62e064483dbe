"""How recurrent weights are drawn."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_positive, check_shape, default_float
from dynwarp._compat import concrete
from dynwarp._typing import PRNGKey

# What the cells take: one of the modules below, or any function of JAX's own form, such as `jax.nn.initializers.zeros`.
Initialiser: TypeAlias = Callable[[PRNGKey, tuple[int, int], Any], Array]


class AbstractInitialiser(eqx.Module):
    """A distribution of matrices: `initialiser(key, (rows, columns), dtype)`.

    Cells take one as `recurrent_init=` or `input_init=`, or any function of the same form, so those of
    `jax.nn.initializers` serve as well. `dtype` defaults to JAX's default float.
    """

    @abc.abstractmethod
    def __call__(self, key: PRNGKey, shape: tuple[int, int], dtype: Any = None) -> Float[Array, "rows columns"]:
        """One matrix of shape `(rows, columns)`."""


class HaarOrthogonalInit(AbstractInitialiser):
    """`gain` times an orthogonal matrix drawn uniformly (by Haar measure).

    QR of a Gaussian matrix, with the signs of R's diagonal moved into Q: without that step the matrix is orthogonal
    but not uniform. A matrix that is not square has orthonormal columns (tall) or rows (wide). Cost: one QR.

    **Source:** Mezzadri, Notices AMS 54 (2007) 592; Saxe, McClelland & Ganguli, ICLR 2014.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> Q = dw.models.HaarOrthogonalInit()(jax.random.key(0), (3, 3))
    >>> bool(jnp.allclose(Q @ Q.T, jnp.eye(3)))
    True
    """

    gain: float = 1.0

    def __call__(self, key, shape, dtype=None):
        return jax.nn.initializers.orthogonal(self.gain)(key, shape, default_float(dtype))


class IdentityInit(AbstractInitialiser):
    """`gain` times the identity; the key is not used. With ReLU units and no bias this is the IRNN.

    **Source:** Le, Jaitly & Hinton, arXiv 1504.00941.

    **Example:**

    >>> import jax, dynwarp as dw
    >>> dw.models.IdentityInit(0.5)(jax.random.key(0), (2, 2)).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """

    gain: float = 1.0

    def __call__(self, key, shape, dtype=None):
        return self.gain * jnp.eye(*shape, dtype=default_float(dtype))


class GaussianInit(AbstractInitialiser):
    """Independent normal entries of standard deviation `gain / sqrt(columns)`: g / sqrt(N) for recurrent weights.

    The spectral radius tends to `gain` for large N (the circular law) and fluctuates around it for small N.

    **Source:** Sompolinsky, Crisanti & Sommers, Phys. Rev. Lett. 61 (1988) 259.

    **Example:**

    >>> import jax, dynwarp as dw
    >>> dw.models.GaussianInit(1.5)(jax.random.key(0), (4, 4)).shape
    (4, 4)
    """

    gain: float = 1.0

    def __call__(self, key, shape, dtype=None):
        return self.gain / math.sqrt(max(shape[1], 1)) * jax.random.normal(key, shape, default_float(dtype))


class XavierUniformInit(AbstractInitialiser):
    """Independent uniform entries on plus or minus `gain sqrt(6 / (rows + columns))`.

    **Source:** Glorot & Bengio, AISTATS 2010.

    **Example:**

    >>> import jax, dynwarp as dw
    >>> W = dw.models.XavierUniformInit()(jax.random.key(0), (2, 4))
    >>> bool(abs(W).max() <= 1.0)
    True
    """

    gain: float = 1.0

    def __call__(self, key, shape, dtype=None):
        bound = self.gain * math.sqrt(6 / max(sum(shape), 1))
        return jax.random.uniform(key, shape, default_float(dtype), -bound, bound)


class SpectralRadiusInit(AbstractInitialiser):
    """A Gaussian matrix rescaled so that max |eigenvalue| is `radius`, complex eigenvalues included.

    Cost: the eigenvalues of one matrix. They are found on the host in float64; under a trace (`vmap` over keys) by
    `jnp.linalg.eigvals` on the device, in `dtype`.

    **Raises:** `ShapeError` unless the matrix is square, `ArgumentError` unless `radius` is positive.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> W = dw.models.SpectralRadiusInit(0.9)(jax.random.key(0), (8, 8))
    >>> round(float(abs(jnp.linalg.eigvals(W)).max()), 12)
    0.9
    """

    radius: float

    def __check_init__(self):
        check_positive(self.radius, "radius", caller="SpectralRadiusInit")

    def __call__(self, key, shape, dtype=None):
        check_shape(jax.ShapeDtypeStruct(shape, float), "shape", ("n", "n"), caller="SpectralRadiusInit")
        matrix = GaussianInit()(key, shape, dtype)
        known = concrete(matrix)
        if known is None:
            return self.radius / jnp.max(jnp.abs(jnp.linalg.eigvals(matrix))) * matrix
        return self.radius / float(np.abs(np.linalg.eigvals(known.astype(np.float64))).max()) * matrix


# The defaults of several cells.
HAAR_ORTHOGONAL = HaarOrthogonalInit()
XAVIER_UNIFORM = XavierUniformInit()
