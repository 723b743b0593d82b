"""Collectors over several shards of ClickHouse: the same answers as over the embedded store, and a shard that is down concerns only its own ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clickhouse_server import ClickHouseServer, program
from conftest import STATCOLLECTORD, Collector, run_command, wait_until
from naive.check import write_runs
from test_clickhouse import Cluster, without_places
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


def test_many_questions_have_the_same_answers(tmp_path: Path, collector: Collector, engines: list[ClickHouseServer]) -> None:
    dsn = dsn_of(engines)
    write_runs(dsn, range(50, 53))
    collector.stop()
    write_runs(str(collector.data_dir), range(50, 53))
    collector.start()
    cluster = Cluster(tmp_path, dsn)
    sharded = cluster.add()
    for seed in range(50, 53):
        a, b = f"a{seed}", f"b{seed}"
        for question in (
            ["diff", a, b, "--all"],
            ["show", a],
            ["ranks", b],
            ["top", a],
            ["summary", b],
            ["scalars", a],
            ["events", b],
        ):
            expected, found = (c.statctl("--format", "json", *question) for c in (collector, sharded))
            assert (found.code, bool(found.out)) == (expected.code, bool(expected.out)), (question, found)
            if found.out:
                assert without_places(found.json()) == without_places(expected.json()), question
    cluster.stop()


def test_while_a_shard_is_down_the_ranks_of_the_other_one_go_on(tmp_path: Path, engines: list[ClickHouseServer]) -> None:
    cluster = Cluster(tmp_path, dsn_of(engines))
    collector = cluster.add()
    steps = 300
    trainers = [start(collector, "half", steps, RANK=str(rank), LOCAL_RANK=str(rank), **LAUNCH) for rank in range(WORLD)]
    before = wait_until(
        lambda: (r := records_by_rank(collector, "half")) and len(r) == WORLD and min(r.values()) > 500 and r, 60, "records"
    )
    engines[1].kill()
    for rank in (0, 2):
        out, err = trainers[rank].communicate(timeout=90)
        assert trainers[rank].returncode == 0, err
        assert out.split()[:2] == [str(steps * 52)] * 2, "all of it acknowledged while the other shard was away"
    refused = collector.statctl("show", "half")
    assert refused.code != 0 and "shard 2 of 2" in refused.err and engines[1].address in refused.err
    assert "half" in collector.statctl("diff", "half", "half").err
    engines[1].start()
    for rank in (1, 3):
        out, err = trainers[rank].communicate(timeout=90)
        assert trainers[rank].returncode == 0, err
        assert out.split()[2] == "0", "agents kept their records"
    after = records_by_rank(collector, "half")
    assert after == dict.fromkeys(range(WORLD), steps * 52) and all(before[rank] < after[rank] for rank in after)
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
