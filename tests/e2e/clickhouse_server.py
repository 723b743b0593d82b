"""A real clickhouse-server on loopback with a temporary folder, for tests of the second store."""

from __future__ import annotations

import itertools
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

CONFIG = Path(__file__).resolve().parents[1] / "support" / "clickhouse"
_databases = itertools.count(1)


def program() -> str | None:
    return shutil.which("clickhouse-server", path="/usr/sbin:/usr/bin")


class ClickHouseServer:
    """`start` may be called again after `kill` and keeps data and port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("config.xml", "users.xml"):  # the server writes beside its configuration
            shutil.copy(CONFIG / name, folder / name)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> ClickHouseServer:
        path = program()
        assert path
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [path, f"--config-file={self.folder}/config.xml", "--", f"--path={self.folder}/", f"--tmp_path={self.folder}/tmp/",
                 f"--format_schema_path={self.folder}/schemas/", f"--http_port={self.port}"],
                stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + 30
        while True:
            try:
                self.ask("SELECT 1")
                return self
            except OSError:
                alive = self.process.poll() is None and time.monotonic() < deadline
                assert alive, (self.folder / "server.log").read_text()
                time.sleep(0.05)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=20)
            self.process = None

    def ask(self, statement: str) -> str:
        with urllib.request.urlopen(f"http://{self.address}/", data=statement.encode(), timeout=20) as answer:
            return str(answer.read().decode())

    def new_dsn(self, through: str = "") -> str:
        """A database that no other test uses; `through`: the address of a proxy."""
        return f"clickhouse://{through or self.address}/e2e_{next(_databases)}"
