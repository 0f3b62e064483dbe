"""The names by which a model file knows classes and functions: it can name nothing else, and no import path."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from dynwarp.errors import ArgumentError, CheckpointError

_PACKAGES = ("models", "systems", "tasks", "training")
_LAYERS = (
    "Conv Conv1d Conv2d Dropout Embedding GRUCell GroupNorm Identity LSTMCell Lambda LayerNorm Linear MLP "
    "MultiheadAttention PReLU RMSNorm Sequential"
)
_NUMPY_FUNCTIONS = "tanh sin cos sinh cosh exp log log1p expm1 abs sign square sqrt arctan arcsinh reciprocal negative"
_NN_FUNCTIONS = (
    "relu relu6 sigmoid softplus gelu silu elu selu celu leaky_relu hard_tanh hard_sigmoid hard_silu log_sigmoid "
    "soft_sign mish squareplus softmax log_softmax identity"
)
_user_classes: dict[str, type] = {}
_user_functions: dict[str, Callable] = {}

_Class = TypeVar("_Class", bound=type[eqx.Module])


def register(cls: _Class, name: str | None = None) -> _Class:
    """Lets [`save`][dynwarp.io.save] and [`load`][dynwarp.io.load] know a module class of your own.

    **Arguments:**

    - `cls`: a concrete subclass of `eqx.Module`.
    - `name`: the name in the file, by default that of the class. Keep it when the class moves or is renamed.

    **Returns:** `cls`, so that it serves as a decorator. A class may be registered again under its name, as when a
    notebook cell is run twice.

    **Raises:** `ArgumentError` for what is no concrete module class, or a name that another class holds.

    **Example:**

    >>> import equinox as eqx, dynwarp as dw
    >>> @dw.io.register
    ... class Gain(eqx.Module):
    ...     value: float
    >>> import pathlib, tempfile
    >>> path = dw.io.save(pathlib.Path(tempfile.mkdtemp()) / "gain.dyn", Gain(2.0))
    >>> dw.io.load(path)
    Gain(value=2.0)
    """
    if not (isinstance(cls, type) and issubclass(cls, eqx.Module)) or inspect.isabstract(cls):
        raise ArgumentError(f"register: `cls` must be a concrete subclass of eqx.Module; got {cls!r}.")
    name = name or cls.__name__
    other = _user_classes.get(name)
    if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ArgumentError(f"register: the name {name!r} belongs to {other.__module__}.{other.__qualname__}.")
    _user_classes[name] = cls
    return cls


def register_function(name: str, function: Callable) -> None:
    """Lets model files hold a function of your own, such as an activation, under a name.

    **Arguments:** `name`, in the file; `function`, the very object that is in the model: another lambda with the same
    text is another function. What the file holds is the name, so register it before loading too.

    **Raises:** `ArgumentError` for what cannot be called.

    **Example:**

    >>> import dynwarp as dw
    >>> def cube(x):
    ...     return x**3
    >>> dw.io.register_function("cube", cube)
    """
    if not callable(function):
        raise ArgumentError(f"register_function: `function` must be callable; got {function!r}.")
    _user_functions[name] = function


def class_name(cls: type) -> str | None:
    """The name of a class in a file, None if it has none."""
    for name, known in _user_classes.items():
        if known is cls:
            return f"user.{name}"
    parts = cls.__module__.split(".")
    if parts[0] == "dynwarp" and len(parts) > 1:
        name = f"{parts[1]}.{cls.__name__}"
    elif parts[0] == "equinox":
        name = f"equinox.nn.{cls.__name__}"
    else:
        return None
    return name if _find_class(name) is cls else None


def class_named(name: Any) -> type:
    """The class of a name in a file."""
    cls = _find_class(name) if isinstance(name, str) else None
    if cls is None:
        hint = " Register your own classes with dynwarp.io.register before loading." if str(name)[:5] == "user." else ""
        raise CheckpointError(f"The file holds a module of an unknown class, {name!r}.{hint}")
    return cls


def _find_class(name: str) -> type | None:
    if name.startswith("user."):
        return _user_classes.get(name.removeprefix("user."))
    prefix, _, short = name.rpartition(".")
    if prefix == "equinox.nn":
        found = getattr(eqx.nn, short, None) if short in _LAYERS.split() else None
    elif prefix in _PACKAGES and not short.startswith("_"):
        found = getattr(importlib.import_module(f"dynwarp.{prefix}"), short, None)
    else:
        return None
    is_module = isinstance(found, type) and issubclass(found, eqx.Module) and dataclasses.is_dataclass(found)
    return found if is_module and not inspect.isabstract(found) else None


@functools.cache
def _functions() -> dict[str, Callable]:
    table = {name: getattr(jnp, name) for name in _NUMPY_FUNCTIONS.split()}
    table |= {name: getattr(jax.nn, name) for name in _NN_FUNCTIONS.split()}
    table |= {"lax.tanh": jax.lax.tanh, "lax.logistic": jax.lax.logistic}
    # An MLP is made with an identity of Equinox's own, which has no public name.
    table["equinox.identity"] = inspect.signature(eqx.nn.MLP.__init__).parameters["final_activation"].default
    return table


def function_name(function: Callable) -> str | None:
    """The name of a function in a file, None if it has none."""
    for name, known in _user_functions.items():
        if known is function:
            return f"user.{name}"
    for name, known in _functions().items():
        if known is function:
            return name
    return None


def function_named(name: Any) -> Callable:
    """The function of a name in a file."""
    prefix, _, short = str(name).rpartition(".")
    found = _user_functions.get(short) if prefix == "user" else _functions().get(name)
    if found is None:
        hint = " Register your own with dynwarp.io.register_function before loading." if prefix == "user" else ""
        raise CheckpointError(f"The file holds an unknown function, {name!r}.{hint}")
    return found
