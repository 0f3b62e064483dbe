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
from collections.abc import Callable, Mapping
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


class PeerPool:
    """Where peers come from. A peer with an environment of its own is one process for all cases: `close` ends them.

    **Arguments:**

    - `directory`: holds one file `peer_NAME.py` a peer; None means there are none.
    - `pythons`: the Python interpreter, by peer name, of those that run in an environment of their own.
    - `longest_warm_up`: peers whose file declares a longer `WARM_UP`, in seconds, are skipped.
    """

    def __init__(
        self,
        *,
        directory: pathlib.Path | None,
        pythons: Mapping[str, str] | None = None,
        longest_warm_up: float = 10.0,
    ):
        self.directory, self.pythons, self.longest_warm_up = directory, dict(pythons or {}), longest_warm_up
        self._processes: dict[str, _Process] = {}

    def __enter__(self) -> PeerPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes."""
        while self._processes:
            self._processes.popitem()[1].end()

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
        if name not in self.pythons:
            return _open_here(name, path, problem, size, inputs)
        process = self._processes.get(name)
        if process is None or not process.alive:
            process = self._processes[name] = _Process(self.pythons[name])
        return _open_apart(process, path, problem, size, inputs)


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


class _Process:
    """A Python that answers one request a line."""

    def __init__(self, python: str):
        try:
            self._child = subprocess.Popen(
                [python, _peer_host.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
                start_new_session=True,  # Ctrl-C is for the run, which then ends its peers
            )
        except OSError as error:
            raise PeerSkipped(f"cannot start {python}: {error.strerror}") from None
        self._stdin, self._stdout = cast("IO[str]", self._child.stdin), cast("IO[str]", self._child.stdout)
        self.alive = True

    def ask(self, **request: Any) -> dict[str, Any]:
        """Its answer; raises `PeerSkipped` or `RuntimeError` with the reason it gives, or because it gives none."""
        try:
            self._stdin.write(json.dumps(request) + "\n")
            with selectors.DefaultSelector() as selector:
                selector.register(self._stdout, selectors.EVENT_READ)
                line = self._stdout.readline() if selector.select(_REPLY_SECONDS) else ""
        except BrokenPipeError:
            line = ""
        if not line:
            self.end()  # what it may still say would be taken for the answer to the next request
            raise RuntimeError(f"the process of this peer ended or gave no answer in {_REPLY_SECONDS:g} s")
        reply = json.loads(line)
        if "skipped" in reply:
            raise PeerSkipped(reply["skipped"])
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply

    def end(self) -> None:
        """Lets it go, by force where it does not."""
        if not self.alive:
            return
        self.alive = False
        for stream in (self._stdin, self._stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        try:
            self._child.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def _open_apart(process: _Process, path, problem, size, inputs) -> Peer:
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dynwarp-bench-")))
        np.savez(folder / "inputs.npz", **inputs)
        built = process.ask(
            do="build", path=str(path), problem=problem, size=dict(size), inputs=str(folder / "inputs.npz")
        )
        files = stack.pop_all()
    ask = process.ask

    def first():
        seconds = ask(do="first", result=str(folder / "result.npz"))["seconds"]
        with np.load(folder / "result.npz", allow_pickle=False) as file:
            return [file[key] for key in file.files], seconds

    return Peer(built["version"], first, lambda number: tuple(ask(do="time", number=number)["times"]), files.close)
