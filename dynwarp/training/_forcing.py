"""Teacher forcing: how much of the recording flows into the state while a model is trained on it."""

from __future__ import annotations

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynwarp._checks import check_positive_integer
from dynwarp._compat import concrete
from dynwarp.errors import ArgumentError


class AbstractForcing(eqx.Module):
    """Acts on the state after each step, once the loss has seen it."""

    @abc.abstractmethod
    def __call__(
        self, state: Float[Array, " M"], observation: Float[Array, " N"], step: Int[Array, ""]
    ) -> Float[Array, " M"]:
        """The state that the next step starts from.

        **Arguments:**

        - `state`: what the model made of step i, shape `(M,)`.
        - `observation`: what was recorded then, shape `(N,)`, N <= M: the target of the first N coordinates.
        - `step`: i, the index of this state; the first step of a sequence is 0.
        """


class SparseTeacherForcing(AbstractForcing):
    """Overwrites the first N coordinates by the recording every `interval` steps, at steps 0, interval, 2 interval, ...

    No gradient passes through an overwritten coordinate, so that no product of Jacobians over the observed directions
    is longer than `interval`. The right interval is about the inverse of the largest Lyapunov exponent, in steps.

    **Arguments:**

    - `interval`: tau; 1 forces every step.

    **Raises:** `ArgumentError` unless `interval` is a whole number of at least 1.

    **Source:** Mikhaeil, Monfared and Durstewitz, NeurIPS (2022), arXiv:2110.07238.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> forcing = dw.training.SparseTeacherForcing(10)
    >>> forcing(jnp.zeros(3), jnp.ones(2), 20).tolist(), forcing(jnp.zeros(3), jnp.ones(2), 21).tolist()
    ([1.0, 1.0, 0.0], [0.0, 0.0, 0.0])
    """

    interval: int = eqx.field(static=True)

    def __init__(self, interval: int):
        self.interval = check_positive_integer(interval, "interval", caller="SparseTeacherForcing")

    def __call__(self, state, observation, step):
        return jnp.where(step % self.interval == 0, state.at[: observation.shape[0]].set(observation), state)


class GeneralizedTeacherForcing(AbstractForcing):
    """Mixes the recording into the first N coordinates at every step: z <- (1 - alpha) z + alpha x.

    **Arguments:**

    - `alpha`: between 0, free running, and 1, forced at every step. Gradients shrink by 1 - alpha a step.

    **Raises:** `ArgumentError` where `alpha` lies outside.

    **Source:** Hess, Monfared, Brenner and Durstewitz, ICML (2023), arXiv:2306.04406.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.training.GeneralizedTeacherForcing(0.25)(jnp.zeros(3), jnp.ones(2), 7).tolist()
    [0.25, 0.25, 0.0]
    """

    alpha: float | Float[Array, ""]

    def __init__(self, alpha: float | Float[Array, ""]):
        known = concrete(alpha)
        if known is not None and not (known.ndim == 0 and 0 <= known <= 1):
            raise ArgumentError(f"GeneralizedTeacherForcing: `alpha` must be a number between 0 and 1; got {alpha!r}.")
        self.alpha = alpha

    def __call__(self, state, observation, step):
        observed = state[: observation.shape[0]]
        return state.at[: observation.shape[0]].set(observed + self.alpha * (observation - observed))
