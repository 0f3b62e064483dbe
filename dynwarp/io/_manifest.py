"""A model as a tree of plain JSON and a list of arrays, and back.

In the tree, JSON's own scalars stand for themselves; everything else is an object of one entry that names its kind:
`{"module": class, "fields": {...}}`, `{"list": [...]}`, `{"tuple": [...]}`, `{"dict": [[key, value], ...]}`,
`{"array": index}`, `{"function": name}`, `{"complex": [re, im]}`, `{"dtype": name}`, `{"structure": tree}`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dynwarp._compat import TRACED_ERRORS
from dynwarp.errors import CheckpointError, PrecisionError
from dynwarp.io import _registry

# bfloat16 has no npy code: its bytes are stored as uint16.
_DTYPES = {
    **{name: name for name in ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]},
    **{name: name for name in ["float16", "float32", "float64", "complex64", "complex128"]},
    "bfloat16": "uint16",
}
_WIDE = ("int64", "uint64", "float64", "complex128")


@dataclasses.dataclass
class Encoded:
    """The arrays of a model, as they come up in its tree: what is stored, and a record of each for the manifest."""

    stored: list[np.ndarray] = dataclasses.field(default_factory=list)
    records: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def add(self, value: Any, path: str) -> dict[str, Any]:
        record: dict[str, Any] = {"path": path}
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            record |= {"kind": "key", "implementation": str(jax.random.key_impl(value))}
            value = jax.random.key_data(value)
        elif isinstance(value, jax.Array):
            # The precision of a weak scalar is that of what it meets; losing that would widen a float32 model.
            record |= {"kind": "jax", "weak": getattr(value, "weak_type", False) and value.ndim == 0}
        else:
            record |= {"kind": "scalar" if isinstance(value, np.generic) else "numpy"}
        try:
            array = np.asarray(value)
        except TRACED_ERRORS as error:
            raise CheckpointError(f"{path} is traced; save a model outside jit, vmap and grad.") from error
        name = array.dtype.name
        if name not in _DTYPES:
            raise CheckpointError(f"{path} is an array of {array.dtype}, which a model file cannot hold.")
        array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))).reshape(array.shape)
        record |= {"shape": list(array.shape), "dtype": name, "sha256": _digest(array)}
        self.stored.append(array.view(_DTYPES[name]))
        self.records.append(record)
        return {"array": len(self.stored) - 1}


def encode(value: Any, path: str, arrays: Encoded) -> Any:
    """The tree of `value`, which is found at `path`; its arrays go to `arrays`."""
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return arrays.add(value, path)
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    if isinstance(value, eqx.Module):
        return _encode_module(value, path, arrays)
    if type(value) in (list, tuple):
        return {type(value).__name__: [encode(v, f"{path}[{i}]", arrays) for i, v in enumerate(value)]}
    if type(value) is dict:
        for key in value:
            if type(key) not in (bool, int, float, str):
                raise CheckpointError(f"{path} has the key {key!r}; a model file holds keys that are text or numbers.")
        return {"dict": [[key, encode(v, f"{path}[{key!r}]", arrays)] for key, v in value.items()]}
    if isinstance(value, jax.tree_util.PyTreeDef):
        return {"structure": encode(jax.tree.unflatten(value, [0] * value.num_leaves), path, arrays)}
    dtype = _dtype_name(value)
    if dtype is not None:
        return {"dtype": dtype}
    if callable(value) and not isinstance(value, type):
        name = _registry.function_name(value)
        if name is None:
            raise CheckpointError(
                f"{path} is {value!r}, a function that a model file has no name for. Give it one with "
                "dynwarp.io.register_function(name, function)."
            )
        return {"function": name}
    raise CheckpointError(f"{path} is a {type(value).__name__}, which a model file cannot hold: {value!r}.")


def _encode_module(module: eqx.Module, path: str, arrays: Encoded) -> dict[str, Any]:
    cls = type(module)
    name = _registry.class_name(cls)
    if name is None:
        raise CheckpointError(
            f"{path} is a {cls.__module__}.{cls.__qualname__}, a class that a model file has no name for. "
            "Give it one with dynwarp.io.register(cls)."
        )
    # A field with a default that __init__ leaves alone belongs to the class, not to the instance.
    own = [field.name for field in dataclasses.fields(cls) if field.name in vars(module)]  # type: ignore
    fields = {field: encode(getattr(module, field), f"{path}.{field}", arrays) for field in own}
    return {"module": name, "fields": fields}


def _dtype_name(value: Any) -> str | None:
    """The name of a dtype or of a scalar type such as jnp.float32, None for anything else."""
    # jnp.float32 is neither a dtype nor a numpy type, but of a kind of its own.
    scalar_type = type(value) is type(jnp.float32) or (isinstance(value, type) and issubclass(value, np.generic))
    name = jnp.dtype(value).name if scalar_type or isinstance(value, np.dtype) else None
    return name if name in _DTYPES else None


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def restore(stored: np.ndarray, record: dict[str, Any]) -> Any:
    """The array of a record, checked against its hash."""
    path, name, shape = record["path"], record["dtype"], tuple(record["shape"])
    if name not in _DTYPES or stored.dtype != _DTYPES[name] or stored.shape != shape:
        raise CheckpointError(
            f"{path} should be {name}{list(shape)}; the file holds {stored.dtype}{list(stored.shape)}."
        )
    if _digest(stored) != record["sha256"]:
        raise CheckpointError(f"{path} is not what was saved: its content does not match its hash.")
    array = stored.view(jnp.dtype(name))
    kind = record["kind"]
    if kind == "numpy":
        return array
    if kind == "scalar":
        return array[()]
    if kind == "key":
        return jax.random.wrap_key_data(jnp.asarray(array), impl=record["implementation"])
    if kind != "jax":
        raise CheckpointError(f"{path} is an array of an unknown kind, {kind!r}.")
    if name in _WIDE and jnp.zeros(0, float).dtype != jnp.float64:
        raise PrecisionError(
            f"{path} is {name}, and JAX is in single precision, where it would be rounded. First set "
            'jax.config.update("jax_enable_x64", True).'
        )
    return jnp.asarray(array.item() if record["weak"] else array)


def decode(tree: Any, path: str, arrays: list[Any]) -> Any:
    """The value of a tree; `arrays` holds what its indices mean."""
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if not isinstance(tree, dict) or not tree:
        raise CheckpointError(f"{path} is a {type(tree).__name__} where the manifest should name a kind.")
    kind, content = next(iter(tree.items()))
    if kind == "module" and set(tree) == {"module", "fields"}:
        return _decode_module(tree, path, arrays)
    if len(tree) == 1:
        if kind == "array":
            return arrays[content]
        if kind in ("list", "tuple"):
            items = [decode(item, f"{path}[{i}]", arrays) for i, item in enumerate(content)]
            return items if kind == "list" else tuple(items)
        if kind == "dict":
            return {key: decode(item, f"{path}[{key!r}]", arrays) for key, item in content}
        if kind == "function":
            return _registry.function_named(content)
        if kind == "complex":
            return complex(*content)
        if kind == "dtype" and content in _DTYPES:
            return jnp.dtype(content)
        if kind == "structure":
            return jax.tree.structure(decode(content, path, arrays))
    raise CheckpointError(f"{path} is of a kind this version does not know: {kind!r}.")


def _decode_module(tree: dict[str, Any], path: str, arrays: list[Any]) -> eqx.Module:
    cls = _registry.class_named(tree["module"])
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore
    missing = sorted(name for name in names - set(tree["fields"]) if not hasattr(cls, name))
    extra = sorted(set(tree["fields"]) - names)
    if missing or extra:
        raise CheckpointError(
            f"{path} is a {tree['module']} of another version: fields missing from the file {missing}, fields unknown "
            f"to the class {extra}."
        )
    # What __init__ would draw or compute is in the file.
    module = object.__new__(cls)
    for name, field in tree["fields"].items():
        object.__setattr__(module, name, decode(field, f"{path}.{name}", arrays))
    return module
