"""Memory by phase of the step: which phases, what they tell, and that nothing raises."""

from __future__ import annotations

import gc
import mmap
import sys
from typing import Any

import pytest
import torch
from torch import nn

import statagent
from statagent import Agent
from statagent._watch.memory import MemoryObserver, check_memory

from .models import data
from .support import Recording

PHASES = ["pre_forward", "post_forward", "pre_backward", "post_backward"]
MIB = 1 << 20


def phases(recording: Recording, step: int) -> list[str]:
    return [phase for at, phase, _, _, module, _ in recording.memory if at == step and not module]


def quantities(recording: Recording, phase: str, step: int = 0) -> dict[str, int]:
    return next(found for at, name, _, _, module, found in recording.memory if (at, name, module) == (step, phase, ""))


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer | None, steps: int, micro_batches: int = 1) -> None:
    for _ in range(steps):
        for _ in range(micro_batches):
            model(data()).square().mean().backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()


def test_every_phase_of_every_step_in_order(agent: Agent, recording: Recording) -> None:
    model, optimizer = make()
    statagent.watch(model, optimizer)
    train(model, optimizer, 32)
    for step in range(32):
        assert phases(recording, step) == [*PHASES, "pre_optimizer", "post_optimizer"]


def test_micro_batches_have_phases_of_their_own(agent: Agent, recording: Recording) -> None:
    model, optimizer = make()
    statagent.watch(model, optimizer)
    train(model, optimizer, 2, micro_batches=3)
    assert phases(recording, 1) == [*PHASES * 3, "pre_optimizer", "post_optimizer"]
    assert [at for step, phase, at, *_ in recording.memory if (step, phase) == (1, "post_backward")] == [0, 1, 2]


def test_only_recorded_steps_have_phases(agent: Agent, recording: Recording) -> None:
    model, optimizer = make()
    statagent.watch(model, optimizer, steps="1,3-")
    train(model, optimizer, 5)
    assert sorted({step for step, *_ in recording.memory}) == [1, 3, 4]


def test_evaluation_has_none_and_a_failed_pass_stops_nothing(agent: Agent, recording: Recording) -> None:
    model, optimizer = make()
    statagent.watch(model, optimizer)
    with torch.no_grad():
        model(data())
    with pytest.raises(RuntimeError):
        model(torch.zeros(2, 3))
    assert phases(recording, 0) == ["pre_forward", "post_forward"]
    train(model, optimizer, 1)
    assert phases(recording, 0)[2:] == [*PHASES, "pre_optimizer", "post_optimizer"]
    assert statagent.counters().get("dropped_refused", 0) == 0


def test_phases_in_an_odd_order_are_recorded_as_they_come(agent: Agent, recording: Recording) -> None:
    model, optimizer = make()
    statagent.watch(model, optimizer)
    optimizer.step()  # before any forward pass
    first, second = model(data()).sum(), model(data()).sum()
    second.backward()
    first.backward()
    optimizer.step()
    assert phases(recording, 0) == ["pre_optimizer", "post_optimizer"]
    assert phases(recording, 1) == [
        "pre_forward", "post_forward", "pre_forward", "post_forward", "pre_backward", "post_backward", "pre_optimizer", "post_optimizer",
    ]  # fmt: skip


def test_the_models_own_bytes_are_exact(agent: Agent, recording: Recording) -> None:
    model, optimizer = make()
    statagent.watch(model, optimizer)
    train(model, optimizer, 2)
    weights = 4 * sum(p.numel() for p in model.parameters())
    found = quantities(recording, "pre_optimizer", 1)
    assert (found["parameter"], found["gradient"]) == (weights, weights)
    assert found["buffer"] == 4 * 16 * 2 + 8
    # Two moments a weight, and AdamW's count of steps.
    assert quantities(recording, "post_optimizer", 1)["optimizer_state"] == 2 * weights + 4 * len(list(model.parameters()))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_resident_memory_grows_with_what_the_model_keeps(agent: Agent, recording: Recording) -> None:
    class Hoards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.kept = nn.Linear(8, 8), torch.zeros(0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # Not from the allocator, which may hand out what an earlier test has freed.
            self.kept = torch.frombuffer(mmap.mmap(-1, 64 * MIB), dtype=torch.float32).fill_(1)
            return self.fc(x)

    gc.collect()
    model = Hoards()
    statagent.watch(model, memory="modules")
    train(model, None, 1)
    before, after = quantities(recording, "pre_forward"), quantities(recording, "post_forward")
    assert after["host_rss"] - before["host_rss"] > 60 * MIB
    assert after["host_max_rss"] >= after["host_rss"]
    assert 0 < before["host_free"] < before["host_total"]
    modules = {module: found for _, phase, _, _, module, found in recording.memory if module}
    assert set(modules) == {"Hoards", "fc"}
    assert modules["Hoards"]["allocated_delta"] > 60 * MIB > modules["fc"]["allocated_delta"]
    assert modules["Hoards"]["peak_delta"] >= 0


def test_nested_and_repeated_modules_are_told_apart(agent: Agent, recording: Recording) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.fc(x))

    statagent.watch(nn.Sequential(model := Twice(), nn.ReLU()), memory=["modules"])
    model(torch.zeros(2, 8)).sum().backward()
    assert recording.memory == [], "no pass of the watched root"


def test_a_pass_through_modules_leaves_no_frame_behind(agent: Agent, recording: Recording) -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] == 1:
                raise ValueError("one")
            return x * 2

    model = nn.Sequential(nn.Linear(8, 8), Fails())
    statagent.watch(model, memory="modules")
    with pytest.raises(ValueError, match="one"):
        model(torch.zeros(1, 8))
    model(torch.zeros(2, 8)).sum().backward()
    names = [module for _, phase, _, _, module, _ in recording.memory if module]
    assert names[-3:] == ["0", "1", "Sequential"]


@pytest.mark.parametrize("memory", [False, None])
def test_it_can_be_switched_off(agent: Agent, recording: Recording, memory: Any) -> None:
    model, optimizer = make()
    statagent.watch(model, optimizer, memory=memory)
    train(model, optimizer, 2)
    assert recording.memory == []


@pytest.mark.parametrize("memory", ["all", 3, ["modules", "x"], {"phases": 1, "y": 2}, [None]])
def test_what_it_does_not_know_is_an_error(agent: Agent, memory: Any) -> None:
    with pytest.raises(statagent.InvalidArgumentError, match="expected True, False, 'modules'"):
        statagent.watch(nn.Linear(2, 2), memory=memory)


def test_choices_include_the_phases() -> None:
    assert check_memory("peaks") == {"phases", "peaks"}
    assert check_memory(["modules", "peaks"]) == {"phases", "modules", "peaks"}
    assert check_memory(False) == frozenset()


class FakeCuda:
    """torch.cuda as far as memory goes."""

    def __init__(self) -> None:
        self.current, self.peak, self.resets = 100, 300, 0

    def memory_stats_as_nested_dict(self, device: int) -> dict[str, Any]:
        found = {"all": {"current": self.current, "peak": self.peak}}
        return {"allocated_bytes": found, "reserved_bytes": found, "inactive_split_bytes": found}

    def is_current_stream_capturing(self) -> bool:
        return False

    def is_initialized(self) -> bool:
        return True

    def mem_get_info(self, device: int) -> tuple[int, int]:
        return 7, 9

    def max_memory_allocated(self, device: int) -> int:
        return self.peak

    def reset_peak_memory_stats(self, device: int) -> None:
        self.resets, self.peak = self.resets + 1, self.current


def test_what_the_allocator_counts(agent: Agent, recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arithmetic around torch's counters; the counters themselves are tested in tests/gpu."""
    cuda = FakeCuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    for choices in ({"phases"}, {"phases", "peaks"}):
        observer = MemoryObserver(agent, nn.Linear(2, 2), [], frozenset(choices))
        monkeypatch.setattr(observer, "_device_of_model", lambda: 1)
        observer.phase("pre_forward")
        cuda.current, cuda.peak = 150, max(cuda.peak, 250)
        observer.phase("post_forward")
        cuda.current = 100
        statagent.step()
    (_, _, _, device, _, plain), (*_, peaks) = recording.memory[1], recording.memory[3]
    assert device == "cuda:1"
    assert (plain["allocated"], plain["max_allocated"], plain["device_free"], plain["device_total"]) == (150, 300, 7, 9)
    assert "step_max_allocated" not in plain
    assert (peaks["step_max_allocated"], peaks["max_allocated"], cuda.resets) == (250, 300, 1)
