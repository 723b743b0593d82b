"""Locks that a forked child can use. Of the parent's threads only the one that forks goes on in the child, so a lock that another one held
would stay locked there for ever. The child therefore gets new ones."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import AbstractContextManager
from typing import Protocol


class HoldsLocks(Protocol):
    def _make_locks(self) -> None:
        """Sets the locks, and what goes with them, as if nobody held them."""


_holders: weakref.WeakSet[HoldsLocks] = weakref.WeakSet()


def make_locks_of(holder: HoldsLocks) -> None:
    """Makes its locks now, and again in each child that is forked during its life."""
    _holders.add(holder)
    holder._make_locks()


class SharedLock(AbstractContextManager[None]):
    """A reentrant lock for the variables of a module."""

    def __init__(self) -> None:
        make_locks_of(self)

    def _make_locks(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _make_again() -> None:
    for holder in list(_holders):
        holder._make_locks()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_make_again)
