"""The demo over a store that several collectors share, with a collector and a replica killed in the middle. scripts/demo_cluster.sh runs it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
from clickhouse_local import ReplicatedClickHouse, StartError, free_port, haproxy_program, missing_packages  # noqa: E402
from held_signals import ENDING, held_signals  # noqa: E402

BUILD = Path(os.environ.get("STATCOLLECT_BUILD_DIR", ROOT / "build" / "release")).resolve()
TRAIN = ROOT / "examples" / "gpt_torch" / "train.py"
RANKS = 4
COLLECTORS = 3
TRAINING_SECONDS = 900
EXAMPLES = """examples:
  scripts/demo_cluster.sh
  scripts/demo_cluster.sh --replicas 3          # the killed replica stays away, and recording goes on without it
  scripts/demo_cluster.sh --bug attn_scale --keep cluster-out

exit codes: 0 same verdict and nothing lost; 1 something differs; 2 could not run
"""
HAPROXY = """global
  maxconn 1000
defaults
  mode tcp
  timeout connect 2s
  timeout client 1h
  timeout server 1h
  retries 3
  option redispatch
listen statcollect
  bind 127.0.0.1:{port}
  balance leastconn
{servers}
"""


class DemoError(Exception):
    """What ends the demo; the code is its exit code."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/demo_cluster.sh", formatter_class=argparse.RawDescriptionHelpFormatter, epilog=EXAMPLES,
        description="Installs missing packages, builds, and trains a small transformer on four ranks (torchrun, CPU) as run `base`, and\n"
        "again with one subtle mistake as run `ort`: first into one collector with the embedded store, then into three\n"
        "collectors behind haproxy, which share a ClickHouse of two replicas (with ZooKeeper). In the middle of the cluster's\n"
        "`base`, one collector and one replica are killed. At the end, both stores must have what the agents sent, and give the\n"
        "same verdict.",
    )  # fmt: skip
    parser.add_argument(
        "--bug", default="ln_eps", help="the mistake (default %(default)s); examples/gpt_torch/train.py --help lists them"
    )
    parser.add_argument("--bug-step", type=int, default=3, help="the first step with the mistake (default %(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="training steps of each run (default %(default)s)")
    parser.add_argument(
        "--replicas", type=int, choices=(2, 3), default=2, help="replicas of the ClickHouse (default %(default)s)"
    )
    parser.add_argument("--outage", type=float, default=5, metavar="SECONDS",
                        help="how long the killed one of two replicas is away (default %(default)s)")  # fmt: skip
    parser.add_argument("--model", default="", metavar="ARGS", help="more arguments of train.py, such as '--layers 2 --width 64'")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep logs and data in DIR (default: a temporary folder, removed at the end)"
    )
    arguments = parser.parse_args()
    if arguments.steps < 3:
        parser.error(f"--steps {arguments.steps}: expected at least 3, so that there is a middle")
    if not 0 <= arguments.bug_step < arguments.steps:
        parser.error(f"--bug-step {arguments.bug_step}: expected a step from 0 to {arguments.steps - 1}")
    if not 0 <= arguments.outage <= 60:
        parser.error(f"--outage {arguments.outage:g}: expected 0 to 60 seconds")
    return arguments


def check_packages() -> None:
    missing = missing_packages(replicated=True, balanced=True)
    if missing:
        raise DemoError(
            f"found no {', '.join(missing)}; expected these apt packages; scripts/setup.sh --for cluster installs them"
        )
    for path in (BUILD / "bin/statcollectord", BUILD / "bin/statctl", BUILD / "lib/libstatagent.so"):
        if not path.exists():
            raise DemoError(f"found no {path}; build first: scripts/build.sh, or set STATCOLLECT_BUILD_DIR")


@dataclass
class Process:
    """A collector, the balancer or a training, with its output in a file."""

    name: str
    command: list[str]
    log: Path
    environment: dict[str, str] | None = None  # None: that of the demo
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log, held_signals():
            self.process = subprocess.Popen(
                self.command, env=self.environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def end(self, number: int = signal.SIGTERM, patience: float = 30) -> None:
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            self.process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


@dataclass
class Collector(Process):
    address: str = ""

    def await_ready(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            text = self.log.read_text(errors="replace")
            found = re.search(r"ready.* grpc ([\d.]+:\d+)", text)
            if found:
                self.address = found[1]
                return
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"{self.name} did not get ready; {self.log} has:\n{text[-2000:]}")
            time.sleep(0.05)


@dataclass
class Demo:
    arguments: argparse.Namespace
    work: Path
    started: float = field(default_factory=time.monotonic)
    ends: list[Callable[[], None]] = field(default_factory=list)
    produced: dict[str, dict[int, int]] = field(default_factory=dict)  # by run and rank, of the last training

    def step(self, text: str) -> None:
        bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
        print(f"\n{bold}==> {text}{plain}  ({time.monotonic() - self.started:.0f} s)", flush=True)

    def collector(self, name: str, *extra: str) -> Collector:
        command = [str(BUILD / "bin/statcollectord"), "--data-dir", str(self.work / name), "--listen", "127.0.0.1:0",
                   "--http", "127.0.0.1:0", *extra]  # fmt: skip
        collector = Collector(name, command, self.work / f"{name}.log")
        self.ends.append(collector.end)
        collector.start()
        collector.await_ready()
        return collector

    def balancer(self, collectors: list[Collector]) -> str:
        port = free_port()
        servers = "\n".join(f"  server {c.name} {c.address} check inter 500ms fall 2 rise 1" for c in collectors)
        (self.work / "haproxy.cfg").write_text(HAPROXY.format(port=port, servers=servers))
        haproxy = Process(
            "haproxy", [str(haproxy_program()), "-db", "-f", str(self.work / "haproxy.cfg")], self.work / "haproxy.log"
        )
        self.ends.append(haproxy.end)
        haproxy.start()
        return f"127.0.0.1:{port}"

    def train(self, run: str, collector: str, *more: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Trains on all ranks, keeps what each of them says it produced."""
        counters = self.work / f"{run}-{collector.replace(':', '-')}"
        counters.mkdir()
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("STATAGENT_", "STATCTL_"))}
        environment |= {
            "STATAGENT_RUN": run, "STATAGENT_COLLECTOR": collector, "STATAGENT_LIBRARY": str(BUILD / "lib/libstatagent.so"),
            "PYTHONPATH": str(ROOT / "agent/python"), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={RANKS}",
            str(ROOT / "scripts/lib/counted_train.py"), str(counters), str(TRAIN), "--steps", str(self.arguments.steps),
            *shlex.split(self.arguments.model), *more,
        ]  # fmt: skip
        trainer = Process(f"training {run}", command, counters / "log", environment)
        self.ends.append(trainer.end)
        trainer.start()
        meanwhile()
        assert trainer.process is not None
        try:
            code = trainer.process.wait(timeout=TRAINING_SECONDS)
        except subprocess.TimeoutExpired:
            raise DemoError(f"training run '{run}' took more than {TRAINING_SECONDS} s; {trainer.log} has its messages") from None
        if code != 0:
            raise DemoError(f"training run '{run}' failed; its last messages:\n{trainer.log.read_text(errors='replace')[-3000:]}")
        said = [line for line in trainer.log.read_text().splitlines() if line.startswith(("step", "records:"))]
        print(f"run {run}, as rank 0 of {RANKS} says:", *said, sep="\n  ")
        self.produced[run] = {}
        for rank in range(RANKS):
            counts = json.loads((counters / f"rank{rank}.json").read_text())
            if counts["produced"] != counts["acked"]:
                raise DemoError(f"rank {rank} of run '{run}' has {counts}; expected everything produced to be acknowledged", 1)
            self.produced[run][rank] = counts["produced"]

    def statctl(self, collector: str, *arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [str(BUILD / "bin/statctl"), "--collector", collector, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def stored(self, collector: str, run: str) -> int:
        code, out, _ = self.statctl(collector, "--format", "json", "runs")
        return sum(int(r["records"]) for r in json.loads(out)["runs"] if r["run"] == run) if code == 0 else 0

    def check_ledger(self, collector: str, run: str) -> int:
        """What is stored of each rank is what its agent produced; returns the sum."""
        code, out, err = self.statctl(collector, "--format", "json", "show", run)
        if code != 0:
            raise DemoError(f"show run '{run}' at {collector}: {err}")
        attempts = json.loads(out)["attempts"]
        found = {int(r["rank"]): int(r["records"]) for r in attempts[-1]["ranks"]}
        if len(attempts) != 1 or found != self.produced[run]:
            raise DemoError(f"run '{run}' at {collector}: found {found} records by rank in {len(attempts)} attempts; the agents sent "
                          f"{self.produced[run]}", 1)  # fmt: skip
        return sum(found.values())

    def verdict(self, collector: str) -> str:
        expected = 0 if self.arguments.bug == "none" else 1
        code, out, err = self.statctl(collector, "diff", "--run-a", "base", "--run-b", "ort")
        if code != expected:
            raise DemoError(f"statctl diff at {collector} exited with {code}; expected {expected}\n{out}{err}", 1)
        return "\n".join(line for line in out.splitlines() if not line.startswith("In a browser:")).strip()


def kill_in_the_middle(demo: Demo, engine: ReplicatedClickHouse, collectors: list[Collector], total: int) -> None:
    """Once a third of the run is stored."""
    deadline = time.monotonic() + TRAINING_SECONDS
    while demo.stored(collectors[1].address, "base") < total // 3:
        if time.monotonic() > deadline:
            raise DemoError("the cluster stored too little of run 'base' to kill anything in its middle")
        time.sleep(0.1)
    kept = demo.stored(collectors[1].address, "base")
    collectors[0].end(signal.SIGKILL)
    engine.replicas[0].kill()
    print(
        f"    when {kept:,} of {total:,} records are stored, {collectors[0].name} and replica 1 are killed (SIGKILL)", flush=True
    )
    if demo.arguments.replicas == 2:
        time.sleep(demo.arguments.outage)
        waiting = total - demo.stored(collectors[1].address, "base")
        engine.replicas[0].start()
        print(
            f"    {demo.arguments.outage:g} s later replica 1 is started again; {waiting:,} records are not stored yet: the ranks have them, "
            "or have still to make them",
            flush=True,
        )


def explain(demo: Demo) -> str:
    if demo.arguments.replicas == 2:
        return ("quorum=2 of two replicas: while one is dead, nothing is acknowledged, so the ranks train on and keep their records until it "
                "is back. Three replicas (--replicas 3) would record on.")  # fmt: skip
    return "quorum=2 of three replicas: the two that are left go on recording, and the dead one catches up whenever it is back."


def run(demo: Demo) -> None:
    arguments = demo.arguments
    mistake = ("--bug", arguments.bug, "--bug-step", str(arguments.bug_step))
    demo.step("for comparison: runs base and ort on four ranks, into one collector with the embedded store")
    embedded = demo.collector("embedded")
    demo.train("base", embedded.address)
    total = demo.check_ledger(embedded.address, "base")
    demo.train("ort", embedded.address, *mistake)
    demo.check_ledger(embedded.address, "ort")
    expected = demo.verdict(embedded.address)

    demo.step(f"cluster: ZooKeeper, {arguments.replicas} replicas of ClickHouse, {COLLECTORS} collectors behind haproxy")
    engine = ReplicatedClickHouse(demo.work / "engine", replicas=arguments.replicas)
    demo.ends.append(engine.kill)
    engine.start()
    dsn = engine.dsn("statcollect")
    collectors = [demo.collector(f"collector{n}", "--store", dsn) for n in range(1, COLLECTORS + 1)]
    address = demo.balancer(collectors)
    print(f"collectors: {', '.join(c.address for c in collectors)}, each with --store {dsn}")
    print(f"ranks connect to haproxy at {address}\n{explain(demo)}")

    demo.step("cluster: run base, four ranks; a collector and a replica are killed in the middle")
    demo.train("base", address, meanwhile=lambda: kill_in_the_middle(demo, engine, collectors, total))
    demo.step(f"cluster: run ort, with the mistake '{arguments.bug}' from step {arguments.bug_step} on")
    demo.train("ort", address, *mistake)

    demo.step("what the cluster has, as the two collectors that are left say")
    left = collectors[1:]
    records = {run: {demo.check_ledger(c.address, run) for c in left} for run in ("base", "ort")}
    print(demo.statctl(address, "runs")[1])
    for name, counts in records.items():
        print(
            f"{name}: the agents sent {sum(demo.produced[name].values()):,} records, and the cluster has {counts.pop():,}, the same for each rank"
        )
    demo.step("statctl diff --run-a base --run-b ort, at the cluster")
    found = {demo.verdict(c.address) for c in left}
    print(found.copy().pop())
    if found != {expected}:
        raise DemoError(f"the embedded store gives another verdict:\n{expected}", 1)
    print("\nThe embedded store gives the same verdict, word for word. Nothing was lost, nothing doubled.")


def stop_on(signal_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal_number)


def main() -> int:
    arguments = parse_arguments()
    for number in ENDING:
        signal.signal(number, stop_on)
    if arguments.keep is not None and arguments.keep.exists() and any(arguments.keep.iterdir()):
        print(f"demo_cluster.sh: --keep {arguments.keep}: found files in it; name an empty or a new folder", file=sys.stderr)
        return 2
    work = Path(tempfile.mkdtemp(prefix="statcollect_cluster_")) if arguments.keep is None else arguments.keep.resolve()
    work.mkdir(parents=True, exist_ok=True)
    demo = Demo(arguments, work)
    try:
        check_packages()
        run(demo)
        demo.step("done")
        return 0
    except (DemoError, StartError) as failure:
        print(f"demo_cluster.sh: {failure}", file=sys.stderr)
        return failure.code if isinstance(failure, DemoError) else 2
    finally:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)  # the rest is short
        for end in reversed(demo.ends):
            end()
        if arguments.keep is None:
            shutil.rmtree(work, ignore_errors=True)
        else:
            print(f"Kept in {work}: logs, data, haproxy.cfg")


if __name__ == "__main__":
    sys.exit(main())
