"""Scalars on a GPU: they arrive, for their own step, and nothing waits for them. Skipped where torch sees no CUDA device."""

# ruff: noqa: PT009 - runs without pytest too, whose assertions explain themselves
from __future__ import annotations

import contextlib
import math
import time
import unittest
from collections.abc import Iterator
from typing import Any

import torch

from . import places

import statagent  # isort: skip  # found through places
from statagent._runtime.deferred import Deferred  # isort: skip

assert places.PACKAGE.is_dir()

_BUSY_CYCLES = 2_000_000_000  # about a second


@contextlib.contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """torch raises at any operation that would wait for the GPU."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class Line:
    def __init__(self) -> None:
        self.got: list[Any] = []
        self.lost: list[str] = []
        self.queue = Deferred(self.lost.append)

    def add(self, tensor: Any) -> None:
        self.queue.add("value", tensor, lambda there: self.got.append(there.tolist()))


@unittest.skipUnless(torch.cuda.is_available(), "torch sees no CUDA device")
class TestDeferred(unittest.TestCase):
    def setUp(self) -> None:
        self.line = Line()
        self.line.add(torch.zeros((), device="cuda"))  # pinned memory is there from now on
        self.assertTrue(self.line.queue.drain(60))
        self.line.got.clear()

    def test_nothing_waits_for_a_busy_gpu(self) -> None:
        value = torch.full((), 1.5, device="cuda")
        torch.cuda.synchronize()
        torch.cuda._sleep(_BUSY_CYCLES)
        started = time.monotonic()
        with waiting_is_an_error():
            self.line.add(value * 2)
            self.line.queue.collect()
        self.assertLess(time.monotonic() - started, 0.2)
        self.assertEqual(self.line.got, [], "the GPU is still busy")
        del value
        torch.full((1000,), 7.0, device="cuda")  # may get the memory of what was freed
        self.assertTrue(self.line.queue.drain(60))
        self.assertEqual(self.line.got, [3.0])
        self.assertEqual(self.line.lost, [])

    def test_every_dtype_and_what_is_not_finite(self) -> None:
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool):
            self.line.add(torch.ones((), dtype=dtype, device="cuda"))
        for number in (math.nan, math.inf, -math.inf):
            self.line.add(torch.tensor(number, device="cuda"))
        self.line.add(torch.arange(5, device="cuda"))
        self.assertTrue(self.line.queue.drain(60))
        self.assertEqual(self.line.got[:6], [1, 1, 1, 1, 1, True])
        self.assertTrue(math.isnan(self.line.got[6]))
        self.assertEqual(self.line.got[7:], [math.inf, -math.inf, [0, 1, 2, 3, 4]])

    def test_value_of_another_stream(self) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(_BUSY_CYCLES // 10)
            self.line.add(torch.full((), 4.0, device="cuda"))
        self.assertTrue(self.line.queue.drain(60))
        self.assertEqual(self.line.got, [4.0])

    def test_value_of_a_captured_graph_is_refused(self) -> None:
        value = torch.zeros((), device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.line.add(value + 1)
        graph.replay()
        torch.cuda.synchronize()
        self.assertEqual(len(self.line.queue), 0)
        self.assertIn("graph is being captured", self.line.lost[0])


@unittest.skipUnless(torch.cuda.is_available(), "torch sees no CUDA device")
class TestAgent(unittest.TestCase):
    def setUp(self) -> None:
        self.agent = statagent.init(run="scalars", collector="127.0.0.1:1", connect_timeout=0)
        self.logged: list[tuple[str, float, int, int]] = []
        self.agent.log_scalar_at = lambda *record: self.logged.append(record)  # type: ignore[method-assign]

    def tearDown(self) -> None:
        statagent.close(timeout=0)

    def test_log_scalar_keeps_the_step_and_waits_for_nothing(self) -> None:
        losses = [torch.full((), float(number), device="cuda") for number in range(20)]
        statagent.log_scalar("warm", losses[0])
        torch.cuda.synchronize()
        torch.cuda._sleep(_BUSY_CYCLES // 4)
        with waiting_is_an_error():
            for loss in losses:
                statagent.log_scalar("loss", loss)
                statagent.step()
        statagent.flush(timeout=30)
        self.assertEqual([r for r in self.logged if r[0] == "loss"], [("loss", float(n), 0, n) for n in range(20)])

    def test_loss_scale_and_skipped_updates(self) -> None:
        model = torch.nn.Linear(4, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        statagent.watch(model, optimizer=optimizer, scaler=scaler)
        for factor in (1.0, math.inf, 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(3, 4, device="cuda")).square().mean() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
        statagent.flush(timeout=30)
        told = [(name, value, step) for name, value, _, step in self.logged if name in ("loss_scale", "found_inf")]
        expected = [("loss_scale", 1024.0, 0), ("found_inf", 0.0, 0), ("loss_scale", 1024.0, 1), ("found_inf", 1.0, 1),
                    ("loss_scale", 512.0, 1), ("found_inf", 0.0, 1)]  # fmt: skip
        self.assertEqual(told, expected)
