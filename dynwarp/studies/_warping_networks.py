"""The networks of the warping study: what they are, what they are trained on, and what their metric is held to."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dynwarp._simulate import simulate
from dynwarp.geometry import InputManifold, MetricPenalty, representation_metric
from dynwarp.models import CTRNN, GRU, AbstractMap, Elman, GaussianInit, Readout, SpikeDecoder
from dynwarp.models._cell import prepared
from dynwarp.tasks import (
    AbstractTask,
    CentreOut,
    ContextualIntegration,
    MemorySubtraction,
    SequentialMemory,
    TaskBatch,
    WorkingMemory,
)
from dynwarp.training import NormalEquations, fit_seeds

ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "tanh": jnp.tanh,
    "ReLU": jax.nn.relu,
    "softplus": jax.nn.softplus,
    "GELU": functools.partial(jax.nn.gelu, approximate=False),
}
EVIDENCE, MEMORY, SUBTRACTION, SEQUENCE = "evidence", "working memory", "subtraction", "sequence"
DECODING = "decoding"
# Of decoding: the width of what is told of the spikes to the recurrence, and the rate of the training.
_WIDTH, DECODING_RATE = 16, 3e-3
# Trials that a loss is measured on, and those of a step of the training.
_TRIALS, _BATCH, _SINGLE = 1_000, 64, jnp.float32
# What is added to the metric of the outputs, of its mean eigenvalue: two inputs may have one output.
FLOOR = 1e-2


class RateNetwork(AbstractMap):
    """A Heun step of dx/dt = -x + W phi(x) + B u, the input being held: the network of the paper in discrete time."""

    field: CTRNN
    dt: float = eqx.field(static=True)

    def __init__(self, field: CTRNN, dt: float):
        self.field, self.dt = field, dt

    @property
    def state_size(self):
        return self.field.state_size

    @property
    def input_size(self):
        return self.field.input_size

    def __call__(self, state, input=None, *, step=None):
        t = jnp.zeros((), state.dtype)
        first = self.field(t, state, input)
        second = self.field(t, state + self.dt * first, input)
        return state + self.dt / 2 * (first + second)


class Recurrence(AbstractMap):
    """A `SpikeDecoder` whose state is that of its recurrence alone; its own readout, of past states, is left out."""

    decoder: AbstractMap
    state_size: int = eqx.field(static=True)

    def __init__(self, decoder: AbstractMap, state_size: int):
        self.decoder, self.state_size = decoder, state_size

    @property
    def input_size(self):
        return self.decoder.input_size

    def __call__(self, state, input=None, *, step=None):
        past = jnp.zeros(self.decoder.state_size - self.state_size, state.dtype)
        return self.decoder(jnp.concatenate([state, past]), input, step=step)[: self.state_size]

    def prepared(self):
        return Recurrence(prepared(self.decoder), self.state_size)


class Noise(NamedTuple):
    """White noise in training: in a step of dt each channel of the inputs is off by `inputs` / sqrt(dt), and each unit
    is moved by `units` sqrt(dt), in standard deviations."""

    inputs: float = 0.0
    units: float = 0.0

    def told(self) -> str:
        parts = [f"{value:g} in the {name}" for name, value in zip(self._fields, self) if value]
        return f"noise of {' and '.join(parts)}" if parts else "no noise"


SILENCE = Noise()


class Shaken(AbstractMap):
    """A network whose units are moved in each step by further inputs, one a unit, behind its own."""

    map: AbstractMap

    def __init__(self, map: AbstractMap):
        self.map = map

    @property
    def state_size(self):
        return self.map.state_size

    @property
    def input_size(self):
        return self.map.input_size + self.map.state_size

    def __call__(self, state, input=None, *, step=None):
        if input is None:
            return self.map(state, step=step)
        own = self.map.input_size
        return self.map(state, input[:own], step=step) + input[own:]

    def prepared(self):
        return Shaken(prepared(self.map))


def still(trained):
    """A trained network, its map being `Shaken`, without its noise."""
    return eqx.tree_at(lambda r: r.map, trained, trained.map.map)


class OfShaken(eqx.Module):
    """A penalty of the network within."""

    penalty: MetricPenalty

    def __call__(self, trained):
        return self.penalty(still(trained))


class Trials(AbstractTask):
    """A task whose inputs are seen through noise, with that of `units` units as further inputs; with `scored` False
    nothing is asked of the outputs."""

    task: AbstractTask
    noise: Noise = eqx.field(static=True)
    scored: bool = eqx.field(static=True)
    units: int = eqx.field(static=True)

    def __init__(self, task: AbstractTask, noise: Noise = SILENCE, scored: bool = True, units: int = 0):
        self.task, self.noise, self.scored, self.units = task, noise, scored, units

    @property
    def dim(self):
        return self.task.dim

    @property
    def periods(self):
        return self.task.periods

    @property
    def bounds(self):
        return self.task.bounds

    @property
    def steps(self):
        return self.task.steps

    @property
    def input_size(self):
        return self.task.input_size + self.units

    @property
    def output_size(self):
        return self.task.output_size

    @property
    def dt(self):
        return self.task.dt

    @property
    def classes(self):
        return self.task.classes

    @property
    def chance_level(self):
        return self.task.chance_level

    def reference(self):
        return self.task.reference()

    def draw(self, key):
        return self.task.draw(key)

    def inputs(self, theta, condition=None):
        return self.task.inputs(theta, condition)

    def targets(self, theta, condition=None):
        return self.task.targets(theta, condition)

    def mask(self, condition=None):
        return self.task.mask(condition)

    def observe(self, inputs, key):
        scales = [self.noise.inputs / math.sqrt(self.dt)] * inputs.shape[1]
        scales += [self.noise.units * math.sqrt(self.dt)] * self.units
        shaken = jnp.asarray(scales, inputs.dtype) * jax.random.normal(key, (len(inputs), len(scales)), inputs.dtype)
        return shaken.at[:, : inputs.shape[1]].add(inputs)

    def loss(self, outputs, targets, mask):
        return self.task.loss(outputs, targets, mask) if self.scored else jnp.zeros((), outputs.dtype)


class BothContexts(InputManifold):
    """The evidence of the two contexts on one chart, (relevant, irrelevant), the second context one unit further along
    the second coordinate: a network can then be held to one metric in both."""

    task: ContextualIntegration
    dim: int = eqx.field(static=True)

    def __init__(self, task: ContextualIntegration):
        self.task, self.dim = task, 2

    @property
    def periods(self):
        return (None, None)

    @property
    def bounds(self):
        limit = self.task.limit
        return ((-limit, limit), (-limit, 1 + limit))

    def __call__(self, theta, t=None):
        second = theta[1] > 0.5
        pair = jnp.stack([theta[0], theta[1] - second.astype(theta.dtype)])
        return self.task.inputs(jnp.where(second, pair[::-1], pair), second.astype(jnp.int32))

    def grid(self, n, across=None):
        """n points along the relevant evidence and `across`, n if None, along the other in each context,
        `(2, n, across, 2)`."""
        lines = [jnp.linspace(-self.task.limit, self.task.limit, k) for k in (n, across or n)]
        square = jnp.stack(jnp.meshgrid(*lines, indexing="ij"), axis=-1)
        return jnp.stack([square, square + jnp.array([0.0, 1.0])])


@dataclasses.dataclass(frozen=True)
class Problem:
    """A task, the manifold that its metric is taken on, its times, and where the answer tells one direction alone.

    `first`: the step from which on all variables have reached the network. `answers`: the steps of all answers.
    `probes`: the last step of each, with the direction in the chart, a unit vector, that the answer depends on. Of
    decoding, whose answers tell all: the peak of the movement, and the direction of the reach."""

    task: AbstractTask
    manifold: InputManifold
    first: int
    answers: tuple[int, ...]
    probes: tuple[tuple[int, tuple[float, ...]], ...]

    @property
    def times(self) -> np.ndarray:
        """Of the states, (T,)."""
        return self.task.dt * np.arange(1, self.task.steps + 1)

    @property
    def last(self) -> int:
        """The step of the last answer."""
        return self.answers[-1]

    def held(self, count: int) -> tuple[int, ...]:
        """The steps at which a metric is held, evenly spaced from `first` to the last answer."""
        return tuple(int(i) for i in np.unique(np.linspace(self.first, self.last, count).round()))


@functools.lru_cache(maxsize=64)
def problem(config, name: str, delays: tuple[float, ...] | None = None) -> Problem:
    """The task `name` in the sizes of the config; `delays` in place of those of the config."""
    # The type checker takes properties of tasks for fields that are missing.
    kinds: dict[str, Any] = {
        EVIDENCE: ContextualIntegration,
        MEMORY: WorkingMemory,
        SUBTRACTION: MemorySubtraction,
        SEQUENCE: SequentialMemory,
    }
    if name == EVIDENCE:
        task = kinds[name](dt=config.evidence_dt)
        # Constant inputs reach the state at once; an answer is asked for at the end.
        return Problem(task, BothContexts(task), task.steps // 10, (task.steps - 1,), ((task.steps - 1, (1.0, 0.0)),))
    if name == DECODING:
        task = reaches()
        speed = np.linalg.norm(np.asarray(task.targets(jnp.ones(2))), axis=1)
        moving = tuple(np.flatnonzero(speed).tolist())
        # Direction and speed have been seen throughout the delay.
        return Problem(task, task, moving[0] - 1, moving, ((int(speed.argmax()), (1.0, 0.0)),))
    task = kinds[name](delays=config.delays if delays is None else delays, dt=config.memory_dt)
    theta = jnp.arange(1.0, task.dim + 1)
    shown = np.flatnonzero(np.any(np.asarray(task(theta))[:, :2] != 0, axis=1))
    answers = np.flatnonzero(np.any(np.asarray(task.targets(theta)) != 0, axis=1))
    ends = [*answers[np.flatnonzero(np.diff(answers) > 1)], answers[-1]]
    half = math.sqrt(0.5)
    directions = {
        MEMORY: ((1.0, 0.0), (0.0, 1.0)),
        SUBTRACTION: ((half, -half),),
        SEQUENCE: ((1.0, 0.0, 0.0),),
    }
    probes = tuple((int(end), direction) for end, direction in zip(ends, directions[name], strict=True))
    return Problem(task, task, int(shown[-1]), tuple(answers.tolist()), probes)


def reaches(observation: str = "rate") -> Any:
    """Reaches to be decoded from neurons that differ in rate and depth."""
    make: Any = CentreOut
    return make(n_neurons=48, delays=(0.25,), observation=observation, spread=0.3)


def spike_decoder(config, task, key) -> SpikeDecoder:
    """Attention over units and a GRU."""
    of_backbone, of_decoder = jax.random.split(key)
    backbone = GRU(_WIDTH, config.units, dtype=_SINGLE, key=of_backbone)
    return SpikeDecoder(task.n_neurons, backbone, task.output_size, key=of_decoder)


@dataclasses.dataclass(frozen=True, eq=False)
class Networks:
    """Trained networks, one a seed, in double precision: pairs of a map and a readout.

    `loss`: their mean squared error on fresh trials without noise, `noisy_loss`: with the noise of their training;
    `penalty`: at the end, on the points that it knows, 0 without one."""

    problem: Problem
    nets: tuple[tuple[AbstractMap, Readout], ...]
    loss: np.ndarray
    noisy_loss: np.ndarray
    penalty: np.ndarray
    steps: int

    @property
    def relative_loss(self) -> np.ndarray:
        """The loss by that of chance."""
        return self.loss / self.problem.task.chance_level


CONDITIONS = {
    "task": "the task alone",
    "whole": "whole tensor s(t) I",
    "readout": "tensor of the outputs s I at the answers",
    "rate": "whole tensor of the rates s(t) I",
    "ratio": "ratio of the diagonal 1",
    "rigid": "diagonal s(t)",
    "warp copy": "no task, the metric of a trained network",
    "warp ratio": "no task, the ratios of a trained network",
}


def train(config, name: str, condition: str = "task", *, noise=SILENCE, activation: str = "tanh", delays=None):
    """Networks of a task under a condition; what was trained before is not trained again."""
    return _train(config, name, condition, Noise(*noise), activation, config.delays if delays is None else delays)


@functools.lru_cache(maxsize=64)
def _train(config, name, condition, noise, activation, delays) -> Networks:
    here = problem(config, name, delays)
    task = here.task
    scored = not condition.startswith("warp")
    penalty = None if condition == "task" else _penalty(config, here, name, condition, noise, activation, delays)
    phi = None if name == DECODING else ACTIVATIONS[activation]
    steps, rate = {
        EVIDENCE: (config.evidence_steps, config.evidence_rate),
        DECODING: (config.decoding_steps, DECODING_RATE),
    }.get(name, (config.memory_steps, config.memory_rate))
    rate = optax.cosine_decay_schedule(rate, steps, 0.05)
    shaken = noise.units > 0
    trials = Trials(task, noise, scored, config.units if shaken else 0)

    def network(key):
        if name == DECODING:
            return Recurrence(spike_decoder(config, task, key), config.units)
        options: dict[str, Any] = {"activation": phi, "use_bias": False, "dtype": _SINGLE, "key": key}
        if name != EVIDENCE:
            # A vanilla network, orthogonal at first: leaky units need much longer to find a memory.
            return Elman(task.input_size, config.units, form="pre", **options)
        field = CTRNN(task.input_size, config.units, recurrent_init=GaussianInit(0.5), **options)
        return RateNetwork(field, task.dt)

    fitted = fit_seeds(
        lambda key: Shaken(network(key)) if shaken else network(key),
        trials,
        readout=lambda key: Readout(
            config.units, task.output_size, use_bias=False, activation=phi, dtype=_SINGLE, key=key
        ),
        keys=jax.random.split(jax.random.key(config.seed), config.seeds),
        steps=steps,
        batch_size=_BATCH,
        optimizer=optax.adam(rate),
        clip=1.0,
        penalty=OfShaken(penalty) if shaken and penalty is not None else penalty,
        throw=False,
    )
    nets, left = [], []
    for seed in range(config.seeds):
        lane = fitted.seed(seed).last
        if shaken:
            lane = still(lane)
        left.append(0.0 if penalty is None else float(penalty(lane)))
        nets.append(as_double((lane.map, lane.readout)))
    if not scored:
        nets = [(map, _refit(map, readout, task, config.seed)) for map, readout in nets]
    key = jax.random.key(config.seed + 1)
    quiet = [float(mean_loss(*net, task, task.batch(key, _TRIALS))) for net in nets]
    noisy = quiet
    if noise != SILENCE:
        batch = Trials(task, noise, units=trials.units).batch(key, _TRIALS)
        noisy = [float(mean_loss(Shaken(map) if shaken else map, readout, task, batch)) for map, readout in nets]
    return Networks(here, tuple(nets), np.array(quiet), np.array(noisy), np.array(left), steps)


def _penalty(config, here: Problem, name, condition, noise, activation, delays) -> MetricPenalty:
    """What the metric is held to."""
    points = held_points(here, config.penalty_points)
    options: dict[str, Any] = {"at": here.held(times(config, name)), "strength": config.penalty_strength}
    if condition == "ratio":
        options |= {"target": "ratio", "full": False}
    elif condition == "rigid":
        options |= {"target": "rigid", "full": False}
    elif condition in ("whole", "rate"):
        options |= {"target": "rigid", "space": "state" if condition == "whole" else "rate"}
    elif condition == "readout":
        # Of one output the tensor has rank one, so that its diagonal is all that can be held.
        whole = here.task.output_size >= here.manifold.dim
        options |= {"target": "rigid", "space": "readout", "full": whole, "floor": FLOOR, "at": here.answers}
    else:
        model = train(config, name, noise=noise, activation=activation, delays=delays).nets[0][0]
        G = metric(model, here, points, at=options["at"])
        if condition == "warp copy":
            options |= {"target": "isometry", "reference": G}
        else:
            lengths = np.mean(np.diagonal(G, axis1=-2, axis2=-1), axis=tuple(range(points.ndim - 1)))
            options |= {"target": "average_ratio", "relevant": (0,), "ratio": lengths[:, 0] / lengths[:, 1:].mean(-1)}
    return MetricPenalty(here.manifold, points, **options)


def times(config, name: str) -> int:
    """How many times a metric is held at: while a hand moves, what is shown changes all along."""
    return config.decoding_times if name == DECODING else config.penalty_times


def held_points(here: Problem, count: int) -> Any:
    """Points at which a metric is held, `(count, m)`, on both contexts together where there are two.

    They are quasi-random: on a grid of few points a network learns to warp between them. The sequence is that of
    Roberts, multiples of powers of the generalised golden ratio."""
    manifold: Any = here.manifold
    m = manifold.dim
    ratio = 2.0
    for _ in range(64):
        ratio = (1 + ratio) ** (1 / (m + 1))
    unit = (0.5 + np.arange(1, count + 1)[:, None] * ratio ** -np.arange(1.0, m + 1)) % 1
    if not isinstance(manifold, BothContexts):
        sides = zip(manifold.periods, manifold.bounds, strict=True)
        low, high = np.transpose([(0.0, period) if period else bounds for period, bounds in sides])
        return jnp.asarray(low + (high - low) * unit)
    square = (2 * unit - 1) * manifold.task.limit
    square[1::2, 1] += 1
    return jnp.asarray(square)


def check_grid(here: Problem, count: int) -> Any:
    """A finer grid that looks between those points; along the relevant evidence four times as fine as across."""
    if isinstance(here.manifold, BothContexts):
        return here.manifold.grid(count, max(3, count // 4))
    return here.manifold.grid(max(3, count // 2))


def metric(model, here: Problem, points, *, at=None, space: Any = None, batch_size: int | None = 256) -> np.ndarray:
    """The metric at points and times, `(..., T, m, m)`; `space` a function of the state."""
    found = representation_metric(
        model, here.manifold, points, state0=jnp.zeros(model.state_size), at=at, readout=space, keep="metric",
        method="forward", batch_size=batch_size,
    )  # fmt: skip
    return np.asarray(found.G)


def states(model, here: Problem, points, step: int) -> np.ndarray:
    """The states over points at a step, `(..., n)`."""
    found = representation_metric(model, here.manifold, points, state0=jnp.zeros(model.state_size), at=(step,))
    return np.asarray(found.states)[..., 0, :]


def spaces(net) -> dict[str, Any]:
    """Functions of the state whose metric is told apart: of states, of rates, of outputs; None is the state itself."""
    _, readout = net
    return {"state": None, "rate": readout.activation, "readout": readout}


@eqx.filter_jit
def mean_loss(map, readout, task, batch: TaskBatch):
    """The loss of a task on a batch of trials."""
    states = _states(map, batch)
    return task.loss(jax.vmap(jax.vmap(readout))(states), batch.targets, batch.mask)


def _states(map, batch: TaskBatch):
    return jax.vmap(lambda x: simulate(map, jnp.zeros(map.state_size), x))(batch.inputs)


def _refit(map, readout, task, seed: int):
    """The readout that ridge regression finds for a network that never saw the task."""
    batch = task.batch(jax.random.key(seed + 2), 2 * _TRIALS)
    scored = np.flatnonzero(np.any(np.asarray(batch.mask) > 0, axis=0))
    return eqx.tree_at(lambda r: r.weight, readout, _ridge(map, readout.activation, batch, scored))


@eqx.filter_jit
def _ridge(map, activation, batch: TaskBatch, scored):
    weight = jnp.sqrt(batch.mask)[:, scored, None]
    states = _states(map, batch)[:, scored]
    features = (weight * (states if activation is None else activation(states))).reshape(-1, map.state_size)
    targets = (weight * batch.targets[:, scored]).reshape(-1, batch.targets.shape[-1])
    equations = NormalEquations(features.shape[1], targets.shape[1]).update(features, targets)
    candidates = jnp.logspace(-12, 0, 13)
    path = equations.path(candidates)
    return equations.solve(candidates[path.best]).weights


def as_double(tree):
    """The same with parameters of double precision."""
    return jax.tree.map(lambda x: x.astype(jnp.float64) if eqx.is_inexact_array(x) else x, tree)
