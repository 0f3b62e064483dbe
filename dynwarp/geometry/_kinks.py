"""Whether a function of the state has kinks, from the program it is traced to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dynwarp.errors import ModelError
from dynwarp.models import AbstractField
from dynwarp.models._cell import computing_dtype

# Operations that are not twice differentiable in a floating-point argument.
_KINKED = {"abs", "max", "min", "clamp", "sign", "floor", "ceil", "round", "sort", "reduce_max", "reduce_min", "argmax"}
# Computed by way of a maximum, and smooth.
_SMOOTH = {"softplus"}


def find_kink(fn: Callable[[Any], Any], like: Any) -> str | None:
    """The name of an operation by which `fn` is no C^2 function of its floating-point argument, or None.

    Follows what depends on the argument through the program: a maximum, an absolute value, a choice between branches by
    the sign of it. It is the operations that are judged, so a smooth function put together from pieces, or a softmax
    that subtracts its maximum, is taken for one with a kink.
    """
    program = jax.make_jaxpr(fn)(like)
    return _search(program.jaxpr, [True] * len(program.jaxpr.invars))


def _search(jaxpr: Any, depends: list[bool]) -> str | None:
    """The first kinked operation on what depends on the arguments flagged."""
    tainted = {id(var) for var, flag in zip(jaxpr.invars, depends) if flag}
    for equation in jaxpr.eqns:
        flags = [id(var) in tainted for var in equation.invars]
        if not any(flags):
            continue
        name = equation.primitive.name
        if name in _KINKED and jnp.issubdtype(equation.invars[flags.index(True)].aval.dtype, jnp.inexact):
            return name
        if name == "select_n" and flags[0]:
            return "select"
        if str(equation.params.get("name", name)) not in _SMOOTH:
            for inner in _programs(equation.params):
                # Loops feed outputs back and branches drop the index: there everything is taken to depend.
                same = len(inner.invars) == len(flags) and name not in ("scan", "while", "cond")
                kink = _search(inner, flags if same else [True] * len(inner.invars))
                if kink is not None:
                    return kink
        tainted.update(id(var) for var in equation.outvars)
    return None


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
