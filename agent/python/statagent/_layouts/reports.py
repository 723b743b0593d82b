"""Reports, as events of the run and once for each tensor, which layouts are not known."""

from __future__ import annotations

from collections.abc import Callable, Mapping

LogEvent = Callable[[str, str, Mapping[str, str]], None]
KIND = "layout_unknown"
_NAMED_MAX = 20  # names in one event
_REFUSALS_MAX = 20  # events of layouts that do not fit, a process


class Reports:
    """Collects during a step, logs at its end. Threads: any; a name may be logged twice if two threads meet it first."""

    def __init__(self, log_event: LogEvent) -> None:
        self._log_event = log_event
        self._unknown: set[tuple[str, str]] = set()  # of all steps
        self._new: list[tuple[str, str]] = []
        self._refused: dict[tuple[str, str], str] = {}  # of all steps: name and kind -> reason
        self._new_refusals: list[tuple[str, str]] = []

    def unknown(self, name: str, kind: str) -> None:
        """It is not known where the tensor lies."""
        if (name, kind) not in self._unknown:
            self._unknown.add((name, kind))
            self._new.append((name, kind))

    def refuse(self, name: str, kind: str, reason: str) -> None:
        """The user's layout does not fit."""
        if (name, kind) not in self._refused and len(self._refused) < _REFUSALS_MAX:
            self._refused[name, kind] = reason
            self._new_refusals.append((name, kind))

    def end_step(self) -> None:
        if self._new_refusals:
            new, self._new_refusals = self._new_refusals, []
            for name, kind in new:
                reason = self._refused[name, kind]
                self._log_event(
                    KIND, f"layout unknown: '{name}' ({kind}): {reason}", {"name": name, "kind": kind, "reason": reason}
                )
        if self._new:
            found, self._new = self._new, []
            shown = ", ".join(f"{name} ({kind})" for name, kind in found[:_NAMED_MAX]) + (
                ", ..." if len(found) > _NAMED_MAX else ""
            )
            self._log_event(
                KIND,
                f"layout unknown: where {len(found)} tensors of this rank lie in the model's is not known: {shown}; "
                "say so with watch(layouts=)",
                {"count": str(len(found)), "total": str(len(self._unknown)), "names": shown},
            )
