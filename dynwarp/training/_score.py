"""How well a reconstruction does, in one number: what picks the checkpoint that is kept."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer, check_shape
from dynwarp.errors import SeriesError
from dynwarp.io import fill_gaps
from dynwarp.metrics import power_spectrum_distance
from dynwarp.training._reconstruction import Reconstruction, predict_standard

# In bins of the spectrum: the harmonics of a beat stay apart, the noise between them does not count.
_SMOOTHING = 2.0


class ReconstructionScore(eqx.Module):
    """The score of a reconstruction on a recording: its prediction error and the spectrum of its free run.

    The sum of two terms, each about 0 for a perfect model and about 1 for a useless one: the mean squared error of
    `horizon`-step predictions relative to that of persistence (the last value stays), and the Hellinger distance
    between the power spectra of the recording and of the model running free for as long. Infinite where the free run
    leaves `bound` times the range of the recording.

    **Arguments:**

    - `values`: the recording in standardised units, shape `(T, N)`. NaN are missing: predictions start in complete rows
      and count what was observed, and the spectrum has straight lines over the gaps.
    - `channels`: how many of the leading channels count; the delayed copies of an embedding come after them.
    - `horizon`: of the predictions, in steps.
    - `bound`: on the free run, which lasts 4 T steps.

    **Raises:** `SeriesError` where the recording is not longer than the horizon, or no complete row is followed by a
    value so many steps later.

    Called with a [`Reconstruction`][dynwarp.training.Reconstruction]; a scalar, the lower the better. Cost: T `horizon`
    + 4 T steps of the map.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> values = jnp.stack([jnp.sin(jnp.arange(80.0)), jnp.cos(jnp.arange(80.0))], axis=1)
    >>> score = dw.training.ReconstructionScore(values, horizon=5)
    >>> rotation = dw.models.PiecewiseLinearMap(
    ...     jnp.array([[jnp.cos(1.0), jnp.sin(1.0)], [-jnp.sin(1.0), jnp.cos(1.0)]]),
    ...     jnp.zeros((2, 0)), jnp.zeros((0, 2)), jnp.zeros(2), jnp.zeros(0),
    ... )
    >>> float(score(dw.training.Reconstruction(rotation, 2, key=jax.random.key(0)))) < 0.1
    True
    """

    values: Float[Array, "T N"]
    filled: Float[Array, "T N"]
    start: int = eqx.field(static=True)
    channels: int = eqx.field(static=True)
    horizon: int = eqx.field(static=True)
    bound: float = eqx.field(static=True)

    def __init__(
        self, values: Float[Array, "T N"], *, channels: int | None = None, horizon: int = 20, bound: float = 3.0
    ):
        check_shape(values, "values", ("T", "N"), caller="ReconstructionScore")
        self.values = jnp.asarray(values)
        self.channels = check_positive_integer(self.values.shape[1] if channels is None else channels, "channels")
        self.horizon = check_positive_integer(horizon, "horizon", caller="ReconstructionScore")
        self.bound = float(bound)
        if self.values.shape[0] < self.horizon + 2:
            raise SeriesError(
                f"ReconstructionScore: {self.values.shape[0]} time steps are too few to predict {horizon} steps ahead."
            )
        known = np.isfinite(np.asarray(self.values))
        complete = np.all(known, axis=1, keepdims=True)
        if not np.any(complete[: -self.horizon] & known[self.horizon :, : self.channels]):
            raise SeriesError(
                f"ReconstructionScore: no complete row of `values` is followed by a value {self.horizon} steps later."
            )
        self.start = int(np.argmax(complete))
        self.filled = jnp.asarray(fill_gaps(np.asarray(self.values)), self.values.dtype)

    def __call__(self, model: Reconstruction) -> Float[Array, ""]:
        values, known = self.filled.astype(model.mean.dtype), jnp.isfinite(self.values)
        length, n = values.shape[0], self.horizon
        seen, there = values[:, : self.channels], known[:, : self.channels]
        counted = jnp.all(known[:-n], axis=1, keepdims=True) & there[n:]
        error = jnp.mean((predict_standard(model, values[:-n], n)[:, : self.channels] - seen[n:]) ** 2, where=counted)
        persistence = jnp.mean((seen[:-n] - seen[n:]) ** 2, where=counted)

        def step(state, _):
            return model.map(state), model.decode(state)[: self.channels]

        _, free = jax.lax.scan(step, model.encode(values[self.start]), length=4 * length)
        low, high = jnp.min(seen, 0), jnp.max(seen, 0)
        bounded = jnp.all(jnp.abs(free - (low + high) / 2) <= self.bound * (high - low))
        distance = power_spectrum_distance(seen, jnp.where(bounded, free[-length:], seen), smoothing=_SMOOTHING)
        score = error / persistence + distance
        return jnp.where(bounded & jnp.isfinite(score), score, jnp.inf)
