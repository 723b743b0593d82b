"""What the collector acknowledged survives its crash; what agents produced is accounted for to the last record."""

from __future__ import annotations

import subprocess
from pathlib import Path

from conftest import Collector, Gates, start_python, wait_until

STEADY = """
import numpy, os, statagent, sys, time
agent = statagent.init(run=sys.argv[1], required=True)
steps = int(sys.argv[2])
def check():
    c = statagent.counters()
    assert c["produced"] == c["acked"] + c["pending"] + sum(v for k, v in c.items() if k.startswith("dropped_")), c
    return c
gates = os.environ.get("GATES")
for step in range(steps):
    while gates and os.path.exists(f"{gates}/{step}"): time.sleep(0.01)
    for i in range(50):
        statagent.inspect(f"layer.{i}", numpy.full(16, step * 100 + i, numpy.float32))
    statagent.log_scalar("loss", 1.0 / (step + 1))
    statagent.step()
    check()
    time.sleep(0.01)
statagent.close(timeout=30)
c = check()
print(c["produced"], c["acked"], c["pending"])
"""


def start(collector: Collector, run: str, steps: int, **env: str) -> subprocess.Popen[str]:
    late = {"STATAGENT_CONNECT_TIMEOUT": "20"}  # on a busy machine the first answer takes longer than it normally may
    return start_python(["-c", STEADY, run, str(steps)], env=collector.environment(**late | env), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def test_killed_collector_loses_and_doubles_nothing(collector: Collector) -> None:
    steps = 200
    trainer = start(collector, "kills", steps)
    for round_ in range(3):
        records = wait_until(
            lambda least=(round_ + 1) * 500: next(
                (r["records"] for r in collector.json("runs")["runs"] if int(r["records"]) >= least), 0
            ),
            what="records",
        )
        assert records
        collector.kill()
        collector.start()
    out, err = trainer.communicate(timeout=60)
    assert trainer.returncode == 0, err
    produced, acked, pending = map(int, out.split())
    assert produced == acked == steps * 52 and pending == 0  # 50 tensors, a scalar and the step's end
    assert collector.json("show", "kills")["attempts"][0]["ranks"][0]["records"] == produced
    for name in ("layer.0", "layer.49"):
        points = collector.json("series", "kills", name)["records"]
        offset = int(name.split(".")[1])
        assert [(p["step"], p["stats"]["max"]) for p in points] == [(s, s * 100 + offset) for s in range(steps)]


def test_many_ranks_at_once_never_collide(collector: Collector) -> None:
    world = 12
    trainers = [
        start(collector, "wide", 10, RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank)) for rank in range(world)
    ]
    for trainer in trainers:
        out, err = trainer.communicate(timeout=120)
        assert trainer.returncode == 0, err
        assert out.split()[0] == out.split()[1] == str(10 * 52)
    ranks = collector.json("show", "wide")["attempts"][0]["ranks"]
    assert [(r["rank"], r["records"]) for r in ranks] == [(rank, 10 * 52) for rank in range(world)]


def test_sigterm_drains_and_exits_0(collector: Collector) -> None:
    steps = 300
    trainers = {run: start(collector, run, steps) for run in ("drain", "drain2", "drain3")}
    wait_until(lambda: len([r for r in collector.json("runs")["runs"] if int(r["records"]) > 0]) == 3, 60, "three runs")
    durable = {r["run"]: int(r["records"]) for r in collector.json("runs")["runs"]}
    assert collector.stop() == 0, "in the middle of three streams"
    collector.start()
    kept = {r["run"]: int(r["records"]) for r in collector.json("runs")["runs"]}
    assert all(kept[run] >= records for run, records in durable.items())
    for run, trainer in trainers.items():
        out, err = trainer.communicate(timeout=60)
        assert trainer.returncode == 0, err
        assert out.split() == [str(steps * 52), str(steps * 52), "0"]
        assert collector.json("show", run)["attempts"][0]["ranks"][0]["records"] == steps * 52


def test_sigterm_right_after_the_ready_line_is_a_clean_stop(collector: Collector) -> None:
    for _ in range(8):
        assert collector.stop() == 0
        collector.start()


def test_health_and_metrics_answer_over_http(collector: Collector) -> None:
    assert "ok" in collector.get("/healthz").lower()
    assert collector.get("/readyz")
    out, err = start(collector, "metrics", 5).communicate(timeout=60)
    assert out, err
    metrics = collector.get("/metrics")
    assert any(
        line.startswith("statcollect_records_total ") and int(float(line.split()[1])) == 260 for line in metrics.splitlines()
    ), metrics
    assert "statcollect" in collector.get("/")


def test_killed_rank_leaves_what_was_acknowledged(collector: Collector) -> None:
    trainer = start(collector, "victim", 100000)
    wait_until(lambda: any(r["records"] > 300 for r in collector.json("runs")["runs"]), what="records")
    trainer.kill()
    trainer.communicate()
    wait_until(lambda: collector.json("runs")["runs"][0]["state"] == "interrupted", what="state interrupted")
    points = collector.json("series", "victim", "layer.0")["records"]
    assert [p["step"] for p in points] == list(range(len(points))) and points


def test_data_of_a_stopped_collector_is_there_again(collector: Collector, tmp_path: Path) -> None:
    out, err = start(collector, "kept", 3).communicate(timeout=60)
    assert out, err
    before = collector.json("series", "kept", "layer.7")
    assert collector.stop() == 0
    collector.start()
    assert collector.json("series", "kept", "layer.7") == before


def test_steps_to_record_can_be_changed_while_the_run_goes_on(collector: Collector, tmp_path: Path) -> None:
    gates = Gates(tmp_path / "gates", 40)
    trainer = start(collector, "looked-at", 200, **gates.environment())
    wait_until(lambda: any(r["records"] > 100 for r in collector.json("runs")["runs"]), what="records")
    told = collector.statctl("record", "looked-at", "--steps", "every=50")
    assert told.code == 0, told.err
    gates.open(40)
    _, err = trainer.communicate(timeout=60)
    assert trainer.returncode == 0, err
    steps = [p["step"] for p in collector.json("series", "looked-at", "layer.0")["records"]]
    changed = collector.json("events", "looked-at")["records"]
    assert [(e["kind"], e["fields"]) for e in changed] == [("recording_changed", {"steps": "every=50"})]
    at = changed[0]["step"]
    assert steps[: at + 1] == list(range(at + 1)) and at < 199, "all up to the step in which the wish arrived"
    assert steps[at + 1 :] == [s for s in range(at + 1, 200) if s % 50 == 0]
