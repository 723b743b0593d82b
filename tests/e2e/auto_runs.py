"""Runs programs as `statctl run NAME -- COMMAND` does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from conftest import ROOT, Collector, Finished, agent_environment, run_command

PROGRAMS = Path(__file__).parent / "auto_programs"
START = ROOT / "agent" / "python" / "statagent" / "_auto" / "start"


def environment(collector: Collector, run: str, **extra: str) -> dict[str, str]:
    """That of a command under `statctl run`. The interpreter's own path does not have statagent."""
    found = {**collector.environment(STATAGENT_RUN=run, STATAGENT_AUTO="1"), "PYTHONPATH": str(START)}
    return {**found, **extra}


def record(
    collector: Collector,
    run: str,
    *command: str | Path,
    cwd: Path | None = None,
    timeout: float = 300,
    cold: bool = False,
    **extra: str,
) -> Finished:
    """Records a program that does not call statagent."""
    words = [str(word) for word in command]
    return run_command(words, env=environment(collector, run, **extra), timeout=timeout, cwd=cwd, cold=cold)


def record_each(collector: Collector, jobs: dict[str, list[str]]) -> dict[str, Finished]:
    """As `record`, for each run with its program and arguments. A word NAME=VALUE before the program is a variable."""
    found = {}
    for run, words in jobs.items():
        variables = dict(word.split("=", 1) for word in words if "=" in word)
        found[run] = record(collector, run, sys.executable, *(word for word in words if "=" not in word), **variables)  # type: ignore[arg-type]
    return found


def bare(*command: str | Path, cwd: Path | None = None, **extra: str) -> Finished:
    """Not recorded at all."""
    return run_command([str(word) for word in command], env=agent_environment(**extra), cwd=cwd)


def by_hand(collector: Collector, run: str, *command: str | Path, cwd: Path | None = None, **extra: str) -> Finished:
    """The program calls the agent itself."""
    return run_command([str(word) for word in command], env=collector.environment(STATAGENT_RUN=run, **extra), cwd=cwd)


def program(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(PROGRAMS / name), *arguments]


def plain(case: str, *variables: str) -> list[str]:
    """A job of record_each."""
    return [*variables, str(PROGRAMS / "plain.py"), case]


def lines(done: Finished) -> list[str]:
    """What the agent has written."""
    return [line.removeprefix("statagent: ") for line in done.err.splitlines() if line.startswith("statagent: ")]


def summary(collector: Collector, run: str) -> dict[str, Any]:
    """Of the run; {} if there is none."""
    return next((each for each in collector.json("runs")["runs"] if each["run"] == run), {})


def scalars(collector: Collector, run: str, name: str) -> list[tuple[int, int, float]]:
    """Step, micro-batch and value."""
    found = collector.json("scalars", run, "--name", name)["records"]
    return [(each["step"], each["micro_batch"], each["value"]) for each in found]


def has(collector: Collector, run: str, name: str) -> bool:
    """Whether the run has a tensor of that name."""
    return collector.statctl("series", run, name).code == 0


def assert_same(collector: Collector, one: str, other: str) -> None:
    """Both runs have the same records, all equal bit for bit."""
    found = collector.diff(one, other)
    assert found["verdict"] == "identical" and found["compared"]["records"] > 20, found
    assert found["unmatched"] == {"only_a": [], "only_b": []}, found["unmatched"]
    assert (summary(collector, one)["steps"], 0) == (summary(collector, other)["steps"], summary(collector, other)["dropped"])
