"""What befalls a ClickHouse and not the whole of it: a disk that is full, one replica of three without its ZooKeeper."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clickhouse_server import ClickHouseServer, program
from conftest import Gates, wait_until
from test_clickhouse import Cluster, check_ledger, records_of
from test_clickhouse_faults import opened
from test_clickhouse_replicated import log_of
from test_durability import start

pytestmark = pytest.mark.skipif(program() is None, reason="clickhouse-server is not installed; scripts/setup.sh installs it")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"may not mount: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Takes all space of the folder's file system."""
    filler = folder / "filler"
    free = os.statvfs(folder)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
    return filler


def test_a_disk_that_is_really_full(tmp_path: Path, small_disk: Path) -> None:
    """ClickHouse then says what it could not write, and not, as with a disk that is nearly full, that it does not want to."""
    engine = ClickHouseServer(small_disk / "engine").start()
    try:
        cluster = Cluster(tmp_path, engine.new_dsn())
        collector = cluster.add()
        steps = 60
        gates = Gates(tmp_path / "gates", 20)
        trainer = start(collector, "full", steps, **gates.environment())
        wait_until(lambda: records_of(collector, "full") == 20 * 52, timeout=60, what="records")
        filler = fill(small_disk)
        gates.open(20)
        wait_until(lambda: "store records" in log_of(collector), timeout=60, what="a refused insert")
        assert records_of(collector, "full") == 20 * 52, "what is there can be read, and no more is acknowledged"
        assert "No space left on device; expected room for the records; free space on the engine's disk" in log_of(collector)
        refused = opened(tmp_path, engine.new_dsn())
        assert refused.code == 2 and "free space on the engine's disk" in refused.err, refused
        states = [collector.json("status")["state"] for _ in range(3)]
        assert all(state.startswith("read_only: ") and "No space left on device" in state for state in states), states
        filler.unlink()
        check_ledger(collector, "full", trainer, steps)
        assert collector.json("status")["state"] == "ready"
        assert "store records: it succeeds again" in log_of(collector)
        cluster.stop()
    finally:
        engine.kill()
