"""When the updates of several optimizers are complete, so that the step ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

# Updates of one optimizer in a step after which the step waits for another no longer: of one that has never made any, and of one that has
# made some (a GAN's critic may make a hundred).
PATIENCE_NEW, PATIENCE = 16, 256


@dataclass(frozen=True)
class Facts:
    """Of an optimizer: the ids of its parameters, and whether a model that has them has run in this step."""

    parameters: frozenset[int]
    ran: bool


class Updates:
    """A step ends when every watched optimizer has made an update in it, however often the others did meanwhile (a GAN's critic). It does not
    wait for one

    - whose parameters one other optimizer has all updated: they take turns, or one has replaced the other;
    - that rests: another has made a second update without it, and updates some of its parameters, or its models have not run meanwhile; or
      another has made a great many. The next update of its own ends the rest, and is a step of its own if it is the step's first.

    Threads: the caller holds a lock."""

    def __init__(self) -> None:
        self._ever: set[int] = set()
        self._resting: set[int] = set()

    def complete(self, key: int, counts: Mapping[int, int], facts: Callable[[int], Facts]) -> bool:
        """The optimizer has made an update; whether that ends the step. `counts`: updates of all in this step, by id."""
        self._ever.add(key)
        if key in self._resting:
            self._resting.remove(key)
            if sum(counts.values()) == 1:  # it comes after the others' updates, which have ended a step without it
                return True
        missing = [each for each, count in counts.items() if not count and each not in self._resting]
        if not missing:
            return True
        updated = {each: facts(each).parameters for each, count in counts.items() if count}
        return not any(
            self._is_awaited(each, facts(each), counts.get(key, 1), updated.get(key, frozenset()), updated) for each in missing
        )

    def forget(self, key: int) -> None:
        self._ever.discard(key)
        self._resting.discard(key)

    def _is_awaited(
        self, each: int, facts: Facts, count: int, just: frozenset[int], updated: Mapping[int, frozenset[int]]
    ) -> bool:
        """`count`, `just`: how often the optimizer that has made the update did so in this step, and its parameters."""
        own = facts.parameters
        if own and any(own <= others for others in updated.values()):
            return False
        alone = not facts.ran or not own.isdisjoint(just)
        if count >= (2 if alone else PATIENCE if each in self._ever else PATIENCE_NEW):
            self._resting.add(each)
            return False
        return True
