"""Measures one case at one size: phases apart, counts, memory, correctness, variants and peers side by side."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from dynwarp.bench._case import Case, Kernel, Size
from dynwarp.bench._ceilings import roofline
from dynwarp.bench._environment import cache_state
from dynwarp.bench._peers import PeerPool, PeerSkipped
from dynwarp.bench._timing import (
    Timer,
    calls_a_sample,
    count_callbacks,
    count_collectives,
    count_compiles,
    interleave,
    ratio,
    repeated,
    summary,
)

# What JAX raises where a platform is asked for that is not there.
NO_PLATFORM = (RuntimeError, AssertionError)
# Seconds that one call beside an accelerator may take on the processor.
_LONGEST_ON_CPU = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How long to measure: `repetitions` and `seconds` at least of each kernel, `limit` seconds at most of a size.

    `fresh`: whether to call the case again on fresh values and count what is compiled anew.
    """

    repetitions: int
    seconds: float
    limit: float
    fresh: bool = False


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled function with its arguments bound, and what compiling it told."""

    call: Callable[[], Any]
    trace: float | None
    lower: float | None
    compile: float | None
    memory: dict[str, int] | None
    collectives: int
    callbacks: int
    compiles: int
    cache_hits: int


def compile_program(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Program:
    """Traces, lowers and compiles `function(*arguments)`, each timed; arrays are arguments, the rest is static."""
    dynamic, static = eqx.partition(arguments, eqx.is_array)

    def program(dynamic):
        return eqx.filter(function(*eqx.combine(dynamic, static)), eqx.is_array)

    begin = time.perf_counter()
    traced = jax.jit(program).trace(dynamic)
    after_trace = time.perf_counter()
    lowered = traced.lower()
    after_lower = time.perf_counter()
    with count_compiles() as counts:
        compiled = lowered.compile()
    after_compile = time.perf_counter()
    hlo = compiled.as_text() or ""
    return Program(
        call=lambda: compiled(dynamic),
        trace=after_trace - begin,
        lower=after_lower - after_trace,
        compile=after_compile - after_lower,
        memory=_memory(compiled.memory_analysis()),
        collectives=count_collectives(hlo),
        callbacks=count_callbacks(hlo),
        compiles=counts["compiled"],
        cache_hits=counts["cache_hits"],
    )


def _memory(analysis: Any) -> dict[str, int] | None:
    if analysis is None:
        return None
    parts = {
        "arguments": int(analysis.argument_size_in_bytes),
        "outputs": int(analysis.output_size_in_bytes),
        "temporary": int(analysis.temp_size_in_bytes),
    }
    return {**parts, "peak": sum(parts.values()) - int(analysis.alias_size_in_bytes)}


def _prepare(kernel: Kernel, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Program:
    if kernel.compiled:
        return compile_program(function, arguments)
    return Program(lambda: function(*arguments), None, None, None, None, 0, 0, 0, 0)


def relative_error(result: Any, reference: Any) -> float:
    """The largest deviation of any leaf, relative to the largest entry of that leaf; infinite where shapes differ."""
    have = [np.asarray(leaf) for leaf in jax.tree.leaves(result)]
    want = [np.asarray(leaf) for leaf in jax.tree.leaves(reference)]
    if [leaf.shape for leaf in have] != [leaf.shape for leaf in want]:
        return float("inf")
    worst = 0.0
    for a, b in zip(have, want):
        if not a.size:
            continue
        wide = np.complex128 if np.iscomplexobj(b) or np.iscomplexobj(a) else np.float64
        a, b = a.astype(wide), b.astype(wide)
        scale = np.max(np.abs(b))
        error = float(np.max(np.abs(a - b)) / (scale if scale else 1.0))
        worst = max(worst, error if np.isfinite(error) else float("inf"))
    return worst


def measure(
    case: Case,
    size: Size,
    *,
    device: Any,
    ceilings: dict[str, Any],
    pool: PeerPool,
    settings: Settings,
    before: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The record of one case at one size; see [`validate`][dynwarp.bench.validate] for what it holds.

    On an accelerator the same program also runs on the processor, as the peer `cpu`; not where `before`, the record of
    a size that did, tells that this one would take too long.
    """
    start = time.perf_counter()
    with jax.default_device(device):
        kernel = case.make(**size, seed=0)
        program = _prepare(kernel, kernel.function, kernel.arguments)
        output, first = _first(program.call)
        reference = jax.tree.map(np.asarray, kernel.reference())
        timers: dict[str, Timer] = {"dynwarp": _timer(program, first)}
        others: dict[str, dict[str, Any]] = {}
        digest = {"relative_error": _finite(relative_error(kernel.digest(output), reference)), "precision": "default"}
        if device.platform != "cpu" and kernel.compiled and size.get("dtype") == "float32":
            # Accelerators multiply float32 matrices in fewer bits by default: correctness is judged at the highest.
            with jax.default_matmul_precision("highest"):
                exact = compile_program(kernel.function, kernel.arguments)
            output, seconds = _first(exact.call)
            others["highest_precision"] = {"kind": "precision", "first": seconds}
            timers["highest_precision"] = _timer(exact, seconds)
            digest = {
                "relative_error": _finite(relative_error(kernel.digest(output), reference)),
                "precision": "highest",
                "relative_error_default": digest["relative_error"],
            }
        if device.platform != "cpu" and kernel.compiled:
            others["cpu"], timer = _on_cpu(kernel, reference, before)
            if timer is not None:
                timers["cpu"] = timer
        digest["tolerance"] = kernel.tolerance
        digest["passed"] = digest["relative_error"] is not None and digest["relative_error"] <= kernel.tolerance
        for name, (function, arguments) in kernel.variants.items():
            others[name], timer = _variant(kernel, function, arguments, reference)
            if timer is not None:
                timers[name] = timer
        closers = []
        try:
            for name in case.peers:
                if name.endswith("_cuda") and device.platform == "cpu":
                    continue
                others[name], timer, close = _peer(case, kernel, name, size, reference, pool)
                closers.append(close)
                if timer is not None:
                    timers[name] = timer
            samples = interleave(
                timers, repetitions=settings.repetitions, seconds=settings.seconds, limit=settings.limit
            )
        finally:
            for close in closers:
                close()
        if settings.fresh and kernel.compiled and not program.compiles:
            raise RuntimeError("this version of JAX does not tell when it compiles, so that it cannot be counted")
        recompiles = _recompiles(case, size) if settings.fresh else None

    own = samples["dynwarp"]
    steady = summary(own)
    for name, other in others.items():
        if samples.get(name):
            other.update(status="ok", steady=summary(samples[name]), ratio=ratio(samples[name], own))
            if other["kind"] == "peer" and kernel.peer_work is not None:
                share = kernel.work / kernel.peer_work
                other["work"] = kernel.peer_work
                other["ratio"] = {name: value * share for name, value in other["ratio"].items()}
        else:
            other.setdefault("status", "failed")
            other.setdefault("reason", "it failed while it was timed")
    memory = program.memory
    return {
        "case": case.name,
        "group": case.group,
        "size": dict(size),
        "status": "ok",
        "seconds": time.perf_counter() - start,
        "phases": {
            "trace": program.trace,
            "lower": program.lower,
            "compile": program.compile,
            "first": first,
            "steady": steady,
        },
        "throughput": {"unit": kernel.unit, "per_second": kernel.work / steady["median"]},
        "flops": kernel.flops,
        "bytes": kernel.bytes,
        "depth": kernel.depth,
        "memory": memory,
        "peak_memory": None if memory is None else memory["peak"],
        "roofline": roofline(
            steady["median"],
            flops=kernel.flops,
            bytes=kernel.bytes,
            depth=kernel.depth,
            dtype=str(size.get("dtype", "float64")),
            ceilings=ceilings,
        ),
        "collectives": program.collectives,
        "callbacks": program.callbacks,
        "recompiles": recompiles,
        "cache": {"state": cache_state(), "hits": program.cache_hits},
        "digest": digest,
        "peers": others,
    }


def _first(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    output = jax.block_until_ready(call())
    return output, time.perf_counter() - start


def _timer(program: Program, first: float) -> Timer:
    # A first call may pay for what later ones find ready; a long one is taken as it is.
    return repeated(program.call, first if first > 1 else _first(program.call)[1])


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _variant(kernel: Kernel, function, arguments, reference) -> tuple[dict[str, Any], Timer | None]:
    try:
        program = _prepare(kernel, function, arguments)
        output, first = _first(program.call)
    except Exception as error:
        return {"kind": "variant", "status": "failed", "reason": one_line(error)}, None
    record = {
        "kind": "variant",
        "first": first,
        "compile": program.compile,
        "memory": program.memory,
        "relative_error": _finite(relative_error(kernel.digest(output), reference)),
    }
    return record, _timer(program, first)


def _on_cpu(kernel: Kernel, reference, before: dict[str, Any] | None) -> tuple[dict[str, Any], Timer | None]:
    if before is not None:
        work = before["throughput"]["per_second"] * before["phases"]["steady"]["median"]
        growth = max(kernel.work / work, kernel.flops / before["flops"] if before["flops"] else 0.0)
        expected = growth * before["peers"]["cpu"]["steady"]["median"]
        if expected > _LONGEST_ON_CPU:
            reason = f"by the size before it would take about {expected:.0f} s"
            return {"kind": "device", "status": "skipped", "reason": reason}, None
    try:
        host = jax.devices("cpu")[0]
    except NO_PLATFORM:
        return {"kind": "device", "status": "skipped", "reason": "JAX_PLATFORMS leaves it out"}, None
    arrays, rest = eqx.partition(kernel.arguments, eqx.is_array)
    with jax.default_device(host):
        record, timer = _variant(kernel, kernel.function, eqx.combine(jax.device_put(arrays, host), rest), reference)
    return {**record, "kind": "device"}, timer


def _peer(case: Case, kernel: Kernel, name: str, size: Size, reference, pool: PeerPool):
    record: dict[str, Any] = {"kind": "peer"}

    def nothing() -> None:
        return None

    try:
        peer = pool.open(name, case.name, size, kernel.peer_inputs)
    except PeerSkipped as reason:
        return {**record, "status": "skipped", "reason": " ".join(str(reason).split())}, None, nothing
    except Exception as error:
        return {**record, "status": "failed", "reason": one_line(error)}, None, nothing
    try:
        result, record["first"] = peer.first()
        once = record["first"]
        number = calls_a_sample(once if once > 1 else peer.time(1)[0])
    except Exception as error:
        peer.close()
        return {**record, "status": "failed", "reason": one_line(error)}, None, nothing
    record["version"] = peer.version
    if result:
        error = relative_error(result, jax.tree.leaves(reference))
        record["relative_error"] = _finite(error)
        record["agrees"] = error <= (kernel.peer_tolerance or kernel.tolerance)
    return record, lambda: peer.time(number), peer.close


def _recompiles(case: Case, size: Size) -> int:
    """How many programs are compiled when the case is called a second time, as a user calls it, on fresh values."""
    kernels = [case.make(**size, seed=seed) for seed in (1, 2)]
    jax.block_until_ready(kernels[0].function(*kernels[0].arguments))
    with count_compiles() as counts:
        jax.block_until_ready(kernels[1].function(*kernels[1].arguments))
    return counts["compiled"]


def one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
