"""One model under many layouts: runs that are cut up differently compare as one, and layout bugs are named where they were planted.

`python -m layouts` in this folder prints the tables that docs/layouts.md sums up."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Collector
from layouts.cuts import LAYOUTS
from layouts.runs import jobs, record
from layouts.tables import BUGS, ask

SAME = ("identical", "within_tolerance", "rounding")


def as_one_model(report: dict[str, Any]) -> bool:
    return any(each["detail"].startswith("compared as one model each") for each in report["comparable"])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("layouts")
    collector = Collector(folder / "data").start()
    record(collector, jobs(list(LAYOUTS), [bug.name for bug in BUGS], steps=4), folder)
    yield collector
    collector.stop()


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations(LAYOUTS, 2)))
def test_clean_layouts_are_the_same_up_to_rounding(recorded: Collector, a: str, b: str) -> None:
    answer = ask(recorded, a, b)
    assert answer.verdict in SAME, (answer.root, answer.report["notes"])
    assert answer.report["compared"]["records"] > 100


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_layout_bug_is_named_at_its_tensor(recorded: Collector, bug: Any) -> None:
    answer = ask(recorded, bug.reference, bug.run)
    assert answer.verdict == "diverged" and bug.found(answer), (answer.root, answer.report["notes"])
    if bug.size:
        clean = ask(recorded, bug.reference, f"{bug.run}-clean")
        assert clean.verdict in SAME, clean.root


def test_rows_name_the_ranks_that_hold_the_tensor(recorded: Collector) -> None:
    root = ask(recorded, "plain", "megatron2-bias_on_every_rank").root
    assert root is not None and (root["ranks_a"], root["ranks_b"]) == ([0], [0, 1])
    assert root["global_shape"] == [8, 12, 32]
    text = recorded.statctl("diff", "plain", "megatron2-bias_on_every_rank").out
    assert "ranks 0 (B: 0, 1)" in text


def test_activations_of_known_samples_are_compared_element_by_element(recorded: Collector) -> None:
    def kinds(a: str, b: str) -> set[str]:
        rows = recorded.diff(a, b, "--logical", "--tolerance", "1e-12", "--all")["diverged"]
        return {row["distance_kind"] for row in rows if row["kind"] == "output" and row["activation"] == "blocks.1.mlp.fc2"}

    assert kinds("ddp2_order", "ddp4_order") == kinds("plain", "ddp4_order") == {"sketch"}
    assert kinds("ddp2", "ddp4") == {"statistics"}


def test_by_rank_and_logical_are_as_asked(recorded: Collector, tmp_path: Path) -> None:
    by_rank = recorded.diff("plain", "tp2", "--by-rank")
    assert by_rank["verdict"] == "diverged" and by_rank["first"]["reason"] in ("shape", "missing_in_b")
    forced = recorded.diff("ddp2", "ddp2", "--logical")
    assert forced["verdict"] == "identical" and as_one_model(forced)
    both = recorded.statctl("diff", "ddp2", "ddp2", "--logical", "--by-rank")
    assert both.code == 2 and "--by-rank" in both.err


def test_replicas_that_differ_are_said(recorded: Collector) -> None:
    notes = recorded.diff("plain", "megatron2_sp-norm_gradient")["notes"]
    assert any("replicas differ" in note and "rank 1" in note for note in notes)


WEIGHT = "blocks.0.mlp.fc1.weight"


def _series(collector: Collector, run: str, *options: str) -> list[dict[str, Any]]:
    return list(collector.json("series", run, WEIGHT, "--kind", "weight", *options)["records"])


@pytest.mark.parametrize("run", ["fsdp1", "fsdp2", "tp2", "dp2_tp2", "megatron2"])
def test_series_show_whole_tensors_of_runs_that_are_cut(recorded: Collector, run: str) -> None:
    whole, merged, parts = _series(recorded, "plain"), _series(recorded, run), _series(recorded, run, "--by-rank")
    assert len(merged) == len(whole) < len(parts)
    for mine, other in zip(merged, whole, strict=True):
        assert mine["ranks"] == list(range(LAYOUTS[run].ranks)) and mine["rank"] == 0 and not mine["stats"]["place"]
        assert (mine["step"], mine["stats"]["shape"]) == (other["step"], other["stats"]["shape"])
        assert mine["stats"]["l2"] == pytest.approx(other["stats"]["l2"], rel=1e-3)
    assert all(part["ranks"] == [] for part in parts)
    assert any(part["stats"]["place"].endswith(f"of {tuple(whole[0]['stats']['shape'])}") for part in parts)
    assert _series(recorded, run, "--rank", "1") == [part for part in parts if part["rank"] == 1]


def test_top_shows_whole_tensors_of_runs_that_are_cut(recorded: Collector) -> None:
    def norms(run: str, *options: str) -> dict[tuple[str, str, str], float]:
        rows = recorded.json("top", run, "--kinds", "weight", "--count", "1000", *options)["records"]
        return {(row["kind"], row["activation"], row["mode"]): row["value"] for row in rows}

    whole = norms("plain")
    for run in ("fsdp2", "tp2"):
        assert norms(run) == pytest.approx(whole, rel=1e-3)
    assert norms("tp2", "--by-rank") != pytest.approx(whole, rel=1e-3)
    assert norms("ddp2") == norms("ddp2", "--by-rank")  # ranks hold no parts


def test_grad_norm_is_that_of_the_whole_model(recorded: Collector) -> None:
    def norms(run: str, *options: str) -> dict[int, float]:
        rows = recorded.json("scalars", run, "--name", "grad_norm", *options)["records"]
        assert not options or not any(row["ranks"] for row in rows)
        return {row["step"]: row["value"] for row in rows if row["rank"] == 0}

    whole = norms("plain")
    for run in ("fsdp1_flat", "fsdp2_hybrid", "dp2_tp2", "megatron2", "pp2"):
        assert norms(run) == pytest.approx(whole, rel=1e-3), run
        assert norms(run, "--by-rank") != pytest.approx(whole, rel=1e-3), run
    assert norms("ddp2") == norms("ddp2", "--by-rank")  # ranks hold no parts
    text = recorded.statctl("scalars", "fsdp2", "--name", "grad_norm").out
    assert "grad_norm (ranks 0, 1)" in text


def test_exports_carry_the_placement(recorded: Collector, tmp_path: Path) -> None:
    def records(run: str) -> list[dict[str, Any]]:
        done = recorded.statctl("export", "json", run, str(tmp_path / run))
        assert done.code == 0, done.err
        return [json.loads(line) for line in (tmp_path / run).read_text(encoding="utf-8").splitlines()]

    parts = [r for r in records("tp2") if r.get("activation") == WEIGHT and r.get("kind") == "weight" and r["step"] == 0]
    assert sorted(part["boxes"] for part in parts)[0][:2] == [0, 0]
    assert {part["global_shape"][0] * part["global_shape"][1] for part in parts} == {2 * parts[0]["numel"]}
    assert not any("boxes" in record for record in records("plain"))


def test_rows_of_runs_that_are_cut_alike_name_the_part(recorded: Collector) -> None:
    report = recorded.diff("megatron2", "megatron2-qkv_interleaved")
    assert not as_one_model(report)
    root = report["root"]
    assert root["activation"].startswith("blocks.0.attn.qkv") and " of (" in root["a"]["place"]
    text = recorded.statctl("diff", "megatron2", "megatron2-qkv_interleaved").out
    assert f"rank {root['rank']}, which holds {root['a']['place']}" in text


def test_rows_name_no_part_for_a_rank_with_its_share_of_the_batch(recorded: Collector) -> None:
    rows = recorded.diff("ddp2", "ddp2-divided_twice", "--all")["diverged"]
    assert any(row["kind"] == "output" for row in rows) and {row["a"].get("place", "") for row in rows} == {""}


@pytest.mark.parametrize("run", [name for name, layout in LAYOUTS.items() if layout.ranks > 1])
def test_ranks_of_a_clean_run_agree(recorded: Collector, run: str) -> None:
    done = recorded.statctl("ranks", run)
    if run.startswith("pp2"):  # the stages have no tensor in common
        assert done.code == 2 and "no weight, gradient or optimizer state was recorded on two ranks" in done.out, done.out
        return
    if run in ("fsdp1", "fsdp1_flat", "fsdp2"):  # every rank has other parts
        assert done.code == 2 and done.out.startswith(f"INCOMPARABLE {run}: no two ranks hold the same part"), done.out
        return
    assert done.code == 0 and done.out.startswith("CONSISTENT"), done.out
    compared = recorded.json("ranks", run)["compared"]
    assert compared["records"] == compared["identical"] > 0, compared


def test_ranks_names_replicas_that_part_in_a_run_that_is_cut(recorded: Collector) -> None:
    report = recorded.json("ranks", "megatron2_sp-norm_gradient", codes=(1,))
    first = report["findings"][0]
    assert (first["reason"], first["ranks"], first["step"]) == ("gradients_differ", [0, 1], 0) and "ln" in first["activation"], (
        first
    )
