"""The steps whose full statistics are recorded: ranges, each with the number that divides its steps."""

from __future__ import annotations

from dataclasses import dataclass

WINDOWS_MAX = 32  # asked for by the collector around alarms; later ones are ignored


@dataclass(frozen=True)
class Range:
    """The steps from `first` to `last` (None: no end) that are divisible by `every`."""

    first: int
    last: int | None
    every: int

    def __contains__(self, step: int) -> bool:
        return self.first <= step and (self.last is None or step <= self.last) and step % self.every == 0

    def __str__(self) -> str:
        return f"{self.first}-{'' if self.last is None else self.last}/{self.every}"


class FullSteps:
    """Every step from `first` on, until `change`. Its text, "0-69/1, 70-/10", is stored with the run, so that a diff knows these steps."""

    def __init__(self, first: int) -> None:
        self._ranges = [Range(first, None, 1)]
        self._windows: list[Range] = []

    def __contains__(self, step: int) -> bool:
        # The range that holds now is the last one.
        return any(step in each for each in reversed(self._ranges)) or any(step in each for each in self._windows)

    def __str__(self) -> str:
        return ", ".join(map(str, [*self._ranges, *self._windows]))

    def change(self, first: int, every: int) -> None:
        """From step `first` on, those divisible by `every`. Precondition: no step from `first` on has begun."""
        self._ranges = [
            each if each.last is not None and each.last < first else Range(each.first, first - 1, each.every)
            for each in self._ranges
            if each.first < first
        ]
        self._ranges.append(Range(first, None, every))

    def add(self, first: int, last: int) -> bool:
        """Every step from `first` to `last`, too; False if there are too many such requests, or all these steps are in already."""
        if len(self._windows) >= WINDOWS_MAX or all(step in self for step in range(first, last + 1)):
            return False
        self._windows.append(Range(first, last, 1))
        return True
