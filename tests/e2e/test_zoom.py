"""A zoom names the operator, the argument and the line of faults inside a module. Real trainings, collector and statctl."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from conftest import ROOT, Collector
from zoom_catalogue import (
    ATTENTION,
    BEGIN,
    CLEAN,
    CLEAN_ELSEWHERE,
    ELSEWHERE,
    END,
    FAULTS,
    MODULE,
    PARAMETER,
    PROGRAM,
    SOURCE,
    STEP,
    TRAIN_ALL,
    Fault,
    line_of,
    source_of,
    table,
)  # fmt: skip


def run_name(name: str) -> str:
    return "z-" + re.sub("[^a-z0-9]+", "-", name.lower())


def train_all(collector: Collector) -> None:
    every = {run_name(name): source_of(fault) for name, fault in {**FAULTS, **CLEAN}.items()}
    job = json.dumps({"z-base": SOURCE, **every})
    collector.python(TRAIN_ALL, job, env={"STATAGENT_ZOOM": f"{MODULE}@{STEP}"}, timeout=300)


@pytest.fixture(scope="module")
def zoomed(shared_collector: Collector) -> Collector:
    train_all(shared_collector)
    return shared_collector


def zoom(collector: Collector, name: str) -> Any:
    calls = collector.json("zoom", "z-base", run_name(name), codes=(1 if name in FAULTS else 0,))["calls"]
    assert [call["pass"] for call in calls] == ["forward", "backward"]
    return calls[0]


def names_it(call: Any, fault: Fault, source: str = SOURCE) -> bool:
    """Whether the operator is named with its line; in a block, as one of its operators."""
    line = f"model.py:{line_of(fault, source)}"
    named = [*call["a"], *call["b"]]
    right = any(one["name"] == fault.operator and one["place"] == line for one in named)
    argument = not fault.argument or fault.argument in {each["name"] for each in call["differences"]}
    return right and argument


def is_right(collector: Collector, name: str) -> bool:
    call = zoom(collector, name)
    return names_it(call, FAULTS[name]) if name in FAULTS else call["outcome"] in ("rounding", "identical")


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_an_operator_or_a_block(zoomed: Collector, name: str) -> None:
    call = zoom(zoomed, name)
    assert call["outcome"] in ("operator", "block") and (call["step"], call["module"]) == (STEP, MODULE), call


def test_operator_argument_and_line_are_right_in_nine_of_ten(zoomed: Collector) -> None:
    wrong = [name for name, fault in FAULTS.items() if not names_it(zoom(zoomed, name), fault)]
    # The goal is 27 of 30.
    assert len(FAULTS) >= 30 and len(wrong) <= len(FAULTS) // 10, wrong


@pytest.mark.parametrize("name", CLEAN)
def test_other_kernels_of_the_same_function_are_rounding(zoomed: Collector, name: str) -> None:
    call = zoom(zoomed, name)
    assert call["outcome"] in ("rounding", "identical"), call


def test_the_documented_table_is_what_a_zoom_names(zoomed: Collector) -> None:
    """python tests/e2e/zoom_catalogue.py writes it."""
    page = (ROOT / "docs" / "zoom.md").read_text()
    assert page.partition(BEGIN)[2].partition(END)[0] == table({name: is_right(zoomed, name) for name in {**FAULTS, **CLEAN}})


# --- backward passes, losses and updates


IN_PARTS = {name: (call, fault) for call, faults in ELSEWHERE.items() for name, fault in faults.items()}


@pytest.fixture(scope="module")
def programs(shared_collector: Collector) -> Collector:
    faults = {**{name: fault for name, (_, fault) in IN_PARTS.items()}, **CLEAN_ELSEWHERE, "attention": ATTENTION}
    every = {run_name(name): source_of(fault, PROGRAM) for name, fault in faults.items()}
    asked = "; ".join(f"{what}@{STEP}" for what in (MODULE, "loss", f"optimizer:{PARAMETER}"))
    shared_collector.python(TRAIN_ALL, json.dumps({"z-program": PROGRAM, **every}), env={"STATAGENT_ZOOM": asked}, timeout=300)
    return shared_collector


def part(collector: Collector, name: str) -> Any:
    """The call of the fault; what runs before it agrees."""
    report = collector.json("zoom", "z-program", run_name(name), codes=(1,))
    calls = {(call["module"], call["pass"]): call for call in report["calls"]}
    assert set(calls) == {(MODULE, "forward"), *ELSEWHERE}
    where, _ = IN_PARTS[name]
    assert where == (MODULE, "backward") or calls[MODULE, "forward"]["outcome"] == "identical"
    return calls[where]


@pytest.mark.parametrize("name", IN_PARTS)
def test_a_planted_fault_outside_of_forward_passes_is_an_operator_or_a_block(programs: Collector, name: str) -> None:
    assert part(programs, name)["outcome"] in ("operator", "block")


def test_operator_and_line_are_right_in_nine_of_ten_outside_of_forward_passes(programs: Collector) -> None:
    wrong = [name for name, (_, fault) in IN_PARTS.items() if not names_it(part(programs, name), fault, PROGRAM)]
    assert len(IN_PARTS) >= 20 and len(wrong) <= len(IN_PARTS) // 10, wrong


@pytest.mark.parametrize("name", CLEAN_ELSEWHERE)
def test_the_same_function_in_other_words_is_rounding(programs: Collector, name: str) -> None:
    calls = programs.json("zoom", "z-program", run_name(name), codes=(0,))["calls"]
    assert {call["outcome"] for call in calls} <= {"rounding", "identical", "inputs"}, calls


def test_attention_by_hand_and_by_one_operator_is_a_block_of_rounding_with_both_lines(programs: Collector) -> None:
    calls = programs.json("zoom", "z-program", run_name("attention"), codes=(0,))["calls"]
    call = next(call for call in calls if (call["module"], call["pass"]) == (MODULE, "forward"))
    line = f"model.py:{line_of(ATTENTION, PROGRAM)}"
    assert call["outcome"] == "rounding", call
    assert {"aten._softmax", "aten.bmm"} <= {one["name"] for one in call["a"]}
    assert ATTENTION.operator in {one["name"] for one in call["b"]}
    assert {one["place"] for one in [*call["a"], *call["b"]]} == {line}


@pytest.fixture(scope="module")
def ranks(shared_collector: Collector) -> Collector:
    for run, arguments, zoom in (
        ("two", (), "blocks.1.ln2@2"), ("two-eps", ("--bug", "ln_eps", "--bug-step", "2"), "blocks.1.ln2@2"), ("two-plain", (), ""),
    ):  # fmt: skip
        shared_collector.train(run, *arguments, env={"STATAGENT_ZOOM": zoom} if zoom else None)
    return shared_collector


def test_under_torchrun_each_rank_is_zoomed_and_named(ranks: Collector) -> None:
    calls = ranks.json("zoom", "two", "two-eps", codes=(1,))["calls"]
    assert [(call["rank"], call["step"], call["module"], call["pass"]) for call in calls] == [
        (rank, 2, "blocks.1.ln2", phase) for rank in (0, 1) for phase in ("forward", "backward")
    ]
    for call in calls[::2]:
        assert call["outcome"] == "operator" and call["inputs_equal"] and call["a"][0]["name"] == "aten.native_layer_norm"


def test_a_diff_leaves_the_operators_of_one_run_out(ranks: Collector) -> None:
    report = ranks.diff("two", "two-plain")
    assert report["verdict"] == "identical" and not any("operator" in note for note in report.get("notes", []))
    assert ranks.diff("two-plain", "two")["compared"] == report["compared"]
    assert ranks.statctl("ranks", "two").code == ranks.statctl("ranks", "two-plain").code


def test_without_a_zoom_the_two_commands_are_printed(ranks: Collector) -> None:
    done = ranks.statctl("zoom", "two-plain", "two-eps")
    assert done.code == 2
    lines = [line.strip() for line in done.out.splitlines()]
    assert any("STATAGENT_ZOOM=blocks.1.ln2@" in line and "statctl run two-plain.zoom --" in line for line in lines), done
    assert lines[-1].endswith("statctl zoom two-plain.zoom two-eps.zoom")
    assert "only one of them has zoomed into a module" in done.err


def test_a_module_that_is_not_zoomed_and_a_run_that_is_not_there_are_errors(ranks: Collector) -> None:
    done = ranks.statctl("zoom", "two", "two-eps", "--module", "head")
    assert done.code == 2 and "found no zoom into 'head' that both runs have" in done.err
    assert ranks.statctl("zoom", "two", "nobody").code == 2
