"""Reports layouts of the user that do not fit, as events of the run and once for each tensor. Whether a tensor of unknown place matters is
known only where the bits of all ranks are: the collector takes equal ones as replicas, and its answers say which others it leaves out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

LogEvent = Callable[[str, str, Mapping[str, str]], None]
KIND = "layout_unknown"
_REFUSALS_MAX = 20  # events of layouts that do not fit, a process


class Reports:
    """Collects during a step, logs at its end. Threads: any; a name may be logged twice if two threads meet it first."""

    def __init__(self, log_event: LogEvent) -> None:
        self._log_event = log_event
        self._refused: dict[tuple[str, str], str] = {}  # of all steps: name and kind -> reason
        self._new: list[tuple[str, str]] = []

    def refuse(self, name: str, kind: str, reason: str) -> None:
        """The user's layout does not fit."""
        if (name, kind) not in self._refused and len(self._refused) < _REFUSALS_MAX:
            self._refused[name, kind] = reason
            self._new.append((name, kind))

    def end_step(self) -> None:
        new, self._new = self._new, []
        for name, kind in new:
            reason = self._refused[name, kind]
            self._log_event(KIND, f"layout unknown: '{name}' ({kind}): {reason}", {"name": name, "kind": kind, "reason": reason})
