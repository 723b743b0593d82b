"""`statctl move migrate`: what a copied run answers is what the original answers, over both stores, also after kills; and what it refuses."""

from __future__ import annotations

import itertools
import os
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clickhouse_server import ClickHouseServer, program
from conftest import STATCTL, Collector, Finished, Gates, run_command, start_python, wait_until
from layouts.runs import jobs, record
from test_durability import start
from test_tokens import Tokens

NEEDS_CLICKHOUSE = pytest.mark.skipif(
    program() is None, reason="clickhouse-server is not installed; scripts/setup.sh installs it"
)

# One rank of a launch: everything that an agent can record.
RICH = textwrap.dedent("""
    import os, sys, torch, statagent
    from torch import nn

    rank, steps, spoiled = int(os.environ["RANK"]), int(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(3)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(50, 16, padding_idx=0)
            self.fc1, self.norm, self.fc2 = nn.Linear(16, 24), nn.LayerNorm(24), nn.Linear(24, 4)
            self.scale = 1.0

        def forward(self, ids):
            hidden = self.norm(torch.tanh(self.fc1(self.embed(ids))))
            return self.scale * self.fc2(statagent.inspect("hidden", hidden)).double()

    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    statagent.init(run=sys.argv[3], if_exists="append", required=True, samples=4,
                   config={"lr": 0.01, "note": sys.argv[4]},
                   exponents=["*@0-:kind=weight_grad"], captures=["fc2@2", "hidden@1,3"])
    statagent.watch(net, optimizer=optimizer, memory="modules")
    for step in range(steps):
        net.scale = float("nan") if step == spoiled else 1.0
        ids = torch.randint(0, 50, (6, 8), generator=torch.Generator().manual_seed(100 * step + rank))
        statagent.log_batch(input_ids=ids)
        loss = net(ids).square().mean()
        statagent.log_scalar("loss", loss.detach())
        statagent.log_scalar("lr", 0.01 / (step + 1))
        if step != spoiled:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    statagent.close(timeout=30)
    counters = statagent.counters()
    assert counters["produced"] == counters["acked"] > 0, counters
""")


def launch(collector: Collector, run: str, name: str, steps: int, spoiled: int = -1, ranks: int = 2) -> None:
    processes = [
        start_python(["-c", RICH, str(steps), str(spoiled), run, name], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                     env=collector.environment(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
                                               TORCHELASTIC_RUN_ID=name))
        for rank in range(ranks)
    ]  # fmt: skip
    for process in processes:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0, out


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """Runs of every sort: two launches of two ranks, an alarm, a noise profile, tensors that are cut over ranks, one that is kept."""
    folder = tmp_path_factory.mktemp("original")
    collector = Collector(folder / "data").start()
    for run, spoiled in (("base", -1), ("again", -1), ("nan", 4)):
        launch(collector, run, f"{run}-first", steps=4)
        launch(collector, run, f"{run}-second", steps=6, spoiled=spoiled)
    record(collector, jobs(["plain", "megatron2"], [], steps=2), folder)
    wait_until(lambda: collector.json("events", "nan")["records"], what="the alarm")
    assert collector.statctl("noise", "save", "base", "--runs", "again").code == 0
    assert collector.statctl("keep", "base").code == 0
    yield collector
    collector.stop()


def migrate(source: Collector, target: Collector, *more: str, **options: Any) -> Finished:
    return source.statctl("migrate", "--to", target.address, *more, **options)


RUNS = ("again", "base", "megatron2", "nan", "plain")


def questions() -> list[list[str]]:
    asked = [["--format", "json", "diff", "--run-a", a, "--run-b", b, "--all"] for a, b in itertools.permutations(RUNS, 2)]
    asked += [
        ["diff", "--run-a", "base", "--run-b", "nan", *more]
        for more in ([], ["--exact"], ["--tolerance", "1e-9"], ["--no-noise"])
    ]
    asked += [["--format", "json", "diff", "--run-a", "plain", "--run-b", "megatron2", how] for how in ("--logical", "--by-rank")]
    for run in RUNS:
        asked += [
            ["--format", "json", word, run]
            for word in ("show", "scalars", "events", "memory", "density", "captures", "exponents", "ranks", "config")
        ]
        asked += [["export", "json", run, "-", "--sketch", "--samples"]]
    asked += [
        ["--format", "json", "noise", "show", "base"],
        ["--format", "json", "diff-values", "base", "nan", "fc2", "--step", "2"],
        ["--format", "json", "runs"],
    ]
    return asked  # fmt: skip


def assert_same_answers(a: Collector, b: Collector) -> None:
    for question in questions():
        here, there = a.statctl(*question), b.statctl(*question)
        assert here.out, (question, here)
        assert (here.code, here.out.replace(a.http, "")) == (there.code, there.out.replace(b.http, "")), question


def test_round_trip_over_rocksdb_answers_byte_for_byte_the_same(tmp_path: Path, original: Collector) -> None:
    copy = Collector(tmp_path / "copy" / "data")
    copy.data_dir.parent.mkdir()
    copy.start()
    tried = migrate(original, copy, "--dry-run")
    assert tried.code == 0 and "would copy" in tried.out and "5 runs" in tried.out, tried
    assert copy.json("runs")["runs"] == []
    done = migrate(original, copy)
    assert done.code == 0, done
    assert done.out.splitlines()[-1].startswith("SAME 5 runs, ") and "copied; both sides hold the same" in done.out, done
    assert_same_answers(original, copy)
    assert copy.json("status")["retention"]["kept"] == ["base"]
    events = copy.json("events", "nan")["records"]
    assert any(event["origin"] == "collector" for event in events), "the collector's own events are copied"
    again = migrate(original, copy, "--run", "ba*", "--run", "nan")
    assert again.code == 0 and again.out.count("already there") == 2, again
    # What was copied survives the copy's restart, and the name is taken for trainings like the original.
    copy.kill()
    copy.start()
    assert_same_answers(original, copy)
    assert copy.stop() == 0


@NEEDS_CLICKHOUSE
def test_to_clickhouse_and_back_answers_byte_for_byte_the_same(tmp_path: Path, original: Collector) -> None:
    engine = ClickHouseServer(tmp_path / "engine").start()
    try:
        (tmp_path / "click").mkdir()
        (tmp_path / "back").mkdir()
        click = Collector(tmp_path / "click" / "data", extra=["--store", engine.new_dsn()]).start()
        back = Collector(tmp_path / "back" / "data").start()
        for source, target in ((original, click), (click, back)):
            done = migrate(source, target, timeout=300)
            assert done.code == 0 and "SAME 5 runs" in done.out, done
        assert_same_answers(original, back)
        assert_same_answers(original, click)
        assert migrate(original, back).out.count("already there") == 5
        assert click.stop() == back.stop() == 0
    finally:
        engine.kill()


def steady(collector: Collector, run: str, steps: int) -> int:
    """A run that takes a while to copy; its number of records."""
    trainers = [start(collector, run, steps, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank)) for rank in range(2)]
    for trainer in trainers:
        out, err = trainer.communicate(timeout=120)
        assert trainer.returncode == 0 and out.split()[0] == out.split()[1] == str(steps * 52), err
    return 2 * steps * 52


def copied_of(collector: Collector, run: str) -> int:
    return sum(int(r["records"]) for r in collector.json("runs")["runs"] if r["run"] == run)


def big_run(collector: Collector, run: str) -> int:
    """About 40 MB of records: two ranks, 3000 tensors with sketches, 60 steps."""
    script = textwrap.dedent("""
        import os, sys, numpy, statagent
        statagent.init(run=sys.argv[1], required=True, buffer_records_max=200_000)
        random = numpy.random.default_rng(int(os.environ["RANK"]))
        values = random.standard_normal((1500, 64)).astype("float32")
        for step in range(60):
            values += random.standard_normal(values.shape).astype("float32") * 0.01
            for i, value in enumerate(values):
                statagent.inspect(f"layer.{i}", value)
            statagent.log_scalar("loss", 1.0 / (step + 1))
            statagent.step()
            statagent.flush(timeout=30)
        statagent.close(timeout=60)
        c = statagent.counters()
        assert c["produced"] == c["acked"], c
        print(c["acked"])
    """)
    processes = [
        start_python(["-c", script, run], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                     env=collector.environment(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank)))
        for rank in range(2)
    ]  # fmt: skip
    total = 0
    for process in processes:
        out, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
        total += int(out)
    return total


def kill_in_the_middle(source: Collector, target: Collector, run: str, total: int, victim: str, engine: Any = None) -> None:
    """Kills the victim again and again, each time when more has been copied."""
    rounds = 0
    process: subprocess.Popen[str] | None = None
    while rounds < 4:
        if process is None:
            process = subprocess.Popen(
                [str(STATCTL), "--collector", source.address, "--timeout", "30", "migrate", "--to", target.address, "--run", run],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        least = copied_of(target, run) + 1
        deadline = time.monotonic() + 60
        while process.poll() is None and copied_of(target, run) < least and time.monotonic() < deadline:
            time.sleep(0.01)
        if process.poll() is not None:
            break  # it was through before the victim could be killed once more
        rounds += 1
        if victim == "statctl":
            process.kill()
            process.communicate()
            process = None
        else:
            collector = source if victim == "source" else target
            collector.kill()
            if engine is not None:
                engine.kill()
                engine.start()
            collector.start()
    assert rounds > 0, "it was never interrupted in the middle"
    if process is None:
        done = migrate(source, target, "--run", run)
        code, out, err = done.code, done.out, done.err
    else:
        out, err = process.communicate(timeout=120)
        code = process.returncode
    assert code == 0 and f"{total:,} records" in out, (out, err)
    assert copied_of(target, run) == total


@pytest.mark.parametrize("victim", ["statctl", "source", "target"])
def test_killed_in_the_middle_it_goes_on_where_it_was(tmp_path: Path, victim: str) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    source, target = Collector(tmp_path / "from" / "data").start(), Collector(tmp_path / "to" / "data").start()
    total = big_run(source, "big")
    kill_in_the_middle(source, target, "big", total, victim)
    duplicates = target.json("status")["duplicate_records_total"]
    assert int(duplicates) == 0, "the source began where the copy ended"
    for question in (["diff", "--run-a", "big", "--run-b", "big"], ["show", "big"], ["top", "big"], ["scalars", "big"]):
        assert source.json(*question) == target.json(*question)
    assert source.stop() == target.stop() == 0


@NEEDS_CLICKHOUSE
def test_killed_clickhouse_and_collector_in_the_middle(tmp_path: Path) -> None:
    engine = ClickHouseServer(tmp_path / "engine").start()
    try:
        (tmp_path / "from").mkdir()
        (tmp_path / "to").mkdir()
        source = Collector(tmp_path / "from" / "data").start()
        target = Collector(tmp_path / "to" / "data", extra=["--store", engine.new_dsn()]).start()
        total = big_run(source, "big")
        kill_in_the_middle(source, target, "big", total, "target", engine)
        assert source.json("show", "big") == target.json("show", "big")
        assert source.stop() == target.stop() == 0
    finally:
        engine.kill()


def test_live_runs_and_runs_with_other_content_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    source, target = Collector(tmp_path / "from" / "data").start(), Collector(tmp_path / "to" / "data").start()
    steady(source, "taken", 3)
    steady(source, "free", 3)
    steady(target, "taken", 2)
    before = target.json("show", "taken")
    gates = Gates(tmp_path / "gates", 40)  # it is never opened
    trainer = start(source, "live", 400, **gates.environment())
    wait_until(lambda: copied_of(source, "live") > 0, what="records")
    done = migrate(source, target)
    assert done.code == 1, done
    assert "NOT THE SAME 1 of 3 runs (312 records) are copied and the same on both sides" in done.out, done.out
    assert "still sending; copy it when the training has ended" in done.out
    assert "a run 'taken' with other content" in done.out and "statctl rm" in done.out
    assert target.json("show", "taken") == before
    assert [r["run"] for r in target.json("runs")["runs"]] == ["free", "taken"]
    trainer.kill()
    trainer.communicate()
    wait_until(lambda: source.json("runs", "--filter", "live")["runs"][0]["state"] != "running", what="the end of the stream")
    done = migrate(source, target, "--run", "live")
    assert done.code == 0, done
    # A training that continues a copied run at the target is a launch of its own there.
    steady(target, "more", 1)
    assert source.stop() == target.stop() == 0


def test_wrong_questions_are_refused_with_the_next_step(tmp_path: Path, original: Collector) -> None:
    same = migrate(original, original)
    assert same.code == 2 and "both write to the same store" in same.err and "--to" in same.err
    nobody = original.statctl("migrate", "--to", "127.0.0.1:1")
    assert nobody.code == 2 and "127.0.0.1:1" in nobody.err
    malformed = original.statctl("migrate", "--to", "nowhere")
    assert malformed.code == 2 and "--to: expected HOST:PORT" in malformed.err
    (tmp_path / "to").mkdir()
    target = Collector(tmp_path / "to" / "data").start()
    unknown = migrate(original, target, "--run", "nothing-*")
    assert unknown.code == 2 and "no run matches 'nothing-*'; nothing was copied" in unknown.err
    assert target.json("runs")["runs"] == []
    key = original.statctl("migrate", "--to", target.address, "--to-tls-cert", "/nowhere.pem")
    assert key.code == 2 and "--to-tls-ca" in key.err
    helped = original.statctl("help", "migrate")
    assert "--dry-run" in helped.out and "statctl --collector old:7433 move migrate --to new:7433" in helped.out
    assert target.stop() == 0


def test_a_copy_that_was_changed_is_called_different(tmp_path: Path, original: Collector) -> None:
    (tmp_path / "to").mkdir()
    target = Collector(tmp_path / "to" / "data").start()
    assert migrate(original, target, "--run", "base").code == 0
    assert target.statctl("noise", "rm", "base").code == 0
    assert target.statctl("keep", "base", "--off").code == 0
    done = target.statctl("runs")
    done = migrate(original, target, "--run", "base", "--format", "json")
    answer = done.json()
    assert done.code == 1 and answer["same"] is False, answer
    assert sorted(answer["runs"][0]["differences"]) == [
        "document noise from byte 0: the target lacks it",
        "exemption from retention: differs",
    ]
    assert target.stop() == 0


def test_only_admin_tokens_may_copy(tmp_path: Path, original: Collector) -> None:
    (tmp_path / "to").mkdir()
    tokens = Tokens(tmp_path / "to" / "data")
    weak = tokens.file("weak.token", tokens.create("ingest,read,capture,control,delete"))
    strong = tokens.file("strong.token", tokens.create("ingest,read,admin"))
    target = Collector(tokens.data_dir).start()
    env = dict(os.environ)
    command = [str(STATCTL), "--collector", original.address, "migrate", "--to", target.address, "--run", "plain"]
    refused = run_command(command, env=env)
    assert refused.code == 2 and "token" in refused.err, refused
    refused = run_command([*command, "--to-token-file", str(weak)], env=env)
    assert refused.code == 2 and "admin" in refused.err, refused
    done = run_command([*command, "--to-token-file", str(strong)], env=env)
    assert done.code == 0 and "SAME" in done.out, done
    audit = run_command([str(STATCTL), "--collector", target.address, "--token-file", str(strong), "audit"], env=env)
    assert "BeginCopy" in audit.out and "plain" in audit.out
    assert target.stop() == 0
