"""Piecewise-linear networks from the arrays that other libraries save."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import numpy as np

from dynwarp._checks import check_choice
from dynwarp.errors import ArgumentError, CheckpointError
from dynwarp.io import _arrays
from dynwarp.io._parameters import as_parameter
from dynwarp.models import ALRNN, PLRNN, MeanCentredPLRNN, ShallowPLRNN

Kind = Literal["plrnn", "mean_centred", "shallow", "clipped_shallow", "alrnn"]
_CALLER = "import_plrnn"
_DEEP, _SHALLOW = ("A", "W", "h"), ("A", "W1", "W2", "h1", "h2")


def import_plrnn(
    path: str | os.PathLike, *, kind: Kind | None = None, relu_size: int | None = None, dtype: Any = None
) -> PLRNN | MeanCentredPLRNN | ShallowPLRNN | ALRNN:
    """A piecewise-linear network from a file of its parameters.

    **Arguments:**

    - `path`: an npz, mat, h5 or json file, or a folder of npy files, with arrays A, W, h or A, W1, W2, h1, h2, and C
      if it has inputs. A is the diagonal, (M,), or the matrix, (M, M). Other arrays, such as an observation matrix, are
      left out.
    - `kind`: found from the names if None. What they do not tell is whether a shallow network is clipped, whether A, W,
      h are mean-centred, and whether only some coordinates have a ReLU.
    - `relu_size`: of an AL-RNN, the number P of ReLUs; its arrays do not tell it. Given, A, W, h are an AL-RNN's.
    - `dtype`: of the parameters; as in the file if None (json: float64).

    **Returns:** [`PLRNN`][dynwarp.models.PLRNN], [`MeanCentredPLRNN`][dynwarp.models.MeanCentredPLRNN],
    [`ShallowPLRNN`][dynwarp.models.ShallowPLRNN] or [`ALRNN`][dynwarp.models.ALRNN].

    **Raises:** `CheckpointError` for a file that cannot be read or lacks arrays, all of which are named; for A, W, h
    that look like an AL-RNN's, with a diagonal in W, where neither `kind` nor `relu_size` says what they are;
    `ArgumentError` where `kind` and `relu_size` disagree; `ShapeError` where the shapes do not fit; `NonFiniteError`
    for NaN; `PrecisionError` for float64 where JAX is in single precision.

    **Example:**

    >>> import numpy as np, pathlib, tempfile, dynwarp as dw
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.npz"
    >>> np.savez(path, A=np.full(3, 0.9), W=np.eye(3), h=np.zeros(3))
    >>> dw.io.import_plrnn(path, relu_size=1).relu_size
    1
    """
    if kind is not None:
        check_choice(kind, "kind", get_args(Kind), caller=_CALLER)
    arrays = _read(Path(path))
    if kind is None:
        kind = _infer(arrays, relu_size, str(path))
    if (relu_size is None) == (kind == "alrnn"):
        wanted = "needs `relu_size`, the number of its ReLUs" if relu_size is None else "takes no `relu_size`"
        raise ArgumentError(f"{_CALLER}: kind={kind!r} {wanted}; got relu_size={relu_size!r}.")

    names = _SHALLOW if kind in ("shallow", "clipped_shallow") else _DEEP
    missing = [name for name in names if name not in arrays]
    if missing:
        raise CheckpointError(
            f"{_CALLER}: {str(path)!r} lacks {', '.join(missing)} for kind={kind!r}; it holds "
            f"{', '.join(sorted(arrays)) or 'nothing'}."
        )
    given = {name: as_parameter(arrays[name], name, dtype, _CALLER) for name in (*names, "C") if name in arrays}
    given = _shaped(given)
    options: dict[str, Any] = {name: given[name] for name in names} | {"input_weight": given.get("C")}
    if kind == "alrnn":
        return ALRNN.from_parameters(**options, relu_size=relu_size)  # type: ignore
    if names is _SHALLOW:
        return ShallowPLRNN.from_parameters(**options, clipped=kind == "clipped_shallow")
    return (PLRNN if kind == "plrnn" else MeanCentredPLRNN).from_parameters(**options)


def _infer(arrays: dict[str, np.ndarray], relu_size: int | None, path: str) -> Kind:
    if relu_size is not None:
        return "alrnn"
    if "W1" in arrays or "W2" in arrays:
        return "shallow"
    if "W" not in arrays:
        raise CheckpointError(
            f"{_CALLER}: expected arrays A, W, h or A, W1, W2, h1, h2; {path!r} holds "
            f"{', '.join(sorted(arrays)) or 'nothing'}."
        )
    if np.ndim(arrays["W"]) == 2 and np.any(np.diagonal(arrays["W"])):
        raise CheckpointError(
            f"{_CALLER}: the W in {path!r} has a diagonal, as that of an AL-RNN has: give its `relu_size`, or say "
            "kind='plrnn'."
        )
    return "plrnn"


def _read(path: Path) -> dict[str, np.ndarray]:
    if path.is_dir():
        files = sorted(path.glob("*.npy"))
        return {file.stem: _arrays.read_arrays(file, error=CheckpointError)[file.stem] for file in files}
    file = _arrays.existing_file(path, error=CheckpointError)
    if file.suffix.lower() != ".json":
        return _arrays.read_arrays(file, error=CheckpointError)
    with _arrays.explained(file, CheckpointError):
        content = json.loads(file.read_text(encoding="utf-8"))
        return {name: np.asarray(content[name]) for name in (*_DEEP, *_SHALLOW, "C") if name in content}


def _shaped(given: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Vectors saved as columns or rows, and matrices of one row or column saved as vectors, in their proper shapes."""
    vectors = {name: given[name].reshape(-1) for name in ("h", "h1", "h2") if name in given and 1 in given[name].shape}
    given = given | vectors
    m = given["h" if "h" in given else "h1"].size
    hidden = given["h2"].size if "h2" in given else m
    shapes = {"W": (m, m), "W1": (m, hidden), "W2": (hidden, m)}
    for name, shape in shapes.items():
        if name in given and given[name].ndim == 1 and 1 in shape and given[name].size == max(shape):
            given[name] = given[name].reshape(shape)
    if given["A"].shape in ((m, 1), (1, m)):
        given["A"] = given["A"].reshape(-1)
    if "C" in given and given["C"].ndim == 1:
        given["C"] = given["C"].reshape(m, -1) if given["C"].size % m == 0 else given["C"]
    return given
