"""Lists of callbacks, and callbacks that keep nothing alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def discard(listeners: list[Any], listener: Any) -> None:
    """Removes the listener if it is in the list."""
    if listener in listeners:
        listeners.remove(listener)


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """The bound method, without keeping its object alive: an unused agent is freed at once, with its buffers."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        found = reference()
        if found is not None:
            found(*args)

    return call
