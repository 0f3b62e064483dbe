"""Learning rules: a feedback F, a propagator Z and a horizon, g[t] = F eps[t] + Z g[t+1].

With g the parameters move by dW = sum g[t] h[t-1]^T and dB = sum g[t] x[t-1]^T, and the readout by its true gradient.
All rules of this package differ in F, Z and the number of terms alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import equinox as eqx

from dynwarp._checks import check_choice, check_positive_integer
from dynwarp._typing import Inputs, PRNGKey, Scalar, State
from dynwarp.errors import ArgumentError
from dynwarp.learning._engine import rule_gradients
from dynwarp.learning._feedback import AbstractFeedback, Fixed, Mixed, Symmetric, as_feedback
from dynwarp.learning._propagators import (
    AbstractPropagator,
    CellLeak,
    Diagonal,
    Exact,
    Interpolated,
    Leak,
    Reach,
    as_propagator,
)
from dynwarp.learning._traces import DEFAULT_MEMORY
from dynwarp.models import AbstractMap


class AbstractRule(eqx.Module):
    """A learning rule: `feedback` F, `propagator` Z and `horizon`, the number of terms that are kept (None: all)."""

    feedback: eqx.AbstractVar[AbstractFeedback]
    propagator: eqx.AbstractVar[AbstractPropagator]
    horizon: eqx.AbstractVar[int | None]
    # A chunked rule forgets at fixed times, so that its horizon cycles through 1 ... horizon.
    chunked: ClassVar[bool] = False
    # How one sequence is turned into a gradient: the reverse recursion, a forward trace, or a rank-one forward trace.
    estimator: ClassVar[Literal["recursion", "trace", "rank_one"]] = "recursion"

    def gradients(
        self,
        model: AbstractMap,
        readout: Any,
        inputs: Inputs | None,
        targets: Any,
        *,
        state0: State,
        loss: Callable[[Any, Any], Any],
        key: PRNGKey | None = None,
        engine: Literal["auto", "reverse", "forward"] = "auto",
        memory_limit: int = DEFAULT_MEMORY,
    ) -> tuple[Scalar, tuple[Any, Any]]:
        """The loss of one sequence, and what this rule has in place of its gradient. Batches: `jax.vmap`.

        In a nonlinear cell the Jacobian J of the step takes the place of W: `Exact` is its transpose, `Diagonal` its
        diagonal, a user's propagator is called with J. A unit of several coordinates, (h, c) of an LSTM or (Re, Im)
        of a complex mode, counts as one. The leak of a cell is known for those with an additive recurrent weight.

        **Arguments:**

        - `model`: a map; all its floating arrays are parameters. Dropout is off.
        - `readout`: a module, `readout(state, input) -> (o,)`; called as `readout(state)` if there are no inputs. It
          gets its true gradient.
        - `inputs`: `(T, d)`, or None.
        - `targets`: leading axis T; `targets[t]` compares with the output after `inputs[t]`.
        - `state0`: `(n,)`; the computation has its precision.
        - `loss`: `loss(output (o,), target) -> scalar` of one step; the loss of the sequence is the mean over steps.
        - `key`: for UORO.
        - `engine`: "reverse", the recursion; "forward", the cheapest exact trace; "auto" is forward for RTRL and UORO.
        - `memory_limit`: bytes that a forward trace may take; 1 GiB.

        **Returns:** `(loss, (model_gradient, readout_gradient))`, each shaped like
        `eqx.filter(., eqx.is_inexact_array)`. Differentiable in the rule, the model and the data.

        **Raises:** `ModelError` where the rule has no meaning for the cell; `ShapeError`; `ArgumentError` for a trace
        beyond `memory_limit`, with its size, and for a missing `key`.

        **Cost:** reverse, about three simulations, and the states and adjoints are kept; SnAp of order 2 and more n
        times that. Forward, see [`start_trace`][dynwarp.learning.start_trace].

        **Example:**

        >>> import jax, jax.numpy as jnp, dynwarp as dw
        >>> net, out = dw.models.Elman(1, 4, key=jax.random.key(0)), dw.models.Readout(4, 1, key=jax.random.key(1))
        >>> rule = dw.learning.RFLO(feedback=jnp.ones((1, 4)), decay=0.5)
        >>> loss, (of_net, of_readout) = rule.gradients(
        ...     net, out, jnp.ones((5, 1)), jnp.zeros((5, 1)), state0=jnp.zeros(4), loss=dw.learning.half_squared_error
        ... )
        >>> of_net.recurrent_weight.shape
        (4, 4)
        """
        return rule_gradients(
            self, model, readout, inputs, targets,
            state0=state0, loss=loss, key=key, engine=engine, memory_limit=memory_limit,
        )  # fmt: skip


class Rule(AbstractRule):
    """Any rule: `Rule(feedback, propagator, horizon)`.

    **Arguments:**

    - `feedback`: None (symmetric), an array R `(outputs, n)` or a scalar or `(modes,)` (fixed), or a feedback module.
    - `propagator`: a propagator module, or any function W -> Z on `(n, n)` matrices.
    - `horizon`: how many steps an error travels back, counting its own; None for all.

    **Raises:** `ArgumentError` for a horizon below 1 or a propagator that cannot be called.

    **Example:**

    >>> import dynwarp as dw
    >>> rule = dw.learning.Rule(None, lambda W: 0.9 * W.T, horizon=4)
    >>> rule.horizon
    4
    """

    feedback: AbstractFeedback
    propagator: AbstractPropagator
    horizon: int | None = eqx.field(static=True)

    def __init__(self, feedback, propagator, horizon: int | None = None):
        self.feedback = as_feedback(feedback)
        self.propagator = as_propagator(propagator)
        self.horizon = _checked_horizon(horizon)


class BPTT(AbstractRule):
    """Backpropagation through time: the gradient.

    **Example:**

    >>> import dynwarp as dw
    >>> dw.learning.BPTT().horizon is None
    True
    """

    feedback: AbstractFeedback
    propagator: AbstractPropagator
    horizon: int | None = eqx.field(static=True)

    def __init__(self):
        self.feedback, self.propagator, self.horizon = Symmetric(), Exact(), None


class TBPTT(AbstractRule):
    """Truncated backpropagation with a sliding window: every error travels exactly `window` steps back.

    **Example:**

    >>> import dynwarp as dw
    >>> dw.learning.TBPTT(window=3).horizon
    3
    """

    feedback: AbstractFeedback
    propagator: AbstractPropagator
    horizon: int | None = eqx.field(static=True)

    def __init__(self, window: int):
        self.feedback, self.propagator = Symmetric(), Exact()
        self.horizon = check_positive_integer(window, "window", caller="TBPTT")


class ChunkedTBPTT(AbstractRule):
    """Truncated backpropagation as frameworks do it: detached every `chunk` steps, with a loss at each step.

    An error at the j-th step of a chunk travels j steps back. In expectation over a stationary sequence the update is
    the mean of `TBPTT(1)` ... `TBPTT(chunk)`, not `TBPTT(chunk)`.

    **Example:**

    >>> import dynwarp as dw
    >>> dw.learning.ChunkedTBPTT(chunk=3).chunked
    True
    """

    feedback: AbstractFeedback
    propagator: AbstractPropagator
    horizon: int | None = eqx.field(static=True)
    chunked: ClassVar[bool] = True

    def __init__(self, chunk: int):
        self.feedback, self.propagator = Symmetric(), Exact()
        self.horizon = check_positive_integer(chunk, "chunk", caller="ChunkedTBPTT")


class RTRL(AbstractRule):
    """Real-time recurrent learning: the gradient, carried forwards in time (Williams and Zipser 1989).

    **Example:**

    >>> import dynwarp as dw
    >>> dw.learning.RTRL().horizon is None
    True
    """

    feedback: AbstractFeedback
    propagator: AbstractPropagator
    horizon: int | None = eqx.field(static=True)
    estimator: ClassVar[Literal["recursion", "trace", "rank_one"]] = "trace"

    def __init__(self):
        self.feedback, self.propagator, self.horizon = Symmetric(), Exact(), None


class SnAp(AbstractRule):
    """RTRL with an n-step sparse influence matrix (Menick et al. 2021): what a weight reaches within `order` steps.

    On a dense W, order 1 is the diagonal of W and any higher order the gradient.

    **Example:**

    >>> import dynwarp as dw
    >>> dw.learning.SnAp(order=1).propagator
    Diagonal()
    """

    feedback: AbstractFeedback
    propagator: AbstractPropagator
    horizon: int | None = eqx.field(static=True)
    order: int = eqx.field(static=True)

    def __init__(self, order: int):
        self.order = check_positive_integer(order, "order", caller="SnAp")
        self.feedback, self.horizon = Symmetric(), None
        self.propagator = Diagonal() if self.order == 1 else Reach(self.order)


class RFLO(AbstractRule):
    """Random-feedback local online learning (Murray 2019): fixed feedback and a scalar decay.

    A leaky cell h' = (1 - alpha) h + alpha (V h + U x) is the linear network W = (1 - alpha) I + alpha V, B = alpha U
    with `decay = 1 - alpha`; its updates are dV = alpha dW and dU = alpha dB.

    **Arguments:**

    - `feedback`: R `(outputs, n)` for a network; a scalar or `(modes,)` for modes; None is symmetric.
    - `decay`: the factor of the trace at each step.

    **Example:**

    >>> import dynwarp as dw
    >>> float(dw.learning.RFLO(feedback=1.0, decay=0.5).propagator.decay)
    0.5
    """

    feedback: AbstractFeedback
    propagator: AbstractPropagator
    horizon: int | None = eqx.field(static=True)

    def __init__(self, feedback, decay):
        self.feedback, self.propagator, self.horizon = as_feedback(feedback), Leak(decay), None


class EProp(AbstractRule):
    """e-prop (Bellec et al. 2020), with its propagator named.

    **Arguments:**

    - `feedback`: None is symmetric; R `(outputs, n)`, a scalar or `(modes,)` is random and fixed.
    - `propagator`: "diagonal", Z = Diag(W) (and the leak, in leaky cells); "leak", the leak of the cell alone, which
      is zero in a network h' = W h + B x.

    **Example:**

    >>> import dynwarp as dw
    >>> dw.learning.EProp(propagator="leak").propagator
    CellLeak()
    """

    feedback: AbstractFeedback
    propagator: AbstractPropagator
    horizon: int | None = eqx.field(static=True)

    def __init__(self, feedback=None, propagator: str = "diagonal"):
        check_choice(propagator, "propagator", ("diagonal", "leak"), caller="EProp")
        self.feedback, self.horizon = as_feedback(feedback), None
        self.propagator = Diagonal() if propagator == "diagonal" else CellLeak()


class FeedbackAlignment(AbstractRule):
    """Backpropagation through time with a fixed feedback in place of the transposed readout.

    **Example:**

    >>> import dynwarp as dw
    >>> dw.learning.FeedbackAlignment(1.0).propagator
    Exact()
    """

    feedback: AbstractFeedback
    propagator: AbstractPropagator
    horizon: int | None = eqx.field(static=True)

    def __init__(self, feedback):
        self.feedback, self.propagator, self.horizon = Fixed(feedback), Exact(), None


class UORO(AbstractRule):
    """Unbiased online recurrent optimization (Tallec and Ollivier 2018): its mean is the gradient.

    Expected updates and flows are therefore those of [`BPTT`][dynwarp.learning.BPTT].

    **Example:**

    >>> import dynwarp as dw
    >>> dw.learning.UORO().propagator
    Exact()
    """

    feedback: AbstractFeedback
    propagator: AbstractPropagator
    horizon: int | None = eqx.field(static=True)
    estimator: ClassVar[Literal["recursion", "trace", "rank_one"]] = "rank_one"

    def __init__(self):
        self.feedback, self.propagator, self.horizon = Symmetric(), Exact(), None


def homotopy(theta, *, feedback, decay) -> Rule:
    """The straight line from BPTT (`theta = 0`) to RFLO (`theta = 1`), in feedback and propagator at once.

    **Arguments:**

    - `theta`: a scalar; differentiable.
    - `feedback`, `decay`: as in [`RFLO`][dynwarp.learning.RFLO].

    **Returns:** a [`Rule`][dynwarp.learning.Rule].

    **Example:**

    >>> import dynwarp as dw
    >>> rule = dw.learning.homotopy(0.5, feedback=1.0, decay=0.5)
    >>> float(rule.propagator.mode(0.1))
    0.3
    """
    return Rule(Mixed(feedback, theta), Interpolated(Exact(), Leak(decay), theta))


def _checked_horizon(horizon: int | None) -> int | None:
    if horizon is None:
        return None
    if not isinstance(horizon, int) or isinstance(horizon, bool):
        raise ArgumentError(f"`horizon` must be None or a whole number of at least 1; got {horizon!r}.")
    return check_positive_integer(horizon, "horizon")
