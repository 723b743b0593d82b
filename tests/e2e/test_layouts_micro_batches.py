"""Gradient accumulation against a larger batch, on other numbers of ranks: wherever the global batch is the same, the runs are."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from conftest import Collector
from layouts.runs import jobs, record
from layouts.tables import BUGS, ask

SAME = ("identical", "within_tolerance", "rounding")
# Ranks x micro-batches: 1x1, 1x2, 2x1, 2x4, 4x1, 4x2; those that end in _order say which samples are where. Of a pipeline's
# stages, which number micro-batches as they run them, that is not known, whatever the user says.
UNKNOWN = ["plain", "accumulate", "ddp2", "ddp2_accumulate", "pp2", "pp2_order", "pp2_unsaid"]
KNOWN = ["plain", "accumulate_order", "ddp2_accumulate_order", "ddp4_order", "ddp4_accumulate_order"]
ACTIVATION = "blocks.1.mlp.fc2"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("micro_batches")
    collector = Collector(folder / "data").start()
    bugs = [bug.name for bug in BUGS if bug.layout.endswith("accumulate_order")]
    assert bugs
    record(collector, jobs(list(dict.fromkeys(UNKNOWN + KNOWN)), bugs, steps=4), folder)
    yield collector
    collector.stop()


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations(dict.fromkeys(UNKNOWN + KNOWN), 2)))
def test_the_same_global_batch_is_the_same_run(recorded: Collector, a: str, b: str) -> None:
    answer = ask(recorded, a, b)
    assert answer.verdict in SAME, (answer.root, answer.report["notes"])
    assert answer.report["compared"]["records"] > 100
    assert not any("elements" in note or "overlap" in note for note in answer.report["notes"]), answer.report["notes"]


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations(KNOWN, 2)))
def test_activations_of_known_samples_are_compared_element_by_element(recorded: Collector, a: str, b: str) -> None:
    rows = recorded.diff(a, b, "--logical", "--tolerance", "1e-12", "--all")["diverged"]
    found = {row["distance_kind"] for row in rows if row["kind"] == "output" and row["activation"] == ACTIVATION}
    assert found == {"sketch"}
    assert not any(row["kind"] == "batch" for row in rows)  # the inputs are the same bits


def test_activations_of_unknown_samples_are_compared_by_statistics(recorded: Collector) -> None:
    rows = recorded.diff("ddp2_accumulate", "accumulate", "--tolerance", "1e-12", "--all")["diverged"]
    assert {row["distance_kind"] for row in rows if row["kind"] == "output" and row["activation"] == ACTIVATION} == {"statistics"}


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.layout.endswith("accumulate_order")], ids=lambda bug: bug.name)
def test_bug_of_accumulation_is_named(recorded: Collector, bug: Any) -> None:
    answer = ask(recorded, bug.reference, bug.run)
    assert answer.verdict == "diverged" and bug.found(answer), (answer.root, answer.report["notes"])


def test_series_are_of_the_batch_of_the_step(recorded: Collector) -> None:
    def norms(run: str) -> list[tuple[int, list[int], Any]]:
        rows = recorded.json("series", run, ACTIVATION, "--kind", "output")["records"]
        return [(row["step"], row["stats"]["shape"], pytest.approx(row["stats"]["l2"], rel=1e-2)) for row in rows]

    assert norms("ddp2_accumulate_order") == norms("ddp4_order") == norms("plain") and norms("plain")[0][1][0] == 8
    alone = recorded.json("series", "accumulate_order", ACTIVATION, "--kind", "output")["records"]  # nothing to put together
    assert [row["micro_batch"] for row in alone[:2]] == [0, 1] and alone[1]["stats"]["place"].startswith("[4:8, ")
