"""References and lists that keep nothing alive: a model, an optimizer or an agent that the program drops is freed at once."""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .forking import make_locks_of


def weak(value: Any) -> Callable[[], Any]:
    """A function that returns the object, or None once it is gone. One that allows no weak references (a class with __slots__) is kept."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def _weak_method(listener: Any) -> Callable[[], Any]:
    """As `weak`, for a bound method; any other function is kept."""
    return weakref.WeakMethod(listener) if isinstance(listener, types.MethodType) else lambda: listener


class WeakList:
    """Objects in the order in which they were added, as long as they live. Threads: any."""

    def __init__(self, values: Iterable[Any] = (), reference: Callable[[Any], Callable[[], Any]] = weak) -> None:
        self._reference = reference
        self._references = [reference(value) for value in values]
        make_locks_of(self)

    def _make_locks(self) -> None:
        self._changing = threading.RLock()  # what is freed meanwhile may remove itself

    def append(self, value: Any) -> None:
        with self._changing:
            self._references = [*(each for each in self._references if each() is not None), self._reference(value)]

    def remove(self, value: Any) -> None:
        """No effect if it is not there."""
        with self._changing:
            self._references = [each for each in self._references if (found := each()) is not None and not _same(found, value)]

    def __iter__(self) -> Iterator[Any]:
        return (found for each in self._references if (found := each()) is not None)

    def __bool__(self) -> bool:
        return any(True for _ in self)


def listeners() -> WeakList:
    """Functions to call. A bound method is called as long as its object lives."""
    return WeakList(reference=_weak_method)


def _same(found: Any, value: Any) -> bool:
    return found is value or (isinstance(value, types.MethodType) and bool(found == value))


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """The bound method, without keeping its object alive."""
    reference = _weak_method(method)

    def call(*args: Any) -> None:
        found = reference()
        if found is not None:
            found(*args)

    return call
