"""Two result documents against each other."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any

from dynwarp.bench._schema import validate
from dynwarp.errors import ArgumentError

# What must be equal for seconds to mean the same.
_MACHINE = ("platform", "device_kind", "machine", "processor", "cores", "system", "x64")
# What may differ, and is then told beside the ratios.
_NOTED = ("python", "versions", "matmul_precision", "xla_flags", "blas", "on_error", "cache")


@dataclasses.dataclass(frozen=True)
class Change:
    """One size of one case in both documents: time of the second over time of the first.

    `low` and `high` span the quartiles of both; the verdict is `"faster"` where they lie below 1, `"slower"` where they
    lie above it, else `"same"`.
    """

    case: str
    size: dict[str, Any]
    ratio: float
    low: float
    high: float
    verdict: str


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The changes, what is in one document alone, and what else differs between the runs."""

    changes: list[Change]
    only_first: list[str]
    only_second: list[str]
    notes: list[str]

    def to_text(self) -> str:
        """Lines for a terminal."""
        lines = [f"note: {note}" for note in self.notes]
        for change in self.changes:
            size = " ".join(f"{key}={value}" for key, value in change.size.items())
            spread = f"x{change.ratio:.3f} [{change.low:.3f}, {change.high:.3f}]"
            lines.append(f"{change.verdict:>6}  {spread}  {change.case} {size}")
        lines += [f"only in the first: {name}" for name in self.only_first]
        lines += [f"only in the second: {name}" for name in self.only_second]
        if not self.changes:
            lines.append("No size of a case ran in both.")
        return "\n".join(lines)


def read_document(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A result document from its file; raises `ArgumentError` naming the file and what is wrong with it."""
    try:
        document = json.loads(pathlib.Path(path).read_text())
    except OSError as error:
        raise ArgumentError(f"bench: cannot read {path}: {error.strerror}.") from None
    except ValueError as error:
        raise ArgumentError(f"bench: {path} is not JSON: {error}.") from None
    problems = validate(document)
    if problems:
        raise ArgumentError(f"bench: {path} is no benchmark result: {problems[0]} ({len(problems)} problems).")
    return document


def compare(first: dict[str, Any], second: dict[str, Any]) -> Comparison:
    """How much longer the second run took, size by size, with the spread.

    **Raises:** `ArgumentError` where the runs come from unlike machines: seconds of one mean nothing on the other.
    """
    here, there = first["environment"], second["environment"]
    unlike = [f"{key} {here[key]!r} and {there[key]!r}" for key in _MACHINE if here[key] != there[key]]
    if unlike:
        raise ArgumentError(f"compare: the runs come from unlike machines: {'; '.join(unlike)}.")
    before, after = _by_size(first), _by_size(second)
    changes = []
    for key in before.keys() & after.keys():
        old, new = (record["phases"]["steady"] for record in (before[key], after[key]))
        ratio = new["median"] / old["median"]
        low, high = new["lower_quartile"] / old["upper_quartile"], new["upper_quartile"] / old["lower_quartile"]
        verdict = "faster" if high < 1 else "slower" if low > 1 else "same"
        changes.append(Change(before[key]["case"], before[key]["size"], ratio, low, high, verdict))
    changes.sort(key=lambda change: (change.case, json.dumps(change.size)))
    notes = [f"{key}: {here[key]!r} and {there[key]!r}" for key in _NOTED if here[key] != there[key]]
    for name, document in (("first", first), ("second", second)):
        if document["status"] != "complete":
            notes.append(f"the {name} run is {document['status']}")
    return Comparison(changes, sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys()), notes)


def _by_size(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        f"{record['case']} {json.dumps(record['size'])}": record
        for record in document["results"]
        if record["status"] == "ok"
    }
