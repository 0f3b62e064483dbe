"""Opens peers in this process or in an environment of their own, behind one face."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, cast

import numpy as np

import dynwarp
from dynwarp.bench import _peer_host

_REPLY_SECONDS = 600.0


class PeerSkipped(Exception):  # noqa: N818 - not an error: the run goes on without this peer
    """This peer does not take part; the message says why in one line."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """A peer that is ready: `first()` gives its result and the seconds of that call, `time(number)` times calls."""

    version: str
    first: Callable[[], tuple[list[np.ndarray], float]]
    time: Callable[[int], tuple[float, float]]
    close: Callable[[], None]


def default_directory() -> pathlib.Path | None:
    """`benchmarks/peers` of the source checkout this package runs from, or None if it was installed from a wheel."""
    directory = pathlib.Path(dynwarp.__file__).resolve().parents[1] / "benchmarks" / "peers"
    return directory if directory.is_dir() else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeerPool:
    """Where peers come from.

    **Arguments:**

    - `directory`: holds one file `peer_NAME.py` a peer; None means there are none.
    - `pythons`: the Python interpreter, by peer name, of those that run in an environment of their own.
    - `longest_warm_up`: peers whose file declares a longer `WARM_UP`, in seconds, are skipped.
    """

    directory: pathlib.Path | None
    pythons: Mapping[str, str] = dataclasses.field(default_factory=dict)
    longest_warm_up: float = 10.0

    def open(self, name: str, problem: str, size: Mapping[str, Any], inputs: Mapping[str, Any]) -> Peer:
        """The peer `name` set on a problem; raises `PeerSkipped` with the reason where it cannot take part."""
        if self.directory is None:
            raise PeerSkipped("the peers are part of the source checkout; name their folder with --peers")
        path = self.directory / f"peer_{name}.py"
        if not path.is_file():
            raise PeerSkipped(f"there is no {path.name} in {self.directory}")
        warm_up = _declared_warm_up(path)
        if warm_up > self.longest_warm_up:
            raise PeerSkipped(f"its warm-up takes about {warm_up:g} s; it runs with --suite full")
        inputs = {key: np.asarray(value) for key, value in inputs.items()}
        if name in self.pythons:
            return _open_command(self.pythons[name], path, problem, size, inputs)
        return _open_here(name, path, problem, size, inputs)


def _declared_warm_up(path: pathlib.Path) -> float:
    # Read, not imported: the import itself may be what takes long.
    for line in path.read_text().splitlines():
        if line.startswith("WARM_UP = "):
            return float(line.removeprefix("WARM_UP = ").split("#")[0])
    return 0.0


def _open_here(name, path, problem, size, inputs) -> Peer:
    try:
        module = _peer_host.load(path)
    except ImportError as error:
        raise PeerSkipped(
            f"{error}; install it, or give its own environment with --peer-python {name}=PYTHON"
        ) from None
    try:
        call = getattr(module, problem)(dict(size), inputs)
    except NotImplementedError as error:
        raise PeerSkipped(str(error)) from None

    def first():
        start = time.perf_counter()
        result = _peer_host.flatten(call())
        return result, time.perf_counter() - start

    version = str(getattr(module, "VERSION", "unknown"))
    return Peer(version, first, lambda number: _peer_host.timed(call, number), lambda: None)


def _open_command(python: str, path, problem, size, inputs) -> Peer:
    command: Sequence[str] = [python, _peer_host.__file__]
    stack = contextlib.ExitStack()
    with contextlib.ExitStack() as failed:
        failed.callback(stack.close)
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dynwarp-bench-")))
        try:
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        except OSError as error:
            raise PeerSkipped(f"cannot start {python}: {error.strerror}") from None
        stack.callback(_end, child)
        stdin, stdout = cast("IO[str]", child.stdin), cast("IO[str]", child.stdout)

        def ask(**request) -> dict[str, Any]:
            try:
                stdin.write(json.dumps(request) + "\n")
                with selectors.DefaultSelector() as selector:
                    selector.register(stdout, selectors.EVENT_READ)
                    line = stdout.readline() if selector.select(_REPLY_SECONDS) else ""
            except BrokenPipeError:
                line = ""
            if not line:
                raise RuntimeError(f"the process of this peer ended or gave no answer in {_REPLY_SECONDS:g} s")
            reply = json.loads(line)
            if "skipped" in reply:
                raise PeerSkipped(reply["skipped"])
            if "error" in reply:
                raise RuntimeError(reply["error"])
            return reply

        np.savez(folder / "inputs.npz", **inputs)
        built = ask(do="build", path=str(path), problem=problem, size=dict(size), inputs=str(folder / "inputs.npz"))
        failed.pop_all()

    def first():
        seconds = ask(do="first", result=str(folder / "result.npz"))["seconds"]
        with np.load(folder / "result.npz", allow_pickle=False) as file:
            return [file[key] for key in file.files], seconds

    return Peer(built["version"], first, lambda number: tuple(ask(do="time", number=number)["times"]), stack.close)


def _end(child: subprocess.Popen) -> None:
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    try:
        child.wait(timeout=2)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
