"""The overhead budget: what recording may add to a step on average, and how many steps must lie between full statistics to keep to it."""

from __future__ import annotations

import os
import re
from collections import deque
from statistics import median
from typing import Any

from ..errors import InvalidArgumentError

# Full statistics are recorded in the steps divisible by one of these. The least common multiple of any two is one of them, too: two runs
# with different choices share the steps of the coarser one, or with 2 and 5, 20 and 50, 200 and 500 those of the next coarser one.
LADDER = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

MEASURED_FIRST = 3  # full steps before the first choice; the first step of a process is expensive and is not among them
REVIEWED_AFTER = 8  # full steps between two reviews of the choice,
REVIEWED_AFTER_STEPS = 400  # or so many steps, if those are fewer
_STEPS_KEPT = 32
_TOO_MUCH, _ENOUGH_ROOM = 1.25, 0.7  # of the budget: a coarser choice above, a finer one if it would stay below


def parse_budget(source: str, value: Any) -> float:
    """A share of the training's time, such as 0.02 for "2%". Raises InvalidArgumentError, which names `source`."""
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*%\s*", value) if isinstance(value, str) else None
    percent = float(found[1]) if found else 0.0
    if not 0 < percent <= 100:
        raise InvalidArgumentError(
            f'init: {source} is {value!r:.80}; expected a share of the step\'s time above 0% and up to 100%, such as "2%"; '
            "leave it out to record full statistics in every step"
        )
    return percent / 100


def find_budget(argument: Any) -> float | None:
    """The budget of the argument `overhead` of `init`, else of STATAGENT_OVERHEAD; None without one."""
    if argument is not None:
        return parse_budget("overhead", argument)
    text = os.environ.get("STATAGENT_OVERHEAD", "")
    return parse_budget("STATAGENT_OVERHEAD", text) if text else None


def percent(share: float) -> str:
    """0.0171 as "1.7%"."""
    return f"{100 * share:.2g}%" if share < 0.1 else f"{100 * share:.0f}%"


class Controller:
    """Chooses from LADDER. Is given the time of each step, and decides by medians: single slow steps, or a burst that is shorter than half
    a review, change nothing.

    It never swings: a coarser choice needs an overhead clearly above the budget, a finer one clearly below it, and a finer choice that had
    to be taken back is not tried again. What is cheap is recorded in every step; if that alone takes more than half of the budget, the full
    statistics still get the other half. All times in seconds."""

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.every = 1
        self._costs: deque[float] = deque(maxlen=REVIEWED_AFTER)  # of recording a step in full
        self._light_costs: deque[float] = deque(maxlen=_STEPS_KEPT)  # of recording only what is cheap
        self._bases: deque[float] = deque(maxlen=_STEPS_KEPT)  # of steps, without what recording took
        self._full_steps = self._steps = 0  # since the last review
        self._settled = False  # the first choice has been made
        self._was_refined = self._stays = False

    def note(self, full: bool, wall: float, spent: float) -> None:
        """A step has ended. `wall`: since the end of the step before it; `spent`: by recording, within that."""
        (self._costs if full else self._light_costs).append(spent)
        self._bases.append(max(wall - spent, 1e-9))
        self._full_steps += full
        self._steps += 1

    def choice(self) -> int | None:
        """A member of LADDER that should replace `every`, once enough steps have been measured; None: keep it."""
        if not self._settled:
            return self._finest(1.0) if self._full_steps >= MEASURED_FIRST else None
        if not self._costs or (self._full_steps < REVIEWED_AFTER and self._steps < REVIEWED_AFTER_STEPS):
            return None
        self._full_steps = self._steps = 0
        if not self._fits(self.every, _TOO_MUCH):
            return self._finest(1.0) if self.every < LADDER[-1] else None
        finer = self._finest(_ENOUGH_ROOM)
        return finer if finer < self.every and not self._stays else None

    def settle(self, every: int) -> None:
        """From now on this choice applies, whoever made it."""
        self._stays = self._stays or (self._was_refined and every > self.every)
        self._was_refined = self._settled and every < self.every
        self.every, self._settled = every, True
        self._full_steps = self._steps = 0

    def share(self, every: int) -> float:
        """The average overhead of full statistics in every n-th step, as a share of the time that the training takes without them."""
        return self._light_share() + self._full_share(every)

    def step_seconds(self) -> float:
        """Duration of a step without recording."""
        return median(self._bases) if self._bases else 1.0

    def _light_share(self) -> float:
        return median(self._light_costs) / self.step_seconds() if self._light_costs else 0.0

    def _full_share(self, every: int) -> float:
        """What full statistics add to that."""
        cost = median(self._costs) / self.step_seconds() if self._costs else 0.0
        return max(cost - self._light_share(), 0.0) / every

    def _fits(self, every: int, part: float) -> bool:
        """Whether the overhead is at most this part of the budget."""
        room = max(part * self.budget - self._light_share(), part * self.budget / 2)
        return self._full_share(every) <= room

    def _finest(self, part: float) -> int:
        return next((n for n in LADDER if self._fits(n, part)), LADDER[-1])
