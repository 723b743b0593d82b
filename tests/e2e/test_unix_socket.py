"""Agents and statctl over a Unix socket, with its permissions, and what a collector finds or leaves in its place."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import STATCOLLECTORD, STATCTL, Finished, agent_environment, run_command

RECORD = """
import numpy, statagent
statagent.init(run="one", required=True)
statagent.inspect("x", numpy.ones(8, dtype="float32"))
statagent.log_scalar("loss", 1.0)
statagent.step()
statagent.close()
print(statagent.counters())
"""


class Local:
    """A statcollectord that listens on a socket in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "data"
        self.path = folder / "grpc.sock"
        self.address = f"unix:{self.path}"
        self.errors = folder / "collector.err"
        self.process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str) -> str:
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen(
                [str(STATCOLLECTORD), "--data-dir", str(self.data_dir), "--listen", self.address, *arguments],
                stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "ready" in line, self.errors.read_text()
        return line

    def refused(self, *arguments: str, data: str = "data", http: str = "off") -> str:
        folder = self.data_dir.parent / data
        done = run_command([str(STATCOLLECTORD), "--data-dir", str(folder), "--http", http, *arguments])
        assert done.code == 2, done.out
        return done.err

    def statctl(self, *arguments: str, **env: str) -> Finished:
        return run_command([str(STATCTL), "--collector", self.address, *arguments], env={**os.environ, **env})

    def record(self, **env: str) -> Finished:
        return run_command([sys.executable, "-c", RECORD], env=agent_environment(STATAGENT_COLLECTOR=self.address, **env))

    def stop(self, how: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        code = self.process.wait(timeout=20)
        self.process = None
        return code


@pytest.fixture
def local(tmp_path_factory: Any) -> Iterator[Local]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="sc-") as folder:  # short, as paths of sockets have to be
        collector = Local(Path(folder))
        yield collector
        if collector.process is not None:
            collector.stop()


def mode_of(path: Path) -> str:
    return oct(stat.S_IMODE(path.lstat().st_mode))


def test_agents_and_statctl_use_the_socket_alone_or_beside_a_port(local: Local) -> None:
    ready = local.start("--http", "off")
    assert f"grpc {local.address}, http off" in ready and f"statctl --collector {local.address} runs" in ready
    assert mode_of(local.path) == "0o600"
    done = local.record()
    assert done.code == 0 and "'pending': 0" in done.out, done.err
    assert "one" in local.statctl("runs").out
    assert local.stop() == 0 and not local.path.exists()

    ready = local.start("--listen", "127.0.0.1:0", "--http", "off", "--socket-mode", "0660", "--socket-group", str(os.getgid()))
    both = re.search(r"grpc ([\d.]+:\d+) and (unix:\S+), http off", ready)
    assert both and both[2] == local.address and mode_of(local.path) == "0o660"
    for address in both.groups():
        assert "one" in run_command([str(STATCTL), "--collector", address, "runs"]).out


def test_the_socket_stays_plain_with_tls_and_wants_tokens(local: Local, tmp_path: Path) -> None:
    ready = local.start("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--tls-auto")
    assert local.address in ready
    refused = local.statctl("runs")
    assert refused.code == 2 and "no token was sent" in refused.err
    assert local.record(STATAGENT_TOKEN_FILE=str(local.data_dir / "tls" / "agents.token")).code == 0
    token = {"STATCTL_TOKEN_FILE": str(local.data_dir / "tls" / "statctl.token")}
    assert "one" in local.statctl("runs", **token).out
    assert "one" in local.statctl("runs", STATCTL_TLS_CA=str(local.data_dir / "tls" / "ca.pem"), **token).out
    assert re.match(r"https://127\.0\.0\.1:\d+/#login=[0-9a-f]{64}\n$", local.statctl("open", **token).out)
    assert '"address":"unix:' in (local.data_dir / "audit.jsonl").read_text()


def test_a_socket_that_is_left_over_is_replaced_and_nothing_else_is(local: Local) -> None:
    local.start("--http", "off")
    other = local.refused("--listen", local.address, data="other")
    assert "another process listens there" in other
    local.stop(signal.SIGKILL)
    assert local.path.exists()
    gone = local.statctl("runs")
    assert gone.code == 2 and "Connection refused" in gone.err and f"--listen {local.address}" in gone.err
    local.start("--http", "off")
    assert local.statctl("runs").code == 0
    local.stop()
    local.path.write_text("notes")
    assert "not a socket" in local.refused("--listen", local.address)
    assert local.path.read_text() == "notes"


def test_bad_addresses_are_explained(local: Local) -> None:
    long = f"unix:{local.path}{'x' * 100}"
    for address, expected in ((long, "at most 107"), ("unix:here.sock", "absolute path"), ("unix:", "absolute path")):
        assert expected in local.refused("--listen", address)
        statctl = run_command([str(STATCTL), "--collector", address, "runs"])
        assert statctl.code == 2 and expected in statctl.err
        agent = run_command(
            [sys.executable, "-c", "import statagent; statagent.init(run='r', required=True)"],
            env=agent_environment(STATAGENT_COLLECTOR=address),
        )
        assert agent.code != 0 and expected in agent.err
    assert "one HOST:PORT and one unix:" in local.refused("--listen", local.address, "--listen", "unix:/tmp/b")
    assert "--socket-mode" in local.refused("--listen", local.address, "--socket-mode", "rw")
    assert "--socket-mode" in local.refused("--listen", local.address, "--socket-mode", "0066")
    assert "no group 'nobody-has-this'" in local.refused("--listen", local.address, "--socket-group", "nobody-has-this")
    assert "browsers do not use sockets" in local.refused(http=local.address)
    missing = run_command([str(STATCTL), "--collector", local.address, "runs"])
    assert missing.code == 2 and "there is no such socket" in missing.err


def test_what_is_made_is_for_this_user_only(local: Local) -> None:
    before = os.umask(0)
    try:
        local.start("--http", "off", "--tls-auto")
        spill = local.data_dir.parent / "spill"
        token = str(local.data_dir / "tls" / "agents.token")
        env = agent_environment(STATAGENT_COLLECTOR=local.address, STATAGENT_TOKEN_FILE=token, STATAGENT_SPILL_DIR=str(spill))
        done = run_command([sys.executable, "-c", RECORD], env=env, cold=True)  # a fork would have an umask of its own
        assert done.code == 0, done.err
    finally:
        os.umask(before)
    for path in (local.data_dir, *local.data_dir.rglob("*")):
        if path.suffix == ".pem":  # certificates are for others to copy; the folder is not open to them
            continue
        assert mode_of(path) in ("0o700", "0o600"), path
    assert mode_of(spill) == "0o700"
    assert "data directory" not in local.errors.read_text()
    local.stop()
    local.data_dir.chmod(0o755)
    local.start("--http", "off")
    assert "found permissions 755" in local.errors.read_text() and f"chmod 700 {local.data_dir}" in local.errors.read_text()
