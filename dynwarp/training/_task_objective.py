"""A task as what a model is trained on: fresh trials, and the error of the outputs by the task's own loss."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp.tasks import AbstractTask, TaskBatch
from dynwarp.training._objective import AbstractObjective, free_run
from dynwarp.training._penalties import Penalty
from dynwarp.training._reconstruction import Reconstruction


class Trials(eqx.Module):
    """Where the batches of a task come from."""

    task: AbstractTask

    def draw(self, count: int, key) -> tuple[TaskBatch, Float[Array, "B T d"], Any]:
        """Trials, their inputs, and a key, none of those of the trials, for what else is random in the step."""
        batch = self.task.batch(key, count)
        return batch, batch.inputs, jax.random.fold_in(key, -1 % 2**32)


class TaskObjective(AbstractObjective):
    """The task's loss of the outputs from one initial state on; nothing is forced."""

    task: AbstractTask
    state0: Float[Array, " M"]
    forcing: None
    rule: Any
    penalties: tuple[Penalty, ...]

    def error_and_states(self, model: Reconstruction, batch: TaskBatch, inputs, key):
        outputs, states = free_run(model, self._starts(batch), inputs.astype(self.state0.dtype))
        return self.task.loss(outputs, batch.targets, batch.mask).astype(self.state0.dtype), states

    def sequences(self, model: Reconstruction, batch: TaskBatch, key):
        """The weight of a step goes with its target, so that the mean over steps is the task's weighted mean."""
        weight = batch.mask / jnp.mean(batch.mask, axis=1, keepdims=True)
        targets = jnp.concatenate([batch.targets, weight[..., None].astype(batch.targets.dtype)], axis=-1)

        def loss(output, target):
            target = target.astype(output.dtype)
            return target[-1] * self.task.loss(output[None], target[None, :-1], jnp.ones(1, output.dtype))

        return targets, self._starts(batch), loss

    def _starts(self, batch: TaskBatch):
        return jnp.broadcast_to(self.state0, (len(batch.inputs), self.state0.size))
