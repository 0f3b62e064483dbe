"""Timing several ways to one result against each other, and counting what a program compiles to."""

from __future__ import annotations

import contextlib
import gc
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.monitoring
import numpy as np

# What one sample should at least take, so that the clock and the dispatch of a peer do not dominate it.
_SAMPLE_SECONDS = 2e-3
_MOST_ROUNDS = 200

Timer = Callable[[], tuple[float, float]]


def interleave(
    timers: Mapping[str, Timer], *, repetitions: int, seconds: float, limit: float
) -> dict[str, list[tuple[float, float]]]:
    """Runs the timers in turn, round after round, so that each sees the same machine.

    A round begins where another has ended and goes back and forth by turns, so that none always finds the caches as the
    same other has left them.

    Ends when the first timer has run `repetitions` times and for `seconds` in all, or when `limit` seconds are over and
    each has run twice. A timer that has used a third of the limit takes no part in later rounds, one that used all of
    it in its first round not even in the second. One that fails is dropped with its samples, unless it is the first,
    whose error passes through.

    **Returns:** for each name its (wall, processor) seconds, one a round, of the first rounds: who leaves does not
    come back.
    """
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in timers}
    used = dict.fromkeys(timers, 0.0)
    own = next(iter(timers))
    start = time.perf_counter()
    gc.collect()
    gc.disable()
    try:
        for index in range(_MOST_ROUNDS):
            for name in _order(list(timers), index):
                if name != own and used[name] > (limit if len(samples[name]) == 1 else limit / 3):
                    continue
                begin = time.perf_counter()
                try:
                    samples[name].append(timers[name]())
                except Exception:
                    if name == own:
                        raise
                    samples[name] = []  # half a peer is no peer
                    used[name] = math.inf
                used[name] += time.perf_counter() - begin
            rounds = len(samples[own])
            over = time.perf_counter() - start > limit and rounds >= 2
            if over or (rounds >= repetitions and used[own] >= seconds):
                break
    finally:
        gc.enable()
    return samples


def _order(names: list[str], index: int) -> list[str]:
    """Rotated by one every second round, backwards in between: all places, and as good as all neighbours, alike."""
    shift = index // 2 % len(names)
    order = names[shift:] + names[:shift]
    return order[::-1] if index % 2 else order


def summary(samples: list[tuple[float, float]]) -> dict[str, Any]:
    """Minimum, median and quartiles of the wall seconds, and the median of the processor seconds."""
    wall, processor = np.array(samples).T
    lower, median, upper = np.percentile(wall, (25, 50, 75))
    return {
        "repetitions": len(wall),
        "minimum": float(wall.min()),
        "median": float(median),
        "lower_quartile": float(lower),
        "upper_quartile": float(upper),
        "iqr": float(upper - lower),
        "processor": float(np.median(processor)),
    }


def ratio(peer: list[tuple[float, float]], own: list[tuple[float, float]]) -> dict[str, float]:
    """Peer time over own time, round by round: the median and the quartiles. Above 1 the peer is slower."""
    rounds = min(len(peer), len(own))
    ratios = np.array(peer)[:rounds, 0] / np.array(own)[:rounds, 0]
    low, median, high = np.percentile(ratios, (25, 50, 75))
    return {"median": float(median), "low": float(low), "high": float(high)}


def calls_a_sample(once: float) -> int:
    """How many calls of `once` seconds make a sample that the clock can tell from the next."""
    return max(1, round(_SAMPLE_SECONDS / max(once, 1e-7)))


def repeated(call: Callable[[], Any], once: float) -> Timer:
    """A timer of `call`, which took `once` seconds: several calls a sample where one is too short to time."""
    number = calls_a_sample(once)

    def timer() -> tuple[float, float]:
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(number):
            jax.block_until_ready(call())
        return (time.perf_counter() - wall) / number, (time.process_time() - processor) / number

    return timer


@contextlib.contextmanager
def count_compiles() -> Iterator[dict[str, int]]:
    """Counts, while it is open, the programs handed to the compiler and those found in the persistent cache."""
    counts = {"compiled": 0, "cache_hits": 0}

    def on_duration(event: str, duration_secs: float, **_: Any) -> None:
        counts["compiled"] += event == "/jax/core/compile/backend_compile_duration"

    def on_event(event: str, **_: Any) -> None:
        counts["cache_hits"] += event == "/jax/compilation_cache/cache_hits"

    jax.monitoring.register_event_duration_secs_listener(on_duration)
    jax.monitoring.register_event_listener(on_event)
    try:
        yield counts
    finally:
        jax.monitoring.unregister_event_duration_listener(on_duration)
        jax.monitoring.unregister_event_listener(on_event)


_COLLECTIVE = re.compile(
    r"\b(?:all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|collective-broadcast)(?:-start)?\("
)
_CALLBACK = re.compile(r'custom_call_target="[^"]*(?:python|callback)[^"]*"')


def count_collectives(hlo: str) -> int:
    """The operations of an HLO text in which devices wait for each other."""
    return len(_COLLECTIVE.findall(hlo))


def count_callbacks(hlo: str) -> int:
    """The calls of an HLO text back into Python; programs that have any are never cached."""
    return len(_CALLBACK.findall(hlo))
