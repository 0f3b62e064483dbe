"""Result codes, one per lane, and the one place where they become an exception."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np

from dynwarp._compat import concrete
from dynwarp.errors import ConvergenceError


class RESULTS(eqx.Enumeration):
    """Why a lane ended. Each member is the message a person reads; compare with `result == RESULTS.successful`."""

    successful = ""
    max_steps_reached = "The step limit was reached before convergence."
    slow_point = "The search ended at a minimum of the speed that is not a fixed point: a slow point."
    diverged = "The state left every bound."
    non_finite = "A NaN or an infinity appeared."
    singular = "A linear system was singular to working precision."
    nonhyperbolic = "A multiplier lies on the unit circle to working precision."
    inaccurate = "The result misses the accuracy its certificate asks for."
    wall = "A multiplier reached the unit circle, where the loss ends."
    escaped = "The state left the radius that was asked for."
    virtual = "The solution is virtual: its points lie in other regions than the itinerary says."
    time_limit = "The time limit came before anything else."
    vanished = "Everything that was to be measured is exactly zero."
    outside = "A point lies outside of the bounds of the chart."
    saddle = "The only geodesic found is longer than others nearby: it passes a conjugate point."


def describe(result: RESULTS) -> list[str]:
    """The message of every lane, flattened; empty strings where it succeeded. Host only."""
    (codes,) = jax.tree.leaves(result)
    lanes = np.asarray(codes).ravel()
    return [RESULTS[eqx.tree_at(jax.tree.leaves, result, [np.asarray(lane)])] for lane in lanes]


def raise_failed(result: RESULTS, verb: str, remedy: str) -> None:
    """Raises one [`ConvergenceError`][dynwarp.errors.ConvergenceError] that names the failed lanes.

    Under a user's own tracing nothing can be raised; the code then stays in the result and this returns.
    """
    known = concrete(result != RESULTS.successful)
    if known is None or not known.any():
        return
    failed = np.flatnonzero(known)
    messages = describe(result)
    lanes = "; ".join(f"lane {lane}: {messages[lane]}" for lane in failed[:5])
    more = f" and {failed.size - 5} more" if failed.size > 5 else ""
    raise ConvergenceError(
        f"{verb}: {failed.size} of {len(messages)} lanes failed ({lanes}{more}). {remedy} "
        "`throw=False` returns the rest, with a code per lane in `.result`."
    )
