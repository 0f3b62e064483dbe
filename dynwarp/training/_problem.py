"""What there is to train on, recordings or the trials of a task, checked and made into what the loop runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._checks import check_finite, check_shape
from dynwarp.errors import ArgumentError
from dynwarp.models import AbstractMap
from dynwarp.tasks import AbstractTask, TaskBatch
from dynwarp.training._checkpoint import digest
from dynwarp.training._forcing import AbstractForcing, SparseTeacherForcing
from dynwarp.training._loop import LoopState, mean_loss
from dynwarp.training._loss import AbstractLoss, mean_squared_error
from dynwarp.training._objective import AbstractObjective, Objective
from dynwarp.training._penalties import AbstractPenalty, as_penalties
from dynwarp.training._reconstruction import Reconstruction, floating_dtype
from dynwarp.training._task_objective import TaskObjective, Trials
from dynwarp.training._windows import Windows, as_arrays, check_moving, make_windows

Start = Callable[[int], Reconstruction]
Score = Callable[[LoopState], Any]


@dataclasses.dataclass(frozen=True)
class Problem:
    """The model before training, where batches come from, what is minimised, and the score, None without one;
    `settings` are what a checkpoint must have in common beside the options of the loop."""

    model: Reconstruction
    source: Windows | Trials
    objective: AbstractObjective
    score: Score | None
    settings: dict[str, Any]


def recordings(
    start: Start, data, *, loss, rule, forcing, penalty, inputs, observed, length: int, noise: float, validation
) -> Problem:
    """The problem of recordings; `start` makes the model for so many channels."""
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
    settings = {
        "sequence_length": length,
        "noise": float(noise),
        "forcing": repr(objective.forcing),
        "loss": name_of(objective.loss),
    }
    score = _score_of_recordings(validation, observed, objective, model, length, dtype)
    return Problem(model, windows, objective, score, settings)


def trials(start: Start, task: AbstractTask, *, state0, rule, penalty, validation, **others) -> Problem:
    """The problem of a task; `others` are the options of recordings, which must be None."""
    for name, value in others.items():
        if value is not None:
            raise ArgumentError(f"fit: `{name}` is for recordings and means nothing for a task; got {value!r}.")
    model = start(task.output_size)
    if model.map.input_size != task.input_size:
        raise ArgumentError(
            f"fit: {type(task).__name__} has {task.input_size} inputs; the {type(model.map).__name__} takes "
            f"{model.map.input_size}."
        )
    dtype, size = floating_dtype(model.map), model.map.state_size
    if state0 is not None:
        check_shape(state0, "state0", (size,), caller="fit")
        check_finite(state0, "state0", caller="fit")
    state0 = jnp.zeros(size, dtype) if state0 is None else jnp.asarray(state0, dtype)
    objective = TaskObjective(
        task=task, state0=state0, forcing=None, rule=_as_rule(rule), penalties=as_penalties(penalty)
    )
    _check_penalties(objective)
    settings = {"task": name_of(task), "state0": digest(state0)}
    return Problem(model, Trials(task), objective, _score_of_trials(validation, objective), settings)


def name_of(thing: Any) -> str:
    """What a checkpoint remembers of a function: modules by their fields, the others by name."""
    if isinstance(thing, eqx.Module):
        # Where a function lies in memory is another place in every process.
        return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))
    return getattr(thing, "__qualname__", type(thing).__name__)


def _score(validation) -> Score | None:
    """A function of the state of the loop, where `validation` is one of the reconstruction."""
    if not callable(validation):
        return None
    scored = eqx.filter_jit(validation)
    return lambda state: scored(state.model)


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
    _check_penalties(objective)
    if objective.rule is None:
        return
    if isinstance(objective.loss, AbstractLoss):
        raise ArgumentError("fit: a learning rule needs a loss of one observation, loss(prediction, target).")
    if objective.missing:
        raise ArgumentError("fit: a learning rule needs complete data; leave `observed` and short recordings out.")


def _check_penalties(objective: AbstractObjective) -> None:
    if objective.rule is not None and any(isinstance(p, AbstractPenalty) for p in objective.penalties):
        raise ArgumentError("fit: a learning rule keeps no states, so that `penalty` must be a function of the model.")


def _score_of_recordings(validation, observed, objective: Objective, model: Reconstruction, length: int, dtype):
    """The loss on recordings, in windows that follow each other."""
    if validation is None or callable(validation):
        return _score(validation)
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
        return mean_loss(state.model, objective.with_forcing(state.forcing), *windows.take(windows.starts))

    return score


def _score_of_trials(validation, objective: TaskObjective) -> Score | None:
    """The loss on fixed trials."""
    task = objective.task
    if isinstance(validation, TaskBatch):
        check_shape(validation.inputs, "validation.inputs", ("n", task.steps, task.input_size), caller="fit")
        return lambda state: mean_loss(state.model, objective, validation, validation.inputs)
    # A task can be called too, with its variables.
    if isinstance(validation, AbstractTask) or not (validation is None or callable(validation)):
        raise ArgumentError(
            "fit: for a task `validation` must be a batch of it, task.batch(key, n), or a function of the "
            f"reconstruction; got {type(validation).__name__}."
        )
    return _score(validation)
