"""Queries over replicas of a ClickHouse, over shards, and over both: the answers of a naive model, and those of the embedded store."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from clickhouse_server import ClickHouseServer, ZooKeeper, missing_packages, program
from conftest import Collector
from naive.check import check_seeds, write_runs
from store_questions import differing_answers

PAIRS = 6
pytestmark = pytest.mark.skipif(program() is None, reason="clickhouse-server is not installed; scripts/setup.sh installs it")
# Shards, replicas of each.
SETUPS = {"replicas": (1, 2), "shards": (2, 1), "replicated shards": (2, 2)}


@pytest.fixture(scope="module", params=SETUPS)
def hosts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[list[str]]]:
    """Addresses of the replicas of each shard."""
    shards, replicas = SETUPS[request.param]
    if replicas > 1 and (missing := missing_packages(replicated=True)):
        pytest.skip(f"{', '.join(missing)}: not installed; scripts/setup.sh --for cluster installs them")
    folder = tmp_path_factory.mktemp("engines")
    zookeeper = ZooKeeper(folder / "zookeeper")
    engines = [
        [
            ClickHouseServer(
                folder / f"shard{shard}-replica{n}", zookeeper.port if replicas > 1 else None, replica=f"replica{n}", shard=shard
            )
            for n in range(replicas)
        ]
        for shard in range(shards)
    ]
    servers = [*([zookeeper] if replicas > 1 else []), *(server for shard in engines for server in shard)]
    try:
        for server in servers:
            server.spawn()
        for server in servers:
            server.await_answer()
        yield [[server.address for server in shard] for shard in engines]
    finally:
        for server in reversed(servers):
            server.kill()


def dsn_of(hosts: list[list[str]], database: str) -> str:
    quorum = f"?quorum={len(hosts[0])}" if len(hosts[0]) > 1 else ""
    return f"clickhouse://{'|'.join(','.join(shard) for shard in hosts)}/{database}{quorum}"


def test_diff_equals_the_naive_model(tmp_path: Path, hosts: list[list[str]]) -> None:
    seed = int(os.environ.get("STATCOLLECT_TEST_SEED", random.SystemRandom().randrange(10**9)))
    print(f"STATCOLLECT_TEST_SEED={seed}")
    found = check_seeds(tmp_path, range(seed, seed + PAIRS), store=dsn_of(hosts, "naive"))
    assert not found, f"STATCOLLECT_TEST_SEED={seed}\n" + "\n".join(found)


def test_every_question_has_the_answer_of_the_embedded_store(tmp_path: Path, hosts: list[list[str]]) -> None:
    """Written at one replica of each shard, and read at another."""
    seeds = range(60, 62)
    backwards = [list(reversed(shard)) for shard in hosts]
    collectors = []
    for name, written, extra in (
        ("embedded", str(tmp_path / "embedded" / "data"), []),
        ("shared", dsn_of(hosts, "questions"), ["--store", dsn_of(backwards, "questions")]),
    ):
        (tmp_path / name).mkdir()
        write_runs(written, seeds)
        collectors.append(Collector(tmp_path / name / "data", extra=list(extra)).start())
    try:
        wrong = differing_answers(collectors[0], collectors[1], seeds)
        assert not wrong, "\n".join(wrong)
    finally:
        for collector in collectors:
            assert collector.stop() == 0
