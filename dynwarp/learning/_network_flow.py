"""The flow of a whole linear network under a rule: what gradient descent follows as its rate goes to zero."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynwarp._checks import check_positive_integer, check_shape
from dynwarp.learning._expected_update import expected_update, matrices_of
from dynwarp.learning._rules import AbstractRule
from dynwarp.models import AbstractField, LinearRNN


class NetworkFlow(AbstractField):
    """d(W, B, A)/dt = -Delta as a field over one vector; made by [`network_flow`][dynwarp.learning.network_flow]."""

    rule: AbstractRule
    teacher: LinearRNN
    horizon: int | None = eqx.field(static=True)
    sizes: tuple[int, int, int] = eqx.field(static=True)
    state_size: int = eqx.field(static=True)
    input_size: int = eqx.field(static=True)

    def __init__(self, rule: AbstractRule, teacher: LinearRNN, horizon: int | None, sizes: tuple[int, int, int]):
        n, inputs, outputs = self.sizes = sizes
        self.rule, self.teacher, self.horizon = rule, teacher, horizon
        self.state_size, self.input_size = n * n + n * inputs + outputs * n, 0

    def __call__(self, t, state, input=None):
        return -_ravel(expected_update(self.rule, self.unravel(state), self.teacher, horizon=self.horizon))

    def ravel(self, student: LinearRNN) -> Float[Array, " n"]:
        """The state of the flow: W, B and A row by row, one after the other."""
        return _ravel((student.W, student.B, student.A))

    def unravel(self, state: Float[Array, " n"]) -> LinearRNN:
        """The network at a state of the flow."""
        check_shape(state, "state", (self.state_size,), caller="network_flow")
        n, inputs, outputs = self.sizes
        W, B, A = jnp.split(state, (n * n, n * n + n * inputs))
        return LinearRNN(W.reshape(n, n), B.reshape(n, inputs), A.reshape(outputs, n))


def network_flow(rule: AbstractRule, student: Any, teacher: Any, *, horizon: int | None = None) -> NetworkFlow:
    """The flow of (W, B, A) under a learning rule: theta' = -Delta, with t = eta k for k steps of a small rate eta.

    **Arguments:**

    - `rule`: any rule; a fixed feedback has shape `(outputs, n)`.
    - `student`: a [`LinearRNN`][dynwarp.models.LinearRNN], for its sizes.
    - `teacher`: a `LinearRNN`; its number of units may differ.
    - `horizon`: the length T of the sequences; None is the stationary limit.

    **Returns:** a field to integrate with [`simulate`][dynwarp.simulate] from `flow.ravel(student)`;
    `flow.unravel(state)` is the network. Its velocity is NaN where the stationary limit does not exist.

    **Raises:** `ShapeError` where sizes do not fit; `ArgumentError` for a horizon that is no whole number.

    **Cost:** of a velocity that of [`expected_update`][dynwarp.learning.expected_update].

    **Source:** Williams, Payeur and Lajoie, ICML 2026 (arXiv 2606.00243), without their alignment.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> net = lambda w, b, a: dw.models.LinearRNN(jnp.array([[w]]), jnp.array([[b]]), jnp.array([[a]]))
    >>> student, teacher = net(0.1, 0.3, 0.5), net(0.6, 1.0, 1.0)
    >>> flow = dw.learning.network_flow(dw.learning.BPTT(), student, teacher)
    >>> path = dw.simulate(flow, flow.ravel(student), ts=jnp.array([0.0, 5.0]))
    >>> print(flow.unravel(path[-1]).W.round(4))
    [[0.6]]
    """
    (W, B, A), matrices = matrices_of(student, teacher, "network_flow")
    if horizon is not None:
        horizon = check_positive_integer(horizon, "horizon", caller="network_flow")
    return NetworkFlow(rule, LinearRNN(*matrices), horizon, (W.shape[0], B.shape[1], A.shape[0]))


def _ravel(matrices) -> Float[Array, " n"]:
    return jnp.concatenate([jnp.ravel(x) for x in matrices])
