"""Named arrays out of binary files: npy, npz, mat, h5. Every failure is one sentence, in the error class asked for."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dynwarp.errors import DynwarpError, MissingDependencyError, SeriesError

_MATLAB_NUMBERS = re.compile("double|single|logical|u?int(8|16|32|64)")
SUFFIXES = (".npy", ".npz", ".mat", ".h5", ".hdf5")


def existing_file(path: str | os.PathLike, *, error: type[DynwarpError] = SeriesError) -> Path:
    """`path` as a Path; raises unless it is a file that holds something."""
    path = Path(path)
    if path.is_dir():
        raise error(f"{str(path)!r} is a folder, not a file.")
    if not path.is_file():
        raise error(f"There is no file {str(path)!r}.")
    if path.stat().st_size == 0:
        raise error(f"{str(path)!r} is empty.")
    return path


def optional(module: str, package: str, purpose: str):
    """The module of an optional dependency; raises `MissingDependencyError` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"{purpose} needs {package}, which is not installed: pip install 'dynwarp[io]'."
        ) from error


def read_arrays(
    path: Path, key: str | None = None, *, error: type[DynwarpError] = SeriesError
) -> dict[str, np.ndarray]:
    """The arrays of a binary file by name, whatever they hold; of an npz only `key`, if it is there.

    An npy file holds one, named after the file. The names of an HDF5 file are paths. MATLAB knows no vectors: its
    (1, T) and (T, 1) matrices come as (T,).
    """
    suffix = path.suffix.lower()
    with explained(path, error):
        if suffix == ".npy":
            return {path.stem: _read_npy(path)}
        if suffix == ".npz":
            return _read_npz(path, key)
        if suffix == ".mat" and not _is_hdf5(path):
            return _read_mat(path)
        if suffix in (".mat", ".h5", ".hdf5"):
            return _read_hdf5(path, matlab=suffix == ".mat")
    raise error(f"{str(path)!r}: unknown extension {suffix!r}; known are {', '.join(SUFFIXES)}.")


@contextlib.contextmanager
def explained(path: Path, error: type[DynwarpError]) -> Iterator[None]:
    """A parser meets damage in many ways; they all mean that the file is not what its name says."""
    try:
        yield
    except DynwarpError:
        raise
    except Exception as cause:
        if "Object arrays" in str(cause) or "Python objects" in str(cause):
            raise error(
                f"{str(path)!r} holds Python objects, which are not read because they can run code; "
                "save it again as an array of numbers."
            ) from cause
        raise error(
            f"{str(path)!r} cannot be read as a {path.suffix.lower()[1:]} file: it is damaged, truncated or of another "
            "kind."
        ) from cause


def _read_npy(path: Path) -> np.ndarray:
    # Mapped, so that a header that promises more than the file holds fails before anything is allocated.
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.memmap):
        raise ValueError("an archive under the name of an array")
    return np.array(array)


def _read_npz(path: Path, key: str | None) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("an array under the name of an archive")
        return {name: archive[name] for name in ([key] if key in archive.files else archive.files)}


def _read_mat(path: Path) -> dict[str, np.ndarray]:
    from scipy.io import loadmat, whosmat

    _check_mat5(path)
    # Not cells, structures and objects, which hold no recording.
    numeric = [name for name, _, kind in whosmat(path) if _MATLAB_NUMBERS.fullmatch(kind)]
    content = loadmat(path, mat_dtype=True, variable_names=numeric)
    return {name: _vector(np.asarray(content[name])) for name in numeric}


def _check_mat5(path: Path) -> None:
    """Raises where a part of a MATLAB 5 matrix is of no type that the format knows: scipy would crash on it.

    After 128 bytes follow elements of a type, a size and a body; the body of a matrix, type 14, is made of elements,
    padded to 8 bytes, of which short ones hold type and size in one word. Compressed ones have a check sum.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        order = {b"IM": "<", b"MI": ">"}.get(file.read(128)[126:])
        start = 128
        while order is not None and start + 8 <= size:
            file.seek(start)
            kind, length = struct.unpack(order + "II", file.read(8))
            start, place = start + 8 + length, start + 8
            while kind == 14 and place + 8 <= min(start, size):
                file.seek(place)
                part, part_length = struct.unpack(order + "II", file.read(8))
                if not 1 <= part & 0xFFFF <= 18 or (part >> 16) > 4:
                    raise ValueError("an element of an unknown type")
                place += 8 if part >> 16 else 8 + (part_length + 7) // 8 * 8


def _is_hdf5(path: Path) -> bool:
    # MATLAB 7.3 writes HDF5 behind a block of 512 bytes.
    with path.open("rb") as file:
        head = file.read(520)
    return b"\x89HDF\r\n\x1a\n" in (head[:8], head[512:])


def _read_hdf5(path: Path, *, matlab: bool) -> dict[str, np.ndarray]:
    h5py = optional("h5py", "h5py", f"Reading {path.name!r}")
    arrays: dict[str, np.ndarray] = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset) and item.shape is not None and not (matlab and name.startswith("#")):
            values = np.asarray(item[()])
            # MATLAB stores columns first, so that its matrices arrive transposed.
            arrays[name] = _vector(values.T) if matlab else values

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    return arrays


def _vector(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1) if values.ndim == 2 and 1 in values.shape else values
