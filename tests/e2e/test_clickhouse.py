"""Collectors that share a ClickHouse: the same answers as over the embedded store, and nothing acknowledged is lost or doubled."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clickhouse_server import ClickHouseServer, program
from conftest import STATCOLLECTORD, Collector, Gates, run_command, wait_until
from naive.check import check_seeds, write_runs
from store_questions import differing_answers
from tcp_proxy import TcpProxy
from test_durability import STEADY, start

PAIRS = 25
pytestmark = pytest.mark.skipif(program() is None, reason="clickhouse-server is not installed; scripts/setup.sh installs it")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ClickHouseServer]:
    """One that the test may kill."""
    server = ClickHouseServer(tmp_path / "engine").start()
    yield server
    server.kill()


class Cluster:
    """Collectors over one database."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder, self.dsn = folder, dsn
        self.collectors: list[Collector] = []

    def add(self) -> Collector:
        place = self.folder / f"collector{len(self.collectors)}"
        place.mkdir()
        self.collectors.append(Collector(place / "data", extra=["--store", self.dsn]).start())
        return self.collectors[-1]

    def stop(self) -> None:
        for collector in self.collectors:
            if collector.process is not None:
                assert collector.stop() == 0


def check_ledger(collector: Collector, run: str, trainer: subprocess.Popen[str], steps: int) -> None:
    """Everything that the trainer produced is there once, in order, and counted."""
    out, err = trainer.communicate(timeout=120)
    assert trainer.returncode == 0, err
    produced, acked, pending = map(int, out.split())
    assert produced == acked == steps * 52 and pending == 0  # 50 tensors, a scalar and the step's end
    attempts = collector.json("show", run)["attempts"]
    assert len(attempts) == 1
    assert attempts[0]["ranks"][0]["records"] == produced
    for offset in (0, 49):
        points = collector.json("series", run, f"layer.{offset}")["records"]
        assert [(p["step"], p["stats"]["max"]) for p in points] == [(s, s * 100 + offset) for s in range(steps)]
    losses = collector.json("scalars", run, "--name", "loss")["records"]
    assert [p["step"] for p in losses] == list(range(steps))


def records_of(collector: Collector, run: str) -> int:
    return sum(int(r["records"]) for r in collector.json("runs")["runs"] if r["run"] == run)


def test_diff_equals_the_naive_model_over_clickhouse(tmp_path: Path, shared_engine: ClickHouseServer) -> None:
    seed = int(os.environ.get("STATCOLLECT_TEST_SEED", random.SystemRandom().randrange(10**9)))
    print(f"STATCOLLECT_TEST_SEED={seed}")
    found = check_seeds(tmp_path, range(seed, seed + PAIRS), store=shared_engine.new_dsn())
    assert not found, f"STATCOLLECT_TEST_SEED={seed}\n" + "\n".join(found)


def test_every_question_has_the_same_answer_over_both_stores(tmp_path: Path, shared_engine: ClickHouseServer) -> None:
    seeds = range(40, 46)
    dsn = shared_engine.new_dsn()
    collectors = []
    for name, store, extra in (("rocks", str(tmp_path / "rocks" / "data"), []), ("click", dsn, ["--store", dsn])):
        (tmp_path / name).mkdir()
        write_runs(store, seeds)
        collectors.append(Collector(tmp_path / name / "data", extra=list(extra)).start())
    try:
        wrong = differing_answers(collectors[0], collectors[1], seeds)
        assert not wrong, "\n".join(wrong)
        assert collectors[1].statctl("rm", "a40", "--yes").code == 0
        assert collectors[1].statctl("show", "a40").code != 0
        assert "a40" not in [r["run"] for r in collectors[1].json("runs")["runs"]]
    finally:
        for collector in collectors:
            assert collector.stop() == 0


def test_killed_collector_and_killed_engine_lose_and_double_nothing(tmp_path: Path, engine: ClickHouseServer) -> None:
    cluster = Cluster(tmp_path, engine.new_dsn())
    collector = cluster.add()
    steps = 300
    trainer = start(collector, "kills", steps)
    for round_ in range(4):
        wait_until(lambda least=(round_ + 1) * 800: records_of(collector, "kills") >= least, what="records")
        if round_ != 1:
            collector.kill()
        if round_ != 0:
            engine.kill()
            time.sleep(0.5)
            engine.start()
        if round_ != 1:
            collector.start()
        wait_until(lambda: collector.statctl("runs").code == 0, what="an answer")
    check_ledger(collector, "kills", trainer, steps)
    cluster.stop()


def test_stream_that_moves_between_collectors_loses_and_doubles_nothing(tmp_path: Path, engine: ClickHouseServer) -> None:
    cluster = Cluster(tmp_path, engine.new_dsn())
    first, second = cluster.add(), cluster.add()
    proxy = TcpProxy(first.address, seed=1)
    steps = 300
    environment = {**first.environment(), "STATAGENT_COLLECTOR": proxy.address}
    trainer = subprocess.Popen([sys.executable, "-c", STEADY, "moves", str(steps)], env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    for round_ in range(4):
        wait_until(lambda least=(round_ + 1) * 1500: records_of(first, "moves") >= least, what="records")
        proxy.turn_to((second if round_ % 2 == 0 else first).address)
    for collector in (first, second):
        wait_until(lambda asked=collector: trainer.poll() is not None or asked.statctl("runs").code == 0, what="an answer")
    check_ledger(second, "moves", trainer, steps)
    assert first.json("show", "moves")["attempts"] == second.json("show", "moves")["attempts"]
    proxy.close()
    cluster.stop()


@pytest.mark.parametrize("policy", ["error", "append"])
def test_one_rank_started_twice_at_two_collectors_is_treated_as_at_one(
    tmp_path: Path, collector: Collector, shared_engine: ClickHouseServer, policy: str
) -> None:
    """By default the second process is refused, and with "append" it fences the first."""
    cluster = Cluster(tmp_path, shared_engine.new_dsn())
    alone = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "job-1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}  # fmt: skip
    found = []
    for n, (one, other) in enumerate(((collector, collector), (cluster.add(), cluster.add()))):
        gates = Gates(tmp_path / f"gates{n}", 30)
        first = start(one, "twice", 60, **alone, **gates.environment())
        wait_until(lambda asked=one: records_of(asked, "twice") == 30 * 52, what="records")
        second = start(other, "twice", 40, STATAGENT_IF_EXISTS=policy, **alone)
        of_second = second.communicate(timeout=60)
        gates.open(30)
        of_first = first.communicate(timeout=60)
        ranks = [a["ranks"][0]["records"] for a in other.json("show", "twice")["attempts"]]
        words = [re.sub(r"\d+-\d+-\d+ [\d:]+|process \d+|127[\d.:]+", "", err[-200:]) for _, err in (of_first, of_second)]
        found.append(
            (of_first[0], of_second[0], first.returncode, second.returncode, ranks, "fenced by" in of_first[1], words[1])
        )
    assert found[1] == found[0]
    assert found[0][4] == ([60 * 52] if policy == "error" else [30 * 52, 40 * 52])
    cluster.stop()


def test_network_cut_between_collector_and_engine(tmp_path: Path, engine: ClickHouseServer) -> None:
    proxy = TcpProxy(engine.address, seed=3)
    cluster = Cluster(tmp_path, engine.new_dsn(through=proxy.address))
    collector = cluster.add()
    steps = 250
    trainer = start(collector, "cut", steps)
    for round_ in range(3):
        wait_until(lambda least=(round_ + 1) * 2000: records_of(collector, "cut") >= least, what="records")
        if round_ == 1:
            proxy.turn_to("127.0.0.1:1")  # nobody is there
            time.sleep(1)
        proxy.turn_to(engine.address)  # cuts each connection, also within an insert
    check_ledger(collector, "cut", trainer, steps)
    cluster.stop()
    proxy.close()


def test_ranks_of_one_launch_meet_whichever_collector_they_reach(tmp_path: Path, shared_engine: ClickHouseServer) -> None:
    cluster = Cluster(tmp_path, shared_engine.new_dsn())
    collectors = [cluster.add() for _ in range(2)]
    world, steps = 4, 20
    trainers = [
        start(collectors[rank % 2], "spread", steps, RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank),
              TORCHELASTIC_RUN_ID="job-1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29999")
        for rank in range(world)
    ]  # fmt: skip
    for trainer in trainers:
        out, err = trainer.communicate(timeout=120)
        assert trainer.returncode == 0, err
        assert out.split()[:2] == [str(steps * 52)] * 2
    for collector in collectors:
        attempts = collector.json("show", "spread")["attempts"]
        assert len(attempts) == 1
        assert [(r["rank"], r["records"]) for r in attempts[0]["ranks"]] == [(rank, steps * 52) for rank in range(world)]
    cluster.stop()


@pytest.mark.parametrize(
    ("store", "found", "expected"),
    [
        ("postgres://h/db", "found 'postgres', which is unknown", "expected rocksdb, or clickhouse://HOST:PORT/DATABASE"),
        ("clickhouse://127.0.0.1:8123", "found database ''", "expected rocksdb, or clickhouse://"),
        ("clickhouse://127.0.0.1:1/db", "127.0.0.1:1", "is it running"),
    ],
)
def test_wrong_store_is_refused_at_the_start(tmp_path: Path, store: str, found: str, expected: str) -> None:
    done = run_command([str(STATCOLLECTORD), "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--store", store])
    assert done.code == 2
    assert found in done.err and expected in done.err


def test_free_space_that_the_engine_does_not_tell_is_unknown(
    tmp_path: Path, collector: Collector, shared_engine: ClickHouseServer
) -> None:
    cluster = Cluster(tmp_path, shared_engine.new_dsn())
    shared = cluster.add()
    for asked, unknown in ((collector, False), (shared, True)):
        (line,) = [line for line in asked.statctl("status").out.splitlines() if line.split()[:1] == ["disk"]]
        assert line.endswith(" used, free space unknown") == unknown and line.endswith("B free") != unknown, line
        for status in (asked.json("status"), json.loads(asked.get("/api/v1/status"))):
            assert status["disk_free_unknown"] is unknown
            assert (int(status["disk_free_bytes"]) == 0) is unknown, "as clients know it that do not know the other"
        assert ("\nstatcollect_disk_free_bytes " in asked.get("/metrics")) is not unknown
    cluster.stop()


def test_restore_and_checkpoint_are_of_the_embedded_store(tmp_path: Path, shared_engine: ClickHouseServer) -> None:
    dsn = shared_engine.new_dsn()
    done = run_command([str(STATCOLLECTORD), "--data-dir", str(tmp_path / "data"), "--store", dsn, "--restore-from", "/tmp"])
    assert done.code == 2 and "--restore-from: found --store clickhouse:// as well" in done.err
    cluster = Cluster(tmp_path, dsn)
    collector = cluster.add()
    assert f"data {dsn} (process)" in collector.ready_line
    refused = collector.statctl("checkpoint", str(tmp_path / "copy"))
    assert refused.code != 0 and "BACKUP DATABASE" in refused.err
    cluster.stop()
