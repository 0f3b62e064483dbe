"""What a benchmark is: a case (a function that makes kernels at sizes), a kernel (what is measured at one size)."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from dynwarp.errors import ArgumentError

Size = Mapping[str, Any]
Suite = Literal["check", "quick", "full", "gpu"]
SUITES: tuple[Suite, ...] = ("check", "quick", "full", "gpu")


def _whole(output: Any) -> Any:
    return output


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """One computation at one size, with everything needed to judge it.

    **Arguments:**

    - `function`, `arguments`: what is measured, `function(*arguments)`, written as a user would call it; models and JAX
      arrays are arguments, never closures.
    - `reference`: returns what `digest(output)` should be, in float64 and by another route where there is one.
    - `tolerance`: on the error relative to the largest entry of each leaf of the reference.
    - `digest`: the part of the output that is compared; arrays or a pytree of arrays.
    - `flops`, `bytes`: the analytic counts of one call; `bytes` counts what must travel at least once.
    - `depth`: the number of steps that must follow each other.
    - `work`, `unit`: how many units (steps, trajectories) one call does; throughput is work per second.
    - `variants`: other ways to the same result, by name, as (function, arguments); timed beside it.
    - `peer_inputs`: NumPy arrays that peers start from.
    - `peer_work`: how many units one call of a peer does, where it is spared the whole; its ratio is then per unit.
    - `peer_tolerance`: at which a peer agrees; peers that integrate or normalise otherwise need a wider one.
    - `compiled`: False for a function that runs on the host, which has no compile phases.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    reference: Callable[[], Any]
    tolerance: float
    digest: Callable[[Any], Any] = _whole
    flops: float = 0.0
    bytes: float = 0.0
    depth: int = 0
    work: float = 1.0
    unit: str = "calls"
    variants: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] = dataclasses.field(default_factory=dict)
    peer_inputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    peer_work: float | None = None
    peer_tolerance: float | None = None
    compiled: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A named benchmark: `make(**size, seed=...)` gives its [`Kernel`][dynwarp.bench.Kernel].

    `make` is called twice with different seeds, so that a kernel which compiles anew for fresh values is found out.
    """

    name: str
    group: str
    summary: str
    make: Callable[..., Kernel]
    sizes: Mapping[str, tuple[Size, ...]]
    peers: tuple[str, ...]


CASES: dict[str, Case] = {}


def case(
    *,
    group: str,
    check: Size,
    quick: Sequence[Size] = (),
    full: Sequence[Size] = (),
    gpu: Sequence[Size] = (),
    peers: Sequence[str] = (),
) -> Callable[[Callable[..., Kernel]], Callable[..., Kernel]]:
    """Registers a function that makes kernels as a benchmark case of its own name.

    **Arguments:**

    - `group`: the heading it stands under.
    - `check`: its smallest size, of a second or less.
    - `quick`, `full`, `gpu`: the sizes of these suites; `full` comes on top of `quick`.
    - `peers`: the names of the files in `benchmarks/peers` that solve the same problem.

    **Example:**

    >>> import jax.numpy as jnp, dynwarp.bench
    >>> @dynwarp.bench.case(group="example", check={"n": 2})
    ... def doubling(*, n, seed):
    ...     "Doubles a vector."
    ...     x = jnp.arange(n) + seed
    ...     return dynwarp.bench.Kernel(
    ...         function=lambda x: 2 * x, arguments=(x,), reference=lambda: 2 * x, tolerance=1e-15
    ...     )
    >>> dynwarp.bench.run_bench(suite="check", names=["doubling"], echo=lambda line: None)["status"]
    'complete'
    >>> del dynwarp.bench.CASES["doubling"]
    """

    def register(make: Callable[..., Kernel]) -> Callable[..., Kernel]:
        name = make.__name__
        if name in CASES:
            raise ArgumentError(f"case: the name {name!r} is taken by another benchmark case.")
        sizes = {"check": (check,), "quick": tuple(quick), "full": (*quick, *full), "gpu": tuple(gpu)}
        summary = (make.__doc__ or name).strip().splitlines()[0]
        CASES[name] = Case(name=name, group=group, summary=summary, make=make, sizes=sizes, peers=tuple(peers))
        return make

    return register


def select(suite: str, names: Sequence[str] = ()) -> list[tuple[Case, Size]]:
    """The cases and sizes of a suite, in order of registration; `names` keeps only these cases (or whole groups).

    **Raises:** `ArgumentError` naming the unknown case or suite.
    """
    from dynwarp.bench import cases

    for module in pkgutil.iter_modules(cases.__path__):
        importlib.import_module(f"{cases.__name__}.{module.name}")
    if suite not in SUITES:
        raise ArgumentError(f"bench: `suite` must be one of {', '.join(map(repr, SUITES))}; got {suite!r}.")
    known = set(CASES) | {each.group for each in CASES.values()}
    for name in names:
        if name not in known:
            raise ArgumentError(f"bench: there is no case {name!r}; there are {', '.join(sorted(CASES))}.")
    chosen = [each for each in CASES.values() if not names or each.name in names or each.group in names]
    return [(each, size) for each in chosen for size in each.sizes[suite]]
