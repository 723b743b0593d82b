"""A short training on the GPU, observed, through a collector to the verdict of `statctl diff`."""

# ruff: noqa: PT009 - runs without pytest too, whose assertions explain themselves
from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .places import BINARIES, PACKAGE, ROOT

STEPS = 6


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """Address of a collector with an empty store."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        command = [
            str(BINARIES / "statcollectord"),
            "--data-dir",
            f"{folder}/data",
            "--listen",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
        ]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            text, address = "", None
            for _ in range(300):
                text = (Path(folder) / "log").read_text()
                address = re.search(r"127\.0\.0\.1:[1-9]\d*", text)
                if address or process.poll() is not None:
                    break
                time.sleep(0.1)
            if address is None:
                raise AssertionError(f"statcollectord said: {text}")
            yield address.group()
        finally:
            process.terminate()
            process.wait(timeout=30)


def train(run: str, address: str, *arguments: str) -> None:
    environment = {
        **os.environ, "STATAGENT_COLLECTOR": address, "PYTHONPATH": str(PACKAGE), "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }  # fmt: skip
    command = [
        sys.executable, str(ROOT / "examples" / "gpt_torch" / "train.py"), "--run-name", run, "--device", "cuda",
        "--steps", str(STEPS), "--layers", "3", *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    counts = re.search(r"(\d+) produced, (\d+) stored, (\d+) dropped", done.stdout)
    assert counts, done.stdout
    produced, stored, dropped = (int(number) for number in counts.groups())
    assert dropped == 0, done.stdout
    assert stored == produced > STEPS * 20


def diff(address: str, a: str, b: str) -> tuple[int, Any]:
    command = [str(BINARIES / "statctl"), "--collector", address, "--format", "json", "diff", "--run-a", a, "--run-b", b]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, json.loads(done.stdout)


@unittest.skipUnless(torch.cuda.is_available(), "torch sees no CUDA device")
class TestTraining(unittest.TestCase):
    def test_two_equal_trainings_are_identical_and_a_mistake_is_found(self) -> None:
        with collector() as address:
            train("base", address)
            train("again", address)
            train("wrong", address, "--bug", "attn_scale", "--bug-layer", "1", "--bug-step", "2")
            code, verdict = diff(address, "base", "again")
            self.assertEqual((code, verdict["verdict"]), (0, "identical"), verdict)
            code, verdict = diff(address, "base", "wrong")
            self.assertEqual(code, 1, verdict)
            self.assertEqual(verdict["first"]["step"], 2)
            self.assertTrue(verdict["first"]["activation"].startswith("blocks.1.attn"), verdict["first"])
