"""What others notice while a large run is removed: /healthz, and acknowledgements of a run that is being written, before and meanwhile.

python bench/removal.py                                 # 10 M records; writes results/<date>-removal.json
python bench/removal.py --records 1000000 --output /tmp/removal.json"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import result_files
from collector import Collector

STREAMS, ACTIVATIONS = 8, 1000
PACE = 50_000  # records per second of the run that is being written
PHASE_SECONDS = 15.0
ASK_SECONDS = 0.005


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000, help="of the run that is removed (default 10000000)")
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/<date>-removal.json)")
    arguments = parser.parse_args()
    facts = machine.facts()
    with Collector() as collector:
        steps = max(1, arguments.records // (STREAMS * ACTIVATIONS))
        _finish(_ingest(collector, "--run", "large", "--steps", str(steps)))
        rows = [_phase(collector, "before", lambda: None), _phase(collector, "meanwhile", lambda: _remove(collector))]
    parameters = {"records": steps * STREAMS * ACTIVATIONS, "records_per_second": PACE, "phase_seconds": PHASE_SECONDS}
    path = result_files.write("removal", parameters, facts, rows, arguments.output)
    print(render({"rows": rows}))
    print(f"written to {path}", file=sys.stderr)
    return 0


def _phase(collector: Collector, name: str, meanwhile: Callable[[], None]) -> dict[str, Any]:
    """Another run is written for PHASE_SECONDS; `meanwhile` begins with it."""
    writing = _ingest(collector, "--run", name, "--seconds", str(PHASE_SECONDS), "--records-per-second", str(PACE))
    disk_before = collector.disk_bytes()
    removed: list[float] = []
    begin = time.monotonic()

    def act() -> None:
        meanwhile()
        removed.append(time.monotonic() - begin)

    actor = threading.Thread(target=act)
    actor.start()
    health, freed = [], 0.0
    while (now := time.monotonic() - begin) < PHASE_SECONDS:
        asked = time.monotonic()
        with urllib.request.urlopen(f"http://{collector.http}/healthz", timeout=60) as answer:
            answer.read()
        health.append(1e3 * (time.monotonic() - asked))
        if not freed and len(health) % 20 == 0 and collector.disk_bytes() < disk_before / 2:
            freed = now
        time.sleep(ASK_SECONDS)
    actor.join()
    sent = _finish(writing)
    health.sort()
    return {
        "phase": name, "health_asked": len(health), "health_p50_ms": round(health[len(health) // 2], 2),
        "health_p99_ms": round(health[len(health) * 99 // 100], 2), "health_max_ms": round(health[-1], 2),
        "acknowledged_p50_ms": round(sent["ack_ms"]["p50"], 2), "acknowledged_p99_ms": round(sent["ack_ms"]["p99"], 2),
        "acknowledged_records": sent["durable_records"], "call_seconds": round(removed[0], 2), "half_freed_seconds": round(freed, 2),
    }  # fmt: skip


def _remove(collector: Collector) -> None:
    command = [machine.BUILD / "bin" / "statctl", "--collector", collector.address, "rm", "large", "--yes"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)


def _ingest(collector: Collector, *options: str) -> subprocess.Popen[str]:
    command = [machine.BUILD / "bin" / "statcollect-bench", "ingest", "--collector", collector.address, "--streams", STREAMS,
               "--activations", ACTIVATIONS, *options]  # fmt: skip
    return subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _finish(ingest: subprocess.Popen[str]) -> dict[str, Any]:
    out, said = ingest.communicate()
    if ingest.returncode != 0:
        raise RuntimeError(f"statcollect-bench ingest ended with {ingest.returncode}: {said[-500:]}")
    found: dict[str, Any] = json.loads(out)
    return found


def render(result: dict[str, Any]) -> str:
    """The table in README.md."""
    return result_files.table(
        ["", "/healthz, p50 ms", "p99", "largest", "acknowledgement, p50 ms", "p99", "rm returns after, s"],
        [[row["phase"], *(f"{row[name]:.1f}" for name in ("health_p50_ms", "health_p99_ms", "health_max_ms", "acknowledged_p50_ms",
          "acknowledged_p99_ms")), f"{row['call_seconds']:.2f}" if row["phase"] != "before" else ""] for row in result["rows"]],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
