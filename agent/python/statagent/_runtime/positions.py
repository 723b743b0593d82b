"""Where each thread is in the step, and how records of one thread and the end of the step by another take turns."""

from __future__ import annotations

import threading
import weakref
from contextlib import AbstractContextManager

from .forking import make_locks_of


class Position:
    """Of one thread that runs watched models. Written by it, and by autograd's threads on its behalf."""

    __slots__ = ("__weakref__", "backward_seen", "batch_logged", "in_pass", "micro_batch", "muted", "ran", "stale")

    def __init__(self) -> None:
        self.micro_batch = 0
        self.backward_seen = False  # a backward pass has ended the micro-batch
        self.muted = False  # an unrecorded pass is running
        self.in_pass = self.ran = False  # whether a watched pass runs, and whether one has ever begun
        self.stale = False  # another thread has ended the step: the micro-batch counts in the new one from the next pass on
        self.batch_logged = (-1, -1)  # step and micro-batch of the last log_batch

    def next_micro_batch(self) -> int:
        """To which a batch belongs that is about to be used."""
        return self.micro_batch + 1 if self.backward_seen else self.micro_batch

    def restart(self) -> None:
        self.micro_batch = 0
        self.backward_seen = self.muted = self.stale = False


class Positions:
    """Those of all threads. Threads: any."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._nobody = self._last = Position()  # `_last`: of the thread that began a pass last
        self.batch_logged_aside = (-1, -1)  # as Position.batch_logged, of threads that run no watched model
        self._all: weakref.WeakSet[Position] = weakref.WeakSet([self._last])

    def own(self) -> Position:
        """Of this thread, which begins a pass."""
        found: Position | None = getattr(self._of_thread, "position", None)
        if found is None:
            found = self._of_thread.position = Position()
            self._all.add(found)
        found.ran = True
        self._last = found
        return found

    def of_batch(self) -> Position:
        """Of this thread, which logs a batch. If other threads have positions, it gets its own: it may be about to train, too."""
        found: Position | None = getattr(self._of_thread, "position", None)
        if found is None and len(self._all) > 1:
            found = self._of_thread.position = Position()
            self._all.add(found)
        return self.here()

    def batch_logged(self, position: Position, step: int, micro_batch: int) -> None:
        if position.ran:
            position.batch_logged = (step, micro_batch)
        else:
            self.batch_logged_aside = (step, micro_batch)

    def here(self) -> Position:
        """Of this thread; the last one where it runs no watched model."""
        found: Position = getattr(self._of_thread, "position", None) or self._last
        if found.stale and found.backward_seen and not found.in_pass:
            found.restart()  # what comes now is before the next pass
        return found

    def step_changed(self) -> None:
        """This thread has changed the step."""
        mine = getattr(self._of_thread, "position", None)
        for each in list(self._all):
            if each is mine or each is self._nobody:
                each.restart()
            else:
                each.stale = True


class StepGate(AbstractContextManager[None]):
    """A thread that numbers a record and then makes it holds off threads that end the step, and these hold off new ones. No code of the
    program runs inside, except how a foreign array gives its memory. No generator: torch.compile refuses one in a hook in front of a graph
    with fullgraph=True."""

    def __init__(self) -> None:
        make_locks_of(self)

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._recording = 0
        self._ending = False

    def recording(self) -> AbstractContextManager[None]:
        return self

    def __enter__(self) -> None:
        with self._lock:
            while self._ending:
                self._changed.wait()
            self._recording += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._recording -= 1
            if self._ending and not self._recording:
                self._changed.notify_all()

    def begin_end(self) -> None:
        with self._lock:
            while self._ending:
                self._changed.wait()
            self._ending = True
            while self._recording:
                self._changed.wait()

    def end_end(self) -> None:
        with self._lock:
            self._ending = False
            self._changed.notify_all()
