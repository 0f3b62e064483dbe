"""Writing a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from dynwarp.errors import ArgumentError


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike, mode: str = "wb", *, encoding: str | None = None) -> Iterator[IO[Any]]:
    """Opens a file for writing that appears under its name only once it is whole.

    **Arguments:**

    - `path`: where the file goes; its folder must exist. A link is followed.
    - `mode`: `"wb"` or `"w"`.
    - `encoding`: for text, by default UTF-8.

    **Yields:** the open file. What is written goes to a temporary file in the same folder. On leaving the block it is
    flushed to the disk and takes the place of `path` in one step, with the permissions of the file it replaces. If the
    block raises, or the process dies, the old file is untouched; if the block raises, nothing is left behind.

    **Raises:** `ArgumentError` where `path` is a folder or a device, or its folder does not exist.

    **Example:**

    >>> import tempfile, pathlib, dynwarp as dw
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "report.json"
    >>> with dw.io.atomic_write(path, "w") as file:
    ...     _ = file.write("{}")
    >>> path.read_text()
    '{}'
    """
    if mode not in ("w", "wb"):
        raise ArgumentError(f"atomic_write: `mode` must be 'w' or 'wb'; got {mode!r}.")
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise ArgumentError(f"Cannot write {str(path)!r}: the folder {str(target.parent)!r} does not exist.")
    if target.exists() and not target.is_file():
        raise ArgumentError(f"Cannot write {str(path)!r}: it is a folder or a device, not a file.")

    temporary = target.parent / f".{secrets.token_hex(8)}.tmp"
    # O_EXCL: never through a link that somebody planted; 0o666 less the umask, as for any new file.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with open(descriptor, mode, encoding=None if mode == "wb" else encoding or "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            os.chmod(temporary, target.stat().st_mode & 0o7777)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Makes the new name last through a power cut, where the system lets a folder be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
