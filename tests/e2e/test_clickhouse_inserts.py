"""What an insert carries, seen by a proxy before a real ClickHouse, and what is read if each one arrives twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from clickhouse_server import ClickHouseServer, Replicas, missing_packages, program
from http_faults import HttpFaults, Injected, Request, failing
from store_conformance import check_conformance
from test_clickhouse import Cluster, check_ledger
from test_clickhouse_faults import into_records
from test_durability import start

pytestmark = pytest.mark.skipif(program() is None, reason="clickhouse-server is not installed; scripts/setup.sh installs it")


@pytest.fixture
def faults(shared_engine: ClickHouseServer) -> Iterator[HttpFaults]:
    proxy = HttpFaults(shared_engine.address)
    yield proxy
    proxy.close()


def test_the_store_conforms_if_each_insert_arrives_twice(shared_engine: ClickHouseServer, faults: HttpFaults) -> None:
    """The engine stores it and does not say so: it is sent again, and the tables have it twice."""
    seen: dict[bytes, int] = defaultdict(int)

    def first_of_each(request: Request) -> Injected | None:
        if not request.statement.startswith("INSERT"):
            return None
        whole = request.statement.encode() + request.body
        seen[whole] += 1
        return failing(319, "Unknown status, client must retry.", passed_on=True) if seen[whole] == 1 else None

    faults.rule = first_of_each
    check_conformance(faults.address)
    assert faults.injected > 100 and set(seen.values()) == {2}, "what is sent again is the same, byte for byte"


def without_what_is_newer(request: Request) -> Request:
    """As ClickHouse 18.16 understands it."""
    newer = {"async_insert", "insert_deduplication_token", "insert_quorum_parallel"}
    kept = {name: value for name, value in request.parameters.items() if name not in newer}
    body = request.body
    if body.startswith(b"CREATE TABLE"):
        body = body.replace(b", fsync_after_insert = 1, fsync_part_directory = 1", b"")
        body = body.replace(b" SETTINGS fsync_after_insert = 1, fsync_part_directory = 1", b"")
    return Request(kept, body)


def test_a_newer_engine_gets_synchronous_quorum_inserts_with_a_token_for_each_batch(tmp_path: Path) -> None:
    if missing := missing_packages(replicated=True):
        pytest.skip(f"{', '.join(missing)}: not installed; scripts/setup.sh --for cluster installs them")
    engine = Replicas(tmp_path / "engine").start()
    proxies = [HttpFaults(replica.address) for replica in engine.replicas]
    tokens: dict[str, list[bytes]] = defaultdict(list)
    wrong: list[dict[str, str]] = []

    def newer(request: Request) -> Injected | None:
        asked = request.parameters
        if "SELECT version()" in request.statement:
            return Injected(200, "23.8.1.94\n")
        if "FROM system.disks" in request.statement:
            return Injected(200, "@" * 16)  # two large numbers
        if request.statement.startswith("SELECT") and ".records" in request.statement:
            wrong.extend([asked] if asked.get("select_sequential_consistency") != "1" else [])
        if not request.statement.startswith("INSERT"):
            return None
        settings = {"async_insert": "0", "insert_quorum": "2", "insert_quorum_parallel": "0"}
        wrong.extend([asked] if not settings.items() <= asked.items() else [])
        rows = tokens[asked["insert_deduplication_token"]]
        rows.append(request.body)
        lost = into_records(request) and len(rows) == 1
        return failing(319, "Unknown status, client must retry.", passed_on=len(tokens) % 2 == 0) if lost else None

    for proxy in proxies:
        proxy.rule, proxy.rewrite = newer, without_what_is_newer
    try:
        cluster = Cluster(tmp_path, f"clickhouse://{','.join(proxy.address for proxy in proxies)}/newer?quorum=2")
        collector = cluster.add()
        check_ledger(collector, "run", start(collector, "run", 40), 40)
        cluster.stop()
        assert wrong == []
        assert sum(proxy.injected for proxy in proxies) > 5
        assert all(len(set(rows)) == 1 for rows in tokens.values()), "what is sent again is the same, byte for byte"
        assert len({rows[0] for rows in tokens.values()}) == len(tokens), "other rows have another token"
    finally:
        for proxy in proxies:
            proxy.close()
        engine.kill()
