"""What tells records of one step apart, and who learns of its end."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from .callbacks import WeakList, listeners
from .forking import make_locks_of
from .positions import Position, Positions, StepGate
from .updates import Facts, Updates


class Numbering:
    """The part of an agent that counts calls, micro-batches and updates, and keeps listeners. Threads: any."""

    def __init__(self) -> None:
        make_locks_of(self)
        self._step_listeners, self._ending_listeners = listeners(), listeners()
        self._flush_listeners, self._batch_listeners = listeners(), listeners()
        self._calls: dict[tuple[Any, ...], Iterator[int]] = {}  # call indexes of this step
        self._positions = Positions()
        self.gate = StepGate()
        self.steps_ending = self.steps_ended = 0  # ends of steps that have begun, and those that are over
        self._step_ending = False  # a thread ends the step; the updates of others until then count in it
        self.optimizers: dict[int, int] = {}  # watched optimizers by id, with their updates in this step
        self.optimizer_hooks: dict[int, WeakList] = {}  # OptimizerHooks of each watched optimizer, by its id
        self._updates = Updates()
        self.optimizer_numbers: dict[int, int] = {}  # numbers of the optimizers of watches without a name, by id

    def _make_locks(self) -> None:
        self._lock = threading.Lock()

    def current_step(self) -> int:
        raise NotImplementedError

    def next_call(self, *key: Any) -> int:
        """The next call index of an identity in this step, from 0."""
        return next(self._calls.setdefault(key, itertools.count()))  # one step of the interpreter: threads get different ones

    def _changing_step(self) -> AbstractContextManager[None]:
        """The library's step changes inside; call indexes count from 0 in the new one."""
        return _ChangingStep(self)

    def begin_step_change(self) -> None:
        self.gate.begin_end()
        self.steps_ending += 1

    def end_step_change(self) -> None:
        self._calls.clear()
        for key in list(self.optimizers):
            self.optimizers[key] = 0
        self.steps_ended = self.steps_ending
        self.gate.end_end()

    def note_update(self, optimizer: int) -> bool:
        """A watched optimizer, by its id, has made an update. True: no other is waited for in this step, so that the caller ends it."""
        with self._lock:
            if optimizer in self.optimizers:
                self.optimizers[optimizer] += 1
            if self._step_ending or not self._updates.complete(optimizer, dict(self.optimizers), self._facts):
                return False
            self._step_ending = True
            return True

    def _facts(self, optimizer: int) -> Facts:
        hooks = list(self.optimizer_hooks.get(optimizer, ()))
        parameters = frozenset(key for each in hooks for key in each.updated)
        return Facts(parameters, any(each.trained() for each in hooks))

    def forget_optimizer(self, optimizer: int) -> None:
        """The optimizer is gone, or no longer watched: a step does not wait for its update."""
        self.optimizer_hooks.pop(optimizer, None)
        self.optimizers.pop(optimizer, None)
        self.optimizer_numbers.pop(optimizer, None)
        self._updates.forget(optimizer)

    # --- the pass of the thread that asks

    @property
    def micro_batch(self) -> int:
        """Of this thread's pass; in a thread that runs no watched model, that of the pass that began last."""
        return self._positions.here().micro_batch

    def next_micro_batch(self) -> int:
        """To which a batch belongs that is about to be used."""
        return self._positions.here().next_micro_batch()

    @property
    def muted(self) -> bool:
        """Whether this thread runs a pass that is not recorded."""
        return self._positions.here().muted

    def batch_is_logged(self) -> bool:
        """Whether log_batch was called for this thread's micro-batch, here or in a thread that runs no watched model."""
        here = self._positions.here()
        return (self.current_step(), here.micro_batch) in (here.batch_logged, self._positions.batch_logged_aside)

    def own_position(self) -> Position:
        """Of this thread, which begins a pass."""
        return self._positions.own()

    # --- listeners; none of them may raise; a method is called as long as its object lives ---------------------------------

    def add_step_listener(self, listener: Callable[[], None]) -> None:
        """Called when the step has changed, and when the agent has closed."""
        self._step_listeners.append(listener)

    def remove_step_listener(self, listener: Callable[[], None]) -> None:
        self._step_listeners.remove(listener)

    def add_ending_listener(self, listener: Callable[[], None]) -> None:
        """Called before each end of a step."""
        self._ending_listeners.append(listener)

    def remove_ending_listener(self, listener: Callable[[], None]) -> None:
        self._ending_listeners.remove(listener)

    def add_batch_listener(self, listener: Callable[[str, Any], None]) -> None:
        """Called with the name and value of each tensor that log_batch is given."""
        self._batch_listeners.append(listener)

    def remove_batch_listener(self, listener: Callable[[str, Any], None]) -> None:
        self._batch_listeners.remove(listener)

    def add_flush_listener(self, listener: Callable[[], None]) -> None:
        """Called at the beginning of each flush and of close, to record what was postponed."""
        self._flush_listeners.append(listener)

    def remove_flush_listener(self, listener: Callable[[], None]) -> None:
        self._flush_listeners.remove(listener)


class _ChangingStep(AbstractContextManager[None]):
    """No generator: torch.compile refuses one in an update that it compiles."""

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering

    def __enter__(self) -> None:
        self._numbering.begin_step_change()

    def __exit__(self, *_: object) -> None:
        self._numbering.end_step_change()
