"""The velocity of a reaching hand, to be decoded from the rates of tuned neurons."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._checks import check_choice, check_positive, check_positive_integer
from dynwarp.errors import ArgumentError
from dynwarp.tasks._parameters import check_bounds
from dynwarp.tasks._task import AbstractTask
from dynwarp.tasks._timeline import count_steps

_REST, _MOVEMENT = 0.2, 1.0


class CentreOut(AbstractTask):
    """Delayed centre-out reach: decode the velocity of the hand from cosine-tuned neurons.

    Variables: the direction theta of the reach and its peak speed s. After 0.2 s the target appears; a delay later the
    hand moves for 1 s with the bell-shaped speed s b(t) of least jerk, max b = 1, and rests again. Neuron i of N has
    the rate

    r_i(t) = `rate` exp(s [`depth` b(t) cos(theta - phi_i) + `preparation` d(t) cos(theta - 2 phi_i)]),

    with phi_i = 2 pi i / N and d = 1 in the delay, else 0: what a neuron does in the delay says nothing of what it does
    in the movement, and the decoder has to be silent in the delay. Inputs: the expected counts `r_i dt`; or in trials
    with `observation="poisson"` Poisson counts of that mean, the same for the same key. The manifold is always that of
    the expected counts. Targets: the velocity s b(t) (cos theta, sin theta); all steps are scored by the squared error.
    A trial draws direction and speed uniformly, and one of the delays.

    **Arguments:**

    - `n_neurons`: N, at least 5, so that the two tunings are orthogonal.
    - `delays`: a tuple of times, whole numbers of steps; the reference condition is the longest.
    - `dt`: the length of a bin, in s.
    - `speeds`: the least and the greatest s.
    - `rate`: of a neuron at rest, in Hz.
    - `depth`, `preparation`: of the tuning in the movement and in the delay.
    - `spread`: how much neurons differ: rate and depth of each are multiplied by exp(`spread` g), and phi_i is shifted
      by `spread` g radians, g being standard normal numbers drawn from `seed`.
    - `observation`: `"rate"` or `"poisson"`.

    Chance: the mean square of a velocity component, by the answer 0; see `chance_level`.

    **Source:** cosine tuning: Georgopoulos, Kalaska, Caminiti & Massey, J. Neurosci. 2 (1982) 1527; with speed: Moran &
    Schwartz, J. Neurophysiol. 82 (1999) 2676; orthogonal preparation: Elsayed et al., Nat. Commun. 7 (2016) 13239;
    least jerk: Flash & Hogan, J. Neurosci. 5 (1985) 1688. The sizes are this package's own.

    **Example:**

    >>> task = dw.tasks.CentreOut()
    >>> task(jnp.array([0.0, 1.0])).shape, task.targets(jnp.array([0.0, 1.0])).max(0).round(2).tolist()
    ((48, 64), [1.0, 0.0])
    """

    n_neurons: int = eqx.field(default=64, static=True)
    delays: tuple[float, ...] = eqx.field(default=(0.25, 0.5, 0.75, 1.0), static=True)
    dt: float = eqx.field(default=0.05, static=True)
    speeds: tuple[float, float] = eqx.field(default=(0.5, 2.0), static=True)
    rate: float = eqx.field(default=10.0, static=True)
    depth: float = eqx.field(default=1.0, static=True)
    preparation: float = eqx.field(default=0.5, static=True)
    observation: Literal["rate", "poisson"] = eqx.field(default="rate", static=True)
    spread: float = eqx.field(default=0.0, static=True)
    seed: int = eqx.field(default=0, static=True)
    dim: ClassVar[int] = 2
    periods: ClassVar[tuple[float | None, ...]] = (2 * math.pi, None)
    output_size: ClassVar[int] = 2
    classes: ClassVar[bool] = False

    def __check_init__(self):
        caller = "CentreOut"
        check_positive_integer(self.n_neurons, "n_neurons", minimum=5, caller=caller)
        check_positive(self.dt, "dt", caller=caller)
        check_positive(self.rate, "rate", caller=caller)
        low, _ = check_bounds(self.speeds, "speeds", caller=caller)
        check_positive(low, "speeds[0]", caller=caller)
        check_choice(self.observation, "observation", ("rate", "poisson"), caller=caller)
        if not (np.isfinite(self.spread) and self.spread >= 0):
            raise ArgumentError(f"{caller}: `spread` must be a finite number of at least 0; got {self.spread!r}.")
        check_positive_integer(self.seed, "seed", minimum=0, caller=caller)
        if not isinstance(self.delays, tuple) or not self.delays:
            raise ArgumentError(f"{caller}: `delays` must be a tuple of at least one time; got {self.delays!r}.")
        for time in (*self.delays, _REST, _MOVEMENT):
            count_steps(time, self.dt, "delays, 0.2 s and 1 s", caller=caller)

    @property
    def bounds(self):
        return (None, self.speeds)

    @property
    def input_size(self):
        return self.n_neurons

    @property
    def steps(self):
        return 2 * round(_REST / self.dt) + round(_MOVEMENT / self.dt) + max(self._delay_steps)

    @property
    def chance_level(self):
        low, high = self.speeds
        square = (low**2 + low * high + high**2) / 3
        return float(square * np.sum(self._bell**2) / (2 * self.steps))

    @property
    def _delay_steps(self):
        return tuple(round(delay / self.dt) for delay in self.delays)

    @property
    def _bell(self):
        """b at the middle of each bin of the movement."""
        count = round(_MOVEMENT / self.dt)
        s = (np.arange(count) + 0.5) / count
        return 16 * (s * (1 - s)) ** 2

    def reference(self):
        """The index of the delay, an integer `()`."""
        return jnp.asarray(int(np.argmax(self.delays)))

    def draw(self, key):
        """A uniform direction and speed, and one of the delays."""
        point_key, delay_key = jax.random.split(key)
        return self.sample(point_key, 1)[0], jax.random.randint(delay_key, (), 0, len(self.delays))

    def observe(self, inputs, key):
        """The expected counts, or counts."""
        if self.observation == "rate":
            return inputs
        return jax.random.poisson(key, inputs).astype(inputs.dtype)

    def inputs(self, theta, condition=None):
        theta, delay = self._trial(theta, condition)
        waiting, moving = self._course(delay, theta.dtype)
        rate, depth, preferred = (jnp.asarray(x, theta.dtype) for x in self._tuning)
        movement = depth * moving[:, None] * jnp.cos(theta[0] - preferred)
        preparation = self.preparation * waiting[:, None] * jnp.cos(theta[0] - 2 * preferred)
        return self.dt * rate * jnp.exp(theta[1] * (movement + preparation))

    def targets(self, theta, condition=None):
        theta, delay = self._trial(theta, condition)
        _, moving = self._course(delay, theta.dtype)
        return theta[1] * moving[:, None] * jnp.stack([jnp.cos(theta[0]), jnp.sin(theta[0])])

    def mask(self, condition=None):
        return jnp.ones(self.steps)

    @property
    def _tuning(self):
        """Rate at rest, depth and preferred direction of each neuron."""
        even = 2 * math.pi * np.arange(self.n_neurons) / self.n_neurons
        differ = self.spread * np.random.default_rng(self.seed).standard_normal((3, self.n_neurons))
        return self.rate * np.exp(differ[0]), self.depth * np.exp(differ[1]), even + differ[2]

    def _course(self, delay, dtype):
        """d and b of each bin."""
        i = jnp.arange(self.steps)
        shown = round(_REST / self.dt)
        start = shown + jnp.asarray(self._delay_steps)[delay]
        waiting = ((i >= shown) & (i < start)).astype(dtype)
        bell = jnp.asarray(np.append(self._bell, 0.0), dtype)
        since = jnp.where(i >= start, i - start, len(bell) - 1)
        return waiting, bell[jnp.minimum(since, len(bell) - 1)]
