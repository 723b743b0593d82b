"""Rows of tokens of a GPU's matrices, through a collector: nothing waits for them, and they are those of the CPU's matrices."""

# ruff: noqa: PT009 - runs without pytest too, whose assertions explain themselves
from __future__ import annotations

import json
import subprocess
import time
import unittest

import torch

from . import places
from .test_gpu_scalars import waiting_is_an_error
from .test_gpu_training import collector

import statagent  # isort: skip  # found through places

_BUSY_CYCLES = 2_000_000_000  # about a second
_TOKENS = 300


@unittest.skipUnless(torch.cuda.is_available(), "torch sees no CUDA device")
class TestRecordedRows(unittest.TestCase):
    def record(self, run: str, address: str, device: str) -> float:
        """Seconds that the calls took."""
        generator = torch.Generator().manual_seed(3)
        values = torch.randn(4, _TOKENS, 512, generator=generator).to(device)
        keys, index = statagent.token_keys(range(_TOKENS)), range(_TOKENS - 1, -1, -1)
        agent = statagent.init(run=run, collector=address, required=True)
        agent.record_rows("warm", values[0], keys, range(_TOKENS))  # allocates
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda._sleep(_BUSY_CYCLES)
        started = time.monotonic()
        with waiting_is_an_error():
            for layer, rows in enumerate(values):
                agent.record_rows(f"layers.{layer}", rows * 2, keys, range(_TOKENS))
                agent.record_rows(f"turned.{layer}", rows * 3, keys, range(_TOKENS), index=index)
        spent = time.monotonic() - started
        agent.step()
        self.assertTrue(agent.close(timeout=60), agent.counters())
        return spent

    def test_nothing_waits_and_they_are_those_of_the_cpu(self) -> None:
        with collector() as address:
            self.record("cpu", address, "cpu")
            self.assertLess(self.record("gpu", address, "cuda"), 0.5)
            command = [
                str(places.BINARIES / "statctl"),
                "--collector",
                address,
                "--format",
                "json",
                "diff",
                "cpu",
                "gpu",
                "--tokens",
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            found = json.loads(done.stdout)
            self.assertEqual(len(found["taps"]), 9, found)
            for tap in found["taps"]:
                self.assertEqual((tap["rows"], tap["equal"]), (_TOKENS, _TOKENS), tap)
