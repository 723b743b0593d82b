"""Launches of a few ranks over gloo, shared by the tests of layouts: each rank runs several checks and returns what it computed."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warm_python import shared

import statagent

from .support import environment

TESTS = Path(__file__).resolve().parents[1]  # tests/agent
TIMEOUT_SECONDS = 240


@dataclass
class Found:
    """What one check found on one rank. A tensor's label is the same on all ranks."""

    parts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # label, compute() of what is here
    wholes: dict[str, dict[str, Any]] = field(default_factory=dict)  # label -> compute() of the whole
    facts: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    def part(self, label: str, tensor: Any, placement: Any) -> None:
        """Statistics of a tensor at its placement; nothing if the placement is not known."""
        self.facts[f"placement of {label}"] = placement
        if placement is None:
            return
        place = {"flat": placement.ranges} if placement.ranges else {"boxes": placement.boxes}
        got = statagent.compute(tensor, global_shape=placement.global_shape, partial=placement.partial, **place)
        self.parts.append((label, got))

    def whole(self, label: str, tensor: Any) -> None:
        self.wholes[label] = statagent.compute(tensor)


def launch(folder: Path, module: str, ranks: int) -> list[dict[str, Found]]:
    """Runs every function of the module's list CHECKS on this many ranks. Returns what each rank found, by name of the function."""
    env = _environment()
    env |= shared(environment()).stand_in()
    processes = [
        subprocess.Popen(
            [env["PYTHON_EXEC"], "-c", "from python.layouts_ranks import main; main()", module, str(rank), str(ranks), str(folder)],
            env=env, cwd=TESTS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    outputs = []
    try:
        outputs = [process.communicate(timeout=TIMEOUT_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, (process, output) in enumerate(zip(processes, outputs)):
        assert process.returncode == 0, f"rank {rank} exited with {process.returncode}:\n{output[-6000:]}"
    return [pickle.loads((folder / f"found-{rank}").read_bytes()) for rank in range(ranks)]


def _environment() -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH", "")
    env = environment(DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="")
    env["PYTHONPATH"] = f"{env['PYTHONPATH']}:{TESTS}:{TESTS.parent / 'e2e'}" + (f":{inherited}" if inherited else "")
    return env


def check_merges(ranks: list[dict[str, Found]], name: str) -> None:
    """Of every tensor of the check, the distinct parts of all ranks merge to the whole: hash bit for bit."""
    for rank, found in enumerate(ranks):
        assert not found[name].error, f"rank {rank}:\n{found[name].error}"
    wholes = {label: whole for found in ranks for label, whole in found[name].wholes.items()}
    assert wholes
    for label, whole in wholes.items():
        parts = [part for found in ranks for its, part in found[name].parts if its == label]
        facts = [found[name].facts.get(f"placement of {label}") for found in ranks]
        assert parts, f"{label}: no rank has a part: {facts}"
        distinct = {repr((part["global_shape"], part.get("boxes"), part.get("flat"))): part for part in parts}
        for part in parts:  # replicas
            same = distinct[repr((part["global_shape"], part.get("boxes"), part.get("flat")))]
            assert part["hash"] == same["hash"], f"{label}: replicas differ: {facts}"
        merged = statagent.merge(distinct.values())
        assert merged["complete"], f"{label}: {facts}"
        assert merged["hash"] == whole["hash"], f"{label}: {facts}"
        assert merged["shape"] == whole["shape"], f"{label}: {facts}"


def main() -> None:
    module, rank, ranks, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks)
    )
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    checks: list[Callable[[Found, int, int], None]] = importlib.import_module(module).CHECKS[ranks]
    results: dict[str, Found] = {}
    for check in checks:
        found = results[check.__name__] = Found()
        try:
            check(found, rank, ranks)
        except Exception:
            found.error = traceback.format_exc()
        distributed.barrier()
    (folder / f"found-{rank}").write_bytes(pickle.dumps(results))
    distributed.destroy_process_group()
