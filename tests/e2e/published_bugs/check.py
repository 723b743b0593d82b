"""Records the runs of the cases, and reads what `statctl diff` says about them."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from conftest import Collector, run_command, torchrun

from .cases import Case

QUIET = ("identical", "within_tolerance", "rounding")


def record(collector: Collector, cases: list[Case], folder: Path, steps: int = 3, timeout: float = 900) -> None:
    """One launch for each number of ranks. Raises AssertionError with its output if one fails."""
    launches: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for case in cases:
        for job in case.jobs(steps):
            launches[job["ranks"]][job["run"]] = job
    for ranks, jobs in sorted(launches.items()):
        path = folder / f"published-{ranks}.json"
        path.write_text(json.dumps(list(jobs.values())), encoding="utf-8")
        module = ("-m", "published_bugs.training", str(path))
        env = collector.environment()
        here = str(Path(__file__).resolve().parents[1])
        env["PYTHONPATH"] = ":".join(filter(None, (env["PYTHONPATH"], here, os.environ.get("PYTHONPATH", ""))))
        done = run_command([sys.executable, *module] if ranks == 1 else torchrun(ranks, *module), env=env, timeout=timeout)
        assert done.code == 0, f"training {list(jobs)} exited with {done.code}:\n{done.out}\n{done.err}"


@dataclass(frozen=True)
class Answer:
    """What diff says about the whole model and the layout, without and with the bug."""

    case: Case
    clean: dict[str, Any]
    faulty: dict[str, Any]

    @property
    def root(self) -> dict[str, Any] | None:
        return root_of(self.faulty)

    @property
    def quiet(self) -> bool:
        return verdict_of(self.clean) in QUIET

    @property
    def found(self) -> bool:
        root = self.root
        if root is None or verdict_of(self.faulty) != "diverged" or root["step"] != self.case.step:
            return False
        return any((root["kind"] or "scalar") == kind and fnmatchcase(root["activation"], name) for kind, name in self.case.acts)


def root_of(report: dict[str, Any]) -> dict[str, Any] | None:
    return report.get("root") or report.get("first")


def verdict_of(report: dict[str, Any]) -> str:
    rounding = report["verdict"] == "within_tolerance" and report.get("explained") == "rounding"
    return "rounding" if rounding else str(report["verdict"])


def ask(collector: Collector, case: Case, *options: str) -> Answer:
    return Answer(case, collector.diff(case.reference, case.clean, *options), collector.diff(case.reference, case.run, *options))
