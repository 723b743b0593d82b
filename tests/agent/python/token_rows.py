"""Rows of tokens that were recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass
class Rows:
    """What was recorded: of each tap, by key, positions and rows."""

    taps: dict[str, dict[int, list[tuple[int, torch.Tensor]]]] = field(default_factory=dict)
    steps: list[tuple[str, int, int]] = field(default_factory=list)

    def add(self, tap: str, rows: torch.Tensor, keys: Any, positions: Any, step: int, call: int) -> None:
        assert len(rows) == len(keys) == len(positions)
        self.steps.append((tap, step, call))
        for key, position, row in zip(keys.tolist(), positions.tolist(), rows.clone()):
            self.taps.setdefault(tap, {}).setdefault(key, []).append((position, row))

    def take(self) -> Rows:
        found = Rows(self.taps, self.steps)
        self.taps, self.steps = {}, []
        return found

    def count(self, tap: str) -> int:
        return sum(map(len, self.taps.get(tap, {}).values()))

    def positions(self, tap: str) -> set[int]:
        return {position for recorded in self.taps.get(tap, {}).values() for position, _ in recorded}
