"""Collectors over several shards of ClickHouse: the same answers as over the embedded store, and a shard that is down concerns only its own ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clickhouse_server import ClickHouseServer, ZooKeeper, missing_packages, program
from conftest import STATCOLLECTORD, Collector, run_command, wait_until
from store_questions import without_places
from test_clickhouse import Cluster
from test_durability import start

pytestmark = pytest.mark.skipif(program() is None, reason="clickhouse-server is not installed; scripts/setup.sh installs it")
WORLD = 4
LAUNCH = {"WORLD_SIZE": str(WORLD), "TORCHELASTIC_RUN_ID": "job-1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[list[ClickHouseServer]]:
    servers = [ClickHouseServer(tmp_path / f"engine{i}").start() for i in range(2)]
    yield servers
    for server in servers:
        server.kill()


def dsn_of(engines: list[ClickHouseServer]) -> str:
    return f"clickhouse://{'|'.join(engine.address for engine in engines)}/sharded"


def ranks_in(engine: ClickHouseServer) -> set[int]:
    """Of all records in the engine."""
    return {int(line) for line in engine.ask("SELECT DISTINCT rank FROM sharded.records").split()}


def records_by_rank(collector: Collector, run: str) -> dict[int, int]:
    """Empty: the collector does not say."""
    done = collector.statctl("--format", "json", "show", run)
    return {} if done.code != 0 else {int(r["rank"]): int(r["records"]) for r in done.json()["attempts"][0]["ranks"]}


def test_runs_under_torchrun_have_the_same_answers_as_over_the_embedded_store(
    tmp_path: Path, collector: Collector, engines: list[ClickHouseServer]
) -> None:
    cluster = Cluster(tmp_path, dsn_of(engines))
    first, second = cluster.add(), cluster.add()
    bug = ["--bug", "ln_eps", "--bug-step", "2"]
    for by, run, arguments in ((collector, "base", []), (collector, "bug", bug), (first, "base", []), (second, "bug", bug)):
        by.train(run, *arguments, ranks=WORLD)
    assert ranks_in(engines[0]) == {0, 2} and ranks_in(engines[1]) == {1, 3}
    for asked in (first, second):
        for question in (["diff", "base", "bug"], ["diff", "base", "base"], ["ranks", "bug"]):
            expected, found = (c.statctl("--format", "json", *question) for c in (collector, asked))
            assert found.code == expected.code, (question, found)
            assert without_places(found.json()) == without_places(expected.json()), question
    (tmp_path / "copy").mkdir()
    copy = Collector(tmp_path / "copy" / "data").start()
    assert first.statctl("migrate", "--to", copy.address).code == 0
    assert without_places(copy.diff("base", "bug")) == without_places(first.diff("base", "bug"))
    assert second.statctl("rm", "bug", "--yes").code == 0
    assert copy.statctl("migrate", "--to", second.address, "--run", "bug").code == 0, "and back"
    assert without_places(second.diff("base", "bug")) == without_places(copy.diff("base", "bug"))
    assert copy.stop() == 0
    assert second.statctl("rm", "bug", "--yes").code == 0
    wait_until(lambda: all(engine.ask("SELECT count(DISTINCT attempt) FROM sharded.records").strip() == "1" for engine in engines),
               what="a removal in both shards")  # fmt: skip
    cluster.stop()


def test_while_a_shard_is_down_the_ranks_of_the_other_one_go_on(tmp_path: Path, engines: list[ClickHouseServer]) -> None:
    cluster = Cluster(tmp_path, dsn_of(engines))
    collector = cluster.add()
    steps = 300
    trainers = [start(collector, "half", steps, RANK=str(rank), LOCAL_RANK=str(rank), **LAUNCH) for rank in range(WORLD)]
    before = wait_until(
        lambda: (r := records_by_rank(collector, "half")) and len(r) == WORLD and min(r.values()) > 500 and r, 60, "records"
    )
    assert collector.json("status")["state"] == "ready"
    engines[1].kill()
    for rank in (0, 2):
        out, err = trainers[rank].communicate(timeout=90)
        assert trainers[rank].returncode == 0, err
        assert out.split()[:2] == [str(steps * 52)] * 2, "all of it acknowledged while the other shard was away"
    refused = collector.statctl("show", "half")
    assert refused.code != 0 and "shard 2 of 2" in refused.err and engines[1].address in refused.err
    assert "half" in collector.statctl("diff", "half", "half").err
    down = wait_until(
        lambda: (s := collector.json("status"))["state"].startswith("read_only: ") and s, 30, "a status that says so"
    )
    assert "shard 2 of 2" in down["state"] and engines[1].address in down["state"], down
    assert int(down["runs"]) == 1 and int(down["disk_bytes"]) > 0, "what is known"
    engines[1].start()
    for rank in (1, 3):
        out, err = trainers[rank].communicate(timeout=90)
        assert trainers[rank].returncode == 0, err
        assert out.split()[2] == "0", "agents kept their records"
    after = records_by_rank(collector, "half")
    assert after == dict.fromkeys(range(WORLD), steps * 52) and all(before[rank] < after[rank] for rank in after)
    cluster.stop()


@pytest.fixture
def replicated_shards(tmp_path: Path) -> Iterator[list[list[ClickHouseServer]]]:
    """Two shards of two replicas each, and one ZooKeeper for all."""
    if missing := missing_packages(replicated=True):
        pytest.skip(f"{', '.join(missing)}: not installed; scripts/setup.sh --for cluster installs them")
    zookeeper = ZooKeeper(tmp_path / "zookeeper")
    zookeeper.start()
    shards = [
        [ClickHouseServer(tmp_path / f"shard{s}{name}", zookeeper=zookeeper.port, replica=name, shard=s) for name in "ab"]
        for s in (1, 2)
    ]
    servers = [server for shard in shards for server in shard]
    for server in servers:
        server.spawn()
    for server in servers:
        server.await_answer()
    yield shards
    for stopped in (*servers, zookeeper):
        stopped.kill()


def test_a_replica_of_a_shard_is_killed_and_comes_back(tmp_path: Path, replicated_shards: list[list[ClickHouseServer]]) -> None:
    """Four servers: the other replica of the shard is less than the quorum, so its ranks wait; the other shard's go on."""
    hosts = "|".join(",".join(replica.address for replica in shard) for shard in replicated_shards)
    cluster = Cluster(tmp_path, f"clickhouse://{hosts}/sharded?quorum=2")
    collector = cluster.add()
    steps, world = 150, 2
    launch = {**LAUNCH, "WORLD_SIZE": str(world)}
    trainers = [start(collector, "quad", steps, RANK=str(rank), LOCAL_RANK=str(rank), **launch) for rank in range(world)]
    before = wait_until(
        lambda: (r := records_by_rank(collector, "quad")) and len(r) == world and min(r.values()) > 500 and r, 90, "records"
    )
    assert [ranks_in(shard[0]) for shard in replicated_shards] == [{0}, {1}]
    lost = replicated_shards[1][1]
    lost.kill()
    out, err = trainers[0].communicate(timeout=90)
    assert trainers[0].returncode == 0 and out.split()[:2] == [str(steps * 52)] * 2, err
    stored = records_by_rank(collector, "quad")
    assert stored[0] == steps * 52, "one replica is left to read from"
    assert before[1] <= stored[1] < steps * 52, "without a quorum nothing more is acknowledged"
    lost.start()
    out, err = trainers[1].communicate(timeout=120)
    assert trainers[1].returncode == 0 and out.split() == [str(steps * 52)] * 2 + ["0"], err
    assert records_by_rank(collector, "quad") == dict.fromkeys(range(world), steps * 52)
    for rank in range(world):
        points = collector.json("series", "quad", "layer.49", "--rank", str(rank))["records"]
        assert [(p["step"], p["stats"]["max"]) for p in points] == [(s, s * 100 + 49) for s in range(steps)]
        losses = collector.json("scalars", "quad", "--name", "loss", "--rank", str(rank))["records"]
        assert [p["step"] for p in losses] == list(range(steps)), "each once"
    for shard, rank in zip(replicated_shards, range(world), strict=True):
        counts = {replica.ask(f"SELECT uniq(step, item) FROM sharded.records WHERE rank = {rank}") for replica in shard}
        assert len(counts) == 1, "both replicas have the same"
    cluster.stop()


@pytest.mark.parametrize(
    ("shards", "found"),
    [
        ("{1}|{0}/sharded", "found that it is shard 2 of 2; expected shard 1 of 2"),
        ("{0}/sharded", "found that it is shard 1 of 2; expected shard 1 of 1"),
        ("{0}|{1}|{0}/third", "shards 1 and 3 both name"),
        ("{0}/sharded|{1}/sharded|{0}/third", "found that it is shard 1 of 2; expected shard 1 of 3"),
        ("{0}|{1}|/sharded", "found 0 hosts of shard 3"),
        ("{0}/sharded|{0}/sharded", "shards 1 and 2 both name"),
        ("{0}|127.0.0.1:1/sharded", "shard 2 of 2 ClickHouse at http://127.0.0.1:1/"),
    ],
)
def test_other_shards_are_refused_at_the_start(tmp_path: Path, engines: list[ClickHouseServer], shards: str, found: str) -> None:
    cluster = Cluster(tmp_path, dsn_of(engines))
    cluster.add()
    cluster.stop()
    store = "clickhouse://" + shards.format(*(engine.address for engine in engines))
    done = run_command([str(STATCOLLECTORD), "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--store", store])
    assert done.code == 2 and found in done.err, done.err
