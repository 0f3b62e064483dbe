"""Does a plain recurrent network learn every task of the package? Trains one on each, and writes the table.

    python benchmarks/tasks.py                     # all tasks, a few minutes of one core
    python benchmarks/tasks.py --task copy adding  # some of them; the others' rows are kept, and none remakes the table

Every run is Adam on fresh trials, with the gradient's norm clipped at 1, and ends at the first validation, every 100
steps on the same 1000 trials, whose loss is at most the goal. Results: results/tasks.json and results/tasks.md.
"""

import argparse
import json
import pathlib
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import dynwarp as dw

t, m = dw.tasks, dw.models
RESULTS = pathlib.Path(__file__).parent / "results"
CHUNK, BATCH, VALIDATION = 100, 64, 1000


def decoder(backbone, input_size, size, *, key, **options):
    """A decoder of spikes with a backbone of 32 channels."""
    backbone_key, key = jax.random.split(key)
    return m.SpikeDecoder(input_size, backbone(32, size, key=backbone_key, **options), 2, key=key)


def s4d_decoder(*args, **options):
    return decoder(m.S4D, *args, **options)


def gru_decoder(*args, **options):
    return decoder(m.GRU, *args, **options)


# Task, network (a class and its size), its options, learning rate, most steps, goal as a part of the chance level.
RUNS = {
    "contextual integration": (t.ContextualIntegration(), m.LeakyRNN, 64, {"dt": 0.2}, 2e-3, 3000, 0.02),
    "working memory": (t.WorkingMemory(dt=0.25), m.LeakyRNN, 64, {"dt": 0.25}, 2e-3, 4000, 0.05),
    "memory subtraction": (t.MemorySubtraction(dt=0.25), m.Elman, 100, {}, 1e-3, 4000, 0.05),
    "sequential memory": (t.SequentialMemory(dt=0.25), m.Elman, 100, {}, 1e-3, 5000, 0.05),
    "flip-flop": (t.FlipFlop(), m.Elman, 64, {}, 2e-3, 2000, 0.02),
    "centre-out, rates": (t.CentreOut(), m.Elman, 64, {}, 1e-3, 2000, 0.02),
    "centre-out, counts": (t.CentreOut(observation="poisson"), m.Elman, 64, {}, 1e-3, 2000, 0.2),
    "counts, S4D decoder": (t.CentreOut(observation="poisson"), s4d_decoder, 4, {"dt_max": 1.0}, 2e-3, 1000, 0.08),
    "counts, GRU decoder": (t.CentreOut(observation="poisson"), gru_decoder, 64, {}, 2e-3, 1000, 0.08),
    "sine generator": (t.SineGenerator(steps=100), m.Elman, 64, {}, 1e-3, 4000, 0.05),
    "copy": (t.Copy(delay=10, length=3, n_symbols=4), m.Elman, 64, {}, 1e-3, 4000, 0.05),
    "adding": (t.Adding(steps=30), m.Elman, 64, {}, 1e-3, 8000, 0.05),
    "temporal order": (t.TemporalOrder(steps=40, min_steps=30), m.Elman, 64, {}, 1e-3, 3000, 0.05),
    "random permutation": (t.RandomPermutation(steps=50, min_steps=30), m.LeakyRNN, 64, {"dt": 0.2}, 2e-3, 3000, 0.05),
}


@eqx.filter_jit
def outputs(network, inputs):
    states = jax.vmap(lambda x: dw.simulate(network.map, jnp.zeros(network.map.state_size), x))(inputs)
    return jax.vmap(jax.vmap(network.decode))(states)


def run(name, seed=0):
    task, cell, size, options, rate, most, part = RUNS[name]
    cell_key, readout_key, data_key, validation_key = jax.random.split(jax.random.key(seed), 4)
    held_out, goal = eqx.filter_jit(task.batch)(validation_key, VALIDATION), part * task.chance_level
    began = time.process_time()
    network = cell(task.input_size, size, key=cell_key, **options)
    own = hasattr(network, "readout")
    readout = network.readout() if own else m.Readout(size, task.output_size, key=readout_key)
    fitted = dw.training.fit(
        network, task, readout=readout, steps=most, key=data_key, batch_size=BATCH,
        optimizer=optax.adam(rate), clip=1.0, validation=held_out, validate_every=CHUNK, goal=goal,
    )  # fmt: skip
    steps, value, network = fitted.stats["steps"], fitted.history.validation[-1], fitted.last
    error = task.error(outputs(network, held_out.inputs), held_out.targets, held_out.mask)
    print(f"{name}: step {steps}, loss {value:.4g}, goal {goal:.4g}", flush=True)
    sizes = ", ".join(f"{k}={v}" for k, v in options.items())
    return {
        "task": str(task).replace("\n", " "),
        "network": f"{cell.__name__}({size}{', ' + sizes if sizes else ''})",
        "learning_rate": rate,
        "batch": BATCH,
        "seed": seed,
        "chance": task.chance_level,
        "goal": goal,
        "steps": steps,
        "most_steps": most,
        "loss": float(value),
        "error": float(error),
        "classes": task.classes,
        "reached": bool(value <= goal),
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def table(rows):
    lines = [
        "# What plain networks learn of the tasks",
        "",
        f"Made by `benchmarks/tasks.py`: Adam on {BATCH} fresh trials a step, gradient norm clipped at 1, float32, one",
        f"seed; validated every {CHUNK} steps on {VALIDATION} trials, and stopped once the loss is at most the goal.",
        "The steps are those until then. The error is the root mean square, or the fraction of wrong classes. Settings",
        "that are not named are the defaults.",
        "",
        "| task | network | rate | chance | goal | steps | loss | error | reached |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows.values():
        cells = [
            f"`{row['task']}`", row["network"], f"{row['learning_rate']:g}", f"{row['chance']:.4g}",
            f"{row['goal']:.3g}", str(row["steps"]), f"{row['loss']:.3g}", f"{row['error']:.3g}",
            "yes" if row["reached"] else "no",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n" + FAILURES


FAILURES = """
The decoders are `SpikeDecoder`s with a backbone of 32 channels, of 4 modes each or of 64 units; their goal, 0.08 of the
chance level, is an R^2 of 0.92.

Copy, adding, temporal order, random permutation and the sine generator are shorter here than by default.

The choice of network matters. With the same rule these did not reach the goal:

| task | network | rate | steps | loss |
| --- | --- | --- | --- | --- |
| memory subtraction | LeakyRNN(64, dt=0.25) | 0.002 | 4000 | 0.125, chance |
| memory subtraction, delays=(0.5, 1.0) | LeakyRNN(100, dt=0.25) | 0.003 | 6000 | 0.125, chance |
| sequential memory | LeakyRNN(64, dt=0.25) | 0.002 | 4000 | 0.0725 |
| random permutation | Elman(64) | 0.001 | 3000 | 0.695, chance |

Leaky units with tanh stayed at silence in the subtraction; with ReLU, LeakyRNN(100, dt=0.25) at a rate of 0.001, they
reached the goal after 900 steps.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="*", default=list(RUNS), choices=list(RUNS))
    chosen = parser.parse_args().task
    path = RESULTS / "tasks.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    for name in chosen:
        rows[name] = run(name)
        rows = {n: rows[n] for n in RUNS if n in rows}
        path.write_text(json.dumps(rows, indent=2) + "\n")
    (RESULTS / "tasks.md").write_text(table(rows))


if __name__ == "__main__":
    main()
