"""Teacher forcing: how much of the recording flows into the state while a model is trained on it."""

from __future__ import annotations

import abc
from typing import Literal, Self, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynwarp._checks import check_choice, check_positive_integer
from dynwarp._compat import concrete
from dynwarp.errors import ArgumentError, ModelError
from dynwarp.models import AbstractPiecewiseLinearModel
from dynwarp.training._reconstruction import Reconstruction


class AbstractForcing(eqx.Module):
    """Acts on the state after each step, once the loss has seen it."""

    @abc.abstractmethod
    def __call__(
        self, state: Float[Array, " M"], observation: Float[Array, " N"], step: Int[Array, ""]
    ) -> Float[Array, " M"]:
        """The state that the next step starts from.

        **Arguments:**

        - `state`: what the model made of step i, shape `(M,)`.
        - `observation`: the target of the first N coordinates, shape `(N,)`, N <= M. Where these are what is observed,
          it is what was recorded then; a channel that was not observed has the state itself there. With a linear
          readout, y = B z + c, it is a whole state, z + pinv(B) (x - B z - c): the nearest that explains the
          observation x.
        - `step`: i, the index of this state; the first step of a sequence is 0.
        """

    def updated(
        self, model: Reconstruction, observations: Float[Array, "B T N"], inputs: Float[Array, "B T d"], step
    ) -> Self:
        """The forcing for gradient step `step`, of the same structure; `observations` before each step of the batch,
        NaN where there is none, and the `inputs` of these steps. By default it stays as it is."""
        return self

    def check(self, model: Reconstruction, sequence_length: int) -> None:
        """Raises where this forcing makes no sense for a model or for windows of `sequence_length` steps."""


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

    def check(self, model, sequence_length):
        if self.interval > sequence_length:
            raise ArgumentError(
                f"SparseTeacherForcing: `interval` {self.interval} is longer than the sequences, "
                f"{sequence_length} steps; lower it or raise `sequence_length`."
            )

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
        return _mixed(state, observation, self.alpha)


Estimator = Literal[
    "product_upper_bound", "jacobian_upper_bound", "batch_maximum", "arithmetic_mean", "geometric_mean", "explog"
]


class AdaptiveTeacherForcing(AbstractForcing):
    """Generalized teacher forcing whose alpha follows the expansion of the model along the data.

    Every `every` gradient steps a number n estimates by how much the model expands a perturbation in a step, and
    a = max(0, 1 - 1/n) is the forcing that just undoes it. Alpha becomes a where a is larger, and decay alpha +
    (1 - decay) a where it is not: it jumps up and is annealed down.

    **Arguments:**

    - `alpha`: the first value, between 0 and 1.
    - `every`: gradient steps between estimates.
    - `decay`: between 0 and 1.
    - `estimator`: how n comes from the Jacobians J at the states z that the batch implies (`[x; L x]`, or pinv(B)
      (x - c)), |J| their largest singular values:
        - "product_upper_bound": the geometric mean of |J| over a sequence, the largest of the batch;
        - "batch_maximum": the largest |J| of the batch;
        - "geometric_mean", or "explog": exp of the mean of log |J| over the batch;
        - "arithmetic_mean": |J| of the mean of J over a sequence, the largest of the batch;
        - "jacobian_upper_bound": |A| + |W1| |W2|, a bound on |J| at every state; for piecewise-linear maps.
    - `samples`: the most times of a sequence, evenly spaced, at which Jacobians are taken.

    **Raises:** `ArgumentError` for values outside; in `fit`, `ModelError` for "jacobian_upper_bound" of another map.

    Cost of an estimate: `batch_size * samples` Jacobians and O(M^3) for each.

    **Source:** Hess, Monfared, Brenner and Durstewitz, ICML (2023), arXiv:2306.04406, adaptive scheme.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.training.AdaptiveTeacherForcing(0.5)(jnp.zeros(3), jnp.ones(2), 7).tolist()
    [0.5, 0.5, 0.0]
    """

    alpha: Float[Array, ""]
    every: int = eqx.field(static=True)
    decay: float = eqx.field(static=True)
    estimator: Estimator = eqx.field(static=True)
    samples: int = eqx.field(static=True)

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        every: int = 5,
        decay: float = 0.999,
        estimator: Estimator = "product_upper_bound",
        samples: int = 50,
    ):
        caller = "AdaptiveTeacherForcing"
        for name, value in (("alpha", alpha), ("decay", decay)):
            known = concrete(value)
            if known is not None and not (known.ndim == 0 and 0 <= known <= 1):
                raise ArgumentError(f"{caller}: `{name}` must be a number between 0 and 1; got {value!r}.")
        check_choice(estimator, "estimator", Estimator.__args__, caller=caller)
        self.alpha = jnp.asarray(alpha, float)
        self.every = check_positive_integer(every, "every", caller=caller)
        self.decay = float(decay)
        self.estimator = estimator
        self.samples = check_positive_integer(samples, "samples", caller=caller)

    def __call__(self, state, observation, step):
        return _mixed(state, observation, self.alpha)

    def check(self, model, sequence_length):
        if self.estimator == "jacobian_upper_bound" and not isinstance(model.map, AbstractPiecewiseLinearModel):
            raise ModelError(
                "AdaptiveTeacherForcing: 'jacobian_upper_bound' needs a piecewise-linear map; "
                f"got {type(model.map).__name__}."
            )

    def updated(self, model, observations, inputs, step):
        def moved(alpha):
            estimate = self.estimate(model, observations, inputs)
            annealed = self.decay * alpha + (1 - self.decay) * estimate
            # An estimate that is not finite leaves alpha as it is.
            return jnp.where(estimate > alpha, estimate, jnp.where(jnp.isfinite(estimate), annealed, alpha))

        alpha = jax.lax.cond(step % self.every == 0, moved, lambda alpha: alpha, self.alpha)
        return eqx.tree_at(lambda f: f.alpha, self, alpha)

    def estimate(
        self, model: Reconstruction, observations: Float[Array, "B T N"], inputs: Float[Array, "B T d"]
    ) -> Float[Array, ""]:
        """max(0, 1 - 1/n) of a batch, in standardised units; the inputs drive the step that starts at each row."""
        if self.estimator == "jacobian_upper_bound":
            linear = cast(AbstractPiecewiseLinearModel, model.map).canonical()
            expansion = _norm(linear.A) + _norm(linear.W1) * _norm(linear.W2)
        else:
            stride = -(-observations.shape[1] // self.samples)
            observations, inputs = observations[:, ::stride], inputs[:, ::stride]
            # Rows with a channel missing imply no state.
            counted = jnp.all(jnp.isfinite(observations), axis=-1)
            states = jax.vmap(jax.vmap(model.explain))(jnp.where(counted[..., None], observations, 0), inputs)
            jacobians = jax.vmap(jax.vmap(jax.jacfwd(model.map)))(states, inputs)
            expansion = self._expansion(jacobians, counted)
        return jnp.maximum(0, 1 - 1 / expansion).astype(self.alpha.dtype)

    def _expansion(self, jacobians, counted):
        weight = counted.astype(jacobians.dtype)
        shares = weight / jnp.maximum(jnp.sum(weight, axis=1, keepdims=True), 1)
        if self.estimator == "arithmetic_mean":
            return jnp.max(jax.vmap(_norm)(jnp.einsum("bt,btij->bij", shares, jacobians)))
        norms = jax.vmap(jax.vmap(_norm))(jacobians)
        if self.estimator == "batch_maximum":
            return jnp.max(jnp.where(counted, norms, 0))
        logarithms = jnp.where(counted, jnp.log(jnp.maximum(norms, jnp.finfo(norms.dtype).tiny)), 0)
        if self.estimator == "product_upper_bound":
            return jnp.exp(jnp.max(jnp.sum(shares * logarithms, axis=1)))
        return jnp.exp(jnp.sum(logarithms) / jnp.maximum(jnp.sum(weight), 1))


def _norm(matrix: Float[Array, "m n"]) -> Float[Array, ""]:
    """The largest singular value; by the small Gram matrix, which costs a third of a singular value decomposition."""
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    return jnp.sqrt(jnp.maximum(jnp.linalg.eigvalsh(gram)[-1], 0))


def _mixed(state, observation, alpha):
    observed = state[: observation.shape[0]]
    return state.at[: observation.shape[0]].set(observed + alpha * (observation - observed))
