"""Single neurons: excitable, spiking and bursting."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp._typing import Scalar, State
from dynwarp.models import AbstractField
from dynwarp.systems._parameter import as_parameter


class FitzHughNagumo(AbstractField):
    """v' = v - v^3 / 3 - w + I + s, w' = (v + a - b w) / tau: an excitable cell in the plane, dimensionless.

    The state is (v, w), the input s a current of one component.

    **Arguments:** `a`, `b`, `tau`, `current` (I), scalars.

    At the defaults it fires every 39.5 units of time; at I = 0 it rests at (-1.199, -0.624). RK4 with a step of 0.1 is
    ample.

    **Source:** FitzHugh, Biophys. J. 1 (1961) 445; Nagumo, Arimoto & Yoshizawa, Proc. IRE 50 (1962) 2061.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.systems.FitzHughNagumo()(0.0, jnp.zeros(2)).round(3).tolist()
    [0.5, 0.056]
    """

    a: Scalar = eqx.field(default=0.7, converter=as_parameter)
    b: Scalar = eqx.field(default=0.8, converter=as_parameter)
    tau: Scalar = eqx.field(default=12.5, converter=as_parameter)
    current: Scalar = eqx.field(default=0.5, converter=as_parameter)
    state_size: int = eqx.field(default=2, init=False, static=True)
    input_size: int = eqx.field(default=1, init=False, static=True)
    time_step: ClassVar[float] = 0.1

    def __call__(self, t, state, input=None):
        """The velocity; see [`AbstractField`][dynwarp.models.AbstractField]."""
        v, w = state
        current = self.current if input is None else self.current + input[0]
        return jnp.stack([v - v**3 / 3.0 - w + current, (v + self.a - self.b * w) / self.tau])

    def initial_state(self) -> State:
        """Near rest."""
        return jnp.array([-1.0, -0.5])


class ConductanceNeuron(AbstractField):
    """A spiking neuron of Hodgkin and Huxley's kind, with the sodium and potassium kinetics of Traub and Miles.

    C V' = -g_L (V - E_L) - g_Na m^3 h (V - E_Na) - g_K n^4 (V - E_K) + I + s, and x' = alpha_x(V) (1 - x) - beta_x(V) x
    for the gates x = m, h, n; with u = V - V_T,

    - alpha_m = 0.32 (13 - u) / (exp((13 - u) / 4) - 1), beta_m = 0.28 (u - 40) / (exp((u - 40) / 5) - 1);
    - alpha_h = 0.128 exp((17 - u) / 18), beta_h = 4 / (1 + exp((40 - u) / 5));
    - alpha_n = 0.032 (15 - u) / (exp((15 - u) / 5) - 1), beta_n = 0.5 exp((10 - u) / 40).

    The state is (V, m, h, n), the input s a current of one component. Time is in ms, potentials in mV, `C` in uF/cm^2,
    conductances in mS/cm^2, currents in uA/cm^2.

    **Arguments:** `C`, `g_L`, `g_Na`, `g_K`, `E_L`, `E_Na`, `E_K`, `V_T` (shifts the kinetics), `current` (I), scalars.

    Without current it rests at -64.76 mV; with the default current it fires every 25.6 ms. RK4 with a step
    of 0.02 ms resolves the spikes.

    **Source:** Traub & Miles, Neuronal Networks of the Hippocampus (1991), with the parameters per unit area of the
    conductance-based benchmark in Brette et al., J. Comput. Neurosci. 23 (2007) 349, as Brian 2 documents them in its
    example of a current-frequency curve.

    **Example:**

    >>> import dynwarp as dw
    >>> neuron = dw.systems.ConductanceNeuron(current=0.0)
    >>> bool(abs(neuron(0.0, neuron.initial_state())[0]) < 0.1)
    True
    """

    C: Scalar = eqx.field(default=1.0, converter=as_parameter)
    g_L: Scalar = eqx.field(default=0.05, converter=as_parameter)
    g_Na: Scalar = eqx.field(default=100.0, converter=as_parameter)
    g_K: Scalar = eqx.field(default=30.0, converter=as_parameter)
    E_L: Scalar = eqx.field(default=-65.0, converter=as_parameter)
    E_Na: Scalar = eqx.field(default=50.0, converter=as_parameter)
    E_K: Scalar = eqx.field(default=-90.0, converter=as_parameter)
    V_T: Scalar = eqx.field(default=-63.0, converter=as_parameter)
    current: Scalar = eqx.field(default=1.0, converter=as_parameter)
    state_size: int = eqx.field(default=4, init=False, static=True)
    input_size: int = eqx.field(default=1, init=False, static=True)
    time_step: ClassVar[float] = 0.02

    def __call__(self, t, state, input=None):
        """The velocity; see [`AbstractField`][dynwarp.models.AbstractField]."""
        v, gates = state[0], state[1:]
        m, h, n = gates
        opening, closing = self._rates(v)
        current = self.current if input is None else self.current + input[0]
        ionic = self.g_L * (v - self.E_L) + self.g_Na * m**3 * h * (v - self.E_Na) + self.g_K * n**4 * (v - self.E_K)
        return jnp.append((current - ionic) / self.C, opening * (1.0 - gates) - closing * gates)

    def _rates(self, v):
        u = v - self.V_T
        opening = [
            0.32 * 4.0 * _inverse_exprel((13.0 - u) / 4.0),
            0.128 * jnp.exp((17.0 - u) / 18.0),
            0.032 * 5.0 * _inverse_exprel((15.0 - u) / 5.0),
        ]
        closing = [
            0.28 * 5.0 * _inverse_exprel((u - 40.0) / 5.0),
            4.0 * jax.nn.sigmoid((u - 40.0) / 5.0),
            0.5 * jnp.exp((10.0 - u) / 40.0),
        ]
        return jnp.stack(opening), jnp.stack(closing)

    def initial_state(self) -> State:
        """The gates at rest at the leak potential."""
        opening, closing = self._rates(self.E_L)
        return jnp.append(self.E_L, opening / (opening + closing)).astype(float)


def _inverse_exprel(x):
    """x / (exp(x) - 1), continued through its removable singularity, with a finite derivative there."""
    small = jnp.abs(x) < 1e-4
    safe = jnp.where(small, 1.0, x)
    return jnp.where(small, 1.0 - x / 2.0 + x**2 / 12.0, safe / jnp.expm1(safe))


class BurstingNeuron(AbstractField):
    """A bursting neuron in three dimensions, the benchmark of the reconstruction literature.

    C V' = -g_L (V - E_L) - g_Na m_inf(V) (V - E_Na) - g_K n (V - E_K) - g_M h (V - E_K) - g_NMDA s_inf(V) (V - E_NMDA)
    + I + s, n' = (n_inf(V) - n) / tau_n, h' = (h_inf(V) - h) / tau_h,

    with x_inf(V) = 1 / (1 + exp((V_x - V) / k_x)) for x = m, n, h, and the magnesium block s_inf(V) =
    1 / (1 + 0.33 exp(-0.0625 V)). The slow potassium current (g_M, gate h) ends the bursts, which the NMDA current
    drives.

    The state is (V, n, h), the input s a current of one component. Time is in ms, potentials in mV, `C` in uF,
    conductances in mS, currents in uA.

    **Arguments:** `C`, `g_L`, `g_Na`, `g_K`, `g_M`, `g_NMDA`, `E_L`, `E_Na`, `E_K`, `E_NMDA`, `V_m`, `k_m`, `V_n`,
    `k_n`, `V_h`, `k_h`, `tau_n`, `tau_h`, `current` (I), scalars.

    At the defaults bursts of 15 spikes, 3.8 to 7.9 ms apart, alternate with 84 ms of silence. RK4 with a step of
    0.05 ms resolves the spikes.

    **Source:** Durstewitz, Neural Networks 22 (2009) 1189, in the form and with the parameters of Schmidt et al., ICLR
    (2021), arXiv:1910.03471. The values were taken from public generators of that benchmark, not from the papers
    themselves; the bursts agree with its published series.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp as dw
    >>> dw.systems.BurstingNeuron()(0.0, jnp.array([-25.0, 0.0, 0.0])).round(3)[1].item()
    0.5
    """

    C: Scalar = eqx.field(default=6.0, converter=as_parameter)
    g_L: Scalar = eqx.field(default=8.0, converter=as_parameter)
    g_Na: Scalar = eqx.field(default=20.0, converter=as_parameter)
    g_K: Scalar = eqx.field(default=10.0, converter=as_parameter)
    g_M: Scalar = eqx.field(default=25.0, converter=as_parameter)
    g_NMDA: Scalar = eqx.field(default=10.2, converter=as_parameter)
    E_L: Scalar = eqx.field(default=-80.0, converter=as_parameter)
    E_Na: Scalar = eqx.field(default=60.0, converter=as_parameter)
    E_K: Scalar = eqx.field(default=-90.0, converter=as_parameter)
    E_NMDA: Scalar = eqx.field(default=0.0, converter=as_parameter)
    V_m: Scalar = eqx.field(default=-20.0, converter=as_parameter)
    k_m: Scalar = eqx.field(default=15.0, converter=as_parameter)
    V_n: Scalar = eqx.field(default=-25.0, converter=as_parameter)
    k_n: Scalar = eqx.field(default=5.0, converter=as_parameter)
    V_h: Scalar = eqx.field(default=-15.0, converter=as_parameter)
    k_h: Scalar = eqx.field(default=5.0, converter=as_parameter)
    tau_n: Scalar = eqx.field(default=1.0, converter=as_parameter)
    tau_h: Scalar = eqx.field(default=200.0, converter=as_parameter)
    current: Scalar = eqx.field(default=0.0, converter=as_parameter)
    state_size: int = eqx.field(default=3, init=False, static=True)
    input_size: int = eqx.field(default=1, init=False, static=True)
    time_step: ClassVar[float] = 0.05

    def __call__(self, t, state, input=None):
        """The velocity; see [`AbstractField`][dynwarp.models.AbstractField]."""
        v, n, h = state
        m_inf = jax.nn.sigmoid((v - self.V_m) / self.k_m)
        n_inf = jax.nn.sigmoid((v - self.V_n) / self.k_n)
        h_inf = jax.nn.sigmoid((v - self.V_h) / self.k_h)
        unblocked = 1.0 / (1.0 + 0.33 * jnp.exp(-0.0625 * v))
        current = self.current if input is None else self.current + input[0]
        ionic = (
            self.g_L * (v - self.E_L)
            + self.g_Na * m_inf * (v - self.E_Na)
            + (self.g_K * n + self.g_M * h) * (v - self.E_K)
            + self.g_NMDA * unblocked * (v - self.E_NMDA)
        )
        return jnp.stack([(current - ionic) / self.C, (n_inf - n) / self.tau_n, (h_inf - h) / self.tau_h])

    def initial_state(self) -> State:
        """A state from which bursting starts at once."""
        return jnp.array([-24.46, 0.0386, 0.0231])
