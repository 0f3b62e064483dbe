"""Reconstructions of known systems and of recordings, several seeds each: metrics beside the published ones.

Run: python benchmarks/reconstruction.py [EXPERIMENT...]; --help names the options.
Writes benchmarks/results/reconstruction.json and reconstruction.md; what was run before and is not run now stays.
The recordings are read from FOLDER, by default ../shared/data beside the repository; an experiment whose file is not
there is skipped with a line.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import dynwarp as dw
from dynwarp import metrics, training

jax.config.update("jax_enable_x64", True)
ROOT = Path(__file__).resolve().parent
OUT = ROOT / "results" / "reconstruction.json"
HORIZON = 20
EXPONENT_STEPS = 50_000
# What is asked of the Lorenz system: the largest D_stsp, D_H and relative error of the exponent.
ASKED = (0.35, 0.10, 0.05)
LORENZ_EXPONENT = 0.906


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One setting: what data, what model, how it is trained, and what others have published for it.

    `system`, with the `dt` of its samples, is known and has an exponent of its own; `select` is the score that picks
    the best of `checks` models along the training: "prediction" (`training.ReconstructionScore`), or the units of an
    `AttractorScore`.
    """

    data: Callable[[Path], tuple[np.ndarray, np.ndarray] | None]
    make: Callable[[Any], Any]
    forcing: Callable[[], Any]
    steps: int
    seeds: int
    learning_rate: tuple[float, float]
    sequence_length: int
    batch_size: int
    noise: float = 0.0
    penalty: Any = None
    readout: Callable[[Any], Any] | None = None
    dt: float | None = None
    system: Any = None
    select: str | tuple[float, float, float] = "prediction"
    checks: int = 20
    target: str = ""
    published: str = ""
    evaluate: Callable[..., dict[str, list[float]]] | None = None


# --- data: a part to train on and one to compare with, both in the units of the first


def orbit(system, steps: int, dt: float, transient: int, every: int = 1) -> np.ndarray:
    total = transient + steps * every
    return np.asarray(dw.simulate(system, system.initial_state(), dt=dt, steps=total))[transient::every]


def standardised(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, scale = first.mean(0), first.std(0)
    return (first - mean) / scale, (second - mean) / scale


def lorenz(folder: Path):
    x = orbit(dw.systems.Lorenz63(), 200_000, 0.01, 5_000)
    return standardised(x[:100_000], x[100_000:])


def bursting(folder: Path):
    neuron = dw.systems.BurstingNeuron()
    x = orbit(neuron, 40_000, neuron.time_step, 20_000, 10)
    return standardised(x[:20_000], x[20_000:])


DUFFING_DT, DUFFING_ROWS = 0.02, 120
DUFFING_POINTS = np.array([[0.0, 0.0], [10**0.5, 0.0], [-(10**0.5), 0.0]])


def duffing(folder: Path):
    """Transients into both wells, a sample every five steps of the integrator.

    A third start near the saddle, which the others pass too fast to tell where it is, and the recordings end soon after
    the wells are reached: rows at rest say nothing about the rest.
    """
    rng = np.random.default_rng(0)
    starts = np.concatenate([rng.uniform([-4.5, -3], [4.5, 3], (100, 2)), rng.uniform(-1, 1, (50, 2))])
    run = jax.jit(jax.vmap(lambda z: dw.simulate(dw.systems.Duffing(), z, dt=DUFFING_DT, steps=5 * DUFFING_ROWS)))
    x = np.asarray(run(jnp.asarray(starts)))[:, ::5]
    return x, x


def recording(name: str, share: float = 0.8, every: int = 1, columns: int | None = None):
    def read(folder: Path):
        path = folder / name
        if not path.exists():
            return None
        x = np.load(path, allow_pickle=False)[::every, :columns]
        cut = int(share * len(x))
        return standardised(x[:cut], x[cut:])

    return read


# --- the score that picks the best of the models along a training


class AttractorScore(eqx.Module):
    """The sum of D_stsp, D_H and the relative error of the largest exponent, each in `units`, of a free run as long as
    the data that were trained on. It knows the exponent of the system."""

    values: jax.Array
    dt: float = eqx.field(static=True)
    units: tuple[float, float, float] = eqx.field(static=True)

    def __call__(self, model):
        values = self.values.astype(model.mean.dtype)
        drop, one = len(values) // 10, jnp.ones((), values.dtype)

        def step(carry, _):
            state, tangent = carry
            state, tangent = jax.jvp(model.map, (state,), (tangent,))
            growth = jnp.linalg.norm(tangent)
            return (state, tangent / growth), (model.decode(state), jnp.log(growth))

        start = model.encode(values[0])
        _, (free, growths) = jax.lax.scan(step, (start, jnp.ones_like(start)), length=len(values))
        bounded = jnp.all(jnp.abs(free) < 10)
        free, seen = jnp.where(bounded, free, values)[drop:], values[drop:]
        error = jnp.abs(jnp.mean(growths[drop:]) / (self.dt * LORENZ_EXPONENT * one) - 1)
        parts = (metrics.state_space_divergence(seen, free), metrics.power_spectrum_distance(seen, free), error)
        score = sum(part / (unit * one) for part, unit in zip(parts, self.units))
        return jnp.where(bounded & jnp.isfinite(score), score, jnp.inf)


def best_model_score(experiment: Experiment, train: np.ndarray):
    if experiment.evaluate is not None:
        return None
    if not isinstance(experiment.select, str):
        return AttractorScore(jnp.asarray(train, jnp.float32), experiment.dt, experiment.select)
    return training.ReconstructionScore(train[:5000], horizon=HORIZON)


def selection(experiment: Experiment) -> str:
    """How the model was picked, for the table."""
    if experiment.evaluate is not None:
        return "the last"
    if isinstance(experiment.select, str):
        return f"{experiment.select}, {experiment.checks} checks"
    terms = (f"{name} / {unit}" for name, unit in zip(("D_stsp", "D_H", "|exponent / 0.906 - 1|"), experiment.select))
    return f"{' + '.join(terms)} on the training data, {experiment.checks} checks"


# --- evaluation


def free_runs(models, start, steps: int):
    run = eqx.filter_jit(eqx.filter_vmap(lambda m: m.generate(start, steps)))
    return np.asarray(run(models))


def attractor(models, train, test, experiment: Experiment) -> dict[str, list[float]]:
    """D_stsp, D_H, PE(20) and the largest exponent of every seed, in double precision."""
    length = len(test)
    reference = jnp.asarray(test[:length])
    generated = free_runs(models, reference[0], int(1.25 * length))[:, -length:]
    count = len(generated)
    out: dict[str, list[float]] = {"D_stsp": [], "D_H": [], f"PE({HORIZON})": [], "exponent": []}
    for i in range(count):
        model = jax.tree.map(lambda x, i=i: x[i] if eqx.is_array(x) else x, models)
        free = jnp.asarray(generated[i])
        out["D_stsp"].append(float(metrics.state_space_divergence(reference, free)))
        out["D_H"].append(float(metrics.power_spectrum_distance(reference, free)))
        seen = reference[:2000]
        error = jnp.mean((model.predict(seen[:-HORIZON], HORIZON) - seen[HORIZON:]) ** 2)
        out[f"PE({HORIZON})"].append(float(error))
        spectrum = dw.dynamics.lyapunov_spectrum(
            model.map, model.encode(free[-1]), steps=EXPONENT_STEPS, k=1, transient=1_000, throw=False
        )
        out["exponent"].append(float(spectrum.exponents[0]) / (experiment.dt or 1.0))
    return out


def references(test: np.ndarray, experiment: Experiment) -> dict[str, list[float | None]]:
    """What the halves of the test data, and noise, reach; the exponent of a known system by the same estimator."""
    reference = jnp.asarray(test)
    pairs = (("D_stsp", metrics.state_space_divergence), ("D_H", metrics.power_spectrum_distance))
    found = {
        name: [float(metrics.split_half(m, reference)), float(metrics.chance_level(m, reference))] for name, m in pairs
    }
    floor = float(metrics.persistence_error(reference[:2000], HORIZON))
    found |= {f"PE({HORIZON})": [None, floor]}
    if experiment.system is not None:
        system = experiment.system()
        spectrum = dw.dynamics.lyapunov_spectrum(
            system, system.initial_state(), dt=experiment.dt, steps=EXPONENT_STEPS, k=1, transient=1_000
        )
        found["exponent"] = [float(spectrum.exponents[0]), None]
    return found


def wells(models, train, test, experiment: Experiment) -> dict[str, list[float]]:
    """How many of the three fixed points each seed has within 0.1 of the truth, by the map's exact fixed points."""
    hits, distances = [], []
    for i in range(models.mean.shape[0]):
        model = jax.tree.map(lambda x, i=i: x[i] if eqx.is_array(x) else x, models)
        cycles = dw.piecewise.find_cycles(model.map.canonical(), 1, key=jax.random.key(0))
        points = np.array([np.asarray(c.points[0]) for c in cycles.of_period(1)]).reshape(-1, 2)
        gaps = [np.min(np.linalg.norm(points - p, axis=1), initial=np.inf) for p in DUFFING_POINTS]
        hits.append(float(np.sum(np.array(gaps) < 0.1)))
        distances.append(float(max(gaps)))
    return {"fixed points within 0.1": hits, "largest distance": distances}


# --- the experiments

SINGLE = {"dtype": jnp.float32}
LORENZ_TARGET = "D_stsp <= 0.35, D_H <= 0.10, exponent within 5 % of 0.906"
LORENZ_PUBLISHED = "D_stsp .23 +- .05, D_H .079 +- .010 (AL-RNN, P = 10, 100 000 steps)"


def wide(model: dw.models.ShallowPLRNN, key) -> dw.models.ShallowPLRNN:
    """The network with its first biases uniform in +-2, so that its ReLUs switch all over standardised data."""
    biases = jax.random.uniform(jax.random.fold_in(key, 9), model.h2.shape, model.h2.dtype, -2, 2)
    return eqx.tree_at(lambda m: m.h2, model, biases)


EXPERIMENTS: dict[str, Experiment] = {
    "duffing_shallow": Experiment(
        duffing, lambda key: dw.models.ShallowPLRNN(2, 10, key=key, **SINGLE),
        lambda: training.SparseTeacherForcing(15), 20_000, 10, (5e-3, 5e-5), 100, 32,
        target="three fixed points within 0.1 of the truth in 8 of 10 seeds", evaluate=wells,
    ),
    "lorenz63_gtf": Experiment(
        lorenz, lambda key: wide(dw.models.ShallowPLRNN(3, 50, clipped=True, key=key, **SINGLE), key),
        lambda: training.GeneralizedTeacherForcing(0.05), 50_000, 5, (1e-2, 1e-5), 50, 64,
        dt=0.01, system=dw.systems.Lorenz63, select=(1.0, 1.0, 0.2), target="D_stsp <= 0.35",
    ),
    "lorenz63_alrnn": Experiment(
        lorenz, lambda key: dw.models.ALRNN(20, 10, key=key, **SINGLE),
        lambda: training.SparseTeacherForcing(16), 100_000, 5, (3e-3, 1e-5), 200, 16, 0.05,
        dt=0.01, system=dw.systems.Lorenz63, target=LORENZ_TARGET, published=LORENZ_PUBLISHED,
    ),
    "lorenz63_alrnn_selected": Experiment(
        lorenz, lambda key: dw.models.ALRNN(20, 10, key=key, **SINGLE),
        lambda: training.SparseTeacherForcing(30), 100_000, 5, (3e-3, 1e-5), 200, 16, 0.05,
        dt=0.01, system=dw.systems.Lorenz63, select=ASKED, checks=40, target=LORENZ_TARGET, published=LORENZ_PUBLISHED,
    ),
    "lorenz63_alrnn_short": Experiment(
        lorenz, lambda key: dw.models.ALRNN(20, 10, key=key, **SINGLE),
        lambda: training.SparseTeacherForcing(25), 60_000, 5, (1e-2, 1e-5), 50, 64, 0.01,
        dt=0.01, system=dw.systems.Lorenz63, select=(1.0, 1.0, 0.2), target=LORENZ_TARGET, published=LORENZ_PUBLISHED,
    ),
    "lorenz63_alrnn_short_noisier": Experiment(
        lorenz, lambda key: dw.models.ALRNN(20, 10, key=key, **SINGLE),
        lambda: training.SparseTeacherForcing(25), 60_000, 5, (1e-2, 1e-5), 50, 64, 0.03,
        dt=0.01, system=dw.systems.Lorenz63, select=ASKED, checks=30,
        target=LORENZ_TARGET, published=LORENZ_PUBLISHED,
    ),
    "lorenz63_alrnn_quiet": Experiment(
        lorenz, lambda key: dw.models.ALRNN(20, 10, key=key, **SINGLE),
        lambda: training.SparseTeacherForcing(16), 40_000, 5, (3e-3, 1e-5), 200, 16, dt=0.01,
        target="as for lorenz63_alrnn; it tells whether noise is what lowers the exponent",
    ),
    "bursting_alrnn": Experiment(
        bursting, lambda key: dw.models.ALRNN(25, 6, key=key, **SINGLE),
        lambda: training.SparseTeacherForcing(15), 20_000, 3, (5e-3, 5e-5), 100, 16, 0.05,
    ),
    "bursting_gtf": Experiment(
        bursting, lambda key: wide(dw.models.ShallowPLRNN(3, 50, clipped=True, key=key, **SINGLE), key),
        lambda: training.GeneralizedTeacherForcing(0.05), 15_000, 3, (1e-2, 1e-5), 100, 32,
    ),
    "ecg_alrnn": Experiment(
        recording("ecg_5d.npy"), lambda key: dw.models.ALRNN(30, 8, key=key, **SINGLE),
        lambda: training.SparseTeacherForcing(10), 40_000, 3, (5e-3, 2e-5), 50, 16, 0.01,
        published="D_stsp 4.3, D_H .34 (shallow PLRNN with generalized forcing; from memory, not confirmed)",
    ),
    "membrane_alrnn": Experiment(
        recording("membrane_potential_6d.npy"), lambda key: dw.models.ALRNN(30, 10, key=key, **SINGLE),
        lambda: training.SparseTeacherForcing(10), 20_000, 3, (2e-3, 2e-5), 50, 16, 0.05,
        published="D_stsp .67 +- .05, D_H .466 +- .017 (PLRNN)",
    ),
    "eeg_gtf": Experiment(
        recording("eeg_64d.npy"),
        lambda key: wide(dw.models.ShallowPLRNN(16, 256, clipped=True, key=key, **SINGLE), key),
        lambda: training.GeneralizedTeacherForcing(0.1), 3_000, 2, (2e-3, 1e-5), 50, 16,
        penalty=training.ParameterPenalty(1e-4), readout=lambda key: dw.models.Readout(16, 64, key=key, **SINGLE),
        published="D_stsp 2.1, D_H .11 (M = 16, H = 512; from memory, not confirmed)",
    ),
}  # fmt: skip


def run(name: str, steps: int | None, seeds: int | None, folder: Path, save: Path | None) -> dict[str, Any] | None:
    experiment = EXPERIMENTS[name]
    data = experiment.data(folder)
    if data is None:
        print(f"{name}: the recording is not in {folder}", file=sys.stderr)
        return None
    train, test = data
    steps, seeds = steps or experiment.steps, seeds or experiment.seeds
    first, last = experiment.learning_rate
    chaotic = experiment.evaluate is None
    began, cpu = time.perf_counter(), time.process_time()
    fitted = training.fit_seeds(
        experiment.make,
        list(train) if train.ndim == 3 else train,
        keys=jax.random.split(jax.random.key(0), seeds),
        steps=steps,
        optimizer=optax.radam(optax.exponential_decay(first, steps, last / first)),
        forcing=experiment.forcing(),
        readout=experiment.readout,
        sequence_length=experiment.sequence_length,
        batch_size=experiment.batch_size,
        noise=experiment.noise,
        penalty=experiment.penalty,
        validation=best_model_score(experiment, train),
        validate_every=max(1, steps // experiment.checks),
        restart=0.5,
        throw=False,
    )
    cpu, wall = time.process_time() - cpu, time.perf_counter() - began
    models = jax.tree.map(lambda x: x.astype(float) if eqx.is_inexact_array(x) else x, fitted.reconstruction)
    for i in range(seeds if save else 0):
        dw.io.save(save / f"{name}-{i}.dynwarp", fitted.seed(i).reconstruction)
    values = (experiment.evaluate or attractor)(models, train, test, experiment)
    return {
        "experiment": name,
        "model": repr(jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, fitted.model)).split("(")[0],
        "steps": steps,
        "full_steps": experiment.steps,
        "seeds": seeds,
        "failed": int(np.sum(np.asarray(fitted.result != dw.RESULTS.successful))),
        "restarts": fitted.stats["restarts"].tolist(),
        "settings": {
            "forcing": repr(experiment.forcing()),
            "learning_rate": experiment.learning_rate,
            "sequence_length": experiment.sequence_length,
            "batch_size": experiment.batch_size,
            "noise": experiment.noise,
            "penalty": repr(experiment.penalty),
            "best model by": selection(experiment),
        },
        "steps_per_second": fitted.stats["steps_per_second"],
        "steps_per_cpu_second": steps * seeds / cpu,
        "wall_seconds": wall,
        "values": values,
        "references": references(test, experiment) if chaotic else {},
        "target": experiment.target,
        "published": experiment.published,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, jax {jax.__version__}",
    }


# --- the table


def table(results: dict[str, Any]) -> str:
    lines = [
        "# Reconstructions",
        "",
        "Written by `python benchmarks/reconstruction.py`. Median +- median absolute deviation over seeds; float32",
        "training, float64 evaluation on data of another stretch (a free run of 1.25 T, its first quarter dropped).",
        "*Halves* is what the two halves of the test data make of each other, *chance* what noise of the same",
        "covariance reaches; for PE(20) it is persistence; for the exponent *halves* is that of the system itself, by",
        f"the same estimator, {EXPONENT_STEPS} steps with their tangent. Steps a second are those of all seeds",
        "together, compilation included, on a machine that did other work at the same time.",
        "",
    ]
    for r in results.values():
        note = "" if r["steps"] >= r["full_steps"] else f" (of the {r['full_steps']} that the setting asks for)"
        settings = ", ".join(f"{k} {v}" for k, v in r["settings"].items())
        lines += [
            f"## {r['experiment']}",
            "",
            f"{r['model']}, {r['seeds']} seeds, {r['steps']} steps{note}; {settings}.",
            f"{r['steps_per_second']:.0f} steps/s, {r['steps_per_cpu_second']:.0f} a second of processor time; "
            f"{r['failed']} seeds failed.",
            "",
            "| quantity | ours | halves | chance | seeds |",
            "| --- | --- | --- | --- | --- |",
        ]
        for name, values in r["values"].items():
            values = np.array(values, float)
            median = np.median(values)
            spread = np.median(np.abs(values - median))
            low, high = r["references"].get(name, [None, None])
            each = ", ".join(f"{v:.3g}" for v in values)
            show = ["" if x is None else f"{x:.3g}" for x in (low, high)]
            lines.append(f"| {name} | {median:.3g} +- {spread:.2g} | {show[0]} | {show[1]} | {each} |")
        lines += [""] + [
            f"{label}: {r[key]}." for label, key in (("Asked for", "target"), ("Published", "published")) if r[key]
        ]
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--data", type=Path, default=ROOT.parent.parent / "shared" / "data")
    parser.add_argument("--save", type=Path, help="a folder for the models")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(EXPERIMENTS))
        return
    unknown = set(arguments.experiments) - set(EXPERIMENTS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(EXPERIMENTS)}")
    for name in arguments.experiments or EXPERIMENTS:
        found = run(name, arguments.steps, arguments.seeds, arguments.data, arguments.save)
        if found is None:
            continue
        # Another process may have added to the file in the meantime.
        results = json.loads(OUT.read_text()) if OUT.exists() else {}
        results[name] = found
        with dw.io.atomic_write(OUT, "w") as file:
            json.dump({n: results[n] for n in EXPERIMENTS if n in results}, file, indent=1)
        with dw.io.atomic_write(OUT.with_suffix(".md"), "w") as file:
            file.write(table({n: results[n] for n in EXPERIMENTS if n in results}))
        print(
            json.dumps(
                {k: v for k, v in found.items() if k in ("experiment", "values", "references", "steps_per_second")}
            )
        )


if __name__ == "__main__":
    main()
