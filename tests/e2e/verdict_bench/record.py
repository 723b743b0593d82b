"""Records runs one after another in one process: `python -m verdict_bench.record JOBS.json`, with the collector's address in the environment.

With ranks, torchrun runs it, and the first writes.

A job is {"run", "family", "legal", "bug", "size", "steps", "seed"}, and "twin_of" and "perturb" ([ulps, seed]) of a twin; what was recorded is
appended to JOBS.json.done, a line each."""

from __future__ import annotations

import copy
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from verdict_bench import families
from verdict_bench.legal import LEGAL
from verdict_bench.training import Training

PERTURB = "STATAGENT_PERTURB"


def changes_of(job: dict[str, Any]) -> list[Callable[[Training], None]]:
    """The legal changes (several joined by +), then the bug."""
    changes = [LEGAL[name].plant for name in (job["legal"] or "").split("+") if name]
    planted = [bug.plant for bug in families.bugs_of(job["family"]) if bug.name == job["bug"]]
    assert bool(planted) == bool(job["bug"]), f"family {job['family']} has no bug {job['bug']}"
    return [*changes, *(partial(_plant, plant, job["size"]) for plant in planted)]


def _plant(plant: Callable[[Training, float], None], size: float, training: Training) -> None:
    plant(training, size)


@contextmanager
def perturbed(job: dict[str, Any]) -> Iterator[None]:
    """With the noise that makes a run a twin, if the job is one."""
    if "perturb" in job:
        os.environ[PERTURB] = ",".join(map(str, job["perturb"]))
    try:
        yield
    finally:
        os.environ.pop(PERTURB, None)


def record(job: dict[str, Any]) -> dict[str, Any]:
    family = copy.copy(families.load(job["family"]).FAMILY)
    family.seed += job.get("seed", 0)
    started = time.monotonic()
    options = {} if "fused" in (job["legal"] or "") or family.name == "vit" else {"foreach": False}
    training = Training(family, steps=job.get("steps", 0), optimizer_options=options)
    with perturbed(job):
        counts = training.run(job.get("twin_of", job["run"]), changes_of(job), stored_as=job["run"])
    return {"run": job["run"], "seconds": round(time.monotonic() - started, 3), "records": counts["produced"]}


def main() -> int:
    path = Path(sys.argv[1])
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # what torch brought stays: collecting it again after each run took a third of the time
    if "WORLD_SIZE" in os.environ:
        distributed.init_process_group("gloo")
    first = os.environ.get("RANK", "0") == "0"
    with Path(f"{path}.done" if first else os.devnull).open("a", buffering=1, encoding="utf-8") as done:
        for job in json.loads(path.read_text(encoding="utf-8")):
            try:
                done.write(json.dumps(record(job)) + "\n")
            except Exception:
                print(f"recording {job} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
                return 1  # the agent may be left open; the launcher goes on with the next job in a new process
    return 0


if __name__ == "__main__":
    sys.exit(main())
