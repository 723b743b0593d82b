"""The main job: two real training runs under torchrun, one collector, one verdict."""

from __future__ import annotations

import sys

import pytest
from conftest import TRAIN, Collector, run_command

FIRST_FIELDS = {
    "step", "micro_batch", "rank", "stage", "kind", "activation", "output_path", "call", "reason", "distance", "distance_kind",
    "tolerance", "times_noise", "origin", "a", "b",
}  # fmt: skip
SIDE_FIELDS = {"min", "max", "mean", "std", "l2", "nan"}


@pytest.fixture(scope="module")
def runs(shared_collector: Collector) -> Collector:
    """base, base2 (identical) and one run for each mistake, all on two ranks."""
    shared_collector.train("base")
    shared_collector.train("base2")
    return shared_collector


def test_repeated_run_is_identical(runs: Collector) -> None:
    report = runs.diff("base", "base2")
    assert report["verdict"] == "identical"
    assert report["first"] is None
    assert report["ranks"] == [0, 1]
    assert report["steps"] == {"first": 0, "last": 3}
    assert report["compared"]["records"] > 0
    assert report["compared"]["identical"] == report["compared"]["records"]
    assert report["inputs"]["weights"] == "identical"
    assert runs.statctl("diff", "--run-a", "base", "--run-b", "base2").code == 0


@pytest.mark.parametrize(
    ("bug", "activation", "reason"),
    [
        ("ln_eps", "blocks.1.ln2", "numeric"),
        ("attn_scale", "blocks.1.attn.proj", "numeric"),
        ("bf16_sublayer", "blocks.1.mlp.fc1", "dtype"),
        ("causal_mask", "blocks.1.attn.proj", "numeric"),
        ("dropped_bias", "blocks.1.mlp.fc1", "numeric"),
    ],
)
def test_planted_mistake_is_found_at_its_module_and_step(runs: Collector, bug: str, activation: str, reason: str) -> None:
    runs.train(bug, "--bug", bug, "--bug-layer", "1", "--bug-step", "2")
    done = runs.statctl("--format", "json", "diff", "--run-a", "base", "--run-b", bug)
    assert done.code == 1, done.err
    report = done.json()
    assert report["verdict"] == "diverged"
    first = report["first"]
    assert FIRST_FIELDS <= first.keys()
    assert SIDE_FIELDS <= first["a"].keys() and SIDE_FIELDS <= first["b"].keys()
    assert first["step"] == 2
    assert first["rank"] == 0
    assert first["stage"] == "forward"
    assert first["kind"] == "output"
    assert first["activation"] == activation, first
    assert first["reason"] == reason
    assert first["origin"] is True
    assert first["reason"] != "numeric" or first["distance"] > first["tolerance"]
    assert report["ranks"] == [0, 1]
    same_place = {d["rank"] for d in runs.diff("base", bug, "--all")["diverged"]
                  if d["step"] == 2 and d["activation"] == first["activation"] and d["kind"] == "output"}  # fmt: skip
    assert same_place == {0, 1}, "both ranks must see it"


def test_json_report_has_the_contract_fields(runs: Collector) -> None:
    report = runs.diff("base", "base2")
    assert {
        "run_a",
        "run_b",
        "verdict",
        "first",
        "diverged",
        "compared",
        "unmatched",
        "inputs",
        "ranks",
        "steps",
    } <= report.keys()
    assert report["compared"].keys() >= {"records", "identical", "within_tolerance", "diverged"}
    assert report["unmatched"] == {"only_a": [], "only_b": []}
    assert report["inputs"]["config"] == [] or {"key", "a", "b"} <= report["inputs"]["config"][0].keys()


def test_table_names_the_verdict_first(runs: Collector) -> None:
    runs.train("eps_table", "--bug", "ln_eps", "--bug-layer", "1", "--bug-step", "1")
    done = runs.statctl("diff", "--run-a", "base", "--run-b", "eps_table")
    assert done.code == 1
    first_line = next(line for line in done.out.splitlines() if line.strip())
    for word in ("step 1", "rank 0", "forward", "blocks.1.ln2"):
        assert word in first_line, done.out
    assert "\x1b" not in done.out, "no colours where there is no terminal"


def test_runs_and_show_count_what_was_trained(runs: Collector) -> None:
    rows = {row["run"]: row for row in runs.json("runs")["runs"]}
    assert rows["base"]["ranks"] == 2
    assert rows["base"]["state"] == "finished"
    assert rows["base"]["first_step"] == 0 and rows["base"]["last_step"] == 3
    assert rows["base"]["dropped"] == 0
    shown = runs.json("show", "base")
    assert [rank["rank"] for rank in shown["attempts"][0]["ranks"]] == [0, 1]
    assert shown["config"]


def test_series_and_scalars_hold_every_step(runs: Collector) -> None:
    points = runs.json("series", "base", "blocks.1.ln2")["records"]
    outputs = [p for p in points if p["kind"] == "output"]
    assert [(p["rank"], p["step"]) for p in outputs] == [(r, s) for r in (0, 1) for s in range(4)]
    scalars = [s for s in runs.json("scalars", "base")["records"] if s["name"] == "loss"]
    assert len(scalars) == 8
    assert scalars[0].keys() >= {"run", "rank", "step", "name", "value"}


def test_single_process_without_torchrun_is_rank_0_of_1(runs: Collector) -> None:
    done = run_command([sys.executable, str(TRAIN), "--steps", "2", "--layers", "1", "--width", "32", "--heads", "2", "--context",
                        "32", "--batch", "2"], env=runs.environment(STATAGENT_RUN="alone"))  # fmt: skip
    assert done.code == 0, done.err
    shown = runs.json("show", "alone")
    assert [r["rank"] for r in shown["attempts"][0]["ranks"]] == [0]
    assert shown["summary"]["world_size"] == 1


@pytest.mark.parametrize(("bug", "stage"), [("lr", "optimizer"), ("grad_sync", "grad")])
def test_mistake_outside_the_model_is_found_in_its_stage(runs: Collector, bug: str, stage: str) -> None:
    runs.train(bug, "--bug", bug, "--bug-step", "1")
    first = runs.diff("base", bug)["first"]
    assert (first["step"], first["stage"], first["origin"]) == (1, stage, True), first


def test_different_weights_and_data_are_named_before_any_activation(runs: Collector) -> None:
    runs.train("seed", "--seed", "2")
    report = runs.diff("base", "seed")
    assert report["first"]["stage"] == "weights"
    assert report["inputs"]["weights"] == "differ"
    assert report["inputs"]["batches"] == "differ"
    assert any(d["key"].endswith("seed") for d in report["inputs"]["config"])
