"""How what a network represents lies to what its readout sees, and to itself at other times."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import as_real, check_positive_integer, check_shape
from dynwarp.errors import ArgumentError, ShapeError
from dynwarp.geometry._warping import root


class DecoderAlignment(eqx.Module):
    """What [`decoder_alignment`][dynwarp.geometry.decoder_alignment] returns.

    **Attributes:**

    - `cosines`: `[..., t, k, i]`, of the angle between the gradient of output k and tangent i, `(..., T, o, m)`; NaN
      where one of the two vanishes.
    - `norm`: over the outputs, `(..., T, m)`: the root of the sum of the squared cosines.
    """

    cosines: Float[Array, "... T o m"]
    norm: Float[Array, "... T m"]


def decoder_alignment(
    states: Float[Array, "... T n"], tangents: Float[Array, "... T n m"], readout: Callable[[Array], Array]
) -> DecoderAlignment:
    """The angles between the directions that a readout sees and those in which states move with the inputs.

    A coordinate that is encoded at right angles to all gradients of the readout, cosine 0, is hidden from it, however
    far it is stretched.

    **Arguments:**

    - `states`, `tangents`: `(..., T, n)` and `(..., T, n, m)`, those of
      [`representation_metric`][dynwarp.geometry.representation_metric] without its `readout`.
    - `readout`: a function `(n,) -> (o,)`.

    **Returns:** a [`DecoderAlignment`][dynwarp.geometry.DecoderAlignment].

    **Raises:** `ShapeError`, `ArgumentError` for what does not fit.

    **Cost:** o gradients of the readout a state.

    **Source:** Pellegrino & Chadwick, NeurIPS (2025), arXiv:2512.04310.

    **Example:** two coordinates, of which the readout sees the first.

    >>> tangents = jnp.array([[3.0, 0.0], [0.0, 1.0], [4.0, 0.0]])[None]
    >>> found = dw.geometry.decoder_alignment(jnp.zeros((1, 3)), tangents, lambda z: 2 * z[:1])
    >>> found.cosines[0, 0].round(6).tolist()
    [0.6, 0.0]
    """
    caller = "decoder_alignment"
    states, tangents = as_real(states, "states", caller=caller), as_real(tangents, "tangents", caller=caller)
    if states.ndim < 2:
        raise ShapeError(f"{caller}: `states` must have shape (..., T, n); got {states.shape}.")
    check_shape(tangents, "tangents", (*states.shape, "m"), caller=caller)
    n = states.shape[-1]
    if not callable(readout):
        raise ArgumentError(
            f"{caller}: `readout` must be a function (n,) -> (o,), of a matrix W lambda x: W @ x; got "
            f"{type(readout).__name__}."
        )
    seen = eqx.filter_eval_shape(readout, jax.ShapeDtypeStruct((n,), states.dtype))
    check_shape(seen, "readout(state)", ("o",), caller=caller)
    cosines = _cosines(readout, states.reshape(-1, n), tangents.reshape(-1, *tangents.shape[-2:]))
    cosines = cosines.reshape(*states.shape[:-1], *cosines.shape[1:])
    return DecoderAlignment(cosines, root(jnp.sum(cosines**2, axis=-2)))


@eqx.filter_jit
def _cosines(readout, states, tangents):
    def one(state, tangents):
        gradients = jax.jacrev(readout)(state)
        lengths = root(jnp.sum(gradients**2, axis=1))[:, None] * root(jnp.sum(tangents**2, axis=0))
        products = jnp.matmul(gradients, tangents, precision="highest")
        return jnp.where(lengths > 0, products / jnp.where(lengths > 0, lengths, 1), jnp.nan)

    return jax.vmap(one)(states, tangents)


class SubspaceSimilarity(eqx.Module):
    """What [`subspace_similarity`][dynwarp.geometry.subspace_similarity] returns.

    **Attributes:**

    - `cosines`: of the principal angles between the subspaces of two times, decreasing, `(T, T, rank)`.
    """

    cosines: Float[Array, "T T k"]

    def spectral(self) -> Float[Array, "T T"]:
        """The largest cosine: 1 where the two share a direction."""
        return self.cosines[..., 0]

    def nuclear(self) -> Float[Array, "T T"]:
        """The mean of the cosines: 1 where they are the same, 0 where they are at right angles."""
        return jnp.mean(self.cosines, axis=-1)


def subspace_similarity(states: Float[Array, "... T n"], *, rank: int = 2, centred: bool = True) -> SubspaceSimilarity:
    """Whether a representation stays in its subspace over time, or moves into others.

    The subspace of a time is spanned by the leading right singular vectors of the states of all points at it; two of
    them are compared by their principal angles.

    **Arguments:**

    - `states`: `(..., T, n)`, more points than `rank`.
    - `rank`: the dimension of the subspaces, at most n.
    - `centred`: at each time the mean over the points is taken off.

    **Returns:** a [`SubspaceSimilarity`][dynwarp.geometry.SubspaceSimilarity]; NaN for a time at which the states span
    fewer than `rank` dimensions, as before a stimulus comes.

    **Raises:** `ShapeError`, `ArgumentError` for what does not fit.

    **Cost:** T singular value decompositions of all points, and T^2 small ones.

    **Source:** Björck & Golub, Math. Comp. 27 (1973) 579; as used by Pellegrino & Chadwick, NeurIPS (2025),
    arXiv:2512.04310.

    **Example:** a circle in one plane, then in another that shares an axis with it.

    >>> angles = jnp.linspace(0, 6, 20)
    >>> c, s, zero = jnp.cos(angles), jnp.sin(angles), 0 * angles
    >>> states = jnp.stack([jnp.stack([c, s, zero], axis=1), jnp.stack([zero, s, c], axis=1)], axis=1)
    >>> dw.geometry.subspace_similarity(states, centred=False).nuclear().round(6).tolist()
    [[1.0, 0.5], [0.5, 1.0]]
    """
    caller = "subspace_similarity"
    states = as_real(states, "states", caller=caller)
    rank = check_positive_integer(rank, "rank", caller=caller)
    if states.ndim < 3:
        raise ShapeError(f"{caller}: `states` must have shape (..., T, n), with an axis of points; got {states.shape}.")
    states = states.reshape(-1, *states.shape[-2:])
    if rank > states.shape[-1] or rank >= len(states) + (not centred):
        raise ArgumentError(
            f"{caller}: {len(states)} points in {states.shape[-1]} dimensions span no subspace of dimension {rank}."
        )
    return SubspaceSimilarity(_principal_cosines(states, rank, centred))


@eqx.filter_jit
def _principal_cosines(states, rank, centred):
    size = root(jnp.sum(states**2, axis=(0, 2)))
    if centred:
        states = states - jnp.mean(states, axis=0)
    states = jnp.moveaxis(states, 1, 0)
    _, values, vectors = jnp.linalg.svd(states, full_matrices=False)
    tolerance = jnp.finfo(states.dtype).eps * max(states.shape[1:])
    # Where all points share a state, what the mean leaves of them is its rounding error, and no subspace.
    full = values[:, rank - 1] > tolerance * jnp.maximum(size, jnp.finfo(states.dtype).tiny)
    basis = jnp.where(full[:, None, None], vectors[:, :rank], 0)
    products = jnp.einsum("tan,sbn->tsab", basis, basis, precision="highest")
    cosines = jnp.minimum(jnp.linalg.svd(products, compute_uv=False), 1)
    return jnp.where((full[:, None] & full)[..., None], cosines, jnp.nan)
