"""Signals that end a script wait while it starts a process, so that none ends it before it knows the process that it must end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """Those of ENDING that have a handler come again when this is left. It is for the main thread, which runs handlers; in others it does
    nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    # An ignored signal stays ignored: the new process inherits that.
    handlers = {number: signal.getsignal(number) for number in ENDING if callable(signal.getsignal(number))}
    try:
        for number in handlers:
            signal.signal(number, lambda number, _frame: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for each in came:
            os.kill(os.getpid(), each)
