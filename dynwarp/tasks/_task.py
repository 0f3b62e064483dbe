"""What every task is: variables, trials, answers, and how they are scored."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp._checks import as_real, check_positive_integer, check_shape
from dynwarp._typing import PRNGKey, Scalar
from dynwarp.tasks._input_manifold import InputManifold


class TaskBatch(eqx.Module):
    """Trials of a task, as [`AbstractTask.batch`][dynwarp.tasks.AbstractTask.batch] draws them.

    **Attributes:** `inputs`, shape `(n, T, d)`; `targets`, `(n, T, o)`; `mask`, the weight of each step, `(n, T)`;
    `thetas`, the variables, `(n, m)`; `conditions`, what else a trial is made of, with a leading axis of n.
    """

    inputs: Float[Array, "n T d"]
    targets: Float[Array, "n T o"]
    mask: Float[Array, "n T"]
    thetas: Float[Array, "n m"]
    conditions: Any


class AbstractTask(InputManifold):
    """A task is a function of m variables theta, such as two angles to be remembered.

    The inputs of a trial, `(T, d)`, and the right outputs, `(T, o)`, are functions of theta and of a *condition*, which
    holds what is not varied smoothly: the context, the length of a delay, distractors. Row i of the targets is compared
    with the output after row i of the inputs, with the weight `mask[i]`.

    A task is an [`InputManifold`][dynwarp.tasks.InputManifold]: `task(theta)` are the inputs under the reference
    condition, and `task(theta, t)` the same as a signal in continuous time, each row held for `dt`. Symbols are the
    corners of a cube, so that a symbol can be changed smoothly into another. `sample` draws variables uniformly over
    their ranges; `draw` draws those of a trial, which for symbols are corners.

    **Attributes a subclass sets:** `dim`, `periods`, `bounds` as for any manifold; `steps` T, `input_size` d,
    `output_size` o; `dt`, the time of a step; `classes`: True where an output holds the logits of classes, to be scored
    by the cross-entropy, False where it is compared by its squared error.

    **Methods a subclass implements:** `inputs`, `targets`, `mask`, `chance_level`, and where trials differ by more than
    uniform variables `draw`, `reference` and `observe`.

    **Example:** a user's task, to tell the sign of a number.

    >>> class Sign(dw.tasks.AbstractTask):
    ...     dim: int = 1
    ...     periods: tuple = (None,)
    ...     bounds: tuple = ((-1.0, 1.0),)
    ...     steps: int = 5
    ...     input_size: int = 1
    ...     output_size: int = 1
    ...     dt: float = 1.0
    ...     classes: bool = False
    ...     chance_level: float = 1.0
    ...     def inputs(self, theta, condition=None):
    ...         return jnp.tile(theta, (self.steps, 1))
    ...     def targets(self, theta, condition=None):
    ...         return jnp.sign(self.inputs(theta))
    ...     def mask(self, condition=None):
    ...         return jnp.ones(self.steps)
    >>> batch = Sign().batch(jax.random.key(0), 8)
    >>> batch.inputs.shape, float(Sign().loss(0 * batch.targets, batch.targets, batch.mask))
    ((8, 5, 1), 1.0)
    """

    steps: eqx.AbstractVar[int]
    input_size: eqx.AbstractVar[int]
    output_size: eqx.AbstractVar[int]
    dt: eqx.AbstractVar[float]
    classes: eqx.AbstractVar[bool]
    chance_level: eqx.AbstractVar[float]
    """The expected loss of the best answer that knows the time but not the inputs."""

    @abc.abstractmethod
    def inputs(self, theta: Float[Array, " m"], condition: Any = None) -> Float[Array, "T d"]:
        """The noise-free inputs of a trial; under the reference condition if `condition` is None."""

    @abc.abstractmethod
    def targets(self, theta: Float[Array, " m"], condition: Any = None) -> Float[Array, "T o"]:
        """The right outputs; probabilities of the classes where the task has classes."""

    @abc.abstractmethod
    def mask(self, condition: Any = None) -> Float[Array, " T"]:
        """The weight of each step in the loss, not negative; only ratios count."""

    def reference(self) -> Any:
        """The condition that is meant where none is given."""
        return None

    def draw(self, key: PRNGKey) -> tuple[Float[Array, " m"], Any]:
        """The variables and the condition of one random trial."""
        return self.sample(key, 1)[0], self.reference()

    def observe(self, inputs: Float[Array, "T d"], key: PRNGKey) -> Float[Array, "T d"]:
        """What a network gets to see of the inputs of a trial: themselves, unless the task is noisy."""
        return inputs

    def __call__(self, theta, t=None):
        rows = self.inputs(theta)
        if t is None:
            return rows
        t = jnp.asarray(t, float) if isinstance(t, int | float) else jnp.asarray(t)
        edges = jnp.asarray(np.arange(self.steps) * self.dt, t.dtype)
        return rows[jnp.maximum(jnp.searchsorted(edges, t, side="right") - 1, 0)]

    def breakpoints(self) -> np.ndarray:
        """When the inputs jump under the reference condition, for `simulate(..., breakpoints=)` (host)."""
        rows = np.asarray(_some_inputs(self))
        return (1 + np.flatnonzero(np.any(rows[1:] != rows[:-1], axis=1))) * self.dt

    def batch(self, key: PRNGKey, n: int) -> TaskBatch:
        """Random trials; the same key gives the same ones.

        **Arguments:** `key`; `n`, how many.

        **Raises:** `ArgumentError` where `n` is no whole number of at least 1.
        """
        n = check_positive_integer(n, "n", caller=f"{type(self).__name__}.batch")

        def trial(key):
            draw_key, observe_key = jax.random.split(key)
            theta, condition = self.draw(draw_key)
            inputs = self.observe(self.inputs(theta, condition), observe_key)
            return TaskBatch(inputs, self.targets(theta, condition), self.mask(condition), theta, condition)

        return jax.vmap(trial)(jax.random.split(key, n))

    def loss(
        self, outputs: Float[Array, "... T o"], targets: Float[Array, "... T o"], mask: Float[Array, "... T"]
    ) -> Scalar:
        """The mean over steps, by their weights, and over trials of the error of the outputs.

        The error of a step is the mean over outputs of the squared error, or the cross-entropy in nats of classes.

        **Arguments:** `outputs` and `targets`, shape `(..., T, o)`; `mask`, `(..., T)`.
        """
        self._check_outputs(outputs, targets, mask)
        targets = jnp.asarray(targets, jnp.result_type(outputs))
        if self.classes:
            errors = -jnp.sum(targets * jax.nn.log_softmax(outputs, axis=-1), axis=-1)
        else:
            errors = jnp.mean((outputs - targets) ** 2, axis=-1)
        return _weighted_mean(errors, mask)

    def error(
        self, outputs: Float[Array, "... T o"], targets: Float[Array, "... T o"], mask: Float[Array, "... T"]
    ) -> Scalar:
        """The loss in plainer terms: the fraction of wrong classes, or the root of the mean squared error."""
        if not self.classes:
            return jnp.sqrt(self.loss(outputs, targets, mask))
        self._check_outputs(outputs, targets, mask)
        wrong = jnp.argmax(outputs, axis=-1) != jnp.argmax(targets, axis=-1)
        return _weighted_mean(wrong.astype(jnp.result_type(outputs)), mask)

    def _check_outputs(self, outputs, targets, mask):
        shape = (*jnp.shape(mask), self.output_size)
        check_shape(outputs, "outputs", shape, caller=type(self).__name__)
        check_shape(targets, "targets", shape, caller=type(self).__name__)

    def _trial(self, theta, condition):
        """Checked variables and a condition that is not None unless the task has none."""
        theta = as_real(theta, "theta", caller=type(self).__name__)
        check_shape(theta, "theta", (self.dim,), caller=type(self).__name__)
        return theta, self.reference() if condition is None else condition


@eqx.filter_jit
def _some_inputs(task):
    """The inputs at a point that is not special."""
    return task.inputs(task.sample(jax.random.key(0), 1)[0])


def _weighted_mean(errors, mask):
    mask = jnp.asarray(mask, errors.dtype)
    return jnp.mean(jnp.sum(mask * errors, axis=-1) / jnp.sum(mask, axis=-1))


def last_step(steps: int, length: Any = None) -> Float[Array, " T"]:
    """The mask of a task that is scored at its last step alone."""
    return jax.nn.one_hot((steps if length is None else length) - 1, steps, dtype=float)
