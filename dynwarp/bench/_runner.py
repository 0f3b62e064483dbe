"""Runs a suite: every case that can run does, and what is done is kept."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from dynwarp.bench import _schema
from dynwarp.bench._case import Size, select
from dynwarp.bench._ceilings import measure_ceilings
from dynwarp.bench._compare import read_document
from dynwarp.bench._environment import describe, revision
from dynwarp.bench._interrupt import remember_interrupts
from dynwarp.bench._measure import NO_PLATFORM, Settings, measure, one_line
from dynwarp.bench._peers import PeerPool, default_directory
from dynwarp.bench._report import to_html, to_markdown
from dynwarp.errors import ArgumentError, DeviceError, PrecisionError
from dynwarp.io import atomic_write

# Seconds after which a suite starts no further case.
_BUDGETS = {"check": math.inf, "quick": 285.0, "full": math.inf, "gpu": 450.0}
_SETTINGS = {
    "check": Settings(repetitions=2, seconds=0.0, limit=5.0, fresh=True),
    "quick": Settings(repetitions=5, seconds=0.2, limit=4.0),
    "full": Settings(repetitions=5, seconds=1.0, limit=120.0),
    "gpu": Settings(repetitions=5, seconds=0.5, limit=8.0),
}


def run_bench(
    *,
    suite: str = "quick",
    names: Sequence[str] = (),
    device: str | None = None,
    out: str | os.PathLike[str] | None = None,
    budget: float | None = None,
    peers: str | os.PathLike[str] | None = None,
    peer_pythons: Mapping[str, str] | None = None,
    echo: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Runs a suite of benchmark cases and returns the result document.

    **Arguments:**

    - `suite`: `"check"`, `"quick"`, `"full"` or `"gpu"`.
    - `names`: only these cases or groups.
    - `device`: `"cpu"` or `"gpu"`; None takes JAX's default, and for the suite `"gpu"` an accelerator.
    - `out`: a folder; the document is written there as `SUITE-PLATFORM.json` after every case, atomically.
    - `budget`: seconds after which no further case starts; by default none for `check`, under 5 minutes for `quick`,
      under 8 for `gpu`.
    - `peers`: the folder of the peers, by default `benchmarks/peers` of the source checkout.
    - `peer_pythons`: the Python interpreter, by name, of peers that run in an environment of their own.
    - `echo`: is given one line of progress at a time.

    A case that fails is recorded with its reason and the rest goes on; so does a missing peer. Ctrl-C ends the run with
    `status` "interrupted" and what was done. A complete result that was in the folder is kept as
    `previous-SUITE-PLATFORM.json`, for [`compare`][dynwarp.bench.compare].

    **Raises:** `DeviceError` where there is no such device, `PrecisionError` without 64-bit numbers, `ArgumentError`
    for an unknown suite, case or peer and for a budget that is no number of seconds, `OSError` where the folder cannot
    be written.
    """
    target = _device("gpu" if device is None and suite == "gpu" else device)
    if jnp.zeros(()).dtype != jnp.float64:
        raise PrecisionError('bench compares with float64: first set jax.config.update("jax_enable_x64", True).')
    say = echo or (lambda line: None)
    chosen = select(suite, names)
    if not chosen:
        raise ArgumentError(f"bench: none of {', '.join(names)} has a size in the suite {suite!r}.")
    limit = _BUDGETS[suite] if budget is None else budget
    if not limit >= 0:
        raise ArgumentError(f"bench: `budget` must be a number of seconds, 0 or more; got {limit:g}.")
    pool = PeerPool(
        directory=pathlib.Path(peers) if peers is not None else default_directory(),
        pythons=peer_pythons or {},
        longest_warm_up=math.inf if suite == "full" else 10.0,
        patience=600.0 if suite == "full" else 60.0,
    )
    start = time.perf_counter()
    document: dict[str, Any] = {
        "schema": _schema.VERSION,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "suite": suite,
        "status": "running",
        "seconds": 0.0,
        "revision": revision(),
        "environment": describe(target),
        "ceilings": measure_ceilings(target, small=suite == "check"),
        "results": [],
    }
    path = None if out is None else pathlib.Path(out) / f"{suite}-{target.platform}.json"
    if path is not None:
        if suite != "check":
            _keep(path, say)
        write(path, document)  # a full disk or a forbidden folder is found out before the work, not after it
    beside_cpu: dict[str, dict[str, Any]] = {}
    try:
        with pool, remember_interrupts() as raise_if_pressed:
            for index, (case, size) in enumerate(chosen):
                raise_if_pressed()
                heading = {"case": case.name, "group": case.group, "size": dict(size)}
                if time.perf_counter() - start > limit:
                    record = {**heading, "status": "skipped", "reason": f"the budget of {limit:g} s was used up"}
                else:
                    try:
                        record = measure(
                            case,
                            size,
                            device=target,
                            ceilings=document["ceilings"],
                            pool=pool,
                            settings=_share(
                                _SETTINGS[suite], limit - (time.perf_counter() - start), len(chosen) - index
                            ),
                            before=beside_cpu.get(case.name),
                        )
                    except Exception as error:
                        record = {**heading, "status": "failed", "reason": one_line(error)}
                raise_if_pressed()
                if record.get("peers", {}).get("cpu", {}).get("status") == "ok":
                    beside_cpu[case.name] = record
                document["results"].append(record)
                document["seconds"] = time.perf_counter() - start
                if path is not None:
                    write(path, document)
                for line in _progress(record, index + 1, len(chosen)):
                    say(line)
        document["status"] = "complete"
    except KeyboardInterrupt:
        document["status"] = "interrupted"
        kept = "are kept" if path is not None else "were done"
        say(f"Interrupted: {len(document['results'])} of {len(chosen)} results {kept}.")
    document["seconds"] = time.perf_counter() - start
    if path is not None:
        write(path, document)
    return document


def gate(document: dict[str, Any]) -> list[str]:
    """Why a checked run must not pass, one line each: a failure, a wrong digest, a second compile, a collective.

    Seconds are never a reason.
    """
    problems = _schema.validate(document)
    if problems:
        return problems
    for record in document["results"]:
        where = f"{record['case']} ({describe_size(record['size'])})"
        if record["status"] != "ok":
            # A measurement may run out of its time, a check may not.
            if record["status"] == "failed" or document["suite"] == "check":
                problems.append(f"{where} {record['status']}: {record['reason']}")
            continue
        digest = record["digest"]
        if not digest["passed"]:
            problems.append(f"{where}: relative error {digest['relative_error']} exceeds {digest['tolerance']}")
        for field, meaning in (
            ("recompiles", "programs compiled again for fresh values"),
            ("collectives", "collectives in the program"),
            ("callbacks", "host callbacks in the program"),
        ):
            if record[field]:
                problems.append(f"{where}: {record[field]} {meaning}")
        for name, peer in record["peers"].items():
            if peer["kind"] == "variant" and peer["status"] == "failed":
                problems.append(f"{where}: the variant {name} failed: {peer['reason']}")
    if document["status"] != "complete":
        problems.append(f"the run is {document['status']}")
    return problems


def write(path: pathlib.Path, document: dict[str, Any]) -> None:
    """Writes a document whole or not at all; raises `OSError` where that cannot be done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def _write_text(path: pathlib.Path, text: str) -> None:
    try:
        with atomic_write(path, "w") as file:
            file.write(text)
    except OSError as error:
        error.filename = str(path)  # which a full disk does not tell
        raise


def _keep(path: pathlib.Path, say: Callable[[str], None]) -> None:
    # A run that is begun, and perhaps given up, must not cost the result of the last one.
    try:
        complete = read_document(path)["status"] == "complete"
    except ArgumentError:
        return
    if complete:
        kept = path.replace(path.with_name(f"previous-{path.name}"))
        say(f"the result that was there is now {kept}")


def write_report(directory: str | os.PathLike[str], *, echo: Callable[[str], None]) -> None:
    """Writes `report.md` and `report.html` over all results of a folder but those of checks, and tells of each file.

    A file that is no result, or one of another version, is told and left out.
    """
    folder, documents = pathlib.Path(directory), []
    for suite in ("quick", "full", "gpu"):
        for path in sorted(folder.glob(f"{suite}-*.json")):
            try:
                documents.append(read_document(path))
            except ArgumentError as error:
                echo(f"left out of the report: {str(error).removeprefix('bench: ')}")
    for name, text in (("report.md", to_markdown(documents)), ("report.html", to_html(documents))):
        _write_text(folder / name, text)
        echo(f"wrote {folder / name}")


def describe_size(size: Size) -> str:
    """A size in one phrase: `batch=8 steps=100 dtype=float32`."""
    return " ".join(f"{key}={value}" for key, value in size.items())


def _device(name: str | None) -> Any:
    try:
        there = jax.devices()
    except NO_PLATFORM:
        raise DeviceError("bench: JAX does not find the platform in JAX_PLATFORMS on this machine.") from None
    try:
        return there[0] if name is None else jax.devices(name)[0]
    except NO_PLATFORM:
        raise DeviceError(
            f"bench: this machine, or this build of jaxlib, has no {name}; it has "
            f"{', '.join(sorted({device.platform for device in there}))}."
        ) from None


def _share(settings: Settings, left: float, sizes: int) -> Settings:
    """The settings with two fifths of this size's share of the time left at most, the rest being for compiling.

    A slow machine then runs fewer rounds of each size before it leaves sizes out.
    """
    return dataclasses.replace(settings, limit=max(0.2, min(settings.limit, 0.4 * left / sizes)))


def _progress(record: dict[str, Any], index: int, total: int):
    head = f"[{index}/{total}] {record['case']} {describe_size(record['size'])}".rstrip()
    if record["status"] != "ok":
        yield f"{head}: {record['status']}, {record['reason']}"
        return
    steady, compile_seconds = record["phases"]["steady"], record["phases"]["compile"]
    compiled = "" if compile_seconds is None else f", compiled in {compile_seconds:.2f} s"
    verdict = "" if record["digest"]["passed"] else f", WRONG by {record['digest']['relative_error']}"
    ratios = [f"{name} x{peer['ratio']['median']:.3g}" for name, peer in record["peers"].items() if "ratio" in peer]
    yield f"{head}: {1e3 * steady['median']:.4g} ms{compiled}{verdict}{'; ' if ratios else ''}{', '.join(ratios)}"
    for name, peer in record["peers"].items():
        if peer["status"] != "ok":
            yield f"    {name} {peer['status']}: {peer['reason']}"
        elif peer.get("agrees") is False:
            yield f"    {name} differs from the reference by {peer['relative_error']}"
