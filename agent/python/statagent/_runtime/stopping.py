"""STATAGENT_STOP_AFTER: the training ends after so many steps."""

from __future__ import annotations

import os

from ..errors import InvalidArgumentError

_VARIABLE = "STATAGENT_STOP_AFTER"


class Stopping:
    """Counts the steps that the agent has ended. `due`: the next training pass of a watched model ends the program; until then, what is
    logged after the last update still counts, and nothing of a next step. All ranks make the same steps, so that they end at the same pass.

    Raises InvalidArgumentError for a variable that is not a whole number from 1."""

    def __init__(self) -> None:
        text = os.environ.get(_VARIABLE, "")
        if text and not (text.isdecimal() and int(text)):
            raise InvalidArgumentError(f"init: {_VARIABLE} is {text!r}; expected a whole number of steps from 1")
        self._after = int(text or 0)
        self.steps = 0  # ended so far
        self.due = False

    def step_ended(self) -> None:
        self.steps += 1
        self.due = bool(self._after) and self.steps >= self._after

    def check(self) -> None:
        """A training pass begins. Raises SystemExit(0) if it is due."""
        if self.due:
            raise SystemExit(0)
