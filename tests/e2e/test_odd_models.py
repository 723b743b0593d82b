"""Models and tensors that cannot be recorded like others, trained for real: the same bits with and without the agent, and everything recorded
but for what an event names."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Collector, run_command
from framework_runs import names, observations

PROGRAM = ROOT / "tests" / "e2e" / "odd_training.py"
STEPS = 5

# name: outputs that are recorded in a step, and what the event says that is there for the one that is not
ODD: dict[str, tuple[list[str], str]] = {
    "nested_strided": (["first", "last", "Calls"], "found a nested torch tensor"),
    "nested_jagged": (["first", "last", "Calls"], "found a nested torch tensor"),
    "none": (["first", "last", "Calls"], "found None; expected a tensor"),
    "generator": (["first", "last", "Calls"], "found a generator, which iteration would use up"),
    "quantised": (["first", "last", "Calls"], "torch.qint8"),
    "meta": (["first", "last", "Calls"], "on the meta device"),
    "sparse": (["first", "last", "Calls"], "torch.sparse_coo"),
    "view": (["first", "odd", "last", "Calls"], ""),
    "moved": (["0", "1", "2", "Sequential"], ""),
    "copied": (["0", "1", "2", "Sequential"], ""),
    "watched_twice": (["0", "1", "2", "Sequential"], ""),
    "others_hooks": (["0", "1", "2", "Sequential"], ""),
    "no_parameters": (["twice", "Calls"], ""),
}


@dataclass
class Trained:
    collector: Collector
    lines: dict[str, dict[str, Any]]  # what the program printed, by case
    folder: Path
    exported: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def rows(self, case: str) -> list[dict[str, str]]:
        if case not in self.exported:
            self.exported[case] = observations(self.collector, case, self.folder)
        return self.exported[case]

    def told(self, case: str) -> list[dict[str, str]]:
        """Fields of the not_recorded events, except the one about the parameter that no model has."""
        events = self.collector.json("events", case)["records"]
        found = [event["fields"] for event in events if event["kind"] == "not_recorded"]
        return [fields for fields in found if "outside of the model" not in fields["reason"]]


@pytest.fixture(scope="module")
def trained(shared_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    done = run_command([sys.executable, str(PROGRAM), *ODD, "raising", "copy_trained"], env=shared_collector.environment())
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in done.out.splitlines()]
    return Trained(shared_collector, {line["case"]: line for line in lines}, tmp_path_factory.mktemp("exported"))


@pytest.mark.parametrize("case", [*ODD, "raising", "copy_trained"])
def test_odd_training_computes_the_same_bits_with_and_without_us(trained: Trained, case: str) -> None:
    line = trained.lines[case]
    assert line["plain"] == line["watched"]
    assert len(set(line["plain"])) == STEPS + 1, "each step another loss, and the weights"


@pytest.mark.parametrize("case", ODD)
def test_odd_training_is_recorded_or_told(trained: Trained, case: str) -> None:
    recorded, reason = ODD[case]
    rows, told = trained.rows(case), trained.told(case)
    for step in range(STEPS):
        assert names(rows, "output", step=step) == recorded
        weights = names(rows, "weight", step=step, mode="train")
        assert names(rows, "weight_grad", step=step) == weights
        assert bool(weights) == (case != "no_parameters")
    if reason:
        assert {fields["name"] for fields in told} == {"odd"}
        assert told[0]["kind"] == "output" and reason in told[0]["reason"], told
    else:
        assert told == []


def test_model_moved_after_watch_is_recorded_in_its_new_type(trained: Trained) -> None:
    for kind, name in (("output", "0"), ("grad_output", "2"), ("weight", "0.weight"), ("weight_grad", "2.bias")):
        rows = [row for row in trained.rows("moved") if (row["kind"], row["activation"], row["mode"]) == (kind, name, "train")]
        assert [row["dtype"] for row in rows] == ["f32"] * 2 + ["bf16"] * 3, kind
    events = trained.collector.json("events", "moved")["records"]
    changed = [event for event in events if event["kind"] in ("graph_transition", "setting_changed") and event["step"] > 0]
    assert [event["kind"] for event in changed] == ["graph_transition", "setting_changed"]
    assert all("bfloat16" in event["text"] for event in changed)


def test_second_watch_is_refused_and_the_first_goes_on(trained: Trained) -> None:
    (message,) = trained.lines["watched_twice"]["said"]
    assert message.startswith(
        "watch: 'Sequential' (grad_output) is already watched; expected each name once; remove() the other watch"
    )
    assert {row["call"] for row in trained.rows("watched_twice")} == {"0"}, "nothing twice"


def test_view_that_is_written_into_is_recorded_as_it_was_at_its_hook(trained: Trained) -> None:
    def outputs(case: str) -> dict[str, dict[str, str]]:
        return {row["activation"]: row for row in trained.rows(case) if (row["kind"], row["step"]) == ("output", "0")}

    untouched, written = outputs("none"), outputs("view")
    assert written["first"]["hash"] == untouched["first"]["hash"]
    assert written["last"]["hash"] != untouched["last"]["hash"], "where the written values are used"
    assert written["odd"]["shape"] == "[4,4]"


def test_pass_that_raises_is_part_of_the_step_that_goes_on(trained: Trained) -> None:
    assert "out of luck" in trained.lines["raising"]["watched"][2]
    rows = trained.rows("raising")
    assert sorted({int(row["step"]) for row in rows}) == [0, 1, 2, 3], "no update, so no step"
    calls = [(row["activation"], row["call"]) for row in rows if (row["kind"], row["step"]) == ("output", "2")]
    assert calls == [("first", "0"), ("first", "1"), ("last", "0"), ("Calls", "0")]
    assert trained.told("raising") == []


def test_training_of_a_copy_is_told(trained: Trained) -> None:
    rows = trained.rows("copy_trained")
    assert {(row["kind"], row["mode"]) for row in rows} == {("weight", "init")}
    (fields,) = trained.told("copy_trained")
    assert "the watched Sequential was never run" in fields["reason"]
