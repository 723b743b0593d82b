"""A mixture whose experts are spread over 2 and 4 ranks compares with one rank that has them all: quiet if both compute the same, and a fault is
named at the tensor of an expert, the router or the mixture. expert_runs.py has the model, and what each fault does."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
from conftest import ROOT, Collector, train_launches

PROGRAM = str(ROOT / "tests" / "e2e" / "expert_runs.py")
MIXTURE = "blocks.1.mlp"  # where the faults are
# What it names, in step 1.
FAULTS = {
    "stale": ("output", f"{MIXTURE}.experts.3*"),
    "gates": ("output", MIXTURE),
    "router_bf16": ("output", f"{MIXTURE}.router"),
    "dropped": ("output", f"{MIXTURE}.experts.2*"),
    "scaled": ("output", f"{MIXTURE}.router"),
}
# What the line of the router says of it: where the difference begins, and of which expert.
FINDINGS = {
    "stale": ("expert", 3),
    "gates": ("tokens", None),
    "router_bf16": ("router", None),
    "dropped": ("tokens", None),
    "scaled": ("router", None),
}
QUIET = ("identical", "within_tolerance")


def job(run: str, fault: str = "", capacity: int = 0, tied: bool = False, reordered: bool = False) -> dict[str, Any]:
    return {"run": run, "steps": 3, "fault": fault, "capacity": capacity, "tied": tied, "reordered": reordered}


@pytest.fixture(scope="module")
def runs(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Collector:
    folder, env = tmp_path_factory.mktemp("experts"), shared_collector.environment()
    faults = [job(fault, fault) for fault in FAULTS]
    tied = [job("tied", tied=True), job("tied_reordered", tied=True, reordered=True)]
    tied_ep2 = job("tied_ep2", tied=True, reordered=True)
    launches = {1: [job("whole"), *tied], 2: [job("ep2"), job("padded", capacity=200), tied_ep2, *faults], 4: [job("ep4")]}
    train_launches(PROGRAM, launches, folder, env, plain_alone=True)
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


def router(report: Any) -> Any:
    """What the answer says of the last block's."""
    return next(each for each in report["routers"] if each["router"] == f"{MIXTURE}.router")


@pytest.mark.parametrize("b", ["tied_reordered", "tied_ep2"])
def test_tokens_that_rounding_sends_elsewhere_are_no_bug(runs: Collector, b: str) -> None:
    report = runs.diff("tied", b, "--steps", "0")
    found = router(report)
    assert found["flips"] == found["near_ties"] > 0 and found["finding"] == "rounding", found
    assert found["agreeing"] < found["tokens"] * found["chosen"] and found["margin"] <= found["margin_limit"], found
    assert found["explained"] > 0.99 and found["apart"] == 0, found
    assert report["verdict"] in QUIET, (report["verdict"], report.get("root"), report["notes"])
    text = runs.statctl("--format", "table", "diff", "tied", b, "--steps", "0").out
    assert f"router {MIXTURE}.router, step 0: " in text and "near ties" in text, text


@pytest.mark.parametrize("b", ["tied_reordered", "tied_ep2"])
def test_what_follows_from_tokens_elsewhere_is_no_bug_either(runs: Collector, b: str) -> None:
    report = runs.diff("tied", b)
    assert report["verdict"] in QUIET, (report["verdict"], report.get("root"), report["notes"])


def test_equal_choices_are_one_line(runs: Collector) -> None:
    report = runs.diff("whole", "ep2")
    assert [each["finding"] for each in report["routers"]] == ["same", "same"], report["routers"]
    assert router(report)["load_a"] == router(report)["load_b"] and sum(router(report)["load_a"]) == 2 * router(report)["tokens"]
    assert "2 routers send all tokens to the same experts" in runs.statctl("--format", "table", "diff", "whole", "ep2").out


@pytest.mark.parametrize("fault", FINDINGS)
def test_faults_around_a_router_are_told_apart(runs: Collector, fault: str) -> None:
    found = router(runs.diff("whole", fault))
    finding, expert = FINDINGS[fault]
    assert (found["step"], found["finding"], found.get("expert")) == (1, finding, expert), found
    if fault == "dropped":
        assert found["apart"] == 1 and found["flips"] == 0, found
    if fault == "gates":
        assert found["apart"] == found["tokens"], found
    if fault == "router_bf16":
        assert (found["dtype_a"], found["dtype_b"]) == ("f32", "bf16"), found
