"""The gradients study on cells: who learns to copy, to add and to tell an order under one small budget."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dynwarp import plot
from dynwarp._simulate import simulate
from dynwarp.learning._descent import descend
from dynwarp.models import GRU, LRU, LSTM, Elman, GaussianInit, IndRNN, OrthogonalRNN, Readout
from dynwarp.studies._study import Claim, Part, StudyFigure, new_figure
from dynwarp.tasks import Adding, Copy, TemporalOrder

# Inputs and outputs that all three tasks are padded to, so that a cell is compiled once.
_SINGLE, _INPUTS, _OUTPUTS, _BATCH, _CHUNK = jnp.float32, 6, 5, 32, 50


def _cells(steps: int):
    """Name -> cell of d inputs and n units."""
    return {
        "Elman": lambda d, n, key: Elman(d, n, recurrent_init=GaussianInit(1.0), dtype=_SINGLE, key=key),
        "Elman, orthogonal": lambda d, n, key: Elman(d, n, dtype=_SINGLE, key=key),
        "orthogonal": lambda d, n, key: OrthogonalRNN(
            d, n, parametrisation="cayley", init="cayley", dtype=_SINGLE, key=key
        ),
        "IndRNN": lambda d, n, key: IndRNN(d, n, horizon=steps, dtype=_SINGLE, key=key),
        "GRU": lambda d, n, key: GRU(d, n, dtype=_SINGLE, key=key),
        "LSTM": lambda d, n, key: LSTM(d, n, dtype=_SINGLE, key=key),
        "LRU": lambda d, n, key: LRU(d, n, n, r_min=0.9, r_max=0.999, max_phase=0.3, dtype=_SINGLE, key=key),
    }


def variants(config) -> Part:
    """Cells on the three tasks that the literature of long memories uses, in small."""
    T = config.variant_length
    # The type checker takes properties of tasks for fields that are missing.
    tasks: dict[str, Any] = {
        "copy": Copy(delay=T - 2 * config.copy_length, length=config.copy_length, n_symbols=4),  # pyright: ignore
        "adding": Adding(steps=T),  # pyright: ignore
        "temporal order": TemporalOrder(steps=T, min_steps=T),  # pyright: ignore
    }
    curves = _curves(tasks, config)
    tail = max(1, config.variant_steps // 20)
    final = {
        t: {c: float(np.median(x[i, :, -tail:].mean(axis=-1))) / task.chance_level for c, x in curves.items()}
        for i, (t, task) in enumerate(tasks.items())
    }
    names = tuple(curves)
    solved = {t: [c for c in names if found[c] < 0.2] for t, found in final.items()}
    copying, adding, order = final.values()

    def listed(found):
        return ", ".join(f"{c} {found[c]:.2f}" for c in names)

    claims = (
        Claim(
            "gated cells learn the adding problem where a plain tanh network does not",
            "Hochreiter and Schmidhuber 1997",
            f"{T} steps, loss by that of chance after {config.variant_steps} updates: {listed(adding)}",
            _of_all(_order(adding["GRU"], adding["Elman"]), _order(adding["LSTM"], adding["Elman"])),
        ),
        Claim(
            "norm-preserving recurrences learn to copy before gated ones",
            "unitary networks solve it, an LSTM stays near chance (Arjovsky et al. 2016)",
            f"{config.copy_length} symbols, {T} steps: {listed(copying)}",
            _order(copying["orthogonal"], min(copying["LSTM"], copying["GRU"])),
        ),
        Claim(
            "an orthogonal start helps a plain network to tell a temporal order",
            "initialisation decides (Pascanu et al. 2013)",
            f"{T} steps: {listed(order)}",
            _order(order["Elman, orthogonal"], order["Elman"]),
        ),
        Claim(
            "plain networks reach fewer than 50 steps, gated ones 500, and special ones 1000",
            "the survey's tables, without a source",
            f"below a fifth of chance at {T} steps: "
            + "; ".join(f"{t}: {', '.join(found) or 'none'}" for t, found in solved.items())
            + ". The order of the cells changes with the task, so that no such number belongs to a cell",
            "fails" if len({min(found, key=found.__getitem__) for found in final.values()}) > 1 else "not reached",
        ),
    )
    figure, axes = new_figure(3, width=3.6)
    block = max(1, config.variant_steps // 60)
    count = config.variant_steps // block
    for i, (ax, (name, task)) in enumerate(zip(axes, tasks.items())):
        smooth = {
            c: np.median(x[i, :, : count * block].reshape(-1, count, block).mean(axis=-1), axis=0) / task.chance_level
            for c, x in curves.items()
        }
        plot.learning_curves(block * (0.5 + np.arange(count)), smooth, ax=ax)
        ax.axhline(1.0, color="#999999", lw=0.8)
        ax.set_title(name, fontsize="medium")
        ax.set_xlabel("update")
        ax.set_ylabel("loss / chance")
        if i:
            ax.get_legend().remove()
        else:
            ax.legend(frameon=False, fontsize="xx-small")
    drawn = StudyFigure(
        "variants", figure, "Losses of the cells on three tasks, by that of chance.",
        "Three panels; in each some curves stay at one, which is chance, and others fall.",
    )  # fmt: skip
    text = (
        f"{config.variant_units} units, batches of {_BATCH} fresh trials, Adam at {config.variant_rate} with gradients "
        f"clipped to norm 1, {config.variant_steps} updates, medians over {config.variant_seeds} seeds, "
        "single precision, "
        "one rate for all cells. This ranks cells under one small budget, and does not say what any can do with more. "
        "Readouts are linear, but the LRU, a linear recurrence, gets a hidden layer."
    )
    return Part(
        "Cells on tasks with long memories", text, claims, {"loss_by_chance": final, "solved": solved}, (drawn,)
    )


def _order(better: float, worse: float) -> str:
    """The verdict on `better` being lower, by more than seeds make."""
    if better < 0.7 * worse:
        return "holds"
    if worse < 0.7 * better:
        return "fails"
    return "not reached" if min(better, worse) > 0.8 else "holds in part"


def _of_all(*verdicts: str) -> str:
    """One verdict where all agree; in part where only some hold."""
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return "holds in part" if "holds" in verdicts else "fails"


def _curves(tasks, config) -> dict[str, np.ndarray]:
    """Losses of every cell, (tasks, seeds, updates): tasks and seeds side by side, chunks of fresh trials."""
    keys = jax.random.split(jax.random.key(config.seed + 50), config.variant_seeds)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(config.variant_rate))
    chunks = config.variant_steps // _CHUNK
    kinds = jnp.asarray([task.classes for task in tasks.values()])
    channels = jnp.asarray([np.arange(_OUTPUTS) < task.output_size for task in tasks.values()])
    data = [
        jax.tree.map(
            lambda *x: jnp.stack(x),
            *(_trials(task, jax.random.key(config.seed + 60 + i)) for task in tasks.values()),
        )
        for i in range(chunks)
    ]
    found = {}
    cells = _cells(config.variant_length)
    for name in config.variant_cells:
        make = cells[name]
        nets = eqx.filter_vmap(lambda key, make=make: _network(make, config.variant_units, key))(keys)
        trained, rest = eqx.partition(nets, eqx.is_inexact_array)
        trained = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(tasks), *x.shape)), trained)
        state = jax.vmap(jax.vmap(optimizer.init))(trained)
        losses = []
        for chunk in data:
            trained, state, values = _advance(trained, state, rest, optimizer, chunk, kinds, channels)
            losses.append(np.asarray(values))
        found[name] = np.concatenate(losses, axis=-1)
    return found


@eqx.filter_jit
def _trials(task, key):
    """Inputs, targets and masks of a chunk of batches, padded."""
    trials = task.batch(key, _CHUNK * _BATCH)
    pad = [(0, 0), (0, 0)]
    x = jnp.pad(trials.inputs, [*pad, (0, _INPUTS - task.input_size)])
    y = jnp.pad(trials.targets, [*pad, (0, _OUTPUTS - task.output_size)])
    parts = (x, y, trials.mask)
    return tuple(p.astype(_SINGLE).reshape(_CHUNK, _BATCH, *p.shape[1:]) for p in parts)


def _network(make, n, key):
    """A cell and its readout."""
    of_cell, of_readout = jax.random.split(key)
    cell = make(_INPUTS, n, of_cell)
    if isinstance(cell, LRU):
        return cell, _Chain(cell.readout(), Readout(n, _OUTPUTS, activation=jax.nn.gelu, dtype=_SINGLE, key=of_readout))
    readout = Readout(n, _OUTPUTS, dtype=_SINGLE, key=of_readout)
    return cell, _Chain(cell.readout(), readout) if isinstance(cell, LSTM) else readout


class _Chain(eqx.Module):
    """Two readouts, one after the other."""

    first: Any
    second: Any

    def __call__(self, state, input=None):
        return self.second(self.first(state, input))


@eqx.filter_jit
def _advance(trained, state, rest, optimizer, data, kinds, channels):
    """One chunk of updates of all tasks (axis 0) and seeds (axis 1)."""

    def loss(trained, x, y, mask, classes, there):
        cell, readout = eqx.combine(trained, rest)

        def run(x):
            states = simulate(cell, jnp.zeros(cell.state_size, x.dtype), x, mode="scan")
            return jax.vmap(readout)(states, x)

        outputs = jax.vmap(run)(x)
        entropy = -jnp.sum(y * jax.nn.log_softmax(jnp.where(there, outputs, -1e9)), axis=-1)
        squares = jnp.sum(jnp.where(there, (outputs - y) ** 2, 0), axis=-1) / jnp.sum(there, dtype=y.dtype)
        errors = jnp.where(classes, entropy, squares)
        return jnp.mean(jnp.sum(mask * errors, axis=-1) / jnp.sum(mask, axis=-1))

    def lane(trained, state, data, classes, there):
        def step(carry, batch):
            trained, state = carry
            value, slope = jax.value_and_grad(loss)(trained, *batch, classes, there)
            return descend(optimizer, slope, state, trained), value

        (trained, state), values = jax.lax.scan(step, (trained, state), data)
        return trained, state, values

    seeds = jax.vmap(lane, in_axes=(0, 0, None, None, None))
    return jax.vmap(seeds)(trained, state, data, kinds, channels)
