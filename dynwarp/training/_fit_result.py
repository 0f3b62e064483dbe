"""What a training returns: models, what happened step by step, and a code per seed."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int

from dynwarp._results import RESULTS
from dynwarp.errors import ArgumentError
from dynwarp.models import AbstractMap
from dynwarp.training._forcing import AbstractForcing
from dynwarp.training._reconstruction import Reconstruction


class History(eqx.Module):
    """What happened step by step; with a leading axis of seeds in all but `validation_step` after
    [`fit_seeds`][dynwarp.training.fit_seeds].

    **Attributes:**

    - `loss`, `gradient_norm`: of each step, before clipping, shape `(steps,)`; NaN marks a step that was skipped. The
      loss includes the penalties.
    - `validation_step`, `validation`: when the model was validated, and its score, shape `(k,)`.
    """

    loss: Float[np.ndarray, "*seeds steps"]
    gradient_norm: Float[np.ndarray, "*seeds steps"]
    validation_step: Int[np.ndarray, " k"]
    validation: Float[np.ndarray, "*seeds k"]


class FitResult(eqx.Module):
    """What [`fit`][dynwarp.training.fit] and [`fit_seeds`][dynwarp.training.fit_seeds] return, the latter with a
    leading axis of seeds on every array.

    **Attributes:**

    - `model`: the map with the best score, or the last one where there was no validation.
    - `reconstruction`: the [`Reconstruction`][dynwarp.training.Reconstruction] around it, with readout and units.
    - `last`: the reconstruction after the last step.
    - `forcing`: as it was at the end, the alpha of adaptive forcing included.
    - `history`: a [`History`][dynwarp.training.History].
    - `result`: `RESULTS.successful`, or `RESULTS.non_finite` where the training ended in NaNs; `model` is then the
      best or last one without.
    - `stats`: `steps` taken, `best_step`, `best_score`, `skipped` steps, `restarts`, `interrupted`; `seconds` and
      `steps_per_second` of the call, of all seeds together.
    """

    model: AbstractMap
    reconstruction: Reconstruction
    last: Reconstruction
    forcing: AbstractForcing | None
    history: History
    result: RESULTS
    stats: dict[str, Any]

    @property
    def seeds(self) -> int | None:
        """How many seeds there are; None after `fit`."""
        return self.history.loss.shape[0] if self.history.loss.ndim == 2 else None

    def seed(self, index: int) -> FitResult:
        """The result of one seed, as `fit` would have returned it."""
        if self.seeds is None or not -self.seeds <= index < self.seeds:
            raise ArgumentError(f"FitResult.seed: there is no seed {index}; there are {self.seeds or 'none'}.")
        loss, norm, step, validation = (
            self.history.loss, self.history.gradient_norm, self.history.validation_step, self.history.validation
        )  # fmt: skip
        history = History(loss[index], norm[index], step, validation[index])
        rest = (self.model, self.reconstruction, self.last, self.forcing, self.result)
        model, reconstruction, last, forcing, result = jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, rest)
        stats = {name: x[index].item() if isinstance(x, np.ndarray) else x for name, x in self.stats.items()}
        return FitResult(model, reconstruction, last, forcing, history, result, stats)

    def best_seed(self) -> int:
        """The seed with the best validation score; without validation, that with the lowest median of its last losses.

        Seeds that failed come last."""
        if self.seeds is None:
            raise ArgumentError("FitResult.best_seed: this is the result of one training; fit_seeds has several.")
        scores = self.stats["best_score"]
        if not np.isfinite(scores).any():
            tail = self.history.loss[:, -100:]
            scores = np.where(np.isnan(tail).all(1), np.inf, np.nanmedian(np.nan_to_num(tail, nan=np.inf), axis=1))
        failed = np.asarray(self.result != RESULTS.successful)
        return int(np.lexsort((scores, failed))[0])
