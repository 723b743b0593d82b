"""Many ranks through one or several collectors on this machine: over the embedded store, and over one ClickHouse that they share.

python bench/scale.py                                        # writes results/<date>-scale.json
python bench/scale.py --ranks 256 --only clickhouse-2        # some of them; the others are kept from the newest results
python bench/scale.py --seconds 2 --output /tmp/scale.json
python bench/scale.py --against ../old/build/release --only rocksdb-1 clickhouse-1 clickhouse-quorum --seconds 1

Sender, collectors and ClickHouse share the processor, so that more collectors cannot be faster here: the figures show what a collector more
costs, and how long it takes until all ranks are connected. Every rank has a connection of its own and sends as fast as it is acknowledged.
--against measures another build, too, in turns, and writes results/<date>-scale-against.json with the rows of each round."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
import result_files
from collector import Collector

sys.path.insert(0, str(machine.REPOSITORY / "tests" / "e2e"))
from clickhouse_server import ClickHouseServer, Replicas

# The store, and how many collectors write to it. In clickhouse-quorum it is two replicas with a quorum of both, and their ZooKeeper.
SETUPS = {"rocksdb-1": 1, "clickhouse-1": 1, "clickhouse-2": 2, "clickhouse-3": 3, "clickhouse-quorum": 1}
USUAL = ["rocksdb-1", "clickhouse-1", "clickhouse-2", "clickhouse-3"]
RANKS = (256, 1000)
ACTIVATIONS, SKETCH = 200, 16
PROCESS_SECONDS = 200.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS))
    parser.add_argument("--only", nargs="+", choices=list(SETUPS), default=USUAL)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the ranks send")
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/<date>-scale.json)")
    parser.add_argument(
        "--against", type=Path, help="the folder of another build, whose collector is measured in turns with this one"
    )
    parser.add_argument("--rounds", type=int, default=2, help="with --against")
    arguments = parser.parse_args()
    facts = machine.facts()
    if arguments.against is not None:
        return compare(arguments, facts)
    path = arguments.output or result_files.RESULTS / f"{machine.today()}-scale.json"
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    if path.exists():
        rows = {(row["setup"], row["ranks"]): row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}
    for ranks in arguments.ranks:
        for setup in arguments.only:
            rows[setup, ranks] = measure(setup, ranks, arguments.seconds)
            print(json.dumps(rows[setup, ranks]), file=sys.stderr)
            ordered = [
                rows[name, count] for count in sorted({count for _, count in rows}) for name in SETUPS if (name, count) in rows
            ]
            parameters = {"activations": ACTIVATIONS, "sketch": SKETCH, "seconds": arguments.seconds}
            result_files.write("scale", parameters, facts, ordered, path)
    print(render(json.loads(path.read_text(encoding="utf-8"))))
    return 0


def compare(arguments: argparse.Namespace, facts: dict[str, Any]) -> int:
    path = arguments.output or result_files.RESULTS / f"{machine.today()}-scale-against.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    for round_ in range(arguments.rounds):
        for ranks in arguments.ranks:
            for setup in arguments.only:
                for name, build in (("other", arguments.against), ("this", machine.BUILD)):
                    row = measure(setup, ranks, arguments.seconds, build)
                    rows.append({"build": name, "round": round_, **row})
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                result_files.write("scale_against", {"seconds": arguments.seconds}, facts, rows, path)
    return 0


def measure(setup: str, ranks: int, seconds: float, build: Path = machine.BUILD) -> dict[str, Any]:
    """One row: all ranks, spread over the setup's collectors."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="statcollect-scale-")))
        options = ["--connections-max", str(ranks + 200)]
        if setup.startswith("clickhouse"):
            kind = Replicas if setup == "clickhouse-quorum" else ClickHouseServer
            engine = kind(folder / "engine").start()
            stack.callback(engine.kill)
            options += ["--store", engine.new_dsn()]
        collectors = [stack.enter_context(Collector(options=options, build=build)) for _ in range(SETUPS[setup])]
        before = sum(collector.cpu_seconds() for collector in collectors)
        began = time.monotonic()
        shares = [ranks // len(collectors) + (i < ranks % len(collectors)) for i in range(len(collectors))]
        senders = [
            send(collector, i, share, seconds) for i, (collector, share) in enumerate(zip(collectors, shares, strict=True))
        ]
        done = [finish(sender) for sender in senders]
        first, last = min(end - said["seconds"] for said, end in done), max(end for _, end in done)
        records = sum(said["durable_records"] for said, _ in done)
        return {
            "setup": setup, "collectors": len(collectors), "ranks": ranks,
            "connect_seconds": round(max(end - said["seconds"] for said, end in done) - began, 1),
            "records": records,
            "records_per_second": round(records / (last - first)),
            "ack_p50_ms": round(max(said["ack_ms"]["p50"] for said, _ in done), 1),
            "ack_p99_ms": round(max(said["ack_ms"]["p99"] for said, _ in done), 1),
            "collector_cpu_ns_per_record": round((sum(c.cpu_seconds() for c in collectors) - before) * 1e9 / max(records, 1)),
        }  # fmt: skip


def send(collector: Collector, number: int, ranks: int, seconds: float) -> subprocess.Popen[str]:
    command = [machine.BUILD / "bin" / "statcollect-bench", "ingest", "--collector", collector.address, "--run", f"scale-{number}",
               "--streams", ranks, "--threads", 1, "--activations", ACTIVATIONS, "--sketch", SKETCH, "--seconds", seconds]  # fmt: skip
    return subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )


def finish(sender: subprocess.Popen[str]) -> tuple[dict[str, Any], float]:
    """What the sender said, and when it ended."""
    out, err = sender.communicate(timeout=PROCESS_SECONDS)
    end = time.monotonic()
    if sender.returncode != 0:
        raise RuntimeError(f"statcollect-bench exited with {sender.returncode}: {err}")
    said: dict[str, Any] = json.loads(out)
    return said, end


def render(result: dict[str, Any]) -> str:
    """The table in docs/scale.md."""
    return result_files.table(
        ["store", "collectors", "ranks", "all connected after", "records/s", "acknowledgement, p50 ms", "p99"],
        [["RocksDB" if row["setup"].startswith("rocksdb") else "ClickHouse", str(row["collectors"]), f"{row['ranks']:,}",
          f"{row['connect_seconds']:.1f} s", f"{row['records_per_second']:,}", f"{row['ack_p50_ms']:,.0f}", f"{row['ack_p99_ms']:,.0f}"]
         for row in result["rows"]],
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
