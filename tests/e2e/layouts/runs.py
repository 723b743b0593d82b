"""Records the runs of the tables: one launch for each number of ranks."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from conftest import Collector, run_command, torchrun

from .cuts import LAYOUTS
from .tables import BUGS


def jobs(layouts: list[str], bugs: list[str], steps: int) -> list[dict[str, Any]]:
    """The clean runs, the runs with a bug, and the clean runs with which those are compared."""
    wanted = [{"layout": name, "run": name, "steps": steps} for name in layouts]
    for bug in BUGS:
        if bug.name not in bugs:
            continue
        size = dict(bug.size)
        wanted.append({"layout": "plain", "run": bug.reference, "steps": steps, "size": size})
        wanted.append({"layout": bug.layout, "run": bug.run, "steps": steps, "size": size, "bug": bug.name})
        if size:  # the same without the bug must agree
            wanted.append({"layout": bug.layout, "run": f"{bug.run}-clean", "steps": steps, "size": size})
    return list({job["run"]: job for job in wanted}.values())


def record(collector: Collector, wanted: list[dict[str, Any]], folder: Path, timeout: float = 600) -> None:
    """Raises AssertionError with the launch's output if a launch fails."""
    here = Path(__file__).resolve().parents[1]
    by_ranks: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for job in wanted:
        by_ranks[LAYOUTS[job["layout"]].ranks].append(job)
    for ranks, several in sorted(by_ranks.items()):
        path = folder / f"jobs-{ranks}.json"
        path.write_text(json.dumps(several), encoding="utf-8")
        command = (
            [sys.executable, "-m", "layouts.train", str(path)]
            if ranks == 1
            else torchrun(ranks, "-m", "layouts.train", str(path))
        )
        env = collector.environment(DS_ACCELERATOR="cpu")
        env["PYTHONPATH"] = ":".join(filter(None, (env["PYTHONPATH"], str(here), os.environ.get("PYTHONPATH", ""))))
        done = run_command(command, env=env, timeout=timeout)
        assert done.code == 0, f"training {[job['run'] for job in several]} exited with {done.code}:\n{done.out}\n{done.err}"
