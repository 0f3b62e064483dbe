"""Local representation alignment: targets for the states of an Elman network, and a loss of its own for every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp._checks import check_choice, check_inputs, check_positive, check_positive_integer, check_state
from dynwarp._typing import Inputs, PRNGKey, Scalar, State
from dynwarp.errors import ArgumentError, ModelError, ShapeError
from dynwarp.learning._engine import emit, output_errors
from dynwarp.learning._released_alignment import as_released
from dynwarp.models import Elman
from dynwarp.models._cell import drive

# A signal with a smaller squared norm has no direction worth keeping the length of (the bound of Pascanu's code).
_FLOOR = 1e-20


class LocalRepresentationAlignment(eqx.Module):
    """Training by targets: each step of an Elman network learns from a loss of its own, not from the error at the end.

    With the pre-activations h[t] = W z[t-1] + U x[t] + b and z[t] = phi(h[t]), backwards in time:

    1. The target of step t is phi of what h[t] becomes in K steps of size gamma down the error of the output at t plus
       the local loss L[t+1], which is a function of h[t] through h[t+1]; each gradient is cut to the norm c.
    2. L[t] is the mean over units of log(1 + (z[t] - target)^2), or of the squared difference.
    3. W, U and b move by the sum over steps of the derivatives of L[t] with z[t-1] and the target held fixed, where
       those of W and of U are cut to the norm c at every step. The readout has its true gradient, cut likewise.

    To every derivative is added alpha times that of Omega = (|J^T d| / |d| - 1)^2, where d is the signal one stage up,
    at the output or at h[t+1], held fixed, and J the Jacobian from h[t] to there: signals are to keep their length.

    The published algorithm has one output, at the end; here every step may have one, and it is the published one where
    the loss of the others is zero. For phi the identity, the squared error, K = 1, gamma = n / 2, alpha = 0 and no cut
    it is the gradient. Norms are those of one sequence.

    What the authors' released program does is had by `compat="released"`, to compare with its numbers: only the last
    output has a loss; norms are those of the whole batch; the slopes in Omega are, of sequence b, that of unit b for
    all units; W has no Omega, and U none at the last step; the target of a step is once moved down its loss and K - 1
    times back, for what it is compared with is the state that followed; losses are differentiated through all earlier
    steps; and the first step learns nothing. Under `jax.vmap` the sequences are the batch, at most as many as units,
    and each is given what all together learn.

    **Arguments:**

    - `target_rate`: gamma.
    - `target_steps`: K.
    - `max_norm`: c; None: nothing is cut.
    - `regularisation`: alpha; 0 saves the cost.
    - `local_loss`: `"log_penalty"` or `"squared_error"`.
    - `compat`: `"published"` or `"released"`.

    **Raises:** `ArgumentError` for numbers and choices that are none.

    **Source:** Manchev & Garcia-Peraza-Herrera 2025, arXiv:2504.13531, who find that its signals vanish as those of
    the gradient do, and that Omega helps; Ororbia et al. 2018, arXiv:1805.11703, for networks in layers; Omega:
    Pascanu, Mikolov & Bengio, ICML 2013.

    **Example:**

    >>> import dynwarp as dw
    >>> dw.learning.LocalRepresentationAlignment(target_rate=0.5).target_steps
    10
    """

    target_rate: float
    max_norm: float | None
    regularisation: float
    target_steps: int = eqx.field(static=True)
    local_loss: Literal["log_penalty", "squared_error"] = eqx.field(static=True)
    compat: Literal["published", "released"] = eqx.field(static=True)

    def __init__(
        self,
        *,
        target_rate: float = 1.0,
        target_steps: int = 10,
        max_norm: float | None = 1.0,
        regularisation: float = 0.1,
        local_loss: Literal["log_penalty", "squared_error"] = "log_penalty",
        compat: Literal["published", "released"] = "published",
    ):
        caller = "LocalRepresentationAlignment"
        check_positive(target_rate, "target_rate", caller=caller)
        if max_norm is not None:
            check_positive(max_norm, "max_norm", caller=caller)
        if not 0 <= regularisation < float("inf"):
            raise ArgumentError(f"{caller}: `regularisation` must be finite and at least 0; got {regularisation!r}.")
        check_choice(local_loss, "local_loss", ("log_penalty", "squared_error"), caller=caller)
        check_choice(compat, "compat", ("published", "released"), caller=caller)
        self.target_rate, self.regularisation = float(target_rate), float(regularisation)
        self.max_norm = None if max_norm is None else float(max_norm)
        self.target_steps = check_positive_integer(target_steps, "target_steps", caller=caller)
        self.local_loss, self.compat = local_loss, compat

    def gradients(
        self,
        model: Elman,
        readout: Any,
        inputs: Inputs | None,
        targets: Any,
        *,
        state0: State,
        loss: Callable[[Any, Any], Any],
        key: PRNGKey | None = None,
    ) -> tuple[Scalar, tuple[Any, Any]]:
        """The loss of one sequence, and what this rule has in place of its gradient. Batches: `jax.vmap`.

        **Arguments:** as in [`AbstractRule.gradients`][dynwarp.learning.AbstractRule]; `model` is an
        [`Elman`][dynwarp.models.Elman] of the form "post", whose weights set the precision; `key` is not used.

        **Returns:** `(loss, (model_gradient, readout_gradient))`, each shaped like
        `eqx.filter(., eqx.is_inexact_array)`.

        **Raises:** `ModelError` for any other model; `ShapeError`.

        **Cost:** about 2 K simulations, twice that with Omega; the states are kept. Released: T more.

        **Example:**

        >>> import jax, jax.numpy as jnp, dynwarp as dw
        >>> net, out = dw.models.Elman(1, 4, key=jax.random.key(0)), dw.models.Readout(4, 1, key=jax.random.key(1))
        >>> rule = dw.learning.LocalRepresentationAlignment(target_steps=2)
        >>> loss, (of_net, of_readout) = rule.gradients(
        ...     net, out, jnp.ones((5, 1)), jnp.zeros((5, 1)), state0=jnp.zeros(4), loss=dw.learning.half_squared_error
        ... )
        >>> of_net.recurrent_weight.shape
        (4, 4)
        """
        _check_sequence(model, inputs, targets, state0)
        if self.compat == "released":
            return as_released(self, model, readout, inputs, targets, state0, loss)
        steps, dtype = len(targets), model.recurrent_weight.dtype
        inputs = None if inputs is None else jnp.asarray(inputs).astype(dtype)

        def advance(state, x):
            h = _drive(model, state, x)
            after = model.activation(h)
            return after, (state, h, after)

        start = jnp.asarray(state0).astype(dtype)
        _, (before, h, after) = jax.lax.scan(advance, start, inputs, length=steps)
        value, errors, of_readout = output_errors(readout, loss, after, inputs, targets)
        if self._regularised:
            more = eqx.filter_grad(_readout_penalty)(readout, model, h, inputs, errors)
            of_readout = jax.tree.map(lambda g, m: g + self.regularisation * m, of_readout, more)

        def back(carry, x):
            total, next_target, next_signal = carry
            before, h, x, next_x, has_next, target = x

            def improve(h, _):
                output = self._pull(
                    lambda h: emit(readout, model.activation(h), x), h, lambda y: loss(y, target).astype(dtype) / steps
                )
                state = self._pull(
                    lambda h: _drive(model, model.activation(h), next_x),
                    h,
                    lambda h: has_next * self._local(model, h, next_target),
                )
                return h - self.target_rate * self._cut(output + state), None

            better, _ = jax.lax.scan(improve, h, length=self.target_steps)
            own_target = model.activation(better)
            of_step = eqx.filter_grad(self._objective)(model, before, x, own_target, next_signal)
            signal = jax.grad(lambda h: self._local(model, h, own_target))(h)
            return (jax.tree.map(jnp.add, total, self._cut_matrices(of_step)), own_target, signal), None

        zero = jax.tree.map(jnp.zeros_like, eqx.filter(model, eqx.is_inexact_array))
        next_inputs = None if inputs is None else jnp.roll(inputs, -1, axis=0)
        has_next = (jnp.arange(steps) < steps - 1).astype(dtype)
        path = (before, h, inputs, next_inputs, has_next, targets)
        carry = (zero, jnp.zeros_like(start), jnp.zeros_like(start))
        (of_model, _, _), _ = jax.lax.scan(back, carry, path, reverse=True)
        return value, (of_model, self._cut_matrices(of_readout))

    @property
    def _regularised(self) -> bool:
        return not (isinstance(self.regularisation, int | float) and self.regularisation == 0)

    def _local(self, model: Elman, h, target):
        square = (model.activation(h) - target) ** 2
        return jnp.mean(jnp.log1p(square) if self.local_loss == "log_penalty" else square)

    def _objective(self, model: Elman, before, x, target, next_signal):
        """What the weights of one step descend: its local loss and Omega one step up, which is nought at the last."""
        h = _drive(model, before, x)
        value = self._local(model, h, target)
        if self._regularised:
            omega = _length_penalty(lambda h: model.recurrent_weight @ model.activation(h), h, next_signal)
            value = value + self.regularisation * omega
        return value

    def _pull(self, stage, h, cost):
        """The derivative of cost(stage(h)), and of Omega over that stage."""
        above, pull = jax.vjp(stage, h)
        signal = jax.grad(cost)(above)
        (pulled,) = pull(signal)
        if self._regularised:
            pulled = pulled + self.regularisation * jax.grad(lambda h: _length_penalty(stage, h, signal))(h)
        return pulled

    def _cut(self, g):
        if self.max_norm is None:
            return g
        return g * (self.max_norm / jnp.sqrt(jnp.maximum(jnp.sum(g**2), self.max_norm**2)))

    def _cut_matrices(self, tree):
        return jax.tree.map(lambda g: self._cut(g) if g.ndim > 1 else g, tree)


def _check_sequence(model, inputs, targets, state0) -> None:
    caller = "LocalRepresentationAlignment.gradients"
    if not isinstance(model, Elman) or model.form != "post":
        kind = "Elman(form='pre')" if isinstance(model, Elman) else type(model).__name__
        raise ModelError(f"{caller} needs a `models.Elman` of the form 'post'; got {kind}.")
    if targets is None or jnp.ndim(targets) == 0 or len(targets) == 0:
        raise ShapeError(f"{caller}: `targets` must have a leading axis of at least one step; got {targets!r}.")
    if inputs is not None:
        check_inputs(model, inputs, caller=caller)
        if len(inputs) != len(targets):
            raise ShapeError(
                f"{caller}: `inputs` has {len(inputs)} steps and `targets` {len(targets)}; they must agree."
            )
    check_state(model, state0, caller=caller)


def _drive(model: Elman, state, x):
    return model.recurrent_weight @ state + drive(model, x)


def _readout_penalty(readout, model: Elman, h, inputs, errors):
    def one(h, x, error):
        return _length_penalty(lambda h: emit(readout, model.activation(h), x), h, error)

    return jnp.sum(jax.vmap(one)(h, inputs, errors))


def _length_penalty(stage, h, signal):
    """Omega: by how much the length of a signal changes on its way back through a stage."""
    square = jnp.sum(signal**2)
    counts = square > _FLOOR
    (pulled,) = jax.vjp(stage, h)[1](signal / jnp.sqrt(jnp.where(counts, square, 1)))
    size = jnp.sum(pulled**2)
    length = jnp.where(size > 0, jnp.sqrt(jnp.where(size > 0, size, 1)), 0)
    return jnp.where(counts, (length - 1) ** 2, 0)
