"""The one layout of a result file, and the check that a document has it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

VERSION = "dynwarp-bench/1"

_NUMBER = (int, float)


@dataclasses.dataclass(frozen=True)
class _Positive:
    """A number above 0, which a ratio may divide by."""


@dataclasses.dataclass(frozen=True)
class _Maybe:
    """The shape, or null."""

    shape: Any


@dataclasses.dataclass(frozen=True)
class _Map:
    """A dictionary with any keys, each value of this shape."""

    shape: Any


_STEADY = {
    "repetitions": int,
    "minimum": _Positive(),
    "median": _Positive(),
    "lower_quartile": _Positive(),
    "upper_quartile": _Positive(),
    "iqr": _NUMBER,
    "processor": _NUMBER,
}
_MEMORY = {"arguments": int, "outputs": int, "temporary": int, "peak": int}
_RAN = {
    "seconds": _NUMBER,
    "phases": {
        "trace": _Maybe(_NUMBER),
        "lower": _Maybe(_NUMBER),
        "compile": _Maybe(_NUMBER),
        "first": _NUMBER,
        "steady": _STEADY,
    },
    "throughput": {"unit": str, "per_second": _NUMBER},
    "flops": _NUMBER,
    "bytes": _NUMBER,
    "depth": int,
    "memory": _Maybe(_MEMORY),
    "peak_memory": _Maybe(int),
    "roofline": _Maybe({"bound": {"compute", "memory", "depth"}, "attainable": _NUMBER, "fraction": _NUMBER}),
    "collectives": int,
    "callbacks": int,
    "recompiles": _Maybe(int),
    "cache": {"state": {"off", "cold", "warm"}, "hits": int},
    "digest": {"relative_error": _Maybe(_NUMBER), "tolerance": _NUMBER, "precision": str, "passed": bool},
    "peers": _Map({"kind": {"peer", "variant", "device", "precision"}, "status": {"ok", "failed", "skipped"}}),
}
_TIMED_PEER = {"first": _NUMBER, "steady": _STEADY, "ratio": dict.fromkeys(("median", "low", "high"), _Positive())}
_RECORD = {"case": str, "group": str, "size": dict, "status": {"ok", "failed", "skipped"}}
_DOCUMENT = {
    "schema": {VERSION},
    "started": str,
    "suite": {"check", "quick", "full", "gpu"},
    "status": {"running", "complete", "interrupted"},
    "seconds": _NUMBER,
    "revision": _Maybe({"commit": str, "modified": bool}),
    "environment": {
        "platform": str,
        "device_kind": str,
        "device_count": int,
        "machine": str,
        "processor": str,
        "cores": int,
        "system": str,
        "python": str,
        "versions": _Map(str),
        "x64": bool,
        "matmul_precision": str,
        "xla_flags": str,
        "blas": _Map(str),
        "on_error": str,
        "cache": {"off", "cold", "warm"},
    },
    "ceilings": {
        "gemm": _Map(_NUMBER),
        "gemm_highest": _Map(_NUMBER),
        "bandwidth": _NUMBER,
        "scan_step": _NUMBER,
    },
    "results": [_RECORD],
}


def validate(document: Any) -> list[str]:
    """What is wrong with a result document, one line each; empty if it follows the schema.

    A document holds `schema`, `started`, `suite`, `status`, `seconds`, `revision`, `environment`, `ceilings` and
    `results`. A result that ran holds the `seconds` it took in all, `phases` (`trace`, `lower`, `compile`, `first`,
    `steady`, in seconds), `throughput`, `flops`, `bytes`, `depth`, `memory`, `peak_memory` (bytes), `roofline`,
    `collectives`, `callbacks`, `recompiles`, `cache`, `digest` and `peers` by name, each with its `ratio` to this
    result where it ran. A result that did not run holds `reason`.

    **Example:**

    >>> import dynwarp.bench
    >>> dynwarp.bench.validate({"schema": "dynwarp-bench/1"})[0]
    'document.started is missing'
    """
    problems: list[str] = []
    _compare(document, _DOCUMENT, "document", problems)
    if problems:
        return problems
    for index, record in enumerate(document["results"]):
        where = f"results[{index}]"
        _compare(record, _RAN if record["status"] == "ok" else {"reason": str}, where, problems)
        peers = record.get("peers") if record["status"] == "ok" else None
        for name, peer in (peers if isinstance(peers, dict) else {}).items():
            status = peer.get("status") if isinstance(peer, dict) else None
            _compare(peer, _TIMED_PEER if status == "ok" else {"reason": str}, f"{where}.peers.{name}", problems)
    return problems


def _compare(value: Any, shape: Any, path: str, problems: list[str]) -> None:
    if isinstance(shape, _Maybe):
        if value is not None:
            _compare(value, shape.shape, path, problems)
    elif isinstance(shape, _Positive):
        _compare(value, _NUMBER, path, problems)
        if isinstance(value, _NUMBER) and value <= 0:
            problems.append(f"{path} is {value!r}, not above 0")
    elif isinstance(shape, set):
        if not isinstance(value, str) or value not in shape:
            problems.append(f"{path} is {value!r}, not one of {', '.join(map(repr, sorted(shape)))}")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            problems.append(f"{path} is no list")
        else:
            for index, item in enumerate(value):
                _compare(item, shape[0], f"{path}[{index}]", problems)
    elif isinstance(shape, dict | _Map):
        if not isinstance(value, dict):
            problems.append(f"{path} is no object")
        elif isinstance(shape, _Map):
            for key, item in value.items():
                _compare(item, shape.shape, f"{path}.{key}", problems)
        else:
            for key, inner in shape.items():
                if key in value:
                    _compare(value[key], inner, f"{path}.{key}", problems)
                else:
                    problems.append(f"{path}.{key} is missing")
    elif (
        not isinstance(value, shape)
        or (isinstance(value, bool) and shape is not bool)
        or (isinstance(value, float) and not math.isfinite(value))
    ):
        expected = "number" if shape is _NUMBER else shape.__name__
        problems.append(f"{path} is {value!r}, not a {expected}")
