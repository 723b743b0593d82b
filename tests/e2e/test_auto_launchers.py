"""Several ranks without a line of ours."""

from __future__ import annotations

import shutil
import sys

import pytest
from auto_runs import PROGRAMS, assert_same, bare, by_hand, lines, program, record, scalars, summary
from conftest import Collector, torchrun

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, str(PROGRAMS / "ranks.py")]


def trained(out: str) -> list[str]:
    return sorted(line for line in out.splitlines() if line.startswith("rank "))


@pytest.fixture
def without() -> list[str]:
    found = trained(bare(*torchrun(2, str(PROGRAMS / "ranks.py"))).out)
    assert len(found) == 2
    return found


def test_ranks_of_torchrun_are_recorded_as_by_hand(collector: Collector, without: list[str]) -> None:
    auto = record(collector, "auto", *torchrun(2, str(PROGRAMS / "ranks.py")))
    hand = by_hand(collector, "hand", *torchrun(2, str(PROGRAMS / "ranks.py"), "--hand"))
    assert auto.code == hand.code == 0 and trained(auto.out) == without, auto.err
    found = summary(collector, "auto")
    assert (found["ranks"], found["world_size"], found["attempts"], found["state"]) == (2, 2, 1, "finished"), found
    assert_same(collector, "hand", "auto")
    assert (
        scalars(collector, "auto", "loss") == scalars(collector, "hand", "loss") and len(scalars(collector, "auto", "loss")) == 8
    )
    assert len(lines(auto)) == 2, "only the first rank writes, and neither the launcher does"


def test_ranks_end_together_after_the_steps_that_are_asked_for(collector: Collector) -> None:
    auto = record(collector, "auto", *torchrun(2, str(PROGRAMS / "ranks.py")), STATAGENT_STOP_AFTER="2")
    assert auto.code == 0 and trained(auto.out) == [], auto.err
    assert (summary(collector, "auto")["steps"], summary(collector, "auto")["ranks"]) == (2, 2)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_ranks_of_mpirun_are_recorded(collector: Collector, without: list[str]) -> None:
    auto = record(collector, "auto", *MPIRUN, MASTER_ADDR="127.0.0.1", MASTER_PORT=collector.reserved().rpartition(":")[2])
    assert auto.code == 0 and trained(auto.out) == without, auto.err
    found = summary(collector, "auto")
    assert (found["ranks"], found["world_size"], found["steps"], found["attempts"]) == (2, 2, 4, 1), found


def test_ranks_that_the_program_spawns_are_those_of_its_process_group(collector: Collector, without: list[str]) -> None:
    auto = record(collector, "auto", *program("ranks.py", "--spawn"))
    assert auto.code == 0 and trained(auto.out) == without, auto.err
    found = summary(collector, "auto")
    assert (found["ranks"], found["world_size"], found["attempts"], found["steps"]) == (2, 2, 1, 4), found
    by_hand(collector, "hand", *torchrun(2, str(PROGRAMS / "ranks.py"), "--hand"))
    assert_same(collector, "hand", "auto")
    assert len(lines(auto)) == 2, auto.err
    again = record(collector, "auto", *program("ranks.py", "--spawn"))
    assert again.code == 0 and "cannot record without a line" in again.err, "another launch does not join the run"
    assert summary(collector, "auto")["attempts"] == 1
