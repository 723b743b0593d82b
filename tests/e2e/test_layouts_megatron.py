"""Megatron-Core's distributed optimizer, mixed precision and experts compare with one rank without them: quiet if both compute the same, and a fault
is named at its tensor. Needs megatron-core, which scripts/setup.sh does not install (docs/layouts.md). megatron_runs.py has the model, and what
each fault does."""

from __future__ import annotations

import importlib.util
from fnmatch import fnmatchcase
from typing import Any

import pytest
from conftest import ROOT, Collector, train_launches

if importlib.util.find_spec("megatron") is None:
    pytest.skip("found no megatron-core; expected it for these tests: pip install megatron-core", allow_module_level=True)

PROGRAM = str(ROOT / "tests" / "e2e" / "megatron_runs.py")
BF16: dict[str, Any] = {"bf16": True}
MIXED: dict[str, Any] = {"experts": 4}
GROUPED: dict[str, Any] = {"experts": 4, "grouped": True, "bf16": True}
SHARED: dict[str, Any] = {"expert_ranks": 2}
DISTRIBUTED: dict[str, Any] = {"distributed": True}
# By number of ranks: run -> options of megatron_runs.Job.
RUNS: dict[int, dict[str, dict[str, Any]]] = {
    1: {"plain": {}, "bf16": BF16, "mixture": MIXED, "grouped": GROUPED},
    2: {
        "sharded": DISTRIBUTED, "bf16_sharded": BF16 | DISTRIBUTED, "ep2": MIXED | SHARED,
        "ep2_gathered": MIXED | SHARED | {"dispatcher": "allgather"}, "ep2_sharded": MIXED | SHARED | DISTRIBUTED,
        "ep2_grouped": GROUPED | SHARED | DISTRIBUTED,
        "stale_state": DISTRIBUTED | {"fault": "stale_state"}, "eps": DISTRIBUTED | {"fault": "eps"},
        "main_drift": BF16 | DISTRIBUTED | {"fault": "main_drift"}, "stale_expert": MIXED | SHARED | {"fault": "stale_expert"},
    },
    4: {"tp2_sharded": DISTRIBUTED | {"tensor": 2}, "dp2_ep2": MIXED | SHARED | DISTRIBUTED, "bf16_tp2": BF16 | {"tensor": 2}},
}  # fmt: skip
CLEAN = [
    ("plain", "sharded"), ("plain", "tp2_sharded"), ("sharded", "tp2_sharded"), ("bf16", "bf16_sharded"), ("bf16", "bf16_tp2"),
    ("mixture", "ep2"), ("mixture", "ep2_gathered"), ("mixture", "ep2_sharded"), ("mixture", "dp2_ep2"), ("ep2", "dp2_ep2"),
    ("grouped", "ep2_grouped"),
]  # fmt: skip
PARAMETER = "decoder.layers.0.mlp.linear_fc2.weight"
# The run without the fault, and what is named, in step 1.
FAULTS = {
    "stale_state": ("plain", "optimizer_state", PARAMETER),
    "eps": ("plain", "weight", "*"),
    "main_drift": ("bf16_sharded", "optimizer_state", PARAMETER),
    "stale_expert": ("mixture", "output", "decoder.layers.1.mlp.experts.local_experts.3*"),
}
QUIET = ("identical", "within_tolerance")


@pytest.fixture(scope="module")
def runs(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Collector:
    folder = tmp_path_factory.mktemp("megatron")
    env = shared_collector.environment(TORCHDYNAMO_DISABLE="1", CUDA_VISIBLE_DEVICES="")
    jobs = {ranks: [{"run": run, **options} for run, options in runs.items()] for ranks, runs in RUNS.items()}
    train_launches(PROGRAM, jobs, folder, env)
    return shared_collector


@pytest.mark.parametrize(("a", "b"), CLEAN)
def test_what_megatron_spreads_is_that_of_one_rank(runs: Collector, a: str, b: str) -> None:
    report = runs.diff(a, b)
    assert report["verdict"] in QUIET, (report["verdict"], report.get("root"), report["notes"])
    assert not any("missing" in note for note in report["notes"]), report["notes"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_at_its_tensor_and_step(runs: Collector, fault: str) -> None:
    clean, kind, name = FAULTS[fault]
    report = runs.diff(clean, fault)
    root = report.get("root") or report.get("first")
    assert report["verdict"] == "diverged" and root is not None, report["verdict"]
    assert (root["kind"], root["step"]) == (kind, 1) and fnmatchcase(root["activation"], name), root


@pytest.mark.parametrize(("run", "count"), [("sharded", 2), ("bf16_sharded", 3), ("ep2_grouped", 3)])
def test_the_shards_of_an_optimizer_are_joined(runs: Collector, run: str, count: int) -> None:
    """exp_avg, exp_avg_sq, and the main copy of weights in another precision, each whole."""
    name = PARAMETER if run != "ep2_grouped" else "decoder.layers.0.mlp.experts.weight1"
    rows = runs.json("series", run, name, "--kind", "optimizer_state")["records"]
    assert len(rows) == 3 * count and {tuple(row["ranks"]) for row in rows} == {(0, 1)}, rows
