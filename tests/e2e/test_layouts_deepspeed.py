"""ZeRO 1 and 2 beside tensor parallelism, offloaded optimizers and Ulysses compare with one rank without them: quiet if both compute the same, and a
fault is named at its tensor. Needs DeepSpeed, which scripts/setup.sh does not install (docs/layouts.md). deepspeed_runs.py has the models, and what
each fault does."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from conftest import ROOT, Collector, train_launches

for package in ("deepspeed", "transformers"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"found no {package}; expected it for these tests: pip install {package}", allow_module_level=True)

PROGRAM = str(ROOT / "tests" / "e2e" / "deepspeed_runs.py")
# By number of ranks: run -> options of deepspeed_runs.Job.
RUNS: dict[int, dict[str, dict[str, Any]]] = {
    1: {"plain": {}, "llama": {"ulysses": True}},
    2: {
        "offload": {"stage": 2, "offload": True}, "offload_lost": {"stage": 2, "offload": True, "fault": "stale_state"},
        "ulysses": {"ulysses": True, "stage": 1}, "positions": {"ulysses": True, "stage": 1, "fault": "positions"},
    },
    4: {
        "zero1_tp2": {"stage": 1, "tensor": 2}, "zero2_tp2": {"stage": 2, "tensor": 2},
        "lost": {"stage": 2, "tensor": 2, "fault": "stale_state"},
    },
}  # fmt: skip
CLEAN = [("plain", "offload"), ("plain", "zero1_tp2"), ("plain", "zero2_tp2"), ("offload", "zero1_tp2"), ("llama", "ulysses")]
# The run without the fault, and what is named, in step 1.
FAULTS = {
    "lost": ("plain", "weight", "blocks.0.fc2.weight"),
    "offload_lost": ("plain", "weight", "blocks.0.fc2.weight"),
    "positions": ("llama", "batch", "position_ids"),
}
QUIET = ("identical", "within_tolerance")


@pytest.fixture(scope="module")
def runs(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Collector:
    folder = tmp_path_factory.mktemp("deepspeed")
    env = shared_collector.environment(DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="")
    jobs = {ranks: [{"run": run, **options} for run, options in runs.items()] for ranks, runs in RUNS.items()}
    train_launches(PROGRAM, jobs, folder, env)
    return shared_collector


@pytest.mark.parametrize(("a", "b"), CLEAN)
def test_what_deepspeed_spreads_is_that_of_one_rank(runs: Collector, a: str, b: str) -> None:
    report = runs.diff(a, b)
    assert report["verdict"] in QUIET, (report["verdict"], report.get("root"), report["notes"])
    assert not any("missing" in note for note in report["notes"]), report["notes"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_at_its_tensor_and_step(runs: Collector, fault: str) -> None:
    clean, kind, name = FAULTS[fault]
    report = runs.diff(clean, fault)
    root = report.get("root") or report.get("first")
    assert report["verdict"] == "diverged" and root is not None, report["verdict"]
    assert (root["kind"], root["activation"], root["step"]) == (kind, name, 1), root
