"""Recorded trials as a task: what was recorded to train on, and the manifold through it to analyse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dynwarp._checks import as_real, check_finite, check_positive, check_positive_integer, check_shape
from dynwarp.errors import ArgumentError
from dynwarp.tasks._spline import SplineManifold
from dynwarp.tasks._task import AbstractTask, TaskBatch


class RecordedTrials(AbstractTask):
    """A task of recorded trials, such as binned spikes or rates and the velocity of the hand.

    A spline in the variables of the trials is laid through the inputs, and one through the targets (least squares), and
    what a trial differs by from them is its residual. A drawn trial is a recorded one, the condition being its number:
    `inputs(theta, i)` is the spline at theta and the residual of trial i, at its own theta the recording itself.
    Without a condition it is the spline, so that the task as a manifold is the average of the recording.

    **Arguments:**

    - `inputs`, `targets`: `(n, T, d)` and `(n, T, o)`.
    - `thetas`: the variables of each trial, `(n, m)`; of reaches, [`reach_variables`][dynwarp.tasks.reach_variables].
    - `knots`: of the splines, as of [`SplineManifold`][dynwarp.tasks.SplineManifold], or how many of them along each
      variable, equally spaced over the period, or the range of `thetas`.
    - `periods`: of the variables.
    - `dt`: of a bin.
    - `mask`: the weight of each step in the loss, `(n, T)` or `(T,)`; all equal if None.

    Chance: the loss of the mean target of each step.

    **Raises:** `ShapeError`, `NonFiniteError`; `ArgumentError` where the trials do not determine the splines.

    **Example:**

    >>> angle = jnp.arange(20.0) * (2 * jnp.pi / 20)
    >>> velocity = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1)[:, None] * jnp.ones((4, 1))
    >>> task = dw.tasks.RecordedTrials(2 + velocity, velocity, angle[:, None], [5], periods=(2 * jnp.pi,))
    >>> task(jnp.array([0.1])).shape, round(task.chance_level, 6)
    ((4, 2), 0.5)
    """

    thetas: Float[Array, "n m"]
    input_manifold: SplineManifold
    target_manifold: SplineManifold
    input_residuals: Float[Array, "n T d"]
    target_residuals: Float[Array, "n T o"]
    weights: Float[Array, "n T"]
    dt: float = eqx.field(static=True)
    classes: ClassVar[bool] = False

    def __init__(
        self,
        inputs: Any,
        targets: Any,
        thetas: Any,
        knots: Any,
        *,
        periods: Any = None,
        dt: float = 1.0,
        mask: Any = None,
    ):
        caller = "RecordedTrials"
        inputs, targets, thetas = (
            np.asarray(as_real(x, name, caller=caller))
            for name, x in (("inputs", inputs), ("targets", targets), ("thetas", thetas))
        )
        check_shape(inputs, "inputs", ("n", "T", "d"), caller=caller)
        n, T, _ = inputs.shape
        check_shape(targets, "targets", (n, T, "o"), caller=caller)
        check_shape(thetas, "thetas", (n, "m"), caller=caller)
        for name, value in (("inputs", inputs), ("targets", targets), ("thetas", thetas)):
            check_finite(value, name, caller=caller)
        check_positive(dt, "dt", caller=caller)
        weights = np.ones(T) if mask is None else np.asarray(mask, float)
        check_shape(weights, "mask", (T,) if weights.ndim == 1 else (n, T), caller=caller)
        weights = np.broadcast_to(weights, (n, T))
        if not (np.isfinite(weights).all() and (weights >= 0).all() and (weights.sum(1) > 0).all()):
            raise ArgumentError(f"{caller}: `mask` must be finite, not negative, and not all 0 in a trial.")
        knots = _knots(knots, thetas, periods, caller)
        self.thetas = jnp.asarray(thetas)
        self.weights = jnp.asarray(weights, inputs.dtype)
        self.dt = float(dt)
        self.input_manifold, self.target_manifold = (
            SplineManifold.from_trials(thetas, values, knots, periods=periods) for values in (inputs, targets)
        )
        self.input_residuals, self.target_residuals = (
            jnp.asarray(values) - _values(manifold, self.thetas)
            for manifold, values in ((self.input_manifold, inputs), (self.target_manifold, targets))
        )

    @property
    def dim(self):
        return self.thetas.shape[1]

    @property
    def periods(self):
        return self.input_manifold.periods

    @property
    def bounds(self):
        return self.input_manifold.bounds

    @property
    def steps(self):
        return self.weights.shape[1]

    @property
    def input_size(self):
        return self.input_residuals.shape[2]

    @property
    def output_size(self):
        return self.target_residuals.shape[2]

    @property
    def chance_level(self):
        """The expected loss of the best answer that knows the time but not the inputs (host)."""
        batch = self.trials()
        weights = np.asarray(batch.mask / batch.mask.sum(1, keepdims=True), float)
        targets = np.asarray(batch.targets, float)
        total = weights.sum(0)
        mean = np.einsum("nt,nto->to", weights, targets) / np.where(total > 0, total, 1.0)[:, None]
        return float(np.einsum("nt,nto->", weights, (targets - mean) ** 2) / targets.shape[0] / targets.shape[2])

    def draw(self, key):
        """One of the recorded trials: its variables and its number."""
        i = jax.random.randint(key, (), 0, len(self.thetas))
        return self.thetas[i], i

    def inputs(self, theta, condition=None):
        theta, i = self._trial(theta, condition)
        mean = self.input_manifold(theta)
        return mean if i is None else mean + self.input_residuals[i]

    def targets(self, theta, condition=None):
        theta, i = self._trial(theta, condition)
        mean = self.target_manifold(theta)
        return mean if i is None else mean + self.target_residuals[i]

    def mask(self, condition=None):
        return jnp.mean(self.weights, axis=0) if condition is None else self.weights[condition]

    def trials(self) -> TaskBatch:
        """All trials as they were recorded."""
        inputs = _values(self.input_manifold, self.thetas) + self.input_residuals
        targets = _values(self.target_manifold, self.thetas) + self.target_residuals
        return TaskBatch(inputs, targets, self.weights, self.thetas, jnp.arange(len(self.thetas)))

    def subset(self, indices: Int[Array, " k"] | Sequence[int]) -> Self:
        """The task of some of the trials with the same manifolds, to train on some and to validate on the others.

        **Arguments:** `indices`, `(k,)`, at least one.
        """
        chosen = np.asarray(indices)
        inside = chosen.ndim == 1 and chosen.size and np.issubdtype(chosen.dtype, np.integer)
        if not inside or chosen.min() < 0 or chosen.max() >= len(self.thetas):
            raise ArgumentError(
                f"RecordedTrials.subset: `indices` must be whole numbers below {len(self.thetas)}, at least one; got "
                f"{indices!r}."
            )

        def arrays(task):
            return task.thetas, task.input_residuals, task.target_residuals, task.weights

        return eqx.tree_at(arrays, self, tuple(x[chosen] for x in arrays(self)))


def reach_variables(velocities: Any) -> Float[Array, "n 2"]:
    """The direction and the peak speed of reaches, `(n, 2)`, as variables of
    [`RecordedTrials`][dynwarp.tasks.RecordedTrials].

    The direction is that of the whole displacement, in [0, 2 pi).

    **Arguments:** `velocities`, `(n, T, 2)`.

    **Example:**

    >>> dw.tasks.reach_variables(jnp.array([[[0.0, 1.0], [0.0, 2.0]]])).round(3).tolist()
    [[1.571, 2.0]]
    """
    velocities = as_real(velocities, "velocities", caller="reach_variables")
    check_shape(velocities, "velocities", ("n", "T", 2), caller="reach_variables")
    total = jnp.sum(velocities, axis=1)
    direction = jnp.mod(jnp.arctan2(total[:, 1], total[:, 0]), 2 * np.pi)
    return jnp.stack([direction, jnp.max(jnp.linalg.norm(velocities, axis=-1), axis=1)], axis=-1)


@eqx.filter_jit
def _values(manifold, thetas):
    return jax.vmap(manifold)(thetas)


def _knots(knots, thetas, periods, caller):
    m = thetas.shape[1]
    if not isinstance(knots, Sequence) or not all(isinstance(k, int | np.integer) for k in knots):
        return knots
    if len(knots) != m:
        raise ArgumentError(f"{caller}: `knots` must be one number for each of the {m} variables; got {knots!r}.")
    for count in knots:
        check_positive_integer(count, "knots", minimum=3, caller=caller)
    periods = (None,) * m if periods is None else periods
    if np.ndim(periods) != 1 or len(periods) != m:
        raise ArgumentError(f"{caller}: `periods` must have one entry for each of the {m} variables; got {periods!r}.")
    low, high = thetas.min(axis=0), thetas.max(axis=0)
    return [
        np.linspace(low[i], high[i], count) if period is None else np.arange(count) * (period / count)
        for i, (count, period) in enumerate(zip(knots, periods))
    ]
