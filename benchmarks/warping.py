"""Networks that are held to a metric while they learn: the experiment of the warping study in two sizes.

    python benchmarks/warping.py                    # a middle size, about half an hour of one core
    python benchmarks/warping.py --size published   # the sizes of the paper, hours
    python benchmarks/warping.py --only evidence    # one task; the others' rows are kept; --conditions task whole
    python benchmarks/warping.py --missing          # what has no rows yet; --seeds 1: with one seed instead of three

Everything comes from the study's own code, with another config. Results, written after every training:
results/warping.json and results/warping.md, results/warping-published.json and results/warping-published.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import subprocess
import time
from pathlib import Path

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

from dynwarp import io  # noqa: E402
from dynwarp.studies import _warping_causal as causal  # noqa: E402
from dynwarp.studies import _warping_networks as networks  # noqa: E402
from dynwarp.studies._warping import PRESETS, WarpingConfig  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results"
MIDDLE = WarpingConfig(
    units=64,
    seeds=3,
    evidence_steps=1_000,
    memory_steps=1_000,
    memory_rate=4e-3,
    decoding_steps=800,
    causal_evidence=("task", "whole", "readout", "ratio", "warp copy", "rate", "rigid"),
    causal_memories=(networks.MEMORY, networks.SUBTRACTION, networks.SEQUENCE),
    causal_memory=("task", "whole", "readout", "ratio", "rigid", "rate", "warp copy"),
    causal_decoding=("task", "whole", "readout", "ratio", "rigid", "warp copy"),
    causal_noises=((0.1, 0.0), (0.0, 0.1)),
    penalty_points=64,
    penalty_times=6,
    penalty_strength=1.0,
    causal_noisy=("task", "whole", "readout"),
)
PUBLISHED = dataclasses.replace(
    PRESETS["paper"],
    seeds=3,
    causal_evidence=("task", "whole", "readout"),
    causal_memory=("task", "whole", "readout"),
    causal_decoding=("task", "whole", "readout"),
    causal_noises=(),
)
SIZES = {"middle": (MIDDLE, RESULTS / "warping.json"), "published": (PUBLISHED, RESULTS / "warping-published.json")}
HEADER = [
    "task", "noise", "condition", "loss / chance", "noisy loss / chance", "index, states", "held times", "other times",
    "index, rates", "mean cos", "ratio, states", "ratio, outputs", "index, outputs", "penalty", "solved", "not warped",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one task: evidence, working memory, subtraction, sequence or decoding")
    parser.add_argument("--conditions", nargs="+", choices=networks.CONDITIONS, help="some of them")
    parser.add_argument("--missing", action="store_true", help="leave out what has rows")
    parser.add_argument("--seeds", type=int, help="of what is run now")
    parser.add_argument("--size", choices=SIZES, default="middle")
    arguments = parser.parse_args()
    whole, out = SIZES[arguments.size]
    config = dataclasses.replace(whole, seeds=arguments.seeds or whole.seeds)
    kept = json.loads(out.read_text())["lanes"] if out.exists() else []
    # What tells most comes first.
    order = ["task", "whole", "readout", "ratio", "rate", "warp copy", "rigid", "warp ratio"]
    for name, condition, noise in sorted(causal.plan(whole), key=lambda training: order.index(training[1])):
        key = (name, condition, noise)
        there = any(key_of(row) == key for row in kept)
        wanted = arguments.only in (None, name) and condition in (arguments.conditions or networks.CONDITIONS)
        if not wanted or (arguments.missing and there):
            continue
        began = time.process_time()
        lanes, _ = causal.lanes_of(config, name, condition, noise)
        spent = round(time.process_time() - began, 1)
        kept = [row for row in kept if key_of(row) != key]
        made = {"processor_seconds": spent, "date": datetime.date.today().isoformat(), "revision": revision()}
        kept += [dataclasses.asdict(lane) | made for lane in lanes]
        write(kept, arguments.size)
        print(name, condition, noise.told(), [f"{lane.loss:.2g}" for lane in lanes], f"{spent} s", flush=True)
    write(kept, arguments.size)


def key_of(row: dict) -> tuple[str, str, networks.Noise]:
    return row["task"], row["condition"], networks.Noise(*row["noise"])


def write(rows: list[dict], size: str) -> None:
    config, out = SIZES[size]
    order = {key: i for i, key in enumerate(causal.plan(config))}
    rows.sort(key=lambda row: (order[key_of(row)], row["seed"]))
    content = {"config": dataclasses.asdict(config), "lanes": rows}
    with io.atomic_write(out, "w") as file:
        file.write(json.dumps(content, indent=1) + "\n")
    with io.atomic_write(out.with_suffix(".md"), "w") as file:
        file.write(page(content, size))


def page(content: dict, size: str) -> str:
    """The table and what it says of the claims."""
    fields = [field.name for field in dataclasses.fields(causal.Lane)]
    lanes = [
        causal.Lane(**{name: row[name] for name in fields if name in row} | {"noise": key_of(row)[-1]})
        for row in content["lanes"]
    ]
    groups = list(dict.fromkeys((lane.task, lane.noise, lane.condition) for lane in lanes))
    rows = []
    for task, noise, condition in groups:
        group = [x for x in lanes if (x.task, x.noise, x.condition) == (task, noise, condition)]

        def span(name, group=group):
            values = sorted(getattr(x, name) for x in group)
            return f"{np.median(values):.2g} ({values[0]:.2g} to {values[-1]:.2g})"

        rows.append([
            task, noise.told(), networks.CONDITIONS[condition], span("loss"),
            span("noisy_loss") if noise != networks.SILENCE else "",
            span("state_index"), span("held_index"), span("free_index"), span("rate_index"), span("cosine"),
            span("state_ratio"), span("output_ratio"),
            "" if np.isnan(group[0].output_index) else span("output_index"),
            span("penalty") if condition != "task" else "",
            f"{sum(x.solved for x in group)} of {len(group)}", f"{sum(x.unwarped for x in group)} of {len(group)}",
        ])  # fmt: skip
    seconds = {key_of(row): row["processor_seconds"] for row in content["lanes"]}
    lines = ["| " + " | ".join(row) + " |" for row in (HEADER, ["---"] * len(HEADER), *rows)]
    claims = [
        f"- **{c.verdict}**: {c.statement}. Published: {c.published}. Ours: {c.ours}." for c in causal.claims_of(lanes)
    ]
    missing = [
        f"{task} with {networks.CONDITIONS[condition]}, {noise.told()}"
        for task, condition, noise in causal.plan(SIZES[size][0])
        if (task, noise, condition) not in groups
    ]
    missing = "; ".join(missing) or "none"
    dates, revisions = (", ".join(sorted({row[k] for row in content["lanes"]})) for k in ("date", "revision"))
    settings = ", ".join(f"{name} = {value}" for name, value in content["config"].items())
    return "\n".join([
        f"# Must a network warp to compute? The {size} size",
        "",
        f"Made by `benchmarks/warping.py` on {dates} at revision {revisions}, with the code of the study `warping` and "
        f"these settings: {settings}; the last two columns tell of how many seeds a row is. About "
        f"{sum(seconds.values()) / 60:.0f} minutes of processor "
        "time in all. Trained in float32, looked at in float64; medians over seeds, with the least and the greatest.",
        "",
        causal.text(SIZES[size][0]),
        "",
        "Indices are the largest over times; *held times* are those that the penalty knows, *other times* those that "
        "it does not, both at points that it does not know. Ratios are <G_rel> / <G_irr> at the answers, and so is the "
        "index of the outputs, which is measured in the newer trainings alone. "
        f"Trainings that have not been run in this size: {missing}.",
        "",
        *lines,
        "",
        "## Claims",
        "",
        *claims,
        "",
    ])  # fmt: skip


def revision() -> str:
    told = os.environ.get("DYNWARP_REVISION")
    if told:
        return told
    command = ["git", "-C", str(RESULTS), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
