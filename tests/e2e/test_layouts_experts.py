"""A mixture whose experts are spread over 2 and 4 ranks compares with one rank that has them all: quiet if both compute the same, and a fault is
named at the tensor of an expert, the router or the mixture. expert_runs.py has the model, and what each fault does."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from typing import Any

import pytest
from conftest import ROOT, Collector, run_command, torchrun

PROGRAM = str(ROOT / "tests" / "e2e" / "expert_runs.py")
MIXTURE = "blocks.1.mlp"  # where the faults are
# What it names, in step 1.
FAULTS = {
    "stale": ("output", f"{MIXTURE}.experts.3*"),
    "gates": ("output", MIXTURE),
    "router_bf16": ("output", f"{MIXTURE}.router"),
    "dropped": ("output", f"{MIXTURE}.experts.2*"),
}
QUIET = ("identical", "within_tolerance")


def job(run: str, fault: str = "", capacity: int = 0) -> dict[str, Any]:
    return {"run": run, "steps": 3, "fault": fault, "capacity": capacity}


@pytest.fixture(scope="module")
def runs(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Collector:
    folder, env = tmp_path_factory.mktemp("experts"), shared_collector.environment()
    faults = [job(fault, fault) for fault in FAULTS]
    launches = {1: [job("whole")], 2: [job("ep2"), job("padded", capacity=200), *faults], 4: [job("ep4")]}

    def train(ranks: int) -> None:
        path = folder / f"{ranks}.json"
        path.write_text(json.dumps(launches[ranks]), encoding="utf-8")
        program = [sys.executable, PROGRAM, str(path)] if ranks == 1 else torchrun(ranks, PROGRAM, str(path))
        done = run_command(program, env=env)
        assert done.code == 0, f"{done.out}\n{done.err}"

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train, launches))
    return shared_collector


@pytest.mark.parametrize(("a", "b"), [("whole", "ep2"), ("whole", "ep4"), ("ep2", "ep4"), ("whole", "padded"), ("ep4", "padded")])
def test_spread_experts_are_those_of_one_rank(runs: Collector, a: str, b: str) -> None:
    report = runs.diff(a, b)
    assert report["verdict"] in QUIET, (report["verdict"], report.get("root"), report["notes"])
    assert not any("layout not known" in note or "missing" in note for note in report["notes"]), report["notes"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_at_its_tensor_and_step(runs: Collector, fault: str) -> None:
    report = runs.diff("whole", fault)
    root = report.get("root") or report.get("first")
    assert report["verdict"] == "diverged" and root is not None, report["verdict"]
    kind, name = FAULTS[fault]
    assert (root["kind"], root["step"]) == (kind, 1) and fnmatchcase(root["activation"], name), root
