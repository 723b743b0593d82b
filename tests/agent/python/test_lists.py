"""Weights, gradients and optimizer state that go to the library together, as they do on a GPU; here with tensors of the CPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent import Agent
from statagent._native import library as _library
from statagent._native.tensors import Place
from statagent._watch import optimizers as _optimizers

from .models import data
from .support import Recording


def train(recording: Recording) -> list[Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    begin = len(recording.records)
    with statagent.watch(model, optimizer):
        for _ in range(3):
            model(data()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return [(r.name, r.kind, r.path, r.hash, r.shape) for r in recording.records[begin:]]


def test_a_list_records_what_one_by_one_records(agent: Agent, recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = train(recording)
    assert recording.lists == [], "on a CPU each goes by itself"
    monkeypatch.setattr(_optimizers, "goes_in_list", lambda tensor: True)
    together = train(recording)
    assert together == alone
    assert recording.lists == [6, 18] * 3, "gradients; weights with two moments each"
    assert statagent.counters().get("dropped_refused", 0) == 0


def test_the_library_takes_what_it_can(agent: Agent) -> None:
    good, again = (agent.intern(name, "weight") for name in ("good", "again"))
    places = [Place() for _ in range(5)]
    before = statagent.counters()["produced"]
    sparse = torch.eye(3).to_sparse()
    agent.observe_list(
        [
            (good, places[0], torch.ones(3)),
            (again, places[1], torch.ones(3)),
            (again, places[2], torch.ones(3)),  # twice in a step
            (12345, places[3], torch.ones(3)),  # never given out
            (good, places[4], sparse),
        ]
    )
    counters = statagent.counters()
    assert counters["produced"] - before == 2 + 3 + 2, "two stored, three refused, an event for the tensor and one for the list"
    assert counters["dropped_refused"] == 3


def test_nothing_is_held_after_the_call(agent: Agent) -> None:
    import weakref

    handle, tensor = agent.intern("w", "weight"), torch.ones(4)
    alive = weakref.ref(tensor)
    agent.observe_list([(handle, Place(), tensor)])
    del tensor
    assert alive() is None


def test_an_empty_list_and_null_pointers(agent: Agent) -> None:
    agent.observe_list([])
    library, refused = _library.load(), ctypes.c_uint64(7)
    assert agent.session is not None
    assert library.statagent_observe_list(agent.session.pointer, 0, None, None, None, refused) == 0
    assert refused.value == 0
    assert library.statagent_observe_list(agent.session.pointer, 2, None, None, None, refused) == 3
    assert refused.value == 2
