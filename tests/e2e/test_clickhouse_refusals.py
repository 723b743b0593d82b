"""A ClickHouse that is set up in another way than --store says: no collector starts over it, and what it says tells what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from clickhouse_server import ClickHouse, ClickHouseServer, Replicas, missing_packages
from conftest import wait_until
from test_clickhouse import Cluster, check_ledger
from test_clickhouse_faults import opened
from test_durability import start

missing = missing_packages(replicated=True)
pytestmark = pytest.mark.skipif(
    bool(missing), reason=f"{', '.join(missing)}: not installed; scripts/setup.sh --for cluster installs them"
)
# What was attempted, what was found, what was expected, and what to do next.
WHOLE = re.compile(r"^statcollectord: (open the store|--store).*: found .+; expected .+; .+", re.MULTILINE)


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    started = Replicas(tmp_path_factory.mktemp("replicated")).start()
    yield started
    started.kill()


def refused(tmp_path: Path, dsn: str, *said: str) -> str:
    done = opened(tmp_path, dsn)
    assert done.code == 2 and done.out == "", (dsn, done)
    last = done.err.splitlines()[-1]
    assert WHOLE.search(last), last
    assert all(words in last for words in said), last
    return last


def databases(server: ClickHouse) -> set[str]:
    return set(server.ask("SHOW DATABASES").split())


def test_tables_without_replicas_are_not_used_with_a_quorum(tmp_path: Path, replicas: Replicas) -> None:
    """What the first host has would be acknowledged as if both had it, and would be missing once the second one is asked."""
    first, second = replicas.replicas
    cluster = Cluster(tmp_path, f"clickhouse://{first.address}/grown")
    collector = cluster.add()
    check_ledger(collector, "before", start(collector, "before", 10), 10)
    for hosts in (f"{first.address},{second.address}", f"{second.address},{first.address}"):
        refused(tmp_path, f"clickhouse://{hosts}/grown?quorum=2", f"ClickHouse at http://{first.address}/", "without replicas",
                "expected replicated tables, because --store has quorum=2", "copy the runs there with statctl move migrate")  # fmt: skip
    assert "grown" not in databases(second), "a refusal writes nothing"
    check_ledger(collector, "after", start(collector, "after", 10), 10)
    cluster.stop()


def test_replicated_tables_are_not_used_without_a_quorum(tmp_path: Path, replicas: Replicas) -> None:
    """Collectors that write with a quorum do not see what another one writes without, fences included."""
    first, second = replicas.replicas
    cluster = Cluster(tmp_path, f"clickhouse://{first.address},{second.address}/shrunk?quorum=2")
    collector = cluster.add()
    refused(tmp_path, f"clickhouse://{second.address}/shrunk", "found table 'store' with replicas", "--store has no quorum=",
            "name the hosts and the quorum that the other collectors name")  # fmt: skip
    refused(tmp_path, f"clickhouse://{second.address}/shrunk?quorum=1", "which is not a number from 2 to 16")
    check_ledger(collector, "after", start(collector, "after", 10), 10)
    cluster.stop()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER TABLE {db}.records DROP COLUMN digest", "found table 'records' without column 'digest FixedString(16)'"),
        ("ALTER TABLE {db}.records MODIFY COLUMN records UInt64", "with another column 'records UInt32', of type UInt64"),
        ("ALTER TABLE {db}.attempts DROP COLUMN launch", "found table 'attempts' without column 'launch String'"),
        (
            "INSERT INTO {db}.store (key, value, made) VALUES ('format', '7', 18446744073709551615)",
            "found tables of format 7; expected 1",
        ),
        ("DROP TABLE {db}.store", "found a table 'attempts' and no table 'store'; expected an empty database"),
        ("DROP TABLE {db}.store; CREATE TABLE {db}.store (a UInt8) ENGINE = Memory", "'store' of engine Memory"),
        (
            "DROP TABLE {db}.store; CREATE TABLE {db}.store (a UInt8) ENGINE = ReplacingMergeTree ORDER BY a",
            "found table 'store' without column 'key String'",
        ),
    ],
)
def test_tables_of_another_version_are_refused(tmp_path: Path, replicas: Replicas, change: str, said: str) -> None:
    host = replicas.replicas[0]
    database = re.sub(r"\W", "_", tmp_path.name)  # of this case alone
    dsn = f"clickhouse://{host.address}/{database}"
    cluster = Cluster(tmp_path, dsn)
    cluster.add()
    cluster.stop()
    for statement in change.format(db=database).split("; "):
        host.ask(statement)
    refused(tmp_path, dsn, said)


def test_a_column_that_somebody_added_does_no_harm(tmp_path: Path, replicas: Replicas) -> None:
    host = replicas.replicas[0]
    cluster = Cluster(tmp_path, f"clickhouse://{host.address}/wider")
    cluster.add()
    host.ask("ALTER TABLE wider.records ADD COLUMN note String DEFAULT 'x'")
    collector = cluster.add()
    check_ledger(collector, "run", start(collector, "run", 10), 10)
    cluster.stop()


def test_replicas_that_are_not_set_up_as_such_are_named(tmp_path: Path, replicas: Replicas) -> None:
    first = replicas.replicas[0]
    plain = ClickHouseServer(tmp_path / "plain").start()
    twin = ClickHouseServer(tmp_path / "twin", zookeeper=replicas.zookeeper.port, replica="replica1").start()
    try:
        refused(tmp_path, f"clickhouse://{plain.address}/db?quorum=2", "No macro", "expected the macros {shard} and {replica}",
                "define them in the configuration of each host")  # fmt: skip
        refused(tmp_path, f"clickhouse://{first.address},{twin.address}/twins?quorum=2", f"ClickHouse at http://{twin.address}/",
                "expected a macro {replica} that no other host has or had")  # fmt: skip
    finally:
        plain.kill()
        twin.kill()
    lonely = ClickHouseServer(tmp_path / "lonely", zookeeper=1, replica="lonely").start()
    try:
        refused(tmp_path, f"clickhouse://{lonely.address}/db?quorum=2", "ZooKeeper",
                "expected a replica that has its ZooKeeper; check that ZooKeeper runs")  # fmt: skip
    finally:
        lonely.kill()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("reader@{host}/fresh", "expected a user who may create, write and read tables there; name one in --store"),
        ("nobody@{host}/fresh", "Unknown user nobody; expected a user whom ClickHouse knows"),
        ("locked:open@{host}/fresh", "Wrong password for user locked; expected"),
        ("{tcp}/fresh", "You must use port"),
        ("nowhere.invalid/fresh", "expected one; is it running"),
        ("127.0.0.1:1/fresh", "expected one; is it running"),
        ("{host}/fresh?quorum=0", "which is not a number from 2 to 16"),
        ("{host},{host}/fresh", "several hosts need replicated tables and ?quorum=2 or more"),
        ("{host}/fr-esh", "whose name is not made of letters"),
    ],
)
def test_a_wrong_address_is_refused_with_the_next_step(tmp_path: Path, replicas: Replicas, address: str, said: str) -> None:
    host = replicas.replicas[0]
    (tcp,) = re.findall(r"<tcp_port>(\d+)", (host.folder / "config.d" / "replica.xml").read_text())
    last = refused(tmp_path, "clickhouse://" + address.format(host=host.address, tcp=f"127.0.0.1:{tcp}"), said)
    assert "open@" not in last and "fresh" not in databases(host)


def test_without_zookeeper_the_start_says_so(tmp_path: Path) -> None:
    """The last test of the module: it ends the engine."""
    engine = Replicas(tmp_path / "engine").start()
    try:
        cluster = Cluster(tmp_path, engine.new_dsn())
        cluster.add()
        cluster.stop()
        engine.zookeeper.kill()
        asks = "SELECT count() FROM system.zookeeper WHERE path = '/'"
        wait_until(lambda: not answers(engine.replicas[0], asks), timeout=30, what="the session to end")
        for dsn in (cluster.dsn, engine.new_dsn()):
            refused(tmp_path, dsn, "code 999", "check that ZooKeeper runs", "the collector then continues by itself")
    finally:
        engine.kill()


def answers(server: ClickHouse, statement: str) -> bool:
    try:
        server.ask(statement)
    except OSError:
        return False
    return True
