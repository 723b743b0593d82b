"""ClickHouse and VictoriaMetrics with the same records as the collector, measured in the same run (targets P7 to P9 and P13).

scripts/bench_rivals.sh                      # installs them from apt, then calls this
python bench/rivals.py --steps 1000          # 8 ranks x 1,000 activations, three runs; adds its rows to the newest ingest results
python bench/rivals.py --only statcollect,chdb   # the newest ClickHouse, embedded, from pip (chdb, half a gigabyte)

ClickHouse: two streams of RowBinary over HTTP in the order of the primary key, MergeTree, default LZ4; the diff is a join of two runs that
compares 12 columns. VictoriaMetrics: two streams of Influx lines in the order of time, 14 fields (a hash takes two), flushed. Both write
without fsync; the time of sync(2) on their file system is included. Servers that are started here are stopped by pid, and their folders are
removed."""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ingest
import machine
import result_files

RANKS, ACTIVATIONS = 8, 1000
# In a query, "nan" alone would be a number.
STATISTICS = tuple(
    f"x_{name}" for name in ["nan", "pos_inf", "neg_inf", "zero", "neg", "pos", "min", "max", "mean", "std", "l1", "l2"]
)
COLUMNS = (
    ", ".join(f"{name} UInt32" for name in ("run", "rank", "step", "act", "layout"))
    + "".join(f", {name} UInt64" for name in STATISTICS[:6])
    + "".join(f", {name} Float64" for name in STATISTICS[6:])
    + ", hash UInt64"
)
STOP_SECONDS = 60.0
START_SECONDS = 60.0


class Server:
    """A server with its own folder, from entry to exit."""

    def __init__(self, command: Callable[[Path], list[str]], parent: Path | None, url: str) -> None:
        self._command, self._parent, self._url = command, parent, url

    def __enter__(self) -> Server:
        self.folder = Path(tempfile.mkdtemp(prefix="statcollect-rival-", dir=self._parent))
        command = self._command(self.folder)
        if answers(self._url):
            shutil.rmtree(self.folder)
            raise RuntimeError(
                f"start {command[0]}: found another server at {self._url}; expected none; stop it, so that it is not measured instead"
            )
        with (self.folder / "output.txt").open("w", encoding="utf-8") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=self.folder)
        deadline = time.monotonic() + START_SECONDS
        while not answers(self._url):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (self.folder / "output.txt").read_text(encoding="utf-8")[-2000:]
                self._stop()
                raise RuntimeError(f"start {command[0]}: no answer at {self._url}; expected the server; its output: {said}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def sync(self) -> None:
        """Waits until all data of the folder's file system is on disk."""
        subprocess.run(["sync", "-f", str(self.folder)], check=True)

    def stored_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def load(url: str, arguments: list[object], steps: int) -> None:
    """Two streams at once, half of the ranks each."""
    bench = str(machine.BUILD / "bin" / "statcollect-bench")
    half = RANKS // 2
    pairs = []
    for first in (0, half):
        words = [
            bench,
            "dump",
            "--steps",
            steps,
            "--activations",
            ACTIVATIONS,
            "--first-rank",
            first,
            "--ranks",
            half,
            *arguments,
        ]
        dump = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE)
        post = subprocess.Popen(["curl", "-sS", "--fail-with-body", "-T", "-", "-X", "POST", url], stdin=dump.stdout)
        assert dump.stdout is not None
        dump.stdout.close()  # only curl keeps it open, so that dump ends when curl does
        pairs.append((dump, post))
    codes = [process.wait() for pair in pairs for process in pair]
    if any(codes):
        raise RuntimeError(f"load into {url}: dump and curl ended with {codes}; expected 0")


class ClickHouse:
    URL = "http://127.0.0.1:8123/"

    @staticmethod
    def command(folder: Path) -> list[str]:
        for name in ("data", "tmp", "uf", "fs"):
            (folder / name).mkdir()
        return [
            "clickhouse-server", "--config-file=/etc/clickhouse-server/config.xml", "--", f"--path={folder}/data/",
            f"--tmp_path={folder}/tmp/", f"--user_files_path={folder}/uf/", f"--format_schema_path={folder}/fs/",
            f"--logger.log={folder}/log", f"--logger.errorlog={folder}/err", "--logger.level=warning", "--listen_host=127.0.0.1",
        ]  # fmt: skip

    def ask(self, query: str) -> str:
        request = urllib.request.Request(self.URL + "?max_memory_usage=16000000000", data=query.encode())
        try:
            with urllib.request.urlopen(request, timeout=1800) as response:
                return str(response.read().decode()).strip()
        except urllib.error.HTTPError as failure:
            raise RuntimeError(f"ClickHouse: {query}: {failure.read().decode()[:500]}") from failure

    def table(self, name: str, extra: str = "") -> None:
        self.ask(f"create table {name} ({COLUMNS}{extra}) engine=MergeTree order by (run, rank, step, act)")

    def insert(self, table: str, arguments: list[object], steps: int) -> None:
        load(f"{self.URL}?query=insert+into+{table}+format+RowBinary", ["--format", "rowbinary", *arguments], steps)

    def settled_bytes_per_record(self, table: str) -> float:
        """Waits for running merges first."""
        while int(self.ask("select count() from system.merges")) > 0:
            time.sleep(0.2)
        rows, stored = self.ask(
            f"select sum(rows), sum(bytes_on_disk) from system.parts where active and table = '{table}' format TSV"
        ).split()
        return int(stored) / int(rows)

    def diff(self, run_a: int, run_b: int) -> tuple[float, list[int]]:
        """Seconds; matched rows, rows that differ in any statistic, first such step."""
        right = ", ".join(f"{name} as b_{name}" for name in STATISTICS)
        differs = " or ".join(f"{name} != b_{name}" for name in STATISTICS)
        query = (
            f"select count(), countIf({differs}), minIf(step, {differs}) "
            f"from (select rank, step, act, {', '.join(STATISTICS)} from plain where run = {run_a}) "
            f"any inner join (select rank, step, act, {right} from plain where run = {run_b}) using (rank, step, act) format TSV"
        )
        begin = time.monotonic()
        found = [int(word) for word in self.ask(query).split()]
        return time.monotonic() - begin, found

    def measure(self, steps: int, parent: Path | None) -> list[dict[str, Any]]:
        records = RANKS * steps * ACTIVATIONS
        with Server(self.command, parent, self.URL + "ping") as server:
            version = self.ask("select version()")
            self.table("plain")
            begin = time.monotonic()
            for run, more in ((1, []), (2, []), (3, ["--differ-from", 0])):
                self.insert("plain", ["--run", run, "--sketch", 0, *more], steps)
            acknowledged = time.monotonic() - begin
            server.sync()
            seconds = time.monotonic() - begin
            plain = {
                "name": f"ClickHouse {version}, 12 statistics and hash", "records": 3 * records, "seconds": seconds,
                "seconds_to_last_answer": acknowledged, "records_per_second": 3 * records / seconds,
                "bytes_per_record": self.settled_bytes_per_record("plain"),
            }  # fmt: skip
            for name, other, expected in (("identical", 2, 0), ("differing", 3, records)):
                times = [self.diff(1, other) for _ in range(2)]
                if (found := times[-1][1])[:2] != [records, expected]:
                    raise RuntimeError(f"ClickHouse: the diff of {name} runs found {found}; expected {[records, expected]}")
                plain[f"diff_{name}_seconds"] = min(seconds for seconds, _ in times)
            self.ask("drop table plain")
            self.table("sketched", ", sketch Array(Float32)")
            begin = time.monotonic()
            self.insert("sketched", ["--sketch", 16], steps)
            server.sync()
            seconds = time.monotonic() - begin
            sketched = {
                "name": f"ClickHouse {version}, and a sketch of 16", "records": records, "seconds": seconds,
                "records_per_second": records / seconds, "bytes_per_record": self.settled_bytes_per_record("sketched"),
            }  # fmt: skip
        return [plain, sketched]


class EmbeddedClickHouse:
    """chdb: no server and no network. It reads files that were written before, which are in memory, with both cores for itself."""

    def __init__(self) -> None:
        try:
            self._session_module = importlib.import_module("chdb.session")
        except ImportError as failure:
            raise RuntimeError(
                "measure chdb: found no Python package chdb; expected it in the Python that runs this script; "
                "install it into an environment of its own (pip install chdb)"
            ) from failure

    def ask(self, query: str) -> str:
        return str(self._session.query(query, "TabSeparated")).strip()

    def insert(self, run: int, more: list[object], steps: int) -> float:
        """Seconds of the insert alone, with sync(2)."""
        file = self._folder / f"run-{run}.bin"
        words = ["dump", "--format", "rowbinary", "--steps", steps, "--activations", ACTIVATIONS, "--ranks", RANKS, "--run", run,
                 "--sketch", 0, *more]  # fmt: skip
        with file.open("wb") as out:
            subprocess.run([str(machine.BUILD / "bin" / "statcollect-bench"), *map(str, words)], stdout=out, check=True)
        subprocess.run(["sync", "-f", str(self._folder)], check=True)
        begin = time.monotonic()
        self.ask(f"insert into plain select * from file('{file}', 'RowBinary', '{COLUMNS}')")
        subprocess.run(["sync", "-f", str(self._folder)], check=True)
        seconds = time.monotonic() - begin
        file.unlink()
        return seconds

    def timed(self, query: str, expected: list[int]) -> float:
        """The faster of three."""
        times = []
        for _ in range(3):
            begin = time.monotonic()
            found = [int(word) for word in self.ask(query).split()]
            times.append(time.monotonic() - begin)
            if found != expected:
                raise RuntimeError(f"chdb: {query}: found {found}; expected {expected}")
        return min(times)

    def by_hash(self, other: int, differing: int) -> float:
        return self.timed(
            f"select count() from (select rank, step, act from plain where run in (1, {other}) "
            "group by rank, step, act having min(hash) != max(hash))",
            [differing],
        )

    def by_join(self, other: int, records: int, differing: int) -> float:
        differs = " or ".join(f"a.{name} != b.{name}" for name in STATISTICS)
        return self.timed(
            f"select count(), countIf({differs}) from (select * from plain where run = 1) a "
            f"inner join (select * from plain where run = {other}) b using (rank, step, act)",
            [records, differing],
        )

    def measure(self, steps: int, parent: Path | None) -> list[dict[str, Any]]:
        records = RANKS * steps * ACTIVATIONS
        self._folder = Path(tempfile.mkdtemp(prefix="statcollect-rival-", dir=parent))
        self._session = self._session_module.Session(str(self._folder / "store"))
        try:
            self.ask("create database bench engine=Atomic")
            self.ask("use bench")
            self.ask(f"create table plain ({COLUMNS}) engine=MergeTree order by (run, rank, step, act)")
            loads: tuple[tuple[int, list[object]], ...] = ((1, []), (2, []), (3, ["--differ-from", 0]))
            seconds = sum(self.insert(run, more, steps) for run, more in loads)
            row = {
                "name": f"ClickHouse {self.ask('select version()')} (chdb), 12 statistics and hash", "records": 3 * records,
                "seconds": seconds, "records_per_second": 3 * records / seconds,
                "bytes_per_record": self.stored_bytes() / (3 * records),
                "group_identical_seconds": self.by_hash(2, 0), "group_differing_seconds": self.by_hash(3, records),
                "diff_identical_seconds": self.by_join(2, records, 0), "diff_differing_seconds": self.by_join(3, records, records),
            }  # fmt: skip
        finally:
            self._session.close()
            shutil.rmtree(self._folder, ignore_errors=True)
        return [row]

    def stored_bytes(self) -> int:
        return int(self.ask("select sum(bytes_on_disk) from system.parts where active and table = 'plain'"))


class VictoriaMetrics:
    URL = "http://127.0.0.1:8428/"

    @staticmethod
    def command(folder: Path) -> list[str]:
        return [
            "victoria-metrics", f"-storageDataPath={folder}/data", "-httpListenAddr=127.0.0.1:8428", "-retentionPeriod=100y",
            "-loggerLevel=WARN",
        ]  # fmt: skip

    def measure(self, steps: int, parent: Path | None) -> list[dict[str, Any]]:
        records = RANKS * steps * ACTIVATIONS
        with Server(self.command, parent, self.URL + "health") as server:
            begin = time.monotonic()
            load(self.URL + "write", ["--format", "influx", "--run", 1, "--sketch", 0], steps)
            urllib.request.urlopen(self.URL + "internal/force_flush", timeout=600).close()
            server.sync()
            seconds = time.monotonic() - begin
            query = "sum(count_over_time(s_mean[1w]))"
            moment = 1_700_000_000 + steps + 1  # after the last step of the dump, in seconds
            with urllib.request.urlopen(f"{self.URL}api/v1/query?query={query}&time={moment}", timeout=600) as response:
                series = json.loads(response.read())["data"]["result"]
            found = int(series[0]["value"][1]) if series else 0
            if found != records:
                raise RuntimeError(f"VictoriaMetrics: {found} records; expected {records}")
            row = {
                "name": "VictoriaMetrics, 12 statistics and hash", "records": records, "seconds": seconds,
                "records_per_second": records / seconds, "bytes_per_record": server.stored_bytes() / records,
            }  # fmt: skip
        return [row]


def statcollect(steps: int, parent: Path | None) -> list[dict[str, Any]]:
    """The collector with the same records: one row without and one with sketches."""
    rows = []
    with ingest.Bench(parent) as bench:
        for sketch, name in ((0, "12 statistics and hash"), (16, "and a sketch of 16")):
            found = bench.spawned("queries", "--ranks", RANKS, "--steps", steps, "--activations", ACTIVATIONS, "--sketch", sketch)
            diffs = {row["name"]: row["warm_seconds"] for row in found["rows"]}
            first = found["loads"][0]
            rows.append({
                "name": f"statcollect, {name}", "records": RANKS * steps * ACTIVATIONS,
                "records_per_second": first["records_per_second"], "bytes_per_record": first["stored"]["bytes_per_record"],
                "diff_identical_seconds": diffs["diff of all steps, identical (P9)"],
                "diff_differing_seconds": diffs["diff of all steps, all differ (P9)"],
            })  # fmt: skip
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="steps of a run of 8 ranks and 1,000 activations (default 1000)")
    parser.add_argument("--vm-steps", type=int, help="steps for VictoriaMetrics, which is slower (default: a tenth)")
    parser.add_argument(
        "--only", default="statcollect,clickhouse,victoria", help="some of statcollect, clickhouse, chdb, victoria"
    )
    parser.add_argument("--dir", type=Path, help="where the data folders go (default: the temporary folder)")
    parser.add_argument("--output", type=Path, help="result file to add to (default: the newest bench/results/*-ingest.json)")
    arguments = parser.parse_args()
    vm_steps = arguments.vm_steps or max(1, arguments.steps // 10)
    measurements: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "statcollect": lambda: statcollect(arguments.steps, arguments.dir),
        "clickhouse": lambda: ClickHouse().measure(arguments.steps, arguments.dir),
        "chdb": lambda: EmbeddedClickHouse().measure(arguments.steps, arguments.dir),
        "victoria": lambda: VictoriaMetrics().measure(vm_steps, arguments.dir),
    }
    chosen = arguments.only.split(",")
    if unknown := [name for name in chosen if name not in measurements]:
        parser.error(f"--only {','.join(unknown)}: expected some of {','.join(measurements)}")
    facts = machine.facts()
    rows: list[dict[str, Any]] = []
    try:
        for name in chosen:
            print(f"== {name}", file=sys.stderr, flush=True)
            rows += [{"section": "rivals", "source": name, **row} for row in measurements[name]()]
    except (OSError, RuntimeError, subprocess.CalledProcessError) as failure:
        print(f"rivals: {failure}", file=sys.stderr)
        return 1
    print(ingest.render({"rows": rows}))
    path = _add(rows, chosen, facts, arguments.output)
    print(f"written to {path}", file=sys.stderr)
    return 0


def _add(rows: list[dict[str, Any]], chosen: list[str], facts: dict[str, Any], output: Path | None) -> Path:
    """Adds the rows to the file, or to the newest results, and replaces earlier rows of the same sources; returns the path."""
    files = sorted(result_files.RESULTS.glob("*-ingest.json"))
    path = output or (files[-1] if files else None)
    before = json.loads(path.read_text(encoding="utf-8")) if path and path.is_file() else None
    if before is None:
        return result_files.write("ingest", {}, facts, rows, path)
    kept = [row for row in before["rows"] if row["section"] != "rivals" or row["source"] not in chosen]
    assert path is not None
    path.write_text(json.dumps({**before, "rows": kept + rows}, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
