"""Whether a function of the state has kinks, from the program it is traced to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from dynwarp.errors import ModelError
from dynwarp.models import AbstractField
from dynwarp.models._cell import computing_dtype

# Operations that are not twice differentiable in a floating-point argument; the first ones have creases.
_CREASED = {"abs", "max", "min", "clamp", "reduce_max", "reduce_min"}
_KINKED = _CREASED | {"sign", "floor", "ceil", "round", "sort", "argmax"}
# Functions of JAX with creases that come from choices.
_CHOSEN = {"leaky_relu", "hard_tanh", "selu"}
# Computed by way of a maximum or an absolute value, and smooth.
_SMOOTH = {"softplus", "logaddexp", "logaddexp2", "hypot", "i0", "i1"}
# What has no derivative somewhere itself, so that a maximum before it keeps its argument away from there, and what
# takes the crease out by squaring it.
_GUARDED = {"sqrt", "rsqrt", "cbrt", "log", "log1p", "pow", "integer_pow", "square", "acos", "asin", "acosh", "atanh"}
_GUARDED |= {"atan2"}
# What has no derivative of its own, as indices and choices have none.
_CONSTANT = {"stop_gradient", "sign", "floor", "ceil", "round"}
# What hands a crease on as it is; sums and products with constants do so, too.
_AFFINE = {"neg", "copy", "convert_element_type", "reshape", "broadcast_in_dim", "squeeze", "expand_dims", "transpose"}
_AFFINE |= {"slice", "concatenate", "select_n", "reduce_sum"}


def find_kink(fn: Callable[[Any], Any], like: Any) -> str | None:
    """The name of an operation by which `fn` is no C^2 function of its floating-point argument, or None.

    Follows what depends on the argument through the program: a maximum, an absolute value, a choice between branches by
    the sign of it. It is the operations that are judged, so a smooth function put together from pieces, or a softmax
    that subtracts its maximum, is taken for one with a kink.
    """
    return _judge(fn, like, guarded=False)


def find_crease(fn: Callable[[Any], Any], like: Any) -> str | None:
    """The name of an operation by which the first derivative of `fn` jumps, or None: what a user's function is asked.

    A maximum or an absolute value that guards a root, a logarithm or a division is none. Choices between branches are
    not judged, since smooth functions are put together by them, nor what is inside of one or of a loop that ends by
    itself: there solvers choose their steps.
    """
    return _judge(fn, like, guarded=True)


def _judge(fn, like, guarded: bool) -> str | None:
    jaxpr = jax.make_jaxpr(fn)(like).jaxpr
    kink, labels = _search(jaxpr, [""] * len(jaxpr.invars), guarded)
    return kink or _crease(labels)


def _crease(labels: Sequence[str | None]) -> str | None:
    return next((label for label in labels if label), None)


def _search(jaxpr: Any, labels: Sequence[str | None], guarded: bool) -> tuple[str | None, Sequence[str | None]]:
    """The first kinked operation, and the labels of what a program returns from those of its arguments.

    A label is None for what does not depend on the argument, "" for what does, and the name of an operation where its
    crease may still be harmless, because it guards what comes next.
    """
    known = {id(var): label for var, label in zip(jaxpr.invars, labels) if label is not None}
    for equation in jaxpr.eqns:
        inputs = [known.get(id(var)) for var in equation.invars]
        if all(label is None for label in inputs):
            continue
        kink, outputs = _step(equation, inputs, guarded)
        if kink:
            return kink, []
        for var, label in zip(equation.outvars, outputs):
            if label is not None and (_inexact(var) or not guarded):
                known[id(var)] = label
    return None, [known.get(id(var)) for var in jaxpr.outvars]


def _step(equation: Any, inputs: Sequence[str | None], guarded: bool) -> tuple[str | None, Sequence[str | None]]:
    """The same of one operation."""
    name, count = equation.primitive.name, len(equation.outvars)
    smooth, programs = [""] * count, _programs(equation.params)
    called = str(equation.params.get("name", name))
    if name == "custom_jvp_call" and programs:
        called = getattr(getattr(programs[0], "debug_info", None), "func_name", called)
    depends = [label is not None for label in inputs]
    if guarded and (name in _CONSTANT or not any(map(_inexact, equation.outvars))):
        return None, [None] * count
    if called in _SMOOTH or (guarded and name in ("while", "cond")):
        return None, smooth
    if guarded and called in _CHOSEN:
        return None, [called] * count
    if name in (_CREASED if guarded else _KINKED):
        if not _inexact(equation.invars[depends.index(True)]):
            return None, smooth
        return (None, [name] * count) if guarded else (name, [])
    if name == "select_n" and depends[0] and not guarded:
        return "select", []

    crease = _crease(inputs)
    for inner in programs:
        # Loops feed outputs back and branches drop the index: there everything is taken to depend.
        same = len(inner.invars) == len(inputs) and name not in ("scan", "while", "cond")
        labels = inputs if same else [(crease or "") if _inexact(var) or not guarded else None for var in inner.invars]
        kink, outputs = _search(inner, labels, guarded)
        kink = kink or (None if same else _crease(outputs))
        if kink or same:
            return kink, outputs
    if crease is None or programs:
        return None, smooth
    squared = name == "mul" and equation.invars[0] is equation.invars[1]
    if name in _GUARDED or squared or (name == "div" and not inputs[0]):
        return None, smooth
    if name in _AFFINE or (name in ("add", "sub", "mul", "div") and sum(depends) == 1):
        return None, [crease] * count
    return crease, []


def _inexact(var: Any) -> bool:
    return jnp.issubdtype(var.aval.dtype, jnp.inexact)


def _programs(params: dict) -> list[Any]:
    """The programs that an operation calls."""
    found = []
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(each, "jaxpr", each)
            if hasattr(inner, "eqns"):
                found.append(inner)
    return found


def refuse_kinks(model: Any, readout: Any, caller: str) -> None:
    """Raises `ModelError` where the step of a model, or the readout, has a kink."""
    of_field = isinstance(model, AbstractField)
    like = jax.ShapeDtypeStruct((model.state_size,), computing_dtype(model))
    input = jnp.zeros(model.input_size, like.dtype)
    t = jnp.zeros((), like.dtype)

    def step(x):
        return model(t, x[0], x[1]) if of_field else model(x[0], x[1], step=jnp.zeros((), jnp.int32))

    kink, where = find_kink(step, (like, input)), f"the step of {type(model).__name__}"
    if kink is None and readout is not None:
        kink, where = find_kink(readout, like), "the readout"
    if kink is not None:
        raise ModelError(
            f"{caller}: {where} has a kink (the operation {kink!r}), as ReLU has: the surface is then flat in pieces, "
            "and its curvature sits in the creases, where derivatives do not see it. Use a smooth activation such as "
            "jax.nn.softplus or jax.nn.gelu; `smooth=False` allows kinks, for the metric alone, and `smooth=True` "
            "vouches for a smooth function made of pieces."
        )


def refuse_creases(fn: Callable[[Any], Any], x: Any) -> None:
    """Raises `ModelError` where the function of an immersion has a crease."""
    crease = find_crease(fn, jax.ShapeDtypeStruct(x.shape, x.dtype))
    if crease is not None:
        raise ModelError(
            f"Immersion: `fn` has a kink (the operation {crease!r}), as ReLU has: the surface is then bent at creases, "
            "where its curvature sits and derivatives do not see it. Use a smooth function, such as jax.nn.softplus; "
            "`smooth=True` vouches for one whose kinks are never met, `smooth=False` takes the curvature between them."
        )
