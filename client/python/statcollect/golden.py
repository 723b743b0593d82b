"""Goldens, the files of `statctl golden save`: making one, and comparing a run with one inside a test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .errors import QueryError
from .programs import find


def assert_matches(
    golden: str | Path,
    run: str,
    *,
    collector: str | None = None,
    junit: str | Path | None = None,
    options: Sequence[str] = (),
    timeout: float = 600.0,
) -> str:
    """Returns the verdict, "SAME ..." or "DRIFTED with the environment: ...", if the run equals the golden within tolerance.

    golden: a file of `statctl golden save`. It is loaded into the collector, once.
    run: name of the run, whose records have arrived (statagent.close() has returned).
    collector: gRPC address (default: STATCTL_COLLECTOR, else 127.0.0.1:7433).
    junit: file for the verdict as JUnit XML.
    options: further options of `statctl diff`, such as ["--tolerance", "1e-3"].

    Raises AssertionError with the whole comparison if the run changed; QueryError if there is no answer: no such file or run, no
    collector, or nothing comparable; ProgramNotFoundError without statctl."""
    command = [str(find("statctl")), "diff", "--golden", str(golden), "--run-b", run, *options]
    if collector:
        command[1:1] = ["--collector", collector]
    if junit:
        command += ["--junit", str(junit)]
    environment = {**os.environ, "NO_COLOR": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=environment)
    except subprocess.TimeoutExpired as error:
        raise QueryError(f"compare run '{run}' with {golden}: no answer within {timeout:g} s", 0, "timeout") from error
    verdict = done.stdout.rstrip().rpartition("\n")[2]
    if done.returncode == 0:
        return verdict
    if done.returncode == 1:
        raise AssertionError(f"{verdict}\n\n{done.stdout}")
    raise QueryError(done.stderr.strip() or done.stdout.strip() or f"statctl exited with {done.returncode}", 0, "no_answer")


def save(golden: str | Path, run: str, *, collector: str | None = None, steps: str | None = None, timeout: float = 600.0) -> str:
    """Writes the run's records to the file, which may exist, and returns what statctl says about it. Raises QueryError if it cannot."""
    command = [str(find("statctl")), "golden", "save", run, str(golden), "--overwrite"]
    if collector:
        command[1:1] = ["--collector", collector]
    if steps:
        command += ["--steps", steps]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, env={**os.environ, "NO_COLOR": "1"}
        )
    except subprocess.TimeoutExpired as error:
        raise QueryError(f"save run '{run}' as {golden}: no answer within {timeout:g} s", 0, "timeout") from error
    if done.returncode:
        raise QueryError(done.stderr.strip() or f"statctl exited with {done.returncode}", 0, "no_answer")
    return (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
