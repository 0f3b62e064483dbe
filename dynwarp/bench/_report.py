"""Result documents as Markdown and as one HTML page with figures."""

from __future__ import annotations

import base64
import html
import importlib.util
import io
from collections.abc import Iterator, Sequence
from typing import Any

_ABOUT = (
    "Seconds are medians of the steady state. Ratio: the time of a peer over ours in the same run, with its quartiles; "
    "above 1 the peer is slower. Roofline: the least time that the ceilings measured in this run allow, over ours; "
    "above 1 the data sat in a cache. Error: relative to a float64 reference."
)


def to_markdown(documents: Sequence[dict[str, Any]]) -> str:
    """A report over one run, or over the runs of a machine's processor and its accelerator, as Markdown."""
    lines = ["# Benchmarks", "", _ABOUT, ""]
    for document in documents:
        lines += [f"## {_title(document)}", "", *_facts(document), ""]
        for group, records in _groups(document):
            lines += [f"### {group}", "", *_markdown_table(_HEADER, [_row(record) for record in records]), ""]
            peers = [row for record in records for row in _peer_rows(record)]
            if peers:
                lines += [*_markdown_table(_PEER_HEADER, peers), ""]
    crossings = crossover(documents)
    if crossings:
        lines += ["## Where the accelerator wins", "", *_markdown_table(_CROSSING_HEADER, crossings), ""]
    return "\n".join(lines)


def to_html(documents: Sequence[dict[str, Any]]) -> str:
    """The same report as one self-contained HTML page, with figures of throughput where matplotlib is installed."""
    body = ["<h1>Benchmarks</h1>", f"<p>{html.escape(_ABOUT)}</p>"]
    if importlib.util.find_spec("matplotlib") is None:
        body.append("<p>Without matplotlib there are no figures; <code>pip install matplotlib</code> brings them.</p>")
    else:
        body += [
            f'<figure><img alt="{html.escape(name)}" src="data:image/png;base64,{image}"></figure>'
            for name, image in _figures(documents)
        ]
    for document in documents:
        body.append(f"<h2>{html.escape(_title(document))}</h2><ul>")
        body += [f"<li>{html.escape(fact.removeprefix('- '))}</li>" for fact in _facts(document)]
        body.append("</ul>")
        for group, records in _groups(document):
            body += [f"<h3>{html.escape(group)}</h3>", _html_table(_HEADER, [_row(record) for record in records])]
            peers = [row for record in records for row in _peer_rows(record)]
            if peers:
                body.append(_html_table(_PEER_HEADER, peers))
    crossings = crossover(documents)
    if crossings:
        body += ["<h2>Where the accelerator wins</h2>", _html_table(_CROSSING_HEADER, crossings)]
    style = (
        "body{font:15px system-ui;margin:2em;max-width:75em}table{border-collapse:collapse;margin:1em 0}"
        "td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left}img{max-width:100%}"
    )
    head = f'<meta charset="utf-8"><title>Benchmarks</title><style>{style}</style>'
    return f"<!doctype html><html><head>{head}</head><body>{''.join(body)}</body></html>"


def crossover(documents: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """(case, size, batch, cores, ratio): the smallest batch from which on the accelerator beats the processor's cores.

    The processor's time is the least known: of the peer `cpu` of the same run, which is the program made for the
    accelerator, and of the other documents.
    """
    accelerator: dict[tuple[str, str], dict[int, float]] = {}
    processor: dict[tuple[str, str], dict[int, tuple[float, int]]] = {}
    for document in documents:
        on_cpu, cores = document["environment"]["platform"] == "cpu", document["environment"]["cores"]
        for record in document["results"]:
            axis = next((axis for axis in _BATCHES if axis in record["size"]), None)
            if record["status"] != "ok" or axis is None:
                continue
            key, batch = (record["case"], _rest(record["size"], axis)), record["size"][axis]
            beside = record if on_cpu else record["peers"].get("cpu", {})
            if beside.get("status") == "ok":
                time = (beside["phases"] if on_cpu else beside)["steady"]["median"]
                known = processor.setdefault(key, {})
                known[batch] = min(known.get(batch, (time, cores)), (time, cores))
            if not on_cpu:
                accelerator.setdefault(key, {}).setdefault(batch, record["phases"]["steady"]["median"])
    rows = []
    for key, seconds in accelerator.items():
        known = sorted(seconds.keys() & processor.get(key, {}).keys())
        if not known:
            continue
        ratios = {batch: processor[key][batch][0] / seconds[batch] for batch in known}
        wins = [batch for batch in known if all(ratios[later] > 1 for later in known if later >= batch)]
        reached, cores = str(wins[0]) if wins else f"not up to {known[-1]}", processor[key][known[-1]][1]
        rows.append((*key, reached, str(cores), f"x{ratios[known[-1]]:.3g}"))
    return rows


# What may be called the batch of a case: how many independent pieces of work one call has.
_BATCHES = ("batch", "lanes", "points", "seeds", "maps", "pairs")

_HEADER = ("case", "size", "seconds", "IQR", "throughput", "compile", "first", "peak MB", "roofline", "error")
_PEER_HEADER = ("case", "size", "beside", "ratio", "quartiles", "temporary MB", "error")
_CROSSING_HEADER = ("case", "size", "from batch", "processor cores", "ratio at the largest batch")


def _title(document: dict[str, Any]) -> str:
    environment = document["environment"]
    kind = environment["processor"] if environment["platform"] == "cpu" else environment["device_kind"]
    return f"{document['suite']} on {environment['platform']}: {kind}"


def _facts(document: dict[str, Any]) -> list[str]:
    environment, ceilings, revision = document["environment"], document["ceilings"], document["revision"]
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    gemm = ", ".join(f"{name} {1e-9 * speed:.3g}" for name, speed in ceilings["gemm"].items())
    if ceilings["gemm_highest"] != ceilings["gemm"]:
        highest = ", ".join(f"{name} {1e-9 * speed:.3g}" for name, speed in ceilings["gemm_highest"].items())
        gemm += f" (at the highest precision {highest})"
    commit = "unknown" if revision is None else revision["commit"][:12] + (" modified" if revision["modified"] else "")
    return [
        f"- {document['started']}, {document['status']}, {document['seconds']:.0f} s, revision {commit}",
        f"- {environment['cores']} cores, Python {environment['python']}, {versions}",
        f"- matrix precision {environment['matmul_precision']}, compile cache {environment['cache']}, "
        f"flags {environment['xla_flags'] or 'none'}",
        f"- ceilings: matrix product {gemm} GFLOP/s, memory {1e-9 * ceilings['bandwidth']:.3g} GB/s, "
        f"scan step {1e6 * ceilings['scan_step']:.3g} us",
    ]


def _groups(document: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in document["results"]:
        groups.setdefault(record["group"], []).append(record)
    yield from groups.items()


def _size(size: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in size.items())


def _rest(size: dict[str, Any], axis: str) -> str:
    return _size({key: value for key, value in size.items() if key != axis})


def duration(value: float | None) -> str:
    """Seconds, in the unit that suits them."""
    if value is None:
        return ""
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} us"


def _megabytes(value: int | None) -> str:
    return "" if value is None else f"{1e-6 * value:.3g}"


def _error(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.1e}"


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    if record["status"] != "ok":
        return (record["case"], _size(record["size"]), f"{record['status']}: {record['reason']}", *[""] * 7)
    phases, roofline, digest = record["phases"], record["roofline"], record["digest"]
    return (
        record["case"],
        _size(record["size"]),
        duration(phases["steady"]["median"]),
        duration(phases["steady"]["iqr"]),
        f"{record['throughput']['per_second']:.3g} {record['throughput']['unit']}/s",
        duration(phases["compile"]),
        duration(phases["first"]),
        _megabytes(record["peak_memory"]),
        "" if roofline is None else f"{roofline['fraction']:.2f} of {roofline['bound']}",
        _error(digest["relative_error"]) + ("" if digest["passed"] else " WRONG"),
    )


def _peer_rows(record: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, peer in record.get("peers", {}).items():
        head = (record["case"], _size(record["size"]), name)
        if peer["status"] != "ok":
            yield (*head, peer["status"], peer["reason"], "", "")
            continue
        ratio, memory = peer["ratio"], peer.get("memory")
        yield (
            *head,
            f"x{ratio['median']:.3g}",
            f"{ratio['low']:.3g} to {ratio['high']:.3g}",
            "" if memory is None else _megabytes(memory["temporary"]),
            _error(peer["relative_error"]) if "relative_error" in peer else "",
        )


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header), *body]


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line(header, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


_AXES = (*_BATCHES, "state_size", "dim", "modes", "units", "steps")


def _curves(documents: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[str, list[tuple[float, float]]]]:
    """Throughput against one number of the size, the others fixed: {(case, axis): {label: [(x, y), ...]}}."""
    curves: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for document in documents:
        platform = document["environment"]["platform"]
        for record in document["results"]:
            if record["status"] != "ok":
                continue
            per_second = record["throughput"]["per_second"]
            for axis in _AXES:
                if axis not in record["size"]:
                    continue
                rest = _rest(record["size"], axis)
                lines = curves.setdefault((record["case"], axis), {})
                lines.setdefault(f"dynwarp {platform} {rest}", []).append((record["size"][axis], per_second))
                for name, peer in record["peers"].items():
                    if peer["status"] == "ok":
                        slower = per_second / peer["ratio"]["median"]
                        lines.setdefault(f"{name} {rest}", []).append((record["size"][axis], slower))
    kept = {}
    for key, lines in curves.items():
        rising = {label: sorted(points) for label, points in lines.items() if len({x for x, _ in points}) > 1}
        if rising:
            kept[key] = rising
    return kept


def _figures(documents: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    crossings = crossover(documents)
    for (case, axis), lines in _curves(documents).items():
        figure = Figure(figsize=(7, 4), layout="constrained")
        FigureCanvasAgg(figure)
        ax = figure.add_subplot()
        for label, points in lines.items():
            ax.loglog(*zip(*points), marker="o", label=label, linestyle="-" if label.startswith("dynwarp") else "--")
        drawn = {label.split(" ", 2)[2] for label in lines if label.startswith("dynwarp ")}
        for crossed, size, batch, *_ in crossings:
            if (crossed, axis in _BATCHES, size in drawn, batch.isdigit()) == (case, True, True, True):
                label = f"the accelerator wins from {batch} on, {size}".removesuffix(", ")
                ax.axvline(int(batch), color="0.5", linestyle=":", label=label)
        ax.set(xlabel=axis, ylabel="throughput (units/s)", title=case)
        ax.legend(fontsize="x-small")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=90)
        yield f"{case}, throughput against {axis}", base64.b64encode(buffer.getvalue()).decode()
