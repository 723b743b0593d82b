"""Ingest, store and queries compared with their limits (targets P7 to P12): runs statcollect-bench against a real collector.

python bench/ingest.py                                  # ten minutes and 10 GB of disk; writes results/<date>-ingest.json
python bench/ingest.py --only ingest,limits             # some of the measurements; keeps the others of the newest results
python bench/ingest.py --quick --output /tmp/ingest.json

scripts/bench_rivals.sh adds ClickHouse and VictoriaMetrics to the newest results, measured with the same records."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import result_files

SECTIONS = ("limits", "ingest", "grow", "queries", "memory", "crowd")
MEBIBYTE = 2**20


@dataclass
class Sizes:
    """Sizes of the measurements; records are statistics records."""

    records: int  # of one measurement of ingest and of each limit
    grow: list[int]  # records added in each stage
    query_steps: int  # 8 ranks, 1,000 activations, three runs
    memory_steps: int  # the same, two runs, simulated
    crowd_seconds: float
    crowd_query_steps: int
    repeats: tuple[float, ...]  # of the runs that are queried
    paces: tuple[int, ...]  # of the crowd, in records per second; 0: as many as possible


FULL = Sizes(8_000_000, [2_000_000, 8_000_000, 40_000_000], 1000, 62_500, 15, 100, (0.0, 0.5), (0, 300_000))
QUICK = Sizes(200_000, [50_000, 100_000], 5, 20, 0.5, 2, (0.5,), (300_000,))


class Bench:
    """Calls statcollect-bench, each time with its own data folder, which is removed afterwards."""

    def __init__(self, parent: Path | None) -> None:
        self.bench = machine.BUILD / "bin" / "statcollect-bench"
        self.daemon = machine.BUILD / "bin" / "statcollectord"
        for binary in (self.bench, self.daemon):
            if not binary.is_file():
                raise FileNotFoundError(f"{binary} is missing; build it (scripts/build.sh), or set STATCOLLECT_BUILD_DIR")
        self.folder = Path(tempfile.mkdtemp(prefix="statcollect-bench-", dir=parent))

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, command: str, *arguments: object) -> dict[str, Any]:
        """The JSON that a subcommand prints. Its table goes to standard error."""
        words = [str(self.bench), command, *map(str, arguments)]
        print("==", command, *arguments, file=sys.stderr, flush=True)
        done = subprocess.run(words, stdout=subprocess.PIPE, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: exit code {done.returncode}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def spawned(self, command: str, *arguments: object, keep: bool = False) -> dict[str, Any]:
        """Runs a subcommand with its own daemon. `keep`: the data folder stays for the next call."""
        data = self.folder / "data"
        try:
            return self.call(command, "--spawn", self.daemon, "--data-dir", data, *arguments)
        finally:
            if not keep:
                shutil.rmtree(data, ignore_errors=True)

    def limits(self, sizes: Sizes) -> list[dict[str, Any]]:
        return list(self.call("limits", "--dir", self.folder / "limits", "--records", sizes.records)["rows"])

    def ingest(self, sizes: Sizes) -> list[dict[str, Any]]:
        rows = []
        for sketch, repeat in ((16, 0.0), (0, 0.0), (16, 0.9), (16, 1.0)):
            for streams in (1, 8, 256) if repeat == 0 else (8,):
                steps = max(1, sizes.records // 1000 // streams)
                rows.append(
                    self.spawned(
                        "ingest", "--streams", streams, "--steps", steps, "--sketch", sketch, "--repeat", repeat, "--reopen"
                    )
                )
        return rows

    def grow(self, sizes: Sizes) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        stored = 0
        for stage, records in enumerate(sizes.grow):
            last = stage == len(sizes.grow) - 1
            row = self.spawned(
                "ingest", "--run", f"stage-{stage}", "--seed", stage + 1, "--streams", 8, "--sketch", 0, "--reopen",
                "--steps", max(1, records // 8000), keep=not last,
            )  # fmt: skip
            rows.append({**row, "stored_before": stored})
            stored += row["stat_records"]
        return rows

    def queries(self, sizes: Sizes) -> list[dict[str, Any]]:
        return [self.spawned("queries", "--steps", sizes.query_steps, "--repeat", repeat) for repeat in sizes.repeats]

    def memory(self, sizes: Sizes) -> list[dict[str, Any]]:
        rows = []
        for more in ([], ["--identical"], ["--heat-map", 1024]):
            rows.append(self.call("memory", "--dir", self.folder / "empty", "--steps", sizes.memory_steps, *more))
            shutil.rmtree(self.folder / "empty", ignore_errors=True)
        return rows

    def crowd(self, sizes: Sizes) -> list[dict[str, Any]]:
        sizing = ("--seconds", sizes.crowd_seconds, "--query-steps", sizes.crowd_query_steps)
        # At a given pace, batches are as small as those of agents.
        return [
            self.spawned("crowd", *sizing, "--records-per-second", pace, "--batch-records", 1000 if pace else 4096)
            for pace in sizes.paces
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few seconds each, to check that everything runs")
    parser.add_argument(
        "--only", default=",".join(SECTIONS), help=f"measurements to make, some of {','.join(SECTIONS)} (default: all)"
    )
    parser.add_argument(
        "--dir", type=Path, help="parent of the data folders, on the disk to measure (default: the temporary folder)"
    )
    parser.add_argument("--output", type=Path, help="result file (default: bench/results/<date>-ingest.json)")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    if unknown := [name for name in chosen if name not in SECTIONS]:
        parser.error(f"--only {','.join(unknown)}: expected some of {','.join(SECTIONS)}")
    sizes = QUICK if arguments.quick else FULL
    facts = machine.facts()
    rows = [row for row in _rows_before(arguments.output) if row["section"] not in chosen]
    try:
        with Bench(arguments.dir) as bench:
            for name in chosen:
                measure: Callable[[Sizes], list[dict[str, Any]]] = getattr(bench, name)
                rows += [{"section": name, **row} for row in measure(sizes)]
    except (FileNotFoundError, RuntimeError) as failure:
        print(f"ingest: {failure}", file=sys.stderr)
        return 2 if isinstance(failure, FileNotFoundError) else 1
    path = result_files.write("ingest", {"quick": arguments.quick}, facts, rows, arguments.output)
    print(render({"rows": rows}))
    print(f"written to {path}", file=sys.stderr)
    return 0


def _rows_before(output: Path | None) -> list[dict[str, Any]]:
    """The rows of the output file, or of the newest results."""
    if output:
        found = json.loads(output.read_text(encoding="utf-8")) if output.is_file() else None
    else:
        found = result_files.newest("ingest")
    return list(found["rows"]) if found else []


def render(result: dict[str, Any]) -> str:
    """A table for each section."""
    by_section: dict[str, list[dict[str, Any]]] = {}
    for row in result["rows"]:
        by_section.setdefault(row["section"], []).append(row)
    renderers = {
        "ingest": _ingest,
        "grow": _grow,
        "limits": _limits,
        "queries": _queries,
        "memory": _memory,
        "crowd": _crowd,
        "rivals": _rivals,
    }
    tables = [renderer(by_section[name]) for name, renderer in renderers.items() if name in by_section]
    return "\n\n".join(tables)


def _millions(value: float) -> str:
    return f"{value / 1e6:.2f}"


def _ingest(rows: list[dict[str, Any]]) -> str:
    header = ["collector: streams, sketch, repeated", "M records/s", "bytes/record", "CPU ns/record", "MiB", "ack p50 / p99, ms"]
    cells = []
    for row in rows:
        p = row["parameters"]
        cells.append([
            f"{p['streams']}, {p['sketch']}, {p['repeat']:.0%}", _millions(row["records_per_second"]),
            f"{row['stored_reopened']['bytes_per_record']:.1f}", f"{row['daemon']['cpu_ns_per_record']:.0f}",
            f"{row['daemon']['rss_peak_bytes'] / MEBIBYTE:.0f}", f"{row['ack_ms']['p50']:.0f} / {row['ack_ms']['p99']:.0f}",
        ])  # fmt: skip
    return result_files.table(header, cells)


def _grow(rows: list[dict[str, Any]]) -> str:
    header = ["collector, 8 streams, no sketch: M records stored before", "M records added", "M records/s", "daemon, CPU ns/record",
              "bytes/record"]  # fmt: skip
    return result_files.table(header, [
        [f"{row['stored_before'] / 1e6:.2f}", _millions(row["stat_records"]), _millions(row["records_per_second"]),
         f"{row['daemon_stopped']['cpu_ns_per_record']:.0f}", f"{row['stored_reopened']['bytes_per_record']:.1f}"]
        for row in rows
    ])  # fmt: skip


def _limits(rows: list[dict[str, Any]]) -> str:
    header = ["limit", "M records/s", "M records/s, all in tables"]
    return result_files.table(header, [
        [row["name"], _millions(row["records_per_second"]), _millions(row["settled_records_per_second"])] for row in rows
    ])  # fmt: skip


def _queries(rows: list[dict[str, Any]]) -> str:
    def milliseconds(row: dict[str, Any], what: str) -> str:
        return f"{1e3 * row[what]:.0f}" if what in row else "-"

    cells = []
    for result in rows:
        p = result["parameters"]
        what = f"{p['ranks']} ranks x {p['steps']} steps x {p['activations']}, {p['repeat']:.0%} repeated"
        for load in result.get("loads", []):
            cells.append([f"{what}: load {load['run'].removeprefix('queries-')}, bytes/record",
                          "-", "-", f"{load['stored']['bytes_per_record']:.1f}", "-"])  # fmt: skip
        for row in result["rows"]:
            cells.append([f"{what}: {row['name']}", milliseconds(row, "disk_seconds"), milliseconds(row, "cold_seconds"),
                          milliseconds(row, "warm_seconds"), str(row["records"])])  # fmt: skip
    return result_files.table(["question", "from disk, ms", "first call, ms", "warm, ms (or bytes)", "records"], cells)


def _memory(rows: list[dict[str, Any]]) -> str:
    header = ["diff of simulated runs", "M records", "seconds", "MiB at most", "of these before the diff"]
    cells = []
    for row in rows:
        p = row["parameters"]
        what = f"{p['ranks']} ranks x {p['steps']} steps x {p['activations']}, {'identical' if p['identical'] else 'all differ'}"
        if p["heat_map"]:
            what += f", with a heat map of {p['heat_map']} columns"
        cells.append([what, f"{row['records'] / 1e6:.0f}", f"{row['seconds']:.0f}", f"{row['rss_peak_bytes'] / MEBIBYTE:.0f}",
                      f"{row['rss_bytes_before'] / MEBIBYTE:.0f}"])  # fmt: skip
    return result_files.table(header, cells)


def _crowd(rows: list[dict[str, Any]]) -> str:
    header = ["256 ranks", "M records/s", "ack p50 / p99, ms", "longest wait of a rank, s", "MiB at most"]
    cells = []
    for result in rows:
        rate = result["parameters"]["records_per_second"]
        pace = f"{rate / 1e6:.1f} M/s wanted" if rate else "as fast as possible"
        for phase in ("alone", "with_queries"):
            row = result[phase]
            cells.append([
                f"{pace}, {phase.replace('_', ' ')}", _millions(row["records_per_second"]),
                f"{row['ack_ms']['p50']:.0f} / {row['ack_ms']['p99']:.0f}",
                f"{row['longest_stall_seconds']:.2f}", f"{row['rss_peak_in_phase_bytes'] / MEBIBYTE:.0f}",
            ])  # fmt: skip
    return result_files.table(header, cells)


def _rivals(rows: list[dict[str, Any]]) -> str:
    header = ["rival", "M records/s", "bytes/record", "diff, identical, s", "diff, all differ, s", "by hash, identical, s",
              "by hash, all differ, s", "records"]  # fmt: skip

    def number(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    return result_files.table(header, [
        [row["name"], _millions(row["records_per_second"]), f"{row['bytes_per_record']:.1f}",
         number(row.get("diff_identical_seconds"), 2), number(row.get("diff_differing_seconds"), 2),
         number(row.get("group_identical_seconds"), 2), number(row.get("group_differing_seconds"), 2), str(row["records"])]
        for row in rows
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
