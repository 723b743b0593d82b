"""Inputs that no watched module has returned have a place of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent import Agent, compute
from statagent._runtime.known_tensors import KnownTensors

from .models import Calls, Net, data, seeded
from .support import Recording


def inputs(recording: Recording, step: int | None = None) -> list[tuple[str, str, int, int]]:
    return [(r.name, r.path, r.micro_batch, r.call) for r in recording.of("input", step)]


def test_sums_and_functions_between_modules_are_recorded(agent: Agent, recording: Recording) -> None:
    seen: list[torch.Tensor] = []

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.b(self.a(x))  # a's output: known
        y = x + y  # a sum
        seen.append(y)
        y = self.c(y)
        return self.d(self.c(y.relu()))  # a function, then c's output

    net = Calls(forward, a=nn.Linear(8, 8), b=nn.Linear(8, 8), c=nn.Linear(8, 8), d=nn.Linear(8, 1))
    statagent.watch(net, between=True)
    for _ in range(2):
        net(data()).sum().backward()
        statagent.step()
    for step in (0, 1):
        assert inputs(recording, step) == [("c", "0", 0, 0), ("c", "0", 0, 1)]
    assert recording.one("c", "input", step=1, call=0).hash == compute(seen[1])["hash"]
    order = [(r.kind, r.name) for r in recording.records if r.step == 1 and r.kind in ("input", "output")]
    assert order.index(("input", "c")) < order.index(("output", "c"))
    assert recording.refusals == []


@pytest.mark.parametrize(
    ("between", "recorded"),
    [
        (lambda x: x, False), (lambda x: x.view(8, 4), False), (lambda x: x.flatten(), False), (lambda x: x.detach(), False),
        (lambda x: x.t(), True), (lambda x: x[:2], True), (lambda x: x.clone(), True), (lambda x: x.mul_(2), True),
    ],
    ids=["same", "view", "flatten", "detach", "transposed", "part", "copy", "in place"],
)  # fmt: skip
def test_views_are_known_and_changes_are_not(agent: Agent, recording: Recording, between: Any, recorded: bool) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)  # lives until the end
        return self.then(between(y))

    net = Calls(forward, first=nn.Linear(8, 8), then=nn.Identity())
    statagent.watch(net, between=True)
    net(data())
    assert bool(inputs(recording)) == recorded


def test_memory_that_is_used_again_is_another_tensor() -> None:
    memory = bytearray(4 * 1000)  # ours: an allocator need not hand the same memory out again
    known = KnownTensors()
    first = torch.frombuffer(memory, dtype=torch.float32)
    known.note(first)
    assert known.holds(first) and known.holds(first.view(10, 100))
    address = first.data_ptr()
    del first
    second = torch.frombuffer(memory, dtype=torch.float32)
    assert second.data_ptr() == address and not known.holds(second)


def test_arguments_of_the_model_and_repeated_inputs_are_recorded_once_at_most(agent: Agent, recording: Recording) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        shared = x.cos()
        return self.a(x) + self.b(shared) + self.c(shared)

    net = Calls(forward, a=nn.Linear(8, 2), b=nn.Linear(8, 2), c=nn.Linear(8, 2))
    statagent.watch(net, between=True)
    net(data())
    assert inputs(recording) == [("b", "0", 0, 0)]
    assert recording.names("batch") == ["x"]


def test_output_of_another_watched_model_is_known(agent: Agent, recording: Recording) -> None:
    generator, critic = nn.Linear(8, 8), nn.Linear(8, 1)
    statagent.watch(generator, name="generator", between=True)
    statagent.watch(critic, name="critic", between=True)
    fake = generator(data())
    critic(fake)
    critic(fake * 2)
    assert inputs(recording) == [("critic", "0", 0, 1)]


@pytest.mark.parametrize("checkpoints", ["reentrant", "non_reentrant"])
def test_recomputation_records_nothing_again(agent: Agent, recording: Recording, checkpoints: str) -> None:
    net = Net(checkpoints=checkpoints)
    statagent.watch(net, between=True)
    net(data().requires_grad_()).sum().backward()
    assert recording.refusals == []
    assert len(set(inputs(recording))) == len(inputs(recording))


def test_it_is_off_by_default_and_beside_kind_input(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    with statagent.watch(net):
        net(data())
    assert inputs(recording) == []
    with statagent.watch(net, kinds=["input"], between=True, name="all"):
        net(data())
    assert len(inputs(recording)) == 8 and recording.refusals == []
