"""Tables of numbers in text files: csv, tsv, txt."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from dynwarp.errors import SeriesError

SUFFIXES = (".csv", ".tsv", ".txt")
_MISSING = frozenset({"", "na", "n/a", "null", "none", "?"})


def read_table(path: Path, *, header: bool | None = None, delimiter: str | None = None) -> dict[str, np.ndarray]:
    """The columns of a text file by name: numbers as float64, NaN where a cell is missing, other columns as strings.

    Lines that begin with # or % are skipped, and so are blank ones, but between the numbers of one column they are
    missing values, and so are the cells of a row of tabs alone. Without `delimiter`, a tsv file is split at tabs,
    others at whichever of tab, semicolon, comma and white space splits their lines alike. Without `header`, the first
    line is one if it holds a word.
    """
    lines = _lines(path)
    if delimiter is None:
        delimiter = "\t" if path.suffix.lower() == ".tsv" else _sniff([line for line in lines if line.strip()])
    rows = _split(_without_blank(lines, delimiter), delimiter)
    if header is None:
        header = any(_number(cell) is None for cell in rows[0])
    names = [cell or f"column {i}" for i, cell in enumerate(rows[0])] if header else None
    rows = rows[1:] if header else rows
    if not rows:
        raise SeriesError(f"{str(path)!r} holds a header and no numbers.")
    width = len(names or rows[0])
    for i, row in enumerate(rows):
        if len(row) != width:
            raise SeriesError(
                f"{str(path)!r}: row {i + 1} of the data has {len(row)} cells where {width} were expected; the file is "
                f"split at {delimiter or 'white space'!r}."
            )
    names = names or [f"column {i}" for i in range(width)]
    if len(set(names)) < width:
        twice = next(name for name in names if names.count(name) > 1)
        raise SeriesError(f"{str(path)!r}: two columns are called {twice!r}.")
    return {name: _column(cells) for name, cells in zip(names, zip(*rows))}


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SeriesError(
            f"{str(path)!r} is not text, or not in UTF-8: it is of another type than its name says."
        ) from error
    if "\0" in text:
        raise SeriesError(f"{str(path)!r} is not text: it is of another type than its name says.")
    lines = [line for line in text.splitlines() if line.lstrip()[:1] not in ("#", "%")]
    if not any(line.strip() for line in lines):
        raise SeriesError(f"{str(path)!r} is empty.")
    return lines


def _without_blank(lines: list[str], delimiter: str | None) -> list[str]:
    """The lines but the blank ones. Between numbers of one column a blank line is a value that is missing: without it
    all that follow would move in time."""
    filled = [i for i, line in enumerate(lines) if line.strip()]
    if any(len(row) > 1 for row in _split([lines[i] for i in filled[:20]], delimiter)):
        # A row of tabs alone is one of cells that are missing.
        return [line for line in lines if line.strip() or (delimiter == "\t" and delimiter in line)]
    start = next((i for i in filled if _number(lines[i].strip()) is not None), filled[0])
    head = [lines[i] for i in filled if i < start]
    return head + [line if line.strip() else "nan" for line in lines[start : filled[-1] + 1]]


def _sniff(lines: list[str]) -> str | None:
    """The delimiter that splits the first lines alike, into the most cells; None is white space."""
    sample = lines[:20]
    for delimiter in ("\t", ";", ","):
        widths = {len(row) for row in _split(sample, delimiter)}
        if len(widths) == 1 and widths != {1}:
            return delimiter
    # Unequal rows: better an error that names the row than a split in the wrong place.
    counts = {delimiter: sum(line.count(delimiter) for line in sample) for delimiter in ("\t", ";", ",")}
    most = max(counts, key=lambda delimiter: counts[delimiter])
    return most if counts[most] else None


def _split(lines: list[str], delimiter: str | None) -> list[list[str]]:
    if delimiter is None:
        return [line.split() for line in lines]
    return [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=delimiter, skipinitialspace=True)]


def _number(cell: str) -> float | None:
    if cell.lower() in _MISSING:
        return np.nan
    try:
        return float(cell)
    except ValueError:
        return None


def _column(cells: tuple[str, ...]) -> np.ndarray:
    numbers = [_number(cell) for cell in cells]
    return np.array(cells, dtype=str) if None in numbers else np.array(numbers, dtype=float)
