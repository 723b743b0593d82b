"""CUDA graphs: what is captured is recorded at each replay, in its own step. Skipped, and counted as such, where torch sees no CUDA device."""

# ruff: noqa: PT009 - runs without pytest too, whose assertions explain themselves
from __future__ import annotations

import json
import subprocess
import unittest
from typing import Any

import torch
from torch import nn

from . import places
from .places import BINARIES
from .test_gpu_training import collector

import statagent  # isort: skip  # found through places

assert places.PACKAGE.is_dir()


def series(address: str, run: str, activation: str, kind: str) -> list[tuple[int, float]]:
    """Step and l2 of each record."""
    command = [
        str(BINARIES / "statctl"), "--collector", address, "--format", "json", "series", run, activation, "--kind", kind,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [(record["step"], record["stats"]["l2"]) for record in json.loads(done.stdout)["records"]]


def model_of(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()


@unittest.skipUnless(torch.cuda.is_available(), "torch sees no CUDA device")
class TestGraphs(unittest.TestCase):
    def tearDown(self) -> None:
        statagent.close(timeout=10)

    def warm_up(self, work: Any) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(stream)

    def test_replays_are_recorded_with_their_values_and_steps(self) -> None:
        with collector() as address:
            statagent.init(run="replayed", collector=address)
            model, source = model_of(1), torch.randn(16, 64, device="cuda")
            inputs = source.clone()
            statagent.watch(model, kinds={"output"})
            self.warm_up(lambda: model(inputs))
            statagent.step()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                model(inputs)
            before = statagent.counters()["produced"]
            torch.cuda.synchronize()
            self.assertEqual(statagent.counters()["produced"], before, "nothing is recorded while a graph is captured")
            for step in range(1, 6):
                inputs.copy_(source * step)
                graph.replay()
                statagent.step()
            self.assertTrue(statagent.flush(timeout=30))
            found = series(address, "replayed", "0", "output")
            replayed = [point for point in found if point[0] >= 1]
            self.assertEqual([step for step, _ in replayed], [1, 2, 3, 4, 5])
            linear = model[0]
            assert isinstance(linear, nn.Linear)
            for step, l2 in replayed:
                with torch.no_grad():
                    wanted = nn.functional.linear(source * step, linear.weight, linear.bias).double().norm().item()
                self.assertAlmostEqual(l2 / wanted, 1.0, places=4)
            counts = statagent.counters()
            self.assertEqual(counts["pending"], 0)
            self.assertEqual([name for name in counts if name.startswith("dropped")], [])

    def test_a_whole_step_in_a_graph_and_a_window_of_steps(self) -> None:
        with collector() as address:
            statagent.init(run="whole", collector=address, steps="0-2,5,7")
            model, inputs = model_of(2), torch.randn(16, 64, device="cuda")
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
            statagent.watch(model, optimizer=optimizer)

            def train() -> None:
                optimizer.zero_grad(set_to_none=False)
                model(inputs).square().mean().backward()
                optimizer.step()

            train()  # step 0
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                train()
            for _ in range(1, 10):
                graph.replay()
                statagent.step()
            self.assertTrue(statagent.flush(timeout=30))
            steps = sorted({step for step, _ in series(address, "whole", "0", "output")})
            self.assertEqual(steps, [0, 1, 2, 5, 7])
            self.assertEqual(statagent.counters()["pending"], 0)

    def test_reduce_overhead_records_every_step(self) -> None:
        with collector() as address:
            statagent.init(run="compiled", collector=address)
            model, inputs = model_of(3), torch.randn(16, 64, device="cuda")
            statagent.watch(model, kinds={"output"})
            compiled = torch.compile(model, mode="reduce-overhead")
            for _ in range(6):
                torch.compiler.cudagraph_mark_step_begin()
                compiled(inputs).square().mean().backward()
                statagent.step()
            self.assertTrue(statagent.flush(timeout=60))
            self.assertEqual(statagent.counters()["pending"], 0)
            self.assertEqual([step for step, _ in series(address, "compiled", "0", "output")], list(range(6)))


if __name__ == "__main__":
    unittest.main()
