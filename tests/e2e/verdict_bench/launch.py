"""Records jobs in processes of their own, a few at a time."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any

from conftest import agent_environment, start_python, torchrun

from verdict_bench import families

CHUNK = 60  # runs a process


def record_all(address: str, jobs: list[dict[str, Any]], folder: Path, processes: int) -> set[str]:
    """Returns the names of the runs that were recorded; what failed is on standard error. Families take turns."""
    folder.mkdir(parents=True, exist_ok=True)
    by_family: dict[str, list[dict[str, Any]]] = {}
    for job in jobs:
        by_family.setdefault(job["family"], []).append(job)
    chunked = [[mine[at : at + CHUNK] for at in range(0, len(mine), CHUNK)] for mine in by_family.values()]
    chunks = [chunk for turn in zip_longest(*chunked) for chunk in turn if chunk is not None]
    prefix = f"jobs-{time.time_ns()}"

    def one(item: tuple[int, list[dict[str, Any]]]) -> set[str]:
        return _record_chunk(address, item[1], folder / f"{prefix}-{item[0]}.json")

    with ThreadPoolExecutor(processes) as pool:
        return set().union(*pool.map(one, enumerate(chunks)))


def recorded_in(folder: Path) -> set[str]:
    """Names of the runs that earlier launches recorded."""
    return set(seconds_in(folder))


def seconds_in(folder: Path) -> dict[str, float]:
    """How long each run took that earlier launches recorded."""
    return {row["run"]: row["seconds"] for path in folder.glob("*.done") for row in _rows(path)}


def _rows(done: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.read_text(encoding="utf-8").splitlines()]


def _listed(done: Path) -> set[str]:
    return {row["run"] for row in _rows(done)} if done.exists() else set()


def _record_chunk(address: str, jobs: list[dict[str, Any]], path: Path) -> set[str]:
    """A process that failed on a run is followed by another for the runs after it."""
    here = Path(__file__).resolve().parents[1]
    env = agent_environment(STATAGENT_COLLECTOR=address)
    env["PYTHONPATH"] = f"{env['PYTHONPATH']}:{here}"
    ranks = families.load(jobs[0]["family"]).FAMILY.ranks
    launcher = torchrun(ranks)[1:] if ranks > 1 else []
    done = Path(f"{path}.done")
    left, recorded = jobs, set[str]()
    while left:
        path.write_text(json.dumps(left), encoding="utf-8")
        start_python([*launcher, "-m", "verdict_bench.record", str(path)], env=env, cwd=here).wait()
        recorded = _listed(done)
        behind = [job["run"] for job in left]
        last = max((behind.index(job["run"]) for job in left if job["run"] in recorded), default=-1)
        left = left[last + 2 :]
    return recorded
