"""Fingerprints of the model's inputs without log_batch, and the schedule of parameters."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent import Agent, compute

from .models import data
from .support import Recording


class Takes(nn.Module):
    """Positional and named inputs, nested ones, and values that are not tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, extra: Any = None, *rest: Any, mask: Any = None, flag: bool = False) -> torch.Tensor:
        return self.fc(x)


def batches(recording: Recording) -> list[tuple[int, int, str, str, int]]:
    return [(r.step, r.micro_batch, r.name, r.path, r.call) for r in recording.of("batch")]


def test_inputs_are_recorded_by_the_names_of_the_arguments(agent: Agent, recording: Recording) -> None:
    model, x, mask = Takes(), data(), torch.ones(4, dtype=torch.bool)
    statagent.watch(model)
    model(x, {"a": x[0], "b": [x[1], 3]}, x[2], mask=mask, flag=True).sum().backward()
    assert batches(recording) == [
        (0, 0, "x", "", 0), (0, 0, "extra", "a", 0), (0, 0, "extra", "b.0", 0), (0, 0, "2", "", 0), (0, 0, "mask", "", 0),
    ]  # fmt: skip
    assert recording.one("x", "batch").hash == compute(x)["hash"]
    first = next(r for r in recording.records if r.mode == "train")
    assert first.kind == "batch", "before everything that is computed from it"


def test_micro_batches_and_steps_have_their_own(agent: Agent, recording: Recording) -> None:
    model = Takes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    statagent.watch(model, optimizer, steps="1-")
    for _ in range(3):
        for _ in range(2):
            model(data()).sum().backward()
        optimizer.step()
    assert batches(recording) == [(step, micro_batch, "x", "", 0) for step in (1, 2) for micro_batch in (0, 1)]


def test_log_batch_takes_its_place(agent: Agent, recording: Recording) -> None:
    model = Takes()
    statagent.watch(model)
    for logged in (True, False, True):
        if logged:
            statagent.log_batch(tokens=data())
        model(data()).sum().backward()
    assert batches(recording) == [(0, 0, "tokens", "", 0), (0, 1, "x", "", 0), (0, 2, "tokens", "", 0)]


def test_evaluation_and_what_needs_a_gradient_are_left_out(agent: Agent, recording: Recording) -> None:
    model = Takes()
    statagent.watch(model)
    with torch.no_grad():
        model(data())
    model(data().requires_grad_() * 2).sum().backward()
    assert batches(recording) == []


def test_two_models_and_a_copy_do_not_mix(agent: Agent, recording: Recording) -> None:
    model = Takes()
    statagent.watch(model)
    copy.deepcopy(model)(data()).sum().backward()
    assert batches(recording) == []
    model(data()).sum().backward()
    assert batches(recording) == [(0, 0, "x", "", 0)]


def test_they_can_be_switched_off(agent: Agent, recording: Recording) -> None:
    model = Takes()
    statagent.watch(model, fingerprints=False)
    model(data()).sum().backward()
    assert batches(recording) == []
    assert recording.of("output")


def test_parameters_have_a_schedule_of_their_own(agent: Agent, recording: Recording) -> None:
    model = Takes()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    statagent.watch(model, optimizer, steps="0-5", parameter_steps="every=4")
    for _ in range(8):
        model(data()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    for kind in ("weight", "weight_grad", "optimizer_state"):
        assert {r.step for r in recording.of(kind) if r.mode == "train"} == {0, 4}, kind
    assert {r.step for r in recording.of("output")} == set(range(6))
    assert {r.mode for r in recording.of("weight", 0)} == {"init", "train"}
    assert recording.ended_steps == list(range(8)), "the optimizer ends every step all the same"


@pytest.mark.parametrize("steps", ["x", "3-1", 5])
def test_a_schedule_that_makes_no_sense_is_an_error(agent: Agent, steps: Any) -> None:
    with pytest.raises(statagent.InvalidArgumentError):
        statagent.watch(Takes(), parameter_steps=steps)
