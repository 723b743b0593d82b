"""Models of several networks, trained for real as users write them: the step ends with the last update, and the diff follows the order in which the
updates were made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Collector, run_command
from framework_runs import observations

PROGRAM = ROOT / "tests" / "e2e" / "several_optimizers.py"
STEPS = 3

# fault: step, stage, start of the name, micro-batch and call of the first difference
FAULTS: dict[str, tuple[int, str, str, int, int]] = {
    "gan:dis_betas": (0, "optimizer", "dis.", 0, 0),
    "gan:dis_lr": (0, "optimizer", "dis.", 0, 0),
    "gan_without_state:dis_betas": (1, "optimizer", "dis.", 0, 0),
    "gan_unlogged:gen_forward": (0, "forward", "gen.1", 0, 0),
    "gan:gen_lr": (0, "optimizer", "gen.", 0, 0),
    "gan:gen_backward": (1, "backward", "dis", 1, 0),
    "gan:gen_clipped": (0, "grad", "gen.", 0, 0),
    "gan:gen_loss": (0, "loss", "gen/loss", 1, 0),
    "critic_often:second_update": (0, "optimizer", "dis.", 0, 1),
    "teacher_student:student_betas": (0, "optimizer", "student.", 0, 0),
    "teacher_student:teacher_dropout": (0, "forward", "teacher.1", 0, 0),
    "teacher_student:temperature": (0, "loss", "loss", 0, 0),
    "actor_critic:critic_betas": (0, "optimizer", "trunk.", 0, 0),
    "actor_critic:actor_betas": (0, "optimizer", "actor.", 0, 0),
    "actor_critic:advantage": (0, "loss", "actor_loss", 1, 0),
}
CASES = sorted({fault.partition(":")[0] for fault in FAULTS})
# The updates of a step, in order: the module whose weights are updated, and the call.
UPDATES = {
    "gan": [("dis", "0"), ("gen", "0")],
    "gan_unlogged": [("dis", "0"), ("gen", "0")],
    "gan_without_state": [("dis", "0"), ("gen", "0")],
    "critic_often": [("dis", "0"), ("dis", "1"), ("dis", "2"), ("gen", "0")],
    "teacher_student": [("student", "0")],
    "actor_critic": [("trunk", "0"), ("critic", "0"), ("actor", "0")],
}


@pytest.fixture(scope="module")
def runs(shared_collector: Collector) -> Collector:
    done = run_command([sys.executable, str(PROGRAM), *CASES, *FAULTS], env=shared_collector.environment())
    assert done.code == 0, done.err
    return shared_collector


@pytest.mark.parametrize("case", CASES)
def test_step_ends_with_the_last_of_its_updates(runs: Collector, tmp_path: Path, case: str) -> None:
    rows = sorted(observations(runs, case, tmp_path), key=lambda row: (int(row["step"]), int(row["order"])))
    for step in range(STEPS):
        updated = [row for row in rows if (row["kind"], row["mode"], row["step"]) == ("weight", "train", str(step))]
        order = dict.fromkeys((row["activation"].split(".")[0], row["call"]) for row in updated)
        assert list(order) == UPDATES[case]
    assert {int(row["step"]) for row in rows} == set(range(STEPS))
    assert [event for event in runs.json("events", case)["records"] if event["kind"] == "not_recorded"] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_first_difference_is_the_first_that_happened(runs: Collector, fault: str) -> None:
    step, stage, name, micro_batch, call = FAULTS[fault]
    report = runs.diff(fault.partition(":")[0], fault.replace(":", "-"))
    first: dict[str, Any] = report["first"]
    found = {key: first[key] for key in ("step", "stage", "micro_batch", "call")}
    assert found == {"step": step, "stage": stage, "micro_batch": micro_batch, "call": call}, first
    assert first["activation"].startswith(name), first
    assert [(origin["stage"], origin["activation"]) for origin in report["origins"]] == [(stage, first["activation"])]
