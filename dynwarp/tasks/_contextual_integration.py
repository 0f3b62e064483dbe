"""Two streams of evidence, of which the context tells the one that matters."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp._checks import check_positive, check_positive_integer
from dynwarp.errors import ArgumentError
from dynwarp.tasks._task import AbstractTask, last_step


class ContextualIntegration(AbstractTask):
    """Contextual evidence integration: at the end, tell the sign of the stream that the context names.

    Variables: the evidence (e_1, e_2), each in [-`limit`, `limit`]. Inputs: e_1, e_2 and the context as one of two, all
    constant. Target: sign(e_context), in {-1, 0, 1}, scored at the last step by its squared error. A trial draws
    each evidence from `levels` equally spaced values, of which an odd number has 0 exactly, and the context.

    **Arguments:**

    - `duration`, `dt`: of a trial and of a step, in time constants of the network.
    - `limit`: the strongest evidence.
    - `levels`: how many strengths there are in trials.
    - `context`: 0 or 1, the reference condition.

    Chance: (levels - 1) / levels for an odd number of levels, 1 for an even one, by the answer 0.

    **Source:** Mante, Sussillo, Shenoy & Newsome, Nature 503 (2013) 78; settings of Pellegrino & Chadwick, NeurIPS
    (2025), arXiv:2512.04310.

    **Example:**

    >>> task = dw.tasks.ContextualIntegration()
    >>> task(jnp.array([0.1, -0.2]))[0].tolist(), task.targets(jnp.array([0.1, -0.2]))[-1].tolist()
    ([0.1, -0.2, 1.0, 0.0], [1.0])
    """

    duration: float = eqx.field(default=10.0, static=True)
    dt: float = eqx.field(default=0.2, static=True)
    limit: float = eqx.field(default=0.2, static=True)
    levels: int = eqx.field(default=11, static=True)
    context: int = eqx.field(default=0, static=True)
    dim: ClassVar[int] = 2
    input_size: ClassVar[int] = 4
    output_size: ClassVar[int] = 1
    classes: ClassVar[bool] = False

    def __check_init__(self):
        caller = "ContextualIntegration"
        for name in ("duration", "dt", "limit"):
            check_positive(getattr(self, name), name, caller=caller)
        check_positive_integer(self.levels, "levels", minimum=2, caller=caller)
        check_positive_integer(self.steps, "duration / dt", caller=caller)
        if self.context not in (0, 1):
            raise ArgumentError(f"{caller}: `context` must be 0 or 1; got {self.context!r}.")

    @property
    def steps(self):
        return round(self.duration / self.dt)

    @property
    def periods(self):
        return (None, None)

    @property
    def bounds(self):
        return ((-self.limit, self.limit),) * 2

    @property
    def chance_level(self):
        return 1 - (self.levels % 2) / self.levels

    def reference(self):
        """The context, an integer `()`."""
        return jnp.asarray(self.context)

    def draw(self, key):
        """Two levels of evidence, and the context."""
        level_key, context_key = jax.random.split(key)
        level = jax.random.randint(level_key, (2,), 0, self.levels)
        # Counted from the middle, so that no evidence is 0 exactly.
        evidence = (2 * level - (self.levels - 1)).astype(float) * (self.limit / (self.levels - 1))
        return evidence, jax.random.randint(context_key, (), 0, 2)

    def inputs(self, theta, condition=None):
        theta, context = self._trial(theta, condition)
        row = jnp.concatenate([theta, jax.nn.one_hot(context, 2, dtype=theta.dtype)])
        return jnp.tile(row, (self.steps, 1))

    def targets(self, theta, condition=None):
        theta, context = self._trial(theta, condition)
        return jnp.tile(jnp.sign(theta[context]), (self.steps, 1))

    def mask(self, condition=None):
        return last_step(self.steps)
