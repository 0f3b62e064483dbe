"""Model files: one zip of a manifest and the arrays, all of it checked before anything is returned."""

from __future__ import annotations

import datetime
import io
import json
import os
import stat
import struct
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import equinox as eqx
import jax
import numpy as np

from dynwarp._version import __version__
from dynwarp.errors import ArgumentError, CheckpointError, DynwarpError
from dynwarp.io._atomic import atomic_write
from dynwarp.io._manifest import Encoded, decode, encode, restore

_FORMAT = "dynwarp model"
_VERSION = 1
_MEMBERS = {"manifest.json", "arrays.npz"}
_MAX_MANIFEST = 1 << 26


class CheckpointInfo(eqx.Module):
    """What [`inspect`][dynwarp.io.inspect] returns: a model file without its arrays.

    **Attributes:**

    - `model`: the name of its class, or of the container that holds the modules.
    - `arrays`: path, shape and dtype of each array.
    - `parameters`: how many numbers the arrays hold.
    - `metadata`: what was saved with the model.
    - `provenance`: the versions that wrote it, and the date in UTC.
    - `format_version`: of the file.
    """

    model: str
    arrays: tuple[tuple[str, tuple[int, ...], str], ...]
    parameters: int
    metadata: dict[str, Any]
    provenance: dict[str, str]
    format_version: int


def save(path: str | os.PathLike, model: Any, *, metadata: dict[str, Any] | None = None) -> Path:
    """Writes a model to one file.

    **Arguments:**

    - `path`: where to; any name, in a folder that exists. A file there is replaced in one step, or stays as it is.
    - `model`: a module of dynwarp, of `equinox.nn`'s common layers, or of a class known by
      [`register`][dynwarp.io.register]; or tuples, lists and dicts of such. Its fields may be arrays of JAX or numpy,
      PRNG keys, numbers, text, None, dtypes, activations known by name ([`register_function`]
      [dynwarp.io.register_function]), modules, and containers of these.
    - `metadata`: a dict of what JSON can hold; numpy numbers and arrays in it become numbers and lists.

    **Returns:** the path. The file is a zip of `manifest.json` (class names, fields, and path, shape, dtype and SHA-256
    of each array, versions, date) and `arrays.npz`, both uncompressed, which any zip and numpy can open.

    **Raises:** `CheckpointError` naming the field that cannot be saved; `ArgumentError` for a path or metadata that
    cannot be written. Then nothing is written.

    **Example:**

    >>> import jax, pathlib, tempfile, dynwarp as dw
    >>> model = dw.models.ALRNN(5, 2, key=jax.random.key(0))
    >>> path = dw.io.save(pathlib.Path(tempfile.mkdtemp()) / "model.dyn", model, metadata={"seed": 0})
    >>> dw.io.load(path).relu_size, dw.io.load_metadata(path)
    (2, {'seed': 0})
    """
    arrays = Encoded()
    manifest = {
        "format": _FORMAT,
        "version": _VERSION,
        "model": encode(model, "model", arrays),
        "arrays": arrays.records,
        "metadata": _plain(metadata),
        "provenance": {
            "dynwarp": __version__,
            "jax": jax.__version__,
            "equinox": eqx.__version__,
            "numpy": np.__version__,
            "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        },
    }
    text = json.dumps(manifest, indent=1)
    if len(text) > _MAX_MANIFEST:
        raise ArgumentError(
            f"`metadata` is too large: the manifest may hold {_MAX_MANIFEST} bytes and has {len(text)}."
        )
    buffer = io.BytesIO()
    np.savez(buffer, **{_member(i): array for i, array in enumerate(arrays.stored)})  # type: ignore
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("manifest.json", text)
        archive.writestr("arrays.npz", buffer.getbuffer())
    return Path(path)


def load(path: str | os.PathLike) -> Any:
    """Reads a model that [`save`][dynwarp.io.save] wrote.

    **Arguments:** `path`, the file.

    **Returns:** the model, equal to what was saved, arrays on the default device. No code of the file's choosing runs:
    classes and functions are looked up among known names, nothing is unpickled, and no `__init__` is called.

    **Raises:** `CheckpointError` for a file that is missing, damaged anywhere, truncated, of another kind, of a newer
    format, or with classes or functions that are not known; it names the first array that differs.
    `PrecisionError` for double-precision arrays where JAX is in single precision. Sizes are checked against the file
    before anything is allocated.

    **Example:**

    >>> import pathlib, tempfile, dynwarp as dw
    >>> path = dw.io.save(pathlib.Path(tempfile.mkdtemp()) / "henon.dyn", dw.systems.Henon(b=0.2))
    >>> float(dw.io.load(path).b)
    0.2
    """
    with _Reader(path) as reader:
        arrays = [restore(stored, record) for stored, record in zip(reader.arrays(), reader.manifest["arrays"])]
        return decode(reader.manifest["model"], "model", arrays)


def load_metadata(path: str | os.PathLike) -> dict[str, Any]:
    """The metadata of a model file, `{}` if it was saved without; see [`save`][dynwarp.io.save].

    **Raises:** `CheckpointError` as [`load`][dynwarp.io.load], but for the arrays, which are not read.

    **Example:**

    >>> import pathlib, tempfile, dynwarp as dw
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "henon.dyn"
    >>> _ = dw.io.save(path, dw.systems.Henon(), metadata={"note": "chaotic"})
    >>> dw.io.load_metadata(path)
    {'note': 'chaotic'}
    """
    return inspect(path).metadata


def inspect(path: str | os.PathLike) -> CheckpointInfo:
    """What a model file holds, without reading its arrays.

    **Returns:** a [`CheckpointInfo`][dynwarp.io.CheckpointInfo].

    **Raises:** `CheckpointError` as [`load`][dynwarp.io.load], but for the arrays, which are not read.

    **Example:**

    >>> import jax, pathlib, tempfile, dynwarp as dw
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.dyn"
    >>> _ = dw.io.save(path, dw.models.ALRNN(5, 2, key=jax.random.key(0)))
    >>> info = dw.io.inspect(path)
    >>> info.model, info.parameters
    ('models.ALRNN', 35)
    """
    with _Reader(path) as reader:
        manifest = reader.manifest
        tree = manifest["model"]
        arrays = tuple((r["path"], tuple(r["shape"]), r["dtype"]) for r in manifest["arrays"])
        return CheckpointInfo(
            model=tree.get("module", next(iter(tree))) if isinstance(tree, dict) else type(tree).__name__,
            arrays=arrays,
            parameters=sum(int(np.prod(shape)) for _, shape, _ in arrays),
            metadata=manifest["metadata"],
            provenance=manifest["provenance"],
            format_version=manifest["version"],
        )


class _Reader:
    """An open model file whose structure and manifest have been checked.

    Whatever goes wrong inside its `with` block, in a parser or on meeting what no writer wrote, is damage to the file.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)

    def __enter__(self) -> _Reader:
        if not self.path.is_file():
            state = "is a folder, not a file" if self.path.is_dir() else "does not exist"
            raise CheckpointError(f"{str(self.path)!r} {state}.")
        try:
            self.file = self.path.open("rb")
        except OSError as error:
            raise CheckpointError(f"{str(self.path)!r} cannot be read: {error.strerror}.") from error
        try:
            self._open()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind, error, traceback):
        self.file.close()
        if isinstance(error, Exception) and not isinstance(error, DynwarpError | MemoryError):
            raise CheckpointError(f"{str(self.path)!r} is damaged: {error or type(error).__name__}.") from error

    def _open(self) -> None:
        if self.file.read(4) != b"PK\3\4":
            raise CheckpointError(f"{str(self.path)!r} is not a model file, or its beginning is damaged.")
        self.archive = _archive(self.file, str(self.path))
        if set(self.archive.namelist()) != _MEMBERS:
            raise CheckpointError(
                f"{str(self.path)!r} is no model file: it should hold {sorted(_MEMBERS)} and holds "
                f"{sorted(self.archive.namelist())[:5]}."
            )
        if self.archive.getinfo("manifest.json").file_size > _MAX_MANIFEST:
            raise CheckpointError(f"{str(self.path)!r} has a manifest of more than {_MAX_MANIFEST} bytes.")
        manifest = json.loads(self.archive.read("manifest.json"))
        if manifest["format"] != _FORMAT:
            raise CheckpointError(
                f"{str(self.path)!r} is no model file of dynwarp: its format is {manifest['format']!r}."
            )
        if manifest["version"] != _VERSION:
            raise CheckpointError(
                f"{str(self.path)!r} is of format version {manifest['version']}; this dynwarp, {__version__}, reads "
                f"{_VERSION}. It was written by dynwarp {manifest['provenance']['dynwarp']}."
            )
        self.manifest = manifest

    def arrays(self) -> list[np.ndarray]:
        """The stored arrays, in the order of the manifest."""
        try:
            content, intact = self.archive.read("arrays.npz"), True
        except zipfile.BadZipFile:
            # The check sum of the whole is wrong: read on without it to find the array that is.
            content, intact = _raw(self.file, self.archive.getinfo("arrays.npz")), False
        records = self.manifest["arrays"]
        inner = _archive(io.BytesIO(content), "arrays.npz")
        if inner.namelist() != [f"{_member(i)}.npy" for i in range(len(records))]:
            raise CheckpointError(f"{str(self.path)!r} is damaged: its arrays are not those of its manifest.")
        arrays = []
        for i, record in enumerate(records):
            try:
                arrays.append(_parse_npy(inner.read(f"{_member(i)}.npy")))
            except (zipfile.BadZipFile, ValueError) as error:
                raise CheckpointError(f"{record['path']} is not what was saved: {error}") from error
            if not intact:
                restore(arrays[-1], record)
        if not intact:
            raise CheckpointError(f"{str(self.path)!r} is damaged between its arrays.")
        return arrays


def _archive(file: BinaryIO | io.BytesIO, name: str) -> zipfile.ZipFile:
    """A zip as `save` writes them: plain uncompressed members, each once, nothing before or after them.

    Without compression no member can be larger than the file: there is nothing that unpacks to more.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 22, 0))
    end = file.read()
    if end[:4] != b"PK\5\6" or end[-2:] != b"\0\0":
        raise CheckpointError(f"{name!r} is truncated, or something follows its end.")
    archive = zipfile.ZipFile(file)
    infos = archive.infolist()
    plain = all(
        info.compress_type == zipfile.ZIP_STORED
        and info.compress_size == info.file_size <= size
        and not info.flag_bits & 0x1
        and not info.is_dir()
        and stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)
        for info in infos
    )
    total = sum(info.file_size for info in infos)
    if not plain or total > size or len({info.filename for info in infos}) < len(infos):
        raise CheckpointError(f"{name!r} is no model file: its members are compressed, links, folders or not unique.")
    if infos and min(info.header_offset for info in infos) != 0:
        raise CheckpointError(f"{name!r} is no model file: something precedes its first member.")
    return archive


def _raw(file: BinaryIO, info: zipfile.ZipInfo) -> bytes:
    """The bytes of an uncompressed member, unchecked: they follow 30 bytes of header, its name and its extra field."""
    file.seek(info.header_offset + 26)
    name, extra = struct.unpack("<HH", file.read(4))
    file.seek(name + extra, os.SEEK_CUR)
    return file.read(info.file_size)


def _parse_npy(content: bytes) -> np.ndarray:
    """An array from the bytes of an npy file; what its header promises must be what is there."""
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("its header is of another version")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    body = content[stream.tell() :]
    if fortran or dtype.hasobject or dtype.itemsize * int(np.prod(shape, dtype=object)) != len(body):
        raise ValueError("its header does not fit its content")
    # Copied, since the array of a buffer of bytes is read-only.
    return np.frombuffer(body, dtype).reshape(shape).copy()


def _member(index: int) -> str:
    return f"array_{index:05d}"


def _plain(metadata: dict[str, Any] | None) -> dict[str, Any]:
    """The metadata as JSON holds it."""

    def convert(value):
        if isinstance(value, np.generic | np.ndarray | jax.Array):
            return np.asarray(value).tolist()
        raise ArgumentError(f"`metadata` must hold what JSON can; got a {type(value).__name__}, {value!r}.")

    if metadata is not None and not isinstance(metadata, dict):
        raise ArgumentError(f"`metadata` must be a dict; got {type(metadata).__name__}.")
    try:
        return json.loads(json.dumps(metadata or {}, default=convert))
    except ArgumentError:
        raise
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"`metadata` must hold what JSON can: {error}.") from error
