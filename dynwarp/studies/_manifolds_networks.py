"""The networks of the manifolds study: what they are trained on, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp import io, piecewise, systems, training
from dynwarp._simulate import simulate
from dynwarp.models import ALRNN, ShallowPLRNN


class Recording(NamedTuple):
    """What a network is trained on: `values`, standardised, a list of `(T, N)`, and their units."""

    values: list[np.ndarray]
    mean: np.ndarray
    scale: np.ndarray
    dt: float


class Trained(NamedTuple):
    """A trained network: its `map`, fixed points `cycles`, the `saddle` it was trained for (None: none of `tries`)."""

    map: Any
    cycles: piecewise.Cycles
    saddle: piecewise.Cycle | None
    loss: float
    tries: int
    recording: Recording
    reconstruction: Any

    def stable(self) -> list[piecewise.Cycle]:
        """The stable fixed points."""
        return [cycle for cycle in self.cycles if cycle.kind == "stable"]

    def observed(self, points) -> np.ndarray:
        """Points of the state space in the units of the recording, `(k, N)`."""
        n = len(self.recording.mean)
        return np.asarray(points)[:, :n] * self.recording.scale + self.recording.mean


Wanted = Callable[[piecewise.Cycles, Recording], piecewise.Cycle | None]


@eqx.filter_jit
def _orbits(field, starts, dt: float, steps: int, substeps: int):
    def one(start):
        return simulate(field, start, steps=steps * substeps, dt=dt / substeps)[substeps - 1 :: substeps]

    return jax.vmap(one)(starts)


def recorded(field, lower, upper, *, seed: int, orbits: int, steps: int, dt: float, substeps: int) -> Recording:
    """Orbits of a field from random starts in a box, standardised together."""
    lower, upper = jnp.asarray(lower, float), jnp.asarray(upper, float)
    starts = jax.random.uniform(jax.random.key(seed), (orbits, lower.size), minval=lower, maxval=upper)
    values = np.asarray(_orbits(field, starts, dt, steps, substeps))
    return standardised(list(values), dt)


def standardised(series: list[np.ndarray], dt: float) -> Recording:
    """Series in the units of their mean and standard deviation."""
    together = np.concatenate(series)
    mean, scale = together.mean(0), together.std(0)
    return Recording([(x - mean) / scale for x in series], mean, scale, dt)


def duffing(seed: int) -> Recording:
    """Orbits of the double well into both wells."""
    return recorded(systems.Duffing(), (-5, -4), (5, 4), seed=seed, orbits=60, steps=130, dt=0.1, substeps=5)


def decision(seed: int) -> Recording:
    """Decisions for either side."""
    return recorded(systems.Decision(), (-5, -5, 0), (15, 15, 12), seed=seed, orbits=60, steps=100, dt=1.0, substeps=10)


def lorenz(seed: int, steps: int = 6000) -> Recording:
    """One long orbit on the attractor and, so that the origin is seen, short ones that begin beside it."""
    field, dt = systems.Lorenz63(), 0.02
    long = np.asarray(_orbits(field, jnp.array([[1.0, 1.0, 20.0]]), dt, steps + 250, 4))[0, 250:]
    near = jax.random.uniform(jax.random.key(seed), (20, 3), minval=-3.0, maxval=3.0)
    short = np.asarray(_orbits(field, near, dt, 150, 4))
    return standardised([long, *short], dt)


def bistable_neuron() -> systems.ConductanceNeuron:
    """The conductance-based neuron with a weak potassium current that reverses at -60 mV: rest and spiking coexist."""
    return systems.ConductanceNeuron(g_K=10.0, E_K=-60.0, current=-0.2)


def neuron(seed: int) -> Recording:
    """Orbits to rest and to spiking: potential and gates."""
    lower, upper = (-85, 0, 0.3, 0), (-30, 0.2, 1, 0.5)
    return recorded(bistable_neuron(), lower, upper, seed=seed, orbits=100, steps=200, dt=0.16, substeps=8)


def from_file(path) -> Recording:
    """A recording from a file, every channel standardised."""
    series = io.read_series(path)
    return Recording([np.asarray(series.values)], np.asarray(series.mean), np.asarray(series.scale), 1.0)


def within(cycle: piecewise.Cycle, recording: Recording, room: float = 1.0) -> bool:
    """Whether a cycle lies in the range of the recording, widened by `room` standard deviations."""
    together = np.concatenate(recording.values)
    points = np.asarray(cycle.points)[:, : together.shape[1]]
    return bool(np.all((points >= together.min(0) - room) & (points <= together.max(0) + room)))


def thresholds(cycles, recording: Recording) -> list[piecewise.Cycle]:
    """The cycles in the range of the recording with one unstable direction: their stable manifolds separate."""
    return [c for c in cycles if c.kind == "saddle" and unstable_directions(c) == 1 and within(c, recording)]


def unstable_directions(cycle: piecewise.Cycle) -> int:
    """How many multipliers lie outside the unit circle."""
    return int((np.abs(np.asarray(cycle.multipliers)) > 1).sum())


def bistable(cycles, recording: Recording):
    """The saddle between two stable fixed points."""
    stable = [c for c in cycles if c.kind == "stable" and within(c, recording)]
    found = thresholds(cycles, recording)
    return found[0] if len(stable) >= 2 and found else None


def train(
    model: Callable[[Any], Any],
    recording: Recording,
    wanted: Wanted,
    *,
    seed: int,
    steps: int,
    tries: int,
    sequence_length: int = 60,
    interval: int = 15,
    noise: float = 0.0,
    batch_size: int = 16,
) -> Trained:
    """Trains networks from one seed after another until one has the fixed points that are wanted, `tries` at most."""
    trained = None
    for attempt in range(tries):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), attempt), 3)
        fitted = training.fit(
            model(keys[0]),
            recording.values,
            steps=steps,
            key=keys[1],
            sequence_length=sequence_length,
            batch_size=batch_size,
            noise=noise,
            forcing=training.SparseTeacherForcing(interval),
            throw=False,
        )
        loss = float(np.nanmean(fitted.history.loss[-max(1, steps // 20) :]))
        cycles = piecewise.find_cycles(fitted.model, 1, key=keys[2])
        saddle = wanted(cycles, recording)
        if trained is None or saddle is not None:
            trained = Trained(fitted.model, cycles, saddle, loss, attempt + 1, recording, fitted.reconstruction)
        if saddle is not None:
            return trained
    assert trained is not None
    return trained._replace(tries=tries)


def shallow(states: int, hidden: int) -> Callable[[Any], Any]:
    """Makes shallow PLRNNs."""
    return lambda key: ShallowPLRNN(states, hidden, key=key)


def almost_linear(states: int, relus: int) -> Callable[[Any], Any]:
    """Makes AL-RNNs."""
    return lambda key: ALRNN(states, relus, key=key)
