"""Fixtures of the end-to-end tests: a real statcollectord on a free port with a temporary folder, real statctl, real torchrun."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from clickhouse_server import ClickHouseServer
from warm_python import shared

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STATCOLLECT_BUILD_DIR", ROOT / "build" / "release"))
STATCOLLECTORD = BUILD / "bin" / "statcollectord"
STATCTL = BUILD / "bin" / "statctl"
LIBRARY = BUILD / "lib" / "libstatagent.so"
TRAIN = ROOT / "examples" / "gpt_torch" / "train.py"
CORPUS = Path(__file__).parent / "corpus"
if "PYTEST_VERSION" in os.environ:
    # Processors with AVX-512 round differently, and tests of numbers expect the same numbers everywhere. The benchmark of verdicts, run by
    # itself, uses what the processor has.
    for variable in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"):
        os.environ.setdefault(variable, "avx2" if variable == "ATEN_CPU_CAPABILITY" else "AVX2")
SMALL = [
    "--steps", "4", "--layers", "2", "--width", "32", "--heads", "2", "--context", "32", "--batch", "4", "--corpus", str(CORPUS),
]  # fmt: skip
# Trains one job after the other in one process group.
TRAIN_ALL = """
import json, sys
sys.path.insert(0, sys.argv[1])
import train
from torch import distributed
distributed.init_process_group("gloo")
end = distributed.destroy_process_group
distributed.init_process_group = distributed.destroy_process_group = lambda *_: None
for job in json.loads(sys.argv[2]):
    sys.argv = ["train.py", *job]
    train.main()
    distributed.barrier()
end()
"""


@dataclass
class Finished:
    """What a command left behind."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def run_command(
    arguments: list[str], env: dict[str, str] | None = None, timeout: float = 300, cwd: Path | None = None, cold: bool = False
) -> Finished:
    """Runs a command to its end; a command that outlives the timeout is killed and fails the test. Our own Python runs in a fork of a process that
    has imported torch already (warm_python), unless `cold`."""
    if not cold and arguments[0] == sys.executable and env is not None and WARM.takes(env):
        return Finished(*WARM.run(arguments[1:], env, timeout, cwd))
    done = subprocess.run(
        arguments, env=env, timeout=timeout, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def start_python(arguments: list[str], env: dict[str, str], **options: Any) -> subprocess.Popen[Any]:
    """A Python process that a test talks to or kills: stands in for a fork of the process that has imported torch. SIGSTOP is not passed on."""
    warm = {**env, **WARM.stand_in()}
    return subprocess.Popen([warm["PYTHON_EXEC"], *arguments], env=warm, **options)


def reserved_port() -> socket.socket:
    """Keeps a port of loopback for a server that may listen there, as both allow it (SO_REUSEADDR), whatever is down in between:
    neither other servers nor outgoing connections get it meanwhile."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def address_of(reserved: socket.socket) -> str:
    return f"127.0.0.1:{reserved.getsockname()[1]}"


@dataclass
class Collector:
    """One statcollectord process; `start` may be called again after `stop` or `kill` and keeps data and ports."""

    data_dir: Path
    address: str = ""
    http: str = ""
    ready_line: str = ""
    process: subprocess.Popen[str] | None = None
    extra: list[str] = field(default_factory=list)
    wrapper: list[str] = field(default_factory=list)  # a command that replaces itself with its arguments
    ports: list[socket.socket] = field(default_factory=list)  # reserved for its restarts

    def reserved(self) -> str:
        self.ports.append(reserved_port())
        return address_of(self.ports[-1])

    def start(self) -> Collector:
        listen = self.address or self.reserved()
        http = self.http or self.reserved()
        arguments = [
            *self.wrapper,
            str(STATCOLLECTORD),
            "--data-dir",
            str(self.data_dir),
            "--listen",
            listen,
            "--http",
            http,
            *self.extra,
        ]
        with (self.data_dir.parent / "collector.err").open("a") as errors:  # the process has its own from then on
            self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline()
        match = re.search(r"grpc ([\d.]+:\d+), http ([\d.]+:\d+)", self.ready_line)
        assert match, f"no ready line: {self.ready_line!r}\n{(self.data_dir.parent / 'collector.err').read_text()}"
        self.address, self.http = match.groups()
        return self

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=20)
        self.process = None
        return code

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=20)
        self.process = None

    def statctl(self, *arguments: str, timeout: float = 120) -> Finished:
        return run_command([str(STATCTL), "--collector", self.address, *arguments], timeout=timeout)

    def json(self, *arguments: str, codes: tuple[int, ...] = (0,)) -> Any:
        done = self.statctl("--format", "json", *arguments)
        assert done.code in codes, f"statctl {arguments} exited with {done.code}: {done.out}{done.err}"
        return done.json()

    def diff(self, a: str, b: str, *arguments: str) -> Any:
        return self.json("diff", "--run-a", a, "--run-b", b, *arguments, codes=(0, 1, 2))

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=60) as response:
            return str(response.read().decode())

    def environment(self, **extra: str) -> dict[str, str]:
        return agent_environment(STATAGENT_COLLECTOR=self.address, STATCTL_COLLECTOR=self.address, **extra)

    def train(
        self, run: str, *arguments: str, ranks: int = 2, code: int | None = 0, env: dict[str, str] | None = None
    ) -> Finished:
        """A small training run of the demo's model under torchrun."""
        done = run_command(
            torchrun(ranks, str(TRAIN), *SMALL, *arguments), env=self.environment(STATAGENT_RUN=run, **(env or {}))
        )
        assert code is None or done.code == code, f"training {run} exited with {done.code}:\n{done.out}\n{done.err}"
        return done

    def train_all(self, runs: dict[str, list[str]], folder: Path, ranks: int = 2) -> None:
        """As `train` for each run with its arguments, all in one launch: starting ranks takes longer than training them."""
        script = folder / f"train_all_{ranks}.py"
        script.write_text(TRAIN_ALL)
        jobs = json.dumps([["--run-name", run, *SMALL, *arguments] for run, arguments in runs.items()])
        done = run_command(torchrun(ranks, str(script), str(TRAIN.parent), jobs), env=self.environment())
        assert done.code == 0, f"training {list(runs)} exited with {done.code}:\n{done.out}\n{done.err}"

    def python(
        self, script: str, *arguments: str, env: dict[str, str] | None = None, code: int | None = 0, timeout: float = 300
    ) -> Finished:
        """A Python script with statagent importable and the collector's address in the environment."""
        done = run_command([sys.executable, "-c", script, *arguments], env=self.environment(**(env or {})), timeout=timeout)
        assert code is None or done.code == code, f"exit code {done.code}:\n{done.out}\n{done.err}"
        return done


class Gates:
    """Steps before which a training waits whose script says so (GATES in its environment), until they are opened."""

    def __init__(self, folder: Path, *steps: int) -> None:
        self.folder = folder
        folder.mkdir()
        for step in steps:
            (folder / str(step)).touch()

    def environment(self) -> dict[str, str]:
        return {"GATES": str(self.folder)}

    def open(self, step: int) -> None:
        (self.folder / str(step)).unlink()


def agent_environment(**extra: str) -> dict[str, str]:
    """The environment of a training process: ours, without a launcher's variables, with the package and the library."""
    launcher = re.compile(r"^(RANK|WORLD_SIZE|LOCAL_|MASTER_|TORCHELASTIC|OMPI_|PMI|SLURM_|STATAGENT_|STATCTL_)")
    env = {k: v for k, v in os.environ.items() if not launcher.match(k)}
    env["PYTHONPATH"] = str(ROOT / "agent" / "python")
    env["STATAGENT_LIBRARY"] = str(LIBRARY)
    env["OMP_NUM_THREADS"] = "1"
    env["GOMP_SPINCOUNT"], env["OMP_WAIT_POLICY"] = (
        "0",
        "PASSIVE",
    )  # where a test asks for two threads: on one core they wait by spinning
    env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # its pool of processes takes longer to start than the kernels of tests to compile
    env["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "0"  # kernels may be kept, but each run makes its own graphs
    env.update(extra)
    return env


def train_launches(
    program: str,
    launches: Mapping[int, Sequence[Mapping[str, Any]]],
    folder: Path,
    env: dict[str, str],
    plain_alone: bool = False,
) -> None:
    """Trains jobs, by how many ranks they have, with a program that takes a file of them: two launches at a time. plain_alone: one rank is not under
    torchrun."""

    def train(ranks: int) -> None:
        path = folder / f"{ranks}.json"
        path.write_text(json.dumps(launches[ranks]), encoding="utf-8")
        arguments = [sys.executable, program, str(path)] if plain_alone and ranks == 1 else torchrun(ranks, program, str(path))
        done = run_command(arguments, env=env)
        assert done.code == 0, f"{done.out}\n{done.err}"

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train, launches))


def torchrun(ranks: int, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", *arguments]


WARM = shared(agent_environment())


def wait_until(condition: Any, timeout: float = 20, what: str = "condition") -> Any:
    """Polls until `condition()` is true, returns what it returned; fails the test after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.05)


# The files that take longest, longest first: with several workers a long file that starts last is waited for.
SLOW = (
    "test_clickhouse_replicated", "test_bare_root", "test_page", "test_bench", "test_migrate", "test_set_ups", "test_auto_start",
    "test_fault_catalogue", "test_watch_lifetimes", "test_auto_trainers", "test_wheel", "test_page_places", "test_auto_plain",
    "test_clickhouse", "test_tls", "test_clickhouse_shards", "test_clickhouse_naive", "test_page_runs", "test_front_door",
    "test_twins_distributed", "test_demo_cluster", "test_compiled", "test_some_ranks", "test_zoom_trainings", "test_twins", "test_alarms",
    "test_layouts", "test_overhead", "test_init", "test_compile", "test_export", "test_verdict_bench", "test_imports",
    "test_frameworks_torch", "test_captures", "test_spill", "test_buffers", "test_pytest_plugin", "test_rollback", "test_half_open",
    "test_durability", "test_gil", "test_python_client", "test_types", "test_tokens", "test_launch_examples", "test_verdict_rows",
    "test_picture",
)  # fmt: skip


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of all folders, where several are run."""
    items.sort(key=lambda item: SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW))


@pytest.fixture(scope="session", autouse=True)
def built() -> Iterator[None]:
    for path in (STATCOLLECTORD, STATCTL, LIBRARY):
        assert path.exists(), f"{path} is missing: build first (scripts/build.sh), or set STATCOLLECT_BUILD_DIR"
    yield
    WARM.close()


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    """A fresh collector for one test."""
    started = Collector(tmp_path / "data").start()
    yield started
    if started.process is not None:
        started.stop()


@pytest.fixture(scope="module")
def shared_collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """One collector for the tests of a module that only add runs of their own."""
    started = Collector(tmp_path_factory.mktemp("collector") / "data").start()
    yield started
    if started.process is not None:
        assert started.stop() == 0


@pytest.fixture(scope="module")
def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseServer]:
    """One ClickHouse for the tests of a module that each use a database of their own and do not kill it."""
    server = ClickHouseServer(tmp_path_factory.mktemp("clickhouse") / "engine").start()
    yield server
    server.kill()
