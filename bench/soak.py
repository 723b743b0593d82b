"""Hours of load on one collector: does anything grow? Memory, descriptors, threads, disk and times over the whole time.

python bench/soak.py                                    # two hours; writes results/<date>-soak.json and soak.svg beside it
python bench/soak.py --minutes 1 --output /tmp/soak.json

All at once: eight ranks send at a steady pace, as a new run every minute; the oldest runs are removed to keep the store below --max-disk; a
rank with the real agent trains from the beginning to the end; every ten seconds the last two complete runs are compared, and the runs, one of
them and the health are asked for. A sample every --sample-seconds holds the largest value since the one before."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import machine
import result_files
import soak_chart
from collector import Collector

STREAMS = 8
ACTIVATIONS = 500
RUN_SECONDS = 60.0
ASK_SECONDS = 10.0
MEBIBYTE = 2**20


class Load:
    """What goes on meanwhile. Each part has a thread; a part that fails ends the soak."""

    def __init__(self, collector: Collector, pace: float) -> None:
        self._collector, self._pace = collector, pace
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._worst: dict[str, float] = {}
        self._complete: list[str] = []
        self.records = 0
        self.comparisons = 0
        self.failure: str | None = None
        self._threads = [
            threading.Thread(target=self._guard, args=(part,), name=part.__name__) for part in (self._feed, self._ask)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def take_worst(self) -> dict[str, float]:
        """The largest times since the last call, in milliseconds."""
        with self._lock:
            worst, self._worst = self._worst, {}
        return worst

    def _guard(self, part: Callable[[], None]) -> None:
        try:
            part()
        except Exception as error:
            self.failure = f"{part.__name__}: {error}"

    def _note(self, what: str, milliseconds: float) -> None:
        with self._lock:
            self._worst[what] = max(self._worst.get(what, 0.0), milliseconds)

    def _feed(self) -> None:
        number = 0
        while not self._stop.is_set():
            run = f"soak-{number:04d}"
            sent = _run(
                [machine.BUILD / "bin" / "statcollect-bench", "ingest", "--collector", self._collector.address, "--run", run, "--streams",
                 STREAMS, "--activations", ACTIVATIONS, "--seconds", RUN_SECONDS, "--records-per-second", self._pace, "--seed", 1,
                 "--differ-from", 20 + number % 50]
            )  # fmt: skip
            found = json.loads(sent)
            self.records += int(found["durable_records"])
            self._note("acknowledged_p99_ms", found["ack_ms"]["p99"])
            self._complete.append(run)
            number += 1

    def _ask(self) -> None:
        while not self._stop.wait(ASK_SECONDS):
            with self._timed("health_ms"):
                _get(self._collector.http, "/healthz")
            with self._timed("runs_ms"):
                self._statctl("runs")
            if len(self._complete) < 2:
                continue
            before, last = self._complete[-2:]
            with self._timed("show_ms"):
                self._statctl("show", last)
            with self._timed("diff_ms"):  # exit code 1: they differ, as they should
                self._statctl("diff", "--run-a", before, "--run-b", last, expected=(0, 1))
            self.comparisons += 1

    @contextlib.contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self._note(what, 1e3 * (time.monotonic() - begin))

    def _statctl(self, *arguments: str, expected: tuple[int, ...] = (0,)) -> str:
        return _run([machine.BUILD / "bin" / "statctl", "--collector", self._collector.address, *arguments], expected)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--sample-seconds", type=float, default=30)
    parser.add_argument("--records-per-second", type=float, default=32_000, help="of the eight ranks together (default 32000)")
    parser.add_argument("--max-disk", default="4GiB", help="of the store (default 4GiB)")
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/<date>-soak.json)")
    arguments = parser.parse_args()
    facts = machine.facts()
    with Collector(options=["--max-disk", arguments.max_disk]) as collector:
        rank = _start_rank(collector.address)
        load = Load(collector, arguments.records_per_second)
        try:
            rows = _watch(collector, rank, load, 60 * arguments.minutes, arguments.sample_seconds)
        finally:
            load.stop()
            counters = _stop_rank(rank)
    parameters = {
        "minutes": arguments.minutes, "records_per_second": arguments.records_per_second, "max_disk": arguments.max_disk,
        "streams": STREAMS, "activations": ACTIVATIONS, "records": load.records, "comparisons": load.comparisons, "agent": counters,
    }  # fmt: skip
    path = result_files.write("soak", parameters, facts, rows, arguments.output)
    path.with_suffix(".svg").write_text(soak_chart.draw(rows), encoding="utf-8")
    print(render({"parameters": parameters, "rows": rows}))
    print(f"written to {path} and {path.with_suffix('.svg').name}", file=sys.stderr)
    if load.failure is not None:
        print(f"soak.py: {load.failure}", file=sys.stderr)
    return 0 if load.failure is None else 1


def _start_rank(address: str) -> subprocess.Popen[str]:
    environment = os.environ | {
        "STATAGENT_COLLECTOR": address, "STATAGENT_LIBRARY": str(machine.BUILD / "lib" / "libstatagent.so"),
        "PYTHONPATH": str(machine.REPOSITORY / "agent" / "python"),
    }  # fmt: skip
    worker = Path(__file__).with_name("soak_rank.py")
    return subprocess.Popen(
        [sys.executable, str(worker)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def _stop_rank(rank: subprocess.Popen[str]) -> dict[str, Any]:
    """Ends it; returns what its agent counted."""
    out, _ = rank.communicate("stop\n", timeout=60)
    return json.loads(out) if rank.returncode == 0 else {"exit": rank.returncode}


def _watch(
    collector: Collector, rank: subprocess.Popen[str], load: Load, seconds: float, sample_seconds: float
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    begin = time.monotonic()
    load.start()
    for number in range(1, 1 + max(1, round(seconds / sample_seconds))):
        time.sleep(max(0.0, begin + number * sample_seconds - time.monotonic()))
        if load.failure is not None or rank.poll() is not None:
            break
        rows.append({
            "minute": round((time.monotonic() - begin) / 60, 2), **_process("collector", collector.pid), **_process("agent", rank.pid),
            "disk_mib": round(collector.disk_bytes() / MEBIBYTE, 1), "records": load.records,
            **{what: round(value, 2) for what, value in load.take_worst().items()},
        })  # fmt: skip
    return rows


def _process(name: str, pid: int) -> dict[str, float]:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines())
    return {
        f"{name}_mib": round(int(status["VmRSS"].split()[0]) / 1024, 1),
        f"{name}_threads": int(status["Threads"]),
        f"{name}_descriptors": len(os.listdir(f"/proc/{pid}/fd")),
    }


def _get(address: str, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
        return bytes(answer.read())


def _run(command: list[Any], expected: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode not in expected:
        raise RuntimeError(
            f"{Path(command[0]).name} {' '.join(map(str, command[1:]))} ended with {done.returncode}: {done.stderr[-500:]}"
        )
    return done.stdout


def render(result: dict[str, Any]) -> str:
    """The table in README.md: the second quarter of the time beside the last. The first one fills the store and its caches."""
    rows = result["rows"]
    quarter = max(1, len(rows) // 4)
    lines = []
    for what, title in soak_chart.CURVES:
        then, now, most = (
            [row[what] for row in part if what in row] for part in (rows[quarter : 2 * quarter], rows[-quarter:], rows)
        )
        if then and now:
            lines.append([title, *(f"{value:,.1f}" for value in (statistics.median(then), statistics.median(now), max(most)))])
    return result_files.table(["", "second quarter, median", "last quarter, median", "largest"], lines)


if __name__ == "__main__":
    sys.exit(main())
