"""Training a model on recordings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dynwarp._checks import check_positive, check_positive_integer
from dynwarp._results import RESULTS, raise_failed
from dynwarp.errors import ArgumentError, ShapeError
from dynwarp.io import Series
from dynwarp.models import AbstractMap
from dynwarp.tasks import AbstractTask
from dynwarp.training._checkpoint import Checkpoint, digest
from dynwarp.training._fit_result import FitResult
from dynwarp.training._forcing import AbstractForcing
from dynwarp.training._loop import MAX_FAILURES, Plan, first_state, run_lanes, run_steps
from dynwarp.training._loss import Loss
from dynwarp.training._problem import name_of, recordings, trials
from dynwarp.training._progress import Report, progress_report
from dynwarp.training._reconstruction import Reconstruction
from dynwarp.training._run import Run


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
    state0: Any = None,
    sequence_length: int = 100,
    batch_size: int = 16,
    noise: float = 0.0,
    clip: float | None = 10.0,
    validation: Any = None,
    validate_every: int = 500,
    patience: int | None = None,
    goal: float | None = None,
    restart: float | None = None,
    directory: Any = None,
    resume: bool = False,
    progress: bool | Report = False,
    throw: bool = True,
) -> FitResult:
    """Trains a map to reproduce recordings, or to do a task.

    Each step draws windows at random, starts the model at the first observation of each and lowers the mean `loss` of
    the observations that follow. Or it draws fresh trials of a task, starts from `state0` and lowers the task's loss of
    what the readout says. Host function; one compiled program per shape, whatever the number of steps.

    **Arguments:**

    - `model`: a map with M states, or a [`Reconstruction`][dynwarp.training.Reconstruction] to train further. It is
      trained in the precision of its parameters.
    - `data`: a recording, shape `(T, N)`, an [`io.Series`][dynwarp.io.Series], or a list of them; or an
      [`AbstractTask`][dynwarp.tasks.AbstractTask], which has N outputs. The trials of step i are
      `task.batch(fold_in(key, i), batch_size)`; `loss`, `forcing`, `inputs`, `observed`, `noise` and `sequence_length`
      are for recordings.
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
    - `state0`: of a task, `(M,)`: where every trial starts; None: zeros.
    - `sequence_length`: steps in a window. Of several recordings those that are shorter count as not observed beyond
      their end.
    - `batch_size`: windows, or trials, in a step.
    - `noise`: standard deviation of Gaussian noise on the observations that the model is shown, not on the targets.
    - `clip`: of the global norm of the gradient; None for none.
    - `validation`: what the best model is chosen by: recordings as `data`, on which the loss is taken, for a task fixed
      trials, `task.batch(key, n)`; or a function
      `f(reconstruction) -> scalar`, the lower the better, such as
      [`ReconstructionScore`][dynwarp.training.ReconstructionScore]. None: the last model is the best.
    - `validate_every`: steps between validations, and between checkpoints.
    - `patience`: validations without a better score after which the training stops; None: never.
    - `goal`: a score at which the training stops; None: none.
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
        observed=observed, state0=state0, sequence_length=sequence_length, batch_size=batch_size, noise=noise,
        clip=clip, validation=validation, validate_every=validate_every, patience=patience, goal=goal, restart=restart,
        directory=directory, resume=resume, progress=progress,
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
    - `data`, and all `options`: as of [`fit`][dynwarp.training.fit]. `patience` and `goal` end the training where they
      do for every seed.
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
    clip=10.0, validation=None, validate_every=500, patience=None, goal=None, restart=None, directory=None,
    resume=False, progress=False, state0=None,
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
    if goal is not None:
        if not (isinstance(goal, int | float) and np.isfinite(goal)):
            raise ArgumentError(f"fit: `goal` must be None or a finite number; got {goal!r}.")
        if validation is None:
            raise ArgumentError("fit: `goal` is a score to reach; give `validation`.")
        goal = float(goal)
    if resume and directory is None:
        raise ArgumentError("fit: `resume` needs the `directory` of the run to go on with.")

    if isinstance(data, AbstractTask):
        problem = trials(
            start, data, state0=state0, rule=rule, penalty=penalty, validation=validation, loss=loss,
            forcing=None if isinstance(forcing, str) and forcing == "auto" else forcing, inputs=inputs,
            observed=observed, noise=noise or None,
        )  # fmt: skip
    else:
        if state0 is not None:
            raise ArgumentError("fit: `state0` is for tasks; on recordings a model starts at the first observation.")
        problem = recordings(
            start, data, loss=loss, rule=rule, forcing=forcing, penalty=penalty, inputs=inputs, observed=observed,
            length=length, noise=noise, validation=validation,
        )  # fmt: skip
    model, score = problem.model, problem.score
    plan = Plan(
        problem.source, problem.objective, jnp.asarray(min(MAX_FAILURES, steps), jnp.int32),
        _clipped(_default_optimizer(steps) if optimizer is None else optimizer, clip), batch_size, restart,
    )  # fmt: skip

    checkpoint = None
    if directory is not None:
        settings = problem.settings | {
            "steps": steps,
            "batch_size": batch_size,
            "clip": None if clip is None else float(clip),
            "validate_every": every,
            "patience": patience,
            "goal": goal,
            "restart": restart,
            "penalty": [name_of(p) for p in plan.objective.penalties],
            "seeds": list(lanes),
            "key": digest(keys),
            "data": digest(problem.source),
            # Its text holds what is no array, such as which coordinates have a ReLU.
            "model": digest(model, name_of(model)),
        }
        checkpoint = Checkpoint(directory, settings)
    first = functools.partial(first_state, plan=plan)
    run = Run((eqx.filter_vmap(first) if lanes else first)(model), steps, every, int(plan.limit), lanes)
    if resume and checkpoint is not None:
        run.restore(checkpoint)
    if score is not None and lanes:
        score = eqx.filter_vmap(score)
    with progress_report(progress) as report:
        run.go(
            lambda state, step, count: (run_lanes if lanes else run_steps)(state, step, count, plan, keys),
            score, None if patience is None else patience * every, goal, checkpoint, report,
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


def _as_reconstruction(model, data, size: int, readout, key) -> Reconstruction:
    if isinstance(model, Reconstruction):
        if readout is not None:
            raise ArgumentError("fit: a Reconstruction has its readout; leave `readout` out.")
        if model.observation_size != size:
            raise ArgumentError(f"fit: `model` observes {model.observation_size} channels; `data` has {size}.")
        return model
    first = data[0] if isinstance(data, list | tuple) else data
    units = {"mean": first.mean, "scale": first.scale} if isinstance(first, Series) else {}
    made = Reconstruction(model, size, readout=readout, key=key, **units)
    state, input = (jax.ShapeDtypeStruct((n,), made.mean.dtype) for n in (model.state_size, model.input_size))
    found = eqx.filter_eval_shape(made.decode, state, input).shape
    if found != (size,):
        raise ShapeError(f"fit: `readout` must give {size} numbers of a state, as `data` has; it gives {found}.")
    return made
