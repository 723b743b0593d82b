"""Thins out the full statistics of a run so that recording keeps to its overhead budget (docs/decisions/0030-overhead-budget.md)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .._native.session import Session
from .full_steps import FullSteps, Range
from .overhead import LADDER, Controller, percent

EVENT = "overhead"  # its fields `every` and `first` of rank 0 are what the collector announces to all ranks
ANNOUNCED_SECONDS = 1.0  # between a proposal and the step from which it holds, so that every rank learns of it in time
ANNOUNCED_STEPS = 4  # and at least so many steps
WINDOW_STEPS = 4  # recorded in full after an alarm
PATIENCE_SECONDS = 30.0  # without an announcement a rank then follows its own measurement
_WINDOW_STEPS_MAX = 1000


class Meter:
    """Time that hooks have taken on the training thread: each adds what it took. Nanoseconds."""

    __slots__ = ("spent",)

    def __init__(self) -> None:
        self.spent = 0


@dataclass(frozen=True)
class Outside:
    """What the thinning asks of the agent. `announcements`: the steps in full that the collector has announced to all ranks since the last
    call. `report`: an event's text and fields. `store`: settings of the run. Ranks are counted among those that record."""

    rank: int
    world_size: int
    announcements: Callable[[], list[Range]]
    report: Callable[[str, Mapping[str, str]], None]
    store: Callable[[Mapping[str, str]], None]
    clock: Callable[[], float] = time.perf_counter


def outside_of(
    session: Session, log_event: Callable[[str, str, Mapping[str, str]], None], store: Callable[[Mapping[str, str]], None]
) -> Outside:
    """The Outside of an agent with this session."""

    def announcements() -> list[Range]:
        return [Range(*found) for found in iter(session.next_full_steps, None)]

    def report(text: str, fields: Mapping[str, str]) -> None:
        log_event(EVENT, text, fields)

    number, count = session.recording_rank() or (0, 1)
    return Outside(number, count, announcements, report, store)


@dataclass(frozen=True)
class _Proposal:
    every: int
    until: float  # an announcement is waited for


class Thinning:
    """Decides for each step whether its full statistics are recorded. Threads: the one that ends the steps.

    The first steps are recorded in full and measured. In a run of one rank its choice holds from the next step on. Otherwise rank 0 proposes
    a step a little ahead, the collector announces it to all ranks, and all follow the announcement. A rank that hears nothing within
    PATIENCE_SECONDS follows its own measurement."""

    def __init__(self, budget: float, outside: Outside) -> None:
        self.meter = Meter()
        self._outside, self._controller = outside, Controller(budget)
        self._steps: FullSteps | None = None  # None: no step has begun
        self._begun = -1  # the step that runs
        self._full = True
        self._ended_at: float | None = None
        self._proposal: _Proposal | None = None
        self._follows = False  # this rank has learned of a choice of rank 0
        self._followed: Range | None = None  # the last one, which a reconnect repeats
        self._window_until = -1  # the last step that rank 0 has proposed after an alarm
        self._recording_time = self._training_time = 0.0  # since the choice took effect, in seconds
        self._counted_from = 0  # the step in which it does

    def begin_step(self, step: int) -> bool:
        """Whether the full statistics of this step are recorded. The first call, and one after a jump before any step has ended, make it the
        first step of the run."""
        if self._steps is None or (self._ended_at is None and step != self._begun):
            self._steps = FullSteps(step)
            self._store()
        if step == self._begun:
            return self._full
        self._begun = step
        for announcement in self._outside.announcements():
            self._follow(announcement, step)
        if self._proposal is not None and self._outside.clock() > self._proposal.until:
            every = self._proposal.every
            self._change(step, every)
            self._report(f"no choice of rank 0 was announced; this rank records {_steps_text(every)} from step {step} on", step)
        self._full = step in self._steps
        return self._full

    def end_step(self) -> None:
        """The step ends: its time is measured, and the choice reviewed."""
        now, spent = self._outside.clock(), self.meter.spent / 1e9
        self.meter.spent = 0
        before, self._ended_at = self._ended_at, now
        if before is None:  # the first step pays for what later ones reuse
            return
        self._controller.note(self._full, now - before, spent)
        if self._begun >= self._counted_from:
            self._recording_time += spent
            self._training_time += max(now - before - spent, 1e-9)
        every = None if self._proposal or self._follows else self._controller.choice()
        if every is not None:
            self._propose(every, self._begun + 1)

    def store_measured(self) -> None:
        """Stores the overhead as measured so far."""
        if self._training_time > 0:
            self._outside.store({"recording.overhead_measured": percent(self._recording_time / self._training_time)})

    def _propose(self, every: int, next_step: int) -> None:
        outside, controller = self._outside, self._controller
        if outside.world_size == 1:
            share = controller.share(every)
            self._change(next_step, every)
            self._report(self._choice_text(every, next_step, share), next_step)
            return
        self._proposal = _Proposal(every, outside.clock() + PATIENCE_SECONDS)
        if outside.rank == 0:
            first = next_step + self._ahead()
            fields = {"every": str(every), "first": str(first), "announce": "1"}
            outside.report(self._choice_text(every, first, controller.share(every)), fields)

    def _follow(self, announced: Range, step: int) -> None:
        assert self._steps is not None
        first = max(announced.first, step)
        if announced.last is not None:
            if first <= announced.last:
                self._add_window(first, announced.last)
            elif announced.first == announced.last:  # the collector has seen an alarm in this step
                self._propose_window(step)
            return
        if announced.every not in LADDER or announced == self._followed:
            return
        self._followed = announced
        self._follows = self._outside.rank != 0
        self._change(first, announced.every)
        if first > announced.first:
            self._report(f"this rank learned only in step {step} of the choice for step {announced.first}", step)

    def _add_window(self, first: int, last: int) -> None:
        assert self._steps is not None
        if last < first + _WINDOW_STEPS_MAX and self._steps.add(first, last):
            self._store()

    def _propose_window(self, step: int) -> None:
        """Rank 0 proposes some steps in full, unless those of an earlier alarm are still to come."""
        alone = self._outside.world_size == 1
        if self._outside.rank != 0 or self._controller.every == 1 or step <= self._window_until:
            return
        first = step if alone else step + self._ahead()
        last = self._window_until = first + WINDOW_STEPS - 1
        fields = {"every": "1", "first": str(first), "last": str(last)}
        self._outside.report(
            f"full statistics in the steps {first} to {last}, after an alarm", fields if alone else {**fields, "announce": "1"}
        )
        if alone:
            self._add_window(first, last)

    def _ahead(self) -> int:
        """Steps until all ranks have learned of a proposal."""
        return max(ANNOUNCED_STEPS, math.ceil(ANNOUNCED_SECONDS / self._controller.step_seconds()))

    def _change(self, first: int, every: int) -> None:
        assert self._steps is not None
        self._proposal = None
        self._steps.change(first, every)
        self._controller.settle(every)
        self._recording_time = self._training_time = 0.0
        self._counted_from = first
        self._store()

    def _store(self) -> None:
        self._outside.store({"recording.overhead": percent(self._controller.budget), "recording.full_steps": str(self._steps)})

    def _report(self, text: str, first: int) -> None:
        self._outside.report(text, {"every": str(self._controller.every), "first": str(first)})

    def _choice_text(self, every: int, first: int, share: float) -> str:
        budget = percent(self._controller.budget)
        text = f"full statistics {_steps_text(every)} from step {first} on: overhead {percent(share)}, budget {budget}"
        if share > self._controller.budget:
            text += "; no choice keeps to it"
        return text


def _steps_text(every: int) -> str:
    return "in every step" if every == 1 else f"in the steps divisible by {every}"
