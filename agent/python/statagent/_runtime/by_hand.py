"""Whether the program calls this package itself. What records programs without a line (statctl run) then leaves it alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_inside = threading.local()
_listeners: list[Callable[[], None]] = []


def note() -> None:
    """`init`, `watch` or a framework's callback was called. Calls the listeners, unless the caller is `ours`."""
    if not getattr(_inside, "depth", 0):
        for listener in list(_listeners):
            listener()


@contextmanager
def ours() -> Iterator[None]:
    """What this thread calls inside is not the program's doing."""
    _inside.depth = getattr(_inside, "depth", 0) + 1
    try:
        yield
    finally:
        _inside.depth -= 1


def on_use(listener: Callable[[], None]) -> None:
    """Calls it whenever the program calls this package. It must not raise."""
    _listeners.append(listener)
