"""Trains the examples of examples/frameworks, several runs in one process: starting a framework takes longer than training."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conftest import ROOT, Collector, run_command, torchrun

EXAMPLES = ROOT / "examples" / "frameworks"
# In one launch all ranks train each job, one after the other.
DRIVER = """
import importlib, json, os, sys
sys.path.insert(0, sys.argv[1])
example = importlib.import_module(sys.argv[2])
from statagent._runtime.current import set_current_agent
from torch import distributed
if "RANK" in os.environ:
    distributed.init_process_group("gloo")
for job in json.loads(sys.argv[3]):
    set_current_agent(None)  # as in a process of its own
    example.main(job)
    if distributed.is_initialized():
        distributed.barrier()
if distributed.is_initialized():
    distributed.destroy_process_group()
"""


@dataclass
class Trained:
    """The output of one run: losses by rank, each with its step; the hash of the final weights and the counted records by rank."""

    losses: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    weights: dict[int, str] = field(default_factory=dict)
    records: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def same_training(self, other: Trained) -> bool:
        return self.losses == other.losses and self.weights == other.weights


def train(
    collector: Collector, folder: Path, example: str, *jobs: list[str], ranks: int = 1, launcher: list[str] | None = None
) -> dict[str, Trained]:
    """Runs `main` of the example with each job's arguments, started by `launcher` (default: torchrun if there are several ranks); what was
    printed, by run."""
    script = folder / f"{example}_driver.py"
    script.write_text(DRIVER)
    if launcher is None:
        launcher = torchrun(ranks) if ranks > 1 else [sys.executable]
    command = [*launcher, str(script), str(EXAMPLES), example, json.dumps(jobs)]
    done = run_command(command, env=collector.environment(), timeout=240, cwd=folder)
    assert done.code == 0, f"{example} exited with {done.code}:\n{done.out}\n{done.err}"
    return parse(done.out)


def parse(out: str) -> dict[str, Trained]:
    found: dict[str, Trained] = {}
    for line in out.splitlines():
        # A framework's own print may lie before it: unbuffered, that is a text and then, in a write of its own, the end of the line.
        match = re.search(r"([\w.-]+) rank (\d+) (step|weights|records:) ?(.*)", line)
        if not match:
            continue
        run, rank, what, rest = found.setdefault(match[1], Trained()), int(match[2]), match[3], match[4]
        if what == "step":
            step, loss = re.fullmatch(r"(\d+) loss (\S+)", rest).groups()  # type: ignore[union-attr]
            run.losses.setdefault(rank, []).append((int(step), loss))
        elif what == "weights":
            run.weights[rank] = rest
        else:
            produced, stored, dropped = map(int, re.findall(r"\d+", rest))
            run.records[rank] = (produced, stored, dropped)
    return found


def check_same_training_with_and_without(runs: dict[str, Trained], watched: str, plain: str, ranks: int = 1) -> None:
    """Bit for bit the same losses and weights; the plain run made no record, the other one lost none."""
    assert len(runs[watched].losses) == ranks and len(runs[watched].weights) == ranks, runs[watched]
    assert len(runs[watched].losses[0]) >= 4
    assert len({loss for _, loss in runs[watched].losses[0]}) > 3, "the loss does not move"
    assert runs[watched].same_training(runs[plain]), f"{runs[watched]}\n{runs[plain]}"
    for rank in range(ranks):
        produced, stored, dropped = runs[watched].records[rank]
        assert produced == stored > 50 and dropped == 0, runs[watched].records
        assert runs[plain].records[rank] == (0, 0, 0)


def observations(collector: Collector, run: str, folder: Path) -> list[dict[str, str]]:
    """All recorded tensors, a dictionary each: rank, step, micro_batch, kind, activation, output_path, call, ..."""
    path = folder / f"{run}.csv"
    done = collector.statctl("export", "csv", run, str(path))
    assert done.code == 0, done.out + done.err
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def names(rows: list[dict[str, str]], kind: str, **where: Any) -> list[str]:
    """Distinct names of a kind, in order of first appearance."""
    found = [row for row in rows if row["kind"] == kind and all(row[key] == str(value) for key, value in where.items())]
    return list(dict.fromkeys(row["activation"] for row in found))


def places(rows: list[dict[str, str]], kind: str, name: str) -> list[tuple[int, int, int]]:
    """(rank, step, micro-batch) of each record of a tensor in training, sorted."""
    return sorted(
        (int(row["rank"]), int(row["step"]), int(row["micro_batch"]))
        for row in rows
        if (row["kind"], row["activation"], row["mode"]) == (kind, name, "train")
    )


def check_identical(collector: Collector, a: str, b: str) -> None:
    report = collector.diff(a, b)
    assert report["verdict"] == "identical", report
    assert report["compared"]["records"] == report["compared"]["identical"] > 50
    assert report["unmatched"] == {"only_a": [], "only_b": []}


def first_difference(collector: Collector, a: str, b: str) -> tuple[int, str, str, str]:
    """Step, stage, kind and name where `statctl diff` sees b diverge from a."""
    report = collector.diff(a, b)
    assert report["verdict"] == "diverged", report
    first = report["first"]
    return first["step"], first["stage"], first["kind"], first["activation"]


def scalars(collector: Collector, run: str, name: str) -> list[tuple[int, int, float]]:
    """(step, micro-batch, value) of rank 0, sorted."""
    found = collector.json("scalars", run)
    return sorted((r["step"], r["micro_batch"], r["value"]) for r in found["records"] if r["name"] == name and r["rank"] == 0)
