"""A temporary collector for a block of code: on free ports, with its data in a folder."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import programs
from .errors import CollectorUnavailableError

READY_SECONDS = 30.0
STOP_SECONDS = 15.0
_FOREIGN = re.compile(r"^(STATAGENT_|STATCTL_|STATCOLLECT_|RANK$|WORLD_SIZE$|LOCAL_|MASTER_|TORCHELASTIC|OMPI_|PMI|SLURM_)")


@dataclass(frozen=True)
class Local:
    """Where a collector listens."""

    grpc: str  # HOST:PORT, for agents and statctl
    http: str  # HOST:PORT, for statcollect.connect and the page; "off" if there is none
    ready_line: str


def clean_environment() -> dict[str, str]:
    """This process's environment without settings of an agent, a collector or a launcher."""
    return {key: value for key, value in os.environ.items() if not _FOREIGN.match(key)}


def stop(process: subprocess.Popen[str]) -> None:
    """SIGTERM, then SIGKILL."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def collector(work: Path, *options: str, http: str = "127.0.0.1:0") -> Iterator[Local]:
    """Starts statcollectord with its data in work/data and its messages in work/collector.log, and stops it at the end.

    options: further ones of statcollectord; http: as its --http. Raises ProgramNotFoundError, or CollectorUnavailableError with its messages if it does
    not get ready within 30 s."""
    log = work / "collector.log"
    command = [
        str(programs.find("statcollectord")), "--data-dir", str(work / "data"), "--listen", "127.0.0.1:0", "--http", http,
        *options,
    ]  # fmt: skip
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=clean_environment())
    try:
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], READY_SECONDS)
        line = process.stdout.readline() if readable else ""
        found = re.search(r"grpc (\S+:\d+), http (\S+:\d+|off)", line)
        if not found:
            stop(process)
            raise CollectorUnavailableError(f"start a collector: it did not get ready; its messages:\n{log.read_text()}")
        yield Local(found[1], found[2], line)
    finally:
        stop(process)
        assert process.stdout is not None
        process.stdout.close()
