"""What befalls a ClickHouse and not the whole of it: a disk that is full, one replica of three without its ZooKeeper."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clickhouse_server import ClickHouseServer, ZooKeeper, missing_packages, program
from conftest import Gates, wait_until
from tcp_proxy import TcpProxy
from test_clickhouse import Cluster, check_ledger, records_of
from test_clickhouse_faults import opened
from test_clickhouse_replicated import await_records, log_of
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


@pytest.fixture
def three(tmp_path: Path) -> Iterator[tuple[list[ClickHouseServer], list[TcpProxy], ZooKeeper]]:
    """Three replicas, each with a proxy between it and the ZooKeeper of all."""
    if missing := missing_packages(replicated=True):
        pytest.skip(f"{', '.join(missing)}: not installed; scripts/setup.sh --for cluster installs them")
    zookeeper = ZooKeeper(tmp_path / "zookeeper")
    zookeeper.start()
    proxies = [TcpProxy(zookeeper.address, seed=n) for n in range(3)]
    replicas = [
        ClickHouseServer(tmp_path / f"replica{n}", zookeeper=int(proxy.address.rpartition(":")[2]), replica=f"replica{n}")
        for n, proxy in enumerate(proxies)
    ]
    for replica in replicas:
        replica.spawn()
    for replica in replicas:
        replica.await_answer()
    yield replicas, proxies, zookeeper
    for server in (*replicas, zookeeper):
        server.kill()
    for proxy in proxies:
        proxy.close()


def test_recording_goes_on_past_a_read_only_replica_and_past_a_dead_one(
    tmp_path: Path, three: tuple[list[ClickHouseServer], list[TcpProxy], ZooKeeper]
) -> None:
    replicas, proxies, zookeeper = three
    cluster = Cluster(tmp_path, f"clickhouse://{','.join(replica.address for replica in replicas)}/three?quorum=2")
    collector = cluster.add()
    steps = 150
    gates = Gates(tmp_path / "gates", 50, 100)
    trainer = start(collector, "three", steps, **gates.environment())
    await_records(collector, "three", 50 * 52)

    # The host that the collector asks first loses its ZooKeeper, and answers all the same.
    proxies[0].turn_to("127.0.0.1:1")
    asks = "SELECT sum(is_readonly) FROM system.replicas WHERE database = 'three'"
    wait_until(lambda: replicas[0].ask(asks) == "4\n", timeout=30, what="read-only tables")
    gates.open(50)
    await_records(collector, "three", 100 * 52)
    assert collector.json("status")["state"] == "ready"
    assert replicas[0].ask("SELECT count() FROM three.records WHERE family = 119") == "50\n", "it has got nothing since"

    # It is back, with what it missed, when another one dies.
    proxies[0].turn_to(zookeeper.address)
    wait_until(lambda: replicas[0].ask(asks) == "0\n", timeout=60, what="tables that can be written")
    replicas[1].kill()
    gates.open(100)
    check_ledger(collector, "three", trainer, steps)
    cluster.stop()


def test_a_run_that_the_server_may_not_drop_holds_up_no_other_and_goes_once_it_may(tmp_path: Path) -> None:
    """By default a server drops at most 50 GB at once; here it is less."""
    engine = ClickHouseServer(tmp_path / "engine")
    (engine.folder / "config.d").mkdir()
    limit = engine.folder / "config.d" / "limit.xml"
    limit.write_text("<yandex><max_partition_size_to_drop>150000</max_partition_size_to_drop></yandex>")
    engine.start()
    try:
        cluster = Cluster(tmp_path, engine.new_dsn())
        collector = cluster.add()
        for run, steps in (("large", 200), ("small", 3), ("stays", 3)):
            trainer = start(collector, run, steps)
            assert trainer.wait(timeout=60) == 0

        def partitions() -> int:
            return int(engine.ask("SELECT uniq(partition) FROM system.parts WHERE active AND table = 'records'"))

        assert partitions() == 3
        assert collector.statctl("rm", "large", "--yes").code == 0
        wait_until(lambda: "delete the data of removed runs" in log_of(collector), timeout=30, what="a refusal")
        assert "set max_partition_size_to_drop to 0 in its configuration (docs/clickhouse.md) and start it again" in log_of(
            collector
        )
        assert collector.statctl("rm", "small", "--yes").code == 0
        wait_until(lambda: partitions() == 2, timeout=30, what="the small one's removal")
        assert [run["run"] for run in collector.json("runs")["runs"]] == ["stays"]
        limit.write_text("<yandex><max_partition_size_to_drop>0</max_partition_size_to_drop></yandex>")
        engine.kill()
        engine.start()
        assert collector.stop() == 0
        collector.start()
        wait_until(lambda: partitions() == 1, timeout=30, what="the large one's removal")
        cluster.stop()
    finally:
        engine.kill()
