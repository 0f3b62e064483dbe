"""Writes README's table of ratios, and two of NOTES.md, from the committed results, so that each number there is one of
a result file.

Run it after a benchmark run: `python benchmarks/readme_table.py`. A row of README is left out where its result is not
there or wrong, or where the peer came to another one.
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
from typing import Any

from dynwarp.bench._report import duration

ROOT = pathlib.Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- ratios -->\n", "<!-- end of ratios -->\n"
# Of the notes: a row of kernels up to what is in the way, and the table of landings.
KERNEL = re.compile(r"^\| `(\w+)` ([^|]*) \| [^|]* \| ([^|]*) \| [^|]* \|", re.MULTILINE)
LANDINGS = re.compile(r"(?<=\| lanes, w\* \|).*?\n\n", re.DOTALL)

# What it is, the case, a part of its size, the peer by name, and how a reader knows the peer.
ROWS: tuple[tuple[str, str, dict[str, Any], str, str], ...] = (
    ("exponents of the Lorenz flow", "lyapunov_lorenz63", {"batch": 1}, "lyapax", "lyapax"),
    ("leading 10 of 100 exponents of a network", "lyapunov_rnn", {"k": 10}, "lyapax", "lyapax"),
    ("learning flows to convergence, each", "mode_landings", {"lanes": 4096, "w_low": 0.8}, "scipy", "SciPy's LSODA"),
    ("the same, of mixed stiffness", "mode_landings", {"w_low": 0.5}, "diffrax_kvaerno5", "vmapped diffrax"),
    ("e-prop of 256 units", "learning_eprop", {"state_size": 256}, "braintrace", "braintrace"),
    ("cycles of period 10, each candidate", "cycle_search", {"period": 10}, "numpy", "a NumPy loop"),
    ("a stable manifold of the plane", "stable_manifold", {"iterations": 20}, "pca", "PCA of samples, NumPy"),
    ("Jacobians of a GRU", "jacobians", {"state_size": 100}, "torch", "torch.func"),
    ("gradient of an Elman network, N = 64", "elman_gradient", {"state_size": 64}, "torch", "PyTorch"),
    ("distances on a sphere, each", "sphere_geodesics", {}, "geomstats", "geomstats"),
    ("metric of a representation", "representation_metric", {}, "torch", "torch.func"),
    ("fit of an echo state network", "reservoir_fit", {"units": 1000}, "reservoirpy", "reservoirpy"),
)


def table(documents: list[dict[str, Any]]) -> str:
    """The rows that have a result, as Markdown; empty where none has."""
    lines = []
    for what, case, part, peer, known in ROWS:
        found = [
            (document, record["peers"][peer])
            for document in documents
            for record in document["results"]
            if record["case"] == case
            and record["status"] == "ok"
            and record["digest"]["passed"]
            and part.items() <= record["size"].items()
            and "ratio" in record["peers"].get(peer, {})
            and record["peers"][peer].get("agrees", True)
        ]
        if found:
            document, measured = found[0]
            ratio = measured["ratio"]
            spread = f"{ratio['low']:.3g} to {ratio['high']:.3g}"
            name = f"{document['suite']}-{document['environment']['platform']}.json"
            lines.append(f"| {what} | {known} | {ratio['median']:.3g} | {spread} | `{case}`, `{name}` |")
    if not lines:
        return ""
    header = ["| | beside | times as fast | quartiles | case, file of `benchmarks/results` |", "|---|---|---|---|---|"]
    return "\n".join([*header, *lines]) + "\n"


def notes(text: str, documents: list[dict[str, Any]]) -> str:
    """The notes with the numbers of the quick suite in the rows of kernels, and with the landings of the full one."""
    named = {(document["suite"], document["environment"]["platform"]): document for document in documents}
    quick, full = named["quick", "cpu"], named["full", "cpu"]
    last = {record["case"]: record for record in quick["results"] if record["status"] == "ok"}

    def kernel(row: re.Match[str]) -> str:
        name, size, limit = row.groups()
        record = last[name]
        time, roofline = duration(record["phases"]["steady"]["median"]), record["roofline"]
        if not limit.strip():  # what it does was not counted
            return f"| `{name}` {size} | {time} |  | - |"
        limit = f"{roofline['bound']} {duration(roofline['attainable'])}"
        return f"| `{name}` {size} | {time} | {limit} | {roofline['fraction']:.2f} |"

    lines = [" SciPy's `LSODA` each / ours each | plain vmapped diffrax / ours |", "| --- | --- | --- |"]
    for record in full["results"]:
        if record["case"] == "mode_landings" and record["status"] == "ok":
            size, peers = record["size"], record["peers"]
            low, high = size["w_low"], size["w_high"]
            spread = str(low) if low == high else f"{low} to {high} mixed"
            plain = [
                f"{name.removeprefix('diffrax_').capitalize()} {peer['ratio']['median']:.3g}"
                for name, peer in peers.items()
                if name.startswith("diffrax") and "ratio" in peer
            ]
            scipy = f"{peers['scipy']['ratio']['median']:.3g}"
            lines.append(f"| {size['lanes']}, {spread} | {scipy} | {', '.join(plain)} |")
    text = LANDINGS.sub("\n".join(lines) + "\n\n", text)
    text = re.sub(r"(?<=idle machine, revision )\w+", quick["revision"]["commit"][:7], text)
    return KERNEL.sub(kernel, text)


def committed() -> list[dict[str, Any]]:
    """The result documents, those of the full suite first."""
    folder = ROOT / "benchmarks" / "results"
    names = [path for suite in ("full", "quick", "gpu") for path in sorted(folder.glob(f"{suite}-*.json"))]
    return [json.loads(path.read_text()) for path in names]


def between(readme: str) -> tuple[str, str, str]:
    """The text before the table, the table, and the text after it."""
    before, _, rest = readme.partition(BEGIN)
    inside, _, after = rest.partition(END)
    return before, inside, after


def main() -> int:
    """Replaces the tables; returns the exit code."""
    path = ROOT / "README.md"
    readme = path.read_text()
    if BEGIN not in readme or END not in readme:
        print(f"{path.name} has no place for the table", file=sys.stderr)
        return 1
    before, _, after = between(readme)
    documents = committed()
    path.write_text(before + BEGIN + table(documents) + END + after)
    path = ROOT / "benchmarks" / "NOTES.md"
    path.write_text(notes(path.read_text(), documents))
    return 0


if __name__ == "__main__":
    sys.exit(main())
