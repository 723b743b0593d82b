"""Memory of the GPU's allocator and densities of inputs on the GPU. Skipped, and counted as such, where torch sees no CUDA device."""

# ruff: noqa: PT009 - runs without pytest too, whose assertions explain themselves
from __future__ import annotations

import unittest
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn

from . import places

from statagent._runtime.deferred import Deferred  # isort: skip  # found through places
from statagent._watch.density import DensityObserver  # isort: skip
from statagent._torch.modules import Named  # isort: skip
from statagent._watch.memory import MemoryObserver  # isort: skip

assert places.PACKAGE.is_dir()

MIB = 1 << 20


class Clock:
    """The part of an agent's clock that observers use."""

    def __init__(self) -> None:
        self.inputs_wanted, self.micro_batch = True, 0
        self.step_listeners: list[Any] = []
        self.batch_listeners: list[Any] = []

    def next_micro_batch(self) -> int:
        return self.micro_batch


class Noted:
    """The part of an agent that observers use; keeps what they record. Anything that is refused fails the test."""

    def __init__(self) -> None:
        self.clock, self.closed, self.step = Clock(), False, 0
        self.memory: list[tuple[str, str, dict[str, int], str]] = []
        self.densities: list[tuple[Any, ...]] = []
        self.deferred = Deferred(self.refuse)

    def current_step(self) -> int:
        return self.step

    def log_memory(self, phase: str, quantities: Mapping[str, int], device: str, module: str = "") -> None:
        self.memory.append((phase, device, dict(quantities), module))

    def log_density(self, *values: Any, micro_batch: int, step: int) -> None:
        self.densities.append((*values, micro_batch, step))

    def refuse(self, message: str, *_: str) -> None:
        raise AssertionError(message)


@unittest.skipUnless(torch.cuda.is_available(), "torch sees no CUDA device")
class TestMemory(unittest.TestCase):
    def test_the_allocators_counters(self) -> None:
        agent, model = Noted(), nn.Linear(1024, 1024).cuda()
        observer = MemoryObserver(agent, model, [], frozenset(["phases"]))  # type: ignore[arg-type]
        observer.phase("pre_forward")
        kept = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        observer.phase("post_forward")
        del kept
        observer.phase("pre_backward")
        (_, device, before, _), (_, _, during, _), (_, _, after, _) = agent.memory
        self.assertEqual(device, "cuda:0")
        self.assertEqual(during["allocated"] - before["allocated"], 64 * MIB)
        self.assertEqual(after["allocated"], before["allocated"])
        self.assertGreaterEqual(after["max_allocated"], during["allocated"])
        self.assertGreaterEqual(during["reserved"], during["allocated"])
        self.assertEqual(before["parameter"], 4 * (1024 * 1024 + 1024))
        self.assertTrue(0 < before["device_free"] < before["device_total"])
        self.assertEqual(during["allocated"], torch.cuda.memory_allocated() + 64 * MIB)

    def test_peaks_of_each_step_and_since_the_start(self) -> None:
        agent, model = Noted(), nn.Linear(8, 8).cuda()
        observer = MemoryObserver(agent, model, [], frozenset(["phases", "peaks"]))  # type: ignore[arg-type]
        for step, size in enumerate((256, 16)):
            agent.step = step
            observer.phase("pre_forward")
            torch.empty(size * MIB, dtype=torch.uint8, device="cuda")
            observer.phase("post_forward")
        first, second = agent.memory[1][2], agent.memory[3][2]
        self.assertGreaterEqual(first["step_max_allocated"] - second["step_max_allocated"], 239 * MIB)
        self.assertEqual(second["max_allocated"], first["step_max_allocated"])

    def test_modules_that_raise_the_peak(self) -> None:
        agent, model = Noted(), nn.Sequential(nn.Linear(1024, 4096), nn.ReLU()).cuda()
        observer = MemoryObserver(agent, model, [], frozenset(["phases", "modules"]))  # type: ignore[arg-type]
        enter, leave = observer.module_hooks(Named("0", model[0], "", "Linear", 2), lambda: True)
        model[0].register_forward_pre_hook(enter)
        model[0].register_forward_hook(leave)
        torch.cuda.reset_peak_memory_stats()
        output = model(torch.zeros(4096, 1024, device="cuda"))
        (_, _, found, module), size = agent.memory[0], output.numel() * 4
        self.assertEqual(module, "0")
        self.assertGreaterEqual(found["allocated_delta"], size)
        self.assertGreaterEqual(found["peak_delta"], size)


@unittest.skipUnless(torch.cuda.is_available(), "torch sees no CUDA device")
class TestDensity(unittest.TestCase):
    def test_counts_come_without_waiting_for_the_gpu(self) -> None:
        agent, model = Noted(), nn.Embedding(100, 16, padding_idx=1).cuda()
        observer = DensityObserver(agent, [], {"labels": -100}, lambda: True)  # type: ignore[arg-type]
        try:
            ids = torch.tensor([[3, 4, 5, 1, 1, 1], [7, 8, 9, 1, 1, 1]], device="cuda")
            observer.note_input("input_ids", ids)
            torch.cuda.synchronize()
            torch.cuda._sleep(int(2e8))  # about a tenth of a second
            model(ids)
            observer.note_input("labels", torch.tensor([-100, 1, 2], device="cuda"))
            self.assertEqual(agent.densities, [], "it waited")
            self.assertTrue(agent.deferred.drain(10))
            self.assertEqual(
                agent.densities,
                [("input_ids", "embed", 1, 6, 12, [3, 3], 0, 0), ("labels", "label", -100, 2, 3, [], 0, 0)],
            )
        finally:
            observer.remove()

    def test_losses_on_the_gpu(self) -> None:
        agent = Noted()
        observer = DensityObserver(agent, [], {}, lambda: True)  # type: ignore[arg-type]
        try:
            logits = torch.zeros(4, 3, device="cuda", requires_grad=True)
            functional.cross_entropy(logits, torch.tensor([0, 1, -100, 2], device="cuda")).backward()
            self.assertTrue(agent.deferred.drain(10))
            self.assertEqual(agent.densities, [("labels", "label", -100, 3, 4, [], 0, 0)])
        finally:
            observer.remove()


if __name__ == "__main__":
    unittest.main()
