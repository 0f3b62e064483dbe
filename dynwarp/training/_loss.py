"""What a prediction costs: the mean squared error, and likelihoods."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from dynwarp.errors import ArgumentError


def mean_squared_error(prediction: Float[Array, " N"], target: Float[Array, " N"]) -> Float[Array, ""]:
    """The mean over channels of the squared error of one observation.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> float(dw.training.mean_squared_error(jnp.array([1.0, 3.0]), jnp.zeros(2)))
    5.0
    """
    return jnp.mean((prediction - target) ** 2)


class AbstractLoss(eqx.Module):
    """A loss of a whole batch, for what is no mean over observations. Its arrays are not trained."""

    @abc.abstractmethod
    def __call__(
        self,
        predictions: Float[Array, "B T N"],
        targets: Float[Array, "B T N"],
        observed: Bool[Array, "B T N"] | None,
    ) -> Float[Array, ""]:
        """The loss; where `observed` is False the target is to be left out. None: everything was observed."""


class GaussianLikelihood(AbstractLoss):
    """The negative logarithm of the likelihood under Gaussian observation noise, in nats per observed value.

    **Arguments:**

    - `noise`: the standard deviation in standardised units, a number or one a channel. None: it is learned with the
      model, each channel its own. Its best value, given the predictions, is the root mean square of the errors, and
      is put in as such, so that it needs no steps of its own.
    - `floor`: the least standard deviation that is learned.

    **Raises:** `ArgumentError` unless all are positive.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> loss = dw.training.GaussianLikelihood()
    >>> errors = jnp.array([1.0, -1.0, 1.0, -1.0])[None, :, None]
    >>> loss.deviation(errors, jnp.zeros((1, 4, 1))).tolist(), round(float(loss(errors, jnp.zeros((1, 4, 1)))), 6)
    ([1.0], 1.418939)
    """

    noise: tuple[float, ...] | None = eqx.field(static=True)
    floor: float = eqx.field(static=True)

    def __init__(self, noise: float | Sequence[float] | None = None, *, floor: float = 1e-3):
        self.noise = None if noise is None else tuple(float(x) for x in np.atleast_1d(np.asarray(noise)))
        self.floor = float(floor)
        for name, values in (("noise", self.noise or ()), ("floor", (self.floor,))):
            if not all(math.isfinite(x) and x > 0 for x in values):
                raise ArgumentError(f"GaussianLikelihood: `{name}` must be positive and finite; got {values!r}.")

    def __call__(self, predictions, targets, observed=None):
        deviation = self.deviation(predictions, targets, observed)
        errors, count = _squares(predictions, targets, observed)
        cost = 0.5 * errors / deviation**2 + count * (jnp.log(deviation) + 0.5 * math.log(2 * math.pi))
        return jnp.sum(cost) / jnp.sum(count)

    def deviation(
        self,
        predictions: Float[Array, "B T N"],
        targets: Float[Array, "B T N"],
        observed: Bool[Array, "B T N"] | None = None,
    ) -> Float[Array, " N"]:
        """The standard deviation of the noise of each channel: the given one, or the most likely for a batch."""
        if self.noise is not None:
            return jnp.broadcast_to(jnp.asarray(self.noise, predictions.dtype), predictions.shape[-1:])
        errors, count = _squares(predictions, targets, observed)
        return jnp.sqrt(jnp.maximum(errors / jnp.maximum(count, 1), self.floor**2))


def _squares(predictions, targets, observed):
    """The sum of squared errors of each channel and how many there are."""
    axes = tuple(range(predictions.ndim - 1))
    errors = predictions - targets
    if observed is None:
        count = math.prod(predictions.shape[:-1])
        return jnp.sum(errors**2, axes), jnp.full(errors.shape[-1], count, errors.dtype)
    return jnp.sum(jnp.where(observed, errors, 0) ** 2, axes), jnp.sum(observed, axes).astype(errors.dtype)


Loss = Callable[[Array, Array], Array] | AbstractLoss
