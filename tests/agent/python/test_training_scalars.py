"""Scalars that a watched optimizer and a GradScaler bring along."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent import Agent, InvalidArgumentError

from .models import Net, data, seeded
from .support import Recording


def step(model: nn.Module, optimizer: Any, scaler: Any = None, loss_factor: float = 1.0) -> None:
    optimizer.zero_grad()
    loss = model(data()).square().mean() * loss_factor
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def scalars(recording: Recording, name: str) -> list[tuple[int, float]]:
    return [(at, value) for at, found, value, _ in recording.scalars if found == name]


def test_learning_rate_of_each_group_in_every_step(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    optimizer = torch.optim.SGD([{"params": net.blocks.parameters()}, {"params": net.head.parameters(), "lr": 0.5}], lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    statagent.watch(net, optimizer=optimizer)
    for _ in range(3):
        step(net, optimizer)
        schedule.step()
    assert scalars(recording, "lr/group0") == [(0, 0.1), (1, 0.05), (2, 0.025)]
    assert scalars(recording, "lr/group1") == [(0, 0.5), (1, 0.25), (2, 0.125)]


def test_weight_decay_is_logged_when_it_changes(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.01)
    statagent.watch(net, optimizer=optimizer)
    for decay in (0.01, 0.01, 0.02, 0.02):
        optimizer.param_groups[0]["weight_decay"] = decay
        step(net, optimizer)
    assert scalars(recording, "weight_decay/group0") == [(0, 0.01), (2, 0.02)]


def test_learning_rates_of_two_optimizers_are_told_apart(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    both = [torch.optim.SGD(net.blocks.parameters(), lr=0.1), torch.optim.Adam(net.head.parameters(), lr=torch.tensor(0.25))]
    statagent.watch(net, optimizer=both)
    net(data()).sum().backward()
    for each in both:
        each.step()
    assert scalars(recording, "lr/0/group0") == [(0, 0.1)]
    assert scalars(recording, "lr/1/group0") == [(0, 0.25)]


def test_learning_rates_of_separate_watches_are_told_apart(agent: Agent, recording: Recording) -> None:
    nets = [seeded(Net) for _ in range(4)]
    rates = [0.1, 0.2, 0.3, 0.4]
    each = [torch.optim.SGD(net.parameters(), lr=rate, weight_decay=rate / 10) for net, rate in zip(nets, rates)]
    statagent.watch(nets[0], optimizer=each[0])
    second = statagent.watch(nets[1], optimizer=each[1], exclude=["*"])
    statagent.watch(nets[2], optimizer=each[2], name="gen")
    for net, optimizer in zip(nets, each):
        net(data()).sum().backward()
        optimizer.step()
    found = {name: value for _, name, value, _ in recording.scalars}
    assert {name: value for name, value in found.items() if "lr/" in name} == {
        "lr/group0": 0.1, "lr/1/group0": 0.2, "gen/lr/group0": 0.3,
    }  # fmt: skip
    assert {"weight_decay/group0", "weight_decay/1/group0", "gen/weight_decay/group0"} <= found.keys()

    second.remove()
    statagent.watch(nets[3], optimizer=each[3], exclude=["*"])
    for optimizer in (each[0], each[2], each[3]):
        optimizer.step()
    assert scalars(recording, "lr/1/group0") == [(0, 0.2), (1, 0.4)], "the number of a watch that was removed is free"


def test_second_update_in_a_step_is_not_logged_again(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    both = [torch.optim.SGD(net.blocks.parameters(), lr=0.1), torch.optim.SGD(net.head.parameters(), lr=0.1)]
    statagent.watch(net, optimizer=both)
    net(data()).sum().backward()
    both[0].step()
    both[0].step()
    both[1].step()
    assert len(scalars(recording, "lr/0/group0")) == 1


@pytest.mark.parametrize("given", [True, False], ids=["given", "found"])
def test_loss_scale_and_skipped_updates(agent: Agent, recording: Recording, given: bool) -> None:
    net = seeded(Net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    statagent.watch(net, optimizer=optimizer, scaler=scaler if given else None)
    step(net, optimizer, scaler)
    step(net, optimizer, scaler, loss_factor=math.inf)  # skipped: still step 1
    step(net, optimizer, scaler)
    step(net, optimizer, scaler)
    assert recording.ended_steps == [0, 1, 2]
    if given:
        assert scalars(recording, "loss_scale") == [(0, 1024.0), (1, 1024.0), (1, 512.0), (2, 512.0)]
        assert scalars(recording, "found_inf") == [(0, 0.0), (1, 1.0), (1, 0.0), (2, 0.0)]
        batches = [batch for at, name, _, batch in recording.scalars if name == "found_inf" and at == 1]
        assert batches == [0, 1], "each attempt is a micro-batch of its own"
    else:
        assert scalars(recording, "loss_scale") == [(0, 1024.0), (1, 512.0), (2, 512.0)]
        assert scalars(recording, "found_inf") == [(0, 0.0), (1, 0.0), (2, 0.0)]


def test_scaler_trains_on_as_before(agent: Agent) -> None:
    def train(observed: bool) -> tuple[list[Any], float]:
        net = seeded(Net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        watch = statagent.watch(net, optimizer=optimizer, scaler=scaler) if observed else None
        for number in range(6):
            step(net, optimizer, scaler, math.inf if number == 2 else 1.0)
        if watch is not None:
            watch.remove()
            assert "update" not in vars(scaler)
        return [p.detach().clone() for p in net.parameters()], scaler.get_scale()

    (plain, scale), (observed, observed_scale) = train(False), train(True)
    assert scale == observed_scale
    assert all(torch.equal(a, b) for a, b in zip(plain, observed))


def test_copies_of_a_scaler_update_themselves(agent: Agent) -> None:
    net = seeded(Net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    statagent.watch(net, optimizer=optimizer, scaler=scaler)
    for other in (copy.deepcopy(scaler), pickle.loads(pickle.dumps(scaler))):
        other.scale(torch.ones(()))
        other.update(8.0)
        assert (other.get_scale(), scaler.get_scale()) == (8.0, 1024.0)


def test_disabled_scaler_logs_nothing(agent: Agent, recording: Recording) -> None:
    net = seeded(Net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    statagent.watch(net, optimizer=optimizer, scaler=scaler)
    step(net, optimizer, scaler)
    assert scalars(recording, "loss_scale") == [] and recording.ended_steps == [0]


def test_something_else_as_scaler_is_refused(agent: Agent) -> None:
    with pytest.raises(InvalidArgumentError, match=r"found a str as scaler; expected a torch\.amp\.GradScaler"):
        statagent.watch(seeded(Net), scaler="yes")  # type: ignore[arg-type]


def test_odd_parameter_groups_do_no_harm(agent: Agent, recording: Recording) -> None:
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": "auto", "weight_decay": None})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            return None

    net = seeded(Net)
    optimizer = Own(net.parameters())
    statagent.watch(net, optimizer=optimizer)
    step(net, optimizer)
    assert recording.ended_steps == [0]
    assert scalars(recording, "lr/group0") == []


# --- exact updates ---


def test_updates_are_recorded_exactly_in_the_steps_asked_for(agent: Agent, recording: Recording) -> None:
    net = seeded(Net).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    statagent.watch(net, optimizer=optimizer, updates="1-2")
    moved: list[float] = []
    for _ in range(4):
        before = net.head.weight.detach().clone()
        optimizer.zero_grad()
        net(data().to(torch.bfloat16)).square().mean().backward()
        optimizer.step()
        moved.append((net.head.weight.detach().float() - before.float()).norm().item())
    found = [r for r in recording.records if r.path == "update" and r.name == "head.weight"]
    assert [(r.step, r.kind, r.dtype) for r in found] == [(1, "optimizer_state", "f32"), (2, "optimizer_state", "f32")]
    assert [r.l2 for r in found] == pytest.approx(moved[1:3], rel=1e-6)
    assert len([r for r in recording.records if r.path == "update"]) == 2 * len(list(net.parameters()))
    assert recording.refusals == []


def test_updates_leave_nothing_behind_and_training_as_it_is(agent: Agent) -> None:
    def train(observed: bool) -> list[Any]:
        net = seeded(Net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        watch = statagent.watch(net, optimizer=optimizer, updates="0-") if observed else None
        for _ in range(3):
            step(net, optimizer)
        if watch is not None:
            found = watch._find().optimizers
            assert found and all(not hooks._before_update for hooks in found)
        return [p.detach().clone() for p in net.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(train(False), train(True)))


def test_updates_need_an_optimizer_and_a_set_of_steps(agent: Agent) -> None:
    net = seeded(Net)
    with pytest.raises(InvalidArgumentError, match="updates needs the optimizer"):
        statagent.watch(net, updates="0-9")
    with pytest.raises(InvalidArgumentError):
        statagent.watch(net, optimizer=torch.optim.SGD(net.parameters(), lr=1), updates="sometimes")
    assert not net._forward_hooks and not net._forward_pre_hooks, "a refused watch leaves no hooks"
