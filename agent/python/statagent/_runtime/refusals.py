"""Records that could not be made: each is counted; each name and reason is reported once, as an event of the run."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping

from .forking import make_locks_of

EVENTS_MAX = 20  # a process
EVENTS_OF_REASON_MAX = 5
REASON_MAX = 400  # characters
KIND = "not_recorded"
_PREFIX = "statistics of a tensor: "


class Refusals:
    """The counter and the events. Threads: any."""

    def __init__(self, log_event: Callable[[str, str, Mapping[str, str]], None]) -> None:
        self._log_event = log_event
        make_locks_of(self)
        self._count = 0
        self._events = 0
        self._reported: set[tuple[str, str, str]] = set()
        self._reasons: dict[str, int] = {}

    def _make_locks(self) -> None:
        self._lock = threading.RLock()  # a model that is freed meanwhile may report, too

    @property
    def count(self) -> int:
        with self._lock:
            return self._count

    def add(self) -> int:
        """Counts one record; returns the new total."""
        with self._lock:
            self._count += 1
            return self._count

    def report(self, name: str, kind: str, reason: str) -> None:
        """Logs an event, unless there was one for this name and reason or the limit is reached."""
        if self._events >= EVENTS_MAX:
            return
        reason = reason.removeprefix(_PREFIX)[:REASON_MAX]
        alike = re.sub(r"\d+", "#", reason)  # reasons that differ only in a shape are the same
        with self._lock:
            if self._events >= EVENTS_MAX or (name, kind, alike) in self._reported:
                return
            self._reported.add((name, kind, alike))
            times = self._reasons[alike] = self._reasons.get(alike, 0) + 1
            if times > EVENTS_OF_REASON_MAX:
                return
            self._events += 1
            last = self._events == EVENTS_MAX or times == EVENTS_OF_REASON_MAX
        text = f"{_what(name, kind)} not recorded: {reason}"
        if last:
            text += " (further ones are counted, not reported)"
        self._log_event(KIND, text.replace("\0", "\\0"), {"name": name, "kind": kind, "reason": reason})


def _what(name: str, kind: str) -> str:
    """The subject of a message and its verb."""
    if name:
        return f"{kind} of '{name}' is" if kind else f"'{name}' is"
    return f"a record of kind {kind} is" if kind else "a record is"
