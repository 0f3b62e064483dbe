"""`dynwarp bench`: the arguments and what they do. Imports nothing heavy, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Sequence

from dynwarp.bench._interrupt import remember_interrupts
from dynwarp.errors import ArgumentError, DeviceError, DynwarpError

_DEFAULT_OUT = pathlib.Path("runs") / "bench"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `dynwarp bench` to a parser."""
    parser.add_argument(
        "--suite", choices=("quick", "full", "gpu"), default="quick", help="which sizes (default: quick)"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="run the smallest size of each case and fail on wrong results, a bad schema, a second compile or a "
        "collective; never on seconds",
    )
    parser.add_argument("--compare", nargs=2, metavar=("A.json", "B.json"), help="ratios of two results of one machine")
    parser.add_argument("--case", nargs="+", default=[], metavar="NAME", help="only these cases or groups")
    parser.add_argument("--list", action="store_true", help="list the cases and their sizes")
    parser.add_argument(
        "--device",
        choices=("cpu", "gpu"),
        help="where to run (default: what JAX picks; an accelerator for --suite gpu)",
    )
    parser.add_argument("--cores", type=int, metavar="N", help="pin the run, peers too, to N processor cores")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="start no further case after this time")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        metavar="DIR",
        help=f"where results go (default: {_DEFAULT_OUT}; with --check: nowhere)",
    )
    parser.add_argument("--peers", type=pathlib.Path, metavar="DIR", help="the folder of the peers")
    parser.add_argument(
        "--peer-python",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="run the peer NAME by this interpreter, in its own environment; may be repeated",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs `dynwarp bench` and returns the exit code.

    0 fine, 1 a failure, 2 a wrong argument, 130 interrupted, 141 where nobody reads on.
    """
    try:
        with remember_interrupts() as raise_if_pressed:
            try:
                return _run(arguments)
            except Exception:
                raise_if_pressed()
                raise
    except DynwarpError as error:
        if getattr(arguments, "debug", False):
            raise
        _say(f"dynwarp bench: {str(error).removeprefix('bench: ')}", sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our lines has left, as `head` does. What Python flushes at its end must go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if getattr(arguments, "debug", False):
            raise
        where = error.filename or "the output"
        _say(f"dynwarp bench: cannot write {where}: {error.strerror or error}", sys.stderr)
        return 1
    except KeyboardInterrupt:
        _say("dynwarp bench: interrupted", sys.stderr)
        return 130


def _run(arguments: argparse.Namespace) -> int:
    if arguments.compare:
        return _compare(*arguments.compare)
    if arguments.list:
        return _list(arguments.case)
    return _bench(arguments)


def main(argv: Sequence[str] | None = None) -> int:
    """The same as a program of its own: `python -m dynwarp.bench`."""
    parser = argparse.ArgumentParser(prog="dynwarp bench", description="How fast dynwarp is here, beside its peers.")
    add_arguments(parser)
    return run(parser.parse_args(argv))


def _say(line: str, stream=None) -> None:
    # Looked up at each call: a captured or redirected stream is honoured.
    stream = sys.stdout if stream is None else stream
    stream.write(line + "\n")
    stream.flush()


def _compare(first: str, second: str) -> int:
    from dynwarp.bench._compare import compare, read_document

    _say(compare(read_document(first), read_document(second)).to_text())
    return 0


def _list(names: Sequence[str]) -> int:
    from dynwarp.bench._case import SUITES, select

    cases = {case.name: case for suite in SUITES for case, _ in select(suite, names)}
    for case in cases.values():
        counts = ", ".join(f"{suite} {len(case.sizes[suite])}" for suite in SUITES)
        _say(f"{case.group}/{case.name}: {case.summary} (sizes: {counts}; peers: {', '.join(case.peers) or 'none'})")
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    pythons = {}
    for pair in arguments.peer_python:
        name, equals, python = pair.partition("=")
        if not (name and equals and python):
            raise ArgumentError(f"bench: `--peer-python` must be NAME=PYTHON; got {pair!r}.")
        pythons[name] = python
    _pin(arguments.cores)
    # Programs with callbacks are never cached; both are read when JAX and Equinox are first imported.
    os.environ.setdefault("EQX_ON_ERROR", "nan")
    if arguments.device == "cpu":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")

    import jax

    from dynwarp.bench._runner import gate, run_bench, write_report

    jax.config.update("jax_enable_x64", True)
    if not arguments.check:
        jax.config.update(
            "jax_enable_compilation_cache", False
        )  # else the compile phase would tell how old the cache is
    out = arguments.out if arguments.out or arguments.check else _DEFAULT_OUT
    document = run_bench(
        suite="check" if arguments.check else arguments.suite,
        names=arguments.case,
        device=arguments.device,
        out=out,
        budget=arguments.budget,
        peers=arguments.peers,
        peer_pythons=pythons,
        echo=_say,
    )
    if out is not None and not arguments.check:
        write_report(out, echo=_say)
    if document["status"] == "interrupted":
        return 130
    problems = gate(document)
    for problem in problems:
        _say(f"dynwarp bench: {problem}", sys.stderr)
    if arguments.check and not problems:
        _say(f"{len(document['results'])} cases hold in {document['seconds']:.0f} s.")
    return 1 if problems else 0


def _pin(count: int | None) -> None:
    if count is None:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise DeviceError("bench: `--cores` needs a system that can pin a process to cores, such as Linux.")
    allowed = sorted(os.sched_getaffinity(0))
    if not 1 <= count <= len(allowed):
        raise ArgumentError(f"bench: `--cores` must be from 1 to {len(allowed)}; got {count}.")
    os.sched_setaffinity(0, allowed[:count])
