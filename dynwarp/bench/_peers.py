"""Opens peers in this process or in an environment of their own, behind one face."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, cast

import numpy as np

import dynwarp
from dynwarp.bench import _peer_host
from dynwarp.errors import ArgumentError


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
    - `patience`: seconds after which a process that gives no answer is ended.

    **Raises:** `ArgumentError` where there is no such folder, or no such peer in it to run by an interpreter.
    """

    def __init__(
        self,
        *,
        directory: pathlib.Path | None,
        pythons: Mapping[str, str] | None = None,
        longest_warm_up: float = 10.0,
        patience: float = 600.0,
    ):
        self.directory, self.pythons, self.longest_warm_up = directory, dict(pythons or {}), longest_warm_up
        self.patience = patience
        if directory is not None and not directory.is_dir():
            raise ArgumentError(f"bench: the folder of the peers, {directory}, does not exist.")
        for name in self.pythons if directory is not None else ():
            if not self._file(name).is_file():
                raise ArgumentError(
                    f"bench: there is no peer {name!r}, that is no {self._file(name).name} in {directory}."
                )
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
        path = self._file(name)
        if not path.is_file():
            raise PeerSkipped(f"there is no {path.name} among the peers")
        warm_up = _declared_warm_up(path)
        if warm_up > self.longest_warm_up:
            raise PeerSkipped(f"its warm-up takes about {warm_up:g} s; it runs with --suite full")
        inputs = {key: np.asarray(value) for key, value in inputs.items()}
        if name not in self.pythons:
            return _open_here(name, path, problem, size, inputs)
        process = self._processes.get(name)
        if process is not None and process.silent:
            raise PeerSkipped("it gave no answer earlier in this run")
        if process is None or not process.alive:
            process = self._processes[name] = _Process(self.pythons[name], self.patience)
        return _open_apart(process, path, problem, size, inputs)

    def _file(self, name: str) -> pathlib.Path:
        return pathlib.Path(self.directory or "") / f"peer_{name}.py"


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

    def __init__(self, python: str, patience: float):
        self._patience = patience
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
        self.alive, self.silent = True, False

    def ask(self, **request: Any) -> dict[str, Any]:
        """Its answer; raises `PeerSkipped` or `RuntimeError` with the reason it gives, or because it gives none."""
        line = self._exchange(json.dumps(request) + "\n")
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            self.end()
            wrong = f"answered {line.strip()[:80]!r}" if line else "ended"
            raise RuntimeError(f"the process of this peer {wrong}")
        if "skipped" in reply:
            raise PeerSkipped(reply["skipped"])
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply

    def _exchange(self, request: str) -> str:
        # Its answer, or nothing where it has ended.
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(request)
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            self.silent = not selector.select(self._patience)
        if self.silent:
            self.end()  # what it may still say would be taken for the answer to the next request
            raise RuntimeError(f"the process of this peer gave no answer in {self._patience:g} s")
        return self._stdout.readline()

    def end(self) -> None:
        """Lets it go, by force where it does not."""
        if not self.alive:
            return
        self.alive = False
        for stream in (self._stdin, self._stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout=2)
        finally:  # a second Ctrl-C leaves no process behind either
            if self._child.poll() is None:
                os.killpg(self._child.pid, signal.SIGKILL)  # with what a script around its Python has started
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
