"""The watched optimizers, and when the updates of several are complete, so that the step ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .callbacks import WeakList
from .forking import make_locks_of

# Updates of one optimizer in a step after which the step waits for another no longer: of one that has never made any, and of one that has
# made some (a GAN's critic may make a hundred).
PATIENCE_NEW, PATIENCE = 16, 256
ALIKE = 4  # steps in a row that show what a step is


@dataclass(frozen=True)
class Facts:
    """Of an optimizer: the ids of its parameters, and whether a model that has them has run in this step."""

    parameters: frozenset[int]
    ran: bool


class Updates:
    """A step ends when every watched optimizer has made an update in it, however often the others did meanwhile (a GAN's critic). It does not
    wait for one

    - that has been left out: the update that ended the last steps, all alike, has been made again after as many of the others' as usual.
      Updates of several threads have no order, and show no such habit;
    - whose parameters one other optimizer has all updated: they take turns, or one has replaced the other;
    - that rests: another has made a second update without it, and updates some of its parameters, or its models have not run meanwhile; or
      another has made a great many. The next update of its own ends the rest, and is a step of its own if it is the step's first.

    Threads: the caller is the thread of the update, and holds a lock."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()  # of the last update
        self._ever: set[int] = set()
        self._resting: set[int] = set()
        self._usual: tuple[int, Mapping[int, int]] | None = None  # the last complete step: what ended it, and all counts
        self._alike = 0  # complete steps in a row that were like it

    def complete(self, key: int, counts: Mapping[int, int], facts: Callable[[int], Facts]) -> bool:
        """The optimizer has made an update; whether that ends the step. `counts`: updates of all in this step, by id."""
        self._ever.add(key)
        if self._thread != (thread := threading.get_ident()):
            self._thread, self._usual, self._alike = thread, None, 0
        if key in self._resting:
            self._resting.remove(key)
            if sum(counts.values()) == 1:  # it comes after the others' updates, which have ended a step without it
                return True
        missing = [each for each, count in counts.items() if not count and each not in self._resting]
        if not missing:
            self._alike = self._alike + 1 if self._usual == (key, counts) else 1
            self._usual = key, counts
            return True
        if self._ends_as_usual(key, counts):
            return True
        updated = {each: facts(each).parameters for each, count in counts.items() if count}
        return not any(
            self._is_awaited(each, facts(each), counts.get(key, 1), updated.get(key, frozenset()), updated) for each in missing
        )

    def forget(self, key: int) -> None:
        self._ever.discard(key)
        self._resting.discard(key)
        self._usual, self._alike = None, 0

    def _ends_as_usual(self, key: int, counts: Mapping[int, int]) -> bool:
        if self._usual is None or self._alike < ALIKE:
            return False
        last, usual = self._usual
        return key == last and all(count in (0, usual.get(each)) for each, count in counts.items())

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


class WatchedOptimizers:
    """Those of all watches, by id. Threads: any."""

    def __init__(self) -> None:
        make_locks_of(self)
        self.counts: dict[int, int] = {}  # updates of each in this step
        self.hooks: dict[int, WeakList] = {}  # OptimizerHooks of each
        self.numbers: dict[int, int] = {}  # of those of watches without a name
        self.replayed = False  # an update is part of a CUDA graph, whose replays call no hooks
        self._updates = Updates()
        self._step_ending = False  # a thread ends the step; the updates of others until then count in it

    def _make_locks(self) -> None:
        self._lock = threading.Lock()

    def note_update(self, optimizer: int) -> bool:
        """One has made an update. True: no other is waited for in this step, so that the caller ends it."""
        with self._lock:
            if optimizer in self.counts:
                self.counts[optimizer] += 1
            if self._step_ending or not self._updates.complete(optimizer, dict(self.counts), self._facts):
                return False
            self._step_ending = True
            return True

    def _facts(self, optimizer: int) -> Facts:
        hooks = list(self.hooks.get(optimizer, ()))
        parameters = frozenset(key for each in hooks for key in each.updated)
        return Facts(parameters, any(each.trained() for each in hooks))

    def step_changed(self) -> None:
        for key in list(self.counts):
            self.counts[key] = 0

    def step_is_over(self) -> None:
        """The next complete update ends a step again."""
        self._step_ending = False

    def forget(self, optimizer: int) -> None:
        """It is gone, or no longer watched: a step does not wait for its update."""
        self.hooks.pop(optimizer, None)
        self.counts.pop(optimizer, None)
        self.numbers.pop(optimizer, None)
        self._updates.forget(optimizer)
