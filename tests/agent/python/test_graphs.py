"""CUDA graphs, as far as Python has a part in them: what is captured has not happened yet. The library's part: cuda_slots_test."""

from __future__ import annotations

import pytest
import torch

import statagent
from statagent._native import session

from .support import Recording


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Makes torch say whether the current stream is being captured."""
    state = {"on": False}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state["on"])
    return state


def test_a_captured_update_ends_no_step_and_its_replays_are_ended_by_hand(
    agent: statagent.Agent, recording: Recording, capture: dict[str, bool]
) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    statagent.watch(model, optimizer=optimizer)

    def train() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    train()
    assert recording.ended_steps == [0]
    statagent.step()
    assert recording.ended_steps == [0], "the optimizer ends the step"
    capture["on"] = True
    train()
    capture["on"] = False
    assert recording.ended_steps == [0], "nothing has run"
    for _ in range(2):
        statagent.step()
    assert recording.ended_steps == [0, 1, 2]


def test_the_streams_of_replays_are_named_before_a_step_ends_and_before_a_flush(
    agent: statagent.Agent, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int, int]] = []  # step, device, stream
    monkeypatch.setattr(session, "cuda_stream", lambda _, device: 1000 + device)
    monkeypatch.setattr(recording, "statagent_replays_in", lambda _, *to: told.append((agent.current_step(), *to)), raising=False)
    statagent.step()
    assert told == [], "no graph lives"
    monkeypatch.setattr(recording, "statagent_replay_devices", lambda _: 0b101, raising=False)
    statagent.step()
    assert told == [], "no program without CUDA has graphs, so the library is not asked"
    monkeypatch.setattr(session, "cuda_in_use", lambda: True)
    statagent.step()
    assert told == [(2, 0, 1000), (2, 2, 1002)]
    agent.set_step(7)
    statagent.flush(timeout=0)
    assert [step for step, _, _ in told] == [2, 2, 3, 3, 7, 7]


def test_the_library_knows_no_graphs_without_a_gpu(agent: statagent.Agent, recording: Recording) -> None:
    assert agent.session is not None
    assert recording.real.statagent_replay_devices(agent.session.pointer) == 0
    recording.real.statagent_replays_in(agent.session.pointer, 0, None)
    statagent.step()
    assert agent.current_step() == 1
