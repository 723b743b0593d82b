"""Memory that the agent adds to a training process that observes as fast as possible (P12): with a running, a stopped and a killed collector,
without and with a spill file. Uses the C++ library as released, with 1,000 activations per step and sketches of 16 sums.

    python bench/agent_memory.py                   # about a minute; writes results/<date>-agent-memory.json
    python bench/agent_memory.py --seconds 1 --output /tmp/agent-memory.json
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import machine
import result_files
from collector import Collector

MIB = 1 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=10, help="seconds of observing for each row (default 10)")
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/<date>-agent-memory.json)")
    arguments = parser.parse_args()
    if arguments.seconds < 1:
        parser.error(f"--seconds is {arguments.seconds}; expected 1 or more")
    facts = machine.facts()
    rows = [_measure(state, spill, arguments.seconds) for spill in (False, True) for state in ("there", "stopped", "gone")]
    path = result_files.write("agent_memory", {"seconds": arguments.seconds}, facts, rows, arguments.output)
    print(render({"rows": rows}))
    print(f"written to {path}", file=sys.stderr)
    return 0


def _measure(state: str, spill: bool, seconds: int) -> dict[str, Any]:
    binary = machine.BUILD / "bin" / "statagent_memory_bench"
    if not binary.is_file():
        raise FileNotFoundError(f"run {binary}: the file is missing; build it (scripts/build.sh), or set STATCOLLECT_BUILD_DIR")
    with tempfile.TemporaryDirectory(prefix="statagent-memory-") as folder, Collector() as collector:
        command = [str(binary), collector.address, str(seconds), *([folder] if spill else [])]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdin is not None and process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"run {binary}: expected the line 'ready'; found none; run it by hand to see its error")
        if state != "there":
            os.kill(collector.pid, signal.SIGSTOP if state == "stopped" else signal.SIGKILL)
        try:
            out, _ = process.communicate("go\n", timeout=seconds + 60)
        finally:
            process.kill()
            if state == "stopped":
                os.kill(collector.pid, signal.SIGCONT)
    return {"collector": state, "spill": spill, "seconds": seconds, **json.loads(out)}


def render(result: dict[str, Any]) -> str:
    """The table that is printed."""
    return result_files.table(
        ["collector", "spill file", "added, MiB", "observed a second", "on disk, records", "dropped"],
        [
            [row["collector"], "yes" if row["spill"] else "no", f"{row['added'] / MIB:.1f}",
             f"{row['observed'] / row['seconds']:,.0f}",
             f"{row['spilled']:,}", f"{row['dropped']:,}"]
            for row in result["rows"]
        ],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
