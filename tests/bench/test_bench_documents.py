"""Result documents: the schema, comparison, reports, and the command around them."""

import argparse
import copy
import errno
import importlib.util
import json
import pathlib
import re
import signal
import subprocess
import sys

import jax
import pytest

from dynwarp import cli
from dynwarp.bench import CASES, _command, _runner, compare, main, read_document, to_html, to_markdown, validate
from dynwarp.bench._case import select
from dynwarp.bench._ceilings import measure_ceilings
from dynwarp.bench._report import crossover
from dynwarp.errors import ArgumentError


def _steady(median):
    return {
        "repetitions": 5,
        "minimum": 0.9 * median,
        "median": median,
        "lower_quartile": 0.95 * median,
        "upper_quartile": 1.05 * median,
        "iqr": 0.1 * median,
        "processor": median,
    }


def _record(median, batch=1, peers=None):
    return {
        "case": "simulate",
        "group": "toy",
        "size": {"batch": batch, "dtype": "float32"},
        "status": "ok",
        "seconds": 1.0,
        "phases": {"trace": 0.1, "lower": 0.1, "compile": 0.2, "first": 0.01, "steady": _steady(median)},
        "throughput": {"unit": "steps", "per_second": 100 / median},
        "flops": 10.0,
        "bytes": 10.0,
        "depth": 1,
        "memory": {"arguments": 1, "outputs": 1, "temporary": 2, "peak": 4},
        "peak_memory": 4,
        "roofline": {"bound": "memory", "attainable": 0.1, "fraction": 0.5},
        "collectives": 0,
        "callbacks": 0,
        "recompiles": 0,
        "cache": {"state": "off", "hits": 0},
        "digest": {"relative_error": 1e-7, "tolerance": 1e-5, "precision": "default", "passed": True},
        "peers": peers or {},
    }


def _document(records, platform="cpu"):
    return {
        "schema": "dynwarp-bench/1",
        "started": "2030-01-01T00:00:00+00:00",
        "suite": "quick",
        "status": "complete",
        "seconds": 3.0,
        "revision": {"commit": "0123456789abcdef", "modified": False},
        "environment": {
            "platform": platform,
            "device_kind": platform,
            "device_count": 1,
            "machine": "x86_64",
            "processor": "A processor",
            "cores": 2,
            "system": "Linux",
            "python": "3.11.7",
            "versions": {"jax": "0.10.2"},
            "x64": True,
            "matmul_precision": "default",
            "xla_flags": "",
            "blas": {},
            "on_error": "nan",
            "cache": "off",
        },
        "ceilings": {"gemm": {"float32": 1e9}, "gemm_highest": {"float32": 1e9}, "bandwidth": 1e9, "scan_step": 1e-6},
        "results": records,
    }


PEER = {
    "kind": "peer",
    "status": "ok",
    "first": 1.0,
    "steady": _steady(3.0),
    "ratio": {"median": 3.0, "low": 2.9, "high": 3.1},
}


def test_schema_accepts_a_whole_document():
    skipped = {"kind": "peer", "status": "skipped", "reason": "no such package"}
    assert validate(_document([_record(1.0, peers={"torch": skipped, "numpy": PEER})])) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d.pop("suite"), "document.suite is missing"),
        (lambda d: d.update(schema="other/1"), "document.schema is 'other/1', not one of 'dynwarp-bench/1'"),
        (lambda d: d["environment"].update(cores="2"), "document.environment.cores is '2', not a int"),
        (lambda d: d["environment"].update(cores=True), "document.environment.cores is True, not a int"),
        (lambda d: d["results"][0].pop("digest"), "results[0].digest is missing"),
        (lambda d: d["results"][0]["phases"].update(first=None), "results[0].phases.first is None, not a number"),
        (lambda d: d["results"][0]["peers"]["numpy"].pop("ratio"), "results[0].peers.numpy.ratio is missing"),
        (lambda d: d["results"][0].update(peers=[]), "results[0].peers is no object"),
        (lambda d: d["results"][0].update(status="failed"), "results[0].reason is missing"),
        (lambda d: d.update(results={}), "document.results is no list"),
        (lambda d: d.update(status=[]), "document.status is [], not one of 'complete', 'interrupted', 'running'"),
        (
            lambda d: d["results"][0]["phases"]["steady"].update(median=0),
            "results[0].phases.steady.median is 0, not above 0",
        ),
        (lambda d: d["results"][0].update(flops=float("nan")), "results[0].flops is nan, not a number"),
    ],
)
def test_schema_names_what_is_wrong(change, problem):
    document = _document([_record(1.0, peers={"numpy": copy.deepcopy(PEER)})])
    change(document)
    assert validate(document) == [problem]


def test_schema_of_something_else():
    assert validate([1]) == ["document is no object"]


def test_compare_tells_ratio_and_spread():
    before = _document([_record(1.0), _record(1.0, batch=2), _record(1.0, batch=4), _record(1.0, batch=8)])
    after = _document([_record(0.5), _record(1.02, batch=2), _record(2.0, batch=4), _record(1.0, batch=16)])
    found = compare(before, after)
    assert [(change.size["batch"], change.ratio, change.verdict) for change in found.changes] == [
        (1, 0.5, "faster"),
        (2, 1.02, "same"),
        (4, 2.0, "slower"),
    ]
    assert found.changes[2].low == pytest.approx(2 * 0.95 / 1.05)
    assert found.changes[2].high == pytest.approx(2 * 1.05 / 0.95)
    assert len(found.only_first) == len(found.only_second) == 1
    text = found.to_text()
    assert "slower  x2.000 [1.810, 2.211]  simulate batch=4 dtype=float32" in text


def test_compare_refuses_unlike_machines_and_notes_versions():
    before, after = _document([_record(1.0)]), _document([_record(1.0)])
    after["environment"]["versions"] = {"jax": "0.11.0"}
    assert "0.11.0" in compare(before, after).notes[0]
    after["status"] = "interrupted"
    assert compare(before, after).notes[-1] == "the second run is interrupted"
    assert compare(before, _document([])).to_text().endswith("No size of a case ran in both.")
    after["environment"]["cores"] = 16
    with pytest.raises(ArgumentError, match="unlike machines: cores 2 and 16"):
        compare(before, after)


def test_crossover_from_two_documents_and_from_one():
    processor = _document([_record(1.0, batch=1), _record(8.0, batch=8), _record(64.0, batch=64)])
    device = _document([_record(4.0, batch=1), _record(4.0, batch=8), _record(5.0, batch=64)], platform="gpu")
    device["environment"]["cores"] = 16  # of its own host, which is not what it is set against here
    assert crossover([processor, device]) == [("simulate", "dtype=float32", "8", "2", "x12.8")]
    assert crossover([processor]) == []
    # The batch of a case may be its lanes.
    for document in (processor, device):
        for record in document["results"]:
            record["size"] = {"lanes": record["size"]["batch"]}
    assert crossover([processor, device]) == [("simulate", "", "8", "2", "x12.8")]
    beside = {**PEER, "kind": "device", "steady": _steady(1.0)}
    alone = _document([_record(4.0, batch=1, peers={"cpu": beside})], platform="gpu")
    alone["environment"]["cores"] = 16
    assert crossover([alone]) == [("simulate", "dtype=float32", "not up to 1", "16", "x0.25")]
    # The best that the processor can do is what counts, wherever it was measured.
    assert crossover([alone, _document([_record(0.5)])])[0][2:] == ("not up to 1", "2", "x0.125")
    assert crossover([_document([_record(2.0)]), alone])[0][2:] == ("not up to 1", "16", "x0.25")


def test_reports_hold_what_was_measured(monkeypatch):
    failed = {"case": "bad", "group": "toy", "size": {}, "status": "failed", "reason": "ValueError: <b> | c"}
    document = _document([_record(1.0, peers={"numpy": PEER}), _record(2.0, batch=8, peers={"numpy": PEER}), failed])
    markdown = to_markdown([document])
    assert "| simulate | batch=1 dtype=float32 | 1 s | 100 ms | 100 steps/s |" in markdown
    assert "| simulate | batch=1 dtype=float32 | numpy | x3 | 2.9 to 3.1 |" in markdown
    assert "failed: ValueError: <b> \\| c" in markdown
    document["ceilings"]["gemm_highest"] = {"float32": 5e8}
    assert "matrix product float32 1 (at the highest precision float32 0.5) GFLOP/s" in to_markdown([document])
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        assert "Without matplotlib there are no figures" in to_html([document])
    pytest.importorskip("matplotlib")
    page = to_html([document])
    assert page.startswith("<!doctype html>")
    assert "&lt;b&gt;" in page
    assert page.count("data:image/png;base64,") == 1  # throughput against batch
    assert "http" not in page


def test_a_figure_shows_where_the_accelerator_wins(monkeypatch):
    axes = pytest.importorskip("matplotlib.axes")
    vertical, line = [], axes.Axes.axvline
    monkeypatch.setattr(
        axes.Axes, "axvline", lambda self, x, **how: (vertical.append((x, how["label"])), line(self, x))
    )
    records = [
        [_record(x, batch=b) for b, x in ((1, first), (8, second))] for first, second in ((1.0, 8.0), (4.0, 4.0))
    ]
    for each in records:  # of other size, and with no curve of its own
        each.append(_record(each[0]["phases"]["steady"]["median"], batch=2))
        each[-1]["size"]["steps"] = 7
    documents = [_document(each, platform=name) for each, name in zip(records, ("cpu", "gpu"))]
    page = to_html(documents)
    assert "Where the accelerator wins" in page
    assert page.count("data:image/png;base64,") == 1
    assert vertical == [(8, "the accelerator wins from 8 on, dtype=float32")]


def test_numbers_of_the_readme_and_of_the_notes_are_those_of_the_results():
    root = pathlib.Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location("readme_table", root / "benchmarks" / "readme_table.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert {row[1] for row in script.ROWS} <= {case.name for case, _ in select("quick")}
    known = {peer for case in CASES.values() for peer in case.peers} | {"diffrax_kvaerno5"}
    assert {row[3] for row in script.ROWS} <= known
    before, inside, after = script.between((root / "README.md").read_text())
    documents = script.committed()
    assert inside == script.table(documents)
    assert inside.count("\n") > 2
    text = (root / "benchmarks" / "NOTES.md").read_text()
    assert text == script.notes(text, documents)
    assert {row[0] for row in script.KERNEL.findall(text)} == {case.name for case, _ in select("quick")}
    # No ratio stands outside the table, and none inside it is more than what its seconds give.
    assert not re.search(r"\d ?(?:x|\u00d7|times|-?fold)\b", before + after)
    for document in documents:
        assert validate(document) == []
        assert (document["status"], document["revision"]["modified"]) == ("complete", False)
        for record in document["results"]:
            own = record["phases"]["steady"]["median"]
            work = own * record["throughput"]["per_second"]
            for peer in record["peers"].values():
                if peer["status"] == "ok":
                    share = work / peer.get("work", work)
                    # Medians of noisy rounds differ within the quartiles of their ratio, hence the lower of them.
                    assert peer["ratio"]["low"] < 1.25 * share * peer["steady"]["median"] / own
    stored = root / "benchmarks" / "results" / "report.md"
    assert stored.read_text() == to_markdown(sorted(documents, key=lambda document: document["suite"] != "quick"))
    record = _record(1.0, peers={"lyapax": PEER}) | {"case": "lyapunov_lorenz63"}
    (row,) = script.table([_document([record])]).splitlines()[2:]
    assert row.startswith("| exponents of the Lorenz flow | lyapax | 3 | 2.9 to 3.1 |")
    record["peers"]["lyapax"] = PEER | {"agrees": False}
    assert script.table([_document([record])]) == ""


def test_read_document_names_the_file(tmp_path):
    with pytest.raises(ArgumentError, match="cannot read"):
        read_document(tmp_path / "absent.json")
    path = tmp_path / "bad.json"
    path.write_text("{")
    with pytest.raises(ArgumentError, match="is not JSON"):
        read_document(path)
    path.write_text("{}")
    with pytest.raises(ArgumentError, match=r"is no benchmark result: document\.schema is missing"):
        read_document(path)


def test_command_compares(tmp_path, capsys):
    for name, median in (("a", 1.0), ("b", 2.0)):
        (tmp_path / f"{name}.json").write_text(json.dumps(_document([_record(median)])))
    assert main(["--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    assert "slower  x2.000" in capsys.readouterr().out
    assert main(["--compare", str(tmp_path / "a.json"), str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err.startswith("dynwarp bench: cannot read")


def test_command_checks_and_writes(tmp_path, capsys):
    assert main(["--check", "--case", "stein", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "[1/1] stein state_size=6" in out
    assert "1 cases hold" in out
    assert {path.name for path in tmp_path.iterdir()} == {"check-cpu.json"}


def test_command_measures_and_reports(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(_runner._SETTINGS, "quick", _runner._SETTINGS["check"])
    monkeypatch.setattr(_runner, "measure_ceilings", lambda device, small: measure_ceilings(device, small=True))
    (tmp_path / "quick-cpu.json").write_text(json.dumps(_document([_record(1.0)])))
    (tmp_path / "full-cpu.json").write_text("{")
    cache = jax.config.jax_enable_compilation_cache
    try:
        assert main(["--case", "stein", "--budget", "0", "--out", str(tmp_path)]) == 0
    finally:
        jax.config.update("jax_enable_compilation_cache", cache)
    out = capsys.readouterr().out
    assert "the budget of 0 s was used up" in out
    # A complete result that was there is not lost, and what is no result stands in nobody's way.
    assert f"the result that was there is now {tmp_path / 'previous-quick-cpu.json'}" in out
    assert f"left out of the report: {tmp_path / 'full-cpu.json'} is not JSON" in out
    names = {"previous-quick-cpu.json", "quick-cpu.json", "full-cpu.json", "report.md", "report.html"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert read_document(tmp_path / "previous-quick-cpu.json")["seconds"] == 3.0
    assert "skipped: the budget" in (tmp_path / "report.md").read_text()


def test_command_mistakes_are_one_line(tmp_path, capsys):
    assert main(["--check", "--case", "nothing"]) == 2
    with pytest.raises(ArgumentError, match="no case 'nothing'"):
        cli.main(["bench", "--check", "--case", "nothing", "--debug"])
    assert main(["--check", "--case", "stein", "--peer-python", "torch"]) == 2
    assert main(["--check", "--case", "stein", "--peer-python", "sci=python"]) == 2
    assert main(["--check", "--case", "stein", "--peers", str(tmp_path / "none")]) == 2
    assert main(["--case", "stein", "--budget", "nan"]) == 2
    assert main(["--check", "--cores", "0"]) == 2
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main(["--check", "--case", "stein", "--out", str(blocked / "folder")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 7
    assert all(line.startswith("dynwarp bench: ") for line in lines)


def test_command_lists(capsys):
    assert main(["--list", "--case", "dynamics"]) == 0
    assert "dynamics/lyapunov_lorenz63:" in capsys.readouterr().out


def test_a_reader_that_leaves_is_no_failure():
    """`dynwarp bench --list | head -1` says nothing but that line."""
    code = (
        "import sys; from dynwarp.bench import _command;"
        "_command._list = lambda names: [_command._say('a case ' * 9) for _ in range(9999)];"
        "sys.exit(_command.main(['--list']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout.readline().startswith(b"a case")
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait() == 141


def test_full_disk_is_one_line(tmp_path, monkeypatch, capsys):
    def full(path, mode):
        raise OSError(errno.ENOSPC, "No space left on device")  # the system does not say where

    monkeypatch.setattr(_runner, "atomic_write", full)
    assert main(["--check", "--case", "stein", "--out", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"dynwarp bench: cannot write {tmp_path / 'check-cpu.json'}: No space left on device"


def test_interrupt_and_missing_peers_are_one_line_each(tmp_path, monkeypatch, capsys):
    """Ctrl-C in the second case: the first is on the disk, and the exit code is that of an interrupted command."""
    monkeypatch.setattr(_runner, "measure", _interrupted(_runner.measure))
    arguments = ["--check", "--case", "stein", "elman_gradient", "--out", str(tmp_path), "--peers", str(tmp_path)]
    assert main(arguments) == 130
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.splitlines()[1:] == [
        "    scipy skipped: there is no peer_scipy.py among the peers",
        "Interrupted: 1 of 2 results are kept.",
    ]
    kept = read_document(tmp_path / "check-cpu.json")
    assert (kept["status"], len(kept["results"])) == ("interrupted", 1)


def test_a_swallowed_interrupt_is_not_lost(tmp_path, monkeypatch, capsys):
    """Ctrl-C that meets a callback or an import comes out as no exception, or as another one."""

    def press(*arguments, **options):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("an extension could not be initialised") from None

    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(_runner, "measure", press)
    assert main(["--check", "--case", "stein", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().out == "Interrupted: 0 of 1 results are kept.\n"
    monkeypatch.setattr(_command, "_list", press)
    assert main(["--list"]) == 130
    assert capsys.readouterr().err == "dynwarp bench: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is handler


def _interrupted(measure):
    calls = []

    def once(*arguments, **options):
        if calls:
            raise KeyboardInterrupt
        calls.append(1)
        return measure(*arguments, **options)

    return once


def test_options_need_no_jax():
    code = (
        "import argparse, sys; from dynwarp.bench import add_arguments, run; add_arguments(argparse.ArgumentParser());"
        "assert not {'jax', 'numpy', 'equinox'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert argparse  # the module whose parser `add_arguments` extends
