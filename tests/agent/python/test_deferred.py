"""Scalars whose value arrives later: the queue, with copies that a thread completes."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import pytest
import torch

import statagent
from statagent import Agent
from statagent._runtime.deferred import Deferred, on_gpu

from .support import Recording


class Arrival:
    """A copy that completes on demand, or when it is asked for the `arrives_at`-th time."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.copy, self.arrived, self.asked, self.arrives_at = tensor.clone(), threading.Event(), 0, 0

    def ready(self) -> bool:
        self.asked += 1
        if self.asked == self.arrives_at:
            self.arrived.set()
        return self.arrived.is_set()

    def value(self) -> torch.Tensor:
        assert self.arrived.is_set(), "read before it was there"
        return self.copy


class Remote(torch.Tensor):
    """A tensor whose value must not be read in place."""

    is_cuda = True

    def item(self) -> Any:
        raise AssertionError("waited for the device")

    def __float__(self) -> float:
        raise AssertionError("waited for the device")


def remote(value: Any) -> Remote:
    return torch.tensor(value).as_subclass(Remote)


class Line:
    """A queue, what it started, what came out and what was lost."""

    def __init__(self, pending_max: int = 8) -> None:
        self.started: list[Arrival] = []
        self.logged: list[tuple[str, Any]] = []
        self.lost: list[str] = []
        self.queue = Deferred(self.lost.append, self.start, pending_max)

    def start(self, tensor: Any) -> Arrival:
        self.started.append(Arrival(tensor.as_subclass(torch.Tensor)))
        return self.started[-1]

    def add(self, name: str, value: Any) -> None:
        self.queue.add(name, remote(value), lambda there: self.logged.append((name, there.tolist())))


def test_value_is_handed_on_when_it_is_there() -> None:
    line = Line()
    line.add("loss", 1.5)
    line.queue.collect()
    assert line.logged == []
    line.started[0].arrived.set()
    line.queue.collect()
    assert line.logged == [("loss", 1.5)]
    line.queue.collect()
    assert len(line.logged) == 1


def test_vectors_and_values_of_the_cpu_are_taken_too() -> None:
    line = Line()
    line.add("counts", [1, 2, 3])
    line.started[0].arrived.set()
    line.queue.add("here", torch.tensor([4.0], requires_grad=True), lambda there: line.logged.append(("here", there.tolist())))
    assert line.logged == [("here", [4.0])], "at once"
    line.queue.collect()
    assert line.logged == [("here", [4.0]), ("counts", [1, 2, 3])]


def test_order_is_kept_although_a_later_one_is_there_first() -> None:
    line = Line()
    for number in range(3):
        line.add("loss", float(number))
    line.started[1].arrived.set()
    line.queue.collect()
    assert line.logged == []
    line.started[0].arrived.set()
    line.queue.collect()
    assert [value for _, value in line.logged] == [0.0, 1.0]


def test_nan_and_infinities_are_kept() -> None:
    line = Line()
    for number in (math.nan, math.inf, -math.inf):
        line.add("loss", number)
        line.started[-1].arrived.set()
    line.queue.collect()
    assert [repr(value) for _, value in line.logged] == ["nan", "inf", "-inf"]


def test_queue_is_bounded_and_tells_what_is_lost() -> None:
    line = Line(pending_max=2)
    for number in range(3):
        line.add(f"s{number}", 0.0)
    assert len(line.queue) == 2 and len(line.started) == 2
    assert len(line.lost) == 1 and line.lost[0].startswith("s2: ")
    wide = Line()
    wide.add("wide", [0.0] * 100_000)
    assert len(wide.queue) == 0 and len(wide.lost) == 1


def test_drain_waits_no_longer_than_told() -> None:
    line = Line()
    line.add("loss", 2.0)
    started = time.monotonic()
    assert not line.queue.drain(0.05)
    assert 0.04 < time.monotonic() - started < 10
    threading.Timer(0.05, line.started[0].arrived.set).start()
    assert line.queue.drain(10)
    assert line.logged == [("loss", 2.0)]


def test_failures_are_lost_and_the_others_go_on() -> None:
    line = Line()

    def fails(*_: Any) -> Any:
        raise RuntimeError("device lost")

    line.add("a", 1.0)
    line.queue.add("b", remote(1.0), fails)
    line.add("c", 2.0)
    line.started[0].ready = fails  # type: ignore[method-assign]
    line.started[1].arrived.set()
    line.started[2].arrived.set()
    line.queue.collect()
    assert line.lost == ["a: device lost", "b: device lost"]
    assert line.logged == [("c", 2.0)] and len(line.queue) == 0
    line.queue._copy = fails
    line.add("d", 1.0)
    assert line.lost[2] == "d: device lost" and len(line.queue) == 0


def test_what_never_arrived_is_told_as_lost() -> None:
    line = Line()
    line.add("loss", 2.0)
    line.queue.drop()
    assert len(line.queue) == 0 and "was not complete" in line.lost[0]


def test_one_call_of_a_step_looks_at_few() -> None:
    line = Line(pending_max=1000)
    for _ in range(1000):
        line.add("loss", 2.0)
    for arrival in line.started:
        arrival.arrived.set()
    line.queue.collect()
    assert len(line.logged) == 16


# --- through the agent, a "device" whose copies take a while ---


@pytest.fixture
def slow(agent: Agent) -> Line:
    line = Line()
    agent.deferred = Deferred(agent.refuse, line.start, 64)
    return line


def test_log_scalar_does_not_wait_and_keeps_step_and_micro_batch(agent: Agent, recording: Recording, slow: Line) -> None:
    for number in range(4):
        statagent.log_scalar("loss", remote(float(number)), micro_batch=number % 2)
        if number > 0:
            slow.started[number - 1].arrived.set()  # one step late
        statagent.step()
    assert recording.scalars == [(0, "loss", 0.0, 0), (1, "loss", 1.0, 1), (2, "loss", 2.0, 0)]
    slow.started[3].arrived.set()
    statagent.flush(timeout=0)
    assert recording.scalars[3] == (3, "loss", 3.0, 1)


def test_close_waits_for_what_is_on_its_way_and_counts_the_rest(agent: Agent, recording: Recording, slow: Line) -> None:
    statagent.log_scalar("a", remote(1.0))
    statagent.log_scalar("b", remote(2.0))
    slow.started[0].arrives_at = slow.started[0].asked + 3
    statagent.close(timeout=0.3)
    assert [record[1] for record in recording.scalars] == ["a"]
    assert statagent.counters()["dropped_refused"] == 1


def test_tensors_of_the_cpu_are_logged_at_once(agent: Agent, recording: Recording) -> None:
    statagent.log_scalar("loss", torch.tensor(1.0, requires_grad=True))
    statagent.log_scalar("loss", torch.tensor([math.nan]))
    first, second = recording.scalars
    assert first[2] == 1.0 and math.isnan(second[2])
    assert not on_gpu(torch.tensor(1.0)) and not on_gpu(1.0) and not on_gpu(None)
