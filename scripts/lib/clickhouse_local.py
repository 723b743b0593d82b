"""ClickHouse servers and a ZooKeeper on loopback, in temporary folders: for scripts/demo_cluster.sh and the tests of the second store."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from held_signals import held_signals

CONFIG = Path(__file__).resolve().parents[2] / "tests" / "support" / "clickhouse"
ZOOKEEPER_JAR = Path("/usr/share/java/zookeeper.jar")
SLF4J_JAR = ZOOKEEPER_JAR.with_name("slf4j-simple.jar")  # writes the log to standard error
START_SECONDS = 60
LOG_LINES = 20
FAILURE = re.compile(r"<(Error|Fatal)>|\b(ERROR|FATAL)\b|Exception")
# A session that its client has lost ends after this time; the other replica then no longer counts as alive.
SESSION_MS = 4000

REPLICA = """<?xml version="1.0"?>
<yandex>
  <zookeeper>
    <node><host>127.0.0.1</host><port>{zookeeper}</port></node>
    <session_timeout_ms>{session}</session_timeout_ms>
    <operation_timeout_ms>{session}</operation_timeout_ms>
  </zookeeper>
  <macros><shard>{shard}</shard><replica>{name}</replica></macros>
  <tcp_port>{tcp}</tcp_port>
  <interserver_http_port>{interserver}</interserver_http_port>
  <interserver_http_host>127.0.0.1</interserver_http_host>
</yandex>
"""

ZOOKEEPER = """tickTime=500
dataDir={folder}/data
clientPort={port}
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
"""


def clickhouse_program() -> str | None:
    return shutil.which("clickhouse-server", path="/usr/sbin:/usr/bin")


def haproxy_program() -> str | None:
    return shutil.which("haproxy", path="/usr/sbin:/usr/bin")


def missing_packages(replicated: bool, balanced: bool = False) -> list[str]:
    """The apt packages that are missing for a server, for replicas of it, and for a balancer in front of collectors."""
    missing = [] if clickhouse_program() else ["clickhouse-server"]
    if replicated and not ZOOKEEPER_JAR.exists():
        missing.append("zookeeper")
    if replicated and not shutil.which("java"):
        missing.append("default-jre-headless")
    if balanced and not haproxy_program():
        missing.append("haproxy")
    return missing


_given: set[int] = set()


def free_port() -> int:
    """For a server that cannot choose one itself. Below those that Linux gives to outgoing connections, any of which could take it
    before the server does."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        if port in _given:
            continue
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            _given.add(port)
            return port


class StartError(RuntimeError):
    """A server that did not answer; the message has what its log says of this start."""


class Server:
    """A process on a port of loopback. `start` may be called again after `kill`, and keeps data and port."""

    name = "server"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.log_begin = 0  # of the last start

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def command(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        raise NotImplementedError

    def spawn(self) -> None:
        with self.log.open("ab") as log, held_signals():
            self.log_begin = log.tell()
            # A session of its own: Ctrl-C in a terminal reaches whoever started it, and that one ends it.
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=self.folder
            )

    def await_answer(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                raise StartError(f"start {self.name}: no answer at {self.address}; {self.log} says:\n{self.log_extract()}")
            time.sleep(0.05)

    def start(self) -> Server:
        self.spawn()
        self.await_answer()
        return self

    def log_extract(self) -> str:
        """The first error since the last start, which the rest may follow from, and the last lines."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self.log_begin)
            lines = log.read().decode(errors="replace").splitlines()
        first = next((n for n, line in enumerate(lines) if FAILURE.search(line)), len(lines))
        end = max(len(lines) - LOG_LINES, 0)
        extract = lines[end:]
        if first < end:
            shown = lines[first : min(first + LOG_LINES, end)]
            extract = [*shown, *(["..."] if first + len(shown) < end else []), *extract]
        return "\n".join(extract)

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        self.process.wait(timeout=20)
        self.process = None

    def freeze(self) -> None:
        """Nothing answers any more, and nothing is closed: as a machine that the network does not reach."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


class ZooKeeper(Server):
    name = "ZooKeeper"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "zoo.cfg").write_text(ZOOKEEPER.format(folder=folder, port=self.port))

    def command(self) -> list[str]:
        # It does little and lives for minutes: without the compiler that pays off later.
        return ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{ZOOKEEPER_JAR}:{SLF4J_JAR}",
                "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.folder / "zoo.cfg")]  # fmt: skip

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.sendall(b"srvr")
            return b"Mode:" in connection.recv(4096)
        return False


class ClickHouse(Server):
    """`zookeeper`: the port at which it finds its ZooKeeper, for replicated tables; `replica`: its name among the replicas
    of its shard."""

    name = "clickhouse-server"

    def __init__(self, folder: Path, zookeeper: int | None = None, replica: str = "one", shard: int = 1) -> None:
        super().__init__(folder)
        for name in ("config.xml", "users.xml"):  # the server writes beside its configuration
            shutil.copy(CONFIG / name, folder / name)
        if zookeeper is not None:
            (folder / "config.d").mkdir()
            ports = {"tcp": free_port(), "interserver": free_port()}  # a replica that has no TCP port never becomes active
            replica_xml = REPLICA.format(zookeeper=zookeeper, session=SESSION_MS, name=replica, shard=shard, **ports)
            (folder / "config.d" / "replica.xml").write_text(replica_xml)

    def command(self) -> list[str]:
        path = clickhouse_program()
        assert path
        return [path, f"--config-file={self.folder}/config.xml", "--", f"--path={self.folder}/", f"--tmp_path={self.folder}/tmp/",
                f"--format_schema_path={self.folder}/schemas/", f"--http_port={self.port}"]  # fmt: skip

    def answers(self) -> bool:
        with contextlib.suppress(OSError):
            return self.ask("SELECT 1") == "1\n"
        return False

    def ask(self, statement: str, timeout: float = 20) -> str:
        with urllib.request.urlopen(f"http://{self.address}/", data=statement.encode(), timeout=timeout) as answer:
            return str(answer.read().decode())


class ReplicatedClickHouse:
    """Replicas of each other, and their ZooKeeper."""

    def __init__(self, folder: Path, replicas: int = 2) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.zookeeper = ZooKeeper(folder / "zookeeper")
        self.replicas = [
            ClickHouse(folder / f"replica{n}", zookeeper=self.zookeeper.port, replica=f"replica{n}")
            for n in range(1, replicas + 1)
        ]

    def start(self) -> ReplicatedClickHouse:
        try:
            self.zookeeper.start()
            for replica in self.replicas:
                replica.spawn()
            for replica in self.replicas:
                replica.await_answer()
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self) -> None:
        for server in (*self.replicas, self.zookeeper):
            server.kill()

    def dsn(self, database: str, quorum: int = 2) -> str:
        return f"clickhouse://{','.join(replica.address for replica in self.replicas)}/{database}?quorum={quorum}"
