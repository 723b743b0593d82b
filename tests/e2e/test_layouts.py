"""One model under many layouts: runs that are cut up differently compare as one, and layout bugs are named where they were planted.

`python -m layouts` in this folder writes the tables of docs/layouts.md."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from conftest import Collector
from layouts.cuts import LAYOUTS
from layouts.runs import jobs, record
from layouts.tables import BUGS, ask

SAME = ("identical", "within_tolerance", "rounding")


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
    assert "ranks 0 (B: 0,1)" in text


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
    assert forced["verdict"] == "identical" and any("as one model each" in note for note in forced["notes"])
    both = recorded.statctl("diff", "ddp2", "ddp2", "--logical", "--by-rank")
    assert both.code == 2 and "--by-rank" in both.err


def test_replicas_that_differ_are_said(recorded: Collector) -> None:
    notes = recorded.diff("plain", "megatron2_sp-norm_gradient")["notes"]
    assert any("replicas differ" in note and "rank 1" in note for note in notes)
