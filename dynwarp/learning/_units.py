"""Which coordinates of a state and which parameters belong to one unit: what local rules need to know of a cell."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynwarp.errors import ModelError
from dynwarp.models import ALRNN, GRU, LRU, LSTM, PLRNN, S5, Elman, LeakyRNN, LinearRNN
from dynwarp.models._diagonal import AbstractDiagonalRecurrence

# Parameters of which row r (modulo the number of units) acts on unit r alone in one step.
_LOCAL = {
    Elman: ("recurrent_weight", "input_weight", "bias"),
    LeakyRNN: ("recurrent_weight", "input_weight", "bias", "dt", "tau"),
    LinearRNN: ("W", "B"),
    GRU: ("recurrent_weight", "input_weight", "bias", "bias_n"),
    LSTM: ("recurrent_weight", "input_weight", "bias"),
    PLRNN: ("A", "W", "h", "input_weight"),
    ALRNN: ("A", "W", "h", "input_weight"),
    LRU: ("nu", "theta", "log_gamma", "B_real", "B_imag"),
    S5: ("log_decay", "frequency", "log_dt", "B_real", "B_imag"),
}
# Parameters of the readout that a linear recurrence keeps with it: no state depends on them.
_IDLE = {LinearRNN: ("A",), LRU: ("C_real", "C_imag", "D"), S5: ("C_real", "C_imag", "D")}
_RECURRENT = {Elman: "recurrent_weight", LeakyRNN: "recurrent_weight", GRU: "recurrent_weight"}
_RECURRENT |= {LSTM: "recurrent_weight", LinearRNN: "W", PLRNN: "W", ALRNN: "W"}


def unit_count(model: Any) -> int:
    """The number of units U; coordinate c U + u belongs to unit u. An LSTM's unit has (h, c), a mode (Re, Im)."""
    halved = isinstance(model, LSTM | AbstractDiagonalRecurrence)
    return model.state_size // 2 if halved else model.state_size


def is_exactly_local(model: Any) -> bool:
    """Whether no unit acts on another, so that the Jacobian is its own restriction to units."""
    return isinstance(model, AbstractDiagonalRecurrence)


def parameter_kinds(model: Any) -> Any:
    """ "local", "idle" or "shared" for every inexact leaf of the model: how its immediate influence may be stored."""
    local, idle, units = _LOCAL.get(type(model), ()), _IDLE.get(type(model), ()), unit_count(model)

    def kind(path, leaf):
        name = getattr(path[0], "name", None)
        if name in idle:
            return "idle"
        rows = name in local and leaf.ndim > 0 and leaf.shape[0] % units == 0
        return "local" if rows else "shared"

    return jax.tree_util.tree_map_with_path(kind, eqx.filter(model, eqx.is_inexact_array))


def recurrent_name(model: Any) -> str | None:
    """The field that holds the additive recurrent weight; None where a cell of this kind has none."""
    return _RECURRENT.get(type(model))


def recurrent_weight(model: Any, caller: str) -> Float[Array, "n n"]:
    """The additive recurrent weight; raises `ModelError` for cells without one."""
    name = recurrent_name(model)
    if name is None:
        raise ModelError(f"{caller}: {type(model).__name__} has no additive recurrent weight that dynwarp knows.")
    return getattr(model, name)


def connections(model: Any, caller: str) -> Array:
    """Entry [i, j] is whether unit j acts on unit i in one step, `(U, U)` booleans."""
    units = unit_count(model)
    if is_exactly_local(model):
        return jnp.eye(units, dtype=bool)
    linked = jnp.any(recurrent_weight(model, caller).reshape(-1, units, units) != 0, axis=0)
    matrix = getattr(model, "A", None)
    if isinstance(model, PLRNN | ALRNN) and matrix is not None and matrix.ndim == 2:
        linked = linked | (matrix != 0)
    return linked


def isolate(model: Any, state: Array, *, keep_diagonal: bool) -> Any:
    """The cell with its units cut from each other: the current from other units is held at its present value.

    `keep_diagonal` says whether a unit still feels itself through the recurrent weight, or through its leak alone.
    """
    units, name = unit_count(model), recurrent_name(model)
    if name is None:
        raise ModelError(
            f"The leak of a cell apart from its recurrent weight is not known for {type(model).__name__}; "
            f"it is for {', '.join(sorted(kind.__name__ for kind in _RECURRENT))}. "
            'e-prop with `propagator="diagonal"` works on any map.'
        )
    weight = getattr(model, name)
    eye = jnp.tile(jnp.eye(units, dtype=bool), (weight.shape[0] // units, 1))
    kept = jnp.where(eye, weight, 0) if keep_diagonal else jnp.zeros_like(weight)
    isolated = eqx.tree_at(lambda m: getattr(m, name), model, kept)
    if isinstance(model, PLRNN | ALRNN) and model.A.ndim == 2:
        isolated = eqx.tree_at(lambda m: m.A, isolated, jnp.diag(jnp.diag(model.A)))
    if (isinstance(model, Elman) and model.form == "pre") or not hasattr(model, "bias"):
        return isolated  # the weights act after the nonlinearity: what is held does not change the slope
    current = (weight - kept) @ state[:units]
    if isinstance(model, GRU):
        isolated = _add_to(isolated, "bias_n", current[2 * units :])
        current = jnp.where(np.arange(3 * units) < 2 * units, current, 0)
    return _add_to(isolated, "bias", current)


def _add_to(model, name, current):
    bias = getattr(model, name)
    value = current if bias is None else bias + current
    return eqx.tree_at(lambda m: getattr(m, name), model, value, is_leaf=lambda x: x is None)
