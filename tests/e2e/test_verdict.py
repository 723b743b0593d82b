"""The main job: two real training runs under torchrun, one collector, one verdict."""

from __future__ import annotations

import sys

import pytest
from conftest import TRAIN, Collector, run_command, wait_until

FIRST_FIELDS = {
    "step", "micro_batch", "rank", "stage", "kind", "activation", "output_path", "call", "reason", "distance", "distance_kind",
    "tolerance", "times_noise", "origin", "a", "b",
}  # fmt: skip
SIDE_FIELDS = {"min", "max", "mean", "std", "l2", "nan"}


MISTAKES = ("ln_eps", "attn_scale", "bf16_sublayer", "causal_mask", "dropped_bias")
SHARED = ["--global-batch", "4"]
# All on two ranks.
RUNS = {
    "base": [],
    "base2": [],
    **{bug: ["--bug", bug, "--bug-layer", "1", "--bug-step", "2"] for bug in MISTAKES},
    "eps_table": ["--bug", "ln_eps", "--bug-layer", "1", "--bug-step", "1"],
    **{bug: ["--bug", bug, "--bug-step", "1"] for bug in ("lr", "grad_sync")},
    "seed": ["--seed", "2"],
    "two": SHARED,
    "unsynced": [*SHARED, "--bug", "grad_sync", "--bug-step", "2"],
    "merged_lr": [*SHARED, "--bug", "lr", "--bug-step", "1"],
}


@pytest.fixture(scope="module")
def runs(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Collector:
    """base, base2 (identical) and one run for each mistake."""
    shared_collector.train_all(RUNS, tmp_path_factory.mktemp("jobs"))
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


def test_runs_of_one_and_of_two_ranks_are_compared_replica_by_replica(runs: Collector) -> None:
    runs.train("one", *SHARED, ranks=1)
    # The bias of attention's keys has a gradient of nothing but rounding, of which Adam makes steps of some size.
    merged = ("--merge-ranks", "--tolerance", "0.02")
    report = runs.diff("one", "two", *merged)
    assert report["verdict"] == "within_tolerance", report["first"]
    assert (report["ranks"], report["ranks_b"]) == ([0], [0, 1])
    assert (report["inputs"]["weights"], report["inputs"]["batches"]) == ("identical", "unknown")
    assert report["compared"]["records"] > 2 * 4 * 30
    assert any("activations, batches and losses depend on each rank's own data" in note for note in report["notes"])
    whole = runs.diff("one", "two")
    assert (whole["verdict"], whole.get("explained")) == ("within_tolerance", "rounding"), whole["root"]
    assert runs.diff("one", "two", "--by-rank")["first"]["stage"] == "batch"  # rank 0 of two has half of the sequences

    report = runs.diff("one", "unsynced", *merged)
    first = report["first"]
    assert (first["step"], first["stage"], first["rank"], first["rank_b"]) == (2, "grad", 0, None)
    assert report["spread"]["ranks_b"] == [0, 1]
    text = runs.statctl("diff", "one", "unsynced", *merged).out
    assert "ranks 0 (B: 0, 1)" in text and "0 (B: 1)" in text and "divide the same batch" in text

    # How large those steps are differs from processor to processor.
    noise = [
        row["distance"]
        for row in runs.diff("one", "two", "--merge-ranks", "--tolerance", "0.001", "--all")["diverged"]
        if row["step"] <= 1
    ]
    tolerance = max(0.002, 1.2 * max(noise, default=0.0))
    first = runs.diff("one", "merged_lr", "--merge-ranks", "--tolerance", str(tolerance))["first"]
    assert (first["step"], first["stage"], first["reason"]) == (1, "optimizer", "numeric")


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
    first = runs.diff("base", bug)["first"]
    assert (first["step"], first["stage"], first["origin"]) == (1, stage, True), first


def test_different_weights_and_data_are_named_before_any_activation(runs: Collector) -> None:
    report = runs.diff("base", "seed")
    assert report["first"]["stage"] == "weights"
    assert report["inputs"]["weights"] == "differ"
    assert report["inputs"]["batches"] == "differ"
    assert any(d["key"].endswith("seed") for d in report["inputs"]["config"])


def test_replicas_that_part_raise_an_alarm(runs: Collector) -> None:
    def told(run: str) -> list[tuple[str, int, str]]:
        alarms = [e for e in runs.json("events", run)["records"] if e["fields"].get("severity") == "alarm"]
        return sorted((e["kind"], e["step"], e["fields"]["what"]) for e in alarms)

    wait_until(lambda: len(told("grad_sync")) > 1, what="the alarms")
    assert told("grad_sync") == [("rank_disagreement", 1, "gradients"), ("rank_disagreement", 1, "weights")]
    assert told("base") == []
