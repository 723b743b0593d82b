"""Which tokens are recorded: `tokens=` of watch, STATAGENT_TOKENS of an engine."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Steps(Protocol):
    """What _watch/steps.py has: a set of numbers."""

    def __contains__(self, number: int, /) -> bool: ...


class Choice:
    """Positions of tokens in their sequence; None: all."""

    def __init__(self, positions: Steps | None) -> None:
        self._chosen = positions
        self._known: Any = np.zeros(0, dtype=bool)  # of positions from 0

    def of(self, positions: Any) -> Any:
        """Whether each of the positions is chosen."""
        if self._chosen is None or not positions.size:
            return np.ones(positions.shape, dtype=bool)
        needed = int(positions.max()) + 1
        if needed > len(self._known):
            more = [position in self._chosen for position in range(len(self._known), max(needed, 2 * len(self._known)))]
            self._known = np.concatenate([self._known, np.array(more, dtype=bool)])
        return self._known[positions]
