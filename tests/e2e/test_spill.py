"""A collector that is away for long costs nothing with a spill file: what the memory cannot hold is sent later, once and in order."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Collector, run_command, start_python

TENSORS = 200  # a step
PER_STEP = TENSORS + 2  # and a scalar and the step's end

# The memory holds 4,000 records and 8 batches of 50 ms; the load is several times that.
LOADED = f"""
import numpy, os, statagent, sys, time
statagent.init(run=sys.argv[1], if_exists=sys.argv[3], buffer_records_max=4000, connect_timeout=0.5)
def check():
    c = statagent.counters()
    assert c["produced"] == c["acked"] + c["pending"] + sum(v for k, v in c.items() if k.startswith("dropped_")), c
    assert c.get("spilled", 0) <= c["pending"], c
    return c
values = [numpy.full(16, float(i), dtype="float32") for i in range({TENSORS})]
hold = int(os.environ.get("HOLD", -1))
for step in range(int(sys.argv[2])):
    if step == hold: sys.stdin.readline()
    for i, value in enumerate(values):
        value[0] = step
        statagent.inspect(f"layer.{{i}}", value)
    statagent.log_scalar("loss", 1.0 / (step + 1))
    statagent.step()
    check()
    print(step, flush=True)
    time.sleep(0.02)
if sys.argv[4] != "die":
    statagent.close(timeout=float(sys.argv[4]))
    import json
    print(json.dumps(check()), flush=True)
else:
    time.sleep(60)
"""


class Trainer:
    """A training whose steps can be waited for."""

    def __init__(
        self, collector: Collector, spill: Path | str, run: str, steps: int, close: str, if_exists: str = "error", **env: str
    ) -> None:
        self.process = start_python(
            ["-c", LOADED, run, str(steps), if_exists, close],
            env=collector.environment(STATAGENT_SPILL_DIR=str(spill), **env), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip

    def await_step(self, step: int) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if int(line) >= step:
                return
        raise AssertionError(f"ended before step {step}: {self.process.communicate()[1]}")

    def go_on(self) -> None:
        """It waited before step HOLD."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> tuple[dict[str, int], str]:
        """Its last counters and standard error."""
        out, err = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, err
        found: dict[str, int] = json.loads(out.splitlines()[-1])
        return found, err

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


SMALL_DISK_BYTES = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 1 MiB. Needs root, as the tests of the collector's full disk do."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = run_command(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "statagent-test", str(folder)])
    assert mounted.code == 0, mounted.err
    yield folder
    run_command(["umount", "--lazy", str(folder)])


def files(spill: Path) -> list[Path]:
    return sorted(spill.glob("*.spill"))


def rank_of(collector: Collector, run: str, attempt: int = 0, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = collector.json("show", run)["attempts"][attempt]["ranks"][rank]
    return found


def check_stored(collector: Collector, run: str, steps: int) -> None:
    """Every step once, in order, with its own value."""
    for i in (0, TENSORS // 2, TENSORS - 1):
        points = collector.json("series", run, f"layer.{i}")["records"]
        assert [p["step"] for p in points] == list(range(steps))
        assert [p["stats"]["max"] for p in points] == [max(step, i) for step in range(steps)]


def check_prefix(collector: Collector, run: str) -> int:
    """Steps of a rank that was cut off: no gaps, the last one perhaps in part. Returns it."""
    last = int(rank_of(collector, run)["last_step"])
    for i in (0, TENSORS // 2, TENSORS - 1):
        points = collector.json("series", run, f"layer.{i}")["records"]
        assert [p["step"] for p in points] == list(range(len(points))) and last <= len(points) <= last + 1
    return last


def spill_events(collector: Collector, run: str) -> list[str]:
    return [e["kind"] for e in collector.json("events", run)["records"] if "spill" in e["kind"]]


def test_a_long_outage_under_load_loses_nothing(collector: Collector, tmp_path: Path) -> None:
    spill, steps = tmp_path / "spill", 160
    trainer = Trainer(collector, spill, "long", steps, "60")
    trainer.await_step(10)
    assert collector.stop() == 0
    trainer.await_step(120)  # 22,000 records
    (file,) = files(spill)
    assert file.stat().st_mode & 0o777 == 0o600
    collector.start()
    counters, err = trainer.end()
    assert counters["produced"] == counters["acked"] == steps * PER_STEP + 1, (counters, err)
    assert counters["pending"] == 0 and "spilled" not in counters
    assert not files(spill)
    assert rank_of(collector, "long")["records"] == steps * PER_STEP + 1
    assert spill_events(collector, "long") == ["records_spilled"]
    check_stored(collector, "long", steps)


def test_without_a_spill_file_the_same_outage_loses_records_and_counts_them(collector: Collector, tmp_path: Path) -> None:
    trainer = Trainer(collector, "", "short", 100, "60")
    trainer.await_step(10)
    assert collector.stop() == 0
    trainer.await_step(80)
    collector.start()
    counters, _ = trainer.end()
    assert counters["dropped_buffer_full"] > 1000 and counters["pending"] == 0


def test_what_two_ranks_could_not_send_before_they_ended_is_imported_once(collector: Collector, tmp_path: Path) -> None:
    spill, steps = tmp_path / "spill", 60
    trainers = [
        Trainer(collector, spill, "ended", steps, "0.5", RANK=str(rank), WORLD_SIZE="2", STATAGENT_LAUNCH="one", HOLD="15")
        for rank in range(2)
    ]
    for trainer in trainers:
        trainer.await_step(10)
    collector.kill()
    for trainer in trainers:
        trainer.go_on()
    for trainer in trainers:
        counters, err = trainer.end()
        assert counters["pending"] == counters["spilled"] > (steps - 15) * PER_STEP
        assert counters["acked"] + counters["pending"] == counters["produced"] == steps * PER_STEP + 1  # records_spilled
        assert f"statctl move import spill {spill}" in err
    assert len(files(spill)) == 2
    for file in files(spill):
        shutil.copy(file, file.with_suffix(".copy"))
    collector.start()

    dry = collector.json("import", "spill", str(spill), "--dry-run")["files"]
    assert [(f["run"], f["rank"], f["result"]) for f in dry] == [("ended", rank, "would send") for rank in range(2)]
    assert len(files(spill)) == 2, "a dry run leaves everything"
    sent = collector.json("import", "spill", str(spill))["files"]
    assert all(f["ok"] and f["result"] == "sent" for f in sent), sent
    assert not files(spill)
    for rank in range(2):
        assert rank_of(collector, "ended", rank=rank)["records"] == steps * PER_STEP + 1
    assert collector.json("runs")["runs"][0]["state"] == "finished", "their goodbyes were in the files"
    for i in (0, TENSORS - 1):
        points = collector.json("series", "ended", f"layer.{i}")["records"]
        assert [(p["rank"], p["step"]) for p in points] == [(rank, step) for rank in range(2) for step in range(steps)]

    for file in spill.glob("*.copy"):
        again = collector.json("import", "spill", str(file))["files"][0]
        assert again["already_stored"] == again["records"] > 0
    assert rank_of(collector, "ended")["records"] == steps * PER_STEP + 1
    nothing = collector.statctl("import", "spill", str(spill))
    assert nothing.code == 2 and "no file *.spill" in nothing.err


def test_a_killed_training_leaves_a_gap_free_prefix(collector: Collector, tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    trainer = Trainer(collector, spill, "killed", 60, "die")
    trainer.await_step(10)
    collector.kill()
    collector.start()  # on another day: away for the training
    assert collector.stop() == 0
    trainer.await_step(50)
    in_use = collector.json("import", "spill", str(spill), "--dry-run")["files"][0]
    assert in_use["result"].startswith("in use")
    trainer.kill()
    with files(spill)[0].open("ab") as file:  # torn in the middle of a frame
        file.write(files(spill)[0].read_bytes()[-40:-20])
    collector.start()
    sent = collector.json("import", "spill", str(spill))["files"][0]
    assert sent["ok"] and "incomplete when the process ended" in sent["result"], sent
    assert check_prefix(collector, "killed") >= 45
    assert collector.json("runs")["runs"][0]["state"] == "interrupted"


def test_records_of_an_older_attempt_go_to_that_attempt(collector: Collector, tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    first = Trainer(collector, spill, "twice", 40, "0.5")
    first.await_step(5)
    collector.kill()
    counters, _ = first.end()
    collector.start()
    second = Trainer(collector, spill, "twice", 3, "60", if_exists="append")
    second.end()
    assert collector.statctl("import", "spill", str(spill)).code == 0
    assert rank_of(collector, "twice", attempt=0)["records"] == counters["produced"]
    assert rank_of(collector, "twice", attempt=1)["records"] == 3 * PER_STEP


def test_a_training_that_never_met_its_collector_can_be_sent_under_another_name(collector: Collector, tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    assert collector.stop() == 0
    for _ in range(2):
        Trainer(collector, spill, "taken", 10, "0.2").end()
    collector.start()
    first, second = files(spill)
    assert collector.json("import", "spill", str(first))["files"][0]["result"] == "sent"
    refused = collector.statctl("import", "spill", str(second))
    assert refused.code == 2 and "the name is taken" in refused.out, refused
    assert second.exists()
    assert collector.statctl("import", "spill", str(second), "--run", "free").code == 0
    for run in ("taken", "free"):
        check_stored(collector, run, 10)


def test_a_damaged_file_is_sent_up_to_the_damage_and_left(collector: Collector, tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    assert collector.stop() == 0
    Trainer(collector, spill, "damaged", 40, "0.2").end()
    collector.start()
    (file,) = files(spill)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    refused = collector.statctl("import", "spill", str(spill))
    assert refused.code == 2 and "damaged" in refused.out
    assert file.exists()
    assert 5 < check_prefix(collector, "damaged") < 39
    head = file.with_name("head.spill")
    content[3] ^= 1
    head.write_bytes(content)
    assert "not a spill file" in collector.statctl("import", "spill", str(head)).out
    os.mkfifo(spill / "pipe.spill")
    assert "not a regular file" in collector.statctl("import", "spill", str(spill)).out, "and it does not wait for a writer"


def test_a_full_disk_is_said_and_counted_and_the_training_goes_on(collector: Collector, small_disk: Path) -> None:
    steps = 120
    trainer = Trainer(collector, small_disk / "spill", "full", steps, "60")
    trainer.await_step(10)
    collector.kill()
    trainer.await_step(100)
    assert sum(f.stat().st_size for f in files(small_disk / "spill")) <= SMALL_DISK_BYTES
    collector.start()
    counters, _ = trainer.end()
    assert counters["dropped_buffer_full"] > 0 and counters["pending"] == 0, counters
    assert counters["acked"] > 2 * SMALL_DISK_BYTES // 512  # more than the memory could hold
    told = {e["kind"]: e["text"] for e in collector.json("events", "full")["records"]}
    assert "No space left on device" in told["spill_failed"]
    assert not files(small_disk / "spill")
    assert rank_of(collector, "full")["records"] == counters["acked"]
    shown = [p["step"] for p in collector.json("series", "full", "layer.0")["records"]]
    assert shown == sorted(set(shown))


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(collector: Collector, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = collector.python(
        "import statagent; statagent.init(run='r')", env={"STATAGENT_SPILL_DIR": str(tmp_path / "file")}, code=1
    )
    assert "spill_dir" in done.err and "InvalidArgumentError" in done.err
    done = collector.python("import statagent; statagent.init(run='r', spill_dir='.', spill_limit='3')", code=1)
    assert "spill_limit is '3'" in done.err and "64MiB" in done.err
