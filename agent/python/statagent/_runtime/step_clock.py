"""The step of this process: its number, what is recorded in it, what tells its records apart, and who learns of its end."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from .._native.host import ClockCells
from .._native.session import Session
from .callbacks import listeners
from .positions import Position, Positions, StepGate
from .thinning import Meter, Thinning
from .updates import WatchedOptimizers


class StepClock(ClockCells):
    """Owns what changes with the step. Only `changing` moves the library's step; everything else follows in `step_changed`.

    Invariant: inside `gate.recording()` no thread ends the step, so that a call index and its record are in one step. Threads: any."""

    def __init__(self, session: Session | None) -> None:
        self._session = session
        self._step = session.step() if session is not None else 0  # the library's
        # Whether tensors of the current step are recorded: read by every hook, changes only with the step.
        self.wanted = False
        # Whether its batches' fingerprints and densities are: also where an overhead budget leaves out the other tensors.
        self.inputs_wanted = False
        self.meter: Meter | None = None  # hooks add their time to it, if an overhead budget is set
        self._thinning: Thinning | None = None
        self.steps_ending = self.steps_ended = 0  # ends of steps that have begun, and those that are over
        self.gate = StepGate()
        self.optimizers = WatchedOptimizers()
        self._calls: dict[tuple[Any, ...], Iterator[int]] = {}  # call indexes of this step
        self._positions = Positions()
        # Scalars of this step by name and micro-batch; those of a step that an optimizer has just ended. See late_step.
        self._scalars: set[tuple[str, str]] = set()
        self._ended_scalars: set[tuple[str, str]] | None = None
        self._ended_micro_batch = 0
        # Functions to call; none may raise. A bound method is called as long as its object lives.
        self.step_listeners = listeners()  # the step has changed, or the agent has closed
        self.ending_listeners = listeners()  # the step is about to end
        self.flush_listeners = listeners()  # a flush, or close, begins: to record what was postponed
        self.batch_listeners = listeners()  # with the name and value of each tensor that log_batch is given

    # --- the step's number, and what is recorded in it

    def current_step(self) -> int:
        return self._step

    def keep_to_budget(self, thinning: Thinning) -> None:
        """Leaves out full statistics of some steps. Call it before any step has ended."""
        self._thinning, self.meter = thinning, thinning.meter
        self.flush_listeners.append(thinning.store_measured)
        self._choose_records()

    def note_spent(self, begun: int) -> None:
        """Recording has taken the time since `begun`, of time.perf_counter_ns()."""
        if self.meter is not None:
            self.meter.spent += time.perf_counter_ns() - begun

    def _choose_records(self) -> None:
        assert self._session is not None
        self.inputs_wanted = self.wanted = self._session.step_wanted()
        if self._thinning is not None:
            full = self._thinning.begin_step(self.current_step())
            self.wanted = self.wanted and (full or self._session.step_asked())

    # --- its end

    def before_end(self, begun: int) -> None:
        """What was recorded since `begun` counts in the step that is about to end."""
        if self._thinning is not None:
            self.note_spent(begun)
            self._thinning.end_step()

    def changing(self) -> AbstractContextManager[None]:
        """The library's step changes inside; call indexes count from 0 in the new one."""
        return _ChangingStep(self)

    def begin_change(self) -> None:
        self.gate.begin_end()
        self.steps_ending += 1

    def end_change(self) -> None:
        if self._session is not None:
            self._step = self._session.step()
        self._calls.clear()
        self.optimizers.step_changed()
        self.steps_ended = self.steps_ending
        self.gate.end_end()

    def step_changed(self, by_optimizer: bool = False) -> None:
        """Call it after `changing`, and at the beginning. `by_optimizer`: scalars logged next still belong to the step that an update ended."""
        ended = self._scalars, self.micro_batch
        self._choose_records()
        self._scalars, self._ended_scalars = set(), None
        self._positions.step_changed()
        for listener in self.step_listeners:
            listener()
        if by_optimizer:
            self._ended_scalars, self._ended_micro_batch = ended

    def stop(self) -> None:
        """Nothing more is recorded."""
        self.inputs_wanted = self.wanted = False

    # --- scalars, which belong to the step that an update has just ended until the next one begins

    @property
    def between_steps(self) -> bool:
        """Whether a watched optimizer has ended a step, and nothing of the next one has happened."""
        return self._ended_scalars is not None

    def begin_step(self) -> None:
        """Something of the current step has happened: scalars belong to it from now on. Cheap."""
        self._ended_scalars = None

    def late_step(self, name: str, micro_batch: Any) -> int | None:
        """The step that a watched optimizer has just ended, if a scalar still belongs to it; None if the current step has begun. A step begins
        with a training pass, log_batch, inspect or an update. Where no pass is seen, it begins with a scalar that the ended step already has."""
        key = (name, f"{micro_batch}")
        ended = self._ended_scalars
        if ended is not None and key not in ended:
            ended.add(key)
            return self.current_step() - 1
        self.begin_step()
        self._scalars.add(key)
        return None

    @property
    def scalars_micro_batch(self) -> int:
        """To which a scalar belongs that is logged now."""
        return self._ended_micro_batch if self._ended_scalars is not None else self.micro_batch

    # --- call indexes

    def next_call(self, *key: Any) -> int:
        """The next call index of an identity in this step, from 0."""
        calls = self._calls.get(key) or self._calls.setdefault(key, itertools.count())
        return next(calls)  # one step of the interpreter: threads get different ones

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

    def begin_batch(self) -> int:
        """A batch is logged, before the forward pass: the micro-batch that it belongs to, which begins."""
        here = self._positions.of_batch()
        at = here.next_micro_batch()
        self._positions.batch_logged(here, self.current_step(), at)
        return at

    def own_position(self) -> Position:
        """Of this thread, which begins a pass."""
        return self._positions.own()


class _ChangingStep(AbstractContextManager[None]):
    """No generator: torch.compile refuses one in an update that it compiles."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    def __enter__(self) -> None:
        self._clock.begin_change()

    def __exit__(self, *_: object) -> None:
        self._clock.end_change()
