"""Training a model on recordings."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from dynwarp._checks import check_positive, check_positive_integer, check_shape
from dynwarp._results import RESULTS, raise_failed
from dynwarp.errors import ArgumentError
from dynwarp.io import Series
from dynwarp.models import AbstractMap
from dynwarp.training._checkpoint import Checkpoint, digest
from dynwarp.training._forcing import AbstractForcing, SparseTeacherForcing
from dynwarp.training._loop import CHUNK, MAX_FAILURES, LoopState, first_state, mean_loss, run_steps
from dynwarp.training._objective import Loss, Objective
from dynwarp.training._progress import Report, progress_report
from dynwarp.training._reconstruction import Reconstruction, floating_dtype
from dynwarp.training._windows import Windows, as_arrays, make_windows

# Seconds of work between two looks at the keyboard and the progress bar.
_PATIENCE = 0.5


class History(eqx.Module):
    """What happened step by step.

    **Attributes:**

    - `loss`, `gradient_norm`: of each step, before clipping, shape `(steps,)`; NaN marks a step that was skipped.
    - `validation_step`, `validation`: when the model was validated, and its score, shape `(k,)`.
    """

    loss: Float[np.ndarray, " steps"]
    gradient_norm: Float[np.ndarray, " steps"]
    validation_step: Int[np.ndarray, " k"]
    validation: Float[np.ndarray, " k"]


class FitResult(eqx.Module):
    """What [`fit`][dynwarp.training.fit] returns.

    **Attributes:**

    - `model`: the map with the best score, or the last one where there was no validation.
    - `reconstruction`: the [`Reconstruction`][dynwarp.training.Reconstruction] around it, with readout and units.
    - `last`: the reconstruction after the last step.
    - `history`: a [`History`][dynwarp.training.History].
    - `result`: `RESULTS.successful`, or `RESULTS.non_finite` where the training ended in NaNs; `model` is then the
      best or last one without.
    - `stats`: `steps` taken, `best_step`, `skipped` steps, `interrupted`; `seconds` and `steps_per_second` of the call.
    """

    model: AbstractMap
    reconstruction: Reconstruction
    last: Reconstruction
    history: History
    result: RESULTS
    stats: dict[str, Any]


def mean_squared_error(prediction: Float[Array, " N"], target: Float[Array, " N"]) -> Float[Array, ""]:
    """The mean over channels of the squared error of one observation.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> float(dw.training.mean_squared_error(jnp.array([1.0, 3.0]), jnp.zeros(2)))
    5.0
    """
    return jnp.mean((prediction - target) ** 2)


def fit(
    model: AbstractMap | Reconstruction,
    data: Any,
    *,
    steps: int,
    key: Any,
    loss: Loss | None = None,
    optimizer: optax.GradientTransformation | None = None,
    rule: Any = None,
    forcing: AbstractForcing | Literal["auto"] | None = "auto",
    inputs: Any = None,
    readout: Any = None,
    sequence_length: int = 100,
    batch_size: int = 16,
    noise: float = 0.0,
    clip: float | None = 10.0,
    validation: Any = None,
    validate_every: int = 500,
    directory: Any = None,
    resume: bool = False,
    progress: bool | Report = False,
    throw: bool = True,
) -> FitResult:
    """Trains a map to reproduce recordings.

    Each step draws windows at random, starts the model at the first observation of each and lowers the mean `loss` of
    the observations that follow. Host function; one compiled program per shape, whatever the number of steps.

    **Arguments:**

    - `model`: a map with M states, or a [`Reconstruction`][dynwarp.training.Reconstruction] to train further. It is
      trained in the precision of its parameters.
    - `data`: a recording, shape `(T, N)`, an [`io.Series`][dynwarp.io.Series], or a list of them.
    - `steps`: how many gradient steps.
    - `key`: of everything random; step i uses `fold_in(key, i)`.
    - `loss`: `loss(prediction (N,), target (N,)) -> scalar`; the mean squared error if None.
    - `optimizer`: an optax transformation; None is RAdam, its rate falling exponentially from 5e-3 to 5e-5.
    - `rule`: a learning rule in place of automatic differentiation, with the method
      `gradients(model, readout, inputs, targets, *, state0, loss, key)`. It trains the map and the readout, without
      forcing.
    - `forcing`: what the recording does to the state, such as `SparseTeacherForcing(interval)`; None: nothing. "auto":
      `SparseTeacherForcing(25)` where the first N coordinates are observed and there is no rule, else None.
    - `inputs`: of the map, shape `(T, d)`, or a list, one a recording: `inputs[i]` drives the step to `data[i]`.
    - `readout`: what is observed of a state, `readout(state, input)`; None: the first N coordinates.
    - `sequence_length`: steps in a window.
    - `batch_size`: windows in a step.
    - `noise`: standard deviation of Gaussian noise on the observations that the model is shown, not on the targets.
    - `clip`: of the global norm of the gradient; None for none.
    - `validation`: what the best model is chosen by: recordings as `data`, on which the loss is taken, or a function
      `f(reconstruction) -> scalar`, the lower the better, such as
      [`ReconstructionScore`][dynwarp.training.ReconstructionScore]. None: the last model is the best.
    - `validate_every`: steps between validations, and between checkpoints.
    - `directory`: a folder for checkpoints; None for none.
    - `resume`: go on from the checkpoint in `directory`, if there is one; what comes out is bit for bit what one run
      would have given. Otherwise an old checkpoint is replaced.
    - `progress`: True for a bar on standard error, or a function `f(step, steps, figures)`.
    - `throw`: raise if the training fails; False leaves the code in `result`.

    **Returns:** a [`FitResult`][dynwarp.training.FitResult]. Ctrl-C ends the training early and returns what is there,
    with `stats["interrupted"]` true.

    **Raises:** `ShapeError`, `SeriesError`, `NonFiniteError` and `ArgumentError` for data or options that do not fit;
    `ConvergenceError` after 20 steps in a row, or all of them, without a finite gradient and update; `CheckpointError`
    for a damaged checkpoint.

    **Cost:** `steps * batch_size * sequence_length` evaluations of the map and its gradient; memory for the states of
    one batch.

    **Source:** teacher forcing as in Mikhaeil et al., NeurIPS (2022), arXiv:2110.07238.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> t = jnp.arange(100.0)
    >>> circle = jnp.stack([jnp.sin(t / 5), jnp.cos(t / 5)], axis=1)
    >>> model = dw.models.ALRNN(3, 1, key=jax.random.key(0))
    >>> fitted = dw.training.fit(model, circle, steps=20, sequence_length=10, key=jax.random.key(1))
    >>> fitted.history.loss.shape, bool(fitted.history.loss[-1] < fitted.history.loss[0])
    ((20,), True)
    """
    steps = check_positive_integer(steps, "steps", caller="fit")
    batch_size = check_positive_integer(batch_size, "batch_size", caller="fit")
    sequence_length = check_positive_integer(sequence_length, "sequence_length", caller="fit")
    validate_every = check_positive_integer(validate_every, "validate_every", caller="fit")
    if not (np.ndim(noise) == 0 and np.isfinite(noise) and noise >= 0):
        raise ArgumentError(f"fit: `noise` must be a finite number of at least 0; got {noise!r}.")
    if clip is not None:
        check_positive(clip, "clip", caller="fit")
    if resume and directory is None:
        raise ArgumentError("fit: `resume` needs the `directory` of the run to go on with.")

    arrays = as_arrays(data, "data")
    start = _as_reconstruction(model, data, arrays[0].shape[1], readout, jax.random.fold_in(key, -1 % 2**32))
    dtype = floating_dtype(start.map)
    windows = make_windows(arrays, _as_inputs(inputs, arrays, start.map), sequence_length, dtype)
    objective = Objective(
        mean_squared_error if loss is None else loss,
        _as_forcing(forcing, start, rule),
        jnp.asarray(noise, dtype),
        _as_rule(rule),
    )
    score = _as_score(validation, objective, start, sequence_length, dtype)
    optimizer = _clipped(_default_optimizer(steps) if optimizer is None else optimizer, clip)

    checkpoint = None
    if directory is not None:
        settings = {
            "steps": steps,
            "sequence_length": sequence_length,
            "batch_size": batch_size,
            "noise": float(noise),
            "clip": None if clip is None else float(clip),
            "validate_every": validate_every,
            "forcing": repr(objective.forcing),
            "key": digest(key),
            "data": digest(windows),
            "model": digest(start),
        }
        checkpoint = Checkpoint(directory, settings)
    run = _Run(first_state(start, optimizer), steps)
    if resume and checkpoint is not None:
        run.restore(checkpoint)
    with progress_report(progress) as report:
        run.go(
            lambda state, count: run_steps(state, count, windows, objective, optimizer, batch_size, key),
            score, validate_every, checkpoint, report,
        )  # fmt: skip
    fitted = run.fit_result()
    if throw:
        raise_failed(fitted.result, "fit", "Lower the learning rate or `clip`, or force more often.")
    return fitted


class _Run:
    """A run in progress: the state of the loop, the best model so far, and the history."""

    def __init__(self, state: LoopState, steps: int):
        self.state, self.best, self.best_score, self.best_step = state, state.model, np.inf, 0
        self.history = np.full((steps, 2), np.nan)
        self.validation: list[tuple[int, float]] = []
        self.steps, self.step = steps, 0
        self.interrupted, self.seconds, self.taken = False, 0.0, 0

    @property
    def failed(self) -> bool:
        return int(self.state.failures) >= min(MAX_FAILURES, self.steps)

    def go(self, advance, score, validate_every: int, checkpoint: Checkpoint | None, report: Report) -> None:
        began, count = time.perf_counter(), 1
        try:
            # An interrupt during a validation leaves it to be done first.
            self._validate_if_due(score, validate_every)
            while self.step < self.steps and not self.failed:
                until = min(self.steps, (self.step // validate_every + 1) * validate_every)
                count = max(1, min(count, CHUNK, until - self.step))
                chunk_began = time.perf_counter()
                state, history = advance(self.state, jnp.asarray(count, jnp.int32))
                history = np.asarray(history)[:count]
                # From here on nothing waits for the device: an interrupt finds either the old state or the new one.
                self.state = state
                self.history[self.step : self.step + count] = history
                self.step += count
                self.taken += count
                spent = time.perf_counter() - chunk_began
                if self.step == until:
                    self._validate_if_due(score, validate_every)
                    if checkpoint is not None:
                        self.save(checkpoint)
                figures = {"loss": float(history[-1, 0])}
                figures |= {"best": float(self.best_score)} if np.isfinite(self.best_score) else {}
                figures["steps/s"] = self.taken / (time.perf_counter() - began)
                report(self.step, self.steps, figures)
                # The first call compiles, which says nothing about the pace.
                count = 8 if self.taken == 1 else max(1, min(2 * count, round(count * _PATIENCE / spent)))
        except KeyboardInterrupt:
            self.interrupted = True
            if checkpoint is not None:
                self.save(checkpoint)
        self.seconds = time.perf_counter() - began

    def _validate_if_due(self, score: Callable[[Reconstruction], Any] | None, every: int) -> None:
        due = self.step > 0 and (self.step % every == 0 or self.step == self.steps)
        done = bool(self.validation) and self.validation[-1][0] == self.step
        if score is None or done or not due:
            return
        value = float(score(self.state.model))
        self.validation.append((self.step, value))
        if value < self.best_score:
            self.best, self.best_score, self.best_step = self.state.model, value, self.step

    def _tree(self, validations: int):
        """All that a checkpoint holds, with room for this many validations."""
        padded = np.array(self.validation or np.zeros((0, 2)), float)
        padded = np.pad(padded, ((0, validations - len(padded)), (0, 0)))
        return (
            self.state,
            self.best,
            self.history,
            padded,
            np.array([self.step, len(self.validation), self.best_step]),
            np.array(self.best_score),
        )

    def save(self, checkpoint: Checkpoint) -> None:
        checkpoint.write(self._tree(self.steps))

    def restore(self, checkpoint: Checkpoint) -> None:
        tree = checkpoint.read(self._tree(self.steps))
        if tree is not None:
            self.state, self.best, self.history, validation, counts, best_score = tree
            self.step, count, self.best_step = (int(c) for c in counts)
            self.validation = [(int(step), float(value)) for step, value in validation[:count]]
            self.best_score = float(best_score)

    def fit_result(self) -> FitResult:
        last = self.state.model
        chosen = last if self.best_step == 0 else self.best
        history = self.history[: self.step]
        steps, values = np.array(self.validation or np.zeros((0, 2))).T
        stats = {
            "steps": self.step,
            "best_step": self.best_step or self.step,
            "skipped": int(np.isnan(history).any(1).sum()),
            "interrupted": self.interrupted,
            "seconds": self.seconds,
            "steps_per_second": self.taken / max(self.seconds, 1e-9),
        }
        result = RESULTS.non_finite if self.failed else RESULTS.successful
        return FitResult(
            chosen.map, chosen, last, History(history[:, 0], history[:, 1], steps.astype(int), values), result, stats
        )


# The same functions for the same arguments: a new closure would be a new program to compile.
@functools.lru_cache
def _default_optimizer(steps: int) -> optax.GradientTransformation:
    return optax.radam(optax.exponential_decay(5e-3, steps, 1e-2))


@functools.lru_cache
def _clipped(optimizer: optax.GradientTransformation, clip: float | None) -> optax.GradientTransformation:
    return optimizer if clip is None else optax.chain(optax.clip_by_global_norm(clip), optimizer)


def _as_reconstruction(model, data, size: int, readout, key) -> Reconstruction:
    if isinstance(model, Reconstruction):
        if readout is not None:
            raise ArgumentError("fit: a Reconstruction has its readout; leave `readout` out.")
        if model.observation_size != size:
            raise ArgumentError(f"fit: `model` observes {model.observation_size} channels; `data` has {size}.")
        return model
    first = data[0] if isinstance(data, list | tuple) else data
    units = {"mean": first.mean, "scale": first.scale} if isinstance(first, Series) else {}
    return Reconstruction(model, size, readout=readout, key=key, **units)


def _as_inputs(inputs, arrays, model: AbstractMap) -> list[np.ndarray]:
    if inputs is None:
        return [np.zeros((len(a), model.input_size)) for a in arrays]
    items = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if len(items) != len(arrays):
        raise ArgumentError(f"fit: {len(arrays)} recordings need as many `inputs`; got {len(items)}.")
    for i, (array, item) in enumerate(zip(arrays, items)):
        check_shape(item, f"inputs[{i}]", (len(array), model.input_size), caller="fit")
    return as_arrays(items, "inputs") if model.input_size else [np.asarray(item) for item in items]


def _as_rule(rule):
    if rule is not None and not callable(getattr(rule, "gradients", None)):
        raise ArgumentError(f"fit: `rule` must have a method `gradients`; got {type(rule).__name__}.")
    return rule


def _as_forcing(forcing, model: Reconstruction, rule) -> AbstractForcing | None:
    possible = model.observes_state and rule is None
    if isinstance(forcing, str) and forcing == "auto":
        return SparseTeacherForcing(25) if possible else None
    if forcing is None or (isinstance(forcing, AbstractForcing) and possible):
        return forcing
    if not isinstance(forcing, AbstractForcing):
        raise ArgumentError(f"fit: `forcing` must be a forcing module, None or 'auto'; got {forcing!r}.")
    reason = "a learning rule trains without" if rule is not None else "the first coordinates must be what is observed"
    raise ArgumentError(f"fit: `forcing` cannot be used here, {reason}; pass forcing=None.")


def _as_score(validation, objective: Objective, model: Reconstruction, length: int, dtype):
    if validation is None:
        return None
    if callable(validation):
        return eqx.filter_jit(validation)
    if model.map.input_size:
        raise ArgumentError("fit: for a model with inputs `validation` must be a function of the reconstruction.")
    arrays = as_arrays(validation, "validation")
    if arrays[0].shape[1] != model.observation_size:
        raise ArgumentError(
            f"fit: `validation` has {arrays[0].shape[1]} channels; the model observes {model.observation_size}."
        )
    length = min(length, max(len(a) for a in arrays) - 1)
    windows: Windows = make_windows(arrays, [np.zeros((len(a), 0)) for a in arrays], length, dtype)
    windows = eqx.tree_at(lambda w: w.starts, windows, windows.starts[::length])
    return lambda model: mean_loss(model, objective, windows)
