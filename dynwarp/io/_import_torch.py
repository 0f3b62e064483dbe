"""Recurrent networks from the state dicts of PyTorch, which need not be installed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._checks import check_choice, check_positive_integer
from dynwarp.errors import CheckpointError
from dynwarp.io import _arrays
from dynwarp.io._parameters import as_parameter
from dynwarp.models import GRU, LSTM, Bidirectional, Elman, Stack

_GATES = {"rnn": 1, "gru": 3, "lstm": 4}
_ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}
_CALLER = "import_torch"


def import_torch(
    path: str | os.PathLike,
    kind: Literal["rnn", "gru", "lstm"],
    *,
    nonlinearity: Literal["tanh", "relu"] = "tanh",
    layer: int | None = None,
    prefix: str | None = None,
    dtype: Any = None,
) -> Elman | GRU | LSTM | Stack | Bidirectional:
    """A network from the state dict of `torch.nn.RNN`, `GRU` or `LSTM`, or of their cells.

    **Arguments:**

    - `path`: a safetensors file (`safetensors.torch.save_file(module.state_dict(), path)`) or an npz file with the same
      names. Pickled files (pt, pth) are not read, because they can run code.
    - `kind`: the class of the module.
    - `nonlinearity`: of an RNN; the state dict does not tell.
    - `layer`: one layer only; all of them if None.
    - `prefix`: what precedes `weight_ih_l0`, such as `"encoder.rnn."`; found if only one is there.
    - `dtype`: of the parameters; as in the file if None.

    **Returns:** [`Elman`][dynwarp.models.Elman], [`GRU`][dynwarp.models.GRU] or [`LSTM`][dynwarp.models.LSTM];
    a [`Stack`][dynwarp.models.Stack] of them for several layers; a [`Bidirectional`][dynwarp.models.Bidirectional] of
    two for one bidirectional layer. The biases are joined: b_ih + b_hh, but for the new gate of a GRU, where b_hh stays
    apart as `bias_n`. The state of an LSTM is [h, c]. Dropout between layers is not in a state dict.

    **Raises:** `CheckpointError` for a file that cannot be read, names that are missing (all of them are named), shapes
    that do not fit the kind, projected LSTMs, and bidirectional networks of several layers, which are to be imported
    layer by layer. `PrecisionError` for float64 where JAX is in single precision; `NonFiniteError` for NaN;
    `MissingDependencyError` without safetensors.

    **Source:** the formulas in the documentation of the three classes.

    **Example:**

    >>> import numpy as np, pathlib, tempfile, dynwarp as dw
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rnn.npz"
    >>> one = np.ones(3)
    >>> np.savez(path, weight_ih_l0=np.ones((3, 2)), weight_hh_l0=np.eye(3), bias_ih_l0=one, bias_hh_l0=one)
    >>> dw.io.import_torch(path, kind="rnn").bias.tolist()
    [2.0, 2.0, 2.0]
    """
    check_choice(kind, "kind", tuple(_GATES), caller=_CALLER)
    check_choice(nonlinearity, "nonlinearity", ("tanh", "relu"), caller=_CALLER)
    weights = _read(path)
    weights = _without_prefix(weights, prefix, str(path))
    weights = {f"{name}_l0" if re.fullmatch(r"(weight|bias)_[ih]h", name) else name: v for name, v in weights.items()}

    layers = sorted({int(found[1]) for name in weights if (found := re.fullmatch(r"weight_ih_l(\d+)", name))})
    if layer is not None:
        layer = check_positive_integer(layer, "layer", minimum=0, caller=_CALLER)
        if layer not in layers:
            raise CheckpointError(f"{_CALLER}: {str(path)!r} has layers {layers}; got layer={layer}.")
        layers = [layer]
    projected = sorted(name for name in weights if name.startswith("weight_hr_"))
    if projected:
        raise CheckpointError(f"{_CALLER}: LSTMs with projections (proj_size) are not supported; found {projected}.")

    cells = [_cell(weights, f"_l{index}", kind, nonlinearity, dtype) for index in layers]
    if not any(name.endswith("_reverse") for index in layers for name in weights if f"_l{index}_" in name):
        return cells[0] if len(cells) == 1 else Stack(cells)
    if len(cells) > 1:
        raise CheckpointError(
            f"{_CALLER}: {str(path)!r} is bidirectional with layers {layers}, each of which reads both directions of "
            "the one below: import them one by one with `layer`."
        )
    return Bidirectional(cells[0], _cell(weights, f"_l{layers[0]}_reverse", kind, nonlinearity, dtype))


def _read(path: str | os.PathLike) -> dict[str, np.ndarray]:
    suffix = Path(path).suffix.lower()
    if suffix in (".pt", ".pth", ".bin", ".ckpt"):
        raise CheckpointError(
            f"{_CALLER}: {str(path)!r} is a pickle, which can run code and is not read. In PyTorch, write it anew with "
            "safetensors.torch.save_file(module.state_dict(), path)."
        )
    if suffix not in (".safetensors", ".npz"):
        raise CheckpointError(f"{_CALLER}: {str(path)!r}: unknown extension {suffix!r}; known are .safetensors, .npz.")
    file = _arrays.existing_file(path, error=CheckpointError)
    if suffix == ".npz":
        return _arrays.read_arrays(file, error=CheckpointError)
    safetensors = _arrays.optional("safetensors.numpy", "safetensors", f"Reading {file.name!r}")
    with _arrays.explained(file, CheckpointError):
        return safetensors.load_file(file)


def _without_prefix(weights: dict[str, np.ndarray], prefix: str | None, path: str) -> dict[str, np.ndarray]:
    pattern = re.compile(r"(.*?)weight_ih(_l0)?")
    prefixes = sorted({found[1] for name in weights if (found := pattern.fullmatch(name))})
    if prefix is None and len(prefixes) > 1:
        raise CheckpointError(f"{_CALLER}: {path!r} holds several networks; choose with `prefix` among {prefixes}.")
    chosen: str = (*prefixes, "")[0] if prefix is None else prefix
    if chosen not in prefixes:
        raise CheckpointError(f"{_CALLER}: {path!r} lacks {chosen + 'weight_ih_l0'!r}; it holds {_listed(weights)}.")
    return {name.removeprefix(chosen): value for name, value in weights.items() if name.startswith(chosen)}


def _cell(weights: dict[str, np.ndarray], suffix: str, kind: str, nonlinearity: str, dtype: Any) -> Elman | GRU | LSTM:
    biases = [f"bias_ih{suffix}", f"bias_hh{suffix}"]
    use_bias = any(name in weights for name in biases)
    names = [f"weight_ih{suffix}", f"weight_hh{suffix}"] + (biases if use_bias else [])
    missing = [name for name in names if name not in weights]
    if missing:
        raise CheckpointError(
            f"{_CALLER}: the state dict lacks {', '.join(map(repr, missing))}; it holds {_listed(weights)}."
        )
    parameters = [as_parameter(weights[name], name, dtype, _CALLER) for name in names]
    w_ih, w_hh = parameters[:2]
    hidden = w_hh.shape[-1] if w_hh.ndim else 0
    rows = _GATES[kind] * hidden
    input_size = w_ih.shape[-1] if w_ih.ndim == 2 else "input_size"
    expected = [(rows, input_size), (rows, hidden), (rows,), (rows,)]
    for name, value, shape in zip(names, parameters, expected):
        if value.shape != shape:
            fits = [k for k, gates in _GATES.items() if w_hh.shape == (gates * hidden, hidden)]
            hint = f" A recurrent weight of shape {w_hh.shape} is that of kind={fits[0]!r}." if fits else ""
            raise CheckpointError(
                f"{_CALLER}: {name!r} of a {kind} with {hidden} units must have shape {shape}; got {value.shape}.{hint}"
            )

    cls, options = {"rnn": (Elman, {"activation": _ACTIVATIONS[nonlinearity]}), "gru": (GRU, {}), "lstm": (LSTM, {})}[
        kind
    ]
    fields = {"input_weight": w_ih, "recurrent_weight": w_hh}
    if use_bias:
        b_ih, b_hh = parameters[2:]
        if kind == "gru":
            # The reset gate acts on b_hh of the new gate, so that this one stays apart.
            joint = 2 * hidden
            fields |= {"bias": b_ih.at[:joint].add(b_hh[:joint]), "bias_n": b_hh[joint:]}
        else:
            fields |= {"bias": b_ih + b_hh}
    # Abstractly, so that no weights are drawn only to be replaced.
    cell = eqx.filter_eval_shape(
        lambda: cls(input_size, hidden, use_bias=use_bias, key=jax.random.key(0), **options)  # type: ignore
    )
    return eqx.tree_at(lambda c: [getattr(c, field) for field in fields], cell, [*fields.values()])


def _listed(weights: dict[str, np.ndarray]) -> str:
    names = sorted(weights)
    return ", ".join(map(repr, names[:12])) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
