"""A rate model of a choice between two alternatives."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp._typing import Scalar, State
from dynwarp.models import AbstractField
from dynwarp.systems._parameter import as_parameter


class Decision(AbstractField):
    """Two excitatory populations that compete through a shared inhibitory one: a two-choice decision.

    tau_E h_i' = -h_i + w_EE g(h_i) + w_EI gamma h_inh + R (I_i + s_i) for i = 1, 2, and
    tau_inh h_inh' = -h_inh + w_IE [g(h_1) + g(h_2)], with g(h) = 1 / (1 + exp(-(h - theta))).

    The state is (h_1, h_2, h_inh); the input s, of two components, adds to the currents. Time is in ms, potentials and
    currents in arbitrary units.

    **Arguments:** all scalars: `tau_E`, `tau_inh`, in ms; `w_EE`, `w_EI`, `w_IE`, weights; `R`, resistance; `I1`, `I2`,
    currents; `gamma`, gain of the inhibition; `theta`, threshold of the gain function.

    At the defaults two stable states, in which one population wins, mirror each other in the plane h_1 = h_2, which is
    the stable manifold of a symmetric saddle between them. RK4 with a step of 0.1 ms is ample.

    **Source:** Gerstner, Kistler, Naud & Paninski, Neuronal Dynamics (2014), chapter 16; parameters of Eisenmann et
    al., ICLR (2026), arXiv:2510.03814, appendix H.3.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> velocity = dw.systems.Decision()(0.0, jnp.array([5.0, 5.0, 0.0]))
    >>> velocity.round(3).tolist()
    [4.3, 4.3, 2.4]
    """

    tau_E: Scalar = eqx.field(default=10.0, converter=as_parameter)
    tau_inh: Scalar = eqx.field(default=5.0, converter=as_parameter)
    w_EE: Scalar = eqx.field(default=16.0, converter=as_parameter)
    w_EI: Scalar = eqx.field(default=-15.0, converter=as_parameter)
    w_IE: Scalar = eqx.field(default=12.0, converter=as_parameter)
    R: Scalar = eqx.field(default=1.0, converter=as_parameter)
    I1: Scalar = eqx.field(default=40.0, converter=as_parameter)
    I2: Scalar = eqx.field(default=40.0, converter=as_parameter)
    gamma: Scalar = eqx.field(default=1.0, converter=as_parameter)
    theta: Scalar = eqx.field(default=5.0, converter=as_parameter)
    state_size: int = eqx.field(default=3, init=False, static=True)
    input_size: int = eqx.field(default=2, init=False, static=True)
    time_step: ClassVar[float] = 0.1

    def __call__(self, t, state, input=None):
        """The velocity; see [`AbstractField`][dynwarp.models.AbstractField]."""
        potentials, inhibition = state[:2], state[2]
        rates = jax.nn.sigmoid(potentials - self.theta)
        current = jnp.stack([self.I1, self.I2]).astype(state.dtype)
        current = current if input is None else current + input
        excited = -potentials + self.w_EE * rates + self.w_EI * self.gamma * inhibition + self.R * current
        inhibited = -inhibition + self.w_IE * jnp.sum(rates)
        return jnp.append(excited / self.tau_E, inhibited / self.tau_inh)

    def initial_state(self) -> State:
        """All potentials 0, the first a little ahead, so that it wins."""
        return jnp.array([0.1, 0.0, 0.0])
