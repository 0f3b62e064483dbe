"""One step of training for every model, on sequences and on recordings, and whole trainings of many seeds."""

from __future__ import annotations

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import dynwarp as dw
from dynwarp.bench._case import Kernel, case
from dynwarp.bench.cases._tools import cast, float64, itemsize, normal
from dynwarp.training._objective import Objective
from dynwarp.training._reconstruction import trainable

_OPTIMIZER = optax.adam(1e-3)
_INPUTS, _OUTPUTS, _DT = 4, 3, 0.5


def _sequence_model(name: str, n: int, dtype: str, key) -> Any:
    m, options = dw.models, {"dtype": jnp.dtype(dtype), "key": key}
    if name == "stack":
        first, second = jax.random.split(key)
        dtype_option = {"dtype": jnp.dtype(dtype)}
        return m.Stack([m.GRU(_INPUTS, n, key=first, **dtype_option), m.GRU(n, n, key=second, **dtype_option)])
    if name == "linear":
        W = (0.9 / n**0.5) * jax.random.normal(key, (n, n), jnp.dtype(dtype))
        return m.LinearRNN(W, jnp.ones((n, _INPUTS), W.dtype), jnp.ones((_OUTPUTS, n), W.dtype) / n)
    return {
        "elman": lambda: m.Elman(_INPUTS, n, **options),
        "leaky": lambda: m.LeakyRNN(_INPUTS, n, **options),
        "ctrnn": lambda: m.CTRNN(_INPUTS, n, **options),
        "low_rank": lambda: m.LowRankRNN(_INPUTS, n, 2, **options),
        "gru": lambda: m.GRU(_INPUTS, n, **options),
        "lstm": lambda: m.LSTM(_INPUTS, n, **options),
        "independent": lambda: m.IndRNN(_INPUTS, n, **options),
        "quasi": lambda: m.QRNN(_INPUTS, n, **options),
        "skip": lambda: m.SkipRNN(_INPUTS, n, **options),
        "clockwork": lambda: m.ClockworkRNN(_INPUTS, n, **options),
        "gated_leak": lambda: m.GatedLeak(_INPUTS, n, **options),
        "orthogonal": lambda: m.OrthogonalRNN(_INPUTS, n, **options),
        "lru": lambda: m.LRU(_INPUTS, n // 2, _OUTPUTS, r_min=0.5, r_max=0.95, **options),
        "s4d": lambda: m.S4D(_INPUTS, n // 2, **options),
        "s5": lambda: m.S5(_INPUTS, n // 2, _OUTPUTS, **options),
        "selective": lambda: m.SelectiveSSM(_INPUTS, max(1, n // 8), **options),
    }[name]()


_SEQUENCE_MODELS = (
    "elman", "leaky", "ctrnn", "low_rank", "linear", "gru", "lstm", "independent", "quasi", "skip", "clockwork",
    "gated_leak", "orthogonal", "lru", "s4d", "s5", "selective", "stack",
)  # fmt: skip


def _driven(model, state0, inputs):
    if not isinstance(model, dw.models.AbstractField):
        return dw.simulate(model, state0, inputs)
    ts = _DT * jnp.arange(len(inputs), dtype=inputs.dtype)
    return dw.simulate(model, state0, diffrax.LinearInterpolation(ts, inputs), steps=len(inputs), dt=_DT)


def _loss(parts, states0, inputs, targets, run):
    model, readout = parts
    emit = model.readout() if readout is None else readout

    def one(state0, sequence, target):
        return jnp.mean((jax.vmap(emit)(run(model, state0, sequence), sequence) - target) ** 2)

    return jnp.mean(jax.vmap(one)(states0, inputs, targets))


@eqx.filter_jit
def _sequence_step(parts, optimizer_state, states0, inputs, targets):
    loss, gradient = eqx.filter_value_and_grad(_loss)(parts, states0, inputs, targets, _driven)
    return loss, gradient, *_apply(parts, gradient, optimizer_state)


def _apply(parts, gradient, optimizer_state):
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer power
        updates, optimizer_state = _OPTIMIZER.update(gradient, optimizer_state)
    return eqx.apply_updates(parts, updates), optimizer_state


def _step_by_step(model, state0, inputs):
    """The states by the cell alone, one call a step: no batching, no parallel form, no rule of its own."""
    if isinstance(model, dw.models.AbstractField):
        return _driven(model, state0, inputs)

    def step(state, x):
        state = model(state, x[1], step=x[0])
        return state, state

    return jax.lax.scan(step, state0, (jnp.arange(len(inputs)), inputs))[1]


def _direction(parameters, seed):
    """A random direction among the parameters: gradients are compared along it."""
    rng = np.random.default_rng(seed)  # which needs no program for each shape, as JAX's would
    return jax.tree.map(lambda x: rng.normal(size=x.shape), parameters)


def _along(gradient, direction):
    pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(direction))
    return sum(jnp.sum(jnp.asarray(g, jnp.float64) * v) for g, v in pairs)


def _by_forward_mode(loss, parameters, direction):
    """The loss and its derivative along a direction, forwards and in float64."""
    return jax.jit(lambda p, v: jax.jvp(loss, (p,), (v,)))(cast(parameters, "float64"), direction)


def _sequences(*models: str, **extra) -> list[dict[str, Any]]:
    return [
        {"model": name, "state_size": 64, "steps": 100, "batch": 32, "dtype": "float32", **extra} for name in models
    ]


@case(
    group="training",
    check={"model": "lru", "state_size": 4, "steps": 6, "batch": 2, "dtype": "float64"},
    quick=_sequences("lstm", "lru"),
    full=_sequences(*(name for name in _SEQUENCE_MODELS if name not in ("lstm", "lru"))),
    gpu=[size for batch in (32, 2048) for size in _sequences("lstm", "lru", batch=batch)],
)
def training_step(*, model: str, state_size: int, steps: int, batch: int, dtype: str, seed: int) -> Kernel:
    """Loss, gradient and Adam update of a model and its readout on a batch of sequences."""
    keys = jax.random.split(jax.random.key(seed))
    network = _sequence_model(model, state_size, dtype, keys[0])
    own = hasattr(network, "readout")
    size = network.state_size
    readout = None if own else dw.models.Readout(size, _OUTPUTS, dtype=jnp.dtype(dtype), key=keys[1])
    parts = (network, readout)
    inputs, states0 = normal(seed + 1, (batch, steps, _INPUTS), dtype), jnp.zeros((batch, size), dtype)
    emit: Any = network.readout() if own else readout
    emitted = eqx.filter_eval_shape(emit, states0[0], inputs[0, 0]).shape
    targets = normal(seed + 2, (batch, steps, *emitted), dtype)
    parameters, rest = eqx.partition(parts, eqx.is_inexact_array)
    direction = _direction(parameters, seed + 3)

    def reference():
        fixed, start, driven, wanted = (cast(part, "float64") for part in (rest, states0, inputs, targets))

        def loss(parameters):
            return _loss(eqx.combine(parameters, fixed), start, driven, wanted, _step_by_step)

        return _by_forward_mode(loss, parameters, direction)

    numbers = sum(x.size for x in jax.tree.leaves(parameters))
    return Kernel(
        function=_sequence_step,
        arguments=(parts, _OPTIMIZER.init(parameters), states0, inputs, targets),
        digest=lambda output: (output[0], _along(output[1], direction)),
        reference=reference,
        tolerance=2e-4 if dtype == "float32" else 1e-10,
        # A product and a sum for every number in the parameters, forwards, and twice that backwards.
        flops=batch * steps * 6 * numbers,
        bytes=batch * steps * (_INPUTS + _OUTPUTS + 2 * size) * itemsize(dtype),
        depth=2 * steps,
        work=batch * steps,
        unit="steps",
    )


_PIECEWISE_MODELS = ("plrnn", "mean_centred", "shallow", "clipped_shallow", "dendritic")


def _piecewise_model(name: str, n: int, dtype: str, key) -> Any:
    m, options, hidden = dw.models, {"dtype": jnp.dtype(dtype), "key": key}, 50
    return {
        "plrnn": lambda: m.PLRNN(n, **options),
        "mean_centred": lambda: m.MeanCentredPLRNN(n, **options),
        "shallow": lambda: m.ShallowPLRNN(n, hidden, **options),
        "clipped_shallow": lambda: m.ShallowPLRNN(n, hidden, clipped=True, **options),
        "dendritic": lambda: m.DendriticPLRNN(n, hidden, **options),
    }[name]()


def _squared(output, target):
    return jnp.mean((output - target) ** 2)


@eqx.filter_jit
def _reconstruction_step(model, optimizer_state, windows, inputs, objective):
    loss, gradient = objective.gradient(model, windows, inputs, None)
    return loss, gradient, *_apply(model, gradient, optimizer_state)


def _recordings(*models: str, batch: int = 16) -> list[dict[str, Any]]:
    return [{"model": name, "state_size": 20, "steps": 200, "batch": batch, "dtype": "float32"} for name in models]


@case(
    group="training",
    check={"model": "shallow", "state_size": 4, "steps": 6, "batch": 2, "dtype": "float64"},
    quick=_recordings("shallow"),
    full=_recordings(*(name for name in _PIECEWISE_MODELS if name != "shallow")),
    gpu=[size for batch in (16, 4096) for size in _recordings("shallow", batch=batch)],
)
def reconstruction_step(*, model: str, state_size: int, steps: int, batch: int, dtype: str, seed: int) -> Kernel:
    """Gradient and Adam update of the piecewise-linear models under generalized teacher forcing, alpha 0.2."""
    observed, keys = 3, jax.random.split(jax.random.key(seed))
    network = _piecewise_model(model, state_size, dtype, keys[0])
    built = dw.training.Reconstruction(network, observed, key=keys[1])
    windows, inputs = normal(seed + 1, (batch, steps + 1, observed), dtype), jnp.zeros((batch, steps, 0), dtype)
    objective = Objective(_squared, dw.training.GeneralizedTeacherForcing(0.2), jnp.zeros((), dtype), None)
    parameters, rest = eqx.partition(built, trainable(built))
    direction = _direction(parameters, seed + 2)

    def reference():
        fixed, data, exact = (cast(part, "float64") for part in (rest, (windows, inputs), objective))

        def loss(parameters):
            return exact.error_and_states(eqx.combine(parameters, fixed), *data, None)[0]

        return _by_forward_mode(loss, parameters, direction)

    numbers = sum(x.size for x in jax.tree.leaves(parameters))
    return Kernel(
        function=_reconstruction_step,
        arguments=(built, _OPTIMIZER.init(parameters), windows, inputs, objective),
        digest=lambda output: (output[0], _along(output[1], direction)),
        reference=reference,
        tolerance=2e-4 if dtype == "float32" else 1e-10,
        flops=batch * steps * 6 * numbers,
        bytes=batch * steps * (observed + 2 * state_size) * itemsize(dtype),
        depth=2 * steps,
        work=batch * steps,
        unit="steps",
    )


_FORCING = dw.training.SparseTeacherForcing(8)
_COMPARED = 3  # steps


def _options(length, batch):
    return {
        "forcing": _FORCING,
        "sequence_length": length,
        "batch_size": batch,
        "optimizer": _OPTIMIZER,
        "throw": False,
    }


def _fit_seeds(make, data, keys, steps, length, batch):
    return dw.training.fit_seeds(make, data, keys=keys, steps=steps, **_options(length, batch)).history.loss


def _fit_one(make, data, keys, steps, length, batch):
    first, second = jax.random.split(keys[0])
    return dw.training.fit(make(first), data, key=second, steps=steps, **_options(length, batch)).history.loss[None]


def _seeds(*counts: int) -> list[dict[str, Any]]:
    size = {"steps": 100, "sequence_length": 200, "batch": 16, "dtype": "float32"}
    return [{"seeds": count, "state_size": 20, "relu_size": 10, **size} for count in counts]


@case(
    group="training",
    check={
        "seeds": 2,
        "state_size": 4,
        "relu_size": 2,
        "steps": 4,
        "sequence_length": 8,
        "batch": 2,
        "dtype": "float64",
    },
    quick=_seeds(5),
    full=_seeds(1, 20),
    gpu=_seeds(1, 64),
)
def fit_seeds(
    *, seeds: int, state_size: int, relu_size: int, steps: int, sequence_length: int, batch: int, dtype: str, seed: int
) -> Kernel:
    """Whole trainings of AL-RNNs on the Lorenz system, several seeds side by side; beside them one seed alone."""
    ts = jnp.linspace(0.0, 20.0, 2001)
    states = dw.simulate(dw.systems.Lorenz63(), jnp.array([1.0, 1.0, 20.0]), ts=ts, dt=0.01)
    data = float64((states - jnp.mean(states, 0)) / jnp.std(states, 0))
    keys = jax.random.split(jax.random.key(seed), seeds)

    def make(key, to=dtype):
        first, second = jax.random.split(key)
        network = dw.models.ALRNN(state_size, relu_size, dtype=jnp.dtype(dtype), key=first)
        return cast(dw.training.Reconstruction(network, data.shape[1], key=second), to)

    def reference():
        # The first steps of the first seed alone: the path of a longer training is decided by rounding.
        length = (min(steps, _COMPARED), sequence_length, batch)
        return _fit_one(lambda key: make(key, "float64"), data, keys, *length)[0]

    arguments = (make, data, keys, steps, sequence_length, batch)
    return Kernel(
        function=_fit_seeds,
        arguments=arguments,
        digest=lambda losses: losses[0, :_COMPARED],
        reference=reference,
        tolerance=1e-4 if dtype == "float32" else 1e-10,
        flops=seeds * steps * batch * sequence_length * 6 * state_size**2,
        bytes=seeds * steps * batch * sequence_length * (3 + 2 * state_size) * itemsize(dtype),
        depth=steps * 2 * sequence_length,
        work=seeds * steps,
        unit="updates",
        variants={"one seed": (_fit_one, arguments)} if seeds > 1 else {},
        compiled=False,
    )
