"""Collectors over two replicas of a ClickHouse and their ZooKeeper: whatever of them is lost and comes back, nothing acknowledged is lost or doubled."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from clickhouse_server import Replicas, missing_packages
from conftest import STATCOLLECTORD, Collector, Gates, run_command, start_python, wait_until
from store_conformance import check_conformance
from tcp_proxy import TcpProxy
from test_clickhouse import Cluster, check_ledger, records_of
from test_durability import STEADY, start

missing = missing_packages(replicated=True)
pytestmark = pytest.mark.skipif(
    bool(missing), reason=f"{', '.join(missing)}: not installed; scripts/setup.sh --for cluster installs them"
)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Replicas]:
    replicas = Replicas(tmp_path / "engine").start()
    yield replicas
    replicas.kill()


@pytest.fixture(scope="module")
def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    """For tests that kill nothing."""
    replicas = Replicas(tmp_path_factory.mktemp("replicated")).start()
    yield replicas
    replicas.kill()


def await_records(collector: Collector, run: str, least: int) -> None:
    wait_until(lambda: records_of_some(collector, run) >= least, timeout=90, what=f"{least} records")


def records_of_some(collector: Collector, run: str) -> int:
    return records_of(collector, run) if collector.statctl("runs").code == 0 else 0


def log_of(collector: Collector) -> str:
    return (collector.data_dir.parent / "collector.err").read_text()


def test_the_store_conforms_over_replicas(shared_engine: Replicas) -> None:
    hosts = ",".join(replica.address for replica in shared_engine.replicas)
    check_conformance(f"{hosts}?quorum=2")


@pytest.mark.parametrize("away", [1.0, 7.0], ids=["shorter than its session", "longer"])
def test_a_replica_that_is_killed_and_comes_back(tmp_path: Path, engine: Replicas, away: float) -> None:
    cluster = Cluster(tmp_path, engine.new_dsn())
    collector = cluster.add()
    steps = 300
    trainer = start(collector, "replica", steps)
    for round_, replica in enumerate(engine.replicas):
        await_records(collector, "replica", (round_ + 1) * 3000)
        replica.kill()
        time.sleep(away)
        replica.start()
    check_ledger(collector, "replica", trainer, steps)
    cluster.stop()


def test_a_replica_dies_with_a_batch_that_the_other_one_does_not_have(tmp_path: Path, engine: Replicas) -> None:
    """The quorum of that batch fails, or is reached when the replica is back; the batch was not acknowledged before."""
    cluster = Cluster(tmp_path, engine.new_dsn())
    collector = cluster.add()
    first, second = engine.replicas
    steps = 300
    trainer = start(collector, "half", steps)
    for round_ in range(2):
        await_records(collector, "half", (round_ + 1) * 3000)
        second.freeze()
        time.sleep(1)  # an insert waits for its quorum at the first
        first.kill()
        second.thaw()
        time.sleep(1 if round_ == 0 else 6)
        first.start()
    check_ledger(collector, "half", trainer, steps)
    cluster.stop()


def test_a_zookeeper_that_is_gone_and_comes_back(tmp_path: Path, engine: Replicas) -> None:
    cluster = Cluster(tmp_path, engine.new_dsn())
    collector = cluster.add()
    steps = 300
    gates = Gates(tmp_path / "gates", 100)
    trainer = start(collector, "zookeeper", steps, **gates.environment())
    await_records(collector, "zookeeper", 3000)
    engine.zookeeper.kill()
    gates.open(100)
    # The sessions end: the tables are read-only.
    asked = wait_until(
        lambda: (done := collector.statctl("runs")).code == 2 and "ession expired" in done.err and done, what="an error"
    )
    assert "ClickHouse at http://127.0.0.1" in asked.err, asked
    engine.zookeeper.start()
    check_ledger(collector, "zookeeper", trainer, steps)
    assert "code 242" in log_of(collector) or "code 225" in log_of(collector), "what it waited for is in the log"
    cluster.stop()


def test_collectors_replica_and_zookeeper_killed_at_once(tmp_path: Path, engine: Replicas) -> None:
    cluster = Cluster(tmp_path, engine.new_dsn())
    first, second = cluster.add(), cluster.add()
    proxy = TcpProxy(first.address, seed=2)
    steps = 300
    trainer = start(Collector(tmp_path, address=proxy.address), "all", steps)
    await_records(second, "all", 3000)
    engine.zookeeper.kill()
    first.kill()
    engine.replicas[0].kill()
    proxy.turn_to(second.address)
    time.sleep(2)
    engine.zookeeper.start()  # first: this ClickHouse does not start without it
    engine.replicas[0].start()
    check_ledger(second, "all", trainer, steps)
    first.start()
    assert first.json("show", "all")["attempts"] == second.json("show", "all")["attempts"]
    cluster.stop()
    proxy.close()


def test_the_network_between_collector_and_replicas_is_cut(tmp_path: Path, engine: Replicas) -> None:
    proxies = [TcpProxy(replica.address, seed=n) for n, replica in enumerate(engine.replicas)]
    cluster = Cluster(tmp_path, engine.new_dsn(*[proxy.address for proxy in proxies]))
    collector = cluster.add()
    steps = 300
    trainer = start(collector, "cut", steps)
    for round_ in range(4):
        await_records(collector, "cut", (round_ + 1) * 2000)
        cut = proxies if round_ == 3 else [proxies[round_ % 2]]
        for proxy in cut:
            proxy.turn_to("127.0.0.1:1")  # nobody is there
        if round_ == 2:
            engine.replicas[1].kill()  # the one that is reached
        time.sleep(1)
        if round_ == 2:
            engine.replicas[1].start()
        for proxy, replica in zip(proxies, engine.replicas, strict=True):
            proxy.turn_to(replica.address)  # cuts each connection, also within an insert
    check_ledger(collector, "cut", trainer, steps)
    cluster.stop()
    for proxy in proxies:
        proxy.close()


def test_without_a_quorum_agents_keep_their_records(tmp_path: Path, engine: Replicas) -> None:
    cluster = Cluster(tmp_path, engine.new_dsn())
    collector = cluster.add()
    steps = 400
    patient = STEADY.replace("close(timeout=30)", "close(timeout=150)")
    trainer = start_python(["-c", patient, "alone", str(steps)], env=collector.environment(), text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    await_records(collector, "alone", 3000)
    engine.replicas[1].kill()
    time.sleep(6)  # its session ends
    stored = records_of(collector, "alone")
    new = run_command(
        [str(STATCOLLECTORD), "--data-dir", str(tmp_path / "new"), "--listen", "127.0.0.1:0", "--store", engine.new_dsn()],
        timeout=90,
    )  # waits for a quorum for 20 s, as the collector does that is there
    assert new.code == 2 and "less than requested quorum (2)" in new.err.splitlines()[-1], new.err
    assert new.err.count("if it lacks the tables, the next start of a collector creates them there") == 1
    assert records_of(collector, "alone") == stored, "what is there can be read, and no more is acknowledged"
    assert trainer.poll() is None, "it waits at its end"
    state = wait_until(
        lambda: (s := collector.json("status")["state"]) != "ready" and s, timeout=30, what="a status that says so"
    )
    assert state.startswith("read_only: ") and "less than requested quorum (2)" in state, state
    assert all(collector.json("status")["state"].startswith("read_only: ") for _ in range(3)), "it stands until a write succeeds"
    engine.replicas[1].start()
    check_ledger(collector, "alone", trainer, steps)
    log = log_of(collector)
    assert "expected as many replicas as the quorum asks for; start those that are missing" in log
    assert "agents keep their records and send them again" in log and "store records: it succeeds again" in log
    cluster.stop()


def test_a_collector_stops_soon_while_its_quorum_is_missing(tmp_path: Path, engine: Replicas) -> None:
    """What it would still write, how far the alarms have judged, is given up: the next start judges that again."""
    cluster = Cluster(tmp_path, engine.new_dsn())
    # The alarms write every five seconds how far they are: a stop right after that has nothing left to write.
    for run in ("whole", "again", "once_more"):
        collector = cluster.add()
        trainer = start(collector, run, 20)
        check_ledger(collector, run, trainer, 20)
        engine.replicas[1].kill()
        assert collector.stop() == 0
        engine.replicas[1].start()
        if "given up, for the collector ends" in log_of(collector):
            return
    pytest.fail("no collector had anything left to write")


def test_removing_runs_leaves_the_others(tmp_path: Path, engine: Replicas) -> None:
    """ClickHouse 18.16 refuses consistent reads after DROP PARTITION until the partition has another part."""
    dsn = engine.new_dsn()
    database = dsn.rsplit("/", 1)[1].partition("?")[0]
    cluster = Cluster(tmp_path, dsn)
    collector = cluster.add()
    for run in ("a", "b"):
        check_ledger(collector, run, start(collector, run, 20), 20)
    first, second = engine.replicas
    parts = f"SELECT uniq(partition), sum(rows) FROM system.parts WHERE active AND database = '{database}' AND table = 'records'"
    before = int(first.ask(parts).split()[1])
    assert collector.statctl("rm", "a", "--yes").code == 0
    wait_until(lambda: all(int(r.ask(parts).split()[1]) < before * 0.6 for r in (first, second)), what="the data to go")
    wait_until(lambda: [r["run"] for r in collector.json("runs")["runs"]] == ["b"], what="an answer")
    check_ledger(collector, "c", start(collector, "c", 20), 20)
    # A collector that died after it had dropped the partition and before it had written the row.
    (gone,) = first.ask(f"SELECT id FROM {database}.attempts WHERE state = 2").split()
    first.ask(f"ALTER TABLE {database}.records DROP PARTITION {gone}")
    refused = collector.statctl("show", "b")
    assert refused.code == 2 and "code 289" in refused.err, refused
    cluster.add()
    wait_until(lambda: collector.statctl("show", "b").code == 0, what="the next start to mend it")
    assert int(first.ask(parts).split()[0]) == 3
    cluster.stop()


def test_a_replica_without_the_tables_is_passed_over_and_gets_them_at_the_next_start(tmp_path: Path, engine: Replicas) -> None:
    dsn = engine.new_dsn(quorum=2)
    database = dsn.rsplit("/", 1)[1].partition("?")[0]
    cluster = Cluster(tmp_path, dsn)
    collector = cluster.add()
    check_ledger(collector, "a", start(collector, "a", 20), 20)
    first, second = engine.replicas
    first.ask(f"DROP DATABASE {database}")
    assert [r["run"] for r in collector.json("runs")["runs"]] == ["a"]
    cluster.add()
    check_ledger(collector, "b", start(collector, "b", 20), 20)
    for replica in (first, second):
        assert int(replica.ask(f"SELECT count() FROM {database}.records WHERE family = 119")) == 40  # ends of steps
    cluster.stop()


def test_several_collectors_write_at_once(tmp_path: Path, shared_engine: Replicas) -> None:
    """One quorum insert at a time is all that this ClickHouse does for a table."""
    cluster = Cluster(tmp_path, shared_engine.new_dsn())
    collectors = [cluster.add() for _ in range(3)]
    steps = 60
    trainers: list[tuple[str, subprocess.Popen[str]]] = []
    for n, collector in enumerate(collectors * 2):
        trainers.append((f"run{n}", start(collector, f"run{n}", steps)))
    for n, (run, trainer) in enumerate(trainers):
        check_ledger(collectors[(n + 1) % 3], run, trainer, steps)
    cluster.stop()


def test_collectors_that_start_together_found_one_store(tmp_path: Path, shared_engine: Replicas) -> None:
    """Half of them begin at the other replica: ZooKeeper decides whose definition of the table stands."""
    dsn = shared_engine.new_dsn()
    database = dsn.rsplit("/", 1)[1].partition("?")[0]
    hosts = [replica.address.removeprefix("clickhouse://") for replica in shared_engine.replicas]
    orders = [f"clickhouse://{','.join(order)}/{database}?quorum=2" for order in (hosts, hosts[::-1])] * 3
    collectors: list[Collector] = []
    for n, order in enumerate(orders):
        (tmp_path / str(n)).mkdir()
        collectors.append(Collector(tmp_path / str(n) / "data", extra=["--store", order]))
    try:
        with ThreadPoolExecutor(len(collectors)) as threads:
            list(threads.map(lambda collector: collector.start(), collectors))
    finally:
        codes = [collector.stop() for collector in collectors if collector.process is not None]
    assert codes == [0] * len(collectors)
    definition = (
        f"SELECT default_expression FROM system.columns WHERE database = '{database}' AND table = 'store' AND name = 'identity'"
    )
    found = {replica.ask(definition) for replica in shared_engine.replicas}
    assert len(found) == 1 and "unhex" in found.pop(), found
    entries = shared_engine.replicas[0].ask(f"SELECT uniqExact(value) FROM {database}.store WHERE key = 'identity'")
    assert entries.strip() == "1", "each collector that found no entry yet wrote the identity that it uses"
