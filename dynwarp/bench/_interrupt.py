"""Ctrl-C that cannot be lost."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_remembering: list[Callable[[], None]] = []


@contextlib.contextmanager
def remember_interrupts() -> Iterator[Callable[[], None]]:
    """Gives a function that raises `KeyboardInterrupt` if Ctrl-C was pressed since; inside another, that one's.

    Where Ctrl-C meets a callback of the garbage collector, Python prints its exception and goes on; where it meets the
    import of an extension, it comes out as an `ImportError`. Elsewhere it is raised at once, as ever.
    """
    if _remembering:
        yield _remembering[0]
        return
    pressed = False
    before: Any = signal.getsignal(signal.SIGINT)

    def remember(number, frame):
        nonlocal pressed
        pressed = True
        before(number, frame)

    def raise_if_pressed() -> None:
        if pressed:
            raise KeyboardInterrupt

    # Only the main thread may handle signals; and where Ctrl-C is ignored it stays so.
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield raise_if_pressed
        return
    signal.signal(signal.SIGINT, remember)
    _remembering.append(raise_if_pressed)
    try:
        yield raise_if_pressed
    finally:
        _remembering.pop()
        signal.signal(signal.SIGINT, before)
