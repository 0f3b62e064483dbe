"""Training a model on recordings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dynwarp._checks import check_positive, check_positive_integer, check_shape
from dynwarp._results import RESULTS, raise_failed
from dynwarp.errors import ArgumentError
from dynwarp.io import Series
from dynwarp.models import AbstractMap
from dynwarp.training._checkpoint import Checkpoint, digest
from dynwarp.training._fit_result import FitResult
from dynwarp.training._forcing import AbstractForcing, SparseTeacherForcing
from dynwarp.training._loop import MAX_FAILURES, LoopState, Plan, first_state, mean_loss, run_lanes, run_steps
from dynwarp.training._loss import AbstractLoss, Loss, mean_squared_error
from dynwarp.training._objective import Objective
from dynwarp.training._penalties import AbstractPenalty, as_penalties
from dynwarp.training._progress import Report, progress_report
from dynwarp.training._reconstruction import Reconstruction, floating_dtype
from dynwarp.training._run import Run
from dynwarp.training._windows import Windows, as_arrays, check_moving, make_windows


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
    penalty: Any = None,
    inputs: Any = None,
    observed: Any = None,
    readout: Any = None,
    sequence_length: int = 100,
    batch_size: int = 16,
    noise: float = 0.0,
    clip: float | None = 10.0,
    validation: Any = None,
    validate_every: int = 500,
    patience: int | None = None,
    restart: float | None = None,
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
    - `loss`: `loss(prediction (N,), target (N,)) -> scalar`, the mean squared error if None; or a loss of the batch
      such as [`GaussianLikelihood`][dynwarp.training.GaussianLikelihood].
    - `optimizer`: an optax transformation; None is RAdam, its rate falling exponentially from 5e-3 to 5e-5.
    - `rule`: a learning rule in place of automatic differentiation, with the method
      `gradients(model, readout, inputs, targets, *, state0, loss, key)`. It trains the map and the readout, without
      forcing.
    - `forcing`: what the recording does to the state, such as `SparseTeacherForcing(interval)`; None: nothing. "auto":
      `SparseTeacherForcing(25)`, or of the sequence length where that is shorter, where the first N coordinates are
      observed and there is no rule, else None. With a linear readout forcing acts through its pseudo-inverse.
    - `penalty`: added to the loss: any function of the [`Reconstruction`][dynwarp.training.Reconstruction] that JAX can
      differentiate, such as [`ParameterPenalty`][dynwarp.training.ParameterPenalty] or an exponent of
      `dynamics.lyapunov_spectrum`; an [`AbstractPenalty`][dynwarp.training.AbstractPenalty], which also sees the states
      of the batch; or a list of these. With a rule its gradient is added to what the rule has.
    - `inputs`: of the map, shape `(T, d)`, or a list, one a recording: `inputs[i]` drives the step to `data[i]`.
    - `observed`: None: all data are finite. "finite": values that are not are missing. Or boolean masks, shaped as the
      data, False where nothing was observed. What is missing counts in no loss and forces nothing; windows begin in
      rows without gaps. The loss is the mean over what was observed, if it vanishes between equals.
    - `readout`: what is observed of a state, `readout(state, input)`; None: the first N coordinates.
    - `sequence_length`: steps in a window. Of several recordings those that are shorter count as not observed beyond
      their end.
    - `batch_size`: windows in a step.
    - `noise`: standard deviation of Gaussian noise on the observations that the model is shown, not on the targets.
    - `clip`: of the global norm of the gradient; None for none.
    - `validation`: what the best model is chosen by: recordings as `data`, on which the loss is taken, or a function
      `f(reconstruction) -> scalar`, the lower the better, such as
      [`ReconstructionScore`][dynwarp.training.ReconstructionScore]. None: the last model is the best.
    - `validate_every`: steps between validations, and between checkpoints.
    - `patience`: validations without a better score after which the training stops; None: never.
    - `restart`: after 20 steps in a row without a finite gradient and update, go back to the last good state (one a
      hundred steps is kept) with a fresh optimizer and this many times the step, 0.5 for instance, at most 10 times.
      None ends the training there.
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
    options: dict[str, Any] = dict(
        steps=steps, loss=loss, optimizer=optimizer, rule=rule, forcing=forcing, penalty=penalty, inputs=inputs,
        observed=observed, sequence_length=sequence_length, batch_size=batch_size, noise=noise, clip=clip,
        validation=validation, validate_every=validate_every, patience=patience, restart=restart, directory=directory,
        resume=resume, progress=progress,
    )  # fmt: skip
    start = functools.partial(_as_reconstruction, model, data, readout=readout, key=_start_key(key))
    fitted = _train(start, data, keys=key, lanes=(), **options)
    if throw:
        raise_failed(fitted.result, "fit", _REMEDY)
    return fitted


def fit_seeds(
    make: Callable[[Any], AbstractMap | Reconstruction],
    data: Any,
    *,
    keys: Any,
    readout: Callable[[Any], Any] | None = None,
    throw: bool = True,
    **options: Any,
) -> FitResult:
    """Trains several models of one kind on the same data, side by side in one program.

    Seed i is what `fit(make(first), data, key=second)` gives with `first, second = jax.random.split(keys[i])`, but for
    rounding, which chaotic systems make large in time. A seed that fails stops, and the others go on.

    **Arguments:**

    - `make`: from a key to a map or a [`Reconstruction`][dynwarp.training.Reconstruction], the same but for the numbers
      in its arrays.
    - `data`, and all `options`: as of [`fit`][dynwarp.training.fit]. `patience` ends the training where it has run out
      for every seed.
    - `keys`: one a seed, such as `jax.random.split(jax.random.key(0), 5)`.
    - `readout`: from a key to a readout, or None; drawn with `fold_in(first, 1)`.
    - `throw`: raise if every seed fails.

    **Returns:** a [`FitResult`][dynwarp.training.FitResult] with a leading axis of seeds and a code for each;
    `.seed(i)` is one of them, `.best_seed()` the number of the best.

    **Raises:** as [`fit`][dynwarp.training.fit]; `ConvergenceError` where all seeds failed; `ArgumentError` where
    `make` gives models of different structure.

    **Cost:** as many trainings; on a processor somewhat less than one after the other, on an accelerator that of one
    while it has room.

    **Example:**

    >>> import jax, jax.numpy as jnp, dynwarp as dw
    >>> t = jnp.arange(100.0)
    >>> circle = jnp.stack([jnp.sin(t / 5), jnp.cos(t / 5)], axis=1)
    >>> fitted = dw.training.fit_seeds(
    ...     lambda key: dw.models.ALRNN(3, 1, key=key), circle, keys=jax.random.split(jax.random.key(1), 2),
    ...     steps=20, sequence_length=10,
    ... )
    >>> fitted.history.loss.shape, fitted.model.W.shape, fitted.seed(1).model.W.shape
    ((2, 20), (2, 3, 3), (3, 3))
    """
    keys = list(keys)
    if not keys:
        raise ArgumentError("fit_seeds: `keys` must hold at least one key.")
    pairs = [jax.random.split(key) for key in keys]
    second = jnp.stack([pair[1] for pair in pairs])

    def start(size: int) -> Reconstruction:
        models = [
            _as_reconstruction(
                make(first),
                data,
                size,
                None if readout is None else readout(jax.random.fold_in(first, 1)),
                _start_key(key),
            )
            for first, key in pairs
        ]
        arrays, others = zip(*(eqx.partition(model, eqx.is_array) for model in models))
        shapes = [jax.tree.map(jnp.shape, a) for a in arrays]
        if any(jax.tree.structure(a) != jax.tree.structure(arrays[0]) for a in arrays) or any(
            not (shape == shapes[0] and eqx.tree_equal(other, others[0])) for shape, other in zip(shapes, others)
        ):
            raise ArgumentError("fit_seeds: `make` must give models of one structure; these differ.")
        return eqx.combine(jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays), others[0])

    fitted = _train(start, data, keys=second, lanes=(len(keys),), **options)
    if throw and bool(np.all(fitted.result != RESULTS.successful)):
        raise_failed(fitted.result, "fit_seeds", _REMEDY)
    return fitted


_REMEDY = "Lower the learning rate or `clip`, or force more often."


def _train(
    start: Callable[[int], Reconstruction], data, *, keys, lanes: tuple[int, ...], steps, loss=None, optimizer=None,
    rule=None, forcing="auto", penalty=None, inputs=None, observed=None, sequence_length=100, batch_size=16, noise=0.0,
    clip=10.0, validation=None, validate_every=500, patience=None, restart=None, directory=None, resume=False,
    progress=False,
) -> FitResult:  # fmt: skip
    """The training of one model, or of a batch of them where `lanes` is (S,)."""
    caller = "fit"
    steps = check_positive_integer(steps, "steps", caller=caller)
    batch_size = check_positive_integer(batch_size, "batch_size", caller=caller)
    length = check_positive_integer(sequence_length, "sequence_length", caller=caller)
    every = check_positive_integer(validate_every, "validate_every", caller=caller)
    if not (np.ndim(noise) == 0 and np.isfinite(noise) and noise >= 0):
        raise ArgumentError(f"fit: `noise` must be a finite number of at least 0; got {noise!r}.")
    if clip is not None:
        check_positive(clip, "clip", caller=caller)
    if restart is not None and not (isinstance(restart, int | float) and 0 < restart <= 1):
        raise ArgumentError(f"fit: `restart` must be None or a number above 0 and at most 1; got {restart!r}.")
    if patience is not None:
        patience = check_positive_integer(patience, "patience", caller=caller)
        if validation is None:
            raise ArgumentError("fit: `patience` counts validations; give `validation`.")
    if resume and directory is None:
        raise ArgumentError("fit: `resume` needs the `directory` of the run to go on with.")

    arrays = as_arrays(data, "data", observed)
    model = start(arrays[0].shape[1])
    dtype = floating_dtype(model.map)
    windows = make_windows(arrays, _as_inputs(inputs, arrays, model.map), length, dtype)
    check_moving(arrays)
    objective = Objective(
        mean_squared_error if loss is None else loss,
        _as_forcing(forcing, model, rule, length, dtype),
        jnp.asarray(noise, dtype),
        _as_rule(rule),
        as_penalties(penalty),
        bool(np.isnan(np.asarray(windows.values)).any()),
    )
    _check_objective(objective)
    plan = Plan(
        windows, objective, jnp.asarray(min(MAX_FAILURES, steps), jnp.int32),
        _clipped(_default_optimizer(steps) if optimizer is None else optimizer, clip), batch_size, restart,
    )  # fmt: skip
    score = _as_score(validation, observed, objective, model, length, dtype)

    checkpoint = None
    if directory is not None:
        settings = {
            "steps": steps,
            "sequence_length": length,
            "batch_size": batch_size,
            "noise": float(noise),
            "clip": None if clip is None else float(clip),
            "validate_every": every,
            "patience": patience,
            "restart": restart,
            "forcing": repr(objective.forcing),
            "loss": _name(objective.loss),
            "penalty": [_name(p) for p in objective.penalties],
            "seeds": list(lanes),
            "key": digest(keys),
            "data": digest(windows),
            "model": digest(model),
        }
        checkpoint = Checkpoint(directory, settings)
    first = functools.partial(first_state, plan=plan)
    run = Run((eqx.filter_vmap(first) if lanes else first)(model), steps, int(plan.limit), lanes)
    if resume and checkpoint is not None:
        run.restore(checkpoint)
    if score is not None and lanes:
        score = eqx.filter_vmap(score)
    with progress_report(progress) as report:
        run.go(
            lambda state, step, count: (run_lanes if lanes else run_steps)(state, step, count, plan, keys),
            score, every, None if patience is None else patience * every, checkpoint, report,
        )  # fmt: skip
    return run.fit_result()


# The same functions for the same arguments: a new closure would be a new program to compile.
@functools.lru_cache
def _default_optimizer(steps: int) -> optax.GradientTransformation:
    return optax.radam(optax.exponential_decay(5e-3, steps, 1e-2))


@functools.lru_cache
def _clipped(optimizer: optax.GradientTransformation, clip: float | None) -> optax.GradientTransformation:
    return optimizer if clip is None else optax.chain(optax.clip_by_global_norm(clip), optimizer)


def _start_key(key):
    return jax.random.fold_in(key, -1 % 2**32)


def _name(thing: Any) -> str:
    """What a checkpoint remembers of a function: modules by their fields, the others by name."""
    return repr(thing) if isinstance(thing, eqx.Module) else getattr(thing, "__qualname__", type(thing).__name__)


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


def _as_forcing(forcing, model: Reconstruction, rule, length: int, dtype) -> AbstractForcing | None:
    linear = model.observes_state or model.output_weight is not None
    if isinstance(forcing, str) and forcing == "auto":
        return SparseTeacherForcing(min(25, length)) if model.observes_state and rule is None else None
    if forcing is None:
        return None
    if not isinstance(forcing, AbstractForcing):
        raise ArgumentError(f"fit: `forcing` must be a forcing module, None or 'auto'; got {forcing!r}.")
    if rule is not None or not linear:
        reason = "a learning rule trains without" if rule is not None else "the readout must be linear"
        raise ArgumentError(f"fit: `forcing` cannot be used here, {reason}; pass forcing=None.")
    forcing.check(model, length)
    return jax.tree.map(lambda x: jnp.asarray(x, dtype) if eqx.is_inexact_array(x) else x, forcing)


def _check_objective(objective: Objective) -> None:
    if not callable(objective.loss):
        raise ArgumentError(f"fit: `loss` must be a function of a prediction and a target; got {objective.loss!r}.")
    if objective.rule is None:
        return
    if isinstance(objective.loss, AbstractLoss):
        raise ArgumentError("fit: a learning rule needs a loss of one observation, loss(prediction, target).")
    if any(isinstance(p, AbstractPenalty) for p in objective.penalties):
        raise ArgumentError("fit: a learning rule keeps no states, so that `penalty` must be a function of the model.")
    if objective.missing:
        raise ArgumentError("fit: a learning rule needs complete data; leave `observed` and short recordings out.")


def _as_score(validation, observed, objective: Objective, model: Reconstruction, length: int, dtype):
    """A function of the state of the loop, or None."""
    if validation is None:
        return None
    if callable(validation):
        scored = eqx.filter_jit(validation)
        return lambda state: scored(state.model)
    if model.map.input_size:
        raise ArgumentError("fit: for a model with inputs `validation` must be a function of the reconstruction.")
    arrays = as_arrays(validation, "validation", None if observed is None else "finite")
    if arrays[0].shape[1] != model.observation_size:
        raise ArgumentError(
            f"fit: `validation` has {arrays[0].shape[1]} channels; the model observes {model.observation_size}."
        )
    length = min(length, max(len(a) for a in arrays) - 1)
    windows: Windows = make_windows(arrays, [np.zeros((len(a), 0)) for a in arrays], length, dtype)
    windows = eqx.tree_at(lambda w: w.starts, windows, windows.starts[::length])
    missing = bool(np.isnan(np.asarray(windows.values)).any())
    objective = dataclasses.replace(objective, missing=missing)

    def score(state: LoopState):
        return mean_loss(state.model, objective.with_forcing(state.forcing), windows)

    return score
