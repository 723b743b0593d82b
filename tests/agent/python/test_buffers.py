"""Buffers: recorded when they have changed, right behind the module that changed them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent import Agent, compute

from .models import Calls, data, seeded
from .support import Recording


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def train(net: nn.Module, optimizer: Any, steps: int = 1, micro_batches: int = 1) -> None:
    for _ in range(steps):
        for seed in range(micro_batches):
            net(data(seed=seed)).sum().backward()
        optimizer.step()


def watched(net: nn.Module, **options: Any) -> Any:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer, **options)
    return optimizer


def found(recording: Recording, step: int | None = None) -> list[tuple[str, str, str, int, int]]:
    return [(r.name, r.mode, r.path, r.micro_batch, r.call) for r in recording.of("buffer", step)]


def test_running_statistics_are_recorded_as_found_and_behind_their_module(agent: Agent, recording: Recording) -> None:
    net = seeded(model)
    optimizer = watched(net)
    train(net, optimizer, steps=2)
    init = [("1.running_mean", "init", "", 0, 0), ("1.running_var", "init", "", 0, 0)]
    after = [("1.running_mean", "train", "", 0, 0), ("1.running_var", "train", "", 0, 0)]
    assert found(recording, 0) == init + after
    assert found(recording, 1) == after
    order = [(r.name, r.kind) for r in recording.records if r.step == 1 and r.kind in ("output", "buffer")]
    assert order == [
        ("0", "output"), ("1", "output"), ("1.running_mean", "buffer"), ("1.running_var", "buffer"), ("2", "output"),
        ("Sequential", "output"),
    ]  # fmt: skip
    last = recording.one("1.running_mean", "buffer", step=1)
    norm = net[1]
    assert isinstance(norm, nn.BatchNorm1d) and norm.running_mean is not None
    assert last.hash == compute(norm.running_mean)["hash"]
    assert (last.parent, last.class_name, last.depth) == ("1", "Tensor", 3)
    assert recording.refusals == []


def test_each_micro_batch_and_call_has_its_own(agent: Agent, recording: Recording) -> None:
    norm = nn.BatchNorm1d(8)
    net = Calls(lambda self, x: self.fc(self.norm(self.norm(x))), norm=norm, fc=nn.Linear(8, 1))
    optimizer = watched(net)
    train(net, optimizer, micro_batches=2)
    means = [entry[1:] for entry in found(recording) if entry[0] == "norm.running_mean"]
    assert means == [("init", "", 0, 0), ("train", "", 0, 0), ("train", "", 0, 1), ("train", "", 1, 0), ("train", "", 1, 1)]


@pytest.mark.parametrize("frozen", ["evaluation pass", "frozen layer", "outside of the window"])
def test_nothing_is_recorded_where_nothing_changes(agent: Agent, recording: Recording, frozen: str) -> None:
    net = seeded(model)
    optimizer = watched(net, eval=True, steps="1-" if frozen == "outside of the window" else None)
    if frozen == "evaluation pass":
        net.eval()
    elif frozen == "frozen layer":
        net[1].eval()
    train(net, optimizer)
    assert {entry[1] for entry in found(recording)} == {"init"}


class Ema(nn.Module):
    average: torch.Tensor
    table: torch.Tensor
    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 1)
        self.register_buffer("average", torch.zeros(8))
        self.register_buffer("table", torch.ones(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def test_change_within_the_step_is_recorded_at_its_end(agent: Agent, recording: Recording) -> None:
    net = Ema()
    statagent.watch(net)
    for value in (1.0, 2.0):
        net(data()).sum().backward()
        net.average.fill_(value)
        statagent.step()
    assert [(r.step, r.name, r.path, r.mode) for r in recording.of("buffer")] == [
        (0, "average", "", "init"), (0, "table", "", "init"), (0, "average", "outside", "train"), (1, "average", "outside", "train"),
    ]  # fmt: skip
    assert recording.records[-1].kind == "buffer" and recording.records[-1].hash == compute(torch.full((8,), 2.0))["hash"]


def test_change_after_the_update_is_recorded_before_the_next_pass(agent: Agent, recording: Recording) -> None:
    net = Ema()
    optimizer = watched(net)
    train(net, optimizer)
    net.average.mul_(0.9).add_(0.1)
    train(net, optimizer)
    at = recording.of("buffer", 1)
    assert [(r.name, r.path) for r in at] == [("average", "outside")]
    in_order = [r.kind for r in recording.records if r.step == 1]
    assert in_order.index("buffer") < in_order.index("output")


def test_replaced_buffer_is_a_change_and_a_shared_one_has_one_name(agent: Agent, recording: Recording) -> None:
    first, second = Ema(), Ema()
    second.table = first.table
    net = Calls(lambda self, x: self.first(x) + self.second(x), first=first, second=second)
    statagent.watch(net, include=["first", "second"])
    net(data()).sum().backward()
    first.average = torch.full((8,), 3.0)
    statagent.step()
    init = [r.name for r in recording.of("buffer") if r.mode == "init"]
    assert init == ["first.average", "first.table", "second.average"]
    assert [r.name for r in recording.of("buffer") if r.mode == "train"] == ["first.average"]


def test_buffers_follow_the_selection_and_the_kinds(agent: Agent, recording: Recording) -> None:
    net = seeded(model)
    with statagent.watch(net, include=["1.running_var"]):
        assert [r.name for r in recording.of("buffer")] == ["1.running_var"]
    with statagent.watch(net, exclude=["1"]):
        assert len(recording.of("buffer")) == 1
    with statagent.watch(net, kinds=["output"]):
        net(data())
    assert len(recording.of("buffer")) == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_model_records_its_buffers_under_the_same_identities(agent: Agent, recording: Recording, backend: str) -> None:
    net = seeded(model)
    optimizer = watched(net)
    compiled = torch.compile(net, backend=backend)
    for _ in range(2):
        compiled(data(seed=0)).sum().backward()
        compiled(data(seed=1)).sum().backward()
        optimizer.step()
    for step in (0, 1):
        trained = [entry for entry in found(recording, step) if entry[1] == "train"]
        assert trained == [(f"1.running_{name}", "train", "", batch, 0) for batch in (0, 1) for name in ("mean", "var")]
    assert recording.refusals == []


def test_functional_call_records_the_buffers_it_is_given(agent: Agent, recording: Recording) -> None:
    net = seeded(model)
    statagent.watch(net)
    state = {name: value.detach().clone() for name, value in net.state_dict().items()}
    torch.func.functional_call(net, state, (data(),)).sum()
    assert recording.one("1.running_mean", "buffer", mode="train").hash == compute(state["1.running_mean"])["hash"]
    assert recording.refusals == []


def test_scripted_normalisation_does_no_harm(agent: Agent, recording: Recording) -> None:
    net = nn.Sequential(nn.Linear(8, 8), torch.jit.script(nn.BatchNorm1d(8)), nn.Linear(8, 1))
    train(net, watched(net))
    assert found(recording) == []
    assert recording.names("output", 0)
